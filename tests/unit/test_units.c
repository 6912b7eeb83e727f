/* What indexers make of whole blocks of tokens is kept between steps: whatever becomes
 * of the cache, answers are those of a model that makes it anew each time. */
#include <string.h>

#include "models/model_internal.h"
#include "tests/support/check.h"

enum { V = 97, CAPACITY = 64, MOST_ROWS = 256 };

static const char *const models[] = {"tests/golden/models/glm5_next",
                                     "tests/golden/models/qwen4_exp"};
static const char *const backends[] = {"ref", "cpu"};

typedef struct fixture {
    kvm_arena keep;
    kvm_model *m;
    kvm_cache *c, *other;
    int32_t x[CAPACITY], y[CAPACITY]; /* two texts */
    bool anew;                        /* nothing is kept between steps */
    float logits[MOST_ROWS * V];
    ptrdiff_t rows; /* of logits that there are */
} fixture;

static kvm_units *units_of(const kvm_cache *c)
{
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++)
        if (c->slots[i].units) return c->slots[i].units;
    fail_msg("no object has blocks");
    return NULL;
}

static ptrdiff_t block_of(const kvm_cache *c)
{
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++)
        if (c->slots[i].units) return c->model->objects[i].block;
    return 0;
}

static void forget(const kvm_cache *c)
{
    for (ptrdiff_t i = 0; i < c->model->info.objects; i++)
        if (c->slots[i].units) c->slots[i].units->n = 0;
}

/* the next n tokens of a text, `step` at a time */
static void read_on(fixture *f, kvm_cache *c, const int32_t *text, ptrdiff_t n,
                    ptrdiff_t step)
{
    kvm_err err = {0};
    for (ptrdiff_t t = 0; t < n; t += step) {
        assert_true(f->rows + step <= MOST_ROWS);
        const kvm_forward_options o = {.logits_last = step,
                                       .logits = f->logits + f->rows * V};
        if (f->anew) forget(c);
        check_ok(kvm_model_forward(f->m, c, text + kvm_cache_length(c), step, &o, &err),
                 &err);
        f->rows += step;
    }
}

/* everything that `from` keeps, put into the empty cache `to` */
static void inject(fixture *f, kvm_cache *to, const kvm_cache *from)
{
    static float rows[CAPACITY * 1024];
    kvm_err err = {0};
    const ptrdiff_t n = kvm_cache_length(from);
    check_ok(kvm_inject_begin(to, n, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++) {
        const kvm_object *o = kvm_model_object(f->m, i);
        if (kvm_object_per_prompt(o)) {
            kvm_state s = {.data = from->slots[i].rows,
                           .axes = kvm_str_of(kvm_object_axes(o->kind)),
                           .dtype = KVM_F32,
                           .tokens = n};
            memcpy(s.dim, o->shape, sizeof s.dim);
            check_ok(kvm_inject_state(to, i, &s, &err), &err);
            continue;
        }
        assert_true(n * o->heads * o->dim <= CAPACITY * 1024);
        check_ok(kvm_cache_read(from, i, 3, 0, n, rows, &err), &err);
        check_ok(kvm_inject_rows(to, i, 3, 0, n, rows, &err), &err);
    }
    check_ok(kvm_inject_end(to, &err), &err);
}

/* ---- what may become of a cache ---- */

static void token_by_token(fixture *f)
{
    read_on(f, f->c, f->x, 22, 22);
    read_on(f, f->c, f->x, 20, 1);
    read_on(f, f->c, f->x, 21, 7);
}

/* cut back to where every token is still looked at, and further on */
static void cut(fixture *f)
{
    kvm_err err = {0};
    read_on(f, f->c, f->x, 4, 4);
    kvm_cache_mark(f->c);
    read_on(f, f->c, f->x, 30, 30);
    check_ok(kvm_cache_truncate(f->c, 4, &err), &err);
    read_on(f, f->c, f->y, 5, 5);
    read_on(f, f->c, f->y, 12, 1);
    kvm_cache_mark(f->c);
    read_on(f, f->c, f->x, 9, 3);
    check_ok(kvm_cache_truncate(f->c, 21, &err), &err);
    read_on(f, f->c, f->y, 9, 1);
}

static void cleared(fixture *f)
{
    read_on(f, f->c, f->x, 40, 40);
    kvm_cache_clear(f->c);
    read_on(f, f->c, f->y, 5, 5);
    read_on(f, f->c, f->y, 20, 1);
}

static void injected(fixture *f)
{
    read_on(f, f->c, f->x, 40, 40);
    read_on(f, f->other, f->y, 30, 30);
    kvm_cache_clear(f->c);
    inject(f, f->c, f->other);
    read_on(f, f->c, f->y, 8, 1);
}

static void copied(fixture *f)
{
    kvm_err err = {0};
    read_on(f, f->c, f->x, 40, 40);
    read_on(f, f->other, f->y, 23, 23);
    kvm_cache_mark(f->other);
    read_on(f, f->other, f->x, 17, 17);
    check_ok(kvm_cache_truncate(f->other, 23, &err), &err);
    check_ok(kvm_cache_copy(f->c, f->other, &err), &err);
    if (!f->anew) assert_int_equal(units_of(f->c)->n, 23 / block_of(f->c));
    read_on(f, f->c, f->y, 8, 1);
    read_on(f, f->other, f->x, 8, 4);
}

static kvm_status refuse(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                         ptrdiff_t n, const float *rows, kvm_err *err)
{
    const fixture *f = ctx;
    (void)point, (void)first, (void)n, (void)rows;
    if (object < kvm_model_info_of(f->m)->objects - 1) return KVM_OK;
    return kvm_fail(err, KVM_CANCELLED, "enough");
}

/* a forward that ends half way leaves the cache empty, and units behind */
static void cancelled(fixture *f)
{
    kvm_err err = {0};
    const kvm_capture capture = {.rows = refuse, .points = 1u << 3, .ctx = f};
    const kvm_forward_options o = {.capture = &capture};
    read_on(f, f->c, f->x, 24, 24);
    check_status(KVM_CANCELLED, kvm_model_forward(f->m, f->c, f->x + 24, 16, &o, &err),
                 &err);
    assert_int_equal(kvm_cache_length(f->c), 0);
    read_on(f, f->c, f->y, 5, 5);
    read_on(f, f->c, f->y, 20, 1);
}

static fixture start(const char *model, const char *backend, bool anew)
{
    kvm_err err = {0};
    kvm_compute *c;
    fixture f = {.keep = check_arena((size_t)1 << 30), .anew = anew};
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(
        kvm_compute_new(&c, &f.keep, kvm_backend_find(kvm_str_of(backend)), 2, &err),
        &err);
    check_ok(kvm_model_open(&f.m, &f.keep, c, kvm_str_of(model), &o, &err), &err);
    check_ok(kvm_cache_new(&f.c, &f.keep, f.m, CAPACITY, &err), &err);
    check_ok(kvm_cache_new(&f.other, &f.keep, f.m, CAPACITY, &err), &err);
    kvm_rng r = kvm_rng_seed(3, 1);
    for (int i = 0; i < CAPACITY; i++) {
        f.x[i] = (int32_t)kvm_rng_below(&r, V);
        f.y[i] = (int32_t)kvm_rng_below(&r, V);
    }
    return f;
}

static void kept_is_made_anew(void **state)
{
    (void)state;
    static void (*const stories[])(fixture * f) = {token_by_token, cut,    cleared,
                                                   injected,       copied, cancelled};
    static fixture kept, anew;
    for (size_t i = 0; i < COUNT(models) * COUNT(backends) * COUNT(stories); i++) {
        const char *model = models[i % COUNT(models)];
        const char *backend = backends[i / COUNT(models) % COUNT(backends)];
        void (*const story)(fixture * f) = stories[i / COUNT(models) / COUNT(backends)];
        kept = start(model, backend, false);
        anew = start(model, backend, true);
        story(&kept), story(&anew);
        assert_int_equal(kept.rows, anew.rows);
        assert_memory_equal(kept.logits, anew.logits,
                            (size_t)(kept.rows * V) * sizeof(float));
        kvm_arena_free(&kept.keep);
        kvm_arena_free(&anew.keep);
    }
}

/* a step makes what its tokens complete, and leaves alone what was there */
static void once_each(void **state)
{
    (void)state;
    static fixture f;
    for (size_t i = 0; i < COUNT(models); i++) {
        f = start(models[i], "ref", false);
        read_on(&f, f.c, f.x, 32, 32);
        kvm_units *u = units_of(f.c);
        assert_int_equal(u->n, 32 / block_of(f.c));
        u->rows[0] = 7;
        for (ptrdiff_t t = 33; t <= 44; t++) {
            read_on(&f, f.c, f.x, 1, 1);
            assert_int_equal(u->n, t / block_of(f.c));
            assert_true(u->rows[0] == 7);
        }
        kvm_arena_free(&f.keep);
    }
}

/* a cut cache fits into one that only has room for what is left of it */
static void into_a_small_one(void **state)
{
    (void)state;
    static fixture f;
    kvm_err err = {0};
    for (size_t i = 0; i < COUNT(models); i++) {
        kvm_cache *small;
        f = start(models[i], "ref", false);
        check_ok(kvm_cache_new(&small, &f.keep, f.m, 9, &err), &err);
        read_on(&f, f.c, f.x, 9, 9);
        kvm_cache_mark(f.c);
        read_on(&f, f.c, f.x, 50, 50);
        check_ok(kvm_cache_truncate(f.c, 9, &err), &err);
        check_ok(kvm_cache_copy(small, f.c, &err), &err);
        assert_int_equal(units_of(small)->n, 9 / block_of(small));
        kvm_arena_free(&f.keep);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_is_made_anew),
        cmocka_unit_test(once_each),
        cmocka_unit_test(into_a_small_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
