/* cpu_algebra.c - f64 algebra through OpenBLAS and LAPACKE.
 *
 * OpenBLAS keeps one global thread count; it is set before each call, so that two
 * contexts of different widths in one process stay right. Row-major lower is
 * column-major upper: LAPACK is called column-major with the triangle swapped, which
 * avoids LAPACKE's copies. */
#include "kernels/cpu.h"

#include "base/checked.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>

static void follow_threads(const kvm_compute *c)
{
    if (openblas_get_num_threads() != c->threads) openblas_set_num_threads(c->threads);
}

static kvm_status pitch(kvm_in t, int *ld, kvm_err *err)
{
    const ptrdiff_t rows = t->stride[0] > t->dim[1] ? t->stride[0] : t->dim[1];
    if (!kvm_to_int(rows, ld) || *ld < 1)
        return kvm_fail(err, KVM_SHAPE, "a row pitch of %td is beyond BLAS", rows);
    return KVM_OK;
}

kvm_status kvm_cpu__cholesky(kvm_compute *c, kvm_in a, kvm_err *err)
{
    int ld;
    TRY(pitch(a, &ld, err));
    follow_threads(c);
    const int n = (int)a->dim[0];
    const int at = LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, a->data, ld);
    if (at > 0)
        return kvm_fail(err, KVM_SINGULAR,
                        "cholesky: pivot %d of %d is not positive; add a larger ridge",
                        at - 1, n);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = kvm_row64(a, i)[i];
        if (!(d > 0 && d < HUGE_VAL)) /* LAPACK lets NaN through */
            return kvm_fail(err, KVM_SINGULAR, "cholesky: pivot %td is %g", i, d);
        for (ptrdiff_t j = i + 1; j < n; j++) kvm_row64(a, i)[j] = 0;
    }
    return KVM_OK;
}

kvm_status kvm_cpu__cholesky_solve(kvm_compute *c, kvm_in factor, kvm_in b,
                                   kvm_err *err)
{
    int ld, ldb;
    TRY(pitch(factor, &ld, err));
    TRY(pitch(b, &ldb, err));
    follow_threads(c);
    const int n = (int)b->dim[0], p = (int)b->dim[1];
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, n, p,
                1, factor->data, ld, b->data, ldb);
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasNonUnit, n, p, 1,
                factor->data, ld, b->data, ldb);
    return KVM_OK;
}

kvm_status kvm_cpu__eigh(kvm_compute *c, kvm_in a, double *w, kvm_err *err)
{
    int ld;
    TRY(pitch(a, &ld, err));
    follow_threads(c);
    const int n = (int)a->dim[0];
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j <= i; j++)
            if (!isfinite(kvm_row64(a, i)[j]))
                return kvm_fail(err, KVM_NAN, "eigh: entry (%td,%td) is not finite", i,
                                j);
    /* vectors come as columns of a column-major matrix: rows of ours */
    const int r = LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'U', n, a->data, ld, w);
    if (r == LAPACK_WORK_MEMORY_ERROR)
        return kvm_fail(err, KVM_NOMEM, "eigh: no memory for %d columns", n);
    if (r) return kvm_fail(err, KVM_SINGULAR, "eigh: no convergence (%d)", r);
    return KVM_OK;
}

/* a matrix with one contiguous axis as BLAS names it */
static kvm_status blas_view(kvm_in t, CBLAS_TRANSPOSE *trans, int *ld, kvm_err *err)
{
    const bool rows = t->dim[1] <= 1 || t->stride[1] == 1;
    const ptrdiff_t across = rows ? t->stride[0] : t->stride[1];
    const ptrdiff_t least = rows ? t->dim[1] : t->dim[0];
    const ptrdiff_t lines = rows ? t->dim[0] : t->dim[1];
    *trans = rows ? CblasNoTrans : CblasTrans;
    if (lines > 1 && across < least)
        return kvm_fail(err, KVM_SHAPE, "lines of %td entries lie %td apart", least,
                        across);
    if (!kvm_to_int(across > least ? across : least, ld))
        return kvm_fail(err, KVM_SHAPE, "a pitch of %td is beyond BLAS", across);
    return KVM_OK;
}

kvm_status kvm_cpu__gemm64(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, kvm_err *err)
{
    CBLAS_TRANSPOSE ta, tb;
    int lda = 0, ldb = 0, ldo = 0;
    TRY(blas_view(a, &ta, &lda, err));
    TRY(blas_view(b, &tb, &ldb, err));
    TRY(pitch(out, &ldo, err));
    follow_threads(c);
    cblas_dgemm(CblasRowMajor, ta, tb, (int)out->dim[0], (int)out->dim[1],
                (int)a->dim[1], 1, a->data, lda, b->data, ldb, 0, out->data, ldo);
    return KVM_OK;
}

kvm_status kvm_cpu__gemm32(kvm_compute *c, kvm_in out, kvm_in a, kvm_in b, double beta,
                           kvm_err *err)
{
    CBLAS_TRANSPOSE ta, tb;
    int lda = 0, ldb = 0, ldo = 0;
    TRY(blas_view(a, &ta, &lda, err));
    TRY(blas_view(b, &tb, &ldb, err));
    TRY(pitch(out, &ldo, err));
    follow_threads(c);
    cblas_sgemm(CblasRowMajor, ta, tb, (int)out->dim[0], (int)out->dim[1],
                (int)a->dim[1], 1, a->data, lda, b->data, ldb, (float)beta, out->data,
                ldo);
    return KVM_OK;
}
