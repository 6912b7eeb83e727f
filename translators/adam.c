#include "translators/adam.h"

#include <math.h>

enum { PART = 16384 };

typedef struct adam_job {
    float *p, *m, *v;
    const float *g;
    ptrdiff_t count;
    float by, rate, root, keep; /* root: 1/sqrt(1-b2^t); keep: 1 - rate * decay */
} adam_job;

static void adam_part(void *ctx, ptrdiff_t part, int thread)
{
    (void)thread;
    const adam_job *j = ctx;
    const float b1 = 0.9F, b2 = 0.999F, eps = 1e-8F;
    const ptrdiff_t end = (part + 1) * PART < j->count ? (part + 1) * PART : j->count;
    for (ptrdiff_t i = part * PART; i < end; i++) {
        const float g = j->g[i] * j->by;
        j->m[i] = b1 * j->m[i] + (1 - b1) * g;
        j->v[i] = b2 * j->v[i] + (1 - b2) * (g * g);
        j->p[i] =
            j->keep * j->p[i] - j->rate * j->m[i] / (sqrtf(j->v[i]) * j->root + eps);
    }
}

void kvm_adam_step(kvm_compute *c, float *p, float *m, float *v, const float *g,
                   ptrdiff_t count, double by, double rate, double decay,
                   ptrdiff_t step)
{
    adam_job j = {.p = p,
                  .m = m,
                  .v = v,
                  .g = g,
                  .count = count,
                  .by = (float)by,
                  .rate = (float)(rate / (1 - pow(0.9, (double)step))),
                  .root = (float)(1 / sqrt(1 - pow(0.999, (double)step))),
                  .keep = (float)(1 - rate * decay)};
    kvm_pool_run(kvm_compute_pool(c), (count + PART - 1) / PART, adam_part, &j);
}
