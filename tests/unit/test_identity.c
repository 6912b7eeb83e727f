/* Tokens read back out of cached rows of the first layer. */
#include "translators/identity.h"

#include <math.h>
#include <string.h>

#include "tests/support/check.h"
#include "translators/gather.h"

#define MODELS "tests/golden/models/"

enum { MOST = 4096 };

static kvm_arena keep;
static kvm_compute *compute;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)8 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_model *open_model(const char *path, bool tokenizer)
{
    kvm_err err = {0};
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = !tokenizer};
    check_ok(kvm_model_open(&m, &keep, compute, kvm_str_of(path), &o, &err), &err);
    return m;
}

/* prose, and then what a tokenizer cuts into single bytes and odd pieces */
static const char text[] =
    "Call me Ishmael. Some years ago - never mind how long precisely - having little "
    "or "
    "no money in my purse, and nothing particular to interest me on shore, I thought I "
    "would sail about a little and see the watery part of the world.\n\n"
    "int main(void) { return 0x7f ^ 42; }  \t// \xc3\xa9t\xc3\xa9, "
    "\xe6\x97\xa5\xe6\x9c\xac, "
    "\xf0\x9f\x90\x8b 1234567890 ?!?! zzzzqqqq\r\n";

static ptrdiff_t read_text(const kvm_model *m, int32_t *ids)
{
    kvm_err err = {0};
    kvm_encoder *e;
    int32_t *out;
    ptrdiff_t n;
    check_ok(kvm_encoder_new(&e, &keep, kvm_model_tokenizer(m), &err), &err);
    check_ok(kvm_encode(e, kvm_str_of(text), NULL, &keep, &out, &n, &err), &err);
    assert_true(n > 100 && n <= MOST);
    memcpy(ids, out, sizeof *ids * (size_t)n);
    return n;
}

static ptrdiff_t random_ids(const kvm_model *m, int32_t *ids, ptrdiff_t n)
{
    kvm_rng rng = kvm_rng_seed(3, 1);
    for (ptrdiff_t i = 0; i < n; i++)
        ids[i] = (int32_t)kvm_rng_below(&rng, (uint64_t)kvm_model_info_of(m)->vocab);
    return n;
}

/* how many of the ids come back from layer 0's rows of a real forward */
static ptrdiff_t decoded(kvm_model *m, bool engine, const kvm_codebook_options *o,
                         const int32_t *ids, ptrdiff_t n)
{
    kvm_err err = {0};
    kvm_codebook *b;
    kvm_taken *taken;
    kvm_cache *c;
    kvm_shapes shapes;
    int32_t got[MOST];
    check_ok(kvm_codebook_new(&b, &keep, compute, m, engine, o, &err), &err);
    const kvm_space s = kvm_codebook_of(b);
    check_ok(kvm_rows_shapes(&shapes, &keep, m, &err), &err);
    check_ok(kvm_taken_new(&taken, &keep, m, 1U << s, n, &err), &err);
    const kvm_capture sink = kvm_taken_capture(taken);
    check_ok(kvm_cache_new(&c, &keep, m, n, &err), &err);
    check_ok(
        kvm_model_forward(m, c, ids, n, &(kvm_forward_options){.capture = &sink}, &err),
        &err);
    check_ok(kvm_codebook_decode(b, kvm_taken_rows(taken, s, 0),
                                 kvm_shapes_width(&shapes, s, 0), n, got, &err),
             &err);
    ptrdiff_t right = 0;
    for (ptrdiff_t i = 0; i < n; i++) right += got[i] == ids[i];
    return right;
}

static void every_token_of_a_text_comes_back(void **state)
{
    (void)state;
    int32_t ids[MOST];
    kvm_model *m = open_model("tests/zoo/mla", true);
    const ptrdiff_t n = read_text(m, ids);
    for (int engine = 0; engine < 2; engine++)
        assert_int_equal(decoded(m, engine, NULL, ids, n), n);
}

/* the nearest of the embeddings to one of them, moved a little, is itself */
static void embeddings_are_nearest_to_themselves(void **state)
{
    (void)state;
    int32_t ids[MOST], got[MOST];
    kvm_err err = {0};
    kvm_codebook *b;
    kvm_model *m = open_model("tests/zoo/mla", true);
    const ptrdiff_t n = random_ids(m, ids, 100), width = kvm_model_info_of(m)->hidden;
    float *rows = kvm_new(&keep, float, n *width);
    assert_non_null(rows);
    check_ok(kvm_codebook_of_embeddings(&b, &keep, compute, m, &err), &err);
    check_ok(kvm_model_embed_tokens(m, ids, n, rows, width, &err), &err);
    for (ptrdiff_t i = 0; i < n * width; i++) rows[i] *= 1.001F;
    check_ok(kvm_codebook_decode(b, rows, width, n, got, &err), &err);
    assert_memory_equal(got, ids, sizeof *ids * (size_t)n);
}

/* values of grouped attention, which no position turns */
static void values_tell_as_well(void **state)
{
    (void)state;
    static const char *const paths[] = {MODELS "qwen3", MODELS "ministral3",
                                        MODELS "deepseek_v3", MODELS "glm_moe_dsa"};
    static const bool latent[] = {false, false, true, true};
    for (size_t i = 0; i < COUNT(paths); i++) {
        int32_t ids[60];
        kvm_err err = {0};
        kvm_space s;
        kvm_model *m = open_model(paths[i], false);
        const ptrdiff_t n = random_ids(m, ids, COUNT(ids));
        check_ok(kvm_codebook_space(&s, m, &err), &err);
        assert_int_equal(s, latent[i] ? KVM_SPACE_LATENT : KVM_SPACE_V);
        assert_int_equal(decoded(m, false, NULL, ids, n), n);
    }
}

/* What projects to one number cannot tell rows that its rounding swaps: that all come
 * back above is the projection's merit. */
static void a_projection_too_narrow_errs(void **state)
{
    (void)state;
    int32_t ids[MOST];
    kvm_model *m = open_model("tests/zoo/mla", true);
    const ptrdiff_t n = read_text(m, ids);
    assert_true(decoded(m, true, &(kvm_codebook_options){.width = 1}, ids, n) < n);
}

static void a_row_between_two_is_of_the_nearer(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_codebook *b;
    kvm_taken *taken;
    kvm_model *m = open_model(MODELS "qwen3", false);
    const int32_t ids[] = {5, 71};
    kvm_cache *c;
    check_ok(kvm_codebook_new(&b, &keep, compute, m, false, NULL, &err), &err);
    check_ok(kvm_taken_new(&taken, &keep, m, 1U << KVM_SPACE_V, 2, &err), &err);
    const kvm_capture sink = kvm_taken_capture(taken);
    check_ok(kvm_cache_new(&c, &keep, m, 2, &err), &err);
    check_ok(
        kvm_model_forward(m, c, ids, 2, &(kvm_forward_options){.capture = &sink}, &err),
        &err);
    const kvm_object *o =
        kvm_model_object(m, kvm_model_find_object(m, KVM_OBJECT_V, 0));
    const ptrdiff_t w = o->heads * o->dim;
    const float *rows = kvm_taken_rows(taken, KVM_SPACE_V, 0);
    float between[2 * 256];
    int32_t got[2];
    assert_true(w <= 256);
    for (ptrdiff_t i = 0; i < w; i++)
        for (int r = 0; r < 2; r++)
            between[r * w + i] = 0.9F * rows[r * w + i] + 0.1F * rows[(1 - r) * w + i];
    check_ok(kvm_codebook_decode(b, between, w, 2, got, &err), &err);
    assert_memory_equal(got, ids, sizeof ids);
    between[w] = NAN;
    check_status(KVM_NAN, kvm_codebook_decode(b, between, w, 2, got, &err), &err);
}

static void a_first_layer_without_tokens_is_refused(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/zoo/kda", MODELS "kimi_linear",
                                        MODELS "nemotron_h", MODELS "qwen3_5"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        kvm_err err = {0};
        kvm_space s;
        kvm_codebook *b;
        kvm_model *m = open_model(paths[i], false);
        check_status(KVM_UNSUPPORTED, kvm_codebook_space(&s, m, &err), &err);
        check_contains(err.msg, "first layer is not attention");
        check_contains(err.msg, "token: given");
        err = (kvm_err){0};
        check_status(KVM_UNSUPPORTED,
                     kvm_codebook_new(&b, &keep, compute, m, false, NULL, &err), &err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_of_a_text_comes_back),
        cmocka_unit_test(embeddings_are_nearest_to_themselves),
        cmocka_unit_test(values_tell_as_well),
        cmocka_unit_test(a_projection_too_narrow_errs),
        cmocka_unit_test(a_row_between_two_is_of_the_nearer),
        cmocka_unit_test(a_first_layer_without_tokens_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
