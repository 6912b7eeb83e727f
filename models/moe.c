/* moe.c - a feed-forward of experts, each token going through a few of them.
 *
 *   s = W_router x
 *   softmax routers (Qwen): p = softmax(s); the `active` largest are chosen, weigh p
 *   sigmoid routers (DeepSeek-V3, 2024, "noaux_tc"): p = sigmoid(s); chosen by
 *     c = p + correction among the open groups, which are those with the largest sums
 *     of their two best c; the chosen weigh p, without the correction
 *   weights are divided by their sum where the config says so, and scaled
 *   y += sum of weight * FFN_e(x) + FFN_shared(x), the latter times sigmoid(w x) where
 *   the model has such a gate; with a latent (Nemotron 3) the sum is W_out sum of
 *   weight * FFN_e(W_in x)
 *
 * Tokens are put together by expert. Experts are added in order of their number, so
 * that the sum does not depend on how they were chosen. */
#include <math.h>
#include <string.h>

#include "models/activation.h"
#include "models/ffn.h"

typedef struct moe {
    kvm_layer base;
    ptrdiff_t hidden, width; /* width: numbers of a token that routed experts see */
    kvm_moe_config size;
    bool sigmoid;
    kvm_weight *router;    /* (experts, hidden) */
    float *correction;     /* (experts), or NULL */
    kvm_ffn_maps *experts; /* (experts) */
    kvm_ffn_maps shared;   /* NULL weights: none */
    kvm_weight *opening;   /* (1, hidden) gate of the shared one, or NULL */
    kvm_weight *in, *out;  /* (width, hidden), (hidden, width); NULL without a latent */
} moe;

/* ---- load ---- */

/* gate, up, down of rows and columns `inner` and `width`; no gate where the family has
 * none */
static kvm_status load_ffn(kvm_loader *ld, const kvm_weight_id ids[3], ptrdiff_t layer,
                           ptrdiff_t number, ptrdiff_t width, kvm_ffn_maps *e,
                           kvm_err *err)
{
    kvm_weight **const maps[] = {&e->gate, &e->up, &e->down};
    for (int i = ld->config->family->squared; i < 3; i++) {
        const kvm_linear_row row = {.weight = ids[i],
                                    .bias = ids[i],
                                    .layer = layer,
                                    .expert = number,
                                    .out = i < 2 ? e->inner : width,
                                    .in = i < 2 ? width : e->inner};
        TRY(kvm_load_linear(ld, &row, maps[i], err));
    }
    return KVM_OK;
}

static kvm_status part_of(kvm_loader *ld, kvm_tensor stack, ptrdiff_t e, ptrdiff_t from,
                          ptrdiff_t rows, kvm_weight **out, kvm_err *err)
{
    const ptrdiff_t cols = stack.dim[2];
    ptrdiff_t bytes;
    if (!kvm_dtype_bytes(stack.dtype, (e * stack.dim[1] + from) * cols, &bytes))
        return kvm_fail(err, KVM_FORMAT, "rows of %td end within a block", cols);
    return kvm_weight_new(
        out, ld->keep, ld->compute,
        kvm_view2((char *)stack.data + bytes, stack.dtype, rows, cols), NULL, err);
}

/* all experts in two tensors: gate_up (E, 2 inner, width), gate's rows first, or up (E,
 * inner, width) alone, and down (E, width, inner) */
static kvm_status load_fused(moe *m, kvm_loader *ld, kvm_weight_id first,
                             ptrdiff_t layer, kvm_err *err)
{
    kvm_tensor in, down;
    const bool gated = first == KVM_W_EXPERTS_GATE_UP;
    const ptrdiff_t n = m->size.experts, inner = m->size.inner;
    TRY(kvm_load_stack(ld, first, layer, n, gated ? 2 * inner : inner, m->width, &in,
                       err));
    TRY(kvm_load_stack(ld, KVM_W_EXPERTS_DOWN, layer, n, m->width, inner, &down, err));
    for (ptrdiff_t e = 0; e < n; e++) {
        kvm_ffn_maps *to = &m->experts[e];
        if (gated) TRY(part_of(ld, in, e, 0, inner, &to->gate, err));
        TRY(part_of(ld, in, e, gated ? inner : 0, inner, &to->up, err));
        TRY(part_of(ld, down, e, 0, m->width, &to->down, err));
    }
    return KVM_OK;
}

static kvm_status load_experts(moe *m, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    static const kvm_weight_id ids[] = {KVM_W_EXPERT_GATE, KVM_W_EXPERT_UP,
                                        KVM_W_EXPERT_DOWN};
    const ptrdiff_t before = ld->matrix_parameters;
    const kvm_weight_id fused =
        ld->config->family->squared ? KVM_W_EXPERTS_UP : KVM_W_EXPERTS_GATE_UP;
    m->experts = kvm_new(ld->keep, kvm_ffn_maps, m->size.experts);
    if (!m->experts) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t e = 0; e < m->size.experts; e++)
        m->experts[e] =
            (kvm_ffn_maps){.inner = m->size.inner, .limit = ld->config->swiglu_limit};
    if (kvm_checkpoint_has(ld->ck, (kvm_weight_at){fused, layer, 0}))
        TRY(load_fused(m, ld, fused, layer, err));
    else
        for (ptrdiff_t e = 0; e < m->size.experts; e++)
            TRY(load_ffn(ld, ids, layer, e, m->width, &m->experts[e], err));
    /* a token goes through a share of them */
    ld->matrix_parameters =
        before + (ld->matrix_parameters - before) / m->size.experts * m->size.active;
    return KVM_OK;
}

static kvm_status load_latent(moe *m, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    const kvm_plain_map maps[] = {{KVM_W_EXPERTS_IN, m->width, m->hidden, &m->in},
                                  {KVM_W_EXPERTS_OUT, m->hidden, m->width, &m->out}};
    return m->size.latent > 0 ? kvm_load_maps(ld, layer, maps, 2, err) : KVM_OK;
}

static kvm_status load_shared(moe *m, kvm_loader *ld, ptrdiff_t layer, kvm_err *err)
{
    static const kvm_weight_id ids[] = {KVM_W_SHARED_GATE, KVM_W_SHARED_UP,
                                        KVM_W_SHARED_DOWN};
    const kvm_linear_row opening = {.weight = KVM_W_SHARED_OPEN,
                                    .bias = KVM_W_SHARED_OPEN,
                                    .layer = layer,
                                    .out = 1,
                                    .in = m->hidden};
    if (m->size.shared == 0) return KVM_OK;
    m->shared.inner = m->size.shared;
    m->shared.limit = ld->config->swiglu_limit;
    TRY(load_ffn(ld, ids, layer, 0, m->hidden, &m->shared, err));
    if (m->sigmoid) return KVM_OK; /* those families have no such gate */
    return kvm_load_linear(ld, &opening, &m->opening, err);
}

static kvm_status load(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err)
{
    const kvm_config *c = ld->config;
    moe *m = kvm_new(ld->keep, moe, 1);
    if (!m) return kvm_nomem(err, ld->keep);
    *m = (moe){.hidden = c->hidden,
               .width = c->moe.latent > 0 ? c->moe.latent : c->hidden,
               .size = c->moe,
               .sigmoid = c->family->sigmoid};
    const kvm_linear_row router = {.weight = KVM_W_ROUTER,
                                   .bias = KVM_W_ROUTER,
                                   .layer = index,
                                   .out = m->size.experts,
                                   .in = m->hidden};
    TRY(kvm_load_linear(ld, &router, &m->router, err));
    if (m->sigmoid)
        TRY(kvm_load_vector(ld, KVM_W_ROUTER_BIAS, index, m->size.experts,
                            &m->correction, err));
    TRY(load_latent(m, ld, index, err));
    TRY(load_experts(m, ld, index, err));
    TRY(load_shared(m, ld, index, err));
    *out = &m->base;
    return KVM_OK;
}

/* ---- routing ---- */

static const moe *of(const kvm_layer *l)
{
    return (const moe *)(const void *)l;
}

/* of n candidates the index of the largest, the first of equals */
static ptrdiff_t largest(const float *x, ptrdiff_t n)
{
    ptrdiff_t best = 0;
    for (ptrdiff_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* groups that are not open leave the choice: c becomes -inf there. sums (groups) */
static void close_groups(const kvm_moe_config *m, float *c, float *sums)
{
    const ptrdiff_t size = m->experts / m->groups;
    for (ptrdiff_t g = 0; g < m->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (ptrdiff_t i = g * size; i < (g + 1) * size; i++) {
            if (c[i] > first)
                second = first, first = c[i];
            else if (c[i] > second)
                second = c[i];
        }
        sums[g] = size > 1 ? first + second : first;
    }
    for (ptrdiff_t open = 0; open < m->open_groups; open++)
        sums[largest(sums, m->groups)] = -INFINITY; /* taken */
    for (ptrdiff_t g = 0; g < m->groups; g++)
        for (ptrdiff_t i = g * size; sums[g] > -INFINITY && i < (g + 1) * size; i++)
            c[i] = -INFINITY;
}

/* scores of one token (experts) become probabilities in place; c: what is chosen by */
static void weigh(const moe *m, float *s, float *c)
{
    const ptrdiff_t n = m->size.experts;
    if (m->sigmoid) {
        for (ptrdiff_t e = 0; e < n; e++) {
            s[e] = kvm_sigmoid(s[e]);
            c[e] = s[e] + m->correction[e];
        }
        return;
    }
    const float top = s[largest(s, n)];
    float sum = 0;
    for (ptrdiff_t e = 0; e < n; e++) sum += s[e] = expf(s[e] - top);
    for (ptrdiff_t e = 0; e < n; e++) c[e] = s[e] /= sum;
}

/* Which experts a step's tokens go through: `active` entries per token. */
typedef struct route {
    int32_t *expert; /* (n, active) */
    float *weight;   /* (n, active) */
    int32_t *token;  /* (n * active) tokens by expert, in order, */
    float *share;    /* their weights and */
    int32_t *entry;  /* where those stand in `weight` */
    float *p;        /* (n, experts) probabilities */
    ptrdiff_t *from; /* (experts + 1) where those of an expert begin */
} route;

/* NaN scores would choose nothing in particular: they are chosen last and weigh NaN, as
 * they do in the reference. */
static void choose(const moe *m, float *s, float *c, float *sums, int32_t *chosen,
                   float *weight)
{
    float total = 0;
    weigh(m, s, c);
    if (m->size.groups > 1) close_groups(&m->size, c, sums);
    for (ptrdiff_t i = 0; i < m->size.active; i++) {
        const ptrdiff_t e = largest(c, m->size.experts);
        chosen[i] = (int32_t)e;
        total += weight[i] = s[e];
        c[e] = -INFINITY;
    }
    float by = (float)m->size.scale;
    if (m->size.normalised) by /= m->sigmoid ? total + 1e-20f : total;
    for (ptrdiff_t i = 0; i < m->size.active; i++) weight[i] *= by;
}

/* entries of all tokens put together by expert, in the order of the tokens */
static void sort_by_expert(const moe *m, ptrdiff_t n, route *r)
{
    const ptrdiff_t entries = n * m->size.active;
    memset(r->from, 0, (size_t)(m->size.experts + 1) * sizeof *r->from);
    for (ptrdiff_t i = 0; i < entries; i++) r->from[r->expert[i] + 1]++;
    for (ptrdiff_t e = 0; e < m->size.experts; e++) r->from[e + 1] += r->from[e];
    for (ptrdiff_t i = 0; i < entries; i++) {
        const ptrdiff_t at = r->from[r->expert[i]]++;
        r->token[at] = (int32_t)(i / m->size.active);
        r->share[at] = r->weight[i];
        r->entry[at] = (int32_t)i;
    }
    for (ptrdiff_t e = m->size.experts; e > 0; e--) r->from[e] = r->from[e - 1];
    r->from[0] = 0;
}

static size_t route_bytes(const moe *m, ptrdiff_t n)
{
    return 5 * kvm_step_rows_bytes(n, m->size.active) +
           2 * kvm_step_rows_bytes(m->size.experts + 1, 2) +
           kvm_step_rows_bytes(1, m->size.groups) +
           kvm_step_rows_bytes(n, m->size.experts);
}

/* x (n, hidden) normed -> r, in *temp */
static kvm_status find_route(const moe *m, const kvm_step *s, kvm_tensor x, route *r,
                             kvm_arena *temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0], entries = n * m->size.active;
    *r = (route){.expert = kvm_new_raw(temp, int32_t, entries),
                 .weight = kvm_new_raw(temp, float, entries),
                 .token = kvm_new_raw(temp, int32_t, entries),
                 .share = kvm_new_raw(temp, float, entries),
                 .entry = kvm_new_raw(temp, int32_t, entries),
                 .from = kvm_new_raw(temp, ptrdiff_t, m->size.experts + 1)};
    float *c = kvm_new_raw(temp, float, m->size.experts);
    float *sums = kvm_new_raw(temp, float, m->size.groups);
    kvm_tensor scores = kvm_step_rows(temp, n, m->size.experts);
    if (!r->expert || !r->weight || !r->token || !r->share || !r->entry || !r->from ||
        !c || !sums || !scores.data)
        return kvm_nomem(err, temp);
    r->p = scores.data;
    TRY(kvm_op_linear(s->compute, scores, x, m->router, false, err));
    for (ptrdiff_t t = 0; t < n; t++)
        choose(m, (float *)scores.data + t * m->size.experts, c, sums,
               r->expert + t * m->size.active, r->weight + t * m->size.active);
    sort_by_expert(m, n, r);
    return KVM_OK;
}

/* ---- forward ---- */

/* room for the rows of one expert, and with a latent for those of all */
typedef struct bench {
    kvm_tensor in, gate, up, out, latent, sum;
} bench;

static ptrdiff_t widest_inner(const moe *m)
{
    return m->size.inner > m->size.shared ? m->size.inner : m->size.shared;
}

static ptrdiff_t widest_row(const moe *m)
{
    return m->hidden > m->width ? m->hidden : m->width;
}

static size_t bench_bytes(const moe *m, ptrdiff_t n)
{
    return 2 * kvm_step_rows_bytes(n, widest_row(m)) +
           2 * kvm_step_rows_bytes(n, widest_inner(m)) +
           (m->in ? 2 * kvm_step_rows_bytes(n, m->width) : 0);
}

static kvm_status set_bench(const moe *m, ptrdiff_t n, bench *b, kvm_arena *temp,
                            kvm_err *err)
{
    *b = (bench){.in = kvm_step_rows(temp, n, widest_row(m)),
                 .gate = kvm_step_rows(temp, n, widest_inner(m)),
                 .up = kvm_step_rows(temp, n, widest_inner(m)),
                 .out = kvm_step_rows(temp, n, widest_row(m))};
    if (!b->in.data || !b->gate.data || !b->up.data || !b->out.data)
        return kvm_nomem(err, temp);
    if (!m->in) return KVM_OK;
    b->latent = kvm_step_rows(temp, n, m->width);
    b->sum = kvm_step_rows(temp, n, m->width);
    return b->latent.data && b->sum.data ? KVM_OK : kvm_nomem(err, temp);
}

static size_t scratch(const kvm_layer *l, ptrdiff_t n)
{
    const moe *m = of(l);
    return route_bytes(m, n) + bench_bytes(m, n) + kvm_step_rows_bytes(n, 1);
}

static kvm_status run_ffn(const kvm_step *s, const kvm_ffn_maps *e, kvm_tensor x,
                          kvm_tensor y, bool add, const bench *b, kvm_err *err)
{
    return kvm_ffn_run(s, e, x, y, add, b->gate.data, b->up.data, err);
}

/* to += by * from, n numbers */
static void add_row(float *restrict to, const float *restrict from, float by,
                    ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) to[i] += by * from[i];
}

/* x, y (n, width) */
static kvm_status run_expert(const moe *m, const kvm_step *s, ptrdiff_t e,
                             const route *r, kvm_tensor x, kvm_tensor y, const bench *b,
                             kvm_err *err)
{
    const ptrdiff_t from = r->from[e], n = r->from[e + 1] - from, width = m->width;
    if (n == 0) return KVM_OK;
    const kvm_tensor in = kvm_view2(b->in.data, KVM_F32, n, width);
    const kvm_tensor out = kvm_view2(b->out.data, KVM_F32, n, width);
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy((float *)in.data + i * width,
               (float *)x.data + r->token[from + i] * width,
               (size_t)width * sizeof(float));
    TRY(run_ffn(s, &m->experts[e], in, out, false, b, err));
    for (ptrdiff_t i = 0; i < n; i++)
        add_row((float *)y.data + r->token[from + i] * width,
                (float *)out.data + i * width, r->share[from + i], width);
    return KVM_OK;
}

/* y (n, hidden) += the routed experts' sum */
static kvm_status run_experts(const moe *m, const kvm_step *s, const route *r,
                              kvm_tensor x, kvm_tensor y, const bench *b, kvm_err *err)
{
    kvm_tensor seen = x, sum = y;
    if (m->in) {
        seen = b->latent, sum = b->sum;
        TRY(kvm_op_linear(s->compute, seen, x, m->in, false, err));
        memset(sum.data, 0, (size_t)kvm_tensor_count(&sum) * sizeof(float));
    }
    for (ptrdiff_t e = 0; e < m->size.experts; e++)
        TRY(run_expert(m, s, e, r, seen, sum, b, err));
    return m->in ? kvm_op_linear(s->compute, y, sum, m->out, true, err) : KVM_OK;
}

static kvm_status run_shared(const moe *m, const kvm_step *s, kvm_tensor x,
                             kvm_tensor y, const bench *b, kvm_arena temp, kvm_err *err)
{
    const ptrdiff_t n = x.dim[0];
    if (m->size.shared == 0) return KVM_OK;
    if (!m->opening) return run_ffn(s, &m->shared, x, y, true, b, err);
    kvm_tensor open = kvm_step_rows(&temp, n, 1);
    if (!open.data) return kvm_nomem(err, &temp);
    const kvm_tensor out = kvm_view2(b->out.data, KVM_F32, n, m->hidden);
    TRY(kvm_op_linear(s->compute, open, x, m->opening, false, err));
    TRY(run_ffn(s, &m->shared, x, out, false, b, err));
    for (ptrdiff_t t = 0; t < n; t++)
        add_row((float *)y.data + t * m->hidden, (float *)out.data + t * m->hidden,
                kvm_sigmoid(((float *)open.data)[t]), m->hidden);
    return KVM_OK;
}

static kvm_status forward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                          kvm_tensor y, kvm_err *err)
{
    const moe *m = of(l);
    kvm_arena temp = s->scratch;
    bench b;
    route r;
    TRY(set_bench(m, x.dim[0], &b, &temp, err));
    TRY(find_route(m, s, x, &r, &temp, err));
    TRY(run_experts(m, s, &r, x, y, &b, err));
    return run_shared(m, s, x, y, &b, temp, err);
}

/* ---- backward ---- */

static size_t backward_scratch(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n)
{
    (void)first;
    const moe *m = of(l);
    const size_t routed = kvm_ffn_back_scratch(&m->experts[0], n);
    const size_t shared = m->size.shared ? kvm_ffn_back_scratch(&m->shared, n) : 0;
    return route_bytes(m, n) + kvm_step_rows_bytes(n, m->size.active) +
           3 * kvm_step_rows_bytes(n, widest_row(m)) + 2 * kvm_step_rows_bytes(n, 1) +
           (m->in ? 3 * kvm_step_rows_bytes(n, m->width) : 0) +
           (routed > shared ? routed : shared);
}

static void gather(kvm_tensor to, kvm_tensor from, const int32_t *token)
{
    const ptrdiff_t width = to.dim[1];
    for (ptrdiff_t i = 0; i < to.dim[0]; i++)
        memcpy((float *)to.data + i * width,
               (float *)from.data + token[i] * from.stride[0],
               (size_t)width * sizeof(float));
}

/* of expert e, x, dy, dx (n, width): dx += and, by its entries, the gradient by their
 * weights */
static kvm_status expert_back(const moe *m, const kvm_step *s, ptrdiff_t e,
                              const route *r, kvm_tensor x, kvm_tensor dy,
                              kvm_tensor dx, float *dweight, kvm_err *err)
{
    kvm_step inner = *s;
    const ptrdiff_t from = r->from[e], n = r->from[e + 1] - from, width = m->width;
    if (n == 0) return KVM_OK;
    const kvm_tensor in = kvm_step_rows(&inner.scratch, n, width);
    const kvm_tensor dout = kvm_step_rows(&inner.scratch, n, width);
    const kvm_tensor din = kvm_step_rows(&inner.scratch, n, width);
    float *dots = kvm_new_raw(&inner.scratch, float, n);
    if (!in.data || !dout.data || !din.data || !dots)
        return kvm_nomem(err, &inner.scratch);
    gather(in, x, r->token + from);
    gather(dout, dy, r->token + from);
    TRY(kvm_ffn_back(&inner, &m->experts[e], in, dout, din, false, dots, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        dweight[r->entry[from + i]] = dots[i];
        add_row((float *)dx.data + r->token[from + i] * dx.stride[0],
                (float *)din.data + i * width, r->share[from + i], width);
    }
    return KVM_OK;
}

/* Of one token: dweight (active) of the chosen to p (experts), which becomes the
 * gradient by the router's scores. With S the sum of the chosen p a weight is by p / S,
 * or by p; scores go through a sigmoid each or a softmax together. */
static void choice_back(const moe *m, const int32_t *chosen, const float *dweight,
                        float *p)
{
    const ptrdiff_t n = m->size.experts, active = m->size.active;
    const float scale = (float)m->size.scale;
    float sum = 0, mean = 0, total = 0;
    for (ptrdiff_t i = 0; i < active; i++) {
        sum += p[chosen[i]];
        mean += p[chosen[i]] * dweight[i];
    }
    const bool divided = m->size.normalised;
    const float by = divided ? scale / sum : scale, less = divided ? mean / sum : 0;
    for (ptrdiff_t i = 0; i < active; i++)
        total += p[chosen[i]] * by * (dweight[i] - less);
    if (m->sigmoid) total = 0;
    for (ptrdiff_t e = 0; e < n; e++) {
        float dp = 0;
        for (ptrdiff_t i = 0; i < active; i++)
            if (chosen[i] == e) dp = by * (dweight[i] - less);
        p[e] = m->sigmoid ? dp * p[e] * (1 - p[e]) : p[e] * (dp - total);
    }
}

/* dx (n, hidden) += what routed experts and the router owe to x */
static kvm_status experts_back(const moe *m, const kvm_step *s, kvm_tensor x,
                               kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    kvm_step inner = *s;
    const ptrdiff_t n = x.dim[0];
    kvm_tensor seen = x, dsum = dy, dseen = dx;
    route r;
    TRY(find_route(m, s, x, &r, &inner.scratch, err));
    float *dweight = kvm_new_raw(&inner.scratch, float, n * m->size.active);
    if (!dweight) return kvm_nomem(err, &inner.scratch);
    if (m->in) {
        seen = kvm_step_rows(&inner.scratch, n, m->width);
        dsum = kvm_step_rows(&inner.scratch, n, m->width);
        dseen = kvm_step_rows(&inner.scratch, n, m->width);
        if (!seen.data || !dsum.data || !dseen.data)
            return kvm_nomem(err, &inner.scratch);
        TRY(kvm_op_linear(s->compute, seen, x, m->in, false, err));
        TRY(kvm_op_linear_back(s->compute, dsum, dy, m->out, false, err));
        memset(dseen.data, 0, (size_t)kvm_tensor_count(&dseen) * sizeof(float));
    }
    for (ptrdiff_t e = 0; e < m->size.experts; e++)
        TRY(expert_back(m, &inner, e, &r, seen, dsum, dseen, dweight, err));
    if (m->in) TRY(kvm_op_linear_back(s->compute, dx, dseen, m->in, true, err));
    for (ptrdiff_t t = 0; t < n; t++)
        choice_back(m, r.expert + t * m->size.active, dweight + t * m->size.active,
                    r.p + t * m->size.experts);
    return kvm_op_linear_back(s->compute, dx,
                              kvm_view2(r.p, KVM_F32, n, m->size.experts), m->router,
                              true, err);
}

static kvm_status shared_back(const moe *m, const kvm_step *s, kvm_tensor x,
                              kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    kvm_step inner = *s;
    const ptrdiff_t n = x.dim[0];
    if (m->size.shared == 0) return KVM_OK;
    if (!m->opening) return kvm_ffn_back(s, &m->shared, x, dy, dx, true, NULL, err);
    const kvm_tensor open = kvm_step_rows(&inner.scratch, n, 1);
    const kvm_tensor din = kvm_step_rows(&inner.scratch, n, m->hidden);
    float *dots = kvm_new_raw(&inner.scratch, float, n);
    if (!open.data || !din.data || !dots) return kvm_nomem(err, &inner.scratch);
    TRY(kvm_op_linear(s->compute, open, x, m->opening, false, err));
    TRY(kvm_ffn_back(&inner, &m->shared, x, dy, din, false, dots, err));
    for (ptrdiff_t t = 0; t < n; t++) {
        float *o = (float *)open.data + t;
        const float share = kvm_sigmoid(*o);
        add_row((float *)dx.data + t * dx.stride[0],
                (const float *)din.data + t * m->hidden, share, m->hidden);
        *o = dots[t] * share * (1 - share);
    }
    return kvm_op_linear_back(s->compute, dx, open, m->opening, true, err);
}

static kvm_status backward(const kvm_layer *l, const kvm_step *s, kvm_tensor x,
                           kvm_tensor dy, kvm_tensor dx, kvm_err *err)
{
    TRY(experts_back(of(l), s, x, dy, dx, err));
    return shared_back(of(l), s, x, dy, dx, err);
}

const kvm_layer_kind kvm_moe = {.name = "moe",
                                .load = load,
                                .scratch = scratch,
                                .forward = forward,
                                .backward_scratch = backward_scratch,
                                .backward = backward};
