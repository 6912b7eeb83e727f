#!/usr/bin/env bash
# screenshot.sh PAGE.html OUT-DIR - what a report looks like: desktop (1280 px), phone (360 px),
# both light and dark, and print (PDF, then one PNG a page). Needs chromium; pdftoppm for print.
# Exit 0 with a printed reason when chromium is absent.
set -eu
page=${1:?usage: screenshot.sh PAGE.html OUT-DIR}
out=${2:?usage: screenshot.sh PAGE.html OUT-DIR}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "screenshot: skipped, no chromium on this machine"
    exit 0
fi
mkdir -p "$out"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
page=$(realpath "$page")

# chromium's window is at least 500 px wide: a phone is an iframe of 360 px in a wider window
phone=$home/phone.html
printf '<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><style>body{margin:0}iframe{border:0;width:360px;height:%dpx}</style><iframe src="file://%s"></iframe>' \
    "${PHONE_HEIGHT:-16000}" "$page" >"$phone"

# shot NAME WIDTH HEIGHT URL [FLAG...]
shot() {
    local name=$1 width=$2 height=$3 url=$4
    shift 4
    HOME=$home "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars \
        --allow-file-access-from-files --user-data-dir="$home/profile" \
        --window-size="$width,$height" --screenshot="$out/$name.png" "$@" "$url" \
        >"$home/log" 2>&1 || { cat "$home/log"; exit 1; }
    [ -s "$out/$name.png" ] || { echo "screenshot: $name.png was not written"; exit 1; }
    echo "$out/$name.png"
}
dark=--blink-settings=preferredColorScheme=0
shot desktop 1280 "${DESKTOP_HEIGHT:-7000}" "file://$page"
shot desktop-dark 1280 "${DESKTOP_HEIGHT:-7000}" "file://$page" "$dark"
shot phone 500 "${PHONE_HEIGHT:-16000}" "file://$phone"
shot phone-dark 500 "${PHONE_HEIGHT:-16000}" "file://$phone" "$dark"
HOME=$home "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$home/profile" \
    --no-pdf-header-footer --print-to-pdf="$out/print.pdf" "file://$page" >"$home/log" 2>&1 ||
    { cat "$home/log"; exit 1; }
echo "$out/print.pdf"
if command -v pdftoppm >/dev/null; then
    rm -f "$out"/print-*.png
    pdftoppm -r 60 -png "$out/print.pdf" "$out/print"
else
    echo "screenshot: no pdftoppm, the PDF was not turned into pictures"
fi
