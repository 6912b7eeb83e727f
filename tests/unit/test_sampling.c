/* Sampling: ties, cuts, and frequencies against the probabilities they should have. */
#include <math.h>
#include <stdlib.h>

#include "models/model.h"
#include "tests/support/check.h"

static void greedy(void **state)
{
    (void)state;
    const kvm_sampling s = {0};
    const float ties[] = {1, 3, 2, 3}, low[] = {-5, -4}, hole[] = {NAN, -1, NAN, 0};
    assert_int_equal(kvm_sample(ties, 4, &s), 1);
    assert_int_equal(kvm_sample(low, 2, &s), 1);
    assert_int_equal(kvm_sample(hole, 4, &s), 3);
}

enum { V = 50, DRAWS = 40000 };

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* p out (V): softmax at temperature t, everything below the cuts 0, by sorting */
static void expected(double *p, const float *logits, double t, ptrdiff_t k,
                     double top_p)
{
    double sorted[V], sum = 0, floor_p = 0;
    for (int i = 0; i < V; i++) sorted[i] = p[i] = exp((double)logits[i] / t);
    qsort(sorted, V, sizeof *sorted, descending);
    if (k > 0) floor_p = sorted[k - 1];
    for (int i = 0; i < V && sorted[i] >= floor_p; i++) sum += sorted[i];
    if (top_p > 0) {
        double head = 0;
        for (int i = 0; head < top_p * sum; i++) head += floor_p = sorted[i];
    }
    sum = 0;
    for (int i = 0; i < V; i++) sum += p[i] >= floor_p ? p[i] : 0;
    for (int i = 0; i < V; i++) p[i] = p[i] >= floor_p ? p[i] / sum : 0;
}

static void frequencies(void **state)
{
    (void)state;
    static const struct {
        double t, top_p;
        ptrdiff_t k;
    } rows[] = {{1, 0, 0},    {0.7, 0.9, 0}, {1.5, 0, 7},
                {1, 0.8, 20}, {1, 0.01, 0},  {1, 1, 1}};
    kvm_rng r = kvm_rng_seed(11, 1);
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = (float)(2 * kvm_rng_normal(&r));
    for (size_t n = 0; n < COUNT(rows); n++) {
        double p[V];
        int count[V] = {0};
        const kvm_sampling s = {rows[n].t, rows[n].top_p, rows[n].k, &r};
        expected(p, logits, rows[n].t, rows[n].k,
                 rows[n].top_p < 1 ? rows[n].top_p : 0);
        for (int i = 0; i < DRAWS; i++) count[kvm_sample(logits, V, &s)]++;
        for (int i = 0; i < V; i++) {
            const double sd = sqrt(DRAWS * p[i] * (1 - p[i]));
            assert_true(fabs(count[i] - DRAWS * p[i]) <= 5 * sd + 1e-9);
        }
    }
}

/* among equal logits the cut keeps the lowest ids */
static void equal_logits(void **state)
{
    (void)state;
    kvm_rng r = kvm_rng_seed(12, 1);
    const float flat[] = {0, 0, 0, 0, -1, 0, 0, 0};
    const kvm_sampling k = {1, 0, 3, &r}, p = {1, 0.49, 0, &r};
    int seen[8] = {0}, seen_p[8] = {0};
    for (int i = 0; i < 2000; i++) {
        seen[kvm_sample(flat, 8, &k)]++;
        seen_p[kvm_sample(flat, 8, &p)]++;
    }
    for (int i = 0; i < 8; i++) assert_int_equal(seen[i] > 0, i < 3);
    for (int i = 0; i < 8; i++) assert_int_equal(seen_p[i] > 0, i < 4);
}

static void same_seed_same_ids(void **state)
{
    (void)state;
    float logits[V];
    kvm_rng a = kvm_rng_seed(5, 1), b = kvm_rng_seed(5, 1);
    for (int i = 0; i < V; i++) logits[i] = (float)(i % 7);
    const kvm_sampling sa = {1, 0.9, 40, &a}, sb = {1, 0.9, 40, &b};
    for (int i = 0; i < 100; i++)
        assert_int_equal(kvm_sample(logits, V, &sa), kvm_sample(logits, V, &sb));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy),
        cmocka_unit_test(frequencies),
        cmocka_unit_test(equal_logits),
        cmocka_unit_test(same_seed_same_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
