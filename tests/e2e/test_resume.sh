#!/usr/bin/env bash
# A distillation and an analysis, killed at each of their checkpoints: what they leave is what
# undisturbed ones leave, bit for bit. Output is TAP; usage: test_resume.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-resume-${1##*/}
rm -rf "$work" && mkdir -p "$work"
zoo=$PWD/tests/zoo
export KVMILL_THREADS=2
. tests/e2e/tap.sh

cat >"$work/pair.yaml" <<END
name: small-large
source: $zoo/small
target: $zoo/large
calibration: {text: calibration, sequences: 24, tokens: 64}
fit: {k: 1, lambda: 1e-2, sweep: false, allow_wide: true}
distill: {steps: 40, validate: 1, batch: 2, lessons: 4, after: 16}
analyse: {suites: [facts-mc], items: 12, tail_lengths: [], inversion: false}
END

# results STORE - hashes of the distilled translator and of the items' scores
results() {
    "$kvmill" jobs artefacts --json --store "$work/$1" | tr -d ' ",' |
        awk -F: '/^(label|output|sha):/ {v[$1]=$2} /^sha:/ {last=1} /^}/ && last {print v["label"], v["output"], v["sha"]; last=0}' |
        grep -E '^(distill.* translator|analyse.* items) ' | sort -u
}
run() { # run STORE - gates may say no (exit 3)
    "$kvmill" run "$work/pair.yaml" --store "$work/$1" --quiet >"$work/log" 2>&1
    local status=$?
    [ $status = 0 ] || [ $status = 3 ]
}
# killed_at FILE LINES - a run of store b, killed when a job's FILE has so many lines; a
# second one finds the first one's lease held until it is seen to be dead
killed_at() {
    "$kvmill" run "$work/pair.yaml" --store "$work/b" --quiet >"$work/log" 2>&1 &
    local pid=$! lines
    while kill -0 $pid 2>/dev/null; do
        lines=$(find "$work/b/work" -name "$1" -exec cat {} + 2>/dev/null | wc -l)
        if [ "$lines" -ge "$2" ]; then
            kill -9 $pid
            wait $pid 2>/dev/null
            return 0
        fi
        sleep 0.02
    done
    return 1
}

run a
ok $? "a run with a distillation and an analysis"
sum=0
killed_at distill.checkpoint 1 && sum=$((sum + 1))
[ "$(find "$work/b/work" -name distill.checkpoint | wc -l)" = 1 ]
ok $? "killed in its distillation, it leaves a checkpoint"
killed_at items.jsonl 1 && sum=$((sum + 1))
killed_at items.jsonl 2 && sum=$((sum + 1))
[ $sum = 3 ]
ok $? "... and is killed twice in its analysis"
run b
ok $? "killed $sum times, it goes on to its end"
results a >"$work/a.txt"
results b >"$work/b.txt"
[ "$(wc -l <"$work/a.txt")" = 2 ] && diff "$work/a.txt" "$work/b.txt" >"$work/log"
ok $? "the distilled translator and every item's scores are the same bits"
echo "1..$n"
