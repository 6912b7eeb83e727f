/* checked.h - sizes that cannot wrap. Counts and indices are ptrdiff_t; products of
 * dimensions go through kvm_mul; narrowing (BLAS and MPI take 32-bit int) through
 * kvm_to_int. */
#ifndef KVM_BASE_CHECKED_H
#define KVM_BASE_CHECKED_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* each is false, *out untouched, when the true result does not fit or an operand is
 * negative */
static inline bool kvm_mul(ptrdiff_t a, ptrdiff_t b, ptrdiff_t *out)
{
    ptrdiff_t r;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool kvm_add(ptrdiff_t a, ptrdiff_t b, ptrdiff_t *out)
{
    ptrdiff_t r;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool kvm_to_int(ptrdiff_t a, int *out)
{
    if (a < 0 || a > INT_MAX) return false;
    *out = (int)a;
    return true;
}

#endif
