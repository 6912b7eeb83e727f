#!/usr/bin/env bash
# What a person gets wrong: the exit status says whose fault it is, the message names the
# place and the way out. Output is TAP; usage: test_errors.sh BUILD-DIR
set -u
build=$1
kvmill=$PWD/$build/kvmill
work=build/tmp/e2e-errors-${1##*/}
rm -rf "$work" && mkdir -p "$work"
unset KVMILL_STORE KVMILL_CATALOGUE KVMILL_THREADS KVMILL_BACKEND
. tests/e2e/tap.sh

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
refuses 4 'is the server running' "a server that is not there" \
    "$kvmill" jobs list --catalogue "postgres://somebody@/base?host=$work"
refuses 2 'PGPASSWORD' "a password on the command line" \
    "$kvmill" jobs list --catalogue "postgres://somebody:hush@host/base"
refuses 2 'go together' "a copy to nowhere" "$kvmill" migrate --from "$work/file"
refuses 4 'no catalogue' "a copy of nothing" \
    "$kvmill" migrate --from "$work/none.db" --to "$work/to.db"

# --- a reader that has seen enough is no error: ended by SIGPIPE, without a word
for command in "models inspect tests/zoo/small" "models inspect --json tests/zoo/small" \
    "help spec"; do
    refuses 141 '' "$command into a closed pipe" bash -c \
        '(sleep 0.3; exec "$0" $1) | true; exit ${PIPESTATUS[0]}' "$kvmill" "$command"
    [ ! -s "$work/log" ]
    ok $? "... and silently"
done

# --- numbers say who gave them
refuses 2 'KVMILL_THREADS: "many"' "a bad number in the environment names its variable" \
    env KVMILL_THREADS=many "$kvmill" plan tests/zoo/pair.yaml
refuses 2 '--threads: "many"' "a bad number of an option names the option" \
    env KVMILL_THREADS=2 "$kvmill" plan tests/zoo/pair.yaml --threads many
refuses 2 'KVMILL_OFFLOAD: "all"' "a bad number of the environment names the variable" \
    env KVMILL_OFFLOAD=all "$kvmill" run tests/zoo/pair.yaml --store "$work/offload"
refuses 4 'KVMILL_BACKEND: backend "gpu"|cpu-bf16' "so does an unknown backend" \
    env KVMILL_BACKEND=gpu "$kvmill" plan tests/zoo/pair.yaml

# --- a spec is refused by its line, when it is planned and when it is run
spec() { # spec FILE LINE... - the example pair, and these lines from the fourth on
    local file=$work/$1
    shift
    printf '%s\n' "name: a-b" "source: $PWD/tests/zoo/small" \
        "target: $PWD/tests/zoo/large" "$@" >"$file"
}
spec suite.yaml 'calibration: {text: calibration}' 'evaluate: {suites: [calibration]}'
printf 'a text\nof two lines, caf\351\n' >"$work/latin.txt"
spec latin.yaml 'calibration: {text: latin.txt}'
spec stride.yaml 'calibration: {text: calibration, tokens: 8, stride: 8}'
cp -r tests/zoo/large "$work/other"
sed -i 's/<|im_start|>/<|im_begin|>/' "$work/other/tokenizer.json"
printf '%s\n' "name: a-b" "source: $PWD/tests/zoo/small" "target: other" \
    'calibration: {text: calibration}' >"$work/tokenizers.yaml"
for command in plan run submit; do
    set -- "$kvmill" $command
    [ $command = plan ] || set -- "$@" --store "$work/none"
    refuses 2 'suite.yaml:5: evaluate.suites[0]: ' "$command: a calibration suite to score on" \
        "$@" "$work/suite.yaml"
    refuses 2 'latin.yaml:4: calibration.text: |latin.txt:2: byte 24 (0xe9)' \
        "$command: a text that is no UTF-8" "$@" "$work/latin.yaml"
    refuses 2 'stride.yaml:4: calibration.stride: is 8' "$command: a stride without end" \
        "$@" "$work/stride.yaml"
    refuses 2 'zoo/small and |/other do not share a tokenizer: ' \
        "$command: two models with different tokenizers" "$@" "$work/tokenizers.yaml"
done
printf 'text_path: %s\nmodel_path: %s\nsequences: 3\ntokens: 8\nstride: 9\n' \
    "$PWD/jobs/suites/calibration.yaml" "$PWD/tests/zoo/small" >"$work/capture.yaml"
refuses 2 'capture.yaml:5: stride: is 9' "a step by itself names the line too" \
    "$kvmill" capture "$work/capture.yaml" --out "$work/out" --quiet
printf 'text: x\ntext_path: %s\nmodel_path: %s\nsequences: 3\ntokens: 8\nstride: 1\n' \
    "$PWD/jobs/suites/calibration.yaml" "$PWD/tests/zoo/small" >"$work/capture.yaml"
refuses 2 'has the hash |not the one of "text"' "a step by itself believes no hash it is told" \
    "$kvmill" capture "$work/capture.yaml" --out "$work/out" --quiet

spec gate.yaml 'calibration: {text: calibration}' 'fit: {gates: {atention_cosine: 0.9}}'
refuses 2 'gate.yaml:5: fit.gates.atention_cosine: |did you mean "attention_cosine"' \
    "a gate's name is suggested" "$kvmill" plan "$work/gate.yaml"
spec gate.yaml 'calibration: {text: calibration}' 'fit: {gates: {quality: 0.9}}'
refuses 2 'is no gate; there are rows_per_feature, held_out_r2, attention_cosine' \
    "... or they are listed" "$kvmill" plan "$work/gate.yaml"
refuses 0 'relative to the spec|attention_cosine (0.8)|(content)|matched|f32 or bf16 (f32)' \
    "help spec has names and defaults" "$kvmill" help spec
refuses 0 'llama|gdn, gqa with an indexer|kimi_linear' "models list names families and mixers" \
    "$kvmill" models list
# families_met - there is a golden model of each family
families_met() {
    local families dir met= family
    families=$("$kvmill" models list --json | grep -o '"family": "[^"]*"' | cut -d'"' -f4)
    for dir in tests/golden/models/*/; do
        met+=" $("$kvmill" models inspect "$dir" --json |
            grep -o '"family": "[^"]*"' | cut -d'"' -f4)" || return 1
    done
    for family in $families; do
        [[ "$met " == *" $family "* ]] || { echo "no golden model of $family"; return 1; }
    done
}
families_met >"$work/log" 2>&1
ok $? "... of each of which there is a golden model"
refuses 0 '12 objects, 1.50|0-5 ' "equal layers are one row" "$kvmill" models inspect tests/zoo/large

# --- files of another kind or version are input
mkdir -p "$work/socket" "$work/notok"
perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0) && bind(S, pack_sockaddr_un($ARGV[0])) ||
    exit 1' "$work/socket/config.json" &&
    refuses 2 'is a socket' "a socket in place of a config.json" \
        "$kvmill" models inspect "$work/socket"
printf 'GGUF\1\0\0\0%024d' 0 >"$work/old.gguf"
refuses 2 'GGUF version 1; 2 and 3 are read' "a GGUF of another version" \
    "$kvmill" models inspect "$work/old.gguf"

# --- the fingerprint that is shown is the one that steps take
id=$("$kvmill" models inspect --json tests/zoo/small |
    sed -n 's/^ *"fingerprint": "\(.*\)",*$/\1/p')
printf 'model: %s\ntext_path: %s\nmodel_path: %s\nsequences: 3\ntokens: 8\nstride: 1\n' "$id" \
    "$PWD/jobs/suites/calibration.yaml" "$PWD/tests/zoo/small" >"$work/known.yaml"
refuses 0 '' "a step knows the fingerprint that inspect shows" \
    "$kvmill" capture "$work/known.yaml" --out "$work/known" --quiet
cp tests/zoo/small/config.json tests/zoo/small/*.safetensors "$work/notok"
refuses 0 'no fingerprint: |no tokenizer' "without a tokenizer there is none" \
    "$kvmill" models inspect "$work/notok"

# --- what the catalogue does not have is said, with what it has
mkdir -p "$work/some"
"$kvmill" submit tests/zoo/pair.yaml --store "$work/some" >"$work/log" 2>&1
refuses 2 '--state: "nope"|parked' "a state that is none" \
    "$kvmill" jobs list --state nope --store "$work/some"
for verb in show logs cancel retry; do
    refuses 2 'no job 9999|jobs list' "jobs $verb of a job that is not there" \
        "$kvmill" jobs $verb 9999 --store "$work/some"
done
for command in "jobs artefacts" "pairs show"; do
    refuses 2 'no pair "nope"|small-large' "$command of a pair that is not there" \
        "$kvmill" $command nope --store "$work/some"
done
refuses 2 'no run 77' "a comparison with a run that is not there" \
    "$kvmill" compare 77 1 --store "$work/some"

# --- help and version as other programs have them
refuses 0 'usage: kvmill run|--again' "run --help" "$kvmill" run --help
refuses 0 'usage: kvmill run' "... also behind an argument" "$kvmill" run x.yaml -h
refuses 0 'kvmill 0.' "--version" "$kvmill" --version

# --- a store whose name would write to the terminal
escape="$work/e$(printf '\033')[31m"
mkdir -p "$escape"
refuses 0 'e?[31m: writable' "control bytes of the store's path are not printed" \
    "$kvmill" doctor --store "$escape"

# --- too few open files, too small files
case $build in
*asan* | *tsan*) ;;
*)
    printf '%s\n' "name: a-b" "source: $PWD/tests/zoo/small" \
        "target: $PWD/tests/zoo/large" 'calibration: {text: calibration, sequences: 4, tokens: 8}' \
        >"$work/tiny.yaml"
    for files in 5 12; do
        refuses 4 'oo many open files: raise `ulimit -n`' "$files open files are too few" \
            bash -c "ulimit -n $files && exec \"\$@\"" bash "$kvmill" run "$work/tiny.yaml" \
            --threads 2 --store "$work/files$files"
    done
    refuses 4 'File too large' "a limit on the size of files is the environment's" \
        bash -c 'ulimit -f 8 && exec "$@"' bash "$kvmill" run "$work/tiny.yaml" \
        --store "$work/size"
    mkdir -p "$work/disk"
    if unshare -rm mount -t tmpfs -o size=2m none "$work/disk" 2>/dev/null; then
        for size in 400k 2m 3m; do
            refuses 4 'no space left|free some, then the same command goes on' \
                "a disk of $size is full soon" unshare -rm bash -c \
                'mount -t tmpfs -o size=$0 none "$1" && shift && exec "$@"' $size \
                "$work/disk" "$kvmill" run "$work/tiny.yaml" --store "$work/disk/s"
        done
    else
        echo "# skipped: no small file system without privileges here"
    fi
    ;;
esac

# --- a limited address space; the sanitizers' shadow is larger than any limit
case $build in
*asan* | *tsan*) echo "# skipped: ulimit -v under a sanitizer" ;;
*)
    spec good.yaml 'calibration: {text: calibration}'
    refuses 0 'predicted time' "a plan in 4 GB of address space" \
        bash -c 'ulimit -v 4000000 && exec "$@"' bash "$kvmill" plan "$work/good.yaml" --threads 2
    refuses 4 'ulimit -v' "too little of it names the limit" \
        bash -c 'ulimit -v 100000 && exec "$@"' bash "$kvmill" plan "$work/good.yaml" --threads 2
    refuses 4 'at least 8192' "what runs jobs says what they need" \
        bash -c 'ulimit -v 6000000 && exec "$@"' bash "$kvmill" run "$work/good.yaml" \
        --threads 2 --store "$work/none"
    ;;
esac

echo "1..$n"
