#include "models/load.h"

#include <math.h>
#include <string.h>

#include "models/rope.h"
#include "models/scales.h"

/* types that are numbers by themselves, or with their scales */
static bool readable(const kvm_tensor *t)
{
    const kvm_dtype d = t->dtype;
    return d == KVM_F32 || d == KVM_F16 || d == KVM_BF16 || d == KVM_F64 ||
           kvm_dtype_block(d) > 1 || t->scales;
}

static kvm_status check_dtype(const kvm_found *f, kvm_err *err)
{
    if (readable(&f->t)) return KVM_OK;
    return kvm_fail(
        err, KVM_DTYPE,
        "%s: tensor %.*s is stored as %s; weights are read as F32, F16, BF16, "
        "F64 or GGUF blocks, matrices as F8_E4M3 too",
        f->file.at, KVM_STR_ARG(f->name), kvm_dtype_name(f->t.dtype));
}

enum { PIECE = 4096 }; /* a multiple of every block */

static kvm_status check_finite(const kvm_found *f, kvm_err *err)
{
    float x[PIECE];
    const ptrdiff_t count = kvm_tensor_count(&f->t);
    const char *at = f->t.data;
    for (ptrdiff_t i = 0; i < count; i += PIECE) {
        const ptrdiff_t n = count - i < PIECE ? count - i : PIECE;
        ptrdiff_t bytes;
        if (!kvm_dtype_bytes(f->t.dtype, n, &bytes))
            return kvm_fail(err, KVM_FORMAT, "%s: tensor %.*s ends within a block",
                            f->file.at, KVM_STR_ARG(f->name));
        TRY(kvm_widen_row(x, at, f->t.dtype, n, err));
        for (ptrdiff_t j = 0; j < n; j++)
            if (!isfinite(x[j]))
                return kvm_fail(err, KVM_NAN,
                                "%s: tensor %.*s: number %td is %g: the checkpoint is "
                                "damaged, download it again",
                                f->file.at, KVM_STR_ARG(f->name), i + j, (double)x[j]);
        at += bytes;
    }
    return KVM_OK;
}

kvm_status kvm_load_note(kvm_loader *ld, const kvm_tensor *t, kvm_err *err)
{
    ptrdiff_t bytes;
    if (!ld->extents || !kvm_dtype_bytes(t->dtype, kvm_tensor_count(t), &bytes))
        return KVM_OK;
    kvm_extent *last = *ld->extents;
    if (last && last->at + last->bytes == t->data) {
        last->bytes += bytes;
        return KVM_OK;
    }
    kvm_extent *e = kvm_new(ld->keep, kvm_extent, 1);
    if (!e) return kvm_nomem(err, ld->keep);
    *e = (kvm_extent){t->data, bytes, last};
    *ld->extents = e;
    return KVM_OK;
}

static kvm_status get(kvm_loader *ld, kvm_weight_at w, int rank, const ptrdiff_t *dim,
                      kvm_found *f, ptrdiff_t *bytes, kvm_err *err)
{
    ptrdiff_t scales;
    TRY(kvm_checkpoint_get(ld->ck, w, rank, dim, f, err));
    TRY(kvm_scales_find(ld, w, f, &scales, err));
    TRY(check_dtype(f, err));
    TRY(kvm_load_note(ld, &f->t, err));
    if (ld->check_finite) TRY(check_finite(f, err));
    const ptrdiff_t count = kvm_tensor_count(&f->t);
    if (!kvm_dtype_bytes(f->t.dtype, count, bytes))
        return kvm_fail(err, KVM_FORMAT, "%s: tensor %.*s ends within a block",
                        f->file.at, KVM_STR_ARG(f->name));
    ld->parameters += count;
    ld->bytes += *bytes + scales;
    return KVM_OK;
}

static kvm_status get_matrix(kvm_loader *ld, kvm_weight_at w, ptrdiff_t rows,
                             ptrdiff_t cols, kvm_found *f, kvm_err *err)
{
    ptrdiff_t bytes;
    TRY(get(ld, w, 2, (ptrdiff_t[]){rows, cols}, f, &bytes, err));
    ld->dtype_bytes[f->t.dtype] += bytes;
    return KVM_OK;
}

kvm_status kvm_load_matrix(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                           ptrdiff_t rows, ptrdiff_t cols, kvm_tensor *out,
                           kvm_err *err)
{
    kvm_found f;
    const kvm_weight_at w = {.id = id, .layer = layer};
    TRY(get_matrix(ld, w, rows, cols, &f, err));
    *out = f.t;
    return KVM_OK;
}

/* the mean of a norm's numbers, where it is less than *least and the file has one */
static kvm_status lower_mean(kvm_loader *ld, kvm_weight_at w, double *least,
                             kvm_err *err)
{
    double sum = 0;
    float x[PIECE];
    kvm_found f;
    if (!kvm_checkpoint_beside(ld->ck, w, "", &f)) return KVM_OK;
    TRY(check_dtype(&f, err));
    const ptrdiff_t count = kvm_tensor_count(&f.t),
                    unit = kvm_dtype_block_bytes(f.t.dtype);
    for (ptrdiff_t i = 0; i < count; i += PIECE) {
        const ptrdiff_t m = count - i < PIECE ? count - i : PIECE;
        TRY(kvm_widen_row(x, (char *)f.t.data + i * unit, f.t.dtype, m, err));
        for (ptrdiff_t j = 0; j < m; j++) sum += (double)x[j];
    }
    if (count > 0 && sum / (double)count < *least) *least = sum / (double)count;
    return KVM_OK;
}

kvm_status kvm_load_norm_form(kvm_loader *ld, kvm_err *err)
{
    static const kvm_weight_id ids[] = {KVM_W_ATTN_NORM,         KVM_W_FFN_NORM,
                                        KVM_W_ATTN_Q_NORM,       KVM_W_ATTN_K_NORM,
                                        KVM_W_MIXER_STREAM_NORM, KVM_W_FFN_STREAM_NORM};
    /* Training moves many norms far from where they began, but never all of them: the
     * lowest of a stack stays near 0, or near 1. */
    double least = HUGE_VAL;
    ld->norms_whole = false;
    if (!ld->config->family->plus_one) return KVM_OK;
    for (ptrdiff_t l = 0; l < ld->config->layers; l++)
        for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
            TRY(lower_mean(ld, (kvm_weight_at){.id = ids[i], .layer = l}, &least, err));
    if (least == HUGE_VAL) return KVM_OK; /* none: what is missing is named later */
    if ((least > 0.3 && least < 0.7) || least > 1.5)
        return kvm_fail(err, KVM_MISMATCH,
                        "%s: the lowest norm weights are %.2f on average: near 0 one "
                        "is to be added to them, near 1 it has been; this file could "
                        "be either",
                        kvm_checkpoint_path(ld->ck).at, least);
    ld->norms_whole = least > 0.5;
    return KVM_OK;
}

kvm_status kvm_load_norm(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer, ptrdiff_t n,
                         float **out, kvm_err *err)
{
    TRY(kvm_load_vector(ld, id, layer, n, out, err));
    const bool add = ld->config->family->plus_one && !ld->norms_whole;
    for (ptrdiff_t i = 0; add && i < n; i++) (*out)[i] += 1;
    return KVM_OK;
}

kvm_status kvm_load_picked(kvm_loader *ld, kvm_tensor matrix, const ptrdiff_t *order,
                           ptrdiff_t n, kvm_weight **w, kvm_err *err)
{
    ptrdiff_t unit; /* rows are whole blocks: the file's reader has checked that */
    if (!kvm_dtype_bytes(matrix.dtype, matrix.dim[1], &unit))
        return kvm_fail(err, KVM_FORMAT, "a row of %td ends within a block",
                        matrix.dim[1]);
    char *copy = kvm_new_raw(ld->keep, char, n *unit);
    if (!copy) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(copy + i * unit, (char *)matrix.data + order[i] * unit, (size_t)unit);
    kvm_tensor picked = kvm_view2(copy, matrix.dtype, n, matrix.dim[1]);
    TRY(kvm_scales_picked(&picked.scales, ld->keep, &matrix, order, n, err));
    return kvm_weight_new(w, ld->keep, ld->compute, picked, NULL, err);
}

kvm_status kvm_load_rows(kvm_loader *ld, kvm_tensor matrix, ptrdiff_t from, ptrdiff_t n,
                         kvm_weight **w, kvm_err *err)
{
    ptrdiff_t before; /* rows are whole blocks, as above */
    if (!kvm_dtype_bytes(matrix.dtype, from * matrix.dim[1], &before))
        return kvm_fail(err, KVM_FORMAT, "a row of %td ends within a block",
                        matrix.dim[1]);
    kvm_tensor part =
        kvm_view2((char *)matrix.data + before, matrix.dtype, n, matrix.dim[1]);
    TRY(kvm_scales_from(&part.scales, ld->keep, &matrix, from, err));
    return kvm_weight_new(w, ld->keep, ld->compute, part, NULL, err);
}

kvm_status kvm_load_stack(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                          ptrdiff_t n, ptrdiff_t rows, ptrdiff_t cols, kvm_tensor *out,
                          kvm_err *err)
{
    kvm_found f;
    ptrdiff_t bytes;
    const kvm_weight_at w = {.id = id, .layer = layer};
    TRY(get(ld, w, 3, (ptrdiff_t[]){n, rows, cols}, &f, &bytes, err));
    ld->dtype_bytes[f.t.dtype] += bytes;
    ld->matrix_parameters += n * rows * cols;
    *out = f.t;
    return KVM_OK;
}

static kvm_status load_wide(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer, int rank,
                            const ptrdiff_t *dim, float **out, kvm_err *err)
{
    kvm_found f;
    ptrdiff_t bytes;
    const kvm_weight_at w = {.id = id, .layer = layer};
    TRY(get(ld, w, rank, dim, &f, &bytes, err));
    const ptrdiff_t n = kvm_tensor_count(&f.t);
    float *v = kvm_new_raw(ld->keep, float, n);
    if (!v) return kvm_nomem(err, ld->keep);
    if (!f.t.scales)
        TRY(kvm_widen_row(v, f.t.data, f.t.dtype, n, err));
    else
        for (ptrdiff_t r = 0, cols = f.t.dim[1]; r < f.t.dim[0]; r++)
            TRY(kvm_widen_at(v + r * cols, &f.t, r, 0, cols, err));
    *out = v;
    return KVM_OK;
}

kvm_status kvm_load_vector(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                           ptrdiff_t n, float **out, kvm_err *err)
{
    return load_wide(ld, id, layer, 1, &n, out, err);
}

kvm_status kvm_load_grid(kvm_loader *ld, kvm_weight_id id, ptrdiff_t layer,
                         ptrdiff_t rows, ptrdiff_t cols, float **out, kvm_err *err)
{
    return load_wide(ld, id, layer, 2, (ptrdiff_t[]){rows, cols}, out, err);
}

/* GGUF files of these architectures hold a head's rows as 0, d/2, 1, d/2+1, ... so that
 * rotated pairs are adjacent (permute of llama.cpp's converter). `unit` bytes a row. */
static void unpair(char *to, const char *from, ptrdiff_t heads, ptrdiff_t dim,
                   ptrdiff_t unit)
{
    for (ptrdiff_t h = 0; h < heads; h++)
        for (ptrdiff_t j = 0; j < dim; j++) {
            const ptrdiff_t pair = j < dim / 2 ? 2 * j : 2 * (j - dim / 2) + 1;
            memcpy(to + (h * dim + j) * unit, from + (h * dim + pair) * unit,
                   (size_t)unit);
        }
}

static kvm_status unpair_matrix(kvm_loader *ld, const kvm_linear_row *row,
                                kvm_tensor *m, kvm_err *err)
{
    ptrdiff_t unit; /* rows are whole blocks: the file's reader has checked that */
    if (!kvm_dtype_bytes(m->dtype, row->in, &unit))
        return kvm_fail(err, KVM_FORMAT, "a row of %td ends within a block", row->in);
    char *copy = kvm_new_raw(ld->keep, char, row->out *unit);
    if (!copy) return kvm_nomem(err, ld->keep);
    unpair(copy, m->data, row->rotary_heads, row->out / row->rotary_heads, unit);
    m->data = copy;
    return KVM_OK;
}

static kvm_status load_bias(kvm_loader *ld, const kvm_linear_row *row, float **bias,
                            kvm_err *err)
{
    TRY(kvm_load_vector(ld, row->bias, row->layer, row->out, bias, err));
    if (row->rotary_heads == 0 || !kvm_checkpoint_permuted(ld->ck)) return KVM_OK;
    float *copy = kvm_new_raw(ld->keep, float, row->out);
    if (!copy) return kvm_nomem(err, ld->keep);
    unpair((char *)copy, (const char *)*bias, row->rotary_heads,
           row->out / row->rotary_heads, sizeof **bias);
    *bias = copy;
    return KVM_OK;
}

kvm_status kvm_load_linear(kvm_loader *ld, const kvm_linear_row *row, kvm_weight **w,
                           kvm_err *err)
{
    kvm_found f;
    float *bias = NULL;
    const kvm_weight_at matrix = {row->weight, row->layer, row->expert};
    TRY(get_matrix(ld, matrix, row->out, row->in, &f, err));
    if (row->rotary_heads > 0 && kvm_checkpoint_permuted(ld->ck))
        TRY(unpair_matrix(ld, row, &f.t, err));
    if (row->has_bias)
        TRY(load_bias(ld, row, &bias, err));
    else if (row->bias != row->weight &&
             kvm_checkpoint_has(ld->ck,
                                (kvm_weight_at){row->bias, row->layer, row->expert}))
        return kvm_fail(err, KVM_MISMATCH,
                        "%s: layer %td has a bias that its config knows nothing of "
                        "(attention_bias, mlp_bias)",
                        kvm_checkpoint_path(ld->ck).at, row->layer);
    ld->matrix_parameters += row->out * row->in;
    const kvm_status s = kvm_weight_new(w, ld->keep, ld->compute, f.t, bias, err);
    return s ? kvm_err_prefix(err, s, "%s: tensor %.*s", f.file.at, KVM_STR_ARG(f.name))
             : KVM_OK;
}

kvm_status kvm_load_maps(kvm_loader *ld, ptrdiff_t layer, const kvm_plain_map *maps,
                         ptrdiff_t n, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_linear_row row = {.weight = maps[i].id,
                                    .bias = maps[i].id,
                                    .layer = layer,
                                    .out = maps[i].out,
                                    .in = maps[i].in};
        TRY(kvm_load_linear(ld, &row, maps[i].to, err));
    }
    return KVM_OK;
}

kvm_status kvm_load_rope(kvm_loader *ld, kvm_err *err)
{
    const kvm_rope_config *r = &ld->config->rope;
    const char *file = kvm_checkpoint_path(ld->ck).at;
    float *divisors = NULL;
    if (kvm_checkpoint_has(ld->ck, (kvm_weight_at){.id = KVM_W_ROPE_FREQS})) {
        TRY(kvm_load_vector(ld, KVM_W_ROPE_FREQS, 0, r->width / 2, &divisors, err));
        for (ptrdiff_t j = 0; j < r->width / 2; j++)
            if (!(divisors[j] > 0 && isfinite(divisors[j])))
                return kvm_fail(err, KVM_RANGE,
                                "%s: rope_freqs.weight: entry %td is %g", file, j,
                                (double)divisors[j]);
    }
    if (kvm_checkpoint_permuted(ld->ck) && r->width != ld->config->head_dim)
        return kvm_fail(
            err, KVM_UNSUPPORTED,
            "%s: a partly rotated head in a file whose rows are in pair order", file);
    return kvm_rope_of(&ld->rope, ld->keep, r, divisors, err);
}
