/* adam.h - one step of AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019) on an
 * array of parameters, for the MLP maps and for distillation. */
#ifndef KVM_TRANSLATORS_ADAM_H
#define KVM_TRANSLATORS_ADAM_H

#include "kernels/ops.h"

/* kvm_adam_step - with g scaled by `by`:
 *   m = .9 m + .1 g     v = .999 v + .001 g^2
 *   p -= rate * decay * p + rate * m^ / (sqrt(v^) + 1e-8)
 * where m^ and v^ are m and v over 1 - .9^step and 1 - .999^step; step counts from 1.
 * Entry by entry: the same bits whatever the threads. */
void kvm_adam_step(kvm_compute *c, float *p, float *m, float *v, const float *g,
                   ptrdiff_t count, double by, double rate, double decay,
                   ptrdiff_t step);

#endif
