/* part.c - a model whose layers lie in several processes, a run of them in each.
 *
 * What one part leaves of a piece of a sequence is all that the next one needs: the
 * residual of every token and, where layers share a choice of tokens, that choice.
 * Whatever else layers keep (rows, states, what n-grams were made of) is their own.
 *
 *   between = h (n, streams * hidden) f32 [u64 all, bits (n, words) u64] */
#include <string.h>

#include "models/model_internal.h"

/* ---- who has which layers ---- */

/* Parts are filled one after the other, up to `most` bytes, and leave a layer for each
 * that follows. False: they do not hold them all. */
static bool fill(const ptrdiff_t *bytes, ptrdiff_t layers, int parts, ptrdiff_t most,
                 ptrdiff_t *cut)
{
    ptrdiff_t l = 0;
    for (int p = 0; p < parts; p++) {
        const ptrdiff_t end = layers - (parts - 1 - p);
        ptrdiff_t held = 0;
        cut[p] = l;
        while (l < layers && (l == cut[p] || (l < end && held + bytes[l] <= most)))
            held += bytes[l++];
    }
    cut[parts] = l;
    return l == layers;
}

/* bytes (layers) of what each part would read */
static kvm_status weigh(ptrdiff_t **bytes, kvm_arena *keep, const kvm_checkpoint *ck,
                        kvm_err *err)
{
    kvm_found embed;
    const kvm_weight_at at = {.id = KVM_W_EMBED};
    const kvm_config *c = kvm_checkpoint_config(ck);
    ptrdiff_t n;
    *bytes = kvm_new(keep, ptrdiff_t, c->layers);
    if (!*bytes) return kvm_nomem(err, keep);
    kvm_checkpoint_weigh(ck, *bytes);
    TRY(kvm_checkpoint_get(ck, at, 2, (ptrdiff_t[]){c->vocab, c->hidden}, &embed, err));
    if (kvm_dtype_bytes(embed.t.dtype, kvm_tensor_count(&embed.t), &n))
        (*bytes)[0] += n;
    return KVM_OK;
}

kvm_status kvm_model__cut(ptrdiff_t **cut, kvm_arena *keep, const kvm_checkpoint *ck,
                          int parts, kvm_err *err)
{
    const ptrdiff_t layers = kvm_checkpoint_config(ck)->layers;
    ptrdiff_t *bytes, least = 0, most = 0;
    *cut = kvm_new(keep, ptrdiff_t, parts + 1);
    if (!*cut) return kvm_nomem(err, keep);
    (*cut)[parts] = layers;
    if (parts == 1) return KVM_OK;
    TRY(weigh(&bytes, keep, ck, err));
    for (ptrdiff_t l = 0; l < layers; l++) {
        if (bytes[l] > least) least = bytes[l];
        most += bytes[l];
    }
    while (least < most) { /* the least that the largest part can have */
        const ptrdiff_t middle = least + (most - least) / 2;
        if (fill(bytes, layers, parts, middle, *cut))
            most = middle;
        else
            least = middle + 1;
    }
    fill(bytes, layers, parts, most, *cut);
    return KVM_OK;
}

kvm_status kvm_model_weigh(kvm_model_weight *w, kvm_str path, int parts, kvm_err *err)
{
    kvm_checkpoint *ck;
    ptrdiff_t *bytes, *cut;
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own, (size_t)1 << 30, err));
    kvm_status s = kvm_checkpoint_open(&ck, &own, path, err);
    if (!s) s = weigh(&bytes, &own, ck, err);
    if (!s) s = kvm_model__cut(&cut, &own, ck, parts, err);
    *w = (kvm_model_weight){0};
    for (int p = 0; p < parts && !s; p++) {
        ptrdiff_t part = 0;
        for (ptrdiff_t l = cut[p]; l < cut[p + 1]; l++) part += bytes[l];
        w->all += part;
        if (part > w->most) w->most = part;
    }
    kvm_arena_free(&own);
    return s;
}

const ptrdiff_t *kvm_model_parts(const kvm_model *m)
{
    return m->cut;
}

kvm_status kvm_model__whole(const kvm_model *m, kvm_err *err)
{
    if (m->cut[m->part + 1] - m->cut[m->part] == m->config.layers) return KVM_OK;
    return kvm_fail(err, KVM_USAGE, "%s: only layers %td to %td of %td are loaded",
                    m->info.path.at, m->cut[m->part], m->cut[m->part + 1] - 1,
                    m->config.layers);
}

/* ---- what goes from part to part ---- */

bool kvm_model__shares(const kvm_model *m)
{
    for (ptrdiff_t l = 0; m->config.index.heads > 0 && l < m->config.layers; l++)
        if (!m->config.index.full[l]) return true;
    return false;
}

ptrdiff_t kvm_model_piece(ptrdiff_t n)
{
    return kvm_model__chunk(n);
}

size_t kvm_model_between(const kvm_model *m, ptrdiff_t first, ptrdiff_t n)
{
    const ptrdiff_t words = (first + n + 63) / 64;
    const size_t hidden =
        (size_t)(n * m->last.streams * m->config.hidden) * sizeof(float);
    return hidden +
           (kvm_model__shares(m) ? (size_t)(1 + n * words) * sizeof(uint64_t) : 0);
}

static void *move(void *to, const void *from, size_t n, size_t *at)
{
    *at += n;
    return memcpy(to, from, n);
}

static void take(const kvm_model *m, kvm_step *s, kvm_tensor h, const char *between)
{
    uint64_t all = 0;
    size_t at = 0;
    move(h.data, between, (size_t)kvm_tensor_count(&h) * sizeof(float), &at);
    if (!kvm_model__shares(m)) return;
    move(&all, between + at, sizeof all, &at);
    s->choice->all = all != 0;
    move(s->choice->bits, between + at,
         (size_t)(s->n * s->choice->words) * sizeof(uint64_t), &at);
}

static void give(const kvm_model *m, const kvm_step *s, kvm_tensor h, char *between)
{
    size_t at = 0;
    move(between, h.data, (size_t)kvm_tensor_count(&h) * sizeof(float), &at);
    if (!kvm_model__shares(m)) return;
    const uint64_t all = s->choice->all;
    move(between + at, &all, sizeof all, &at);
    move(between + at, s->choice->bits,
         (size_t)(s->n * s->choice->words) * sizeof(uint64_t), &at);
}

kvm_status kvm_model_run_part(kvm_model *m, kvm_cache *cache, const int32_t *ids,
                              ptrdiff_t n, void *between, const kvm_capture *capture,
                              kvm_err *err)
{
    kvm_step s = {.first = cache->length,
                  .n = n,
                  .ids = ids,
                  .slots = cache->slots,
                  .capture = capture};
    kvm_choice choice;
    kvm_tensor h;
    if (n < 1 || n > cache->capacity - cache->length)
        return kvm_fail(err, KVM_RANGE,
                        "%td tokens after %td do not fit into a cache of %td tokens", n,
                        cache->length, cache->capacity);
    TRY(kvm_model__check_ids(m, ids, n, err));
    TRY(kvm_model__reserve(m, n, err));
    TRY(kvm_model__begin(m, &s, &choice, &h, err));
    if (m->part == 0)
        TRY(kvm_model__embed(m, &s, h, err));
    else
        take(m, &s, h, between);
    TRY(kvm_model__blocks(m, &s, 0, h, err));
    give(m, &s, h, between);
    cache->length += n;
    return KVM_OK;
}
