#include <math.h>
#include <string.h>

#include "translators/distill_internal.h"

bool kvm_distill__indexes(const kvm_step *s)
{
    return s->mapping.out == KVM_SPACE_INDEX;
}

static ptrdiff_t index_object(const kvm_distill *d, const kvm_step *s)
{
    return kvm_model_find_object(d->target, KVM_OBJECT_INDEX_KEY, s->layer);
}

ptrdiff_t kvm_distill__choices(const kvm_distill *d, const kvm_step *s,
                               ptrdiff_t prefix_n)
{
    const ptrdiff_t block = kvm_model_object(d->target, index_object(d, s))->block;
    return prefix_n / (block > 0 ? block : 1);
}

/* scores of one indexer over what of the prefix can be chosen whole */
typedef struct scoring {
    ptrdiff_t choices;
    float *native; /* (after_n, choices); taken, or compared with */
    bool take;
    double share; /* of this indexer in the loss, which is the mean over them */
    double kl;    /* mean over rows */
} scoring;

static double softmax(const float *x, ptrdiff_t n, double *most)
{
    double sum = 0;
    *most = -HUGE_VAL;
    for (ptrdiff_t i = 0; i < n; i++) *most = fmax(*most, (double)x[i]);
    for (ptrdiff_t i = 0; i < n; i++) sum += exp((double)x[i] - *most);
    return sum;
}

/* a row of scores becomes the gradient of KL(native || it), by `by` */
static double compare(const float *native, float *x, ptrdiff_t n, double by)
{
    double most_p, most_q, kl = 0;
    const double sum_p = softmax(native, n, &most_p), sum_q = softmax(x, n, &most_q);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double lp = (double)native[i] - most_p - log(sum_p);
        const double lq = (double)x[i] - most_q - log(sum_q);
        kl += exp(lp) * (lp - lq);
        x[i] = (float)(by * (exp(lq) - exp(lp)));
    }
    return kl;
}

static kvm_status see_scores(void *ctx, ptrdiff_t n, ptrdiff_t units, float *scores,
                             kvm_err *err)
{
    scoring *s = ctx;
    const ptrdiff_t most = s->choices;
    (void)err;
    for (ptrdiff_t t = 0; t < n; t++) {
        float *row = scores + t * units, *native = s->native + t * most;
        if (s->take)
            memcpy(native, row, sizeof *row * (size_t)most);
        else
            s->kl += compare(native, row, most, s->share / (double)n) / (double)n;
        const ptrdiff_t from = s->take ? 0 : most; /* no gradient by these */
        memset(row + from, 0, sizeof *row * (size_t)(units - from));
    }
    return KVM_OK;
}

kvm_status kvm_distill__score_indexers(kvm_distill *d, const kvm_lesson *l, bool take,
                                       double *kl, kvm_err *err)
{
    double sum = 0, n = 0;
    for (ptrdiff_t i = 0; i < d->t.count; i++) n += kvm_distill__indexes(&d->steps[i]);
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        if (!kvm_distill__indexes(&d->steps[i])) continue;
        scoring s = {.choices = kvm_distill__choices(d, &d->steps[i], l->prefix_n),
                     .native = l->scores[i],
                     .take = take,
                     .share = 1 / n};
        const kvm_tape_scores_loss loss = {see_scores, &s, d->scores};
        TRY(kvm_tape_scores(d->tape, d->cache, index_object(d, &d->steps[i]), &loss,
                            d->gradients, err));
        sum += s.kl;
    }
    *kl = n > 0 ? sum / n : 0;
    return KVM_OK;
}

bool kvm_distill__any_indexer(const kvm_distill *d)
{
    for (ptrdiff_t i = 0; i < d->t.count; i++)
        if (kvm_distill__indexes(&d->steps[i])) return true;
    return false;
}

kvm_status kvm_distill__take_scores(kvm_distill *d, kvm_lesson *l, kvm_arena *keep,
                                    kvm_err *err)
{
    double kl;
    l->scores = kvm_new(keep, float *, d->t.count);
    if (!l->scores) return kvm_nomem(err, keep);
    if (!kvm_distill__any_indexer(d)) return KVM_OK;
    TRY(kvm_gradients_clear(d->gradients, l->prefix_n, err));
    TRY(kvm_tape_record(d->tape, d->cache, l->after, l->after_n, err));
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        if (!kvm_distill__indexes(&d->steps[i])) continue;
        const ptrdiff_t n = kvm_distill__choices(d, &d->steps[i], l->prefix_n);
        l->scores[i] = kvm_new_raw(keep, float, l->after_n *n);
        if (!l->scores[i]) return kvm_nomem(err, keep);
    }
    return kvm_distill__score_indexers(d, l, true, &kl, err);
}
