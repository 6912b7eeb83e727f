/* Configs out of the keys of a GGUF file. */
#include <math.h>
#include <string.h>

#include "models/config.h"
#include "models/rope.h"
#include "tests/support/check.h"

/* the golden file with one text replaced by another of the same length */
static kvm_status patched(kvm_config *c, kvm_arena *a, const char *from, const char *to,
                          kvm_err *err)
{
    kvm_str bytes = check_read(a, "tests/golden/models/mistral3.gguf");
    kvm_gguf *g;
    if (from) {
        const ptrdiff_t at = kvm_str_find(bytes, kvm_str_of(from));
        assert_true(at > 0);
        memcpy((char *)(uintptr_t)bytes.at + at, to, strlen(to));
    }
    TRY(kvm_gguf_parse(&g, a, bytes, KVM_STR("m.gguf"), err));
    return kvm_config_of_gguf(c, a, g, err);
}

static void from_gguf(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 22);
    kvm_err err = {0};
    kvm_config c = {0};
    check_ok(patched(&c, &a, NULL, NULL, &err), &err);
    check_str(kvm_str_of(c.family ? c.family->name : ""), "ministral3");
    assert_int_equal(c.vocab, 97);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.rope.kind, KVM_ROPE_YARN);
    assert_int_equal(c.rope.original, 8);
    assert_true(fabs(c.temperature - 0.1) < 1e-6);
    assert_false(c.tied);
    static const struct {
        const char *from, *to;
        kvm_status status;
        const char *part;
    } rows[] = {
        {"mistral3", "mistralX", KVM_UNSUPPORTED, "mistralX"},
        {"mistral3.block_count", "mistral3.block_kount", KVM_NOTFOUND, "block_count"},
        {"mistral3.rope.freq_base", "mistral3.rope.freq_bose", KVM_OK, ""},
        {"token_embd.weight", "token_embt.weight", KVM_FORMAT, "token_embd"},
        {"mistral3.attention.key_length", "mistral3.attention.kez_length", KVM_OK,
         ""}, /* 64 / 4 heads */
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        err = (kvm_err){0};
        check_status(rows[i].status, patched(&c, &a, rows[i].from, rows[i].to, &err),
                     &err);
        check_contains(err.msg, rows[i].part);
    }
    kvm_arena_free(&a);
}

/* A key more in front of the golden file's: a filler behind it keeps the data
 * aligned. */
static kvm_str with_key(kvm_arena *a, kvm_str file, const char *key, uint32_t type,
                        const void *value, size_t bytes)
{
    enum { STRING = 8 };
    char head[512];
    size_t n = 0;
    const uint64_t key_len = strlen(key), one = 1;
    uint64_t keys;
    memcpy(head + n, &key_len, 8), n += 8;
    for (size_t i = 0; i < key_len; i++) head[n++] = key[i];
    memcpy(head + n, &type, 4), n += 4;
    memcpy(head + n, value, bytes), n += bytes;
    const uint32_t text = STRING;
    const uint64_t fill = (32 - (n + 8 + 1 + 4 + 8) % 32) % 32;
    memcpy(head + n, &one, 8), n += 8;
    head[n++] = (char)('A' + file.at[16] % 26); /* a name of its own */
    memcpy(head + n, &text, 4), n += 4;
    memcpy(head + n, &fill, 8), n += 8;
    memset(head + n, 'x', fill), n += fill;
    char *out = kvm_new(a, char, file.len + (ptrdiff_t)n);
    memcpy(out, file.at, 24);
    memcpy(&keys, file.at + 16, 8);
    keys += 2;
    memcpy(out + 16, &keys, 8);
    memcpy(out + 24, head, n);
    memcpy(out + 24 + n, file.at + 24, (size_t)file.len - 24);
    return (kvm_str){out, file.len + (ptrdiff_t)n};
}

typedef struct extra {
    const char *key;
    double value; /* stored as f32; of split.count as u16 */
} extra;

static kvm_status extended(kvm_config *c, kvm_arena *a, const char *from,
                           const char *to, const extra *x, kvm_err *err)
{
    enum { U16 = 2, F32 = 6 };
    kvm_gguf *g;
    kvm_str bytes = check_read(a, "tests/golden/models/mistral3.gguf");
    if (from) {
        const ptrdiff_t at = kvm_str_find(bytes, kvm_str_of(from));
        assert_true(at > 0);
        memcpy((char *)(uintptr_t)bytes.at + at, to, strlen(to));
    }
    for (; x->key; x++) {
        const float real = (float)x->value;
        const uint16_t whole = (uint16_t)x->value;
        const bool split = strcmp(x->key, "split.count") == 0;
        bytes = split ? with_key(a, bytes, x->key, U16, &whole, sizeof whole)
                      : with_key(a, bytes, x->key, F32, &real, sizeof real);
    }
    TRY(kvm_gguf_parse(&g, a, bytes, KVM_STR("m.gguf"), err));
    return kvm_config_of_gguf(c, a, g, err);
}

#define ROPE "mistral3.rope.scaling."
/* The keys as llama.cpp's converter writes and its loader reads them, with its
 * defaults. */
static const struct {
    const char *from, *to;
    extra x[2];
    kvm_rope_kind kind;
    int original;
    double attention; /* the factor of rotated rows */
} scaled[] = {
    {NULL, NULL, {{0}}, KVM_ROPE_YARN, 8, 1},
    /* log_multiplier is mscale_all_dim; without one, the factor alone counts */
    {"log_multiplier", "log_multiplies", {{0}}, KVM_ROPE_YARN, 8, 1.1386294},
    {NULL, NULL, {{ROPE "yarn_attn_factor", 1.5}}, KVM_ROPE_YARN, 8, 1.5},
    {NULL, NULL, {{ROPE "attn_factor", 1}}, KVM_ROPE_YARN, 8, 1},
    {"original_context", "original_kontext", {{0}}, KVM_ROPE_YARN, 128, 1},
    /* a factor without a type is linear; the temperature has its context all the
     * same */
    {ROPE "type", ROPE "tipe", {{0}}, KVM_ROPE_LINEAR, 8, 1},
};

static void scaling_keys_of_gguf(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(scaled); i++) {
        kvm_arena a = check_arena(1 << 22);
        kvm_err err = {0};
        kvm_config c = {0};
        kvm_rope r;
        check_ok(extended(&c, &a, scaled[i].from, scaled[i].to, scaled[i].x, &err),
                 &err);
        check_ok(kvm_rope_of(&r, &a, &c.rope, NULL, &err), &err);
        assert_int_equal(c.rope.kind, scaled[i].kind);
        assert_int_equal(c.rope.original, scaled[i].original);
        assert_true(c.rope.factor == 4);
        assert_true(fabs((double)r.factor - scaled[i].attention) < 1e-6);
        assert_true(fabs(c.temperature - 0.1) < 1e-6);
        kvm_arena_free(&a);
    }
}

static void keys_of_gguf_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        extra x[2];
        const char *part;
    } rows[] = {
        {{{ROPE "yarn_ext_factor", 0.5}}, ROPE "yarn_ext_factor is 0.5; only 1 is run"},
        {{{ROPE "attn_factor", 2}}, ROPE "attn_factor is 2; only 1 is run"},
        {{{"split.count", 3}},
         "m.gguf: one of 3 parts; join them first: llama-gguf-split "},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_arena a = check_arena(1 << 22);
        kvm_err err = {0};
        kvm_config c;
        check_status(KVM_UNSUPPORTED, extended(&c, &a, NULL, NULL, rows[i].x, &err),
                     &err);
        check_contains(err.msg, rows[i].part);
        kvm_arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaling_keys_of_gguf),
        cmocka_unit_test(keys_of_gguf_that_are_refused),
        cmocka_unit_test(from_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
