/* training.h - a training on disk, so that a killed one goes on bit for bit: arrays of
 * numbers and metadata in a safetensors file.
 *
 * Metadata: "format", "config" (hex of everything that the numbers follow from), the
 * training's own strings, "sha.<array>" (SHA-256 of the array's bytes) and "sha" (of
 * all the others, as canonical JSON). The file is replaced whole. */
#ifndef KVM_TRANSLATORS_TRAINING_H
#define KVM_TRANSLATORS_TRAINING_H

#include "translators/meta.h"

enum { KVM_TRAINING_ARRAYS = 4, KVM_TRAINING_TOLD = 4 };

typedef struct kvm_training {
    const char *format;                    /* as of kvm_meta_format */
    const char *what;                      /* for messages: "run (its rows differ)" */
    const char *config;                    /* hex */
    const char *told[KVM_TRAINING_TOLD];   /* keys of its own strings, until NULL */
    const char *name[KVM_TRAINING_ARRAYS]; /* of the arrays, until NULL */
    float *array[KVM_TRAINING_ARRAYS];     /* (n) each, borrowed */
    ptrdiff_t n;
} kvm_training;

/* kvm_training_save - meta: object of the strings told, to which the others are
 * added */
KVM_MUST kvm_status kvm_training_save(const kvm_training *t, json_t *meta, kvm_str path,
                                      kvm_err *err);

/* what an opened file says of itself, put where it belongs; untouched on an error */
typedef kvm_status kvm_training_read(void *ctx, const kvm_st *st, kvm_arena *own,
                                     kvm_err *err);
/* kvm_training_load - the file is as it was written and of this training, then `read`
 * takes its strings, then the arrays are copied; nothing is before all is there.
 * KVM_MISMATCH when it is of another training, KVM_FORMAT names what is not as it was
 * written. */
KVM_MUST kvm_status kvm_training_load(const kvm_training *t, kvm_training_read *read,
                                      void *ctx, kvm_str path, kvm_err *err);
/* kvm_training_anew - what a load that ended so means for a training: a checkpoint only
 * saves work, so one that is damaged, of another training or another version is not
 * used. KVM_OK then, after a warning (training.anew) of the file and why; other
 * statuses as they came. */
KVM_MUST kvm_status kvm_training_anew(kvm_status loaded, kvm_err *err);
/* kvm_training_load of bytes that the caller keeps alive */
KVM_MUST kvm_status kvm_training_parse(const kvm_training *t, kvm_training_read *read,
                                       void *ctx, kvm_str bytes, kvm_str name,
                                       kvm_err *err);

#endif
