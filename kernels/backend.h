/* backend.h - what a device offers: one function per op of ops.def.
 *
 * A backend is a constant table; kernels/ops.c holds the list of them. ops.c checks
 * views against the rule in ops.def before a backend sees them, returns early when
 * nothing is to be written, and gives sums over nothing to `ref`: a backend may rely on
 * all extents > 0. Transposed matrices arrive as views with swapped strides. */
#ifndef KVM_KERNELS_BACKEND_H
#define KVM_KERNELS_BACKEND_H

#include "kernels/ops.h"

typedef enum kvm_op_id {
#define X(id, name, rule, tolerance, reason) KVM_OP_##name = id,
#include "kernels/ops.def"
#undef X
    KVM_OPS
} kvm_op_id;

typedef struct kvm_op_row {
    const char *name, *rule, *reason;
    double tolerance;
} kvm_op_row;
extern const kvm_op_row kvm_op_rows[KVM_OPS]; /* by id */

/* kvm_ops__check - views against the rule of an op; KVM_SHAPE or KVM_DTYPE names the
 * op, the view and the letter. */
KVM_MUST kvm_status kvm_ops__check(kvm_op_id op, const kvm_tensor *const *views,
                                   int count, kvm_err *err);

struct kvm_compute {
    const kvm_backend *backend;
    kvm_pool *pool;
    int threads;
    kvm_arena scratch; /* of the context alone; ops pass it on by value */
};

struct kvm_weight {
    kvm_tensor matrix; /* (O,I) borrowed */
    const float *bias; /* (O) borrowed, or NULL */
    size_t bytes;      /* owned memory */
};

typedef const kvm_tensor *kvm_in; /* read, or written as ops.def says */

struct kvm_backend {
    const char *name;
    kvm_device device;
    size_t scratch_bytes;      /* address space per context */
    size_t scratch_per_thread; /* and this much more per thread */
    const char *(*isa)(void);  /* "avx2" */
    bool (*supported)(void);   /* by this machine */
    double linear_tolerance;   /* 0: that of ops.def; else its file says why */

    kvm_status (*embed)(kvm_compute *c, kvm_in y, const int32_t *ids, kvm_in w,
                        kvm_err *err);
    kvm_status (*rmsnorm)(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w, ptrdiff_t group,
                          double eps, bool plus_one, kvm_err *err);
    kvm_status (*linear)(kvm_compute *c, kvm_in y, kvm_in x, const kvm_weight *w,
                         bool add, kvm_err *err);
    kvm_status (*rope)(kvm_compute *c, kvm_in x, const int32_t *pos, const kvm_rope *r,
                       bool inverse, kvm_err *err);
    kvm_status (*attention)(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in v,
                            ptrdiff_t first, ptrdiff_t window,
                            const kvm_mask *mask /* or NULL */, double scale,
                            kvm_err *err);
    kvm_status (*index_score)(kvm_compute *c, kvm_in y, kvm_in q, kvm_in k, kvm_in w,
                              double scale, kvm_err *err);
    kvm_status (*silu_mul)(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                           kvm_err *err);
    kvm_status (*logprob)(kvm_compute *c, double *out, kvm_in logits,
                          const int32_t *targets, kvm_err *err);
    kvm_status (*gram)(kvm_compute *c, kvm_in g, kvm_in x, kvm_err *err);
    kvm_status (*cross)(kvm_compute *c, kvm_in out, kvm_in x, kvm_in y, kvm_err *err);
    kvm_status (*cholesky)(kvm_compute *c, kvm_in a, kvm_err *err);
    kvm_status (*cholesky_solve)(kvm_compute *c, kvm_in factor, kvm_in b, kvm_err *err);
    kvm_status (*eigh)(kvm_compute *c, kvm_in a, double *w, kvm_err *err);
    kvm_status (*gemm64)(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, kvm_err *err);
    kvm_status (*gemm32)(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, double beta,
                         kvm_err *err);
    kvm_status (*sigmoid_mul)(kvm_compute *c, kvm_in y, kvm_in gate, kvm_in up,
                              kvm_err *err);
    kvm_status (*conv)(kvm_compute *c, kvm_in y, kvm_in x, kvm_in w, const float *bias,
                       kvm_in window, kvm_err *err);
    kvm_status (*delta)(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                        kvm_in g, kvm_in beta, kvm_in state, kvm_err *err);
    kvm_status (*scan)(kvm_compute *c, kvm_in o, kvm_in q, kvm_in k, kvm_in v,
                       kvm_in dt, kvm_in rate, kvm_in skip, kvm_in state, kvm_err *err);
    kvm_status (*relu2)(kvm_compute *c, kvm_in y, kvm_in x, kvm_err *err);
    kvm_status (*rmsnorm_back)(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in w, kvm_in dy,
                               ptrdiff_t group, double eps, bool plus_one, bool add,
                               kvm_err *err);
    kvm_status (*linear_back)(kvm_compute *c, kvm_in dx, kvm_in dy, const kvm_weight *w,
                              bool add, kvm_err *err);
    kvm_status (*attention_back)(kvm_compute *c, kvm_in dq, kvm_in dk, kvm_in dv,
                                 kvm_in q, kvm_in k, kvm_in v, kvm_in dy,
                                 ptrdiff_t first, ptrdiff_t window,
                                 const kvm_mask *mask /* or NULL */, double scale,
                                 kvm_err *err);
    kvm_status (*silu_mul_back)(kvm_compute *c, kvm_in dgate, kvm_in dup, kvm_in gate,
                                kvm_in up, kvm_in dy, kvm_err *err);
    kvm_status (*sigmoid_mul_back)(kvm_compute *c, kvm_in dgate, kvm_in dup,
                                   kvm_in gate, kvm_in up, kvm_in dy, kvm_err *err);
    kvm_status (*relu2_back)(kvm_compute *c, kvm_in dx, kvm_in x, kvm_in dy,
                             kvm_err *err);
    kvm_status (*index_score_back)(kvm_compute *c, kvm_in dk, kvm_in q, kvm_in k,
                                   kvm_in w, kvm_in dy, double scale, kvm_err *err);
    kvm_status (*kl_back)(kvm_compute *c, double *kl, kvm_in logits, kvm_in native,
                          double by, kvm_err *err);
    kvm_status (*conv_back)(kvm_compute *c, kvm_in dx, kvm_in dwindow, kvm_in x,
                            kvm_in w, const float *bias, kvm_in window, kvm_in dy,
                            kvm_err *err);
    kvm_status (*delta_back)(kvm_compute *c, const kvm_delta_rows *d, kvm_in dstate,
                             const kvm_delta_rows *in, kvm_in state, kvm_in dy,
                             kvm_err *err);
    kvm_status (*scan_back)(kvm_compute *c, const kvm_scan_rows *d, kvm_in dstate,
                            const kvm_scan_rows *in, kvm_in rate, kvm_in skip,
                            kvm_in state, kvm_in dy, kvm_err *err);
};

extern const kvm_backend kvm_backend__ref;
extern const kvm_backend kvm_backend__cpu_avx512;
extern const kvm_backend kvm_backend__cpu_bf16;
extern const kvm_backend kvm_backend__cpu_avx2;
extern const kvm_backend kvm_backend__cpu_plain;

/* kvm_backend__at - every table of this build, best first under one name; NULL past the
 * end */
const kvm_backend *kvm_backend__at(int i);

/* row i of a view as bytes: block-quantised rows are whole blocks */
static inline char *kvm_row(kvm_in t, ptrdiff_t i)
{
    const ptrdiff_t blocks = i * t->stride[0] / kvm_dtype_block(t->dtype);
    return (char *)t->data + blocks * kvm_dtype_block_bytes(t->dtype);
}
static inline float *kvm_row32(kvm_in t, ptrdiff_t i)
{
    return (float *)t->data + i * t->stride[0];
}
static inline float *kvm_head32(kvm_in t, ptrdiff_t i, ptrdiff_t head)
{
    return kvm_row32(t, i) + head * t->stride[1];
}
static inline double *kvm_row64(kvm_in t, ptrdiff_t i)
{
    return (double *)t->data + i * t->stride[0];
}

#endif
