"""Real training text for the example models, split into training and held-out documents.

Five sources, every one public domain or permissively licensed. Three come from
Debian packages (bible-kjv, python3.11-doc, sqlite3-doc, postgresql-doc-15), two
from a data folder named by KVMILL_DATA or an argument (sotu/, tinyshakespeare/).
Held-out documents are chosen by name, never at random, so that the evaluation
suites and the training run agree about them without sharing state.
"""

import hashlib
import html
import os
import pathlib
import re
import subprocess

# Whole books kept out of training: the suites may quote them (public domain).
HELD_OUT_BOOKS = ("Jdgs", "Ruth", "Dan", "Hos", "Jonah", "Eccl", "Jas", "1Pet")
DOC_ROOTS = {
    "python": "/usr/share/doc/python3.11/html",
    "sqlite": "/usr/share/doc/sqlite3",
    "postgresql": "/usr/share/doc/postgresql-doc-15/html",
}
# Machine-made indexes and API tables teach nothing about prose.
DOC_SKIP = re.compile(r"genindex|bookindex|search|changelog|py-modindex|_sources|_static|contents|sqlite3ext|toc")


def data_root(argument=None):
    """Folder of shared inputs: the argument, KVMILL_DATA, or None when neither is set."""
    found = argument or os.environ.get("KVMILL_DATA")
    return pathlib.Path(found) if found else None


def held_out_by_name(name, share=20):
    """True for one name in `share`; a digest, so the choice survives reordering."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % share == 0


def bible_books():
    """King James text as {book: [chapter text, ...]}, read through the `bible` program."""
    raw = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    books = {}
    for line in raw.splitlines():
        match = re.match(r"^([1-3]?[A-Za-z]+?)(\d+):(\d+) (.*)$", line.strip())
        if not match:
            continue
        book, chapter, _, verse = match.groups()
        chapters = books.setdefault(book, {})
        chapters.setdefault(int(chapter), []).append(re.sub(r"\s+", " ", verse).strip())
    return {b: [" ".join(v) for _, v in sorted(c.items())] for b, c in books.items()}


def strip_tags(page):
    """Prose of an HTML page: paragraphs and list items only, code blocks and menus dropped."""
    page = re.sub(r"(?is)<(script|style|pre|head|nav|table)\b.*?</\1>", " ", page)
    parts = re.findall(r"(?is)<(?:p|dd|li|blockquote)\b[^>]*>(.*?)"
                       r"(?=</?(?:p|dd|li|div|dl|ul|ol|blockquote|h\d)\b)", page)
    lines = (re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", p))).strip() for p in parts)
    return "\n".join(line for line in lines if len(line) > 60)


def html_documents(root):
    """(name, text) for each page under root that holds at least a few paragraphs."""
    for path in sorted(pathlib.Path(root).rglob("*.html")):
        name = str(path.relative_to(root))
        if DOC_SKIP.search(name):
            continue
        text = strip_tags(path.read_text(encoding="utf-8", errors="replace"))
        if len(text) > 1000:
            yield name, text


def shakespeare_documents(root):
    """Tiny Shakespeare in blocks of about 10 kB, so that a tail can be held out."""
    text = (root / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    for i in range(0, len(text), 10000):
        yield "block%03d" % (i // 10000), text[i:i + 10000]


def read_corpus(root):
    """{source: {"train": [text], "held": [text]}} for every source that is present."""
    out = {}

    def add(source, text, held):
        out.setdefault(source, {"train": [], "held": []})["held" if held else "train"].append(text)

    for book, chapters in bible_books().items():
        for chapter in chapters:
            add("bible", chapter, book in HELD_OUT_BOOKS)
    for source, folder in DOC_ROOTS.items():
        for name, text in html_documents(folder):
            add(source, text, held_out_by_name(name))
    if root is not None:
        for path in sorted((root / "sotu").glob("*.txt")):
            text = re.sub(r"[ \t]+", " ", path.read_text(encoding="utf-8", errors="replace"))
            add("sotu", re.sub(r"\n\s*\n+", "\n", text).strip(), held_out_by_name(path.name, 10))
        for name, text in shakespeare_documents(root):
            add("shakespeare", text, int(name[5:]) >= 104)
    return out
