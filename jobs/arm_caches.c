#include "jobs/arm_caches.h"

#include "jobs/mixed_cache.h"

kvm_status kvm_arm_caches_new(kvm_arm_caches *a, kvm_arena *keep, kvm_model *source,
                              kvm_model *target, ptrdiff_t capacity, kvm_err *err)
{
    *a = (kvm_arm_caches){.source = source, .target = target};
    TRY(kvm_cache_new(&a->source_prefix, keep, source, capacity, err));
    TRY(kvm_cache_new(&a->donor_prefix, keep, source, capacity, err));
    TRY(kvm_cache_new(&a->source_work, keep, source, capacity, err));
    TRY(kvm_cache_new(&a->target_prefix, keep, target, capacity, err));
    TRY(kvm_cache_new(&a->target_work, keep, target, capacity, err));
    return kvm_mix_room(&a->rows, keep, source, target, capacity, err);
}

/* taken: what a translator reads that a cache does not keep; NULL: nothing */
static kvm_status prefill(kvm_model *m, kvm_cache *c, const int32_t *ids, ptrdiff_t n,
                          kvm_taken *taken, kvm_err *err)
{
    kvm_capture sink;
    kvm_forward_options o = {0};
    if (taken) {
        sink = kvm_taken_capture(taken);
        o.capture = &sink;
    }
    kvm_cache_clear(c);
    return kvm_model_forward(m, c, ids, n, &o, err);
}

kvm_status kvm_arm_caches_take(kvm_arm_caches *a, kvm_arena *keep, ptrdiff_t capacity,
                               kvm_err *err)
{
    kvm_spaces s = 0;
    for (int arm = 0; arm < KVM_ARM_COUNT; arm++)
        if (a->apply[arm]) s |= kvm_apply_takes(a->apply[arm]);
    if (s == 0) return KVM_OK;
    TRY(kvm_taken_new(&a->source_taken, keep, a->source, s, capacity, err));
    return kvm_taken_new(&a->donor_taken, keep, a->source, s, capacity, err);
}

kvm_status kvm_arm_caches_prefill(kvm_arm_caches *a, const int32_t *ids,
                                  const int32_t *donor, ptrdiff_t n, kvm_err *err)
{
    if (n < 1)
        return kvm_fail(err, KVM_RANGE, "a prefix of %td tokens cannot be cached", n);
    a->ids = ids;
    a->donor_ids = donor;
    TRY(prefill(a->source, a->source_prefix, ids, n, a->source_taken, err));
    if (donor) TRY(prefill(a->source, a->donor_prefix, donor, n, a->donor_taken, err));
    return prefill(a->target, a->target_prefix, ids, n, NULL, err);
}

/* the source layer that stands where target layer l stands, by relative depth */
static ptrdiff_t matched_layer(ptrdiff_t l, ptrdiff_t target_layers,
                               ptrdiff_t source_layers)
{
    if (target_layers == 1) return source_layers - 1;
    const ptrdiff_t span = target_layers - 1;
    return (l * (source_layers - 1) + span / 2) / span;
}

static ptrdiff_t matched_object(const kvm_arm_caches *a, ptrdiff_t target_object)
{
    const kvm_object *o = kvm_model_object(a->target, target_object);
    return kvm_model_find_object(a->source, o->kind,
                                 matched_layer(o->layer,
                                               kvm_model_info_of(a->target)->layers,
                                               kvm_model_info_of(a->source)->layers));
}

static bool same_rows(const kvm_arm_caches *a)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(a->target)->objects; i++) {
        const kvm_object *t = kvm_model_object(a->target, i);
        const ptrdiff_t from = matched_object(a, i);
        if (from < 0) return false;
        const kvm_object *s = kvm_model_object(a->source, from);
        if (s->heads != t->heads || s->dim != t->dim) return false;
    }
    return true;
}

const char *kvm_arm_absent(const kvm_arm_caches *a, kvm_arm arm)
{
    switch (arm) {
    case KVM_ARM_NATIVE:
    case KVM_ARM_SOURCE:
    case KVM_ARM_IDENTITY:
    case KVM_ARM_ZERO:
        return NULL;
    case KVM_ARM_WRONG_DONOR:
        if (a->no_donor) return "the items share one prefix: there is no wrong one";
        return kvm_arm_absent(a, KVM_ARM_CLOSED_FORM);
    case KVM_ARM_CLOSED_FORM:
        return a->apply[KVM_ARM_CLOSED_FORM] ? NULL
                                             : "the spec asks for no closed form";
    case KVM_ARM_MLP:
        return a->apply[KVM_ARM_MLP] ? NULL : "the spec asks for no MLP";
    case KVM_ARM_DISTILLED:
        return a->apply[KVM_ARM_DISTILLED] ? NULL : "the spec asks for no distillation";
    case KVM_ARM_RAW_SOURCE:
        return same_rows(a) ? NULL : "the models' cache rows differ in size";
    case KVM_ARM_COUNT:
        break;
    }
    return "no such arm";
}

/* every object of the target from a cache of the target's, or of its matched source; of
 * none: zeros */
static kvm_status inject_all(kvm_arm_caches *a, const kvm_cache *from, bool matched,
                             kvm_err *err)
{
    const ptrdiff_t n = kvm_cache_length(a->target_prefix);
    kvm_cache_clear(a->target_work);
    TRY(kvm_inject_begin(a->target_work, n, err));
    for (ptrdiff_t i = 0; i < kvm_model_info_of(a->target)->objects; i++) {
        const kvm_mix_source s = {from, matched ? matched_object(a, i) : i};
        TRY(kvm_mix_object(a->target_work, a->target, i, s, n, a->rows, err));
    }
    return kvm_inject_end(a->target_work, err);
}

static kvm_status translate(kvm_arm_caches *a, kvm_arm by, bool donor, kvm_err *err)
{
    const kvm_handover from = {.cache = donor ? a->donor_prefix : a->source_prefix,
                               .taken = donor ? a->donor_taken : a->source_taken,
                               .ids = donor ? a->donor_ids : a->ids};
    kvm_cache_clear(a->target_work);
    return kvm_apply_run(a->apply[by], &from, a->target_work, NULL, err);
}

kvm_status kvm_arm_fill(kvm_arm_caches *a, kvm_arm arm, kvm_model **model,
                        kvm_cache **cache, kvm_err *err)
{
    *model = a->target;
    *cache = a->target_work;
    switch (arm) {
    case KVM_ARM_NATIVE:
        return kvm_cache_copy(a->target_work, a->target_prefix, err);
    case KVM_ARM_SOURCE:
        *model = a->source;
        *cache = a->source_work;
        return kvm_cache_copy(a->source_work, a->source_prefix, err);
    case KVM_ARM_CLOSED_FORM:
    case KVM_ARM_MLP:
    case KVM_ARM_DISTILLED:
        return translate(a, arm, false, err);
    case KVM_ARM_WRONG_DONOR:
        return translate(a, KVM_ARM_CLOSED_FORM, true, err);
    case KVM_ARM_IDENTITY:
        return inject_all(a, a->target_prefix, false, err);
    case KVM_ARM_RAW_SOURCE:
        return inject_all(a, a->source_prefix, true, err);
    case KVM_ARM_ZERO:
        return inject_all(a, NULL, false, err);
    case KVM_ARM_COUNT:
        break;
    }
    return kvm_fail(err, KVM_INTERNAL, "no such arm");
}

kvm_status kvm_arm_fill_head(kvm_arm_caches *a, kvm_arm by, ptrdiff_t head,
                             kvm_cache **cache, kvm_err *err)
{
    const ptrdiff_t n = kvm_cache_length(a->target_prefix);
    if (head < 1 || head > n)
        return kvm_fail(err, KVM_RANGE, "the first %td of %td tokens", head, n);
    a->donor_ids = a->ids;
    TRY(prefill(a->source, a->donor_prefix, a->ids, head, a->donor_taken, err));
    TRY(translate(a, by, true, err));
    *cache = a->target_work;
    if (head == n) return KVM_OK;
    return kvm_model_forward(a->target, a->target_work, a->ids + head, n - head,
                             &(kvm_forward_options){0}, err);
}
