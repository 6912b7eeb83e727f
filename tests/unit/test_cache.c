/* Caches: what goes in must be whole, what is cut or copied stays what it was. */
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "tests/support/check.h"

enum { V = 97, WIDTH = 48, OBJECTS = 4, MOST = 128 }; /* of the golden qwen3 model */

typedef struct fixture {
    kvm_arena keep;
    kvm_model *m;
    kvm_cache *c;
    float rows[MOST * WIDTH];
    int32_t ids[MOST];
} fixture;

static int setup(void **state)
{
    kvm_err err = {0};
    kvm_compute *c;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->keep = check_arena((size_t)1 << 30);
    check_ok(kvm_compute_new(&c, &f->keep, kvm_backend_find(KVM_STR("ref")), 1, &err),
             &err);
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&f->m, &f->keep, c, KVM_STR("tests/golden/models/qwen3"),
                            &o, &err),
             &err);
    check_ok(kvm_cache_new(&f->c, &f->keep, f->m, 64, &err), &err);
    kvm_rng r = kvm_rng_seed(1, 1);
    for (int i = 0; i < MOST; i++) f->ids[i] = (int32_t)kvm_rng_below(&r, V);
    for (int i = 0; i < MOST * WIDTH; i++) f->rows[i] = (float)kvm_rng_normal(&r);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    kvm_arena_free(&f->keep);
    free(f);
    return 0;
}

static void objects(void **state)
{
    fixture *f = *state;
    const kvm_model_info *info = kvm_model_info_of(f->m);
    assert_int_equal(info->objects, OBJECTS);
    assert_int_equal(info->token_bytes, 2 * 2 * 48 * 2); /* layers, K and V, BF16 */
    for (ptrdiff_t i = 0; i < OBJECTS; i++) {
        const kvm_object *o = kvm_model_object(f->m, i);
        assert_int_equal(kvm_model_find_object(f->m, o->kind, o->layer), i);
        assert_int_equal(o->layer, i / 2);
        assert_int_equal(o->heads * o->dim, WIDTH);
        assert_int_equal(o->rotary, o->kind == KVM_OBJECT_K);
        assert_int_equal(o->normed, o->kind == KVM_OBJECT_K);
        assert_int_equal(o->dtype, KVM_BF16);
    }
    assert_int_equal(kvm_model_find_object(f->m, KVM_OBJECT_K, 2), -1);
    kvm_object_kind k;
    assert_int_equal(kvm_object_of_name(KVM_STR("V"), &k), KVM_OK);
    assert_int_equal(k, KVM_OBJECT_V);
    assert_int_equal(kvm_object_of_name(KVM_STR("Q"), &k), KVM_NOTFOUND);
}

static void capacity(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_cache *c;
    check_status(KVM_RANGE, kvm_cache_new(&c, &f->keep, f->m, 129, &err), &err);
    check_contains(err.msg, "128");
    check_contains(err.msg, "129");
    err = (kvm_err){0};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 60, NULL, &err), &err);
    check_status(KVM_RANGE, kvm_model_forward(f->m, f->c, f->ids, 5, NULL, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), 60);
    err = (kvm_err){0};
    int32_t bad = V;
    check_status(KVM_RANGE, kvm_model_forward(f->m, f->c, &bad, 1, NULL, &err), &err);
    check_contains(err.msg, "97");
    bad = -1;
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_model_forward(f->m, f->c, &bad, 1, NULL, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), 60);
    assert_int_equal(kvm_cache_bytes(f->c), 60 * OBJECTS * WIDTH * 4);
    kvm_cache_clear(f->c);
    assert_int_equal(kvm_cache_length(f->c), 0);
}

static void truncated(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    float once[V], twice[V];
    const kvm_forward_options a = {.logits_last = 1, .logits = once};
    const kvm_forward_options b = {.logits_last = 1, .logits = twice};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 20, NULL, &err), &err);
    check_ok(kvm_model_forward(f->m, f->c, f->ids + 20, 7, &a, &err), &err);
    check_ok(kvm_cache_truncate(f->c, 20, &err), &err);
    check_ok(kvm_model_forward(f->m, f->c, f->ids + 40, 9, NULL, &err), &err);
    check_ok(kvm_cache_truncate(f->c, 20, &err), &err);
    check_ok(kvm_model_forward(f->m, f->c, f->ids + 20, 7, &b, &err), &err);
    assert_memory_equal(once, twice, sizeof once);
    check_status(KVM_RANGE, kvm_cache_truncate(f->c, 28, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_cache_truncate(f->c, -1, &err), &err);
}

static void copied(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_cache *larger, *small;
    float a[V], b[V];
    check_ok(kvm_cache_new(&larger, &f->keep, f->m, 100, &err), &err);
    check_ok(kvm_cache_new(&small, &f->keep, f->m, 10, &err), &err);
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 30, NULL, &err), &err);
    check_ok(kvm_cache_copy(larger, f->c, &err), &err);
    const kvm_forward_options oa = {.logits_last = 1, .logits = a};
    const kvm_forward_options ob = {.logits_last = 1, .logits = b};
    check_ok(kvm_model_forward(f->m, f->c, f->ids + 30, 3, &oa, &err), &err);
    check_ok(kvm_model_forward(f->m, larger, f->ids + 30, 3, &ob, &err), &err);
    assert_memory_equal(a, b, sizeof a);
    check_status(KVM_RANGE, kvm_cache_copy(small, f->c, &err), &err);
    assert_int_equal(kvm_cache_length(small), 0);
}

static void views_and_reads(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    kvm_tensor view;
    static float rows[MOST * WIDTH];
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 30, NULL, &err), &err);
    for (ptrdiff_t i = 0; i < OBJECTS; i++) {
        check_ok(kvm_cache_view(f->c, i, &view, &err), &err);
        assert_int_equal(view.dim[0], 2);
        assert_int_equal(view.dim[1], 30);
        assert_int_equal(view.stride[0], 64 * 24);
        check_ok(kvm_cache_read(f->c, i, KVM_POINT_ENGINE, 3, 20, rows, &err), &err);
        for (ptrdiff_t t = 0; t < 20; t++)
            for (ptrdiff_t h = 0; h < 2; h++)
                assert_memory_equal(rows + t * WIDTH + h * 24,
                                    (float *)view.data + h * view.stride[0] +
                                        (t + 3) * 24,
                                    24 * sizeof *rows);
    }
    check_status(KVM_UNSUPPORTED,
                 kvm_cache_read(f->c, 0, KVM_POINT_RAW, 0, 1, rows, &err), &err);
    check_contains(err.msg, "norm");
    err = (kvm_err){0};
    check_ok(kvm_cache_read(f->c, 1, KVM_POINT_RAW, 0, 1, rows, &err), &err); /* V */
    check_status(KVM_RANGE, kvm_cache_read(f->c, 0, 3, 25, 6, rows, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_cache_read(f->c, 0, 4, 0, 1, rows, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_cache_read(f->c, OBJECTS, 3, 0, 1, rows, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_cache_view(f->c, -1, &view, &err), &err);
}

static void inject_all_but(fixture *f, ptrdiff_t object, ptrdiff_t token)
{
    kvm_err err = {0};
    check_ok(kvm_inject_begin(f->c, 10, &err), &err);
    for (ptrdiff_t i = 0; i < OBJECTS; i++) {
        const ptrdiff_t cut = i == object ? token : 10, after = cut < 10 ? cut + 1 : 10;
        check_ok(kvm_inject_rows(f->c, i, 3, after, 10 - after, f->rows, &err), &err);
        check_ok(kvm_inject_rows(f->c, i, 3, 0, cut, f->rows, &err), &err);
    }
}

static void incomplete(void **state)
{
    fixture *f = *state;
    for (ptrdiff_t object = 0; object < OBJECTS; object++) {
        for (ptrdiff_t token = 0; token < 10; token += 3) {
            kvm_err err = {0};
            inject_all_but(f, object, token);
            check_status(KVM_MISMATCH, kvm_inject_end(f->c, &err), &err);
            const kvm_str place =
                kvm_str_fmt(&f->keep, "layer %td, %s: token %td of 10", object / 2,
                            object % 2 ? "V" : "K", token);
            check_contains(err.msg, place.at);
            assert_int_equal(kvm_cache_length(f->c), 0);
        }
    }
    kvm_err err = {0};
    inject_all_but(f, 0, 10);
    check_ok(kvm_inject_end(f->c, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), 10);
    float logits[V];
    const kvm_forward_options o = {.logits_last = 1, .logits = logits};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 1, &o, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), 11);
}

static void wrong_injections(void **state)
{
    fixture *f = *state;
    const struct {
        kvm_status expected;
        int point;
        ptrdiff_t object, from, n;
    } rows[] = {
        {KVM_RANGE, 3, OBJECTS, 0, 1}, {KVM_RANGE, 3, -1, 0, 1},
        {KVM_RANGE, 3, 0, 0, 11},      {KVM_RANGE, 3, 0, 10, 1},
        {KVM_RANGE, 3, 0, -1, 2},      {KVM_RANGE, 3, 0, 0, -1},
        {KVM_USAGE, 0, 0, 0, 1},       {KVM_USAGE, 4, 0, 0, 1},
        {KVM_MISMATCH, 3, 1, 2, 3},
    };
    kvm_err err = {0};
    check_status(KVM_USAGE, kvm_inject_rows(f->c, 0, 3, 0, 1, f->rows, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_inject_end(f->c, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_inject_begin(f->c, 65, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_inject_begin(f->c, 0, &err), &err);
    err = (kvm_err){0};
    check_ok(kvm_inject_begin(f->c, 10, &err), &err);
    check_ok(kvm_inject_rows(f->c, 1, 3, 4, 2, f->rows, &err), &err);
    for (size_t i = 0; i < COUNT(rows); i++) {
        err = (kvm_err){0};
        check_status(rows[i].expected,
                     kvm_inject_rows(f->c, rows[i].object, rows[i].point, rows[i].from,
                                     rows[i].n, f->rows, &err),
                     &err);
    }
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_inject_begin(f->c, 5, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_model_forward(f->m, f->c, f->ids, 1, NULL, &err), &err);
    kvm_cache_clear(f->c);
    err = (kvm_err){0};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 1, NULL, &err), &err);
    check_status(KVM_RANGE, kvm_inject_begin(f->c, 64, &err), &err);
    check_contains(err.msg, "64 tokens to inject after 1");
    err = (kvm_err){0};
    check_ok(kvm_inject_begin(f->c, 63, &err), &err);
    check_status(KVM_USAGE, kvm_cache_truncate(f->c, 0, &err), &err);
    kvm_inject_cancel(f->c);
    assert_int_equal(kvm_cache_length(f->c), 1);
}

static kvm_status refuse(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                         ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)ctx, (void)point, (void)first, (void)n, (void)rows;
    return object == 2 ? kvm_fail(err, KVM_NOSPACE, "full") : KVM_OK;
}

static void failing_capture(void **state)
{
    fixture *f = *state;
    kvm_err err = {0};
    const kvm_capture capture = {.rows = refuse, .points = 1u << 1};
    const kvm_forward_options o = {.capture = &capture, .chunk = 4};
    check_ok(kvm_model_forward(f->m, f->c, f->ids, 3, NULL, &err), &err);
    check_status(KVM_NOSPACE, kvm_model_forward(f->m, f->c, f->ids, 9, &o, &err), &err);
    assert_int_equal(kvm_cache_length(f->c), 3);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(objects),          WITH(capacity),        WITH(truncated),
        WITH(copied),           WITH(views_and_reads), WITH(incomplete),
        WITH(wrong_injections), WITH(failing_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
