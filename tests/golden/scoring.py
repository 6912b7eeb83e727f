"""Writes scoring.inc: {said, gold, exact match, F1} by the normalisation that the SQuAD 1.1 and
CoQA scorers publish. Run: python3 tests/golden/scoring.py > tests/golden/scoring.inc"""
import collections
import json
import re
import string

PAIRS = [
    ("The U.S. army", "US army"),
    ("don't", "dont"),
    ("about 3.5 percent", "35 percent"),
    ("a well-known king", "the well known king"),
    ("It was 1,000 men.", "1000"),
    ("An apple; a pear", "pear apple"),
    ("tail's end", "tails"),
    ("(the) Queen!", "queen"),
    ("x y y z", "y y y"),
    ("yes", "no"),
    ("a. an. the.", "theme"),
]


def normalise(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(said, gold):
    a, b = normalise(said).split(), normalise(gold).split()
    common = sum((collections.Counter(a) & collections.Counter(b)).values())
    if not a or not b:
        return float(a == b)
    if not common:
        return 0.0
    p, r = common / len(a), common / len(b)
    return 2 * p * r / (p + r)


for said, gold in PAIRS:
    em = float(normalise(said) == normalise(gold))
    print("    {%s, %s, %r, %r}," % (json.dumps(said), json.dumps(gold), em, f1(said, gold)))
