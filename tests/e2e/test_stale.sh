#!/usr/bin/env bash
# A changed checkpoint or suite item: submitted again, just what depends on it is done anew, and the
# run before says why. Output is TAP; usage: test_stale.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-stale-${1##*/}
rm -rf "$work" && mkdir -p "$work"
export KVMILL_THREADS=2
. tests/e2e/tap.sh

cp -r tests/zoo/small "$work/small"
cp jobs/suites/prose.yaml "$work/mine.yaml"
cp jobs/suites/prose.jsonl "$work/"
sed -i 's/^name: .*/name: mine/' "$work/mine.yaml"
cat >"$work/pair.yaml" <<END
name: small-large
source: small
target: $PWD/tests/zoo/large
calibration: {text: calibration, sequences: 24, tokens: 128}
evaluate: {suites: [mine.yaml], items: 2}
END

# done_anew SUCCEEDED REUSED - the spec is submitted, and a worker does just so much
done_anew() {
    "$kvmill" submit "$work/pair.yaml" --store "$work/a" >"$work/said" 2>&1 &&
        "$kvmill" worker --quiet --json --store "$work/a" >"$work/log" 2>&1 &&
        tr -d ' \n' <"$work/log" | grep -q "\"succeeded\":$1,\"reused\":$2,"
}
pairs() { "$kvmill" pairs list --store "$work/a" >"$work/log" 2>&1; }

done_anew 7 0 && ! grep -q 'is stale' "$work/said"
ok $? "a run of seven steps"
# the last number of the weights, a little greater or less
weights=$(ls "$work"/small/*.safetensors | tail -n 1)
at=$(($(wc -c <"$weights") - 2))
byte=$(tail -c 2 "$weights" | head -c 1 | od -An -tu1)
printf "\\$(printf %03o $((byte ^ 64)))" | dd of="$weights" bs=1 seek=$at conv=notrunc 2>/dev/null
done_anew 6 1
ok $? "a byte of the source's weights: all but the target's capture is done anew"
grep -q 'run 1 is stale: capture small: the checkpoint changed (weights)' "$work/said" && pairs &&
    grep -q ' 1 .*capture small: the checkpoint changed (weights)' "$work/log"
ok $? "... and the run before says why"
sed -i '1s/"continuation": *"/&x/' "$work/prose.jsonl"
done_anew 2 5 && grep -q 'run 2 is stale: .*evaluate mine: the suite changed' "$work/said"
ok $? "an item of the suite: only the scores and the report are"
done_anew 0 0 && ! grep -q 'is stale' "$work/said"
ok $? "nothing changed, nothing done"
sed -i '1s/"continuation": *"/&y/' "$work/prose.jsonl"
"$kvmill" submit --refresh --json --store "$work/a" >"$work/log" 2>&1 && grep -q 'run 3 is stale' "$work/log" &&
    "$kvmill" worker --quiet --json --store "$work/a" >"$work/log" 2>&1 && grep -q '"succeeded": 2' "$work/log"
ok $? "all known specs submitted at once: what has changed is noticed without naming it"
rm "$work/pair.yaml"
"$kvmill" submit --refresh --store "$work/a" >"$work/log" 2>&1
[ $? = 2 ] && grep -q pair.yaml "$work/log"
ok $? "... and a spec that has gone is told"
echo "1..$n"
