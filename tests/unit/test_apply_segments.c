/* A target that already holds tokens gets those that it lacks: pieces of whatever
 * lengths come out as all at once, and stand beside what it has read itself. */
#include "tests/support/caches.h"
#include "tests/support/check.h"
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

static kvm_model *open_model(kvm_compute *c, const char *path)
{
    kvm_err err = {0};
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&m, &keep, c, kvm_str_of(path), &o, &err), &err);
    return m;
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
        kvm_model *m = open_model(k % 2 ? fast : plain, paths[i]);
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
        pair p = {.from = open_model(c, rows[i].from), .to = open_model(c, rows[i].to)};
        const kvm_outline_options o = {.keys = KVM_KEYS_CONTENT,
                                       .states = rows[i].states};
        made_translator(&p.t, &keep, p.from, p.to, &o, 0.5);
        pieces_are_the_whole(&p, rows[i].to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identities),
        cmocka_unit_test(pairs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
