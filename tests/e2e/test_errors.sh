#!/usr/bin/env bash
# What a person gets wrong: the exit status says whose fault it is, the message names the
# place and the way out. Output is TAP; usage: test_errors.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-errors
rm -rf "$work" && mkdir -p "$work"
unset KVMILL_STORE KVMILL_THREADS KVMILL_BACKEND
n=0

# refuses STATUS "PART|PART" NAME COMMAND... - that exit status, and each part in the message
refuses() {
    local status=$1 parts=$2 name=$3 got part bad=
    shift 3
    timeout 60 "$@" >"$work/log" 2>&1 </dev/null
    got=$?
    [ "$got" = "$status" ] || bad="exit status $got, expected $status"
    local IFS='|'
    for part in $parts; do
        grep -qF -- "$part" "$work/log" || bad="$bad; no \"$part\""
    done
    n=$((n + 1))
    if [ -z "$bad" ]; then echo "ok $n - $name"; else
        echo "not ok $n - $name"
        echo "# $bad"
        sed 's/^/# /' "$work/log"
    fi
}

# --- the place of the store
echo text >"$work/file"
mkdir -p "$work/folder/catalogue.db" "$work/broken"
head -c 8192 /dev/zero | tr '\0' x >"$work/broken/catalogue.db"
refuses 4 'file: is a file|--store' "a store that is a file" \
    "$kvmill" migrate --store "$work/file"
refuses 4 'BAD  store' "the doctor sees it too" "$kvmill" doctor --store "$work/file"
refuses 4 'folder/catalogue.db|another store' "a catalogue that is a folder" \
    "$kvmill" jobs list --store "$work/folder"
refuses 4 'not a database|move the file away' "a catalogue that is none" \
    "$kvmill" jobs list --store "$work/broken"
refuses 4 '/proc/no: cannot make|--store' "a store that cannot be made" \
    "$kvmill" migrate --store /proc/no/store
refuses 2 '--store: the value is empty' "an empty option" "$kvmill" doctor --store ""

# --- numbers say who gave them
refuses 2 'KVMILL_THREADS: "many"' "a bad number in the environment names its variable" \
    env KVMILL_THREADS=many "$kvmill" plan tests/zoo/pair.yaml
refuses 2 '--threads: "many"' "a bad number of an option names the option" \
    env KVMILL_THREADS=2 "$kvmill" plan tests/zoo/pair.yaml --threads many
refuses 4 'KVMILL_BACKEND: backend "gpu"' "so does an unknown backend" \
    env KVMILL_BACKEND=gpu "$kvmill" plan tests/zoo/pair.yaml

echo "1..$n"
