/* What follows from tokens alone, against real forwards: the first layer's rows, and
 * what n-gram embeddings keep. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "tests/support/caches.h"
#include "tests/support/check.h"

#define MODELS "tests/golden/models/"

enum { VOCAB = 97, TOKENS = 40, MORE = 4, POINTS = 4, OBJECTS = 8 };

static kvm_arena keep;
static kvm_compute *compute;
static int32_t ids[TOKENS + MORE];

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)1 << 32);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
        &err);
    kvm_rng rng = kvm_rng_seed(2, 1);
    for (int i = 0; i < TOKENS + MORE; i++)
        ids[i] = (int32_t)kvm_rng_below(&rng, VOCAB);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_cache *empty(const kvm_model *m)
{
    kvm_err err = {0};
    kvm_cache *c;
    check_ok(kvm_cache_new(&c, &keep, m, 64, &err), &err);
    return c;
}

/* ---- the first layer ---- */

/* rows of layer 0's objects */
typedef struct tape {
    const kvm_model *m;
    float *rows[OBJECTS][POINTS];
    ptrdiff_t tokens[OBJECTS][POINTS];
    bool beyond; /* something of another layer came */
} tape;

static kvm_status write_down(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                             ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    tape *t = ctx;
    const kvm_object *o = kvm_model_object(t->m, object);
    const ptrdiff_t w = o->heads * o->dim;
    if (o->layer > 0) {
        t->beyond = true;
        return KVM_OK;
    }
    assert_true(object < OBJECTS);
    float **to = &t->rows[object][point];
    if (!*to) *to = kvm_new(&keep, float, TOKENS *w);
    memcpy(*to + first * w, rows, sizeof *rows * (size_t)(n * w));
    t->tokens[object][point] += n;
    return KVM_OK;
}

static void the_first_layers_rows_follow(void **state)
{
    (void)state;
    static const char *const paths[] = {MODELS "qwen3",       MODELS "llama",
                                        MODELS "ministral3",  MODELS "deepseek_v3",
                                        MODELS "glm_moe_dsa", MODELS "deepseek_v32",
                                        "tests/zoo/mla",      MODELS "qwen3-fp8"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        kvm_err err = {0};
        kvm_model *m = open_model(&keep, compute, paths[i]);
        tape t[2] = {{.m = m}, {.m = m}};
        kvm_capture sink = {.rows = write_down, .points = 14, .ctx = &t[0]};
        assert_true(kvm_model_tokens_tell(m));
        check_ok(kvm_model_forward(m, empty(m), ids, TOKENS,
                                   &(kvm_forward_options){.capture = &sink}, &err),
                 &err);
        sink.ctx = &t[1];
        check_ok(kvm_model_token_rows(m, ids, TOKENS, &sink, &err), &err);
        assert_false(t[1].beyond);
        ptrdiff_t compared = 0;
        for (ptrdiff_t o = 0; o < OBJECTS; o++)
            for (int p = 1; p < POINTS; p++) {
                assert_int_equal(t[0].tokens[o][p], t[1].tokens[o][p]);
                if (!t[0].rows[o][p]) continue;
                const kvm_object *object = kvm_model_object(m, o);
                assert_memory_equal(t[0].rows[o][p], t[1].rows[o][p],
                                    sizeof(float) *
                                        (size_t)(TOKENS * object->heads * object->dim));
                compared++;
            }
        assert_true(compared >= 4);
    }
}

static void of_other_layers_they_do_not_follow(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/zoo/kda", MODELS "kimi_linear",
                                        MODELS "nemotron_h", MODELS "qwen3_5"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        kvm_err err = {0};
        kvm_model *m = open_model(&keep, compute, paths[i]);
        tape t = {.m = m};
        const kvm_capture sink = {.rows = write_down, .points = 14, .ctx = &t};
        assert_false(kvm_model_tokens_tell(m));
        check_status(KVM_UNSUPPORTED, kvm_model_token_rows(m, ids, 3, &sink, &err),
                     &err);
        check_contains(err.msg, "first layer");
    }
    kvm_err err = {0};
    const int32_t beyond[] = {3, VOCAB};
    const kvm_capture none = {0};
    check_status(KVM_RANGE,
                 kvm_model_token_rows(open_model(&keep, compute, MODELS "qwen3"),
                                      beyond, 2, &none, &err),
                 &err);
}

/* embeddings: of one token in one place or another, rows apart */
static void embeddings_are_rows_of_the_table(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, compute, MODELS "qwen3");
    const ptrdiff_t w = kvm_model_info_of(m)->hidden, ld = w + 5;
    const int32_t three[] = {9, 4, 9};
    float *rows = kvm_new(&keep, float, 3 * ld), *one = kvm_new(&keep, float, w);
    rows[w] = -1;
    check_ok(kvm_model_embed_tokens(m, three, 3, rows, ld, &err), &err);
    check_ok(kvm_model_embed_tokens(m, three + 1, 1, one, w, &err), &err);
    assert_memory_equal(rows, rows + 2 * ld, sizeof *rows * (size_t)w);
    assert_memory_equal(rows + ld, one, sizeof *rows * (size_t)w);
    assert_true(memcmp(rows, one, sizeof *rows * (size_t)w) != 0 && rows[w] == -1);
}

/* ---- n-grams ---- */

static ptrdiff_t ngram_of(const kvm_model *m)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++)
        if (kvm_model_object(m, i)->kind == KVM_OBJECT_NGRAM_WINDOW) return i;
    return -1;
}

static bool of_ngrams(const kvm_object *o)
{
    return o->kind == KVM_OBJECT_NGRAM_WINDOW || o->kind == KVM_OBJECT_LAST_IDS;
}

/* all that a cache keeps, but for what n-grams do */
static void hand_over(const kvm_model *m, const kvm_cache *from, kvm_cache *to)
{
    kvm_err err = {0};
    const ptrdiff_t n = kvm_cache_length(from);
    check_ok(kvm_inject_begin(to, n, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        if (of_ngrams(o)) continue;
        if (!kvm_object_per_prompt(o)) {
            float *rows = kvm_new(&keep, float, n * o->heads * o->dim);
            check_ok(kvm_cache_read(from, i, 3, 0, n, rows, &err), &err);
            check_ok(kvm_inject_rows(to, i, 3, 0, n, rows, &err), &err);
            continue;
        }
        kvm_tensor view;
        check_ok(kvm_cache_view(from, i, &view, &err), &err);
        const kvm_state s = {.data = view.data,
                             .axes = kvm_str_of(kvm_object_axes(o->kind)),
                             .dim = {o->shape[0], o->shape[1], o->shape[2]},
                             .dtype = KVM_F32,
                             .tokens = n};
        check_ok(kvm_inject_state(to, i, &s, &err), &err);
    }
}

static const char *const ngram_models[] = {MODELS "qwen4_exp", MODELS "qwen4_exp-fp8"};

/* after prompts shorter and longer than a window's reach */
static void ngrams_keep_what_their_tokens_say(void **state)
{
    (void)state;
    static const ptrdiff_t lengths[] = {1, 2, 5, 6, 7, TOKENS};
    for (size_t k = 0; k < COUNT(ngram_models) * COUNT(lengths); k++) {
        kvm_err err = {0};
        const ptrdiff_t n = lengths[k % COUNT(lengths)];
        kvm_model *m = open_model(&keep, compute, ngram_models[k / COUNT(lengths)]);
        kvm_cache *from = empty(m), *to = empty(m);
        check_ok(kvm_model_forward(m, from, ids, n, NULL, &err), &err);
        hand_over(m, from, to);
        check_ok(kvm_inject_tokens(to, ids, &err), &err);
        check_ok(kvm_inject_end(to, &err), &err);
        ptrdiff_t seen = 0;
        for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
            const kvm_object *o = kvm_model_object(m, i);
            if (!of_ngrams(o)) continue;
            kvm_tensor a, b;
            check_ok(kvm_cache_view(from, i, &a, &err), &err);
            check_ok(kvm_cache_view(to, i, &b, &err), &err);
            const float *x = a.data, *y = b.data;
            /* the gate that is left out is a factor before a norm, which takes it away
             * but for its eps */
            const float limit = o->kind == KVM_OBJECT_LAST_IDS ? 0 : 1e-3F;
            float most = 0, size = 0;
            for (ptrdiff_t e = 0; e < o->dim; e++) {
                most = fmaxf(most, fabsf(x[e] - y[e]));
                size = fmaxf(size, fabsf(x[e]));
            }
            if (!(most <= limit * size))
                fail_msg("%s.%td after %td tokens differs by %g of %g",
                         kvm_object_name(o->kind), o->layer, n, (double)most,
                         (double)size);
            seen++;
        }
        assert_true(seen >= 2);
    }
}

/* and so the next tokens are what they were */
static void a_continuation_goes_on_from_them(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, compute, ngram_models[0]);
    kvm_cache *from = empty(m), *to = empty(m), *other = empty(m);
    const ptrdiff_t vocab = kvm_model_info_of(m)->vocab;
    check_ok(kvm_model_forward(m, from, ids, TOKENS, NULL, &err), &err);
    hand_over(m, from, to);
    check_ok(kvm_inject_tokens(to, ids, &err), &err);
    check_ok(kvm_inject_end(to, &err), &err);
    int32_t wrong[TOKENS];
    for (int i = 0; i < TOKENS; i++) wrong[i] = (ids[i] + 1) % VOCAB;
    hand_over(m, from, other);
    check_ok(kvm_inject_tokens(other, wrong, &err), &err);
    check_ok(kvm_inject_end(other, &err), &err);
    kvm_cache *const caches[] = {from, to, other};
    float *logits[3];
    for (int i = 0; i < 3; i++) {
        logits[i] = kvm_new(&keep, float, MORE *vocab);
        const kvm_forward_options o = {.logits_last = MORE, .logits = logits[i]};
        check_ok(kvm_model_forward(m, caches[i], ids + TOKENS, MORE, &o, &err), &err);
    }
    double right = 0, off = 0, size = 0;
    for (ptrdiff_t i = 0; i < MORE * vocab; i++) {
        right += pow((double)(logits[1][i] - logits[0][i]), 2);
        off += pow((double)(logits[2][i] - logits[0][i]), 2);
        size += pow((double)logits[0][i], 2);
    }
    if (!(right < 1e-8 * size && off > 1e-2 * size))
        fail_msg("differs by %g of %g; %g by other tokens", right, size, off);
}

static void tokens_belong_to_a_promise(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, compute, ngram_models[0]);
    kvm_cache *from = empty(m), *to = empty(m);
    int32_t bad[TOKENS] = {0};
    bad[TOKENS - 1] = (int32_t)kvm_model_info_of(m)->vocab;
    check_status(KVM_USAGE, kvm_inject_tokens(to, ids, &err), &err);
    check_ok(kvm_model_forward(m, from, ids, TOKENS, NULL, &(kvm_err){0}),
             &(kvm_err){0});
    hand_over(m, from, to);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_inject_tokens(to, bad, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_MISMATCH, kvm_inject_end(to, &err), &err);
    check_contains(err.msg, kvm_object_name(kvm_model_object(m, ngram_of(m))->kind));
    assert_int_equal(kvm_cache_length(to), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_layers_rows_follow),
        cmocka_unit_test(of_other_layers_they_do_not_follow),
        cmocka_unit_test(embeddings_are_rows_of_the_table),
        cmocka_unit_test(ngrams_keep_what_their_tokens_say),
        cmocka_unit_test(a_continuation_goes_on_from_them),
        cmocka_unit_test(tokens_belong_to_a_promise),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
