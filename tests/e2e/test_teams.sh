#!/usr/bin/env bash
# Teams, schedules and what is asked of jobs and workers, by the program. Output is TAP; usage:
# test_teams.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-teams-${1##*/}
rm -rf "$work" && mkdir -p "$work"
export KVMILL_THREADS=2 KVMILL_STORE=$work/a TZDIR=$PWD/tests/golden/zones
. tests/e2e/tap.sh

# fewer rows than features: two captures, two sets of moments, then a fit that fails
cat >"$work/few.yaml" <<END
name: small-large
source: $PWD/tests/zoo/small
target: $PWD/tests/zoo/large
calibration: {text: calibration, sequences: 3, tokens: 40}
evaluate: {suites: [facts-mc], items: 3}
END

call() { # call STATUS COMMAND... - its output is $work/out
    local status=$1
    shift
    timeout 60 "$kvmill" "$@" >"$work/out" 2>"$work/log"
    local got=$?
    [ $got = "$status" ] || { echo "exit status $got, expected $status" >>"$work/log"; false; }
}
json() { # json PART... - each is in the document in $work/out, blanks taken out
    local part data
    data=$(tr -d ' \n' <"$work/out")
    for part; do
        case $data in *"$part"*) ;; *) echo "no $part in $data" >>"$work/log" && return 1 ;; esac
    done
}

# --- teams
call 0 teams add prose --weight 2 --quota-live 3 && call 0 teams add maths &&
    call 0 teams list --json && json '"team":"prose","weight":2,"quota_live":3' '"due":0.66'
ok $? "teams have weights and quotas"
call 2 teams add 'a b' && call 2 teams add prose --weight 0 && call 2 teams list prose
ok $? "... and names that can be typed"
call 0 teams token prose && token=$(cat "$work/out") && [ ${#token} = 64 ] &&
    ! grep -aq "$token" "$work/a/catalogue.db"*
ok $? "a token is shown once, and not kept"
call 2 submit "$work/few.yaml" --team prose && grep -q 'put it into KVMILL_TOKEN' "$work/log" &&
    KVMILL_TOKEN=x call 2 submit "$work/few.yaml" --team prose && call 2 teams pause prose &&
    call 2 teams token prose
ok $? "without it nobody acts for the team"
KVMILL_TOKEN=$token KVMILL_TEAM=prose call 0 submit "$work/few.yaml" --json && json '"run":1,' &&
    call 0 submit "$work/few.yaml" --team maths --json
ok $? "with it one does; another team needs none"
call 0 jobs list --json --team prose && [ "$(grep -c '"job"' "$work/out")" = 7 ] &&
    call 0 jobs list --json && [ "$(grep -c '"job"' "$work/out")" = 14 ]
ok $? "a team's jobs alone"

# --- what is asked of jobs
call 2 jobs cancel 1 && call 2 jobs pause 1 && call 2 jobs pause --run 1 && call 2 jobs priority 5 1
ok $? "a job of the team is not touched without the token"
export KVMILL_TOKEN=$token
call 0 jobs pause 1 2 && grep -qx 'job 2: paused' "$work/out" && call 0 jobs list && grep -q 'ready, paused' "$work/out"
ok $? "jobs are paused"
call 0 jobs resume --run 1 --json && json '"run":1,"asked":"resumed"' && call 0 jobs list && ! grep -q paused "$work/out"
ok $? "... and a run's resumed"
call 0 jobs priority 9 --run 1 && call 0 jobs list --json --team prose && json '"priority":9'
ok $? "a run goes first"
call 2 jobs pause && call 2 jobs pause x && call 2 jobs pause 1 --run 1 && call 2 jobs pause 99 &&
    call 2 jobs priority high 1 && call 2 jobs cancel 1 --team maths && grep -q 'of team prose' "$work/log" &&
    call 2 jobs show 1 2
ok $? "what cannot be asked is told"

# --- following a log
first=$(call 0 jobs list --json --team prose && sed -n 's/^ *"job": \([0-9]*\).*/\1/p' "$work/out" | head -n 1)
timeout 60 "$kvmill" jobs logs -f "$first" >"$work/followed" 2>&1 &
pid=$!
call 1 worker --quiet
wait $pid
ok $? "a log is followed from before the job begins until its attempt ends"
call 0 jobs logs "$first" && sed 1d "$work/out" | cmp - "$work/followed" 2>>"$work/log"
ok $? "... and was shown whole"
call 0 workers list --json && json '"worker":"' '"drain":0' '"live":0' && call 2 workers drain nobody &&
    call 2 workers drain
ok $? "workers are listed, and who is not there is not asked"

# --- schedules
add() { call "$1" schedules add "${@:2}"; }
add 0 nightly "$work/few.yaml" --cron '30 2 * * *' --zone Europe/Berlin --team maths --json &&
    json '"schedule":"nightly","team":"maths"' '"catch_up":"one"' "\"file\":\"$PWD/$work/few.yaml\"" &&
    [ "$(grep -cE '20[0-9-]{8}T0[01]:30:00Z|20[0-9-]{8}T01:00:00Z' "$work/out")" = 3 ]
ok $? "a schedule, with the next three times in UTC"
add 2 nightly "$work/few.yaml" --cron '1 * * * *' --zone UTC --team maths && grep -q 'has a schedule' "$work/log"
ok $? "... whose name is taken"
add 2 x "$work/few.yaml" --cron '61 * * * *' --zone UTC && grep -q 'minute' "$work/log" &&
    add 2 x "$work/few.yaml" --cron '1 * * * *' --zone Europe/Nowhere && grep -q tzdata "$work/log" &&
    add 2 x "$work/few.yaml" --cron '1 * * * *' && add 2 x "$work/few.yaml" --cron '1 * * * *' --zone UTC --catch-up some &&
    add 2 x "$work/none.yaml" --cron '1 * * * *' --zone UTC && unset KVMILL_TOKEN &&
    add 2 x "$work/few.yaml" --cron '1 * * * *' --zone UTC --team prose && grep -q KVMILL_TOKEN "$work/log"
ok $? "mistakes are told when it is added"
call 0 schedules pause nightly --team maths && call 0 schedules list --json && json '"paused":1' '"next_at":[]' &&
    call 0 schedules resume nightly --team maths && call 2 schedules pause nightly &&
    call 0 schedules remove nightly --team maths && call 0 schedules list --json && json '[]'
ok $? "it is paused, resumed, removed"
echo "1..$n"
