/* A target that already holds tokens gets those that it lacks: pieces of whatever
 * lengths come out as all at once, and stand beside what it has read itself. */
#include <errno.h>
#include <string.h>

#include "tests/support/caches.h"
#include "tests/support/check.h"
#include "tests/support/fault.h"
#include "tests/support/making.h"
#include "tests/support/translators.h"
#include "translators/apply.h"

#define MODELS "tests/golden/models/"

enum { TOKENS = 43, MORE = 5, BLOCK = 16, VOCAB = 97, CAPACITY = 64 };

static kvm_arena keep;
static kvm_compute *plain, *fast; /* of the backends ref and cpu */
static int32_t ids[TOKENS + MORE];

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)16 << 30);
    check_ok(kvm_compute_new(&plain, &keep, kvm_backend_find(KVM_STR("ref")), 2, &err),
             &err);
    check_ok(kvm_compute_new(&fast, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
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
    check_ok(kvm_cache_new(&c, &keep, m, CAPACITY, &err), &err);
    return c;
}

/* ---- a pair of models, and what is between them ---- */

typedef struct pair {
    kvm_model *from, *to;
    kvm_translator t;
    kvm_apply *a;
    kvm_cache *cache; /* of the source */
    kvm_taken *taken;
    kvm_handover hand;
} pair;

static void make_ready(pair *p)
{
    kvm_err err = {0};
    check_ok(kvm_apply_new(&p->a, &keep, kvm_model_compute(p->to), &p->t, p->from,
                           p->to, &(kvm_apply_options){.block = BLOCK}, &err),
             &err);
    p->cache = empty(p->from);
    check_ok(
        kvm_taken_new(&p->taken, &keep, p->from, kvm_apply_takes(p->a), CAPACITY, &err),
        &err);
    p->hand = (kvm_handover){p->cache, p->taken, ids};
}

/* the source reads on up to `end` tokens */
static void read_to(pair *p, ptrdiff_t end)
{
    kvm_err err = {0};
    const kvm_capture sink = kvm_taken_capture(p->taken);
    const ptrdiff_t have = kvm_cache_length(p->cache);
    check_ok(kvm_model_forward(p->from, p->cache, ids + have, end - have,
                               &(kvm_forward_options){.capture = &sink}, &err),
             &err);
}

static void append(pair *p, kvm_cache *to)
{
    kvm_err err = {0};
    check_ok(kvm_apply_run(p->a, &p->hand, to, NULL, &err), &err);
    assert_int_equal(kvm_cache_length(to), kvm_cache_length(p->cache));
}

/* ---- in pieces and at once ---- */

/* lengths of 1, shorter than a convolution, than a block of an indexer, within one,
 * across one, longer than a block of the translation */
static const ptrdiff_t cuts[][6] = {
    {1, TOKENS}, {21, TOKENS}, {2, 3, 20, TOKENS}, {13, 14, 17, 19, TOKENS}};

static kvm_cache *in_pieces(pair *p, const ptrdiff_t *end)
{
    kvm_cache *to = empty(p->to);
    kvm_cache_clear(p->cache);
    for (; end[0] > kvm_cache_length(to); end++) {
        read_to(p, end[0]);
        append(p, to);
    }
    return to;
}

/* In the plain arithmetic a row is the same numbers whoever stands beside it, but that
 * a recurrence rounds its state at the end of a call only; the fast products sum a few
 * rows in another order than many. */
static void pieces_are_the_whole(pair *p, const char *name)
{
    bool exact = kvm_model_compute(p->to) == plain;
    for (ptrdiff_t i = 0; i < p->t.count; i++)
        exact = exact && p->t.steps[i].mapping.out != KVM_SPACE_INPUT;
    const float limit = exact ? 0 : 2e-6F;
    make_ready(p);
    for (size_t i = 0; i < COUNT(cuts); i++) {
        kvm_cache *pieces = in_pieces(p, cuts[i]), *whole = empty(p->to);
        append(p, whole); /* of the same source */
        const float d = caches_differ(keep, p->to, pieces, whole);
        if (!(d <= limit)) fail_msg("%s, cuts %zu: %g", name, i, (double)d);
        const float said =
            logits_differ(keep, p->to, pieces, whole, ids + TOKENS, MORE);
        if (!(said <= 10 * limit))
            fail_msg("%s, cuts %zu: logits by %g", name, i, (double)said);
    }
}

static void identities(void **state)
{
    (void)state;
    static const char *const paths[] = {
        MODELS "qwen3",       MODELS "ministral3",   "tests/zoo/mla",
        MODELS "deepseek_v3", MODELS "deepseek_v32", MODELS "glm_moe_dsa",
        MODELS "kimi_linear", MODELS "qwen3_5",      MODELS "nemotron_h",
        MODELS "glm5_next",   MODELS "qwen4_exp"};
    for (size_t k = 0; k < 2 * COUNT(paths); k++) {
        const size_t i = k / 2;
        kvm_model *m = open_model(&keep, k % 2 ? fast : plain, paths[i]);
        const bool told = i + 1 == COUNT(paths);
        pair p = {.from = m,
                  .to = m,
                  .t = making_identity(&keep, m, KVM_SPACE_LATENT,
                                       told ? KVM_TOKEN_GIVEN : KVM_TOKEN_NONE,
                                       KVM_STATE_COPY)};
        pieces_are_the_whole(&p, paths[i]);
    }
}

static void pairs(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        kvm_state_way states;
    } rows[] = {
        {MODELS "qwen3", "tests/zoo/mla", 0},
        {"tests/zoo/mla", MODELS "qwen3", 0},
        {"tests/zoo/mla", MODELS "deepseek_v32", 0},
        {"tests/zoo/mla", MODELS "kimi_linear", KVM_STATES_REPLAY},
        {"tests/zoo/mla", MODELS "glm5_next", KVM_STATES_REPLAY},
        {MODELS "ministral3", MODELS "qwen3_5", KVM_STATES_REPLAY},
        {MODELS "ministral3", MODELS "nemotron_h", KVM_STATES_REPLAY},
        {MODELS "ministral3", MODELS "qwen4_exp", KVM_STATES_REPLAY},
        {MODELS "qwen3_5", MODELS "qwen3_next", KVM_STATES_BILINEAR},
    };
    for (size_t k = 0; k < 2 * COUNT(rows); k++) {
        const size_t i = k / 2;
        kvm_compute *c = k % 2 ? fast : plain;
        pair p = {.from = open_model(&keep, c, rows[i].from),
                  .to = open_model(&keep, c, rows[i].to)};
        const kvm_outline_options o = {.keys = KVM_KEYS_CONTENT,
                                       .states = rows[i].states};
        made_translator(&p.t, &keep, p.from, p.to, &o, 0.5);
        pieces_are_the_whole(&p, rows[i].to);
    }
}

/* ---- beside what the target has read itself ---- */

/* the target reads on up to `end` tokens; its rows before a norm go to `made` */
static void target_reads(pair *p, kvm_cache *to, ptrdiff_t end, kvm_taken *made)
{
    kvm_err err = {0};
    const ptrdiff_t have = kvm_cache_length(to);
    const kvm_capture sink = made ? kvm_taken_capture(made) : (kvm_capture){0};
    check_ok(kvm_model_forward(p->to, to, ids + have, end - have,
                               &(kvm_forward_options){.capture = made ? &sink : NULL},
                               &err),
             &err);
}

/* rows of tokens first .. of an object of `from` into `to`, or the whole of it */
static void put(const kvm_model *m, ptrdiff_t object, const kvm_cache *from,
                ptrdiff_t first, ptrdiff_t n, kvm_cache *to)
{
    kvm_err err = {0};
    const kvm_object *o = kvm_model_object(m, object);
    if (kvm_object_per_prompt(o)) {
        kvm_tensor view;
        check_ok(kvm_cache_view(from, object, &view, &err), &err);
        const kvm_state s = {.data = view.data,
                             .axes = kvm_str_of(kvm_object_axes(o->kind)),
                             .dim = {o->shape[0], o->shape[1], o->shape[2]},
                             .dtype = KVM_F32,
                             .tokens = kvm_cache_length(from)};
        check_ok(kvm_inject_state(to, object, &s, &err), &err);
        return;
    }
    float *rows = kvm_new(&keep, float, n * o->heads * o->dim);
    check_ok(kvm_cache_read(from, object, 3, first, n, rows, &err), &err);
    check_ok(kvm_inject_rows(to, object, 3, first, n, rows, &err), &err);
}

/* 13 tokens are translated, 7 read, the others translated: as a cache that the same
 * objects were put into at once, the first 20 tokens' rows of the target's before the
 * last piece, the others and the states of a translation of the whole */
static void own_tokens_stay(pair *p, const char *name)
{
    kvm_err err = {0};
    kvm_cache *to = empty(p->to), *before = empty(p->to), *whole = empty(p->to),
              *put_together = empty(p->to);
    make_ready(p);
    read_to(p, 13);
    append(p, to);
    target_reads(p, to, 20, NULL);
    check_ok(kvm_cache_copy(before, to, &err), &err);
    read_to(p, 20);
    read_to(p, TOKENS);
    append(p, to);
    append(p, whole);
    check_ok(kvm_inject_begin(put_together, TOKENS, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(p->to)->objects; i++) {
        const kvm_object_kind k = kvm_model_object(p->to, i)->kind;
        /* follows from the ids, of which those before the seam have been read */
        const bool window = k == KVM_OBJECT_NGRAM_WINDOW;
        if (!kvm_object_per_prompt(kvm_model_object(p->to, i)))
            put(p->to, i, before, 0, 20, put_together);
        put(p->to, i, window ? to : whole, 20, TOKENS - 20, put_together);
    }
    check_ok(kvm_inject_end(put_together, &err), &err);
    if (caches_differ(keep, p->to, to, put_together) != 0 ||
        logits_differ(keep, p->to, to, put_together, ids + TOKENS, MORE) != 0)
        fail_msg("%s differs", name);
}

static void what_the_target_read_stays(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } rows[] = {
        {MODELS "qwen3", "tests/zoo/mla"},
        {"tests/zoo/mla", MODELS "qwen3"},
        {"tests/zoo/mla", MODELS "glm_moe_dsa"},
        {MODELS "qwen3_5", MODELS "qwen3_next"},
        {MODELS "kimi_linear", MODELS "kimi_linear"},
        {MODELS "nemotron_h", MODELS "nemotron_h"},
        {MODELS "glm5_next", MODELS "glm5_next"},
        {MODELS "qwen4_exp", MODELS "qwen4_exp"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        pair p = {.from = open_model(&keep, plain, rows[i].from),
                  .to = open_model(&keep, plain, rows[i].to)};
        const kvm_outline_options o = {.keys = KVM_KEYS_CONTENT};
        made_translator(&p.t, &keep, p.from, p.to, &o, 0.5);
        own_tokens_stay(&p, rows[i].to);
    }
}

/* a replay goes on from what the target made of the tokens that it read */
static void replay_goes_on_from_own_states(void **state)
{
    (void)state;
    static const char *const targets[] = {MODELS "kimi_linear", MODELS "glm5_next"};
    for (size_t i = 0; i < COUNT(targets); i++) {
        kvm_err err = {0};
        pair p = {.from = open_model(&keep, fast, "tests/zoo/mla"),
                  .to = open_model(&keep, fast, targets[i])};
        const kvm_outline_options o = {.keys = KVM_KEYS_CONTENT,
                                       .states = KVM_STATES_REPLAY};
        made_translator(&p.t, &keep, p.from, p.to, &o, 0.5);
        make_ready(&p);
        kvm_cache *at_once = empty(p.to), *pieces = empty(p.to), *whole = empty(p.to);
        read_to(&p, 13);
        append(&p, at_once);
        target_reads(&p, at_once, 20, NULL);
        check_ok(kvm_cache_copy(pieces, at_once, &err), &err);
        for (ptrdiff_t end = 21; end <= TOKENS; end += 11) {
            read_to(&p, end);
            append(&p, pieces);
        }
        append(&p, at_once);
        assert_true(caches_differ(keep, p.to, pieces, at_once) < 2e-6F);
        append(&p, whole); /* from no tokens on: other states */
        const ptrdiff_t s = kvm_model_find_object(p.to, KVM_OBJECT_STATE, 0);
        assert_true(object_differs(keep, p.to, s, at_once, whole) > 1e-3F);
    }
}

/* states that start empty are the target's own from its first own token on */
static void empty_states_stay_the_targets(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, fast, "tests/zoo/kda");
    pair p = {.from = m,
              .to = m,
              .t = making_identity(&keep, m, KVM_SPACE_LATENT_ENGINE, KVM_TOKEN_NONE,
                                   KVM_STATE_ZERO)};
    kvm_cache *to = empty(m);
    make_ready(&p);
    read_to(&p, 13);
    append(&p, to);
    target_reads(&p, to, 20, NULL);
    read_to(&p, TOKENS);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        const size_t bytes = sizeof(float) * (size_t)(o->heads * o->dim);
        kvm_tensor view;
        if (!kvm_object_per_prompt(o)) continue;
        kvm_cache *copy = empty(m);
        check_ok(kvm_cache_copy(copy, to, &err), &err);
        check_ok(kvm_cache_view(to, i, &view, &err), &err);
        float *was = kvm_new(&keep, float, o->heads * o->dim);
        memcpy(was, view.data, bytes);
        append(&p, copy);
        check_ok(kvm_cache_view(copy, i, &view, &err), &err);
        assert_memory_equal(view.data, was, bytes);
    }
}

/* ---- there and back ---- */

/* Two copies of one model read in turns, each what the other has not: what they end
 * with is what one of them makes of it all. Rows before a norm that were injected serve
 * the way back. */
static void models_take_turns(void **state)
{
    (void)state;
    static const ptrdiff_t turns[] = {9, 13, 20, 30, TOKENS};
    kvm_model *m = open_model(&keep, plain, "tests/zoo/mla");
    pair p = {.from = m,
              .to = m,
              .t = making_identity(&keep, m, KVM_SPACE_LATENT, KVM_TOKEN_NONE,
                                   KVM_STATE_ZERO)};
    pair back = p;
    make_ready(&p);
    make_ready(&back);
    kvm_apply_keep(p.a, back.taken);
    kvm_apply_keep(back.a, p.taken);
    for (size_t i = 0; i < COUNT(turns); i++) {
        pair *const now = i % 2 ? &back : &p, *const other = i % 2 ? &p : &back;
        if (i > 0) append(other, now->cache);
        read_to(now, turns[i]);
    }
    append(&p, back.cache);
    kvm_cache *native = empty(m); /* in the same pieces: attention rounds by them */
    for (size_t i = 0; i < COUNT(turns); i++) target_reads(&p, native, turns[i], NULL);
    assert_true(caches_differ(keep, m, p.cache, native) == 0);
    assert_true(caches_differ(keep, m, back.cache, native) == 0);

    /* who does not keep them cannot go back */
    kvm_cache_clear(p.cache);
    kvm_cache_clear(back.cache);
    kvm_taken_cut(back.taken, 0);
    kvm_apply_keep(p.a, NULL);
    read_to(&p, 9);
    append(&p, back.cache);
    read_to(&back, 13);
    kvm_cache_clear(p.cache);
    check_refused(KVM_USAGE, "tokens 0 to 13",
                  kvm_apply_run(back.a, &back.hand, p.cache, NULL, &no));
}

/* ---- refusals ---- */

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_model *m = open_model(&keep, fast, "tests/zoo/mla");
    pair p = {.from = m,
              .to = m,
              .t = making_identity(&keep, m, KVM_SPACE_LATENT, KVM_TOKEN_GIVEN,
                                   KVM_STATE_ZERO)};
    kvm_cache *to = empty(m), *small, *same = empty(m);
    make_ready(&p);
    read_to(&p, 13);
    append(&p, to);
    check_ok(kvm_cache_copy(same, to, &err), &err);
    check_refused(KVM_RANGE, "lacks none", kvm_apply_run(p.a, &p.hand, to, NULL, &no));
    target_reads(&p, to, 20, NULL);
    check_refused(KVM_RANGE, "holds 20 tokens and the source's 13",
                  kvm_apply_run(p.a, &p.hand, to, NULL, &no));
    check_ok(kvm_cache_truncate(to, 13, &err), &err);
    /* what was not taken, of tokens that are translated; of others it is not missed */
    check_ok(kvm_model_forward(m, p.cache, ids + 13, 7, NULL, &err), &err);
    check_refused(KVM_USAGE, "tokens 13 to 20",
                  kvm_apply_run(p.a, &p.hand, to, NULL, &no));
    check_ok(kvm_cache_truncate(p.cache, 13, &err), &err);
    read_to(&p, 20);
    kvm_handover untold = p.hand;
    untold.ids = NULL;
    check_refused(KVM_USAGE, "ids", kvm_apply_run(p.a, &untold, to, NULL, &no));
    check_ok(kvm_cache_new(&small, &keep, m, 19, &err), &err);
    check_ok(kvm_cache_copy(small, to, &err), &err);
    check_refused(KVM_RANGE, "7 tokens to inject after 13",
                  kvm_apply_run(p.a, &p.hand, small, NULL, &no));
    assert_int_equal(kvm_cache_length(small), 13);
    assert_true(caches_differ(keep, m, to, same) == 0);
    append(&p, to);
    assert_memory_equal(kvm_apply_ids(p.a), ids + 13, 7 * sizeof *ids);
}

/* Memory may end at each call that asks for some: then the target holds what it
 * held, or nothing where it keeps a state, and can be given the tokens again. */
static void without_memory_nothing_is_half_done(void **state)
{
    (void)state;
    kvm_err err = {0};
    for (int stateful = 0; stateful < 2; stateful++) {
        kvm_model *m =
            open_model(&keep, fast, stateful ? MODELS "qwen4_exp" : "tests/zoo/mla");
        pair p = {.from = m,
                  .to = m,
                  .t = making_identity(&keep, m, KVM_SPACE_LATENT, KVM_TOKEN_GIVEN,
                                       KVM_STATE_COPY)};
        kvm_cache *to = empty(m), *whole = empty(m);
        long fired = 0;
        make_ready(&p);
        read_to(&p, 13);
        append(&p, to);
        read_to(&p, TOKENS);
        append(&p, whole);
        for (long n = 1;; n++, fired++) {
            const ptrdiff_t held = kvm_cache_length(to);
            err = (kvm_err){0};
            fault_begin((fault_plan){
                .nth = n, .error = ENOMEM, .forever = true, .only = "mmap"});
            const kvm_status s = kvm_apply_run(p.a, &p.hand, to, NULL, &err);
            if (!fault_end()) break;
            check_status(KVM_NOMEM, s, &err);
            assert_int_equal(kvm_cache_length(to), stateful ? 0 : held);
        }
        assert_true(fired > 0);
        assert_true(caches_differ(keep, m, to, whole) < 2e-6F);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identities),
        cmocka_unit_test(pairs),
        cmocka_unit_test(what_the_target_read_stays),
        cmocka_unit_test(replay_goes_on_from_own_states),
        cmocka_unit_test(empty_states_stay_the_targets),
        cmocka_unit_test(models_take_turns),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(without_memory_nothing_is_half_done),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
