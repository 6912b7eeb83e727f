#!/usr/bin/env bash
# A pair's results by name, spec, run and hash: what is published when, whose translator a
# command takes, how it comes out of the store. Output is TAP; usage: test_pair.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-pair-${1##*/}
rm -rf "$work" && mkdir -p "$work"
export KVMILL_THREADS=2
. tests/e2e/tap.sh

spec() { # spec FILE FIT - a pair without scores, in both directions
    cat >"$work/$1" <<END
name: small-large
source: $PWD/tests/zoo/small
target: $PWD/tests/zoo/large
both_directions: true
calibration: {text: calibration, sequences: 12, tokens: 64}
fit: $2
evaluate: {suites: [prose], items: 2, attention_items: 1, ablations: [k1]}
END
}
call() { # call STATUS COMMAND... - on the store; its output is $work/out and $work/log
    local status=$1 got
    shift
    timeout 300 "$kvmill" "$@" --store "$work/a" >"$work/out" 2>"$work/log" </dev/null
    got=$?
    [ $got = "$status" ] || { echo "exit status $got, expected $status" >>"$work/log"; false; }
}
shas() { # shas LABEL - of the translators that this step has made, the newest run last
    "$kvmill" jobs artefacts --json --store "$work/a" | tr -d '",' | sed 's/^ *//' |
        awk -F': ' -v want="$1" '
            /^(label|output|sha):/ {v[$1]=$2}
            /^}/ && v["label"]==want && v["output"]=="translator" {print v["sha"]}' | uniq
}

call 2 plan "$work/none.yaml" && [ ! -e "$work/a" ]
ok $? "a plan makes no store"
spec one.yaml '{lambda: 1e-2}'
call 0 plan "$work/one.yaml" && [ ! -e "$work/a" ]
ok $? "... nor does a good one"
sed 's/^fit: .*/fit: {lamda: 1}/' "$work/one.yaml" >"$work/typo.yaml"
call 2 run "$work/typo.yaml" && [ ! -e "$work/a" ]
ok $? "a spec that is refused leaves no store"
call 4 chat "$work/one.yaml" Hello && grep -q 'no catalogue' "$work/log"
ok $? "a chat before any run says that there is no store"

timeout 300 "$kvmill" run "$work/one.yaml" --store "$work/a" >"$work/log" 2>&1
s=$?
{ [ $s = 0 ] || [ $s = 3 ]; } &&
    [ "$(grep -n 'report: .*/small-large.html' "$work/log" | cut -d: -f1)" -lt \
        "$(grep -n '^large-small: run 2' "$work/log" | cut -d: -f1)" ]
ok $? "the first direction's report is published before the other begins"

spec two.yaml '{lambda: 1e-1}'
call 2 chat "$work/two.yaml" Hello --tokens 4 && grep -q "$work/a" "$work/log" &&
    grep -q 'kvmill run .*two.yaml' "$work/log" && [ "$(grep -c 'run' "$work/log")" = 1 ]
ok $? "a chat takes no translator of another spec of the same name, and says what to do"
"$kvmill" run "$work/two.yaml" --store "$work/a" --quiet >"$work/log" 2>&1
grep -q 'replaces that of run 1, .* small-large --run 1' "$work/log"
ok $? "a report that replaces another spec's says so"
cp "$work/a/reports/small-large.html" "$work/two.html"
call 0 report small-large --run 1 && ! cmp -s "$work/two.html" "$work/a/reports/small-large.html"
ok $? "... and the other can be written again"
call 0 report "$work/two.yaml" && cmp -s "$work/two.html" "$work/a/reports/small-large.html" &&
    [ "$(wc -l <"$work/out")" = 2 ]
ok $? "a spec's reports are those of its own runs, of both directions"
call 0 report 1 && ! cmp -s "$work/two.html" "$work/a/reports/small-large.html"
ok $? "a run's number names its report"
call 2 report "$work/two.yaml" --run 1 && grep -q 'leave --run out' "$work/log" &&
    call 2 report 1 --run 2 && grep -q 'leave --run out' "$work/log"
ok $? "... and of no other run"
call 2 report small-large --run 99 && grep -q 'run 99 of pair small-large has no' "$work/log"
ok $? "a run that the pair has not is named"
call 2 chat "$work/one.yaml" --switch --alternate Hello && grep -q 'give one of them, or neither' "$work/log"
ok $? "a chat goes on with the target, or in turns"
spec four.yaml '{lambda: 3e-1}'
call 2 report "$work/four.yaml" && grep -q 'no report of this spec' "$work/log"
ok $? "a spec that was not run has none, although its pair has"

# a suite of the same name with other items
sed 's/^file: .*/file: prose.jsonl/' jobs/suites/prose.yaml >"$work/prose.yaml"
tail -n 3 jobs/suites/prose.jsonl >"$work/prose.jsonl"
spec three.yaml '{lambda: 1e-2}'
sed -i '/^both/d; s/suites: .prose., items: 2/suites: [prose.yaml]/; s/^name: .*/name: other/' "$work/three.yaml"
"$kvmill" run "$work/three.yaml" --store "$work/a" --quiet >"$work/log" 2>&1
call 0 compare 1 3 --json && grep -q '"evaluation": "evaluate prose"' "$work/out"
ok $? "runs on one suite are compared"
call 2 compare 1 5 && grep -q 'evaluate prose: .* different suites of this name' "$work/log" &&
    grep -q 'no item in common' "$work/log"
ok $? "... and not on two of one name, which is said"

first=$(shas "fit small-large" | head -n 1) second=$(shas "fit small-large" | tail -n 1)
for one in "$work/one.yaml" 1 "${first:0:12}"; do
    call 0 export "$one" --out "$work/t" &&
        [ "$(sha256sum "$work/t" | cut -d' ' -f1)" = "$first" ]
    ok $? "export ${one##*/}: the run's own translator, not an ablation's or another spec's"
done
[ "$first" != "$second" ] && call 0 export "$work/two.yaml" --out "$work/t" &&
    [ "$(sha256sum "$work/t" | cut -d' ' -f1)" = "$second" ]
ok $? "... each spec its own"
call 2 export feed --out "$work/u" && grep -q 'jobs artefacts' "$work/log" && [ ! -e "$work/u" ]
ok $? "a hash that there is not is refused"

call 0 translate "$work/one.yaml" "Hello there, how are you?" --tokens 4 &&
    [ "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" = '\n' ]
ok $? "translate takes the pair's spec, and ends its answer with a newline"
call 0 translate "${second:0:10}" "Hello there." --tokens 4 --source tests/zoo/small --target tests/zoo/large
ok $? "... or a hash with both checkpoints"
call 0 chat "$work/one.yaml" --switch --tokens 4 "Hello there." "And now?" &&
    [ "$(grep -c '^> ' "$work/out")" = 2 ] && [ "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" = '\n' ]
ok $? "answers of a chat end with a newline"

call 2 chat "$work/one.yaml" --tokens 4 "Hello there." "$(printf 'caf\351')" &&
    grep -q 'message 2:1: byte 3 (0xe9) is not UTF-8' "$work/log"
ok $? "a message in another encoding is refused with the place"
call 2 chat "$work/one.yaml" --tokens 96 "$(printf 'word %.0s' {1..5000})" &&
    grep -q 'the message has [0-9]* tokens; the models hold 4000 beside an answer of 96' "$work/log"
ok $? "a first message that is too long is counted"

# what was distilled, where it was, else the closed form, and which one is said
spec learnt.yaml '{lambda: 1e-2}'
sed -i '/^both/d; /^evaluate/d; s/^name: .*/name: learnt/' "$work/learnt.yaml"
echo 'distill: {steps: 4, validate: 1, batch: 2, lessons: 4, after: 16, rate: 0.001}' >>"$work/learnt.yaml"
"$kvmill" run "$work/learnt.yaml" --store "$work/a" --quiet >"$work/log" 2>&1
run=$("$kvmill" jobs artefacts learnt --json --store "$work/a" | sed -n 's/.*"run": \([0-9]*\).*/\1/p' | tail -n 1)
closed=$(shas "fit learnt") distilled=$(shas "distill learnt")
for one in "$work/learnt.yaml" "$run"; do
    call 0 export "$one" --out "$work/t" && [ "$closed" != "$distilled" ] &&
        [ "$(sha256sum "$work/t" | cut -d' ' -f1)" = "$distilled" ] &&
        grep -q "^distilled translator ${distilled:0:12}" "$work/log"
    ok $? "export ${one##*/}: what was distilled, and says so"
    call 0 export "$one" --closed-form --out "$work/t" &&
        [ "$(sha256sum "$work/t" | cut -d' ' -f1)" = "$closed" ] &&
        grep -q "^closed-form translator ${closed:0:12}" "$work/log"
    ok $? "... or the closed form, and says so"
done
for command in "translate|Hello there, how are you?|" "chat|Hello there.|--switch"; do
    IFS='|' read -r name text more <<<"$command"
    call 0 "$name" "$work/learnt.yaml" "$text" --tokens 2 $more &&
        grep -q "^distilled translator ${distilled:0:12}" "$work/log" &&
        call 0 "$name" "$work/learnt.yaml" "$text" --tokens 2 $more --closed-form &&
        grep -q "^closed-form translator ${closed:0:12}" "$work/log"
    ok $? "$name takes the same"
done
call 0 chat "$work/learnt.yaml" "Hello there." --tokens 2 && ! grep -q translator "$work/log"
ok $? "... and names none where the source answers alone"
sed -n '/^  "translator": {/,/}/p' "$work/a/reports/learnt.json" | grep -q '"arm": "distilled"'
ok $? "the report's verdict speaks of it"
call 0 translate "$work/learnt.yaml" "Hello there." --tokens 2 --json && grep -q "\"sha\": \"$distilled\"" "$work/out" &&
    call 0 export "$closed" --out "$work/t" --json && grep -q '"what": "closed-form translator"' "$work/out"
ok $? "... and --json has its hash"
call 2 export "$closed" --closed-form --out "$work/u" && grep -q 'names one artefact: leave it out' "$work/log" &&
    call 2 translate "$work/t" Hello --closed-form && grep -q 'names one file: leave it out' "$work/log"
ok $? "a hash or a file leaves nothing to choose"

# --- what the exit status says of gates
unscored() { # unscored LIMIT - a spec that scores nothing, with this gate on the norm
    spec "norm-$1.yaml" "{lambda: 1e-1, gates: {rows_per_feature: 0.01, held_out_r2: -1e9, weight_norm: $1}}"
    sed -i 's/^name: .*/name: unscored/; /^both_dir/d; /^evaluate/d' "$work/norm-$1.yaml"
}
unscored 1e9 && call 0 run "$work/norm-1e9.yaml" --quiet &&
    grep -q 'not measured: attention_cosine of unscored' "$work/log" &&
    grep -q 'unscored: Not decided' "$work/out"
ok $? "a gate that nothing measured is named, and has not failed"
unscored 1e-9 && call 3 run "$work/norm-1e-9.yaml" --quiet &&
    grep -q 'what it must pass: weight_norm of unscored' "$work/log"
ok $? "a gate that failed is named, with an exit status of its own"
echo "1..$n"
