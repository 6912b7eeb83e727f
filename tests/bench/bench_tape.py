#!/usr/bin/env python3
"""The step of bench_tape in PyTorch: forward behind a cache, KL, autograd to the cache.

    OMP_NUM_THREADS=1 python3 tests/bench/bench_tape.py [CHECKPOINT] [rounds] [threads] [prefix] [tokens]

Weights are f32 and have no gradients; attention is PyTorch's own (sdpa). Medians; with one
thread CPU seconds, so that a busy machine does not count.
"""
import statistics
import sys
import time

import torch
import transformers

path = sys.argv[1] if len(sys.argv) > 1 else "tests/zoo/small"
rounds, threads, prefix, tokens = (
    int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((2, 15), (3, 1), (4, 512), (5, 64)))
torch.set_num_threads(threads)
now = time.process_time if threads == 1 else time.perf_counter
model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
g = torch.Generator().manual_seed(64)
ids = torch.randint(0, model.config.vocab_size, (1, prefix + tokens), generator=g)
native = torch.randn(tokens, model.config.vocab_size, generator=g).log_softmax(-1)
with torch.no_grad():
    behind = model(ids[:, :prefix], use_cache=True)
    behind = getattr(behind, "cache", None) or behind.past_key_values
kept = [(x.keys, x.values) for x in behind.layers]
name = "cache" if "cache" in model.forward.__code__.co_varnames else "past_key_values"


def step():
    for layer, (k, v) in zip(behind.layers, kept):
        layer.keys, layer.values = k.detach().requires_grad_(), v.detach().requires_grad_()
    leaves = [x for layer in behind.layers for x in (layer.keys, layer.values)]
    t0 = now()
    logits = model(ids[:, prefix:], use_cache=True, **{name: behind}).logits[0]
    t1 = now()
    loss = torch.nn.functional.kl_div(logits.log_softmax(-1), native, reduction="batchmean", log_target=True)
    torch.autograd.grad(loss, leaves)
    return t1 - t0, now() - t1


step(), step()
forward, back = (1e3 * statistics.median(x) for x in zip(*[step() for _ in range(rounds)]))
print(f"{path}, {tokens} tokens behind {prefix}, {threads} threads: forward {forward:.2f} ms, "
      f"back {back:.2f}, step {forward + back:.2f}")
