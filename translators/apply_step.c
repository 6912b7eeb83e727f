/* apply_step.c - one step on rows. */
#include <assert.h>

#include "translators/apply_internal.h"
#include "translators/select.h"

enum { BLOCK_TOKENS = 512 };

ptrdiff_t kvm_apply__items(const kvm_step *s, kvm_feature *out)
{
    return kvm_mapping_items(&s->mapping, s->source, s->sources, s->layer, out);
}

/* where the rows of a feature stand that group g reads */
static kvm_piece piece_of(const kvm_step *s, const kvm_rows_at *x, kvm_feature f,
                          ptrdiff_t g, ptrdiff_t target_heads)
{
    const ptrdiff_t *columns = x->at[f.side][f.space];
    assert(columns); /* of a space that was gathered */
    const kvm_row_shape r = x->shapes[f.side]->of[f.space][f.layer];
    kvm_piece p = {.made = f.side == KVM_TARGET && f.space != KVM_SPACE_TOKEN,
                   .column = columns[f.layer],
                   .width = r.heads * r.dim};
    if (s->head_matched) {
        p.column += kvm_matched_head(g, r.heads, target_heads) * r.dim;
        p.width = r.dim;
    }
    return p;
}

/* group g of weight `part` as (out, in) */
static kvm_tensor group_of(const kvm_step *s, int part, ptrdiff_t g)
{
    const kvm_tensor *w = &s->weight[part];
    char *from = (char *)w->data +
                 g * w->dim[1] * w->dim[2] * (ptrdiff_t)kvm_dtype_block_bytes(w->dtype);
    return kvm_view2(from, w->dtype, w->dim[1], w->dim[2]);
}

static kvm_status ready_group(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                              const kvm_rows_at *x, ptrdiff_t g, ptrdiff_t target_heads,
                              kvm_feature *item, kvm_err *err)
{
    const kvm_step *s = r->step;
    const kvm_tensor whole = group_of(s, 0, g);
    const ptrdiff_t items = kvm_apply__items(s, item);
    kvm_piece *p = r->piece[g] = kvm_new(keep, kvm_piece, items);
    if (!p) return kvm_nomem(err, keep);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < items; i++) { /* neighbours become one piece */
        const kvm_piece q = piece_of(s, x, item[i], g, target_heads);
        if (n > 0 && p[n - 1].made == q.made &&
            p[n - 1].column + p[n - 1].width == q.column)
            p[n - 1].width += q.width;
        else
            p[n++] = q;
    }
    kvm_tensor w = whole;
    for (ptrdiff_t i = 0; i < n; i++) {
        w.dim[1] = p[i].width;
        TRY(kvm_weight_new(&p[i].weight, keep, c, w,
                           i == 0 ? s->bias[0] + g * whole.dim[0] : NULL, err));
        w.data = (char *)w.data + p[i].width * kvm_dtype_block_bytes(w.dtype);
    }
    r->pieces[g] = n;
    if (s->map == KVM_MAP_RIDGE) return KVM_OK;
    TRY(kvm_weight_new(&r->weight2[g], keep, c, group_of(s, 1, g),
                       s->bias[1] + g * s->hidden, err));
    return kvm_weight_new(&r->weight3[g], keep, c, group_of(s, 2, g),
                          s->bias[2] + g * s->weight[2].dim[1], err);
}

kvm_status kvm_apply__ready(kvm_ready *r, kvm_arena *keep, kvm_compute *c,
                            const kvm_translator *t, const kvm_step *s,
                            const kvm_rows_at *x, kvm_err *err)
{
    kvm_feature *item = kvm_new(keep, kvm_feature, 3 + 2 * s->sources);
    *r = (kvm_ready){.step = s,
                     .pieces = kvm_new(keep, ptrdiff_t, s->groups),
                     .piece = kvm_new(keep, kvm_piece *, s->groups),
                     .weight2 = kvm_new(keep, kvm_weight *, s->groups),
                     .weight3 = kvm_new(keep, kvm_weight *, s->groups)};
    if (!item || !r->pieces || !r->piece || !r->weight2 || !r->weight3)
        return kvm_nomem(err, keep);
    const ptrdiff_t heads = kvm_step__shape(t, s).heads;
    for (ptrdiff_t g = 0; g < s->groups; g++)
        TRY(ready_group(r, keep, c, x, g, heads, item, err));
    return KVM_OK;
}

typedef struct relu_job {
    float *x;
    ptrdiff_t n;
} relu_job;

enum { RELU_PART = 16384 };

static void relu_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const relu_job *j = ctx;
    const ptrdiff_t end = (part + 1) * RELU_PART < j->n ? (part + 1) * RELU_PART : j->n;
    for (ptrdiff_t i = part * RELU_PART; i < end; i++)
        j->x[i] = j->x[i] > 0 ? j->x[i] : 0;
}

static void relu(kvm_compute *c, kvm_tensor x)
{
    relu_job j = {x.data, kvm_tensor_count(&x)};
    kvm_pool_run(kvm_compute_pool(c), (j.n + RELU_PART - 1) / RELU_PART, relu_part, &j);
}

/* y = sum over the pieces of x_piece W_piece^T + bias */
static kvm_status first_layer(kvm_compute *c, const kvm_ready *r, const kvm_rows_at *x,
                              ptrdiff_t g, ptrdiff_t n, kvm_tensor y, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < r->pieces[g]; i++) {
        const kvm_piece *p = &r->piece[g][i];
        float *rows = p->made ? x->made : x->read;
        kvm_tensor in = kvm_view2(rows + p->column, KVM_F32, n, p->width);
        in.stride[0] = p->made ? x->made_ld : x->ld;
        TRY(kvm_op_linear(c, y, in, p->weight, i > 0, err));
    }
    return KVM_OK;
}

kvm_status kvm_apply__step(kvm_compute *c, const kvm_ready *r, const kvm_rows_at *x,
                           ptrdiff_t n, float *y, ptrdiff_t ldy, float *const hidden[2],
                           kvm_err *err)
{
    const kvm_step *s = r->step;
    const ptrdiff_t out = s->outputs / s->groups;
    for (ptrdiff_t g = 0; g < s->groups; g++) {
        kvm_tensor to = kvm_view2(y + g * out, KVM_F32, n, out);
        to.stride[0] = ldy;
        if (s->map == KVM_MAP_RIDGE) {
            TRY(first_layer(c, r, x, g, n, to, err));
            continue;
        }
        const kvm_tensor h1 = kvm_view2(hidden[0], KVM_F32, n, s->hidden);
        const kvm_tensor h2 = kvm_view2(hidden[1], KVM_F32, n, s->hidden);
        TRY(first_layer(c, r, x, g, n, h1, err));
        relu(c, h1);
        TRY(kvm_op_linear(c, h2, h1, r->weight2[g], false, err));
        relu(c, h2);
        TRY(kvm_op_linear(c, to, h2, r->weight3[g], false, err));
    }
    return KVM_OK;
}

kvm_status kvm_apply__hidden(float *hidden[2], kvm_arena *keep, const kvm_step *steps,
                             ptrdiff_t count, ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t widest = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        if (steps[i].map == KVM_MAP_MLP && steps[i].hidden > widest)
            widest = steps[i].hidden;
    for (int i = 0; i < 2; i++) {
        hidden[i] = kvm_new_raw(keep, float, n *widest);
        if (!hidden[i]) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

/* ---- captured rows ---- */

/* the items' columns, one behind the other, whatever side they are of */
static kvm_status place_items(kvm_rows_at *x, const kvm_translator *t,
                              const kvm_feature *item, ptrdiff_t items,
                              const kvm_rows *const sides[2], kvm_arena *scratch,
                              kvm_err *err)
{
    x->shapes[KVM_SOURCE] = &t->source.shapes;
    x->shapes[KVM_TARGET] = &t->target.shapes;
    x->ld = 0;
    for (ptrdiff_t i = 0; i < items; i++) {
        const kvm_feature f = item[i];
        const kvm_row_shape want = x->shapes[f.side]->of[f.space][f.layer];
        const kvm_rows *rows = sides[f.side];
        if (!rows)
            return kvm_fail(err, KVM_USAGE, "rows of the target are needed for %s",
                            kvm_space_name(f.space));
        const bool known = f.layer < kvm_rows_info_of(rows)->shapes.layers;
        const kvm_row_shape have =
            known ? kvm_rows_shape(rows, f.space, f.layer) : (kvm_row_shape){0};
        if (want.heads != have.heads || want.dim != have.dim)
            return kvm_fail(
                err, KVM_MISMATCH,
                "%s: layer %td has %td heads of %td, the translator reads %td of %td",
                kvm_rows_path(rows).at, f.layer, have.heads, have.dim, want.heads,
                want.dim);
        ptrdiff_t **at = &x->at[f.side][f.space];
        if (!*at) *at = kvm_new(scratch, ptrdiff_t, x->shapes[f.side]->layers);
        if (!*at) return kvm_nomem(err, scratch);
        (*at)[f.layer] = x->ld;
        x->ld += want.heads * want.dim;
    }
    return KVM_OK;
}

kvm_status kvm_apply_rows(kvm_compute *c, const kvm_translator *t, ptrdiff_t i,
                          const kvm_rows *source, const kvm_rows *target,
                          const ptrdiff_t *index, ptrdiff_t n, float *out,
                          kvm_arena scratch, kvm_err *err)
{
    if (i < 0 || i >= t->count)
        return kvm_fail(err, KVM_RANGE, "step %td of %td", i, t->count);
    const kvm_step *s = &t->steps[i];
    const kvm_rows *const sides[] = {source, target};
    kvm_feature *item = kvm_new(&scratch, kvm_feature, 3 + 2 * s->sources);
    kvm_rows_at x = {0};
    if (!item) return kvm_nomem(err, &scratch);
    const ptrdiff_t items = kvm_apply__items(s, item);
    TRY(place_items(&x, t, item, items, sides, &scratch, err));
    kvm_ready ready;
    float *hidden[2];
    x.read = x.made = kvm_new_raw(&scratch, float, BLOCK_TOKENS *x.ld);
    x.made_ld = x.ld;
    if (!x.read) return kvm_nomem(err, &scratch);
    TRY(kvm_apply__ready(&ready, &scratch, c, t, s, &x, err));
    TRY(kvm_apply__hidden(hidden, &scratch, s, 1, BLOCK_TOKENS, err));
    for (ptrdiff_t first = 0; first < n; first += BLOCK_TOKENS) {
        const ptrdiff_t m = n - first < BLOCK_TOKENS ? n - first : BLOCK_TOKENS;
        for (ptrdiff_t k = 0; k < items; k++)
            TRY(kvm_rows_read(c, sides[item[k].side], item[k].space, item[k].layer, 1,
                              first, index ? index + first : NULL, m,
                              x.read + x.at[item[k].side][item[k].space][item[k].layer],
                              x.ld, err));
        TRY(kvm_apply__step(c, &ready, &x, m, out + first * s->outputs, s->outputs,
                            hidden, err));
    }
    return KVM_OK;
}
