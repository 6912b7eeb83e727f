/* Injection behind tokens that a cache holds: what a model has read and what is put in
 * stand side by side as if it had read all of it, and what fails leaves what was
 * there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "tests/support/caches.h"
#include "tests/support/check.h"

#define MODELS "tests/golden/models/"

enum { V = 97, CAPACITY = 64, TOKENS = 45, ROW = 1024 };

typedef struct fixture {
    kvm_arena keep;
    kvm_model *m;
    kvm_cache *from, *to;
    int32_t ids[TOKENS], other[TOKENS];
} fixture;

static kvm_cache *empty(fixture *f)
{
    kvm_err err = {0};
    kvm_cache *c;
    check_ok(kvm_cache_new(&c, &f->keep, f->m, CAPACITY, &err), &err);
    return c;
}

static fixture *start(const char *model, const char *backend)
{
    kvm_err err = {0};
    kvm_compute *c;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->keep = check_arena((size_t)1 << 32);
    check_ok(
        kvm_compute_new(&c, &f->keep, kvm_backend_find(kvm_str_of(backend)), 2, &err),
        &err);
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&f->m, &f->keep, c, kvm_str_of(model), &o, &err), &err);
    f->from = empty(f);
    f->to = empty(f);
    kvm_rng r = kvm_rng_seed(5, 1);
    for (int i = 0; i < TOKENS; i++) {
        f->ids[i] = (int32_t)kvm_rng_below(&r, V);
        f->other[i] = (int32_t)kvm_rng_below(&r, V);
    }
    return f;
}

static void stop(fixture *f)
{
    kvm_arena_free(&f->keep);
    free(f);
}

/* a cache reads its text on up to `end` tokens */
static void read_to(fixture *f, kvm_cache *c, ptrdiff_t end)
{
    kvm_err err = {0};
    const ptrdiff_t have = kvm_cache_length(c);
    check_ok(kvm_model_forward(f->m, c, f->ids + have, end - have, NULL, &err), &err);
}

/* an object of f->from as it says of itself */
static kvm_state state_of(fixture *f, ptrdiff_t object)
{
    kvm_err err = {0};
    kvm_tensor view;
    const kvm_object *o = kvm_model_object(f->m, object);
    check_ok(kvm_cache_view(f->from, object, &view, &err), &err);
    return (kvm_state){.data = view.data,
                       .axes = kvm_str_of(kvm_object_axes(o->kind)),
                       .dim = {o->shape[0], o->shape[1], o->shape[2]},
                       .dtype = KVM_F32,
                       .tokens = kvm_cache_length(f->from)};
}

static bool of_ngrams(const kvm_object *o)
{
    return o->kind == KVM_OBJECT_NGRAM_WINDOW || o->kind == KVM_OBJECT_LAST_IDS;
}

/* tokens first .. first+n-1 of f->from's rows of an object */
static void put_rows(fixture *f, ptrdiff_t object, ptrdiff_t first, ptrdiff_t n)
{
    kvm_err err = {0};
    static float rows[TOKENS * ROW];
    const kvm_object *o = kvm_model_object(f->m, object);
    assert_true(o->heads * o->dim <= ROW);
    check_ok(kvm_cache_read(f->from, object, 3, first, n, rows, &err), &err);
    check_ok(kvm_inject_rows(f->to, object, 3, first, n, rows, &err), &err);
}

/* begin, and what f->from holds behind f->to's tokens, but object `left` (-1: none) and
 * what n-grams keep, where that is to follow from ids */
static void put_all_but(fixture *f, ptrdiff_t left, bool ids)
{
    kvm_err err = {0};
    const ptrdiff_t first = kvm_cache_length(f->to);
    const ptrdiff_t n = kvm_cache_length(f->from) - first;
    check_ok(kvm_inject_begin(f->to, n, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++) {
        const kvm_object *o = kvm_model_object(f->m, i);
        if (i == left || (ids && of_ngrams(o))) continue;
        if (kvm_object_per_prompt(o)) {
            const kvm_state s = state_of(f, i);
            check_ok(kvm_inject_state(f->to, i, &s, &err), &err);
        } else {
            put_rows(f, i, first + n / 2, n - n / 2);
            put_rows(f, i, first, n / 2);
        }
    }
}

static ptrdiff_t find(fixture *f, kvm_object_kind kind)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++)
        if (kvm_model_object(f->m, i)->kind == kind) return i;
    fail_msg("the model keeps no %s", kvm_object_name(kind));
    return -1;
}

/* ---- side by side ---- */

/* What was read before it was cut back is another text's: nothing of it may be left,
 * and no block of an indexer that it had made. */
static void read_beyond(fixture *f, kvm_cache *c, ptrdiff_t length)
{
    kvm_err err = {0};
    read_to(f, c, length);
    kvm_cache_mark(c);
    check_ok(kvm_model_forward(f->m, c, f->other, 11, NULL, &err), &err);
    check_ok(kvm_cache_truncate(c, length, &err), &err);
}

/* read up to `first`, injected up to `end`, read on: as if all had been read */
static void side_by_side(fixture *f, ptrdiff_t first, ptrdiff_t end)
{
    kvm_err err = {0};
    kvm_cache_clear(f->from);
    kvm_cache_clear(f->to);
    read_to(f, f->from, first);
    read_to(f, f->from, end);
    read_beyond(f, f->to, first);
    put_all_but(f, -1, false);
    check_ok(kvm_inject_end(f->to, &err), &err);
    assert_int_equal(kvm_cache_length(f->to), end);
    const float d = logits_differ(f->keep, f->m, f->from, f->to, f->ids + end, 8);
    if (d != 0)
        fail_msg("%s, tokens %td to %td: logits by %g",
                 kvm_model_info_of(f->m)->path.at, first, end, (double)d);
}

static void read_and_injected_are_as_read(void **state)
{
    (void)state;
    static const char *const models[] = {
        MODELS "qwen3",       MODELS "deepseek_v3", MODELS "deepseek_v32",
        MODELS "glm_moe_dsa", MODELS "kimi_linear", MODELS "qwen3_5",
        MODELS "nemotron_h",  MODELS "glm5_next",   MODELS "qwen4_exp"};
    static const char *const backends[] = {"ref", "cpu"};
    /* of one token; shorter than a window; within a block of 4 and across some */
    static const ptrdiff_t cuts[][2] = {{1, 2},   {2, 5},   {13, 14},
                                        {17, 19}, {14, 23}, {5, 37}};
    for (size_t i = 0; i < COUNT(models) * COUNT(backends); i++) {
        fixture *f = start(models[i / COUNT(backends)], backends[i % COUNT(backends)]);
        for (size_t k = 0; k < COUNT(cuts); k++)
            side_by_side(f, cuts[k][0], cuts[k][1]);
        stop(f);
    }
}

/* what n-grams keep follows from ids, of which some stood before the seam */
static void ngrams_look_back_across_the_seam(void **state)
{
    (void)state;
    kvm_err err = {0};
    static const ptrdiff_t cuts[][2] = {{1, 2}, {1, 3}, {4, 5}, {9, 11}, {10, 17}};
    fixture *f = start(MODELS "qwen4_exp", "ref");
    for (size_t k = 0; k < COUNT(cuts); k++) {
        kvm_cache_clear(f->from);
        kvm_cache_clear(f->to);
        read_to(f, f->from, cuts[k][1]);
        read_to(f, f->to, cuts[k][0]);
        put_all_but(f, -1, true);
        check_ok(kvm_inject_tokens(f->to, f->ids + cuts[k][0], &err), &err);
        check_refused(KVM_MISMATCH, "twice",
                      kvm_inject_tokens(f->to, f->ids + cuts[k][0], &no));
        check_ok(kvm_inject_end(f->to, &err), &err);
        for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++) {
            const kvm_object *o = kvm_model_object(f->m, i);
            /* test_token_rows.c has the reason */
            const float limit = o->kind == KVM_OBJECT_NGRAM_WINDOW ? 1e-3F : 0;
            if (of_ngrams(o))
                assert_true(object_differs(f->keep, f->m, i, f->to, f->from) <= limit);
        }
    }
    stop(f);
}

/* a state that takes nothing of the new tokens */
static void a_state_may_stay_as_it_is(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_tensor view;
    fixture *f = start(MODELS "qwen3_5", "cpu");
    const ptrdiff_t i = find(f, KVM_OBJECT_STATE), k = find(f, KVM_OBJECT_K);
    const kvm_object *o = kvm_model_object(f->m, i);
    float *before = kvm_new(&f->keep, float, o->dim * o->heads);
    read_to(f, f->from, 30);
    read_to(f, f->to, 20);
    check_ok(kvm_cache_view(f->to, i, &view, &err), &err);
    memcpy(before, view.data, sizeof(float) * (size_t)(o->dim * o->heads));
    check_refused(KVM_USAGE, "comes before", kvm_inject_unchanged(f->to, i, &no));
    put_all_but(f, i, false);
    check_refused(KVM_USAGE, "in rows", kvm_inject_unchanged(f->to, k, &no));
    check_ok(kvm_inject_unchanged(f->to, i, &err), &err);
    check_refused(KVM_MISMATCH, "twice", kvm_inject_unchanged(f->to, i, &no));
    check_ok(kvm_inject_end(f->to, &err), &err);
    assert_memory_equal(view.data, before, sizeof(float) * (size_t)(o->dim * o->heads));
    assert_true(object_differs(f->keep, f->m, i, f->to, f->from) > 0);
    stop(f);
}

/* ---- refusals ---- */

/* without states a cache is as it was, whatever came of the injection */
static void what_fails_leaves_the_tokens_that_were_there(void **state)
{
    (void)state;
    kvm_err err = {0};
    fixture *f = start(MODELS "deepseek_v32", "cpu");
    const ptrdiff_t i = find(f, KVM_OBJECT_INDEX_KEY);
    static float rows[CAPACITY * ROW];
    kvm_cache *untouched = empty(f);
    read_to(f, untouched, 20);
    read_to(f, f->from, 30);
    read_to(f, f->to, 20);
    kvm_inject_cancel(f->to); /* of nothing: nothing */
    put_all_but(f, i, false);
    check_refused(KVM_RANGE, "tokens 20 to 30",
                  kvm_inject_rows(f->to, i, 3, 19, 1, rows, &no));
    check_refused(KVM_RANGE, "tokens 20 to 30",
                  kvm_inject_rows(f->to, i, 3, 29, 2, rows, &no));
    put_rows(f, i, 20, 4);
    put_rows(f, i, 25, 5);
    check_refused(KVM_MISMATCH, "token 24 of 30", kvm_inject_end(f->to, &no));
    assert_int_equal(kvm_cache_length(f->to), 20);
    put_all_but(f, -1, false);
    kvm_inject_cancel(f->to);
    assert_int_equal(kvm_cache_length(f->to), 20);
    put_all_but(f, -1, false); /* index keys came, and were to be left out */
    check_ok(kvm_inject_dense(f->to, &err), &err);
    check_refused(KVM_MISMATCH, "10 tokens were injected", kvm_inject_end(f->to, &no));
    assert_int_equal(kvm_cache_length(f->to), 20);
    assert_int_equal(kvm_cache_dense(f->to), 0);
    assert_true(logits_differ(f->keep, f->m, f->to, untouched, f->ids + 20, 9) == 0);
    stop(f);
}

/* index keys that do not come behind tokens that have some: all is looked at */
static void without_index_keys_all_before_is_looked_at(void **state)
{
    (void)state;
    kvm_err err = {0};
    fixture *f = start(MODELS "deepseek_v32", "cpu");
    read_to(f, f->from, 30);
    read_to(f, f->to, 20);
    check_ok(kvm_inject_begin(f->to, 10, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++)
        if (kvm_model_object(f->m, i)->kind != KVM_OBJECT_INDEX_KEY)
            put_rows(f, i, 20, 10);
    check_ok(kvm_inject_dense(f->to, &err), &err);
    check_ok(kvm_inject_end(f->to, &err), &err);
    assert_int_equal(kvm_cache_dense(f->to), 30);
    stop(f);
}

/* a state has moved on: then nothing is left, and the cache can be used anew */
static void a_state_that_moved_on_empties_the_cache(void **state)
{
    (void)state;
    kvm_err err = {0};
    fixture *f = start(MODELS "qwen3_5", "cpu");
    const ptrdiff_t i = find(f, KVM_OBJECT_STATE);
    static const float rows[CAPACITY * ROW];
    read_to(f, f->from, 30);
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        read_to(f, f->to, 20);
        put_all_but(f, i, false);
        kvm_state s = state_of(f, i);
        s.tokens = 10;
        check_refused(KVM_MISMATCH, "30 were announced",
                      kvm_inject_state(f->to, i, &s, &no));
        check_refused(KVM_MISMATCH, "the next one is 20",
                      kvm_inject_rows(f->to, i, 1, 0, 5, rows, &no));
        check_ok(kvm_inject_rows(f->to, i, 1, 20, 4, rows, &err), &err);
        s.tokens = 30;
        check_refused(KVM_MISMATCH, "twice", kvm_inject_state(f->to, i, &s, &no));
        if (cancelled)
            kvm_inject_cancel(f->to);
        else
            check_refused(KVM_MISMATCH, "after 24 of 30", kvm_inject_end(f->to, &no));
        assert_int_equal(kvm_cache_length(f->to), 0);
    }
    read_to(f, f->to, 30);
    assert_true(caches_differ(f->keep, f->m, f->to, f->from) == 0);
    stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_and_injected_are_as_read),
        cmocka_unit_test(ngrams_look_back_across_the_seam),
        cmocka_unit_test(a_state_may_stay_as_it_is),
        cmocka_unit_test(what_fails_leaves_the_tokens_that_were_there),
        cmocka_unit_test(without_index_keys_all_before_is_looked_at),
        cmocka_unit_test(a_state_that_moved_on_empties_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
