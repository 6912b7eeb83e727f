/* model_internal.h - a model and a cache from the inside: for model.c, forward.c,
 * generate.c, cache.c, inject.c, inspect.c and fingerprint.c. */
#ifndef KVM_MODELS_MODEL_INTERNAL_H
#define KVM_MODELS_MODEL_INTERNAL_H

#include "models/ngram.h"
#include "models/residual.h"

typedef struct kvm_block {
    kvm_ngram *ngram; /* NULL: none */
    ptrdiff_t ngram_object;
    kvm_site mixer, ffn;
    kvm_extent *extents; /* of its weights; in a model that is run by layers */
} kvm_block;

struct kvm_model {
    kvm_model_info info;
    kvm_config config;
    kvm_compute *compute; /* borrows */
    kvm_tokenizer *tokenizer;
    kvm_tensor embed;    /* (V,hidden) as stored */
    kvm_site last;       /* what the head is given */
    kvm_weight *head;    /* (V,hidden) */
    kvm_block *blocks;   /* (layers) */
    kvm_object *objects; /* (info.objects) layer-major */
    bool recurrent;      /* some objects are kept per prompt */
    bool offload;        /* weights do not stay in memory */
    ptrdiff_t *cut;      /* (parts + 1) where the layers of each part begin */
    int part;            /* whose layers are loaded; the other blocks are all 0 */
    float *logits;       /* (V) of kvm_generate */
    kvm_arena work;      /* activations; grows to the largest chunk asked for */
    ptrdiff_t work_chunk;
    char config_hash[65], weights_hash[65], fingerprint[65];
};

/* objects of a stack, layer-major, in keep; stored: the type of most of its weights */
KVM_MUST kvm_status kvm_model__objects(kvm_object **out, ptrdiff_t *n, kvm_arena *keep,
                                       const kvm_config *c, const kvm_rope *rope,
                                       kvm_dtype stored, kvm_err *err);

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
    /* injection: the length that was promised (0: none under way), and who has come */
    ptrdiff_t promised;
    unsigned char *seen; /* (info.objects, capacity) 1: came; from `length` on */
    ptrdiff_t *arrived;  /* (info.objects) tokens, and `length` that were there */
    bool without_index;  /* index keys of the promised tokens do not come */
    ptrdiff_t dense;     /* the first so many tokens have none; <= length */
    /* of a recurrent model: objects per prompt as they were after so many tokens */
    ptrdiff_t marked; /* -1: none */
    ptrdiff_t marked_dense;
    float **mark;     /* (info.objects), NULL for those per token */
    kvm_arena replay; /* scratch */
};
/* all 0 in the objects per prompt */
void kvm_cache__forget(kvm_cache *c);
KVM_MUST kvm_status kvm_cache__check_object(const kvm_cache *c, ptrdiff_t object,
                                            kvm_err *err);
KVM_MUST kvm_status kvm_cache__check_point(int point, kvm_err *err);
/* the layer that an object belongs to, and which of its objects it is */
const kvm_layer *kvm_cache__owner(const kvm_cache *c, ptrdiff_t object,
                                  ptrdiff_t *which);
/* c->pos: from .. from+n-1 */
void kvm_cache__positions(const kvm_cache *c, ptrdiff_t from, ptrdiff_t n);

/* the slots of object first and of those that stand beside it, up to end, for
 * `capacity` tokens, in keep */
KVM_MUST kvm_status kvm_cache__slots(kvm_slot *slots, const kvm_model *m,
                                     ptrdiff_t first, ptrdiff_t end, ptrdiff_t capacity,
                                     kvm_arena *keep, kvm_err *err);

/* ---- the parts of a forward (models/forward.c) ---- */

/* tokens per step when n are run and nothing else is asked for: even pieces */
ptrdiff_t kvm_model__chunk(ptrdiff_t n);
/* the last block in which a token's row matters to others */
ptrdiff_t kvm_model__last_mixer(const kvm_model *m);
KVM_MUST kvm_status kvm_model__reserve(kvm_model *m, ptrdiff_t chunk, kvm_err *err);
/* s, whose first, n, ids, slots and capture stand, gets positions and room for the
 * choice of tokens, all its rows wanted; h (n, streams * hidden); both in s->scratch */
KVM_MUST kvm_status kvm_model__begin(kvm_model *m, kvm_step *s, kvm_choice *choice,
                                     kvm_tensor *h, kvm_err *err);
KVM_MUST kvm_status kvm_model__embed(kvm_model *m, const kvm_step *s, kvm_tensor h,
                                     kvm_err *err);
KVM_MUST kvm_status kvm_model__block(const kvm_model *m, kvm_step *s, ptrdiff_t l,
                                     kvm_tensor h, kvm_err *err);
/* the blocks that are loaded; logits of the last `rows` of the rows are wanted */
KVM_MUST kvm_status kvm_model__blocks(const kvm_model *m, kvm_step *s, ptrdiff_t rows,
                                      kvm_tensor h, kvm_err *err);
KVM_MUST kvm_status kvm_model__check_ids(const kvm_model *m, const int32_t *ids,
                                         ptrdiff_t n, kvm_err *err);

/* ---- parts (models/part.c) ---- */

/* where each of so many parts begins, (parts + 1), in keep */
KVM_MUST kvm_status kvm_model__cut(ptrdiff_t **cut, kvm_arena *keep,
                                   const kvm_checkpoint *ck, int parts, kvm_err *err);
static inline bool kvm_model__has(const kvm_model *m, ptrdiff_t layer)
{
    return layer >= m->cut[m->part] && layer < m->cut[m->part + 1];
}
/* KVM_USAGE unless all layers are loaded */
KVM_MUST kvm_status kvm_model__whole(const kvm_model *m, kvm_err *err);
/* layers that have no choice of tokens of their own look at the bits of an earlier
 * one */
bool kvm_model__shares(const kvm_model *m);

/* a block's weights are read soon; they leave memory */
void kvm_model__want(const kvm_block *b);
void kvm_model__leave(const kvm_block *b);

/* weights_hash and fingerprint of m (models/fingerprint.c) */
KVM_MUST kvm_status kvm_model__fingerprint(kvm_model *m, const kvm_checkpoint *ck,
                                           kvm_arena scratch, kvm_err *err);
/* kvm_model__finite_memos - where it is remembered that the numbers which the config
 * reads of each file, as it was when it was mapped, are finite: a file that changed
 * since is not believed. memos (files), in keep; at NULL where nothing is to be
 * remembered (small files are read faster than asked for). *known: all were found
 * finite before. */
KVM_MUST kvm_status kvm_model__finite_memos(kvm_str **memos, bool *known,
                                            const kvm_checkpoint *ck, kvm_arena *keep,
                                            kvm_err *err);
void kvm_model__remember_finite(const kvm_str *memos, ptrdiff_t n, kvm_arena scratch);

#endif
