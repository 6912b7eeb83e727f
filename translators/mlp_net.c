#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "translators/mlp_internal.h"

enum { PART = 16384, STRIP = 64, LOSS_ROWS = 64 };

kvm_net_part kvm_net__part(const kvm_net *n, int layer)
{
    const ptrdiff_t w = n->hidden, first = w * n->inputs, second = first + w + w * w;
    switch (layer) {
    case 0:
        return (kvm_net_part){0, first, w, n->inputs};
    case 1:
        return (kvm_net_part){first + w, second, w, w};
    default:
        return (kvm_net_part){second + w, second + w + n->outputs * w, n->outputs, w};
    }
}

ptrdiff_t kvm_net__size(const kvm_net *n)
{
    return kvm_net__part(n, 2).bias + n->outputs;
}

void kvm_net__init(const kvm_net *net, float *p, uint64_t seed, uint64_t stream)
{
    kvm_rng rng = kvm_rng_seed(seed, stream);
    for (int layer = 0; layer < 3; layer++) {
        const kvm_net_part q = kvm_net__part(net, layer);
        const double bound = 1 / sqrt((double)q.in);
        for (ptrdiff_t i = 0; i < q.out * q.in; i++)
            p[q.weight + i] = (float)(bound * (2 * kvm_rng_unit(&rng) - 1));
        for (ptrdiff_t i = 0; i < q.out; i++)
            p[q.bias + i] = (float)(bound * (2 * kvm_rng_unit(&rng) - 1));
    }
}

/* ---- forward ---- */

static kvm_tensor weight_of(const kvm_net_part *q, const float *p)
{
    return kvm_view2_const(p + q->weight, KVM_F32, q->out, q->in);
}

typedef struct bias_job {
    float *y; /* (n, width) */
    const float *bias;
    ptrdiff_t n, width;
    bool relu;
} bias_job;

static void bias_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const bias_job *j = ctx;
    const ptrdiff_t end = (part + 1) * STRIP < j->n ? (part + 1) * STRIP : j->n;
    for (ptrdiff_t r = part * STRIP; r < end; r++) {
        float *y = j->y + r * j->width;
        for (ptrdiff_t i = 0; i < j->width; i++) {
            const float v = y[i] + j->bias[i];
            y[i] = j->relu && !(v > 0) ? 0 : v;
        }
    }
}

kvm_status kvm_net__forward(kvm_compute *c, const kvm_net *net, const float *p,
                            const float *x, ptrdiff_t n, kvm_net_room *room,
                            kvm_err *err)
{
    for (int layer = 0; layer < 3; layer++) {
        const kvm_net_part q = kvm_net__part(net, layer);
        float *y = layer < 2 ? room->hidden[layer] : room->y;
        TRY(kvm_op_gemm32(c, kvm_view2(y, KVM_F32, n, q.out),
                          kvm_view2_const(x, KVM_F32, n, q.in), false, weight_of(&q, p),
                          true, 0, err));
        bias_job j = {y, p + q.bias, n, q.out, layer < 2};
        kvm_pool_run(kvm_compute_pool(c), (n + STRIP - 1) / STRIP, bias_part, &j);
        x = y;
    }
    return KVM_OK;
}

/* ---- backward ---- */

/* dL/dy of L = sum (y-t)^2 / (n*O), in place; the sum of squares of the part's rows */
typedef struct loss_job {
    float *y;
    const float *target;
    ptrdiff_t n, width, ldt;
    double *sum; /* (parts) */
} loss_job;

static void loss_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const loss_job *j = ctx;
    const ptrdiff_t end = (part + 1) * LOSS_ROWS < j->n ? (part + 1) * LOSS_ROWS : j->n;
    const float scale = (float)(2 / ((double)j->n * (double)j->width));
    double sum = 0;
    for (ptrdiff_t r = part * LOSS_ROWS; r < end; r++)
        for (ptrdiff_t i = 0; i < j->width; i++) {
            float *y = j->y + r * j->width + i;
            const float d = *y - j->target[r * j->ldt + i];
            sum += (double)d * (double)d;
            *y = d * scale;
        }
    j->sum[part] = sum;
}

/* column sums, rows in order whatever the thread count */
typedef struct columns_job {
    const float *x;
    ptrdiff_t n, width;
    float *sum;
} columns_job;

static void columns_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const columns_job *j = ctx;
    const ptrdiff_t from = part * STRIP;
    const ptrdiff_t w = j->width - from < STRIP ? j->width - from : STRIP;
    double sum[STRIP] = {0};
    for (ptrdiff_t r = 0; r < j->n; r++)
        for (ptrdiff_t i = 0; i < w; i++)
            sum[i] += (double)j->x[r * j->width + from + i];
    for (ptrdiff_t i = 0; i < w; i++) j->sum[from + i] = (float)sum[i];
}

/* d = 0 where the unit was off */
typedef struct mask_job {
    float *d;
    const float *h;
    ptrdiff_t n;
} mask_job;

static void mask_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const mask_job *j = ctx;
    const ptrdiff_t end = (part + 1) * PART < j->n ? (part + 1) * PART : j->n;
    for (ptrdiff_t i = part * PART; i < end; i++)
        if (!(j->h[i] > 0)) j->d[i] = 0;
}

/* gradients of one layer from d (n,out), and what goes on to the layer below (n,in) */
static kvm_status layer_back(kvm_compute *c, const kvm_net_part *q, const float *p,
                             const float *x, float *d, ptrdiff_t n, float *grad,
                             float *below, kvm_err *err)
{
    const kvm_tensor dt = kvm_view2(d, KVM_F32, n, q->out);
    TRY(kvm_op_gemm32(c, kvm_view2(grad + q->weight, KVM_F32, q->out, q->in), dt, true,
                      kvm_view2_const(x, KVM_F32, n, q->in), false, 0, err));
    columns_job columns = {d, n, q->out, grad + q->bias};
    kvm_pool_run(kvm_compute_pool(c), (q->out + STRIP - 1) / STRIP, columns_part,
                 &columns);
    if (!below) return KVM_OK;
    TRY(kvm_op_gemm32(c, kvm_view2(below, KVM_F32, n, q->in), dt, false,
                      weight_of(q, p), false, 0, err));
    mask_job mask = {below, x, n * q->in};
    kvm_pool_run(kvm_compute_pool(c), (mask.n + PART - 1) / PART, mask_part, &mask);
    return KVM_OK;
}

kvm_status kvm_net__backward(kvm_compute *c, const kvm_net *net, const float *p,
                             const float *x, const float *target, ptrdiff_t ldt,
                             ptrdiff_t n, kvm_net_room *room, float *grad, double *loss,
                             kvm_err *err)
{
    enum { SUMS = 256 };
    double sum[SUMS], total = 0;
    const ptrdiff_t parts = (n + LOSS_ROWS - 1) / LOSS_ROWS;
    if (parts > SUMS)
        return kvm_fail(err, KVM_RANGE, "a batch of %td rows; the limit is %d", n,
                        SUMS * LOSS_ROWS);
    loss_job l = {room->y, target, n, net->outputs, ldt, sum};
    kvm_pool_run(kvm_compute_pool(c), parts, loss_part, &l);
    for (ptrdiff_t i = 0; i < parts; i++) total += sum[i];
    *loss = total / ((double)n * (double)net->outputs);
    const kvm_net_part q0 = kvm_net__part(net, 0), q1 = kvm_net__part(net, 1),
                       q2 = kvm_net__part(net, 2);
    TRY(layer_back(c, &q2, p, room->hidden[1], room->y, n, grad, room->back, err));
    /* hidden[1] is spent: it takes the next gradient */
    TRY(layer_back(c, &q1, p, room->hidden[0], room->back, n, grad, room->hidden[1],
                   err));
    return layer_back(c, &q0, p, x, room->hidden[1], n, grad, NULL, err);
}
