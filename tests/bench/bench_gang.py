"""Two ranks of one thread against one rank of one thread, step by step of a run.

    python tests/bench/bench_gang.py BUILD-DIR [rounds, 5] [launcher, mpirun] [sequences, 300]

The larger zoo model captured over 300 sequences of 512 tokens (some 10 s), its moments, a fit and a short
evaluation, in turns with 1 and 2 ranks; seconds from claim to end of the job as the catalogue has
them, starting and ending the gang with it. Ratios are of the two runs of a round, so that a machine that slows
down slows both; below the table stand the load and what a gang of an empty program costs.
"""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

GATE = 3  # a gate has failed, as it may on so little text: the run is whole
build, rounds, launcher, sequences = (sys.argv[1:] + ["5", "mpirun", "300"][len(sys.argv) - 2:])[:4]
here = os.getcwd()
spec = f"""name: small-large
source: {here}/tests/zoo/small
target: {here}/tests/zoo/large
calibration: {{text: calibration, sequences: {sequences}, tokens: 512}}
evaluate: {{suites: [facts-qa], items: 40}}
"""


def run(work, store, ranks):
    command = [f"{build}/kvmill", "run", f"{work}/pair.yaml", "--store", store, "--quiet", "--threads", "1",
               "--ranks", str(ranks), "--launcher", launcher]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, GATE):
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr}")
    db = sqlite3.connect(f"{store}/catalogue.db")
    return dict(db.execute("SELECT label, finished_at - started_at FROM job WHERE state = 'succeeded'"))


def empty_gang():
    allowed = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    began = time.monotonic()
    subprocess.run(["mpirun", "-n", "2", *allowed, "--oversubscribe", "true"], stdin=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


seconds = {}
with tempfile.TemporaryDirectory() as work:
    with open(f"{work}/pair.yaml", "w") as f:
        f.write(spec)
    for n in range(int(rounds)):
        for ranks in (1, 2):
            for label, took in run(work, f"{work}/{n}-{ranks}", ranks).items():
                seconds.setdefault(label, {1: [], 2: []})[ranks].append(took)
            subprocess.run(["rm", "-rf", f"{work}/{n}-{ranks}"], check=True)
print(f"| {launcher}, {sequences} sequences | 1 rank | 2 ranks | ratio (least-most) |\n|---|---|---|---|")
for label, of in seconds.items():
    one, two = statistics.median(of[1]), statistics.median(of[2])
    ratios = sorted(a / b for a, b in zip(of[1], of[2]))
    print(f"| {label} | {one:.2f} s | {two:.2f} s | {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) |")
print("\nload", *(f"{x:.1f}" for x in os.getloadavg()), end="")
if launcher == "mpirun":
    print(f"; mpirun of two empty programs {statistics.median(empty_gang() for _ in range(5)):.2f} s", end="")
print()
