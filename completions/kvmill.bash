# bash completion for kvmill. It knows nothing by itself: `kvmill help --json` says which
# commands, verbs and options there are, so it is right for the program that is installed.

# _kvmill_words PROGRAM COMMAND - the options and verbs of COMMAND, or without one the commands
_kvmill_words() {
    "$1" help --json 2>/dev/null | awk -v want="$2" '
        function value(line) { sub(/^[^:]*: *"/, "", line); sub(/",?$/, "", line); return line }
        /^  "spec": \[/    { done = 1 }
        done               { next }
        /^  "options": \[/ { common = 1 }
        /^ *"command": /   { command = value($0); if (want == "") print command }
        /^ *"option": /    { if (want != "" && (common || command == want)) print value($0) }
        /^ *"verbs": \[/   { verbs = 1; sub(/.*\[/, "") }
        verbs {
            end = /\]/
            gsub(/[][",]/, " ")
            n = split($0, word, " ")
            for (i = 1; i <= n; i++) if (command == want && want != "") print word[i]
            if (end) verbs = 0
        }'
}

_kvmill() {
    local current=${COMP_WORDS[COMP_CWORD]} command='' words
    [ "$COMP_CWORD" -gt 1 ] && command=${COMP_WORDS[1]}
    if [ "$command" = help ]; then
        [ "$COMP_CWORD" -gt 2 ] && return
        words="spec $(_kvmill_words "${COMP_WORDS[0]}" "")"
    else
        words=$(_kvmill_words "${COMP_WORDS[0]}" "$command")
    fi
    # options only when asked for; whatever is no word of kvmill's is a file (-o default)
    case $current in
    -*) ;;
    *) words=$(printf '%s\n' $words | grep -v '^-') ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _kvmill kvmill
