/* gates.h - gates that can say no: each a figure, a threshold and a verdict.
 *
 * A gate collects values (one per layer, map or sequence) and reduces them as its row
 * of gates.def says. A gate that saw no value, or one that is not finite, fails: an
 * empty input must not pass. */
#ifndef KVM_TRANSLATORS_GATES_H
#define KVM_TRANSLATORS_GATES_H

#include "base/str.h"

typedef enum kvm_gate_id {
#define X(id, NAME, ...) KVM_GATE_##NAME = id,
#include "translators/gates.def"
#undef X
} kvm_gate_id;
enum {
#define X(id, NAME, ...) KVM_GATE_AT_##NAME,
#include "translators/gates.def"
#undef X
    KVM_GATES /* how many there are */
};
typedef enum kvm_gate_sense { KVM_GATE_ABOVE, KVM_GATE_BELOW } kvm_gate_sense;
typedef enum kvm_gate_reduce {
    KVM_GATE_LEAST,
    KVM_GATE_MOST,
    KVM_GATE_MEAN
} kvm_gate_reduce;
typedef enum kvm_gate_rank { KVM_GATE_REQUIRED, KVM_GATE_ADVICE } kvm_gate_rank;

typedef struct kvm_gate {
    const char *name, *what; /* static */
    kvm_gate_id id;
    kvm_gate_sense sense;
    kvm_gate_reduce reduce;
    kvm_gate_rank rank;
    double threshold;
    double reach;     /* what the figure cannot pass in that sense */
    double figure;    /* of the values so far; NaN with none, or with one not finite */
    ptrdiff_t values; /* how many were seen */
} kvm_gate;

void kvm_gates_init(kvm_gate gates[KVM_GATES]); /* default thresholds, no values */
/* the gate of that name, NULL when unknown */
kvm_gate *kvm_gate_find(kvm_gate gates[KVM_GATES], kvm_str name);
void kvm_gate_add(kvm_gate gates[KVM_GATES], kvm_gate_id id, double value);
bool kvm_gate_met(const kvm_gate *g);
bool kvm_gates_met(const kvm_gate gates[KVM_GATES]); /* all of them */

#endif
