/* Applying a translator to models that keep latents, indexers, states and n-grams: the
 * identity gives the cache back, other maps what the plain loop makes of the rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/caches.h"
#include "tests/support/check.h"
#include "tests/support/making.h"
#include "translators/apply.h"

#define MODELS "tests/golden/models/"

enum { TOKENS = 37, MORE = 5, BLOCK = 16, VOCAB = 97 };

static kvm_arena keep;
static kvm_compute *compute;
static int32_t ids[TOKENS + MORE];

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)16 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    for (int i = 0; i < TOKENS + MORE; i++) ids[i] = (i * 31 + 7) % VOCAB;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_cache *empty(const kvm_model *m)
{
    kvm_err err = {0};
    kvm_cache *c;
    check_ok(kvm_cache_new(&c, &keep, m, 64, &err), &err);
    return c;
}

static ptrdiff_t width_of(const kvm_shapes *s, kvm_space space, ptrdiff_t layer)
{
    return kvm_shapes_width(s, space, layer);
}

/* ---- running ---- */

typedef struct source {
    kvm_model *model;
    kvm_cache *cache;
    kvm_taken *taken;
    kvm_handover hand;
} source;

static source prefill(kvm_model *m, kvm_spaces take)
{
    kvm_err err = {0};
    source s = {.model = m, .cache = empty(m)};
    kvm_capture sink;
    kvm_forward_options o = {0};
    if (take) {
        check_ok(kvm_taken_new(&s.taken, &keep, m, take, TOKENS, &err), &err);
        sink = kvm_taken_capture(s.taken);
        o.capture = &sink;
    }
    check_ok(kvm_model_forward(m, s.cache, ids, TOKENS, &o, &err), &err);
    s.hand = (kvm_handover){s.cache, s.taken, ids};
    return s;
}

static kvm_apply *ready(const kvm_translator *t, kvm_model *from, kvm_model *to)
{
    kvm_err err = {0};
    kvm_apply *a;
    check_ok(kvm_apply_new(&a, &keep, compute, t, from, to,
                           &(kvm_apply_options){.block = BLOCK}, &err),
             &err);
    return a;
}

static kvm_cache *run(kvm_apply *a, const kvm_handover *hand, const kvm_model *to)
{
    kvm_err err = {0};
    kvm_cache *c = empty(to);
    check_ok(kvm_apply_run(a, hand, c, NULL, &err), &err);
    assert_int_equal(kvm_cache_length(c), TOKENS);
    return c;
}

/* ---- identities ---- */

static void latents_come_back_as_they_are(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/zoo/mla", MODELS "deepseek_v3"};
    static const kvm_space spaces[] = {KVM_SPACE_LATENT_ENGINE, KVM_SPACE_LATENT};
    for (size_t i = 0; i < COUNT(paths) * COUNT(spaces); i++) {
        kvm_model *m = open_model(&keep, compute, paths[i / 2]);
        const kvm_space s = spaces[i % 2];
        const kvm_translator t =
            making_identity(&keep, m, s, KVM_TOKEN_NONE, KVM_STATE_ZERO);
        kvm_apply *a = ready(&t, m, m);
        /* an engine's cache is enough; what stands before the norm has to be taken */
        assert_int_equal(kvm_apply_takes(a),
                         s == KVM_SPACE_LATENT ? 1U << KVM_SPACE_LATENT : 0U);
        const source from = prefill(m, kvm_apply_takes(a));
        kvm_cache *got = run(a, &from.hand, m);
        assert_true(caches_differ(keep, m, got, from.cache) == 0);
        assert_true(logits_differ(keep, m, got, from.cache, ids + TOKENS, MORE) == 0);
        assert_null(kvm_apply_ids(a));
    }
}

/* layer 0 from the token alone, the others with its embedding beside their inputs */
static void told_or_read_the_tokens_are_the_same(void **state)
{
    (void)state;
    static const kvm_token_kind kinds[] = {KVM_TOKEN_GIVEN, KVM_TOKEN_DECODED};
    static const char *const paths[] = {"tests/zoo/mla", MODELS "deepseek_v3"};
    for (size_t i = 0; i < COUNT(paths) * COUNT(kinds); i++) {
        kvm_model *m = open_model(&keep, compute, paths[i / 2]);
        const kvm_token_kind kind = kinds[i % 2];
        const kvm_translator t =
            making_identity(&keep, m, KVM_SPACE_LATENT, kind, KVM_STATE_ZERO);
        kvm_apply *a = ready(&t, m, m);
        source from = prefill(m, kvm_apply_takes(a));
        if (kind == KVM_TOKEN_DECODED) from.hand.ids = NULL;
        kvm_cache *got = run(a, &from.hand, m);
        assert_memory_equal(kvm_apply_ids(a), ids, sizeof *ids * TOKENS);
        /* rows of a few tokens at once and of all of them round alike */
        assert_true(caches_differ(keep, m, got, from.cache) < 1e-6F);
    }
}

/* Maps that are told the token, and n-grams: the message has the file, which tokens,
 * and both ways out; the target is as it was and can be given them all the same. */
static void missing_ids_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        kvm_space latents;
        kvm_state_map states;
    } of[] = {{"tests/zoo/mla", KVM_SPACE_LATENT, KVM_STATE_ZERO},
              {MODELS "qwen4_exp", KVM_SPACE_LATENT_ENGINE, KVM_STATE_COPY}};
    check_tmpdir("apply_spaces");
    for (size_t i = 0; i < COUNT(of); i++) {
        kvm_err err = {0};
        kvm_translator t;
        kvm_model *m = open_model(&keep, compute, of[i].model);
        const kvm_str path = KVM_STR("build/tmp/apply_spaces/told.safetensors");
        const kvm_translator made =
            making_identity(&keep, m, of[i].latents, KVM_TOKEN_GIVEN, of[i].states);
        check_ok(kvm_translator_write(&made, KVM_F32, path, keep, NULL, &err), &err);
        check_ok(kvm_translator_read(&t, &keep, path, &err), &err);
        kvm_apply *a = ready(&t, m, m);
        const source from = prefill(m, kvm_apply_takes(a));
        kvm_handover untold = from.hand;
        untold.ids = NULL;
        kvm_cache *to = empty(m);
        check_status(KVM_USAGE, kvm_apply_run(a, &untold, to, NULL, &err), &err);
        check_contains(err.msg,
                       "apply_spaces/told.safetensors: needs the ids of tokens "
                       "0 to 37, ");
        check_contains(err.msg, "hand them over with it, or fit a translator ");
        check_contains(err.msg, "(token: decoded)");
        assert_int_equal(kvm_cache_length(to), 0);
        err = (kvm_err){0};
        check_ok(kvm_apply_run(a, &from.hand, to, NULL, &err), &err);
        assert_int_equal(kvm_cache_length(to), TOKENS);
    }
}

static void copied_states_go_on_as_they_were(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/zoo/kda", "tests/zoo/gdn-a",
                                        MODELS "kimi_linear", MODELS "qwen3_5",
                                        MODELS "nemotron_h"};
    static const kvm_state_map maps[] = {KVM_STATE_COPY, KVM_STATE_BILINEAR};
    for (size_t i = 0; i < COUNT(paths) * COUNT(maps); i++) {
        kvm_model *m = open_model(&keep, compute, paths[i / 2]);
        const kvm_translator t = making_identity(&keep, m, KVM_SPACE_LATENT_ENGINE,
                                                 KVM_TOKEN_NONE, maps[i % 2]);
        kvm_apply *a = ready(&t, m, m);
        const source from = prefill(m, 0);
        kvm_cache *got = run(a, &from.hand, m);
        /* keys are stripped of their position and rotated again */
        const bool keys = t.target.shapes.of[KVM_SPACE_K] && t.target.rope.width > 0;
        const float limit = keys ? 2e-6F : 0;
        if (!(caches_differ(keep, m, got, from.cache) <= limit))
            fail_msg("%s: %g", paths[i / 2],
                     (double)caches_differ(keep, m, got, from.cache));
        if (!keys)
            assert_true(logits_differ(keep, m, got, from.cache, ids + TOKENS, MORE) ==
                        0);
    }
}

static void states_may_start_empty(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, compute, "tests/zoo/kda");
    const kvm_translator t = making_identity(&keep, m, KVM_SPACE_LATENT_ENGINE,
                                             KVM_TOKEN_NONE, KVM_STATE_ZERO);
    const source from = prefill(m, 0);
    kvm_cache *got = run(ready(&t, m, m), &from.hand, m);
    kvm_tensor view;
    const ptrdiff_t i = kvm_model_find_object(m, KVM_OBJECT_STATE, 0);
    check_ok(kvm_cache_view(got, i, &view, &err), &err);
    for (ptrdiff_t e = 0; e < kvm_model_object(m, i)->dim; e++)
        assert_true(((const float *)view.data)[e] == 0);
    assert_true(logits_differ(keep, m, got, from.cache, ids + TOKENS, MORE) > 0.1F);
}

/* n-grams follow from the tokens, and so a model that has them must be told */
static void ngrams_are_told_the_tokens(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, compute, MODELS "qwen4_exp");
    kvm_apply *a;
    const kvm_translator t = making_identity(&keep, m, KVM_SPACE_LATENT_ENGINE,
                                             KVM_TOKEN_GIVEN, KVM_STATE_COPY);
    const source from = prefill(m, 0);
    kvm_cache *got = run(ready(&t, m, m), &from.hand, m);
    ptrdiff_t ngrams = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object_kind kind = kvm_model_object(m, i)->kind;
        const float d = object_differs(keep, m, i, got, from.cache);
        if (kind == KVM_OBJECT_NGRAM_WINDOW || kind == KVM_OBJECT_LAST_IDS) {
            assert_true(d < 1e-3F); /* test_token_rows.c has the reason */
            ngrams++;
        } else if (kind != KVM_OBJECT_INDEX_KEY) { /* which this translator draws */
            assert_true(d < 2e-6F);
        }
    }
    assert_true(ngrams >= 2);
    const kvm_translator untold = making_identity(&keep, m, KVM_SPACE_LATENT_ENGINE,
                                                  KVM_TOKEN_NONE, KVM_STATE_COPY);
    check_status(KVM_MISMATCH,
                 kvm_apply_new(&a, &keep, compute, &untold, m, m, NULL, &err), &err);
    check_contains(err.msg, kvm_object_name(KVM_OBJECT_NGRAM_WINDOW));
}

/* ---- other maps, against plain loops ---- */

/* rows of a layer as a translation reads them */
static const float *rows_of(const source *s, kvm_space space, ptrdiff_t layer)
{
    kvm_err err = {0};
    if (space == KVM_SPACE_LATENT) return kvm_taken_rows(s->taken, space, layer);
    const bool k = space == KVM_SPACE_K;
    const ptrdiff_t i =
        kvm_model_find_object(s->model, k ? KVM_OBJECT_K : KVM_OBJECT_V, layer);
    const kvm_object *o = kvm_model_object(s->model, i);
    float *rows = kvm_new(&keep, float, TOKENS * o->heads * o->dim);
    check_ok(kvm_cache_read(s->cache, i, k ? KVM_POINT_NORMED : KVM_POINT_ENGINE, 0,
                            TOKENS, rows, &err),
             &err);
    return rows;
}

/* made[i]: rows (TOKENS, outputs) of the steps before */
static float *plain_step(const kvm_translator *t, ptrdiff_t i, const source *from,
                         const kvm_model *to, float *const *made)
{
    kvm_err err = {0};
    const kvm_step *s = &t->steps[i];
    kvm_feature item[16];
    const ptrdiff_t items =
        kvm_mapping_items(&s->mapping, s->source, s->sources, s->layer, item);
    const float *weight = s->weight[0].data;
    double *y = kvm_new(&keep, double, TOKENS * s->outputs);
    for (ptrdiff_t e = 0; e < TOKENS * s->outputs; e++)
        y[e] = (double)s->bias[0][e % s->outputs];
    ptrdiff_t at = 0;
    for (ptrdiff_t k = 0; k < items; k++) {
        const bool read = item[k].side == KVM_SOURCE;
        const ptrdiff_t w = width_of(read ? &t->source.shapes : &t->target.shapes,
                                     item[k].space, item[k].layer);
        const float *x;
        if (item[k].space == KVM_SPACE_TOKEN) {
            float *embedded = kvm_new(&keep, float, TOKENS *w);
            check_ok(kvm_model_embed_tokens(to, ids, TOKENS, embedded, w, &err), &err);
            x = embedded;
        } else {
            x = read ? rows_of(from, item[k].space, item[k].layer)
                     : made[kvm_translator_find(t, item[k].space, item[k].layer) -
                            t->steps];
        }
        for (ptrdiff_t r = 0; r < TOKENS; r++)
            for (ptrdiff_t o = 0; o < s->outputs; o++)
                for (ptrdiff_t e = 0; e < w; e++)
                    y[r * s->outputs + o] +=
                        (double)weight[o * s->inputs + at + e] * (double)x[r * w + e];
        at += w;
    }
    assert_int_equal(at, s->inputs);
    float *out = kvm_new(&keep, float, TOKENS * s->outputs);
    for (ptrdiff_t e = 0; e < TOKENS * s->outputs; e++) out[e] = (float)y[e];
    return out;
}

/* the target's cache, injected by the model itself */
static kvm_cache *expected(const kvm_translator *t, const source *from,
                           const kvm_model *to)
{
    kvm_err err = {0};
    kvm_cache *c = empty(to);
    float *made[64];
    check_ok(kvm_inject_begin(c, TOKENS, &err), &err);
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i];
        float *rows = made[i] = plain_step(t, i, from, to, made);
        ptrdiff_t at = 0;
        for (ptrdiff_t k = 0; k < kvm_model_info_of(to)->objects; k++) {
            const kvm_object *o = kvm_model_object(to, k);
            const kvm_row_shape part = kvm_space_part(s->mapping.out, o);
            const ptrdiff_t w = part.heads * part.dim;
            if (o->layer != s->layer || w == 0) continue;
            float *own = kvm_new(&keep, float, TOKENS *w);
            for (ptrdiff_t r = 0; r < TOKENS; r++)
                memcpy(own + r * w, rows + r * s->outputs + at,
                       sizeof *own * (size_t)w);
            check_ok(kvm_inject_rows(c, k, kvm_space_rows[s->mapping.out].point, 0,
                                     TOKENS, own, &err),
                     &err);
            at += w;
        }
        assert_int_equal(at, s->outputs);
    }
    check_ok(kvm_inject_end(c, &err), &err);
    return c;
}

static void is_the_plain_loop(making *m, kvm_model *from, kvm_model *to)
{
    kvm_apply *a = ready(&m->t, from, to);
    const source s = prefill(from, kvm_apply_takes(a));
    kvm_cache *got = run(a, &s.hand, to);
    const float d = caches_differ(keep, to, got, expected(&m->t, &s, to));
    if (!(d < 2e-5F)) fail_msg("differs by %g", (double)d);
}

static const int32_t order[] = {2, 0, 1};

static void latents_from_keys_and_values(void **state)
{
    (void)state;
    kvm_model *from = open_model(&keep, compute, MODELS "ministral3"),
              *to = open_model(&keep, compute, MODELS "deepseek_v3");
    for (int token = 0; token < 2; token++) {
        making m =
            making_begin(&keep, from, to, token ? KVM_TOKEN_GIVEN : KVM_TOKEN_NONE);
        for (ptrdiff_t l = 0; l < m.t.target.shapes.layers; l++)
            making_step(&m, KVM_SPACE_LATENT, l, order, 1 + l % 3, false);
        assert_int_equal(m.step[0].mapping.from[0], KVM_SPACE_K);
        assert_int_equal(m.step[0].mapping.from[1], KVM_SPACE_V);
        is_the_plain_loop(&m, from, to);
    }
}

static void keys_and_values_from_latents(void **state)
{
    (void)state;
    kvm_model *from = open_model(&keep, compute, "tests/zoo/mla"),
              *to = open_model(&keep, compute, MODELS "qwen3");
    making m = making_begin(&keep, from, to, KVM_TOKEN_NONE);
    for (ptrdiff_t l = 0; l < m.t.target.shapes.layers; l++) {
        making_step(&m, KVM_SPACE_K, l, order, 3, false);
        making_step(&m, KVM_SPACE_V, l, order + 1, 2, false);
    }
    is_the_plain_loop(&m, from, to);
}

/* inputs of recurrent layers, over which the target's own recurrence runs */
static void recurrent_layers_are_replayed(void **state)
{
    (void)state;
    static const char *const targets[] = {MODELS "kimi_linear", MODELS "qwen3_5",
                                          MODELS "nemotron_h"};
    kvm_model *sources[] = {open_model(&keep, compute, "tests/zoo/mla"),
                            open_model(&keep, compute, MODELS "ministral3")};
    for (size_t i = 0; i < COUNT(targets) * COUNT(sources); i++) {
        kvm_model *from = sources[i % 2],
                  *to = open_model(&keep, compute, targets[i / 2]);
        making m = making_begin(&keep, from, to, KVM_TOKEN_GIVEN);
        const kvm_shapes *s = &m.t.target.shapes;
        static const kvm_space spaces[] = {KVM_SPACE_K, KVM_SPACE_V, KVM_SPACE_LATENT,
                                           KVM_SPACE_INPUT};
        for (ptrdiff_t l = 0; l < s->layers; l++)
            for (size_t k = 0; k < COUNT(spaces); k++)
                if (width_of(s, spaces[k], l) > 0)
                    making_step(&m, spaces[k], l, order + l % 2, 2, false);
        is_the_plain_loop(&m, from, to);
    }
}

/* index keys out of latents that were made a moment before */
static void indexers_read_what_was_made(void **state)
{
    (void)state;
    static const char *const targets[] = {MODELS "deepseek_v32", MODELS "glm_moe_dsa"};
    for (size_t i = 0; i < COUNT(targets); i++) {
        kvm_model *from = open_model(&keep, compute, "tests/zoo/mla"),
                  *to = open_model(&keep, compute, targets[i]);
        for (int token = 0; token < 2; token++) {
            making m = making_begin(&keep, from, to,
                                    token ? KVM_TOKEN_DECODED : KVM_TOKEN_NONE);
            const kvm_shapes *s = &m.t.target.shapes;
            ptrdiff_t indexers = 0;
            for (ptrdiff_t l = 0; l < s->layers; l++) {
                making_step(&m, KVM_SPACE_LATENT, l, order, 2, false);
                if (width_of(s, KVM_SPACE_INDEX, l) == 0) continue;
                making_step(&m, KVM_SPACE_INDEX, l, NULL, 0, false);
                indexers++;
            }
            assert_true(indexers > 0);
            is_the_plain_loop(&m, from, to);
        }
    }
}

/* left out, they are no step, and the cache looks at all that was translated */
static void indexers_may_be_left_out(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *from = open_model(&keep, compute, "tests/zoo/mla"),
              *to = open_model(&keep, compute, MODELS "deepseek_v32");
    making m = making_begin(&keep, from, to, KVM_TOKEN_NONE);
    for (ptrdiff_t l = 0; l < m.t.target.shapes.layers; l++)
        making_step(&m, KVM_SPACE_LATENT, l, order, 2, false);
    kvm_apply *a;
    check_status(KVM_MISMATCH,
                 kvm_apply_new(&a, &keep, compute, &m.t, from, to, NULL, &err), &err);
    m.t.dense = true;
    const source s = prefill(from, 1U << KVM_SPACE_LATENT);
    kvm_cache *c = run(ready(&m.t, from, to), &s.hand, to);
    assert_int_equal(kvm_cache_dense(c), TOKENS);
}

/* ---- refusals ---- */

static void what_was_not_taken_is_missed(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, compute, "tests/zoo/mla");
    const kvm_translator t =
        making_identity(&keep, m, KVM_SPACE_LATENT, KVM_TOKEN_NONE, KVM_STATE_ZERO);
    kvm_cache *to = empty(m);
    const source from = prefill(m, 0);
    check_status(KVM_USAGE, kvm_apply_run(ready(&t, m, m), &from.hand, to, NULL, &err),
                 &err);
    check_contains(err.msg, "not taken");
    assert_int_equal(kvm_cache_length(to), 0);
}

static void tokens_that_cannot_be_read_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_apply *a;
    kvm_model *m = open_model(&keep, compute, "tests/zoo/kda");
    const kvm_translator t = making_identity(&keep, m, KVM_SPACE_LATENT_ENGINE,
                                             KVM_TOKEN_DECODED, KVM_STATE_COPY);
    check_status(KVM_UNSUPPORTED,
                 kvm_apply_new(&a, &keep, compute, &t, m, m, NULL, &err), &err);
    check_contains(err.msg, "token: given");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_come_back_as_they_are),
        cmocka_unit_test(told_or_read_the_tokens_are_the_same),
        cmocka_unit_test(missing_ids_are_refused),
        cmocka_unit_test(copied_states_go_on_as_they_were),
        cmocka_unit_test(states_may_start_empty),
        cmocka_unit_test(ngrams_are_told_the_tokens),
        cmocka_unit_test(latents_from_keys_and_values),
        cmocka_unit_test(keys_and_values_from_latents),
        cmocka_unit_test(recurrent_layers_are_replayed),
        cmocka_unit_test(indexers_read_what_was_made),
        cmocka_unit_test(indexers_may_be_left_out),
        cmocka_unit_test(what_was_not_taken_is_missed),
        cmocka_unit_test(tokens_that_cannot_be_read_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
