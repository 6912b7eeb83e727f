/* Captures: written, resumed, read back, refused. */
#define ROWS "rows"
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "tests/support/captures.h"
#include "tests/support/rows.h"

/* numbers that BF16 holds exactly */
static void counted(void *ctx, int32_t s, ptrdiff_t t, float *row)
{
    const made *m = ctx;
    for (ptrdiff_t i = 0; i < made_width(m); i++)
        row[i] = (float)(((ptrdiff_t)s * 7 + t * 3 + i) % 64) / 8;
}

static made small(const char *name)
{
    return (made){.name = name,
                  .layers = 2,
                  .heads = 2,
                  .k_dim = 4,
                  .v_dim = 6,
                  .sequences = 3,
                  .tokens = 5};
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    const kvm_dtype dtypes[] = {KVM_F32, KVM_BF16};
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        made m = small("round");
        float inv_freq[2];
        m.dtype = dtypes[d];
        m.row = counted;
        m.ctx = &m;
        m.rope = made_rope(inv_freq, 4, 100, 1.5F, true);
        made_capture(&m, TMP "round.safetensors");
        kvm_rows *r = open_rows(TMP "round.safetensors");
        const kvm_rows_info *i = kvm_rows_info_of(r);
        assert_int_equal(i->dtype, dtypes[d]);
        assert_int_equal(i->shapes.layers, 2);
        assert_int_equal(i->tokens, 5);
        check_str(i->model, "round");
        assert_true(i->rope.interleaved && i->rope.width == 4 &&
                    i->rope.factor == 1.5F);
        assert_memory_equal(i->rope.inv_freq, inv_freq, sizeof inv_freq);
        assert_int_equal(kvm_rows_count(r), 15);
        assert_int_equal(kvm_rows_sequence(r)[14], 2);
        assert_int_equal(kvm_rows_position(r)[14], 4);
        float row[40], got[48];
        const ptrdiff_t index[] = {13, 1};
        kvm_err err = {0};
        check_ok(
            kvm_rows_read(compute, r, KVM_SPACE_V, 0, 2, 0, index, 2, got, 24, &err),
            &err);
        counted(&m, 2, 3, row);
        assert_memory_equal(got, row + 8, 12 * sizeof *row);
        assert_memory_equal(got + 12, row + 28, 12 * sizeof *row);
    }
}

static void rotated_rows_strip_back_to_content(void **state)
{
    (void)state;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        made m = small(interleaved ? "pairs" : "halves");
        float inv_freq[1], content[15 * 16], rotated[15 * 16];
        m.rope = made_rope(inv_freq, 2, 50, 1.25F, interleaved);
        made_capture(&m, TMP "strip.safetensors");
        kvm_rows *r = open_rows(TMP "strip.safetensors");
        kvm_err err = {0};
        check_ok(kvm_rows_read(compute, r, KVM_SPACE_K, 0, 2, 0, NULL, 15, content, 16,
                               &err),
                 &err);
        check_ok(kvm_rows_read(compute, r, KVM_SPACE_K_ROTATED, 0, 2, 0, NULL, 15,
                               rotated, 16, &err),
                 &err);
        float moved = 0;
        for (int i = 0; i < 15 * 16; i++)
            moved = fmaxf(moved, fabsf(content[i] - rotated[i]));
        assert_true(moved > 0.1F);
        /* entries beyond the rotary's width are as they were */
        assert_true(rotated[2] == content[2] && rotated[3] == content[3]);
        check_ok(kvm_op_rope(compute, kvm_view3(rotated, KVM_F32, 15, 4, 4),
                             kvm_rows_position(r), &m.rope, true, &err),
                 &err);
        for (int i = 0; i < 15 * 16; i++)
            assert_true(fabsf(content[i] - rotated[i]) < 2e-6F);
    }
}

static void a_rotary_that_scales_to_nothing_is_refused(void **state)
{
    (void)state;
    static const char *const factors[] = {"0.0", "9e9", "-1."};
    made m = small("scaled");
    float inv_freq[1];
    m.rope = made_rope(inv_freq, 2, 50, 1.5F, false);
    made_capture(&m, TMP "scaled.safetensors");
    const kvm_str whole = check_read(&keep, TMP "scaled.safetensors");
    const kvm_str key = KVM_STR("\"rope.factor\":\"1.5\"");
    const ptrdiff_t at = kvm_str_find(whole, key);
    assert_true(at > 0);
    for (size_t i = 0; i < COUNT(factors); i++) {
        kvm_err err = {0};
        kvm_rows *r;
        char *copy = kvm_new(&keep, char, whole.len);
        memcpy(copy, whole.at, (size_t)whole.len);
        memcpy(copy + at + key.len - 4, factors[i], 3);
        check_status(
            KVM_FORMAT,
            kvm_rows_parse(&r, &keep, (kvm_str){copy, whole.len}, KVM_STR("odd"), &err),
            &err);
        check_contains(err.msg, "odd: a rotary of width 2 and factor ");
    }
}

/* begin, finish one sequence, put half of the next, vanish */
static void abandon(const made *m, const char *path)
{
    kvm_arena own = check_arena((size_t)1 << 26);
    kvm_err err = {0};
    kvm_row_shape k[2] = {{2, 4, 0}, {2, 4, 0}}, v[2] = {{2, 6, 0}, {2, 6, 0}};
    const kvm_rows_info info = {.model = kvm_str_of(m->name),
                                .model_name = kvm_str_of(m->name),
                                .text = KVM_STR("made-up"),
                                .tokenizer = KVM_STR("none"),
                                .shapes = kvm_shapes_kv(2, k, v),
                                .stride = 1,
                                .tokens = 5};
    kvm_rows_writer *w;
    float row[40], part[5 * 12];
    const int32_t position[] = {0, 1, 2, 3, 4};
    check_ok(kvm_rows_create(&w, &own, kvm_str_of(path), &info, &err), &err);
    assert_int_equal(kvm_rows_done(w), 0);
    for (int o = 0; o < 4; o++) {
        const ptrdiff_t n = o % 2 ? 12 : 8, at = o / 2 * 20 + (o % 2 ? 8 : 0);
        for (int t = 0; t < 5; t++) {
            counted(m->ctx, 0, t, row);
            memcpy(part + t * n, row + at, sizeof *row * (size_t)n);
        }
        /* in two pieces, as a chunked forward hands them out */
        check_ok(kvm_rows_put(w, o % 2 ? KVM_SPACE_V : KVM_SPACE_K, o / 2, 3, 2,
                              part + 3 * n, &err),
                 &err);
        check_ok(
            kvm_rows_put(w, o % 2 ? KVM_SPACE_V : KVM_SPACE_K, o / 2, 0, 3, part, &err),
            &err);
    }
    check_ok(kvm_rows_end_sequence(w, 0, position, 5, &err), &err);
    check_ok(kvm_rows_put(w, KVM_SPACE_K, 0, 0, 2, part, &err), &err);
    check_status(KVM_MISMATCH, kvm_rows_end_sequence(w, 1, position, 2, &err), &err);
    check_contains(err.msg, "V, layer 0");
    kvm_arena_free(&own);
}

static void a_killed_capture_goes_on(void **state)
{
    (void)state;
    made m = small("resume");
    m.row = counted;
    m.ctx = &m;
    made_capture(&m, TMP "whole.safetensors");
    const kvm_str whole = check_read(&keep, TMP "whole.safetensors");
    abandon(&m, TMP "resumed.safetensors");
    /* and the last write was torn */
    FILE *f = fopen(TMP "resumed.safetensors.spool", "ab");
    assert_non_null(f);
    fputs("torn", f);
    assert_int_equal(fclose(f), 0);
    made_capture(&m, TMP "resumed.safetensors");
    const kvm_str resumed = check_read(&keep, TMP "resumed.safetensors");
    assert_int_equal(whole.len, resumed.len);
    assert_memory_equal(whole.at, resumed.at, (size_t)whole.len);
    assert_false(kvm_path_exists(KVM_STR(TMP "resumed.safetensors.spool")));
}

/* two writers, of a layer each, put it into one file: that of one writer; but not when
 * they have not the same sequences */
static void parts_of_layers_make_one_file(void **state)
{
    (void)state;
    kvm_err err = {0};
    float inv_freq[2];
    made m = small("layers");
    m.rope = made_rope(inv_freq, 4, 100, 1.5F, true);
    made_capture(&m, TMP "whole.safetensors");
    const kvm_rows *whole = open_rows(TMP "whole.safetensors");
    static const ptrdiff_t cut[] = {0, 1, 2};
    static const int32_t position[] = {0, 1, 2, 3, 4};
    kvm_rows_writer *w[2];
    float rows[2 * 6 * 5];
    for (int p = 0; p < 2; p++)
        check_ok(kvm_rows_create_layers(&w[p], &keep, KVM_STR(TMP "cut.safetensors"),
                                        kvm_rows_info_of(whole), p, 2, cut, &err),
                 &err);
    check_status(KVM_RANGE, kvm_rows_put(w[0], KVM_SPACE_K, 1, 0, 5, rows, &err), &err);
    check_contains(err.msg, "holds no K of layer 1");
    for (int32_t s = 0; s < 3; s++)
        for (int p = 1; p >= 0; p--) {
            if (p == 0 && s == 2) { /* one of them is behind */
                err = (kvm_err){0};
                check_status(KVM_MISMATCH, kvm_rows_publish(w[0], NULL, &err), &err);
                check_contains(err.msg, "cut.safetensors.layers-1-2.spool");
            }
            for (int space = 0; space < 2; space++) {
                const kvm_space of = space ? KVM_SPACE_V : KVM_SPACE_K;
                err = (kvm_err){0};
                check_ok(kvm_rows_read(compute, whole, of, p, 1, s * 5, NULL, 5, rows,
                                       space ? 12 : 8, &err),
                         &err);
                check_ok(kvm_rows_put(w[p], of, p, 0, 5, rows, &err), &err);
            }
            check_ok(kvm_rows_end_sequence(w[p], s, position, 5, &err), &err);
        }
    check_ok(kvm_rows_publish(w[0], NULL, &err), &err);
    const kvm_str one = check_read(&keep, TMP "whole.safetensors"),
                  two = check_read(&keep, TMP "cut.safetensors");
    assert_true(kvm_str_eq(one, two));
    assert_false(kvm_path_exists(KVM_STR(TMP "cut.safetensors.layers-1-2.spool")));
}

static void a_spool_of_another_capture_is_thrown_away(void **state)
{
    (void)state;
    made m = small("first"), other = small("second");
    m.row = other.row = counted;
    m.ctx = &m;
    other.ctx = &other;
    abandon(&m, TMP "other.safetensors");
    made_capture(&other, TMP "other.safetensors");
    check_str(kvm_rows_info_of(open_rows(TMP "other.safetensors"))->model, "second");
}

static void bad_rows_are_refused(void **state)
{
    (void)state;
    made m = small("bad");
    kvm_err err = {0};
    kvm_row_shape k[1] = {{2, 4, 0}};
    const kvm_rows_info info = {.model = KVM_STR("m"),
                                .model_name = KVM_STR("m"),
                                .text = KVM_STR("t"),
                                .tokenizer = KVM_STR("k"),
                                .shapes = kvm_shapes_kv(1, k, k),
                                .stride = 1,
                                .tokens = 2};
    kvm_rows_writer *w;
    float rows[16] = {0};
    check_ok(kvm_rows_create(&w, &keep, KVM_STR(TMP "bad.safetensors"), &info, &err),
             &err);
    check_status(KVM_RANGE, kvm_rows_publish(w, NULL, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_rows_put(w, KVM_SPACE_K, 0, 1, 2, rows, &err), &err);
    err = (kvm_err){0};
    rows[9] = NAN;
    check_status(KVM_NAN, kvm_rows_put(w, KVM_SPACE_K, 0, 0, 2, rows, &err), &err);
    check_contains(err.msg, "row 1");
    (void)m;
}

static void the_first_difference_of_a_pair_is_named(void **state)
{
    (void)state;
    made a = small("a"), b = small("b");
    kvm_err err = {0};
    made_capture(&a, TMP "a.safetensors");
    made_capture(&b, TMP "b.safetensors");
    check_ok(kvm_rows_same(open_rows(TMP "a.safetensors"),
                           open_rows(TMP "b.safetensors"), &err),
             &err);
    b.sequences = 4;
    made_capture(&b, TMP "b.safetensors");
    check_status(KVM_MISMATCH,
                 kvm_rows_same(open_rows(TMP "a.safetensors"),
                               open_rows(TMP "b.safetensors"), &err),
                 &err);
    check_contains(err.msg, "20");
    b.sequences = 3;
    b.tokens = 4;
    made_capture(&b, TMP "b.safetensors");
    err = (kvm_err){0};
    check_status(KVM_MISMATCH,
                 kvm_rows_same(open_rows(TMP "a.safetensors"),
                               open_rows(TMP "b.safetensors"), &err),
                 &err);
    check_contains(err.msg, "row 4");
}

static void files_of_another_kind_are_refused(void **state)
{
    (void)state;
    made m = small("kind");
    kvm_err err = {0};
    kvm_rows *r;
    made_capture(&m, TMP "kind.safetensors");
    const kvm_str whole = check_read(&keep, TMP "kind.safetensors");
    static const struct {
        const char *from, *to;
        kvm_status status;
    } edits[] = {
        {"kvmill.capture.v2", "kvmill.capture.v9", KVM_VERSION},
        {"kvmill.capture.v2", "another.thing.v12", KVM_FORMAT},
        {"\"spaces\":\"K,V\"", "\"spaces\":\"K,W\"", KVM_FORMAT},
        {"\"spaces\":\"K,V\"", "\"spaces\":\"K,K\"", KVM_FORMAT},
        {"\"heads.K\":\"2,2\"", "\"heads.K\":\"2,3\"", KVM_SHAPE},
        {"\"heads.K\":\"2,2\"", "\"heads.K\":\"2 2\"", KVM_FORMAT},
        {"\"layers\":\"2\"", "\"layers\":\"3\"", KVM_FORMAT},
    };
    for (size_t i = 0; i < COUNT(edits); i++) {
        char *copy = kvm_new(&keep, char, whole.len);
        memcpy(copy, whole.at, (size_t)whole.len);
        const ptrdiff_t at = kvm_str_find(whole, kvm_str_of(edits[i].from));
        assert_true(at > 0);
        memcpy(copy + at, edits[i].to, strlen(edits[i].to));
        err = (kvm_err){0};
        check_status(edits[i].status,
                     kvm_rows_parse(&r, &keep, (kvm_str){copy, whole.len},
                                    KVM_STR("edited"), &err),
                     &err);
        check_contains(err.msg, "edited");
    }
}

static void a_split_keeps_sequences_whole(void **state)
{
    (void)state;
    made m = small("split");
    kvm_err err = {0};
    m.sequences = 10;
    made_capture(&m, TMP "split.safetensors");
    kvm_rows *r = open_rows(TMP "split.safetensors");
    /* sequences of 5 rows: of 10, 3 are kept from the fit, 1 of them to choose on */
    static const ptrdiff_t want[KVM_SPLITS] = {35, 5, 10};
    ptrdiff_t *index, n;
    int of[10];
    memset(of, -1, sizeof of);
    for (int p = 0; p < KVM_SPLITS; p++) {
        check_ok(kvm_rows_split(r, 3, 0.3, (kvm_split)p, &keep, &index, &n, &err),
                 &err);
        assert_int_equal(n, want[p]);
        for (ptrdiff_t i = 0; i < n; i++) {
            int *seen = &of[index[i] / 5];
            assert_true(*seen == -1 || *seen == p);
            *seen = p;
        }
    }
    check_status(KVM_RANGE, kvm_rows_split(r, 3, 1.0, KVM_FIT, &keep, &index, &n, &err),
                 &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(rotated_rows_strip_back_to_content),
        cmocka_unit_test(a_rotary_that_scales_to_nothing_is_refused),
        cmocka_unit_test(a_killed_capture_goes_on),
        cmocka_unit_test(parts_of_layers_make_one_file),
        cmocka_unit_test(a_spool_of_another_capture_is_thrown_away),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(the_first_difference_of_a_pair_is_named),
        cmocka_unit_test(files_of_another_kind_are_refused),
        cmocka_unit_test(a_split_keeps_sequences_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
