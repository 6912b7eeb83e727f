#!/usr/bin/env bash
# What `make real` writes before it runs: its cut of a text that repeats itself, names of
# its own, and nothing when it is refused. Output is TAP; usage: test_real.sh BUILD-DIR
set -u
root=$PWD
kvmill=$root/$1/kvmill
work=$root/build/tmp/e2e-real-${1##*/}
rm -rf "$work" && mkdir -p "$work"
export KVMILL_THREADS=2 ITEMS=6
unset KVMILL_DATA
. tests/e2e/tap.sh

# the program, but for the run itself
cat >"$work/kvmill" <<END
#!/bin/sh
[ "\$1" = run ] && echo "would run \$2" && exit 0
exec "$kvmill" "\$@"
END
chmod +x "$work/kvmill"

# a corpus with a licence before every part of it, also in the fifth that is held out
licence=$(for i in 1 2 3 4 5 6 7 8; do
    printf 'You may copy, give away or use part %d of this text under its terms. ' $i
done)
sed 's/.*"text": *"//; s/"[^"]*$//; s/\\n/ /g; s/\\"//g' jobs/suites/calibration.jsonl |
    awk -v licence="$licence" 'NR % 6 == 1 { print licence } { print }' >"$work/corpus.txt"

real() { # real SOURCE TARGET TEXT - in $work
    (cd "$work" && timeout 300 "$root/scripts/real" "$work/kvmill" "$@") >"$work/log" 2>&1
}

real "$root/README.md" "$root/tests/zoo/large" "$work/corpus.txt"
[ $? != 0 ] && [ ! -e "$work/build" ]
ok $? "what is no checkpoint leaves no folder"
cp -r "$root/tests/zoo/large" "$work/other"
sed -i 's/<|im_start|>/<|im_begin|>/' "$work/other/tokenizer.json"
real "$root/tests/zoo/small" "$work/other" "$work/corpus.txt"
[ $? != 0 ] && [ ! -e "$work/build" ] && grep -q 'do not share a tokenizer' "$work/log"
ok $? "nor does a pair that is refused, for its tokenizers"
real "$root/tests/zoo/small" "$root/tests/zoo/kda" "$work/corpus.txt" &&
    grep -q 'would run build/real/small-kda/pair.yaml' "$work/log"
ok $? "a pair of unlike layers is planned"
rm -rf "$work/build"
real "$root/tests/zoo/small" "$root/tests/zoo/large" "$work/corpus.txt" &&
    grep -q 'would run build/real/small-large/pair.yaml' "$work/log" &&
    grep -q 'in all, estimated' "$work/log"
ok $? "a text that repeats itself is planned"
grep -qE '^[1-9][0-9]* left out: 48 tokens in a row also stand in' "$work/log"
ok $? "... and says how many items were left out"
grep -q '^name: "real-small-large"' "$work/build/real/small-large/pair.yaml" &&
    grep -q '^reverse_name: "real-large-small"' "$work/build/real/small-large/pair.yaml" &&
    [ ! -e "$work/build/real/small-large.new" ]
ok $? "the pair has a name of its own"
echo "1..$n"
