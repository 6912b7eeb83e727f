/* Merging the bytes of one piece into tokens. */
#include <stdlib.h>
#include <string.h>

#include "models/bpe.h"
#include "models/bpe_internal.h"

/* SHORT: up to here an array scan beats a heap. A cache row is one cache line: pieces
 * of at most KEY bytes that became at most IDS tokens. 2^15 rows take 2 MiB. */
enum { SHORT = 64, KEY = 30, IDS = 8, ROWS = 1 << 15 };
static const uint32_t NO_RANK = UINT32_MAX;

typedef struct cache_row {
    int32_t id[IDS];
    char key[KEY]; /* padded with zeros */
    unsigned char len, n;
} cache_row;

typedef struct symbol { /* of a long piece: a list in an array */
    int32_t id;
    int32_t prev, next; /* -1 at the ends */
    uint32_t rank;      /* of the pair with next; NO_RANK: none or merged away */
    int32_t made;       /* what that pair makes */
} symbol;

struct kvm_bpe_work {
    cache_row *rows; /* (ROWS), filled for the tokenizer that owns this work */
    symbol *symbols; /* (cap) */
    uint64_t *heap;  /* (3 * cap) rank << 32 | position */
    ptrdiff_t n_heap, cap;
};

static void release(void *arg)
{
    kvm_bpe_work *w = arg;
    free(w->symbols);
    free(w->heap);
}

kvm_status kvm_bpe_work_new(kvm_bpe_work **out, kvm_arena *keep, kvm_err *err)
{
    kvm_bpe_work *w = kvm_new(keep, kvm_bpe_work, 1);
    if (!w) return kvm_nomem(err, keep);
    w->rows = kvm_arena_alloc(keep, sizeof(cache_row), 64, ROWS);
    if (!w->rows) return kvm_nomem(err, keep);
    TRY(kvm_arena_defer(keep, release, w, err));
    *out = w;
    return KVM_OK;
}

static kvm_status reserve(kvm_bpe_work *w, ptrdiff_t n, kvm_err *err)
{
    if (n <= w->cap) return KVM_OK;
    const size_t cap = (size_t)n + (size_t)n / 2;
    free(w->symbols);
    free(w->heap);
    w->cap = 0;
    w->symbols = malloc(cap * sizeof *w->symbols);
    w->heap = malloc(3 * cap * sizeof *w->heap);
    if (!w->symbols || !w->heap)
        return kvm_fail(err, KVM_NOMEM, "no memory to encode a piece of %td bytes", n);
    w->cap = (ptrdiff_t)cap;
    return KVM_OK;
}

/* The id that byte i of the piece starts with: false when it gives no symbol. */
static bool start_id(const kvm_bpe *b, unsigned char byte, bool *in_unk, int32_t *id)
{
    *id = b->byte_id[byte];
    const bool missing = *id < 0, fused = missing && *in_unk && b->fuse_unk;
    *in_unk = missing;
    if (missing) *id = b->unk;
    return *id >= 0 && !fused;
}

static ptrdiff_t encode_short(const kvm_bpe *b, const unsigned char *p, ptrdiff_t n,
                              int32_t *out)
{
    int32_t id[SHORT], made[SHORT];
    uint32_t rank[SHORT]; /* of (i, i + 1) */
    ptrdiff_t m = 0;
    bool in_unk = false;
    for (ptrdiff_t i = 0; i < n; i++)
        if (start_id(b, p[i], &in_unk, &id[m])) m++;
    for (ptrdiff_t i = 0; i + 1 < m; i++) {
        const kvm_bpe_pair *pair = kvm_bpe__pair(b, id[i], id[i + 1]);
        rank[i] = pair->rank; /* NO_RANK in an empty row */
        made[i] = pair->made;
    }
    while (m > 1) {
        ptrdiff_t at = 0;
        for (ptrdiff_t i = 1; i + 1 < m; i++)
            if (rank[i] < rank[at]) at = i;
        if (rank[at] == NO_RANK) break;
        id[at] = made[at];
        m--;
        for (ptrdiff_t i = at + 1; i < m; i++) id[i] = id[i + 1];
        for (ptrdiff_t i = at; i + 1 < m; i++) {
            rank[i] = rank[i + 1];
            made[i] = made[i + 1];
        }
        if (at + 1 < m) {
            const kvm_bpe_pair *pair = kvm_bpe__pair(b, id[at], id[at + 1]);
            rank[at] = pair->rank;
            made[at] = pair->made;
        }
        if (at > 0) {
            const kvm_bpe_pair *pair = kvm_bpe__pair(b, id[at - 1], id[at]);
            rank[at - 1] = pair->rank;
            made[at - 1] = pair->made;
        }
    }
    memcpy(out, id, sizeof *id * (size_t)m);
    return m;
}

static void push(kvm_bpe_work *w, uint64_t v)
{
    ptrdiff_t i = w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 2] > v; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = v;
}

static uint64_t pop(kvm_bpe_work *w)
{
    const uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    ptrdiff_t i = 0;
    for (ptrdiff_t child = 1; child < w->n_heap; child = 2 * i + 1) {
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Rank the pair that begins at symbol i and queue it. */
static void rank_pair(const kvm_bpe *b, kvm_bpe_work *w, int32_t i)
{
    symbol *s = &w->symbols[i];
    s->rank = NO_RANK;
    if (s->next < 0) return;
    const kvm_bpe_pair *pair = kvm_bpe__pair(b, s->id, w->symbols[s->next].id);
    s->rank = pair->rank;
    s->made = pair->made;
    if (s->rank != NO_RANK) push(w, (uint64_t)s->rank << 32 | (uint32_t)i);
}

/* Each merge queues at most two pairs and there are fewer merges than symbols, so the
 * heap never holds more than 3 m entries. */
static ptrdiff_t encode_long(const kvm_bpe *b, kvm_bpe_work *w, const unsigned char *p,
                             ptrdiff_t n, int32_t *out)
{
    int32_t m = 0;
    bool in_unk = false;
    for (ptrdiff_t i = 0; i < n; i++)
        if (start_id(b, p[i], &in_unk, &w->symbols[m].id)) m++;
    for (int32_t i = 0; i < m; i++) {
        w->symbols[i].prev = i - 1;
        w->symbols[i].next = i + 1 < m ? i + 1 : -1;
    }
    w->n_heap = 0;
    for (int32_t i = 0; i < m; i++) rank_pair(b, w, i);
    while (w->n_heap > 0) {
        const uint64_t top = pop(w);
        const int32_t i = (int32_t)(uint32_t)top;
        symbol *s = &w->symbols[i];
        if (s->rank != (uint32_t)(top >> 32)) continue; /* its pair has changed */
        symbol *gone = &w->symbols[s->next];
        s->id = s->made;
        s->next = gone->next;
        gone->rank = NO_RANK;
        if (s->next >= 0) w->symbols[s->next].prev = i;
        rank_pair(b, w, i);
        if (s->prev >= 0) rank_pair(b, w, s->prev);
    }
    ptrdiff_t made = 0;
    for (int32_t i = m > 0 ? 0 : -1; i >= 0; i = w->symbols[i].next)
        out[made++] = w->symbols[i].id;
    return made;
}

static ptrdiff_t whole_or_short(const kvm_bpe *b, const unsigned char *p, ptrdiff_t n,
                                int32_t *out)
{
    if (b->ignore_merges) {
        out[0] = kvm_bpe__find_raw(b, (kvm_str){(const char *)p, n});
        if (out[0] >= 0) return 1;
    }
    return encode_short(b, p, n, out);
}

kvm_status kvm_bpe_encode(const kvm_bpe *b, kvm_bpe_work *w, const unsigned char *p,
                          ptrdiff_t n, int32_t *out, ptrdiff_t *made, kvm_err *err)
{
    if (n > KEY) {
        if (n <= SHORT) {
            *made = whole_or_short(b, p, n, out);
            return KVM_OK;
        }
        const kvm_str piece = {(const char *)p, n};
        const int32_t whole = b->ignore_merges ? kvm_bpe__find_raw(b, piece) : -1;
        *made = 1;
        out[0] = whole;
        if (whole >= 0) return KVM_OK;
        if (n >= INT32_MAX / 2)
            return kvm_fail(err, KVM_RANGE, "one piece of the text has %td bytes", n);
        TRY(reserve(w, n, err));
        *made = encode_long(b, w, p, n, out);
        return KVM_OK;
    }
    char key[KEY + 2] = {0};
    memcpy(key, p, (size_t)n);
    const uint64_t h = kvm_bpe__hash((kvm_str){key, KEY + 2});
    cache_row *row = &w->rows[(h >> 7) % ROWS];
    if (row->len == n && memcmp(row->key, key, KEY) == 0) {
        memcpy(out, row->id, sizeof *out * row->n);
        *made = row->n;
        return KVM_OK;
    }
    *made = whole_or_short(b, p, n, out);
    if (*made > IDS) return KVM_OK;
    memcpy(row->key, key, KEY);
    memcpy(row->id, out, sizeof *out * (size_t)*made);
    row->len = (unsigned char)n;
    row->n = (unsigned char)*made;
    return KVM_OK;
}
