#include "jobs/lessons.h"

/* the sequence's first tokens as prefix, `after` behind them; false: too short */
static bool cut(const kvm_calibration *text, ptrdiff_t sequence,
                const kvm_lesson_options *o, kvm_lesson *l)
{
    const ptrdiff_t from = text->offset[sequence];
    const ptrdiff_t n = text->offset[sequence + 1] - from;
    ptrdiff_t prefix = n - o->after;
    if (prefix < 1) return false;
    if (o->prefix > 0 && prefix > o->prefix) prefix = o->prefix;
    *l = (kvm_lesson){.prefix = text->ids + from,
                      .prefix_n = prefix,
                      .after = text->ids + from + prefix,
                      .after_n = o->after};
    return true;
}

kvm_status kvm_lessons_list(kvm_lesson **lesson, ptrdiff_t *n,
                            const kvm_calibration *text, kvm_split split,
                            const kvm_lesson_options *o, kvm_arena *keep, kvm_err *err)
{
    kvm_split *of;
    TRY(kvm_split_sequences(&of, text->sequences, o->seed, o->held_out, keep, err));
    kvm_lesson *list = kvm_new(keep, kvm_lesson, text->sequences);
    if (!list) return kvm_nomem(err, keep);
    *n = 0;
    for (ptrdiff_t s = 0; s < text->sequences; s++) {
        const bool enough = o->most > 0 && *n >= o->most;
        if (of[s] == split && !enough && cut(text, s, o, &list[*n])) (*n)++;
    }
    *lesson = list;
    if (*n > 0) return KVM_OK;
    return kvm_fail(err, KVM_RANGE,
                    "no sequence of the split to %s has %td tokens after a prefix: "
                    "capture more of them, or longer ones",
                    kvm_split_name(split), o->after);
}

ptrdiff_t kvm_lessons_longest(const kvm_lesson *lesson, ptrdiff_t n)
{
    ptrdiff_t longest = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (lesson[i].prefix_n > longest) longest = lesson[i].prefix_n;
    return longest;
}
