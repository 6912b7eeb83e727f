#!/usr/bin/env bash
# kvmill gc: counts, removes, is killed, runs beside a run; the store works on.
# Output is TAP; usage: test_gc.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-gc-${1##*/}
rm -rf "$work" && mkdir -p "$work"
zoo=$PWD/tests/zoo
export KVMILL_THREADS=2
. tests/e2e/tap.sh

spec() { # spec FILE FIT
    cat >"$work/$1" <<END
name: small-large
source: $zoo/small
target: $zoo/large
calibration: {text: calibration, sequences: 24, tokens: 128}
fit: $2
evaluate: {suites: [prose], items: 3, attention_items: 1}
END
}

run() { # run STORE SPEC - gates may say no (exit 3)
    "$kvmill" run "$work/$2" --store "$work/$1" --quiet >"$work/log" 2>&1
    local s=$?
    [ $s = 0 ] || [ $s = 3 ]
}

gc() { "$kvmill" gc --store "$work/a" "$@" >"$work/log" 2>&1; }
gone() { sed -n 's/^  "bytes": \([0-9]*\).*/\1/p' "$work/log"; }
objects() { find "$work/$1/objects" -type f | sort; }

"$kvmill" gc --store "$work/none" >"$work/log" 2>&1
[ $? = 4 ] && grep -q 'no catalogue' "$work/log" && [ ! -e "$work/none" ]
ok $? "without a catalogue nothing is garbage"

spec pair.yaml '{}'
run a pair.yaml && objects a >"$work/named" && gc --dry-run --hours 0 && grep -q 'would remove 0 things' "$work/log"
ok $? "a finished run leaves no garbage"

mkdir -p "$work/a/objects/ab" "$work/a/work/999/dir"
echo orphan >"$work/a/objects/ab/$(printf 'c%.0s' $(seq 62))"
echo torn >"$work/a/objects/ab/$(printf 'd%.0s' $(seq 62)).1-2.tmp"
echo torn >"$work/a/reports/x.html.1-2.tmp"
echo rows >"$work/a/work/999/dir/rows"
sleep 1.2
gc --json && [ "$(gone)" = 0 ]
ok $? "what is young stays"
gc --hours 0 --dry-run --json && [ "$(gone)" = 22 ] && [ "$(grep -c '"what"' "$work/log")" = 4 ] && [ -e "$work/a/work/999/dir/rows" ]
ok $? "a dry run names everything and its bytes, and removes nothing"
KVMILL_FAULT=in_sweep:2 "$kvmill" gc --store "$work/a" --hours 0 >"$work/log" 2>&1
[ $? = 137 ] && "$kvmill" run "$work/pair.yaml" --store "$work/a" >"$work/log" 2>&1 && grep -q 'nothing to do' "$work/log"
ok $? "killed in the middle, the store works"
gc --hours 0 && ! grep -q 'removed 0' "$work/log" && objects a | diff - "$work/named" >"$work/log" && [ ! -e "$work/a/work/999" ]
ok $? "the next one takes the rest, and only that"
"$kvmill" report --store "$work/a" >"$work/log" 2>&1
ok $? "reports come out of the store again"

spec lambda.yaml '{lambda: 1e-2}'
run a lambda.yaml &
pid=$!
while kill -0 $pid 2>/dev/null; do
    "$kvmill" gc --store "$work/a" --hours 0 >>"$work/beside" 2>&1 || echo "gc failed" >>"$work/beside"
done
wait $pid && ! grep -q 'gc failed' "$work/beside" && "$kvmill" jobs list --store "$work/a" --json | grep -q '"attempt": 1' &&
    ! "$kvmill" jobs list --store "$work/a" --json | grep -q '"attempt": 2'
ok $? "beside a run it takes nothing that the run holds"
gc --hours -1
[ $? = 2 ] && grep -q -- '--hours' "$work/log"
ok $? "an age below 0 is refused"
echo "1..$n"
