"""Tokenised corpus and batches for training the example models.

A row is T + 1 tokens with a weight each. Rows mix real text with generated
conversations whose filler is real text too, so every batch lowers perplexity
and trains recall at once.
"""

import pathlib
import pickle
import random
import re

import numpy as np

import corpus as texts
import generate as gen

# Share of each source in filler and plain text; documentation is plentiful, so it is held down.
SOURCE_SHARE = {"bible": 0.3, "sotu": 0.25, "shakespeare": 0.1, "python": 0.1, "sqlite": 0.12, "postgresql": 0.13}
# What a later generation reads: documentation mostly.
LATER_SHARE = {"bible": 0.03, "sotu": 0.07, "shakespeare": 0.0, "python": 0.35, "sqlite": 0.25, "postgresql": 0.3}
MAX_CHARS = 2_500_000


def sentences_of(text):
    """Sentences of one document, on one line each; very short and very long ones are left out."""
    parts = re.split(r"(?<=[.;!?:])\s+", re.sub(r"\s+", " ", text))
    return [p for p in parts if 25 <= len(p) <= 320 and "<|" not in p]


class Pool:
    """One side (train or held) of the corpus: token streams per source, sentences with token counts."""

    def __init__(self, tokenizer, corpus, side):
        self.stream, self.sentences, self.counts = {}, {}, {}
        end = tokenizer.token_to_id("<|endoftext|>")
        for s in [s for s in SOURCE_SHARE if corpus.get(s, {}).get(side)]:
            texts = limit(corpus[s][side])
            ids = [e.ids + [end] for e in tokenizer.encode_batch(texts)]
            self.stream[s] = np.concatenate([np.array(i, dtype=np.uint16) for i in ids])
            self.sentences[s] = [p for t in texts for p in sentences_of(t)]
            spaced = tokenizer.encode_batch([" " + p for p in self.sentences[s]])
            self.counts[s] = np.array([len(e.ids) for e in spaced])
        self.share(SOURCE_SHARE)

    def share(self, shares):
        """How often each source is drawn from."""
        self.sources = [s for s in self.stream if shares[s] > 0]
        self.shares = [shares[s] for s in self.sources]

    def filler(self, rng, budget):
        """Consecutive sentences of one source that fit in `budget` tokens (perhaps none)."""
        s = rng.choices(self.sources, self.shares)[0]
        i, out = rng.randrange(len(self.sentences[s])), []
        misses = 0
        while misses < 4:
            i = (i + 1) % len(self.sentences[s])
            if self.counts[s][i] > budget:
                misses += 1
                continue
            out.append(self.sentences[s][i])
            budget -= self.counts[s][i]
        return out

    def text(self, rng, length):
        """`length` consecutive tokens of one source."""
        s = rng.choices(self.sources, self.shares)[0]
        i = rng.randrange(len(self.stream[s]) - length)
        return self.stream[s][i:i + length].astype(np.int64)


def limit(texts):
    """Whole documents spread over the list up to MAX_CHARS."""
    total = sum(map(len, texts))
    step = max(1.0, total / MAX_CHARS)
    picked = sorted({int(i * step) for i in range(int(len(texts) / step))})
    return [texts[i] for i in picked]


class Rows:
    """Draws weighted rows; `held_out` picks the side of names, codes and text."""

    def __init__(self, tokenizer, pool, seed, held_out=False):
        self.tok, self.pool, self.held_out = tokenizer, pool, held_out
        self.rng = random.Random(seed)
        self.npr = np.random.default_rng(seed)

    def encode(self, segments):
        """Token ids and weights of segments."""
        pieces = self.tok.encode_batch([t for t, _ in segments])
        ids = np.concatenate([np.array(p.ids, dtype=np.int64) for p in pieces])
        weights = np.concatenate([np.full(len(p.ids), w, dtype=np.float32) for p, (_, w) in zip(pieces, segments)])
        return ids, weights

    def needle(self, n):
        """A needle conversation of at most about n tokens."""
        rng = self.rng
        count = min(rng.choice((1, 1, 2, 3, 4, 6, 8)), max(1, n // 56))
        asked = rng.randint(1, min(count, 6))
        filler = self.pool.filler(rng, n - 18 * count - 34 * asked - 8)
        return gen.needle_conversation(rng, filler, gen.make_facts(rng, count, self.held_out), asked)

    def recital(self, n):
        """Facts and their repetition, without chat frame."""
        count = max(1, min(self.rng.randint(1, 8), n // 48))
        filler = self.pool.filler(self.rng, n - 36 * count)
        return gen.recital(self.rng, filler, gen.make_facts(self.rng, count, self.held_out))

    def story(self, n):
        """A story conversation; more people as the length allows."""
        rng = self.rng
        people = rng.randint(1, max(1, min(5, n // 90)))
        attributes = rng.sample(sorted(gen.ATTRIBUTES), rng.randint(1, 4))
        asked = rng.randint(1, max(1, min(10, n // 60)))
        left = max(0, n - 11 * people * len(attributes) - 30 * asked - 8)
        if rng.random() < 0.5:
            filler = self.pool.filler(rng, left)
        else:
            filler = [gen.prose_sentence(rng) for _ in range(int(left / 18 * rng.random()))]
        return gen.story_conversation(rng, gen.make_people(rng, people, attributes), filler, asked)

    def talk(self, n):
        """A small-talk dialogue (about 130 tokens, whatever n is)."""
        del n
        return gen.small_talk(self.rng, self.held_out)

    def echo(self, length):
        """A span of random or real tokens, repeated; only the repetitions weigh."""
        span = self.rng.randint(8, length // 2)
        if self.rng.random() < 0.6:
            first = self.npr.integers(260, self.tok.get_vocab_size(), span)
        else:
            first = self.pool.text(self.rng, span)
        ids = np.tile(first, length // span + 2)[:length]
        weights = np.ones(length, dtype=np.float32)
        weights[:span + 1] = 0.0
        return ids, weights

    def row(self, length, kind):
        """Exactly `length` tokens and weights of one kind of row."""
        if kind == "text":
            return self.pool.text(self.rng, length), np.ones(length, dtype=np.float32)
        if kind == "echo":
            return self.echo(length)
        ids, weights, left = [], [], length
        while left > 0:
            # Half of the conversations fill the row, the others are shorter and share it.
            n = left if left < 120 or self.rng.random() < 0.6 else self.rng.randint(80, left)
            # Stories are kept short mostly: questions per token are what teaches them.
            n = self.rng.randint(90, 400) if kind == "story" and n > 400 and self.rng.random() < 0.7 else n
            i, w = self.encode(getattr(self, kind)(n))
            ids.append(i)
            weights.append(w)
            left -= len(i)
        return np.concatenate(ids)[:length], np.concatenate(weights)[:length]

    def batch(self, tokens, length, mix):
        """(ids, weights), each (B, length + 1); mix maps row kinds to probabilities."""
        kinds = self.rng.choices(list(mix), list(mix.values()), k=max(1, tokens // length))
        rows = [self.row(length + 1, k) for k in kinds]
        return np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows])

    def positions(self, count, length, reach):
        """(count, length) positions; some rows jump ahead, so distances up to `reach` are seen."""
        steps = np.ones((count, length), dtype=np.int64)
        for r in range(count):
            if reach > length and self.rng.random() < 0.35:
                for _ in range(self.rng.randint(1, 3)):
                    steps[r, self.rng.randrange(1, length)] += self.rng.randrange((reach - length) // 3 + 1)
        return np.cumsum(steps, axis=1) - 1


def pools(work, root):
    """(train, held) pools; what the corpus's tokens are is kept in the work folder."""
    path = pathlib.Path(work) / "pools.pickle"
    if not path.exists():
        tok, read = load_tokenizer(work), texts.read_corpus(root)
        with open(path, "wb") as file:
            pickle.dump([Pool(tok, read, side) for side in ("train", "held")], file)
    with open(path, "rb") as file:
        return pickle.load(file)


def load_tokenizer(folder):
    """The pair's tokenizer."""
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
