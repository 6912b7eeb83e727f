/* sampling.c - one token from one row of logits.
 *
 * What top-k and top-p keep is a cut through the order of the logits. It is found by
 * descending through their bits, most significant byte first, so nothing is sorted and
 * nothing is allocated; among equal logits the lowest ids are kept. */
#include <math.h>
#include <string.h>

#include "models/model.h"

/* kept: key above, and the first `ties` entries with just this key */
typedef struct cut {
    uint32_t key;
    ptrdiff_t ties;
} cut;

typedef struct row {
    const float *logits; /* (vocab) */
    ptrdiff_t vocab;
    double top, inverse; /* largest logit; 1 / temperature */
} row;

/* orders as the floats do; NaN is below everything */
static uint32_t key_of(float x)
{
    uint32_t u;
    if (isnan(x)) return 0;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static double mass_of(const row *r, float x)
{
    return isnan(x) ? 0 : exp(((double)x - r->top) * r->inverse);
}

/* Whether entry i lies above the cut; seen counts the ties met so far. */
static bool above(const cut *c, float x, ptrdiff_t *seen)
{
    const uint32_t k = key_of(x);
    if (k != c->key) return k > c->key;
    return (*seen)++ < c->ties;
}

static double total_mass(const row *r, const cut *c)
{
    double sum = 0;
    ptrdiff_t seen = 0;
    for (ptrdiff_t i = 0; i < r->vocab; i++)
        if (above(c, r->logits[i], &seen)) sum += mass_of(r, r->logits[i]);
    return sum;
}

/* The shortest head of the order whose weight reaches `target`; entries weigh 1
 * (counted) or their mass. Only entries above `within` are looked at. */
static cut descend(const row *r, const cut *within, double target, bool counted)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double bins[256] = {0};
        ptrdiff_t seen = 0;
        for (ptrdiff_t i = 0; i < r->vocab; i++) {
            const float x = r->logits[i];
            const uint32_t k = key_of(x);
            if (!above(within, x, &seen) || (k & mask) != prefix) continue;
            bins[k >> shift & 255] += counted ? 1 : mass_of(r, x);
        }
        uint32_t b = 255;
        while (b > 0 && bins[b] < target) target -= bins[b--];
        prefix |= b << shift;
        mask |= 255u << shift;
    }
    float x;
    const uint32_t u = prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix;
    memcpy(&x, &u, sizeof x);
    const double each = counted ? 1 : mass_of(r, x);
    const double ties = each > 0 ? ceil(target / each) : 1;
    return (cut){prefix, ties < 1 ? 1 : (ptrdiff_t)ties};
}

static int32_t greedy(const float *logits, ptrdiff_t vocab)
{
    ptrdiff_t best = 0;
    for (ptrdiff_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = i;
    return (int32_t)best;
}

int32_t kvm_sample(const float *logits, ptrdiff_t vocab, const kvm_sampling *s)
{
    const int32_t best = greedy(logits, vocab);
    if (!(s->temperature > 0)) return best;
    const row r = {logits, vocab, (double)logits[best], 1 / s->temperature};
    cut c = {0, vocab};
    if (s->top_k > 0 && s->top_k < vocab) c = descend(&r, &c, (double)s->top_k, true);
    double total = total_mass(&r, &c);
    if (s->top_p > 0 && s->top_p < 1) {
        c = descend(&r, &c, s->top_p * total, false);
        total = total_mass(&r, &c);
    }
    double left = kvm_rng_unit(s->rng) * total;
    int32_t last = best;
    ptrdiff_t seen = 0;
    for (ptrdiff_t i = 0; i < vocab; i++) {
        if (!above(&c, logits[i], &seen)) continue;
        last = (int32_t)i;
        left -= mass_of(&r, logits[i]);
        if (left < 0) break;
    }
    return last;
}
