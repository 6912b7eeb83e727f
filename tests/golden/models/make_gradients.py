"""Gradients through the golden models (make.py) to an injected prefix, from PyTorch's autograd.

    python tests/golden/models/make_gradients.py [NAME...]   writes NAME/gradients.safetensors

Of the 53 ids of a case 40 are a prefix, whose cache is cut off from what made it, and 13 run
behind it. The loss is the mean over these of KL(p || softmax(logits)), where p is the softmax of
    3 sin(0.7 t + 1.3 v + 0.05 t v)    token t of the 13, entry v of the vocabulary
gradients.safetensors holds, under the names that make.py gives to the objects,
    k3.L v.L latent2.L state3.L window3.L      at point 3 (of latents point 2, which is the same)
    k1.L latent1.L rotary1.L                   at point 1
    state1.L                                   of the inputs from which a state is replayed
each as every s-th number of the whole, s = 1 + n // 160 made odd, and then the length of the
whole and its largest magnitude; and `loss`.
"""
import contextlib
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import cache_utils

import make

PREFIX, MORE = 40, 13


def assign_states():
    """States of a cache are replaced and not overwritten, which autograd would refuse."""
    def conv(self, new, state_idx=0, conv_kernel_size=None, **kw):
        if not self.is_conv_states_initialized[state_idx]:
            self.lazy_initialization(conv_states=new, state_idx=state_idx,
                                     conv_kernel_size=conv_kernel_size)
        n = self.conv_kernel_size[state_idx]
        if self.has_previous_state[state_idx]:
            new = torch.cat([self.conv_states[state_idx], new], dim=-1)
        elif new.shape[-1] < n:
            new = torch.nn.functional.pad(new, (n - new.shape[-1], 0))
        self.has_previous_state[state_idx] = True
        self.conv_states[state_idx] = new[..., -n:]
        return new

    def recurrent(self, new, state_idx=0, **kw):
        if not self.is_recurrent_states_initialized[state_idx]:
            self.lazy_initialization(recurrent_states=new, state_idx=state_idx)
        self.recurrent_states[state_idx] = new
        return new

    cache_utils.LinearAttentionLayer.update_conv_state = conv
    cache_utils.LinearAttentionLayer.update_recurrent_state = recurrent


@contextlib.contextmanager
def in_f64():
    """Where the models ask for f32 they get f64: what is written rounds once."""
    wide = lambda x: torch.float64 if x is torch.float32 else x
    to, to_f32, F = torch.Tensor.to, torch.Tensor.float, torch.nn.functional
    softmax, grouped = F.softmax, F.grouped_mm
    torch.Tensor.to = lambda self, *a, **kw: to(
        self, *map(wide, a), **{k: wide(x) for k, x in kw.items()})
    torch.Tensor.float = torch.Tensor.double
    F.softmax = lambda x, dim=None, dtype=None, **kw: softmax(x, dim=dim, dtype=wide(dtype))
    F.grouped_mm = lambda a, b, offs=None, **kw: torch.cat(  # which has no f64
        [a[i:j] @ w for i, j, w in zip([0, *offs.tolist()], offs.tolist(), b)])
    torch.set_default_dtype(torch.float64)
    yield
    torch.Tensor.to, torch.Tensor.float = to, to_f32
    F.softmax, F.grouped_mm = softmax, grouped
    torch.set_default_dtype(torch.float32)


def leaf_of(x):
    return x.detach().clone().requires_grad_(True)


def attention_of(layer):
    if make.single(layer):
        return layer.mixer if layer.block_type == "full_attention" else None
    return None if make.recurrent(layer) else layer.self_attn


def prefix(model, ids, point):
    """The cache behind the prefix, and the leaves of which it is made at a point."""
    leaves, hooks = {}, []

    def cut(module, name):
        def hook(_, __, y):
            leaves[name] = leaf_of(y)
            return leaves[name]
        hooks.append(module.register_forward_hook(hook))

    def cut_input(module, name):
        def hook(_, args):
            leaves[name] = leaf_of(args[0])
            return leaves[name], *args[1:]
        hooks.append(module.register_forward_pre_hook(hook))

    for i, layer in enumerate(model.model.layers):
        if point == 1 and make.recurrent(layer):
            if hasattr(layer, "attn_hyper_connection"):
                cut_input(layer.linear_attn, f"state1.{i}")
            else:
                cut(layer.norm if make.single(layer) else layer.input_layernorm, f"state1.{i}")
        a = attention_of(layer)
        if a is None:
            continue
        if hasattr(a, "kv_a_proj_with_mqa"):
            cut(a.kv_a_proj_with_mqa, f"both{point}.{i}")
            if point == 3:
                cut(a.kv_a_layernorm, f"latent2.{i}")
        elif point == 1:
            cut(a.k_proj, f"k1.{i}")
            cut(a.v_proj, f"v1.{i}")
    cache = model(ids[:, :PREFIX], use_cache=True).cache
    for h in hooks:
        h.remove()
    for i, layer in enumerate(cache.layers):
        for name, states in (("state3", "recurrent_states"), ("window3", "conv_states")):
            for j, x in getattr(layer, states, {}).items():
                if x is None or not x.is_floating_point():
                    continue
                if point == 3:
                    leaves[f"{name}.{j}.{i}"] = leaf_of(x)
                    getattr(layer, states)[j] = leaves[f"{name}.{j}.{i}"]
                elif j > 0:  # n-grams: no inputs of theirs are injected
                    getattr(layer, states)[j] = x.detach()
        if getattr(layer, "indexer_keys", None) is not None:
            layer.indexer_keys = layer.indexer_keys.detach()
        if point == 3 and f"both3.{i}" not in leaves and getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = leaf_of(layer.keys), leaf_of(layer.values)
            leaves[f"k3.{i}"], leaves[f"v.{i}"] = layer.keys, layer.values
    return cache, leaves


def loss_of(logits):
    t, v = torch.meshgrid(torch.arange(MORE), torch.arange(logits.shape[-1]), indexing="ij")
    p = (3 * torch.sin(0.7 * t.double() + 1.3 * v + 0.05 * t * v)).softmax(-1)
    return (p * (p.log() - logits.log_softmax(-1))).sum(-1).mean()


def rows(x):
    """(1,H,T,D) or (1,T,F) -> numbers in the order of a cache's rows; tokens that a window has
    left behind are owed nothing"""
    x = x[0].transpose(0, 1).flatten(1) if x.dim() == 4 else x[0]
    return torch.nn.functional.pad(x, (0, 0, PREFIX - len(x), 0))


def picked(x):
    x = x.contiguous().flatten()
    step = (1 + len(x) // 160) | 1
    return torch.cat([x[::step], torch.stack([x.norm(), x.abs().max()])])


def gradients(model, ids):
    out = {}
    for point in 1, 3:
        cache, leaves = prefix(model, ids, point)
        loss = loss_of(model(ids[:, PREFIX:], cache=cache, use_cache=True).logits[0])
        got = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for (name, x), g in zip(leaves.items(), got):
            kind, *state, layer = name.split(".")
            g = torch.zeros_like(x) if g is None else g
            if kind in ("both1", "both3"):
                if point == 1:
                    rank = model.model.layers[int(layer)].self_attn.kv_lora_rank
                    out[f"latent1.{layer}"] = picked(g[0, :, :rank])
                    if g.shape[-1] > rank:
                        out[f"rotary1.{layer}"] = picked(g[0, :, rank:])
            elif state:
                out[f"{kind if state == ['0'] else 'ngrams3'}.{layer}"] = picked(g[0])
            elif not state and kind != "v1":
                out[name] = picked(rows(g))
        out["loss"] = loss.detach().reshape(1)
    return out


def write(name, model, expect):
    path = os.path.join(make.HERE, name, "gradients.safetensors")
    known = load_file(os.path.join(make.HERE, name, "expect.safetensors"))
    for k, x in known.items():  # the model is the one whose vectors are stored
        off = (x.float() - expect[k].float()).abs().max().item()
        assert off <= 1e-5 * max(1, x.float().abs().max().item()), k
    with in_f64():
        got = gradients(model.double().requires_grad_(False), expect["ids"][None].long())
    print("  loss", got["loss"].item(), {k: f"{x[-1]:.1e}" for k, x in got.items() if len(x) > 1})
    save_file({k: x.float().contiguous() for k, x in got.items()}, path)


if __name__ == "__main__":
    assign_states()
    for name, model, *_, expect in make.built(sys.argv[1:]):
        write(name, model, expect)
