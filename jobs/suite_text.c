/* suite_text.c - suites out of plain text: what follows a prefix, and needles in it. */
#include <string.h>

#include "base/rng.h"
#include "jobs/suite_import.h"

enum {
    BYTES_PER_TOKEN = 4, /* without a tokenizer: what English takes */
    LEAST_TOKENS = 32,
    NEEDLE_SEED = 7,
    NEEDLES = 20,      /* per length when no limit is given */
    LEAST_LENGTH = 64, /* that can be asked for */
    HALVED_TO = 128,   /* lengths go from here by doubling */
    LENGTHS = 5,       /* at most */
};

/* Text with the byte at which each of its tokens begins. */
typedef struct ruler {
    kvm_str text;
    ptrdiff_t *at; /* (tokens + 1), rising */
    ptrdiff_t tokens;
} ruler;

static kvm_status measure_by_bytes(ruler *r, kvm_import *im, kvm_str text, kvm_err *err)
{
    *r = (ruler){.text = text, .tokens = text.len / BYTES_PER_TOKEN};
    r->at = kvm_new(im->keep, ptrdiff_t, r->tokens + 1);
    if (!r->at) return kvm_nomem(err, im->keep);
    for (ptrdiff_t i = 0; i <= r->tokens; i++) r->at[i] = i * BYTES_PER_TOKEN;
    return KVM_OK;
}

/* the text is what the tokens spell: normal forms may differ from the file's */
static kvm_status measure_by_tokens(ruler *r, kvm_import *im, kvm_str text,
                                    kvm_err *err)
{
    kvm_tokenizer *t;
    kvm_encoder *e;
    int32_t *ids;
    TRY(kvm_tokenizer_open(&t, im->keep, im->o->tokenizer, err));
    TRY(kvm_encoder_new(&e, im->keep, t, err));
    TRY(kvm_encode(e, text, &(kvm_encode_options){.plain_specials = true}, im->keep,
                   &ids, &r->tokens, err));
    TRY(kvm_decode(t, ids, r->tokens, false, im->keep, &r->text, err));
    r->at = kvm_new(im->keep, ptrdiff_t, r->tokens + 1);
    if (!r->at) return kvm_nomem(err, im->keep);
    for (ptrdiff_t i = 0; i < r->tokens; i++)
        r->at[i + 1] = r->at[i] + kvm_tokenizer_piece(t, ids[i]).len;
    return KVM_OK;
}

static kvm_status measure(ruler *r, kvm_import *im, kvm_err *err)
{
    kvm_str text;
    TRY(kvm_import_read(im, im->o->input, &text, err));
    return im->o->tokenizer.len ? measure_by_tokens(r, im, text, err)
                                : measure_by_bytes(r, im, text, err);
}

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* the first byte at or after `at` with white space on it; the end when there is none */
static ptrdiff_t next_blank(kvm_str s, ptrdiff_t at)
{
    while (at < s.len && !blank(s.at[at])) at++;
    return at;
}

/* the first byte after `at` that begins a sentence, else a word, before `end` */
static ptrdiff_t next_sentence(kvm_str s, ptrdiff_t at, ptrdiff_t end)
{
    for (ptrdiff_t i = at; i + 1 < end; i++)
        if ((s.at[i] == '.' || s.at[i] == '!' || s.at[i] == '?') && blank(s.at[i + 1]))
            return i + 2;
    const ptrdiff_t word = next_blank(s, at) + 1;
    return word < end ? word : end;
}

/* ---- text: prefixes of a stated length and what follows, an eighth as long ---- */

kvm_status kvm_import_text(kvm_import *im, kvm_err *err)
{
    const ptrdiff_t tokens = im->o->tokens ? im->o->tokens : 512,
                    after = tokens / 8 + 8;
    ruler r;
    TRY(measure(&r, im, err));
    for (ptrdiff_t t = 0; t + tokens + after + LEAST_TOKENS <= r.tokens;
         t += tokens + after + LEAST_TOKENS) {
        ptrdiff_t from = next_blank(r.text, r.at[t]);
        while (from < r.text.len && blank(r.text.at[from])) from++;
        const ptrdiff_t cut = next_blank(r.text, r.at[t + tokens]);
        const ptrdiff_t end = next_blank(r.text, r.at[t + tokens + after]);
        if (from >= cut || kvm_str_trim(kvm_str_slice(r.text, cut, end)).len == 0)
            continue;
        TRY(kvm_import_add(im,
                           json_pack("{s:o, s:o}", "prefix",
                                     kvm_import_str(kvm_str_slice(r.text, from, cut)),
                                     "continuation",
                                     kvm_import_str(kvm_str_slice(r.text, cut, end))),
                           err));
    }
    return KVM_OK;
}

/* ---- needle: a code is stated once, somewhere in the text, and asked for last ---- */

static kvm_str make_name(kvm_import *im, kvm_rng *rng)
{
    static const char *const onset[] = {"b", "d", "f",  "g",  "k",  "l",
                                        "m", "n", "p",  "r",  "s",  "t",
                                        "v", "z", "br", "dr", "gr", "tr"};
    static const char *const vowel[] = {"a", "e", "i", "o", "u"};
    enum {
        ONSETS = sizeof onset / sizeof *onset,
        VOWELS = sizeof vowel / sizeof *vowel
    };
    const char *part[7];
    for (int i = 0; i < 7; i++)
        part[i] = i % 2 ? vowel[kvm_rng_below(rng, VOWELS)]
                        : onset[kvm_rng_below(rng, ONSETS)];
    return kvm_str_fmt(im->keep, "%c%s%s%s%s%s%s", part[0][0] - 'a' + 'A', part[0] + 1,
                       part[1], part[2], part[3], part[4], part[5]);
}

/* one needle at `depth` of `length` tokens that begin somewhere in the text */
static kvm_status add_needle(kvm_import *im, const ruler *r, ptrdiff_t length,
                             double depth, kvm_rng *rng, kvm_err *err)
{
    const ptrdiff_t room = length - LEAST_TOKENS; /* the needle takes about so many */
    const ptrdiff_t first =
        (ptrdiff_t)kvm_rng_below(rng, (uint64_t)(r->tokens - length));
    const int code = 1000 + (int)kvm_rng_below(rng, 9000);
    const kvm_str name = make_name(im, rng);
    const ptrdiff_t end = next_blank(r->text, r->at[first + room]);
    const ptrdiff_t from = next_sentence(r->text, r->at[first], end);
    const ptrdiff_t in =
        next_sentence(r->text, from + (ptrdiff_t)(depth * (double)(end - from)), end);
    if (!name.at) return kvm_nomem(err, im->keep);
    const kvm_str head = kvm_str_trim(kvm_str_slice(r->text, from, in));
    const kvm_str tail = kvm_str_trim(kvm_str_slice(r->text, in, end));
    kvm_str prefix =
        kvm_str_fmt(im->keep, "%.*s The access code of %.*s is %d. %.*s",
                    KVM_STR_ARG(head), KVM_STR_ARG(name), code, KVM_STR_ARG(tail));
    kvm_str ask =
        kvm_str_fmt(im->keep,
                    "\n\nQuestion: What is the access code of %.*s?\nAnswer: The "
                    "access code of %.*s is",
                    KVM_STR_ARG(name), KVM_STR_ARG(name));
    kvm_str answer = kvm_str_fmt(im->keep, "%d", code);
    if (!prefix.at || !ask.at || !answer.at) return kvm_nomem(err, im->keep);
    return kvm_import_add(im,
                          json_pack("{s:o, s:o, s:o, s:I, s:f}", "prefix",
                                    kvm_import_str(kvm_str_trim(prefix)), "question",
                                    kvm_import_str(ask), "answer",
                                    kvm_import_str(answer), "length",
                                    (json_int_t)length, "depth", depth),
                          err);
}

kvm_status kvm_import_needle(kvm_import *im, kvm_err *err)
{
    const ptrdiff_t longest = im->o->tokens ? im->o->tokens : 2048;
    ptrdiff_t shortest = longest, lengths = 1;
    ruler r;
    TRY(measure(&r, im, err));
    if (longest < LEAST_LENGTH)
        return kvm_fail(err, KVM_RANGE, "needles need at least %d tokens",
                        LEAST_LENGTH);
    if (r.tokens <= longest)
        return kvm_fail(err, KVM_RANGE, "%.*s holds %td tokens; %td were asked for",
                        KVM_STR_ARG(im->o->input), r.tokens, longest);
    for (; lengths < LENGTHS && shortest / 2 >= HALVED_TO; lengths++) shortest /= 2;
    const ptrdiff_t limit = im->o->limit ? im->o->limit : NEEDLES * lengths;
    const ptrdiff_t each = (limit + lengths - 1) / lengths;
    for (ptrdiff_t l = 0, length = shortest; l < lengths; l++, length *= 2)
        for (ptrdiff_t i = 0; i < each; i++) {
            kvm_rng rng = kvm_rng_seed(NEEDLE_SEED, (uint64_t)(l * each + i));
            const double depth = ((double)i + 0.5) / (double)each;
            TRY(add_needle(im, &r, length, depth, &rng, err));
        }
    return KVM_OK;
}
