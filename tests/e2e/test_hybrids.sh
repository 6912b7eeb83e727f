#!/usr/bin/env bash
# Pairs of hybrids from spec to distilled translator: latents and replayed states, copied and
# corrected states, an indexer; a distillation that is killed again and again; and specs that ask
# for what the models cannot do. Output is TAP; usage: test_hybrids.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-hybrids-${1##*/}
rm -rf "$work" && mkdir -p "$work"
zoo=$PWD/tests/zoo
export KVMILL_THREADS=2
. tests/e2e/tap.sh

spec() { # spec NAME SOURCE TARGET FIT REST... - lines of YAML
    local name=$1 source=$2 target=$3 fit=$4
    shift 4
    printf '%s\n' "name: $name" "source: $zoo/$source" "target: $zoo/$target" \
        'calibration: {text: calibration, sequences: 24, tokens: 160}' \
        "fit: {allow_wide: true, sweep: false, k: 1, lambda: 0.01$fit}" "$@" >"$work/$name.yaml"
}
run() { # run STORE NAME - the gates may not be met: too little was fitted on
    timeout 300 "$kvmill" run "$work/$2.yaml" --store "$work/$1" --quiet >"$work/log" 2>&1
    local status=$?
    [ $status = 0 ] || [ $status = 3 ]
}
sha() { # sha STORE NAME - of the closed form that the run made last
    rm -f "$work/t" && "$kvmill" export "$work/$2.yaml" --closed-form --store "$work/$1" --out "$work/t" >"$work/log" 2>&1 &&
        sha256sum <"$work/t"
}

scored='evaluate: {suites: [facts-mc], items: 2, attention_items: 0}'
learnt='distill: {steps: 2, validate: 1, batch: 2, lessons: 4, after: 16, rate: 0.0001}'
for pair in mla-kda kda-mla gdn-a-gdn-b; do
    source=${pair%-*} target=${pair##*-}
    [ $pair = gdn-a-gdn-b ] && source=gdn-a target=gdn-b
    spec $pair $source $target '' "$learnt" "$scored"
    run a $pair
    ok $? "$pair: closed form and distillation"
done
spec gdn-a-qsa gdn-a qsa '' "$scored"
run a gdn-a-qsa
ok $? "gdn-a-qsa: states copied, index keys predicted, n-grams told"

# --- auto: what the pair can is tried, and the choosing split decides
table() { # table STORE NAME - what was tried, without its head
    tail -n +2 "$work/$1/reports/$2.tried.csv" | tr -d '"\r'
}
best() { # best STORE NAME - one is chosen, and it has the least KL (before the last three columns)
    table "$1" "$2" | awk -F, '{ kl = $(NF - 3) } NR == 1 || kl < least { least = kl }
        $NF == "chosen" { n++; got = kl } END { exit !(n == 1 && got == least) }'
}
ran() { # ran STORE KIND - how many of such steps were computed, and not found done
    "$kvmill" jobs list --store "$work/$1" --state succeeded | awk -v k="$2" '$0 ~ " " k " " { n++ } END { print n + 0 }'
}
spec auto mla kda ', states: auto, latents: auto' 'both_directions: true' "$learnt"
run d auto && best d auto && best d auto-reversed
ok $? "auto: the fit with the least KL is taken, in both directions"
[ "$(table d auto | sed 's/,[0-9].*//')" = "$(printf 'states %s, latents %s\n' zero 1 zero 3 replay 1 replay 3)" ] &&
    [ "$(table d auto-reversed | wc -l)" = 2 ]
ok $? "auto: the table has all that the pair can do"
chosen=$("$kvmill" jobs artefacts auto --store "$work/d" | awk '/ choose auto .* translator / { print $(NF - 1) }')
[ "$(sha d auto)" = "$chosen  -" ]
ok $? "auto: the closed form of the spec is the chosen one"
fits=$(ran d fit) choices=$(ran d choose)
run d auto && [ "$fits $choices" = '6 2' ] && [ "$(ran d fit) $(ran d choose)" = '6 2' ]
ok $? "auto: a second run does nothing"
spec auto mla kda ', states: auto, latents: auto' 'both_directions: true' "$learnt" "$scored"
run d auto && [ "$(ran d fit) $(ran d choose) $(ran d evaluate)" = '6 2 2' ]
ok $? "auto: what is scored later is neither fitted nor chosen again"
spec few gdn-a qsa ', states: auto'
run d few && best d few && [ "$(table d few | wc -l)" = 4 ]
ok $? "auto: few sequences, four ways of states"
spec mixed gdn-a gdn-b ', states: [copy, replay, bilinear, zero, replay, bilinear]' "$learnt" "$scored"
run d mixed && [ "$(grep -c 'layer by layer: copy, replay, bilinear' "$work/d/reports/mixed.recipes.csv")" = 12 ]
ok $? "states in a way of their own in each recurrent layer"

# --- a family: every two models both ways, and one capture of each
printf '%s\n' 'name: three' "family: [$zoo/small, $zoo/mla, $zoo/kda]" \
    'calibration: {text: calibration, sequences: 24, tokens: 160}' \
    'fit: {allow_wide: true, sweep: false, k: 1, lambda: 0.01}' >"$work/three.yaml"
run f three
[ "$(ls "$work"/f/reports/three.*.html | wc -l) $(ran f capture) $(ran f fit)" = '6 3 6' ]
ok $? "family: six pairs, three captures"
"$kvmill" plan "$work/three.yaml" --json >"$work/log" 2>&1 &&
    [ "$(grep -c '"total": ' "$work/log") $(grep -A2 '"kind": "capture"' "$work/log" | grep -oE '[0-9]+,' | tr -d '\n')" = '3 2,1,' ]
ok $? "family: planned pair by pair, a capture counted once"

# --- killed while it learns
spec killed small large '' \
    'distill: {steps: 40, validate: 2, batch: 2, lessons: 8, after: 16, rate: 0.001}'
kill_runs 6 1 "$work/killed.yaml" "$work/b"
run b killed && run c killed
ok $? "a distillation killed $sum times goes on to its end"
curves() {
    cat $(grep -l '"native_top"' "$work/$1"/objects/*/*) | sed 's/"tokens_per_s": *[0-9.e+]*//'
}
curves b >"$work/b.json" && curves c >"$work/c.json" && cmp "$work/b.json" "$work/c.json" >"$work/log"
ok $? "killed or not, its curve is the same to the last digit"

# --- conversations, killed or not
turns() { # turns NAME SOURCE TARGET MORE - in a few dialogues
    spec $1 $2 $3 '' "alternate: {suite: dialogues, items: 3, turns: 3$4}" "$5"
}
talked() { # talked STORE - the items of its conversations, by content
    cat $(grep -l '"naive.3"' "$work/$1"/objects/*/*) | sort
}
turns talk-mla mla kda ', refresh: 2' 'both_directions: true'
run d talk-mla
ok $? "mla-kda: conversations in both directions"
"$kvmill" jobs list --store "$work/d" >"$work/log" 2>&1
[ "$(grep -c 'mla-talk.* fit .*skipped' "$work/log")" = 2 ]
ok $? "what one direction's conversations fit, the other direction's graph has"
turns talk-gdn gdn-a gdn-b ', refresh: 1' ''
kill_runs 6 2 "$work/talk-gdn.yaml" "$work/e"
run e talk-gdn && run f talk-gdn
ok $? "conversations killed $sum times go on to their end"
talked e >"$work/e.items" && talked f >"$work/f.items" && cmp "$work/e.items" "$work/f.items" >"$work/log"
ok $? "killed or not, they are the same to the last bit"

# --- what cannot be
refuse() { # refuse TEXT NAME - the plan says so
    "$kvmill" plan "$work/$2.yaml" >"$work/log" 2>&1
    [ $? = 2 ] && grep -q -- "$1" "$work/log"
}
spec copied mla kda ', states: copy'
refuse 'states: replay' copied
ok $? "states that the source has not cannot be copied, and replay is offered"
spec unlike gdn-a kda ', states: copy'
unlike='unlike.yaml:5: fit: the window of source layer 0 has 256 heads of 4 (0 keys), that of target layer 0 384 of 4 (0)'
refuse "$unlike: it cannot be copied; states: replay" unlike
ok $? "states of unlike geometry cannot be copied: the plan says which differ, and offers replay"
"$kvmill" run "$work/unlike.yaml" --store "$work/unlike" >"$work/log" 2>&1
[ $? = 2 ] && grep -q "$unlike: it cannot be copied; states: replay" "$work/log" && [ ! -e "$work/unlike" ]
ok $? "... and so does a run, before there is a store"
spec told mla kda ', token: maybe'
refuse 'is none, given, decoded or auto' told
ok $? "token is one of its words"
spec point mla kda ', latents: 2'
refuse 'must be 1, 3 or auto' point
ok $? "latents are of capture point 1 or 3"
spec after small large '' 'distill: {after: 160}'
refuse 'must leave a prefix' after
ok $? "lessons have a prefix"
spec memory small large '' 'distill: {memory_mib: 1}'
refuse 'raise it, or ask for fewer' memory
ok $? "lessons that do not fit into memory_mib say how much they take"
spec kind small large '' 'alternate: {suite: facts-qa}'
refuse 'holds no dialogues' kind
ok $? "conversations are had about dialogues"
spec dialogues small large '' 'evaluate: {suites: [dialogues]}'
refuse 'only .alternate. scores' dialogues
ok $? "dialogues are not scored as single items"
spec many small large '' 'alternate: {suite: dialogues, turns: 11}'
refuse 'alternate.turns: is 11, must lie in 2..10' many
ok $? "turns are those of the dialogues"
spec late small large '' 'alternate: {suite: dialogues, turns: 3, refresh: 3}'
refuse 'alternate.refresh: is 3, must lie in 1..2' late
ok $? "a re-read comes before the last turn"
printf '%s\n' "source_path: $zoo/small" "target_path: $zoo/large" \
    "suite_path: $PWD/jobs/suites/dialogues.yaml" "text_path: $PWD/jobs/suites/calibration.yaml" \
    'sequences: 24' 'tokens: 160' 'items: 1' >"$work/step.yaml"
sha b killed >"$work/log" # its translator becomes t
"$kvmill" alternate "$work/step.yaml" --out "$work/step" --quiet "translator=$work/t" >"$work/log" 2>&1
[ $? != 0 ] && grep -q 'the input "back" is missing' "$work/log"
ok $? "without the way back there is no conversation"
spec decoded kda mla ', token: decoded'
refuse 'hand the ids over' decoded
ok $? "tokens are not decoded from a recurrent first layer"
echo "1..$n"
