#include "jobs/alternate_lines.h"

#include <string.h>

#include "base/clock.h"

static kvm_side other(kvm_side side)
{
    return side == KVM_SOURCE ? KVM_TARGET : KVM_SOURCE;
}

kvm_status kvm_lines_new(kvm_lines *l, kvm_arena *keep,
                         kvm_model *const models[KVM_SIDES],
                         kvm_apply *const into[KVM_SIDES], ptrdiff_t capacity,
                         kvm_err *err)
{
    *l = (kvm_lines){.capacity = capacity, .ids = kvm_new(keep, int32_t, capacity)};
    if (!l->ids) return kvm_nomem(err, keep);
    for (int side = 0; side < KVM_SIDES; side++) {
        kvm_line *line = &l->line[side];
        const kvm_spaces takes = kvm_apply_takes(into[other((kvm_side)side)]);
        *line = (kvm_line){.model = models[side], .into = into[side]};
        TRY(kvm_cache_new(&line->cache, keep, line->model, capacity, err));
        TRY(kvm_cache_new(&l->reference[side], keep, line->model, capacity, err));
        if (takes)
            TRY(kvm_taken_new(&line->taken, keep, line->model, takes, capacity, err));
        kvm_apply_keep(line->into, line->taken);
    }
    return KVM_OK;
}

static kvm_status join(kvm_lines *l, const int32_t *ids, ptrdiff_t n, kvm_err *err)
{
    if (n > l->capacity - l->n)
        return kvm_fail(err, KVM_RANGE, "a conversation of %td tokens, at most %td",
                        l->n + n, l->capacity);
    if (n) memcpy(l->ids + l->n, ids, (size_t)n * sizeof *ids);
    l->n += n;
    return KVM_OK;
}

kvm_status kvm_lines_begin(kvm_lines *l, const int32_t *ids, ptrdiff_t n, kvm_err *err)
{
    for (int side = 0; side < KVM_SIDES; side++) {
        kvm_line *line = &l->line[side];
        kvm_cache_clear(line->cache);
        line->read = line->translated = 0;
        line->taken_seconds = line->taken ? kvm_taken_seconds(line->taken) : 0;
    }
    l->n = 0;
    return join(l, ids, n, err);
}

/* a line's model reads on, up to the conversation's end; logits: of the last token, or
 * NULL */
static kvm_status read_on(kvm_lines *l, kvm_line *line, float *logits, kvm_err *err)
{
    kvm_capture sink;
    kvm_forward_options o = {.logits = logits, .logits_last = logits ? 1 : 0};
    const ptrdiff_t from = kvm_cache_length(line->cache), n = l->n - from;
    if (n == 0) return KVM_OK;
    if (line->taken) {
        sink = kvm_taken_capture(line->taken);
        o.capture = &sink;
    }
    line->read += n;
    return kvm_model_forward(line->model, line->cache, l->ids + from, n, &o, err);
}

static kvm_status translate(kvm_lines *l, kvm_side side, kvm_err *err)
{
    kvm_line *line = &l->line[side];
    const kvm_line *from = &l->line[other(side)];
    const kvm_handover handed = {
        .cache = from->cache, .taken = from->taken, .ids = l->ids};
    line->translated += l->n - kvm_cache_length(line->cache);
    return kvm_apply_run(line->into, &handed, line->cache, NULL, err);
}

static double taking(const kvm_line *line)
{
    return line->taken ? kvm_taken_seconds(line->taken) : 0;
}

/* what a side has spent on taking rows since this was last asked */
static double spent_taking(kvm_line *line)
{
    const double before = line->taken_seconds;
    line->taken_seconds = taking(line);
    return line->taken_seconds - before;
}

kvm_status kvm_lines_catch_up(kvm_lines *l, kvm_side side, kvm_catch_up how,
                              double *seconds, kvm_err *err)
{
    kvm_line *line = &l->line[side];
    const double started = kvm_now();
    if (how != KVM_CATCH_UP_SEGMENT) kvm_cache_clear(line->cache);
    if (how == KVM_CATCH_UP_READ) {
        const double before = taking(line);
        TRY(read_on(l, line, NULL, err));
        *seconds = kvm_now() - started - (taking(line) - before); /* for the other */
        return KVM_OK;
    }
    TRY(translate(l, side, err));
    *seconds = kvm_now() - started + spent_taking(&l->line[other(side)]);
    return KVM_OK;
}

kvm_status kvm_lines_ask(kvm_lines *l, kvm_side side, const int32_t *ids, ptrdiff_t n,
                         float *logits, kvm_err *err)
{
    TRY(join(l, ids, n, err));
    return read_on(l, &l->line[side], logits, err);
}

kvm_status kvm_lines_answer(kvm_lines *l, kvm_side side, const kvm_item *item,
                            ptrdiff_t most, const float *logits, kvm_answer *a,
                            kvm_arena *keep, kvm_err *err)
{
    kvm_line *line = &l->line[side];
    kvm_cache_mark(line->cache); /* states cannot be cut back otherwise */
    TRY(kvm_answer_now(a, keep, line->model, line->cache, logits, item, most, err));
    TRY(kvm_cache_truncate(line->cache, l->n, err));
    TRY(join(l, a->ids, a->kept, err));
    return read_on(l, line, NULL, err);
}

kvm_status kvm_lines_reference(kvm_lines *l, kvm_side side, ptrdiff_t question,
                               float *logits, kvm_err *err)
{
    kvm_cache *c = l->reference[side];
    kvm_model *m = l->line[side].model;
    const ptrdiff_t before = l->n - question;
    const kvm_forward_options last = {.logits = logits, .logits_last = 1};
    kvm_cache_clear(c);
    TRY(kvm_model_forward(m, c, l->ids, before, &(kvm_forward_options){0}, err));
    return kvm_model_forward(m, c, l->ids + before, question, &last, err);
}
