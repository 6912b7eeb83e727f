"""Run pair specs over seeds and steps of distillation, and print their tables.

    sweep.py run    --store build/sweep [--seeds 1,2,3] [--steps 400,2000] tests/zoo/pairs/*.yaml
    sweep.py tables --store build/sweep
    sweep.py findings build/sweep/reports/*.json

`run` writes a variant of each spec for every seed and number of steps into the store and
hands it to `kvmill run`; what is done already is done no more. `tables` reads the reports
and prints docs/results.md's tables: the mean over seeds, with the least and the most;
`findings` what each report says of each published finding.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess

ROWS = (
    ("prose.kl", "prose: KL", 4),
    ("prose.first_kl", "prose: first-token KL", 3),
    ("needle.recall", "needle: recall", None),
    ("facts-qa.f1", "facts-qa: token F1", None),
    ("facts-qa.gold_in_answer", "facts-qa: gold in answer", None),
)
FIXED = (("native", "target"), ("source", "source"), ("closed_form", "closed form"))
CONTROLS = (("raw_source", "raw source"), ("wrong_donor", "wrong donor"), ("zero", "zero"))
NAME = re.compile(r"(.+)\.s(\d+)\.n(\d+)$")


def variant(spec, seed, steps):
    """The text of a spec with another seed, number of steps and name; its paths made whole."""
    text = spec.read_text()
    here = spec.resolve().parent
    text = re.sub(r"(?m)^(name: .*)$", rf"\1.s{seed}.n{steps}", text)
    text = re.sub(r"(?m)^(\s*seed:) .*$", rf"\1 {seed}", text)
    text = re.sub(r"(?m)^(\s*steps:) .*$", rf"\1 {steps}", text)
    text = re.sub(r"(?m)^(\s*validate:) .*$", rf"\1 {max(50, steps // 10)}", text)
    return re.sub(r"(?m)(: )(\.\.[./]*/\S+)", lambda m: m[1] + str((here / m[2]).resolve()), text)


def run(args):
    """All variants, one after the other; a gate that is not met (3) is a result too."""
    folder = args.store / "specs"
    folder.mkdir(parents=True, exist_ok=True)
    for steps in args.steps:
        for seed in args.seeds:
            for spec in args.specs:
                path = folder / f"{spec.stem}.s{seed}.n{steps}.yaml"
                path.write_text(variant(spec, seed, steps))
                done = subprocess.run([args.kvmill, "run", "--store", args.store, path], check=False)
                if done.returncode not in (0, 3):
                    raise SystemExit(f"{path}: kvmill run ended with {done.returncode}")


def reports(stores):
    """{pair: {steps: {seed: document}}} of the reports in the stores."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for store in stores:
        for path in sorted((store / "reports").glob("*.json")):
            name = NAME.match(path.stem)
            if name:
                found[name[1]][int(name[3])][int(name[2])] = json.loads(path.read_text())
    return found


def figures(documents, suite, arm):
    """An arm's score in each document that has it."""
    out = []
    for document in documents:
        for row in document["suites"]:
            value = row["arms"].get(arm, {}).get("score", {}).get("value")
            if row["name"] == suite and value is not None:
                out.append(value)
    return out


def cell(values, digits):
    """Mean, and what the seeds spread over when they differ."""
    def show(x):
        return f"{100 * x:.0f} %" if digits is None else f"{x:.{digits}f}"

    if not values:
        return "–"
    least, most, mean = show(min(values)), show(max(values)), show(sum(values) / len(values))
    return mean if least == most else f"{mean} ({least} … {most})"


def quality(by_steps):
    """Anchors, closed form, distilled by steps, and controls."""
    distinct = list({seed: d for seeds in by_steps.values() for seed, d in seeds.items()}.values())
    steps = sorted(by_steps)
    heads = [t for _, t in FIXED] + [f"distilled, {n:,} steps" for n in steps] + [t for _, t in CONTROLS]
    yield f"| | {' | '.join(heads)} |"
    yield "|" + "---|" * (len(heads) + 1)
    for suite, title, digits in ROWS:
        cells = [cell(figures(distinct, suite, arm), digits) for arm, _ in FIXED]
        cells += [cell(figures(by_steps[n].values(), suite, "distilled"), digits) for n in steps]
        cells += [cell(figures(distinct, suite, arm), digits) for arm, _ in CONTROLS]
        yield f"| {title} | {' | '.join(cells)} |"


def against_native(by_steps):
    """Paired differences from the target's own cache: of each seed's closed form, then by steps."""
    yield "| seed | arm | " + " | ".join(t for _, t, _ in ROWS) + " |"
    yield "|" + "---|" * (len(ROWS) + 2)
    for seed in sorted({seed for seeds in by_steps.values() for seed in seeds}):
        steps = [n for n in sorted(by_steps) if seed in by_steps[n]]
        yield difference(seed, "closed form", by_steps[steps[0]][seed], "closed_form")
        for n in steps:
            yield difference(seed, f"distilled, {n:,} steps", by_steps[n][seed], "distilled")


def difference(seed, title, document, arm):
    """A row of against_native."""
    rows = {r["name"]: r["arms"] for r in document["suites"]}
    cells = [interval(rows.get(suite, {}).get(arm, {}).get("versus_native", {}), digits)
             for suite, _, digits in ROWS]
    return f"| {seed} | {title} | {' | '.join(cells)} |"


def interval(d, digits):
    """A difference with its 95 % interval."""
    if d.get("value") is None:
        return "–"
    if digits is None:
        return f"{100 * d['value']:+.0f} [{100 * d['low']:+.0f}, {100 * d['high']:+.0f}]"
    return f"{d['value']:.{digits}f} [{d['low']:.{digits}f}, {d['high']:.{digits}f}]"


def needles(by_steps):
    """Recall by length."""
    steps = sorted(by_steps)
    every = [d for n in steps for d in by_steps[n].values() if d.get("needle")]
    if not every:
        return
    lengths = [p["tokens"] for p in every[0]["needle"]["points"]]
    yield "| needle, tokens | " + " | ".join(f"{n:,}" for n in lengths) + " |"
    yield "|" + "---|" * (len(lengths) + 1)
    rows = [(title, arm, every) for arm, title in FIXED]
    rows += [(f"distilled, {n:,} steps", "distilled", list(by_steps[n].values())) for n in steps]
    for title, arm, documents in rows:
        cells = []
        for i, _ in enumerate(lengths):
            points = [d["needle"]["points"][i]["arms"].get(arm, {}).get("value") for d in documents]
            cells.append(cell([p for p in points if p is not None], None))
        yield f"| {title} | {' | '.join(cells)} |"


def tables(args):
    """Every pair's tables as Markdown."""
    for pair, by_steps in reports(args.store).items():
        seeds = {n: sorted(s) for n, s in sorted(by_steps.items())}
        print(f"\n#### {pair}")
        print("\nSeeds: " + "; ".join(f"{n:,} steps {', '.join(map(str, s))}" for n, s in seeds.items()) + ".\n")
        for part in (quality, needles, against_native):
            print("\n".join(part(by_steps)), end="\n\n")


VERDICTS = {"reproduced": "yes", "not_reproduced": "no", "undecided": "undecided"}


def findings(args):
    """One table: a row per finding, a column per report; left out is what a pair cannot show."""
    documents = [json.loads(path.read_text()) for path in args.reports]
    print("| finding | " + " | ".join(d["pair"]["name"] for d in documents) + " |")
    print("|" + "---|" * (len(documents) + 1))
    for row in documents[0]["findings"]:
        verdicts = [next(f for f in d["findings"] if f["key"] == row["key"])["verdict"] for d in documents]
        if any(v in VERDICTS for v in verdicts):
            print(f"| {row['statement']} | " + " | ".join(VERDICTS.get(v, "–") for v in verdicts) + " |")
    for d in documents:
        print(f"\n#### {d['pair']['name']}\n")
        for f in d["findings"]:
            if f["verdict"] in VERDICTS:
                print(f"- {f['statement']} {VERDICTS[f['verdict']]}: {f['text']}")


def numbers(text):
    """1,2,3"""
    return [int(x) for x in text.split(",")]


def main():
    """Three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("specs", nargs="+", type=pathlib.Path)
    runs.add_argument("--store", type=pathlib.Path, required=True)
    runs.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    runs.add_argument("--steps", type=numbers, default=[400, 2000])
    runs.add_argument("--kvmill", default="build/release/kvmill")
    shown = commands.add_parser("tables")
    shown.add_argument("--store", type=pathlib.Path, nargs="+", required=True)
    judged = commands.add_parser("findings")
    judged.add_argument("reports", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    {"run": run, "tables": tables, "findings": findings}[args.command](args)


if __name__ == "__main__":
    main()
