"""Train the zoo: one tokenizer and models of several families, on one CPU thread each.

    train.py tokenizer --work DIR [--data DIR]
    train.py fit small --work DIR --minutes 75      (others: grow.py, graft.py)
    train.py export small --work DIR --out tests/zoo/small

Needs: torch, transformers, tokenizers, safetensors, numpy, and the Debian packages
bible-kjv, python3.11-doc, sqlite3-doc, postgresql-doc-15. State of the Union and Tiny
Shakespeare are read from --data or KVMILL_DATA. `fit` resumes from DIR/<model>.pt and
appends one JSON line per evaluation to DIR/<model>.log.jsonl; its learning-rate decay
follows the minutes of processor time spent, so a slower machine gets fewer tokens, not a
worse end, and a busy one takes longer.
"""

import argparse
import json
import math
import os
import pathlib
import random
import signal
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import corpus
import data
import families
import generate as gen
import model as zoo

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
LENGTHS = (128, 256, 512, 1024, 2048)
START_MIX = {"needle": 0.35, "recital": 0.25, "echo": 0.25, "story": 0.1, "text": 0.05}
MIX = {"needle": 0.24, "recital": 0.02, "echo": 0.03, "story": 0.36, "talk": 0.04, "text": 0.31}
BATCH_TOKENS = 4096
GROW_AT = 0.93
MUON_LR, ADAM_LR, MOMENTUM = 0.02, 4e-3, 0.95
INDEXER_SCALE = 0.1  # a choice that wanders leaves the attention behind it nothing to find
WARMUP_STEPS, DECAY_FROM = 60, 0.6
SAVE_MINUTES = 2
# Without such units bf16 products are many times slower than float32's.
BF16 = torch.cpu._is_avx512_bf16_supported()


def generated_sample(seed, count):
    """Conversations for the tokenizer's training text."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        filler = [gen.prose_sentence(rng) for _ in range(4)]
        out.append(gen.plain(gen.needle_conversation(rng, filler, gen.make_facts(rng, 2, False), 2)))
        people = gen.make_people(rng, 2, rng.sample(sorted(gen.ATTRIBUTES), 3))
        out.append(gen.plain(gen.story_conversation(rng, people, filler, 3)))
        out.append(gen.plain(gen.small_talk(rng)))
    return out


def make_tokenizer(args):
    """Byte-level BPE with Qwen3's normaliser and split pattern, saved to DIR/tokenizer.json."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=zoo.VOCAB, special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    read = corpus.read_corpus(corpus.data_root(args.data))
    texts = [t for s in read for t in data.limit(read[s]["train"])]
    tok.train_from_iterator(texts + generated_sample(1, 1500), trainer)
    tok.save(str(pathlib.Path(args.work) / "tokenizer.json"))
    print("vocabulary", tok.get_vocab_size())


class Muon:
    """Momentum with orthogonalised updates for matrices (or stacks of them), batched by shape."""

    def __init__(self, params):
        shapes = {}
        for p in params:
            shapes.setdefault(p.shape, []).append(p)
        self.groups = list(shapes.values())
        self.momenta = [torch.zeros(len(g), *g[0].shape) for g in self.groups]

    @staticmethod
    def takes(name, p):
        """Whether a parameter is a matrix of a layer, wide and tall enough to be one."""
        other = "embed" in name or name.startswith("lm_head") or "indexer" in name
        return p.dim() in (2, 3) and min(p.shape[-2:]) >= 16 and not other

    @torch.no_grad()
    def step(self, lr):
        for group, m in zip(self.groups, self.momenta):
            g = torch.stack([p.grad for p in group])
            m.lerp_(g, 1 - MOMENTUM)
            u = g.lerp(m, MOMENTUM)
            u = orthogonalise(u.flatten(0, -3)).view_as(u)
            gain = max(1.0, u.shape[-2] / u.shape[-1]) ** 0.5
            for p, d in zip(group, u):
                p.mul_(1 - 0.01 * lr).add_(d, alpha=-lr * gain)


def orthogonalise(g):
    """Five Newton-Schulz steps towards the nearest orthogonal matrices (N,R,C)."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).to(torch.bfloat16 if BF16 else torch.float32)
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.transpose(1, 2) if tall else x).float()


class Trainer:
    """State of one run: model, optimisers, curriculum; saved whole, resumed whole.

    A new run starts from random weights, or, warmed up, from the tensors start() gives.
    """

    def __init__(self, args, start=None):
        self.args = args
        self.path = pathlib.Path(args.work) / (args.model + ".pt")
        self.model = families.build(args.model)
        named = list(self.model.named_parameters())
        self.muon_rate, self.adam_rate = args.rates
        self.muon = Muon([p for n, p in named if Muon.takes(n, p)])
        rest = [(n, p) for n, p in named if not Muon.takes(n, p)]
        groups = [dict(params=[p for n, p in rest if "indexer" not in n], scale=1.0),
                  dict(params=[p for n, p in rest if "indexer" in n], scale=INDEXER_SCALE)]
        self.adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=self.adam_rate,
                                      betas=(0.9, 0.98), weight_decay=0.0)
        self.state = dict(step=0, tokens=0, seconds=0.0, stage=0, warm=False)
        if self.path.exists():
            self.load()
        elif start is not None:
            self.model.load_state_dict(start())
            self.state.update(warm=True, stage=args.stage)
        else:
            zoo.initialise(self.model, args.seed)
        self.loss = self.weighted_loss
        if args.compile and args.model in zoo.CONFIGS:
            self.loss = torch.compile(self.weighted_loss, dynamic=False)
        elif args.compile:  # once per kind of layer and length
            torch._dynamo.config.recompile_limit = 64
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)

    def load(self):
        saved = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.adam.load_state_dict(saved["adam"])
        self.muon.momenta = saved["muon"]
        self.state = saved["state"]

    def save(self):
        saved = dict(model=self.model.state_dict(), adam=self.adam.state_dict(), muon=self.muon.momenta,
                     state=self.state)
        torch.save(saved, str(self.path) + ".tmp")
        os.replace(str(self.path) + ".tmp", self.path)

    def rate(self):
        """Warm-up by steps, then constant, then a fall to 5 % by training minutes."""
        done = self.state["seconds"] / (60 * self.args.minutes)
        fall = min(1.0, max(0.0, (done - DECAY_FROM) / (1 - DECAY_FROM)))
        return min(1.0, (self.state["step"] + 1) / WARMUP_STEPS) * (1 - 0.95 * fall)

    def draw_length(self, rng):
        """Any length reached so far; the short ones are cheap and teach most of what the long ones need."""
        back = rng.choices((0, 1, 2, 3, 4), (0.12, 0.18, 0.3, 0.25, 0.15))[0]
        return LENGTHS[max(0, self.state["stage"] - back)]

    def weighted_loss(self, ids, weights, positions):
        """Weighted cross-entropy of a batch; bf16 products, float32 softmax."""
        with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
            logits = self.model(ids[:, :-1], positions)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / weights.sum() + getattr(self.model, "wish", 0.0)

    def step(self, rows):
        length = self.draw_length(rows.rng)
        ids, weights = rows.batch(BATCH_TOKENS, length, MIX if self.state["warm"] else START_MIX)
        ids, weights = torch.from_numpy(ids), torch.from_numpy(weights)[:, 1:]
        positions = torch.from_numpy(rows.positions(len(ids), length, LENGTHS[-1] if self.state["warm"] else length))
        loss = self.loss(ids, weights.contiguous(), positions)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        rate = self.rate()
        torch.nn.utils.clip_grad_norm_([p for g in self.adam.param_groups for p in g["params"]], 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate * rate * group.get("scale", 1.0)
        self.adam.step()
        self.muon.step(self.muon_rate * rate)
        if hasattr(self.model, "after_step"):
            self.model.after_step()
        self.state["step"] += 1
        self.state["tokens"] += ids.shape[0] * length
        return loss.item()


@torch.no_grad()
def needle_recall(model, rows, length, count, facts=1):
    """(all digits right given the reply's start, whole reply right) over held-out needles, greedy.

    Teacher forcing gives the same verdict as greedy decoding: a reply is right when each
    of its tokens is the most likely one after the right tokens before it.
    """
    digits = replies = 0
    for _ in range(count):
        rng = rows.rng
        filler = rows.pool.filler(rng, length - 20 * facts - 36)
        made = gen.make_facts(rng, facts, rows.held_out)
        segments = gen.needle_conversation(rng, filler, made, 1)
        ids, _ = rows.encode(segments)
        tail, _ = rows.encode(segments[-4:])
        said = len(rows.encode(segments[-4:-3])[0])
        ids = torch.from_numpy(ids)[None]
        logits = model(ids[:, :-1], torch.arange(ids.shape[1] - 1)[None])
        good = (logits.argmax(-1) == ids[:, 1:])[0, -len(tail):].tolist()
        digits += all(good[said + 1:said + 5])
        replies += all(good[:said + 5])
    return digits / count, replies / count


@torch.no_grad()
def story_accuracy(model, rows, length, count):
    """Share of held-out story questions whose value outranks the other people's values."""
    right = 0
    for _ in range(count):
        rng = rows.rng
        attributes = rng.sample(sorted(gen.ATTRIBUTES), 2)
        people = gen.make_people(rng, 4, attributes)
        filler = rows.pool.filler(rng, length - 150)
        name, a, value = rng.choice([(n, a, v) for n, values in people for a, v in values.items()])
        segments = ([(gen.USER, 0)] + gen.story_document(rng, people, filler)
                    + gen.turn(gen.story_question(rng, name, a), [(gen.story_reply_start(name, a), 0)])[:-1])
        start = rows.encode(segments)[0]
        choices = [rows.encode([(" " + values[a], 0)])[0] for _, values in people]
        scores = []
        for c in choices:
            ids = torch.from_numpy(np.concatenate((start, c)))[None]
            logp = model(ids[:, :-1], torch.arange(ids.shape[1] - 1)[None])[0, -len(c):].log_softmax(-1)
            scores.append(logp.gather(1, ids[0, -len(c):, None]).sum().item())
        right += people[int(np.argmax(scores))][1][a] == value
    return right / count


@torch.no_grad()
def perplexities(model, pool, windows=8, length=512):
    """Perplexity of the first windows of each held-out source."""
    out = {}
    for s in pool.sources:
        ids = torch.from_numpy(pool.stream[s][:windows * length].astype(np.int64)).view(-1, length)
        logits = model(ids[:, :-1], torch.arange(length - 1)[None])
        out[s] = round(math.exp(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()), 2)
    return out


def evaluate(trainer, held, count):
    """One log line: recall per length reached, stories, perplexities."""
    st = trainer.state
    line = dict(step=st["step"], tokens=st["tokens"], minutes=round(st["seconds"] / 60, 1), stage=LENGTHS[st["stage"]],
                rate=round(trainer.rate(), 3))
    for length in LENGTHS[:min(len(LENGTHS), st["stage"] + 2)]:
        line["needle%d" % length] = needle_recall(trainer.model, held, length, count if length < 1024 else count // 2)
    line["needle256x4"] = needle_recall(trainer.model, held, 256, count, facts=4)
    line["story"] = story_accuracy(trainer.model, held, 256, count)
    line["ppl"] = perplexities(trainer.model, held.pool)
    return line


def advance(trainer, held):
    """Leave the warm-up, then grow the length, each time only when recall stands."""
    st = trainer.state
    if st["warm"] and st["stage"] + 1 == len(LENGTHS):
        return None
    recall, _ = needle_recall(trainer.model, held, LENGTHS[st["stage"]], 32)
    if recall >= GROW_AT:
        st["stage"] += int(st["warm"])
        st["warm"] = True
    return recall


def fit(args, start=None):
    """Train until the minutes are spent; checkpoint and log on the way."""
    torch.set_num_threads(1)
    work = pathlib.Path(args.work)
    tok = data.load_tokenizer(work)
    pool, held_pool = data.pools(work, corpus.data_root(args.data))
    if getattr(args, "shares", None):
        pool.share(args.shares)
    trainer = Trainer(args, start and (lambda: start(data.Rows(tok, pool, 5))))
    rows = data.Rows(tok, pool, args.seed + trainer.state["step"])
    held = data.Rows(tok, held_pool, 999, held_out=True)
    st, losses, last = trainer.state, [], time.process_time()
    next_eval = st["seconds"] + 60 * args.eval_minutes
    next_save = st["seconds"] + 60 * SAVE_MINUTES
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; run again to go on"))
    try:
        while st["seconds"] < 60 * args.minutes:
            while args.pause and os.path.exists(args.pause):
                time.sleep(2)
            losses.append(trainer.step(rows))
            now = time.process_time()
            st["seconds"] += now - last
            last = now
            if st["step"] % 50 == 0:
                recall = advance(trainer, held)
                print(json.dumps(dict(step=st["step"], tokens=st["tokens"], min=round(st["seconds"] / 60, 1),
                                      loss=round(np.mean(losses), 3), stage=LENGTHS[st["stage"]], warm=st["warm"],
                                      recall=recall)), flush=True)
                losses.clear()
            if st["seconds"] >= next_save:
                trainer.save()
                next_save = st["seconds"] + 60 * SAVE_MINUTES
            if st["seconds"] >= next_eval:
                line = evaluate(trainer, data.Rows(tok, held_pool, 1234, held_out=True), args.items)
                with open(work / (args.model + ".log.jsonl"), "a") as log:
                    log.write(json.dumps(line) + "\n")
                next_eval = st["seconds"] + 60 * args.eval_minutes
    finally:
        trainer.save()


def tokenizer_config():
    """tokenizer_config.json with the ChatML template."""
    added = {str(i): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
             for i, t in enumerate(SPECIALS)}
    return dict(add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added, bos_token=None,
                chat_template=CHAT_TEMPLATE, clean_up_tokenization_spaces=False, eos_token="<|im_end|>",
                model_max_length=40960, pad_token="<|endoftext|>", tokenizer_class="PreTrainedTokenizerFast",
                unk_token=None)


def export(args):
    """Write the folder and prove that transformers loads it and computes what was trained."""
    work, out = pathlib.Path(args.work), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    module = families.build(args.model)
    module.load_state_dict(torch.load(work / (args.model + ".pt"), weights_only=True)["model"])
    families.save(module, out)
    dump(out / "config.json", families.config_json(args.model))
    dump(out / "generation_config.json", dict(do_sample=False, eos_token_id=[2, 0], pad_token_id=0))
    dump(out / "tokenizer_config.json", tokenizer_config())
    (out / "tokenizer.json").write_bytes((work / "tokenizer.json").read_bytes())
    verify(out)


def dump(path, value):
    """Write JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def verify(out):
    """transformers must give the trained model's logits, and answer a needle greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ours = families.load(out)
    tok = AutoTokenizer.from_pretrained(out)
    rng = random.Random(7)
    talk = [gen.prose_sentence(rng) for _ in range(8)]
    talk.insert(3, "The access code of Zorvex is 7314.")
    message = dict(role="user", content=" ".join(talk) + "\nWhat is the access code of Zorvex?")
    prompt = tok.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    ids = tok(prompt, return_tensors="pt").input_ids
    assert ids[0].tolist() == data.load_tokenizer(out).encode(prompt).ids
    gap = (theirs(ids).logits - ours(ids, torch.arange(ids.shape[1])[None])).abs().max().item()
    assert gap < 2e-4, gap
    answer = tok.decode(theirs.generate(ids, max_new_tokens=20)[0, ids.shape[1]:])
    size = sum(p.numel() for p in ours.parameters())
    print("largest logit difference %.1e; %d parameters; reply %r" % (gap, size, answer))


def add_fit_arguments(parser, minutes):
    """What every program that trains takes."""
    add_folders(parser)
    parser.add_argument("--minutes", type=float, default=minutes, help="of processor time")
    parser.add_argument("--eval-minutes", type=float, default=5)
    parser.add_argument("--items", type=int, default=64, help="items per evaluation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stage", type=int, default=2, help="where lengths begin: 128 times two to the power of this")
    parser.add_argument("--pause", metavar="FILE", help="wait while this file exists")
    parser.add_argument("--compile", action="store_true",
                        help="a third faster, after half a CPU minute for each length")


def add_folders(parser):
    """Where checkpoints and texts are."""
    parser.add_argument("--work", required=True, help="folder for checkpoints and logs")
    parser.add_argument("--data", help="folder with sotu/ and tinyshakespeare/ (default: KVMILL_DATA)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add_folders(commands.add_parser("tokenizer"))
    sub = commands.add_parser("fit")
    sub.add_argument("model", choices=families.NAMES)
    add_fit_arguments(sub, minutes=75)
    sub.set_defaults(rates=(MUON_LR, ADAM_LR))
    sub = commands.add_parser("export")
    sub.add_argument("model", choices=families.NAMES)
    add_folders(sub)
    sub.add_argument("--out", required=True)
    args = parser.parse_args()
    {"tokenizer": make_tokenizer, "fit": fit, "export": export}[args.command](args)


if __name__ == "__main__":
    main()
