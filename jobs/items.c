#include "jobs/items.h"

#include <string.h>

static ptrdiff_t most_of(const kvm_item_ids *ids)
{
    return ids->prefix_n + ids->longest;
}

kvm_status kvm_items_read(kvm_items *it, kvm_arena *keep, const kvm_suite *suite,
                          ptrdiff_t wanted, const kvm_tokenizer *t, kvm_err *err)
{
    kvm_encoder *e;
    *it = (kvm_items){.suite = suite};
    TRY(kvm_suite_sample(&it->index, &it->n, keep, suite, wanted, err));
    it->ids = kvm_new(keep, kvm_item_ids, it->n);
    if (!it->ids) return kvm_nomem(err, keep);
    TRY(kvm_encoder_new(&e, keep, t, err));
    TRY(kvm_text_begin(&it->bos, e, t, *keep, err));
    for (ptrdiff_t i = 0; i < it->n; i++) {
        TRY(kvm_item_tokenise(&it->ids[i], keep, e, it->bos, suite,
                              &suite->items[it->index[i]], err));
        if (most_of(&it->ids[i]) > it->longest) it->longest = most_of(&it->ids[i]);
    }
    return KVM_OK;
}

kvm_status kvm_items_fit(const kvm_items *it, const kvm_model_info *m, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < it->n; i++)
        if (most_of(&it->ids[i]) > m->context)
            return kvm_fail(err, KVM_RANGE,
                            "item %.*s: takes %td tokens with what may follow, and the "
                            "context of %.*s holds %td",
                            KVM_STR_ARG(it->suite->items[it->index[i]].id),
                            most_of(&it->ids[i]), KVM_STR_ARG(m->name), m->context);
    return KVM_OK;
}

/* end to end for each choice */
kvm_status kvm_item_overlap(const kvm_overlap *o, const kvm_item_ids *ids,
                            kvm_arena scratch, ptrdiff_t *at, kvm_err *err)
{
    int32_t *all = kvm_new(&scratch, int32_t, ids->prefix_n + ids->longest);
    if (!all) return kvm_nomem(err, &scratch);
    const ptrdiff_t given = ids->prefix_n + ids->feed_n;
    memcpy(all, ids->prefix, (size_t)ids->prefix_n * sizeof *all);
    memcpy(all + ids->prefix_n, ids->feed, (size_t)ids->feed_n * sizeof *all);
    *at = kvm_overlap_find(o, all, given);
    for (ptrdiff_t i = 0; *at < 0 && i < ids->after_count; i++) {
        memcpy(all + given, ids->after[i], (size_t)ids->after_n[i] * sizeof *all);
        *at = kvm_overlap_find(o, all, given + ids->after_n[i]);
    }
    return KVM_OK;
}

kvm_status kvm_items_apart(const kvm_items *it, const kvm_overlap *o, kvm_str path,
                           kvm_arena scratch, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < it->n; i++) {
        ptrdiff_t at;
        TRY(kvm_item_overlap(o, &it->ids[i], scratch, &at, err));
        if (at >= 0)
            return kvm_fail(err, KVM_MISMATCH,
                            "suite %.*s, item %.*s: tokens %td..%td also stand in the "
                            "calibration text %.*s; take other items or other text",
                            KVM_STR_ARG(it->suite->name),
                            KVM_STR_ARG(it->suite->items[it->index[i]].id), at,
                            at + KVM_OVERLAP_TOKENS - 1, KVM_STR_ARG(path));
    }
    return KVM_OK;
}
