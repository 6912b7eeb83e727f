#!/usr/bin/env bash
# The example pair on gangs of two and three ranks, forked and by mpirun: the artefacts of one rank, hash by hash; and a
# gang that is killed and goes on.
# Output is TAP; usage: test_gang.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-gang-${1##*/}
rm -rf "$work" && mkdir -p "$work"
zoo=$PWD/tests/zoo
export KVMILL_THREADS=1
. tests/e2e/tap.sh

cat >"$work/pair.yaml" <<SPEC
name: small-large
source: $zoo/small
target: $zoo/large
calibration: {text: calibration, sequences: 12, tokens: 64}
fit: {allow_wide: true, k_most: 2}
distill: {steps: 2, validate: 1, batch: 3, after: 16}
evaluate: {suites: [facts-qa, facts-mc], items: 5}
SPEC

# gates may say no (exit 3) on so little text: that is a result, not a failure
run() { # run STORE OPTION...
    local store=$1
    shift
    "$kvmill" run "$work/pair.yaml" --store "$work/$store" --quiet "$@" >"$work/log" 2>&1
    local s=$?
    [ $s = 0 ] || [ $s = 3 ]
}

# label, output and hash of all results that do not say how fast they were made
results() {
    "$kvmill" jobs artefacts --json --store "$work/$1" | tr -d ' ",' |
        awk -F: '/^(label|output|sha):/ {v[$1]=$2} /^sha:/ {last=1} /^}/ && last {print v["label"], v["output"], v["sha"]; last=0}' |
        grep -vE ' cost |^distill.* figures |^report' | sort -u
}

run one
ok $? "one rank"
results one >"$work/one.txt"
[ "$(grep -c . "$work/one.txt")" -ge 10 ]
ok $? "which leaves artefacts"

run two --ranks 2
ok $? "a gang of two"
results two | diff "$work/one.txt" - >"$work/log"
ok $? "has the artefacts of one rank"
grep -q 'ranks=2' "$work"/two/logs/*.log
ok $? "and there were two"

run three --ranks 3
ok $? "a gang of three"
results three | diff "$work/one.txt" - >"$work/log"
ok $? "has the artefacts of one rank"

run mpi --ranks 2 --launcher mpirun --launch-args '--mca btl self,vader'
ok $? "a gang of two by mpirun"
results mpi | diff "$work/one.txt" - >"$work/log"
ok $? "has the artefacts of one rank"

run layers --ranks 2 --launcher mpirun --launch-args '--mca btl self,vader' --memory 1
ok $? "a gang of two by mpirun whose ranks hold 1 MiB of weights"
results layers | diff "$work/one.txt" - >"$work/log"
ok $? "has the artefacts of one rank"
[ "$(grep -l 'event=capture.layers' "$work"/layers/logs/*.log | wc -l)" = 2 ]
ok $? "and has dealt out the layers of both models"

run one --ranks 2 && [ "$(results one | wc -l)" = "$(grep -c . "$work/one.txt")" ]
ok $? "what one rank has done is not done again"

for i in 1 2 3; do
    "$kvmill" run "$work/pair.yaml" --store "$work/killed" --quiet --ranks 2 >"$work/log" 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 9 + 1))"
    kill -9 $pid
    wait $pid 2>/dev/null
done
run killed
ok $? "killed three times, one rank goes on"
results killed | diff "$work/one.txt" - >"$work/log"
ok $? "to the artefacts of one rank"

"$kvmill" run "$work/pair.yaml" --store "$work/x" --ranks 2 --launcher rsh >"$work/log" 2>&1
[ $? = 2 ] && grep -q 'fork, mpirun, srun, sbatch' "$work/log"
ok $? "a launcher that there is not is refused, and those there are named"
"$kvmill" run "$work/pair.yaml" --store "$work/x" --ranks 65 >"$work/log" 2>&1
[ $? = 2 ] && grep -q -e --ranks "$work/log"
ok $? "so are more ranks than there can be"

echo "1..$n"
