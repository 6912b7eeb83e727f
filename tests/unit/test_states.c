/* What recurrent layers keep: put in whole and as it is, or not at all; cut back only
 * to where it was marked. */
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "tests/support/check.h"

enum { V = 97, TOKENS = 20, MORE = 5 }; /* of the golden models */

/* two recurrent models, whose states have other axes */
typedef struct kept {
    const char *model;
    kvm_object_kind state;
    const char *axes, *turned;
    ptrdiff_t attends; /* a layer that keeps K and V; layer 0 keeps a state */
} kept;
static const kept delta = {"tests/golden/models/qwen3_5", KVM_OBJECT_STATE, "(H,K,V)",
                           "(H,V,K)", 1};
static const kept scan = {"tests/golden/models/nemotron_h", KVM_OBJECT_SSM_STATE,
                          "(H,P,N)", "(H,N,P)", 2};

typedef struct fixture {
    const kept *k;
    kvm_arena keep;
    kvm_model *m;
    kvm_cache *from, *to;
    int32_t ids[TOKENS + MORE];
    float native[MORE * V];
} fixture;

static void run_on(fixture *f, kvm_cache *c, float *logits)
{
    kvm_err err = {0};
    const kvm_forward_options o = {.logits_last = MORE, .logits = logits};
    check_ok(kvm_model_forward(f->m, c, f->ids + TOKENS, MORE, &o, &err), &err);
}

static kvm_cache *empty(fixture *f)
{
    kvm_err err = {0};
    kvm_cache *c;
    check_ok(kvm_cache_new(&c, &f->keep, f->m, 64, &err), &err);
    return c;
}

static int setup(void **state, const kept *k)
{
    kvm_err err = {0};
    kvm_compute *c;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->k = k;
    f->keep = check_arena((size_t)1 << 30);
    check_ok(kvm_compute_new(&c, &f->keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&f->m, &f->keep, c, kvm_str_of(k->model), &o, &err), &err);
    f->from = empty(f);
    f->to = empty(f);
    kvm_rng r = kvm_rng_seed(1, 1);
    for (int i = 0; i < TOKENS + MORE; i++) f->ids[i] = (int32_t)kvm_rng_below(&r, V);
    check_ok(kvm_model_forward(f->m, f->from, f->ids, TOKENS, NULL, &err), &err);
    kvm_cache_mark(f->from);
    run_on(f, f->from, f->native);
    check_ok(kvm_cache_truncate(f->from, TOKENS, &err), &err);
    *state = f;
    return 0;
}

static int setup_delta(void **state)
{
    return setup(state, &delta);
}

static int setup_scan(void **state)
{
    return setup(state, &scan);
}

static int teardown(void **state)
{
    fixture *f = *state;
    kvm_arena_free(&f->keep);
    free(f);
    return 0;
}

/* an object of the source cache as it says of itself */
static kvm_state taken(fixture *f, ptrdiff_t object)
{
    kvm_err err = {0};
    kvm_tensor view;
    const kvm_object *o = kvm_model_object(f->m, object);
    check_ok(kvm_cache_view(f->from, object, &view, &err), &err);
    return (kvm_state){.data = view.data,
                       .axes = o->kind == f->k->state ? kvm_str_of(f->k->axes)
                                                      : KVM_STR("(C,W)"),
                       .dim = {o->shape[0], o->shape[1], o->shape[2]},
                       .dtype = KVM_F32,
                       .tokens = TOKENS};
}

/* every object but `left` */
static void put_all_but(fixture *f, ptrdiff_t left)
{
    kvm_err err = {0};
    check_ok(kvm_inject_begin(f->to, TOKENS, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++) {
        const kvm_object *o = kvm_model_object(f->m, i);
        if (i == left) continue;
        if (kvm_object_per_prompt(o)) {
            const kvm_state s = taken(f, i);
            check_ok(kvm_inject_state(f->to, i, &s, &err), &err);
            continue;
        }
        float rows[TOKENS * 64];
        check_ok(kvm_cache_read(f->from, i, 3, 0, TOKENS, rows, &err), &err);
        check_ok(kvm_inject_rows(f->to, i, 3, 0, TOKENS, rows, &err), &err);
    }
}

static ptrdiff_t find(fixture *f, kvm_object_kind kind)
{
    return kvm_model_find_object(f->m, kind, 0);
}

static void whole(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    float again[MORE * V];
    put_all_but(f, -1);
    check_ok(kvm_inject_end(f->to, &err), &err);
    run_on(f, f->to, again);
    assert_memory_equal(again, f->native, sizeof again);
}

static void missing(void **state)
{
    fixture *f = *state;
    const kvm_object_kind kinds[] = {f->k->state, KVM_OBJECT_WINDOW};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        put_all_but(f, find(f, kinds[i]));
        check_refused(KVM_MISMATCH, kvm_object_name(kinds[i]),
                      kvm_inject_end(f->to, &no));
        assert_int_equal(kvm_cache_length(f->to), 0);
    }
}

/* what is wrong with a state is said before it is taken in */
static void not_itself(void **state)
{
    fixture *f = *state;
    const ptrdiff_t s = find(f, f->k->state), w = find(f, KVM_OBJECT_WINDOW);
    kvm_state bad[6];
    for (int i = 0; i < 6; i++) bad[i] = taken(f, i < 4 ? s : w);
    static const char *const words[] = {"after 19 tokens", "transpose", "BF16",
                                        "axis 3",          "axis 2",    "(C,W)"};
    bad[0].tokens = TOKENS - 1;
    bad[1].axes = kvm_str_of(f->k->turned);
    bad[2].dtype = KVM_BF16;
    bad[3].dim[2]--;
    bad[4].dim[1] = 3; /* a window as engines that keep one column less have it */
    bad[5].axes = KVM_STR("(W,C)");
    kvm_err err = {0};
    check_ok(kvm_inject_begin(f->to, TOKENS, &err), &err);
    for (int i = 0; i < 6; i++)
        check_refused(KVM_MISMATCH, words[i],
                      kvm_inject_state(f->to, i < 4 ? s : w, &bad[i], &no));
    const kvm_state good = taken(f, s);
    const ptrdiff_t k = kvm_model_find_object(f->m, KVM_OBJECT_K, f->k->attends);
    check_ok(kvm_inject_state(f->to, s, &good, &err), &err);
    check_refused(KVM_MISMATCH, "twice", kvm_inject_state(f->to, s, &good, &no));
    check_refused(KVM_USAGE, "in rows", kvm_inject_state(f->to, k, &good, &no));
}

static void replayed_in_order(void **state)
{
    fixture *f = *state;
    const ptrdiff_t s = find(f, f->k->state), w = find(f, KVM_OBJECT_WINDOW);
    float rows[TOKENS * 48] = {0};
    kvm_err err = {0};
    check_ok(kvm_inject_begin(f->to, TOKENS, &err), &err);
    check_ok(kvm_inject_rows(f->to, s, 1, 0, 7, rows, &err), &err);
    check_refused(KVM_MISMATCH, "the next one is 7",
                  kvm_inject_rows(f->to, s, 1, 8, 2, rows, &no));
    check_refused(KVM_MISMATCH, "7 to 21",
                  kvm_inject_rows(f->to, s, 1, 7, 14, rows, &no));
    check_refused(KVM_USAGE, "point 1", kvm_inject_rows(f->to, s, 3, 7, 2, rows, &no));
    check_refused(KVM_USAGE, "whole", kvm_inject_rows(f->to, w, 1, 7, 2, rows, &no));
}

static void cut_back(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    float again[MORE * V];
    run_on(f, f->from, again);
    assert_memory_equal(again, f->native, sizeof again);
    check_refused(KVM_UNSUPPORTED, "marked",
                  kvm_cache_truncate(f->from, TOKENS + 1, &no));
    check_ok(kvm_cache_copy(f->to, f->from, &err), &err);
    /* a copy has no mark */
    check_refused(KVM_UNSUPPORTED, "marked", kvm_cache_truncate(f->to, TOKENS, &no));
    check_ok(kvm_cache_truncate(f->from, TOKENS, &err), &err);
    run_on(f, f->from, again);
    assert_memory_equal(again, f->native, sizeof again);
    /* nothing is left of what was there before */
    check_ok(kvm_cache_truncate(f->from, 0, &err), &err);
    check_ok(kvm_model_forward(f->m, f->from, f->ids, TOKENS, NULL, &err), &err);
    run_on(f, f->from, again);
    assert_memory_equal(again, f->native, sizeof again);
}

static bool at_once(kvm_progress *p)
{
    (void)p;
    return true;
}

/* a forward that ends half way has moved the states: nothing of it is left */
static void interrupted(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_progress p = {.cancelled = at_once};
    const kvm_forward_options o = {.chunk = 2, .progress = &p};
    check_ok(kvm_cache_truncate(f->from, 0, &err), &err);
    check_refused(KVM_CANCELLED, "2 of 20",
                  kvm_model_forward(f->m, f->from, f->ids, TOKENS, &o, &no));
    assert_int_equal(kvm_cache_length(f->from), 0);
    float again[MORE * V];
    check_ok(kvm_model_forward(f->m, f->from, f->ids, TOKENS, NULL, &err), &err);
    run_on(f, f->from, again);
    assert_memory_equal(again, f->native, sizeof again);
}

#define TEST(f)                                                                        \
    cmocka_unit_test_setup_teardown(f, setup_delta, teardown),                         \
        cmocka_unit_test_setup_teardown(f, setup_scan, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(whole),    TEST(missing),     TEST(not_itself), TEST(replayed_in_order),
        TEST(cut_back), TEST(interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
