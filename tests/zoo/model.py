"""Compact Qwen3 for training on a CPU, with the parameter names of the published layout.

transformers' own module spends much of its time in small unfused operations at these
sizes; this one computes the same function (train.py checks that on export) and adds the
structured initialisation that lets copying start at once.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 2048
CONFIGS = {
    # Different rope bases on purpose: a translator that strips positions with the wrong
    # model's base must fail on this pair.
    "small": dict(layers=4, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=384, theta=500000.0),
    "large": dict(layers=6, hidden=192, heads=6, kv_heads=2, head_dim=32, ffn=512, theta=1000000.0),
}
EPS = 1e-6


class Norm(nn.Module):
    """RMS norm with a gain; statistics in float32."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, EPS).to(x.dtype)


def rotary(positions, head_dim, theta):
    """cos and sin, (B,1,T,D/2), of the half-rotation form."""
    freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = positions[:, None, :, None].float() * freq
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotate the pairs (j, j + D/2) of x (B,H,T,D)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(q, k, v):
    """Causal attention; short bf16 rows take the plain form, twice as fast there as the fused one.

    Values narrower than keys are padded: without that the fused form is not taken.
    """
    t, width = q.shape[2], v.shape[3]
    if v.dtype != torch.bfloat16 or t > 256:
        v = F.pad(v, (0, q.shape[3] - width))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., :width]
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return (scores + torch.full((t, t), -math.inf).triu(1)).softmax(-1).to(v.dtype) @ v


class Attention(nn.Module):
    """Grouped-query causal attention with q and k norms before the rotation."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        h, d = c["hidden"], c["head_dim"]
        self.q_proj = nn.Linear(h, c["heads"] * d, bias=False)
        self.k_proj = nn.Linear(h, c["kv_heads"] * d, bias=False)
        self.v_proj = nn.Linear(h, c["kv_heads"] * d, bias=False)
        self.o_proj = nn.Linear(c["heads"] * d, h, bias=False)
        self.q_norm, self.k_norm = Norm(d), Norm(d)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        d, group = self.c["head_dim"], self.c["heads"] // self.c["kv_heads"]
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, -1, d)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(b, t, -1, d)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, -1, d).transpose(1, 2)
        # Under bf16 autocast the rotation gives float32; attention wants one dtype.
        q, k = q.to(v.dtype), k.to(v.dtype)
        k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))
        y = attend(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    """Gated feed-forward."""

    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.up_proj = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.down_proj = nn.Linear(c["ffn"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden"]), Norm(c["hidden"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm, named as in the checkpoint."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, c["hidden"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = Norm(c["hidden"])


class Qwen3(nn.Module):
    """The language model with tied embeddings; forward gives logits (B,T,V)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.model = Trunk(c)

    def forward(self, ids, positions):
        x = self.model.embed_tokens(ids)
        cos, sin = rotary(positions, self.c["head_dim"], self.c["theta"])
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def orthonormal(rows, cols):
    """rows x cols with orthonormal rows (rows <= cols)."""
    return torch.linalg.qr(torch.randn(cols, rows))[0].T.contiguous()


@torch.no_grad()
def initialise(model, seed):
    """Random weights plus copying heads: layer 0 sees the 1, 2, ... tokens before, layer 1 matches on them.

    Embeddings share one constant coordinate (harmless to tied logits), from which the
    layer-0 heads of KV head 0 make a constant key and a query turned back by 1, 2, ...
    positions. Layer 1 compares the current token with every position's previous token and
    brings that position's own token: an induction head. Learning these two from random
    weights is what costs a small model its first million tokens; the rest is training.
    """
    torch.manual_seed(seed)
    c, scale = model.c, 0.06
    h, d = c["hidden"], c["head_dim"]
    group = c["heads"] // c["kv_heads"]
    for name, p in model.named_parameters():
        if p.dim() == 2:
            p.normal_(0, scale if "embed" in name else 1 / math.sqrt(p.shape[1]))
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            p.zero_()
    model.model.embed_tokens.weight[:, 0] = 6 * scale
    value = orthonormal(d, h - 1)
    outs = orthonormal(d * group, h - 1).view(group, d, h - 1)
    offset_heads(model.model.layers[0].self_attn, c, value, outs, group)
    induction_heads(model.model.layers[1].self_attn, c, value, outs)


def offset_heads(attn, c, value, outs, group):
    """KV head 0 of the first layer: query head i attends to the token i + 1 places back."""
    d = c["head_dim"]
    freq = c["theta"] ** (-torch.arange(0, d, 2).float() / d)
    power = torch.zeros(d // 2)
    power[:4] = torch.tensor([20.0, 6.0, 4.0, 2.0]).sqrt()
    attn.q_norm.weight.fill_(2.0)
    attn.k_norm.weight.fill_(2.0)
    attn.k_proj.weight[:d] = 0
    attn.k_proj.weight[:d // 2, 0] = power
    attn.v_proj.weight[:d] = 0
    attn.v_proj.weight[:d, 1:] = value
    for i in range(group):
        back = -(i + 1) * freq
        attn.q_proj.weight[i * d:(i + 1) * d] = 0
        attn.q_proj.weight[i * d:(i + 1) * d, 0] = torch.cat((power * back.cos(), power * back.sin()))
        attn.o_proj.weight[1:, i * d:(i + 1) * d] = 0.1 * outs[i].T


def induction_heads(attn, c, value, outs):
    """Second layer: KV head 0 matches one token, KV head 1 two tokens, on slowly turning pairs."""
    d, group = c["head_dim"], c["heads"] // c["kv_heads"]
    half = d // 2
    slow = torch.cat((torch.arange(half // 2, half), torch.arange(half + half // 2, d)))
    attn.q_norm.weight.fill_(1.7)
    attn.k_norm.weight.fill_(1.7)
    # Rows of `current` and `before[i]` read the same 16 coordinates of a token's value
    # vector: of the token here, and of the token i + 1 places back (norms 0.06 and 0.1).
    rows = slice(0, len(slow))
    current, before = value[rows] / 0.06, [o[rows] / 0.1 for o in outs]
    two = len(slow) // 2
    queries = (current, torch.cat((current[:two], before[0][:two])))
    keys = (before[0], torch.cat((before[0][:two], before[1][:two])))
    for kv in range(c["kv_heads"]):
        attn.k_proj.weight[kv * d:(kv + 1) * d] = 0
        attn.k_proj.weight[kv * d + slow, 1:] = 0.1 * keys[kv]
        copy = orthonormal(d, c["hidden"] - 1)
        attn.v_proj.weight[kv * d:(kv + 1) * d] = 0
        attn.v_proj.weight[kv * d:(kv + 1) * d, 1:] = copy
        head = kv * group
        attn.q_proj.weight[head * d:(head + 1) * d] = 0
        attn.q_proj.weight[head * d + slow, 1:] = 0.1 * queries[kv]
        attn.o_proj.weight[1:, head * d:(head + 1) * d] = 0.1 * copy.T


def config_json(name):
    """config.json in the published layout."""
    c = CONFIGS[name]
    return dict(architectures=["Qwen3ForCausalLM"], attention_bias=False, attention_dropout=0.0,
                bos_token_id=None, eos_token_id=2, head_dim=c["head_dim"], hidden_act="silu",
                hidden_size=c["hidden"], initializer_range=0.02,
                intermediate_size=c["ffn"], max_position_embeddings=40960, max_window_layers=c["layers"],
                model_type="qwen3", num_attention_heads=c["heads"], num_hidden_layers=c["layers"],
                num_key_value_heads=c["kv_heads"],
                pad_token_id=0, rms_norm_eps=EPS, rope_scaling=None, rope_theta=c["theta"], sliding_window=None,
                tie_word_embeddings=True, torch_dtype="bfloat16", use_cache=True, use_sliding_window=False,
                vocab_size=VOCAB)


def of_config(config):
    """The module that a config.json describes."""
    return Qwen3(dict(
        layers=config["num_hidden_layers"], hidden=config["hidden_size"], heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"], ffn=config["intermediate_size"],
        theta=config["rope_theta"]))
