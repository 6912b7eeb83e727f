#!/usr/bin/env bash
# kvmill pull from a hub that misbehaves in every way that tests/support/hub_server.py knows.
# Output is TAP; usage: test_pull.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-pull-${1##*/}
rm -rf "$work" && mkdir -p "$work/hub"
. tests/e2e/tap.sh
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY HF_ENDPOINT
export HF_TOKEN=hf_secret

python3 tests/support/hub_server.py "$work/hub" >"$work/hub/output" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
for _ in $(seq 200); do [ -f "$work/hub/ports" ] && break; sleep 0.05; done
read -r port elsewhere <"$work/hub/ports"
export KVMILL_HUB=http://127.0.0.1:$port/

pull() { # pull NAME [OPTION ...] - org/NAME into its own folder
    local name=$1
    shift
    "$kvmill" pull "org/$name" --to "$work/$name" --quiet "$@" >"$work/log" 2>&1
}
requests() { grep -c "$1" "$work/hub/log"; }
whole() { # whole NAME - every file of the checkpoint, and nothing else
    (cd "$work/$1" && ls) | tr '\n' ' ' >"$work/names"
    [ "$(cat "$work/names")" = "README.md config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors tokenizer.json " ] &&
        python3 - "$work/$1" "org/$1" <<'END'
import hashlib, json, sys
for n in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
    want = hashlib.sha512((sys.argv[2] + n).encode()).digest() * 5000
    assert open(sys.argv[1] + "/" + n, "rb").read() == want, n
END
}
refused() { # refused STATUS WORD NAME [OPTION ...] - and nothing is published
    local status=$1 word=$2 s
    shift 2
    pull "$@"
    s=$?
    [ "$s" = "$status" ] && grep -qi -- "$word" "$work/log" && [ "$(wc -l <"$work/log")" = 1 ] &&
        ! ls "$work/$1"/model*.safetensors >/dev/null 2>&1
}

pull good --json && whole good && [ "$(grep -c '"fetched"' "$work/log")" = 5 ] && grep -q '"sha256"' "$work/log" && grep -q '"git"' "$work/log"
ok $? "what kvmill reads of a model comes, checked by its hashes"
before=$(requests resolve)
pull good --json && [ "$(grep -c '"there"' "$work/log")" = 5 ] && [ "$(requests resolve)" = "$before" ]
ok $? "a second pull fetches nothing"
echo '{}' >"$work/good/config.json"
pull good --json && [ "$(grep -c '"there"' "$work/log")" = 4 ] && whole good
ok $? "a file that is another by now is fetched again"
pull nested --file 'a/*' && [ "$(cd "$work/nested" && find . -type f)" = ./a/b/config.json ]
ok $? "--file names others, in folders too"
(cd "$work" && mkdir -p other && cd other && "$kvmill" pull org/good --file '*.json' >../log 2>&1 && [ -f good/config.json ])
ok $? "the folder is called as the model is"

pull cdn && whole cdn && [ "$(grep -c '^elsewhere GET.*auth=no' "$work/hub/log")" = 2 ] && ! grep -q '^elsewhere.*auth=yes' "$work/hub/log" && grep -q '^hub.*auth=yes' "$work/hub/log"
ok $? "the token goes to the hub and not with a redirect to another host"
pull drops && whole drops && grep -q 'drops.*safetensors.*range=bytes=50000- if-range="' "$work/hub/log"
ok $? "what breaks off in the middle goes on there, if it is the same"
pull wholes && whole wholes
ok $? "a server without ranges sends it whole"
pull busy && whole busy
ok $? "429 and 503 with Retry-After are waited for"
pull asked --json && whole asked && [ "$(grep -c '"sha256"' "$work/log")" = 5 ]
ok $? "hashes that are not listed are asked for"
pull plain && whole plain && grep -q 'by their length only' "$work/log"
ok $? "what has no hash at all is said"

rm -f "$work/hub/go"
"$kvmill" pull org/stops --to "$work/stops" --quiet >"$work/log" 2>&1 &
child=$!
for _ in $(seq 200); do [ "$(find "$work/stops" -name '*.part' -size +90k 2>/dev/null | wc -l)" = 2 ] && break; sleep 0.05; done
kill -9 $child
wait $child 2>/dev/null
touch "$work/hub/go"
[ ! -e "$work/stops/model-00001-of-00002.safetensors" ] && pull stops && whole stops && [ "$(grep -c 'stops.*range=bytes=100000- ' "$work/hub/log")" = 2 ]
ok $? "a pull that was killed goes on where it was"
mkdir -p "$work/rotten"
pull rotten --file config.json
sha=$(python3 -c "import hashlib; print(hashlib.sha256(hashlib.sha512(b'org/rottenmodel-00001-of-00002.safetensors').digest() * 5000).hexdigest()[:16])")
head -c 200000 /dev/zero >"$work/rotten/model-00001-of-00002.safetensors.$sha.part"
pull rotten && whole rotten && grep -q 'rotten/.*00001.*range=bytes=200000-' "$work/hub/log"
ok $? "a part that has rotted is fetched anew"

refused 4 'another hash' wrong
ok $? "content with a wrong hash is not published"
refused 2 'has 1000 bytes, 320000 were expected' short
ok $? "nor what is too short"
refused 2 'has 320004 bytes' long
ok $? "nor what is too long"
refused 2 'redirects us more than 5 times' loop
ok $? "redirects in a circle end"
refused 2 'no URL of http' files
ok $? "and those to a file"
refused 2 'does not say how many' endless
ok $? "a body without end ends"
refused 2 'more than' flood
ok $? "also that of a list"
refused 2 'is this a hub' html
ok $? "HTML is no list"
refused 2 'check its name' gone && refused 2 'revision nowhere' good2 --revision nowhere
ok $? "what is not there is said"
refused 4 'ask too often' refuses && [ "$(requests api/models/org/refuses)" = 1 ]
ok $? "who asks us to wait for a day is not waited for"
refused 2 'refused' evil --file '*' && refused 2 'refused' absolute --file '*' && refused 2 'refused' inner --file '*' && refused 2 'refused' escape && refused 2 'twice' twice && [ ! -e "$work/../evil.json" ] && [ ! -e /tmp/kvmill-evil.json ]
ok $? "names that lead out of the folder are refused"
mkdir -p "$work/nested2" "$work/away" && ln -s "$PWD/$work/away" "$work/nested2/a"
"$kvmill" pull org/nested --to "$work/nested2" --file 'a/*' --quiet >"$work/log" 2>&1
[ $? = 2 ] && grep -q 'is no folder' "$work/log" && [ -z "$(ls "$work/away")" ]
ok $? "links do not lead out either"
refused 2 'say which with --file' gguf && pull gguf --file '*q4*' && [ -f "$work/gguf/m-q4.gguf" ]
ok $? "of several GGUF files one has to be named"
refused 2 'has 0 files' empty && refused 2 'is no repository' '../x'
ok $? "nothing to pull is said"
HF_TOKEN= refused 4 'set HF_TOKEN' gated && pull gated && whole gated
ok $? "a gated model wants a token"
HF_TOKEN=$'x\ny' refused 2 'control byte' good3
ok $? "a token that is none is refused"
KVMILL_HUB=http://example.org refused 2 'unencrypted' good3
ok $? "a token does not travel unencrypted"
KVMILL_HUB=http://127.0.0.1:1 refused 4 'offline' good3
ok $? "without a network one error says so"
! grep -rq 'hf_secret\|SIGNATURE' "$work/log" && ! HF_TOKEN= KVMILL_HUB=http://user:pw@127.0.0.1:$port pull good3 && ! grep -q 'pw@' "$work/log" && grep -q 'password do not belong' "$work/log"
ok $? "secrets are not shown"
echo "1..$n"
