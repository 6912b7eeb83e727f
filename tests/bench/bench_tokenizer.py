#!/usr/bin/env python3
"""bench_tokenizer against the `tokenizers` library, one thread each.

  make bench T=bench_tokenizer        (writes the texts)
  TOKENIZERS_PARALLELISM=false python3 tests/bench/bench_tokenizer.py \
      build/release/tests/bench/bench_tokenizer TOKENIZER TEXT...

TOKENIZER is a tokenizer.json (or a .gguf and the tokenizer.json that equals it, as
GGUF=JSON). Rounds alternate between the two; the ratio is the median of the rounds'
ratios. Both count CPU time. The ids must be equal or the figure is not printed. The library encodes the text
as one string and, since it is slow on long ones, also in pieces of about 4 KiB cut behind
line ends or spaces (its better figure counts; kvmill always gets the whole).
"""
import hashlib
import os
import statistics
import subprocess
import sys
import time

from tokenizers import Tokenizer

ROUNDS, REPS = 3, 5


def timed(f):
    start = time.process_time()
    out = f()
    return time.process_time() - start, out


def pieces(text, size=4096):
    out, at = [], 0
    while at < len(text):
        end = min(len(text), at + size)
        while end < len(text) and text[end - 1] not in " \n":
            end += 1
        out.append(text[at:end])
        at = end
    return out


def main():
    binary, tokenizer = sys.argv[1:3]
    ours, _, theirs = tokenizer.partition("=")
    tok = Tokenizer.from_file(theirs or ours)
    for path in sys.argv[3:]:
        text = open(path, encoding="utf-8", newline="").read()
        parts = pieces(text)
        size = len(text.encode())
        ratios, mine, peer = [], [], []
        for _ in range(ROUNDS):
            n, sha, mbs = subprocess.check_output([binary, ours, path, str(REPS)]).split()
            t, enc = timed(lambda: tok.encode(text, add_special_tokens=False))
            if _ == 0:
                raw = b"".join(i.to_bytes(4, "little") for i in enc.ids)
                assert hashlib.sha256(raw).hexdigest() == sha.decode(), path
            cut, _unused = timed(
                lambda: [tok.encode(p, add_special_tokens=False) for p in parts])
            best = size / min(t, cut) / 1e6
            mine.append(float(mbs))
            peer.append(best)
            ratios.append(float(mbs) / best)
        print("%-12s %9.1f MB/s  library %6.2f MB/s  ratio %5.1f" % (
            os.path.basename(path), statistics.median(mine), statistics.median(peer),
            statistics.median(ratios)), flush=True)


main()
