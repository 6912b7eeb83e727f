"""Seeded generator of the example models' conversations: needles, stories, small talk, prose.

Everything is returned as segments, a list of (text, weight): the weight is what the
training loss gives the tokens of that piece. Text that cannot be predicted (a code said
for the first time) weighs nothing, text that must be recalled weighs most. Joining the
texts gives the plain conversation, so the suites use the same functions and drop the
weights. Segments are cut only where the tokenizer cuts too (before a space that starts a
word, after a newline, around special tokens).

Names and codes come in two disjoint kinds, training and held out; a digest decides.
"""

import zlib

W_NONE, W_LOW, W_TEXT, W_COPY, W_ANSWER = 0.0, 0.2, 1.0, 2.0, 6.0
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"

ONSETS = "b br d dr f g gr h j k kr l m n p pr r s st t tr v w z".split()
VOWELS = "a e i o u".split()
CODAS = ["", "", "l", "n", "r", "s", "x", "nd", "th"]
KINDS = ("access code", "locker number", "badge number", "door code", "ticket number", "phone extension")
FACT_FORMS = (
    "{name} has the {kind}", "Remember that the {kind} of {name} is", "Please note: the {kind} of {name} is")
NEEDLE_QUESTIONS = (
    "What is the {kind} of {name}?", "Tell me the {kind} of {name}.", "Which {kind} does {name} have?",
    "I forgot the {kind} of {name}. Can you help me?", "Do you know the {kind} of {name}?",
    "{name} needs the {kind}. What is it?")

PEOPLE = """Adam Alice Anna Ben Bella Carl Clara Daisy David Ella Emma Eric Eva Felix Fiona Frank Grace Hanna Harry
Helen Henry Ida Ivan Jack Jane Julia Karl Kate Laura Leo Lily Linda Lucas Lucy Maria Mark Martha Max Mia Nina Nora
Olga Oscar Otto Paul Peter Rita Robert Rosa Ruth Sam Sara Simon Sofia Susan Thomas Tina Victor Walter Wendy""".split()
COLOURS = "red green blue yellow white black brown pink purple orange grey silver".split()
ANIMALS = "dog cat horse fox bird fish rabbit mouse goat sheep duck turtle".split()
CITIES = "Paris London Rome Berlin Madrid Vienna Oslo Dublin Athens Lisbon Prague Moscow".split()
JOBS = "baker teacher doctor farmer painter lawyer driver sailor tailor miner nurse cook".split()
FOODS = "bread soup rice cheese honey fruit cake pasta salad corn beans apples".split()
INSTRUMENTS = "piano flute violin guitar drum harp trumpet organ horn lute cello banjo".split()

# attribute: (values, canonical subject, other ways to state it, ways to ask for it).
# The canonical statement is "The <subject> of <name> is <value>." and every reply uses it.
ATTRIBUTES = {
    "colour": (COLOURS, "favourite colour", ("{name} likes the colour {v}.", "{name} loves everything that is {v}."),
               ("Which colour does {name} like?",)),
    "pet": (ANIMALS, "pet", ("{name} has a pet {v}.", "{name} takes care of a {v}."),
            ("Which animal does {name} have?",)),
    "home": (CITIES, "home", ("{name} lives in {v}.", "{name} has a house in {v}."), ("Where does {name} live?",)),
    "job": (JOBS, "job", ("{name} works as a {v}.", "{name} became a {v} long ago."),
            ("How does {name} make a living?",)),
    "food": (FOODS, "favourite food", ("{name} likes to eat {v}.", "{name} often asks for {v}."),
             ("What does {name} like to eat?",)),
    "music": (INSTRUMENTS, "instrument", ("{name} plays the {v}.", "{name} is learning the {v}."),
              ("What does {name} play?",)),
}

PLACES = (
    "market", "river", "garden", "old bridge", "school", "station", "harbour", "library", "mill", "church",
    "town hall", "forest")
THINGS = (
    "basket", "letter", "lamp", "clock", "map", "book", "ladder", "coat", "bottle", "wheel", "box", "chair")
FOLK = (
    "the old man", "the young woman", "the captain", "a traveller", "the children", "the clerk", "a merchant",
    "the neighbour", "the guard", "a stranger")
DEEDS = (
    "carried the {t} to the {p}", "looked for the {t} near the {p}", "left a {t} beside the {p}",
    "walked from the {p} to the {q}", "talked about the {t} for an hour", "waited at the {p} until evening",
    "found a small {t} behind the {p}", "painted the {t} before going to the {p}", "sold the {t} at the {p}",
    "told a story about the {p}")
OPENERS = (
    "In the morning", "After lunch", "Every week", "On a cold day", "Later that year", "At noon",
    "Before the storm", "Once", "As usual", "When the bell rang")
CLOSERS = (
    "and nobody was surprised", "because the road was closed", "while the rain fell softly",
    "and then went home", "as the letter had asked", "so that the others could rest", "although it was late",
    "and everyone was glad")


def is_held_out(word):
    """Held-out names and codes are never seen in training; one in eight words is held out."""
    return zlib.crc32(word.encode()) % 8 == 0


def draw(rng, make, held_out):
    """A word from make(rng) that is on the wanted side of the held-out split."""
    while True:
        word = make(rng)
        if is_held_out(word) == held_out:
            return word


def make_name(rng, held_out):
    """An invented capitalised name of two or three syllables."""
    def word(r):
        parts = (r.choice(ONSETS) + r.choice(VOWELS) + (r.choice(CODAS) if i else "")
                 for i in range(r.choice((2, 2, 3))))
        return "".join(parts).capitalize()
    return draw(rng, word, held_out)


def make_code(rng, held_out):
    """Four random digits."""
    return draw(rng, lambda r: "%04d" % r.randrange(10000), held_out)


def make_facts(rng, count, held_out):
    """`count` distinct (kind, name, code) facts; some share the kind, so the name must be read."""
    kinds = [rng.choice(KINDS)] * count if rng.random() < 0.5 else [rng.choice(KINDS) for _ in range(count)]
    names = []
    while len(names) < count:
        name = make_name(rng, held_out)
        if name not in names:
            names.append(name)
    return [(kind, name, make_code(rng, held_out)) for kind, name in zip(kinds, names)]


def fact_segments(rng, fact, canonical=0.8):
    """A sentence that states the fact, in the words of the reply with probability `canonical`."""
    kind, name, code = fact
    form = "The {kind} of {name} is" if rng.random() < canonical else rng.choice(FACT_FORMS)
    return [(form.format(kind=kind, name=name), W_LOW), (" " + code, W_NONE), (".", W_TEXT)]


def needle_question(rng, fact, canonical=0.5):
    """A question for the code of a fact."""
    kind, name, _ = fact
    form = NEEDLE_QUESTIONS[0] if rng.random() < canonical else rng.choice(NEEDLE_QUESTIONS)
    return form.format(kind=kind, name=name)


def needle_reply_start(fact):
    """The reply up to the code: the canonical wording of the fact."""
    kind, name, _ = fact
    return "The %s of %s is" % (kind, name)


def needle_reply(fact):
    """The assistant's reply to a needle question."""
    return [(needle_reply_start(fact), W_COPY), (" " + fact[2], W_ANSWER), (".", W_TEXT)]


def turn(question, reply):
    """One question and its reply, without the opening user tag."""
    return [(question, W_LOW), (END, W_LOW), (ASSISTANT, W_TEXT)] + reply + [(END, W_TEXT)]


def document(sentences, insertions):
    """Sentences as one paragraph with each (position, segments) put before that sentence."""
    at = {}
    for position, segments in insertions:
        at.setdefault(position, []).append(segments)
    out = []
    for i in range(len(sentences) + 1):
        pieces = list(at.get(i, []))
        if i < len(sentences):
            pieces.append([(sentences[i], W_TEXT)])
        for piece in pieces:
            lead = " " if out else ""
            out += [(lead + piece[0][0], piece[0][1])] + piece[1:]
    return close_paragraph(out)


def close_paragraph(segments):
    """End a paragraph with a newline that is tokenised together with its last full stop."""
    text, weight = segments[-1]
    return segments[:-1] + [(text + "\n", weight)]


def needle_conversation(rng, sentences, facts, asked):
    """Facts hidden in sentences, then questions about some of them, each answered in the fact's words."""
    insertions = [(rng.randrange(len(sentences) + 1), fact_segments(rng, f)) for f in facts]
    out = [(USER, W_LOW)] + document(sentences, insertions)
    for i, fact in enumerate(rng.sample(facts, asked)):
        out += ([(USER, W_LOW)] if i else []) + turn(needle_question(rng, fact), needle_reply(fact))
    return out


def recital(rng, sentences, facts):
    """Facts stated and later repeated in the same words without a chat frame: the easiest recall."""
    insertions = [(rng.randrange(len(sentences) + 1), fact_segments(rng, f, canonical=1.0)) for f in facts]
    out = document(sentences, insertions)
    for fact in rng.sample(facts, len(facts)):
        out += close_paragraph(needle_reply(fact))
    return out


def make_people(rng, count, attributes):
    """[(name, {attribute: value})]: within one story no two people share a value."""
    names = rng.sample(PEOPLE, count)
    columns = {a: rng.sample(ATTRIBUTES[a][0], count) for a in attributes}
    return [(name, {a: columns[a][i] for a in attributes}) for i, name in enumerate(names)]


def statement(rng, name, attribute, value, canonical=0.4):
    """One sentence of a story, in the reply's words or in others."""
    values, subject, others, _ = ATTRIBUTES[attribute]
    form = "The %s of {name} is {v}." % subject if rng.random() < canonical else rng.choice(others)
    before, _, after = form.format(name=name, v="\0").partition(" \0")
    return [(before, W_LOW), (" " + value, W_LOW), (after, W_TEXT)]


def story_question(rng, name, attribute, canonical=0.5):
    """A question about one attribute of one person."""
    _, subject, _, asks = ATTRIBUTES[attribute]
    if rng.random() < canonical:
        return "What is the %s of %s?" % (subject, name)
    return rng.choice(asks).format(name=name)


def story_reply_start(name, attribute):
    """The reply up to the value."""
    return "The %s of %s is" % (ATTRIBUTES[attribute][1], name)


def story_reply(name, attribute, value):
    """The assistant's reply to a story question."""
    return [(story_reply_start(name, attribute), W_COPY), (" " + value, W_ANSWER), (".", W_TEXT)]


def story_document(rng, people, sentences):
    """Statements about people in random order, spread among other sentences, as a paragraph."""
    stated = [statement(rng, name, a, v) for name, values in people for a, v in values.items()]
    rng.shuffle(stated)
    places = sorted(rng.randrange(len(sentences) + 1) for _ in stated)
    return document(sentences, list(zip(places, stated)))


def story_conversation(rng, people, sentences, asked):
    """A story and questions about it."""
    out = [(USER, W_LOW)] + story_document(rng, people, sentences)
    pairs = [(name, a, v) for name, values in people for a, v in values.items()]
    for i, (name, a, v) in enumerate(rng.sample(pairs, min(asked, len(pairs)))):
        out += ([(USER, W_LOW)] if i else []) + turn(story_question(rng, name, a), story_reply(name, a, v))
    return out


def prose_sentence(rng):
    """One sentence of invented prose, for filler that may be committed."""
    p, q = rng.sample(PLACES, 2)
    deed = rng.choice(DEEDS).format(t=rng.choice(THINGS), p=p, q=q)
    text = "%s, %s %s" % (rng.choice(OPENERS), rng.choice(FOLK), deed)
    return text + (" " + rng.choice(CLOSERS) if rng.random() < 0.5 else "") + "."


def small_talk(rng, held_out=False):
    """A short dialogue in which the user gives a name and a value and asks for them later."""
    name = make_name(rng, held_out)
    attribute = rng.choice(sorted(ATTRIBUTES))
    values, subject, _, _ = ATTRIBUTES[attribute]
    value = rng.choice(values)
    out = [(USER, W_LOW), ("Hello, my name is %s." % name, W_LOW), (END, W_LOW), (ASSISTANT, W_TEXT),
           ("Hello", W_TEXT), (" " + name, W_ANSWER), (", nice to meet you.", W_TEXT), (END, W_TEXT),
           (USER, W_LOW), ("My %s is %s." % (subject, value), W_LOW), (END, W_LOW), (ASSISTANT, W_TEXT),
           ("I will remember that your %s is" % subject, W_COPY), (" " + value, W_COPY), (".", W_TEXT), (END, W_TEXT)]
    asks = [("What is my name?", "Your name is", name), ("What is my %s?" % subject, "Your %s is" % subject, value)]
    for ask, start, answer in rng.sample(asks, 2):
        out += [(USER, W_LOW)] + turn(ask, [(start, W_COPY), (" " + answer, W_ANSWER), (".", W_TEXT)])
    return out


def plain(segments):
    """The conversation as text."""
    return "".join(text for text, _ in segments)
