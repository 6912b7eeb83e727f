"""Grow a member of a newer family out of an older one and train it on.

    graft.py mla --work DIR --zoo tests/zoo --minutes 30     (DIR holds tokenizer.json)

Families of one house share data, tokenizer and often weights; here they share weights, so
that five models cost two hours of one core, and their caches are related, as grow.py says.
What the new architecture can hold is carried over (embeddings, feed-forwards, attention
whose rotation it has no room for, the heads that look one and two tokens back); what is
new in it starts without an effect. Writes DIR/<model>.pt; run again, it goes on from there.
"""

import argparse
import pathlib
import types

import torch
import torch.nn.functional as F

import data
import families
import grow
import layers as parts
import train

PARENT = {"mla": "small", "gdn-a": "small", "gdn-b": "gdn-a", "kda": "mla", "qsa": "gdn-a"}
# How much of each source a model reads, where not the usual shares.
SHARES = {"gdn-b": data.LATER_SHARE}
# Muon's and AdamW's: low, as runs are short and what was learnt shall stay where it is.
RATES = (0.004, 8e-4)
D = 32  # head size everywhere in this zoo
OPEN = 2.0  # what a gate's sigmoid or silu reads where it shall be open
LATENT_ROTATED = tuple(range(0, 16, 2))  # of the 16 pairs of `small`, in MLA: its 8
GATED_ROTATED = tuple(range(0, 16, 4))  # and in gated attention: its 4
# What the heads of the first layer of `small` came to look at: the token so many places
# back, or a mean in which the latest tokens have this share.
BACK = ((1, 1.0), (2, 1.0), (0, 1.0), (0, 0.05))
SLOW = 7  # pairs from here on turn so slowly that they may as well stand still


def watch(parent, rows):
    """{layer: what its mixer reads}, {layer: what its feed-forward reads}: (N,H) on some rows."""
    mixer, mlp, hooks = {}, {}, []
    for i, layer in enumerate(parent.model.layers):
        for store, norm in ((mixer, layer.input_layernorm), (mlp, layer.post_attention_layernorm)):
            hooks.append(norm.register_forward_hook(
                lambda _, __, y, store=store, i=i: store.update({i: y.flatten(0, 1)})))
    ids, _ = rows.batch(8192, 512, train.MIX)
    parent(torch.from_numpy(ids)[:, :-1], torch.arange(512).expand(len(ids), -1))
    for h in hooks:
        h.remove()
    return mixer, mlp


def constant(x):
    """The direction along which all rows of x (N,H) are nearly 1: a bias, where there is none."""
    moments = x.T @ x / len(x)
    return torch.linalg.solve(moments + 1e-4 * moments.diagonal().mean() * torch.eye(x.shape[1]), x.mean(0))


def size(x):
    """Usual root mean square of the rows of x (N,D)."""
    return x.pow(2).mean(-1).sqrt().mean()


def set_rows(weight, first, rows):
    """Put rows into a matrix."""
    weight[first:first + len(rows)] = rows


def plain_heads(attn, x):
    """q (4), k (2), v (2) of a layer of `small` as matrices (D,H), their norms made constants."""
    q, k, v = (p.weight.view(-1, D, x.shape[1]) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
    q = torch.stack([attn.q_norm.weight[:, None] * w / size(x @ w.T) for w in q])
    k = torch.stack([attn.k_norm.weight[:, None] * w / size(x @ w.T) for w in k])
    return q, k, v


def silent(layer, mixer_out):
    """A layer that adds nothing yet."""
    mixer_out.zero_()
    down = layer.mlp.down_proj
    (down if isinstance(down, torch.nn.Parameter) else down.weight).zero_()
    for shared in ("shared_experts", "shared_expert"):
        if hasattr(layer.mlp, shared):
            getattr(layer.mlp, shared).down_proj.weight.zero_()


def copy_norms(new, old):
    """Gains of both norms of a layer, whichever way they are stored."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        a, b = getattr(new, name), getattr(old, name)
        a.weight.copy_(b.weight + getattr(b, "plus", 0.0) - a.plus)


# ---- feed-forwards -----------------------------------------------------------------------


def work_of(mlp, x):
    """How much each unit of a dense feed-forward contributes at each of the rows x."""
    inner = F.silu(x @ mlp.gate_proj.weight.T) * (x @ mlp.up_proj.weight.T)
    return inner.abs() * mlp.down_proj.weight.norm(dim=0)


def copy_units(new, old, units, gain=1.0):
    """The given units of a dense feed-forward."""
    new.gate_proj.weight.copy_(old.gate_proj.weight[units])
    new.up_proj.weight.copy_(old.up_proj.weight[units])
    new.down_proj.weight.copy_(gain * old.down_proj.weight[:, units])


def prune(new, old, x):
    """The units that work most."""
    units = work_of(old, x).mean(0).topk(new.gate_proj.weight.shape[0]).indices.sort().values
    copy_units(new, old, units)


def split(new, old, x, gain):
    """Experts out of a dense feed-forward: the busiest units are shared, each expert has those
    of the others that work most where it is chosen: near one of eight centres of the rows."""
    work = work_of(old, x)
    shared = getattr(new, "shared_experts", None) or new.shared_expert
    order = work.mean(0).argsort(descending=True)
    count = shared.gate_proj.weight.shape[0]
    copy_units(shared, old, order[:count])
    rest = order[count:]
    centred = x - x.mean(0)
    n = len(new.gate_proj)
    centres = centred[torch.randperm(len(x))[:n]]
    for _ in range(12):
        near = (centred @ F.normalize(centres, dim=1).T).argmax(1)
        centres = torch.stack([centred[near == e].mean(0) if (near == e).any() else centres[e] for e in range(n)])
    router = F.normalize(centres, dim=1)
    router = router / (centred @ router.T).std()
    new.gate.weight.copy_(router)
    chosen = (x @ router.T).topk(new.most, -1).indices
    for e in range(n):
        best = work[(chosen == e).any(1)].mean(0)[rest].topk(new.gate_proj.shape[1]).indices
        units = rest[best]
        new.gate_proj[e] = old.gate_proj.weight[units]
        new.up_proj[e] = old.up_proj.weight[units]
        new.down_proj[e] = gain * old.down_proj.weight[:, units]


# ---- mixers ------------------------------------------------------------------------------


def latent_from_plain(new, attn, x, first):
    """Latent attention out of grouped-query attention with norms and full rotation.

    Keys and values become readings of a latent, the best of its rank for both. KV head 0
    keeps every other pair rotated; of the others, slow pairs go on without rotation and
    fast ones are dropped. The first layer's heads find their tokens by rotation alone.
    """
    c = new.c
    q, k, v = plain_heads(attn, x)
    both = torch.cat((k.flatten(0, 1), v.flatten(0, 1)))
    weight = torch.cat([torch.full((2 * D,), 1 / (x @ w.T).std()) for w in (both[:2 * D], both[2 * D:])])
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    root = vectors @ (values.clamp(min=0).sqrt()[:, None] * vectors.T)
    best = torch.linalg.svd(weight[:, None] * both @ root)[0][:, :c.kv_lora_rank]
    down = best.T @ (weight[:, None] * both)
    up = best / weight[:, None] * size(x @ down.T)
    set_rows(new.kv_a_proj_with_mqa.weight, 0, down)
    kv_b = up.view(2, 2, D, -1).repeat_interleave(2, 1).transpose(0, 1)  # head, k or v
    new.kv_b_proj.weight.copy_(kv_b.flatten(0, 2))
    new.o_proj.weight.copy_(attn.o_proj.weight)
    pairs = torch.arange(D) % 16
    turned = torch.tensor([j + s for j in LATENT_ROTATED for s in (0, 16)])
    gain = ((D + c.qk_rope_head_dim) / D) ** 0.5
    set_rows(new.kv_a_proj_with_mqa.weight, c.kv_lora_rank, k[0][turned])
    for h in range(4):
        keep = pairs >= SLOW
        if h < 2:
            keep = keep & ~torch.isin(pairs, torch.tensor(LATENT_ROTATED))
        rows = torch.cat((q[h] * keep[:, None], q[h][turned] if h < 2 else 0 * q[h][turned]))
        set_rows(new.q_proj.weight, h * len(rows), gain * rows)
    if first:
        look_back(new, constant(x))


def look_back(new, one):
    """Heads of latent attention that find their tokens by rotation alone, see BACK.

    Keys are constant only nearly (no norm makes them so). The slowest pair takes away what
    the others give at the right distance: there all logits are 0, elsewhere less.
    """
    c, rope = new.c, new.c.qk_rope_head_dim
    freq = c.rope_theta ** (-torch.arange(0, rope, 2).float() / rope)
    sharp, broad = torch.zeros(rope // 2), torch.zeros(rope // 2)  # logits at no distance
    sharp[:4], sharp[-1] = torch.tensor([24.0, 12.0, 5.0, 3.0]), -44.0
    broad[2:4], broad[-1] = torch.tensor([3.0, 2.0]), -5.0
    power = (sharp.abs() * (D + rope) ** 0.5).sqrt()
    key = torch.stack((power, 0 * power), 1).flatten()
    set_rows(new.kv_a_proj_with_mqa.weight, c.kv_lora_rank, key[:, None] * one)
    for h, (back, share) in enumerate(BACK):
        strength = power * (sharp if share == 1 else broad) / sharp.abs().clamp(min=1)
        turn = -back * freq
        turn = torch.stack((strength * turn.cos(), strength * turn.sin()), 1).flatten()
        set_rows(new.q_proj.weight, h * (D + rope), torch.zeros(D, len(one)))
        set_rows(new.q_proj.weight, h * (D + rope) + D, turn[:, None] * one)


def gated_from_plain(new, attn, x):
    """Gated attention out of plain: gates open, a quarter of the rotation, fast pairs faint."""
    turned = [j + s for s in (0, 16) for j in GATED_ROTATED]
    order = torch.tensor(turned + [j for j in range(D) if j not in turned])
    fast = torch.tensor([j % 16 < SLOW and j not in turned for j in order.tolist()])
    one = constant(x)
    for h in range(4):
        set_rows(new.q_proj.weight, 2 * h * D, attn.q_proj.weight[h * D:][:D][order])
        set_rows(new.q_proj.weight, (2 * h + 1) * D, OPEN * one.expand(D, -1))
    for kv in range(2):
        set_rows(new.k_proj.weight, kv * D, attn.k_proj.weight[kv * D:][:D][order])
    new.v_proj.weight.copy_(attn.v_proj.weight)
    new.o_proj.weight.copy_(attn.o_proj.weight / torch.tensor(OPEN).sigmoid())
    new.q_norm.weight.copy_(attn.q_norm.weight[order] * torch.where(fast, 0.1, 1.0) - 1)
    new.k_norm.weight.copy_(attn.k_norm.weight[order] - 1)


def tap(qkv, conv, first, value, head, one, x):
    """Channels of a recurrent head that hand on an earlier token or a running mean, see BACK.

    qkv, conv, first: matrix, convolution and first row of q, k and v each. With one and the
    same key for all tokens the state is a running mean of the values, with a step of 1 just
    the last. Small values pass silu as their half, whose size the norm behind takes away:
    returned is the input of the step, and what to multiply the output by.
    """
    back, share = BACK[head]
    for part in (0, 1):
        rows = slice(first[part], first[part] + D)
        qkv[part].weight[rows] = 0
        qkv[part].weight[first[part]] = one
        conv[part].weight[rows] = 0
        conv[part].weight[rows, 0, -1] = 1
    rows = slice(first[2], first[2] + D)
    values = x @ value.T
    scale = size(values)
    qkv[2].weight[rows] = 0.1 / scale * value
    conv[2].weight[rows] = 0
    conv[2].weight[rows, 0, -1 - back] = 1
    if share == 1:
        return 6 * one, scale
    spread = values.mean(0).pow(2).mean() + share / 2 * values.var(0).mean()
    return torch.tensor(share).logit() * one, spread.sqrt()


def first_heads(attn):
    """(value matrix (D,H), output matrix (H,D)) of each head of a plain layer."""
    values = attn.v_proj.weight.split(D)
    return [(values[h // 2], out) for h, out in enumerate(attn.o_proj.weight.split(D, 1))]


def latent_heads(attn, x):
    """The same of a latent layer, its norm made a constant."""
    c = attn.c
    latent = attn.kv_a_proj_with_mqa.weight[:c.kv_lora_rank]
    latent = attn.kv_a_layernorm.weight[:, None] * latent / size(x @ latent.T)
    both = attn.kv_b_proj.weight.view(c.num_attention_heads, 2 * D, -1)
    return [(w[D:] @ latent, out) for w, out in zip(both, attn.o_proj.weight.split(D, 1))]


def gdn_taps(new, heads, x):
    """The value heads of a gated delta net as those of a first attention layer."""
    one, (keys, _, _) = constant(x), new.parts
    for h, (value, out) in enumerate(heads):
        first = (h // 2 * D, keys + h // 2 * D, 2 * keys + h * D)
        step, scale = tap([new.in_proj_qkv] * 3, [new.conv1d] * 3, first, value, h, one, x)
        new.in_proj_b.weight[h] = step
        new.in_proj_a.weight[h] = 0
        set_rows(new.in_proj_z.weight, h * D, OPEN * one.expand(D, -1))
        new.out_proj.weight[:, h * D:(h + 1) * D] = out * scale / F.silu(torch.tensor(OPEN))


def kda_taps(new, heads, x):
    """The same in Kimi's net."""
    one = constant(x)
    new.g_a_proj.weight[0] = one
    new.f_b_proj.weight.zero_()
    new.g_b_proj.weight.zero_()
    new.g_b_proj.weight[:, 0] = OPEN
    for h, (value, out) in enumerate(heads):
        step, scale = tap([new.q_proj, new.k_proj, new.v_proj], [new.q_conv1d, new.k_conv1d, new.v_conv1d],
                          (h * D,) * 3, value, h, one, x)
        new.b_proj.weight[h] = step
        new.o_proj.weight[:, h * D:(h + 1) * D] = out * scale / torch.tensor(OPEN).sigmoid()


# ---- whole models ------------------------------------------------------------------------


def start_same(new, old):
    """Embedding and final norm."""
    new.model.embed_tokens.weight.copy_(old.model.embed_tokens.weight)
    if hasattr(new.model, "norm"):
        last = old.model.norm
        new.model.norm.weight.copy_(last.weight + getattr(last, "plus", 0.0) - new.model.norm.plus)
    if hasattr(new, "lm_head"):
        new.lm_head.weight.copy_(old.model.embed_tokens.weight)


def mla_from_small(new, old, mixer, mlp):
    """Six latent layers out of four plain ones, as `large` came out of `small`."""
    for layer, (source, quiet) in zip(new.model.layers, grow.SOURCE):
        was, x = old.model.layers[source], mixer[source]
        copy_norms(layer, was)
        latent_from_plain(layer.self_attn, was.self_attn, x, source == 0)
        if isinstance(layer.mlp, parts.Experts):
            split(layer.mlp, was.mlp, mlp[source], 2 / new.c.routed_scaling_factor)
        else:
            copy_units(layer.mlp, was.mlp, slice(None))
        if quiet:
            silent(layer, layer.self_attn.o_proj.weight)


def gdn_from_small(new, old, mixer, mlp):
    """Six recurrent and two attention layers: the first of `small` becomes taps, its second
    and fourth the attention layers; of its third only the feed-forward is kept."""
    kept = {0: 0, 3: 1, 4: 2, 7: 3}
    for i, layer in enumerate(new.model.layers):
        source = kept.get(i, i // 4 * 2 + i % 4 // 2)
        was = old.model.layers[source]
        copy_norms(layer, was)
        prune(layer.mlp, was.mlp, mlp[source])
        if layer.mixer_name == "self_attn":
            gated_from_plain(layer.self_attn, was.self_attn, mixer[source])
        else:
            layer.linear_attn.out_proj.weight.zero_()
        if i == 0:
            gdn_taps(layer.linear_attn, first_heads(was.self_attn), mixer[0])
        if i not in kept:
            silent(layer, layer.linear_attn.out_proj.weight)


def copy_matching(new, old):
    """Every tensor of `old` that `new` has too."""
    mine = new.state_dict()
    for name, x in old.state_dict().items():
        if name in mine and mine[name].shape == x.shape:
            mine[name].copy_(x)


def gdn_b_from_a(new, old, *_):
    """A later generation starts as the former."""
    copy_matching(new, old)


def kda_from_mla(new, old, mixer, _):
    """Two of the six latent layers stay, without rotation; the first becomes taps."""
    kept = {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 7: 5}
    for i, layer in enumerate(new.model.layers):
        source = kept.get(i, 1)
        was = old.model.layers[source]
        copy_norms(layer, was)
        copy_matching(layer.mlp, was.mlp)
        attn = was.self_attn
        if isinstance(layer.self_attn, parts.LatentAttention):
            copy_matching(layer.self_attn, attn)
            layer.self_attn.q_proj.weight.view(4, -1, 128)[:, D:] = 0
        else:
            layer.self_attn.o_proj.weight.zero_()
        if i == 0:
            kda_taps(layer.self_attn, latent_heads(attn, mixer[0]), mixer[0])
        if i not in kept:
            silent(layer, layer.self_attn.o_proj.weight)


def qsa_from_gdn(new, old, mixer, mlp):
    """Two equal streams compute what one did. Gates change from silu to a steeper sigmoid,
    feed-forwards become experts, indexers begin as the first head of their layer."""
    for i, layer in enumerate(new.model.layers):
        was = old.model.layers[i]
        copy_matching(getattr(layer, layer.mixer_name), getattr(was, layer.mixer_name))
        split(layer.mlp, was.mlp, mlp[i], 2.0)
        layer.mlp.shared_expert_gate.weight.copy_(4 * constant(mlp[i])[None])
        for site, norm in ((layer.attn_hyper_connection, was.input_layernorm),
                           (layer.mlp_hyper_connection, was.post_attention_layernorm)):
            twice(site, norm)
        if layer.mixer_name == "linear_attn":
            z = layer.linear_attn.in_proj_z.weight
            z.copy_(1.5 * z - constant(mixer[i])[None])
            layer.linear_attn.norm.weight.mul_(2)
        else:
            index, attn = layer.self_attn.indexer, was.self_attn
            query, key = attn.q_proj.weight[:D], attn.k_proj.weight[:D]
            # One head looks the other way: else many scores were 0, and a tie is anyone's choice.
            index.index_qk_proj.weight.copy_(torch.cat([query] * 3 + [-query, key]))
            index.q_layernorm.weight.copy_(attn.q_norm.weight)
            index.k_layernorm.weight.copy_(attn.k_norm.weight)
        if layer.ple is not None:
            layer.ple.value_proj.weight.zero_()
            layer.ple.conv1d.weight.zero_()
    twice(new.model.hyper_connection_mixer, old.model.norm)


def twice(site, norm):
    """Every stream is read with the gains of `norm`: half of two equal streams, twice."""
    site.hc_norm.weight.copy_((2 * (1 + norm.weight) - 1).repeat(site.hc_count))
    for name in ("input_mix_weight_up", "block_inject_weight"):
        if getattr(site, name) is not None:
            torch.nn.init.normal_(getattr(site, name).weight, std=0.01)


GROWN = {"mla": mla_from_small, "gdn-a": gdn_from_small, "gdn-b": gdn_b_from_a, "kda": kda_from_mla,
         "qsa": qsa_from_gdn}


@torch.no_grad()
def graft(name, zoo_folder, rows):
    """State dict of a new model."""
    torch.manual_seed(5)
    old = families.load(pathlib.Path(zoo_folder) / PARENT[name])
    mixer, mlp = watch(old, rows)
    new = families.build(name)
    start_same(new, old)
    GROWN[name](new, old, mixer, mlp)
    return new.state_dict()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(PARENT))
    parser.add_argument("--zoo", default="tests/zoo", help="folder of the exported parents")
    train.add_fit_arguments(parser, minutes=30)
    args = parser.parse_args()
    args.rates, args.shares = RATES, SHARES.get(args.model)
    train.fit(args, lambda rows: graft(args.model, args.zoo, rows))


if __name__ == "__main__":
    main()
