#include "jobs/mixed_cache.h"

#include <string.h>

#include "base/checked.h"

kvm_cache_part kvm_cache_part_of(const kvm_object *o)
{
    if (kvm_object_per_prompt(o)) return KVM_PART_STATES;
    return kvm_object_chooses(o) ? KVM_PART_INDEXERS : KVM_PART_ATTENTION;
}

/* numbers of the largest object of so many tokens */
static bool largest(const kvm_model *m, ptrdiff_t tokens, ptrdiff_t *most)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        ptrdiff_t n = o->heads * o->dim;
        if (!kvm_object_per_prompt(o) && !kvm_mul(n, tokens, &n)) return false;
        if (n > *most) *most = n;
    }
    return true;
}

kvm_status kvm_mix_room(float **rows, kvm_arena *keep, const kvm_model *a,
                        const kvm_model *b, ptrdiff_t tokens, kvm_err *err)
{
    ptrdiff_t count = 0;
    if (!largest(a, tokens, &count) || (b && !largest(b, tokens, &count)))
        return kvm_fail(err, KVM_RANGE, "%td tokens are too many", tokens);
    *rows = kvm_new_raw(keep, float, count);
    return *rows ? KVM_OK : kvm_nomem(err, keep);
}

/* what is kept once per prompt */
static kvm_status mix_state(kvm_cache *to, const kvm_object *o, ptrdiff_t object,
                            kvm_mix_source from, ptrdiff_t n, float *rows, kvm_err *err)
{
    kvm_state s = {.data = rows,
                   .axes = kvm_str_of(kvm_object_axes(o->kind)),
                   .dim = {o->shape[0], o->shape[1], o->shape[2]},
                   .dtype = KVM_F32,
                   .tokens = n};
    kvm_tensor view;
    memset(rows, 0, (size_t)(o->heads * o->dim) * sizeof *rows);
    if (from.cache) {
        TRY(kvm_cache_view(from.cache, from.object, &view, err));
        s.data = view.data;
    }
    return kvm_inject_state(to, object, &s, err);
}

kvm_status kvm_mix_object(kvm_cache *to, const kvm_model *m, ptrdiff_t object,
                          kvm_mix_source from, ptrdiff_t n, float *rows, kvm_err *err)
{
    const kvm_object *o = kvm_model_object(m, object);
    if (kvm_object_per_prompt(o)) return mix_state(to, o, object, from, n, rows, err);
    if (from.cache)
        TRY(kvm_cache_read(from.cache, from.object, KVM_POINT_ENGINE, 0, n, rows, err));
    else
        memset(rows, 0, (size_t)(n * o->heads * o->dim) * sizeof *rows);
    return kvm_inject_rows(to, object, KVM_POINT_ENGINE, 0, n, rows, err);
}
