/* ops.h - what models and translators may ask of a device, as typed calls.
 *
 * Each call checks its views once (shape rules of ops.def), then runs the op on the
 * context's backend: `ref` is obvious, slow and the judge; `cpu` is fast; `cuda` comes
 * with CUDA=1. The call returns when the result may be read by the next op of the same
 * context. Unless stated all activations are f32, rows contiguous; weights keep their
 * stored type and are widened in panels.
 *
 * Shape letters: T tokens (rows), I inputs, O outputs, H heads, Hq query heads, Hk kv
 * heads, D head size, C cached tokens, N rows, F features. */
#ifndef KVM_KERNELS_OPS_H
#define KVM_KERNELS_OPS_H

#include "base/pool.h"
#include "kernels/tensor.h"

typedef struct kvm_backend kvm_backend;
/* "ref", "cpu" (its best instruction set here; "cpu-avx2" names one), "cpu-bf16"
 * (rounds activations to bf16 against bf16 weights; never meant by "cpu"), "cuda"; NULL
 * when not built or not supported by this machine */
const kvm_backend *kvm_backend_find(kvm_str name);
/* kvm_backend_choose - the same; KVM_ENVIRONMENT lists the names there are */
KVM_MUST kvm_status kvm_backend_choose(const kvm_backend **b, kvm_str name,
                                       kvm_err *err);
const char *kvm_backend_name(const kvm_backend *b); /* "cpu" */
/* the name that means this one alone, "cpu-avx512"; in keep */
kvm_str kvm_backend_label(const kvm_backend *b, kvm_arena *keep);
/* Whether its products round activations first: what a model gives on it is another
 * result than on the others, which differ in the order of sums. */
bool kvm_backend_rounds(const kvm_backend *b);

/* A context: backend + threads + scratch that the kernels own (packing buffers, score
 * tiles). */
typedef struct kvm_compute kvm_compute;
KVM_MUST kvm_status kvm_compute_new(kvm_compute **c, kvm_arena *keep,
                                    const kvm_backend *b, int threads,
                                    kvm_err *err); /* threads 0: all allowed CPUs */
int kvm_compute_threads(const kvm_compute *c);
kvm_pool *kvm_compute_pool(const kvm_compute *c);
const kvm_backend *kvm_compute_backend(const kvm_compute *c);
/* "cpu threads=2 isa=avx2 blas=OpenBLAS/ZEN cc=gcc-12 flags=-O3": goes with every
 * result; in keep */
kvm_str kvm_compute_describe(const kvm_compute *c, kvm_arena *keep);

/* ---- model forward --------------------------------------------------------------- */

/* y (T,I) = row ids[t] of w (V,I), widened. KVM_RANGE for an id outside [0,V). */
KVM_MUST kvm_status kvm_op_embed(kvm_compute *c, kvm_tensor y, const int32_t *ids,
                                 kvm_tensor w, kvm_err *err);

/* y (T,F) = x * rsqrt(mean over each group of `group` entries of x^2 + eps) * w (group
 * or F). plus_one: times (1+w), for norms whose weights are kept as w-1. y may be x.
 * group = F for layer norms, D for q/k norms. */
KVM_MUST kvm_status kvm_op_rmsnorm(kvm_compute *c, kvm_tensor y, kvm_tensor x,
                                   kvm_tensor w, ptrdiff_t group, double eps,
                                   bool plus_one, kvm_err *err);

/* A weight made ready for linear: borrows the stored matrix (O,I) and bias, may hold a
 * packed or converted copy (never for mmap'd bf16/f16/quantised unless stated by the
 * backend; see kvm_weight_bytes). */
typedef struct kvm_weight kvm_weight;
KVM_MUST kvm_status kvm_weight_new(kvm_weight **w, kvm_arena *keep, kvm_compute *c,
                                   kvm_tensor matrix /* (O,I) any readable dtype */,
                                   const float *bias /* (O) f32 or NULL; borrows */,
                                   kvm_err *err);
size_t
kvm_weight_bytes(const kvm_weight *w); /* owned memory beyond the stored matrix */

/* y (T,O) = x (T,I) Wt + b, or y += … when add (the residual). f32 accumulation; x and
 * y may be row-strided. */
KVM_MUST kvm_status kvm_op_linear(kvm_compute *c, kvm_tensor y, kvm_tensor x,
                                  const kvm_weight *w, bool add, kvm_err *err);

/* rotary description, shared by forward, strip and re-apply */
typedef struct kvm_rope {
    const float *inv_freq; /* (width/2); borrows */
    ptrdiff_t width;       /* rotated entries, the first of each head */
    bool interleaved;      /* pairs (2j,2j+1) instead of (j, j+width/2) */
    float factor;          /* YaRN attention factor on cos and sin; 1 otherwise */
} kvm_rope;
/* x (T,H,D) rotated in place at positions pos[t]. inverse: the exact inverse (angle
 * negated, divided by factor). Angles pos*inv_freq in fp32 as the reference forms them,
 * cos/sin in fp32. */
KVM_MUST kvm_status kvm_op_rope(kvm_compute *c, kvm_tensor x, const int32_t *pos,
                                const kvm_rope *r, bool inverse, kvm_err *err);

/* Causal attention over a cache. q (T,Hq,D) row-strided ok; k,v (Hk,C,D)/(Hk,C,Dv),
 * per-head stride free, dtype f32/f16/bf16; query t stands at position first+t and sees
 * keys j with first+t-window < j <= first+t (window 0: no limit). y (T,Hq,Dv). Online
 * softmax in blocks; never T x C in memory. */
KVM_MUST kvm_status kvm_op_attention(kvm_compute *c, kvm_tensor y, kvm_tensor q,
                                     kvm_tensor k, kvm_tensor v, ptrdiff_t first,
                                     ptrdiff_t window, double scale, kvm_err *err);

/* Which keys a query may look at besides the causal rule: bit j % 64 of word
 * t*words + j/64 for query t and key j. */
typedef struct kvm_mask {
    const uint64_t *bits;
    ptrdiff_t words; /* of a query */
} kvm_mask;
/* the same over the keys that the mask leaves, of which each query has one at least */
KVM_MUST kvm_status kvm_op_attention_some(kvm_compute *c, kvm_tensor y, kvm_tensor q,
                                          kvm_tensor k, kvm_tensor v, ptrdiff_t first,
                                          const kvm_mask *mask, double scale,
                                          kvm_err *err);

/* y (T,C) = sum over heads of w (T,H) * relu(scale q (T,H,D) . k (C,D)): how well each
 * of C cached tokens suits a query, before causality (DeepSeek-V3.2, 2025, lightning
 * indexer) */
KVM_MUST kvm_status kvm_op_index_score(kvm_compute *c, kvm_tensor y, kvm_tensor q,
                                       kvm_tensor k, kvm_tensor w, double scale,
                                       kvm_err *err);

/* y (T,F) = silu(gate) * up ; y may be gate */
KVM_MUST kvm_status kvm_op_silu_mul(kvm_compute *c, kvm_tensor y, kvm_tensor gate,
                                    kvm_tensor up, kvm_err *err);

/* y (T,F) = up * sigmoid(gate); y may be gate or up */
KVM_MUST kvm_status kvm_op_sigmoid_mul(kvm_compute *c, kvm_tensor y, kvm_tensor gate,
                                       kvm_tensor up, kvm_err *err);

/* y (T,F) = max(x, 0)^2; y may be x */
KVM_MUST kvm_status kvm_op_relu2(kvm_compute *c, kvm_tensor y, kvm_tensor x,
                                 kvm_err *err);

/* per row of logits (T,V): out[t] = logits[t][target[t]] - logsumexp(logits[t]), fp64
 * inside. targets NULL: -logsumexp only */
KVM_MUST kvm_status kvm_op_logprob(kvm_compute *c, double *out, kvm_tensor logits,
                                   const int32_t *targets, kvm_err *err);

/* ---- model backward --------------------------------------------------------------
 *
 * d before a name: the gradient of a loss with respect to it. Weights are constants. */

/* dx = the gradient of y = rmsnorm(x) by x, given dy, or dx += when add. dx may be dy.
 */
KVM_MUST kvm_status kvm_op_rmsnorm_back(kvm_compute *c, kvm_tensor dx, kvm_tensor x,
                                        kvm_tensor w, kvm_tensor dy, ptrdiff_t group,
                                        double eps, bool plus_one, bool add,
                                        kvm_err *err);

/* dx (T,I) = dy (T,O) W, or dx += when add; f32 accumulation, rows may be strided */
KVM_MUST kvm_status kvm_op_linear_back(kvm_compute *c, kvm_tensor dx, kvm_tensor dy,
                                       const kvm_weight *w, bool add, kvm_err *err);

/* dx (T,H,D) in place: rotated back by its angles and times the factor (the transpose
 * of kvm_op_rope, which differs from its inverse where the factor is not 1) */
KVM_MUST kvm_status kvm_op_rope_back(kvm_compute *c, kvm_tensor dx, const int32_t *pos,
                                     const kvm_rope *r, kvm_err *err);

/* kvm_op_attention_back - of kvm_op_attention, or of kvm_op_attention_some with a mask
 *   dq     out    (T,Hq,D)   written
 *   dk,dv  in out (Hk,C,D), (Hk,C,Dv)  added to, for keys that a query sees
 *   q      in     (T,Hq,D)
 *   k, v   in     (Hk,C,D), (Hk,C,Dv)  f32
 *   dy     in     (T,Hq,Dv)
 *   mask   in     NULL: none
 * Weights are formed anew, for a block of queries at a time. Bits do not depend on the
 * threads. Source: Dao 2022, "FlashAttention" (appendix B.4), of one pass over keys. */
KVM_MUST kvm_status kvm_op_attention_back(kvm_compute *c, kvm_tensor dq, kvm_tensor dk,
                                          kvm_tensor dv, kvm_tensor q, kvm_tensor k,
                                          kvm_tensor v, kvm_tensor dy, ptrdiff_t first,
                                          ptrdiff_t window, const kvm_mask *mask,
                                          double scale, kvm_err *err);

/* dk (C,D) += the gradient of kvm_op_index_score by k, given dy (T,C); queries and
 * weights are constants */
KVM_MUST kvm_status kvm_op_index_score_back(kvm_compute *c, kvm_tensor dk, kvm_tensor q,
                                            kvm_tensor k, kvm_tensor w, kvm_tensor dy,
                                            double scale, kvm_err *err);

/* dgate, dup (T,F) of y = silu(gate) * up, and of y = up * sigmoid(gate); each may be
 * gate, up or dy */
KVM_MUST kvm_status kvm_op_silu_mul_back(kvm_compute *c, kvm_tensor dgate,
                                         kvm_tensor dup, kvm_tensor gate, kvm_tensor up,
                                         kvm_tensor dy, kvm_err *err);
KVM_MUST kvm_status kvm_op_sigmoid_mul_back(kvm_compute *c, kvm_tensor dgate,
                                            kvm_tensor dup, kvm_tensor gate,
                                            kvm_tensor up, kvm_tensor dy, kvm_err *err);

/* dx (T,F) of y = max(x, 0)^2; dx may be x or dy */
KVM_MUST kvm_status kvm_op_relu2_back(kvm_compute *c, kvm_tensor dx, kvm_tensor x,
                                      kvm_tensor dy, kvm_err *err);

/* per row, with p = softmax(native) and q = softmax(logits) (T,V):
 * kl[t] = sum of p (ln p - ln q), fp64 inside; logits := by (q - p), which is by times
 * its gradient */
KVM_MUST kvm_status kvm_op_kl_back(kvm_compute *c, double *kl, kvm_tensor logits,
                                   kvm_tensor native, double by, kvm_err *err);

/* ---- recurrent mixers ------------------------------------------------------------ */

enum { KVM_CONV_TAPS = 8 }; /* the longest window */

/* kvm_op_conv - short causal convolution of each channel by itself, then silu.
 *   y       out    (T,C)  y_t = silu(bias + sum over i of w[c,i] u[t-K+1+i]); may be x
 *   x       in     (T,C)  what the projection gave; x and y may be row-strided
 *   w       in     (C,K)  w[c,K-1] weighs the token itself; K <= KVM_CONV_TAPS
 *   bias    in     (C) or NULL
 *   window  in out (C,K)  the last K inputs, oldest first; zeros before the first token
 * u is x with the window before it. Of the window the oldest column weighs nothing: it
 * is kept because caches hold K inputs. Bits do not depend on how tokens are cut into
 * calls. */
KVM_MUST kvm_status kvm_op_conv(kvm_compute *c, kvm_tensor y, kvm_tensor x,
                                kvm_tensor w, const float *bias, kvm_tensor window,
                                kvm_err *err);

/* kvm_op_delta - the gated delta rule, one state S (Dk,Dv) per value head. Per token:
 *     S = exp(g) S;  u = beta (v - St k);  S = S + k ut;  o = St q
 *   o      out    (T,Hv,Dv)
 *   q, k   in     (T,Hk,Dk)  normalised and scaled by the caller
 *   v      in     (T,Hv,Dv)
 *   g      in     (T,Hv), or (T,Hv,Dk): row d of S decays by exp(g[d]); log_e, <= 0
 *   beta   in     (T,Hv)     in [0,1]
 *   state  in out (Hv,Dk,Dv) f32; zeros before the first token
 * Value head h reads key head h / (Hv/Hk). Tokens and heads may be strided. Bits depend
 * on neither the threads nor the cut of the tokens into calls (but ref keeps S in f64
 * within a call). O(T Hv Dk Dv).
 * Sources: Yang, Kautz and Hatamizadeh 2025, "Gated Delta Networks" (g per head); Kimi
 * Team 2025, "Kimi Linear", Kimi Delta Attention (g per channel). */
KVM_MUST kvm_status kvm_op_delta(kvm_compute *c, kvm_tensor o, kvm_tensor q,
                                 kvm_tensor k, kvm_tensor v, kvm_tensor g,
                                 kvm_tensor beta, kvm_tensor state, kvm_err *err);

/* kvm_op_scan - the recurrence of Mamba-2, one state S (E,D) per head. Per token:
 *     S = exp(-rate dt) S + dt v kt;  o = S q + skip v
 *   o      out    (T,H,E)
 *   q, k   in     (T,K,D)  C and B of the paper; head h reads group h / (H/K)
 *   v      in     (T,H,E)  its X
 *   dt     in     (T,H)    >= 0
 *   rate   in     (H)      > 0: minus its A
 *   skip   in     (H)      its D
 *   state  in out (H,E,D)  f32; zeros before the first token
 * Tokens and heads may be strided. Bits depend on the cut of the tokens into calls, not
 * on the threads. O(T H E D).
 * Source: Dao and Gu 2024, "Transformers are SSMs" (section 6: chunks). */
KVM_MUST kvm_status kvm_op_scan(kvm_compute *c, kvm_tensor o, kvm_tensor q,
                                kvm_tensor k, kvm_tensor v, kvm_tensor dt,
                                kvm_tensor rate, kvm_tensor skip, kvm_tensor state,
                                kvm_err *err);

/* Gradients: dy and what the op was given are read, d of each input is written. Weights
 * (w, bias, rate, skip) have none. The d of a state or a window is in out: given that
 * of what the tokens left behind, it becomes that of what they found. */

/* kvm_op_conv_back
 *   dx       out    (T,C)  may be dy
 *   dwindow  in out (C,K)
 *   x, w, bias, window     as conv was given them: the window before the tokens
 *   dy       in     (T,C) */
KVM_MUST kvm_status kvm_op_conv_back(kvm_compute *c, kvm_tensor dx, kvm_tensor dwindow,
                                     kvm_tensor x, kvm_tensor w, const float *bias,
                                     kvm_tensor window, kvm_tensor dy, kvm_err *err);

/* what delta and scan read of each token, or gradients of it */
typedef struct kvm_delta_rows {
    kvm_tensor q, k, v, g, beta;
} kvm_delta_rows;
typedef struct kvm_scan_rows {
    kvm_tensor q, k, v, dt;
} kvm_scan_rows;

/* kvm_op_delta_back
 *   d       out    d.g of as many axes as in.g
 *   dstate  in out (Hv,Dk,Dv)
 *   in, state      as delta was given them: the state before the tokens
 *   dy      in     (T,Hv,Dv)
 * Scratch grows with the tokens: Dk Dv / 32 + Dv + 64 numbers for each, and for each
 * thread the value heads of a key head. KVM_NOMEM asks for fewer tokens at a time. Bits
 * depend on the cut of the tokens into calls, not on the threads. O(T Hv Dk Dv). */
KVM_MUST kvm_status kvm_op_delta_back(kvm_compute *c, const kvm_delta_rows *d,
                                      kvm_tensor dstate, const kvm_delta_rows *in,
                                      kvm_tensor state, kvm_tensor dy, kvm_err *err);

/* kvm_op_scan_back - the same of scan; dstate (H,E,D), dy (T,H,E) */
KVM_MUST kvm_status kvm_op_scan_back(kvm_compute *c, const kvm_scan_rows *d,
                                     kvm_tensor dstate, const kvm_scan_rows *in,
                                     kvm_tensor rate, kvm_tensor skip, kvm_tensor state,
                                     kvm_tensor dy, kvm_err *err);

/* ---- translators ----------------------------------------------------------------- */

/* G (F,F) f64 += Xt X for x (N,F) f32, lower and upper both filled; fp32 block products
 * of <= 4096 rows added into fp64 */
KVM_MUST kvm_status kvm_op_gram(kvm_compute *c, kvm_tensor g, kvm_tensor x,
                                kvm_err *err);
/* C (F,P) f64 += Xt Y for x (N,F), y (N,P) f32, the same way */
KVM_MUST kvm_status kvm_op_cross(kvm_compute *c, kvm_tensor out, kvm_tensor x,
                                 kvm_tensor y, kvm_err *err);
/* in place Cholesky of a (F,F) f64, lower; KVM_SINGULAR names the pivot. BLAS threads
 * follow the context. */
KVM_MUST kvm_status kvm_op_cholesky(kvm_compute *c, kvm_tensor a, kvm_err *err);
/* b (F,P) f64 := A^-1 b from the factor */
KVM_MUST kvm_status kvm_op_cholesky_solve(kvm_compute *c, kvm_tensor factor,
                                          kvm_tensor b, kvm_err *err);
/* symmetric eigendecomposition: a (F,F) f64 -> eigenvectors as rows, w (F) ascending */
KVM_MUST kvm_status kvm_op_eigh(kvm_compute *c, kvm_tensor a, double *w, kvm_err *err);
/* out (M,P) f64 = a (M,K) b (K,P), either transposed */
KVM_MUST kvm_status kvm_op_gemm64(kvm_compute *c, kvm_tensor out, kvm_tensor a, bool at,
                                  kvm_tensor b, bool bt, kvm_err *err);
/* f32 gemm with strides for training the MLP map: out = beta*out + a b */
KVM_MUST kvm_status kvm_op_gemm32(kvm_compute *c, kvm_tensor out, kvm_tensor a, bool at,
                                  kvm_tensor b, bool bt, double beta, kvm_err *err);

#endif
