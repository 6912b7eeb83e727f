#!/usr/bin/env python3
"""The distillation of bench_distill in PyTorch; bench_distill starts it and speaks with it.

    bench_distill.py SOURCE TARGET TRANSLATOR LESSONS PREFIX AFTER THREADS RATE DECAY CLIP

A line "step" asks for one step over all lessons; the answer is "LOSS NORM SECONDS". Both models
are transformers' own, eager, f32, attention by sdpa; maps read what the source keeps of the
prefix (K behind its norm and V), stored once, as are the target's own logits. Lessons are of one
length and run as one batch, or one by one, whichever was faster when it began.
"""
import json
import sys
import time

import torch
import transformers
from safetensors import safe_open
from transformers.cache_utils import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import rotate_half

source_path, target_path, translator, lessons = sys.argv[1:5]
prefix, after, threads = map(int, sys.argv[5:8])
rate, decay, clip = map(float, sys.argv[8:11])
torch.set_num_threads(threads)
transformers.utils.logging.disable_progress_bar()
now = time.process_time if threads == 1 else time.perf_counter
ids = torch.tensor([int(x) for x in open(lessons).read().split()]).view(-1, prefix + after)
batch = len(ids)


def opened(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)


def source_rows(model):
    """{("K"|"V", layer): (batch, prefix, heads * dim)}"""
    rows, hooks = {}, []
    for i, layer in enumerate(model.model.layers):
        for name, module in (("K", layer.self_attn.k_norm), ("V", layer.self_attn.v_proj)):
            hooks.append(module.register_forward_hook(
                lambda m, a, out, key=(name, i): rows.__setitem__(key, out.reshape(batch, prefix, -1))))
    with torch.no_grad():
        model(ids[:, :prefix], use_cache=False)
    for h in hooks:
        h.remove()
    return rows


target = opened(target_path)
rows = source_rows(opened(source_path))
with torch.no_grad():
    native = target(ids, use_cache=False).logits[:, prefix:].log_softmax(-1)
config = target.config
heads, dim = config.num_key_value_heads, config.head_dim
cache_name = "cache" if "cache" in target.forward.__code__.co_varnames else "past_key_values"
cos, sin = target.model.rotary_emb(native, torch.arange(prefix)[None])

maps = {}
with safe_open(translator, "pt") as f:
    steps = json.loads(f.metadata()["kvmill"])["steps"]
    for s in steps:
        name = (s["rows"], s["layer"])
        inputs = torch.cat([rows[s["rows"], i] for i in s["sources"]], -1)
        weight, bias = (f.get_tensor("%s.%d.%s" % (*name, p)) for p in ("weight", "bias"))
        maps[name] = inputs, weight.flatten(0, -2).requires_grad_(), bias.requires_grad_()
parameters = [p for _, *parts in maps.values() for p in parts]
optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)


def translated(name, which):
    inputs, weight, bias = maps[name]
    y = torch.nn.functional.linear(inputs[which], weight, bias)
    return y.view(*y.shape[:2], heads, dim).transpose(1, 2)


def learn(which):
    """the sum of the lessons' losses, its gradient over `batch` added to the parameters'"""
    cache = DynamicCache()
    for i in range(config.num_hidden_layers):
        k = translated(("K", i), which)
        cache.update(k * cos + rotate_half(k) * sin, translated(("V", i), which), i)
    logits = target(ids[which, prefix:], use_cache=True, **{cache_name: cache}).logits
    loss = torch.nn.functional.kl_div(logits.log_softmax(-1), native[which], reduction="sum", log_target=True) / after
    (loss / batch).backward()
    return loss.item()


def step(pieces):
    start = now()
    optimiser.zero_grad()
    loss = sum(learn(which) for which in pieces) / batch
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimiser.step()
    return loss, norm.item(), now() - start


def seconds(pieces):
    """of the faster of two, after one more, parameters left as they were"""
    kept = [p.detach().clone() for p in parameters]
    least = min(step(pieces)[2] for _ in range(3))
    with torch.no_grad():
        for p, was in zip(parameters, kept):
            p.copy_(was)
    optimiser.state.clear()
    return least


ways = {"one batch": [slice(0, batch)], "one by one": [slice(i, i + 1) for i in range(batch)]}
best = min(ways, key=lambda w: seconds(ways[w]))
print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {best}", flush=True)
for line in sys.stdin:
    print("%.9g %.9g %.9g" % step(ways[best]), flush=True)
