/* apply_read.c - what a translation reads of the source: rows that its cache keeps or
 * that were taken while it read, its tokens, and its states. */
#include <string.h>

#include "base/clock.h"
#include "translators/apply_internal.h"

enum { ROWS_PER_PART = 64 };

/* ---- rows ---- */

typedef struct read_job {
    kvm_tensor view; /* (H,T,D) of the cache */
    ptrdiff_t from, n, ld;
    float *out;
} read_job;

/* rows of one layer from the cache's head-major view */
static void read_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const read_job *j = ctx;
    const ptrdiff_t first = part * ROWS_PER_PART, dim = j->view.dim[2];
    const ptrdiff_t end = first + ROWS_PER_PART < j->n ? first + ROWS_PER_PART : j->n;
    const ptrdiff_t bytes = kvm_dtype_block_bytes(j->view.dtype);
    for (ptrdiff_t h = 0; h < j->view.dim[0]; h++)
        for (ptrdiff_t t = first; t < end; t++) {
            const ptrdiff_t at =
                h * j->view.stride[0] + (j->from + t) * j->view.stride[1];
            float *to = j->out + t * j->ld + h * dim;
            /* caches are F32, F16 or BF16, which cannot fail */
            const kvm_status s = kvm_widen_row(
                to, (const char *)j->view.data + at * bytes, j->view.dtype, dim, NULL);
            (void)s;
        }
}

static ptrdiff_t parts_of(ptrdiff_t n)
{
    return (n + ROWS_PER_PART - 1) / ROWS_PER_PART;
}

/* a layer's rows of a space as the cache keeps them, into out (n, ld) */
static kvm_status read_cached(kvm_apply *a, const kvm_cache *from, kvm_space s,
                              ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n, float *out,
                              ptrdiff_t ld, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(a->source)->objects; i++) {
        const kvm_object *o = kvm_model_object(a->source, i);
        const kvm_row_shape part = kvm_space_part(s, o);
        if (o->layer != layer || part.dim == 0) continue;
        read_job j = {.from = first, .n = n, .ld = ld, .out = out};
        TRY(kvm_cache_view(from, i, &j.view, err));
        kvm_pool_run(kvm_compute_pool(a->c), parts_of(n), read_part, &j);
        out += part.heads * part.dim;
    }
    return KVM_OK;
}

static void copy_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const kvm_row_copy *j = ctx;
    const ptrdiff_t first = part * ROWS_PER_PART;
    const ptrdiff_t end = first + ROWS_PER_PART < j->n ? first + ROWS_PER_PART : j->n;
    for (ptrdiff_t t = first; t < end; t++)
        memcpy(j->to + t * j->to_ld, j->from + t * j->from_ld,
               sizeof *j->to * (size_t)j->width);
}

void kvm_apply__copy(kvm_apply *a, kvm_row_copy j)
{
    kvm_pool_run(kvm_compute_pool(a->c), parts_of(j.n), copy_part, &j);
}

/* one layer's rows of a space, taken or cached */
static kvm_status read_layer(kvm_apply *a, const kvm_handover *from, kvm_space s,
                             ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n, float *out,
                             ptrdiff_t ld, kvm_err *err)
{
    if (kvm_space_rows[s].point != KVM_POINT_RAW)
        return read_cached(a, from->cache, s, layer, first, n, out, ld, err);
    const ptrdiff_t w = kvm_shapes_width(&a->t->source.shapes, s, layer);
    const float *rows = kvm_taken_rows(from->taken, s, layer);
    kvm_apply__copy(a, (kvm_row_copy){rows + first * w, out, n, w, ld, w});
    return KVM_OK;
}

static kvm_status layer_taken(const kvm_handover *from, kvm_space s, ptrdiff_t layer,
                              ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    if (kvm_space_rows[s].point != KVM_POINT_RAW ||
        (from->taken && kvm_taken_has(from->taken, s, layer, first, n)))
        return KVM_OK;
    return kvm_fail(err, KVM_USAGE,
                    "layer %td: its %s rows stand before a norm, and those of tokens "
                    "%td to %td were not taken while the source read",
                    layer, kvm_space_name(s), first, first + n);
}

kvm_status kvm_apply__taken(const kvm_apply *a, const kvm_handover *from,
                            ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < a->passes; i++)
        for (int s = 0; s < KVM_SPACES; s++) {
            const ptrdiff_t *at = a->pass[i].x.at[KVM_SOURCE][s];
            for (ptrdiff_t l = 0; at && l < a->t->source.shapes.layers; l++)
                if (at[l] >= 0) TRY(layer_taken(from, (kvm_space)s, l, first, n, err));
        }
    if (!a->codebook) return KVM_OK;
    return layer_taken(from, kvm_codebook_of(a->codebook), 0, first, n, err);
}

kvm_status kvm_apply__embed(kvm_apply *a, const kvm_pass *p, ptrdiff_t first,
                            ptrdiff_t n, kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    if (!p->token) return KVM_OK;
    return kvm_model_embed_tokens(a->target, a->told + first - a->told_from, n,
                                  x->read + x->at[KVM_TARGET][KVM_SPACE_TOKEN][0],
                                  x->ld, err);
}

static kvm_status read_pass(kvm_apply *a, const kvm_pass *p, const kvm_handover *from,
                            ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; x->at[KVM_SOURCE][s] && l < a->t->source.shapes.layers;
             l++) {
            const ptrdiff_t at = x->at[KVM_SOURCE][s][l];
            if (at >= 0)
                TRY(read_layer(a, from, (kvm_space)s, l, first, n, x->read + at, x->ld,
                               err));
        }
    return kvm_apply__embed(a, p, first, n, err);
}

kvm_status kvm_apply__read(kvm_apply *a, const kvm_pass *p, const kvm_handover *from,
                           ptrdiff_t first, ptrdiff_t n, kvm_apply_times *times,
                           kvm_err *err)
{
    const kvm_rows_at *x = &p->x;
    for (ptrdiff_t i = 0; i < n; i++) a->position[i] = (int32_t)(first + i);
    double start = kvm_now(), now;
    TRY(read_pass(a, p, from, first, n, err));
    times->read += (now = kvm_now()) - start;
    start = now;
    if (a->strip && x->at[KVM_SOURCE][KVM_SPACE_K])
        TRY(kvm_apply__rotate(a, x->read, x->ld, &a->t->source.shapes,
                              x->at[KVM_SOURCE][KVM_SPACE_K], n, &a->from_rope, true,
                              err));
    times->strip += kvm_now() - start;
    return KVM_OK;
}

/* ---- states ---- */

ptrdiff_t kvm_apply__find_state(const kvm_model *m, kvm_space s, ptrdiff_t layer)
{
    const kvm_space_row *r = &kvm_space_rows[s];
    const ptrdiff_t i = kvm_model_find_object(m, r->object, layer);
    return i >= 0 ? i : kvm_model_find_object(m, r->other, layer);
}

kvm_status kvm_apply__find_states(kvm_apply *a, const kvm_cache *from,
                                  const float **out, kvm_err *err)
{
    static const kvm_space spaces[] = {KVM_SPACE_STATE, KVM_SPACE_WINDOW};
    for (ptrdiff_t i = 0; i < 2 * a->t->state_count; i++) {
        const kvm_state_step *s = &a->t->states[i / 2];
        kvm_tensor view;
        out[i] = NULL;
        if (s->map == KVM_STATE_ZERO) continue;
        TRY(kvm_cache_view(from,
                           kvm_apply__find_state(a->source, spaces[i % 2], s->source),
                           &view, err));
        out[i] = view.data;
    }
    return KVM_OK;
}

/* ---- tokens ---- */

static bool needs_tokens(const kvm_apply *a)
{
    return a->t->token != KVM_TOKEN_NONE;
}

/* room grows by doubling, and so is never more than twice what was needed */
static kvm_status ids_room(kvm_apply *a, ptrdiff_t tokens, kvm_err *err)
{
    if (tokens <= a->ids_room) return KVM_OK;
    const ptrdiff_t room = tokens > 2 * a->ids_room ? tokens : 2 * a->ids_room;
    a->ids = kvm_new_raw(a->keep, int32_t, room);
    if (!a->ids) return kvm_nomem(err, a->keep);
    a->ids_room = room;
    return KVM_OK;
}

static kvm_status untold(const kvm_apply *a, ptrdiff_t first, ptrdiff_t n, kvm_err *err)
{
    const kvm_str path = a->t->path.len ? a->t->path : KVM_STR("the translator");
    return kvm_fail(err, KVM_USAGE,
                    "%.*s: needs the ids of tokens %td to %td, which did not come with "
                    "the source's cache: hand them over with it, or fit a translator "
                    "that reads them out of the cache (token: decoded)",
                    KVM_STR_ARG(path), first, first + n);
}

kvm_status kvm_apply__tokens(kvm_apply *a, const kvm_handover *from, ptrdiff_t first,
                             ptrdiff_t n, kvm_err *err)
{
    a->told = NULL;
    if (!needs_tokens(a)) return KVM_OK;
    TRY(ids_room(a, n, err));
    a->told = a->ids;
    a->told_from = first;
    if (!a->codebook) {
        if (!from->ids) return untold(a, first, n, err);
        memcpy(a->ids, from->ids + first, sizeof *a->ids * (size_t)n);
        return KVM_OK;
    }
    const kvm_space s = kvm_codebook_of(a->codebook);
    const ptrdiff_t w = kvm_shapes_width(&a->t->source.shapes, s, 0);
    for (ptrdiff_t t = 0; t < n; t += a->block) {
        const ptrdiff_t piece = n - t < a->block ? n - t : a->block;
        TRY(read_layer(a, from, s, 0, first + t, piece, a->first_rows, w, err));
        TRY(kvm_codebook_decode(a->codebook, a->first_rows, w, piece, a->ids + t, err));
    }
    return KVM_OK;
}

const int32_t *kvm_apply_ids(const kvm_apply *a)
{
    return a->told;
}
