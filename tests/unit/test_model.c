/* Running a model: memory that does not grow with the prompt, a decode that allocates
 * nothing, chunks of the model's own choice, progress, generation to an end. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "models/model.h"
#include "tests/support/check.h"

#define GOLDEN "tests/golden/models/llama"
#define DIR "build/tmp/model"
enum { V = 97, LONG = 8192 };

typedef struct fixture {
    kvm_arena keep;
    kvm_model *m;
    kvm_cache *c;
    int32_t ids[LONG];
    float logits[V];
} fixture;

/* the golden llama model with a context of 32,768 */
static void make_long_model(void)
{
    kvm_arena a = check_arena(1 << 22);
    static const char from[] = "\"max_position_embeddings\": 128";
    check_tmpdir("model");
    const kvm_str config = check_read(&a, GOLDEN "/config.json");
    const ptrdiff_t at = kvm_str_find(config, kvm_str_of(from));
    assert_true(at > 0);
    const kvm_str tail =
        kvm_str_slice(config, at + (ptrdiff_t)strlen(from), config.len);
    check_write(DIR "/config.json",
                kvm_str_fmt(&a, "%.*s\"max_position_embeddings\": 32768%.*s", (int)at,
                            config.at, KVM_STR_ARG(tail)));
    check_write(DIR "/model.safetensors", check_read(&a, GOLDEN "/model.safetensors"));
    kvm_arena_free(&a);
}

static int setup(void **state)
{
    static fixture f;
    kvm_err err = {0};
    kvm_compute *c;
    make_long_model();
    f.keep = check_arena((size_t)1 << 31);
    check_ok(kvm_compute_new(&c, &f.keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&f.m, &f.keep, c, KVM_STR(DIR), &o, &err), &err);
    check_ok(kvm_cache_new(&f.c, &f.keep, f.m, 32768, &err), &err);
    kvm_rng r = kvm_rng_seed(3, 1);
    for (int i = 0; i < LONG; i++) f.ids[i] = (int32_t)kvm_rng_below(&r, V);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    kvm_arena_free(&((fixture *)*state)->keep);
    return 0;
}

static long resident_kib(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_maxrss;
}

static void bounded_memory(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_forward_options o = {.logits_last = 1, .logits = f->logits};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 600, &o, &err), &err);
    kvm_cache_clear(f->c);
    assert_true(kvm_model_scratch_bytes(f->m, 0) < 2 << 20);
    const long before = resident_kib();
    check_ok(kvm_model_forward(f->m, f->c, f->ids, LONG, &o, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), LONG);
    assert_int_equal(kvm_cache_bytes(f->c), LONG * 3 * 2 * 32 * 4);
    for (int i = 0; i < V; i++) assert_true(isfinite(f->logits[i]));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const long grown = resident_kib() - before;
    assert_true(grown * 1024 < (long)kvm_cache_bytes(f->c) + (4 << 20));
#else
    (void)before;
#endif
}

static void decode_allocates_nothing(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    const kvm_forward_options o = {.logits_last = 1, .logits = f->logits};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 20, &o, &err), &err);
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 1, &o, &err), &err);
    const size_t heap = mallinfo2().uordblks, arena = kvm_arena_used(&f->keep);
    for (int i = 0; i < 20; i++)
        check_ok(kvm_model_forward(f->m, f->c, f->ids + i, 1, &o, &err), &err);
    assert_int_equal(mallinfo2().uordblks, heap);
    assert_int_equal(kvm_arena_used(&f->keep), arena);
}

static bool count_calls(kvm_progress *p)
{
    return ++*(int *)p->ctx == 3; /* cancelled at the third chunk */
}

static void cancelled(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    int calls = 0;
    kvm_progress p = {.cancelled = count_calls, .ctx = &calls};
    const kvm_forward_options o = {.chunk = 10, .progress = &p};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 7, NULL, &err), &err);
    check_status(KVM_CANCELLED, kvm_model_forward(f->m, f->c, f->ids, 100, &o, &err),
                 &err);
    check_contains(err.msg, "30 of 100");
    assert_int_equal(kvm_cache_length(f->c), 7);
}

static bool until_third(void *ctx, int32_t id)
{
    (void)id;
    return ++*(int *)ctx < 3;
}

/* what was given out is in the cache, however it ended */
static void generation_ends(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    int32_t ids[16], again[16];
    ptrdiff_t n;
    int calls = 0;
    const kvm_sampling s = {0};
    const kvm_forward_options o = {.logits_last = 1, .logits = f->logits};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 20, &o, &err), &err);
    check_ok(
        kvm_generate(f->m, f->c, f->logits, &s, 16, ids, &n, until_third, &calls, &err),
        &err);
    assert_int_equal(n, 3);
    assert_int_equal(kvm_cache_length(f->c), 23);
    check_ok(kvm_cache_truncate(f->c, 20, &err), &err);
    check_ok(kvm_generate(f->m, f->c, f->logits, &s, 5, again, &n, NULL, NULL, &err),
             &err);
    assert_int_equal(n, 5);
    assert_int_equal(kvm_cache_length(f->c), 25);
    assert_memory_equal(ids, again, 3 * sizeof *ids);
    check_ok(kvm_generate(f->m, f->c, f->logits, &s, 0, again, &n, NULL, NULL, &err),
             &err);
    assert_int_equal(n, 0);
    kvm_cache *small;
    check_ok(kvm_cache_new(&small, &f->keep, f->m, 22, &err), &err);
    check_ok(kvm_model_forward(f->m, small, f->ids, 20, &o, &err), &err);
    check_status(
        KVM_RANGE,
        kvm_generate(f->m, small, f->logits, &s, 16, ids, &n, NULL, NULL, &err), &err);
    assert_int_equal(n, 2);
    assert_memory_equal(ids, again, 2 * sizeof *ids);
}

/* who looks at the rows of a layer with a window must look through that window */
static void objects_say_their_window(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 31);
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m;
    check_ok(kvm_compute_new(&c, &a, kvm_backend_find(KVM_STR("cpu")), 1, &err), &err);
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&m, &a, c, KVM_STR("tests/golden/models/qwen2"), &o, &err),
             &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *it = kvm_model_object(m, i);
        assert_int_equal(it->window, it->layer == 0 ? 0 : 9); /* its layer_types */
    }
    kvm_arena_free(&a);
}

static void wrong_calls(void **state)
{
    fixture *f = *state;
    const kvm_forward_options rows[] = {
        {.logits_last = 1},
        {.logits_last = 6, .logits = f->logits},
        {.logits_last = -1, .logits = f->logits},
        {.chunk = -1},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        check_status(KVM_USAGE,
                     kvm_model_forward(f->m, f->c, f->ids, 5, &rows[i], &err), &err);
    }
    kvm_err err = {0};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 0, NULL, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), 0);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(bounded_memory), WITH(decode_allocates_nothing),
        WITH(cancelled),      WITH(generation_ends),
        WITH(wrong_calls),    cmocka_unit_test(objects_say_their_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
