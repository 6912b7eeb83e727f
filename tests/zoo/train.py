"""Train the example pair: one tokenizer, two Qwen3-shaped models, on one CPU thread each.

    train.py tokenizer --work DIR [--data DIR]
    train.py fit small --work DIR --minutes 75      (and the same for large)
    train.py export small --work DIR --out tests/zoo/small

Needs: torch, transformers, tokenizers, safetensors, numpy, and the Debian packages
bible-kjv, python3.11-doc, sqlite3-doc, postgresql-doc-15. State of the Union and Tiny
Shakespeare are read from --data or KVMILL_DATA. `fit` resumes from DIR/<model>.pt and
appends one JSON line per evaluation to DIR/<model>.log.jsonl; its learning-rate decay
follows the training minutes spent, so a slower machine gets fewer tokens, not a worse end.
"""

import argparse
import json
import math
import os
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import corpus
import data
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
WARMUP_STEPS, DECAY_FROM = 60, 0.6
SAVE_MINUTES = 4


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
    """Momentum with orthogonalised updates for the matrices of the layers, batched by shape."""

    def __init__(self, params):
        shapes = {}
        for p in params:
            shapes.setdefault(p.shape, []).append(p)
        self.groups = list(shapes.values())
        self.momenta = [torch.zeros(len(g), *g[0].shape) for g in self.groups]

    @torch.no_grad()
    def step(self, lr):
        for group, m in zip(self.groups, self.momenta):
            g = torch.stack([p.grad for p in group])
            m.lerp_(g, 1 - MOMENTUM)
            u = orthogonalise(g.lerp(m, MOMENTUM))
            gain = max(1.0, u.shape[1] / u.shape[2]) ** 0.5
            for p, d in zip(group, u):
                p.mul_(1 - 0.01 * lr).add_(d, alpha=-lr * gain)


def orthogonalise(g):
    """Five Newton-Schulz steps towards the nearest orthogonal matrices (N,R,C)."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).bfloat16()
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.transpose(1, 2) if tall else x).float()


class Trainer:
    """State of one run: model, optimisers, curriculum; saved whole, resumed whole."""

    def __init__(self, args):
        self.args = args
        self.path = pathlib.Path(args.work) / (args.model + ".pt")
        self.model = zoo.Qwen3(zoo.CONFIGS[args.model])
        zoo.initialise(self.model, args.seed)
        named = list(self.model.named_parameters())
        self.muon = Muon([p for n, p in named if p.dim() == 2 and "embed" not in n])
        self.adam = torch.optim.AdamW([p for n, p in named if p.dim() == 1 or "embed" in n], lr=ADAM_LR,
                                      betas=(0.9, 0.98), weight_decay=0.0)
        self.loss = torch.compile(self.weighted_loss, dynamic=False) if args.compile else self.weighted_loss
        self.state = dict(step=0, tokens=0, seconds=0.0, stage=0, warm=False)
        if self.path.exists():
            self.load()

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
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(ids[:, :-1], positions)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / weights.sum()

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
            group["lr"] = ADAM_LR * rate
        self.adam.step()
        self.muon.step(MUON_LR * rate)
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


def fit(args):
    """Train until the minutes are spent; checkpoint and log on the way."""
    torch.set_num_threads(1)
    work = pathlib.Path(args.work)
    trainer = Trainer(args)
    tok = data.load_tokenizer(work)
    read = corpus.read_corpus(corpus.data_root(args.data))
    rows = data.Rows(tok, data.Pool(tok, read, "train"), args.seed + trainer.state["step"])
    held_pool = data.Pool(tok, read, "held")
    held = data.Rows(tok, held_pool, 999, held_out=True)
    st, losses, last = trainer.state, [], time.time()
    next_eval = st["seconds"] + 60 * args.eval_minutes
    next_save = st["seconds"] + 60 * SAVE_MINUTES
    while st["seconds"] < 60 * args.minutes:
        losses.append(trainer.step(rows))
        now = time.time()
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
    trainer.save()


def config_json(name):
    """config.json in the published layout."""
    c = zoo.CONFIGS[name]
    return dict(architectures=["Qwen3ForCausalLM"], attention_bias=False, attention_dropout=0.0,
                bos_token_id=None, eos_token_id=2, head_dim=c["head_dim"], hidden_act="silu",
                hidden_size=c["hidden"], initializer_range=0.02,
                intermediate_size=c["ffn"], max_position_embeddings=40960, max_window_layers=c["layers"],
                model_type="qwen3", num_attention_heads=c["heads"], num_hidden_layers=c["layers"],
                num_key_value_heads=c["kv_heads"],
                pad_token_id=0, rms_norm_eps=zoo.EPS, rope_scaling=None, rope_theta=c["theta"], sliding_window=None,
                tie_word_embeddings=True, torch_dtype="bfloat16", use_cache=True, use_sliding_window=False,
                vocab_size=zoo.VOCAB)


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
    from safetensors.torch import save_file
    work, out = pathlib.Path(args.work), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    saved = torch.load(work / (args.model + ".pt"), weights_only=True)
    weights = {n: p.to(torch.bfloat16).contiguous() for n, p in saved["model"].items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    dump(out / "config.json", config_json(args.model))
    dump(out / "generation_config.json", dict(do_sample=False, eos_token_id=[2, 0], pad_token_id=0))
    dump(out / "tokenizer_config.json", tokenizer_config())
    (out / "tokenizer.json").write_bytes((work / "tokenizer.json").read_bytes())
    verify(args.model, out, weights)


def dump(path, value):
    """Write JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def verify(name, out, weights):
    """transformers must give the trained model's logits, and answer a needle greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ours = zoo.Qwen3(zoo.CONFIGS[name])
    ours.load_state_dict({n: w.float() for n, w in weights.items()})
    tok = AutoTokenizer.from_pretrained(out)
    rng = random.Random(7)
    talk = [gen.prose_sentence(rng) for _ in range(8)]
    talk.insert(3, "The access code of Zorvex is 7314.")
    message = dict(role="user", content=" ".join(talk) + "\nWhat is the access code of Zorvex?")
    prompt = tok.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    ids = tok(prompt, return_tensors="pt").input_ids
    assert ids[0].tolist() == data.load_tokenizer(out).encode(prompt).ids
    gap = (theirs(ids).logits - ours(ids, torch.arange(ids.shape[1])[None])).abs().max().item()
    assert gap < 2e-3, gap
    answer = tok.decode(theirs.generate(ids, max_new_tokens=20)[0, ids.shape[1]:])
    size = sum(w.numel() for w in weights.values())
    print("largest logit difference %.1e; %d parameters; reply %r" % (gap, size, answer))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("tokenizer", "fit", "export"):
        sub = commands.add_parser(name)
        sub.add_argument("--work", required=True, help="folder for checkpoints and logs")
        sub.add_argument("--data", help="folder with sotu/ and tinyshakespeare/ (default: KVMILL_DATA)")
        if name != "tokenizer":
            sub.add_argument("model", choices=sorted(zoo.CONFIGS))
        if name == "fit":
            sub.add_argument("--minutes", type=float, default=75)
            sub.add_argument("--eval-minutes", type=float, default=5)
            sub.add_argument("--items", type=int, default=64, help="items per evaluation")
            sub.add_argument("--seed", type=int, default=1)
            sub.add_argument("--compile", action="store_true",
                             help="a third faster, after half a CPU minute for each length")
        if name == "export":
            sub.add_argument("--out", required=True)
    args = parser.parse_args()
    {"tokenizer": make_tokenizer, "fit": fit, "export": export}[args.command](args)


if __name__ == "__main__":
    main()
