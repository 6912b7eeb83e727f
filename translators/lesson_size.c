/* lesson_size.c - what a distillation's lessons keep, told before there is a translator
 * and of one that there is. */
#include "translators/distill_internal.h"

size_t kvm_lesson_bytes(const kvm_lesson_size *s, ptrdiff_t prefix_n, ptrdiff_t after_n)
{
    const ptrdiff_t units = prefix_n / (s->block > 0 ? s->block : 1);
    return sizeof(float) * (size_t)(kvm_said_numbers(after_n, s->vocab, s->top) +
                                    prefix_n * (1 + s->rows) + s->states +
                                    after_n * s->indexers * units);
}

/* ---- of a translator ---- */

/* numbers of state k (0: state, 1: window) that a state step reads; 0: it reads none */
ptrdiff_t kvm_distill__state_numbers(const kvm_distill *d, ptrdiff_t i, int k)
{
    const kvm_state_step *s = &d->states[i];
    if (s->map == KVM_STATE_ZERO) return 0;
    return kvm_shapes_width(&d->t.source.shapes, k ? KVM_SPACE_WINDOW : KVM_SPACE_STATE,
                            s->source);
}

kvm_lesson_size kvm_distill_lesson_size(const kvm_distill *d)
{
    kvm_lesson_size s = {.vocab = kvm_model_info_of(d->target)->vocab, .top = d->top};
    for (ptrdiff_t i = 0; i < d->apply->passes; i++)
        s.rows += d->apply->pass[i].source_width;
    for (ptrdiff_t i = 0; i < 2 * d->t.state_count; i++)
        s.states += kvm_distill__state_numbers(d, i / 2, (int)(i % 2));
    for (ptrdiff_t i = 0; i < d->t.count; i++) {
        const kvm_step *step = &d->steps[i];
        if (!kvm_distill__indexes(step)) continue;
        s.indexers++;
        s.block = kvm_model_object(
                      d->target, kvm_model_find_object(d->target, KVM_OBJECT_INDEX_KEY,
                                                       step->layer))
                      ->block;
    }
    return s;
}

size_t kvm_distill_lesson_bytes(const kvm_distill *d, ptrdiff_t prefix_n,
                                ptrdiff_t after_n)
{
    const kvm_lesson_size s = kvm_distill_lesson_size(d);
    return kvm_lesson_bytes(&s, prefix_n, after_n);
}

/* ---- of an outline ---- */

static ptrdiff_t width_of_all(const kvm_shapes *s, kvm_space space)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t l = 0; l < s->layers; l++) n += kvm_shapes_width(s, space, l);
    return n;
}

/* mappings that read alike read once (apply_plan.c) */
static bool read_before(const kvm_outline *o, int i)
{
    const kvm_mapping *m = &o->mapping[i];
    for (int k = 0; k < i; k++)
        if (o->mapping[k].side == KVM_SOURCE && o->mapping[k].from[0] == m->from[0] &&
            o->mapping[k].from[1] == m->from[1])
            return true;
    return false;
}

kvm_lesson_size kvm_lesson_size_most(const kvm_outline *o, const kvm_shapes *source,
                                     const kvm_shapes *target, ptrdiff_t block,
                                     ptrdiff_t vocab, ptrdiff_t top)
{
    kvm_lesson_size s = {.vocab = vocab, .top = top, .block = block};
    for (int i = 0; i < o->mappings; i++) {
        const kvm_mapping *m = &o->mapping[i];
        if (m->out == KVM_SPACE_INDEX)
            s.indexers += kvm_mapping_layers(m, KVM_TARGET, target, NULL);
        if (m->side == KVM_TARGET || read_before(o, i)) continue;
        for (int k = 0; k < kvm_mapping_spaces(m); k++)
            s.rows += width_of_all(source, m->from[k]);
    }
    for (ptrdiff_t l = 0; l < target->layers; l++) {
        if (kvm_shapes_width(target, KVM_SPACE_STATE, l) == 0) continue;
        const kvm_state_way way = kvm_outline_way(o, target, l);
        if (way != KVM_STATES_COPY && way != KVM_STATES_BILINEAR) continue;
        const ptrdiff_t from = kvm_outline_state_source(source, target, l);
        s.states += kvm_shapes_width(source, KVM_SPACE_STATE, from) +
                    kvm_shapes_width(source, KVM_SPACE_WINDOW, from);
    }
    return s;
}
