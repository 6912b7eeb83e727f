# tap.sh - sourced by the tests of this folder, which set $work (with the build's name in
# it: others may be tested meanwhile) and $kvmill: one TAP line a check
n=0
ok() { # ok STATUS NAME - with the end of the log when it is bad
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else
        echo "not ok $n - $2"
        [ -f "$work/log" ] && tail -n 25 "$work/log" | sed 's/^/# /'
    fi
}
# kill_runs TIMES SECONDS SPEC STORE - starts the run so often and kills it at a random moment within SECONDS (1: below
# one); sum: how many were still running
kill_runs() {
    local pid i
    sum=0
    for i in $(seq "$1"); do
        "$kvmill" run "$3" --store "$4" --quiet >"$work/log" 2>&1 &
        pid=$!
        sleep "$((RANDOM % $2)).$((RANDOM % 9 + 1))"
        kill -9 $pid 2>/dev/null && sum=$((sum + 1))
        wait $pid 2>/dev/null
    done
}
