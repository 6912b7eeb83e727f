#!/usr/bin/env python3
"""Makes the golden tokenizers and what the `tokenizers` and `tiktoken` libraries make of
the strings.

Each NAME.json is a byte-level BPE of 0.6 to 1.5 thousand tokens with a known family's
pattern and options, trained on the sentences below, which are in many scripts so that
merges exist outside ASCII. `odd*` and `deepseek` have no family's pattern that kvmill
knows by heart: they go through its general path. `kimi` (a folder with a tiktoken.model)
and `tekken_ranks` (a tekken.json) are trained in the same way and written as ranks of tokens,
with some tokens that merging never makes; their reference is `tiktoken`, for kimi inside
the cuts of long texts that its own code makes.

strings.jsonl  one string a line: {"text": base64} or {"text": base64, "times": n}
NAME.jsonl     the ids of each string, in order: {"ids": base64 of little-endian u16};
               long ones as {"n": count, "sha256": the first half, of little-endian i32 ids},
               of kimi, tekken_ranks and glm all but the shortest, with 8 digits alone, and
               of the last two not every third string;
               at the end {"string": i, "special": true} with add_special_tokens and
               {"string": i, "plain": true} with encode_special_tokens

Run: python3 tests/golden/tokenizers/make.py (tokenizers 0.23.3, tiktoken 0.14.0, regex;
seed fixed; a minute).
"""
import base64
import hashlib
import json
import os
import random
import unicodedata

import regex
import tiktoken
import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
rng = random.Random(20240607)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
          r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORD = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", WORD + UPPER + "*" + LOWER + "+" + SHORT,
                 WORD + UPPER + "+" + LOWER + "*" + SHORT, r"\p{N}{1,3}",
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")

SENTENCES = """The quick brown fox jumps over the lazy dog, and then it's gone again.
We'll see what they've done; I'm sure you're right, he'd say. DON'T SHOUT, SHE'S HERE!
In 2024 the price rose from 1,299.50 to 13,750 (about 958%), said the report.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straße, Füße, Öl.
Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis. L'été, ça va?
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Qué? ¡Mañana, señor!
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Flygande bäckasiner söka.
Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, мир! Это тест.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Καλημέρα κόσμε, πώς είσαι σήμερα;
שלום עולם, מה שלומך היום? דג סקרן שט בים מאוכזב ולפתע מצא חברה.
مرحبا بالعالم، كيف حالك اليوم؟ صِف خَلقَ خَودٍ كَمِثلِ الشَمسِ إِذ بَزَغَت
नमस्ते दुनिया, आप कैसे हैं? ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण।
வணக்கம் உலகம், நீங்கள் எப்படி இருக்கிறீர்கள்? হ্যালো বিশ্ব, আপনি কেমন আছেন?
สวัสดีชาวโลก วันนี้เป็นอย่างไรบ้าง เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
Xin chào thế giới, hôm nay bạn thế nào? Tiếng Việt có nhiều dấu thanh điệu.
今天天气很好,我们去公园散步吧。你好,世界!这是一个测试句子,用来训练分词器。
春眠不覺曉,處處聞啼鳥。夜來風雨聲,花落知多少。
こんにちは世界、今日はいい天気ですね。カタカナとひらがなと漢字を混ぜて書きます。
안녕하세요 세계, 오늘 날씨가 좋네요. 다람쥐 헌 쳇바퀴에 타고파. 한글 테스트입니다.
გამარჯობა მსოფლიო, როგორ ხარ? Բարեւ աշխարհ, ինչպե՞ս ես այսօր։ ሰላም ልዑል፣ እንዴት ነህ?
🙂 Hello 👋🏽 world 🌍! 👨‍👩‍👧‍👦 family, 🇩🇪🇫🇷 flags, ❤️ heart, 🏳️‍🌈 and 1️⃣ keycap.
def main(argc, argv):\n    for i in range(0, 10):\n        print(f"{i}: {argv[i]!r}")\n
int main(void)\n{\n\tconst char *s = "hello\\n";\n\treturn printf("%s", s) < 0;\n}\n
SELECT name, COUNT(*) FROM users WHERE id != 42 GROUP BY name HAVING COUNT(*) > 1;
<html><body class="a-b"><p>Text &amp; more</p></body></html> {"key": [1, 2.5e-3, null]}
https://example.org/path?x=1&y=%20#frag  user@example.com  C:\\Windows\\System32  /usr/bin
x² + y³ ≠ ½·z ≤ ∑ αβγ → ∞ √2 ≈ 1.414; №5 Ⅷ ① ٣٤٥ १२३ 四五 ㊿ €100 £20 ¥300
""".replace("\\n", "\n").replace("\\t", "\t")

LINES = [s for s in SENTENCES.split("\n") if s]
WORDS = [w for s in LINES for w in s.split(" ") if w]


def corpus():
    for s in LINES:
        for _ in range(4):
            yield s
    for _ in range(3000):
        yield " ".join(rng.choice(WORDS) for _ in range(12))
    for n in (2, 3, 4, 8, 16):
        for c in " \t\n":
            yield ("x" + c * n) * 40


CORPUS = list(corpus())


def train(pre, size, specials=(), nfc=False, alphabet=True, **options):
    tok = Tokenizer(models.BPE(**options))
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tok.train_from_iterator(CORPUS, trainer)
    tok.decoder = decoders.ByteLevel()
    return tok


def family(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def special(s, **flags):
    return AddedToken(s, special=True, normalized=False, **flags)


def begin(tok, bos, eos=None):
    single = "%s $A" % bos + (" %s" % eos if eos else "")
    tok.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(t, tok.token_to_id(t)) for t in (bos, eos) if t])


def make_llama3():
    tok = train(family(LLAMA3), 1500, ignore_merges=True)
    tok.add_tokens([special("<|begin_of_text|>"), special("<|end_of_text|>")] +
                   [special("<|reserved_special_token_%d|>" % i) for i in range(40)] +
                   [special("<|start_header_id|>"), special("<|end_header_id|>"),
                    special("<|eot_id|>")])
    inner = processors.ByteLevel(trim_offsets=True)
    begin(tok, "<|begin_of_text|>")
    tok.post_processor = processors.Sequence([inner, tok.post_processor])
    return tok


def make_qwen2():
    tok = train(family(QWEN2), 1500, nfc=True)
    tok.add_tokens([special(s) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] +
                   [AddedToken(s, normalized=False) for s in ("<think>", "</think>")])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def make_qwen35():
    tok = train(family(QWEN35), 1200, nfc=True)
    tok.add_tokens([special(s) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    return tok


def make_tekken():
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
             "[/SYSTEM_PROMPT]"]
    tok = train(family(TEKKEN), 1200, [special(s) for s in names], ignore_merges=True)
    begin(tok, "<s>")
    return tok


def make_gpt2():
    return train(pre_tokenizers.ByteLevel(add_prefix_space=False), 1200,
                 [special("<|endoftext|>")])


def make_smollm():
    # without the whole byte alphabet, as the released one is
    return train(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)]), 1200,
        [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")],
        alphabet=False)


def make_deepseek():
    tok = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 900)
    tok.add_tokens([special("<｜begin▁of▁sentence｜>"), special("<｜User｜>"),
                    AddedToken("<｜fim▁hole｜>", normalized=True),
                    special("<｜Assistant｜>"), special("<｜end▁of▁sentence｜>")])
    return tok


def make_odd():
    """added tokens of every kind, unk for runs of missing bytes, a space in front"""
    tok = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(" - ", "removed"),
        pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+|\s+"), "removed", invert=True),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)]),
        700, [special("<unk>")], nfc=True, alphabet=False, unk_token="<unk>",
        fuse_unk=True)
    tok.add_tokens([
        special("<mask>", lstrip=True), special("<pad>", rstrip=True),
        special("<both>", lstrip=True, rstrip=True),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("café", normalized=True), AddedToken("Å", normalized=True),
        AddedToken("ab", normalized=False), AddedToken("abcd", normalized=False),
        AddedToken("bcde", normalized=True), special("<b>"), special("<e>")])
    begin(tok, "<b>", "<e>")
    return tok


def make_odd2():
    """rewritten syntax: anchors, negated and nested sets, lazy and possessive repeats,
    matches of nothing, unk one by one"""
    tok = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"^[ \t]+|[^\S\r\n]+$|\h{6,}|\u00e9|\x{1F600}"),
                             "isolated"),
        pre_tokenizers.Split(Regex(r"(?=\p{Lu}\p{Ll})|(?<=[\p{Nd}\-])(?=\P{N})"),
                             "isolated"),
        pre_tokenizers.Split(Regex(
            r"(?i:straße|[A-F]+x?)|\p{Han}{,4}x|[\p{L}\p{M}&#-]+?(?!\p{^L})|"
            r"(?m:\{.{2,5}?\})|[^\W\d_]+|\D|\d"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        600, [special("<unk>")], alphabet=False, unk_token="<unk>")
    return tok


def make_glm():
    """llama3's pattern, but pieces are merged even when they are tokens as a whole"""
    tok = train(family(LLAMA3), 500)
    tok.add_tokens([special(s) for s in (
        "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>")] +
        [AddedToken(s, normalized=False) for s in ("<think>", "</think>")])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


MAKERS = dict(llama3=make_llama3, qwen2=make_qwen2, qwen35=make_qwen35,
              tekken=make_tekken, gpt2=make_gpt2, smollm=make_smollm,
              deepseek=make_deepseek, odd=make_odd, odd2=make_odd2, glm=make_glm)

# --- ranks of tokens, for tiktoken ---

UNREACHED = ["kvetch", " unmerged", "漢字漢字", "🙂🙂", "\n\n\n\n\n", "<s>", "(x)", "ǅǅ"]


def ranks(pattern, size):
    """tokens in the order of their ranks: bytes, what merging makes, what it does not"""
    tok = json.loads(train(family(pattern), size).to_str())["model"]["vocab"]
    printable = [c for c in range(256) if 33 <= c <= 126 or 161 <= c and c != 173]
    rest = [c for c in range(256) if c not in printable]
    byte = {chr(c): c for c in printable}
    byte.update({chr(256 + i): c for i, c in enumerate(rest)})
    texts = [bytes(byte[c] for c in t) for t, _ in sorted(tok.items(), key=lambda x: x[1])]
    out = [bytes([c]) for c in range(256)] + [t for t in texts if len(t) > 1]
    return out + [t.encode() for t in UNREACHED if t.encode() not in out]


class Ranks:
    """a tiktoken encoding that is called as the tokenizers are"""

    def __init__(self, tokens, pattern, specials, first=0, bos=None, sliced=False):
        self.encoding = tiktoken.Encoding(
            "golden", pat_str=pattern, special_tokens=specials,
            mergeable_ranks={t: first + i for i, t in enumerate(tokens)})
        self.bos, self.sliced = bos, sliced
        self.encode_special_tokens = False

    def parts(self, text):
        """what the code beside tiktoken.model hands over at once"""
        for i in range(0, len(text), 400000):
            part, begin, run = text[i:i + 400000], 0, 0
            for k, c in enumerate(part):
                run = run + 1 if run and c.isspace() == part[k - 1].isspace() else 1
                if run > 25000:
                    yield part[begin:k]
                    begin, run = k, 1
            yield part[begin:]

    def ids(self, text, add_special_tokens=False):
        out = [self.bos] if add_special_tokens and self.bos is not None else []
        for part in self.parts(text) if self.sliced else [text]:
            out += (self.encoding.encode_ordinary(part) if self.encode_special_tokens
                    else self.encoding.encode(part, allowed_special="all"))
        return out


def write(path, text):
    with open(os.path.join(HERE, path), "w") as f:
        f.write(text)


def b64(data):
    return base64.b64encode(data).decode()


def make_kimi():
    tokens = ranks(KIMI, 1100)
    n = len(tokens)
    named = {n: "[BOS]", n + 1: "[EOS]", n + 2: "<|im_end|>", n + 3: "<|im_user|>",
             n + 4: "<|im_assistant|>", n + 10: "<|im_system|>", n + 17: "<|im_middle|>",
             n + 20: "<think>", n + 21: "</think>", n + 255: "[PAD]"}
    os.makedirs(os.path.join(HERE, "kimi"), exist_ok=True)
    write("kimi/tiktoken.model",
          "".join("%s %d\n" % (b64(t), i) for i, t in enumerate(tokens)))
    write("kimi/tokenizer_config.json", json.dumps({
        "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
        "added_tokens_decoder": {str(i): {
            "content": s, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": "think" not in s}
            for i, s in named.items()}}, indent=1) + "\n")
    specials = {named.get(i, "<|reserved_token_%d|>" % i): i for i in range(n, n + 256)}
    return Ranks(tokens, KIMI, specials, sliced=True)


def make_tekken_ranks():
    tokens, n = ranks(TEKKEN, 700), 30
    listed = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
              "[/SYSTEM_PROMPT]"]
    write("tekken_ranks.json", json.dumps({
        "config": {"pattern": TEKKEN, "num_vocab_tokens": len(tokens) + 2,
                   "default_vocab_size": n + len(tokens), "default_num_special_tokens": n,
                   "version": "v11"},
        "vocab": [{"rank": i, "token_bytes": b64(t), **({} if i else {"token_str": "\0"})}
                  for i, t in enumerate(tokens + [b" the quick", b"abcdefgh"])],
        "special_tokens": [{"rank": i, "token_str": s, "is_control": True}
                           for i, s in enumerate(listed)]}, separators=(",", ":")) + "\n")
    # the last two of vocab lie beyond the size
    specials = {s: i for i, s in enumerate(listed)}
    specials.update({"<SPECIAL_%d>" % i: i for i in range(len(listed), n)})
    return Ranks(tokens, TEKKEN, specials, first=n, bos=1)

# --- strings ---


def by_class():
    """the first and the last code point of every run of equal general category and of
    every space and number class that a pattern may ask for, in a setting where the class
    decides the cut"""
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    cat = {c: unicodedata.category(chr(c)) for c in points}
    edges = [c for i, c in enumerate(points)
             if i == 0 or cat[c] != cat[points[i - 1]] or
             (i + 1 < len(points) and cat[c] != cat[points[i + 1]])]
    # what came after this Python's Unicode 14
    edges += [c for first, last in NEWER for c in (first - 1, first, last, last + 1)]
    edges = sorted(set(c for c in edges if 0 <= c < 0x110000 and
                       not 0xD800 <= c <= 0xDFFF))
    for i in range(0, len(edges), 4):
        yield "".join("a%sB %s1%s%s." % ((chr(c),) * 4) for c in edges[i:i + 4])


# letters, marks, numbers assigned by Unicode 15, 15.1, 16 and 17
NEWER = [(0x0CF3, 0x0CF3), (0x0ECE, 0x0ECE), (0x10EFD, 0x10EFF), (0x1123F, 0x11241),
         (0x11B00, 0x11B09), (0x11F00, 0x11F59), (0x1342F, 0x13455), (0x1B132, 0x1B155),
         (0x1D2C0, 0x1D2D3), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4F9),
         (0x31350, 0x323AF), (0x2EBF0, 0x2EE5D), (0x0897, 0x0897), (0x1C89, 0x1C8A),
         (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105F3), (0x10D40, 0x10D8F),
         (0x10EC2, 0x10EC4), (0x11380, 0x113E2), (0x116D0, 0x116E3), (0x11BC0, 0x11BF9),
         (0x16100, 0x16139), (0x16D40, 0x16D79), (0x1E5D0, 0x1E5FA), (0xA7CE, 0xA7D4),
         (0x088F, 0x088F), (0x10940, 0x10959), (0x11DB0, 0x11DE9), (0x16EA0, 0x16ED3),
         (0x16FF2, 0x16FF6), (0x1E6C0, 0x1E6FF), (0x323B0, 0x33479), (0x18CFF, 0x18D1E),
         (0x18D80, 0x18DF2), (0x1ACF, 0x1AEB)]

EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷🇯🇵", "👋🏽", "❤️", "1️⃣", "🧑🏿‍🚀", "☺", "🙂", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
         "👩‍❤️‍💋‍👨", "™", "©️", "🫠", "🪿", "🇺", "‍", "️"]
SPECIALS = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|im_start|>",
            "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<s>", "</s>",
            "[INST]", "[/INST]", "<｜User｜>", "<｜begin▁of▁sentence｜>", "<｜fim▁hole｜>",
            "<|reserved_special_token_1|>", "<|reserved_special_token_12|>", "<|",
            "<mask>", "<pad>", "<both>", "word", "café", "cafe\u0301", "Å", "A\u030a",
            "\u212b", "ab", "abcd", "bcde", "abcde", "<unk>", "<b>", "<e>"]
MARKS = [chr(c) for c in range(0x300, 0x370)] + [
    "\u0334", "\u0345", "\u05b0", "\u05bc", "\u064b", "\u0651", "\u093c", "\u094d",
    "\u0e38", "\u0eb8", "\u0f71", "\u1dc0", "\u20d0", "\u3099", "\u309a", "\u1dfa",
    "\u0898", "\u1ac1", "\u1dce", "\u0d3b", "\U0001e2ec", "\u1abf", "\u1c37"]
BASES = list("aeiouAEINOcsśṩÅḍộưẹ") + ["が", "か", "ハ", "は", "क", "ड", "한", "ᄒ",
                                        "ᅡ", "ᆫ", "\u1100\u1161\u11a8", "\u0b47",
                                        "\u0bc6", "\u0dd9", "\U00011131", "\U00011935"]
INVALID = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80",
           b"\xf4\x90\x80\x80", b"\x80\xbf", b"\xe0\x80\xaf", b"\xf8\x88\x80\x80\x80",
           b"\xfe", b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", b"\xf0\x80\x80\x80"]
CODE = ["\tif (x[i] != 0 && *p++ == '\\'') {\n\t\treturn -1;\r\n\t}\n",
        "for(;;){}//comment\n/* block */\n\n\n#define X(a,b) a##b\n",
        "class A<T: Fn(u8) -> R>: 'static { fn f(&'a self) {} }",
        "    def __init__(self, **kw):\n        self.x = {k: v for k, v in kw.items()}\n",
        "SELECT * FROM t WHERE a='it''s' AND b<>\"x\";\n--end", "$ ls -la | grep '^d' > /dev/null 2>&1",
        "\\frac{\\partial^2 u}{\\partial x^2} = e^{i\\pi}", "0xDEADBEEF 1e-10 1_000_000 0b1010 077",
        "<!-- x --><a href='#'>y</a>\n\n\n  <br/>", "@@ -1,5 +1,7 @@\n-old\n+new\n"]


def han_edges():
    """both sides of every border of the script Han, as kimi's words may meet it"""
    han = [c for c in range(0x2E80, 0x110000) if not 0xD800 <= c <= 0xDFFF and
           regex.match(r"\p{Han}", chr(c))]
    known = set(han)
    edges = sorted({k for c in han for k in (c - 1, c, c + 1)
                    if (c - 1 not in known or c + 1 not in known) and
                    unicodedata.category(chr(k)) != "Cs"})
    for i in range(0, len(edges), 3):
        yield "".join("a%sB%s's 1%s%s!%s\u0301%s" % ((chr(c),) * 6) for c in edges[i:i + 3])


MORE = ["IT'S it'S It's'S x'ſ 中's 'sA'll AB'll ABc'llD ʰ'd", "1〇2 〇〇 12〇4", "々a 〻々 A々b ⺀!⺀",
        "漢字漢字 漢字漢字漢字 kvetch kvetching unmerged (x)(x) <s>", "aǅǅǅb \n\n\n\n\n\n\n\n x",
        "<|reserved_token_1102|> [EOS][BOS] <|im_middle|><|im_end", "<SPECIAL_20><SPECIAL_3>"]


def runs():
    for c in [" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2028", "\u200b",
              "\u180e", "\u0085", "\x0b", "\x1c", "\u2003", "\u202f", "\ufeff", "\x00"]:
        for n in (1, 2, 3, 4, 7, 16, 33):
            yield c * n
            yield "a" + c * n + "b"
            yield "." + c * n + "1" + c * n
            yield c * n + "\n" + c * n + "x"


def texts():
    yield from ["", "a", " ", "'", "''", "'s", "'S", "'ſ", "’s", "it'ſ", "'Re'lL'VE'd'M",
                "x'll'x", "'tx", " 'twas", "K'ſtraße STRASSE straße", "ǅ ǈa ǅA ʰA Aʰ", "\ufffd"]
    yield from LINES
    yield from CODE
    yield from EMOJI
    yield from runs()
    for s in SPECIALS:
        yield s
        yield "a" + s + "b"
        yield "x \n " + s + " \t y" + s + s
        yield s[:-1] + " " + s + s[1:]
    for n in list(range(1, 12)) + [31, 100]:
        yield "1" * n
        yield "x%sy" % ("9" * n)
        yield "٣" * n + " " + "१" * n
    yield from by_class()
    for _ in range(250):
        yield "".join(rng.choice(BASES) + "".join(rng.choices(MARKS, k=rng.randint(0, 3)))
                      for _ in range(rng.randint(1, 5)))
    pool = WORDS + EMOJI + SPECIALS + [" ", "  ", "\n", "\n\n", "\t", "\r\n", "'s", "12"]
    for _ in range(350):
        yield "".join(rng.choice(pool) + rng.choice(["", " ", " ", "\n"])
                      for _ in range(rng.randint(1, 8)))
    for _ in range(150):  # anything at all
        yield "".join(chr(rng.choice([rng.randrange(0x80), rng.randrange(0x800),
                                      rng.randrange(0xD800),
                                      rng.randrange(0xE000, 0x110000)]))
                      for _ in range(rng.randint(1, 12)))
    cased = "aAbBǅʰʱªº中ㄱaÉéßẞ\u0301\u0345 .-'1²Ⅷ\n\r/_"
    for _ in range(150):  # what tekken's upper and lower runs turn on
        yield "".join(rng.choice(cased) for _ in range(rng.randint(2, 14)))
    for _ in range(100):  # what odd2's pattern turns on
        yield "".join(rng.choice(["ab", "Xy", " ", "\n", "-", "7", "é", "{a\nb}", "deadbeef",
                                  "漢字漢字漢", "&#", "STRAẞE", "straSSe", "FX", "\t", "😀"])
                      for _ in range(rng.randint(2, 9)))


def strings():
    out = [(t.encode(), 1) for t in texts()]
    for bad in INVALID:
        out += [(bad, 1), (b"ok " + bad + b"ok", 1), (bad * 3 + b"\n", 1)]
    for _ in range(60):
        out.append((bytes(rng.randrange(256) for _ in range(rng.randint(1, 16))), 1))
    for unit, n in [(b"a", 100000), (b" ", 50000), (b"\n", 20000), (b"ab", 30000),
                    ("中".encode(), 20000), ("é".encode(), 20000), (b"1", 30000),
                    (b"!?", 20000), ("e\u0301".encode(), 5000), (b" a", 30000),
                    ("\u0301".encode(), 300), (b"Aa", 20000), (b" \n", 20000),
                    ("ハ\u309a".encode(), 5000), (b"<", 20000), (b"\xff", 5000)]:
        out.append((unit, n))
    out += [(t.encode(), 1) for t in [*han_edges(), *MORE]]
    # where texts are cut: in the middle of a word, of a special token, of white space
    out += [(b"the over brown ", 27000), (b"x<|im_end|>", 37000), ("中 ".encode(), 201000),
            ("\u3000\u200b".encode(), 13000), (b"\x1c \x85".replace(b"\x85", b"\xc2\x85"), 9000)]
    return out


def ids_of(tok, text, **options):
    if isinstance(tok, Ranks):
        return tok.ids(text, **options)
    return tok.encode(text, **{"add_special_tokens": False, **options}).ids


SMALL = ("kimi", "tekken_ranks", "glm")


def write_all(name, tok, decoded, marked):
    small = name in SMALL

    def row(ids, **more):
        raw = b"".join(i.to_bytes(4, "little") for i in ids)
        if len(ids) > (6 if small else 48):
            digits = hashlib.sha256(raw).hexdigest()[:8 if small else 32]
            out = {**more, **({} if small else {"n": len(ids)}), "sha256": digits}
        else:
            out = {**more, "ids": b64(b"".join(i.to_bytes(2, "little") for i in ids))}
        return json.dumps(out, separators=(",", ":") if small else None) + "\n"

    with open(os.path.join(HERE, name + ".jsonl"), "w") as f:
        for i, t in enumerate(decoded):
            if not small or name == "kimi" or i % 3 != 2:
                f.write(row(ids_of(tok, t)))
        for i in marked[::4]:
            tok.encode_special_tokens = False
            both = [("special", ids_of(tok, decoded[i], add_special_tokens=True))]
            tok.encode_special_tokens = True
            both.append(("plain", ids_of(tok, decoded[i])))
            tok.encode_special_tokens = False
            for key, ids in both:
                f.write(row(ids, string=i, **{key: True}))


def main():
    items = strings()
    with open(os.path.join(HERE, "strings.jsonl"), "w") as f:
        for text, n in items:
            row = {"text": base64.b64encode(text).decode()}
            if n > 1:
                row["times"] = n
            f.write(json.dumps(row) + "\n")
    decoded = [(t * n).decode("utf-8", "replace") for t, n in items]
    marked = [i for i, t in enumerate(decoded) if len(t) < 200 and
              any(s in t for s in SPECIALS)]
    write_all("kimi", make_kimi(), decoded, marked)
    write_all("tekken_ranks", make_tekken_ranks(), decoded, marked)
    for name, make in MAKERS.items():
        tok = make()
        path = os.path.join(HERE, name + ".json")
        text = json.loads(tok.to_str())
        if name in ("gpt2", "odd"):  # the older form of merges
            text["model"]["merges"] = [" ".join(m) for m in text["model"]["merges"]]
        with open(path, "w") as f:
            json.dump(text, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        write_all(name, Tokenizer.from_file(path), decoded, marked)
    print(len(items), "strings,", len(MAKERS) + 2, "tokenizers,", tokenizers.__version__)


main()
