/* forward.c - tokens through the stack, a chunk at a time.
 *
 * Activations of one chunk live in the model's own arena, which grows when a larger
 * chunk is asked for and never in decode. From the last mixer on only the rows whose
 * logits are wanted go past what it keeps. */
#include "models/model_internal.h"
#include <string.h>

enum {
    CHUNK = 512
}; /* rows enough to widen a panel of weights once for many of them */

size_t kvm_model_scratch_bytes(const kvm_model *m, ptrdiff_t chunk)
{
    if (chunk < 1) chunk = CHUNK;
    const ptrdiff_t hidden = m->config.hidden, wide = m->last.streams * hidden;
    size_t most =
        kvm_step_rows_bytes(chunk, hidden) + kvm_site_scratch(&m->last, chunk);
    for (ptrdiff_t l = 0; l < m->config.layers; l++) {
        const size_t a = kvm_site_scratch(&m->blocks[l].mixer, chunk);
        const size_t b = kvm_site_scratch(&m->blocks[l].ffn, chunk);
        const kvm_ngram *g = m->blocks[l].ngram;
        const size_t c = g ? kvm_ngram_scratch(g, chunk) : 0;
        if (a > most) most = a;
        if (b > most) most = b;
        if (c > most) most = c;
    }
    if (m->config.index.heads > 0)
        most += kvm_step_rows_bytes(chunk, (m->config.context + 63) / 64 * 2);
    return most + kvm_step_rows_bytes(chunk, wide) + kvm_step_rows_bytes(chunk, 1) +
           4096;
}

ptrdiff_t kvm_model__chunk(ptrdiff_t n)
{
    /* 513 tokens are not 512 and a lonely one */
    const ptrdiff_t pieces = (n + CHUNK - 1) / CHUNK;
    return pieces > 0 ? (n + pieces - 1) / pieces : 1;
}

kvm_status kvm_model__reserve(kvm_model *m, ptrdiff_t chunk, kvm_err *err)
{
    if (chunk <= m->work_chunk) return KVM_OK;
    kvm_arena_free(&m->work);
    m->work_chunk = 0;
    TRY(kvm_arena_init(&m->work, kvm_model_scratch_bytes(m, chunk), err));
    m->work_chunk = chunk;
    return KVM_OK;
}

/* the last `rows` rows of h (n, hidden) -> logits (rows, V) */
static kvm_status read_out(const kvm_model *m, const kvm_step *s, kvm_tensor h,
                           ptrdiff_t rows, float *logits, kvm_err *err)
{
    const ptrdiff_t hidden = m->config.hidden;
    kvm_arena temp = s->scratch;
    kvm_tensor x = kvm_step_rows(&temp, rows, hidden);
    if (!x.data) return kvm_nomem(err, &temp);
    const kvm_tensor last = kvm_last_rows(h, rows);
    kvm_step rest = *s;
    rest.scratch = temp;
    TRY(kvm_site_read(&m->last, &rest, last, x, err));
    return kvm_op_linear(s->compute, kvm_view2(logits, KVM_F32, rows, m->config.vocab),
                         x, m->head, false, err);
}

kvm_status kvm_model__block(const kvm_model *m, kvm_step *s, ptrdiff_t l, kvm_tensor h,
                            kvm_err *err)
{
    const kvm_block *b = &m->blocks[l];
    if (b->ngram) TRY(kvm_ngram_forward(b->ngram, s, b->ngram_object, h, err));
    TRY(kvm_site_forward(&b->mixer, s, h, s->n, err));
    TRY(kvm_site_forward(&b->ffn, s, h, s->out, err));
    if (s->capture && s->capture->hidden)
        TRY(s->capture->hidden(s->capture->ctx, l, s->first, s->n, h.data, err));
    return KVM_OK;
}

kvm_status kvm_model__blocks(const kvm_model *m, kvm_step *s, ptrdiff_t rows,
                             kvm_tensor h, kvm_err *err)
{
    const kvm_capture *c = s->capture;
    const bool all = c && (c->hidden || c->attention || c->choice);
    const ptrdiff_t last = kvm_model__last_mixer(m);
    for (ptrdiff_t l = m->cut[m->part]; l < m->cut[m->part + 1]; l++) {
        if (l >= last && !all) s->out = rows;
        TRY(kvm_model__block(m, s, l, h, err));
    }
    return KVM_OK;
}

/* the first stream of h (n, streams * hidden) to all of them */
static void spread(kvm_tensor h, ptrdiff_t streams, ptrdiff_t hidden)
{
    for (ptrdiff_t i = 0; i < h.dim[0] * streams; i++) {
        float *row = (float *)h.data + i / streams * streams * hidden;
        if (i % streams > 0)
            memcpy(row + i % streams * hidden, row, (size_t)hidden * sizeof *row);
    }
}

ptrdiff_t kvm_model__last_mixer(const kvm_model *m)
{
    const kvm_config *c = &m->config;
    ptrdiff_t l = c->layers - 1;
    while (l > 0 && c->blocks[l].mixer == KVM_LAYER_NONE) l--;
    return l;
}

kvm_status kvm_model__begin(kvm_model *m, kvm_step *s, kvm_choice *choice,
                            kvm_tensor *h, kvm_err *err)
{
    s->compute = m->compute;
    s->scratch = m->work;
    s->out = s->n;
    int32_t *pos = kvm_new_raw(&s->scratch, int32_t, s->n);
    *h = kvm_step_rows(&s->scratch, s->n, m->last.streams * m->config.hidden);
    if (!pos || !h->data) return kvm_nomem(err, &s->scratch);
    for (ptrdiff_t t = 0; t < s->n; t++) pos[t] = (int32_t)(s->first + t);
    s->pos = pos;
    *choice = (kvm_choice){.words = (s->first + s->n + 63) / 64};
    if (m->config.index.heads == 0) return KVM_OK;
    choice->bits = kvm_new_raw(&s->scratch, uint64_t, s->n * choice->words);
    if (!choice->bits) return kvm_nomem(err, &s->scratch);
    s->choice = choice;
    return KVM_OK;
}

kvm_status kvm_model__embed(kvm_model *m, const kvm_step *s, kvm_tensor h, kvm_err *err)
{
    TRY(kvm_op_embed(m->compute, kvm_columns(h, 0, m->config.hidden), s->ids, m->embed,
                     err));
    spread(h, m->last.streams, m->config.hidden);
    return KVM_OK;
}

/* n tokens at positions first ..; logits of the last `rows` of them */
static kvm_status run_chunk(kvm_model *m, const kvm_cache *cache, ptrdiff_t first,
                            const int32_t *ids, ptrdiff_t n, ptrdiff_t rows,
                            float *logits, const kvm_capture *capture, kvm_err *err)
{
    kvm_step s = {.first = first,
                  .n = n,
                  .ids = ids,
                  .slots = cache->slots,
                  .dense = cache->dense,
                  .capture = capture};
    kvm_choice choice;
    kvm_tensor h;
    TRY(kvm_model__begin(m, &s, &choice, &h, err));
    TRY(kvm_model__embed(m, &s, h, err));
    TRY(kvm_model__blocks(m, &s, rows, h, err));
    return rows > 0 ? read_out(m, &s, h, rows, logits, err) : KVM_OK;
}

kvm_status kvm_model__check_ids(const kvm_model *m, const int32_t *ids, ptrdiff_t n,
                                kvm_err *err)
{
    for (ptrdiff_t t = 0; t < n; t++)
        if (ids[t] < 0 || ids[t] >= m->config.vocab)
            return kvm_fail(
                err, KVM_RANGE,
                "token %td has id %d; %s embeds ids 0 to %td: are the tokens "
                "from another tokenizer?",
                t, ids[t], m->info.path.at, m->config.vocab - 1);
    return KVM_OK;
}

static kvm_status check_call(const kvm_model *m, const kvm_cache *cache,
                             const int32_t *ids, ptrdiff_t n,
                             const kvm_forward_options *o, kvm_err *err)
{
    if (cache->model != m)
        return kvm_fail(err, KVM_USAGE, "this cache belongs to another model");
    if (cache->promised > 0)
        return kvm_fail(err, KVM_USAGE,
                        "rows are being injected into this cache: end that first");
    if (n < 0 || o->logits_last < 0 || o->logits_last > n || o->chunk < 0 ||
        (o->logits_last > 0 && !o->logits))
        return kvm_fail(err, KVM_USAGE, "logits of the last %td of %td tokens",
                        o->logits_last, n);
    TRY(kvm_model__whole(m, err));
    if (n > cache->capacity - cache->length)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens after %td do not fit into a cache of %td tokens", n,
                        cache->length, cache->capacity);
    return kvm_model__check_ids(m, ids, n, err);
}

static kvm_status tell(const kvm_forward_options *o, ptrdiff_t done, ptrdiff_t n,
                       kvm_err *err)
{
    if (!o->progress) return KVM_OK;
    kvm_progress_at(o->progress, (double)done, (double)n, "tokens");
    if (!kvm_progress_cancelled(o->progress)) return KVM_OK;
    return kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td tokens", done, n);
}

kvm_status kvm_model_forward(kvm_model *m, kvm_cache *cache, const int32_t *ids,
                             ptrdiff_t n, const kvm_forward_options *options,
                             kvm_err *err)
{
    const kvm_forward_options none = {0}, *o = options ? options : &none;
    TRY(check_call(m, cache, ids, n, o, err));
    ptrdiff_t chunk = o->chunk > 0 ? o->chunk : kvm_model__chunk(n);
    if (chunk > n) chunk = n;
    TRY(kvm_model__reserve(m, chunk, err));
    const ptrdiff_t wanted = n - o->logits_last; /* first token with logits */
    for (ptrdiff_t t = 0; t < n; t += chunk) {
        const ptrdiff_t size = n - t < chunk ? n - t : chunk;
        const ptrdiff_t from = wanted > t ? wanted : t;
        const ptrdiff_t rows = t + size > from ? t + size - from : 0;
        float *logits = rows > 0 ? o->logits + (from - wanted) * m->config.vocab : NULL;
        kvm_status s = run_chunk(m, cache, cache->length + t, ids + t, size, rows,
                                 logits, o->capture, err);
        if (!s) s = tell(o, t + size, n, err);
        if (s && m->recurrent) kvm_cache_clear(cache); /* states moved on */
        if (s) return s;
    }
    cache->length += n;
    return KVM_OK;
}
