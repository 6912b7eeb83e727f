#!/usr/bin/env python3
"""Golden vectors for translators/: captures, their moments, ridge maps and R2.

    python3 tests/golden/translators/make.py

Everything is computed with numpy in float64 from the rows themselves (R2 from residuals, ridge
by numpy.linalg.solve on explicit design matrices), so that it shares no formula with the C
code, which works from moments. The split by sequence is made again here from its description:
xoshiro256++ seeded by SplitMix64, Lemire's bounded draw, Fisher-Yates. Seed 20260101.
"""
import pathlib

import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
SEED, FRACTION, SPLIT_SEED = 20260101, 0.25, 7
MASK = (1 << 64) - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Rng:
    def __init__(self, seed, stream):
        x, self.s = seed ^ mix(stream), []
        for _ in range(4):
            x = (x + 0x9E3779B97F4A7C15) & MASK
            self.s.append(mix(x))

    def u64(self):
        s = self.s
        rotl = lambda v, k: ((v << k) | (v >> (64 - k))) & MASK
        result = (rotl((s[0] + s[3]) & MASK, 23) + s[0]) & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return result

    def below(self, n):
        product = self.u64() * n
        if (product & MASK) < n:
            unfair = ((1 << 64) - n) % n
            while (product & MASK) < unfair:
                product = self.u64() * n
        return product >> 64


def split(sequences):
    """0 for those to fit on, 1 to choose on, 2 held out."""
    order, rng = list(range(sequences)), Rng(SPLIT_SEED, 0x5EED5)
    for i in range(sequences - 1, 0, -1):
        j = rng.below(i + 1)
        order[i], order[j] = order[j], order[i]
    of, out = np.zeros(sequences, int), int(np.floor(FRACTION * sequences + 0.5))
    of[order[: out // 2]], of[order[out // 2 : out]] = 1, 2
    return of


class Side:
    def __init__(self, name, layers, k, v, width, factor, interleaved, theta, token=0):
        self.name, self.layers, self.k, self.v, self.token = name, layers, k, v, token
        self.width, self.factor, self.interleaved = width, factor, interleaved
        self.inv_freq = (theta ** (-2.0 * np.arange(width // 2) / width)).astype(np.float32)

    def rotate(self, x, position):
        """rows (N, H*D) of keys, angles in float32 as the reference forms them"""
        heads, dim = self.k
        x = x.astype(np.float64).reshape(len(x), heads, dim).copy()
        angle = (position[:, None].astype(np.float32) * self.inv_freq[None]).astype(np.float32)
        c = (np.cos(angle.astype(np.float64)) * self.factor)[:, None, :]
        s = (np.sin(angle.astype(np.float64)) * self.factor)[:, None, :]
        half = self.width // 2
        i0 = 2 * np.arange(half) if self.interleaved else np.arange(half)
        i1 = i0 + 1 if self.interleaved else i0 + half
        a, b = x[:, :, i0].copy(), x[:, :, i1].copy()
        x[:, :, i0], x[:, :, i1] = a * c - b * s, b * c + a * s
        return x.reshape(len(x), -1)

    def meta(self, prefix=""):
        lists = lambda n: ",".join([str(n)] * self.layers)
        meta = {"layers": str(self.layers), "spaces": "K,V",
                "heads.K": lists(self.k[0]), "dim.K": lists(self.k[1]),
                "heads.V": lists(self.v[0]), "dim.V": lists(self.v[1])}
        if self.token:  # the embedding stands at layer 0 alone
            first = lambda n: ",".join([str(n)] + ["0"] * (self.layers - 1))
            meta.update({"spaces": "K,V,token", "heads.token": first(1),
                         "dim.token": first(self.token)})
        return {prefix + key: value for key, value in meta.items()}


def main():
    rng = np.random.default_rng(SEED)
    source = Side("source", 3, (2, 4), (2, 6), 4, 1.0, False, 10000.0)
    target = Side("target", 2, (3, 4), (1, 10), 2, 1.25, True, 5000.0, token=5)
    lengths = rng.integers(18, 31, 16)
    sequence = np.repeat(np.arange(16) * 3, lengths).astype(np.int32)
    position = np.concatenate([np.arange(n) * 2 for n in lengths]).astype(np.int32)
    n = len(sequence)
    hidden = rng.normal(size=(n, 10)) + 0.3 * rng.normal(size=(1, 10))
    rows = {}
    for side in (source, target):
        for o, (heads, dim) in (("K", side.k), ("V", side.v)):
            for l in range(side.layers):
                mixing = rng.normal(size=(10, heads * dim))
                x = np.tanh(0.5 * hidden @ mixing) + 0.3 * rng.normal(size=(n, heads * dim))
                x += 2.0 * rng.normal(size=(1, heads * dim))
                rows[side.name, o, l] = x.astype(np.float32)
    embedding = rng.normal(size=(7, target.token))  # of 7 words, whatever their places
    rows["target", "token", 0] = embedding[rng.integers(0, 7, n)].astype(np.float32)
    common = {"format": "kvmill.capture.v2", "stride": "2", "tokens": "31",
              "text": "golden-text", "tokenizer": "golden-tokenizer"}
    for side in (source, target):
        tensors = {"position": position, "sequence": sequence, "rope.inv_freq": side.inv_freq}
        for o in "KV":
            for l in range(side.layers):
                tensors[f"{o}.{l}"] = rows[side.name, o, l]
        if side.token:
            tensors["token.0"] = rows[side.name, "token", 0]
        meta = dict(common, **side.meta(), model=side.name + "-fingerprint",
                    model_name=side.name)
        meta.update({"rope.width": str(side.width), "rope.factor": str(side.factor),
                     "rope.interleaved": str(int(side.interleaved))})
        save_file(tensors, HERE / f"{side.name}.capture.safetensors", meta)

    of = split(16)[sequence // 3]
    fit, splits = of == 0, (("fit", of == 0), ("choose", of == 1), ("held", of == 2))
    spaces = ("K", "K_rotated", "V")
    full = {}
    for side in (source, target):
        for s in spaces:
            full[side.name, s] = np.concatenate(
                [side.rotate(rows[side.name, "K", l], position) if s == "K_rotated"
                 else rows[side.name, s, l].astype(np.float64) for l in range(side.layers)], 1)
    full["target", "token"] = rows["target", "token", 0].astype(np.float64)

    counts = np.bincount(of, minlength=3).astype(np.int64)
    meta = {"format": "kvmill.moments.v3", "split.seed": str(SPLIT_SEED),
            "split.fraction": repr(FRACTION), "part": "0", "parts": "1"}

    def sums(kind, blocks, a, b):
        """products of a's rows of one space with b's of another, of all three splits"""
        out = {"rows": counts}
        for block in blocks:
            s, t = (block.split("+") * 2)[:2]
            for p, pick in splits:
                x, y = full[a.name, s][pick], full[b.name, t][pick]
                xc, yc = x - x.mean(0), y - y.mean(0)
                out[f"mean.a.{block}.{p}"] = x.mean(0)
                out[f"{kind}.{block}.{p}.0.0"] = xc.T @ yc
                if kind == "gram" and s == t:
                    continue
                out[f"mean.b.{block}.{p}"] = y.mean(0)
                out[f"square.a.{block}.{p}"] = (xc ** 2).sum(0)
                out[f"square.b.{block}.{p}"] = (yc ** 2).sum(0)
        return out
    sides = [dict(side.meta(ab), **{ab + "capture": side.name + "-hash",
                                    ab + "model": side.name + "-fingerprint",
                                    ab + "model_name": side.name})
             for side, ab in ((source, "a."), (target, "b."))]
    for file, kind, blocks, a, b, about in (
            ("gram", "gram", [*spaces, "K+V"], source, source, sides[0]),
            ("own", "gram", ["token", "V+token"], target, target,
             {"a." + key[2:]: value for key, value in sides[1].items()}),
            ("cross", "cross", [*spaces, "K+V", "K+token", "V+token"], source, target,
             sides[0] | sides[1])):
        save_file(sums(kind, blocks, a, b), HERE / f"{file}.safetensors",
                  dict(meta, kind=kind, blocks=",".join(blocks), **about))

    expected = {}

    def r2(y, fitted, heads):
        e = ((y - fitted) ** 2).reshape(len(y), heads, -1).sum((0, 2))
        t = ((y - y.mean(0)) ** 2).reshape(len(y), heads, -1).sum((0, 2))
        return 1 - e / t

    def shape(side, s):
        return side.v if s == "V" else side.k

    def ridge(name, s, layers, to, lam, absolute, heads_from=None, head_to=None,
              reads=None, token=False):
        """the target's space s from one space of the source, or several, layer by layer"""
        ht, dt = shape(target, s)
        parts = [full["target", "token"]] if token else []
        for l in layers:
            for r in reads or [s]:
                hs, ds = shape(source, r)
                cols = np.arange(hs * ds).reshape(hs, ds)[
                    slice(None) if heads_from is None else [heads_from]].ravel()
                parts.append(full["source", r][:, cols + l * hs * ds])
        outs = np.arange(ht * dt).reshape(ht, dt)[
            slice(None) if head_to is None else [head_to]].ravel() + to * ht * dt
        x, y = np.concatenate(parts, 1), full["target", s][:, outs]
        xf, yf = x[fit], y[fit]
        xc, yc = xf - xf.mean(0), yf - yf.mean(0)
        if absolute:
            w = np.linalg.solve(xc.T @ xc + lam * np.eye(x.shape[1]), xc.T @ yc)
        else:
            norm = np.sqrt((xc ** 2).sum(0))
            u = xc / norm
            w = np.linalg.solve(u.T @ u + lam * np.eye(x.shape[1]), u.T @ yc) / norm[:, None]
        b = yf.mean(0) - xf.mean(0) @ w
        heads = ht if head_to is None else 1
        expected[name + ".w"], expected[name + ".b"] = w, b
        expected[name + ".r2"] = np.stack([r2(y[pick], x[pick] @ w + b, heads)
                                           for _, pick in splits])

    ridge("relative", "K", [2, 0], 1, 1e-3, False)
    ridge("absolute", "V", [0, 1, 2], 0, 0.01, True)
    ridge("rotated", "K_rotated", [1], 0, 1e-2, False)
    ridge("head", "K", [1, 2], 0, 1e-4, False, heads_from=1, head_to=2)
    ridge("least_squares", "K", [0, 1, 2], 0, 0.0, False)
    ridge("two_spaces", "V", [2, 0], 1, 1e-3, False, reads=["K", "V"])
    ridge("token", "V", [1, 2], 0, 1e-3, False, reads=["K", "V"], token=True)
    maps = {s: np.zeros((2, 3, 2)) for s in spaces}
    for s in spaces:
        for l in range(3):
            for t in range(2):
                ridge("one", s, [l], t, 1e-6, False)
                maps[s][:, l, t] = expected["one.r2"][:2].mean(1)
        expected[f"map.{s}"] = maps[s]
    for key in ("one.w", "one.b", "one.r2"):
        del expected[key]

    # greedy forward selection for target layer 0, K: joint least-squares R2, all outputs
    chosen, order = [], []
    for _ in range(3):
        def joint(l):
            x = np.concatenate([rows["source", "K", i] for i in chosen + [l]], 1)[fit]
            y = rows["target", "K", 0][fit].astype(np.float64)
            x, yc = x - x.mean(0, dtype=np.float64), y - y.mean(0)
            fitted = x @ np.linalg.lstsq(x, yc, rcond=None)[0]
            unit = np.sqrt((yc ** 2).sum())
            return ((fitted / unit) ** 2).sum()
        best = max((l for l in range(3) if l not in chosen), key=joint)
        chosen.append(best)
    expected["greedy"] = np.array(chosen, np.int32)
    expected["split"] = of.astype(np.int32)

    # attention quality of mapped rows: 5 queries at the end of one short context
    hq, hk, d, dv, c, q0 = 4, 2, 6, 5, 12, 7
    q = rng.normal(size=(c - q0, hq, d)).astype(np.float32)
    k, v = (rng.normal(size=(c, hk, e)).astype(np.float32) for e in (d, dv))
    km = (k + 0.3 * rng.normal(size=k.shape)).astype(np.float32)
    vm = (v + 0.2 * rng.normal(size=v.shape)).astype(np.float32)
    figures = np.zeros((hq, 5))
    for h in range(hq):
        Q, K, V, KM, VM = (a.astype(np.float64) for a in (
            q[:, h], k[:, h // 2], v[:, h // 2], km[:, h // 2], vm[:, h // 2]))
        def attend(K, V):
            s = Q @ K.T / np.sqrt(d)
            s[np.arange(c)[None] > (q0 + np.arange(c - q0))[:, None]] = -np.inf
            a = np.exp(s - s.max(1, keepdims=True))
            a /= a.sum(1, keepdims=True)
            return a, a @ V
        a, out = attend(K, V)
        _, mapped = attend(KM, VM)
        cosine = ((out * mapped).sum(1) / np.linalg.norm(out, axis=1)
                  / np.linalg.norm(mapped, axis=1)).mean()
        _, sigma, vt = np.linalg.svd(Q, full_matrices=True)
        sigma = np.concatenate([sigma, np.zeros(d - len(sigma))])
        e = KM - K
        top = ((e @ vt.T) ** 2 * sigma ** 2).sum(1).mean()
        raw_k = top / ((e ** 2).sum(1) / d).mean()
        e2 = ((VM - V) ** 2).sum(1)
        raw_v = (a ** 2 * e2).mean(1).mean() / (e2 / dv).mean()
        even = ((a ** 2 * e2).sum(1) / (a ** 2).sum(1)).mean() / e2.mean()
        figures[h] = cosine, raw_k / (sigma ** 2).sum(), raw_k, even, raw_v
    for name, x in (("q", q), ("k", k), ("v", v), ("k_map", km), ("v_map", vm)):
        expected["quality." + name] = x.reshape(len(x), -1)
    expected["quality"] = np.concatenate([figures.mean(0), [figures[:, 0].min()]])
    save_file({key: np.ascontiguousarray(x) for key, x in expected.items()},
              HERE / "expected.safetensors", {"seed": str(SEED)})


if __name__ == "__main__":
    main()
