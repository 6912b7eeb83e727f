/* Hand-written matchers for the patterns of pretokenizers.def.
 *
 * A backtracking engine tries alternatives in order and, inside one, gives back what a
 * greedy repeat took too much. Each function below says where that ends up, in one pass
 * over the piece. Every character is a letter, a number, a space or something else
 * ("other": punctuation, symbols, marks, controls), so that the last alternatives cover
 * all text. */
#include <string.h>

#include "models/pretokenize.h"
#include "models/unicode.h"

typedef const unsigned char *at; /* a place in the text */

/* class of the character at p, *next behind it */
static inline unsigned peek(at classes, at p, at *next)
{
    if (*p < 0x80) {
        *next = p + 1;
        return classes[*p];
    }
    *next = p;
    return classes[kvm_utf8_next(next)];
}

static inline at run(at classes, at p, at end, unsigned mask)
{
    for (at next; p < end && (peek(classes, p, &next) & mask); p = next) {
    }
    return p;
}

static inline at run_without(at classes, at p, at end, unsigned mask)
{
    for (at next; p < end && !(peek(classes, p, &next) & mask); p = next) {
    }
    return p;
}

static inline bool is_break(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* 's 't 're 've 'm 'll 'd with p at the apostrophe; NULL: none of them. Folding case
 * over all of Unicode adds one character, the long s. */
static inline at contraction(at p, at end, bool fold)
{
    const unsigned char lower = fold ? 0x20 : 0;
    if (end - p < 2) return NULL;
    const unsigned char a = p[1] | lower;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    if (end - p < 3) return NULL;
    const unsigned char b = p[2] | lower;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return p + 3;
    return fold && p[1] == 0xC5 && p[2] == 0xBF ? p + 3 : NULL;
}

/* `\s*[\r\n]+|\s+(?!\S)|\s+` (without its first alternative when !breaks) with a space
 * at p. The first gives back to the last line break of the run; the second leaves the
 * last space to the word behind it, unless the text ends or there is only one. */
static inline at spaces(at classes, at p, at end, bool breaks)
{
    at last = p, after_break = NULL, q = p, next;
    for (; q < end && (peek(classes, q, &next) & KVM_CH_SPACE); q = next) {
        last = q;
        if (breaks && is_break(*q)) after_break = next;
    }
    if (after_break) return after_break;
    return q == end || last == p ? q : last;
}

/* ` ?[^word number space]+[\r\n]*` or with `[\r\n/]*`; NULL: no such piece at p */
static inline at others(at classes, at p, at end, unsigned word, bool breaks,
                        bool slash)
{
    const unsigned not_other = word | KVM_CH_NUMBER | KVM_CH_SPACE;
    at q = p;
    if (*q == ' ' && q + 1 < end) q++;
    at r = run_without(classes, q, end, not_other);
    if (r == q) return NULL;
    while (breaks && r < end && (is_break(*r) || (slash && *r == '/'))) r++;
    return r;
}

/* `\p{N}{1,most}`; NULL: no number at p */
static inline at numbers(at classes, at p, at end, int most)
{
    at q = p, next;
    for (int n = 0; n < most && q < end; n++, q = next)
        if (!(peek(classes, q, &next) & KVM_CH_NUMBER)) break;
    return q > p ? q : NULL;
}

/* The family of llama3, qwen2 and qwen3.5: which characters make words, and how many
 * digits make a number. `[^\r\n\p{L}\p{N}]?word+` first takes any one character that is
 * no letter, number or line break, then tries without. */
static inline at match_words(at classes, at p, at end, unsigned word, int digits)
{
    at next, after;
    if (*p == '\'') {
        after = contraction(p, end, true);
        if (after) return after;
    }
    const unsigned c = peek(classes, p, &next);
    if (!(c & (KVM_CH_LETTER | KVM_CH_NUMBER)) && !is_break(*p) && next < end &&
        (peek(classes, next, &after) & word))
        return run(classes, after, end, word);
    if (c & word) return run(classes, next, end, word);
    after = numbers(classes, p, end, digits);
    if (!after) after = others(classes, p, end, word | KVM_CH_LETTER, true, false);
    return after ? after : spaces(classes, p, end, true);
}

static at match_llama3(at classes, at p, at end)
{
    return match_words(classes, p, end, KVM_CH_LETTER, 3);
}

static at match_qwen2(at classes, at p, at end)
{
    return match_words(classes, p, end, KVM_CH_LETTER, 1);
}

static at match_qwen35(at classes, at p, at end)
{
    return match_words(classes, p, end, KVM_CH_LETTER | KVM_CH_MARK, 1);
}

static at match_gpt2(at classes, at p, at end)
{
    at next, after;
    if (*p == '\'') {
        after = contraction(p, end, false);
        if (after) return after;
    }
    at q = *p == ' ' && p + 1 < end ? p + 1 : p;
    const unsigned c = peek(classes, q, &next);
    if (c & KVM_CH_LETTER) return run(classes, next, end, KVM_CH_LETTER);
    if (c & KVM_CH_NUMBER) return run(classes, next, end, KVM_CH_NUMBER);
    after = others(classes, p, end, KVM_CH_LETTER, false, false);
    return after ? after : spaces(classes, p, end, false);
}

enum {
    HEAD = KVM_CH_UPPER | KVM_CH_OTHER | KVM_CH_MARK, /* Lu Lt Lm Lo M */
    TAIL = KVM_CH_LOWER | KVM_CH_OTHER | KVM_CH_MARK  /* Ll Lm Lo M */
};

/* Class of a character of a word. In kimi's words Han counts as nothing; its first
 * character is U+2E80, E2 BA 80. */
static inline unsigned word_class(at classes, at p, at *next, bool no_han)
{
    if (!no_han || *p < 0xE2) return peek(classes, p, next);
    *next = p;
    const uint32_t c = kvm_utf8_next(next);
    return c >= 0x2E80 && kvm_unicode_is_han(c) ? 0 : classes[c];
}

static inline at word_run(at classes, at p, at end, unsigned mask, bool no_han)
{
    for (at next; p < end && (word_class(classes, p, &next, no_han) & mask); p = next) {
    }
    return p;
}

/* `HEAD* TAIL+`: HEAD* takes its whole run; when no TAIL follows it gives back up to
 * the last character that is both, which TAIL+ then takes alone. */
static inline at head_tail(at classes, at p, at end, bool no_han)
{
    at both = NULL, next;
    for (; p < end; p = next) {
        const unsigned c = word_class(classes, p, &next, no_han);
        if (!(c & HEAD))
            return c & TAIL ? word_run(classes, next, end, TAIL, no_han) : both;
        if (c & TAIL) both = next;
    }
    return both;
}

/* `HEAD+ TAIL*`, tried where `HEAD* TAIL+` found nothing */
static inline at heads(at classes, at p, at end, bool no_han)
{
    at q = word_run(classes, p, end, HEAD, no_han);
    return q == p ? NULL : word_run(classes, q, end, TAIL, no_han);
}

/* The words of tekken and kimi, after any one character that is no letter, number or
 * line break, or else without; NULL: none at p. */
static inline at cased_word(at classes, at p, at end, bool no_han)
{
    at next;
    const unsigned c = peek(classes, p, &next);
    at skipped = !(c & (KVM_CH_LETTER | KVM_CH_NUMBER)) && !is_break(*p) ? next : NULL;
    at q = skipped ? head_tail(classes, skipped, end, no_han) : NULL;
    if (!q) q = head_tail(classes, p, end, no_han);
    if (!q && skipped) q = heads(classes, skipped, end, no_han);
    return q ? q : heads(classes, p, end, no_han);
}

static at match_tekken(at classes, at p, at end)
{
    at next, q = cased_word(classes, p, end, false);
    if (q) return q;
    if (peek(classes, p, &next) & KVM_CH_NUMBER) return next;
    q = others(classes, p, end, KVM_CH_LETTER, true, true);
    return q ? q : spaces(classes, p, end, true);
}

static at han_run(at p, at end)
{
    for (at next = p; p < end; p = next)
        if (*p < 0xE2 || !kvm_unicode_is_han(kvm_utf8_next(&next))) break;
    return p;
}

static at match_kimi(at classes, at p, at end)
{
    at q = han_run(p, end);
    if (q > p) return q;
    q = cased_word(classes, p, end, true);
    if (q) {
        at after = q < end && *q == '\'' ? contraction(q, end, true) : NULL;
        return after ? after : q;
    }
    q = numbers(classes, p, end, 3);
    if (!q) q = others(classes, p, end, KVM_CH_LETTER, true, false);
    return q ? q : spaces(classes, p, end, true);
}

const kvm_pattern kvm_patterns[] = {
#define X(name, gguf, ignore, nfc, digits, bos, text, match)                           \
    {#name, gguf, ignore, nfc, digits, bos, text, match},
#include "models/pretokenizers.def"
#undef X
};
const ptrdiff_t kvm_patterns_n = sizeof kvm_patterns / sizeof *kvm_patterns;

const kvm_pattern *kvm_pattern_by_text(kvm_str text)
{
    for (ptrdiff_t i = 0; i < kvm_patterns_n; i++)
        if (kvm_str_eq(text, kvm_str_of(kvm_patterns[i].text))) return &kvm_patterns[i];
    return NULL;
}

const kvm_pattern *kvm_pattern_by_name(const char *name)
{
    for (ptrdiff_t i = 0; i < kvm_patterns_n; i++)
        if (strcmp(name, kvm_patterns[i].name) == 0) return &kvm_patterns[i];
    return NULL;
}
