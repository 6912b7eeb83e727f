/* A loss on the scores of an indexer, and its gradient by the index keys and gates that
 * were injected at point 1: against differences, for tokens, pools and blocks. Later
 * layers ask other things when a choice changes, so the keys of one layer move at a
 * time. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "models/backward.h"
#include "tests/support/check.h"
#include "tests/support/slope.h"

enum { PREFIX = 40, MORE = 13, OBJECTS = 16, ROOM = 1 << 14, SCORES = 13 * 53 };

typedef struct run {
    kvm_arena keep;
    kvm_compute *c;
    kvm_model *m;
    kvm_cache *cache;
    kvm_tape *tape;
    kvm_gradients *g;
    ptrdiff_t objects, object; /* whose scores are looked at, and which rows move: */
    ptrdiff_t moving;
    int32_t ids[PREFIX + MORE];
    float rows[OBJECTS][ROOM]; /* at point 1, or at 3 */
    float direction[ROOM], weights[SCORES], scores[SCORES];
    double loss;
} run;

static bool is_index(kvm_object_kind kind)
{
    return kind == KVM_OBJECT_INDEX_KEY || kind == KVM_OBJECT_INDEX_GATE;
}

static int point_of(const kvm_object *o)
{
    return is_index(o->kind) ? KVM_POINT_RAW : KVM_POINT_ENGINE;
}

static kvm_status keep_rows(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                            ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    run *r = ctx;
    const kvm_object *o = kvm_model_object(r->m, object);
    const ptrdiff_t width = o->heads * o->dim,
                    at = kvm_object_per_prompt(o) ? 0 : first;
    if (point != point_of(o)) return KVM_OK;
    assert_true(object < OBJECTS && (at + n) * width <= ROOM);
    memcpy(r->rows[object] + at * width, rows, (size_t)(n * width) * sizeof *rows);
    return KVM_OK;
}

/* sum of weights and scores that mean something */
static kvm_status weigh(void *ctx, ptrdiff_t n, ptrdiff_t units, float *scores,
                        kvm_err *err)
{
    (void)err;
    run *r = ctx;
    const ptrdiff_t block = (PREFIX + MORE) / units;
    assert_true(n == MORE && n * units <= SCORES);
    r->loss = 0;
    for (ptrdiff_t i = 0; i < n * units; i++) {
        const bool seen = (i % units + 1) * block <= PREFIX + i / units + 1;
        r->loss += seen ? (double)r->weights[i] * (double)scores[i] : 0;
        scores[i] = seen ? r->weights[i] : 0;
    }
    return KVM_OK;
}

static void inject(run *r, const float *moved)
{
    kvm_err err = {0};
    kvm_cache_clear(r->cache);
    check_ok(kvm_inject_begin(r->cache, PREFIX, &err), &err);
    for (ptrdiff_t i = 0; i < r->objects; i++) {
        const kvm_object *o = kvm_model_object(r->m, i);
        const kvm_state s = {.data = r->rows[i],
                             .axes = kvm_str_of(kvm_object_axes(o->kind)),
                             .dim = {o->shape[0], o->shape[1], o->shape[2]},
                             .dtype = KVM_F32,
                             .tokens = PREFIX};
        if (kvm_object_per_prompt(o))
            check_ok(kvm_inject_state(r->cache, i, &s, &err), &err);
        else
            check_ok(kvm_inject_rows(r->cache, i, point_of(o), 0, PREFIX,
                                     i == r->moving ? moved : r->rows[i], &err),
                     &err);
    }
    check_ok(kvm_inject_end(r->cache, &err), &err);
}

/* the loss when rows move by x in the direction */
static double loss_at(void *ctx, double x)
{
    static float moved[ROOM];
    run *r = ctx;
    kvm_err err = {0};
    for (ptrdiff_t i = 0; i < ROOM; i++)
        moved[i] = r->rows[r->moving][i] + (float)(x * (double)r->direction[i]);
    inject(r, moved);
    check_ok(kvm_tape_record(r->tape, r->cache, r->ids + PREFIX, MORE, &err), &err);
    check_ok(kvm_gradients_clear(r->g, PREFIX, &err), &err);
    const kvm_tape_scores_loss loss = {weigh, r, r->scores};
    check_ok(kvm_tape_scores(r->tape, r->cache, r->object, &loss, r->g, &err), &err);
    return r->loss;
}

static void slope(run *r, const char *model, kvm_rng *rng)
{
    static float grad[ROOM];
    kvm_err err = {0};
    const kvm_object *o = kvm_model_object(r->m, r->moving);
    const ptrdiff_t n = PREFIX * o->dim;
    for (ptrdiff_t i = 0; i < SCORES; i++) r->weights[i] = (float)kvm_rng_normal(rng);
    memset(r->direction, 0, sizeof r->direction);
    loss_at(r, 0);
    check_ok(kvm_gradients_read(r->g, r->moving, 0, PREFIX, grad, &err), &err);
    check_ok(kvm_model_pull(r->m, r->moving, KVM_POINT_RAW, 0, PREFIX,
                            r->rows[r->moving], grad, &err),
             &err);
    double squares = 0, along = 0;
    for (ptrdiff_t i = 0; i < n; i++) squares += (double)grad[i] * (double)grad[i];
    const double size = sqrt(squares / (double)n);
    for (ptrdiff_t i = 0; i < n; i++) {
        r->direction[i] = grad[i] + (float)(size * kvm_rng_normal(rng));
        along += (double)r->direction[i] * (double)grad[i];
    }
    assert_true(along > 0);
    const double got = slope_of(loss_at, r, 1e-2 / sqrt(along));
    if (!(fabs(got - along) <= 1e-3 * along))
        fail_msg("%s, layer %td, %s: the loss rises by %g, the gradient says %g", model,
                 o->layer, kvm_object_name(o->kind), got, along);
}

static void scores_of(const char *model, const char *backend)
{
    static run r;
    kvm_err err = {0};
    kvm_rng rng = kvm_rng_seed(20260203, 1);
    const kvm_model_options o = {.no_tokenizer = true};
    r = (run){.keep = check_arena((size_t)1 << 30)};
    check_ok(
        kvm_compute_new(&r.c, &r.keep, kvm_backend_find(kvm_str_of(backend)), 2, &err),
        &err);
    check_ok(kvm_model_open(&r.m, &r.keep, r.c,
                            kvm_str_fmt(&r.keep, "tests/golden/models/%s", model), &o,
                            &err),
             &err);
    r.objects = kvm_model_info_of(r.m)->objects;
    for (int i = 0; i < PREFIX + MORE; i++) r.ids[i] = (i * 37 + i * i) % 97;
    check_ok(kvm_cache_new(&r.cache, &r.keep, r.m, 60, &err), &err);
    check_ok(kvm_gradients_new(&r.g, &r.keep, r.m, 60, &err), &err);
    check_ok(kvm_tape_new(&r.tape, &r.keep, r.m, PREFIX, MORE, &err), &err);
    const kvm_capture capture = {
        .rows = keep_rows, .points = 1u << 1 | 1u << 3, .ctx = &r};
    const kvm_forward_options f = {.capture = &capture};
    check_ok(kvm_model_forward(r.m, r.cache, r.ids, PREFIX, &f, &err), &err);
    int found = 0;
    for (ptrdiff_t i = 0; i < r.objects; i++) {
        const kvm_object *of = kvm_model_object(r.m, i);
        if (!is_index(of->kind)) continue;
        r.moving = i;
        r.object = kvm_model_find_object(r.m, KVM_OBJECT_INDEX_KEY, of->layer);
        slope(&r, model, &rng);
        found++;
    }
    assert_true(found > 0);
    kvm_arena_free(&r.keep);
}

static void test_scores(void **state)
{
    (void)state;
    static const char *const models[] = {"deepseek_v32", "glm_moe_dsa", "qwen4_exp",
                                         "glm5_next"};
    for (size_t i = 0; i < COUNT(models); i++) {
        scores_of(models[i], "ref");
        scores_of(models[i], "cpu");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
