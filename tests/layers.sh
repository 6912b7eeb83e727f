#!/usr/bin/env bash
# An include may only name a file of the same folder or of a folder earlier in this list.
set -u
floors="base kernels models translators schema reports jobs scheduler workers cli"
git ls-files --cached --others --exclude-standard -- '*.c' '*.h' '*.def' '*.cu' '*.cuh' |
    sort -u | while read -r f; do [ -f "$f" ] && printf '%s\0' "$f"; done |
    xargs -0 -r awk -v floors="$floors" '
        BEGIN { n = split(floors, f, " "); for (i = 1; i <= n; i++) rank[f[i]] = i }
        FNR == 1 { split(FILENAME, part, "/"); own = part[1] }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, q, "\""); slash = index(q[2], "/"); to = substr(q[2], 1, slash - 1)
            if (!(own in rank) && own != "tests")
                why = "this folder is no floor"
            else if (!(to in rank) && !(own == "tests" && to == "tests"))
                why = "spell the path from the root"
            else if (own in rank && rank[to] > rank[own])
                why = own "/ must not know " to "/"
            else next
            printf "%s:%d: \"%s\": %s\n", FILENAME, FNR, q[2], why; bad = 1
        }
        END { exit bad }' || { echo "layers: includes point down" >&2; exit 1; }
