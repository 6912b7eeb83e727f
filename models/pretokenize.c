/* Running a pre-tokenizer: each step cuts the pieces of the step before. */
#include "models/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#include "models/pretokenize_regex.h"
#include "models/unicode.h"

enum { JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 8 << 20 };

struct kvm_splitter {
    const kvm_pretokenizer *pre;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool prefixes; /* KVM_STEP_PREFIX is among the steps */
    /* a piece with a space put in front, which may be the whole text. One is enough:
     * that step belongs to ByteLevel, which stands last, so that a list has at most
     * one. */
    unsigned char *spaced;
    ptrdiff_t spaced_cap;
    kvm_emit *emit; /* of the split that is running */
    void *ctx;
    kvm_err *err;
};

static void release(void *arg)
{
    kvm_splitter *s = arg;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s->spaced);
}

kvm_status kvm_splitter_new(kvm_splitter **out, kvm_arena *keep,
                            const kvm_pretokenizer *pre, kvm_err *err)
{
    kvm_splitter *s = kvm_new(keep, kvm_splitter, 1);
    if (!s) return kvm_nomem(err, keep);
    s->pre = pre;
    for (int i = 0; i < pre->n; i++)
        if (pre->step[i].kind == KVM_STEP_PREFIX) s->prefixes = true;
    TRY(kvm_arena_defer(keep, release, s, err));
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!s->match || !s->context || !s->stack)
        return kvm_fail(err, KVM_NOMEM, "no memory to match patterns");
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    *out = s;
    return KVM_OK;
}

typedef const unsigned char *at;
static kvm_status cut(kvm_splitter *s, int step, at p, at end);

static kvm_status by_matcher(kvm_splitter *s, int step, at p, at end)
{
    kvm_piece_end *match = s->pre->step[step].match;
    const bool last = step + 1 == s->pre->n;
    while (p < end) {
        at next = match(s->pre->classes, p, end);
        TRY(last ? s->emit(s->ctx, p, next - p, s->err) : cut(s, step + 1, p, next));
        p = next;
    }
    return KVM_OK;
}

static kvm_status part(kvm_splitter *s, int step, at p, at end, bool drop)
{
    return drop || p == end ? KVM_OK : cut(s, step + 1, p, end);
}

/* Oniguruma's iteration as the reference runs it: an empty match counts (it cuts)
 * unless it stands at the end of the match before, in which case the search moves on by
 * one character. */
static kvm_status by_regex(kvm_splitter *s, int step, at p, at end)
{
    const kvm_step *st = &s->pre->step[step];
    const size_t n = (size_t)(end - p);
    size_t from = 0, done = 0, last_end = SIZE_MAX;
    while (from <= n) {
        const int rc = pcre2_match(st->re->code, p, n, from, PCRE2_NO_UTF_CHECK,
                                   s->match, s->context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0)
            return kvm_fail(s->err, KVM_RANGE,
                            "the tokenizer's pattern gave up on a piece of %zu bytes "
                            "(PCRE2 error %d)",
                            n, rc);
        /* copied: deeper steps use the same match data */
        const size_t *ov = pcre2_get_ovector_pointer(s->match);
        const size_t first = ov[0], after = ov[1];
        if (first == after && after == last_end) {
            at next = p + from;
            if (from < n) (void)kvm_utf8_next(&next);
            from = from < n ? (size_t)(next - p) : n + 1;
            continue;
        }
        TRY(part(s, step, p + done, p + first, st->drop_rest));
        TRY(part(s, step, p + first, p + after, st->drop_match));
        done = from = last_end = after;
    }
    return part(s, step, p + done, end, st->drop_rest);
}

/* Rust's char::is_numeric is one Unicode version ahead of the patterns' \p{N}. */
static bool is_numeric(const unsigned char *classes, uint32_t c)
{
    return (classes[c] & KVM_CH_NUMBER) || (c >= 0x11DE0 && c <= 0x11DE9) ||
           (c >= 0x16FF4 && c <= 0x16FF6);
}

static kvm_status by_digits(kvm_splitter *s, int step, at p, at end)
{
    at begin = p, next;
    bool number = false; /* what begin .. p is */
    for (; p < end; p = next) {
        next = p;
        const bool is = is_numeric(s->pre->classes, kvm_utf8_next(&next));
        if (p > begin && (is != number || (is && s->pre->step[step].each))) {
            TRY(cut(s, step + 1, begin, p));
            begin = p;
        }
        number = is;
    }
    return part(s, step, begin, end, false);
}

static kvm_status with_prefix(kvm_splitter *s, int step, at p, at end)
{
    const ptrdiff_t n = end - p;
    if (*p == ' ') return cut(s, step + 1, p, end);
    s->spaced[0] = ' ';
    memcpy(s->spaced + 1, p, (size_t)n);
    return cut(s, step + 1, s->spaced, s->spaced + n + 1);
}

/* [p, end) is not empty */
static kvm_status cut(kvm_splitter *s, int step, at p, at end)
{
    if (step == s->pre->n) return s->emit(s->ctx, p, end - p, s->err);
    switch (s->pre->step[step].kind) {
    case KVM_STEP_MATCHER:
        return by_matcher(s, step, p, end);
    case KVM_STEP_REGEX:
        return by_regex(s, step, p, end);
    case KVM_STEP_DIGITS:
        return by_digits(s, step, p, end);
    case KVM_STEP_PREFIX:
        return with_prefix(s, step, p, end);
    }
    return kvm_fail(s->err, KVM_INTERNAL, "unknown step of a pre-tokenizer");
}

static kvm_status reserve(kvm_splitter *s, ptrdiff_t n, kvm_err *err)
{
    if (!s->prefixes || n <= s->spaced_cap) return KVM_OK;
    free(s->spaced);
    s->spaced_cap = 0;
    s->spaced = malloc(2 * (size_t)n);
    if (!s->spaced)
        return kvm_fail(err, KVM_NOMEM, "no memory for a piece of %td bytes", n);
    s->spaced_cap = 2 * n;
    return KVM_OK;
}

kvm_status kvm_split(kvm_splitter *s, kvm_str text, kvm_emit *emit, void *ctx,
                     kvm_err *err)
{
    TRY(reserve(s, text.len + 1, err));
    s->emit = emit;
    s->ctx = ctx;
    s->err = err;
    at p = (at)text.at;
    return text.len > 0 ? cut(s, 0, p, p + text.len) : KVM_OK;
}
