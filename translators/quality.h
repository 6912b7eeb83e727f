/* quality.h - what attention makes of a mapped cache: the figures that predict quality.
 *
 * For one layer: queries q (n,Hq,D) as attention uses them (after norm, rotary and
 * temperature), true and mapped K (C,Hk,D) and V (C,Hk,Dv) as an engine keeps them;
 * query t stands at position first+t. Query head h reads kv head h / (Hq/Hk). All
 * figures are means over query heads.
 *
 *   cosine  mean over t of cos(attention output with the true K,V; with mapped ones)
 *   c_k     e_j = mapped K_j - K_j; v_i, s_i right singular vectors and values of the
 *           head's query matrix (n,D):
 *             c_k_raw = mean_j sum_i s_i^2 (e_j . v_i)^2  /  mean_j (|e_j|^2 / D)
 *           as the seed article prints it; since sum_i s_i^2 (e.v_i)^2 = |Q e|^2 no SVD
 *           is formed. It grows with the queries' size, so that the article's reading
 *           "above 1 = the error lies where attention looks" holds for the same with
 *           s_i^2 / sum s^2 as weights: c_k = c_k_raw / |Q|_F^2, 1 for an isotropic
 *           error.
 *   c_v     e_j = mapped V_j - V_j; a_tj the true attention weight of key j at query t:
 *             c_v_raw = mean_t [ mean_j a_tj^2 |e_j|^2 ]  /  mean_j (|e_j|^2 / Dv)
 *           as printed (one query), averaged over queries; with weights of sum 1
 *             c_v = mean_t [ sum_j a_tj^2 |e_j|^2 / sum_j a_tj^2 ] / mean_j |e_j|^2,
 *           1 when the error does not care where attention looks.
 * Heads whose error is exactly 0 count 0 in c_k and c_v and 1 in cosine. */
#ifndef KVM_TRANSLATORS_QUALITY_H
#define KVM_TRANSLATORS_QUALITY_H

#include "kernels/ops.h"

typedef struct kvm_quality {
    double cosine, cosine_worst; /* mean and lowest head */
    double c_k, c_k_raw, c_v, c_v_raw;
    double r2_k,
        r2_v; /* of the mapped rows as given, about each entry's mean, by head */
} kvm_quality;

typedef struct kvm_quality_input {
    const float *q;             /* (n, Hq*D) */
    const float *k, *v;         /* true (C, Hk*D), (C, Hk*Dv) */
    const float *k_map, *v_map; /* mapped, likewise */
    ptrdiff_t n, context;       /* n queries, C keys */
    ptrdiff_t first;            /* position of query 0; first + n <= C */
    ptrdiff_t query_heads, kv_heads, dim, value_dim;
    ptrdiff_t window; /* 0: none */
    double scale;     /* of the scores; 0: 1/sqrt(D) */
} kvm_quality_input;

/* KVM_SHAPE, KVM_NAN. O(n C D Hq). */
KVM_MUST kvm_status kvm_quality_layer(kvm_compute *c, const kvm_quality_input *in,
                                      kvm_quality *out, kvm_arena scratch,
                                      kvm_err *err);
size_t kvm_quality_bytes(const kvm_quality_input *in); /* scratch */

/* running mean over layers and sequences */
typedef struct kvm_quality_sum {
    kvm_quality sum;
    double count;
} kvm_quality_sum;
void kvm_quality_add(kvm_quality_sum *s, const kvm_quality *q);
kvm_quality kvm_quality_mean(const kvm_quality_sum *s); /* NaN when nothing was added */

#endif
