#include "models/model_internal.h"

kvm_status kvm_generate(kvm_model *m, kvm_cache *cache, const float *logits,
                        const kvm_sampling *s, ptrdiff_t max_new, int32_t *ids,
                        ptrdiff_t *n, bool (*each)(void *ctx, int32_t id), void *ctx,
                        kvm_err *err)
{
    const kvm_forward_options next = {.logits_last = 1, .logits = m->logits};
    const kvm_forward_options last = {0};
    *n = 0;
    while (*n < max_new) {
        const int32_t id = kvm_sample(logits, m->config.vocab, s);
        if (m->tokenizer && kvm_tokenizer_stops(m->tokenizer, id)) return KVM_OK;
        ids[*n] = id;
        const bool more = (!each || each(ctx, id)) && *n + 1 < max_new;
        TRY(kvm_model_forward(m, cache, &id, 1, more ? &next : &last, err));
        ++*n;
        if (!more) return KVM_OK;
        logits = m->logits;
    }
    return KVM_OK;
}
