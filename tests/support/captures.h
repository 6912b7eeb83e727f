/* captures.h - made-up captures for tests and benches of translators/. */
#ifndef KVM_TESTS_SUPPORT_CAPTURES_H
#define KVM_TESTS_SUPPORT_CAPTURES_H

#include "translators/moments.h"

/* fill one row (all layers, K and V in turn: K.0 V.0 K.1 ...) of token t of sequence
 * s */
typedef void made_row(void *ctx, int32_t sequence, ptrdiff_t t, float *row);

typedef struct made {
    const char *name;
    ptrdiff_t layers, heads, k_dim, v_dim;
    ptrdiff_t sequences, tokens; /* rows of each sequence */
    kvm_rope rope;
    kvm_dtype dtype;
    made_row *row; /* NULL: normal noise that differs by name */
    void *ctx;
} made;

/* numbers in a row of all objects */
ptrdiff_t made_width(const made *m);
/* writes path; on any failure the test fails, or a bench ends */
void made_capture(const made *m, const char *path);
/* layers of the source in one space, as features of a fit; head -1: all heads. The
 * items lie in keep. */
kvm_features made_features(kvm_arena *keep, kvm_space s, const int32_t *layers,
                           ptrdiff_t count, ptrdiff_t head);
/* frequencies theta^(-2j/width), static per call site's buffer */
kvm_rope made_rope(float *inv_freq, ptrdiff_t width, double theta, float factor,
                   bool interleaved);

#endif
