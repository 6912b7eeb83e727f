/* ref_algebra.c - sums of products, Cholesky, eigenvectors: textbook loops in f64. */
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

kvm_status kvm_ref__cross(kvm_compute *c, kvm_in out, kvm_in x, kvm_in y, kvm_err *err)
{
    (void)c, (void)err;
    for (ptrdiff_t n = 0; n < x->dim[0]; n++) {
        const float *a = kvm_row32(x, n), *b = kvm_row32(y, n);
        for (ptrdiff_t i = 0; i < x->dim[1]; i++)
            for (ptrdiff_t j = 0; j < y->dim[1]; j++)
                kvm_row64(out, i)[j] += (double)a[i] * (double)b[j];
    }
    return KVM_OK;
}

kvm_status kvm_ref__gram(kvm_compute *c, kvm_in g, kvm_in x, kvm_err *err)
{
    return kvm_ref__cross(c, g, x, x, err);
}

/* lower factor, row by row; the strict upper triangle becomes zero */
kvm_status kvm_ref__cholesky(kvm_compute *c, kvm_in a, kvm_err *err)
{
    (void)c;
    const ptrdiff_t n = a->dim[0];
    for (ptrdiff_t i = 0; i < n; i++) {
        double *ri = kvm_row64(a, i);
        for (ptrdiff_t j = 0; j <= i; j++) {
            const double *rj = kvm_row64(a, j);
            double sum = ri[j];
            for (ptrdiff_t k = 0; k < j; k++) sum -= ri[k] * rj[k];
            if (j < i) {
                ri[j] = sum / rj[j];
            } else if (sum > 0 && sum < HUGE_VAL) {
                ri[i] = sqrt(sum);
            } else {
                return kvm_fail(err, KVM_SINGULAR,
                                "cholesky: pivot %td is %g; add a larger ridge", i,
                                sum);
            }
        }
        for (ptrdiff_t j = i + 1; j < n; j++) ri[j] = 0;
    }
    return KVM_OK;
}

kvm_status kvm_ref__cholesky_solve(kvm_compute *c, kvm_in factor, kvm_in b,
                                   kvm_err *err)
{
    (void)c, (void)err;
    const ptrdiff_t n = factor->dim[0], columns = b->dim[1];
    for (ptrdiff_t p = 0; p < columns; p++) {
        for (ptrdiff_t i = 0; i < n; i++) { /* L z = b */
            double sum = kvm_row64(b, i)[p];
            for (ptrdiff_t k = 0; k < i; k++)
                sum -= kvm_row64(factor, i)[k] * kvm_row64(b, k)[p];
            kvm_row64(b, i)[p] = sum / kvm_row64(factor, i)[i];
        }
        for (ptrdiff_t i = n - 1; i >= 0; i--) { /* Lt x = z */
            double sum = kvm_row64(b, i)[p];
            for (ptrdiff_t k = i + 1; k < n; k++)
                sum -= kvm_row64(factor, k)[i] * kvm_row64(b, k)[p];
            kvm_row64(b, i)[p] = sum / kvm_row64(factor, i)[i];
        }
    }
    return KVM_OK;
}

/* rotate rows p, q of m: p' = c p - s q, q' = s p + c q */
static void rotate_rows(double *p, double *q, ptrdiff_t n, double cosine, double sine)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        const double a = p[i], b = q[i];
        p[i] = cosine * a - sine * b;
        q[i] = sine * a + cosine * b;
    }
}

/* one Jacobi rotation that makes m[p][q] zero (Golub & Van Loan 8.5); m and v (n,n)
 * contiguous, v holds vectors as rows */
static void jacobi(double *m, double *v, ptrdiff_t n, ptrdiff_t p, ptrdiff_t q)
{
    const double apq = m[p * n + q];
    if (apq == 0) return;
    const double tau = (m[q * n + q] - m[p * n + p]) / (2 * apq);
    const double t = (tau >= 0 ? 1 : -1) / (fabs(tau) + sqrt(1 + tau * tau));
    const double cosine = 1 / sqrt(1 + t * t), sine = t * cosine;
    rotate_rows(m + p * n, m + q * n, n, cosine, sine);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double a = m[i * n + p], b = m[i * n + q];
        m[i * n + p] = cosine * a - sine * b;
        m[i * n + q] = sine * a + cosine * b;
    }
    rotate_rows(v + p * n, v + q * n, n, cosine, sine);
}

static double off_diagonal(const double *m, ptrdiff_t n)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++)
            if (i != j) sum += m[i * n + j] * m[i * n + j];
    return sqrt(sum);
}

kvm_status kvm_ref__eigh(kvm_compute *c, kvm_in a, double *w, kvm_err *err)
{
    enum { SWEEPS = 60 };
    kvm_arena scratch = c->scratch;
    const ptrdiff_t n = a->dim[0];
    double *m = kvm_new(&scratch, double, n *n), *v = kvm_new(&scratch, double, n *n);
    bool *used = kvm_new(&scratch, bool, n);
    if (!m || !v || !used) return kvm_nomem(err, &scratch);
    double size = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        v[i * n + i] = 1;
        for (ptrdiff_t j = 0; j < n; j++) {
            m[i * n + j] = i > j ? kvm_row64(a, i)[j] : kvm_row64(a, j)[i];
            size += m[i * n + j] * m[i * n + j];
        }
    }
    if (!isfinite(size))
        return kvm_fail(err, KVM_NAN, "eigh: the matrix is not finite");
    for (int s = 0; s < SWEEPS && off_diagonal(m, n) > 1e-16 * sqrt(size); s++)
        for (ptrdiff_t p = 0; p < n; p++)
            for (ptrdiff_t q = p + 1; q < n; q++) jacobi(m, v, n, p, q);
    for (ptrdiff_t i = 0; i < n; i++) { /* selection sort by eigenvalue */
        ptrdiff_t least = -1;
        for (ptrdiff_t j = 0; j < n; j++)
            if (!used[j] && (least < 0 || m[j * n + j] < m[least * n + least]))
                least = j;
        used[least] = true;
        w[i] = m[least * n + least];
        memcpy(kvm_row64(a, i), v + least * n, sizeof *v * (size_t)n);
    }
    return KVM_OK;
}

kvm_status kvm_ref__gemm64(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, kvm_err *err)
{
    (void)c, (void)err;
    const double *pa = a->data, *pb = b->data;
    for (ptrdiff_t i = 0; i < out->dim[0]; i++) {
        for (ptrdiff_t j = 0; j < out->dim[1]; j++) {
            double sum = 0;
            for (ptrdiff_t k = 0; k < a->dim[1]; k++)
                sum += pa[i * a->stride[0] + k * a->stride[1]] *
                       pb[k * b->stride[0] + j * b->stride[1]];
            kvm_row64(out, i)[j] = sum;
        }
    }
    return KVM_OK;
}

kvm_status kvm_ref__gemm32(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, double beta,
                           kvm_err *err)
{
    (void)c, (void)err;
    const float *pa = a->data, *pb = b->data;
    for (ptrdiff_t i = 0; i < out->dim[0]; i++) {
        for (ptrdiff_t j = 0; j < out->dim[1]; j++) {
            float *to = kvm_row32(out, i) + j;
            double sum = beta == 0 ? 0 : beta * (double)*to; /* 0 clears even a NaN */
            for (ptrdiff_t k = 0; k < a->dim[1]; k++)
                sum += (double)pa[i * a->stride[0] + k * a->stride[1]] *
                       (double)pb[k * b->stride[0] + j * b->stride[1]];
            *to = (float)sum;
        }
    }
    return KVM_OK;
}

static const char *isa(void)
{
    return "none";
}

static bool supported(void)
{
    return true;
}

const kvm_backend kvm_backend__ref = {
    .name = "ref",
    .device = KVM_CPU,
    .scratch_bytes = (size_t)1 << 30,
    .isa = isa,
    .supported = supported,
    .embed = kvm_ref__embed,
    .rmsnorm = kvm_ref__rmsnorm,
    .linear = kvm_ref__linear,
    .rope = kvm_ref__rope,
    .attention = kvm_ref__attention,
    .index_score = kvm_ref__index_score,
    .silu_mul = kvm_ref__silu_mul,
    .logprob = kvm_ref__logprob,
    .gram = kvm_ref__gram,
    .cross = kvm_ref__cross,
    .cholesky = kvm_ref__cholesky,
    .cholesky_solve = kvm_ref__cholesky_solve,
    .eigh = kvm_ref__eigh,
    .gemm64 = kvm_ref__gemm64,
    .gemm32 = kvm_ref__gemm32,
    .sigmoid_mul = kvm_ref__sigmoid_mul,
    .conv = kvm_ref__conv,
    .delta = kvm_ref__delta,
    .scan = kvm_ref__scan,
    .relu2 = kvm_ref__relu2,
    .rmsnorm_back = kvm_ref__rmsnorm_back,
    .linear_back = kvm_ref__linear_back,
    .attention_back = kvm_ref__attention_back,
    .silu_mul_back = kvm_ref__silu_mul_back,
    .sigmoid_mul_back = kvm_ref__sigmoid_mul_back,
    .relu2_back = kvm_ref__relu2_back,
    .kl_back = kvm_ref__kl_back,
    .index_score_back = kvm_ref__index_score_back,
    .conv_back = kvm_ref__conv_back,
    .delta_back = kvm_ref__delta_back,
    .scan_back = kvm_ref__scan_back,
};
