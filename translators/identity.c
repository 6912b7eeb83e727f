#include "translators/identity.h"

#include <math.h>

#include "base/rng.h"
#include "translators/gather.h"

/* Entries and rows at a time: their scores stay in the second-level cache, and one
 * packing of a panel serves many rows. */
enum { PANEL = 512, ROWS = 512 };

struct kvm_codebook {
    kvm_compute *c;
    kvm_space space;
    ptrdiff_t vocab, width;
    ptrdiff_t row, used; /* numbers of a row, and the leading ones that tell */
    ptrdiff_t panels;
    kvm_weight *projection; /* (width, used) */
    kvm_weight **panel;     /* (panels) of (PANEL, width), bias -|c|^2/2 */
    float *entry;           /* (vocab, width) */
    float *half;            /* (vocab) -|c|^2/2 */
    float *low, *score;     /* (ROWS, width), (ROWS, PANEL) */
};

kvm_status kvm_codebook_space(kvm_space *s, const kvm_model *m, kvm_err *err)
{
    kvm_shapes shapes;
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own, 4 << 20, err));
    const kvm_status st = kvm_rows_shapes(&shapes, &own, m, err);
    const bool latent = !st && kvm_shapes_width(&shapes, KVM_SPACE_LATENT, 0) > 0;
    const bool value = !st && kvm_shapes_width(&shapes, KVM_SPACE_V, 0) > 0;
    kvm_arena_free(&own);
    if (st) return st;
    *s = latent ? KVM_SPACE_LATENT : KVM_SPACE_V;
    if (kvm_model_tokens_tell(m) && (latent || value)) return KVM_OK;
    return kvm_fail(
        err, KVM_UNSUPPORTED,
        "%s: its first layer is not attention over the tokens' embeddings, so "
        "its rows do not tell the token: hand the ids over (token: given)",
        kvm_model_info_of(m)->name.at);
}

/* ---- making it ---- */

static kvm_status project(const kvm_codebook *b, const float *rows, ptrdiff_t ld,
                          ptrdiff_t n, float *low, kvm_err *err)
{
    kvm_tensor x = kvm_view2_const(rows, KVM_F32, n, b->used);
    x.stride[0] = ld;
    return kvm_op_linear(b->c, kvm_view2(low, KVM_F32, n, b->width), x, b->projection,
                         false, err);
}

/* rows of a piece of the vocabulary on their way into the book */
typedef struct filling {
    kvm_codebook *b;
    ptrdiff_t from; /* first id of the piece */
} filling;

static kvm_status fill(void *ctx, kvm_space space, ptrdiff_t layer, ptrdiff_t first,
                       ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)space, (void)layer;
    const filling *f = ctx;
    return project(f->b, rows, f->b->row, n,
                   f->b->entry + (f->from + first) * f->b->width, err);
}

static kvm_status fill_all(kvm_codebook *b, kvm_model *m, kvm_err *err)
{
    enum { PIECE = 512 };
    kvm_arena own = {0};
    kvm_gather *g;
    filling f = {.b = b};
    int32_t ids[PIECE];
    TRY(kvm_arena_reserve(&own, (size_t)1 << 32, err));
    kvm_status s = kvm_gather_new(&g, &own, m, 1U << b->space, PIECE, fill, &f, err);
    for (; !s && f.from < b->vocab; f.from += PIECE) {
        const ptrdiff_t left = b->vocab - f.from, n = left < PIECE ? left : PIECE;
        for (ptrdiff_t i = 0; i < n; i++) ids[i] = (int32_t)(f.from + i);
        const kvm_capture sink = kvm_gather_capture(g);
        s = kvm_model_token_rows(m, ids, n, &sink, err);
    }
    kvm_arena_free(&own);
    return s;
}

/* entries independent and normal, scaled so that lengths stay: a fixed matrix of the
 * seed */
static kvm_status make_projection(kvm_codebook *b, uint64_t seed, kvm_arena *keep,
                                  kvm_err *err)
{
    float *w = kvm_new(keep, float, b->width * b->used);
    if (!w) return kvm_nomem(err, keep);
    kvm_rng rng = kvm_rng_seed(seed, 0xC0DE);
    const double scale = 1 / sqrt((double)b->width);
    for (ptrdiff_t i = 0; i < b->width * b->used; i++)
        w[i] = b->width < b->used ? (float)(scale * kvm_rng_normal(&rng))
                                  : (float)(i / b->used == i % b->used);
    return kvm_weight_new(&b->projection, keep, b->c,
                          kvm_view2(w, KVM_F32, b->width, b->used), NULL, err);
}

static kvm_status make_panels(kvm_codebook *b, kvm_arena *keep, kvm_err *err)
{
    for (ptrdiff_t v = 0; v < b->vocab; v++) {
        double sum = 0;
        for (ptrdiff_t i = 0; i < b->width; i++) {
            const double x = (double)b->entry[v * b->width + i];
            sum += x * x;
        }
        b->half[v] = (float)(-sum / 2);
    }
    for (ptrdiff_t p = 0; p < b->panels; p++) {
        const ptrdiff_t from = p * PANEL;
        const ptrdiff_t n = b->vocab - from < PANEL ? b->vocab - from : PANEL;
        TRY(kvm_weight_new(&b->panel[p], keep, b->c,
                           kvm_view2(b->entry + from * b->width, KVM_F32, n, b->width),
                           b->half + from, err));
    }
    return KVM_OK;
}

/* how many leading numbers of a row of the first layer are the same wherever the token
 * stands */
static ptrdiff_t telling(const kvm_model *m, kvm_space s)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        const kvm_row_shape part = kvm_space_part(s, o);
        if (o->layer > 0 || part.dim == 0) continue;
        if (o->rotary && kvm_space_rows[s].point == KVM_POINT_ENGINE) break;
        n += part.heads * part.dim;
    }
    return n;
}

/* room for b->vocab entries of b->width, of rows whose b->used leading numbers tell */
static kvm_status reserve(kvm_codebook *b, kvm_arena *keep, kvm_err *err)
{
    b->panels = (b->vocab + PANEL - 1) / PANEL;
    b->entry = kvm_new_raw(keep, float, b->vocab * b->width);
    b->half = kvm_new_raw(keep, float, b->vocab);
    b->panel = kvm_new(keep, kvm_weight *, b->panels);
    b->low = kvm_new_raw(keep, float, ROWS * b->width);
    b->score = kvm_new_raw(keep, float, (ptrdiff_t)ROWS *PANEL);
    return b->entry && b->half && b->panel && b->low && b->score ? KVM_OK
                                                                 : kvm_nomem(err, keep);
}

kvm_status kvm_codebook_of_embeddings(kvm_codebook **out, kvm_arena *keep,
                                      kvm_compute *c, kvm_model *m, kvm_err *err)
{
    enum { PIECE = 512 };
    const kvm_model_info *info = kvm_model_info_of(m);
    kvm_codebook *b = kvm_new(keep, kvm_codebook, 1);
    int32_t ids[PIECE];
    if (!b) return kvm_nomem(err, keep);
    *b = (kvm_codebook){.c = c,
                        .space = KVM_SPACE_TOKEN,
                        .vocab = info->vocab,
                        .width = info->hidden,
                        .row = info->hidden,
                        .used = info->hidden};
    TRY(reserve(b, keep, err));
    TRY(make_projection(b, 0, keep, err));
    for (ptrdiff_t from = 0; from < b->vocab; from += PIECE) {
        const ptrdiff_t left = b->vocab - from, n = left < PIECE ? left : PIECE;
        for (ptrdiff_t i = 0; i < n; i++) ids[i] = (int32_t)(from + i);
        TRY(kvm_model_embed_tokens(m, ids, n, b->entry + from * b->width, b->width,
                                   err));
    }
    TRY(make_panels(b, keep, err));
    *out = b;
    return KVM_OK;
}

kvm_status kvm_codebook_new(kvm_codebook **out, kvm_arena *keep, kvm_compute *c,
                            kvm_model *m, bool engine, const kvm_codebook_options *o,
                            kvm_err *err)
{
    kvm_codebook *b = kvm_new(keep, kvm_codebook, 1);
    kvm_shapes shapes;
    if (!b) return kvm_nomem(err, keep);
    TRY(kvm_codebook_space(&b->space, m, err));
    TRY(kvm_rows_shapes(&shapes, keep, m, err));
    if (engine && b->space == KVM_SPACE_LATENT) b->space = KVM_SPACE_LATENT_ENGINE;
    b->c = c;
    b->vocab = kvm_model_info_of(m)->vocab;
    b->row = kvm_shapes_width(&shapes, b->space, 0);
    b->used = telling(m, b->space);
    b->width = o && o->width > 0 ? o->width : KVM_CODEBOOK_WIDTH;
    if (b->width > b->used) b->width = b->used;
    TRY(reserve(b, keep, err));
    TRY(make_projection(b, o ? o->seed : 0, keep, err));
    TRY(fill_all(b, m, err));
    TRY(make_panels(b, keep, err));
    *out = b;
    return KVM_OK;
}

kvm_space kvm_codebook_of(const kvm_codebook *b)
{
    return b->space;
}

/* ---- decoding ---- */

/* the best entries so far of up to ROWS rows, and a panel's scores of them */
typedef struct choosing {
    const float *score; /* (n, width) */
    ptrdiff_t width;
    int32_t from; /* id of the panel's first entry */
    float *best;  /* (n) */
    int32_t *id;  /* (n) */
} choosing;

/* the largest of n numbers; -INFINITY: none is finite. Running maxima side by side, so
 * that the compiler can compare many entries at once. */
static float largest(const float *x, ptrdiff_t n)
{
    enum { LANES = 64, SHORT = 4 }; /* fewer lanes are unrolled, not vectors */
    float most[LANES], top = -INFINITY;
    ptrdiff_t i = 0;
    for (int k = 0; k < LANES; k++) most[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            most[k] = x[i + k] > most[k] ? x[i + k] : most[k];
    for (int half = LANES / 2; half >= SHORT; half /= 2)
        for (int k = 0; k < half; k++)
            most[k] = most[k + half] > most[k] ? most[k + half] : most[k];
    for (int k = 0; k < SHORT; k++) top = most[k] > top ? most[k] : top;
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* Pool part: one row. Ties go to the lower id. In pieces, so that the best entry is
 * looked for in one of them alone. */
static void choose_row(void *ctx, ptrdiff_t row, int thread)
{
    enum { PIECE = 512 };
    (void)thread;
    const choosing *j = ctx;
    const float *x = j->score + row * j->width;
    float top = j->best[row];
    ptrdiff_t at = -1;
    for (ptrdiff_t i = 0; i < j->width; i += PIECE) {
        const float here = largest(x + i, j->width - i < PIECE ? j->width - i : PIECE);
        if (!(here > top)) continue;
        top = here;
        at = i;
    }
    if (at < 0) return;
    while (x[at] != top) at++;
    j->best[row] = top;
    j->id[row] = j->from + (int32_t)at;
}

static kvm_status decode_rows(const kvm_codebook *b, const float *rows, ptrdiff_t ld,
                              ptrdiff_t n, int32_t *ids, kvm_err *err)
{
    float best[ROWS];
    TRY(project(b, rows, ld, n, b->low, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        best[i] = -INFINITY;
        ids[i] = 0;
    }
    for (ptrdiff_t p = 0; p < b->panels; p++) {
        const ptrdiff_t from = p * PANEL;
        const ptrdiff_t width = b->vocab - from < PANEL ? b->vocab - from : PANEL;
        TRY(kvm_op_linear(b->c, kvm_view2(b->score, KVM_F32, n, width),
                          kvm_view2(b->low, KVM_F32, n, b->width), b->panel[p], false,
                          err));
        choosing j = {b->score, width, (int32_t)from, best, ids};
        kvm_pool_run(kvm_compute_pool(b->c), n, choose_row, &j);
    }
    for (ptrdiff_t i = 0; i < n; i++)
        if (best[i] == -INFINITY)
            return kvm_fail(err, KVM_NAN, "a row that tells a token is not finite");
    return KVM_OK;
}

kvm_status kvm_codebook_decode(const kvm_codebook *b, const float *rows, ptrdiff_t ld,
                               ptrdiff_t n, int32_t *ids, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i += ROWS)
        TRY(decode_rows(b, rows + i * ld, ld, n - i < ROWS ? n - i : ROWS, ids + i,
                        err));
    return KVM_OK;
}

double kvm_codebook_flops(const kvm_codebook *b)
{
    return 2 * (double)b->width * (double)(b->used + b->vocab);
}
