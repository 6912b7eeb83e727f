/* Tiny models of every family against PyTorch and transformers
 * (tests/golden/models/make.py), on every exact backend: logits, hidden states, keys
 * and values at each capture point, in one pass, in chunks, token by token; greedy
 * continuations; injection at each point. Both sides compute in f32; the tolerances are
 * for that. cpu-bf16, which rounds activations, has test_models_pairs.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "models/config.h"
#include "tests/golden/models.h"

/* all exact ones; a machine need not have them all */
static const char *const backends[] = {"ref", "cpu-avx512", "cpu-avx2", "cpu-plain"};

enum { NEW = 20 };
static const double LOGITS = 1e-4, CACHED = 1e-5, STATES = 1e-4;
/* pieces against the whole: make.py lets PyTorch's be 1e-5 apart (qwen3_5's are 9.7e-6,
 * for why see test_models_pairs.c), and ours round both otherwise (there 1.01e-5) */
static const double INCREMENTAL = 2e-5;

/* ---- one pass, everything looked at ---- */

typedef struct watch {
    const run *r;
    int points, hidden, attention; /* calls */
} watch;

static kvm_status on_rows(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                          ptrdiff_t n, const float *rows, kvm_err *err)
{
    watch *w = ctx;
    const kvm_object *o = kvm_model_object(w->r->model, object);
    static const char *const names[] = {"k",     "v",      "latent", "rotary",
                                        "state", "window", "index",  "ngrams",
                                        "ids",   "state",  "pool"};
    const bool once = kvm_object_per_prompt(o);
    char full[16] = "v";
    if (once && point == KVM_POINT_NORMED) { /* test_inputs looks at it */
        w->points++;
        return KVM_OK;
    }
    if (!once && point == KVM_POINT_ENGINE && !o->rotary) point = KVM_POINT_NORMED;
    if (!once && point == KVM_POINT_NORMED && !o->normed) point = KVM_POINT_RAW;
    if (o->kind != KVM_OBJECT_V)
        snprintf(full, sizeof full, "%s%d", names[o->kind], point);
    const kvm_st_tensor *t = want(w->r, full, o->layer);
    if (!t)
        return kvm_fail(err, KVM_NOTFOUND, "%s: no golden %s of layer %td",
                        w->r->g->model, full, o->layer);
    w->points++;
    if (once && point == KVM_POINT_ENGINE) {
        assert_int_equal(first, T);
        assert_int_equal(n, 1);
        for (int i = 0; i < t->t.rank; i++) assert_int_equal(t->t.dim[i], o->shape[i]);
        check_close(w->r, full, rows, t->t.data, o->heads * o->dim, STATES);
        return KVM_OK;
    }
    const ptrdiff_t width = once ? o->replay : o->heads * o->dim;
    assert_int_equal(t->t.dim[1], width);
    check_close(w->r, full, rows, (const float *)t->t.data + first * width, n * width,
                CACHED);
    return KVM_OK;
}

static kvm_status on_hidden(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                            const float *h, kvm_err *err)
{
    (void)err;
    watch *w = ctx;
    const kvm_st_tensor *t = want(w->r, "h", layer);
    if (t) {
        const ptrdiff_t width = t->t.dim[1]; /* all streams */
        check_close(w->r, "hidden", h, (const float *)t->t.data + first * width,
                    n * width, CACHED);
    }
    w->hidden++;
    return KVM_OK;
}

static kvm_status on_attention(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                               const float *q, const float *out, kvm_err *err)
{
    (void)err;
    watch *w = ctx;
    const kvm_st_tensor *tq = want(w->r, "q", layer), *to = want(w->r, "out", layer);
    if (tq) {
        const ptrdiff_t wq = tq->t.dim[1], wo = to->t.dim[1];
        assert_int_equal(wq, w->r->info->heads * w->r->info->head_dim);
        check_close(w->r, "q", q, (const float *)tq->t.data + first * wq, n * wq,
                    CACHED);
        check_close(w->r, "out", out, (const float *)to->t.data + first * wo, n * wo,
                    CACHED);
    }
    w->attention++;
    return KVM_OK;
}

static void one_pass(const golden *g, const char *backend)
{
    run r = start(g, backend);
    kvm_err err = {0};
    static float logits[T * V];
    watch w = {.r = &r};
    const kvm_capture capture = {.rows = on_rows,
                                 .points = 1u << 1 | 1u << 2 | 1u << 3,
                                 .attention = on_attention,
                                 .hidden = on_hidden,
                                 .ctx = &w};
    const kvm_forward_options o = {
        .logits_last = T, .logits = logits, .capture = &capture};
    assert_string_equal(r.info->family.at, g->family);
    assert_int_equal(r.info->layers, g->layers);
    check_ok(kvm_model_forward(r.model, fresh(&r), r.ids, T, &o, &err), &err);
    check_close(&r, "logits", logits, r.logits, at(T), LOGITS);
    int points = 0, attention = 0; /* states: inputs and the end; windows: the end */
    for (ptrdiff_t i = 0; i < r.info->objects; i++) {
        const kvm_object *ob = kvm_model_object(r.model, i);
        points +=
            kvm_object_per_prompt(ob) ? 1 + (ob->replay > 0) + (ob->inputs > 0) : 3;
        attention += ob->kind == KVM_OBJECT_K || ob->kind == KVM_OBJECT_LATENT;
    }
    assert_int_equal(w.points, points);
    assert_int_equal(w.hidden, g->layers);
    assert_int_equal(w.attention, attention);
    kvm_arena_free(&r.keep);
}

/* ---- pieces of any size ---- */

static void in_chunks(const golden *g, const char *backend)
{
    run r = start(g, backend);
    kvm_err err = {0};
    static float whole[T * V], pieces[T * V];
    kvm_forward_options o = {.chunk = T, .logits_last = T, .logits = whole};
    check_ok(kvm_model_forward(r.model, fresh(&r), r.ids, T, &o, &err), &err);
    static const ptrdiff_t sizes[] = {1, 3, 7, 16, 40, 64};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        memset(pieces, 0, sizeof pieces);
        o = (kvm_forward_options){
            .chunk = sizes[i], .logits_last = T - 5, .logits = pieces + at(5)};
        check_ok(kvm_model_forward(r.model, fresh(&r), r.ids, T, &o, &err), &err);
        check_close(&r, "chunked logits", pieces + at(5), whole + at(5), at(T - 5),
                    INCREMENTAL);
        check_close(&r, "chunked logits", pieces + at(5), r.logits + at(5), at(T - 5),
                    LOGITS);
    }
    /* as a conversation: 40 at once, 8 one by one, 5 more */
    kvm_cache *c = fresh(&r);
    o = (kvm_forward_options){.logits_last = 1, .logits = pieces + at(39)};
    check_ok(kvm_model_forward(r.model, c, r.ids, 40, &o, &err), &err);
    for (ptrdiff_t t = 40; t < 48; t++) {
        o.logits = pieces + at(t);
        check_ok(kvm_model_forward(r.model, c, r.ids + t, 1, &o, &err), &err);
    }
    o = (kvm_forward_options){.logits_last = 5, .logits = pieces + at(48)};
    check_ok(kvm_model_forward(r.model, c, r.ids + 48, 5, &o, &err), &err);
    check_close(&r, "stepped logits", pieces + at(39), r.logits + at(39), at(14),
                LOGITS);
    check_close(&r, "stepped logits", pieces + at(39), whole + at(39), at(14),
                INCREMENTAL);
    kvm_arena_free(&r.keep);
}

static void greedily(const golden *g, const char *backend)
{
    run r = start(g, backend);
    kvm_err err = {0};
    float logits[V];
    int32_t ids[NEW];
    ptrdiff_t n;
    kvm_cache *c = fresh(&r);
    const kvm_forward_options o = {.logits_last = 1, .logits = logits};
    const kvm_sampling s = {0};
    check_ok(kvm_model_forward(r.model, c, r.ids, T, &o, &err), &err);
    check_ok(kvm_generate(r.model, c, logits, &s, NEW, ids, &n, NULL, NULL, &err),
             &err);
    assert_int_equal(n, NEW);
    assert_memory_equal(ids, want(&r, "greedy", -1)->t.data, sizeof ids);
    assert_int_equal(kvm_cache_length(c), T + NEW);
    kvm_arena_free(&r.keep);
}

/* ---- identity: the model's own rows put back at each point ---- */

enum { PREFIX = 40, PIECE = 17, ROOM = PREFIX * 64, OBJECTS = 12 };
typedef struct tape {
    const kvm_model *model;
    float rows[4][OBJECTS][ROOM]; /* by point and object */
} tape;

static kvm_status record(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                         ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    tape *t = ctx;
    const kvm_object *o = kvm_model_object(t->model, object);
    const bool once = kvm_object_per_prompt(o);
    const ptrdiff_t width = once && point == 1 ? o->replay : o->heads * o->dim;
    if (once && point == KVM_POINT_NORMED) return KVM_OK;
    assert_true(object < OBJECTS);
    assert_true(width * (once && point == 3 ? 1 : PREFIX) <= ROOM);
    memcpy(t->rows[point][object] + (once && point == 3 ? 0 : first * width), rows,
           (size_t)(n * width) * sizeof *rows);
    return KVM_OK;
}

/* a recurrent layer's state and window, or the inputs that make both; in pieces as
 * large as the forward's, for a state's bits hang on the cut */
static void put_state(kvm_cache *c, const tape *t, ptrdiff_t i, int point)
{
    kvm_err err = {0};
    const kvm_object *o = kvm_model_object(t->model, i);
    if (point == KVM_POINT_RAW && (o->replay > 0 || o->kind == KVM_OBJECT_WINDOW)) {
        for (ptrdiff_t from = 0; o->replay > 0 && from < PREFIX; from += PIECE)
            check_ok(kvm_inject_rows(c, i, point, from,
                                     PREFIX - from < PIECE ? PREFIX - from : PIECE,
                                     t->rows[point][i] + from * o->replay, &err),
                     &err);
        return;
    }
    const kvm_state s = {.data = t->rows[KVM_POINT_ENGINE][i],
                         .axes = kvm_str_of(kvm_object_axes(o->kind)),
                         .dim = {o->shape[0], o->shape[1], o->shape[2]},
                         .dtype = KVM_F32,
                         .tokens = PREFIX};
    check_ok(kvm_inject_state(c, i, &s, &err), &err);
}

/* all objects at `point`, values first and in uneven pieces */
static void put_back(run *r, kvm_cache *c, const tape *t, int point)
{
    kvm_err err = {0};
    check_ok(kvm_inject_begin(c, PREFIX, &err), &err);
    for (ptrdiff_t i = r->info->objects - 1; i >= 0; i--) {
        const kvm_object *o = kvm_model_object(r->model, i);
        const ptrdiff_t width = o->heads * o->dim;
        const float *rows = t->rows[point][i];
        if (kvm_object_per_prompt(o)) {
            put_state(c, t, i, point);
            continue;
        }
        check_ok(kvm_inject_rows(c, i, point, 13, PREFIX - 13, rows + 13 * width, &err),
                 &err);
        check_ok(kvm_inject_rows(c, i, point, 0, 13, rows, &err), &err);
    }
    check_ok(kvm_inject_end(c, &err), &err);
}

/* as bytes: 0 is not -0, and what is no number equals itself */
static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static void put_in_again(const golden *g, const char *backend)
{
    run r = start(g, backend);
    kvm_err err = {0};
    static tape t;
    static float native[13 * V], again[13 * V];
    t.model = r.model;
    kvm_cache *c = fresh(&r);
    const kvm_capture capture = {
        .rows = record, .points = 1u << 1 | 1u << 2 | 1u << 3, .ctx = &t};
    kvm_forward_options o = {.capture = &capture, .chunk = PIECE};
    check_ok(kvm_model_forward(r.model, c, r.ids, PREFIX, &o, &err), &err);
    o = (kvm_forward_options){.logits_last = 13, .logits = native};
    check_ok(kvm_model_forward(r.model, c, r.ids + PREFIX, 13, &o, &err), &err);
    o.logits = again;
    for (int point = KVM_POINT_RAW; point <= KVM_POINT_ENGINE; point++) {
        kvm_cache *other = fresh(&r);
        put_back(&r, other, &t, point);
        check_ok(kvm_model_forward(r.model, other, r.ids + PREFIX, 13, &o, &err), &err);
        /* norm and rotary work row by row, so points 1 and 2 give the same bits too */
        if (!same_bits(again, native, sizeof native))
            fail_msg("%s on %s: other bits after an injection at point %d", g->model,
                     backend, point);
    }
    /* and what the cache gives back at point 2 is what was captured there */
    static float rows[ROOM];
    for (ptrdiff_t i = 0; i < r.info->objects; i++) {
        const kvm_object *ob = kvm_model_object(r.model, i);
        const ptrdiff_t n = PREFIX * ob->heads * ob->dim;
        if (kvm_object_per_prompt(ob)) continue;
        check_ok(kvm_cache_read(c, i, KVM_POINT_NORMED, 0, PREFIX, rows, &err), &err);
        check_close(&r, "rows read back", rows, t.rows[KVM_POINT_NORMED][i], n, CACHED);
    }
    kvm_arena_free(&r.keep);
}

static void everywhere(void (*test)(const golden *, const char *))
{
    for (size_t b = 0; b < COUNT(backends); b++) {
        if (!kvm_backend_find(kvm_str_of(backends[b]))) continue;
        for (size_t i = 0; i < COUNT(cases); i++) test(&cases[i], backends[b]);
    }
}

static void test_one_pass(void **state)
{
    (void)state;
    everywhere(one_pass);
}
static void test_chunks(void **state)
{
    (void)state;
    everywhere(in_chunks);
}
static void test_greedy(void **state)
{
    (void)state;
    everywhere(greedily);
}
static void test_identity(void **state)
{
    (void)state;
    everywhere(put_in_again);
}

/* ---- what recurrent layers read ---- */

enum { INPUTS = 400, LAYERS = 8, STATE = 8192 };
typedef struct inputs {
    const run *r;
    double state[LAYERS][STATE]; /* made here of what was captured at point 2 */
    int layers;
} inputs;

/* the rate exp(A) of each head, from the file */
static void rates(const run *r, ptrdiff_t layer, double *rate, ptrdiff_t heads)
{
    static const char *const prefixes[] = {"model", "backbone"};
    kvm_arena a = check_arena(1 << 22);
    kvm_err err = {0};
    kvm_st *st;
    const kvm_st_tensor *t = NULL;
    check_ok(kvm_st_open(&st, &a, kvm_str_of(r->g->model), &err), &err);
    for (size_t i = 0; !t && i < COUNT(prefixes); i++)
        t = kvm_st_find(
            st, kvm_str_fmt(&a, "%s.layers.%td.mixer.A_log", prefixes[i], layer));
    assert_non_null(t);
    float x[64] = {0};
    assert_true(heads <= 64);
    if (t) check_ok(kvm_widen_row(x, t->t.data, t->t.dtype, heads, &err), &err);
    for (ptrdiff_t h = 0; h < heads; h++) rate[h] = exp((double)x[h]);
    kvm_arena_free(&a);
}

/* u = x (H,P) | B (G,N) | C, dt (H): S = exp(-rate dt) S + dt x Bt, per head */
static void scan(inputs *w, const kvm_object *o, const float *row, ptrdiff_t keys)
{
    const ptrdiff_t heads = o->shape[0], p = o->shape[1], n = o->shape[2];
    const float *b = row + heads * p, *dt = row + heads * p + 2 * keys;
    double rate[64];
    rates(w->r, o->layer, rate, heads);
    for (ptrdiff_t h = 0; h < heads; h++)
        for (ptrdiff_t i = 0; i < p; i++)
            for (ptrdiff_t j = 0; j < n; j++) {
                double *s = &w->state[o->layer][(h * p + i) * n + j];
                *s = exp(-rate[h] * (double)dt[h]) * *s +
                     (double)dt[h] * (double)row[h * p + i] *
                         (double)b[h / (heads / (keys / n)) * n + j];
            }
}

/* q | k | v, decay (H) or (H,K), beta (H): S = exp(g) S; S += k (beta (v - St k))t, per
 * head. q is of length 1 / sqrt(K). */
static void delta(inputs *w, const kvm_object *o, const float *row, ptrdiff_t keys)
{
    const ptrdiff_t heads = o->shape[0], dk = o->shape[1], dv = o->shape[2];
    const ptrdiff_t group = heads / (keys / dk),
                    decays = o->inputs - 2 * keys - heads * dv - heads;
    const float *v = row + 2 * keys, *g = v + heads * dv, *beta = g + decays;
    for (ptrdiff_t h = 0; h < heads; h++) {
        const float *q = row + h / group * dk, *k = q + keys;
        double *s = &w->state[o->layer][h * dk * dv], length[2] = {0};
        for (ptrdiff_t d = 0; d < dk; d++) {
            length[0] += (double)q[d] * (double)q[d] * (double)dk;
            length[1] += (double)k[d] * (double)k[d];
            for (ptrdiff_t e = 0; e < dv; e++)
                s[d * dv + e] *= exp((double)g[decays == heads ? h : h * dk + d]);
        }
        for (int i = 0; i < 2; i++) assert_true(fabs(length[i] - 1) < 1e-2);
        for (ptrdiff_t e = 0; e < dv; e++) {
            double u = (double)v[h * dv + e];
            for (ptrdiff_t d = 0; d < dk; d++) u -= s[d * dv + e] * (double)k[d];
            for (ptrdiff_t d = 0; d < dk; d++)
                s[d * dv + e] += (double)k[d] * (double)beta[h] * u;
        }
    }
}

static kvm_status on_inputs(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                            ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)point, (void)first, (void)err;
    inputs *w = ctx;
    const kvm_object *o = kvm_model_object(w->r->model, object);
    if (!kvm_object_per_prompt(o)) return KVM_OK;
    assert_true(o->inputs > 0 && o->inputs <= INPUTS && o->layer < LAYERS &&
                o->heads * o->dim <= STATE);
    const kvm_object *window = kvm_model_object(w->r->model, object + 1);
    const bool ssm = o->kind == KVM_OBJECT_SSM_STATE;
    const ptrdiff_t values = o->shape[0] * o->shape[ssm ? 1 : 2];
    const ptrdiff_t keys = (window->shape[0] - values) / 2;
    for (ptrdiff_t t = 0; t < n; t++)
        (ssm ? scan : delta)(w, o, rows + t * o->inputs, keys);
    w->layers++;
    return KVM_OK;
}

/* the states of the reference, from what was captured at point 2 */
static void rule_again(const golden *g, const char *backend)
{
    run r = start(g, backend);
    kvm_err err = {0};
    static inputs w;
    static float state[STATE];
    w = (inputs){.r = &r};
    const kvm_capture capture = {.rows = on_inputs, .points = 1u << 2, .ctx = &w};
    const kvm_forward_options o = {.capture = &capture};
    check_ok(kvm_model_forward(r.model, fresh(&r), r.ids, T, &o, &err), &err);
    for (ptrdiff_t i = 0; i < r.info->objects; i++) {
        const kvm_object *ob = kvm_model_object(r.model, i);
        if (ob->inputs == 0) continue;
        const ptrdiff_t n = ob->heads * ob->dim;
        for (ptrdiff_t j = 0; j < n; j++) state[j] = (float)w.state[ob->layer][j];
        const kvm_st_tensor *t = want(&r, "state3", ob->layer);
        assert_non_null(t);
        check_close(&r, "state of point 2", state, (const float *)t->t.data, n, STATES);
        w.layers--;
    }
    assert_int_equal(w.layers, 0);
    kvm_arena_free(&r.keep);
}

static void test_inputs(void **state)
{
    (void)state;
    everywhere(rule_again);
}

/* ---- both rope dialects say the same ---- */

static void test_dialects(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (kvm_str_ends(kvm_str_of(cases[i].model), KVM_STR(".gguf"))) continue;
        char hex[2][65];
        for (int old = 0; old < 2; old++) {
            kvm_arena a = check_arena(1 << 20);
            kvm_err err = {0};
            kvm_jat root;
            kvm_config c;
            const kvm_str path =
                kvm_str_fmt(&a, "%s/config%s.json", cases[i].model, old ? ".old" : "");
            check_ok(kvm_json_read_loose(&root, &a, path, &err), &err);
            check_ok(kvm_config_of_json(&c, &a, root, &err), &err);
            assert_int_equal(c.tied, cases[i].tied);
            check_ok(kvm_config_hash(&c, hex[old], a, &err), &err);
            kvm_arena_free(&a);
        }
        assert_string_equal(hex[0], hex[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_pass), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_greedy),   cmocka_unit_test(test_identity),
        cmocka_unit_test(test_inputs),   cmocka_unit_test(test_dialects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
