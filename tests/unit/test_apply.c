/* Applying a translator between the small golden checkpoints: against a plain loop over
 * stripped rows, with the models' own rotary putting the position back. */
#include "translators/apply.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/caches.h"
#include "tests/support/check.h"
#include "translators/select.h"

#define MODELS "tests/golden/models/"

enum { TOKENS = 37, BLOCK = 16 };

static kvm_arena keep, scratch;
static kvm_compute *compute;
static kvm_model *yarn, *qwen; /* 3 layers of 2 x 16, YaRN; 2 layers of 2 x 24 */

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)8 << 30);
    scratch = check_arena((size_t)1 << 28);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    yarn = open_model(&keep, compute, MODELS "ministral3");
    qwen = open_model(&keep, compute, MODELS "qwen3");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

static kvm_cache *prefill(kvm_model *m)
{
    kvm_err err = {0};
    kvm_cache *c;
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)(i * 31 + 7) % 97;
    check_ok(kvm_cache_new(&c, &keep, m, 64, &err), &err);
    check_ok(kvm_model_forward(m, c, ids, TOKENS, &(kvm_forward_options){0}, &err),
             &err);
    return c;
}

static kvm_cache *empty(const kvm_model *m)
{
    kvm_err err = {0};
    kvm_cache *c;
    check_ok(kvm_cache_new(&c, &keep, m, 64, &err), &err);
    return c;
}

static kvm_tensor random_weight(kvm_rng *rng, ptrdiff_t g, ptrdiff_t out, ptrdiff_t in)
{
    float *w = kvm_new(&keep, float, g *out *in);
    for (ptrdiff_t i = 0; i < g * out * in; i++)
        w[i] = (float)(kvm_rng_normal(rng) / sqrt((double)in));
    return kvm_view3(w, KVM_F32, g, out, in);
}

typedef enum shape { WHOLE, RUN, MATCHED, DEEP } shape;

/* random maps of one shape; sources in rank order, not in layer order */
static kvm_translator between(const kvm_model *from, const kvm_model *to, shape kind,
                              kvm_key_space keys)
{
    static const int32_t order[] = {2, 0, 1}, run[] = {0, 1};
    kvm_err err = {0};
    kvm_translator t = {.keys = keys};
    kvm_rng rng = kvm_rng_seed(5, kind);
    check_ok(kvm_side_of_model(&t.source, &keep, from, &err), &err);
    check_ok(kvm_side_of_model(&t.target, &keep, to, &err), &err);
    t.count = 2 * t.target.shapes.layers;
    kvm_step *steps = kvm_new(&keep, kvm_step, t.count);
    t.steps = steps;
    for (ptrdiff_t i = 0; i < t.count; i++) {
        const kvm_row_shape r = t.source.shapes.of[KVM_SPACE_K][0],
                            out = t.target.shapes.of[KVM_SPACE_K][i / 2];
        kvm_step *s = &steps[i];
        *s = (kvm_step){.mapping = kvm_mapping_same(i % 2 ? KVM_SPACE_V : KVM_SPACE_K),
                        .layer = i / 2,
                        .map = kind == DEEP ? KVM_MAP_MLP : KVM_MAP_RIDGE,
                        .head_matched = kind == MATCHED,
                        .sources = 2,
                        .source = kind == RUN ? run : order + i / 2 % 2,
                        .inputs = 2 * (kind == MATCHED ? 1 : r.heads) * r.dim,
                        .outputs = out.heads * out.dim,
                        .groups = kind == MATCHED || kind == DEEP ? out.heads : 1,
                        .hidden = kind == DEEP ? 20 : 0};
        if (t.source.shapes.layers == 2) s->source = run;
        const ptrdiff_t o = s->outputs / s->groups;
        const ptrdiff_t rows[] = {kind == DEEP ? 20 : o, 20, o};
        const ptrdiff_t cols[] = {s->inputs, 20, 20};
        for (int p = 0; p < (kind == DEEP ? 3 : 1); p++) {
            s->weight[p] = random_weight(&rng, s->groups, rows[p], cols[p]);
            s->bias[p] = random_weight(&rng, s->groups, rows[p], 1).data;
        }
    }
    return t;
}

/* the inputs of group g in rank order; gives how many */
static ptrdiff_t plain_inputs(const kvm_translator *t, const kvm_step *s,
                              float *const *rows, ptrdiff_t token, ptrdiff_t g,
                              double *x)
{
    const ptrdiff_t heads = t->target.shapes.of[KVM_SPACE_K][s->layer].heads;
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s->sources; i++) {
        const kvm_row_shape r = t->source.shapes.of[KVM_SPACE_K][s->source[i]];
        const ptrdiff_t only = kvm_matched_head(g, r.heads, heads);
        for (ptrdiff_t j = 0; j < r.heads * r.dim; j++)
            if (!s->head_matched || j / r.dim == only)
                x[n++] = (double)rows[s->source[i]][token * r.heads * r.dim + j];
    }
    return n;
}

/* y (outputs) of one row by the definition */
static void plain_step(const kvm_translator *t, const kvm_step *s, float *const *rows,
                       ptrdiff_t token, double *y)
{
    const int parts = s->map == KVM_MAP_MLP ? 3 : 1;
    const ptrdiff_t out = s->outputs / s->groups;
    for (ptrdiff_t g = 0; g < s->groups; g++) {
        double x[512] = {0}, h[512] = {0};
        assert_int_equal(plain_inputs(t, s, rows, token, g, x), s->inputs);
        for (int p = 0; p < parts; p++) {
            const kvm_tensor *w = &s->weight[p];
            for (ptrdiff_t o = 0; o < w->dim[1]; o++) {
                const float *row =
                    (const float *)w->data + (g * w->dim[1] + o) * w->dim[2];
                h[o] = (double)s->bias[p][g * w->dim[1] + o];
                for (ptrdiff_t i = 0; i < w->dim[2]; i++) h[o] += (double)row[i] * x[i];
                if (p + 1 < parts && h[o] < 0) h[o] = 0;
            }
            memcpy(x, h, sizeof x);
        }
        memcpy(y + g * out, x, sizeof *y * (size_t)out);
    }
}

/* what the target cache should be, injected at point 2 (or 3) by the model itself */
static kvm_cache *expected(const kvm_translator *t, const kvm_model *from,
                           const kvm_cache *cache, const kvm_model *to)
{
    kvm_err err = {0};
    kvm_cache *c = empty(to);
    const int strip = t->keys == KVM_KEYS_ROTATED ? KVM_POINT_ENGINE : KVM_POINT_NORMED;
    const int put = t->keys == KVM_KEYS_CONTENT ? KVM_POINT_NORMED : KVM_POINT_ENGINE;
    check_ok(kvm_inject_begin(c, TOKENS, &err), &err);
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i];
        const bool v = s->mapping.out == KVM_SPACE_V;
        const kvm_object_kind object = v ? KVM_OBJECT_V : KVM_OBJECT_K;
        float *rows[8], *out = kvm_new(&keep, float, TOKENS * s->outputs);
        for (ptrdiff_t l = 0; l < t->source.shapes.layers; l++) {
            const kvm_row_shape r = t->source.shapes.of[KVM_SPACE_K][l];
            rows[l] = kvm_new(&keep, float, TOKENS *r.heads *r.dim);
            check_ok(kvm_cache_read(cache, kvm_model_find_object(from, object, l),
                                    v ? KVM_POINT_ENGINE : strip, 0, TOKENS, rows[l],
                                    &err),
                     &err);
        }
        for (ptrdiff_t n = 0; n < TOKENS; n++) {
            double y[512] = {0};
            plain_step(t, s, rows, n, y);
            for (ptrdiff_t o = 0; o < s->outputs; o++)
                out[n * s->outputs + o] = (float)y[o];
        }
        check_ok(kvm_inject_rows(c, kvm_model_find_object(to, object, s->layer),
                                 v ? KVM_POINT_ENGINE : put, 0, TOKENS, out, &err),
                 &err);
    }
    check_ok(kvm_inject_end(c, &err), &err);
    return c;
}

static void same_caches(const kvm_model *m, const kvm_cache *a, const kvm_cache *b,
                        float limit)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        kvm_err err = {0};
        const kvm_object *o = kvm_model_object(m, i);
        const ptrdiff_t n = TOKENS * o->heads * o->dim;
        float *x = kvm_new(&keep, float, n), *y = kvm_new(&keep, float, n);
        check_ok(kvm_cache_read(a, i, 3, 0, TOKENS, x, &err), &err);
        check_ok(kvm_cache_read(b, i, 3, 0, TOKENS, y, &err), &err);
        for (ptrdiff_t k = 0; k < n; k++)
            if (!(fabsf(x[k] - y[k]) <= limit))
                fail_msg("%s.%td, entry %td: %g, expected %g", kvm_object_name(o->kind),
                         o->layer, k, (double)x[k], (double)y[k]);
    }
}

static void every_shape_and_space_is_the_plain_loop(void **state)
{
    (void)state;
    const kvm_key_space spaces[] = {KVM_KEYS_CONTENT, KVM_KEYS_ROTATED,
                                    KVM_KEYS_CONTENT_NOROTATE};
    kvm_model *pair[][2] = {{yarn, qwen}, {qwen, yarn}};
    for (size_t d = 0; d < COUNT(pair); d++)
        for (int kind = WHOLE; kind <= DEEP; kind++)
            for (size_t k = 0; k < COUNT(spaces); k++) {
                kvm_err err = {0};
                kvm_model *from = pair[d][0], *to = pair[d][1];
                const kvm_cache *cache = prefill(d ? qwen : yarn);
                const kvm_translator t = between(from, to, (shape)kind, spaces[k]);
                kvm_apply *a;
                kvm_apply_times times = {0};
                kvm_cache *got = empty(to);
                check_ok(kvm_apply_new(&a, &keep, compute, &t, from, to,
                                       &(kvm_apply_options){.block = BLOCK}, &err),
                         &err);
                check_ok(kvm_apply_run(a, &(kvm_handover){.cache = cache}, got, &times,
                                       &err),
                         &err);
                assert_int_equal(kvm_cache_length(got), TOKENS);
                assert_true(times.map > 0 && times.inject > 0);
                same_caches(to, got, expected(&t, from, cache, to), 2e-5F);
            }
}

static void the_identity_gives_the_cache_back(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_translator t = between(yarn, yarn, WHOLE, KVM_KEYS_CONTENT);
    kvm_step *s = kvm_new(&keep, kvm_step, t.count);
    memcpy(s, t.steps, sizeof *s * (size_t)t.count);
    t.steps = s;
    enum { W = 32 };
    for (ptrdiff_t i = 0; i < t.count; i++) {
        int32_t *own = kvm_new(&keep, int32_t, 1);
        float *w = kvm_new(&keep, float, (ptrdiff_t)W *W);
        own[0] = (int32_t)(i / 2);
        for (int j = 0; j < W; j++) w[j * W + j] = 1;
        s[i].sources = 1;
        s[i].source = own;
        s[i].inputs = W;
        s[i].weight[0] = kvm_view3(w, KVM_F32, 1, W, W);
        s[i].bias[0] = kvm_new(&keep, float, W);
    }
    const kvm_cache *cache = prefill(yarn);
    kvm_cache *got = empty(yarn), *again = empty(yarn);
    kvm_apply *a;
    check_ok(kvm_apply_new(&a, &keep, compute, &t, yarn, yarn, NULL, &err), &err);
    check_ok(kvm_apply_run(a, &(kvm_handover){.cache = cache}, got, NULL, &err), &err);
    same_caches(yarn, got, cache, 2e-6F);
    check_ok(kvm_apply_run(a, &(kvm_handover){.cache = cache}, again, NULL, &err),
             &err);
    same_caches(yarn, got, again, 0);
    assert_true(kvm_apply_flops(a) == 2.0 * 6 * W * W);
}

/* rows of the source layers that are read and of all target layers, K and V; an engine
 * keeps bf16 of these models */
static void bytes_are_those_of_the_rows(void **state)
{
    (void)state;
    static const struct {
        shape kind;
        double layers; /* of the source that any step reads: 2 x 16 entries each */
    } rows[] = {{WHOLE, 3}, {RUN, 2}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        kvm_apply *a;
        const kvm_translator t = between(yarn, qwen, rows[i].kind, KVM_KEYS_CONTENT);
        check_ok(kvm_apply_new(&a, &keep, compute, &t, yarn, qwen, NULL, &err), &err);
        assert_true(kvm_apply_bytes(a) ==
                    2 * 2 * (rows[i].layers * 2 * 16 + 2 * 2 * 24));
    }
}

static void a_translator_of_other_models_is_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_apply *a;
    kvm_translator t = between(yarn, qwen, WHOLE, KVM_KEYS_CONTENT);
    check_status(KVM_MISMATCH,
                 kvm_apply_new(&a, &keep, compute, &t, qwen, yarn, NULL, &err), &err);
    t.source.fingerprint = KVM_STR("0000");
    err = (kvm_err){0};
    check_status(KVM_MISMATCH,
                 kvm_apply_new(&a, &keep, compute, &t, yarn, qwen, NULL, &err), &err);
    err = (kvm_err){0};
    check_ok(kvm_apply_new(&a, &keep, compute, &t, yarn, qwen,
                           &(kvm_apply_options){.force = true}, &err),
             &err);
    t.source.rope_sha = KVM_STR("0000");
    check_status(KVM_MISMATCH,
                 kvm_apply_new(&a, &keep, compute, &t, yarn, qwen,
                               &(kvm_apply_options){.force = true}, &err),
                 &err);
    check_contains(err.msg, "rotary");
}

static void caches_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_apply *a;
    kvm_cache *tight;
    const kvm_translator t = between(yarn, qwen, WHOLE, KVM_KEYS_CONTENT);
    check_ok(kvm_apply_new(&a, &keep, compute, &t, yarn, qwen, NULL, &err), &err);
    check_ok(kvm_cache_new(&tight, &keep, qwen, 8, &err), &err);
    check_status(
        KVM_RANGE,
        kvm_apply_run(a, &(kvm_handover){.cache = prefill(yarn)}, tight, NULL, &err),
        &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE,
                 kvm_apply_run(a, &(kvm_handover){.cache = empty(yarn)}, empty(qwen),
                               NULL, &err),
                 &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_and_space_is_the_plain_loop),
        cmocka_unit_test(the_identity_gives_the_cache_back),
        cmocka_unit_test(bytes_are_those_of_the_rows),
        cmocka_unit_test(a_translator_of_other_models_is_refused),
        cmocka_unit_test(caches_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
