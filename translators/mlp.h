/* mlp.h - the map with two hidden layers, for pairs where ridge fails.
 *
 * Per target layer and object: y = W3 relu(W2 relu(W1 x + b1) + b2) + b3 on inputs and
 * outputs brought to mean 0 and variance 1 by the fit split; the normalisation is
 * folded into the first and last layer of the finished step. Loss: mean squared error
 * over the normalised outputs. Adam (b1 .9, b2 .999, eps 1e-8), batches drawn from a
 * permutation seeded by (seed, epoch). With the same threads the same bits, also across
 * a resume. */
#ifndef KVM_TRANSLATORS_MLP_H
#define KVM_TRANSLATORS_MLP_H

#include "translators/translator.h"

enum { KVM_MLP_MOST_BATCH = 16384, KVM_MLP_MOST_HIDDEN = 1 << 16 };

typedef struct kvm_mlp_options { /* 0 = the value in brackets */
    ptrdiff_t hidden;            /* (1024) */
    ptrdiff_t epochs;            /* (20) */
    ptrdiff_t batch;             /* (4096) */
    double rate;                 /* (1e-3) */
    bool per_head;               /* one network per target head, as the paper; else one
                                        for the whole layer: 1/heads of the products and
                                        of the file at one width, and the first layer's
                                        work on the shared inputs done once */
    uint64_t seed;               /* of weights and batches */
    uint64_t split_seed;         /* of the split by sequence */
    double fraction;             /* kept from the fit (0.2) */
    kvm_str checkpoint;          /* file, written after each epoch and read at start;
                                        empty: none */
    const char *identity;        /* hex of what else the numbers follow from, which a
                                        checkpoint must agree with; NULL: nothing */
    ptrdiff_t stop_after;        /* end after so many more epochs, step incomplete (0:
                                        run to the end); for tests of resume */
    kvm_progress *progress;
} kvm_mlp_options;

typedef struct kvm_mlp_figures {
    double r2_fit, r2_held;  /* mean over heads, as in ridge.h */
    double loss;             /* of the last epoch, mean over its batches */
    ptrdiff_t epochs, steps; /* done, over all runs */
    bool complete;
} kvm_mlp_figures;

/* kvm_mlp_train - one step of a mapping that reads the source's rows alone, without the
 * token; its arrays lie in keep. A checkpoint of other options, rows or shapes, or
 * one that is not as it was written, is not used (kvm_training_anew). KVM_NAN when the
 * loss leaves the finite numbers, KVM_CANCELLED after the checkpoint of the epoch in
 * progress was dropped. */
KVM_MUST kvm_status kvm_mlp_train(kvm_compute *c, const kvm_rows *source,
                                  const kvm_rows *target, const kvm_mapping *mapping,
                                  const int32_t *layers, ptrdiff_t count,
                                  ptrdiff_t target_layer, const kvm_mlp_options *o,
                                  kvm_step *step, kvm_mlp_figures *figures,
                                  kvm_arena *keep, kvm_arena scratch, kvm_err *err);
size_t kvm_mlp_bytes(ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t groups,
                     ptrdiff_t rows, const kvm_mlp_options *o); /* scratch needed */

#endif
