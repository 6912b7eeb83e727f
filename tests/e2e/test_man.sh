#!/usr/bin/env bash
# The manual, the completion and what `make install` lays down agree with the program.
# Output is TAP; usage: test_man.sh BUILD-DIR
set -u
kvmill=$PWD/$1/kvmill
build=$1
work=$PWD/build/tmp/e2e-man-${1##*/}
rm -rf "$work" && mkdir -p "$work"
page=docs/kvmill.1
. tests/e2e/tap.sh

# "COMMAND VERB-OR-OPTION" of the program, one a line; "COMMAND" alone for every command
"$kvmill" help --json | awk '
    function value(line) { sub(/^[^:]*: *"/, "", line); sub(/",?$/, "", line); return line }
    /^  "spec": \[/    { done = 1 }
    done               { next }
    /^  "options": \[/ { command = "every" }
    /^ *"command": /   { command = value($0); print command }
    /^ *"option": /    { print command, value($0) }
    /^ *"verbs": \[$/  { verbs = 1; next }
    verbs && /\]/      { verbs = 0 }
    verbs              { gsub(/[ ",]/, ""); print command, $0 }' |
    sort -u >"$work/program"

# the same of the manual: a command begins an item, its options are the items inside
awk '
    /^\.It Cm /  { command = $3; print command
                   if ($4 ~ /^[a-z]/) print command, $4 }
    /^\.Ss Options of every/ { command = "every" }
    /^\.It Fl -/ { print command, "-" $3 }
    /^\.Sh ENV/  { exit }' "$page" | sort -u >"$work/manual"
# --out of the steps is described once, under the last of them
sed -n 's/^\(capture\|stats\|fit\|mlp\|choose\|evaluate\|timing\|distill\|analyse\|invert\|alternate\) --out$/&/p' "$work/program" >>"$work/manual"
sort -u -o "$work/manual" "$work/manual"

[ "$(wc -l <"$work/program")" -gt 40 ] && [ "$(grep -c '^every' "$work/program")" = 9 ]
ok $? "the program lists its commands and options as data"
diff "$work/program" "$work/manual" >"$work/log"
ok $? "every command, verb and option stands in the manual, and no other"

missing=
for name in $(grep -rhoE 'getenv\("KVMILL_[A-Z_]+"\)|\{KVM_OPT_[A-Z]+, "KVMILL_[A-Z]+"\}' \
    --include='*.c' base models schema jobs scheduler cli workers | grep -oE 'KVMILL_[A-Z_]+' | sort -u); do
    grep -q "$name" "$page" || missing="$missing $name"
done
echo "missing:$missing" >"$work/log"
[ -z "$missing" ]
ok $? "every variable of the environment stands in the manual"

"$kvmill" help --json | sed -n '/^  "card": /,$ s/^ *"key": "\(.*\)",*$/\1/p' |
    sort >"$work/program"
awk '/^\.Ss Keys of a card/ { card = 1; next }
    /^\.S[hs] /             { card = 0 }
    card && /^\.It Cm /     { for (i = 3; i <= NF; i++) if ($i != ",") print $i }' "$page" |
    sort >"$work/manual"
[ "$(wc -l <"$work/program")" -ge 9 ] &&
    diff "$work/program" "$work/manual" >"$work/log"
ok $? "every key of a card stands in the manual, and no other"

if command -v groff >/dev/null; then
    groff -mdoc -ww -Tutf8 "$page" >/dev/null 2>"$work/log" && [ ! -s "$work/log" ]
    ok $? "the manual is set without a warning"
else
    echo "# skipped: no groff to set the manual with"
fi

# completion asks the program: try a word of each kind
complete_() { # complete_ WORD... - what bash would offer for the last of them
    PATH=$PWD/$build:$PATH bash -c '
        . completions/kvmill.bash
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _kvmill
        echo "${COMPREPLY[*]}"' bash "$@"
}
{
    complete_ kvmill su
    complete_ kvmill jobs ca
    complete_ kvmill worker --st
    complete_ kvmill help sp
    complete_ kvmill run ""
} >"$work/log"
printf '%s\n' "suites submit" cancel "--stay --store" spec "" | diff - "$work/log" >"$work/diff"
ok $? "completion offers commands, verbs and options"

# installed under any prefix, the program finds its suites
make --no-print-directory V="${build#build/}" install DESTDIR="$work/root" prefix=/opt/kv \
    >"$work/log" 2>&1
ok $? "make install"
at=$work/root/opt/kv
[ -s "$at/share/man/man1/kvmill.1" ] && [ -s "$at/share/bash-completion/completions/kvmill" ]
ok $? "manual and completion are installed"
(cd / && env -u KVMILL_SUITES "$at/bin/kvmill" suites list --json) >"$work/log" 2>&1
[ $? = 0 ] &&
    grep -q "\"card\": \".*/opt/kv/bin/../share/kvmill/suites/needle.yaml\"" "$work/log"
ok $? "an installed program finds its suites"
(cd / && env -u KVMILL_SUITES "$kvmill" suites list --json) >"$work/log" 2>&1
[ $? = 0 ] && grep -q '"suite": "needle"' "$work/log"
ok $? "a built program finds those of its source tree, from anywhere"
KVMILL_SUITES=$work/none "$kvmill" suites list >"$work/log" 2>&1
[ $? = 2 ] && grep -q KVMILL_SUITES "$work/log"
ok $? "a folder without suites is named"
echo "1..$n"
[ "$n" -ge 10 ]
