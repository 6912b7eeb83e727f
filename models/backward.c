/* backward.c - a forward that is remembered, and the way back through it
 * (models/backward.h). */
#include "models/backward.h"

#include <assert.h>
#include <string.h>

#include "models/indexer.h"
#include "models/model_internal.h"

/* what the parts of a block were given; NULL: the block has no such part */
typedef struct tape_block {
    float *ngram, *mixer, *ffn; /* (n, streams * hidden) */
    kvm_choice choice;          /* as its mixer found it or made it */
    kvm_asked asked;            /* by its indexer; NULL where it has none */
} tape_block;

struct kvm_tape {
    kvm_model *m;
    ptrdiff_t prefix_most, tokens_most;
    ptrdiff_t first, n; /* of what is recorded; n 0: nothing */
    int32_t *ids, *pos; /* (tokens_most) */
    tape_block *blocks; /* (layers) */
    float *last;        /* what the head was given */
    kvm_slot *slots;    /* (objects) those per prompt as they stood before: ours; */
                        /* of the others, the cache's */
    kvm_slot *again;    /* (objects) likewise, for layers that run once more */
    kvm_arena work;
};

struct kvm_gradients {
    const kvm_model *m;
    ptrdiff_t capacity, tokens;
    kvm_slot *slots; /* (objects) */
};

/* ---- gradients ---- */

kvm_status kvm_gradients_new(kvm_gradients **out, kvm_arena *keep, const kvm_model *m,
                             ptrdiff_t capacity, kvm_err *err)
{
    const ptrdiff_t n = m->info.objects;
    kvm_gradients *g = kvm_new(keep, kvm_gradients, 1);
    if (!g) return kvm_nomem(err, keep);
    *g = (kvm_gradients){.m = m, .capacity = capacity};
    g->slots = kvm_new(keep, kvm_slot, n);
    if (!g->slots) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && m->objects[end].beside;) end++;
        TRY(kvm_cache__slots(g->slots, m, i, end, capacity, keep, err));
    }
    *out = g;
    return KVM_OK;
}

/* 0 in tokens from .. from+n of an object */
static void clear_rows(const kvm_slot *s, ptrdiff_t from, ptrdiff_t n)
{
    for (ptrdiff_t h = 0; h < s->heads; h++)
        for (ptrdiff_t t = from; t < from + n; t++)
            memset(s->rows + (h * s->capacity + t) * s->stride, 0,
                   (size_t)s->dim * sizeof(float));
}

kvm_status kvm_gradients_clear(kvm_gradients *g, ptrdiff_t tokens, kvm_err *err)
{
    if (tokens < 0 || tokens > g->capacity)
        return kvm_fail(err, KVM_RANGE,
                        "gradients of %td tokens; there is room for %td", tokens,
                        g->capacity);
    g->tokens = tokens;
    for (ptrdiff_t i = 0; i < g->m->info.objects; i++) {
        const bool once = kvm_object_per_prompt(&g->m->objects[i]);
        clear_rows(&g->slots[i], 0, once ? 1 : tokens);
    }
    return KVM_OK;
}

static kvm_status check_object(const kvm_model *m, ptrdiff_t object, kvm_err *err)
{
    if (object >= 0 && object < m->info.objects) return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "object %td; %s keeps %td", object, m->info.path.at,
                    m->info.objects);
}

kvm_status kvm_gradients_view(const kvm_gradients *g, ptrdiff_t object,
                              kvm_tensor *view, kvm_err *err)
{
    TRY(check_object(g->m, object, err));
    const bool once = kvm_object_per_prompt(&g->m->objects[object]);
    *view = kvm_slot_view(&g->slots[object], once ? 1 : g->tokens);
    return KVM_OK;
}

kvm_status kvm_gradients_read(const kvm_gradients *g, ptrdiff_t object, ptrdiff_t from,
                              ptrdiff_t n, float *rows, kvm_err *err)
{
    TRY(check_object(g->m, object, err));
    if (kvm_object_per_prompt(&g->m->objects[object]))
        return kvm_fail(err, KVM_USAGE,
                        "%s has no rows: look at it (kvm_gradients_view)",
                        kvm_object_name(g->m->objects[object].kind));
    if (from < 0 || n < 0 || n > g->tokens - from)
        return kvm_fail(err, KVM_RANGE, "gradients of tokens %td to %td of %td", from,
                        from + n, g->tokens);
    kvm_slot_get(&g->slots[object], from, n, rows);
    return KVM_OK;
}

/* ---- the tape ---- */

/* what has no way back: of block l, or of the head; NULL: all have one */
static const char *lacks(const kvm_model *m, ptrdiff_t l)
{
    const kvm_block *b = &m->blocks[l];
    const char *name = kvm_site_lacks_backward(&m->last);
    if (!name) name = kvm_site_lacks_backward(&b->mixer);
    return name ? name : kvm_site_lacks_backward(&b->ffn);
}

static kvm_status check_kinds(const kvm_model *m, kvm_err *err)
{
    for (ptrdiff_t l = 0; l < m->config.layers; l++)
        if (lacks(m, l))
            return kvm_fail(err, KVM_UNSUPPORTED,
                            "%s, layer %td: gradients do not go back through \"%s\" "
                            "yet, so nothing can be trained behind this model",
                            m->info.path.at, l, lacks(m, l));
    return KVM_OK;
}

static size_t most_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* rows of logits at a time: the head's weights are read once for each such piece */
static ptrdiff_t head_rows(const kvm_model *m, ptrdiff_t n)
{
    enum { LOGITS = 8 << 20 }; /* numbers, at most, where a row has not more */
    const ptrdiff_t most = LOGITS / m->config.vocab;
    return most < 1 ? 1 : most < n ? most : n;
}

/* of block l, and its first object; NULL: it has none of its own */
static const kvm_indexer *indexer_of(const kvm_model *m, ptrdiff_t l, ptrdiff_t *object)
{
    const kvm_layer *mixer = m->blocks[l].mixer.layer;
    return mixer && mixer->kind->indexer ? mixer->kind->indexer(mixer, object) : NULL;
}

static size_t work_bytes(const kvm_model *m, ptrdiff_t first, ptrdiff_t n)
{
    const ptrdiff_t wide = m->last.streams * m->config.hidden, rows = head_rows(m, n);
    size_t most = 2 * kvm_step_rows_bytes(rows, m->config.hidden) +
                  kvm_step_rows_bytes(rows, m->config.vocab) +
                  most_of(kvm_site_scratch(&m->last, rows),
                          kvm_site_backward_scratch(&m->last, first, rows));
    for (ptrdiff_t l = 0; l < m->config.layers; l++) {
        const kvm_block *b = &m->blocks[l];
        most = most_of(most, kvm_site_backward_scratch(&b->mixer, first, n));
        most = most_of(most, kvm_site_backward_scratch(&b->ffn, first, n));
        if (b->ngram) most = most_of(most, kvm_ngram_backward_scratch(b->ngram, n));
        ptrdiff_t object;
        const kvm_indexer *i = indexer_of(m, l, &object);
        if (i) most = most_of(most, kvm_indexer_scores_scratch(i, first + n));
    }
    return most + kvm_step_rows_bytes(n, wide) + 4096;
}

size_t kvm_tape_bytes(const kvm_model *m, ptrdiff_t prefix_most, ptrdiff_t tokens_most)
{
    const size_t row =
        kvm_step_rows_bytes(1, m->last.streams * m->config.hidden +
                                   m->config.index.heads * m->config.index.dim);
    const size_t choice = (size_t)(prefix_most + tokens_most + 63) / 8;
    size_t rows = 1; /* what the head is given; kept of each token */
    for (ptrdiff_t l = 0; l < m->config.layers; l++) {
        const kvm_block *b = &m->blocks[l];
        rows += (b->ngram != NULL) + (b->mixer.layer != NULL) + (b->ffn.layer != NULL);
    }
    return (size_t)tokens_most *
               (rows * row +
                (m->config.index.heads > 0 ? (size_t)m->config.layers * choice : 0)) +
           work_bytes(m, prefix_most, tokens_most);
}

static kvm_status reserve_blocks(kvm_tape *t, kvm_arena *keep, kvm_err *err)
{
    const kvm_model *m = t->m;
    const ptrdiff_t numbers = t->tokens_most * m->last.streams * m->config.hidden;
    const ptrdiff_t words = (t->prefix_most + t->tokens_most + 63) / 64;
    t->blocks = kvm_new(keep, tape_block, m->config.layers);
    t->last = kvm_new_raw(keep, float, numbers);
    if (!t->blocks || !t->last) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < m->config.layers; l++) {
        const kvm_block *from = &m->blocks[l];
        tape_block *b = &t->blocks[l];
        const bool has[] = {from->ngram, from->mixer.layer, from->ffn.layer};
        float **const to[] = {&b->ngram, &b->mixer, &b->ffn};
        for (int i = 0; i < 3; i++) {
            if (!has[i]) continue;
            *to[i] = kvm_new_raw(keep, float, numbers);
            if (!*to[i]) return kvm_nomem(err, keep);
        }
        if (m->config.index.heads == 0) continue;
        b->choice.bits = kvm_new_raw(keep, uint64_t, t->tokens_most * words);
        if (!b->choice.bits) return kvm_nomem(err, keep);
        ptrdiff_t object;
        if (!indexer_of(m, l, &object)) continue;
        const ptrdiff_t heads = m->config.index.heads, dim = m->config.index.dim;
        b->asked.q = kvm_new_raw(keep, float, t->tokens_most *heads *dim);
        b->asked.w = kvm_new_raw(keep, float, t->tokens_most *heads);
        if (!b->asked.q || !b->asked.w) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

/* (objects): those per prompt with room of their own */
static kvm_status reserve_states(kvm_slot **slots, const kvm_model *m, kvm_arena *keep,
                                 kvm_err *err)
{
    *slots = kvm_new(keep, kvm_slot, m->info.objects);
    if (!*slots) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < m->info.objects; i++)
        if (kvm_object_per_prompt(&m->objects[i]))
            TRY(kvm_cache__slots(*slots, m, i, i + 1, 1, keep, err));
    return KVM_OK;
}

static void free_arena(void *arena)
{
    kvm_arena_free(arena);
}

kvm_status kvm_tape_new(kvm_tape **out, kvm_arena *keep, kvm_model *m,
                        ptrdiff_t prefix_most, ptrdiff_t tokens_most, kvm_err *err)
{
    if (prefix_most < 0 || tokens_most < 1 ||
        tokens_most > m->info.context - prefix_most)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens behind %td; %s has a context of %td tokens",
                        tokens_most, prefix_most, m->info.path.at, m->info.context);
    TRY(check_kinds(m, err));
    kvm_tape *t = kvm_new(keep, kvm_tape, 1);
    if (!t) return kvm_nomem(err, keep);
    *t = (kvm_tape){.m = m, .prefix_most = prefix_most, .tokens_most = tokens_most};
    t->ids = kvm_new_raw(keep, int32_t, tokens_most);
    t->pos = kvm_new_raw(keep, int32_t, tokens_most);
    if (!t->ids || !t->pos) return kvm_nomem(err, keep);
    TRY(reserve_blocks(t, keep, err));
    TRY(reserve_states(&t->slots, m, keep, err));
    TRY(reserve_states(&t->again, m, keep, err));
    TRY(kvm_arena_init(&t->work, work_bytes(m, prefix_most, tokens_most), err));
    TRY(kvm_arena_defer(keep, free_arena, &t->work, err));
    *out = t;
    return KVM_OK;
}

/* ---- recording ---- */

static kvm_status check_record(const kvm_tape *t, const kvm_cache *cache,
                               const int32_t *ids, ptrdiff_t n, kvm_err *err)
{
    if (cache->model != t->m)
        return kvm_fail(err, KVM_USAGE, "this cache belongs to another model");
    if (cache->promised > 0)
        return kvm_fail(err, KVM_USAGE,
                        "rows are being injected into this cache: end that first");
    if (n < 1 || n > t->tokens_most || cache->length > t->prefix_most)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens behind %td; this tape takes %td behind %td", n,
                        cache->length, t->tokens_most, t->prefix_most);
    if (n > cache->capacity - cache->length)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens after %td do not fit into a cache of %td tokens", n,
                        cache->length, cache->capacity);
    return kvm_model__check_ids(t->m, ids, n, err);
}

/* slots of block l (-1: of all): those per prompt copied, the others as they are */
static void take_objects(const kvm_model *m, kvm_slot *to, const kvm_slot *from,
                         ptrdiff_t l)
{
    for (ptrdiff_t i = 0; i < m->info.objects; i++) {
        const kvm_object *o = &m->objects[i];
        if (l >= 0 && o->layer != l) continue;
        if (kvm_object_per_prompt(o))
            memcpy(to[i].rows, from[i].rows,
                   (size_t)(o->heads * o->dim) * sizeof(float));
        else
            to[i] = from[i];
    }
}

static void keep_rows(float *to, kvm_tensor h)
{
    if (to) memcpy(to, h.data, (size_t)kvm_tensor_count(&h) * sizeof *to);
}

static void keep_choice(kvm_choice *to, const kvm_step *s)
{
    if (!s->choice) return;
    const size_t bytes = (size_t)(s->n * s->choice->words) * sizeof *to->bits;
    to->words = s->choice->words;
    to->all = s->choice->all;
    memcpy(to->bits, s->choice->bits, bytes);
}

/* as kvm_model__block, with what its parts are given */
static kvm_status record_block(kvm_tape *t, kvm_step *s, ptrdiff_t l, kvm_tensor h,
                               kvm_err *err)
{
    const kvm_block *b = &t->m->blocks[l];
    tape_block *to = &t->blocks[l];
    keep_rows(to->ngram, h);
    if (b->ngram) TRY(kvm_ngram_forward(b->ngram, s, b->ngram_object, h, err));
    keep_rows(to->mixer, h);
    s->asked = to->asked.q ? &to->asked : NULL;
    TRY(kvm_site_forward(&b->mixer, s, h, s->n, err));
    keep_choice(&to->choice, s);
    keep_rows(to->ffn, h);
    return kvm_site_forward(&b->ffn, s, h, s->n, err);
}

static kvm_status record(kvm_tape *t, kvm_step *s, kvm_err *err)
{
    kvm_choice choice;
    kvm_tensor h;
    TRY(kvm_model__begin(t->m, s, &choice, &h, err));
    if (choice.bits) memset(choice.bits, 0, (size_t)(s->n * choice.words) * 8);
    TRY(kvm_model__embed(t->m, s, h, err));
    for (ptrdiff_t l = 0; l < t->m->config.layers; l++)
        TRY(record_block(t, s, l, h, err));
    keep_rows(t->last, h);
    return KVM_OK;
}

kvm_status kvm_tape_record(kvm_tape *t, kvm_cache *cache, const int32_t *ids,
                           ptrdiff_t n, kvm_err *err)
{
    TRY(check_record(t, cache, ids, n, err));
    TRY(kvm_model__reserve(t->m, n, err));
    t->first = cache->length;
    t->n = 0;
    take_objects(t->m, t->slots, cache->slots, -1);
    memcpy(t->ids, ids, (size_t)n * sizeof *ids);
    for (ptrdiff_t i = 0; i < n; i++) t->pos[i] = (int32_t)(t->first + i);
    kvm_step s = {.first = t->first,
                  .n = n,
                  .ids = t->ids,
                  .slots = cache->slots,
                  .dense = cache->dense};
    const kvm_status st = record(t, &s, err);
    if (st && t->m->recurrent) kvm_cache_clear(cache); /* states moved on */
    if (st) return st;
    t->n = n;
    cache->length += n;
    return KVM_OK;
}

/* ---- the way back ---- */

/* rows from .. of the recorded tokens through head and loss: their part of dh */
static kvm_status head_back(const kvm_tape *t, const kvm_step *s, const kvm_loss *loss,
                            ptrdiff_t from, ptrdiff_t n, kvm_tensor dh, kvm_err *err)
{
    const kvm_model *m = t->m;
    kvm_step inner = *s;
    inner.n = inner.out = n;
    const ptrdiff_t wide = dh.dim[1];
    const kvm_tensor h = kvm_view2(t->last + from * wide, KVM_F32, n, wide);
    const kvm_tensor to = kvm_view2((float *)dh.data + from * wide, KVM_F32, n, wide);
    kvm_tensor x = kvm_step_rows(&inner.scratch, n, m->config.hidden);
    kvm_tensor logits = kvm_step_rows(&inner.scratch, n, m->config.vocab);
    if (!x.data || !logits.data) return kvm_nomem(err, &inner.scratch);
    TRY(kvm_site_read(&m->last, &inner, h, x, err));
    TRY(kvm_op_linear(s->compute, logits, x, m->head, false, err));
    TRY(loss->rows(loss->ctx, from, n, logits.data, err));
    TRY(kvm_op_linear_back(s->compute, x, logits, m->head, false, err));
    return kvm_site_read_back(&m->last, &inner, h, x, to, err);
}

static kvm_status block_back(const kvm_tape *t, kvm_step *s, ptrdiff_t l, kvm_tensor dh,
                             kvm_err *err)
{
    const kvm_block *b = &t->m->blocks[l];
    tape_block *from = &t->blocks[l];
    const ptrdiff_t wide = dh.dim[1];
    for (ptrdiff_t i = 0; i < t->m->info.objects; i++) {
        const kvm_object *o = &t->m->objects[i];
        if (o->layer == l && !kvm_object_per_prompt(o))
            clear_rows(&s->grads[i], s->first, s->n);
    }
    take_objects(t->m, t->again, t->slots, l);
    s->choice = from->choice.bits ? &from->choice : NULL;
    TRY(kvm_site_backward(&b->ffn, s, kvm_view2(from->ffn, KVM_F32, s->n, wide), dh,
                          err));
    TRY(kvm_site_backward(&b->mixer, s, kvm_view2(from->mixer, KVM_F32, s->n, wide), dh,
                          err));
    if (!b->ngram) return KVM_OK;
    return kvm_ngram_backward(b->ngram, s, b->ngram_object,
                              kvm_view2(from->ngram, KVM_F32, s->n, wide), dh, err);
}

static kvm_status check_backward(const kvm_tape *t, const kvm_cache *cache,
                                 const kvm_gradients *g, kvm_err *err)
{
    if (t->n == 0) return kvm_fail(err, KVM_USAGE, "nothing is recorded");
    if (cache->model != t->m || g->m != t->m)
        return kvm_fail(err, KVM_USAGE, "cache or gradients belong to another model");
    if (cache->length != t->first + t->n)
        return kvm_fail(err, KVM_USAGE,
                        "the cache holds %td tokens; %td were recorded behind %td",
                        cache->length, t->n, t->first);
    if (g->tokens != t->first || g->capacity < t->first + t->n)
        return kvm_fail(err, KVM_USAGE,
                        "gradients of %td tokens with room for %td; the prefix has %td "
                        "and %td were recorded behind it",
                        g->tokens, g->capacity, t->first, t->n);
    return KVM_OK;
}

static kvm_step step_back(const kvm_tape *t, const kvm_gradients *g)
{
    return (kvm_step){.compute = t->m->compute,
                      .first = t->first,
                      .n = t->n,
                      .out = t->n,
                      .pos = t->pos,
                      .ids = t->ids,
                      .slots = t->slots,
                      .grads = g->slots,
                      .again = t->again,
                      .scratch = t->work};
}

kvm_status kvm_tape_backward(kvm_tape *t, kvm_cache *cache, const kvm_loss *loss,
                             kvm_gradients *g, kvm_err *err)
{
    const kvm_model *m = t->m;
    TRY(check_backward(t, cache, g, err));
    kvm_step s = step_back(t, g);
    const kvm_tensor dh =
        kvm_step_rows(&s.scratch, t->n, m->last.streams * m->config.hidden);
    if (!dh.data) return kvm_nomem(err, &s.scratch);
    const ptrdiff_t rows = head_rows(m, t->n);
    for (ptrdiff_t from = 0; from < t->n; from += rows)
        TRY(head_back(t, &s, loss, from, rows < t->n - from ? rows : t->n - from, dh,
                      err));
    for (ptrdiff_t l = m->config.layers - 1; l >= 0; l--)
        TRY(block_back(t, &s, l, dh, err));
    return KVM_OK;
}

/* ---- a loss on an indexer's scores ---- */

ptrdiff_t kvm_tape_units(const kvm_tape *t, ptrdiff_t object)
{
    const ptrdiff_t block = t->m->objects[object].block;
    return (t->first + t->n) / (block > 0 ? block : 1);
}

kvm_status kvm_tape_scores(kvm_tape *t, const kvm_cache *cache, ptrdiff_t object,
                           const kvm_tape_scores_loss *loss, kvm_gradients *g,
                           kvm_err *err)
{
    const kvm_model *m = t->m;
    TRY(check_object(m, object, err));
    TRY(check_backward(t, cache, g, err));
    if (m->objects[object].kind != KVM_OBJECT_INDEX_KEY)
        return kvm_fail(err, KVM_USAGE, "%s: tokens are chosen by index keys",
                        kvm_object_name(m->objects[object].kind));
    if (cache->dense > 0)
        return kvm_fail(err, KVM_USAGE,
                        "the first %td tokens are always looked at: nothing is scored "
                        "of them",
                        cache->dense);
    const ptrdiff_t l = m->objects[object].layer, units = kvm_tape_units(t, object);
    ptrdiff_t first;
    const kvm_indexer *i = indexer_of(m, l, &first);
    assert(i); /* its layer keeps index keys */
    const kvm_step s = step_back(t, g);
    const kvm_tensor scores = kvm_view2(loss->scores, KVM_F32, t->n, units);
    if (units == 0) return KVM_OK;
    TRY(kvm_indexer_scores(i, &s, first, &t->blocks[l].asked, scores, err));
    TRY(loss->rows(loss->ctx, t->n, units, loss->scores, err));
    return kvm_indexer_scores_back(i, &s, first, &t->blocks[l].asked, scores, err);
}

/* ---- to earlier points ---- */

kvm_status kvm_model_pull(const kvm_model *m, ptrdiff_t object, int point,
                          ptrdiff_t first, ptrdiff_t n, const float *rows, float *grad,
                          kvm_err *err)
{
    TRY(check_object(m, object, err));
    TRY(kvm_cache__check_point(point, err));
    const kvm_object *o = &m->objects[object];
    const kvm_layer *l = m->blocks[o->layer].mixer.layer;
    if (kvm_object_per_prompt(o))
        return kvm_fail(err, KVM_USAGE, "%s has no rows", kvm_object_name(o->kind));
    if (point == KVM_POINT_ENGINE) return KVM_OK;
    if (!l->kind->pull)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "layer %td: gradients stay at point 3 of %s", o->layer,
                        l->kind->name);
    if (point == KVM_POINT_RAW && o->normed && !rows)
        return kvm_fail(err, KVM_USAGE,
                        "layer %td, %s: a gradient goes through the norm with the rows "
                        "that were given to it",
                        o->layer, kvm_object_name(o->kind));
    const ptrdiff_t width = o->heads * o->dim;
    for (ptrdiff_t t = 0; t < n; t += KVM_STAGE_ROWS) {
        int32_t pos[KVM_STAGE_ROWS];
        const ptrdiff_t piece = n - t < KVM_STAGE_ROWS ? n - t : KVM_STAGE_ROWS;
        for (ptrdiff_t i = 0; i < piece; i++) pos[i] = (int32_t)(first + t + i);
        TRY(l->kind->pull(l, m->compute, object - l->first_object, point, pos, piece,
                          rows ? rows + t * width : NULL, grad + t * width, err));
    }
    return KVM_OK;
}
