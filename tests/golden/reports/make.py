#!/usr/bin/env python3
"""Golden values of reports/: python3 tests/golden/reports/make.py (numpy, scipy; seed below).

stats.json   scores of made-up items and what numpy/scipy say of them: means, ratios, 95 % paired
             percentile-bootstrap intervals (10,000 resamples of numpy's own generator), quantiles.
sample.json  a whole report document of made-up numbers, for the page's tests and screenshots. It
             is no measurement and says so.
"""
import json
import math
import os

import numpy as np
import scipy.stats

SEED = 20260131
HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(SEED)
RATIOS = ("score", "retention", "floor_normalised", "gap_recovered", "versus_native")


def interval(stat):
    stat = stat[np.isfinite(stat)]
    return np.percentile(stat, 2.5), np.percentile(stat, 97.5)


def clear_of_zero(stat):
    low, high = interval(stat)
    return low > 0 or high < 0


def compare(items, chance=math.nan, weight=None, exp=False, lower=False):
    """What kvm_compare must find, written the obvious way."""
    n = len(items["native"])
    w = np.ones(n) if weight is None else np.asarray(weight)
    pick = np.vstack([np.arange(n), rng.integers(0, n, (10000, n))])
    mean = {}
    for arm, x in items.items():
        m = (w * x)[pick].sum(1) / w[pick].sum(1)
        mean[arm] = np.exp(m) if exp else m
    controls = [c for c in ("raw_source", "wrong_donor", "zero") if c in mean]
    best = (min if lower else max)(controls, key=lambda c: mean[c][0])
    out = {}
    for arm, m in mean.items():
        stats = {"score": m, "versus_native": m - mean["native"]}
        with np.errstate(all="ignore"):
            if not lower and clear_of_zero(mean["native"][1:]):
                stats["retention"] = m / mean["native"]
            if not lower and math.isfinite(chance) and clear_of_zero(mean["native"][1:] - chance):
                stats["floor_normalised"] = (m - chance) / (mean["native"] - chance)
            lead = (mean["native"] - mean["source"])[1:] * (-1 if lower else 1)
            if interval(lead)[0] > 0 and arm not in controls:  # else there is no gap
                stats["gap_recovered"] = (m - mean["source"]) / (mean["native"] - mean["source"])
        if arm not in controls:
            stats["versus_control"] = m - mean[best]
        out[arm] = {}
        for name, s in stats.items():
            low, high = interval(s[1:])
            out[arm][name] = {"value": float(s[0]), "low": float(low), "high": float(high)}
            if name == "versus_control":
                out[arm][name]["note"] = "strongest control: " + best.replace("_", " ").replace(
                    "raw source", "raw source cache").replace("zero", "zero cache")
    return out


def correlated_hits(n, rates, keep=0.8):
    """0/1 scores per arm; arms agree on most items, as real ones do."""
    base = rng.random(n)
    return {arm: (np.where(rng.random(n) < keep, base, rng.random(n)) < p).astype(float)
            for arm, p in rates.items()}


def rounded(x):
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [rounded(v) for v in x]
    if isinstance(x, (float, np.floating)):
        return None if not math.isfinite(x) else float(f"{x:.6g}")
    return x


# ---- stats.json ----

hits = correlated_hits(200, dict(native=.72, source=.55, closed_form=.68, mlp=.70, raw_source=.27,
                                 wrong_donor=.31, zero=.26))
hits["identity"] = hits["native"].copy()
f1 = {a: np.clip(rng.normal(m, .3, 90), 0, 1) for a, m in
      dict(native=.62, source=.60, closed_form=.57, zero=.05).items()}
tokens = rng.integers(40, 400, 64).astype(float)
hard = rng.normal(0, .3, 64)
nll = {a: np.maximum(.1, m + hard + rng.normal(0, .05, 64)) for a, m in
       dict(native=2.1, source=2.6, closed_form=2.18, wrong_donor=3.0, zero=3.1).items()}


def case(name, items, **kw):
    found = compare(items, **kw)
    w = kw.get("weight")
    return {"name": name, "chance": kw.get("chance"), "exp": kw.get("exp", False),
            "lower": kw.get("lower", False), "weight": None if w is None else w.tolist(),
            "items": {a: [float(f"{v:.9g}") for v in x] for a, x in items.items()}, "arms": found}


# items are written with nine digits: compute from what the test will read
f1 = {a: np.array([float(f"{v:.9g}") for v in x]) for a, x in f1.items()}
nll = {a: np.array([float(f"{v:.9g}") for v in x]) for a, x in nll.items()}
sample = rng.lognormal(0, .4, 23)
sample = np.array([float(f"{v:.9g}") for v in sample])
boot = scipy.stats.bootstrap((hits["closed_form"],), np.mean, n_resamples=10000,
                             method="percentile", random_state=np.random.default_rng(SEED))
tokens_at = np.array([64., 256., 1024., 4096., 16384.])
cold = 2e-5 * tokens_at ** 1.1
swap = 8e-3 + 4e-6 * tokens_at
log_gap = np.log(cold / swap)
at = int(np.max(np.where(log_gap <= 0)[0]))
even = float(np.exp(np.interp(0, log_gap[at:at + 2], np.log(tokens_at[at:at + 2]))))
json.dump({
    "seed": SEED, "numpy": np.__version__, "scipy": scipy.__version__,
    "cases": [case("multiple choice", hits, chance=.25), case("f1, no gap", f1, chance=0.),
              case("perplexity", nll, weight=tokens, exp=True, lower=True)],
    "scipy_mean": {"low": boot.confidence_interval.low, "high": boot.confidence_interval.high},
    "sample": sample.tolist(),
    "quantiles": {str(q): float(np.quantile(sample, q)) for q in (0, .025, .1, .25, .5, .75, .975, 1)},
    "break_even": {"tokens": tokens_at.tolist(), "cold": cold.tolist(), "switch": swap.tolist(),
                   "at": even},
}, open(os.path.join(HERE, "stats.json"), "w"), separators=(",", ":"))

# ---- sample.json ----

LS, LT = 4, 6


def suite(name, title, metric, n, chance, rates, fmt="percent", note=None):
    items = correlated_hits(n, rates)
    items["identity"] = items["native"].copy()
    s = {"name": name, "title": title, "metric": metric, "format": fmt, "better": "high",
         "chance": chance, "items": n, "arms": compare(items, chance=chance)}
    if note:
        s["note"] = note
    return s


def rates(native, source, closed, mlp, floor):
    return dict(native=native, source=source, closed_form=closed, mlp=mlp, raw_source=floor,
                wrong_donor=floor + .02, zero=floor - .01)


def lm(name, title, fmt, means, n=96, exp=False, spread=.25, note=None):
    hard = rng.normal(0, spread, n)
    items = {a: np.maximum(0 if a != "native" or exp else 0, m + (hard if exp else np.abs(hard) * m))
             for a, m in means.items()}
    items = {a: x + (rng.normal(0, .02, n) if exp and a != "identity" else 0) for a, x in items.items()}
    items["identity"] = items["native"].copy()
    s = {"name": name, "title": title, "metric": "per sequence", "format": fmt, "better": "low",
         "chance": None, "items": n, "arms": compare(items, exp=exp, lower=True)}
    for arm in s["arms"].values():
        for key in ("retention", "floor_normalised"):
            arm[key] = {"value": None, "note": "lower is better: a share has no meaning"}
        if name != "perplexity":
            arm["gap_recovered"] = {"value": None, "note": "measured against the target itself"}
    if note:
        s["note"] = note
    return s


def r2_map(peak, sharp, base):
    rows = []
    for s in range(LS):
        rows.append([base + (peak - base) * math.exp(-sharp * (s / (LS - 1) - t / (LT - 1)) ** 2)
                     * (1 - .1 * abs(t - 2) / 3) + rng.normal(0, .015) for t in range(LT)])
    return rows


def greedy(ceiling, first):
    out = []
    for t in range(LT):
        top = ceiling - .05 * abs(t - 2) / 2 + rng.normal(0, .01)
        order = sorted(range(LS), key=lambda s: abs(s / (LS - 1) - t / (LT - 1)))
        out.append({"target": t, "order": order,
                    "r2": [top - (top - first * top) * math.exp(-1.1 * k) for k in range(LS)]})
    return out


def layer_rows(k, v, cos, ck, cv, states=()):
    rows = []
    for t in range(LT):
        dip = .08 * (t == LT - 1) + .03 * (t == 0)
        e = lambda x, s=.008: x + rng.normal(0, s)
        none = {"value": None, "note": "no such map"}
        rows.append({"layer": t, "r2": [e(k - dip), e(v - 1.4 * dip), .81 - .02 * t if t in states else none],
                     "r2_fit": [e(k - dip + .02), e(v - 1.4 * dip + .03), none], "cosine": e(cos - .5 * dip, .003),
                     "c_k": e(ck + 2 * dip, .05), "c_v": e(cv + dip, .03)})
    return rows


def spread(v, by=.03):
    return {"value": v, "low": v * (1 - by), "high": v * (1 + by)}


lengths = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
points = []
for n in lengths:
    prefill = 9e-4 + 1.9e-5 * n + 4.4e-10 * n * n
    stages = {"capture": 2e-5 + 2.2e-8 * n, "transfer": 3e-5 + 4e-8 * n, "tokens": 1e-4 + 8e-8 * n,
              "translate": 2.8e-3 + 6.6e-7 * n, "states": 4e-5, "inject": 1e-4 + 1.5e-7 * n, "first_decode": 2.1e-3 + 2.4e-8 * n}
    decode = 2.1e-3 + 2.4e-8 * n
    swap_s = sum(stages.values())
    points.append({"tokens": n, "cold": spread(prefill + decode), "switch": spread(swap_s, .05),
                   "speedup": spread((prefill + decode) / swap_s, .02),
                   "cold_stages": {"prefill": prefill, "first_decode": decode}, "switch_stages": stages,
                   "computed_bytes": n * 6 * 2 * 64 * 4, "peak_bytes": 21e6 + n * 5400.,
                   "translate_tokens_per_s": n / stages["translate"]})
gap = [math.log(p["cold"]["value"] / p["switch"]["value"]) for p in points]
slow = max(i for i, g in enumerate(gap) if g <= 0)
sooner_from = math.exp(np.interp(0, gap[slow:slow + 2], np.log(lengths[slow:slow + 2])))
needle = []
for n, native, closed, mlp in ((64, 1, .98, .99), (128, 1, .97, .98), (256, .99, .95, .95),
                               (512, .97, .90, .92), (1024, .93, .81, .85), (2048, .86, .66, .71)):
    arms = {}
    for arm, p in (("native", native), ("source", native - .07), ("closed_form", closed), ("mlp", mlp),
                   ("wrong_donor", .01), ("zero", 0.), ("raw_source", .0)):
        x = (rng.random(80) < p).astype(float)
        low, high = interval(rng.choice(x, (4000, 80)).mean(1))
        arms[arm] = {"value": x.mean(), "low": low, "high": high}
    needle.append({"tokens": n, "achieved": n - 3, "bos": 1, "arms": arms})


def sigma(r2, top, fall):
    return [top - fall * max(0, math.log10(max(l, 1e-5)) + 2.3) ** 2 - .012 * max(0, -4.5 - math.log10(l))
            for l in r2]


def recipe(key, title, how, layers, k=None, lam=None):
    return {"object": key, "title": title, "how": how, "k": k, "lambda": lam, "absolute": False, "layers": layers}


NATIVE_F1, SEGMENT_F1 = (.62, .66, .65, .64, .66), (.62, .63, .64, .62, .63)


def conversation(key, title, f1, seconds):
    """One condition of the alternating conversations, made up from its F1 by turn."""
    mean = sum(f1) / len(f1)
    missing = {"value": None, "note": "the condition to compare with"}

    def versus(base, v):
        gap = v - base[1]
        return missing if key == base[0] else {"value": gap, "low": gap - .04, "high": gap + .04}

    def both(turn, v):
        bases = [(name, values[turn] if turn is not None else sum(values) / len(values))
                 for name, values in (("native", NATIVE_F1), ("segment", SEGMENT_F1))]
        return {"versus_" + b[0]: versus(b, v) for b in bases}

    whole = both(None, mean)
    return {"key": key, "title": title, "f1": spread(mean), "gold": spread(mean + .1), **whole,
            **{"gold_" + k: v for k, v in whole.items()},
            "turns": [{"turn": t + 1, "model": "target" if t % 2 else "source", "f1": spread(v), "gold": spread(v + .1),
                       "first_kl": spread(0. if key == "native" else .8 - v), "answer_tokens": 5.5 + t,
                       "seconds": spread(seconds[t], .1), "seconds_so_far": spread(sum(seconds[:t + 1]), .08),
                       **both(t, v)} for t, v in enumerate(f1)]}


def mapped(t, sources, r2, features):
    return {"layer": t, "sources": sources, "r2_fit": r2 + .02, "r2_choose": r2 + .004, "r2_held": r2,
            "rows": 65536, "features": features, "weight_norm": 1.1 + .05 * t}


recipes = [
    recipe("k", "K", "keys from keys, by head content", k=4, lam=1e-3,
           layers=[mapped(t, [t * 3 // 5, 3 - t * 3 // 5], .87 - .01 * t, 256) for t in range(LT)]),
    recipe("v", "V", "values from values", k=4, lam=1e-2,
           layers=[mapped(t, [t * 3 // 5, 3 - t * 3 // 5], .74 - .02 * t, 256) for t in range(LT)]),
    recipe("index", "index key", "index keys from the layer's translated keys", lam=1e-3,
           layers=[dict(mapped(t, [], .91, 64), sources=[]) for t in (2, 5)]),
    recipe("latent", "latent", "exactly, from the token alone", layers=[{"layer": 0}]),
    recipe("state", "state", "copied, then corrected in closed form",
           layers=[{"layer": t, "sources": [t // 2], "r2_copy": .62 - .1 * t, "r2_held": .81 - .02 * t} for t in (1, 4)])]
tried = [{"title": f"states {way}, token {token}", "kl": kl, "first_kl": first, "parameters": n, "chosen": False}
         for way, token, kl, first, n in [("zero", "none", 1.92, 2.61, 98688), ("copy", "none", .124, .181, 98688),
                                          ("bilinear", "none", .091, .112, 139904),
                                          ("bilinear", "decoded", .085, .08, 164480)]]
tried[-1]["chosen"] = True
tried.append({"title": "states replay, token decoded", "kl": None, "first_kl": None, "parameters": 212000,
              "reason": "what the target says behind it is not finite", "chosen": False})
curve = [{"step": s, "kl": .021 + .064 * math.exp(-s / 60) + 3e-5 * max(0, s - 300),
          "first_kl": .03 + .05 * math.exp(-s / 80), "train_kl": None if not s else .018 + .06 * math.exp(-s / 60),
          "norm": None if not s else 1.4 * math.exp(-s / 200), "rate": 3e-4 * min(1, s / 20),
          "tokens_per_s": 3140. if s else 0.} for s in range(0, 401, 25)]
best = min(curve, key=lambda p: p["kl"])
grid = [1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
cols = [("prose", "KL to native", "kl", "number", {}), ("prose", "perplexity", "nll", "number", {}),
        ("needle", "recall", "recall", "percent", {}), ("needle", "recall at 512", "recall", "percent", {"tokens": 512}),
        ("needle", "recall at 1024", "recall", "percent", {"tokens": 1024}),
        ("needle", "recall beyond 512", "recall", "percent", {"beyond": 512})]


def around(v, by):
    return {"value": v, "low": v - by, "high": v + by}


def ablation(name, title, cells, note=None):
    full = (.064, 8.67, .90, .94, .86, .86)
    row = {"name": name, "title": title, "cells": [around(v, .05 * max(v, .1)) for v in cells]}
    if name != "none":
        row["versus"] = [around(v - f, .04) for v, f in zip(cells, full)]
    return {**row, "note": note} if note else row


def answers(tokens, blank, agrees):
    return {"tokens": around(tokens, .4), "versus_native": around(tokens - 5.1, .3), "blank": around(blank, .03),
            "empty": 0., "first_agreement": around(agrees, .04)}
doc = {
    "format": "kvmill.report", "version": 4,
    "sample": "Every number on this page is made up by tests/golden/reports/make.py to show the layout.",
    "made": "2026-01-31T12:00:00Z",
    "pair": {"name": "sample-small-large",
             "source": {"name": "zoo-small", "family": "qwen3", "parameters": 1.12e6, "layers": LS,
                        "kv_heads": 2, "head_dim": 32, "context": 2048, "dtype": "bf16", "keeps": ["latent"]},
             "target": {"name": "zoo-large", "family": "qwen3", "parameters": 2.74e6, "layers": LT,
                        "kv_heads": 2, "head_dim": 32, "context": 2048, "dtype": "bf16",
                        "keeps": ["K", "V", "state", "index"]},
             "reverse": {"name": "sample-large-small", "href": "sample-large-small.html"}},
    "translator": {"arm": "closed_form", "shape": "per target layer, k best source layers, all heads from one "
                   "factorisation", "parameters": 6 * 2 * (256 * 64 + 64), "bytes": 789504},
    "calibration": {"text": "State of the Union 1961-1990 and generated dialogues", "sequences": 320,
                    "sequence_tokens": 512, "stride": 2, "rows": 65536, "choosing_rows": 8192, "held_out_rows": 8192, "features": 256},
    "gates": [
        {"name": "rows", "title": "Rows above features", "value": 256., "format": "ratio", "need": "≥ 4×",
         "verdict": "pass", "where": "65,536 rows, 256 features"},
        {"name": "held_out_r2", "title": "Held-out R², worst layer", "value": .571, "format": "r2",
         "need": "≥ 0.30", "verdict": "pass", "where": "layer 5, V"},
        {"name": "cosine", "title": "Attention-output cosine, worst layer", "value": .911, "format": "r2",
         "need": "≥ 0.80", "verdict": "pass", "where": "layer 5"},
        {"name": "weight_norm", "title": "Weight norm, largest", "value": 9.31, "need": "≤ 50",
         "verdict": "pass", "where": "layer 4, K"},
        {"name": "c_k", "title": "Error concentration c_K, worst layer", "value": 1.46, "need": "≤ 1.2",
         "verdict": "fail", "required": False, "where": "layer 5", "note": "the error lies where queries read"},
        {"name": "floor_retention", "title": "Retention after chance, mean", "value": spread(.936, .02),
         "format": "percent", "need": "≥ 90 %", "verdict": "pass"},
        {"name": "control", "title": "Better than every control", "value": .42, "format": "points",
         "need": "> 0 on every suite", "verdict": "pass", "where": "Cloze, 4-way"},
        {"name": "faster", "title": "Sooner at 2,048 tokens", "value": spread(9.6), "format": "ratio", "need": "> 1×",
         "verdict": "pass"}],
    "recipes": {"token": "decoded", "identity": {"top1": 1., "rows": 8192}, "states": "bilinear", "objects": recipes,
                "tried": tried, "lessons": 32, "after": 64},
    "training": {"steps": 400, "batch": 8, "lessons": 240, "validation": 30, "parameters": 6 * 2 * (256 * 64 + 64),
                 "seconds": 611.0, "tokens_per_s": 3140., "closed_kl": curve[0]["kl"], "best_kl": best["kl"],
                 "best_step": best["step"], "curve": curve},
    "linearity": {"groups": [{
        "title": "K, V", "how": "keys from keys, by head content",
        "maps": [{"object": "k", "title": "K content (position stripped)", "r2": r2_map(.78, 5, .22)},
                 {"object": "k_rotated", "title": "K rotated", "r2": r2_map(.55, 2.5, .2)},
                 {"object": "v", "title": "V", "r2": r2_map(.52, 6, -.03)}],
        "greedy": [{"object": "k", "title": "K content", "layers": greedy(.88, .82)},
                   {"object": "v", "title": "V", "layers": greedy(.74, .68)}],
        "k": {"k": [1, 2, 3, 4],
              "series": [{"title": "K content", "chosen": 4, "r2": [.712, .812, .851, .869]},
                         {"title": "V", "chosen": 4, "r2": [.498, .621, .684, .713]}]},
        "lambda": {"lambda": grid,
                   "series": [{"title": "K content", "chosen": 1e-3, "r2": sigma(grid, .869, .012)},
                              {"title": "V", "chosen": 1e-2, "r2": sigma(grid, .713, .02)}],
                   "absolute": {"lambda": .01, "relative": 4.1e-5, "r2": [.861, .702]}}}, {
        "title": "input", "how": "inputs of recurrent layers from keys and values",
        "maps": [{"object": "input", "title": "Inputs of recurrent layers", "source_layers": [11, 13],
                  "target_layers": [21, 24], "r2": [[.71, .38], [.41, .66]]}],
        "greedy": [{"object": "input", "title": "Inputs of recurrent layers",
                    "layers": [{"target": t, "order": [11, 13], "r2": [.71 - .05 * i, .75 - .04 * i]}
                               for i, t in enumerate((21, 24))]}],
        "k": {"k": [1, 2], "series": [{"title": "Inputs of recurrent layers", "chosen": 2, "r2": [.685, .73]}]},
        "lambda": {"lambda": grid, "series": [{"title": "Inputs of recurrent layers", "chosen": 1e-3,
                                               "r2": sigma(grid, .73, .015)}]}}]},
    "layers": {"objects": [{"object": "k", "title": "K"}, {"object": "v", "title": "V"},
                           {"object": "state", "title": "state"}],
               "arms": [{"arm": "closed_form", "rows": layer_rows(.875, .73, .965, 1.02, .93, (1, 4))},
                        {"arm": "mlp", "rows": layer_rows(.9, .77, .975, .96, .9)}]},
    "suites": [
        suite("cloze", "Cloze, 4-way", "accuracy by log-likelihood", 400, .25, rates(.715, .565, .69, .70, .27)),
        suite("dialogue_qa", "Dialogue questions", "gold answer contained", 240, 0., rates(.84, .70, .79, .81, .03),
              note="Answers are generated greedily, at most 24 tokens."),
        suite("next_token", "Next-token agreement", "agreement with the target", 320, 0.,
              rates(.995, .58, .86, .88, .21)),
        suite("two_way", "Pronouns, 2-way", "accuracy by log-likelihood", 160, .5, rates(.61, .60, .60, .605, .51),
              note="Source and target score nearly alike here: no gap can be recovered."),
        lm("validation_kl", "Validation KL", "number",
           dict(native=0., source=.31, closed_form=.064, mlp=.051, raw_source=2.9, wrong_donor=1.7, zero=1.45)),
        lm("perplexity", "Perplexity", "number", dict(native=2.10, source=2.52, closed_form=2.16, mlp=2.15,
                                                    raw_source=4.4, wrong_donor=3.5, zero=3.3), exp=True)],
    "needle": {"items": 80, "points": needle,
               "note": "The models read 2,048 tokens at most; longer prefixes are not measured."},
    "timing": {"machine": "2 cores of a made-up machine", "threads": 2, "rounds": 10, "warmups": 2,
               "break_even": {"value": sooner_from}, "points": points},
    "build": {"steps": [{"title": title, "seconds": s, "cpu_seconds": 1.9 * s, "attempts": n, "serves": whom}
                        for title, s, n, whom in (("capture zoo-small", 21.4, 1, "model"),
                                                    ("capture zoo-large", 38.9, 2, "model"), ("moments", 6.2, 1, "directions"),
                                                    ("fit, sweep of k and λ", 2.7, 1, "direction"), ("MLP", 212.0, 1, "direction"))],
              "bytes": 789504,
              "amortise": [{"tokens": n, "switches": s} for n, s in
                           ((64, {"value": None, "note": "the switch saves nothing"}), (512, 31201.), (2048, 6912.),
                            (8192, 1243.))]},
    "answers": [{"suite": "dialogue_qa", "items": 240, "arms": {
        "native": answers(5.1, .02, 1.), "source": answers(5.6, .31, .71), "closed_form": answers(5.4, .27, .88),
        "mlp": answers(7.2, .28, .86), "wrong_donor": answers(9.9, .4, .2)}}],
    "ablations": {"columns": [{"suite": s, "title": t, "metric": m, "format": f, "native": {"kl": 0., "nll": 8.2}.get(m, .96),
                               **more} for s, t, m, f, more in cols],
                  "rows": [ablation("none", "complete closed form", (.064, 8.67, .90, .94, .86, .86)),
                           ablation("rotated", "fit and infer on rotated keys", (.081, 8.81, .83, .9, .76, .76),
                                    "tied to the lengths of the calibration"),
                           ablation("norerotate", "strip the position, do not put it on again",
                                    (1.92, 25.3, 0., 0., 0., 0.)),
                           ablation("k1", "one source layer per target layer, by R2", (.43, 12.4, .22, .3, .14, .14)),
                           ablation("zero_states", "states start empty", (.11, 9.1, .2, .3, .1, .1))]},
    "analyses": {
        "suites": [{"name": "validation.kl", "title": "validation: KL to native", "suite": "validation", "translator": "closed_form",
                    "metric": "KL to native",
                    "indexers": [{"title": t, "overlap": o, "needle": {"value": n, "low": n - .01, "high": min(1., n + .01)}}
                                 for t, o, n in (
                                     ("native", {"value": None, "note": "the choice to compare with"}, .985),
                                     ("translated", {"value": .71, "low": .69, "high": .73}, .97),
                                     ("index keys native", {"value": .88, "low": .87, "high": .89}, .98))],
                    "format": "number", "better": "low", "items": 64, "native": 0.,
                    "best_layer": {"cache": "layer.1", "title": "layer 1 native", "chosen_on": 32, "items": 32,
                                   "translated": around(.066, .004), "all": 0., "score": around(.024, .003),
                                   "versus": around(-.042, .004), "share": around(.64, .05)},
                    "caches": [{"group": g, "title": t, "score": {"value": v, "low": .8 * v, "high": 1.25 * v},
                                **({"share": r} if r else {}),
                                "versus": {"value": v - .064, "low": v - .07, "high": v - .06} if g else
                                          {"value": None, "note": "the cache to compare with"}}
                               for g, t, v, r in (("", "translated", .064, 0), ("swap", "layer 0 native", .063, 0),
                                                  ("swap", "layer 1 native", .021, 0),
                                                  ("swap", "attention native", .004, 0),
                                                  ("swap", "states native", .06, 0),
                                                  ("swap", "all native", 0., 0),
                                                  ("split", "attention alone", .31, 0),
                                                  ("split", "states alone", .62, 0),
                                                  ("split", "nothing", 1.45, 0),
                                                  ("tail", "last 5 % read by the target", .05, .05),
                                                  ("tail", "last 50 % read by the target", .02, .5))]}],
        "tails": [{"tokens": 1024, "rounds": 10, "cold": {"value": .8, "low": .79, "high": .82},
                   "switches": [{"share": r, "seconds": {"value": s, "low": .98 * s, "high": 1.03 * s},
                                 "speedup": {"value": .8 / s, "low": .76 / s, "high": .83 / s}}
                                for r, s in ((0, .1), (.05, .14), (.5, .5))]}]},
    "inversion": {"rows": 6144, "vocab": 2048,
                  "series": [{"model": m, "side": side, "object": o, "point": point, "features": 80,
                              "layers": [{"layer": l, "top1": {"value": v, "low": v - .02, "high": min(1., v + .02)},
                                          "r2": .9 * v} for l, v in enumerate(values)]}
                             for m, side, o, point, values in (
                                 ("zoo-small", "source", "latent", 1, (1., .98, .9, .95)),
                                 ("zoo-small", "source", "latent", 3, (1., .97, .88, .95)),
                                 ("zoo-large", "target", "K", 3, (.99, .9, .6, .5, .6, .8)))],
                  "codebook": {"model": "zoo-small", "side": "source", "object": "latent", "point": 1, "features": 80,
                               "layers": [{"layer": 0, "top1": 1.}]}},
    "alternation": {"suite": "dialogues", "dialogues": 50, "refresh": 4, "translator": "distilled",
                    "conditions": [conversation(*c) for c in (
                        ("native", "native re-read", (.62, .66, .65, .64, .66), (.2, .3, .3, .4, .4)),
                        ("segment", "new segment translated", (.62, .63, .64, .62, .63), (.2, .04, .01, .01, .01)),
                        ("naive", "all translated again", (.62, .63, .5, .4, .28), (.2, .04, .05, .06, .07)),
                        ("refresh", "segment, one native re-read", (.62, .63, .64, .62, .66), (.2, .04, .01, .01, .4)))]},
    "findings": [{"key": k, "statement": f"What has been found, number {i}.", "source": "a paper that was not written",
                  "criterion": "the figure is above 0.5.", "verdict": v, "text": t} for i, (k, v, t) in enumerate((
                      ("first", "reproduced", "recall 20.0 % [15.0, 25.0] without it, 90.0 % [85.0, 95.0] with it"),
                      ("second", "not_reproduced", "recall 88.0 % [83.0, 93.0] without it"),
                      ("third", "undecided", "difference −1.0 pp [−4.0, 2.0]"),
                      ("fourth", "not_measured", "evaluate.ablations: [no_token] would measure it"),
                      ("fifth", "inapplicable", "the target keeps no states")))],
    "provenance": [
        {"title": "Models", "rows": [["zoo-small, weights", "sha256 5d2f…made-up…09ac"],
                                     ["zoo-large, weights", "sha256 e81b…made-up…7730"],
                                     ["tokenizer, both", "sha256 0c44…made-up…d1f2"]]},
        {"title": "Program", "rows": [["kvmill", "0.1.0, commit 0000000"], ["compiler", "gcc 12.2.0 -O3"],
                                      ["BLAS", "OpenBLAS 0.3.21, SkylakeX kernels"]]},
        {"title": "Machine", "rows": [["CPU", "a made-up processor, 2 cores, AVX2"], ["memory", "8 GiB"],
                                      ["threads", "2"]]},
        {"title": "Run", "rows": [["seed", str(SEED)], ["moments", "sha256 77aa…made-up…1b30"]]}],
    "spec": "pair: sample-small-large\nsource: tests/zoo/small\ntarget: tests/zoo/large\nfit:\n  k: [1, 2, 3, 4]\n"
            "  lambda: [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]\n",
    "notes": ["The reversed pair reuses both captures."],
}
json.dump(rounded(doc), open(os.path.join(HERE, "sample.json"), "w"), indent=1, ensure_ascii=False)
