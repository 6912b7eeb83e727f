/* identity.h - which token a cached row is of, read back from the cache itself.
 *
 * Where the first layer is attention over the tokens' embeddings, its rows before norm
 * and position are a function of the token alone. A codebook holds that row for every
 * entry of the vocabulary, through a fixed random projection; a cached row is of the
 * token whose entry is nearest,
 *
 *   argmin_v |P x - P c_v|^2 = argmax_v (P x).(P c_v) - |P c_v|^2 / 2,
 *
 * one product over the vocabulary, in panels, with the best entry kept. */
#ifndef KVM_TRANSLATORS_IDENTITY_H
#define KVM_TRANSLATORS_IDENTITY_H

#include "translators/rows.h"

typedef struct kvm_codebook kvm_codebook;

enum { KVM_CODEBOOK_WIDTH = 128 };

typedef struct kvm_codebook_options {
    ptrdiff_t
        width;     /* of the projection; 0: KVM_CODEBOOK_WIDTH, or the row's if less */
    uint64_t seed; /* of the projection */
} kvm_codebook_options;

/* kvm_codebook_space - the space whose first layer's rows tell the token: latents, or
 * values. KVM_UNSUPPORTED when the model's first layer is no attention over
 * embeddings. */
KVM_MUST kvm_status kvm_codebook_space(kvm_space *s, const kvm_model *m, kvm_err *err);

/* kvm_codebook_new - one pass of the vocabulary through the first layer's projections;
 * (V, width) f32 in keep. `engine`: of rows as an engine keeps them (normed
 * latents). */
KVM_MUST kvm_status kvm_codebook_new(kvm_codebook **b, kvm_arena *keep, kvm_compute *c,
                                     kvm_model *m, bool engine,
                                     const kvm_codebook_options *o, kvm_err *err);
/* kvm_codebook_of_embeddings - the embeddings themselves, as they stand: of rows that
 * are near a token's */
KVM_MUST kvm_status kvm_codebook_of_embeddings(kvm_codebook **b, kvm_arena *keep,
                                               kvm_compute *c, kvm_model *m,
                                               kvm_err *err);
kvm_space kvm_codebook_of(const kvm_codebook *b); /* the space whose rows it decodes */
/* rows (n, any) of the first layer in that space, ld floats apart -> ids (n) */
KVM_MUST kvm_status kvm_codebook_decode(const kvm_codebook *b, const float *rows,
                                        ptrdiff_t ld, ptrdiff_t n, int32_t *ids,
                                        kvm_err *err);
double kvm_codebook_flops(const kvm_codebook *b); /* of the products, per token */

#endif
