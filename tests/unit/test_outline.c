/* What a translator between two kinds of model will consist of. */
#include "translators/outline.h"

#include <string.h>

#include "tests/support/check.h"

static kvm_arena keep;

static int setup(void **state)
{
    (void)state;
    keep = check_arena((size_t)1 << 28);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

/* ---- kinds of model, by layers: K keys and values, L latents, R recurrent, I latents
 * with an indexer ---- */

static void give(kvm_shapes *s, kvm_space space, ptrdiff_t layer, kvm_row_shape shape)
{
    const kvm_space stored = kvm_space_rows[space].stored;
    kvm_row_shape *of = kvm_new(&keep, kvm_row_shape, s->layers);
    if (s->of[stored]) memcpy(of, s->of[stored], sizeof *of * (size_t)s->layers);
    of[layer] = shape;
    for (int i = 0; i < KVM_SPACES; i++)
        if (kvm_space_rows[i].stored == stored) s->of[i] = of;
}

/* keys: of a state's heads of (keys, 6) */
static kvm_shapes model(const char *layers, ptrdiff_t keys)
{
    kvm_shapes s = {.layers = (ptrdiff_t)strlen(layers)};
    give(&s, KVM_SPACE_TOKEN, 0, (kvm_row_shape){1, 16, 0});
    for (ptrdiff_t l = 0; l < s.layers; l++) {
        switch (layers[l]) {
        case 'K':
            give(&s, KVM_SPACE_K, l, (kvm_row_shape){2, 4, 0});
            give(&s, KVM_SPACE_V, l, (kvm_row_shape){2, 4, 0});
            break;
        case 'I':
            give(&s, KVM_SPACE_INDEX, l, (kvm_row_shape){1, 3, 0});
            /* fall through */
        case 'L':
            give(&s, KVM_SPACE_LATENT, l, (kvm_row_shape){1, 7, 0});
            give(&s, KVM_SPACE_LATENT_ENGINE, l, (kvm_row_shape){1, 7, 0});
            break;
        default:
            give(&s, KVM_SPACE_INPUT, l, (kvm_row_shape){1, 16, 0});
            give(&s, KVM_SPACE_STATE, l, (kvm_row_shape){2, keys * 6, keys});
            give(&s, KVM_SPACE_WINDOW, l, (kvm_row_shape){12, 3, 0});
            break;
        }
    }
    return s;
}

static const kvm_outline_options plain = {.keys = KVM_KEYS_CONTENT};

static kvm_outline outline(const char *from, const char *to, kvm_outline_options o)
{
    kvm_err err = {0};
    kvm_outline out;
    const kvm_shapes a = model(from, 4), b = model(to, 4);
    check_ok(kvm_outline_make(&out, &o, &a, &b, &err), &err);
    return out;
}

static const kvm_mapping *find(const kvm_outline *o, kvm_space out)
{
    for (int i = 0; i < o->mappings; i++)
        if (o->mapping[i].out == out) return &o->mapping[i];
    return NULL;
}

static void reads(const kvm_outline *o, kvm_space out, kvm_side side, kvm_space first,
                  kvm_space second)
{
    const kvm_mapping *m = find(o, out);
    if (!m) fail_msg("nothing makes %s", kvm_space_name(out));
    assert_int_equal(m->side, side);
    assert_int_equal(m->from[0], first);
    assert_int_equal(m->from[1], second);
    assert_int_equal(m->token, o->token != KVM_TOKEN_NONE);
}

#define BIT(space) (1U << KVM_SPACE_##space)

static void keys_and_values(void **state)
{
    (void)state;
    const kvm_outline o = outline("KK", "KKK", plain);
    assert_int_equal(o.mappings, 2);
    assert_int_equal(o.groups, 1);
    assert_int_equal(o.group[0], o.group[1]);
    reads(&o, KVM_SPACE_K, KVM_SOURCE, KVM_SPACE_K, KVM_SPACE_K);
    reads(&o, KVM_SPACE_V, KVM_SOURCE, KVM_SPACE_V, KVM_SPACE_V);
    assert_int_equal(o.token, KVM_TOKEN_NONE);
    assert_int_equal(o.states, KVM_STATES_ZERO);
    assert_int_equal(o.source, BIT(K) | BIT(V));
    assert_int_equal(o.target, BIT(K) | BIT(V));
    assert_false(o.exact);
    assert_int_equal(o.own.n, 0);
    kvm_outline_options rotated = plain;
    rotated.keys = KVM_KEYS_ROTATED;
    const kvm_outline r = outline("KK", "KKK", rotated);
    reads(&r, KVM_SPACE_K_ROTATED, KVM_SOURCE, KVM_SPACE_K_ROTATED,
          KVM_SPACE_K_ROTATED);
    /* derived rows are no rows of a capture, and both spaces share their files */
    assert_int_equal(r.source, BIT(K) | BIT(V));
    assert_int_equal(r.gram.n, o.gram.n);
    assert_int_equal(r.cross.n, o.cross.n);
}

static void latents(void **state)
{
    (void)state;
    const kvm_outline same = outline("LL", "LLL", plain);
    reads(&same, KVM_SPACE_LATENT, KVM_SOURCE, KVM_SPACE_LATENT, KVM_SPACE_LATENT);
    assert_int_equal(same.mappings, 1);
    assert_int_equal(same.token, KVM_TOKEN_DECODED);
    assert_true(same.exact);
    assert_int_equal(same.source, BIT(LATENT));
    assert_int_equal(same.target, BIT(LATENT) | BIT(TOKEN));
    const kvm_outline from_kv = outline("KK", "LLL", plain);
    reads(&from_kv, KVM_SPACE_LATENT, KVM_SOURCE, KVM_SPACE_K, KVM_SPACE_V);
    assert_true(from_kv.exact);
    const kvm_outline to_kv = outline("LL", "KK", plain);
    reads(&to_kv, KVM_SPACE_K, KVM_SOURCE, KVM_SPACE_LATENT, KVM_SPACE_LATENT);
    reads(&to_kv, KVM_SPACE_V, KVM_SOURCE, KVM_SPACE_LATENT, KVM_SPACE_LATENT);
    assert_int_equal(to_kv.token, KVM_TOKEN_NONE);
    kvm_outline_options engine = plain;
    engine.engine = true;
    const kvm_outline kept = outline("LL", "LL", engine);
    reads(&kept, KVM_SPACE_LATENT_ENGINE, KVM_SOURCE, KVM_SPACE_LATENT_ENGINE,
          KVM_SPACE_LATENT_ENGINE);
    assert_false(kept.exact); /* a norm stands between */
    /* every map reads at the one point, also those of what follows from latents */
    const kvm_outline replayed = outline("LL", "RL", engine);
    reads(&replayed, KVM_SPACE_INPUT, KVM_SOURCE, KVM_SPACE_LATENT_ENGINE,
          KVM_SPACE_LATENT_ENGINE);
    assert_int_equal(replayed.source, BIT(LATENT_ENGINE));
    assert_true(kvm_outline_same(&kept, &kept));
    assert_false(kvm_outline_same(&kept, &same));
}

static void an_indexer_reads_its_own_layer(void **state)
{
    (void)state;
    const kvm_outline o = outline("LL", "II", plain);
    reads(&o, KVM_SPACE_INDEX, KVM_TARGET, KVM_SPACE_LATENT, KVM_SPACE_LATENT);
    assert_int_equal(o.target, BIT(LATENT) | BIT(INDEX) | BIT(TOKEN));
    assert_int_equal(o.groups, 2);
}

/* what is left out is no mapping, and all else is as it was */
static void an_indexer_may_be_left_out(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_outline refused = {.mappings = 7};
    kvm_outline_options left = plain;
    left.dense = true;
    const kvm_outline whole = outline("LL", "II", plain), o = outline("LL", "II", left);
    assert_null(find(&o, KVM_SPACE_INDEX));
    assert_int_equal(o.mappings, whole.mappings - 1);
    assert_int_equal(o.token, whole.token);
    assert_int_equal(o.source, whole.source);
    assert_int_equal(o.target, whole.target); /* one capture serves both */
    assert_true(o.dense && !whole.dense);
    assert_false(kvm_outline_same(&o, &whole));
    const kvm_shapes from = model("LL", 4), to = model("LL", 4);
    check_status(KVM_UNSUPPORTED, kvm_outline_make(&refused, &left, &from, &to, &err),
                 &err);
    check_contains(err.msg, "no indexer");
    assert_int_equal(refused.mappings, 7);
}

static void states_come_in_their_ways(void **state)
{
    (void)state;
    kvm_outline_options o = plain;
    const kvm_outline alike = outline("RRRL", "RRRLRRRL", plain);
    assert_int_equal(alike.states, KVM_STATES_BILINEAR);
    assert_null(find(&alike, KVM_SPACE_INPUT));
    assert_int_equal(alike.source, BIT(LATENT) | BIT(STATE) | BIT(WINDOW));
    assert_int_equal(alike.token, KVM_TOKEN_GIVEN); /* layer 0 tells no token */
    assert_false(alike.exact);
    const kvm_outline none = outline("LLL", "RRL", plain);
    assert_int_equal(none.states, KVM_STATES_REPLAY);
    reads(&none, KVM_SPACE_INPUT, KVM_SOURCE, KVM_SPACE_LATENT, KVM_SPACE_LATENT);
    assert_int_equal(none.token, KVM_TOKEN_DECODED);
    const kvm_outline from_kv = outline("KK", "RRK", plain);
    reads(&from_kv, KVM_SPACE_INPUT, KVM_SOURCE, KVM_SPACE_K, KVM_SPACE_V);
    o.states = KVM_STATES_ZERO;
    const kvm_outline zero = outline("LLL", "RRL", o);
    assert_int_equal(zero.states, KVM_STATES_ZERO);
    assert_null(find(&zero, KVM_SPACE_INPUT));
    assert_true(zero.target & BIT(STATE));
    assert_false(zero.source & BIT(STATE));
    o.states = KVM_STATES_COPY;
    assert_int_equal(outline("RL", "RL", o).states, KVM_STATES_COPY);
    /* a target without states needs none, whatever is asked */
    assert_int_equal(outline("RRL", "LL", o).states, KVM_STATES_ZERO);
}

/* a way for each recurrent layer: captures hold what all of them need */
static void states_come_layer_by_layer(void **state)
{
    (void)state;
    static const kvm_state_way ways[] = {KVM_STATES_COPY, KVM_STATES_REPLAY,
                                         KVM_STATES_ZERO},
                               alike[] = {KVM_STATES_COPY, KVM_STATES_COPY,
                                          KVM_STATES_COPY};
    kvm_outline_options o = plain;
    o.each = ways;
    o.ways = COUNT(ways);
    const kvm_shapes to = model("RRLR", 4);
    const kvm_outline mixed = outline("RRLR", "RRLR", o);
    assert_int_equal(mixed.states, KVM_STATES_AUTO);
    static const kvm_state_way by_layer[] = {KVM_STATES_COPY, KVM_STATES_REPLAY,
                                             KVM_STATES_ZERO, KVM_STATES_ZERO};
    for (ptrdiff_t l = 0; l < 4; l++) {
        if (l == 2) continue; /* latents */
        assert_int_equal(kvm_outline_way(&mixed, &to, l), by_layer[l]);
        assert_int_equal(kvm_outline_makes(&mixed, &to, KVM_SPACE_INPUT, l), l == 1);
    }
    assert_true(kvm_outline_makes(&mixed, &to, KVM_SPACE_LATENT, 2));
    assert_false(kvm_outline_makes(&mixed, &to, KVM_SPACE_LATENT, 1));
    reads(&mixed, KVM_SPACE_INPUT, KVM_SOURCE, KVM_SPACE_LATENT, KVM_SPACE_LATENT);
    assert_true(mixed.source & BIT(STATE) && mixed.target & BIT(STATE));
    assert_true(mixed.target & BIT(INPUT));
    assert_int_equal(mixed.token, KVM_TOKEN_GIVEN);
    o.each = alike;
    const kvm_outline same = outline("RRLR", "RRLR", o);
    assert_int_equal(same.states, KVM_STATES_COPY);
    assert_null(find(&same, KVM_SPACE_INPUT));
    assert_false(kvm_outline_same(&same, &mixed));
    assert_true(kvm_outline_same(&mixed, &mixed));
    /* as many as there are, and each of them possible */
    kvm_err err = {0};
    kvm_outline out;
    const kvm_shapes from = model("RRLR", 4), other = model("RRLR", 3);
    o.ways = 2;
    check_status(KVM_RANGE, kvm_outline_make(&out, &o, &from, &to, &err), &err);
    check_contains(err.msg, "2 ways");
    check_contains(err.msg, "3 recurrent layers");
    o.ways = 3;
    o.each = ways;
    err = (kvm_err){0};
    check_status(KVM_MISMATCH, kvm_outline_make(&out, &o, &other, &to, &err), &err);
    /* a target without states needs none, whatever is listed */
    assert_int_equal(outline("RRLR", "LL", o).states, KVM_STATES_ZERO);
}

static void what_cannot_be_made_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        kvm_outline_options o;
        kvm_status status;
        const char *word;
    } cases[] = {
        {"LL",
         "RRL",
         {.keys = KVM_KEYS_CONTENT, .states = KVM_STATES_COPY},
         KVM_MISMATCH,
         "replay"},
        {"KK",
         "RRK",
         {.keys = KVM_KEYS_CONTENT, .states = KVM_STATES_BILINEAR},
         KVM_MISMATCH,
         "replay"},
        {"RR", "KK", {.keys = KVM_KEYS_CONTENT}, KVM_UNSUPPORTED, "rows of K "},
        {"RR", "LL", {.keys = KVM_KEYS_CONTENT}, KVM_UNSUPPORTED, "rows of latent "},
        {"KK",
         "LL",
         {.keys = KVM_KEYS_CONTENT, .engine = true},
         KVM_UNSUPPORTED,
         "no recipe makes latents as engines keep them (latents: 3)"},
        {"LL", "KK", {.keys = KVM_KEYS_ROTATED}, KVM_UNSUPPORTED, "K_rotated"},
        {"RR",
         "RR",
         {.keys = KVM_KEYS_CONTENT, .states = KVM_STATES_REPLAY},
         KVM_UNSUPPORTED,
         "input"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvm_err err = {0};
        kvm_outline out = {.groups = -7};
        const kvm_shapes a = model(cases[i].from, 4), b = model(cases[i].to, 4);
        check_status(cases[i].status, kvm_outline_make(&out, &cases[i].o, &a, &b, &err),
                     &err);
        check_contains(err.msg, cases[i].word);
        assert_int_equal(out.groups, -7);
    }
    /* states of other axes */
    kvm_err err = {0};
    kvm_outline out;
    const kvm_outline_options copy = {.keys = KVM_KEYS_CONTENT,
                                      .states = KVM_STATES_COPY};
    const kvm_shapes a = model("RL", 4), b = model("RL", 3);
    check_status(KVM_MISMATCH, kvm_outline_make(&out, &copy, &a, &b, &err), &err);
    check_contains(err.msg, "4 keys");
    err = (kvm_err){0};
    check_ok(kvm_outline_make(&out, &plain, &a, &b, &err), &err);
    assert_int_equal(out.states, KVM_STATES_REPLAY);
}

/* ---- products ---- */

static bool listed(const kvm_block_set *set, kvm_space a, kvm_space b)
{
    for (ptrdiff_t i = 0; i < set->n; i++)
        if (set->id[i].a == a && set->id[i].b == b) return true;
    return false;
}

/* is the product of two features in the files that the outline asks for? */
static bool asked_for(const kvm_outline *o, kvm_feature a, kvm_feature b)
{
    if (a.side != b.side)
        return a.side == KVM_SOURCE ? listed(&o->cross, a.space, b.space)
                                    : listed(&o->cross, b.space, a.space);
    const kvm_block_set *set = a.side == KVM_SOURCE ? &o->gram : &o->own;
    return a.space < b.space ? listed(set, a.space, b.space)
                             : listed(set, b.space, a.space);
}

/* whatever the pair: every product that a mapping's fit reads is asked for, of rows
 * that the captures are asked for; and of nothing is asked twice */
static void fits_find_what_they_read(void **state)
{
    (void)state;
    static const char *const kinds[] = {"KK", "LL", "II", "RRL", "RRK", "LLRI"};
    ptrdiff_t pairs = 0;
    for (size_t i = 0; i < COUNT(kinds) * COUNT(kinds) * 6; i++) {
        kvm_outline o;
        kvm_outline_options options = plain;
        options.keys = i % 2 ? KVM_KEYS_ROTATED : KVM_KEYS_CONTENT;
        options.token_given = i / 2 % 3 > 0;
        options.token = i / 2 % 3 == 2 ? KVM_TOKEN_GIVEN : KVM_TOKEN_NONE;
        const kvm_shapes a = model(kinds[i / 6 % COUNT(kinds)], 4),
                         b = model(kinds[i / 6 / COUNT(kinds)], 4);
        if (kvm_outline_make(&o, &options, &a, &b, NULL)) continue;
        pairs++;
        for (int k = 0; k < o.mappings; k++) {
            const kvm_mapping *m = &o.mapping[k];
            static const int32_t two[] = {0, 1};
            kvm_feature x[6];
            const ptrdiff_t n = kvm_mapping_items(m, two, 2, 0, x);
            x[n] = (kvm_feature){KVM_TARGET, m->out, 0};
            for (ptrdiff_t p = 0; p < n; p++) {
                const kvm_spaces rows = x[p].side == KVM_SOURCE ? o.source : o.target;
                assert_true(rows >> kvm_space_rows[x[p].space].stored & 1);
                for (ptrdiff_t q = p; q <= n; q++)
                    if (!asked_for(&o, x[p], x[q]))
                        fail_msg("%s: %s x %s", kvm_space_name(m->out),
                                 kvm_space_name(x[p].space),
                                 kvm_space_name(x[q].space));
            }
            assert_true(o.target >> kvm_space_rows[m->out].stored & 1);
        }
        const kvm_block_set *const sets[] = {&o.gram, &o.cross, &o.own};
        for (int s = 0; s < 3; s++)
            for (ptrdiff_t p = 0; p < sets[s]->n; p++)
                for (ptrdiff_t q = 0; q < p; q++)
                    assert_false(sets[s]->id[p].a == sets[s]->id[q].a &&
                                 sets[s]->id[p].b == sets[s]->id[q].b);
    }
    assert_true(pairs > 100);
}

/* ---- which state goes where ---- */

static void states_go_to_the_same_depth(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        ptrdiff_t of[8]; /* by target layer; -2: not asked */
    } cases[] = {
        {"RRRLRRRL", "RRRLRRRL", {0, 1, 2, -2, 4, 5, 6, -2}},
        {"RRRL", "RRRLRRRL", {0, 0, 1, -2, 1, 2, 2, -2}},
        {"RRRLRRRL", "RLRR", {0, -2, 4, 6}},
        {"LR", "RRR", {1, 1, 1}},
        {"RRR", "LR", {-2, 0}},
        {"LL", "RR", {-1, -1}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const kvm_shapes a = model(cases[i].from, 4), b = model(cases[i].to, 4);
        for (ptrdiff_t l = 0; l < b.layers; l++)
            if (cases[i].of[l] != -2)
                assert_int_equal(kvm_outline_state_source(&a, &b, l), cases[i].of[l]);
    }
}

static void names_are_read_back(void **state)
{
    (void)state;
    for (int w = KVM_STATES_AUTO; w <= KVM_STATES_REPLAY; w++) {
        kvm_state_way got;
        assert_int_equal(kvm_state_way_of_name(
                             kvm_str_of(kvm_state_way_name((kvm_state_way)w)), &got),
                         KVM_OK);
        assert_int_equal(got, w);
    }
    assert_int_equal(kvm_state_way_of_name(KVM_STR("frozen"), &(kvm_state_way){0}),
                     KVM_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_values),
        cmocka_unit_test(latents),
        cmocka_unit_test(an_indexer_reads_its_own_layer),
        cmocka_unit_test(an_indexer_may_be_left_out),
        cmocka_unit_test(states_come_in_their_ways),
        cmocka_unit_test(states_come_layer_by_layer),
        cmocka_unit_test(what_cannot_be_made_is_refused),
        cmocka_unit_test(fits_find_what_they_read),
        cmocka_unit_test(states_go_to_the_same_depth),
        cmocka_unit_test(names_are_read_back),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
