#include "translators/gates.h"

#include <math.h>

void kvm_gates_init(kvm_gate gates[KVM_GATES])
{
    const kvm_gate start[KVM_GATES] = {
#define X(ID, NAME, text, SENSE, REDUCE, limit, end, RANK, means)                      \
    {.id = KVM_GATE_##NAME,                                                            \
     .name = text,                                                                     \
     .what = means,                                                                    \
     .sense = KVM_GATE_##SENSE,                                                        \
     .reduce = KVM_GATE_##REDUCE,                                                      \
     .rank = KVM_GATE_##RANK,                                                          \
     .threshold = limit,                                                               \
     .reach = end,                                                                     \
     .figure = (double)NAN},
#include "translators/gates.def"
#undef X
    };
    for (int i = 0; i < KVM_GATES; i++) gates[i] = start[i];
}

kvm_gate *kvm_gate_find(kvm_gate gates[KVM_GATES], kvm_str name)
{
    for (int i = 0; i < KVM_GATES; i++)
        if (kvm_str_eq(name, kvm_str_of(gates[i].name))) return &gates[i];
    return NULL;
}

static double reduce(const kvm_gate *g, double value)
{
    switch (g->reduce) {
    case KVM_GATE_LEAST:
        return value < g->figure ? value : g->figure;
    case KVM_GATE_MOST:
        return value > g->figure ? value : g->figure;
    case KVM_GATE_MEAN:
        return g->figure + (value - g->figure) / (double)(g->values + 1);
    }
    return (double)NAN;
}

void kvm_gate_add(kvm_gate gates[KVM_GATES], kvm_gate_id id, double value)
{
    for (int i = 0; i < KVM_GATES; i++) {
        kvm_gate *g = &gates[i];
        if (g->id != id) continue;
        /* once not a number, never a number again: min and max would drop it */
        const bool broken = g->values > 0 && !isfinite(g->figure);
        if (!isfinite(value) || broken)
            g->figure = (double)NAN;
        else
            g->figure = g->values == 0 ? value : reduce(g, value);
        g->values++;
    }
}

bool kvm_gate_met(const kvm_gate *g)
{
    if (g->values == 0 || !isfinite(g->figure)) return false;
    return g->sense == KVM_GATE_ABOVE ? g->figure > g->threshold
                                      : g->figure < g->threshold;
}

bool kvm_gates_met(const kvm_gate gates[KVM_GATES])
{
    for (int i = 0; i < KVM_GATES; i++)
        if (!kvm_gate_met(&gates[i])) return false;
    return true;
}
