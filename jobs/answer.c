#include "jobs/answer.h"

/* Ends a generation at a stop string, which the newest token has completed. */
typedef struct stopping {
    const kvm_item *item;
    const kvm_tokenizer *tokenizer;
    const int32_t *ids; /* as kvm_generate gives them out */
    ptrdiff_t n;
    kvm_arena scratch;
} stopping;

/* where the first stop string begins; the end of the text when there is none */
static ptrdiff_t stop_at(const kvm_item *item, kvm_str text)
{
    ptrdiff_t first = text.len;
    for (ptrdiff_t i = 0; i < item->stop_count; i++) {
        const ptrdiff_t at = kvm_str_find(text, item->stop[i]);
        if (at >= 0 && at < first) first = at;
    }
    return first;
}

static bool goes_on(void *ctx, int32_t id)
{
    enum { WINDOW = 2 * KVM_STOP_BYTES }; /* tokens; most have a byte at least */
    stopping *s = ctx;
    kvm_arena room = s->scratch;
    kvm_str text;
    (void)id; /* the last of ids */
    const ptrdiff_t n = ++s->n, from = n > WINDOW ? n - WINDOW : 0;
    if (s->item->stop_count == 0 ||
        kvm_decode(s->tokenizer, s->ids + from, n - from, true, &room, &text, NULL))
        return true;
    return stop_at(s->item, text) == text.len;
}

/* the most of the first ids whose text ends within the answer's */
static kvm_status count_kept(kvm_answer *a, const kvm_tokenizer *t, kvm_arena scratch,
                             kvm_err *err)
{
    for (a->kept = a->n; a->kept > 0; a->kept--) {
        kvm_arena room = scratch;
        kvm_str text;
        TRY(kvm_decode(t, a->ids, a->kept, true, &room, &text, err));
        if (text.len <= a->text.len) break;
    }
    return KVM_OK;
}

kvm_status kvm_answer_now(kvm_answer *a, kvm_arena *keep, kvm_model *m, kvm_cache *c,
                          const float *logits, const kvm_item *item, ptrdiff_t most,
                          kvm_err *err)
{
    const kvm_tokenizer *t = kvm_model_tokenizer(m);
    int32_t *ids = kvm_new(keep, int32_t, most);
    kvm_str text;
    if (!ids) return kvm_nomem(err, keep);
    *a = (kvm_answer){.ids = ids};
    stopping stop = {item, t, ids, 0, *keep};
    TRY(kvm_generate(m, c, logits, &(kvm_sampling){0}, most, ids, &a->n, goes_on, &stop,
                     err));
    TRY(kvm_decode(t, ids, a->n, true, keep, &text, err));
    a->text = kvm_str_slice(text, 0, stop_at(item, text));
    return count_kept(a, t, *keep, err);
}
