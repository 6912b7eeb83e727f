#include "translators/said.h"

#include <math.h>
#include <string.h>

ptrdiff_t kvm_said_top(ptrdiff_t vocab, ptrdiff_t asked)
{
    enum { SMALL = 16384, TOP = 256 };
    if (asked > 0) return asked;
    return vocab <= SMALL ? 0 : TOP;
}

ptrdiff_t kvm_said_numbers(ptrdiff_t rows, ptrdiff_t vocab, ptrdiff_t top)
{
    return top > 0 && top < vocab ? rows * (2 * top + 1) : rows * vocab;
}

kvm_status kvm_said_new(kvm_said *s, kvm_arena *keep, ptrdiff_t rows, ptrdiff_t vocab,
                        ptrdiff_t top, kvm_err *err)
{
    *s = (kvm_said){.rows = rows, .vocab = vocab, .top = top < vocab ? top : 0};
    if (s->top == 0) {
        s->logits = kvm_new_raw(keep, float, rows *vocab);
        return s->logits ? KVM_OK : kvm_nomem(err, keep);
    }
    s->id = kvm_new_raw(keep, int32_t, rows * s->top);
    s->kept = kvm_new_raw(keep, float, rows * s->top);
    s->rest = kvm_new_raw(keep, float, rows);
    return s->id && s->kept && s->rest ? KVM_OK : kvm_nomem(err, keep);
}

/* a heap of the largest so far, the smallest of them first */
static void sift(int32_t *id, float *x, ptrdiff_t n, ptrdiff_t at)
{
    for (;;) {
        ptrdiff_t least = at;
        for (ptrdiff_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (x[child] < x[least]) least = child;
        if (least == at) return;
        const float swap = x[at];
        const int32_t swap_id = id[at];
        x[at] = x[least];
        id[at] = id[least];
        x[least] = swap;
        id[least] = swap_id;
        at = least;
    }
}

static void choose(const float *logits, ptrdiff_t vocab, ptrdiff_t top, int32_t *id,
                   float *x)
{
    for (ptrdiff_t i = 0; i < top; i++) {
        id[i] = (int32_t)i;
        x[i] = logits[i];
    }
    for (ptrdiff_t i = top / 2; i >= 0; i--) sift(id, x, top, i);
    for (ptrdiff_t i = top; i < vocab; i++) {
        if (!(logits[i] > x[0])) continue;
        x[0] = logits[i];
        id[0] = (int32_t)i;
        sift(id, x, top, 0);
    }
}

kvm_status kvm_said_put(kvm_said *s, ptrdiff_t row, const float *logits, kvm_err *err)
{
    double most = -HUGE_VAL, sum = 0, kept = 0, lost = 0;
    for (ptrdiff_t i = 0; i < s->vocab; i++) most = fmax(most, (double)logits[i]);
    for (ptrdiff_t i = 0; i < s->vocab; i++) sum += exp((double)logits[i] - most);
    const double z = most + log(sum); /* ln p = logit - z */
    if (!isfinite(z))
        return kvm_fail(err, KVM_NAN, "logits of row %td are not finite", row);
    if (s->top == 0) {
        memcpy(s->logits + row * s->vocab, logits, sizeof *logits * (size_t)s->vocab);
        return KVM_OK;
    }
    int32_t *id = s->id + row * s->top;
    float *x = s->kept + row * s->top;
    choose(logits, s->vocab, s->top, id, x);
    const float least = x[0]; /* before it becomes ln p */
    ptrdiff_t ties = s->top;  /* kept ones that equal the least */
    for (ptrdiff_t i = 0; i < s->top; i++) {
        ties -= x[i] > least;
        kept += exp((double)x[i] - z);
        x[i] = (float)((double)x[i] - z);
    }
    const double others = (double)(s->vocab - s->top);
    /* what rounding leaves of nothing is still something: e^-700 has a logarithm */
    const double each = log(fmax(1 - kept, 1e-300) / others);
    s->rest[row] = (float)each;
    for (ptrdiff_t i = 0; i < s->vocab; i++) {
        if (logits[i] > least || (logits[i] == least && ties-- > 0)) continue;
        const double lp = (double)logits[i] - z;
        lost += exp(lp) * (lp - each);
    }
    s->lost += lost;
    return KVM_OK;
}

float *kvm_said_rows(const kvm_said *s, ptrdiff_t from, ptrdiff_t n, float *room)
{
    if (s->top == 0) return s->logits + from * s->vocab;
    for (ptrdiff_t r = 0; r < n; r++) {
        float *row = room + r * s->vocab;
        const ptrdiff_t at = (from + r) * s->top;
        for (ptrdiff_t i = 0; i < s->vocab; i++) row[i] = s->rest[from + r];
        for (ptrdiff_t i = 0; i < s->top; i++) row[s->id[at + i]] = s->kept[at + i];
    }
    return room;
}
