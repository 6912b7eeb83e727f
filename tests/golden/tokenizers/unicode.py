#!/usr/bin/env python3
"""Writes models/unicode.def: Unicode as the `tokenizers` library sees it.

The library carries three Unicode versions at once: its regular expressions (Oniguruma)
are at 16.0, its NFC at 9.0, Rust's char::is_numeric at 17.0. Ids must match byte for
byte, so the table is taken by asking the library about every code point, not from a
Unicode release. Run: python3 tests/golden/tokenizers/unicode.py > models/unicode.def
(Python with tokenizers 0.23.3 and regex; about a minute; needed only to refresh.)
"""
import unicodedata

import regex
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATS = """Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc
Cf Co""".split()
CODES = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
ALL = "".join(map(chr, CODES))


def members(cls):
    """code points that the library's regular expressions put into cls"""
    run = pre_tokenizers.Split(Regex("(?:%s)+" % cls), "isolated")
    one = pre_tokenizers.Split(Regex(cls), "removed")
    out = set()
    for text, _ in run.pre_tokenize_str(ALL):
        if one.pre_tokenize_str(text[0]) == []:
            out.update(map(ord, text))
    return out


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def rows(name, items):
    line = ""
    for item in items:
        row = "%s(%s)" % (name, ", ".join(item))
        if line and len(line) + 1 + len(row) > 88:
            print(line)
            line = ""
        line = row if not line else line + " " + row
    print(line)


def main():
    cat = ["Cn"] * 0x110000
    cat[0] = "Cc"
    for name in CATS:
        for c in members(r"\p{%s}" % name):
            cat[c] = name
    for c in range(0xD800, 0xE000):
        cat[c] = "Cs"
    starts = [c for c in range(0x110000) if c == 0 or cat[c] != cat[c - 1]]

    nfc = normalizers.NFC().normalize_str
    # non-zero combining class: moves across a mark of class 1 or of class 240
    ccc = [
        c
        for c in CODES
        if not regex.match(r"\p{ccc=0}", chr(c))
        and (
            nfc("a" + chr(c) + "\u0334") != "a" + chr(c) + "\u0334"
            or nfc("a\u0345" + chr(c)) != "a\u0345" + chr(c)
        )
    ]
    # quick check No (changes alone) or Maybe (second half of a composition)
    quick = {c for c in CODES if nfc(chr(c)) != chr(c)}
    for c in CODES:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and "<" not in parts[0]:
            a, b = (int(p, 16) for p in parts)
            if nfc(chr(a) + chr(b)) == chr(c):
                quick.add(b)
    quick.update(range(0x1161, 0x1176))  # Hangul vowels and finals
    quick.update(range(0x11A8, 0x11C3))

    print("/* unicode.def - Unicode as the `tokenizers` library %s sees it, found by" %
          tokenizers.__version__)
    print(" * asking it about every code point. Written by tests/golden/tokenizers/"
          "unicode.py.")
    print(" * G(first, category): the general category from here to the next row.")
    print(" * Q(first, last): NFC quick check is No or Maybe.")
    print(" * C(first, last): the canonical combining class is not 0.")
    print(" * H(first, last): script Han. */")
    print("/* clang-format off */")
    print("#ifdef G")
    rows("G", [("0x%X" % c, cat[c]) for c in starts])
    print("#endif\n#ifdef Q")
    rows("Q", [("0x%X" % a, "0x%X" % b) for a, b in ranges(quick)])
    print("#endif\n#ifdef C")
    rows("C", [("0x%X" % a, "0x%X" % b) for a, b in ranges(ccc)])
    print("#endif\n#ifdef H")
    rows("H", [("0x%X" % a, "0x%X" % b) for a, b in ranges(members(r"\p{Han}"))])
    print("#endif\n/* clang-format on */")


main()
