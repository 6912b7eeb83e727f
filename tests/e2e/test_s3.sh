#!/usr/bin/env bash
# Two workers with homes of their own share a catalogue and a store in a bucket.
# Output is TAP; usage: test_s3.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
work=build/tmp/e2e-s3-${1##*/}
rm -rf "$work" && mkdir -p "$work/server"
zoo=$PWD/tests/zoo
. tests/e2e/tap.sh
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY AWS_SESSION_TOKEN AWS_ENDPOINT_URL_S3
python3 tests/support/s3_server.py "$work/server" $$ >"$work/server/output" 2>&1 &
trap 'kill $! 2>/dev/null; rm -rf "$work/server"' EXIT
for _ in $(seq 200); do [ -f "$work/server/port" ] && break; sleep 0.05; done
export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat "$work/server/port") AWS_REGION=us-test-1
export AWS_ACCESS_KEY_ID=KEY AWS_SECRET_ACCESS_KEY=hush-hush KVMILL_THREADS=1

mill() { # mill HOME COMMAND ... - of that home, on the shared store
    local home=$work/$1
    shift
    KVMILL_STORE=s3://mill/team KVMILL_HOME=$home KVMILL_CATALOGUE=$work/catalogue.db "$kvmill" "$@" --quiet
}
translator() { # translator COMMAND ... - the hash of what was fitted
    "$@" jobs artefacts --json | grep -B8 -A8 '"output": "translator"' | grep -o '"sha": "[0-9a-f]*"' | sort -u
}

cat >"$work/pair.yaml" <<END
name: small-large
source: $zoo/small
target: $zoo/large
calibration: {text: calibration, sequences: 24, tokens: 128}
evaluate: {suites: [prose], items: 3, attention_items: 1}
END

mill h0 doctor >"$work/log" 2>&1 && grep -q 's3://mill/team' "$work/log"
ok $? "the bucket is looked at by doctor"
mill h0 submit "$work/pair.yaml" >"$work/log" 2>&1
ok $? "a pair is submitted"
KVMILL_FAULT=before_claim:3 mill h1 worker >"$work/log" 2>&1
[ $? = 137 ] && [ "$(mill h0 jobs list --json | grep -c '"state": "\(succeeded\|skipped\)"')" -ge 2 ]
ok $? "a worker does the first jobs, and dies"
KVMILL_CACHE=1 mill h2 worker >"$work/log" 2>&1 &
second=$!
mill h3 worker >"$work/h3.log" 2>&1
a=$?
wait $second && [ $a = 0 ] && ! mill h0 jobs list --json | grep -q '"state": "\(ready\|running\|failed\|parked\)"'
ok $? "two others finish its run out of the bucket"
grep -q 'GET /mill/team/objects/' "$work/server/log" && [ -d "$work/h2/objects" ] && [ -d "$work/h3/objects" ]
ok $? "what one has made another has read"
[ "$(du -sm "$work/h2/objects" | cut -f1)" -le 2 ]
ok $? "a bounded home keeps no more than it may"
mill h4 report >"$work/log" 2>&1 && grep -q '</html>' "$work"/h4/reports/small-large.html
ok $? "a fourth home has the report"
"$kvmill" run "$work/pair.yaml" --store "$work/directory" --quiet >"$work/log" 2>&1
[ -n "$(translator mill h4)" ] && [ "$(translator mill h4)" = "$(translator env KVMILL_STORE="$work/directory" "$kvmill")" ]
ok $? "the translator is that of a store in a folder"
mill h1 run "$work/pair.yaml" >"$work/log" 2>&1
s=$?
{ [ $s = 0 ] || [ $s = 3 ]; } && [ -f "$work/h1/reports/small-large.html" ]
ok $? "the run is found done, and published in another home"
sleep 2.2
before=$(grep -c 'DELETE' "$work/server/log")
mill h4 gc --hours 0 >"$work/log" 2>&1 && mill h5 report >"$work/log" 2>&1
ok $? "a sweep leaves what the catalogue names"
rm "$work/catalogue.db"*
mill h6 init >"$work/log" 2>&1 && mill h6 gc --hours 0 >"$work/log" 2>&1 && [ "$(grep -c DELETE "$work/server/log")" -gt "$before" ] && ! mill h6 gc --hours 0 --dry-run --json | grep -q '"what": "object"'
ok $? "and takes what it does not name"
mill h6 submit "$work/pair.yaml" >"$work/log" 2>&1
AWS_ENDPOINT_URL=http://127.0.0.1:1 mill h6 worker >"$work/log" 2>&1
[ $? = 4 ] && grep -q '127.0.0.1:1' "$work/log" && ! mill h6 jobs list --json | grep -q '"attempt": [1-9]'
ok $? "a worker without its bucket ends before any job is charged with it"
AWS_SECRET_ACCESS_KEY=WRONG mill h6 doctor >"$work/log" 2>&1
[ $? = 4 ] && grep -q 'BAD.*AWS_SECRET_ACCESS_KEY' "$work/log" && ! grep -q 'WRONG' "$work/log"
ok $? "a wrong key is told, and not shown"
env -u AWS_ACCESS_KEY_ID KVMILL_STORE=s3://mill/team KVMILL_HOME="$work/h7" "$kvmill" submit "$work/pair.yaml" >"$work/log" 2>&1
[ $? = 4 ] && grep -q 'set AWS_ACCESS_KEY_ID' "$work/log"
ok $? "and so is a missing one"
echo "1..$n"
