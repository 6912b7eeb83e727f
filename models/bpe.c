/* The tables of a byte-level BPE; merging itself is in bpe_encode.c. */
#include "models/bpe.h"

#include <string.h>

#include "models/bpe_internal.h"
#include "models/unicode.h"

/* Ids may have holes, but a claim far beyond what the file holds is refused. */
enum { SPARE_IDS = 1 << 16, LARGEST_ID = INT32_MAX / 2 };

/* The GPT-2 alphabet: printable Latin-1 bytes stand for themselves, the other 68 for
 * U+0100 onwards in ascending order. Returns the byte that character c stands for, -1
 * for none. */
static int byte_of(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xFF && c != 0xAD))
        return (int)c;
    if (c < 0x100 || c >= 0x100 + 68) return -1;
    const int n = (int)c - 0x100;
    if (n <= 0x20) return n;               /* 00..20 */
    if (n <= 0x42) return n - 0x21 + 0x7F; /* 7F..A0 */
    return 0xAD;
}

/* text in the GPT-2 alphabet to bytes, out holds text.len; false: it has others */
static bool to_bytes(char *out, ptrdiff_t *len, kvm_str text)
{
    const unsigned char *p = (const unsigned char *)text.at, *end = p + text.len;
    ptrdiff_t n = 0;
    if (kvm_utf8_valid(text) != text.len) return false;
    while (p < end) {
        const int b = byte_of(kvm_utf8_next(&p));
        if (b < 0) return false;
        out[n++] = (char)b;
    }
    *len = n;
    return true;
}

uint64_t kvm_bpe__hash(kvm_str s)
{
    uint64_t h = (uint64_t)s.len * 0x9E3779B97F4A7C15u, word;
    ptrdiff_t i = 0;
    for (; i + 8 <= s.len; i += 8) {
        memcpy(&word, s.at + i, 8);
        h = (h ^ word) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    word = 0;
    if (i < s.len) memcpy(&word, s.at + i, (size_t)(s.len - i));
    h = (h ^ word) * 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 29;
}

static uint64_t slots_for(ptrdiff_t n)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n) slots *= 2;
    return slots;
}

/* the slot that holds the text, or the empty one where it belongs */
static uint64_t text_slot(const kvm_bpe *b, kvm_str raw, bool verbatim)
{
    uint64_t at = kvm_bpe__hash(raw) & b->text_mask;
    for (; b->by_text[at] >= 0; at = (at + 1) & b->text_mask) {
        const int32_t id = b->by_text[at];
        if (b->verbatim[id] == verbatim && kvm_str_eq(b->piece[id], raw)) break;
    }
    return at;
}

int32_t kvm_bpe__find_raw(const kvm_bpe *b, kvm_str raw)
{
    return b->by_text[text_slot(b, raw, false)];
}

kvm_status kvm_bpe_begin(kvm_bpe *b, kvm_arena *keep, ptrdiff_t pieces, kvm_err *err)
{
    *b = (kvm_bpe){.unk = -1};
    if (pieces > LARGEST_ID / 4)
        return kvm_fail(err, KVM_RANGE, "a vocabulary of %td tokens", pieces);
    b->limit = 2 * pieces + SPARE_IDS;
    b->text_mask = slots_for(pieces) - 1;
    b->piece = kvm_new(keep, kvm_str, b->limit);
    b->verbatim = kvm_new(keep, unsigned char, b->limit);
    b->by_text = kvm_new_raw(keep, int32_t, (ptrdiff_t)b->text_mask + 1);
    if (!b->piece || !b->verbatim || !b->by_text) return kvm_nomem(err, keep);
    memset(b->by_text, 0xFF, sizeof(int32_t) * (b->text_mask + 1));
    return KVM_OK;
}

/* A place for the token's bytes, with what can be wrong with its id. */
static kvm_status room_for(kvm_bpe *b, kvm_arena *keep, int64_t id, kvm_str text,
                           char **raw, kvm_err *err)
{
    if (id < 0 || id >= b->limit)
        return kvm_fail(err, KVM_FORMAT,
                        "token \"%s\" has id %lld, which is not in 0 .. %td",
                        kvm_quote(text).at, (long long)id, b->limit - 1);
    if (b->piece[id].at)
        return kvm_fail(err, KVM_FORMAT, "tokens \"%s\" and \"%s\" share id %lld",
                        kvm_quote(b->piece[id]).at, kvm_quote(text).at, (long long)id);
    *raw = kvm_new(keep, char, text.len + 1);
    return *raw ? KVM_OK : kvm_nomem(err, keep);
}

/* text: as the file has it, for messages */
static kvm_status place(kvm_bpe *b, int64_t id, kvm_str piece, bool verbatim,
                        kvm_str text, kvm_err *err)
{
    const uint64_t slot = text_slot(b, piece, verbatim);
    if (b->by_text[slot] >= 0)
        return kvm_fail(err, KVM_FORMAT, "token \"%s\" has the ids %d and %lld",
                        kvm_quote(text).at, (int)b->by_text[slot], (long long)id);
    b->piece[id] = piece;
    b->verbatim[id] = verbatim;
    b->by_text[slot] = (int32_t)id;
    if (id >= b->size) b->size = (ptrdiff_t)id + 1;
    return KVM_OK;
}

kvm_status kvm_bpe_add(kvm_bpe *b, kvm_arena *keep, int64_t id, kvm_str text,
                       kvm_err *err)
{
    char *raw;
    ptrdiff_t len = text.len;
    TRY(room_for(b, keep, id, text, &raw, err));
    const bool verbatim = !to_bytes(raw, &len, text);
    if (verbatim) memcpy(raw, text.at, (size_t)text.len);
    return place(b, id, (kvm_str){raw, len}, verbatim, text, err);
}

kvm_status kvm_bpe_add_raw(kvm_bpe *b, kvm_arena *keep, int64_t id, kvm_str bytes,
                           kvm_err *err)
{
    char *raw;
    TRY(room_for(b, keep, id, bytes, &raw, err));
    if (bytes.len > 0) memcpy(raw, bytes.at, (size_t)bytes.len);
    return place(b, id, (kvm_str){raw, bytes.len}, false, bytes, err);
}

int32_t kvm_bpe_find(const kvm_bpe *b, kvm_str text, kvm_arena scratch)
{
    ptrdiff_t len = text.len;
    char *raw = kvm_new_raw(&scratch, char, text.len + 1);
    if (!raw) return -1;
    if (!to_bytes(raw, &len, text)) return b->by_text[text_slot(b, text, true)];
    return kvm_bpe__find_raw(b, (kvm_str){raw, len});
}

kvm_status kvm_bpe_begin_merges(kvm_bpe *b, kvm_arena *keep, ptrdiff_t merges,
                                kvm_err *err)
{
    if (merges > LARGEST_ID / 4)
        return kvm_fail(err, KVM_RANGE, "a list of %td merges", merges);
    b->pair_mask = slots_for(merges) - 1;
    b->merges = kvm_new(keep, kvm_merge, merges);
    b->pairs = kvm_new_raw(keep, kvm_bpe_pair, (ptrdiff_t)b->pair_mask + 1);
    if (!b->merges || !b->pairs) return kvm_nomem(err, keep);
    memset(b->pairs, 0xFF, sizeof *b->pairs * (b->pair_mask + 1));
    return KVM_OK;
}

static kvm_status no_token(const kvm_bpe *b, kvm_str text, kvm_err *err)
{
    return kvm_fail(err, KVM_FORMAT,
                    "merge %td needs the token \"%s\", which is not in the vocabulary",
                    b->n_merges + 1, kvm_quote(text).at);
}

kvm_status kvm_bpe_add_merge(kvm_bpe *b, kvm_str left, kvm_str right, kvm_arena scratch,
                             kvm_err *err)
{
    char *both = kvm_new_raw(&scratch, char, left.len + right.len + 1);
    if (!both) return kvm_nomem(err, &scratch);
    memcpy(both, left.at, (size_t)left.len);
    memcpy(both + left.len, right.at, (size_t)right.len);
    const kvm_str whole = {both, left.len + right.len};
    const kvm_merge m = {.left = kvm_bpe_find(b, left, scratch),
                         .right = kvm_bpe_find(b, right, scratch),
                         .made = kvm_bpe_find(b, whole, scratch)};
    if (m.left < 0) return no_token(b, left, err);
    if (m.right < 0) return no_token(b, right, err);
    if (m.made < 0) return no_token(b, whole, err);
    const uint32_t rank = (uint32_t)b->n_merges;
    kvm_bpe_pair *p = kvm_bpe__pair(b, m.left, m.right);
    /* a pair listed twice: the last rank counts, as in the reference */
    *p = (kvm_bpe_pair){kvm_bpe__key(m.left, m.right), rank, m.made};
    b->merges[b->n_merges++] = m;
    return KVM_OK;
}

void kvm_bpe_end(kvm_bpe *b)
{
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        b->byte_id[i] = kvm_bpe__find_raw(b, (kvm_str){&byte, 1});
    }
}

/* The ways to cut a token in two tokens: how many, and with `rows` each as a row. */
static ptrdiff_t cuts_of(kvm_bpe *b, int32_t id, bool rows)
{
    const kvm_str t = b->piece[id];
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 1; i < t.len; i++) {
        kvm_merge m = {.made = id};
        m.left = kvm_bpe__find_raw(b, kvm_str_slice(t, 0, i));
        if (m.left < 0) continue;
        m.right = kvm_bpe__find_raw(b, kvm_str_slice(t, i, t.len));
        if (m.right < 0) continue;
        n++;
        if (!rows) continue;
        b->merges[b->n_merges++] = m;
        *kvm_bpe__pair(b, m.left, m.right) =
            (kvm_bpe_pair){kvm_bpe__key(m.left, m.right), (uint32_t)id, id};
    }
    return n;
}

kvm_status kvm_bpe_end_by_rank(kvm_bpe *b, kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t cuts = 0;
    kvm_bpe_end(b);
    for (int i = 0; i < 256; i++)
        if (b->byte_id[i] < 0)
            return kvm_fail(err, KVM_FORMAT,
                            "the byte 0x%02x is no token of its own: part of the file "
                            "is missing, fetch it again",
                            i);
    for (int32_t id = 0; id < b->size; id++) cuts += cuts_of(b, id, false);
    TRY(kvm_bpe_begin_merges(b, keep, cuts, err));
    for (int32_t id = 0; id < b->size; id++) (void)cuts_of(b, id, true);
    b->by_rank = b->ignore_merges = true;
    return KVM_OK;
}
