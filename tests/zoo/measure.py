"""Measure exported example models; prints one JSON object per call.

    measure.py real  --model tests/zoo/small [--data DIR]     held-out real text
    measure.py suites --model tests/zoo/small --suites jobs/suites
    measure.py apart --model tests/zoo/gdn-a --other tests/zoo/gdn-b [--data DIR]

`real` hides held-out facts in held-out real text (200 items, fewer beyond 512 tokens) and gives the share
answered: "same" when the reply's first words are given, so that the question continues in
the fact's own words, and "chat" when the whole reply has to be written. `suites` runs the
bundled suites through transformers' greedy generation. `apart` says how differently two models
behave on held-out text: the share of tokens on which their best guesses agree, and the mean
divergence of the other's guess from the model's, in nats.
"""

import argparse
import json
import math
import pathlib
import re
from collections import Counter

import torch

import corpus
import data
import families
import train


def real(args):
    """Recall, stories and perplexity on text the models never saw."""
    tok = data.load_tokenizer(args.model)
    pool = data.Pool(tok, corpus.read_corpus(corpus.data_root(args.data)), "held")
    module, out = families.load(args.model), {}
    for length in train.LENGTHS:
        rows = data.Rows(tok, pool, 4321, held_out=True)
        same, chat = train.needle_recall(module, rows, length, args.items * 512 // max(512, length))
        out["needle%d" % length] = dict(same=same, chat=chat)
    same, chat = train.needle_recall(module, data.Rows(tok, pool, 4322, held_out=True), 256, args.items, facts=4)
    out["needle256x4"] = dict(same=same, chat=chat)
    out["story256"] = train.story_accuracy(module, data.Rows(tok, pool, 4323, held_out=True), 256, args.items)
    out["perplexity"] = train.perplexities(module, pool, windows=16)
    mean = sum(math.log(p) for p in out["perplexity"].values()) / len(out["perplexity"])
    out["perplexity"]["geometric_mean"] = round(math.exp(mean), 2)
    return out


@torch.no_grad()
def apart(args, windows=16, length=512):
    """Agreement and divergence per source."""
    tok = data.load_tokenizer(args.model)
    pool = data.Pool(tok, corpus.read_corpus(corpus.data_root(args.data)), "held")
    pair, out = [families.load(folder) for folder in (args.model, args.other)], {}
    for s in pool.sources:
        ids = torch.from_numpy(pool.stream[s][:windows * length].astype("int64")).view(-1, length)
        a, b = (m(ids, torch.arange(length).expand_as(ids)).log_softmax(-1) for m in pair)
        out[s] = dict(agree=(a.argmax(-1) == b.argmax(-1)).float().mean().item(),
                      divergence=(a.exp() * (a - b)).sum(-1).mean().item())
    return out


def read_suite(folder, name):
    """Items of one suite."""
    return [json.loads(line) for line in (folder / (name + ".jsonl")).read_text(encoding="utf-8").splitlines()]


class Reference:
    """transformers' model and tokenizer, float32, greedy."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM, AutoTokenizer
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tok = AutoTokenizer.from_pretrained(folder)

    def ids(self, *pieces):
        """Ids of the pieces, each tokenised alone."""
        return [i for p in pieces for i in self.tok(p).input_ids]

    @torch.no_grad()
    def answer(self, prefix, question, limit=28):
        """The greedy continuation as text."""
        ids = torch.tensor([self.ids(prefix, question)])
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False)
        return self.tok.decode(out[0, ids.shape[1]:], skip_special_tokens=True)

    @torch.no_grad()
    def logprobs(self, context, following):
        """Log-probability of each following token."""
        start, end = self.ids(*context), self.ids(following)
        logits = self.model(torch.tensor([start + end])).logits[0, len(start) - 1:-1]
        return logits.log_softmax(-1).gather(1, torch.tensor(end)[:, None])[:, 0]


def token_f1(guess, gold):
    """Overlap of words, as in extractive question answering."""
    a, b = (re.findall(r"\w+", t.lower()) for t in (guess, gold))
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if common else 0.0


def suites(args):
    """Scores on the bundled suites."""
    ref, out = Reference(args.model), {}
    by_length = {}
    for item in read_suite(args.suites, "needle"):
        by_length.setdefault(item["length"], []).append(item["answer"] in ref.answer(item["prefix"], item["question"]))
    out["needle"] = {n: sum(v) / len(v) for n, v in by_length.items()}
    right = []
    for item in read_suite(args.suites, "facts-mc"):
        scores = [ref.logprobs((item["prefix"], item["question"]), c).sum().item() for c in item["choices"]]
        right.append(scores.index(max(scores)) == item["answer"])
    out["facts-mc"] = sum(right) / len(right)
    answers = [(ref.answer(item["prefix"], item["question"]).strip(), item["answers"])
               for item in read_suite(args.suites, "facts-qa")]
    out["facts-qa"] = dict(exact=sum(a in gold for a, gold in answers) / len(answers),
                           f1=sum(max(token_f1(a, g) for g in gold) for a, gold in answers) / len(answers),
                           gold_in_answer=sum(gold[0] in a for a, gold in answers) / len(answers))
    logs = [ref.logprobs((i["prefix"],), i["continuation"]) for i in read_suite(args.suites, "prose")]
    out["prose_perplexity"] = math.exp(-torch.cat(logs).mean().item())
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("real", "suites", "apart"))
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--suites", type=pathlib.Path)
    parser.add_argument("--other", type=pathlib.Path)
    parser.add_argument("--data", help="folder with sotu/ and tinyshakespeare/ (default: KVMILL_DATA)")
    parser.add_argument("--items", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(dict(real=real, suites=suites, apart=apart)[args.what](args)))


if __name__ == "__main__":
    main()
