/* Gradients of a loss through tiny models of every family to the prefix that was put
 * before it, on ref and cpu: against PyTorch's autograd
 * (tests/golden/models/make_gradients.py), and against differences of our own loss when
 * objects are moved. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "models/backward.h"
#include "models/safetensors.h"
#include "tests/support/check.h"
#include "tests/support/slope.h"

#define ROOT "tests/golden/models/"

/* with vectors of PyTorch; with these alone, for tokens are chosen there and any move
 * changes a choice; with differences alone: layers like the first's behind weights of
 * other types */
static const char *const golden[] = {"llama",       "qwen2",
                                     "qwen3",       "ministral3",
                                     "qwen3_5",     "nemotron_h-dense",
                                     "deepseek_v3", "deepseek_v3-groups",
                                     "qwen3_moe",   "qwen3_next",
                                     "qwen3_5_moe", "nemotron_h",
                                     "kimi_linear"};
static const char *const choosing[] = {"deepseek_v32", "glm_moe_dsa", "qwen4_exp",
                                       "glm5_next"};
static const char *const others[] = {
    "qwen3-tied",       "qwen3-fp8",    "ministral3-fp8", "deepseek_v3-fp8",
    "llama-mixed.gguf", "llama-k.gguf", "mistral3.gguf",  "qwen3_next-fp8",
};
static const char *const backends[] = {"ref", "cpu"};

enum { V = 97, PREFIX = 40, MORE = 13, ROOM = 1 << 14, OBJECTS = 16 };
/* of the largest number, as f32 rounds through a few layers; of the slope, where losses
 * in f32 leave 4e-4 */
static const double AUTOGRAD = 1e-4, DIFFERENCES = 1e-3;

typedef struct run {
    const char *name;
    kvm_arena keep;
    kvm_compute *c;
    kvm_model *m;
    kvm_cache *cache;
    kvm_gradients *g;
    ptrdiff_t objects;
    int32_t ids[PREFIX + MORE];
    double kl[MORE];              /* of the last loss */
    float rows[2][OBJECTS][ROOM]; /* points 1 and 2 of the prefix */
} run;

static kvm_status keep_rows(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                            ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    run *r = ctx;
    const kvm_object *o = kvm_model_object(r->m, object);
    const bool once = kvm_object_per_prompt(o);
    const ptrdiff_t width = once ? o->replay : o->heads * o->dim;
    if (once && point != KVM_POINT_RAW) return KVM_OK;
    assert_true(object < OBJECTS && (first + n) * width <= ROOM);
    memcpy(r->rows[point - 1][object] + first * width, rows,
           (size_t)(n * width) * sizeof *rows);
    return KVM_OK;
}

/* 3 sin(0.7 t + 1.3 v + 0.05 t v), of which the softmax is aimed at */
static float target(ptrdiff_t t, ptrdiff_t v)
{
    return (float)(3 * sin(0.7 * (double)t + 1.3 * (double)v +
                           0.05 * (double)t * (double)v));
}

static kvm_status loss_rows(void *ctx, ptrdiff_t from, ptrdiff_t n, float *logits,
                            kvm_err *err)
{
    run *r = ctx;
    float aim[MORE * V];
    for (ptrdiff_t t = 0; t < n; t++)
        for (ptrdiff_t v = 0; v < V; v++) aim[t * V + v] = target(from + t, v);
    return kvm_op_kl_back(r->c, r->kl + from, kvm_view2(logits, KVM_F32, n, V),
                          kvm_view2(aim, KVM_F32, n, V), 1.0 / MORE, err);
}

static double mean(const run *r)
{
    double sum = 0;
    for (int t = 0; t < MORE; t++) sum += r->kl[t];
    return sum / MORE;
}

/* the loss behind what the cache holds, which stays as it is */
static double loss_now(run *r)
{
    kvm_err err = {0};
    static float logits[MORE * V];
    const kvm_forward_options o = {.logits_last = MORE, .logits = logits};
    kvm_cache_mark(r->cache);
    check_ok(kvm_model_forward(r->m, r->cache, r->ids + PREFIX, MORE, &o, &err), &err);
    check_ok(kvm_cache_truncate(r->cache, PREFIX, &err), &err);
    check_ok(loss_rows(r, 0, MORE, logits, &err), &err);
    return mean(r);
}

static kvm_st *open_vectors(run *r, const char *file)
{
    kvm_err err = {0};
    kvm_st *st;
    const kvm_str path = kvm_str_fmt(&r->keep, ROOT "%s/%s", r->name, file);
    check_ok(kvm_st_open(&st, &r->keep, path, &err), &err);
    return st;
}

/* the prefix in a cache, and the gradients by it */
static run *start(const char *name, const char *backend)
{
    static run r;
    kvm_err err = {0};
    kvm_tape *tape;
    r = (run){.name = name, .keep = check_arena((size_t)1 << 30)};
    check_ok(
        kvm_compute_new(&r.c, &r.keep, kvm_backend_find(kvm_str_of(backend)), 2, &err),
        &err);
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&r.m, &r.keep, r.c, kvm_str_fmt(&r.keep, ROOT "%s", name),
                            &o, &err),
             &err);
    r.objects = kvm_model_info_of(r.m)->objects;
    for (int i = 0; i < PREFIX + MORE; i++) r.ids[i] = (i * 37 + i * i) % V;
    check_ok(kvm_cache_new(&r.cache, &r.keep, r.m, 60, &err), &err);
    check_ok(kvm_gradients_new(&r.g, &r.keep, r.m, 60, &err), &err);
    check_ok(kvm_tape_new(&tape, &r.keep, r.m, PREFIX, MORE, &err), &err);
    if (!strstr(name, ".gguf"))
        memcpy(
            r.ids,
            kvm_st_find(open_vectors(&r, "expect.safetensors"), KVM_STR("ids"))->t.data,
            sizeof r.ids);
    const kvm_capture capture = {
        .rows = keep_rows, .points = 1u << 1 | 1u << 2, .ctx = &r};
    const kvm_forward_options f = {.capture = &capture};
    check_ok(kvm_model_forward(r.m, r.cache, r.ids, PREFIX, &f, &err), &err);
    kvm_cache_mark(r.cache);
    check_ok(kvm_tape_record(tape, r.cache, r.ids + PREFIX, MORE, &err), &err);
    check_ok(kvm_gradients_clear(r.g, PREFIX, &err), &err);
    const kvm_loss loss = {.rows = loss_rows, .ctx = &r};
    check_ok(kvm_tape_backward(tape, r.cache, &loss, r.g, &err), &err);
    check_ok(kvm_cache_truncate(r.cache, PREFIX, &err), &err);
    return &r;
}

/* ---- against PyTorch ---- */

/* the gradient by an object as numbers in a row, at point 3 or taken back to 1 */
static ptrdiff_t numbers_of(run *r, ptrdiff_t object, int point, float *out)
{
    kvm_err err = {0};
    const kvm_object *o = kvm_model_object(r->m, object);
    const ptrdiff_t width = o->heads * o->dim;
    if (kvm_object_per_prompt(o)) {
        kvm_tensor view, window;
        check_ok(kvm_gradients_view(r->g, object, &view, &err), &err);
        memcpy(out, view.data, (size_t)width * sizeof *out);
        if (point == KVM_POINT_ENGINE) return width;
        check_ok(kvm_gradients_view(r->g, object + 1, &window, &err), &err);
        check_ok(kvm_model_pull_replay(r->m, object, PREFIX, r->rows[0][object],
                                       view.data, window.data, out, r->keep, &err),
                 &err);
        return PREFIX * o->replay;
    }
    assert_true(PREFIX * width <= ROOM);
    check_ok(kvm_gradients_read(r->g, object, 0, PREFIX, out, &err), &err);
    check_ok(
        kvm_model_pull(r->m, object, point, 0, PREFIX, r->rows[0][object], out, &err),
        &err);
    return PREFIX * width;
}

/* of the largest number. Behind the states of qwen3_next f32 leaves more: PyTorch's own
 * keys in f32 are 1.7e-4 from those in f64. */
static double allowed(const run *r)
{
    return strcmp(r->name, "qwen3_next") == 0 ? 3e-4 : AUTOGRAD;
}

static void equals(const run *r, const char *name, const float *got, ptrdiff_t n,
                   const kvm_tensor *want)
{
    const float *w = want->data;
    const ptrdiff_t step = (1 + n / 160) | 1, count = (n + step - 1) / step;
    double squares = 0;
    assert_int_equal(want->dim[0], count + 2);
    const double length = (double)w[count], top = (double)w[count + 1];
    for (ptrdiff_t i = 0; i < n; i++) squares += (double)got[i] * (double)got[i];
    for (ptrdiff_t i = 0; i < count; i++)
        if (!(fabs((double)got[i * step] - (double)w[i]) <= allowed(r) * top))
            fail_msg("%s, %s: number %td is %g, not %g (largest %g)", r->name, name,
                     i * step, (double)got[i * step], (double)w[i], top);
    if (!(fabs(sqrt(squares) - length) <= allowed(r) * length))
        fail_msg("%s, %s: of length %g, not %g", r->name, name, sqrt(squares), length);
}

/* what make_gradients.py calls an object at a point; NULL: it has none */
static const char *name_at(kvm_object_kind kind, int point)
{
    const bool raw = point == KVM_POINT_RAW;
    if (kind == KVM_OBJECT_K) return raw ? "k1" : "k3";
    if (kind == KVM_OBJECT_V) return raw ? NULL : "v";
    if (kind == KVM_OBJECT_LATENT) return raw ? "latent1" : "latent2";
    if (kind == KVM_OBJECT_ROTARY_KEY) return raw ? "rotary1" : NULL;
    if (kind == KVM_OBJECT_STATE || kind == KVM_OBJECT_SSM_STATE)
        return raw ? "state1" : "state3";
    if (raw) return NULL;
    return kind == KVM_OBJECT_WINDOW         ? "window3"
           : kind == KVM_OBJECT_NGRAM_WINDOW ? "ngrams3"
                                             : NULL;
}

static void autograd(const char *model, const char *backend)
{
    static float got[ROOM];
    run *r = start(model, backend);
    kvm_st *want = open_vectors(r, "gradients.safetensors");
    const float *loss = kvm_st_find(want, KVM_STR("loss"))->t.data;
    assert_true(fabs(mean(r) - (double)*loss) < 1e-5);
    int found = 0;
    for (ptrdiff_t i = 0; i < r->objects; i++) {
        const kvm_object *o = kvm_model_object(r->m, i);
        for (int point = 1; point <= 3; point += 2) {
            const char *kind = name_at(o->kind, point);
            if (!kind) continue;
            const kvm_str name = kvm_str_fmt(&r->keep, "%s.%td", kind, o->layer);
            const kvm_st_tensor *t = kvm_st_find(want, name);
            if (!t) fail_msg("%s: no vector %s", model, name.at);
            const ptrdiff_t n = numbers_of(r, i, point, got);
            if (t) equals(r, name.at, got, n, &t->t);
            found++;
        }
    }
    assert_int_equal(found, kvm_st_count(want) - 1);
    kvm_arena_free(&r->keep);
}

static void test_autograd(void **state)
{
    (void)state;
    for (size_t b = 0; b < COUNT(backends); b++)
        for (size_t i = 0; i < COUNT(golden); i++) autograd(golden[i], backends[b]);
    for (size_t b = 0; b < COUNT(backends); b++)
        for (size_t i = 0; i < COUNT(choosing); i++) autograd(choosing[i], backends[b]);
}

/* ---- against differences ---- */

/* number i of an object, T rows of H * D or the whole of one per prompt, in a view */
static float *number_in(const kvm_tensor *view, ptrdiff_t i)
{
    const ptrdiff_t d = i % view->dim[2], t = i / view->dim[2] % view->dim[1];
    const ptrdiff_t h = i / (view->dim[1] * view->dim[2]);
    return (float *)view->data + h * view->stride[0] + t * view->stride[1] + d;
}

/* An object that moves in a random direction, and is moved back by a copy of it */
typedef struct motion {
    run *r;
    const kvm_tensor *view;
    const float *old, *direction;
} motion;

static double moved(void *ctx, double by)
{
    const motion *m = ctx;
    const ptrdiff_t n = kvm_tensor_count(m->view);
    for (ptrdiff_t i = 0; i < n; i++)
        *number_in(m->view, i) =
            (float)((double)m->old[i] + by * (double)m->direction[i]);
    const double loss = loss_now(m->r);
    for (ptrdiff_t i = 0; i < n; i++) *number_in(m->view, i) = m->old[i];
    return loss;
}

/* A direction that leans on the gradient, so that its slope is not lost among
 * roundings */
static void slope(run *r, ptrdiff_t object, kvm_rng *rng)
{
    static float old[ROOM], direction[ROOM];
    kvm_err err = {0};
    kvm_tensor at, grad;
    check_ok(kvm_cache_view(r->cache, object, &at, &err), &err);
    check_ok(kvm_gradients_view(r->g, object, &grad, &err), &err);
    const ptrdiff_t n = kvm_tensor_count(&at);
    assert_true(n <= ROOM);
    double squares = 0, along = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        squares += (double)*number_in(&grad, i) * (double)*number_in(&grad, i);
    const double size = sqrt(squares / (double)n);
    for (ptrdiff_t i = 0; i < n; i++) {
        old[i] = *number_in(&at, i);
        direction[i] = *number_in(&grad, i) + (float)(size * kvm_rng_normal(rng));
        along += (double)direction[i] * (double)*number_in(&grad, i);
    }
    assert_true(along > 0);
    motion m = {r, &at, old, direction};
    const double got = slope_of(moved, &m, 3e-3 / along); /* by which the loss moves */
    if (!(fabs(got - along) <= DIFFERENCES * along)) {
        const kvm_object *o = kvm_model_object(r->m, object);
        fail_msg("%s, layer %td, %s: the loss rises by %g, the gradient says %g",
                 r->name, o->layer, kvm_object_name(o->kind), got, along);
    }
}

static void slopes(const char *model)
{
    run *r = start(model, "ref");
    kvm_rng rng = kvm_rng_seed(20260201, 1);
    for (ptrdiff_t i = 0; i < r->objects; i++) slope(r, i, &rng);
    kvm_arena_free(&r->keep);
}

static void test_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(golden); i++) slopes(golden[i]);
    for (size_t i = 0; i < COUNT(others); i++) slopes(others[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autograd),
        cmocka_unit_test(test_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
