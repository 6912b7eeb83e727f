/* The translator file and the two public layouts: round trips and refusals. */
#include "translators/translator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define TMP "build/tmp/translator/"

static const ptrdiff_t LS = 3, LT = 2, HS = 2, DS = 4, HT = 3, DT = 2;
enum { LAYERS = 2, K = 2 };

static kvm_arena keep, scratch;

static int setup(void **state)
{
    (void)state;
    check_tmpdir("translator");
    keep = check_arena((size_t)1 << 30);
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

static float number(kvm_rng *rng)
{
    return (float)kvm_rng_below(rng, 64) / 16 - 2; /* exact in BF16 */
}

static kvm_side_info side(const char *name, ptrdiff_t layers, ptrdiff_t heads,
                          ptrdiff_t dim)
{
    kvm_row_shape *s = kvm_new(&keep, kvm_row_shape, layers);
    for (ptrdiff_t l = 0; l < layers; l++) s[l] = (kvm_row_shape){heads, dim, 0};
    const kvm_str sha =
        kvm_str_of("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    return (kvm_side_info){.fingerprint = sha,
                           .name = kvm_str_of(name),
                           .tokenizer = KVM_STR("tok"),
                           .shapes = kvm_shapes_kv(layers, s, s),
                           .rope = {.width = dim, .factor = 1},
                           .theta = 10000,
                           .rope_sha = KVM_STR("abc")};
}

static const float *numbers(kvm_rng *rng, ptrdiff_t n)
{
    float *x = kvm_new(&keep, float, n);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = number(rng);
    return x;
}

static kvm_tensor weight(kvm_rng *rng, ptrdiff_t g, ptrdiff_t out, ptrdiff_t in)
{
    kvm_tensor t = kvm_view3(NULL, KVM_F32, g, out, in);
    t.data = kvm_view2_const(numbers(rng, g * out * in), KVM_F32, 1, 1).data;
    return t;
}

/* one ridge step per object; `kinds` instead: head-matched K.0, an MLP in V.1 */
static kvm_translator sample(bool kinds)
{
    static const int32_t source[LAYERS][K] = {{2, 0}, {1, 2}};
    kvm_rng rng = kvm_rng_seed(1, kinds);
    kvm_step *s = kvm_new(&keep, kvm_step, 2 * LT);
    for (ptrdiff_t i = 0; i < 2 * LT; i++) {
        s[i] =
            (kvm_step){.mapping = kvm_mapping_same(i % 2 ? KVM_SPACE_V : KVM_SPACE_K),
                       .layer = i / 2,
                       .map = KVM_MAP_RIDGE,
                       .sources = K,
                       .source = source[i / 2],
                       .inputs = K * HS * DS,
                       .outputs = HT * DT,
                       .groups = 1,
                       .lambda = 1e-3,
                       .r2_fit = 0.5,
                       .r2_held = (double)NAN};
        s[i].weight[0] = weight(&rng, 1, HT * DT, K * HS * DS);
        s[i].bias[0] = numbers(&rng, HT * DT);
    }
    if (kinds) {
        s[0].head_matched = true;
        s[0].groups = HT;
        s[0].inputs = K * DS;
        s[0].weight[0] = weight(&rng, HT, DT, K * DS);
        s[3].map = KVM_MAP_MLP;
        s[3].groups = HT;
        s[3].hidden = 5;
        s[3].weight[0] = weight(&rng, HT, 5, K * HS * DS);
        s[3].weight[1] = weight(&rng, HT, 5, 5);
        s[3].weight[2] = weight(&rng, HT, DT, 5);
        for (int p = 0; p < 3; p++)
            s[3].bias[p] = numbers(&rng, p < 2 ? HT * 5 : HT * DT);
    }
    return (kvm_translator){.source = side("small", LS, HS, DS),
                            .target = side("large", LT, HT, DT),
                            .keys = KVM_KEYS_CONTENT,
                            .steps = s,
                            .count = 2 * LT,
                            .pair = KVM_STR("{\"name\":\"small-large\"}"),
                            .moments = KVM_STR("m")};
}

static float at(const kvm_tensor *t, ptrdiff_t i)
{
    float x;
    const char *p =
        (const char *)t->data + i * (ptrdiff_t)kvm_dtype_block_bytes(t->dtype);
    assert_int_equal(kvm_widen_row(&x, p, t->dtype, 1, NULL), KVM_OK);
    return x;
}

static void same(const kvm_translator *a, const kvm_translator *b)
{
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->keys, b->keys);
    check_str(b->source.name, a->source.name.at);
    check_str(b->target.fingerprint, a->target.fingerprint.at);
    for (ptrdiff_t i = 0; i < a->count; i++) {
        const kvm_step *s = &a->steps[i], *r = &b->steps[i];
        assert_int_equal(s->map, r->map);
        assert_int_equal(s->head_matched, r->head_matched);
        assert_int_equal(s->sources, r->sources);
        assert_memory_equal(s->source, r->source,
                            sizeof *s->source * (size_t)s->sources);
        for (int p = 0; p < (s->map == KVM_MAP_MLP ? 3 : 1); p++) {
            assert_int_equal(kvm_tensor_count(&s->weight[p]),
                             kvm_tensor_count(&r->weight[p]));
            for (ptrdiff_t k = 0; k < kvm_tensor_count(&s->weight[p]); k++)
                assert_true(at(&s->weight[p], k) == at(&r->weight[p], k));
            const ptrdiff_t n =
                s->map == KVM_MAP_MLP && p < 2 ? s->groups * s->hidden : s->outputs;
            assert_memory_equal(s->bias[p], r->bias[p], sizeof(float) * (size_t)n);
        }
    }
}

static void a_file_round_trip(void **state)
{
    (void)state;
    const kvm_dtype dtypes[] = {KVM_F32, KVM_BF16};
    for (int kinds = 0; kinds < 2; kinds++)
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            kvm_err err = {0};
            const kvm_translator t = sample(kinds);
            kvm_translator r;
            char one[65], two[65];
            check_ok(kvm_translator_write(&t, dtypes[d], KVM_STR(TMP "t.safetensors"),
                                          scratch, one, &err),
                     &err);
            check_ok(kvm_translator_open(&r, &keep, KVM_STR(TMP "t.safetensors"), &err),
                     &err);
            same(&t, &r);
            check_str(r.pair, "{\"name\":\"small-large\"}");
            check_str(r.moments, "m");
            assert_true(r.steps[1].lambda == 1e-3 && r.steps[1].r2_fit == 0.5);
            assert_true(isnan(r.steps[1].r2_held));
            assert_true(r.source.theta == 10000 && r.source.rope.width == DS);
            assert_int_equal(kvm_translator_parameters(&t),
                             kvm_translator_parameters(&r));
            check_ok(kvm_translator_write(&r, dtypes[d], KVM_STR(TMP "u.safetensors"),
                                          scratch, two, &err),
                     &err);
            assert_string_equal(one, two);
        }
}

static void layouts_a_and_b_round_trip(void **state)
{
    (void)state;
    const kvm_dtype dtypes[] = {KVM_F32, KVM_BF16};
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        kvm_err err = {0};
        const kvm_translator t = sample(false);
        kvm_translator a, b, c;
        check_ok(kvm_layout_a_write(&t, dtypes[d], KVM_STR(TMP "a"), scratch, &err),
                 &err);
        check_ok(kvm_translator_open(&a, &keep, KVM_STR(TMP "a"), &err), &err);
        same(&t, &a);
        check_ok(kvm_layout_b_write(&a, dtypes[d], KVM_STR(TMP "b"), scratch, &err),
                 &err);
        check_ok(kvm_translator_open(&b, &keep, KVM_STR(TMP "b"), &err), &err);
        same(&t, &b);
        check_ok(kvm_layout_a_write(&b, dtypes[d], KVM_STR(TMP "c"), scratch, &err),
                 &err);
        check_ok(kvm_layout_a_read(&c, &keep, KVM_STR(TMP "c"), &err), &err);
        same(&t, &c);
        const kvm_str x = check_read(&keep, TMP "a/mapper.safetensors");
        const kvm_str y = check_read(&keep, TMP "c/mapper.safetensors");
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.at, y.at, (size_t)x.len);
    }
}

static void where_an_entry_lies_in_each_layout(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_translator t = sample(false);
    check_ok(kvm_layout_a_write(&t, KVM_F32, KVM_STR(TMP "at"), scratch, &err), &err);
    check_ok(kvm_layout_b_write(&t, KVM_F32, KVM_STR(TMP "bt"), scratch, &err), &err);
    kvm_st *a, *b;
    check_ok(kvm_st_open(&a, &keep, KVM_STR(TMP "at/mapper.safetensors"), &err), &err);
    check_ok(kvm_st_open(&b, &keep, KVM_STR(TMP "bt/mapper.safetensors"), &err), &err);
    check_str(kvm_st_meta(a, KVM_STR("format")), "kvbridge");
    check_str(kvm_st_meta(a, KVM_STR("schema")), "1");
    check_str(kvm_st_meta(a, KVM_STR("storage_dtype")), "float32");
    const float *wa = kvm_st_find(a, KVM_STR("value_weight.1"))->t.data;
    const float *wb = kvm_st_find(b, KVM_STR("V.W.1"))->t.data;
    const float *w = t.steps[3].weight[0].data;
    const ptrdiff_t I = K * HS * DS, O = HT * DT;
    for (ptrdiff_t i = 0; i < I; i++)
        for (ptrdiff_t o = 0; o < O; o++) {
            assert_true(wa[(o / DT * I + i) * DT + o % DT] == w[o * I + i]);
            assert_true(wb[i * O + o] == w[o * I + i]);
        }
}

static void layouts_refuse_what_they_cannot_say(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_translator t = sample(true);
    check_status(KVM_UNSUPPORTED,
                 kvm_layout_a_write(&t, KVM_F32, KVM_STR(TMP "no"), scratch, &err),
                 &err);
    err = (kvm_err){0};
    t = sample(false);
    t.keys = KVM_KEYS_CONTENT_NOROTATE;
    check_status(KVM_UNSUPPORTED,
                 kvm_layout_a_write(&t, KVM_F32, KVM_STR(TMP "no"), scratch, &err),
                 &err);
    err = (kvm_err){0};
    kvm_translator r;
    check_ok(kvm_layout_b_write(&t, KVM_F32, KVM_STR(TMP "bn"), scratch, &err), &err);
    check_ok(kvm_layout_b_read(&r, &keep, KVM_STR(TMP "bn"), &err), &err);
    assert_int_equal(r.keys, KVM_KEYS_CONTENT_NOROTATE);
    check_status(KVM_UNSUPPORTED,
                 kvm_translator_open(&r, &keep, KVM_STR(TMP "mapper.pt"), &err), &err);
    check_contains(err.msg, "pickle");
    err = (kvm_err){0};
    check_status(KVM_NOTFOUND, kvm_translator_open(&r, &keep, KVM_STR(TMP), &err),
                 &err);
}

static void a_replaced_weight_file_is_noticed(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_translator t = sample(false);
    kvm_translator r;
    check_ok(kvm_layout_a_write(&t, KVM_F32, KVM_STR(TMP "sha"), scratch, &err), &err);
    check_ok(kvm_layout_a_write(&t, KVM_BF16, KVM_STR(TMP "sha2"), scratch, &err),
             &err);
    check_write(TMP "sha/mapper.safetensors",
                check_read(&keep, TMP "sha2/mapper.safetensors"));
    check_status(KVM_MISMATCH, kvm_layout_a_read(&r, &keep, KVM_STR(TMP "sha"), &err),
                 &err);
}

static void what_is_not_whole_is_refused(void **state)
{
    (void)state;
    static const int32_t twice[] = {1, 1}, beyond[] = {1, 3};
    for (int i = 0; i < 9; i++) {
        kvm_err err = {0};
        kvm_translator t = sample(i == 8);
        kvm_step *s = kvm_new(&keep, kvm_step, t.count);
        memcpy(s, t.steps, sizeof *s * (size_t)t.count);
        t.steps = s;
        switch (i) {
        case 0:
            t.count--;
            break;
        case 1:
            s[2].layer = 0;
            break;
        case 2:
            s[1].mapping = kvm_mapping_same(KVM_SPACE_K);
            break;
        case 3:
            s[0].source = twice;
            break;
        case 4:
            s[0].source = beyond;
            break;
        case 5:
            s[0].inputs--;
            break;
        case 6:
            s[0].bias[0] = NULL;
            break;
        case 7:
            s[0].weight[0].dim[1]--;
            break;
        default:
            s[3].groups = 2;
            break;
        }
        assert_int_not_equal(kvm_translator_check(&t, &err), KVM_OK);
        assert_int_not_equal(err.code, KVM_OK);
    }
}

static void edited_files_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_translator t = sample(false);
    check_ok(kvm_translator_write(&t, KVM_F32, KVM_STR(TMP "e.safetensors"), scratch,
                                  NULL, &err),
             &err);
    const kvm_str whole = check_read(&keep, TMP "e.safetensors");
    static const struct {
        const char *from, *to;
        kvm_status status;
    } edits[] = {
        {"\"format\":\"kvmill.translator.v2\"", "\"format\":\"kvmill.translator.v1\"",
         KVM_VERSION},
        {"\\\"layers\\\":3", "\\\"layers\\\":2", KVM_FORMAT},
        {"\\\"sources\\\":[2,0]", "\\\"sources\\\":[3,0]", KVM_FORMAT},
        {"\\\"sources\\\":[2,0]", "\\\"sources\\\":[2,2]", KVM_SHAPE},
        {"\\\"layout\\\":\\\"out,in\\\"", "\\\"layout\\\":\\\"in,out\\\"", KVM_FORMAT},
        {"\\\"map\\\":\\\"ridge\\\"", "\\\"map\\\":\\\"rigde\\\"", KVM_FORMAT},
        {"\\\"rows\\\":\\\"V\\\"", "\\\"rows\\\":\\\"W\\\"", KVM_FORMAT},
        {"\\\"factor\\\":1,", "\\\"factor\\\":0,", KVM_FORMAT},
    };
    for (size_t i = 0; i < COUNT(edits); i++) {
        kvm_translator r;
        char *copy = kvm_new(&keep, char, whole.len);
        memcpy(copy, whole.at, (size_t)whole.len);
        const ptrdiff_t place = kvm_str_find(whole, kvm_str_of(edits[i].from));
        if (place < 0) fail_msg("%s is not in the file", edits[i].from);
        memcpy(copy + place, edits[i].to, strlen(edits[i].to));
        err = (kvm_err){0};
        check_status(edits[i].status,
                     kvm_translator_parse(&r, &keep, (kvm_str){copy, whole.len},
                                          KVM_STR("edited"), &err),
                     &err);
        check_contains(err.msg, "edited");
    }
    kvm_translator r;
    for (ptrdiff_t cut = 0; cut < whole.len; cut += 97) {
        err = (kvm_err){0};
        assert_int_not_equal(kvm_translator_parse(&r, &keep, (kvm_str){whole.at, cut},
                                                  KVM_STR("cut"), &err),
                             KVM_OK);
    }
}

static void a_ridge_solution_is_turned_to_out_by_in(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_step s;
    const double w[2][6] = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}};
    const double b[2][2] = {{-1, -2}, {-3, -4}};
    const double *const weights[] = {w[0], w[1]}, *const biases[] = {b[0], b[1]};
    const int32_t source[] = {1};
    const kvm_mapping values = kvm_mapping_same(KVM_SPACE_V);
    check_ok(kvm_step_ridge(&s, &keep, &values, 1, source, 1, 2, 3, 4, weights, biases,
                            &err),
             &err);
    const float want[] = {1, 3, 5, 2, 4, 6, 7, 9, 11, 8, 10, 12};
    assert_memory_equal(s.weight[0].data, want, sizeof want);
    assert_true(s.head_matched && s.bias[0][3] == -4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_round_trip),
        cmocka_unit_test(layouts_a_and_b_round_trip),
        cmocka_unit_test(where_an_entry_lies_in_each_layout),
        cmocka_unit_test(layouts_refuse_what_they_cannot_say),
        cmocka_unit_test(a_replaced_weight_file_is_noticed),
        cmocka_unit_test(what_is_not_whole_is_refused),
        cmocka_unit_test(edited_files_are_refused),
        cmocka_unit_test(a_ridge_solution_is_turned_to_out_by_in),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
