#include "cli/switching.h"

#include "base/clock.h"

kvm_status kvm_switching_open(kvm_switching *s, kvm_cli *cli, kvm_str source,
                              kvm_str target, kvm_str translator, ptrdiff_t capacity,
                              kvm_err *err)
{
    kvm_arena *keep = cli->keep;
    *s = (kvm_switching){.capacity = capacity};
    TRY(kvm_cli_compute(cli, keep, &s->compute, err));
    TRY(kvm_model_open(&s->source, keep, s->compute, source, &(kvm_model_options){0},
                       err));
    TRY(kvm_model_open(&s->target, keep, s->compute, target, &(kvm_model_options){0},
                       err));
    TRY(kvm_tokenizer_differ(kvm_model_tokenizer(s->source),
                             kvm_model_tokenizer(s->target), err));
    TRY(kvm_translator_open(&s->translator, keep, translator, err));
    TRY(kvm_apply_new(&s->apply, keep, s->compute, &s->translator, s->source, s->target,
                      NULL, err));
    TRY(kvm_cache_new(&s->source_cache, keep, s->source, capacity, err));
    TRY(kvm_cache_new(&s->target_cache, keep, s->target, capacity, err));
    s->ids = kvm_new(keep, int32_t, capacity);
    if (!s->ids) return kvm_nomem(err, keep);
    if (kvm_apply_takes(s->apply)) {
        TRY(kvm_taken_new(&s->taken, keep, s->source, kvm_apply_takes(s->apply),
                          capacity, err));
        s->taking = kvm_taken_capture(s->taken);
    }
    const ptrdiff_t vs = kvm_model_info_of(s->source)->vocab;
    const ptrdiff_t vt = kvm_model_info_of(s->target)->vocab;
    s->logits = kvm_new_raw(keep, float, vs > vt ? vs : vt);
    return s->logits ? KVM_OK : kvm_nomem(err, keep);
}

const kvm_capture *kvm_switching_capture(const kvm_switching *s)
{
    return s->taken ? &s->taking : NULL;
}

void kvm_switching_tell(kvm_switching *s, const int32_t *ids, ptrdiff_t from,
                        ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) s->ids[from + i] = ids[i];
}

kvm_status kvm_switching_catch_up(kvm_switching *s, double *seconds, kvm_err *err)
{
    const double started = kvm_now();
    const kvm_handover from = {
        .cache = s->source_cache, .taken = s->taken, .ids = s->ids};
    TRY(kvm_apply_run(s->apply, &from, s->target_cache, NULL, err));
    *seconds = kvm_now() - started;
    return KVM_OK;
}

/* the target reads on from what it holds */
static kvm_status read_on(kvm_switching *s, const int32_t *ids, ptrdiff_t n,
                          kvm_err *err)
{
    const kvm_forward_options o = {.logits_last = 1, .logits = s->logits};
    return kvm_model_forward(s->target, s->target_cache, ids, n, &o, err);
}

static kvm_status read_once(kvm_switching *s, const int32_t *ids, ptrdiff_t n,
                            double *seconds, kvm_err *err)
{
    kvm_cache_clear(s->target_cache);
    const double started = kvm_now();
    TRY(read_on(s, ids, n, err));
    *seconds = kvm_now() - started;
    return KVM_OK;
}

kvm_status kvm_switching_cold(kvm_switching *s, const int32_t *ids, ptrdiff_t n,
                              double *seconds, kvm_err *err)
{
    TRY(read_once(s, ids, n, seconds, err)); /* warm-up: pages, packed weights */
    TRY(read_once(s, ids, n, seconds, err));
    kvm_cache_clear(s->target_cache);
    return KVM_OK;
}

kvm_status kvm_switching_warm_up(kvm_switching *s, const int32_t *rest, ptrdiff_t n,
                                 kvm_err *err)
{
    double seconds;
    kvm_cache_clear(s->target_cache);
    TRY(kvm_switching_catch_up(s, &seconds, err));
    TRY(read_on(s, rest, n, err));
    kvm_cache_clear(s->target_cache);
    return KVM_OK;
}
