"""Two ranks of one thread against one rank of one thread, step by step of a run.

    python tests/bench/bench_gang.py BUILD-DIR [rounds, 5] [launcher, mpirun]

The larger zoo model captured over 96 sequences of 512 tokens, its moments, a fit and a short
evaluation, in turns with 1 and 2 ranks; seconds from claim to end of the job as the catalogue has
them, starting and ending the gang with it.
"""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile

build, rounds, launcher = sys.argv[1], int((sys.argv[2:] + ["5"])[0]), (sys.argv[3:] + ["mpirun"])[0]
here = os.getcwd()
spec = f"""name: small-large
source: {here}/tests/zoo/small
target: {here}/tests/zoo/large
calibration: {{text: calibration, sequences: 96, tokens: 512}}
evaluate: {{suites: [facts-qa], items: 40}}
"""
seconds = {}
with tempfile.TemporaryDirectory() as work:
    with open(f"{work}/pair.yaml", "w") as f:
        f.write(spec)
    for n in range(rounds):
        for ranks in (1, 2):
            store = f"{work}/{n}-{ranks}"
            subprocess.run([f"{build}/kvmill", "run", f"{work}/pair.yaml", "--store", store, "--quiet", "--threads", "1",
                            "--ranks", str(ranks), "--launcher", launcher], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            db = sqlite3.connect(f"{store}/catalogue.db")
            for label, took in db.execute("SELECT label, finished_at - started_at FROM job WHERE state = 'succeeded'"):
                seconds.setdefault(label, {1: [], 2: []})[ranks].append(took)
for label, of in seconds.items():
    one, two = statistics.median(of[1]), statistics.median(of[2])
    ratios = sorted(a / b for a, b in zip(of[1], of[2]))
    print(f"{label:24} {one:8.2f} s {two:8.2f} s  {statistics.median(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})")
