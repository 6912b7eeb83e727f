/* check.c - views against the shape rules of ops.def. */
#include "kernels/backend.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

const kvm_op_row kvm_op_rows[KVM_OPS] = {
#define X(id, name, rule, tolerance, reason) [id] = {#name, rule, reason, tolerance},
#include "kernels/ops.def"
#undef X
};

enum { MAX_VIEWS = 16, LETTERS = 26 };

/* one operand of a rule */
typedef struct operand {
    const char *name;
    int name_len, rank;
    char letter[KVM_MAX_RANK];
    char type;
    bool written, may_alias, may_lack_last;
} operand;

/* operand at p; gives the place after it */
static const char *parse(const char *p, operand *o)
{
    *o = (operand){.name = p};
    while (*p != '(') p++;
    o->name_len = (int)(p - o->name);
    do {
        o->letter[o->rank++] = p[1];
        p += 2;
    } while (*p == ',');
    o->type = *++p;
    for (p++; *p && *p != ' '; p++) {
        o->written |= *p == '!';
        o->may_alias |= *p == '~';
        o->may_lack_last |= *p == '?';
    }
    return *p ? p + 1 : p;
}

static void shape_text(const kvm_tensor *t, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < t->rank && i < KVM_MAX_RANK && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, i ? ",%td" : "%td", t->dim[i]);
}

static bool type_fits(char type, kvm_dtype d)
{
    switch (type) {
    case 'f':
    case 'm':
        return d == KVM_F32;
    case 'd':
    case 'D':
        return d == KVM_F64;
    case 'e':
        return d == KVM_F32 || d == KVM_F16 || d == KVM_BF16;
    default:
        return (int)d >= 0 && d < KVM_DTYPES;
    }
}

/* elements from the first to the last, plus one; false on overflow or a stride < 0 */
static bool span_of(const kvm_tensor *t, ptrdiff_t *span)
{
    *span = 1;
    for (int i = 0; i < t->rank; i++) {
        ptrdiff_t reach;
        if (t->stride[i] < 0 ||
            __builtin_mul_overflow(t->dim[i] - 1, t->stride[i], &reach) ||
            __builtin_add_overflow(*span, reach, span) || *span > PTRDIFF_MAX / 8)
            return false;
    }
    return true;
}

/* no two indices of a written view may be one element: axes, sorted by stride, nest */
static bool distinct(const kvm_tensor *t)
{
    ptrdiff_t reach[KVM_MAX_RANK], stride[KVM_MAX_RANK];
    int n = 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->dim[i] <= 1) continue;
        int at = n++;
        for (; at > 0 && stride[at - 1] > t->stride[i]; at--) {
            stride[at] = stride[at - 1];
            reach[at] = reach[at - 1];
        }
        stride[at] = t->stride[i];
        reach[at] = (t->dim[i] - 1) * t->stride[i];
    }
    ptrdiff_t below = 0;
    for (int i = 0; i < n; i++) {
        if (stride[i] <= below) return false;
        below += reach[i];
    }
    return true;
}

static kvm_status check_strides(const operand *o, const kvm_tensor *t, const char *op,
                                kvm_err *err)
{
    const int last = t->rank - 1;
    const bool matrix = o->type == 'm' || o->type == 'D';
    bool ok = t->dim[last] <= 1 || t->stride[last] == 1;
    if (matrix) ok = ok || t->dim[0] <= 1 || t->stride[0] == 1;
    if (!ok)
        return kvm_fail(err, KVM_SHAPE, "%s: the last axis of %.*s is not contiguous",
                        op, o->name_len, o->name);
    const int block = kvm_dtype_block(t->dtype);
    for (int i = 0; i <= last; i++) {
        const ptrdiff_t n = i == last ? t->dim[i] : t->stride[i];
        if (n % block)
            return kvm_fail(err, KVM_SHAPE,
                            "%s: axis %d of %.*s is no multiple of the %d elements of "
                            "a %s block",
                            op, i, o->name_len, o->name, block,
                            kvm_dtype_name(t->dtype));
    }
    ptrdiff_t span;
    if (!span_of(t, &span) || (o->written && !distinct(t)))
        return kvm_fail(err, KVM_SHAPE, "%s: strides of %.*s overlap or overflow", op,
                        o->name_len, o->name);
    return KVM_OK;
}

static kvm_status check_scales(const operand *o, const kvm_tensor *t, const char *op,
                               kvm_err *err)
{
    const kvm_scales *s = t->scales;
    if (!s) return KVM_OK;
    if (o->type != 'w' || kvm_dtype_block(t->dtype) > 1)
        return kvm_fail(err, KVM_DTYPE, "%s: %.*s cannot have scales", op, o->name_len,
                        o->name);
    if (s->grid && s->rows > 0 && s->cols > 0 && s->pitch >= 0 && s->first >= 0)
        return KVM_OK;
    return kvm_fail(err, KVM_SHAPE, "%s: %.*s has scales for blocks of %td x %td", op,
                    o->name_len, o->name, s->rows, s->cols);
}

static kvm_status check_view(const operand *o, const kvm_tensor *t, const char *op,
                             ptrdiff_t extent[LETTERS], kvm_err *err)
{
    char shape[96];
    shape_text(t, shape, sizeof shape);
    if (t->rank != o->rank && !(o->may_lack_last && t->rank == o->rank - 1))
        return kvm_fail(err, KVM_SHAPE, "%s: %.*s has %d axes, not %d", op, o->name_len,
                        o->name, t->rank, o->rank);
    if (!type_fits(o->type, t->dtype))
        return kvm_fail(err, KVM_DTYPE, "%s: %.*s cannot be %s", op, o->name_len,
                        o->name, kvm_dtype_name(t->dtype));
    TRY(check_scales(o, t, op, err));
    bool empty = false;
    for (int i = 0; i < t->rank; i++) {
        ptrdiff_t *e = &extent[o->letter[i] - 'A'];
        if (t->dim[i] < 0 || t->dim[i] > INT_MAX)
            return kvm_fail(err, KVM_SHAPE, "%s: %.*s (%s) has an impossible extent",
                            op, o->name_len, o->name, shape);
        if (*e >= 0 && *e != t->dim[i])
            return kvm_fail(err, KVM_SHAPE, "%s: %.*s is (%s), but %c is %td before it",
                            op, o->name_len, o->name, shape, o->letter[i], *e);
        *e = t->dim[i];
        empty = empty || t->dim[i] == 0;
    }
    if (empty) return KVM_OK;
    if (!t->data)
        return kvm_fail(err, KVM_SHAPE, "%s: %.*s (%s) has no data", op, o->name_len,
                        o->name, shape);
    return check_strides(o, t, op, err);
}

typedef struct byte_range {
    uintptr_t from, to;
} byte_range;

static byte_range bytes_of(const kvm_tensor *t)
{
    ptrdiff_t span = 0;
    if (kvm_tensor_count(t) == 0 || !span_of(t, &span)) return (byte_range){0, 0};
    const int block = kvm_dtype_block(t->dtype);
    const ptrdiff_t n = (span + block - 1) / block * kvm_dtype_block_bytes(t->dtype);
    const uintptr_t from = (uintptr_t)t->data;
    return (byte_range){from, from + (uintptr_t)n};
}

/* side by side in rows of one pitch: gate and up of one (T,2F) buffer */
static bool side_by_side(const kvm_tensor *a, const kvm_tensor *b)
{
    if (a->dtype != b->dtype || a->stride[0] != b->stride[0]) return false;
    kvm_tensor row_a = *a, row_b = *b;
    row_a.dim[0] = row_b.dim[0] = 1;
    const byte_range ra = bytes_of(&row_a), rb = bytes_of(&row_b);
    const uintptr_t pitch =
        (uintptr_t)(a->stride[0] * (ptrdiff_t)kvm_dtype_block_bytes(a->dtype));
    const uintptr_t la = ra.to - ra.from, lb = rb.to - rb.from;
    if (!pitch || la + lb > pitch) return false;
    const uintptr_t gap = rb.from >= ra.from ? (rb.from - ra.from) % pitch
                                             : pitch - (ra.from - rb.from) % pitch;
    return gap >= la && gap + lb <= pitch;
}

static bool same_view(const kvm_tensor *a, const kvm_tensor *b)
{
    if (a->data != b->data || a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] > 1 && a->stride[i] != b->stride[i]) return false;
    return true;
}

static bool overlap(const kvm_tensor *a, const kvm_tensor *b)
{
    const byte_range ra = bytes_of(a), rb = bytes_of(b);
    return ra.from < rb.to && rb.from < ra.to && !side_by_side(a, b);
}

kvm_status kvm_ops__check(kvm_op_id id, const kvm_tensor *const *views, int count,
                          kvm_err *err)
{
    const char *op = kvm_op_rows[id].name;
    ptrdiff_t extent[LETTERS];
    operand o[MAX_VIEWS];
    for (int i = 0; i < LETTERS; i++) extent[i] = -1;
    const char *p = kvm_op_rows[id].rule;
    for (int i = 0; i < count; i++) {
        p = parse(p, &o[i]);
        TRY(check_view(&o[i], views[i], op, extent, err));
        if (views[i]->device != views[0]->device)
            return kvm_fail(err, KVM_SHAPE, "%s: %.*s lies on another device", op,
                            o[i].name_len, o[i].name);
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < count; j++) {
            if (!o[i].written || i == j || !overlap(views[i], views[j])) continue;
            if (o[j].may_alias && same_view(views[i], views[j])) continue;
            return kvm_fail(err, KVM_SHAPE, "%s: %.*s overlaps %.*s, which is written",
                            op, o[j].name_len, o[j].name, o[i].name_len, o[i].name);
        }
    }
    return KVM_OK;
}
