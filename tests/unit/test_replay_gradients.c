/* Gradients by the inputs of replayed states (kvm_model_pull_replay) over several of
 * their segments, against differences of a loss of state and window: every kind of
 * recurrent layer, decays with a lower bound too. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "models/backward.h"
#include "models/model_internal.h"
#include "tests/support/check.h"
#include "tests/support/slope.h"

enum { TOKENS = 2 * 256 + 5, LAST = 512 };

/* a state, the rows of which it is made, and weights of a loss of it and its window */
typedef struct run {
    kvm_arena keep;
    kvm_model *m;
    const kvm_layer *layer;
    ptrdiff_t state, width, numbers[2]; /* object; of a row; of state and window */
    float *rows, *old, *grad, *weights[2];
    float *direction; /* as wide as rows, of those that move */
    kvm_slot *slots;
    kvm_rng rng;
} run;

static float *random_numbers(run *r, ptrdiff_t n)
{
    float *x = kvm_new_raw(&r->keep, float, n);
    assert_non_null(x);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = (float)kvm_rng_normal(&r->rng);
    return x;
}

static void start(run *r, const char *model, const char *backend)
{
    kvm_err err = {0};
    kvm_compute *c;
    *r = (run){.keep = check_arena((size_t)1 << 30), .rng = kvm_rng_seed(5, 5)};
    const kvm_backend *b = kvm_backend_find(kvm_str_of(backend));
    const kvm_model_options o = {.no_tokenizer = true};
    const kvm_str path = kvm_str_fmt(&r->keep, "tests/golden/models/%s", model);
    check_ok(kvm_compute_new(&c, &r->keep, b, 2, &err), &err);
    check_ok(kvm_model_open(&r->m, &r->keep, c, path, &o, &err), &err);
    while (r->m->objects[r->state].replay == 0) r->state++;
    const kvm_object *s = &r->m->objects[r->state];
    r->layer = r->m->blocks[s->layer].mixer.layer;
    r->width = s->replay;
    r->rows = random_numbers(r, TOKENS * r->width);
    r->old = random_numbers(r, TOKENS * r->width);
    memcpy(r->old, r->rows, (size_t)(TOKENS * r->width) * sizeof *r->old);
    r->direction = random_numbers(r, TOKENS * r->width);
    r->grad = kvm_new(&r->keep, float, TOKENS * r->width);
    r->slots = kvm_new(&r->keep, kvm_slot, r->m->info.objects);
    assert_true(r->grad && r->slots);
    for (int i = 0; i < 2; i++) {
        const kvm_object *object = s + i;
        r->numbers[i] = object->heads * object->dim;
        r->weights[i] = random_numbers(r, r->numbers[i]);
        const ptrdiff_t at = r->state + i;
        check_ok(kvm_cache__slots(r->slots, r->m, at, at + 1, 1, &r->keep, &err), &err);
    }
}

/* the rows moved by so much, through the layer in pieces that are none of the
 * segments */
static double loss(void *ctx, double by)
{
    enum { PIECE = 100 };
    const run *r = ctx;
    kvm_err err = {0};
    kvm_arena scratch = check_arena(r->layer->kind->scratch(r->layer, PIECE) + 4096);
    for (ptrdiff_t i = 0; i < TOKENS * r->width; i++)
        r->rows[i] = (float)((double)r->old[i] + by * (double)r->direction[i]);
    for (int i = 0; i < 2; i++)
        memset(r->slots[r->state + i].rows, 0, (size_t)r->numbers[i] * sizeof *r->rows);
    for (ptrdiff_t t = 0; t < TOKENS; t += PIECE) {
        const ptrdiff_t n = TOKENS - t < PIECE ? TOKENS - t : PIECE;
        const kvm_step s = {.compute = r->m->compute,
                            .first = t,
                            .n = n,
                            .out = n,
                            .slots = r->slots,
                            .scratch = scratch};
        const kvm_tensor x = kvm_view2(r->rows + t * r->width, KVM_F32, n, r->width);
        check_ok(r->layer->kind->replay(r->layer, &s, x, &err), &err);
    }
    double sum = 0;
    for (int i = 0; i < 2; i++)
        for (ptrdiff_t k = 0; k < r->numbers[i]; k++)
            sum += (double)r->slots[r->state + i].rows[k] * (double)r->weights[i][k];
    kvm_arena_free(&scratch);
    return sum;
}

/* tokens from .. end move, leaning on the gradient */
static void agrees(run *r, const char *name, ptrdiff_t from, ptrdiff_t end)
{
    double squares = 0, along = 0;
    const ptrdiff_t n = (end - from) * r->width;
    const float *grad = r->grad + from * r->width;
    for (ptrdiff_t i = 0; i < n; i++) squares += (double)grad[i] * (double)grad[i];
    const double size = sqrt(squares / (double)n);
    memset(r->direction, 0, (size_t)(TOKENS * r->width) * sizeof *r->direction);
    for (ptrdiff_t i = 0; i < n; i++) {
        float *d = r->direction + from * r->width + i;
        *d = (float)((double)grad[i] / size + kvm_rng_normal(&r->rng));
        along += (double)*d * (double)grad[i];
    }
    const double got = slope_of(loss, r, 0.02);
    assert_true(along > 0);
    if (!(fabs(got - along) <= 1e-3 * along))
        fail_msg("%s, tokens %td to %td: the loss rises by %g, the gradient says %g",
                 name, from, end, got, along);
}

static const char *const models[] = {"qwen3_5", "kimi_linear", "nemotron_h-dense",
                                     "glm5_next"};

static void gradients_go_back_through_segments(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        kvm_err err = {0};
        start(&r, models[i], "ref");
        check_ok(kvm_model_pull_replay(r.m, r.state, TOKENS, r.rows, r.weights[0],
                                       r.weights[1], r.grad, r.keep, &err),
                 &err);
        agrees(&r, models[i], 0, LAST);
        agrees(&r, models[i], LAST, TOKENS);
        kvm_arena_free(&r.keep);
    }
}

static void backends_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        static run r[2];
        kvm_err err = {0};
        double top = 0, off = 0;
        for (int b = 0; b < 2; b++) {
            start(&r[b], models[i], b ? "cpu" : "ref");
            check_ok(kvm_model_pull_replay(r[b].m, r[b].state, TOKENS, r[b].rows,
                                           r[b].weights[0], NULL, r[b].grad, r[b].keep,
                                           &err),
                     &err);
        }
        for (ptrdiff_t k = 0; k < TOKENS * r[0].width; k++) {
            const double x = (double)r[0].grad[k];
            top = fmax(top, fabs(x));
            off = fmax(off, fabs(x - (double)r[1].grad[k]));
        }
        if (!(top > 0 && off <= 2e-5 * top))
            fail_msg("%s: off by %g of %g", models[i], off, top);
        for (int b = 0; b < 2; b++) kvm_arena_free(&r[b].keep);
    }
}

static void what_is_not_replayed_is_refused(void **state)
{
    (void)state;
    run r;
    kvm_err err = {0};
    start(&r, "qwen3_5", "cpu");
    check_status(KVM_USAGE,
                 kvm_model_pull_replay(r.m, r.state + 1, 1, r.rows, r.weights[0], NULL,
                                       r.grad, r.keep, &err),
                 &err);
    check_contains(err.msg, "window: it is not replayed");
    err = (kvm_err){0};
    check_status(KVM_RANGE,
                 kvm_model_pull_replay(r.m, 99, 1, r.rows, r.weights[0], NULL, r.grad,
                                       r.keep, &err),
                 &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE,
                 kvm_model_pull_replay(r.m, r.state, -1, r.rows, r.weights[0], NULL,
                                       r.grad, r.keep, &err),
                 &err);
    kvm_arena_free(&r.keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_go_back_through_segments),
        cmocka_unit_test(backends_agree),
        cmocka_unit_test(what_is_not_replayed_is_refused),
    };
    return cmocka_run_group_tests_name("replay gradients", tests, NULL, NULL);
}
