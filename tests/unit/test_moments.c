/* Moments: budgets, shares, direction, refusals. What they are is in tests/golden. */
#include "translators/moments.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/safetensors.h"
#include "tests/support/captures.h"
#include "tests/support/check.h"

#define TMP "build/tmp/moments/"

static kvm_arena keep;
static kvm_compute *compute;

/* Wide enough for one panel of V per layer, and in V alone: K stands in two spaces, and
 * a file of every split and space is written a score of times. */
static made wide(const char *name, ptrdiff_t layers, float *inv_freq)
{
    return (made){.name = name,
                  .layers = layers,
                  .heads = 9,
                  .k_dim = 8,
                  .v_dim = 64,
                  .sequences = 6,
                  .tokens = 40,
                  .rope = made_rope(inv_freq, 8, 1e4, 1, false)};
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    float inv_freq[32];
    check_tmpdir("moments");
    keep = check_arena((size_t)8 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    made a = wide("alpha", 2, inv_freq), b = wide("beta", 2, inv_freq);
    made_capture(&a, TMP "a.capture");
    made_capture(&b, TMP "b.capture");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_rows *open_rows(const char *path)
{
    kvm_err err = {0};
    kvm_rows *r;
    check_ok(kvm_rows_open(&r, &keep, kvm_str_of(path), &err), &err);
    return r;
}

static void sum(const kvm_rows *a, const kvm_rows *b, const kvm_moments_options *o,
                const char *path)
{
    kvm_err err = {0};
    check_ok(b ? kvm_moments_cross(compute, a, b, o, kvm_str_of(path), NULL, &err)
               : kvm_moments_gram(compute, a, o, kvm_str_of(path), NULL, &err),
             &err);
}

static void same_bytes(const char *x, const char *y)
{
    const kvm_str a = check_read(&keep, x), b = check_read(&keep, y);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.at, b.at, (size_t)a.len);
}

static void any_budget_gives_the_same_bits(void **state)
{
    (void)state;
    const kvm_rows *a = open_rows(TMP "a.capture"), *b = open_rows(TMP "b.capture");
    kvm_moments_options o = {.seed = 1, .hash_a = "a", .hash_b = "b"};
    sum(a, NULL, &o, TMP "gram");
    sum(a, b, &o, TMP "cross");
    o.budget = kvm_moments_least_budget(a, NULL, &o);
    assert_true(o.budget < (size_t)64 << 20);
    sum(a, NULL, &o, TMP "gram.tiled");
    o.budget = kvm_moments_least_budget(a, b, &o);
    sum(a, b, &o, TMP "cross.tiled");
    same_bytes(TMP "gram", TMP "gram.tiled");
    same_bytes(TMP "cross", TMP "cross.tiled");
    kvm_err err = {0};
    o.budget = kvm_moments_least_budget(a, NULL, &o) - 1;
    check_status(KVM_RANGE,
                 kvm_moments_gram(compute, a, &o, KVM_STR(TMP "none"), NULL, &err),
                 &err);
    check_contains(err.msg, "MiB");
}

static kvm_moments *open_moments(const char *gram, const char *cross)
{
    kvm_err err = {0};
    kvm_moments *m;
    check_ok(kvm_moments_open(&m, &keep, kvm_str_of(gram), kvm_str_of(cross),
                              (kvm_str){0}, &err),
             &err);
    return m;
}

static kvm_status join(const kvm_rows *a, const kvm_rows *b, kvm_moments_options o,
                       int parts, const char *path, kvm_err *err)
{
    kvm_str share[8];
    o.parts = parts;
    for (o.part = 0; o.part < parts; o.part++) {
        share[o.part] = kvm_str_fmt(&keep, TMP "share%d", o.part);
        sum(a, b, &o, share[o.part].at);
    }
    return kvm_moments_join(a, b, &o, share, kvm_str_of(path), NULL, err);
}

/* also more shares than there are rows of tiles, and where each sums in many passes */
static void shares_join_to_the_same_bits(void **state)
{
    (void)state;
    const kvm_rows *a = open_rows(TMP "a.capture"), *b = open_rows(TMP "b.capture");
    kvm_moments_options o = {.seed = 1, .hash_a = "a", .hash_b = "b"};
    for (int cross = 0; cross < 2; cross++) {
        const kvm_rows *other = cross ? b : NULL;
        o.budget = 0;
        sum(a, other, &o, TMP "whole");
        for (int parts = 2; parts <= 7; parts += parts == 3 ? 4 : 1) {
            kvm_err err = {0};
            o.budget = parts == 3 ? kvm_moments_least_budget(a, other, &o) : 0;
            check_ok(join(a, other, o, parts, TMP "joined", &err), &err);
            same_bytes(TMP "whole", TMP "joined");
        }
    }
}

static void a_share_that_is_not_whole_is_refused(void **state)
{
    (void)state;
    const kvm_rows *a = open_rows(TMP "a.capture");
    kvm_err err = {0};
    kvm_moments_options o = {.seed = 1, .hash_a = "a", .parts = 2};
    sum(a, NULL, &o, TMP "odd0");
    o.part = 1;
    sum(a, NULL, &o, TMP "odd1");
    const kvm_str odd[] = {KVM_STR(TMP "odd0"), KVM_STR(TMP "odd1")};
    const kvm_str whole = check_read(&keep, TMP "odd1");
    check_write(TMP "odd1", kvm_str_slice(whole, 0, whole.len - 8));
    check_status(KVM_MISMATCH,
                 kvm_moments_join(a, NULL, &o, odd, KVM_STR(TMP "none"), NULL, &err),
                 &err);
    check_contains(err.msg, "share 1 of 2");
    err = (kvm_err){0};
    o.part = 2;
    check_status(KVM_USAGE,
                 kvm_moments_gram(compute, a, &o, KVM_STR(TMP "none"), NULL, &err),
                 &err);
}

static void a_cross_file_serves_both_directions(void **state)
{
    (void)state;
    const kvm_rows *a = open_rows(TMP "a.capture"), *b = open_rows(TMP "b.capture");
    const kvm_moments_options ab = {.seed = 1, .hash_a = "a", .hash_b = "b"};
    const kvm_moments_options ba = {.seed = 1, .hash_a = "b", .hash_b = "a"};
    sum(a, NULL, &ab, TMP "gram.a");
    sum(b, NULL, &ba, TMP "gram.b");
    sum(a, b, &ab, TMP "cross.ab");
    sum(b, a, &ba, TMP "cross.ba");
    const kvm_moments *m = open_moments(TMP "gram.b", TMP "cross.ba");
    const kvm_moments *turned = open_moments(TMP "gram.b", TMP "cross.ab");
    check_str(kvm_moments_model(turned, KVM_SOURCE), "beta");
    check_str(kvm_moments_model(turned, KVM_TARGET), "alpha");
    assert_string_equal(kvm_moments_hash(m).at, kvm_moments_hash(turned).at);
    const int32_t layers[] = {1, 0};
    const kvm_features x = made_features(&keep, KVM_SPACE_V, layers, 2, -1);
    const kvm_output y1 = {KVM_SPACE_V, 1};
    kvm_err err = {0};
    check_ok(kvm_moments_has(turned, x, y1, &err), &err);
    enum { F = 1152, P = 576 };
    double *p = kvm_new(&keep, double, (ptrdiff_t)F *P),
           *q = kvm_new(&keep, double, (ptrdiff_t)F *P);
    kvm_moments_get_cross(m, KVM_FIT, x, y1, 0, P, p, P);
    kvm_moments_get_cross(turned, KVM_FIT, x, y1, 0, P, q, P);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)F * P; i++)
        assert_true(fabs(p[i] - q[i]) < 1e-4);
    double y[2][P], mean[2][P];
    kvm_moments_get_target(m, KVM_HELD, y1, 0, P, y[0], mean[0]);
    kvm_moments_get_target(turned, KVM_HELD, y1, 0, P, y[1], mean[1]);
    for (ptrdiff_t i = 0; i < P; i++) {
        assert_true(fabs(y[0][i] - y[1][i]) < 1e-9);
        assert_true(fabs(mean[0][i] - mean[1][i]) < 1e-12);
    }
    kvm_moments *none;
    check_status(KVM_FORMAT,
                 kvm_moments_open(&none, &keep, KVM_STR(TMP "share0"),
                                  KVM_STR(TMP "cross.ab"), (kvm_str){0}, &err),
                 &err);
    const kvm_moments_options third = {.seed = 1, .hash_a = "c"};
    sum(a, NULL, &third, TMP "gram.c");
    err = (kvm_err){0};
    check_status(KVM_MISMATCH,
                 kvm_moments_open(&none, &keep, KVM_STR(TMP "gram.c"),
                                  KVM_STR(TMP "cross.ab"), (kvm_str){0}, &err),
                 &err);
}

static kvm_features values_of(const int32_t *layers, ptrdiff_t count, ptrdiff_t head)
{
    return made_features(&keep, KVM_SPACE_V, layers, count, head);
}

static void gathering_follows_the_order_asked_for(void **state)
{
    (void)state;
    const kvm_moments *m = open_moments(TMP "gram.a", TMP "cross.ab");
    const int32_t forward[] = {0, 1}, backward[] = {1, 0};
    enum { F = 1152, W = 576 };
    double *p = kvm_new(&keep, double, (ptrdiff_t)F *F),
           *q = kvm_new(&keep, double, (ptrdiff_t)F *F);
    kvm_moments_get_gram(m, KVM_FIT, values_of(forward, 2, -1), p);
    kvm_moments_get_gram(m, KVM_FIT, values_of(backward, 2, -1), q);
    for (ptrdiff_t i = 0; i < F; i++)
        for (ptrdiff_t j = 0; j < F; j++) {
            const ptrdiff_t u = (1 - i / W) * W + i % W, v = (1 - j / W) * W + j % W;
            assert_true(p[i * F + j] == q[u * F + v]);
            assert_true(p[i * F + j] == p[j * F + i]);
        }
    double one[64 * 64];
    kvm_moments_get_gram(m, KVM_FIT, values_of(backward, 1, 3), one);
    for (ptrdiff_t i = 0; i < 64; i++)
        for (ptrdiff_t j = 0; j < 64; j++)
            assert_true(one[i * 64 + j] == p[(W + 192 + i) * F + W + 192 + j]);
}

static void captures_that_are_no_pair_are_refused(void **state)
{
    (void)state;
    float inv_freq[32];
    kvm_err err = {0};
    made c = wide("gamma", 1, inv_freq);
    c.sequences = 5;
    made_capture(&c, TMP "c.capture");
    const kvm_moments_options o = {.seed = 1};
    check_status(KVM_MISMATCH,
                 kvm_moments_cross(compute, open_rows(TMP "a.capture"),
                                   open_rows(TMP "c.capture"), &o, KVM_STR(TMP "none"),
                                   NULL, &err),
                 &err);
}

/* ---- blocks of two spaces ---- */

/* layers of unequal width, a token's embedding at layer 0, and a state */
static void two_space_capture(const char *name, const char *path, bool states)
{
    enum { LAYERS = 2, SEQUENCES = 5, TOKENS = 30 };
    static const kvm_row_shape k[] = {{2, 4, 0}, {1, 6, 0}}, v[] = {{0}, {3, 5, 0}},
                               token[] = {{1, 5, 0}, {0}}, s[] = {{0}, {1, 6, 2}};
    kvm_arena own = check_arena((size_t)1 << 26);
    kvm_err err = {0};
    kvm_rows_writer *w;
    kvm_rows_info info = {.model = kvm_str_of(name),
                          .model_name = kvm_str_of(name),
                          .text = KVM_STR("made-up"),
                          .tokenizer = KVM_STR("none"),
                          .shapes = kvm_shapes_kv(LAYERS, k, v),
                          .stride = 1,
                          .tokens = TOKENS,
                          .rope = {.factor = 1}};
    info.shapes.of[KVM_SPACE_TOKEN] = token;
    if (states) info.shapes.of[KVM_SPACE_STATE] = s;
    int32_t position[TOKENS];
    for (int i = 0; i < TOKENS; i++) position[i] = i;
    kvm_rng rng = kvm_rng_seed((uint64_t)name[0], 3);
    check_ok(kvm_rows_create(&w, &own, kvm_str_of(path), &info, &err), &err);
    for (int q = 0; q < SEQUENCES; q++) {
        for (int i = 0; i < KVM_SPACES * LAYERS; i++) {
            const kvm_space space = (kvm_space)(i / LAYERS);
            const ptrdiff_t width = kvm_shapes_width(&info.shapes, space, i % LAYERS);
            const ptrdiff_t n = kvm_space_once(space) ? 1 : TOKENS;
            float rows[TOKENS * 16];
            if (width == 0 || kvm_space_derived(space)) continue;
            for (ptrdiff_t e = 0; e < n * width; e++)
                rows[e] = (float)kvm_rng_normal(&rng) + (float)(e % width);
            check_ok(kvm_rows_put(w, space, i % LAYERS, 0, n, rows, &err), &err);
        }
        check_ok(kvm_rows_end_sequence(w, q, position, TOKENS, &err), &err);
    }
    check_ok(kvm_rows_publish(w, NULL, &err), &err);
    kvm_arena_free(&own);
}

/* rows of a split in f64, and their mean; n in and out */
static double *rows_of(const kvm_rows *r, kvm_space s, ptrdiff_t layer, kvm_split split,
                       ptrdiff_t *n, double *mean)
{
    const ptrdiff_t w = kvm_shapes_width(&kvm_rows_info_of(r)->shapes, s, layer);
    kvm_err err = {0};
    ptrdiff_t *index;
    check_ok(kvm_rows_split(r, 1, 0.2, split, &keep, &index, n, &err), &err);
    float *x = kvm_new(&keep, float, *n *w);
    double *y = kvm_new(&keep, double, *n *w);
    check_ok(kvm_rows_read(compute, r, s, layer, 1, 0, index, *n, x, w, &err), &err);
    memset(mean, 0, sizeof *mean * (size_t)w);
    for (ptrdiff_t i = 0; i < *n * w; i++) {
        y[i] = (double)x[i];
        mean[i % w] += y[i] / (double)*n;
    }
    return y;
}

/* entry by entry: got (rows ld apart) is the centred product of two layers' rows */
static void is_product(const double *got, ptrdiff_t ld, const kvm_rows *a, kvm_space sa,
                       ptrdiff_t la, const kvm_rows *b, kvm_space sb, ptrdiff_t lb,
                       kvm_split split)
{
    const ptrdiff_t wa = kvm_shapes_width(&kvm_rows_info_of(a)->shapes, sa, la);
    const ptrdiff_t wb = kvm_shapes_width(&kvm_rows_info_of(b)->shapes, sb, lb);
    double ma[16], mb[16];
    ptrdiff_t n;
    const double *x = rows_of(a, sa, la, split, &n, ma);
    const double *y = rows_of(b, sb, lb, split, &n, mb);
    for (ptrdiff_t i = 0; i < wa; i++)
        for (ptrdiff_t j = 0; j < wb; j++) {
            double sum = 0;
            for (ptrdiff_t t = 0; t < n; t++)
                sum += (x[t * wa + i] - ma[i]) * (y[t * wb + j] - mb[j]);
            if (!(fabs(got[i * ld + j] - sum) < 1e-4))
                fail_msg("%s.%td x %s.%td, entry %td %td: %g, expected %g",
                         kvm_space_name(sa), la, kvm_space_name(sb), lb, i, j,
                         got[i * ld + j], sum);
        }
}

/* the token, then keys of layer 1, values of layer 1 and keys of layer 0: all products
 * of them come from where they are kept, in either direction of the cross file */
static void features_of_several_spaces(void **state)
{
    (void)state;
    const kvm_space k = KVM_SPACE_K, v = KVM_SPACE_V, token = KVM_SPACE_TOKEN;
    const kvm_block_id gram[] = {{k, k}, {v, v}, {k, v}},
                       own[] = {{token, token}, {v, token}},
                       cross[] = {{k, v}, {v, v}, {k, token}, {v, token}},
                       turned[] = {{v, k}, {v, v}, {token, k}, {token, v}};
    const kvm_feature item[] = {{KVM_TARGET, token, 0},
                                {KVM_SOURCE, k, 1},
                                {KVM_SOURCE, v, 1},
                                {KVM_SOURCE, k, 0}};
    const kvm_features x = {item, COUNT(item), -1};
    const kvm_output y = {v, 1};
    two_space_capture("s", TMP "s.capture", false);
    two_space_capture("t", TMP "t.capture", false);
    const kvm_rows *s = open_rows(TMP "s.capture"), *t = open_rows(TMP "t.capture");
    kvm_moments_options o = {.seed = 1, .hash_a = "s", .hash_b = "t"};
    o.blocks = gram, o.block_count = COUNT(gram);
    sum(s, NULL, &o, TMP "gram");
    o.blocks = cross, o.block_count = COUNT(cross);
    sum(s, t, &o, TMP "cross");
    o.hash_a = "t", o.hash_b = "s";
    o.blocks = own, o.block_count = COUNT(own);
    sum(t, NULL, &o, TMP "own");
    o.blocks = turned, o.block_count = COUNT(turned);
    sum(t, s, &o, TMP "cross.turned");
    for (int d = 0; d < 2; d++) {
        kvm_err err = {0};
        kvm_moments *m;
        check_ok(
            kvm_moments_open(&m, &keep, KVM_STR(TMP "gram"),
                             d ? KVM_STR(TMP "cross.turned") : KVM_STR(TMP "cross"),
                             KVM_STR(TMP "own"), &err),
            &err);
        check_ok(kvm_moments_has(m, x, y, &err), &err);
        enum { F = 5 + 6 + 15 + 8, P = 15 };
        assert_int_equal(kvm_features_width(m, x), F);
        for (int p = 0; p < KVM_SPLITS; p++) {
            const kvm_split split = (kvm_split)p;
            double g[F * F], b[F * P], mean[F], want[16], square[P], target[P];
            ptrdiff_t at[COUNT(item)] = {0, 5, 11, 26}, n;
            kvm_moments_get_gram(m, split, x, g);
            kvm_moments_get_cross(m, split, x, y, 0, P, b, P);
            kvm_moments_get_mean(m, split, x, mean);
            for (size_t i = 0; i < COUNT(item); i++) {
                const kvm_rows *a = i ? s : t;
                const kvm_space sa = item[i].space;
                for (size_t j = 0; j < COUNT(item); j++)
                    is_product(g + at[i] * F + at[j], F, a, sa, item[i].layer,
                               j ? s : t, item[j].space, item[j].layer, split);
                is_product(b + at[i] * P, P, a, sa, item[i].layer, t, v, 1, split);
                rows_of(a, sa, item[i].layer, split, &n, want);
                for (ptrdiff_t e = 0; e < (i + 1 < COUNT(item) ? at[i + 1] : F) - at[i];
                     e++)
                    assert_true(fabs(mean[at[i] + e] - want[e]) < 1e-6);
            }
            kvm_moments_get_target(m, split, y, 2, 3, square, target);
            const double *rows = rows_of(t, v, 1, split, &n, want);
            for (int e = 0; e < 3; e++) {
                double total = 0;
                for (ptrdiff_t i = 0; i < n; i++)
                    total += pow(rows[i * P + 2 + e] - want[2 + e], 2);
                assert_true(fabs(target[e] - want[2 + e]) < 1e-6);
                assert_true(fabs(square[e] - total) < 1e-4);
            }
        }
    }
}

/* each product that is not there is named by both of its sides */
static void products_that_are_missing_are_named(void **state)
{
    (void)state;
    const kvm_space k = KVM_SPACE_K, v = KVM_SPACE_V, token = KVM_SPACE_TOKEN;
    const kvm_block_id keys[] = {{k, k}}, keys_to_values[] = {{k, v}};
    const struct {
        kvm_feature item[2];
        kvm_output y;
        const char *words[2];
    } cases[] = {
        {{{KVM_SOURCE, k, 0}, {KVM_SOURCE, v, 1}},
         {v, 1},
         {"K of source layer 0", "V of source layer 1"}},
        {{{KVM_SOURCE, k, 0}, {KVM_SOURCE, k, 1}},
         {k, 1},
         {"K of source layer 0", "K of target layer 1"}},
        {{{KVM_SOURCE, k, 1}, {KVM_TARGET, token, 0}},
         {v, 1},
         {"K of source layer 1", "token of target layer 0"}},
        {{{KVM_TARGET, token, 0}, {KVM_SOURCE, k, 1}},
         {v, 1},
         {"token of target layer 0", "token of target layer 0"}},
        /* a layer without such rows */
        {{{KVM_SOURCE, k, 0}, {KVM_SOURCE, k, 1}},
         {v, 0},
         {"K of source layer 0", "V of target layer 0"}},
    };
    const kvm_rows *s = open_rows(TMP "s.capture"), *t = open_rows(TMP "t.capture");
    kvm_moments_options o = {
        .seed = 1, .hash_a = "s", .hash_b = "t", .blocks = keys, .block_count = 1};
    sum(s, NULL, &o, TMP "gram");
    o.blocks = keys_to_values;
    sum(s, t, &o, TMP "cross");
    const kvm_moments *m = open_moments(TMP "gram", TMP "cross");
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvm_err err = {0};
        check_status(
            KVM_MISMATCH,
            kvm_moments_has(m, (kvm_features){cases[i].item, 2, -1}, cases[i].y, &err),
            &err);
        for (int w = 0; w < 2; w++) check_contains(err.msg, cases[i].words[w]);
    }
    /* and what is there is not */
    kvm_err err = {0};
    const kvm_features fine = made_features(&keep, k, (const int32_t[]){1, 0}, 2, -1);
    check_ok(kvm_moments_has(m, fine, (kvm_output){v, 1}, &err), &err);
}

/* what is kept once per prompt has no row for a token: it takes no part in moments */
static void states_have_no_moments(void **state)
{
    (void)state;
    static const kvm_block_id states[] = {{KVM_SPACE_STATE, KVM_SPACE_STATE}};
    kvm_err err = {0};
    two_space_capture("s", TMP "s.states", true);
    const kvm_rows *with = open_rows(TMP "s.states"),
                   *without = open_rows(TMP "s.capture");
    kvm_moments_options o = {.seed = 1, .hash_a = "s"};
    sum(with, NULL, &o, TMP "gram");
    sum(without, NULL, &o, TMP "gram.without");
    kvm_st *a, *b;
    check_ok(kvm_st_open(&a, &keep, KVM_STR(TMP "gram"), &err), &err);
    check_ok(kvm_st_open(&b, &keep, KVM_STR(TMP "gram.without"), &err), &err);
    assert_int_equal(kvm_st_count(a), kvm_st_count(b));
    o.blocks = states, o.block_count = 1;
    check_status(KVM_RANGE,
                 kvm_moments_gram(compute, with, &o, KVM_STR(TMP "none"), NULL, &err),
                 &err);
    check_contains(err.msg, "state");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_budget_gives_the_same_bits),
        cmocka_unit_test(shares_join_to_the_same_bits),
        cmocka_unit_test(a_share_that_is_not_whole_is_refused),
        cmocka_unit_test(a_cross_file_serves_both_directions),
        cmocka_unit_test(gathering_follows_the_order_asked_for),
        cmocka_unit_test(captures_that_are_no_pair_are_refused),
        cmocka_unit_test(features_of_several_spaces),
        cmocka_unit_test(products_that_are_missing_are_named),
        cmocka_unit_test(states_have_no_moments),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
