#include "models/scales.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* grid entries as f32: where they lie, or a copy */
static kvm_status widen_grid(kvm_loader *ld, const kvm_found *f, const float **out,
                             kvm_err *err)
{
    const ptrdiff_t n = kvm_tensor_count(&f->t);
    const kvm_dtype d = f->t.dtype;
    if (d != KVM_F32 && d != KVM_BF16 && d != KVM_F16 && d != KVM_F8_E8M0)
        return kvm_fail(err, KVM_DTYPE,
                        "%s: tensor %.*s is stored as %s; scales are read as F32, "
                        "BF16, F16 or F8_E8M0",
                        f->file.at, KVM_STR_ARG(f->name), kvm_dtype_name(d));
    float *copy = f->t.data;
    if (d != KVM_F32) {
        copy = kvm_new_raw(ld->keep, float, n);
        if (!copy) return kvm_nomem(err, ld->keep);
        TRY(kvm_widen_row(copy, f->t.data, d, n, err));
    }
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(copy[i] >= 0 && isfinite(copy[i])))
            return kvm_fail(err, KVM_RANGE,
                            "%s: tensor %.*s: scale %td is %g: the checkpoint is "
                            "damaged, download it again",
                            f->file.at, KVM_STR_ARG(f->name), i, (double)copy[i]);
    *out = copy;
    return KVM_OK;
}

static ptrdiff_t blocks(ptrdiff_t n, ptrdiff_t of)
{
    return (n + of - 1) / of;
}

/* What a tensor of scales divides its matrix into; false: nothing that is known.
 * inverse: it is called NAME_scale_inv. */
static bool divide(kvm_scales *s, const kvm_config *c, const kvm_tensor *m,
                   const kvm_tensor *grid, bool inverse)
{
    const ptrdiff_t rows = c->scale_rows, cols = c->scale_cols;
    const ptrdiff_t n = kvm_tensor_count(grid);
    if (rows > 0 && grid->rank == 2 && grid->dim[0] == blocks(m->dim[0], rows) &&
        grid->dim[1] == blocks(m->dim[1], cols)) {
        *s = (kvm_scales){.rows = rows, .cols = cols, .pitch = grid->dim[1]};
        return true;
    }
    if (inverse && rows > 0) return false;
    *s = (kvm_scales){.rows = m->dim[0], .cols = m->dim[1], .pitch = 1};
    if (n == 1) return true;
    s->rows = 1;
    return !inverse && n == m->dim[0] && grid->dim[0] == n;
}

static kvm_status wrong_grid(const kvm_config *c, const kvm_found *f,
                             const kvm_found *grid, kvm_err *err)
{
    const kvm_tensor *t = &grid->t;
    char shape[96];
    int at = 0;
    shape[0] = 0;
    for (int i = 0; i < t->rank; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, i ? ", %td" : "%td",
                       t->dim[i]);
    if (c->scale_rows == 0)
        return kvm_fail(err, KVM_SHAPE,
                        "%s: tensor %.*s has shape [%s], but the config states no "
                        "weight_block_size: one scale would be expected",
                        grid->file.at, KVM_STR_ARG(grid->name), shape);
    return kvm_fail(err, KVM_SHAPE,
                    "%s: tensor %.*s has shape [%s], but blocks of %td x %td make a "
                    "grid of [%td, %td]",
                    grid->file.at, KVM_STR_ARG(grid->name), shape, c->scale_rows,
                    c->scale_cols, blocks(f->t.dim[0], c->scale_rows),
                    blocks(f->t.dim[1], c->scale_cols));
}

kvm_status kvm_scales_find(kvm_loader *ld, kvm_weight_at w, kvm_found *f,
                           ptrdiff_t *bytes, kvm_err *err)
{
    kvm_found inverse, plain;
    const bool has_inverse = kvm_checkpoint_beside(ld->ck, w, "_scale_inv", &inverse);
    const bool has_plain = kvm_checkpoint_beside(ld->ck, w, "_scale", &plain);
    *bytes = 0;
    if (f->t.dtype != KVM_F8_E4M3 || f->t.rank != 2) {
        if (!has_inverse && !has_plain) return KVM_OK;
        return kvm_fail(err, KVM_MISMATCH,
                        "%s: tensor %.*s is stored as %s and has scales, which are "
                        "read of F8_E4M3 matrices alone",
                        f->file.at, KVM_STR_ARG(f->name), kvm_dtype_name(f->t.dtype));
    }
    if (!has_inverse && !has_plain)
        return kvm_fail(err, KVM_DTYPE,
                        "%s: tensor %.*s is stored as F8_E4M3, but its scales "
                        "(%.*s_scale_inv or _scale) are missing",
                        f->file.at, KVM_STR_ARG(f->name), KVM_STR_ARG(f->name));
    if (has_inverse && has_plain)
        return kvm_fail(err, KVM_MISMATCH,
                        "%s: tensor %.*s has scales twice, _scale_inv and _scale",
                        f->file.at, KVM_STR_ARG(f->name));
    const kvm_found *grid = has_inverse ? &inverse : &plain;
    kvm_scales *s = kvm_new(ld->keep, kvm_scales, 1);
    if (!s) return kvm_nomem(err, ld->keep);
    if (!divide(s, ld->config, &f->t, &grid->t, has_inverse))
        return wrong_grid(ld->config, f, grid, err);
    TRY(widen_grid(ld, grid, &s->grid, err));
    *bytes = kvm_tensor_count(&grid->t) * kvm_dtype_block_bytes(grid->t.dtype);
    f->t.scales = s;
    return KVM_OK;
}

kvm_status kvm_scales_from(const kvm_scales **out, kvm_arena *keep, const kvm_tensor *m,
                           ptrdiff_t from, kvm_err *err)
{
    *out = NULL;
    if (!m->scales) return KVM_OK;
    kvm_scales *s = kvm_new(keep, kvm_scales, 1);
    if (!s) return kvm_nomem(err, keep);
    *s = *m->scales;
    s->first += from;
    *out = s;
    return KVM_OK;
}

kvm_status kvm_scales_picked(const kvm_scales **out, kvm_arena *keep,
                             const kvm_tensor *m, const ptrdiff_t *order, ptrdiff_t n,
                             kvm_err *err)
{
    *out = NULL;
    const kvm_scales *of = m->scales;
    if (!of) return KVM_OK;
    const ptrdiff_t cols = blocks(m->dim[1], of->cols);
    kvm_scales *s = kvm_new(keep, kvm_scales, 1);
    float *grid = kvm_new_raw(keep, float, n *cols);
    if (!s || !grid) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(grid + i * cols,
               of->grid + (of->first + order[i]) / of->rows * of->pitch,
               (size_t)cols * sizeof *grid);
    *s = (kvm_scales){.grid = grid, .rows = 1, .cols = of->cols, .pitch = cols};
    *out = s;
    return KVM_OK;
}
