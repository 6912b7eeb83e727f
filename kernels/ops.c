#include "kernels/ops.h"

#include "base/build.h"
#include "base/checked.h"
#include "kernels/backend.h"

#include <cblas.h>
#include <string.h>

/* best first: a name means the first of that name which this machine supports. Where
 * bf16 runs avx512 does, so "cpu" is never the one that rounds activations. */
static const kvm_backend *const backends[] = {
    &kvm_backend__ref,      &kvm_backend__cpu_avx512, &kvm_backend__cpu_bf16,
    &kvm_backend__cpu_avx2, &kvm_backend__cpu_plain,
};
enum { BACKENDS = (int)(sizeof backends / sizeof *backends) };

const kvm_backend *kvm_backend__at(int i)
{
    return i >= 0 && i < BACKENDS ? backends[i] : NULL;
}

/* "cpu", or "cpu-avx2" for one instruction set of it */
static bool named(const kvm_backend *b, kvm_str name)
{
    kvm_str device, isa;
    const bool one = kvm_str_cut(name, '-', &device, &isa);
    return kvm_str_eq(device, kvm_str_of(b->name)) &&
           (!one || kvm_str_eq(isa, kvm_str_of(b->isa())));
}

/* its place in the table, or -1 */
static int place_of(kvm_str name)
{
    for (int i = 0; i < BACKENDS; i++)
        if (named(backends[i], name) && backends[i]->supported()) return i;
    return -1;
}

const kvm_backend *kvm_backend_find(kvm_str name)
{
    return kvm_backend__at(place_of(name));
}

kvm_status kvm_backend_choose(const kvm_backend **b, kvm_str name, kvm_err *err)
{
    const int place = place_of(name);
    if (place >= 0) {
        *b = backends[place];
        return KVM_OK;
    }
    kvm_text t = {0};
    for (int i = 0; i < BACKENDS; i++)
        kvm_text_addf(&t, backends[i] == &kvm_backend__ref ? ", %s" : ", %s-%s",
                      backends[i]->name, backends[i]->isa());
    const kvm_status s =
        kvm_fail(err, KVM_ENVIRONMENT,
                 "backend \"%.*s\" is not built into this binary or not supported by "
                 "this machine; the names are cpu (the best exact one here)%.*s",
                 KVM_STR_ARG(name), KVM_STR_ARG(kvm_text_str(&t)));
    kvm_text_free(&t);
    return s;
}

const char *kvm_backend_name(const kvm_backend *b)
{
    return b->name;
}

kvm_str kvm_backend_label(const kvm_backend *b, kvm_arena *keep)
{
    return b == &kvm_backend__ref ? kvm_str_of(b->name)
                                  : kvm_str_fmt(keep, "%s-%s", b->name, b->isa());
}

bool kvm_backend_rounds(const kvm_backend *b)
{
    return b->linear_tolerance > 0;
}

/* ---- the context ----------------------------------------------------------------- */

static void scratch_free(void *arena)
{
    kvm_arena_free(arena);
}

kvm_status kvm_compute_new(kvm_compute **out, kvm_arena *keep, const kvm_backend *b,
                           int threads, kvm_err *err)
{
    if (!b) return kvm_fail(err, KVM_NOTFOUND, "no such backend in this build");
    kvm_compute *c = kvm_new(keep, kvm_compute, 1);
    if (!c) return kvm_nomem(err, keep);
    c->backend = b;
    TRY(kvm_pool_new(&c->pool, keep, threads, err));
    c->threads = kvm_pool_threads(c->pool);
    const size_t bytes = b->scratch_bytes + (size_t)c->threads * b->scratch_per_thread;
    TRY(kvm_arena_init(&c->scratch, bytes, err));
    TRY(kvm_arena_defer(keep, scratch_free, &c->scratch, err));
    *out = c;
    return KVM_OK;
}

int kvm_compute_threads(const kvm_compute *c)
{
    return c->threads;
}

kvm_pool *kvm_compute_pool(const kvm_compute *c)
{
    return c->pool;
}

const kvm_backend *kvm_compute_backend(const kvm_compute *c)
{
    return c->backend;
}

kvm_str kvm_compute_describe(const kvm_compute *c, kvm_arena *keep)
{
    return kvm_str_fmt(keep,
                       "%s threads=%d isa=%s blas=OpenBLAS/%s cc=\"%s\" flags=\"%s\"",
                       c->backend->name, c->threads, c->backend->isa(),
                       openblas_get_corename(), kvm_build_compiler, kvm_build_flags);
}

/* Sums over nothing are rare and not worth a thought in a fast kernel. */
static const kvm_backend *backend_for(const kvm_compute *c, ptrdiff_t terms)
{
    return terms > 0 ? c->backend : &kvm_backend__ref;
}

#define CHECK(op, ...)                                                                 \
    do {                                                                               \
        const kvm_tensor *const views_[] = {__VA_ARGS__};                              \
        const int count_ = (int)(sizeof views_ / sizeof *views_);                      \
        TRY(kvm_ops__check(KVM_OP_##op, views_, count_, err));                         \
        for (int i_ = 0; i_ < count_; i_++)                                            \
            if (views_[i_]->device != c->backend->device)                              \
                return kvm_fail(err, KVM_SHAPE,                                        \
                                "%s: the views are not on %s's device", #op,           \
                                c->backend->name);                                     \
    } while (0)

/* ---- model forward --------------------------------------------------------------- */

/* ids[t] in [0,n); a NULL list passes */
static kvm_status check_ids(const int32_t *ids, ptrdiff_t count, ptrdiff_t n,
                            const char *op, kvm_err *err)
{
    for (ptrdiff_t t = 0; ids && t < count; t++)
        if (ids[t] < 0 || ids[t] >= n)
            return kvm_fail(err, KVM_RANGE, "%s: id %d at place %td is not in 0..%td",
                            op, (int)ids[t], t, n - 1);
    return KVM_OK;
}

kvm_status kvm_op_embed(kvm_compute *c, kvm_tensor y, const int32_t *ids, kvm_tensor w,
                        kvm_err *err)
{
    CHECK(embed, &y, &w);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    TRY(check_ids(ids, y.dim[0], w.dim[0], "embed", err));
    return c->backend->embed(c, &y, ids, &w, err);
}

static kvm_status check_norm(const char *op, ptrdiff_t f, ptrdiff_t weights,
                             ptrdiff_t group, double eps, kvm_err *err)
{
    if (group <= 0 || f % group)
        return kvm_fail(err, KVM_SHAPE, "%s: F = %td is not whole groups of %td", op, f,
                        group);
    if (weights != group && weights != f)
        return kvm_fail(err, KVM_SHAPE, "%s: w has %td entries, not %td or %td", op,
                        weights, group, f);
    if (!(eps >= 0)) return kvm_fail(err, KVM_RANGE, "%s: eps is %g", op, eps);
    return KVM_OK;
}

kvm_status kvm_op_rmsnorm(kvm_compute *c, kvm_tensor y, kvm_tensor x, kvm_tensor w,
                          ptrdiff_t group, double eps, bool plus_one, kvm_err *err)
{
    CHECK(rmsnorm, &y, &x, &w);
    TRY(check_norm("rmsnorm", x.dim[1], w.dim[0], group, eps, err));
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return c->backend->rmsnorm(c, &y, &x, &w, group, eps, plus_one, err);
}

kvm_status kvm_weight_new(kvm_weight **out, kvm_arena *keep, kvm_compute *c,
                          kvm_tensor matrix, const float *bias, kvm_err *err)
{
    kvm_tensor y = kvm_view2(NULL, KVM_F32, 0, matrix.rank == 2 ? matrix.dim[0] : 0);
    kvm_tensor x = kvm_view2(NULL, KVM_F32, 0, matrix.rank == 2 ? matrix.dim[1] : 0);
    y.device = x.device = matrix.device;
    CHECK(linear, &y, &x, &matrix);
    kvm_weight *w = kvm_new(keep, kvm_weight, 1);
    if (!w) return kvm_nomem(err, keep);
    w->matrix = matrix;
    w->bias = bias;
    *out = w;
    return KVM_OK;
}

size_t kvm_weight_bytes(const kvm_weight *w)
{
    return w->bytes;
}

kvm_status kvm_op_linear(kvm_compute *c, kvm_tensor y, kvm_tensor x,
                         const kvm_weight *w, bool add, kvm_err *err)
{
    CHECK(linear, &y, &x, &w->matrix);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return backend_for(c, x.dim[1])->linear(c, &y, &x, w, add, err);
}

kvm_status kvm_op_rope(kvm_compute *c, kvm_tensor x, const int32_t *pos,
                       const kvm_rope *r, bool inverse, kvm_err *err)
{
    CHECK(rope, &x);
    if (r->width < 0 || r->width % 2 || r->width > x.dim[2])
        return kvm_fail(err, KVM_SHAPE, "rope: width %td does not fit heads of %td",
                        r->width, x.dim[2]);
    if (!(r->factor > 0)) /* NaN too: the inverse divides by it */
        return kvm_fail(err, KVM_RANGE, "rope: factor is %g", (double)r->factor);
    if (kvm_tensor_count(&x) == 0 || r->width == 0) return KVM_OK;
    return c->backend->rope(c, &x, pos, r, inverse, err);
}

static kvm_status check_attention(const char *op, kvm_in q, kvm_in k, ptrdiff_t first,
                                  ptrdiff_t window, const kvm_mask *mask, kvm_err *err)
{
    const ptrdiff_t tokens = q->dim[0], heads = q->dim[1], kv_heads = k->dim[0];
    ptrdiff_t end;
    if (kv_heads <= 0 || heads % kv_heads)
        return kvm_fail(err, KVM_SHAPE, "%s: %td query heads over %td kv heads", op,
                        heads, kv_heads);
    if (!kvm_add(first, tokens, &end) || end > k->dim[1])
        return kvm_fail(err, KVM_SHAPE, "%s: %td queries from position %td, %td keys",
                        op, tokens, first, k->dim[1]);
    if (window < 0) return kvm_fail(err, KVM_RANGE, "%s: window is %td", op, window);
    if (mask && (!mask->bits || mask->words < (end + 63) / 64))
        return kvm_fail(err, KVM_SHAPE, "%s: a mask of %td words for %td keys", op,
                        mask->words, end);
    return KVM_OK;
}

static kvm_status attend(kvm_compute *c, kvm_tensor y, kvm_tensor q, kvm_tensor k,
                         kvm_tensor v, ptrdiff_t first, ptrdiff_t window,
                         const kvm_mask *mask, double scale, kvm_err *err)
{
    CHECK(attention, &y, &q, &k, &v);
    TRY(check_attention("attention", &q, &k, first, window, mask, err));
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return backend_for(c, q.dim[2])
        ->attention(c, &y, &q, &k, &v, first, window, mask, scale, err);
}

kvm_status kvm_op_attention(kvm_compute *c, kvm_tensor y, kvm_tensor q, kvm_tensor k,
                            kvm_tensor v, ptrdiff_t first, ptrdiff_t window,
                            double scale, kvm_err *err)
{
    return attend(c, y, q, k, v, first, window, NULL, scale, err);
}

kvm_status kvm_op_attention_some(kvm_compute *c, kvm_tensor y, kvm_tensor q,
                                 kvm_tensor k, kvm_tensor v, ptrdiff_t first,
                                 const kvm_mask *mask, double scale, kvm_err *err)
{
    return attend(c, y, q, k, v, first, 0, mask, scale, err);
}

kvm_status kvm_op_index_score(kvm_compute *c, kvm_tensor y, kvm_tensor q, kvm_tensor k,
                              kvm_tensor w, double scale, kvm_err *err)
{
    CHECK(index_score, &y, &q, &k, &w);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return backend_for(c, q.dim[1] * q.dim[2])
        ->index_score(c, &y, &q, &k, &w, scale, err);
}

kvm_status kvm_op_silu_mul(kvm_compute *c, kvm_tensor y, kvm_tensor gate, kvm_tensor up,
                           kvm_err *err)
{
    CHECK(silu_mul, &y, &gate, &up);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return c->backend->silu_mul(c, &y, &gate, &up, err);
}

kvm_status kvm_op_sigmoid_mul(kvm_compute *c, kvm_tensor y, kvm_tensor gate,
                              kvm_tensor up, kvm_err *err)
{
    CHECK(sigmoid_mul, &y, &gate, &up);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return c->backend->sigmoid_mul(c, &y, &gate, &up, err);
}

kvm_status kvm_op_relu2(kvm_compute *c, kvm_tensor y, kvm_tensor x, kvm_err *err)
{
    CHECK(relu2, &y, &x);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return c->backend->relu2(c, &y, &x, err);
}

kvm_status kvm_op_logprob(kvm_compute *c, double *out, kvm_tensor logits,
                          const int32_t *targets, kvm_err *err)
{
    CHECK(logprob, &logits);
    if (logits.dim[0] == 0) return KVM_OK;
    if (logits.dim[1] == 0)
        return kvm_fail(err, KVM_SHAPE, "logprob: rows of no logits");
    TRY(check_ids(targets, logits.dim[0], logits.dim[1], "logprob", err));
    return c->backend->logprob(c, out, &logits, targets, err);
}

/* ---- model backward -------------------------------------------------------------- */

kvm_status kvm_op_rmsnorm_back(kvm_compute *c, kvm_tensor dx, kvm_tensor x,
                               kvm_tensor w, kvm_tensor dy, ptrdiff_t group, double eps,
                               bool plus_one, bool add, kvm_err *err)
{
    CHECK(rmsnorm_back, &dx, &x, &w, &dy);
    TRY(check_norm("rmsnorm_back", x.dim[1], w.dim[0], group, eps, err));
    if (kvm_tensor_count(&dx) == 0) return KVM_OK;
    return c->backend->rmsnorm_back(c, &dx, &x, &w, &dy, group, eps, plus_one, add,
                                    err);
}

kvm_status kvm_op_linear_back(kvm_compute *c, kvm_tensor dx, kvm_tensor dy,
                              const kvm_weight *w, bool add, kvm_err *err)
{
    CHECK(linear_back, &dx, &dy, &w->matrix);
    if (kvm_tensor_count(&dx) == 0) return KVM_OK;
    return backend_for(c, dy.dim[1])->linear_back(c, &dx, &dy, w, add, err);
}

kvm_status kvm_op_rope_back(kvm_compute *c, kvm_tensor dx, const int32_t *pos,
                            const kvm_rope *r, kvm_err *err)
{
    kvm_rope back = *r;
    back.factor = 1 / r->factor; /* which the inverse divides by */
    return kvm_op_rope(c, dx, pos, &back, true, err);
}

kvm_status kvm_op_attention_back(kvm_compute *c, kvm_tensor dq, kvm_tensor dk,
                                 kvm_tensor dv, kvm_tensor q, kvm_tensor k,
                                 kvm_tensor v, kvm_tensor dy, ptrdiff_t first,
                                 ptrdiff_t window, const kvm_mask *mask, double scale,
                                 kvm_err *err)
{
    CHECK(attention_back, &dq, &dk, &dv, &q, &k, &v, &dy);
    TRY(check_attention("attention_back", &q, &k, first, window, mask, err));
    if (q.dim[0] * q.dim[1] == 0) return KVM_OK;
    return backend_for(c, q.dim[2] * v.dim[2])
        ->attention_back(c, &dq, &dk, &dv, &q, &k, &v, &dy, first, window, mask, scale,
                         err);
}

kvm_status kvm_op_index_score_back(kvm_compute *c, kvm_tensor dk, kvm_tensor q,
                                   kvm_tensor k, kvm_tensor w, kvm_tensor dy,
                                   double scale, kvm_err *err)
{
    CHECK(index_score_back, &dk, &q, &k, &w, &dy);
    if (kvm_tensor_count(&dk) == 0 || kvm_tensor_count(&w) == 0) return KVM_OK;
    return c->backend->index_score_back(c, &dk, &q, &k, &w, &dy, scale, err);
}

kvm_status kvm_op_silu_mul_back(kvm_compute *c, kvm_tensor dgate, kvm_tensor dup,
                                kvm_tensor gate, kvm_tensor up, kvm_tensor dy,
                                kvm_err *err)
{
    CHECK(silu_mul_back, &dgate, &dup, &gate, &up, &dy);
    if (kvm_tensor_count(&dy) == 0) return KVM_OK;
    return c->backend->silu_mul_back(c, &dgate, &dup, &gate, &up, &dy, err);
}

kvm_status kvm_op_sigmoid_mul_back(kvm_compute *c, kvm_tensor dgate, kvm_tensor dup,
                                   kvm_tensor gate, kvm_tensor up, kvm_tensor dy,
                                   kvm_err *err)
{
    CHECK(sigmoid_mul_back, &dgate, &dup, &gate, &up, &dy);
    if (kvm_tensor_count(&dy) == 0) return KVM_OK;
    return c->backend->sigmoid_mul_back(c, &dgate, &dup, &gate, &up, &dy, err);
}

kvm_status kvm_op_relu2_back(kvm_compute *c, kvm_tensor dx, kvm_tensor x, kvm_tensor dy,
                             kvm_err *err)
{
    CHECK(relu2_back, &dx, &x, &dy);
    if (kvm_tensor_count(&dx) == 0) return KVM_OK;
    return c->backend->relu2_back(c, &dx, &x, &dy, err);
}

kvm_status kvm_op_kl_back(kvm_compute *c, double *kl, kvm_tensor logits,
                          kvm_tensor native, double by, kvm_err *err)
{
    CHECK(kl_back, &logits, &native);
    if (logits.dim[0] == 0) return KVM_OK;
    if (logits.dim[1] == 0)
        return kvm_fail(err, KVM_SHAPE, "kl_back: rows of no logits");
    return c->backend->kl_back(c, kl, &logits, &native, by, err);
}

/* ---- recurrent mixers ------------------------------------------------------------ */

kvm_status kvm_op_conv(kvm_compute *c, kvm_tensor y, kvm_tensor x, kvm_tensor w,
                       const float *bias, kvm_tensor window, kvm_err *err)
{
    CHECK(conv, &y, &x, &w, &window);
    if (w.dim[1] < 1 || w.dim[1] > KVM_CONV_TAPS)
        return kvm_fail(err, KVM_SHAPE, "conv: a window of %td, not of 1..%d inputs",
                        w.dim[1], KVM_CONV_TAPS);
    if (kvm_tensor_count(&y) == 0) return KVM_OK;
    return c->backend->conv(c, &y, &x, &w, bias, &window, err);
}

kvm_status kvm_op_delta(kvm_compute *c, kvm_tensor o, kvm_tensor q, kvm_tensor k,
                        kvm_tensor v, kvm_tensor g, kvm_tensor beta, kvm_tensor state,
                        kvm_err *err)
{
    CHECK(delta, &o, &q, &k, &v, &g, &beta, &state);
    const ptrdiff_t heads = v.dim[1], key_heads = k.dim[1];
    if (key_heads <= 0 || heads % key_heads)
        return kvm_fail(err, KVM_SHAPE, "delta: %td value heads over %td key heads",
                        heads, key_heads);
    if (kvm_tensor_count(&o) == 0) return KVM_OK;
    return backend_for(c, q.dim[2])->delta(c, &o, &q, &k, &v, &g, &beta, &state, err);
}

kvm_status kvm_op_scan(kvm_compute *c, kvm_tensor o, kvm_tensor q, kvm_tensor k,
                       kvm_tensor v, kvm_tensor dt, kvm_tensor rate, kvm_tensor skip,
                       kvm_tensor state, kvm_err *err)
{
    CHECK(scan, &o, &q, &k, &v, &dt, &rate, &skip, &state);
    const ptrdiff_t heads = v.dim[1], groups = k.dim[1];
    if (groups <= 0 || heads % groups)
        return kvm_fail(err, KVM_SHAPE, "scan: %td heads over %td groups", heads,
                        groups);
    if (kvm_tensor_count(&o) == 0) return KVM_OK;
    return backend_for(c, q.dim[2])
        ->scan(c, &o, &q, &k, &v, &dt, &rate, &skip, &state, err);
}

kvm_status kvm_op_conv_back(kvm_compute *c, kvm_tensor dx, kvm_tensor dwindow,
                            kvm_tensor x, kvm_tensor w, const float *bias,
                            kvm_tensor window, kvm_tensor dy, kvm_err *err)
{
    CHECK(conv_back, &dx, &dwindow, &x, &w, &window, &dy);
    if (w.dim[1] < 1 || w.dim[1] > KVM_CONV_TAPS)
        return kvm_fail(err, KVM_SHAPE,
                        "conv_back: a window of %td, not of 1..%d inputs", w.dim[1],
                        KVM_CONV_TAPS);
    if (kvm_tensor_count(&dx) == 0) return KVM_OK;
    return c->backend->conv_back(c, &dx, &dwindow, &x, &w, bias, &window, &dy, err);
}

kvm_status kvm_op_delta_back(kvm_compute *c, const kvm_delta_rows *d, kvm_tensor dstate,
                             const kvm_delta_rows *in, kvm_tensor state, kvm_tensor dy,
                             kvm_err *err)
{
    CHECK(delta_back, &d->q, &d->k, &d->v, &d->g, &d->beta, &dstate, &in->q, &in->k,
          &in->v, &in->g, &in->beta, &state, &dy);
    const ptrdiff_t heads = in->v.dim[1], key_heads = in->k.dim[1];
    if (key_heads <= 0 || heads % key_heads)
        return kvm_fail(err, KVM_SHAPE,
                        "delta_back: %td value heads over %td key heads", heads,
                        key_heads);
    if (d->g.rank != in->g.rank)
        return kvm_fail(err, KVM_SHAPE, "delta_back: dg has %d axes, g has %d",
                        d->g.rank, in->g.rank);
    if (dy.dim[0] == 0 || heads == 0) return KVM_OK;
    return backend_for(c, in->q.dim[2] * dy.dim[2])
        ->delta_back(c, d, &dstate, in, &state, &dy, err);
}

kvm_status kvm_op_scan_back(kvm_compute *c, const kvm_scan_rows *d, kvm_tensor dstate,
                            const kvm_scan_rows *in, kvm_tensor rate, kvm_tensor skip,
                            kvm_tensor state, kvm_tensor dy, kvm_err *err)
{
    CHECK(scan_back, &d->q, &d->k, &d->v, &d->dt, &dstate, &in->q, &in->k, &in->v,
          &in->dt, &rate, &skip, &state, &dy);
    const ptrdiff_t heads = in->v.dim[1], groups = in->k.dim[1];
    if (groups <= 0 || heads % groups)
        return kvm_fail(err, KVM_SHAPE, "scan_back: %td heads over %td groups", heads,
                        groups);
    if (dy.dim[0] == 0 || heads == 0) return KVM_OK;
    return backend_for(c, in->q.dim[2] * dy.dim[2])
        ->scan_back(c, d, &dstate, in, &rate, &skip, &state, &dy, err);
}

/* ---- translators ----------------------------------------------------------------- */

kvm_status kvm_op_gram(kvm_compute *c, kvm_tensor g, kvm_tensor x, kvm_err *err)
{
    CHECK(gram, &g, &x);
    if (kvm_tensor_count(&x) == 0) return KVM_OK;
    return c->backend->gram(c, &g, &x, err);
}

kvm_status kvm_op_cross(kvm_compute *c, kvm_tensor out, kvm_tensor x, kvm_tensor y,
                        kvm_err *err)
{
    CHECK(cross, &out, &x, &y);
    if (kvm_tensor_count(&out) == 0 || x.dim[0] == 0) return KVM_OK;
    return c->backend->cross(c, &out, &x, &y, err);
}

kvm_status kvm_op_cholesky(kvm_compute *c, kvm_tensor a, kvm_err *err)
{
    CHECK(cholesky, &a);
    if (kvm_tensor_count(&a) == 0) return KVM_OK;
    return c->backend->cholesky(c, &a, err);
}

kvm_status kvm_op_cholesky_solve(kvm_compute *c, kvm_tensor factor, kvm_tensor b,
                                 kvm_err *err)
{
    CHECK(cholesky_solve, &factor, &b);
    if (kvm_tensor_count(&b) == 0) return KVM_OK;
    return c->backend->cholesky_solve(c, &factor, &b, err);
}

kvm_status kvm_op_eigh(kvm_compute *c, kvm_tensor a, double *w, kvm_err *err)
{
    CHECK(eigh, &a);
    if (kvm_tensor_count(&a) == 0) return KVM_OK;
    return c->backend->eigh(c, &a, w, err);
}

static kvm_tensor transposed(kvm_tensor t, bool yes)
{
    if (!yes || t.rank != 2) return t;
    kvm_tensor r = t;
    r.dim[0] = t.dim[1], r.dim[1] = t.dim[0];
    r.stride[0] = t.stride[1], r.stride[1] = t.stride[0];
    return r;
}

kvm_status kvm_op_gemm64(kvm_compute *c, kvm_tensor out, kvm_tensor a, bool at,
                         kvm_tensor b, bool bt, kvm_err *err)
{
    const kvm_tensor p = transposed(a, at), q = transposed(b, bt);
    CHECK(gemm64, &out, &p, &q);
    if (kvm_tensor_count(&out) == 0) return KVM_OK;
    return backend_for(c, p.dim[1])->gemm64(c, &out, &p, &q, err);
}

kvm_status kvm_op_gemm32(kvm_compute *c, kvm_tensor out, kvm_tensor a, bool at,
                         kvm_tensor b, bool bt, double beta, kvm_err *err)
{
    const kvm_tensor p = transposed(a, at), q = transposed(b, bt);
    CHECK(gemm32, &out, &p, &q);
    if (kvm_tensor_count(&out) == 0) return KVM_OK;
    return backend_for(c, p.dim[1])->gemm32(c, &out, &p, &q, beta, err);
}
