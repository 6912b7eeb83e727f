#!/usr/bin/env bash
# The whole job on the example pair, small: run, run again, change lambda, kill -9 and go on, chat.
# Output is TAP; usage: test_run.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-run-${1##*/}
rm -rf "$work" && mkdir -p "$work"
zoo=$PWD/tests/zoo
export KVMILL_THREADS=2
. tests/e2e/tap.sh

# A sanitizer makes each step ten to fifty times slower and looks at every access of any size.
prose=prose
case $1 in
*san*)
    sequences=8 tokens=128 items=2 lengths=64 prose=prose.yaml
    cat README.md docs/*.md >"$work/text"
    "$kvmill" suites import text "$work/text" --out "$work/prose.yaml" --tokens 32 --limit 2 \
        --tokenizer "$zoo/small" --licence Apache-2.0 >"$work/log" 2>&1
    ;;
*) sequences=24 tokens=256 items=5 lengths='64, 256' ;;
esac
spec() { # spec FILE FIT - a pair that takes seconds
    cat >"$work/$1" <<EOF
name: small-large
source: $zoo/small
target: $zoo/large
both_directions: true
calibration: {text: calibration, sequences: $sequences, tokens: $tokens}
fit: $2
mlp: {hidden: 16, epochs: 2, batch: 512}
evaluate: {suites: [$prose, facts-mc, facts-qa, needle], items: $items, attention_items: 2, ablations: [rotated, k1]}
timing: {lengths: [$lengths], rounds: 3, warmups: 1}
EOF
}

# gates may say no (exit 3) on so little text: that is a result, not a failure
run() { # run STORE SPEC...
    local store=$1
    shift
    "$kvmill" run "$work/$1" --store "$work/$store" --quiet >"$work/log" 2>&1
    local s=$?
    [ $s = 0 ] || [ $s = 3 ]
}

# what must be the same bits whenever and wherever it is computed: not the costs, not the timings
results() {
    "$kvmill" jobs artefacts --json --store "$work/$1" | tr -d ' ",' |
        awk -F: '/^(label|output|sha):/ {v[$1]=$2} /^sha:/ {last=1} /^}/ && last {print v["label"], v["output"], v["sha"]; last=0}' |
        grep -vE ' (cost|timing|html|json|csv)' | sort -u
    local pair
    for pair in small-large large-small; do # the catalogue's means of the scores
        "$kvmill" pairs show $pair --json --store "$work/$1" | tr -d ' ",' |
            awk -F: '/^(pair|suite|arm|metric|items|mean):/ {v[$1]=$2}
                /^}/ {print v["pair"], v["suite"], v["arm"], v["metric"], v["items"], v["mean"]}'
    done | sort -u
}

spec pair.yaml '{}'
run a pair.yaml
ok $? "a spec becomes a report"
test -s "$work/a/reports/small-large.html" && test -s "$work/a/reports/large-small.json"
ok $? "both directions have a page and its data"
sed -n 2p "$work/a/reports/small-large.ablations.csv" | grep -q 'complete closed form'
ok $? "what ablations are compared with stands first"
[ "$("$kvmill" jobs list --store "$work/a" --json | grep -c '"kind": "capture"')" = 4 ] &&
    [ "$("$kvmill" jobs list --store "$work/a" --json --state skipped | grep -c '"kind": "capture"')" = 2 ]
ok $? "two captures ran, two were reused"

before=$("$kvmill" jobs list --store "$work/a" --json | grep -c '"job"')
"$kvmill" run "$work/pair.yaml" --store "$work/a" >"$work/log" 2>&1
grep -q 'nothing to do' "$work/log" &&
    [ "$before" = "$("$kvmill" jobs list --store "$work/a" --json | grep -c '"job"')" ]
ok $? "the same spec again does nothing and says so"

spec lambda.yaml '{lambda: 1e-2}'
run a lambda.yaml
[ "$("$kvmill" jobs list --store "$work/a" --json --state succeeded | grep -c '"kind": "capture"')" = 2 ]
ok $? "another lambda runs fit and what follows, no capture"

# two captures for each of them
if grep -qw avx512_bf16 /proc/cpuinfo; then
    grep -vE '^(both|mlp|evaluate|timing)' "$work/pair.yaml" >"$work/backend.yaml"
    bad=0
    for backend in cpu cpu-bf16 cpu; do KVMILL_BACKEND=$backend run g backend.yaml || bad=1; done
    [ $bad = 0 ] &&
        [ "$("$kvmill" jobs list --store "$work/g" --json --state succeeded | grep -c '"kind": "capture"')" = 4 ] &&
        [ "$("$kvmill" jobs list --store "$work/g" --json | grep -c '"kind": "capture"')" = 4 ]
    ok $? "a backend that rounds makes captures of its own, and exact ones stand"
else
    echo "# skipped: no AVX-512 BF16, so no backend that rounds"
fi

kill_runs 10 3 "$work/pair.yaml" "$work/b"
run b pair.yaml
ok $? "a run killed $sum times goes on to its end"
results b >"$work/b.txt"
"$kvmill" run "$work/pair.yaml" --store "$work/c" --quiet >"$work/log" 2>&1
results c >"$work/c.txt"
grep -q "^small-large facts-mc native accuracy $items " "$work/b.txt" && diff "$work/b.txt" "$work/c.txt" >"$work/log"
ok $? "killed or not, the results are the same bits"
pgrep -f "$kvmill run $work" >/dev/null
[ $? = 1 ]
ok $? "no process is left behind"

run e pair.yaml &
other=$!
"$kvmill" run "$work/pair.yaml" --store "$work/e" --quiet >"$work/log2" 2>&1
mine=$?
wait $other && { [ $mine = 0 ] || [ $mine = 3 ]; } && results e >"$work/e.txt" && diff "$work/e.txt" "$work/c.txt" >"$work/log"
ok $? "two runs on one store share the work and agree to the bit"

"$kvmill" chat "$work/pair.yaml" --switch --json --tokens 8 --store "$work/a" "Hello there." "And now?" >"$work/log" 2>&1
[ $? = 0 ] && grep -q '"model": "target"' "$work/log" && grep -q '"cold_ttft_s": [0-9]' "$work/log"
ok $? "a conversation goes on with the target"
"$kvmill" chat "$work/pair.yaml" --switch --tokens 8 --store "$work/a" "Hello there." "And now?" "Who?" >"$work/log" 2>&1
[ $? = 0 ] && [ "$(grep -c '; after .* ms had it read all [0-9]* (each once, after a warm-up)\]$' "$work/log")" = 1 ] &&
    [ "$(grep -c '\[target: first token after' "$work/log")" = 2 ]
ok $? "... whose first token is compared at the switch, both ways warmed up"
"$kvmill" chat "$work/pair.yaml" --alternate --json --tokens 8 --store "$work/a" "Hello there." "And now?" "Who?" "And then?" >"$work/log" 2>&1
[ $? = 0 ] && [ "$(sed -n 's/.*"model": "\([a-z]*\)".*/\1/p' "$work/log" | tr '\n' ' ')" = "source target source target " ] &&
    sed -n 's/.*"translated_tokens": \([0-9]*\).*/\1/p' "$work/log" | tr '\n' ' ' |
    awk '{ exit !($1 == 0 && $2 > 0 && $3 == 0 && $4 > 0) }'
ok $? "... or in turns, which translate what is new alone"
(sleep 0.3; exec "$kvmill" chat "$work/pair.yaml" --tokens 8 --store "$work/a" "Hello there." "And now?" 2>"$work/log") | true
[ "${PIPESTATUS[0]}" = 141 ] && [ ! -s "$work/log" ]
ok $? "... and ends where nobody listens any more"

sed 's/lambda: 1e-2/lamda: 1e-2/' "$work/lambda.yaml" >"$work/typo.yaml"
"$kvmill" run "$work/typo.yaml" --store "$work/a" >"$work/log" 2>&1
[ $? = 2 ] && grep -q 'typo.yaml:6' "$work/log" && grep -q 'lambda' "$work/log"
ok $? "a typo is named with its line and the nearest key"
sed 's/^calibration: .*/calibration: {text: calibration, sequences: 3, tokens: 40}/' "$work/pair.yaml" >"$work/few.yaml"
"$kvmill" run "$work/few.yaml" --store "$work/d" >"$work/log" 2>&1
[ $? = 1 ] && grep -q 'rows' "$work/log" && grep -q 'features' "$work/log"
ok $? "fewer rows than features are refused"
sed 's/lengths: .[^]]*]/lengths: [64, 50000]/; s/, ablations.*/}/' "$work/pair.yaml" >"$work/long.yaml"
"$kvmill" run "$work/long.yaml" --store "$work/a" >"$work/log" 2>&1
[ $? != 0 ] && grep -q '40960' "$work/log"
ok $? "a prefix longer than the model's context is refused"
sed 's/^evaluate: .*/evaluate: {suites: [facts-mc]}/' "$work/pair.yaml" >"$work/blind.yaml"
"$kvmill" plan "$work/blind.yaml" >"$work/log" 2>&1
[ $? = 0 ] && grep -q '^warning: .*attention_cosine' "$work/log"
ok $? "the plan warns of a gate that will not be measured"
"$kvmill" plan "$work/long.yaml" --store "$work/a" >"$work/log" 2>&1
[ $? = 2 ] && grep -q 'long.yaml:9: timing.lengths' "$work/log"
ok $? "the plan refuses what the run would"
(ulimit -f 300 && exec "$kvmill" run "$work/pair.yaml" --store "$work/f" --quiet) >"$work/log" 2>&1
s=$?
{ [ $s = 1 ] || [ $s = 4 ]; } && grep -q '^kvmill run: ' "$work/log"
ok $? "a limit of the size of files is an error, not a death"
KVMILL_THREADS='' KVMILL_BACKEND='' "$kvmill" plan "$work/pair.yaml" >"$work/log" 2>&1
ok $? "an empty variable is none"
"$kvmill" plan "$work/pair.yaml" --store >"$work/log" 2>&1
[ $? = 2 ] && grep -q 'lacks its value' "$work/log"
ok $? "an option without its value is told so"
"$kvmill" help >/dev/full 2>"$work/log"
[ $? = 4 ] && grep -q stdout "$work/log"
ok $? "output that cannot be written is an error"
"$kvmill" plan "$work/pair.yaml" "$work/pair.yaml" >"$work/log" 2>&1
[ $? = 2 ] && grep -q 'too many' "$work/log"
ok $? "an argument too many is refused"
echo "1..$n"
