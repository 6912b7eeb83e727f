#!/usr/bin/env bash
# `kvmill scheduler`, `worker --queue` and `queue` with a Redis server of their own: work goes
# through it, also with a password, and without it; no password is shown or taken where others
# could read it. Output is TAP; usage: test_queue.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-queue-${1##*/}
rm -rf "$work" && mkdir -p "$work"
export KVMILL_THREADS=1 KVMILL_STORE=$work/a
. tests/e2e/tap.sh
if ! command -v redis-server >/dev/null; then
    printf 'not ok 1 # SKIP\n# skipped: install redis-server\n1..1\n'
    exit 0
fi

dir=$(mktemp -d /tmp/kvmill-e2e-redis-XXXXXX)
pids=
stop() { # stop PID... - by SIGTERM; gives the first exit status that is not 0
    local pid status=0
    for pid; do kill -TERM "$pid" 2>/dev/null; done
    for pid; do wait "$pid" || status=$?; done
    return $status
}
serve() {
    (cd "$dir" && exec redis-server --port 0 --unixsocket "$dir/socket" --save '' "$@") >/dev/null 2>&1 &
    pids=$!
    for _ in $(seq 100); do [ -S "$dir/socket" ] && break || sleep 0.05; done
}
trap 'kill -9 $pids 2>/dev/null; rm -rf "$dir"' EXIT
serve --requirepass 'sec ret'
queue=redis+unix://$dir/socket

# fewer rows than features: captures and moments are made, the fit fails, nothing follows
cat >"$work/few.yaml" <<END
name: small-large
source: $PWD/tests/zoo/small
target: $PWD/tests/zoo/large
calibration: {text: calibration, sequences: 3, tokens: 40}
evaluate: {suites: [facts-mc], items: 3}
END

"$kvmill" submit "$work/few.yaml" --queue "redis+unix://:secret@$dir/socket" >"$work/out" 2>"$work/log"
[ $? = 2 ] && grep -q 'KVMILL_REDIS_PASSWORD' "$work/log" && ! grep -q secret "$work/log"
ok $? "a password on the command line is refused, and not repeated"
"$kvmill" scheduler --json >"$work/out" 2>"$work/log" &
alone=$!
for _ in $(seq 100); do grep -q scheduler.leads "$work/log" && break || sleep 0.1; done
stop $alone && grep -q '"sent": 0' "$work/out"
ok $? "a scheduler without a queue does what needs none"
export KVMILL_QUEUE=$queue
KVMILL_REDIS_PASSWORD=wrong timeout 20 "$kvmill" scheduler >"$work/out" 2>"$work/log"
[ $? = 4 ] && grep -q 'WRONGPASS' "$work/log" && ! grep -qw wrong "$work/log"
ok $? "a wrong password is told, and not shown"

export KVMILL_REDIS_PASSWORD='sec ret'
"$kvmill" submit "$work/few.yaml" >"$work/out" 2>"$work/log"
ok $? "a spec is submitted"
"$kvmill" queue --json >"$work/out" 2>"$work/log" && grep -q '"state": "ready"' "$work/out" &&
    grep -q '"scheduler": null' "$work/out"
ok $? "the queue shows what is ready, and that nobody schedules"

"$kvmill" scheduler --reconcile 2 --json >"$work/scheduler" 2>"$work/scheduler.log" &
scheduler=$!
"$kvmill" worker --stay --quiet >"$work/worker" 2>"$work/worker.log" &
worker=$!
pids="$pids $scheduler $worker"
for _ in $(seq 300); do
    [ "$("$kvmill" jobs list --json --state failed | grep -c '"job"')" = 1 ] && break || sleep 0.2
done
cat "$work/scheduler.log" "$work/worker.log" >"$work/log"
"$kvmill" jobs list --json --state succeeded >"$work/out"
[ "$(grep -c '"job"' "$work/out")" -ge 4 ]
ok $? "jobs are handed out and done"
"$kvmill" queue >"$work/out" 2>>"$work/log" && grep -q '^scheduler: [^n]' "$work/out" &&
    grep -q 'kvmill:[0-9a-f]*:cpu ' "$work/out"
ok $? "the queue shows the scheduler and the streams"
! grep -q 'sec ret' "$work"/*.log "$work/out" && ! tr '\0' ' ' <"/proc/$worker/cmdline" | grep -q 'sec'
ok $? "no password in logs or on command lines"
stop $worker
[ $? = 1 ] # a job of its has failed
ok $? "the worker ends when told to"
stop $scheduler && grep -q '"sent": [1-9]' "$work/scheduler"
ok $? "the scheduler ends when told to, and says how many it sent"
"$kvmill" queue --json >"$work/out" 2>"$work/log" && grep -q '"scheduler": null' "$work/out"
ok $? "nobody schedules any more"

# the server is gone for good: a worker does what there is by itself
kill -9 ${pids%% *} 2>/dev/null
sed 's/sequences: 3/sequences: 4/' "$work/few.yaml" >"$work/few4.yaml"
"$kvmill" submit "$work/few4.yaml" >"$work/out" 2>"$work/log"
ok $? "submitting does not need the server"
timeout 120 "$kvmill" worker --quiet >"$work/out" 2>"$work/log"
[ $? = 0 ] && "$kvmill" jobs list --json --state succeeded >"$work/out" &&
    [ "$(grep -c '"job"' "$work/out")" -ge 11 ]
ok $? "nor does a worker"
echo "1..$n"
