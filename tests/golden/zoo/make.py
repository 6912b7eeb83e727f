"""What transformers' greedy decoding writes after long prompts, for models of the zoo.

    python tests/golden/zoo/make.py NAME...    (folders of tests/zoo; writes greedy.safetensors)

Prompts are the last 1,024 tokens of conversations from the zoo's own generators, on names
and codes never trained on, with filler from held-out books of the King James Bible (public
domain) and invented prose. The reference runs in float32 with eager attention and does not
stop at stop tokens. A prompt is left out where, for any of the models, the best token is
less than MARGIN of a logit ahead of the next on the way: there rounding would decide.
greedy.safetensors holds
    prompts (50,1024) i32
    NAME (50,16) i32    the continuation, one tensor per model
Made with torch 2.15.0, transformers 5.24.0; seed below.
"""
import os
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
ZOO = HERE.parent.parent / "zoo"
sys.path.insert(0, str(ZOO))

import corpus  # noqa: E402
import data  # noqa: E402
import generate as gen  # noqa: E402

PROMPTS, LENGTH, NEW, BATCH, MARGIN, SEED = 50, 1024, 16, 10, 1e-3, 31


def conversation(rng, pool):
    """A needle or a story with a question, ending where the assistant begins."""
    if rng.random() < 0.5:
        filler = pool.filler(rng, LENGTH)
    else:
        filler = [gen.prose_sentence(rng) for _ in range(60)]
    if rng.random() < 0.6:
        made = gen.needle_conversation(rng, filler, gen.make_facts(rng, rng.randint(1, 6), True), 1)
        return made[:-4]  # reply start, code, stop, end
    people = gen.make_people(rng, 4, rng.sample(sorted(gen.ATTRIBUTES), 2))
    return gen.story_conversation(rng, people, filler, 1)[:-4]


@torch.no_grad()
def continuations(model, ids):
    """The greedy continuations of rows of ids, and which of them do not hang on rounding."""
    out, cache, row, sure = [], None, ids, torch.ones(len(ids), dtype=torch.bool)
    for _ in range(NEW):
        r = model(row, cache=cache, use_cache=True)
        cache, top = r.cache, r.logits[:, -1].topk(2)
        sure &= top.values[:, 0] - top.values[:, 1] >= MARGIN
        row = top.indices[:, :1]
        out.append(row)
    return torch.cat(out, 1), sure


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    names = sys.argv[1:]
    models = [AutoModelForCausalLM.from_pretrained(ZOO / n, dtype=torch.float32, attn_implementation="eager").eval()
              for n in names]
    tok = data.load_tokenizer(ZOO / names[0])
    pool = data.Pool(tok, {"bible": {"held": held_books()}}, "held")
    rng, kept = random.Random(SEED), {n: [] for n in ("prompts", *names)}
    while sum(map(len, kept["prompts"])) < PROMPTS:
        rows = []
        while len(rows) < BATCH:
            ids = tok.encode(gen.plain(conversation(rng, pool))).ids
            rows += [ids[-LENGTH:]] if len(ids) >= LENGTH else []
        ids = torch.tensor(rows)
        written = [continuations(m, ids) for m in models]
        sure = torch.stack([s for _, s in written]).all(0)
        kept["prompts"].append(ids[sure])
        for n, (w, _) in zip(names, written):
            kept[n].append(w[sure])
            print(n, *(repr(tok.decode(x.tolist())) for x in w[sure]), sep="\n  ", flush=True)
    out = {n: torch.cat(x)[:PROMPTS].to(torch.int32).contiguous() for n, x in kept.items()}
    save_file(out, HERE / "greedy.safetensors")
    (HERE / "greedy.safetensors").chmod(0o644)


def held_books():
    """Chapters that no model was trained on."""
    books = corpus.bible_books()
    return [chapter for book in corpus.HELD_OUT_BOOKS for chapter in books[book]]


if __name__ == "__main__":
    main()
