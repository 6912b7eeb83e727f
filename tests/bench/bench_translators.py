#!/usr/bin/env python3
"""The sweep of bench_translators with numpy and scipy: same moments files, same figures.

    build/release/tests/bench/bench_translators sweep 1      (writes build/tmp/bench)
    OPENBLAS_NUM_THREADS=1 python3 tests/bench/bench_translators.py zoo middle

Per target layer, object, k and lambda: the unit-diagonal system of the k best layers, one
scipy Cholesky, one solve, R2 of both splits from the moments; prints CPU seconds (so that a
busy machine does not count) and the checksum that the C side prints too.
"""
import sys
import time

import numpy as np
import scipy.linalg as la
from safetensors import safe_open

LAMBDAS = [(10.0 ** -e, False) for e in (6, 5, 4, 3, 2, 1)] + [(0.01, True)]


def load(path):
    with safe_open(path, "np") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()


def joined(t, name, s, p, symmetric):
    """tiles name.s.p.i.j as one matrix"""
    tiles = {}
    for key, x in t.items():
        if key.startswith(f"{name}.{s}.{p}."):
            i, j = map(int, key.split(".")[-2:])
            tiles[i, j] = x
            if symmetric:
                tiles[j, i] = x.T
    rows = 1 + max(i for i, _ in tiles)
    cols = 1 + max(j for _, j in tiles)
    return np.block([[tiles[i, j] for j in range(cols)] for i in range(rows)])


def r2(error, total, dim):
    e, t = np.maximum(error, 0).reshape(-1, dim).sum(1), total.reshape(-1, dim).sum(1)
    return (1 - e / t).mean()


def figures(a, b, ah, bh, shift_x, shift_y, y2, y2h, nh, lam, absolute, dim):
    d = 1 / np.sqrt(np.diag(a))
    pen = lam * d * d if absolute else np.full(len(d), lam)
    m = a * d[:, None] * d[None]
    m[np.diag_indices_from(m)] = 1 + pen
    factor = la.cho_factor(m, lower=True, overwrite_a=True, check_finite=False)
    db = b * d[:, None]
    z = la.cho_solve(factor, db, check_finite=False)
    error = y2 - (z * (db + pen[:, None] * z)).sum(0)
    w = z * d[:, None]
    held = y2h + (w * (ah @ w - 2 * bh)).sum(0) + nh * (shift_y - shift_x @ w) ** 2
    return r2(error, y2, dim), r2(held, y2h, dim)


def sweep(label):
    gram, meta = load(f"build/tmp/bench/{label}.gram")
    cross, cmeta = load(f"build/tmp/bench/{label}.cross")
    ls, lt = int(meta["a.layers"]), int(cmeta["b.layers"])
    ks = [k for k in (1, 2, 4, 6, 8, 10, 12, 16, 20, 24) if k < ls] + [ls]
    dim = int(cmeta["b.dim.K"].split(",")[0])
    w = int(meta["a.heads.K"].split(",")[0]) * dim
    nh = int(gram["rows"][1])
    data = {}
    for s in ("K", "V"):
        data[s] = [joined(gram, "gram", s, p, True) for p in ("fit", "held")] + [
            joined(cross, "cross", s, p, False) for p in ("fit", "held")]
    single = np.zeros((2, ls, lt))
    cols = lambda layers: np.concatenate([np.arange(l * w, (l + 1) * w) for l in layers])

    def one(s, layers, t, lam, absolute):
        a, ah, b, bh = data[s]
        i, o = cols(layers), slice(t * w, (t + 1) * w)
        ix = np.ix_(i, i)
        m = lambda name, p: cross[f"{name}.{s}.{p}"]
        return figures(a[ix], b[i, o], ah[ix], bh[i, o],
                       m("mean.a", "held")[i] - m("mean.a", "fit")[i],
                       m("mean.b", "held")[o] - m("mean.b", "fit")[o],
                       m("square.b", "fit")[o], m("square.b", "held")[o], nh, lam, absolute,
                       dim)

    start = time.process_time()
    for n, s in enumerate("KV"):
        for l in range(ls):
            for t in range(lt):
                single[n, l, t] = one(s, [l], t, 1e-6, False)[0]
    maps = time.process_time() - start
    start, total = time.process_time(), 0.0
    for t in range(lt):
        order = np.argsort(-single.mean(0)[:, t], kind="stable")
        for s in "KV":
            for k in ks:
                for lam, absolute in LAMBDAS:
                    total += sum(one(s, list(order[:k]), t, lam, absolute))
    print(f"{label}: {len(ks)} k x {len(LAMBDAS)} lambda: maps {maps:.4f} s (two spaces), "
          f"sweep {time.process_time() - start:.4f} s, checksum {total:.9f}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sweep(name)
