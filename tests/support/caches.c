#include "tests/support/caches.h"

#include <math.h>
#include <string.h>

#include "tests/support/check.h"

kvm_model *open_model(kvm_arena *keep, kvm_compute *c, const char *path)
{
    kvm_err err = {0};
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&m, keep, c, kvm_str_of(path), &o, &err), &err);
    return m;
}

float object_differs(kvm_arena scratch, const kvm_model *m, ptrdiff_t object,
                     const kvm_cache *a, const kvm_cache *b)
{
    const kvm_object *o = kvm_model_object(m, object);
    const bool once = kvm_object_per_prompt(o);
    const ptrdiff_t tokens = kvm_cache_length(a);
    const ptrdiff_t n = (once ? 1 : tokens) * o->heads * o->dim;
    const kvm_cache *const caches[] = {a, b};
    float *x[2], most = 0, size = 0;
    assert_int_equal(kvm_cache_length(b), tokens);
    for (int k = 0; k < 2; k++) {
        kvm_err err = {0};
        kvm_tensor view;
        x[k] = kvm_new(&scratch, float, n);
        if (once) {
            check_ok(kvm_cache_view(caches[k], object, &view, &err), &err);
            memcpy(x[k], view.data, sizeof(float) * (size_t)n);
        } else {
            check_ok(kvm_cache_read(caches[k], object, 3, 0, tokens, x[k], &err), &err);
        }
    }
    for (ptrdiff_t e = 0; e < n; e++) {
        most = fmaxf(most, fabsf(x[0][e] - x[1][e]));
        size = fmaxf(size, fabsf(x[1][e]));
    }
    assert_true(size > 0 && isfinite(most));
    return most / size;
}

float caches_differ(kvm_arena scratch, const kvm_model *m, const kvm_cache *a,
                    const kvm_cache *b)
{
    float worst = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++)
        worst = fmaxf(worst, object_differs(scratch, m, i, a, b));
    return worst;
}

float logits_differ(kvm_arena scratch, kvm_model *m, kvm_cache *a, kvm_cache *b,
                    const int32_t *ids, ptrdiff_t n)
{
    const ptrdiff_t count = n * kvm_model_info_of(m)->vocab;
    kvm_cache *const caches[] = {a, b};
    float *x[2], worst = 0;
    for (int k = 0; k < 2; k++) {
        kvm_err err = {0};
        x[k] = kvm_new(&scratch, float, count);
        const kvm_forward_options o = {.logits_last = n, .logits = x[k]};
        check_ok(kvm_model_forward(m, caches[k], ids, n, &o, &err), &err);
    }
    for (ptrdiff_t i = 0; i < count; i++)
        worst = fmaxf(worst, fabsf(x[0][i] - x[1][i]));
    return worst;
}
