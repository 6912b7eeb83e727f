/* safetensors files: read, written, and every way in which one can lie. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define DIR "build/tmp/safetensors/"

/* a file of this header, `size` as its length field (-1: the true one), and data bytes
 */
static kvm_str file_of(kvm_arena *a, const char *head, long long size, ptrdiff_t data)
{
    const ptrdiff_t len = (ptrdiff_t)strlen(head);
    char *at = kvm_new(a, char, 8 + len + data);
    assert_non_null(at);
    const uint64_t n = size < 0 ? (uint64_t)len : (uint64_t)size;
    for (int i = 0; i < 8; i++) at[i] = (char)(n >> (8 * i));
    memcpy(at + 8, head, (size_t)len);
    for (ptrdiff_t i = 0; i < data; i++) at[8 + len + i] = (char)i;
    return (kvm_str){at, 8 + len + data};
}

static void good_files(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_st *st;
    const kvm_str bytes =
        file_of(&a,
                "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
                "\"c\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[1,1]},"
                "\"d\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,3],\"data_offsets\":[1,4]},"
                "\"__metadata__\":{\"format\":\"pt\"}}   ",
                -1, 16);
    check_ok(kvm_st_parse(&st, &a, bytes, KVM_STR("x"), &err), &err);
    assert_int_equal(kvm_st_count(st), 4);
    for (ptrdiff_t i = 0; i < 4; i++)
        assert_int_equal(kvm_st_at(st, i)->name.at[0], 'a' + i);
    const kvm_st_tensor *b = kvm_st_find(st, KVM_STR("b"));
    assert_int_equal(b->t.rank, 2);
    assert_int_equal(b->t.dim[1], 3);
    assert_int_equal(b->t.stride[0], 3);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(((const char *)b->t.data)[0], 4); /* its bytes are 4, 5, ... */
    assert_int_equal((uintptr_t)b->t.data % 2, 0);
    assert_int_equal(kvm_st_find(st, KVM_STR("a"))->t.rank, 0);
    assert_int_equal(kvm_tensor_count(&kvm_st_find(st, KVM_STR("a"))->t), 1);
    assert_int_equal(kvm_st_find(st, KVM_STR("d"))->t.dim[3], 3);
    assert_null(kvm_st_find(st, KVM_STR("e")));
    check_str(kvm_st_meta(st, KVM_STR("format")), "pt");
    assert_null(kvm_st_meta(st, KVM_STR("forma")).at);
    kvm_arena_free(&a);
}

#define U8(name, from, to)                                                             \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #to "],\"data_offsets\":[" #from      \
    "," #to "]}"

static void lies(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        long long size;
        ptrdiff_t data;
        kvm_status status;
        const char *part;
    } rows[] = {
        {"{}", 3, 0, KVM_FORMAT, "truncated"},
        {"{}", 1LL << 62, 0, KVM_FORMAT, "a header of"},
        {"{}", -1, 1, KVM_FORMAT, "padded"},
        {"[]", -1, 0, KVM_FORMAT, "x"},
        {"{", -1, 0, KVM_FORMAT, "x"},
        {"{\"a\":1}", -1, 0, KVM_FORMAT, "lacks a dtype"},
        {"{" U8("a", 0, 4) "}", -1, 3, KVM_FORMAT, "truncated"},
        {"{" U8("a", 0, 4) "}", -1, 5, KVM_FORMAT, "padded"},
        {"{" U8("a", 0, 4) "," U8("a", 0, 4) "}", -1, 4, KVM_FORMAT, "a"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         -1, 3, KVM_FORMAT, "overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         -1, 3, KVM_FORMAT, "gap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", -1, 4,
         KVM_FORMAT, "4 bytes for 2 numbers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,4]}}", -1, 4,
         KVM_FORMAT, "no size"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],"
         "\"data_offsets\":[0,0]}}",
         -1, 0, KVM_FORMAT, "overflow"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", -1, 4,
         KVM_FORMAT, "bytes 4 to 0"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", -1, 4,
         KVM_FORMAT, "bytes -4"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,4]}}", -1, 4,
         KVM_DTYPE, "F4"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_st *st;
        const kvm_str bytes = file_of(&a, rows[i].head, rows[i].size, rows[i].data);
        check_status(rows[i].status, kvm_st_parse(&st, &a, bytes, KVM_STR("x"), &err),
                     &err);
        check_contains(err.msg, rows[i].part);
        check_contains(err.msg, "x");
        kvm_arena_free(&a);
    }
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_st *st;
    check_status(KVM_FORMAT,
                 kvm_st_parse(&st, &a, KVM_STR("1234567"), KVM_STR("x"), &err), &err);
    kvm_arena_free(&a);
}

static void needs(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    kvm_st *st;
    const kvm_st_tensor *t;
    const kvm_str bytes = file_of(
        &a, "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}", -1,
        8);
    kvm_err err = {0};
    check_ok(kvm_st_parse(&st, &a, bytes, KVM_STR("x"), &err), &err);
    const ptrdiff_t any[] = {-1, -1}, good[] = {2, 1}, bad[] = {2, 2};
    check_ok(kvm_st_need(st, KVM_STR("w"), KVM_F32, 2, good, &t, &err), &err);
    check_ok(kvm_st_need(st, KVM_STR("w"), KVM_DTYPES, 2, any, &t, &err), &err);
    const struct {
        kvm_status expected, got;
    } rows[] = {
        {KVM_SHAPE, kvm_st_need(st, KVM_STR("w"), KVM_F32, 2, bad, &t, NULL)},
        {KVM_SHAPE, kvm_st_need(st, KVM_STR("w"), KVM_F32, 1, good, &t, NULL)},
        {KVM_DTYPE, kvm_st_need(st, KVM_STR("w"), KVM_BF16, 2, good, &t, NULL)},
        {KVM_NOTFOUND, kvm_st_need(st, KVM_STR("v"), KVM_F32, 2, good, &t, NULL)},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(rows[i].expected, rows[i].got);
    kvm_arena_free(&a);
}

static const kvm_st_spec specs[] = {
    {{"rows", 4}, KVM_F32, 2, {3, 2}},
    {{"ids", 3}, KVM_I32, 1, {5}},
    {{"none", 4}, KVM_F64, 1, {0}},
    {{"one \"quoted\"", 12}, KVM_BF16, 0, {0}},
};

static void written_and_read(void **state)
{
    (void)state;
    check_tmpdir("safetensors");
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st_writer *w;
    kvm_st *st;
    char sha[65], again[65], bytes[24 + 20 + 2];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7);
    json_t *meta = json_pack("{s:s}", "format", "kvm");
    const kvm_str path = KVM_STR(DIR "w.safetensors");
    check_ok(kvm_st_begin(&w, &a, path, specs, COUNT(specs), meta, &err), &err);
    json_decref(meta);
    check_ok(kvm_st_append(w, bytes, 1, &err), &err);
    check_ok(kvm_st_append(w, bytes + 1, 40, &err), &err);
    assert_false(kvm_path_exists(path));
    check_ok(kvm_st_append(w, bytes + 41, sizeof bytes - 41, &err), &err);
    check_ok(kvm_st_publish(w, sha, &err), &err);
    check_ok(kvm_sha_file(path, again, a, &err), &err);
    assert_string_equal(sha, again);
    check_ok(kvm_st_open(&st, &a, path, &err), &err);
    assert_int_equal(kvm_st_count(st), COUNT(specs));
    size_t at = 0;
    for (size_t i = 0; i < COUNT(specs); i++) {
        const kvm_st_tensor *t = kvm_st_find(st, specs[i].name);
        assert_non_null(t);
        assert_int_equal(t->t.rank, specs[i].rank);
        assert_memory_equal(t->t.data, bytes + at, t->bytes);
        at += t->bytes;
    }
    assert_int_equal((uintptr_t)kvm_st_find(st, KVM_STR("rows"))->t.data % 64, 0);
    check_str(kvm_st_meta(st, KVM_STR("format")), "kvm");
    kvm_arena_free(&a);
}

static void wrong_writes(void **state)
{
    (void)state;
    check_tmpdir("safetensors");
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st_writer *w;
    const char bytes[64] = {0};
    const kvm_str path = KVM_STR(DIR "w.safetensors");
    const kvm_st_spec twice[] = {{KVM_STR("a"), KVM_U8, 1, {1}},
                                 {KVM_STR("a"), KVM_U8, 1, {1}}};
    const kvm_st_spec quantised = {KVM_STR("a"), KVM_Q8_0, 1, {32}};
    const kvm_st_spec reserved = {KVM_STR("__metadata__"), KVM_U8, 1, {1}};
    check_status(KVM_USAGE, kvm_st_begin(&w, &a, path, twice, 2, NULL, &err), &err);
    check_contains(err.msg, "twice");
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_st_begin(&w, &a, path, &quantised, 1, NULL, &err),
                 &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_st_begin(&w, &a, path, &reserved, 1, NULL, &err), &err);
    err = (kvm_err){0};
    json_t *meta = json_pack("{s:i}", "n", 1);
    check_status(KVM_USAGE, kvm_st_begin(&w, &a, path, twice, 1, meta, &err), &err);
    json_decref(meta);
    err = (kvm_err){0};
    check_ok(kvm_st_begin(&w, &a, path, specs, COUNT(specs), NULL, &err), &err);
    check_ok(kvm_st_append(w, bytes, 45, &err), &err);
    check_status(KVM_MISMATCH, kvm_st_append(w, bytes, 2, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_MISMATCH, kvm_st_publish(w, NULL, &err), &err);
    kvm_arena_free(&a); /* drops the temporary */
    assert_false(kvm_path_exists(path));
    assert_int_equal(remove(DIR), 0); /* empty */
}

static void write_file(const char *path, const char *head, ptrdiff_t data)
{
    kvm_arena a = check_arena(1 << 20);
    check_write(path, file_of(&a, head, -1, data));
    kvm_arena_free(&a);
}

static const char one[] =
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
static const char two[] =
    "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";

static void shards(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        kvm_status status;
        const char *part;
    } rows[] = {
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", KVM_OK,
         ""},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}",
         KVM_NOTFOUND, "3.safetensors"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}}",
         KVM_FORMAT, "c is not in 2.safetensors"},
        {"{\"weight_map\":{\"a\":\"2.safetensors\"}}", KVM_FORMAT, "a is not in"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}", KVM_FORMAT,
         "no file of this"},
        {"{\"weight_map\":{\"a\":7}}", KVM_FORMAT, "no file of this"},
        {"{}", KVM_FORMAT, "weight_map"},
    };
    check_tmpdir("safetensors");
    write_file(DIR "1.safetensors", one, 1);
    write_file(DIR "2.safetensors", two, 2);
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_arena a = check_arena(1 << 20);
        kvm_err err = {0};
        kvm_st *st;
        check_write(DIR "model.safetensors.index.json", kvm_str_of(rows[i].index));
        check_status(rows[i].status, kvm_st_open(&st, &a, kvm_str_of(DIR), &err), &err);
        check_contains(err.msg, rows[i].part);
        if (rows[i].status == KVM_OK) {
            assert_int_equal(kvm_st_count(st), 2);
            assert_int_equal(kvm_st_files(st), 2);
            check_contains(kvm_st_find(st, KVM_STR("b"))->file.at, "2.safetensors");
        }
        kvm_arena_free(&a);
    }
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    kvm_st *st;
    check_tmpdir("safetensors");
    check_status(KVM_NOTFOUND, kvm_st_open(&st, &a, kvm_str_of(DIR), &err), &err);
    check_contains(err.msg, "neither");
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files),   cmocka_unit_test(lies),
        cmocka_unit_test(needs),        cmocka_unit_test(written_and_read),
        cmocka_unit_test(wrong_writes), cmocka_unit_test(shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
