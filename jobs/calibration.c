#include "jobs/calibration.h"

#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "jobs/suite.h"
#include "models/unicode.h"

enum { TEXT_MAX_BYTES = 1 << 30, SHORTEST = 2 };
static const size_t WORK_BYTES = (size_t)16 << 30; /* address space only */

static kvm_status nothing(kvm_str path, kvm_err *err)
{
    return kvm_fail(err, KVM_USAGE, "%.*s: no sequence of at least %d tokens",
                    KVM_STR_ARG(path), SHORTEST);
}

static kvm_status start(kvm_calibration *c, kvm_arena *keep, ptrdiff_t sequences,
                        ptrdiff_t tokens, kvm_err *err)
{
    *c = (kvm_calibration){.offset = kvm_new(keep, ptrdiff_t, sequences + 1),
                           .ids = kvm_new_raw(keep, int32_t, sequences * tokens)};
    return c->offset && c->ids ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_text_begin(int32_t *bos, kvm_encoder *e, const kvm_tokenizer *t,
                          kvm_arena scratch, kvm_err *err)
{
    int32_t *ids;
    ptrdiff_t n;
    TRY(kvm_encode(e, KVM_STR(""), &(kvm_encode_options){.add_bos = true}, &scratch,
                   &ids, &n, err));
    const int32_t own = kvm_tokenizer_bos(t);
    *bos = n > 0 && ids[0] == own ? own : -1;
    return KVM_OK;
}

/* one sequence; begin-of-text stands before it unless there is none or it is there */
static void add(kvm_calibration *c, int32_t bos, const int32_t *ids, ptrdiff_t n)
{
    ptrdiff_t at = c->offset[c->sequences];
    if (bos >= 0 && ids[0] != bos) c->ids[at++] = bos;
    memcpy(c->ids + at, ids, (size_t)n * sizeof *ids);
    const ptrdiff_t length = at + n - c->offset[c->sequences];
    c->offset[++c->sequences] = at + n;
    if (length > c->longest) c->longest = length;
}

/* how many of n ids are taken so that begin-of-text still fits into `tokens` */
static ptrdiff_t room_for(int32_t bos, const int32_t *ids, ptrdiff_t n,
                          ptrdiff_t tokens)
{
    const ptrdiff_t room = tokens - (bos >= 0 && ids[0] != bos);
    return n < room ? n : room;
}

static kvm_status open_suite(kvm_suite **s, kvm_arena *work, kvm_str path, kvm_err *err)
{
    TRY(kvm_suite_read(s, work, path, err));
    return (*s)->kind == KVM_SUITE_CALIBRATION
               ? KVM_OK
               : kvm_fail(err, KVM_USAGE, "%.*s is not a calibration suite",
                          KVM_STR_ARG(path));
}

static kvm_status read_suite(kvm_calibration *c, kvm_arena *keep, kvm_arena *work,
                             kvm_str path, kvm_encoder *e, int32_t bos,
                             ptrdiff_t sequences, ptrdiff_t tokens, kvm_err *err)
{
    kvm_suite *s;
    TRY(open_suite(&s, work, path, err));
    if (sequences > s->count) sequences = s->count;
    TRY(start(c, keep, sequences, tokens, err));
    for (ptrdiff_t i = 0; i < s->count && c->sequences < sequences; i++) {
        kvm_arena each = *work;
        int32_t *ids;
        ptrdiff_t n;
        TRY(kvm_encode(e, s->items[i].prefix, NULL, &each, &ids, &n, err));
        if (n >= SHORTEST) add(c, bos, ids, room_for(bos, ids, n, tokens));
    }
    memcpy(c->sha, s->sha, sizeof c->sha);
    return KVM_OK;
}

static kvm_status open_text(kvm_str *text, kvm_arena *work, kvm_str path, kvm_err *err)
{
    TRY(kvm_file_read(text, work, path, TEXT_MAX_BYTES, err));
    return kvm_utf8_require(*text, path, err);
}

static kvm_status read_text(kvm_calibration *c, kvm_arena *keep, kvm_arena *work,
                            kvm_str path, kvm_encoder *e, int32_t bos,
                            ptrdiff_t sequences, ptrdiff_t tokens, kvm_err *err)
{
    kvm_str text;
    int32_t *ids;
    ptrdiff_t n;
    TRY(open_text(&text, work, path, err));
    TRY(kvm_encode(e, text, NULL, work, &ids, &n, err));
    const ptrdiff_t each = tokens - (bos >= 0), whole = (n + each - 1) / each;
    if (sequences > whole) sequences = whole;
    TRY(start(c, keep, sequences, tokens, err));
    for (ptrdiff_t s = 0; s < sequences; s++) {
        const ptrdiff_t left = n - s * each, take = left < each ? left : each;
        if (take + (bos >= 0) >= SHORTEST) add(c, bos, ids + s * each, take);
    }
    return kvm_sha_of(text, c->sha, err);
}

/* The sequences of a suite among its first `wanted` items that are long enough. */
static kvm_status count_suite(ptrdiff_t *found, char sha[65], kvm_arena *work,
                              kvm_str path, kvm_encoder *e, int32_t bos,
                              ptrdiff_t wanted, ptrdiff_t tokens, kvm_err *err)
{
    kvm_suite *s;
    (void)bos, (void)tokens;
    TRY(open_suite(&s, work, path, err));
    memcpy(sha, s->sha, 65);
    for (ptrdiff_t i = 0; i < s->count && *found < wanted; i++) {
        kvm_arena each = *work;
        int32_t *ids;
        ptrdiff_t n;
        TRY(kvm_encode(e, s->items[i].prefix, NULL, &each, &ids, &n, err));
        *found += n >= SHORTEST;
    }
    return KVM_OK;
}

/* The windows of a text, from as much of its front as holds all that are wanted: a part
 * is doubled until it has one more, since its last tokens may be cut. */
static kvm_status count_text(ptrdiff_t *found, char sha[65], kvm_arena *work,
                             kvm_str path, kvm_encoder *e, int32_t bos,
                             ptrdiff_t wanted, ptrdiff_t tokens, kvm_err *err)
{
    enum { BYTES_A_TOKEN = 6 };
    kvm_str text;
    const ptrdiff_t each = tokens - (bos >= 0);
    TRY(open_text(&text, work, path, err));
    TRY(kvm_sha_of(text, sha, err));
    if (wanted > text.len) wanted = text.len; /* a token has a byte */
    ptrdiff_t part = text.len;
    if (wanted < part / BYTES_A_TOKEN / each)
        part = (wanted + 1) * each * BYTES_A_TOKEN;
    for (;; part = part < text.len / 2 ? 2 * part : text.len) {
        kvm_arena here = *work;
        int32_t *ids;
        ptrdiff_t n, end = part;
        while (end < text.len && (text.at[end] & 0xC0) == 0x80) end++;
        TRY(kvm_encode(e, kvm_str_slice(text, 0, end), NULL, &here, &ids, &n, err));
        const ptrdiff_t whole = n / each, rest = n % each + (bos >= 0);
        *found = whole + (n % each > 0 && rest >= SHORTEST);
        if (*found > wanted) *found = wanted;
        if (whole > wanted || end == text.len) return KVM_OK;
    }
}

/* What counting and reading begin with; the caller frees work, whatever is returned. */
typedef struct opening {
    kvm_arena work;
    kvm_encoder *e;
    int32_t bos;
    bool suite;
} opening;

static kvm_status begin(opening *o, kvm_str path, const kvm_tokenizer *t, kvm_err *err)
{
    *o = (opening){.suite = kvm_str_ends(path, KVM_STR(".yaml"))};
    TRY(kvm_arena_reserve(&o->work, WORK_BYTES, err));
    TRY(kvm_encoder_new(&o->e, &o->work, t, err));
    return kvm_text_begin(&o->bos, o->e, t, o->work, err);
}

kvm_status kvm_calibration_count(ptrdiff_t *found, char sha[65], kvm_str path,
                                 const kvm_tokenizer *t, ptrdiff_t sequences,
                                 ptrdiff_t tokens, kvm_err *err)
{
    opening o;
    *found = 0;
    kvm_status s = begin(&o, path, t, err);
    if (!s)
        s = (o.suite ? count_suite : count_text)(found, sha, &o.work, path, o.e, o.bos,
                                                 sequences, tokens, err);
    kvm_arena_free(&o.work);
    if (!s && *found == 0) s = nothing(path, err);
    return s;
}

kvm_status kvm_calibration_read(kvm_calibration *c, kvm_arena *keep, kvm_str path,
                                const kvm_tokenizer *t, ptrdiff_t sequences,
                                ptrdiff_t tokens, kvm_err *err)
{
    opening o;
    kvm_status s = begin(&o, path, t, err);
    if (!s)
        s = (o.suite ? read_suite : read_text)(c, keep, &o.work, path, o.e, o.bos,
                                               sequences, tokens, err);
    kvm_arena_free(&o.work);
    if (!s && c->sequences == 0) s = nothing(path, err);
    return s;
}

kvm_status kvm_calibration_hash(char sha[65], kvm_str path, kvm_arena scratch,
                                kvm_err *err)
{
    if (!kvm_str_ends(path, KVM_STR(".yaml")))
        return kvm_sha_file(path, sha, scratch, err);
    kvm_arena work = {0};
    TRY(kvm_arena_reserve(&work, WORK_BYTES, err));
    kvm_suite *suite;
    const kvm_status s = kvm_suite_read(&suite, &work, path, err);
    if (!s) memcpy(sha, suite->sha, 65);
    kvm_arena_free(&work);
    return s;
}

/* An open-addressed set of window hashes. A false hit needs a 64-bit collision. */
struct kvm_overlap {
    uint64_t *slot; /* 0 = empty */
    ptrdiff_t mask;
};

/* rolling polynomial hash over a window: cheap enough for every start position */
static const uint64_t BASE = 0x9e3779b97f4a7c15u;

static uint64_t top_power(void)
{
    uint64_t p = 1;
    for (int i = 1; i < KVM_OVERLAP_TOKENS; i++) p *= BASE;
    return p;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x ? x : 1;
}

static bool visit(const kvm_overlap *o, uint64_t h, bool insert)
{
    ptrdiff_t i = (ptrdiff_t)(h & (uint64_t)o->mask);
    while (o->slot[i] && o->slot[i] != h) i = (i + 1) & o->mask;
    const bool found = o->slot[i] == h;
    if (insert) o->slot[i] = h;
    return found;
}

/* every window of ids: inserted, or looked for (then the first hit is returned) */
static ptrdiff_t windows(const kvm_overlap *o, const int32_t *ids, ptrdiff_t n,
                         bool insert)
{
    const uint64_t top = top_power();
    uint64_t h = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i >= KVM_OVERLAP_TOKENS)
            h -= (uint64_t)(uint32_t)(ids[i - KVM_OVERLAP_TOKENS] + 1) * top;
        h = h * BASE + (uint64_t)(uint32_t)(ids[i] + 1);
        if (i + 1 < KVM_OVERLAP_TOKENS) continue;
        if (visit(o, mix(h), insert) && !insert) return i + 1 - KVM_OVERLAP_TOKENS;
    }
    return -1;
}

kvm_status kvm_overlap_new(kvm_overlap **out, kvm_arena *keep, const kvm_calibration *c,
                           kvm_err *err)
{
    ptrdiff_t size = 1024;
    while (size < 2 * c->offset[c->sequences]) size *= 2;
    kvm_overlap *o = kvm_new(keep, kvm_overlap, 1);
    if (!o || !(o->slot = kvm_new(keep, uint64_t, size))) return kvm_nomem(err, keep);
    o->mask = size - 1;
    for (ptrdiff_t s = 0; s < c->sequences; s++)
        windows(o, c->ids + c->offset[s], c->offset[s + 1] - c->offset[s], true);
    *out = o;
    return KVM_OK;
}

ptrdiff_t kvm_overlap_find(const kvm_overlap *o, const int32_t *ids, ptrdiff_t n)
{
    return windows(o, ids, n, false);
}
