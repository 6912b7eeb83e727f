#include "base/rng.h"

#include <math.h>

/* SplitMix64's output function (Steele, Lea, Flood 2014); it maps 0 to 0 */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

kvm_rng kvm_rng_seed(uint64_t seed, uint64_t stream)
{
    kvm_rng r;
    uint64_t x = seed ^ mix(stream); /* stream 0 is the published seeding */
    for (int i = 0; i < 4; i++) r.s[i] = mix(x += 0x9e3779b97f4a7c15u);
    return r;
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

/* xoshiro256++ 1.0 (Blackman, Vigna 2019) */
uint64_t kvm_rng_u64(kvm_rng *r)
{
    uint64_t *s = r->s;
    const uint64_t result = rotl(s[0] + s[3], 23) + s[0];
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* The high word of a 64x64 product is uniform below n once the few low words that would
 * favour some results are drawn again (Lemire 2019). */
uint64_t kvm_rng_below(kvm_rng *r, uint64_t n)
{
    __extension__ typedef unsigned __int128 u128;
    u128 product = (u128)kvm_rng_u64(r) * n;
    if ((uint64_t)product < n) {
        const uint64_t unfair = -n % n;
        while ((uint64_t)product < unfair) product = (u128)kvm_rng_u64(r) * n;
    }
    return (uint64_t)(product >> 64);
}

double kvm_rng_unit(kvm_rng *r)
{
    return (double)(kvm_rng_u64(r) >> 11) * 0x1p-53;
}

/* ln x for normal x > 0 from +, *, / alone: libm's log rounds differently from one C
 * library or CPU to the next, and a seed must mean the same numbers everywhere. With
 * x = 2^e m and s = (m-1)/(m+1), |s| < 0.172: ln m = 2 (s + s^3/3 + s^5/5 + ...). */
static double ln(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double sum = 0.0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + 1.0 / (double)k;
    return (double)e * 0.69314718055994531 + 2.0 * s * sum;
}

/* Marsaglia's polar method: a point in the unit disc, its radius turned into a normal's
 */
double kvm_rng_normal(kvm_rng *r)
{
    double u, v, q;
    do {
        u = 2.0 * kvm_rng_unit(r) - 1.0;
        v = 2.0 * kvm_rng_unit(r) - 1.0;
        q = u * u + v * v;
    } while (q >= 1.0 || q == 0.0);
    return u * sqrt(-2.0 * ln(q) / q);
}

void kvm_rng_shuffle(kvm_rng *r, ptrdiff_t *index, ptrdiff_t n)
{
    for (ptrdiff_t i = n - 1; i > 0; i--) {
        const ptrdiff_t j = (ptrdiff_t)kvm_rng_below(r, (uint64_t)i + 1);
        const ptrdiff_t t = index[i];
        index[i] = index[j];
        index[j] = t;
    }
}
