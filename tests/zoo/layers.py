"""Layers of the newer families for training on a CPU, with the names of published files.

transformers has a class for each; these compute the same function (train.py checks that
on export) several times faster at the zoo's sizes: recurrences run in chunks whose states
are one small product apart, experts are one wide feed-forward whose unchosen parts are
multiplied by zero. c is the model's config.json as attributes. A layer returns its output
and what it adds to the loss (None where it has no wish).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from model import EPS, attend, rotate

CHUNK = {"gdn": 32, "kda": 16}
# Stronger decay within one token than this is not told apart: exp(8 * 5) is still a float.
STRONGEST = -5.0


class Norm(nn.Module):
    """RMS norm; with `plus_one` the weight is what is added to a gain of one."""

    def __init__(self, size, plus_one=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if plus_one else torch.ones(size))
        self.plus = float(plus_one)

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight + self.plus, EPS)


class Conv(nn.Module):
    """Weights (channels, 1, taps) of a causal depthwise convolution; silu follows."""

    def __init__(self, channels, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) / math.sqrt(taps))

    def forward(self, x):
        t, taps = x.shape[1], self.weight.shape[2]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        return F.silu(sum(padded[:, i:i + t] * self.weight[:, 0, i] for i in range(taps)))


def linear(rows, cols):
    """y = W x without a bias; what is drawn here is replaced by a graft."""
    made = nn.Linear(cols, rows, bias=False)
    nn.init.normal_(made.weight, std=1 / math.sqrt(cols))
    return made


def heads(x, n):
    """(B,T,n*d) as (B,n,T,d)."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def rotate_pairs(x, cos, sin):
    """Rotate the pairs (2j, 2j + 1) of x (B,H,T,D); firsts, then seconds come out."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rotate_part(x, cos, sin):
    """Rotate the first 2 * cos.shape[-1] entries of x (B,H,T,D), leave the others."""
    d = 2 * cos.shape[-1]
    return torch.cat((rotate(x[..., :d], cos, sin), x[..., d:]), dim=-1)


class LatentAttention(nn.Module):
    """Attention on latents (deepseek_v3, kimi_linear); angles None: nothing is rotated."""

    def __init__(self, c):
        super().__init__()
        self.c, n = c, c.num_attention_heads
        self.q_proj = linear(n * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.hidden_size)
        self.kv_a_proj_with_mqa = linear(c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size)
        self.kv_a_layernorm = Norm(c.kv_lora_rank)
        self.kv_b_proj = linear(n * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
        self.o_proj = linear(c.hidden_size, n * c.v_head_dim)

    def forward(self, x, angles):
        c = self.c
        q, q_pe = heads(self.q_proj(x), c.num_attention_heads).split(
            (c.qk_nope_head_dim, c.qk_rope_head_dim), -1)
        latent, k_pe = self.kv_a_proj_with_mqa(x).split((c.kv_lora_rank, c.qk_rope_head_dim), -1)
        k, v = heads(self.kv_b_proj(self.kv_a_layernorm(latent)), c.num_attention_heads).split(
            (c.qk_nope_head_dim, c.v_head_dim), -1)
        k_pe = k_pe[:, None]
        if angles is not None:
            q_pe, k_pe = rotate_pairs(q_pe, *angles), rotate_pairs(k_pe, *angles)
        k = torch.cat((k, k_pe.expand(-1, k.shape[1], -1, -1)), -1)
        y = attend(torch.cat((q, q_pe), -1), k, v)
        return self.o_proj(y.transpose(1, 2).flatten(2)), None


class BlockIndexer(nn.Module):
    """Chooses the blocks of tokens a query may look at (qwen4_exp)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.index_qk_proj = linear((c.indexer_n_heads + 1) * c.indexer_head_dim, c.hidden_size)
        self.q_layernorm = Norm(c.indexer_head_dim, plus_one=True)
        self.k_layernorm = Norm(c.indexer_head_dim, plus_one=True)

    def forward(self, x, angles):
        """Scores (B,T,blocks), -inf for blocks that are not complete; the set (B,1,T,T)."""
        c, t = self.c, x.shape[1]
        r, d = c.indexer_compress_ratio, c.indexer_head_dim
        q, k = self.index_qk_proj(x).split((c.indexer_n_heads * d, d), -1)
        q = rotate_part(self.q_layernorm(q.unflatten(-1, (-1, d))).transpose(1, 2), *angles)
        blocks = t // r
        k = self.k_layernorm(k[:, :blocks * r].unflatten(1, (blocks, r)).mean(2))
        k = rotate_part(k[:, None], *(a[:, :, :blocks * r:r] for a in angles))
        scores = (q @ k.transpose(-1, -2)).relu().sum(1) / math.sqrt(d)
        complete = torch.arange(1, t + 1) // r
        hidden = torch.arange(blocks) >= complete[:, None]
        scores = scores.masked_fill(hidden, -math.inf)
        best = scores.topk(min(c.indexer_budget // r, blocks), -1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & ~hidden
        chosen = F.pad(chosen.repeat_interleave(r, -1), (0, t - blocks * r))
        place = torch.arange(t)
        tail = (place >= (complete * r)[:, None]) & (place <= place[:, None])
        return scores, (chosen | tail)[:, None]


class GatedAttention(nn.Module):
    """Attention with a gate on its output and partial rotation (qwen3_5, qwen4_exp)."""

    def __init__(self, c):
        super().__init__()
        self.c, h, d = c, c.hidden_size, c.head_dim
        self.q_proj = linear(c.num_attention_heads * 2 * d, h)
        self.k_proj = linear(c.num_key_value_heads * d, h)
        self.v_proj = linear(c.num_key_value_heads * d, h)
        self.o_proj = linear(h, c.num_attention_heads * d)
        self.q_norm, self.k_norm = Norm(d, plus_one=True), Norm(d, plus_one=True)
        self.indexer = BlockIndexer(c) if hasattr(c, "indexer_budget") else None

    def forward(self, x, angles):
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (c.num_attention_heads, -1)).chunk(2, -1)
        q = rotate_part(self.q_norm(q).transpose(1, 2), *angles)
        k = rotate_part(self.k_norm(heads(self.k_proj(x), c.num_key_value_heads)), *angles)
        v = heads(self.v_proj(x), c.num_key_value_heads)
        group = c.num_attention_heads // c.num_key_value_heads
        k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))
        y, wish = attend(q, k, v), None
        if self.indexer is not None:
            y, wish = self.among_blocks(x.detach(), angles, q, k, v)
        return self.o_proj(y.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid()), wish

    def among_blocks(self, x, angles, q, k, v):
        """Attention within the indexer's choice, and how far its scores are from the attention.

        A choice has no gradient, so the scores learn to rank blocks by the heads that would
        look at them most if they might look everywhere.
        """
        scores, chosen = self.indexer(x, angles)
        t, r = x.shape[1], self.c.indexer_compress_ratio
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        y = logits.masked_fill(~chosen, -math.inf).softmax(-1) @ v
        if not torch.is_grad_enabled():
            return y, None
        with torch.no_grad():
            everywhere = logits + torch.full((t, t), -math.inf).triu(1)
            seen = everywhere.softmax(-1)[..., :t // r * r].unflatten(-1, (-1, r)).sum(-1)
            seen = seen.amax(1).masked_fill(scores.isinf(), 0)
            seen = seen / seen.sum(-1, keepdim=True).clamp(min=1e-6)
        ranked = scores[:, r - 1:].log_softmax(-1).masked_fill(scores[:, r - 1:].isinf(), 0)
        return y, -(seen[:, r - 1:] * ranked).sum(-1).mean()


class UnitInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A (...,C,C)."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.shape[-1]).expand_as(a)
        inverse = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        turned = ctx.saved_tensors[0].transpose(-1, -2)
        return -(turned @ grad @ turned)


@torch.compiler.disable
def delta_rule(q, k, v, g, beta, chunk):
    """Gated delta rule from an empty state: q, k (B,H,T,K), v (B,H,T,V), beta (B,H,T).

    g, the logarithm of the decay, is (B,H,T,1) for one per head, (B,H,T,K) for one per
    channel. Within a chunk everything is products of matrices; between chunks the state
    goes through one affine map each.
    """
    t = q.shape[2]
    pad = -t % chunk
    q, k, v, g, beta = (F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, chunk))
                        for x in (q, k, v, g, beta[..., None]))
    g = g.cumsum(3)
    last = g[..., -1:, :]
    lower = torch.ones(chunk, chunk).tril()
    if g.shape[-1] == 1:  # exponents of differences only: they are never positive below
        decay = (g - g.transpose(-1, -2)).where(lower > 0, torch.tensor(-math.inf)).exp()
        among, within = k @ k.transpose(-1, -2) * decay, q @ k.transpose(-1, -2) * decay
    else:  # from the middle of the chunk, so that neither factor leaves the floats
        middle = g[..., chunk // 2:chunk // 2 + 1, :]
        up, down = (g - middle).exp(), k * (middle - g).exp()
        among = k * up @ down.transpose(-1, -2)
        within = (q * up @ down.transpose(-1, -2)) * lower
    solve = UnitInverse.apply((beta * among).tril(-1))
    reach = g.exp()
    values, reads = solve @ (beta * v), solve @ (beta * k * reach)
    writes = (k * (last - g).exp()).transpose(-1, -2)
    step = torch.diag_embed(last.exp().expand(*last.shape[:-1], k.shape[-1])[..., 0, :])
    step, gain = step - writes @ reads, writes @ values
    state, states = torch.zeros_like(gain[:, :, 0]), []
    for i in range(gain.shape[2]):
        states.append(state)
        state = step[:, :, i] @ state + gain[:, :, i]
    states = torch.stack(states, 2)
    out = (q * reach) @ states + within @ (values - reads @ states)
    return out.flatten(2, 3)[:, :, :t]


def unit(x):
    """Vectors of length one, as the delta rule wants its keys."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class GatedDelta(nn.Module):
    """Gated delta net, one decay per head (qwen3_5, qwen4_exp)."""

    def __init__(self, c):
        super().__init__()
        self.c, h = c, c.hidden_size
        keys = c.linear_num_key_heads * c.linear_key_head_dim
        values = c.linear_num_value_heads * c.linear_value_head_dim
        self.parts = (keys, keys, values)
        self.in_proj_qkv, self.in_proj_z = linear(sum(self.parts), h), linear(values, h)
        self.in_proj_b = linear(c.linear_num_value_heads, h)
        self.in_proj_a = linear(c.linear_num_value_heads, h)
        self.conv1d = Conv(sum(self.parts), c.linear_conv_kernel_dim)
        self.A_log = nn.Parameter(torch.zeros(c.linear_num_value_heads))
        self.dt_bias = nn.Parameter(slow_steps(c.linear_num_value_heads))
        self.norm, self.out_proj = Norm(c.linear_value_head_dim), linear(h, values)
        self.act = torch.sigmoid if getattr(c, "output_gate_type", "") == "sigmoid" else F.silu

    def forward(self, x, _):
        c, n = self.c, self.c.linear_num_value_heads
        q, k, v = self.conv1d(self.in_proj_qkv(x)).split(self.parts, -1)
        q, k = (unit(heads(y, c.linear_num_key_heads)) for y in (q, k))
        q, k = (y.repeat_interleave(n // c.linear_num_key_heads, 1) for y in (q, k))
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)
        beta = self.in_proj_b(x).sigmoid()
        o = delta_rule(q * q.shape[-1] ** -0.5, k, heads(v, n), g.transpose(1, 2)[..., None],
                       beta.transpose(1, 2), CHUNK["gdn"])
        z = self.act(self.in_proj_z(x))
        return self.out_proj(self.norm(o).transpose(1, 2).flatten(2) * z), None


class KimiDelta(nn.Module):
    """Gated delta net, one decay per channel (kimi_linear)."""

    def __init__(self, c):
        super().__init__()
        linear_attn, h = c.linear_attn_config, c.hidden_size
        self.n, d = linear_attn["num_heads"], linear_attn["head_dim"]
        for name in "qkv":
            setattr(self, name + "_proj", linear(self.n * d, h))
            setattr(self, name + "_conv1d", Conv(self.n * d, linear_attn["short_conv_kernel_size"]))
        self.f_a_proj, self.f_b_proj = linear(d, h), linear(self.n * d, d)
        self.g_a_proj, self.g_b_proj = linear(d, h), linear(self.n * d, d)
        self.b_proj = linear(self.n, h)
        self.A_log = nn.Parameter(torch.zeros(1, 1, self.n, 1))
        self.dt_bias = nn.Parameter(slow_steps(self.n * d))
        self.o_norm, self.o_proj = Norm(d), linear(h, self.n * d)

    def forward(self, x, _):
        q, k, v = (heads(getattr(self, p + "_conv1d")(getattr(self, p + "_proj")(x)), self.n)
                   for p in "qkv")
        f = self.f_b_proj(self.f_a_proj(x)) + self.dt_bias
        g = -self.A_log.exp().view(-1, 1, 1) * F.softplus(heads(f, self.n))
        beta = self.b_proj(x).sigmoid().transpose(1, 2)
        o = delta_rule(unit(q) * q.shape[-1] ** -0.5, unit(k), v, g.clamp(min=STRONGEST), beta,
                       CHUNK["kda"])
        gate = self.g_b_proj(self.g_a_proj(x)).sigmoid()
        return self.o_proj(self.o_norm(o).transpose(1, 2).flatten(2) * gate), None


def slow_steps(n):
    """Biases for which softplus gives steps from 0.001 to 0.1, evenly in their logarithm."""
    steps = torch.exp(torch.linspace(math.log(1e-3), math.log(0.1), n))
    return steps + torch.log(-torch.expm1(-steps))


class FeedForward(nn.Module):
    """Gated feed-forward of any width."""

    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj, self.up_proj = linear(width, hidden), linear(width, hidden)
        self.down_proj = linear(hidden, width)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)), None


class Router(nn.Module):
    """Scores of the experts; a correction of their choice where scores are sigmoids."""

    def __init__(self, c, experts, sigmoid):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, c.hidden_size) / math.sqrt(c.hidden_size))
        if sigmoid:
            self.register_buffer("e_score_correction_bias", torch.zeros(experts))


class Experts(nn.Module):
    """Routed experts and a shared one: DeepSeek's and Kimi's, or Qwen's, where it has a gate."""

    BIAS_STEP, BALANCE = 0.002, 0.01

    def __init__(self, c):
        super().__init__()
        h, width = c.hidden_size, c.moe_intermediate_size
        self.sigmoid = not hasattr(c, "shared_expert_intermediate_size")
        n = next(getattr(c, k) for k in ("n_routed_experts", "num_experts") if hasattr(c, k))
        self.most = next(getattr(c, k) for k in ("num_experts_per_tok", "num_experts_per_token")
                         if hasattr(c, k))
        self.scale = getattr(c, "routed_scaling_factor", 1.0)
        self.gate = Router(c, n, self.sigmoid)
        self.gate_proj = nn.Parameter(torch.randn(n, width, h) / math.sqrt(h))
        self.up_proj = nn.Parameter(torch.randn(n, width, h) / math.sqrt(h))
        self.down_proj = nn.Parameter(torch.randn(n, h, width) / math.sqrt(width))
        if self.sigmoid:
            shared = next(getattr(c, k) for k in ("n_shared_experts", "num_shared_experts")
                          if hasattr(c, k))
            self.shared_experts = FeedForward(h, width * shared)
        else:
            self.shared_expert = FeedForward(h, c.shared_expert_intermediate_size)
            self.shared_expert_gate = linear(1, h)
        self.load = torch.zeros(n)

    def forward(self, x):
        logits = F.linear(x, self.gate.weight)
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        rank = scores + self.gate.e_score_correction_bias if self.sigmoid else scores
        chosen = torch.zeros_like(scores).scatter(-1, rank.topk(self.most, -1).indices, 1.0)
        weights = scores * chosen
        weights = weights / weights.sum(-1, keepdim=True) * self.scale
        inner = F.silu(F.linear(x, self.gate_proj.flatten(0, 1))) * F.linear(x, self.up_proj.flatten(0, 1))
        inner = inner * weights.repeat_interleave(self.gate_proj.shape[1], -1)
        y = F.linear(inner, self.down_proj.transpose(0, 1).flatten(1))
        load = chosen.mean((0, 1))
        if self.sigmoid:
            self.load = load
            return y + self.shared_experts(x)[0], None
        shared = self.shared_expert(x)[0] * self.shared_expert_gate(x).sigmoid()
        return y + shared, self.BALANCE * len(load) * (load * scores.mean((0, 1))).sum()

    @torch.no_grad()
    def balance(self):
        """After a step: experts that were chosen too often become a little less likely."""
        if self.sigmoid:
            bias = self.gate.e_score_correction_bias
            bias += self.BIAS_STEP * (self.load.mean() - self.load).sign()
