/* Prefixes without index keys: looked at whole, and behind them indexers choose
 * as they always do. For tokens, pools and blocks, on both backends. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/backward.h"
#include "models/model_internal.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

enum { V = 97, CAPACITY = 64, ROOM = CAPACITY * 1024, MOST_LAYERS = 8 };

static const struct {
    const char *name, *budget, *wide; /* what its config says of it */
} models[] = {
    {"deepseek_v32", "\"index_topk\": 6", "\"index_topk\": 600"},
    {"glm_moe_dsa", "\"index_topk\": 6", "\"index_topk\": 600"},
    {"glm5_next", "\"index_topk\": 8", "\"index_topk\": 800"},
    {"qwen4_exp", "\"indexer_budget\": 16", "\"indexer_budget\": 1600"},
};
static const char *const backends[] = {"ref", "cpu"};

/* What a forward chose, by layer and position: bits of tokens. */
typedef struct choices {
    uint64_t of[MOST_LAYERS][CAPACITY];
    bool asked[MOST_LAYERS]; /* the layer has an indexer of its own */
} choices;

typedef struct fixture {
    kvm_arena keep;
    kvm_model *m, *wide; /* wide: the same weights, and a budget that all fits into */
    kvm_cache *c;        /* of m */
    int32_t ids[CAPACITY];
    ptrdiff_t most, block;
    choices chosen;
    float logits[CAPACITY * V];
} fixture;

static kvm_status keep_choice(void *ctx, ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                              const kvm_mask *mask, kvm_err *err)
{
    (void)err;
    choices *c = ctx;
    c->asked[layer] = true;
    for (ptrdiff_t t = 0; t < n; t++) {
        const uint64_t seen = ((uint64_t)2 << (first + t)) - 1;
        c->of[layer][first + t] = mask ? mask->bits[t * mask->words] : seen;
        assert_int_equal(c->of[layer][first + t] & ~seen, 0);
    }
    return KVM_OK;
}

/* the next n tokens, their logits and choices */
static void read_on(fixture *f, kvm_model *m, kvm_cache *c, ptrdiff_t n)
{
    kvm_err err = {0};
    const ptrdiff_t at = kvm_cache_length(c);
    const kvm_capture capture = {.choice = keep_choice, .ctx = &f->chosen};
    const kvm_forward_options o = {
        .logits_last = n, .logits = f->logits + at * V, .capture = &capture};
    memset(&f->chosen, 0, sizeof f->chosen);
    check_ok(kvm_model_forward(m, c, f->ids + at, n, &o, &err), &err);
}

/* what `to` lacks of an object */
static kvm_status put(const fixture *f, kvm_cache *to, const kvm_cache *from,
                      ptrdiff_t object, kvm_err *err)
{
    static float rows[ROOM];
    const kvm_object *o = kvm_model_object(f->m, object);
    const ptrdiff_t n = kvm_cache_length(from);
    kvm_state s = {.data = from->slots[object].rows,
                   .axes = kvm_str_of(kvm_object_axes(o->kind)),
                   .dtype = KVM_F32,
                   .tokens = n};
    memcpy(s.dim, o->shape, sizeof s.dim);
    if (kvm_object_per_prompt(o)) return kvm_inject_state(to, object, &s, err);
    const ptrdiff_t at = kvm_cache_length(to);
    assert_true(n * o->heads * o->dim <= ROOM);
    TRY(kvm_cache_read(from, object, 3, at, n - at, rows, err));
    return kvm_inject_rows(to, object, 3, at, n - at, rows, err);
}

/* what `from` keeps into a new cache, without index keys if that is wanted */
static kvm_cache *injected(fixture *f, const kvm_model *m, const kvm_cache *from,
                           bool dense)
{
    kvm_err err = {0};
    kvm_cache *to;
    check_ok(kvm_cache_new(&to, &f->keep, m, CAPACITY, &err), &err);
    check_ok(kvm_inject_begin(to, kvm_cache_length(from), &err), &err);
    if (dense) check_ok(kvm_inject_dense(to, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++)
        if (!dense || !kvm_object_chooses(kvm_model_object(m, i)))
            check_ok(put(f, to, from, i, &err), &err);
    check_ok(kvm_inject_end(to, &err), &err);
    assert_int_equal(kvm_cache_dense(to), dense ? kvm_cache_length(from) : 0);
    return to;
}

static kvm_model *opened(fixture *f, kvm_compute *c, const char *path)
{
    kvm_err err = {0};
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&m, &f->keep, c, kvm_str_of(path), &o, &err), &err);
    return m;
}

/* the model's folder again, with a budget that is never spent */
static kvm_model *widened(fixture *f, kvm_compute *c, size_t i)
{
    char path[256], from[256];
    check_tmpdir("dense");
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", models[i].name);
    const kvm_str text = check_read(&f->keep, path);
    const ptrdiff_t at = kvm_str_find(text, kvm_str_of(models[i].budget));
    assert_true(at >= 0);
    const kvm_str rest =
        kvm_str_slice(text, at + (ptrdiff_t)strlen(models[i].budget), text.len);
    check_write("build/tmp/dense/config.json",
                kvm_str_fmt(&f->keep, "%.*s%s%.*s", (int)at, text.at, models[i].wide,
                            KVM_STR_ARG(rest)));
    snprintf(from, sizeof from, "../../../tests/golden/models/%s/model.safetensors",
             models[i].name);
    assert_int_equal(symlink(from, "build/tmp/dense/model.safetensors"), 0);
    return opened(f, c, "build/tmp/dense");
}

static fixture *start(size_t i)
{
    static fixture f;
    kvm_err err = {0};
    kvm_compute *c;
    char path[256];
    const size_t model = i % COUNT(models);
    const char *backend = backends[i / COUNT(models)];
    f = (fixture){.keep = check_arena((size_t)1 << 30)};
    check_ok(
        kvm_compute_new(&c, &f.keep, kvm_backend_find(kvm_str_of(backend)), 2, &err),
        &err);
    snprintf(path, sizeof path, "tests/golden/models/%s", models[model].name);
    f.m = opened(&f, c, path);
    f.wide = widened(&f, c, model);
    f.most = f.m->config.index.most;
    f.block = f.m->config.index.block;
    check_ok(kvm_cache_new(&f.c, &f.keep, f.m, CAPACITY, &err), &err);
    kvm_rng r = kvm_rng_seed(5, 1);
    for (int t = 0; t < CAPACITY; t++) f.ids[t] = (int32_t)kvm_rng_below(&r, V);
    return &f;
}

static void each(void (*test)(fixture *f))
{
    for (size_t i = 0; i < COUNT(models) * COUNT(backends); i++) {
        fixture *f = start(i);
        test(f);
        kvm_arena_free(&f->keep);
    }
}

/* ---- bit for bit ---- */

static void same_logits(fixture *f, const float *one, ptrdiff_t first, ptrdiff_t n)
{
    assert_memory_equal(one + first * V, f->logits + first * V,
                        (size_t)(n * V) * sizeof *one);
}

/* as long as nothing is left out, what the indexer would choose is everything */
static void within_the_budget(fixture *f)
{
    static float native[CAPACITY * V];
    const ptrdiff_t n = f->most / 2 + 1, more = f->most - n;
    read_on(f, f->m, f->c, n);
    kvm_cache *dense = injected(f, f->m, f->c, true);
    read_on(f, f->m, f->c, more);
    memcpy(native, f->logits, sizeof native);
    read_on(f, f->m, dense, more);
    same_logits(f, native, n, more);
}

/* beyond it: a model of the same weights with a budget larger than its context */
static void beyond_the_budget(fixture *f)
{
    static float wide[CAPACITY * V];
    static const ptrdiff_t lengths[] = {37, 40};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        const ptrdiff_t n = lengths[i];
        kvm_cache_clear(f->c);
        read_on(f, f->m, f->c, n);
        kvm_cache *dense = injected(f, f->m, f->c, true);
        read_on(f, f->wide, injected(f, f->wide, f->c, false), f->most);
        memcpy(wide, f->logits, sizeof wide);
        read_on(f, f->m, dense, f->most);
        same_logits(f, wide, n, f->most);
        read_on(f, f->m, injected(f, f->m, f->c, false), f->most); /* it matters */
        assert_memory_not_equal(wide + n * V, f->logits + n * V, sizeof *wide * V);
    }
}

static void short_prefixes(void **state)
{
    (void)state;
    each(within_the_budget);
}

static void long_prefixes(void **state)
{
    (void)state;
    each(beyond_the_budget);
}

/* ---- beside PyTorch (tests/golden/models/make_dense.py) ---- */

static const kvm_tensor *golden(fixture *f, const char *file, const char *name)
{
    kvm_err err = {0};
    kvm_st *st;
    const kvm_str path = kvm_str_fmt(&f->keep, "%.*s/%s",
                                     KVM_STR_ARG(kvm_model_info_of(f->m)->path), file);
    check_ok(kvm_st_open(&st, &f->keep, path, &err), &err);
    const kvm_st_tensor *t = kvm_st_find(st, kvm_str_of(name));
    assert_non_null(t);
    return &t->t;
}

static void as_torch_has_it(fixture *f)
{
    enum { PREFIX = 47, MORE = 6 };
    const kvm_tensor *ids = golden(f, "expect.safetensors", "ids");
    const kvm_tensor *want = golden(f, "dense.safetensors", "logits");
    assert_int_equal(kvm_tensor_count(ids), PREFIX + MORE);
    assert_int_equal(kvm_tensor_count(want), MORE * V);
    memcpy(f->ids, ids->data, (PREFIX + MORE) * sizeof *f->ids);
    read_on(f, f->m, f->c, PREFIX);
    read_on(f, f->m, injected(f, f->m, f->c, true), MORE);
    double most = 0, off = 0;
    for (ptrdiff_t i = 0; i < MORE * V; i++) {
        const double x = (double)((const float *)want->data)[i];
        most = fmax(most, fabs(x));
        off = fmax(off, fabs(x - (double)f->logits[PREFIX * V + i]));
    }
    if (!(off <= 1e-4 * most)) fail_msg("logits differ by %g of %g", off, most);
}

static void beside_torch(void **state)
{
    (void)state;
    each(as_torch_has_it);
}

/* ---- what is chosen behind ---- */

static int count(uint64_t bits)
{
    int n = 0;
    for (; bits; bits &= bits - 1) n++;
    return n;
}

static void counted(fixture *f)
{
    const ptrdiff_t n = 21, more = 40, b = f->block, dense = (n + b - 1) / b * b;
    read_on(f, f->m, f->c, n);
    read_on(f, f->m, injected(f, f->m, f->c, true), more);
    int layers = 0;
    for (int l = 0; l < MOST_LAYERS; l++)
        for (ptrdiff_t p = n; f->chosen.asked[l] && p < n + more; p++) {
            const uint64_t got = f->chosen.of[l][p];
            const ptrdiff_t tail = (p + 1) % b, behind = (p + 1) / b - dense / b;
            ptrdiff_t want = p + 1;
            if (behind > f->most / b) want = dense + f->most / b * b + tail;
            for (ptrdiff_t t = 0; t < dense && t <= p; t++) assert_true(got >> t & 1);
            assert_int_equal(count(got), want);
            layers += p == n;
        }
    assert_true(layers > 0);
}

static void as_many_behind(void **state)
{
    (void)state;
    each(counted);
}

/* The first layer's indexer sees the same tokens whatever the cache holds, so its
 * scores are those of a cache with all keys. */
typedef struct scored {
    float scores[CAPACITY * CAPACITY];
} scored;

static kvm_status leave(void *ctx, ptrdiff_t n, ptrdiff_t units, float *scores,
                        kvm_err *err)
{
    (void)ctx, (void)n, (void)units, (void)scores, (void)err;
    return KVM_OK;
}

static void best_behind(void **state)
{
    (void)state;
    static scored s;
    kvm_err err = {0};
    kvm_tape *tape;
    kvm_gradients *g;
    fixture *f = start(0); /* tokens, an indexer in the first layer */
    const ptrdiff_t n = 20, more = 30, all = n + more;
    const ptrdiff_t object = kvm_model_find_object(f->m, KVM_OBJECT_INDEX_KEY, 0);
    read_on(f, f->m, f->c, n);
    kvm_cache *native = injected(f, f->m, f->c, false);
    check_ok(kvm_tape_new(&tape, &f->keep, f->m, n, more, &err), &err);
    check_ok(kvm_gradients_new(&g, &f->keep, f->m, CAPACITY, &err), &err);
    check_ok(kvm_gradients_clear(g, n, &err), &err);
    check_ok(kvm_tape_record(tape, native, f->ids + n, more, &err), &err);
    /* scores are their own gradient then, which nobody reads */
    const kvm_tape_scores_loss loss = {leave, NULL, s.scores};
    check_ok(kvm_tape_scores(tape, native, object, &loss, g, &err), &err);
    read_on(f, f->m, injected(f, f->m, f->c, true), more);
    for (ptrdiff_t p = n; p < all; p++)
        for (ptrdiff_t t = n; t <= p; t++) {
            const float *row = s.scores + (p - n) * all;
            ptrdiff_t better = 0;
            for (ptrdiff_t u = n; u <= p; u++) better += row[u] > row[t];
            assert_int_equal(f->chosen.of[0][p] >> t & 1, better < f->most);
        }
    kvm_cache *dense = injected(f, f->m, f->c, true);
    check_ok(kvm_tape_record(tape, dense, f->ids + n, more, &err), &err);
    check_status(KVM_USAGE, kvm_tape_scores(tape, dense, object, &loss, g, &err), &err);
    kvm_arena_free(&f->keep);
}

/* ---- what becomes of a cache ---- */

/* a copy, and a way back to a mark, leave what they found */
static void carried(fixture *f)
{
    static float first[CAPACITY * V];
    kvm_err err = {0};
    const ptrdiff_t n = 21, more = 30;
    kvm_cache *copy;
    read_on(f, f->m, f->c, n);
    kvm_cache *dense = injected(f, f->m, f->c, true);
    check_ok(kvm_cache_new(&copy, &f->keep, f->m, CAPACITY, &err), &err);
    check_ok(kvm_cache_copy(copy, dense, &err), &err);
    assert_int_equal(kvm_cache_dense(copy), n);
    kvm_cache_mark(dense);
    read_on(f, f->m, dense, more);
    memcpy(first, f->logits, sizeof first);
    check_ok(kvm_cache_truncate(dense, n, &err), &err);
    assert_int_equal(kvm_cache_dense(dense), n);
    read_on(f, f->m, dense, more);
    same_logits(f, first, n, more);
    read_on(f, f->m, copy, more);
    same_logits(f, first, n, more);
    check_ok(kvm_cache_truncate(copy, 0, &err), &err);
    assert_int_equal(kvm_cache_dense(copy), 0);
    read_on(f, f->m, copy, n + more); /* as if there had been nothing */
    memcpy(first, f->logits, sizeof first);
    kvm_cache_clear(f->c);
    read_on(f, f->m, f->c, n + more);
    same_logits(f, first, 0, n + more);
}

static void copies_and_marks(void **state)
{
    (void)state;
    each(carried);
}

/* A piece behind tokens that have keys: all are looked at then, those before it too;
 * and no longer when it is cut off again. */
static void appended(fixture *f)
{
    static float first[CAPACITY * V];
    kvm_err err = {0};
    const ptrdiff_t n = 21, all = 40, more = 20;
    kvm_cache *whole;
    check_ok(kvm_cache_new(&whole, &f->keep, f->m, CAPACITY, &err), &err);
    read_on(f, f->m, whole, n);
    read_on(f, f->m, f->c, n);
    kvm_cache_mark(f->c);
    read_on(f, f->m, whole, all - n);
    check_ok(kvm_inject_begin(f->c, all - n, &err), &err);
    check_ok(kvm_inject_dense(f->c, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++)
        if (!kvm_object_chooses(kvm_model_object(f->m, i)))
            check_ok(put(f, f->c, whole, i, &err), &err);
    check_ok(kvm_inject_end(f->c, &err), &err);
    assert_int_equal(kvm_cache_dense(f->c), all);
    read_on(f, f->m, f->c, more);
    memcpy(first, f->logits, sizeof first);
    read_on(f, f->m, injected(f, f->m, whole, true), more);
    same_logits(f, first, all, more);
    check_ok(kvm_cache_truncate(f->c, n, &err), &err);
    assert_int_equal(kvm_cache_dense(f->c), 0);
    read_on(f, f->m, f->c, more);
    memcpy(first, f->logits, sizeof first);
    kvm_cache_clear(whole);
    read_on(f, f->m, whole, n);
    read_on(f, f->m, whole, more);
    same_logits(f, first, n, more);
}

static void pieces_behind(void **state)
{
    (void)state;
    each(appended);
}

/* in pieces or token by token: what is chosen hangs on neither the cut nor what is kept
 * of blocks */
static void in_pieces(fixture *f)
{
    static choices whole;
    const ptrdiff_t n = 21, more = 30;
    read_on(f, f->m, f->c, n);
    read_on(f, f->m, injected(f, f->m, f->c, true), more);
    whole = f->chosen;
    kvm_cache *c = injected(f, f->m, f->c, true);
    for (ptrdiff_t t = 0; t < more; t++) {
        read_on(f, f->m, c, 1);
        for (int l = 0; l < MOST_LAYERS; l++)
            assert_true(f->chosen.of[l][n + t] == whole.of[l][n + t]);
    }
}

static void steps(void **state)
{
    (void)state;
    each(in_pieces);
}

/* ---- refusals ---- */

static void refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_cache *c;
    fixture *f = start(3);
    read_on(f, f->m, f->c, 20);
    check_ok(kvm_cache_new(&c, &f->keep, f->m, CAPACITY, &err), &err);
    check_status(KVM_USAGE, kvm_inject_dense(c, &err), &err);
    err = (kvm_err){0};
    check_ok(kvm_inject_begin(c, 20, &err), &err);
    check_ok(kvm_inject_dense(c, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++)
        check_ok(put(f, c, f->c, i, &err), &err);
    check_status(KVM_MISMATCH, kvm_inject_end(c, &err), &err);
    check_contains(err.msg, "were to be left out");
    assert_int_equal(kvm_cache_length(c), 0);
    assert_int_equal(kvm_cache_dense(c), 0);
    err = (kvm_err){0};
    check_ok(kvm_inject_begin(c, 20, &err), &err); /* it was said of the last time */
    for (ptrdiff_t i = 0; i < kvm_model_info_of(f->m)->objects; i++)
        if (!kvm_object_chooses(kvm_model_object(f->m, i)))
            check_ok(put(f, c, f->c, i, &err), &err);
    check_status(KVM_MISMATCH, kvm_inject_end(c, &err), &err);
    check_contains(err.msg, "was not injected");
    err = (kvm_err){0};
    kvm_model *plain = opened(f, kvm_model_compute(f->m), "tests/golden/models/qwen3");
    check_ok(kvm_cache_new(&c, &f->keep, plain, CAPACITY, &err), &err);
    check_ok(kvm_inject_begin(c, 20, &err), &err);
    check_status(KVM_UNSUPPORTED, kvm_inject_dense(c, &err), &err);
    check_contains(err.msg, "no indexer");
    kvm_arena_free(&f->keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prefixes), cmocka_unit_test(long_prefixes),
        cmocka_unit_test(beside_torch),   cmocka_unit_test(as_many_behind),
        cmocka_unit_test(best_behind),    cmocka_unit_test(copies_and_marks),
        cmocka_unit_test(pieces_behind),  cmocka_unit_test(steps),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
