"""Golden vectors of the model families, from PyTorch and transformers.

    python tests/golden/models/make.py [NAME...]   writes the folders and .gguf files beside it
                                                   (all, or the folders NAME)

Each case is a tiny model with every constant default re-randomised. Its weights are rounded to
the stored type (of those named -fp8 the linear maps to E4M3 with scales); the reference runs in
float32 with eager attention: one pass over 53 ids, and the same ids as a prefill of 40, 8 single
tokens and 5 more. Seeds are taken until no choice (of an expert, of a greedy token) hangs on
rounding. expect.safetensors holds
    ids (53) i32, logits (53,V), greedy (20) i32: continuation, by argmax
    h.L (53,H)        output of block L
    k1.L k2.L k3.L    (53, kv heads * head size): k_proj, k_norm (where there is one), rotated
    v.L               v_proj
    latent1.L latent2.L, rotary1.L rotary3.L
                      latent attention: kv_a_proj, kv_a_layernorm; its last part, and that
                      rotated with pairs where the weights have them (transformers keeps
                      the firsts of all pairs, then the seconds)
    index1.L index2.L index3.L  indexers: wk, k_norm, rotated
    pool1.L           gates of indexers over pools
    state1.L          recurrent layers: their input
    ngrams3.L ids3.L  n-gram embeddings: last inputs of the convolution, last tokens
    state3.L window3.L  (H,K,V), of Mamba-2 (H,P,N), and (C,4): state and last inputs of the
                      convolution, at the end
    q.L out.L         queries as attention sees them, its output before o_proj, last layer
Made with torch 2.15.0, transformers 5.24.0, gguf 0.19.0; seeds below.
"""
import copy
import json
import os
import sys
import types

import gguf
import numpy as np
import torch
import transformers
from gguf import quants
from safetensors.torch import save_file
from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

HERE = os.path.dirname(os.path.abspath(__file__))
PREFILL, STEPS, MORE, GREEDY = 40, 8, 5, 20
TOTAL = PREFILL + STEPS + MORE
seen = {}


def recording_attention(module, query, key, value, mask, scaling, dropout=0.0, **kw):
    """Eager attention, written out, that keeps what it was given."""
    groups = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ k.transpose(2, 3) * scaling
    if mask is not None:
        scores = scores + mask[..., : k.shape[2]]
    if kw.get("indices") is not None:  # all but the chosen tokens
        far = torch.ones(scores.shape[:1] + scores.shape[2:], dtype=torch.bool)
        far = far.scatter(-1, kw["indices"].long(), False)
        scores = scores.masked_fill(far[:, None], torch.finfo(scores.dtype).min)
    out = (scores.softmax(-1) @ v).transpose(1, 2).contiguous()
    rows = lambda x: x[0].transpose(0, 1).reshape(x.shape[2], -1).clone()
    seen[module.layer_idx] = dict(k3=rows(key), v=rows(value), q=rows(query),
                                  out=out[0].reshape(out.shape[1], -1).clone())
    return out, None


ALL_ATTENTION_FUNCTIONS.register("golden", recording_attention)
masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("golden", masking_utils.eager_mask)


class Clipped:
    """torch.nn.functional whose softplus, of which modeling_nemotron_h makes time steps, keeps
    to time_step_limit: transformers has no limit there but time_step_min, and that in its
    prefill alone (the cases set it next to 0)."""

    def __init__(self, limit):
        self.limit = limit

    def __getattr__(self, name):
        return getattr(torch.nn.functional, name)

    def softplus(self, x):
        return torch.nn.functional.softplus(x).clamp(*self.limit)


def single(layer):
    """a block of one mixer"""
    return hasattr(layer, "mixer")


def recurrent(layer):
    if single(layer):
        return layer.block_type == "linear_attention"
    return hasattr(layer, "linear_attn") or hasattr(layer.self_attn, "forget_gate")


class Glm5NextText(transformers.models.glm5_next.modeling_glm5_next.Glm5NextPreTrainedModel):
    """the language model of GLM-5.3-Flash alone, which transformers has no class for"""
    config: transformers.Glm5NextTextConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = transformers.models.glm5_next.modeling_glm5_next.Glm5NextTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, ids, **kw):
        r = self.model(ids, **kw)
        return types.SimpleNamespace(logits=self.lm_head(r.last_hidden_state), cache=r.cache)


INDEXED = ("deepseek_v32", "glm_moe_dsa")  # rotate pairs, whatever the config says


def one_more(model, name):
    """norms of these families are stored as what is added to one"""
    return (model.config.model_type.startswith(("qwen3_5", "qwen3_next", "qwen4"))
            and "linear_attn" not in name)


def randomise(model, seed, dtype):
    g = torch.Generator().manual_seed(seed)
    normal = lambda p, mean, std: torch.randn(p.shape, generator=g) * std + mean
    for name, p in model.named_parameters():
        if name.endswith("dt_bias"):
            x = torch.rand(p.shape, generator=g) * 4 - 3
        elif name.endswith("bias"):
            x = normal(p, 0, 0.3)
        elif "norm" in name:
            x = normal(p, 0 if one_more(model, name) else 1, 0.3)
        elif name.endswith("A_log"):
            x = (torch.rand(p.shape, generator=g) * 7.5 + 0.5).log()
        elif "embed_tokens" in name or "embeddings" in name:
            x = normal(p, 0, 0.25 if model.config.tie_word_embeddings else 1)
        else:  # a convolution (C, 1, 4) sums over its last axis too
            x = normal(p, 0, p.shape[-1] ** -0.5)
        p.data = x.to(dtype).float()
    for name, p in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # enough to change the choice
            p.copy_(normal(p, 0, 0.3).to(dtype).float())
    model.tie_weights()


def watch_indexers(config, margins):
    """How near another choice of tokens was; gives the way back."""
    plain, most = torch.Tensor.topk, getattr(config, "index_topk", 0)
    most //= getattr(config, "index_kpool", 1)
    blocks = getattr(config, "indexer_budget", 0) // getattr(config, "indexer_compress_ratio", 1)

    def topk(self, k, *a, **kw):
        if blocks and self.dim() == 1 and k == blocks and len(self) > k:
            top = plain(self, k + 1).values
            margins.append((top[-2] - top[-1]).item())
        if most and self.dim() == 3 and k == most and self.shape[-1] > k:
            top = plain(self, k + 1).values
            gap = (top[..., -2] - top[..., -1])[top[..., -1] > -1e30]
            margins.append(gap.min().item())
        return plain(self, k, *a, **kw)

    torch.Tensor.topk = topk
    return lambda: setattr(torch.Tensor, "topk", plain)


def build(cls, config, seed, dtype):
    if config.model_type == "nemotron_h":
        sys.modules[cls.__module__].F = Clipped(config.time_step_limit)
    model = cls._from_config(config, attn_implementation="golden").float().eval()
    randomise(model, seed, dtype)
    return model


@torch.no_grad()
def reference(model, seed):
    config, layers = model.config, model.model.layers
    g = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(0, config.vocab_size, (1, TOTAL), generator=g)
    if config.eos_token_id is not None:
        ids[0, [7, 20, 39]] = config.eos_token_id
    out, hooks, margins = {}, [], []
    seen.clear()

    def keep(name):
        def hook(_, __, y):
            y = y[0] if isinstance(y, tuple) else y
            out[name] = y.reshape(TOTAL, -1).clone()
        return hook

    def watch(module, name):
        hooks.append(module.register_forward_hook(keep(name)))

    def watch_choice(module, args, y):
        """How near another choice of experts was."""
        if not hasattr(module, "e_score_correction_bias"):
            top = (args[0].flatten(0, -2) @ module.weight.T).softmax(-1).topk(
                module.top_k + 1).values
            margins.append((top[:, -2] - top[:, -1]).min().item())
            return
        c = y[0].sigmoid() + module.e_score_correction_bias
        groups = c.view(len(c), module.num_group, -1).topk(2)[0].sum(-1)
        best = groups.topk(module.topk_group)
        if module.topk_group < module.num_group:
            other = groups.scatter(1, best.indices, -1e9).max(-1).values
            margins.append((best.values[:, -1] - other).min().item())
        open_ = torch.zeros_like(groups).scatter(1, best.indices, 1).bool()
        c = c.view(len(c), module.num_group, -1).masked_fill(~open_[..., None], -1e9).flatten(1)
        top = c.topk(module.top_k + 1).values
        margins.append((top[:, -2] - top[:, -1]).min().item())

    for i, layer in enumerate(layers):
        ffn = layer.mixer if single(layer) else layer.mlp
        if hasattr(ffn, "gate"):
            hooks.append(ffn.gate.register_forward_hook(watch_choice))
        watch(layer, f"h.{i}")
        if recurrent(layer):
            if hasattr(layer, "attn_hyper_connection"):
                hooks.append(layer.linear_attn.register_forward_pre_hook(
                    lambda _, args, i=i: keep(f"state1.{i}")(None, None, args[0])))
            else:
                watch(layer.norm if single(layer) else layer.input_layernorm, f"state1.{i}")
            continue
        if single(layer) and layer.block_type != "full_attention":
            continue
        a = layer.mixer if single(layer) else layer.self_attn
        if hasattr(a, "kv_a_proj_with_mqa"):
            watch(a.kv_a_proj_with_mqa, f"kv_a.{i}")
            watch(a.kv_a_layernorm, f"latent2.{i}")
            if getattr(a, "indexer", None) is not None:
                watch(a.indexer.wk, f"index1.{i}")
                watch(a.indexer.k_norm, f"index2.{i}")
        else:
            watch(a.k_proj, f"k1.{i}")
            if hasattr(a, "k_norm"):
                watch(a.k_norm, f"k2.{i}")
            if hasattr(a, "indexer"):
                watch(a.indexer.index_qk_proj, f"index1.{i}")
    back = watch_indexers(config, margins)
    r = model(ids, use_cache=True)
    back()
    whole = r.logits[0]
    for i, layer in enumerate(layers):
        if recurrent(layer):
            out[f"state3.{i}"] = r.cache.get_recurrent_state(i, state_idx=0)[0].clone()
            out[f"window3.{i}"] = r.cache.get_conv_state(i, state_idx=0)[0].clone()
        if getattr(layer, "ple", None) is not None:
            out[f"ngrams3.{i}"] = r.cache.get_conv_state(i, state_idx=1)[0].clone()
            out[f"ids3.{i}"] = r.cache.get_conv_state(i, state_idx=2)[0].float()
    for h in hooks:
        h.remove()
    for i, layer in enumerate(layers):
        if f"kv_a.{i}" in out:
            both, rank = out.pop(f"kv_a.{i}"), layer.self_attn.kv_lora_rank
            out[f"latent1.{i}"], out[f"rotary1.{i}"] = both[:, :rank], both[:, rank:]
            if config.qk_rope_head_dim == 0:
                del out[f"rotary1.{i}"]
                packed, n = r.cache.layers[i].indexer_keys.reshape(TOTAL, -1), config.index_head_dim
                out[f"index3.{i}"], out[f"pool1.{i}"] = packed[:, :n], packed[:, n:2 * n]
                continue
            for x in ("q", "k3"):
                heads = seen[i][x].view(TOTAL, config.num_attention_heads, -1)
                pe = heads[..., config.qk_nope_head_dim:]
                if getattr(config, "rope_interleave", config.model_type in INDEXED):
                    pe.copy_(pe.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2).clone())
            out[f"rotary3.{i}"] = pe[:, 0].clone()
            if getattr(layer.self_attn, "indexer", None) is not None:
                k = r.cache.layers[i].indexer_keys.reshape(TOTAL, -1).clone()
                if config.model_type == "glm_moe_dsa":  # pairs as the weights have them
                    n = config.qk_rope_head_dim
                    k[:, :n] = k[:, :n].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2).clone()
                out[f"index3.{i}"] = k
        elif i in seen:
            out[f"k3.{i}"], out[f"v.{i}"] = seen[i]["k3"], seen[i]["v"]
            if f"index1.{i}" in out:
                out[f"index1.{i}"] = out[f"index1.{i}"][:, -config.indexer_head_dim:]
    last = max(seen)
    out[f"q.{last}"], out[f"out.{last}"] = seen[last]["q"], seen[last]["out"]
    out["ids"] = ids[0].to(torch.int32)
    out["logits"] = whole

    cache, pieces, at = None, [], 0
    for n in [PREFILL] + [1] * STEPS + [MORE]:
        r = model(ids[:, at:at + n], cache=cache, use_cache=True)
        cache, at = r.cache, at + n
        pieces.append(r.logits[0])
    gap = (torch.cat(pieces) - whole).abs().max() / whole.abs().max()

    greedy, margin, row = [], 1e9, pieces[-1][-1]
    for _ in range(GREEDY):
        top = row.topk(2).values
        margin = min(margin, (top[0] - top[1]).item())
        greedy.append(int(row.argmax()))
        r = model(torch.tensor([[greedy[-1]]]), cache=cache, use_cache=True)
        cache, row = r.cache, r.logits[0, -1]
    out["greedy"] = torch.tensor(greedy, dtype=torch.int32)
    print(f"  incremental differs by {gap:.1e}, |logits| {whole.abs().max():.2f}, "
          f"least greedy margin {margin:.1e}")
    if gap > 1e-5 or margin < 1e-3 or min(margins, default=1) < 1e-5:
        return None
    return {k: v.contiguous() for k, v in out.items()}


def old_dialect(config):
    """rope_theta and rope_scaling, as files before transformers 5 have them"""
    c = copy.deepcopy(config)
    inner = c.get("text_config", c)
    rope = inner.pop("rope_parameters", None)
    if not rope:
        return c
    inner["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if kind != "default":
        inner["rope_scaling"] = {"type": kind, **rope}
    return c


def write(folder, config, tensors, expect=None, shards=1):
    path = os.path.join(HERE, folder)
    os.makedirs(path, exist_ok=True)
    for name, c in ("config.json", config), ("config.old.json", old_dialect(config)):
        with open(os.path.join(path, name), "w") as f:
            json.dump(c, f, indent=1, sort_keys=True)
            f.write("\n")
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, os.path.join(path, "model.safetensors"), {"format": "pt"})
    else:
        where = {}
        for s in range(shards):
            file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
            part = {n: tensors[n] for n in names[s::shards]}
            where.update({n: file for n in part})
            save_file(part, os.path.join(path, file), {"format": "pt"})
        with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": where}, f, indent=1, sort_keys=True)
    if expect:  # a model under other names has the vectors of the first
        save_file(expect, os.path.join(path, "expect.safetensors"))


def pieces(model, name, p, fused):
    """A parameter as files hold it: experts and the shards of a table apart."""
    if ".experts." in name and not fused:
        base, kind = name.rsplit(".", 1)
        kinds = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else ["down_proj"]
        return {f"{base}.{e}.{k}.weight": x for e in range(len(p))
                for k, x in zip(kinds, p[e].chunk(len(kinds)))}
    if name.endswith("ngram_embedding.weight"):
        base, shards = name[:-len("weight")], p.chunk(model.config.split_ngram_parts)
        return {f"{base}shard_{i}.weight": x for i, x in enumerate(shards)}
    return {name: p}


def stored(model, dtype, fused=False):
    """Tensors by name; experts apart, as published files have them, or fused."""
    skip = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    out = {}
    for name, p in model.state_dict().items():
        if name in skip:
            continue
        out.update({n: x.to(dtype if x.is_floating_point() else x.dtype).contiguous().clone()
                    for n, x in pieces(model, name, p, fused).items()})
    return out


# How E4M3 weights are scaled: `block` of the numbers that share a scale (None: all of them), its
# name's ending, its type, and the config that says so.
def by_blocks(kind):
    return dict(block=(16, 16), ending="_scale_inv", dtype=kind, config=dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[16, 16]))


BY_TENSOR = dict(block=None, ending="_scale_inv", dtype=torch.bfloat16, config=dict(
    quant_method="fp8", activation_scheme="static", weight_block_size=None))
BY_ROW = dict(block=(1, 1 << 20), ending="_scale", dtype=torch.float32, config=dict(
    quant_method="compressed-tensors", format="float-quantized", config_groups=dict(group_0=dict(
        weights=dict(num_bits=8, type="float", strategy="channel", block_structure=None)))))
UNSCALED = ("norm", "embed_tokens", "lm_head", "mlp.gate.weight", "shared_expert_gate", "in_proj_a.",
            "in_proj_b.", "in_proj_ba.", "weights_proj", "hyper_connection")


def codes_of(x, block, kind):
    """codes (R,C), scales, and what both stand for"""
    (rows, cols), (high, wide) = block or x.shape, x.shape
    whole = lambda s: s.repeat_interleave(rows, 0)[:high].repeat_interleave(cols, 1)[:, :wide]
    cut = lambda n, by: range(0, n, by)
    s = torch.stack([torch.stack([x[i:i + rows, j:j + cols].abs().max() / 448
                                  for j in cut(wide, cols)]) for i in cut(high, rows)])
    s = s.log2().ceil().exp2() if kind == torch.float8_e8m0fnu else s
    s = s.to(kind)
    cols = min(cols, wide)
    q = (x / whole(s.float())).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q, s.clone() if block else s.reshape(()).clone(), q.float() * whole(s.float())


def quantise(model, scheme):
    """The model's linear maps become E4M3; gives the tensors that hold them."""
    out = {}
    for name, p in model.state_dict().items():
        for n, x in pieces(model, name, p, False).items():
            table = "ngram_embedding" in n
            if x.dim() != 2 or not n.endswith("weight") or any(u in n for u in UNSCALED):
                continue
            ending = "_scale" if table else scheme["ending"]
            q, s, wide = codes_of(x, None if table else scheme["block"],
                                  torch.float32 if table else scheme["dtype"])
            x.copy_(wide)
            out.update({n: q, n + ending: s})
            if scheme is BY_TENSOR:
                out[n[:-len("weight")] + "activation_scale"] = torch.tensor(0.01, dtype=s.dtype)
    return out


def plain_config(config):
    c = config.to_dict()
    for k in ("_attn_implementation", "attn_implementation", "transformers_version"):
        c.pop(k, None)
    return c


SMALL = dict(hidden_size=64, intermediate_size=72, num_hidden_layers=3, vocab_size=97,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)


def yarn(all_dim):
    return dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0,
                beta_slow=1.0, mscale=1.0, mscale_all_dim=all_dim,
                original_max_position_embeddings=8, llama_4_scaling_beta=0.1)


LATENT = dict(SMALL, num_key_value_heads=4, hidden_size=48, kv_lora_rank=32, qk_nope_head_dim=16,
              qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, num_experts_per_tok=3,
              n_shared_experts=2, moe_intermediate_size=20, first_k_dense_replace=1)


def cases():
    t = transformers
    yield "llama", t.LlamaForCausalLM, t.LlamaConfig(
        **SMALL, head_dim=16, rope_parameters=LLAMA3), torch.bfloat16
    yield "qwen2", t.Qwen2ForCausalLM, t.Qwen2Config(
        **{**SMALL, "num_hidden_layers": 2, "hidden_size": 48}, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=9, max_window_layers=1,
        rope_parameters=dict(rope_type="default", rope_theta=1e6)), torch.float32
    for tied in False, True:
        yield ("qwen3-tied" if tied else "qwen3"), t.Qwen3ForCausalLM, t.Qwen3Config(
            **{**SMALL, "num_hidden_layers": 2}, head_dim=24, tie_word_embeddings=tied,
            rope_parameters=dict(rope_type="default", rope_theta=1e6)), \
            torch.float16 if tied else torch.bfloat16
    yield "ministral3", t.Ministral3ForCausalLM, t.Ministral3Config(
        **SMALL, head_dim=16, rope_parameters=yarn(1.0)), torch.bfloat16
    yield "mistral3", t.Ministral3ForCausalLM, t.Ministral3Config(
        **{**SMALL, "num_hidden_layers": 2}, head_dim=16, tie_word_embeddings=True,
        rope_parameters=yarn(0.0)), torch.bfloat16
    yield "deepseek_v3", t.DeepseekV3ForCausalLM, t.DeepseekV3Config(
        **LATENT, q_lora_rank=None, n_group=1, topk_group=1, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=1e4)), torch.bfloat16
    scaled = {k: v for k, v in yarn(1.0).items() if k != "llama_4_scaling_beta"}
    yield "deepseek_v3-groups", t.DeepseekV3ForCausalLM, t.DeepseekV3Config(
        **LATENT, q_lora_rank=24, n_group=4, topk_group=2, rope_interleave=False,
        attention_bias=True, rope_parameters=dict(scaled, mscale=0.7)), torch.float32
    hybrid = dict(SMALL, hidden_size=48, intermediate_size=40, num_hidden_layers=4, head_dim=32,
                  linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16,
                  linear_value_head_dim=24, layer_types=["linear_attention", "full_attention"] * 2,
                  rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25))
    experts = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
                   shared_expert_intermediate_size=28)
    yield "qwen3_5", t.Qwen3_5ForCausalLM, t.Qwen3_5TextConfig(**hybrid), torch.bfloat16
    yield "qwen3_5_moe", t.Qwen3_5MoeForCausalLM, t.Qwen3_5MoeTextConfig(
        **hybrid, **experts), torch.bfloat16
    yield "qwen3_next", t.Qwen3NextForCausalLM, t.Qwen3NextConfig(
        **hybrid, **experts, norm_topk_prob=False, mlp_only_layers=[2]), torch.float32
    yield "qwen3_moe", t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(
        **dict(SMALL, num_hidden_layers=2), head_dim=16, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=20, norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e6)), torch.float16
    kimi = dict(LATENT, num_hidden_layers=4, linear_num_heads=4, linear_head_dim=16)
    kimi = {k: v for k, v in kimi.items() if k not in ("n_routed_experts", "first_k_dense_replace")}
    yield "kimi_linear", t.KimiLinearForCausalLM, t.KimiLinearConfig(
        **kimi, num_local_experts=8, q_lora_rank=None, mlp_layer_types=["dense"] + ["sparse"] * 3,
        layer_types=["linear_attention"] * 3 + ["full_attention"]), torch.bfloat16
    index = dict(index_topk=6, index_n_heads=8, index_head_dim=16, q_lora_rank=24)
    yield "deepseek_v32", t.DeepseekV32ForCausalLM, t.DeepseekV32Config(
        **LATENT, **index, n_group=1, topk_group=1,
        rope_parameters=dict(scaled, mscale=1.0)), torch.bfloat16
    yield "glm_moe_dsa", t.GlmMoeDsaForCausalLM, t.GlmMoeDsaConfig(
        **LATENT, **index, n_group=1, topk_group=1, indexer_types=["full", "shared", "full"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4)), torch.bfloat16
    yield "qwen4_exp", t.Qwen4ExpForCausalLM, t.Qwen4ExpTextConfig(
        **{k: v for k, v in hybrid.items() if k not in ("layer_types", "intermediate_size", "eos_token_id")},
        **experts,
        layer_types=["linear_attention", "indexed_attention"] * 2, output_gate_type="sigmoid",
        indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=16,
        indexer_compress_ratio=4, hc_count=3, hc_lowrank=8, ple_layer_ids=[1], ple_embed_dim=32,
        heads_per_ngram=2, ngram_vocab_size_base=101, make_ngram_vocab_size_divisible_by=4,
        split_ngram_parts=4, eos_token_id=5), torch.bfloat16
    mamba = dict({k: v for k, v in SMALL.items() if k != "num_hidden_layers"}, hidden_size=48,
                 head_dim=16, mamba_num_heads=4, mamba_head_dim=12, ssm_state_size=16, n_groups=2,
                 chunk_size=16, time_step_min=1e-9, n_routed_experts=8, num_experts_per_tok=3,
                 moe_intermediate_size=20, moe_shared_expert_intermediate_size=28)
    words = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    yield "nemotron_h", t.NemotronHForCausalLM, t.NemotronHConfig(
        **mamba, layers_block_type=[words[x] for x in "ME*-M*E"], moe_latent_size=24, n_group=4,
        topk_group=2, routed_scaling_factor=2.5), torch.bfloat16
    yield "nemotron_h-dense", t.NemotronHForCausalLM, t.NemotronHConfig(
        **dict(mamba, mamba_num_heads=6, n_groups=1), layers_block_type=[words[x] for x in "-M*M"],
        mlp_bias=True, use_conv_bias=False, time_step_limit=[0.02, 0.9],
        layer_norm_epsilon=1e-4), torch.float32
    glm = dict(LATENT, num_hidden_layers=4, qk_rope_head_dim=0, q_lora_rank=24, linear_num_heads=4,
               linear_head_dim=16, linear_lower_bound=-3.0, index_topk=8, index_n_heads=8, index_head_dim=16, index_kpool=4)
    glm = {k: v for k, v in glm.items() if k != "first_k_dense_replace"}
    yield "glm5_next", Glm5NextText, t.Glm5NextTextConfig(
        **glm, mlp_layer_types=["dense"] + ["sparse"] * 3, swiglu_limit=0.8, hc_mult=3,
        hc_sinkhorn_iters=4, layer_types=["linear_attention", "indexed_attention"] * 2,
        indexer_types=["full"] * 4), torch.bfloat16


def scaled_cases():
    """linear maps in E4M3, each way of scaling them"""
    t = transformers
    plain = dict(rope_type="default", rope_theta=1e6)
    hybrid = dict(SMALL, hidden_size=48, intermediate_size=40, num_hidden_layers=2, head_dim=32,
                  linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16,
                  linear_value_head_dim=24, num_experts=8, num_experts_per_tok=3,
                  moe_intermediate_size=20, shared_expert_intermediate_size=28,
                  rope_parameters=dict(plain, partial_rotary_factor=0.25))
    yield "deepseek_v3-fp8", t.DeepseekV3ForCausalLM, t.DeepseekV3Config(
        **dict(LATENT, num_hidden_layers=2), q_lora_rank=24, n_group=1, topk_group=1,
        rope_parameters=dict(plain, rope_theta=1e4)), torch.bfloat16, by_blocks(torch.float32)
    yield "qwen3_next-fp8", t.Qwen3NextForCausalLM, t.Qwen3NextConfig(
        **hybrid, layer_types=["linear_attention", "full_attention"]), \
        torch.bfloat16, by_blocks(torch.bfloat16)
    yield "ministral3-fp8", t.Ministral3ForCausalLM, t.Ministral3Config(
        **dict(SMALL, num_hidden_layers=2), head_dim=16, rope_parameters=yarn(1.0)), \
        torch.bfloat16, BY_TENSOR
    yield "qwen3-fp8", t.Qwen3ForCausalLM, t.Qwen3Config(
        **dict(SMALL, num_hidden_layers=2), head_dim=24, rope_parameters=plain), torch.bfloat16, BY_ROW
    skip = ("intermediate_size", "eos_token_id", "num_hidden_layers")
    yield "qwen4_exp-fp8", t.Qwen4ExpForCausalLM, t.Qwen4ExpTextConfig(
        **{k: v for k, v in hybrid.items() if k not in skip}, num_hidden_layers=3,
        layer_types=["linear_attention"] * 2 + ["indexed_attention"], output_gate_type="sigmoid",
        indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=16,
        indexer_compress_ratio=4, hc_count=2, hc_lowrank=8, ple_layer_ids=[1, 2], ple_embed_dim=32,
        heads_per_ngram=2, ngram_vocab_size_base=101, make_ngram_vocab_size_divisible_by=4,
        split_ngram_parts=4, eos_token_id=5), torch.bfloat16, by_blocks(torch.float8_e8m0fnu)


def published_kimi(config, tensors):
    """kimi_linear as Moonshot publishes it: other fields, other names, three convolutions"""
    names = [("forget_gate.", ""), ("mlp.experts.", "block_sparse_moe.experts."),
             ("mlp.gate.", "block_sparse_moe.gate."),
             ("mlp.shared_experts.", "block_sparse_moe.shared_experts."),
             ("experts.gate_proj", "experts.gate_proj")]
    out = {}
    for n, x in tensors.items():
        for old, new in names:
            n = n.replace(old, new)
        if ".experts." in n:
            for old, new in ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"):
                n = n.replace(old, new)
        if n.endswith("self_attn.conv1d.weight"):
            for part, w in zip("qkv", x.chunk(3)):
                out[n.replace("conv1d", part + "_conv1d")] = w.contiguous().clone()
            continue
        out[n] = x
    c = dict(config)
    kda = [i + 1 for i, k in enumerate(c["layer_types"]) if k == "linear_attention"]
    c["linear_attn_config"] = dict(
        num_heads=c.pop("linear_num_heads"), head_dim=c.pop("linear_head_dim"),
        short_conv_kernel_size=c.pop("linear_conv_kernel_dim"), kda_layers=kda,
        full_attn_layers=[i + 1 for i in range(len(c["layer_types"])) if i + 1 not in kda])
    c["first_k_dense_replace"] = c.pop("mlp_layer_types").count("dense")
    c.pop("layer_types")
    c.update(mla_use_nope=True, moe_router_activation_func="sigmoid", num_experts=c.pop("num_local_experts", 8))
    return c, out


def published_glm(config, tensors):
    """glm5_next as published: inside a wrapper, names of before transformers, three convolutions,
    layers counted from zero"""
    out = {}
    for n, x in tensors.items():
        n = n.replace("model.", "model.language_model.", 1).replace("forget_gate.", "")
        for site in "attn", "ffn":
            n = n.replace(f"{site}_hc.", f"hc_{site}_")
        parts = {n: x}
        if n.endswith("self_attn.conv1d.weight"):
            parts = {n.replace("conv1d", part + "_conv1d"): w for part, w in zip("qkv", x.chunk(3))}
        out.update({k: w.contiguous().clone() for k, w in parts.items()})
    out["model.visual.patch_embed.weight"] = torch.zeros(2, 3)
    c = dict(config)
    types_ = c.pop("layer_types")
    which = lambda word: [i for i, x in enumerate(types_) if x == word]
    c["linear_attn_config"] = dict(
        num_heads=c.pop("linear_num_heads"), head_dim=c.pop("linear_head_dim"),
        short_conv_kernel_size=c.pop("linear_conv_kernel_dim"),
        gate_lower_bound=c.pop("linear_lower_bound"), kda_layers=which("linear_attention"),
        full_attn_layers=which("indexed_attention"))
    c["first_k_dense_replace"] = c.pop("mlp_layer_types").count("dense")
    del c["indexer_types"]
    return {"model_type": "glm5_next", "text_config": c}, out


def published_nemotron(config, tensors):
    """nemotron_h as NVIDIA publishes it: a pattern of letters, experts apart, other names"""
    out = {}
    for n, x in tensors.items():
        n = n.replace("model.", "backbone.", 1)
        if ".experts." in n:
            base, kind = n.rsplit(".", 1)
            out.update({f"{base}.{e}.{kind}.weight": w.contiguous().clone()
                        for e, w in enumerate(x)})
            continue
        out[n] = x
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    c = {k: v for k, v in config.items() if k not in ("layers_block_type", "layer_types")}
    c["hybrid_override_pattern"] = "".join(letters[x] for x in config["layers_block_type"])
    c["num_hidden_layers"] = len(c["hybrid_override_pattern"])
    c["time_step_limit"] = [0.0, float("inf")]
    return c, out


def built(names):
    """each case of these names (none: all) as a model, with what it gives"""
    for seed, (name, cls, config, dtype, *scheme) in [*enumerate(cases()),
                                                      *enumerate(scaled_cases(), 60)]:
        if names and name not in names:
            continue
        print(name)
        for more in range(0, 9000, 1000):
            model = build(cls, config, 100 * seed + 7 + more, dtype)
            codes = quantise(model, *scheme) if scheme else {}
            expect = reference(model, seed + more)
            if expect:
                break
        yield name, model, config, dtype, scheme, codes, expect


def folders():
    for name, model, config, dtype, scheme, codes, expect in built(sys.argv[1:]):
        tensors = stored(model, dtype, fused=name in ("deepseek_v3-groups", "qwen3_5_moe", "nemotron_h"))
        tensors.update(codes)
        if name == "qwen4_exp-fp8":  # what n-grams are hashed with follows from the config
            tensors = {n: x for n, x in tensors.items()
                       if not any(w in n for w in ("layer_multipliers", "ngram_heads_"))}
        c = plain_config(config)
        if scheme:
            c["quantization_config"] = scheme[0]["config"]
        shards = 1
        if name == "mistral3":  # the multimodal wrapper, two files, a tower to be ignored
            tensors = {f"language_model.{n}": p for n, p in tensors.items()}
            tensors["vision_tower.patch_conv.weight"] = torch.zeros(2, 3, 1, 2, 2)
            c = {"model_type": "mistral3", "tie_word_embeddings": True, "text_config": c}
            c["text_config"].pop("tie_word_embeddings")
            shards = 2
        if name == "nemotron_h":  # as transformers' own json writes it
            c["time_step_limit"] = [0.0, {"__float__": "Infinity"}]
        write(name, c, tensors, expect, shards)
        if name == "nemotron_h":
            write("nemotron_h-published", *published_nemotron(c, tensors))
        if name == "glm5_next":
            write("glm5_next-published", *published_glm(c, tensors))
        if name == "kimi_linear":
            write("kimi_linear-published", *published_kimi(c, tensors))


# ---- GGUF -------------------------------------------------------------------------------

GGUF_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm",
              "lm_head": "output", "input_layernorm": "attn_norm",
              "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    base, kind = name.rsplit(".", 1)
    if base.startswith("model.layers."):
        _, _, n, rest = base.split(".", 3)
        return f"blk.{n}.{GGUF_NAMES[rest]}.{kind}"
    return f"{GGUF_NAMES[base]}.{kind}"


def pair_rows(w, heads):
    """the row order that llama.cpp's converter gives q and k of these architectures"""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def k_blocks(rng, kind, rows, cols):
    """random blocks of a K type: every bit of the quants, scales kept moderate"""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n = rows * cols // block
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    half = lambda x: np.frombuffer(np.full(n, x, np.float16).tobytes(), np.uint8).reshape(n, 2)
    if kind == gguf.GGMLQuantizationType.Q6_K:
        raw[:, 192:208] = rng.integers(-16, 17, (n, 16)).astype(np.int8).view(np.uint8)
        raw[:, 208:210] = half(2e-4 if cols < 128 else 1.5e-4)
    else:  # mean of d*sc*q is near that of dmin*m, so that weights are centred
        raw[:, 0:2] = half(1e-4 if kind == gguf.GGMLQuantizationType.Q4_K else 5e-5)
        raw[:, 2:4] = half(7.5e-4)
    return raw.reshape(rows, -1)


def write_gguf(file, arch, model, kind_of, seed, keys, divisors=None):
    """Quantise by kind_of(name); the model gets the dequantised weights back."""
    c, rng = model.config, np.random.default_rng(seed)
    w = gguf.GGUFWriter(os.path.join(HERE, file), arch)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    keys(w)
    for name, p in model.named_parameters():
        x, short, kind = p.data.numpy(), gguf_name(name), gguf.GGMLQuantizationType.F32
        if x.ndim == 2:
            kind = kind_of(short.split(".")[-2])
        heads = {"attn_q": c.num_attention_heads,
                 "attn_k": c.num_key_value_heads}.get(short.split(".")[-2])
        if heads:
            x = pair_rows(x, heads)
        if kind.name.endswith("_K"):
            raw = k_blocks(rng, kind, *x.shape)
        else:
            raw = quants.quantize(np.ascontiguousarray(x), kind)
        back = quants.dequantize(raw, kind).reshape(x.shape).astype(np.float32)
        if heads:  # inverse of pair_rows
            back = back.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        p.data = torch.from_numpy(np.ascontiguousarray(back))
        w.add_tensor(short, raw, raw_dtype=kind)
    if divisors is not None:
        w.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model.tie_weights()


def ggufs():
    t, q = transformers, gguf.GGMLQuantizationType
    even = {**SMALL, "intermediate_size": 96, "num_hidden_layers": 2}

    print("llama-mixed.gguf")
    model = build(t.LlamaForCausalLM, t.LlamaConfig(**even, head_dim=16, rope_parameters=LLAMA3),
                  701, torch.float32)
    kinds = dict(token_embd=q.F16, output=q.BF16, attn_q=q.Q8_0, attn_k=q.F16, attn_v=q.Q5_1,
                 attn_output=q.F32, ffn_gate=q.Q4_0, ffn_up=q.Q4_1, ffn_down=q.Q5_0)
    plain = 1e4 ** -(np.arange(0, 16, 2) / 16)
    divisors = plain / model.model.rotary_emb.inv_freq.numpy()
    write_gguf("llama-mixed.gguf", "llama", model, kinds.get, 1, lambda w: w.add_rope_dimension_count(16), divisors)
    save_file(reference(model, 71), os.path.join(HERE, "llama-mixed.expect.safetensors"))

    print("llama-k.gguf")
    wide = {**SMALL, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1}
    model = build(t.LlamaForCausalLM, t.LlamaConfig(**wide, head_dim=16, tie_word_embeddings=True), 702,
                  torch.float32)
    kinds = dict(token_embd=q.Q6_K, attn_q=q.Q4_K, attn_k=q.Q5_K, attn_v=q.Q6_K, attn_output=q.Q8_0,
                 ffn_gate=q.Q4_K, ffn_up=q.Q5_K, ffn_down=q.Q6_K)
    write_gguf("llama-k.gguf", "llama", model, kinds.get, 2, lambda w: w.add_rope_dimension_count(16))
    e = reference(model, 72)
    save_file({k: e[k] for k in e if k[0] not in "hqo"}, os.path.join(HERE, "llama-k.expect.safetensors"))

    print("mistral3.gguf")
    model = build(t.Ministral3ForCausalLM, t.Ministral3Config(**even, head_dim=16, rope_parameters=yarn(1.0)),
                  703, torch.float32)

    def keys(w):  # as llama.cpp's converter names them
        w.add_rope_dimension_count(16)
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(4.0)
        w.add_rope_scaling_yarn_beta_fast(32.0)
        w.add_rope_scaling_yarn_beta_slow(1.0)
        w.add_rope_scaling_yarn_log_mul(1.0)
        w.add_rope_scaling_orig_ctx_len(8)
        w.add_attn_temperature_scale(0.1)
    write_gguf("mistral3.gguf", "mistral3", model, lambda _: q.Q8_0, 3, keys)
    e = reference(model, 73)
    save_file({k: e[k] for k in e if k[0] not in "hqo"}, os.path.join(HERE, "mistral3.expect.safetensors"))


if __name__ == "__main__":
    folders()
    if not sys.argv[1:]:
        ggufs()
