# tap.sh - sourced by the tests of this folder, which set $work (with the build's name in
# it: others may be tested meanwhile): one TAP line a check
n=0
ok() { # ok STATUS NAME - with the end of the log when it is bad
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else
        echo "not ok $n - $2"
        [ -f "$work/log" ] && tail -n 25 "$work/log" | sed 's/^/# /'
    fi
}
