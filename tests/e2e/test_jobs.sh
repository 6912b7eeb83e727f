#!/usr/bin/env bash
# What `kvmill jobs` and `kvmill worker` say of a run that cannot go on, as text and as data.
# Output is TAP; usage: test_jobs.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-jobs-${1##*/}
rm -rf "$work" && mkdir -p "$work"
export KVMILL_THREADS=2
. tests/e2e/tap.sh

# fewer rows than features: the fit fails, and what follows it is blocked for good
cat >"$work/few.yaml" <<END
name: small-large
source: $PWD/tests/zoo/small
target: $PWD/tests/zoo/large
calibration: {text: calibration, sequences: 3, tokens: 40}
evaluate: {suites: [facts-mc], items: 3}
END

call() { # call STATUS COMMAND... - on the store; its output is $work/out
    local status=$1
    shift
    timeout 60 "$kvmill" "$@" --store "$work/a" >"$work/out" 2>"$work/log"
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
count() { # count STATE - how many jobs stand in it
    "$kvmill" jobs list --json --state "$1" --store "$work/a" | grep -c '"job"'
}

call 0 submit "$work/few.yaml" --json && json '"run":1,'
ok $? "a spec is submitted"
call 1 worker --quiet --json && json '"failed":1,' '"cancelled":0}' && grep -q '^kvmill worker: ' "$work/log"
ok $? "a worker with failed jobs says so by its status, as data too"
[ "$(count failed)" = 1 ] && [ "$(count blocked)" -ge 1 ]
ok $? "what comes after a failed job is blocked"
call 0 jobs watch && grep -q 'blocked .*failed 1' "$work/out"
ok $? "watching ends when nothing can go on"
call 0 jobs watch --json && json '"blocked":2,' '"failed":1'
ok $? "... and gives the counts as data"

call 0 jobs list --json --state failed &&
    id=$(sed -n 's/^ *"job": \([0-9]*\).*/\1/p' "$work/out")
call 0 jobs logs "$id" --json &&
    json '[{"attempt":1,' '"log":"logs/' '"text":"' features
ok $? "logs are data with --json"
call 0 jobs logs "$id" && grep -q '^== attempt 1$' "$work/out" &&
    grep -q features "$work/out"
ok $? "... and text without"
log=$(ls "$work"/a/logs/"$id"-*.log)
{ echo "event=job.begin job=7$id token=1 attempt=1"; echo "not ours"; cat "$log"
  echo "event=job.begin job=8$id token=1 attempt=1"; echo "nor this"; } >"$work/shared" &&
    cp "$work/shared" "$log"
call 0 jobs logs "$id" && grep -q features "$work/out" && ! grep -qE 'not ours|nor this' "$work/out"
ok $? "of a log that several jobs share, only its own part"
call 0 jobs logs -f "$id" && grep -q features "$work/out" && ! grep -qE 'not ours|nor this' "$work/out"
ok $? "... and no more when it is followed"
call 0 jobs show "$id" && grep -qE ' 20[0-9-]{8}T[0-9:]{8}Z ' "$work/out"
ok $? "times are dates"
call 0 jobs retry "$id" --json && json "{\"job\":$id,\"state\":\"ready\"}"
ok $? "retry tells the state, as data"
call 0 jobs cancel "$id" --json && json "{\"job\":$id,\"state\":\"cancelled\"}"
ok $? "cancel too"
call 0 worker --quiet --json && json '"failed":0,'
ok $? "a cancelled job is no failure of a worker"
call 2 jobs cancel 1 && grep -q 'job 1 is succeeded: there is nothing to cancel' "$work/log"
ok $? "what has ended cannot be cancelled"
call 0 jobs list && grep -qE 'capture small +succeeded +20[0-9-]{8}T[0-9:]{8}Z +[0-9.]+.(s|ms)' "$work/out"
ok $? "the list has times and durations"
call 0 jobs retry "$id" && grep -qx "job $id is ready" "$work/out"
ok $? "... and text without"
timeout 6 "$kvmill" jobs watch --store "$work/a" >"$work/out" 2>"$work/log"
[ $? = 124 ] && [ "$(grep -c 'kvmill worker' "$work/log")" = 1 ]
ok $? "watching a queue that nobody works on says so, once"
call 1 run "$work/few.yaml" && grep -qE '^ *4/7 FAILED' "$work/log"
ok $? "a run taken up again counts what it had done"
echo "1..$n"
