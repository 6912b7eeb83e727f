"""Prefixes that are looked at whole, by the golden models with an indexer (make.py), from PyTorch.

    python tests/golden/models/make_dense.py [NAME...]   writes NAME/dense.safetensors

The first 47 ids of a case are read with the model's own budget, the other 6 with one that everything
fits into. `logits` (6, V) are of these.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file

import make

PREFIX = 47
NAMES = ("deepseek_v32", "glm_moe_dsa", "glm5_next", "qwen4_exp")


def widen(model):
    found = 0
    for m in model.modules():
        for name in "index_topk", "token_budget", "block_topk":
            if hasattr(m, name) and type(m).__name__.endswith("Indexer"):
                setattr(m, name, 4096)
                found += 1
    assert found


@torch.no_grad()
def dense(model, ids):
    cache = model(ids[:, :PREFIX], use_cache=True).cache
    own = model(ids, use_cache=True).logits[0, PREFIX:]
    widen(model)
    logits = model(ids[:, PREFIX:], cache=cache, use_cache=True).logits[0]
    gap = (logits - own).abs().max() / own.abs().max()
    print(f"  the budget makes {gap:.1e} of the largest logit")
    assert gap > 1e-3
    return logits


if __name__ == "__main__":
    for name, model, *_, expect in make.built(sys.argv[1:] or NAMES):
        known = load_file(os.path.join(make.HERE, name, "expect.safetensors"))
        for k, x in known.items():  # the model is the one whose vectors are stored
            off = (x.float() - expect[k].float()).abs().max().item()
            assert off <= 1e-5 * max(1, x.float().abs().max().item()), k
        save_file({"logits": dense(model, expect["ids"][None].long()).contiguous()},
                  os.path.join(make.HERE, name, "dense.safetensors"))
