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
call 1 worker --quiet --json && json '"failed":1}' && grep -q '^kvmill worker: ' "$work/log"
ok $? "a worker with failed jobs says so by its status, as data too"
[ "$(count failed)" = 1 ] && [ "$(count blocked)" -ge 1 ]
ok $? "what comes after a failed job is blocked"
echo "1..$n"
