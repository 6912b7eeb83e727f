"""Grow `large` out of `small` and train it on: the example pair is a family.

    grow.py --work DIR --minutes 28        (DIR holds small.pt and tokenizer.json)

Real model families are often made so (depth up-scaling, widening), and their caches are
nearly linear in each other, which is what a closed-form translator needs. Two trainings
from nothing end in unrelated features: such a pair was tried first, its maps reached a
held-out R2 of 0.7 and a translated cache recalled nothing.

The grown model computes what the small one did, nearly: new residual coordinates start
small, norm gains shrink by sqrt(128/192) because the mean runs over more entries, new
query heads and feed-forward units have no output yet, and two layers are copies that stay
silent at first. Writes DIR/large.pt, which `train.py fit large` can go on with.
"""

import argparse
import math
import pathlib

import torch

import model as zoo
import train

# Layers of `large`: a layer of `small`, or a silent copy of one.
SOURCE = ((0, False), (1, False), (1, True), (2, False), (2, True), (3, False))
# A third of the rates of a training from nothing: what was learnt should stay where it is.
MUON_LR, ADAM_LR = 0.007, 1.5e-3
SMALL, LARGE = zoo.CONFIGS["small"], zoo.CONFIGS["large"]
NEW_EMBEDDING, NEW_READ = 0.015, 0.3


def wider(w, scale):
    """w with columns for the new residual coordinates, small and random."""
    out = torch.randn(w.shape[0], LARGE["hidden"]) * scale / math.sqrt(LARGE["hidden"])
    out[:, :w.shape[1]] = w
    return out


def wider_norm(w):
    """Gains for a mean that runs over LARGE instead of SMALL hidden entries."""
    shrink = math.sqrt(SMALL["hidden"] / LARGE["hidden"])
    out = torch.full((LARGE["hidden"],), w.mean().item() * shrink)
    out[:len(w)] = w * shrink
    return out


def grown_attention(get, silent):
    """Query heads keep their KV head; each KV head gets one more, without output yet."""
    d, hl = LARGE["head_dim"], LARGE["hidden"]
    few, many = (c["heads"] // c["kv_heads"] for c in (SMALL, LARGE))
    q = torch.randn(LARGE["heads"] * d, hl) / math.sqrt(hl)
    o = torch.zeros(hl, LARGE["heads"] * d)
    for kv in range(LARGE["kv_heads"]):
        for i in range(few):
            a, b = (kv * few + i) * d, (kv * many + i) * d
            q[b:b + d] = wider(get("self_attn.q_proj.weight")[a:a + d], NEW_READ)
            if not silent:
                o[:SMALL["hidden"], b:b + d] = get("self_attn.o_proj.weight")[:, a:a + d]
    out = {"q_proj": q, "o_proj": o}
    for name in ("k_proj", "v_proj"):
        out[name] = wider(get("self_attn.%s.weight" % name), NEW_READ / 3)
    for name in ("q_norm", "k_norm"):
        out[name] = get("self_attn.%s.weight" % name).clone()
    return {"self_attn.%s.weight" % n: w for n, w in out.items()}


def grown_mlp(get, silent):
    """More units, which nothing reads yet."""
    out = {}
    for name in ("gate_proj", "up_proj"):
        w = torch.randn(LARGE["ffn"], LARGE["hidden"]) / math.sqrt(LARGE["hidden"])
        w[:SMALL["ffn"]] = wider(get("mlp.%s.weight" % name), NEW_READ)
        out["mlp.%s.weight" % name] = w
    down = torch.zeros(LARGE["hidden"], LARGE["ffn"])
    if not silent:
        down[:SMALL["hidden"], :SMALL["ffn"]] = get("mlp.down_proj.weight")
    out["mlp.down_proj.weight"] = down
    return out


@torch.no_grad()
def grow(small):
    """State dict of `large` from that of `small`."""
    embed = torch.randn(zoo.VOCAB, LARGE["hidden"]) * NEW_EMBEDDING
    embed[:, :SMALL["hidden"]] = small["model.embed_tokens.weight"]
    new = {"model.embed_tokens.weight": embed, "model.norm.weight": wider_norm(small["model.norm.weight"])}
    for layer, (source, silent) in enumerate(SOURCE):
        def get(name, source=source):
            return small["model.layers.%d.%s" % (source, name)]
        parts = {n + ".weight": wider_norm(get(n + ".weight")) for n in ("input_layernorm", "post_attention_layernorm")}
        parts.update(grown_attention(get, silent))
        parts.update(grown_mlp(get, silent))
        new.update({"model.layers.%d.%s" % (layer, n): w for n, w in parts.items()})
    return new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    train.add_fit_arguments(parser, minutes=28)
    parser.set_defaults(model="large", rates=(MUON_LR, ADAM_LR), eval_minutes=8, items=32, seed=77,
                        stage=len(train.LENGTHS) - 1)
    args = parser.parse_args()

    def start(_):
        torch.manual_seed(5)
        return grow(torch.load(pathlib.Path(args.work) / "small.pt", weights_only=True)["model"])
    train.fit(args, start)


if __name__ == "__main__":
    main()
