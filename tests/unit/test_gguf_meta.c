/* GGUF headers by hand: read back, and every way in which one can lie. */
#include <stdio.h>
#include <string.h>

#include "models/gguf_meta.h"
#include "tests/support/check.h"

#define DIR "build/tmp/gguf_meta/"

/* a file under construction */
typedef struct file {
    unsigned char at[4096];
    ptrdiff_t n;
} file;

static void put(file *f, const void *p, ptrdiff_t n)
{
    assert_true(f->n + n <= (ptrdiff_t)sizeof f->at);
    memcpy(f->at + f->n, p, (size_t)n);
    f->n += n;
}
static void u32(file *f, uint32_t v)
{
    put(f, &v, 4);
}
static void u64(file *f, uint64_t v)
{
    put(f, &v, 8);
}
static void u8(file *f, unsigned v)
{
    const unsigned char c = (unsigned char)v;
    put(f, &c, 1);
}
static void text(file *f, const char *s)
{
    u64(f, strlen(s));
    put(f, s, (ptrdiff_t)strlen(s));
}
static void key(file *f, const char *name, uint32_t type)
{
    text(f, name);
    u32(f, type);
}
static file head(uint32_t version, uint64_t tensors, uint64_t keys)
{
    file f = {.n = 0};
    put(&f, "GGUF", 4);
    u32(&f, version);
    u64(&f, tensors);
    u64(&f, keys);
    return f;
}
static void tensor(file *f, const char *name, uint64_t d0, uint64_t d1, uint32_t type,
                   uint64_t offset)
{
    text(f, name);
    u32(f, 2);
    u64(f, d0);
    u64(f, d1);
    u32(f, type);
    u64(f, offset);
}
static void pad(file *f, ptrdiff_t to)
{
    while (f->n % to != 0) u8(f, 0);
}
static void data(file *f, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) u8(f, (unsigned)i);
}

static kvm_status parse(const file *f, kvm_gguf **g, kvm_arena *a, kvm_err *err)
{
    *err = (kvm_err){0};
    return kvm_gguf_parse(g, a, (kvm_str){(const char *)f->at, f->n}, KVM_STR("f.gguf"),
                          err);
}

static void refused(const file *f, kvm_status status, const char *why)
{
    kvm_arena a = check_arena(1 << 20);
    kvm_err err;
    kvm_gguf *g = NULL;
    check_status(status, parse(f, &g, &a, &err), &err);
    assert_null(g);
    check_contains(err.msg, "f.gguf");
    check_contains(err.msg, why);
    kvm_arena_free(&a);
}

static file good(void)
{
    file f = head(3, 2, 14);
    key(&f, "a.u8", 0), u8(&f, 200);
    key(&f, "a.i8", 1), u8(&f, 0xFF);
    key(&f, "a.i16", 3), u8(&f, 0xFE), u8(&f, 0xFF);
    key(&f, "a.u32", 4), u32(&f, 4000000000u);
    key(&f, "a.i32", 5), u32(&f, 7);
    key(&f, "a.f32", 6), u32(&f, 0x3FC00000); /* 1.5 */
    key(&f, "a.yes", 7), u8(&f, 1);
    key(&f, "a.text", 8), text(&f, "llama");
    key(&f, "a.u64", 10), u64(&f, UINT64_MAX);
    key(&f, "a.f64", 12), u64(&f, 0x4000000000000000); /* 2.0 */
    key(&f, "a.names", 9), u32(&f, 8), u64(&f, 3);
    text(&f, "x"), text(&f, ""), text(&f, "yz");
    key(&f, "a.heads", 9), u32(&f, 5), u64(&f, 2), u32(&f, 3), u32(&f, (uint32_t)-4);
    key(&f, "a.flags", 9), u32(&f, 7), u64(&f, 2), u8(&f, 0), u8(&f, 1);
    key(&f, "a.floats", 9), u32(&f, 6), u64(&f, 1), u32(&f, 0x3FC00000);
    tensor(&f, "w.second", 4, 3, 0, 64);
    tensor(&f, "a.first", 32, 1, 8, 0); /* one block of Q8_0 */
    pad(&f, 32);
    data(&f, 64 + 48);
    return f;
}

static void scalars(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err;
    kvm_gguf *g;
    uint64_t u;
    double d;
    bool b;
    kvm_str s;
    const file f = good();
    check_ok(parse(&f, &g, &a, &err), &err);
    check_ok(kvm_gguf_u64(g, "a.u8", &u, &err), &err);
    assert_int_equal(u, 200);
    check_ok(kvm_gguf_u64(g, "a.u32", &u, &err), &err);
    assert_int_equal(u, 4000000000u);
    check_ok(kvm_gguf_u64_or(g, "a.i32", 1, &u, &err), &err);
    assert_int_equal(u, 7);
    check_ok(kvm_gguf_u64_or(g, "a.none", 9, &u, &err), &err);
    assert_int_equal(u, 9);
    check_ok(kvm_gguf_f64(g, "a.f32", &d, &err), &err);
    assert_true(d > 1.49 && d < 1.51);
    check_ok(kvm_gguf_f64(g, "a.f64", &d, &err), &err);
    assert_true(d > 1.99 && d < 2.01);
    check_ok(kvm_gguf_f64(g, "a.i16", &d, &err), &err);
    assert_true(d < -1.9 && d > -2.1);
    check_ok(kvm_gguf_bool_or(g, "a.yes", false, &b, &err), &err);
    assert_true(b);
    check_ok(kvm_gguf_bool_or(g, "a.none", true, &b, &err), &err);
    assert_true(b);
    check_ok(kvm_gguf_str(g, "a.text", &s, &err), &err);
    check_str(s, "llama");
    check_ok(kvm_gguf_str_or(g, "a.none", KVM_STR("z"), &s, &err), &err);
    check_str(s, "z");
    assert_true(kvm_gguf_has(g, "a.heads") && kvm_gguf_is_array(g, "a.heads"));
    assert_false(kvm_gguf_has(g, "a.head") || kvm_gguf_is_array(g, "a.text"));
    kvm_arena_free(&a);
}

#define WRONG(status, call)                                                            \
    do {                                                                               \
        err = (kvm_err){0};                                                            \
        check_status(status, call, &err);                                              \
    } while (0)

static void wrong_kinds(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err;
    kvm_gguf *g;
    uint64_t u = 5;
    double d;
    bool b;
    kvm_str s, *strs;
    int64_t *is;
    double *ds;
    ptrdiff_t n;
    const file f = good();
    check_ok(parse(&f, &g, &a, &err), &err);
    WRONG(KVM_FORMAT, kvm_gguf_u64(g, "a.i8", &u, &err)); /* negative */
    check_contains(err.msg, "a.i8");
    WRONG(KVM_FORMAT, kvm_gguf_u64(g, "a.u64", &u, &err)); /* beyond int64 */
    WRONG(KVM_FORMAT, kvm_gguf_u64(g, "a.f32", &u, &err));
    WRONG(KVM_FORMAT, kvm_gguf_u64(g, "a.yes", &u, &err));
    WRONG(KVM_FORMAT, kvm_gguf_u64_or(g, "a.heads", 0, &u, &err));
    WRONG(KVM_NOTFOUND, kvm_gguf_u64(g, "a.none", &u, &err));
    assert_int_equal(u, 5);
    WRONG(KVM_FORMAT, kvm_gguf_f64(g, "a.text", &d, &err));
    WRONG(KVM_NOTFOUND, kvm_gguf_f64(g, "a.none", &d, &err));
    WRONG(KVM_FORMAT, kvm_gguf_bool_or(g, "a.u8", true, &b, &err));
    WRONG(KVM_FORMAT, kvm_gguf_str(g, "a.names", &s, &err));
    check_contains(err.msg, "an array of string");
    WRONG(KVM_NOTFOUND, kvm_gguf_str(g, "a.none", &s, &err));
    WRONG(KVM_FORMAT, kvm_gguf_strs(g, "a.text", &a, &strs, &n, &err));
    WRONG(KVM_FORMAT, kvm_gguf_strs(g, "a.heads", &a, &strs, &n, &err));
    WRONG(KVM_NOTFOUND, kvm_gguf_strs(g, "a.none", &a, &strs, &n, &err));
    WRONG(KVM_FORMAT, kvm_gguf_i64s(g, "a.floats", &a, &is, &n, &err));
    WRONG(KVM_FORMAT, kvm_gguf_i64s(g, "a.i32", &a, &is, &n, &err));
    WRONG(KVM_FORMAT, kvm_gguf_f64s(g, "a.flags", &a, &ds, &n, &err));
    WRONG(KVM_FORMAT, kvm_gguf_f64s(g, "a.names", &a, &ds, &n, &err));
    kvm_arena_free(&a);
}

static void arrays_and_tensors(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err;
    kvm_gguf *g;
    kvm_str *s;
    int64_t *i;
    double *d;
    ptrdiff_t n;
    const file f = good();
    check_ok(parse(&f, &g, &a, &err), &err);
    check_ok(kvm_gguf_strs(g, "a.names", &a, &s, &n, &err), &err);
    assert_int_equal(n, 3);
    check_str(s[0], "x");
    assert_int_equal(s[1].len, 0);
    check_str(s[2], "yz");
    check_ok(kvm_gguf_i64s(g, "a.heads", &a, &i, &n, &err), &err);
    assert_true(n == 2 && i[0] == 3 && i[1] == -4);
    check_ok(kvm_gguf_i64s(g, "a.flags", &a, &i, &n, &err), &err);
    assert_true(n == 2 && i[0] == 0 && i[1] == 1);
    check_ok(kvm_gguf_f64s(g, "a.heads", &a, &d, &n, &err), &err);
    assert_true(n == 2 && d[1] < -3.9);

    assert_int_equal(kvm_gguf_tensors(g), 2);
    const kvm_gguf_tensor *w = kvm_gguf_tensor_at(g, 0);
    check_str(w->name, "w.second");
    assert_ptr_equal(kvm_gguf_tensor_find(g, KVM_STR("w.second")), w);
    assert_null(kvm_gguf_tensor_find(g, KVM_STR("w")));
    assert_null(kvm_gguf_tensor_at(g, 2));
    assert_true(w->dtype == KVM_F32 && w->rank == 2 && w->dim[0] == 4 &&
                w->dim[1] == 3);
    assert_true(w->dim[2] == 1 && w->bytes == 48 && w->offset == f.n - 48);
    assert_int_equal(*(const unsigned char *)kvm_gguf_data(g, w), 64);
    const kvm_gguf_tensor *q = kvm_gguf_tensor_at(g, 1);
    assert_true(q->dtype == KVM_Q8_0 && q->bytes == 34 && q->offset == w->offset - 64);
    kvm_arena_free(&a);
}

static void truncated_anywhere(void **state)
{
    (void)state;
    const file f = good();
    for (ptrdiff_t n = 0; n < f.n; n++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err;
        kvm_gguf *g;
        file cut = f;
        cut.n = n;
        assert_int_not_equal(parse(&cut, &g, &a, &err), KVM_OK);
        assert_int_not_equal(err.msg[0], 0);
        kvm_arena_free(&a);
    }
}

static void bad_headers(void **state)
{
    (void)state;
    file f = good();
    f.at[0] = 'g';
    refused(&f, KVM_FORMAT, "not a GGUF file");
    f = head(1, 0, 0);
    refused(&f, KVM_UNSUPPORTED, "version 1");
    f = head(0x03000000, 0, 0);
    refused(&f, KVM_UNSUPPORTED, "big-endian");
    f = head(3, UINT64_MAX, 0);
    refused(&f, KVM_FORMAT, "claims 18446744073709551615");
    f = head(3, 0, (uint64_t)1 << 30);
    refused(&f, KVM_FORMAT, "claims 1073741824");
    f = head(2, 0, 0);
    kvm_arena a = check_arena(1 << 20);
    kvm_err err;
    kvm_gguf *g;
    check_ok(parse(&f, &g, &a, &err), &err); /* nothing in it, but a file */
    assert_null(kvm_gguf_tensor_find(g, KVM_STR("x")));
    assert_false(kvm_gguf_has(g, "x"));
    kvm_arena_free(&a);
}

static void bad_keys(void **state)
{
    (void)state;
    file f = head(3, 0, 1);
    key(&f, "k", 13), u64(&f, 0);
    refused(&f, KVM_FORMAT, "unknown value type");
    f = head(3, 0, 1), key(&f, "k", 9), u32(&f, 9), u64(&f, 0), u64(&f, 0);
    refused(&f, KVM_FORMAT, "arrays of arrays");
    f = head(3, 0, 1), key(&f, "k", 9), u32(&f, 77), u64(&f, 0), u64(&f, 0);
    refused(&f, KVM_FORMAT, "unknown element type");
    f = head(3, 0, 1), key(&f, "k", 9), u32(&f, 8), u64(&f, (uint64_t)1 << 60);
    refused(&f, KVM_FORMAT, "claims");
    f = head(3, 0, 1), key(&f, "k", 8), u64(&f, (uint64_t)1 << 63), data(&f, 8);
    refused(&f, KVM_FORMAT, "claims");
    f = head(3, 0, 1), key(&f, "k", 7), u8(&f, 2), data(&f, 8);
    refused(&f, KVM_FORMAT, "neither 0 nor 1");
    f = head(3, 0, 1), key(&f, "", 0), u8(&f, 2), data(&f, 8);
    refused(&f, KVM_FORMAT, "printable");
    f = head(3, 0, 1), key(&f, "a\x1b[m", 0), u8(&f, 2), data(&f, 8);
    refused(&f, KVM_FORMAT, "printable");
    f = head(3, 0, 2);
    key(&f, "k", 0), u8(&f, 1), key(&f, "k", 4), u32(&f, 1);
    refused(&f, KVM_FORMAT, "appears twice");
    for (uint32_t bad = 0; bad < 3; bad++) {
        static const uint32_t alignment[] = {0, 48, 1 << 20};
        f = head(3, 0, 1), key(&f, "general.alignment", 4), u32(&f, alignment[bad]);
        refused(&f, KVM_FORMAT, "general.alignment");
    }
}

static file two(uint64_t first, uint64_t second, ptrdiff_t bytes)
{
    file f = head(3, 2, 0);
    tensor(&f, "one", 4, 4, 0, first); /* 64 bytes each */
    tensor(&f, "two", 4, 4, 0, second);
    pad(&f, 32);
    data(&f, bytes);
    return f;
}

static void bad_tensors(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err;
    kvm_gguf *g;
    file f = two(0, 64, 128);
    check_ok(parse(&f, &g, &a, &err), &err);
    f = two(96, 0, 160);
    check_ok(parse(&f, &g, &a, &err), &err); /* a hole, any order */
    kvm_arena_free(&a);
    f = two(0, 32, 128), refused(&f, KVM_FORMAT, "overlaps");
    f = two(0, 0, 128), refused(&f, KVM_FORMAT, "overlaps");
    f = two(0, 65, 200), refused(&f, KVM_FORMAT, "alignment");
    f = two(0, 64, 127), refused(&f, KVM_FORMAT, "ends at");
    f = two(0, (uint64_t)1 << 62, 128), refused(&f, KVM_FORMAT, "after the end");
    f = two(0, 64, 161), refused(&f, KVM_FORMAT, "follow the last tensor");
    f = head(3, 2, 0);
    tensor(&f, "same", 4, 4, 0, 0), tensor(&f, "same", 4, 4, 0, 64), pad(&f, 32);
    data(&f, 128), refused(&f, KVM_FORMAT, "appears twice");
    f = head(3, 1, 0), tensor(&f, "t", 0, 4, 0, 0);
    refused(&f, KVM_FORMAT, "zero or too large");
    f = head(3, 1, 0), tensor(&f, "t", (uint64_t)1 << 40, (uint64_t)1 << 40, 0, 0);
    refused(&f, KVM_FORMAT, "too large");
    f = head(3, 1, 0), tensor(&f, "t", (uint64_t)1 << 62, 1, 0, 0);
    refused(&f, KVM_FORMAT, "too large");
    f = head(3, 1, 0), tensor(&f, "t", 33, 4, 8, 0);
    refused(&f, KVM_FORMAT, "whole blocks");
    f = head(3, 1, 0), tensor(&f, "t", 256, 4, 10, 0); /* Q2_K */
    refused(&f, KVM_DTYPE, "GGUF type 10");
    f = head(3, 1, 0), text(&f, "t"), u32(&f, 5), data(&f, 64);
    refused(&f, KVM_FORMAT, "rank");
}

static void from_disk(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_gguf *g;
    const file f = good();
    check_tmpdir("gguf_meta");
    check_write(DIR "good.gguf", (kvm_str){(const char *)f.at, f.n});
    check_ok(kvm_gguf_open(&g, &a, KVM_STR(DIR "good.gguf"), &err), &err);
    check_str(kvm_gguf_name(g), DIR "good.gguf");
    assert_int_equal(kvm_gguf_bytes(g).len, f.n);
    check_status(KVM_NOTFOUND, kvm_gguf_open(&g, &a, KVM_STR(DIR "none.gguf"), &err),
                 &err);
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),
        cmocka_unit_test(wrong_kinds),
        cmocka_unit_test(arrays_and_tensors),
        cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(bad_keys),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(from_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
