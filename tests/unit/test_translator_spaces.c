/* The translator file of models that keep more than keys and values: exact rows, token
 * identity, indexers, states. Its other half is test_translator.c. */
#include <math.h>
#include <string.h>

#include "models/safetensors.h"
#include "tests/support/check.h"
#include "translators/translator.h"

#define TMP "build/tmp/translator_spaces/"

static kvm_arena keep, scratch;

static int setup(void **state)
{
    (void)state;
    check_tmpdir("translator_spaces");
    keep = check_arena((size_t)1 << 28);
    scratch = check_arena((size_t)1 << 26);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
    return 0;
}

/* ---- a translator of everything ---- */

enum {
    HEADS = 2,
    K = 4,
    V = 6,
    CHANNELS = 28,
    COLUMNS = 3,
    BLOCK = 2,
    STEPS = 4,
    STATES = 3
};

#define STATE                                                                          \
    {                                                                                  \
        HEADS, K *V, K                                                                 \
    }
#define WINDOW                                                                         \
    {                                                                                  \
        CHANNELS, COLUMNS, 0                                                           \
    }

static kvm_side_info source_side(void)
{
    static const kvm_row_shape latent[] = {{1, 7, 0}, {1, 5, 0}, {0}},
                               states[] = {{0}, {0}, STATE},
                               window[] = {{0}, {0}, WINDOW};
    kvm_side_info s = {.fingerprint = KVM_STR("aa"),
                       .name = KVM_STR("from"),
                       .tokenizer = KVM_STR("tok"),
                       .shapes = {.layers = 3},
                       .rope = {.factor = 1},
                       .rope_sha = KVM_STR("")};
    s.shapes.of[KVM_SPACE_LATENT] = latent;
    s.shapes.of[KVM_SPACE_STATE] = states;
    s.shapes.of[KVM_SPACE_WINDOW] = window;
    return s;
}

/* latents that are exact; latents with an indexer; states corrected, replayed, copied
 * and empty */
static kvm_side_info target_side(void)
{
    static const kvm_row_shape latent[] = {{1, 6, 0}, {1, 6, 0}, {0}, {0}, {0}, {0}},
                               index[] = {{0}, {1, 3, 0}, {0}, {0}, {0}, {0}},
                               token[] = {{1, 4, 0}, {0}, {0}, {0}, {0}, {0}},
                               states[] = {{0}, {0}, STATE, STATE, STATE, STATE},
                               window[] = {{0}, {0}, WINDOW, WINDOW, WINDOW, WINDOW},
                               input[] = {{0},       {0},       {1, 8, 0},
                                          {1, 8, 0}, {1, 8, 0}, {1, 8, 0}};
    kvm_side_info s = {.fingerprint = KVM_STR("bb"),
                       .name = KVM_STR("to"),
                       .tokenizer = KVM_STR("tok"),
                       .shapes = {.layers = 6},
                       .rope = {.factor = 1},
                       .rope_sha = KVM_STR("")};
    s.shapes.of[KVM_SPACE_LATENT] = latent;
    s.shapes.of[KVM_SPACE_INDEX] = index;
    s.shapes.of[KVM_SPACE_TOKEN] = token;
    s.shapes.of[KVM_SPACE_STATE] = states;
    s.shapes.of[KVM_SPACE_WINDOW] = window;
    s.shapes.of[KVM_SPACE_INPUT] = input;
    return s;
}

static float *numbers(kvm_rng *rng, ptrdiff_t n)
{
    float *x = kvm_new(&keep, float, n);
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = (float)kvm_rng_below(rng, 64) / 16 - 2; /* exact in BF16 */
    return x;
}

static kvm_step ridge(kvm_rng *rng, kvm_space out, kvm_side side, kvm_space from,
                      ptrdiff_t layer, const int32_t *source, ptrdiff_t sources,
                      ptrdiff_t inputs, ptrdiff_t outputs)
{
    return (kvm_step){
        .mapping = {.out = out, .side = side, .from = {from, from}, .token = true},
        .layer = layer,
        .map = KVM_MAP_RIDGE,
        .sources = sources,
        .source = source,
        .inputs = inputs,
        .outputs = outputs,
        .groups = 1,
        .weight = {kvm_view3(numbers(rng, outputs * inputs), KVM_F32, 1, outputs,
                             inputs)},
        .bias = {numbers(rng, outputs)},
        .lambda = 1e-2,
        .r2_fit = 0.75,
        .r2_held = 0.5};
}

static kvm_translator sample(void)
{
    static const int32_t both[] = {1, 0}, first[] = {0};
    kvm_rng rng = kvm_rng_seed(4, 1);
    kvm_step *s = kvm_new(&keep, kvm_step, STEPS);
    kvm_state_step *z = kvm_new(&keep, kvm_state_step, STATES);
    s[0] = (kvm_step){.mapping = {.out = KVM_SPACE_LATENT}, .map = KVM_MAP_EXACT};
    /* token 4, latents 5 and 7 */
    s[1] =
        ridge(&rng, KVM_SPACE_LATENT, KVM_SOURCE, KVM_SPACE_LATENT, 1, both, 2, 16, 6);
    /* token 4, the layer's latents 6 */
    s[2] =
        ridge(&rng, KVM_SPACE_INDEX, KVM_TARGET, KVM_SPACE_LATENT, 1, NULL, 0, 10, 3);
    s[3] =
        ridge(&rng, KVM_SPACE_INPUT, KVM_SOURCE, KVM_SPACE_LATENT, 3, first, 1, 11, 8);
    z[0] = (kvm_state_step){
        .layer = 2,
        .map = KVM_STATE_BILINEAR,
        .source = 2,
        .left = kvm_view3(numbers(&rng, HEADS * K * K), KVM_F32, HEADS, K, K),
        .right = kvm_view3(numbers(&rng, HEADS * V * V), KVM_F32, HEADS, V, V),
        .window = kvm_view3(numbers(&rng, CHANNELS * BLOCK), KVM_F32, CHANNELS / BLOCK,
                            BLOCK, BLOCK),
        .bias = numbers(&rng, CHANNELS),
        .r2_held = 0.25,
        .r2_window_held = (double)NAN};
    z[1] = (kvm_state_step){.layer = 4, .map = KVM_STATE_COPY, .source = 2};
    z[2] = (kvm_state_step){.layer = 5, .map = KVM_STATE_ZERO};
    return (kvm_translator){.source = source_side(),
                            .target = target_side(),
                            .keys = KVM_KEYS_CONTENT,
                            .token = KVM_TOKEN_GIVEN,
                            .steps = s,
                            .count = STEPS,
                            .states = z,
                            .state_count = STATES,
                            .pair = KVM_STR(""),
                            .moments = KVM_STR("m")};
}

/* ---- round trip ---- */

static float at(const kvm_tensor *t, ptrdiff_t i)
{
    float x;
    const char *p =
        (const char *)t->data + i * (ptrdiff_t)kvm_dtype_block_bytes(t->dtype);
    assert_int_equal(kvm_widen_row(&x, p, t->dtype, 1, NULL), KVM_OK);
    return x;
}

static void same_tensor(const kvm_tensor *a, const kvm_tensor *b)
{
    assert_int_equal(a->rank, b->rank);
    for (int d = 0; d < a->rank; d++) assert_int_equal(a->dim[d], b->dim[d]);
    for (ptrdiff_t i = 0; i < kvm_tensor_count(a); i++)
        assert_true(at(a, i) == at(b, i));
}

static void same_step(const kvm_step *a, const kvm_step *b)
{
    assert_int_equal(a->map, b->map);
    assert_int_equal(a->layer, b->layer);
    assert_int_equal(a->mapping.out, b->mapping.out);
    assert_int_equal(a->sources, b->sources);
    if (a->map == KVM_MAP_EXACT) return;
    assert_int_equal(a->mapping.side, b->mapping.side);
    assert_int_equal(a->mapping.token, b->mapping.token);
    for (int i = 0; i < 2; i++)
        assert_int_equal(a->mapping.from[i], b->mapping.from[i]);
    for (ptrdiff_t i = 0; i < a->sources; i++)
        assert_int_equal(a->source[i], b->source[i]);
    assert_int_equal(a->inputs, b->inputs);
    same_tensor(&a->weight[0], &b->weight[0]);
    assert_memory_equal(a->bias[0], b->bias[0], sizeof(float) * (size_t)a->outputs);
    assert_true(a->lambda == b->lambda && a->r2_held == b->r2_held);
}

static void all_of_it_comes_back(void **state)
{
    (void)state;
    const kvm_dtype dtypes[] = {KVM_F32, KVM_BF16};
    const kvm_translator t = sample();
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        kvm_err err = {0};
        kvm_translator r;
        char one[65], two[65];
        check_ok(
            kvm_translator_write(&t, dtypes[d], KVM_STR(TMP "t"), scratch, one, &err),
            &err);
        check_ok(kvm_translator_read(&r, &keep, KVM_STR(TMP "t"), &err), &err);
        assert_int_equal(r.count, STEPS);
        assert_int_equal(r.state_count, STATES);
        assert_int_equal(r.token, KVM_TOKEN_GIVEN);
        for (int i = 0; i < STEPS; i++) same_step(&t.steps[i], &r.steps[i]);
        for (int i = 0; i < STATES; i++) {
            assert_int_equal(r.states[i].layer, t.states[i].layer);
            assert_int_equal(r.states[i].map, t.states[i].map);
            assert_int_equal(r.states[i].source, t.states[i].source);
        }
        const kvm_state_step *s = &r.states[0], *want = &t.states[0];
        assert_int_equal(s->left.dtype, KVM_F32); /* whatever the weights are */
        same_tensor(&s->left, &want->left);
        same_tensor(&s->right, &want->right);
        same_tensor(&s->window, &want->window);
        assert_memory_equal(s->bias, want->bias, sizeof(float) * CHANNELS);
        assert_true(s->r2_held == 0.25 && isnan(s->r2_window_held));
        assert_int_equal(kvm_translator_parameters(&t), kvm_translator_parameters(&r));
        /* 16*6 + 6, 10*3 + 3, 11*8 + 8; A, B, W and b */
        assert_int_equal(kvm_translator_parameters(&t), 231 + 32 + 72 + 56 + 28);
        const kvm_shapes *shapes = &r.target.shapes;
        assert_int_equal(shapes->of[KVM_SPACE_STATE][2].keys, K);
        assert_int_equal(kvm_shapes_width(shapes, KVM_SPACE_TOKEN, 0), 4);
        assert_null(shapes->of[KVM_SPACE_K]);
        check_ok(
            kvm_translator_write(&r, dtypes[d], KVM_STR(TMP "u"), scratch, two, &err),
            &err);
        assert_string_equal(one, two);
    }
}

/* ---- refusals ---- */

static void what_is_not_whole_is_refused(void **state)
{
    (void)state;
    static const struct {
        kvm_status status;
        const char *word;
    } want[] = {
        {KVM_MISMATCH, "state of target layer 5 is made by no step"},
        {KVM_MISMATCH, "state of target layer 3 is made by two steps"},
        {KVM_MISMATCH, "latent of target layer 1 is made by no step"},
        {KVM_MISMATCH, "first layer alone"},
        {KVM_MISMATCH, "none are told"},
        {KVM_MISMATCH, "none are told"},
        {KVM_SHAPE, "do not fit"},
        {KVM_SHAPE, "do not fit"},
        {KVM_MISMATCH, "replay"},
        {KVM_MISMATCH, "out of order"},
        {KVM_MISMATCH, "keeps no state"},
        {KVM_MISMATCH, "no recipe reads"},
        {KVM_SHAPE, "reads source layer 2"},
        {KVM_SHAPE, "reads 1 of 3 source layers"},
    };
    for (size_t i = 0; i < COUNT(want); i++) {
        kvm_err err = {0};
        kvm_translator t = sample();
        kvm_step s[STEPS];
        kvm_state_step z[STATES];
        static const int32_t recurrent[] = {2}, some[] = {0};
        memcpy(s, t.steps, sizeof s);
        memcpy(z, t.states, sizeof z);
        t.steps = s;
        t.states = z;
        switch (i) {
        case 0:
            t.state_count--;
            break;
        case 1:
            z[1].layer = 3;
            break;
        case 2: /* and its index keys have nothing to be read from */
            s[1] = s[3];
            t.count = 2;
            break;
        case 3:
            s[1] = s[0];
            s[1].layer = 1;
            break;
        case 4:
            t.token = KVM_TOKEN_NONE;
            break;
        case 5:
            t.target.shapes.of[KVM_SPACE_TOKEN] = NULL;
            break;
        case 6:
            z[0].right.dim[1]--;
            break;
        case 7:
            z[0].bias = NULL;
            break;
        case 8:
            z[0].source = 1;
            break;
        case 9:
            z[1].layer = 2;
            break;
        case 10:
            z[2].layer = 1;
            break;
        case 11:
            s[1].mapping.from[1] = KVM_SPACE_V;
            break;
        case 12:
            s[3].source = recurrent;
            break;
        default:
            s[2].sources = 1;
            s[2].source = some;
            break;
        }
        if (i == 10) z[2] = z[1], z[1] = z[0], z[1].layer = 3, z[0].layer = 1;
        check_status(want[i].status, kvm_translator_check(&t, &err), &err);
        check_contains(err.msg, want[i].word);
    }
}

/* the file with the first of `from` replaced by `to`, which is as long */
static kvm_str edited(kvm_str whole, const char *from, const char *to)
{
    char *copy = kvm_new(&keep, char, whole.len);
    memcpy(copy, whole.at, (size_t)whole.len);
    const ptrdiff_t place = kvm_str_find(whole, kvm_str_of(from));
    if (place < 0) fail_msg("%s is not in the file", from);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(copy + place, to, strlen(to));
    return (kvm_str){copy, whole.len};
}

/* ---- index keys that are left out ---- */

static kvm_translator dense_sample(void)
{
    kvm_translator t = sample();
    kvm_step *s = kvm_new(&keep, kvm_step, STEPS - 1);
    memcpy(s, t.steps, 2 * sizeof *s);
    s[2] = t.steps[3]; /* without those of the indexer */
    t.steps = s;
    t.count = STEPS - 1;
    t.dense = true;
    return t;
}

/* the file says so, in a version of its own; one that predicts them is the older one */
static void left_out_is_said(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_translator r;
    const kvm_translator t = dense_sample(), whole = sample();
    check_ok(kvm_translator_write(&t, KVM_F32, KVM_STR(TMP "d"), scratch, NULL, &err),
             &err);
    check_ok(kvm_translator_read(&r, &keep, KVM_STR(TMP "d"), &err), &err);
    assert_true(r.dense);
    assert_int_equal(r.count, STEPS - 1);
    const kvm_str file = check_read(&keep, TMP "d");
    assert_true(kvm_str_find(file, KVM_STR("\"kvmill.translator.v3\"")) > 0);
    assert_true(kvm_str_find(file, KVM_STR("\\\"indexers\\\":\\\"dense\\\"")) > 0);
    check_ok(
        kvm_translator_write(&whole, KVM_F32, KVM_STR(TMP "w"), scratch, NULL, &err),
        &err);
    const kvm_str plain = check_read(&keep, TMP "w");
    assert_true(kvm_str_find(plain, KVM_STR("\"kvmill.translator.v2\"")) > 0);
    assert_true(kvm_str_find(plain, KVM_STR("indexers")) < 0);
    static const struct {
        const char *from, *to;
        kvm_status status;
        bool of_plain;
    } edits[] = {
        {"\"kvmill.translator.v3\"", "\"kvmill.translator.v4\"", KVM_VERSION, false},
        {"\"kvmill.translator.v3\"", "\"kvmill.translator.v2\"", KVM_FORMAT, false},
        {"\"kvmill.translator.v2\"", "\"kvmill.translator.v3\"", KVM_FORMAT, true},
        {"\\\"indexers\\\":\\\"dense\\\"", "\\\"indexers\\\":\\\"dance\\\"", KVM_FORMAT,
         false},
        {"\\\"indexers\\\":\\\"dense\\\"", "\\\"indexer_\\\":\\\"dense\\\"", KVM_FORMAT,
         false},
    };
    for (size_t i = 0; i < COUNT(edits); i++) {
        err = (kvm_err){0};
        check_status(edits[i].status,
                     kvm_translator_parse(&r, &keep,
                                          edited(edits[i].of_plain ? plain : file,
                                                 edits[i].from, edits[i].to),
                                          KVM_STR("edited"), &err),
                     &err);
        check_contains(err.msg, "edited");
    }
}

static void left_out_or_made(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_translator t = sample();
    t.dense = true;
    check_status(KVM_MISMATCH, kvm_translator_check(&t, &err), &err);
    check_contains(err.msg, "makes those of target layer 1");
    err = (kvm_err){0};
    t = dense_sample();
    check_ok(kvm_translator_check(&t, &err), &err);
    t.target.shapes.of[KVM_SPACE_INDEX] = NULL;
    check_status(KVM_MISMATCH, kvm_translator_check(&t, &err), &err);
    check_contains(err.msg, "the target has none");
    err = (kvm_err){0};
    t = dense_sample();
    t.dense = false;
    check_status(KVM_MISMATCH, kvm_translator_check(&t, &err), &err);
    check_contains(err.msg, "index key of target layer 1 is made by no step");
}

static void edited_states_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_translator t = sample();
    check_ok(kvm_translator_write(&t, KVM_BF16, KVM_STR(TMP "e"), scratch, NULL, &err),
             &err);
    const kvm_str whole = check_read(&keep, TMP "e");
    static const struct {
        const char *from, *to;
        kvm_status status;
    } edits[] = {
        {"\\\"map\\\":\\\"bilinear\\\"", "\\\"map\\\":\\\"bilinaer\\\"", KVM_FORMAT},
        {"\\\"map\\\":\\\"copy\\\"", "\\\"map\\\":\\\"zero\\\"", KVM_OK},
        {"\\\"map\\\":\\\"exact\\\"", "\\\"map\\\":\\\"ridge\\\"", KVM_FORMAT},
        {"\\\"token\\\":\\\"given\\\"", "\\\"token\\\":\\\"taken\\\"", KVM_FORMAT},
        {"\\\"side\\\":\\\"target\\\"", "\\\"side\\\":\\\"source\\\"", KVM_SHAPE},
        {"\"state.2.left\"", "\"state.2.lift\"", KVM_NOTFOUND},
        {"\"window.2.bias\"", "\"window.1.bias\"", KVM_NOTFOUND},
        {"[2,6,6]", "[6,6,2]", KVM_SHAPE},
        {"[14,2,2]", "[2,14,2]", KVM_SHAPE},
        /* a geometry that the source has not */
        {"\\\"keys\\\":[0,0,4,4,4,4]", "\\\"keys\\\":[0,0,6,4,4,4]", KVM_MISMATCH},
        {"\\\"keys\\\":[0,0,4,4,4,4]", "\\\"keys\\\":[0,0,5,4,4,4]", KVM_FORMAT},
    };
    for (size_t i = 0; i < COUNT(edits); i++) {
        kvm_translator r;
        err = (kvm_err){0};
        check_status(edits[i].status,
                     kvm_translator_parse(&r, &keep,
                                          edited(whole, edits[i].from, edits[i].to),
                                          KVM_STR("edited"), &err),
                     &err);
        if (edits[i].status) check_contains(err.msg, "edited");
    }
}

/* every number of a state's map has to be finite */
static void states_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"state.2.left", "state.2.right",
                                        "window.2.weight", "window.2.bias"};
    kvm_err err = {0};
    const kvm_translator t = sample();
    check_ok(kvm_translator_write(&t, KVM_F32, KVM_STR(TMP "n"), scratch, NULL, &err),
             &err);
    for (size_t i = 0; i < COUNT(names); i++) {
        kvm_st *st;
        kvm_translator r;
        const kvm_str whole = check_read(&keep, TMP "n");
        err = (kvm_err){0};
        check_ok(kvm_st_parse(&st, &keep, whole, KVM_STR("n"), &err), &err);
        const kvm_st_tensor *x = kvm_st_find(st, kvm_str_of(names[i]));
        assert_non_null(x);
        const kvm_str bytes = {x->t.data, (ptrdiff_t)x->bytes};
        const ptrdiff_t place = kvm_str_find(whole, bytes);
        assert_true(place > 0);
        const float bad = INFINITY;
        char *copy = kvm_new(&keep, char, whole.len);
        memcpy(copy, whole.at, (size_t)whole.len);
        memcpy(copy + place + bytes.len - sizeof bad, &bad, sizeof bad);
        check_status(KVM_NAN,
                     kvm_translator_parse(&r, &keep, (kvm_str){copy, whole.len},
                                          KVM_STR("n"), &err),
                     &err);
        check_contains(err.msg, names[i]);
    }
}

/* the public layouts have no words for any of it */
static void public_layouts_refuse_it(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_translator t = sample();
    check_status(KVM_UNSUPPORTED,
                 kvm_layout_a_write(&t, KVM_F32, KVM_STR(TMP "a"), scratch, &err),
                 &err);
    err = (kvm_err){0};
    check_status(KVM_UNSUPPORTED,
                 kvm_layout_b_write(&t, KVM_F32, KVM_STR(TMP "b"), scratch, &err),
                 &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it_comes_back),
        cmocka_unit_test(what_is_not_whole_is_refused),
        cmocka_unit_test(left_out_is_said),
        cmocka_unit_test(left_out_or_made),
        cmocka_unit_test(edited_states_are_refused),
        cmocka_unit_test(states_that_are_not_finite_are_refused),
        cmocka_unit_test(public_layouts_refuse_it),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
