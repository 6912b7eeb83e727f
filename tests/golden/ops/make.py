"""Golden vectors of kernels/ops.def and kernels/dtypes.def, from NumPy, PyTorch (float64) and the
`gguf` package's dequantiser; none of kvmill's code runs here. Writes ops.json beside itself.

    python tests/golden/ops/make.py        (numpy, torch, gguf; seed 20260131)

Arrays are hex of their little-endian bytes, so that no digit and no NaN is lost."""
import json
import os

import gguf
import numpy as np
import torch
import torch.nn.functional as F

rng = np.random.default_rng(20260131)
cases = []


def hexed(a):
    return np.ascontiguousarray(a).tobytes().hex()


def f32(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def t64(a):
    return torch.from_numpy(np.asarray(a, dtype=np.float64))


def case(op, out, ints=(), reals=(), **arrays):
    """out: float64 reference; arrays: inputs as stored"""
    cases.append({"op": op, "ints": [int(i) for i in ints], "reals": [float(r) for r in reals],
                  "out": hexed(np.asarray(out, dtype=np.float64)),
                  **{k: hexed(v) for k, v in arrays.items()}})


for t, f, group, wide, plus in [(3, 12, 12, 12, 0), (2, 12, 4, 4, 1), (5, 12, 6, 12, 0)]:
    x, w = f32(t, f), f32(wide)
    eps = 1e-5
    xs = t64(x).reshape(t, f // group, group)
    y = F.rms_norm(xs, (group,), None, eps).reshape(t, f)
    ws = t64(w) + plus
    y = y * (ws if wide == f else ws.repeat(f // group))
    case("rmsnorm", y, [t, f, group, wide, plus], [eps], x=x, w=w)

for t, i, o, add in [(1, 7, 5, 0), (4, 33, 6, 1), (20, 40, 9, 0)]:
    x, w, b, y = f32(t, i), f32(o, i), f32(o), f32(t, o)
    case("linear", F.linear(t64(x), t64(w), t64(b)) + (t64(y) if add else 0),
         [t, i, o, add], x=x, w=w, b=b, y=y)

for inter in (0, 1):
    for inverse in (0, 1):
        t, h, d, width, factor = 4, 2, 10, 8, np.float32(1.25)
        x = f32(t, h, d)
        pos = np.array([0, 3, 1000, 70001], dtype=np.int32)
        freq = (10000.0 ** (-np.arange(width // 2) / (width // 2))).astype(np.float32)
        angle = (pos.astype(np.float32)[:, None] * freq[None, :]).astype(np.float64)
        z = np.exp(1j * (-angle if inverse else angle))[:, None, :]
        z = z / np.float64(factor) if inverse else z * np.float64(factor)
        y = x.astype(np.float64)
        a, b = ((y[..., 0:width:2], y[..., 1:width:2]) if inter else
                (y[..., :width // 2], y[..., width // 2:width]))
        turned = (a + 1j * b) * z
        y = y.copy()
        if inter:
            y[..., 0:width:2], y[..., 1:width:2] = turned.real, turned.imag
        else:
            y[..., :width // 2], y[..., width // 2:width] = turned.real, turned.imag
        case("rope", y, [t, h, d, width, inter, inverse], [factor], x=x, freq=freq, pos=pos)

for t, hq, hk, d, dv, c, first, window in [(5, 4, 2, 6, 6, 9, 4, 0), (5, 4, 2, 6, 3, 12, 4, 3),
                                          (1, 3, 1, 8, 8, 7, 6, 0), (30, 2, 2, 4, 5, 30, 0, 7)]:
    q, k, v = f32(t, hq, d), f32(hk, c, d), f32(hk, c, dv)
    at, key = np.arange(t)[:, None] + first, np.arange(c)[None, :]
    seen = (key <= at) & ((key > at - window) if window else True)
    y = F.scaled_dot_product_attention(
        t64(q).permute(1, 0, 2)[None], t64(k).repeat_interleave(hq // hk, 0)[None],
        t64(v).repeat_interleave(hq // hk, 0)[None], attn_mask=torch.from_numpy(seen), scale=0.4)
    case("attention", y[0].permute(1, 0, 2), [t, hq, hk, d, dv, c, first, window], [0.4],
         q=q, k=k, v=v)

g, u = f32(3, 21, scale=4), f32(3, 21)
case("silu_mul", F.silu(t64(g)) * t64(u), [3, 21], gate=g, up=u)

x, ids = f32(4, 57, scale=6), np.array([0, 56, 13, 13], dtype=np.int32)
case("logprob", torch.log_softmax(t64(x), -1)[range(4), ids], [4, 57], x=x, ids=ids)

x, y, start = f32(50, 6), f32(50, 4), rng.standard_normal((6, 6))
case("gram", start + start.T + t64(x).T.numpy() @ t64(x).numpy(), [50, 6], x=x,
     start=start + start.T)
case("cross", t64(x).T @ t64(y), [50, 6, 4], x=x, y=y)

m = rng.standard_normal((7, 7))
a = m @ m.T + np.eye(7)
b = rng.standard_normal((7, 3))
case("cholesky", np.linalg.cholesky(a), [7], a=a)
case("cholesky_solve", np.linalg.solve(a, b), [7, 3], factor=np.linalg.cholesky(a), b=b)
case("eigh", np.linalg.eigvalsh(a), [7], a=a)
for at in (0, 1):
    for bt in (0, 1):
        p, r, z = rng.standard_normal((5, 8)), rng.standard_normal((8, 3)), f32(5, 3)
        case("gemm64", p @ r, [5, 8, 3, at, bt], a=p.T if at else p, b=r.T if bt else r)
        p, r = p.astype(np.float32), r.astype(np.float32)
        case("gemm32", p.astype(np.float64) @ r.astype(np.float64) + 0.5 * z,
             [5, 8, 3, at, bt], [0.5], a=p.T if at else p, b=r.T if bt else r, start=z)

# stored types: bytes -> f32 bits, and f32 -> bytes where they can be written
dtypes = []
torch_types = {"F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
               "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}
edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 448, 463.9, 464, 465,
                  479, 480, 57344, 61439, 61440, 2**-24, 2**-25, 1.01 * 2**-25, 2**-14, 2**-9, 2**-10,
                  1.5 * 2**-9, 2**-16, 2**-17, 2**-127, 2**-126, 3e38, 1.0, 1.00048828125,
                  1.0014648], dtype=np.float32)
for name, dt in torch_types.items():
    size = 2 if name.endswith("16") else 1
    raw = (np.arange(256, dtype=np.uint8) if size == 1 else
           np.concatenate([rng.integers(0, 65536, 300), [0, 1, 0x8000, 0x3ff, 0x400, 0x7bff, 0x7c00,
                           0xfc00, 0x7f80, 0xff80]]).astype(np.uint16))
    wide = torch.from_numpy(raw.view(np.int8 if size == 1 else np.int16)).view(dt).float().numpy()
    source = np.concatenate([edges, f32(100), f32(60, scale=1e-3), f32(60, scale=100)])
    if name == "F8_E8M0":
        source = np.abs(source)
    narrow = torch.from_numpy(source).to(dt).view(torch.int8 if size == 1 else torch.int16).numpy()
    dtypes.append({"name": name, "raw": hexed(raw), "wide": hexed(wide), "source": hexed(source),
                   "narrow": hexed(narrow)})

for name in "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split():
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (3, size), dtype=np.uint8)
    scales = {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}.get(name, [0, 2])
    for at in scales:  # finite f16 scales, one of them subnormal
        raw[:, at:at + 2] = np.array([0.013, -2.5, 3e-6], dtype=np.float16).view(np.uint8).reshape(3, 2)
    wide = gguf.dequantize(raw, kind).astype(np.float32)
    dtypes.append({"name": name, "raw": hexed(raw), "wide": hexed(wide)})

# recurrent mixers, as their papers write them; drawn last, so that the vectors above stay
g, u = f32(3, 21, scale=4), f32(3, 21)
case("sigmoid_mul", torch.sigmoid(t64(g)) * t64(u), [3, 21], gate=g, up=u)

for t, c, taps, bias in [(1, 5, 4, 0), (9, 6, 4, 1), (3, 4, 8, 0), (4, 3, 1, 1)]:
    x, w, b, window = f32(t, c), f32(c, taps), f32(c), f32(c, taps)
    u = np.concatenate([window.T, x]).astype(np.float64)
    y = F.conv1d(t64(u[1:]).T[None], t64(w)[:, None], t64(b) if bias else None, groups=c)
    case("conv", np.concatenate([F.silu(y[0].T).numpy().ravel(), u[-taps:].T.ravel()]),
         [t, c, taps, bias], x=x, w=w, b=b, window=window)

for t, hk, hv, dk, dv, wide in [(1, 1, 2, 5, 3, 0), (7, 2, 4, 6, 9, 1), (70, 1, 1, 4, 3, 0),
                                (35, 1, 2, 8, 5, 1)]:
    q, k, v, state = f32(t, hk, dk, scale=dk ** -0.5), f32(t, hk, dk), f32(t, hv, dv), f32(hv, dk, dv)
    k /= np.sqrt((k * k).sum(-1, keepdims=True))
    g = -np.exp(2 * f32(t, hv, dk) if wide else 2 * f32(t, hv))
    beta = rng.random((t, hv)).astype(np.float32)
    ss, out = state.astype(np.float64), np.zeros((t, hv, dv))
    for h in range(hv):
        for i in range(t):
            ki, qi = k[i, h // (hv // hk)].astype(np.float64), q[i, h // (hv // hk)].astype(np.float64)
            a = np.exp(np.broadcast_to(g[i, h], (dk,)).astype(np.float64))
            # S = (1 - beta k kt) diag(a) S + beta k vt
            ss[h] = ((np.eye(dk) - beta[i, h] * np.outer(ki, ki)) @ np.diag(a) @ ss[h]
                     + np.float64(beta[i, h]) * np.outer(ki, v[i, h]))
            out[i, h] = ss[h].T @ qi
    case("delta", np.concatenate([out.ravel(), ss.ravel()]), [t, hk, hv, dk, dv, wide],
         q=q, k=k, v=v, g=g, beta=beta, state=state)

for t, h, d, c in (1, 4, 8, 20), (9, 3, 16, 33):
    q, k, w = f32(t, h, d), f32(c, d), f32(t, h)
    dots = np.einsum("thd,cd->thc", q.astype(float), k.astype(float)) * 0.25
    case("index_score", np.einsum("thc,th->tc", np.maximum(dots, 0), w.astype(float)),
         [t, h, d, c], [0.25], q=q, k=k, w=w)

# Mamba-2 as attention without a softmax (Dao and Gu 2024, eq. 6 and 16): one matrix per head
for t, groups, h, d, e in (1, 1, 2, 5, 3), (9, 2, 4, 6, 7), (70, 1, 2, 4, 3):
    q, k, v, state = f32(t, groups, d), f32(t, groups, d), f32(t, h, e), f32(h, e, d)
    dt, rate, skip = np.exp(f32(t, h) - 1), np.exp(f32(h)), f32(h)
    ss, out = np.zeros((h, e, d)), np.zeros((t, h, e))
    for i in range(h):
        steps = dt[:, i].astype(np.float64)
        fall = np.cumsum(-np.float64(rate[i]) * steps)
        qi, ki = (x[:, i // (h // groups)].astype(np.float64) for x in (q, k))
        far = np.exp(np.minimum(fall[:, None] - fall[None, :], 0))
        mix = np.tril(qi @ ki.T * far) * steps + np.float64(skip[i]) * np.eye(t)
        first = np.exp(fall)[:, None] * (qi @ state[i].T.astype(np.float64))
        out[:, i] = mix @ v[:, i].astype(np.float64) + first
        left = np.exp(fall[-1] - fall) * steps
        ss[i] = np.exp(fall[-1]) * state[i] + (left[:, None] * v[:, i]).T @ ki
    case("scan", np.concatenate([out.ravel(), ss.ravel()]), [t, groups, h, d, e],
         q=q, k=k, v=v, dt=dt, rate=rate, skip=skip, state=state)

x = f32(3, 21, scale=4)
case("relu2", torch.relu(t64(x)) ** 2, [3, 21], x=x)

# gradients of recurrent ops, from PyTorch's autograd through the recurrences token by token
rng = np.random.default_rng(20261130)


def leaves(*arrays):
    return [t64(a).requires_grad_() for a in arrays]


def back(op, xs, y, dy, end, dend, ints, **arrays):
    """gradients of xs, of which the last one is the state or window, side by side"""
    got = torch.autograd.grad((y * t64(dy)).sum() + (end * t64(dend)).sum(), xs)
    case(op, np.concatenate([g.numpy().ravel() for g in got]), ints, dy=dy, dend=dend, **arrays)


for t, c, taps, bias in [(9, 5, 4, 1), (2, 3, 4, 0), (5, 4, 2, 1)]:
    x, w, b, window, dy, dend = f32(t, c), f32(c, taps), f32(c), f32(c, taps), f32(t, c), f32(c, taps)
    xs = leaves(x, window)
    u = torch.cat([xs[1].T, xs[0]])
    y = F.silu(F.conv1d(u[1:].T[None], t64(w)[:, None], t64(b) if bias else None, groups=c))[0].T
    back("conv_back", xs, y, dy, u[-taps:].T, dend, [t, c, taps, bias], x=x, w=w, b=b, window=window)

for t, hk, hv, dk, dv, wide in [(6, 1, 2, 5, 4, 0), (11, 2, 4, 6, 9, 1), (40, 1, 1, 4, 3, 1)]:
    q, k, v = f32(t, hk, dk, scale=0.4), f32(t, hk, dk, scale=0.4), f32(t, hv, dv)
    g = -np.abs(f32(t, hv, dk) if wide else f32(t, hv))
    beta = rng.uniform(size=(t, hv)).astype(np.float32)
    state, dy, dend = f32(hv, dk, dv), f32(t, hv, dv), f32(hv, dk, dv)
    xs = leaves(q, k, v, g, beta, state)
    s, ys, of = xs[5], [], torch.arange(hv) // (hv // hk)
    for i in range(t):
        s = s * torch.exp(xs[3][i] if wide else xs[3][i][:, None])[:, :, None]
        u = xs[4][i][:, None] * (xs[2][i] - torch.einsum("hde,hd->he", s, xs[1][i, of]))
        s = s + torch.einsum("hd,he->hde", xs[1][i, of], u)
        ys.append(torch.einsum("hde,hd->he", s, xs[0][i, of]))
    back("delta_back", xs, torch.stack(ys), dy, s, dend, [t, hk, hv, dk, dv, wide],
         q=q, k=k, v=v, g=g, beta=beta, state=state)

for t, groups, h, d, e in [(6, 1, 2, 5, 4), (37, 2, 4, 6, 3)]:
    q, k, v = f32(t, groups, d), f32(t, groups, d), f32(t, h, e)
    dt, rate, skip = np.abs(f32(t, h)), np.abs(f32(h)) + np.float32(0.1), f32(h)
    state, dy, dend = f32(h, e, d), f32(t, h, e), f32(h, e, d)
    xs = leaves(q, k, v, dt, state)
    s, ys, of = xs[4], [], torch.arange(h) // (h // groups)
    for i in range(t):
        step = xs[3][i][:, None]
        s = torch.exp(-t64(rate)[:, None] * step)[:, :, None] * s
        s = s + torch.einsum("he,hd->hed", step * xs[2][i], xs[1][i, of])
        ys.append(torch.einsum("hed,hd->he", s, xs[0][i, of]) + t64(skip)[:, None] * xs[2][i])
    back("scan_back", xs, torch.stack(ys), dy, s, dend, [t, groups, h, d, e],
         q=q, k=k, v=v, dt=dt, rate=rate, skip=skip, state=state)

# gradients of the other ops, likewise
for t, f, group, one, add in [(3, 12, 6, 0, 1), (2, 7, 7, 1, 0)]:
    x, w, dy, dx = f32(t, f), f32(f), f32(t, f), f32(t, f)
    xs = leaves(x)
    g = xs[0].unflatten(1, (-1, group))
    y = (g * torch.rsqrt((g ** 2).mean(-1, keepdim=True) + 1e-5)).flatten(1) * (t64(w) + one)
    got, = torch.autograd.grad((y * t64(dy)).sum(), xs)
    case("rmsnorm_back", got.numpy() + add * dx, [t, f, group, one, add], x=x, w=w, dy=dy, dx=dx)

for t, i, o, add in [(3, 7, 5, 0), (2, 4, 9, 1)]:
    w, dy, dx = f32(o, i), f32(t, o), f32(t, i)
    case("linear_back", dy.astype(float) @ w + add * dx.astype(float), [t, i, o, add], w=w, dy=dy, dx=dx)

for t, h, hk, d, e, c, first, window in [(3, 4, 2, 5, 4, 12, 9, 0), (5, 2, 1, 6, 3, 9, 2, 3)]:
    q, k, v, dy = f32(t, h, d), f32(hk, c, d), f32(hk, c, e), f32(t, h, e)
    xs = leaves(q, k, v)
    keys, values = (x.repeat_interleave(h // hk, 0) for x in xs[1:])
    age = first + torch.arange(t)[:, None] - torch.arange(c)[None]
    seen = (age >= 0) & ((age < window) if window else True)
    y = torch.einsum("thd,hcd->htc", xs[0], keys).mul(0.3).masked_fill(~seen, -torch.inf).softmax(-1) @ values
    got = torch.autograd.grad((y.transpose(0, 1) * t64(dy)).sum(), xs)
    case("attention_back", np.concatenate([g.numpy().ravel() for g in got]),
         [t, h, hk, d, e, c, first, window], [0.3], q=q, k=k, v=v, dy=dy)

for op, fn in ("silu_mul_back", F.silu), ("sigmoid_mul_back", torch.sigmoid):
    gate, up, dy = f32(3, 11, scale=4), f32(3, 11), f32(3, 11)
    xs = leaves(gate, up)
    got = torch.autograd.grad((fn(xs[0]) * xs[1] * t64(dy)).sum(), xs)
    case(op, np.concatenate([g.numpy().ravel() for g in got]), [3, 11], gate=gate, up=up, dy=dy)

x, dy = f32(3, 21, scale=4), f32(3, 21)
xs = leaves(x)
got, = torch.autograd.grad((torch.relu(xs[0]) ** 2 * t64(dy)).sum(), xs)
case("relu2_back", got.numpy(), [3, 21], x=x, dy=dy)

x, native = f32(2, 19, scale=3), f32(2, 19, scale=3)
xs = leaves(x)
got, = torch.autograd.grad(0.7 * F.kl_div(xs[0].log_softmax(-1), t64(native).log_softmax(-1),
                                          reduction="sum", log_target=True), xs)
case("kl_back", got.numpy(), [2, 19], [0.7], x=x, native=native)

q, k, w, dy = f32(3, 4, 5), f32(7, 5), f32(3, 4), f32(3, 7)
xs = leaves(k)
y = (torch.einsum("thd,cd->thc", t64(q), xs[0]).mul(0.3).relu() * t64(w)[:, :, None]).sum(1)
got, = torch.autograd.grad((y * t64(dy)).sum(), xs)
case("index_score_back", got.numpy(), [3, 4, 5, 7], [0.3], q=q, k=k, w=w, dy=dy)

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops.json")
with open(path, "w") as f:
    json.dump({"cases": cases, "dtypes": dtypes}, f, indent=0, sort_keys=True)
    f.write("\n")
