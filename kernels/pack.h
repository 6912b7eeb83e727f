/* pack.h - stored rows to f32 panels (template; see vec.h).
 *
 * A panel holds NR rows of a stored matrix side by side: NR numbers for each k. Rows
 * past the last are zero. */
#ifndef KVM_KERNELS_PACK_H
#define KVM_KERNELS_PACK_H

#include "kernels/backend.h"
#include "kernels/blocks.h"
#include "kernels/tile.h"

/* VW elements from element i of a row of f32, f16, bf16, or of e4m3: those 256 times
 * too small, which scales are multiplied for */
V_INLINE vf load_as(const kvm_dtype d, const char *row, ptrdiff_t i)
{
    if (d == KVM_F8_E4M3) return v_load_e4m3(row + i);
    if (d == KVM_BF16) return v_load_bf16(row + 2 * i);
    if (d == KVM_F16) return v_load_f16(row + 2 * i);
    return v_load(row + 4 * i);
}

V_INLINE ptrdiff_t simple_bytes(const kvm_dtype d)
{
    return d == KVM_F32 ? 4 : d == KVM_F8_E4M3 ? 1 : 2;
}

/* the same for n < VW elements; the rest is 0 */
V_INLINE vf load_as_n(const kvm_dtype d, const char *row, ptrdiff_t i, ptrdiff_t n)
{
    char tmp[4 * VW] = {0};
    memcpy(tmp, row + simple_bytes(d) * i, (size_t)(simple_bytes(d) * n));
    return load_as(d, tmp, 0);
}

V_INLINE void widen_as(const kvm_dtype d, float *out, const char *row, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    for (; i + VW <= n; i += VW) v_store(out + i, load_as(d, row, i));
    if (i < n) v_store_n(out + i, load_as_n(d, row, i, n - i), n - i);
}

/* n elements of any type to f32; the type has been checked */
static inline void widen(float *out, const char *row, kvm_dtype d, ptrdiff_t n)
{
    if (d == KVM_F32)
        memcpy(out, row, (size_t)n * sizeof *out);
    else if (d == KVM_BF16)
        widen_as(KVM_BF16, out, row, n);
    else if (d == KVM_F16)
        widen_as(KVM_F16, out, row, n);
    else if (!widen_blocks(out, row, d, n) && kvm_widen_row(out, row, d, n, NULL))
        memset(out, 0, (size_t)n * sizeof *out); /* not for a dtype of the table */
}

V_INLINE float scale_of(const kvm_dtype d)
{
    return d == KVM_F8_E4M3 ? 256 : 1;
}

/* scales of row r, one for each block of columns */
static inline const float *scales_of(const kvm_scales *s, ptrdiff_t r)
{
    return s->grid + (s->first + r) / s->rows * s->pitch;
}

/* elements from .. from+n of row r of e4m3, times their scales */
static inline void widen_e4m3(float *out, kvm_in w, ptrdiff_t r, ptrdiff_t from,
                              ptrdiff_t n)
{
    const kvm_scales *s = w->scales;
    const float *grid = s ? scales_of(s, r) : NULL;
    const char *row = kvm_row(w, r) + from;
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t block = s ? (from + i) / s->cols : 0;
        const ptrdiff_t left = s ? (block + 1) * s->cols - from : n;
        const ptrdiff_t end = left < n ? left : n;
        const vf by = v_all((s ? grid[block] : 1) * scale_of(KVM_F8_E4M3));
        for (; i + VW <= end; i += VW)
            v_store(out + i, load_as(KVM_F8_E4M3, row, i) * by);
        if (i < end)
            v_store_n(out + i, load_as_n(KVM_F8_E4M3, row, i, end - i) * by, end - i);
        i = end;
    }
}

/* elements from .. from+n (whole blocks) of row r, times their scales */
static inline void widen_at(float *out, kvm_in w, ptrdiff_t r, ptrdiff_t from,
                            ptrdiff_t n)
{
    const ptrdiff_t blocks = from / kvm_dtype_block(w->dtype);
    if (w->dtype == KVM_F8_E4M3) {
        widen_e4m3(out, w, r, from, n);
        return;
    }
    widen(out, kvm_row(w, r) + blocks * kvm_dtype_block_bytes(w->dtype), w->dtype, n);
    if (w->scales) kvm_scale_row(out, w->scales, r, from, n);
}

/* rows 0..valid of `row` to columns v*VW.. of a panel */
V_INLINE void pack_lane(const kvm_dtype d, float *panel, const char *row,
                        ptrdiff_t pitch, ptrdiff_t valid, ptrdiff_t k)
{
    for (ptrdiff_t p = 0; p < k; p += VW) {
        const ptrdiff_t n = k - p < VW ? k - p : VW;
        vf r[VW];
        for (int i = 0; i < VW; i++) {
            const char *from = row + i * pitch;
            if (i >= valid)
                r[i] = v_all(0);
            else
                r[i] = n == VW ? load_as(d, from, p) : load_as_n(d, from, p, n);
        }
        v_transpose(r);
        for (int i = 0; i < VW && i < n; i++) v_store(panel + (p + i) * NR, r[i]);
    }
}

/* pack_panel - rows row0 .. row0+NR of w, elements k0 .. k0+k (whole blocks)
 *   panel  out (k,NR) f32
 *   wide   scratch (VW,k) f32, for other types and for scales */
static void pack_panel(float *panel, kvm_in w, ptrdiff_t row0, ptrdiff_t k0,
                       ptrdiff_t k, float *wide)
{
    const int block = kvm_dtype_block(w->dtype),
              bytes = kvm_dtype_block_bytes(w->dtype);
    const ptrdiff_t pitch = w->stride[0] / block * bytes;
    const char *from = (const char *)w->data + row0 * pitch + k0 / block * bytes;
    for (int v = 0; v < NV; v++, from += VW * pitch, panel += VW) {
        ptrdiff_t valid = w->dim[0] - row0 - v * VW;
        valid = valid < 0 ? 0 : valid > VW ? VW : valid;
        if (w->scales) {
            for (ptrdiff_t i = 0; i < valid; i++)
                widen_at(wide + i * k, w, row0 + v * VW + i, k0, k);
            pack_lane(KVM_F32, panel, (const char *)wide, k * 4, valid, k);
        } else if (w->dtype == KVM_F32) {
            pack_lane(KVM_F32, panel, from, pitch, valid, k);
        } else if (w->dtype == KVM_BF16) {
            pack_lane(KVM_BF16, panel, from, pitch, valid, k);
        } else if (w->dtype == KVM_F16) {
            pack_lane(KVM_F16, panel, from, pitch, valid, k);
        } else {
            for (ptrdiff_t i = 0; i < valid; i++)
                widen(wide + i * k, from + i * pitch, w->dtype, k);
            pack_lane(KVM_F32, panel, (const char *)wide, k * 4, valid, k);
        }
    }
}

#endif
