/* model_internal.h - a model and a cache from the inside: for model.c, forward.c,
 * cache.c and inject.c. */
#ifndef KVM_MODELS_MODEL_INTERNAL_H
#define KVM_MODELS_MODEL_INTERNAL_H

#include "models/layer.h"

typedef struct kvm_block {
    kvm_layer *mixer, *ffn;
} kvm_block;

struct kvm_model {
    kvm_model_info info;
    kvm_config config;
    kvm_compute *compute; /* borrows */
    kvm_tokenizer *tokenizer;
    kvm_tensor embed;    /* (V,hidden) as stored */
    float *norm;         /* (hidden) */
    kvm_weight *head;    /* (V,hidden) */
    kvm_block *blocks;   /* (layers) */
    kvm_object *objects; /* (info.objects) layer-major */
    float *logits;       /* (V) of kvm_generate */
    kvm_arena work;      /* activations; grows to the largest chunk asked for */
    ptrdiff_t work_chunk;
    char config_hash[65], weights_hash[65], fingerprint[65];
};

/* what objects.def says of each kind */
typedef struct kvm_object_row {
    const char *name, *shape, *what;
    bool per_prompt;
} kvm_object_row;
extern const kvm_object_row kvm_object_rows[KVM_OBJECT_KINDS];

/* Rows on their way through a norm or a rotary, a piece at a time. */
enum { KVM_STAGE_ROWS = 512 };

struct kvm_cache {
    const kvm_model *model;
    ptrdiff_t capacity, length;
    kvm_slot *slots; /* (info.objects) */
    float *stage;    /* (KVM_STAGE_ROWS, widest row) */
    int32_t *pos;    /* (KVM_STAGE_ROWS) */
    /* injection: tokens promised (0: none under way), and who has come */
    ptrdiff_t promised;
    unsigned char *seen; /* (info.objects, capacity) 1: token is there */
    ptrdiff_t *arrived;  /* (info.objects) tokens */
};

/* weights_hash and fingerprint of m (models/fingerprint.c) */
KVM_MUST kvm_status kvm_model__fingerprint(kvm_model *m, const kvm_checkpoint *ck,
                                           kvm_arena scratch, kvm_err *err);
/* whether every number of these files, as they stand, was once found finite; and that it
 * was just now (large files only: others are read faster than asked for) */
bool kvm_model__known_finite(const kvm_checkpoint *ck, kvm_arena scratch);
void kvm_model__remember_finite(const kvm_checkpoint *ck, kvm_arena scratch);

#endif
