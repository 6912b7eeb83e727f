/* apply.h - a translator at work: a source's cache in, and out of it what the target's
 * cache lacks.
 *
 * Tokens go through in blocks that stay in the second-level cache. Steps that read the
 * same rows of the source are one pass over a block: read the needed source layers,
 * strip the rotary of all of them in one call, then per step one product per source
 * layer, read where it lies, one rotation of all target layers, and injection. States
 * follow once, after the last block. */
#ifndef KVM_TRANSLATORS_APPLY_H
#define KVM_TRANSLATORS_APPLY_H

#include "translators/gather.h"
#include "translators/translator.h"

typedef struct kvm_apply kvm_apply;

/* Seconds spent in each stage, added to by every run. */
#define KVM_APPLY_STAGES(X)                                                            \
    X(tokens) X(read) X(strip) X(map) X(rotate) X(inject) X(states)
typedef struct kvm_apply_times {
#define X(name) double name;
    KVM_APPLY_STAGES(X)
#undef X
} kvm_apply_times;

typedef struct kvm_apply_options {
    ptrdiff_t block; /* tokens at a time; 0: chosen from the shapes */
    bool force;      /* fingerprints may differ (never layouts) */
} kvm_apply_options;

/* What the source hands over. */
typedef struct kvm_handover {
    const kvm_cache *cache;
    const kvm_taken *taken; /* rows that a cache does not keep (kvm_apply_takes) */
    const int32_t *ids;     /* (length of the cache); NULL: not told */
} kvm_handover; /* rows and ids by position; only those of translated tokens are read */

/* kvm_apply_new - check the translator against both models and make its weights ready.
 * t and the models are borrowed and must outlive it; buffers lie in keep. Tokens that
 * are decoded: the codebook of the source is made here (identity.h). */
KVM_MUST kvm_status kvm_apply_new(kvm_apply **a, kvm_arena *keep, kvm_compute *c,
                                  const kvm_translator *t, kvm_model *source,
                                  kvm_model *target, const kvm_apply_options *o,
                                  kvm_err *err);
/* spaces of which the source's forward has to take rows for it; 0: the cache is
 * enough */
kvm_spaces kvm_apply_takes(const kvm_apply *a);
/* kvm_apply_run - the tokens that `to` lacks, from its length to that of the source's
 * cache, are translated and appended: all of them into an empty one. States that are
 * copied or corrected become what the source's say at its end; replay goes on from
 * those that `to` holds; those of the way `zero` stay as they stand in `to`. Of a
 * translator that leaves index keys out, `to` looks at all tokens up to the last of
 * these. KVM_RANGE when it lacks none or is too small, KVM_USAGE when ids or taken rows
 * are needed and missing: `to` is unchanged then. On other errors it is too, or empty
 * where it keeps a state. times (optional) are added to. Same tokens and pieces, same
 * threads: same bits. */
KVM_MUST kvm_status kvm_apply_run(kvm_apply *a, const kvm_handover *from, kvm_cache *to,
                                  kvm_apply_times *times, kvm_err *err);
/* kvm_apply_keep - from now on `made`, which is borrowed (NULL: nothing), takes the
 * rows that are injected at a point that the target's cache does not keep, as if the
 * target had read those tokens itself: another translation can start from its cache */
void kvm_apply_keep(kvm_apply *a, kvm_taken *made);
/* ids of the translated tokens that the last run was told or has decoded; NULL: none */
const int32_t *kvm_apply_ids(const kvm_apply *a);
double kvm_apply_flops(const kvm_apply *a); /* of the products, per token */
/* kvm_apply_bytes - cache bytes that a translation must read and write per token,
 * computed from shapes and not measured: rows of every source layer that a step reads,
 * once, and rows of all target layers, each in the dtype that an engine keeps it in. */
double kvm_apply_bytes(const kvm_apply *a);

/* kvm_apply_rows - one step on captured rows, no cache: rows index[0..n) of the
 * captures through step i into out (n, outputs), in the step's own row space
 * (content, or rotated for KVM_KEYS_ROTATED). target: of steps that read the
 * target's rows or tokens; else it may be NULL. For held-out errors of any map kind. */
KVM_MUST kvm_status kvm_apply_rows(kvm_compute *c, const kvm_translator *t, ptrdiff_t i,
                                   const kvm_rows *source, const kvm_rows *target,
                                   const ptrdiff_t *index, ptrdiff_t n, float *out,
                                   kvm_arena scratch, kvm_err *err);

#endif
