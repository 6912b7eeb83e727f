/* Captures of several spaces: rows of every layer's width, states that are kept once,
 * sequences put one by one or as a batch. */
#define ROWS "rows_spaces"
#include "base/file.h"
#include "tests/support/rows.h"

/* Layer 1 keeps neither keys nor values, layer 0 no latents; a token's embedding stands
 * at layer 0 alone, and a state with its window at layer 2. */
static const kvm_row_shape mixed_k[] = {{2, 4, 0}, {0}, {1, 6, 0}},
                           mixed_v[] = {{2, 3, 0}, {0}, {1, 5, 0}},
                           mixed_latent[] = {{0}, {1, 7, 0}, {0}},
                           mixed_token[] = {{1, 3, 0}, {0}, {0}},
                           mixed_state[] = {{0}, {0}, {2, 12, 3}},
                           mixed_window[] = {{0}, {0}, {6, 3, 0}};
enum { MIXED_LAYERS = 3, MIXED_TOKENS = 5 };
static const ptrdiff_t mixed_rows[] = {5, 2, 3}; /* of each sequence */

static kvm_rows_info mixed_info(kvm_dtype dtype)
{
    kvm_rows_info i = {.model = KVM_STR("mixed"),
                       .model_name = KVM_STR("mixed"),
                       .text = KVM_STR("made-up"),
                       .tokenizer = KVM_STR("none"),
                       .shapes = kvm_shapes_kv(MIXED_LAYERS, mixed_k, mixed_v),
                       .stride = 1,
                       .tokens = MIXED_TOKENS,
                       .dtype = dtype,
                       .rope = {.factor = 1}};
    i.shapes.of[KVM_SPACE_LATENT] = mixed_latent;
    i.shapes.of[KVM_SPACE_TOKEN] = mixed_token;
    i.shapes.of[KVM_SPACE_STATE] = mixed_state;
    i.shapes.of[KVM_SPACE_WINDOW] = mixed_window;
    return i;
}

/* Rows are numbers that BF16 holds; what is kept once is not, and stays F32. */
static float mixed_value(kvm_space s, ptrdiff_t layer, ptrdiff_t sequence, ptrdiff_t t,
                         ptrdiff_t i)
{
    const ptrdiff_t n = (int)s * 31 + layer * 17 + sequence * 7 + t * 3 + i;
    return kvm_space_once(s) ? 1.0F / (float)(n + 3) : (float)(n % 64) / 8;
}

typedef kvm_status put_fn(void *ctx, kvm_space s, ptrdiff_t layer, ptrdiff_t first,
                          ptrdiff_t n, const float *rows, kvm_err *err);

/* rows from .. from+n-1 of one layer; of what is kept once, all of it */
static void put_some(put_fn *put, void *ctx, kvm_space s, ptrdiff_t layer,
                     ptrdiff_t sequence, ptrdiff_t from, ptrdiff_t n)
{
    const kvm_rows_info info = mixed_info(KVM_F32);
    const ptrdiff_t w = kvm_shapes_width(&info.shapes, s, layer);
    float rows[MIXED_TOKENS * 24];
    kvm_err err = {0};
    for (ptrdiff_t t = 0; t < n; t++)
        for (ptrdiff_t i = 0; i < w; i++)
            rows[t * w + i] = mixed_value(s, layer, sequence, from + t, i);
    check_ok(put(ctx, s, layer, from, n, rows, &err), &err);
}

/* spaces and layers back to front, each in two pieces, the later one first */
static void put_mixed(put_fn *put, void *ctx, ptrdiff_t sequence)
{
    const kvm_rows_info info = mixed_info(KVM_F32);
    for (int i = KVM_SPACES - 1; i >= 0; i--)
        for (ptrdiff_t l = MIXED_LAYERS - 1; l >= 0; l--) {
            const kvm_space s = (kvm_space)i;
            const ptrdiff_t n = kvm_space_once(s) ? 1 : mixed_rows[sequence];
            if (kvm_shapes_width(&info.shapes, s, l) == 0 || kvm_space_derived(s))
                continue;
            put_some(put, ctx, s, l, sequence, n / 2, n - n / 2);
            put_some(put, ctx, s, l, sequence, 0, n / 2);
        }
}

static kvm_status put_one(void *w, kvm_space s, ptrdiff_t layer, ptrdiff_t first,
                          ptrdiff_t n, const float *rows, kvm_err *err)
{
    return kvm_rows_put(w, s, layer, first, n, rows, err);
}

typedef struct batch {
    kvm_rows_writer *w;
    ptrdiff_t i;
} batch;

static kvm_status put_in_batch(void *ctx, kvm_space s, ptrdiff_t layer, ptrdiff_t first,
                               ptrdiff_t n, const float *rows, kvm_err *err)
{
    const batch *b = ctx;
    return kvm_rows_put_in(b->w, b->i, s, layer, first, n, rows, err);
}

static const int32_t mixed_position[] = {0, 1, 2, 3, 4};

/* up to `most` more sequences; published when all are there */
static void write_mixed(const char *path, kvm_dtype dtype, ptrdiff_t most)
{
    kvm_arena own = check_arena((size_t)1 << 26);
    kvm_err err = {0};
    kvm_rows_writer *w;
    const kvm_rows_info info = mixed_info(dtype);
    check_ok(kvm_rows_create(&w, &own, kvm_str_of(path), &info, &err), &err);
    for (ptrdiff_t s = kvm_rows_done(w); s < 3 && most > 0; s++, most--) {
        put_mixed(put_one, w, s);
        check_ok(
            kvm_rows_end_sequence(w, (int32_t)s, mixed_position, mixed_rows[s], &err),
            &err);
    }
    if (most > 0) {
        check_ok(kvm_rows_publish(w, NULL, &err), &err);
    } else { /* half of the next, lost */
        put_some(put_one, w, KVM_SPACE_STATE, 2, 1, 0, 1);
        put_some(put_one, w, KVM_SPACE_K, 0, 1, 0, 1);
    }
    kvm_arena_free(&own);
}

/* what a read of one layer gives, rows or sequences in this order */
static void is_mixed(const kvm_rows *r, kvm_space s, ptrdiff_t layer)
{
    static const ptrdiff_t row_sequence[] = {0, 0, 0, 0, 0, 1, 1, 2, 2, 2},
                           row_token[] = {0, 1, 2, 3, 4, 0, 1, 0, 1, 2},
                           rows[] = {9, 0, 6}, sequences[] = {2, 0};
    const bool once = kvm_space_once(s);
    const ptrdiff_t *index = once ? sequences : rows, n = once ? 2 : 3;
    const ptrdiff_t w = kvm_shapes_width(&kvm_rows_info_of(r)->shapes, s, layer);
    float got[3 * 24];
    kvm_err err = {0};
    check_ok(kvm_rows_read(compute, r, s, layer, 1, 0, index, n, got, w, &err), &err);
    for (ptrdiff_t k = 0; k < n; k++)
        for (ptrdiff_t i = 0; i < w; i++) {
            const ptrdiff_t sequence = once ? index[k] : row_sequence[index[k]];
            const ptrdiff_t t = once ? 0 : row_token[index[k]];
            /* without a rotary, rotated keys are the keys */
            const kvm_space of = kvm_space_rows[s].stored;
            assert_true(got[k * w + i] == mixed_value(of, layer, sequence, t, i));
        }
}

static void spaces_of_several_widths(void **state)
{
    (void)state;
    const kvm_dtype dtypes[] = {KVM_F32, KVM_BF16};
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        kvm_err err = {0};
        write_mixed(TMP "mixed.safetensors", dtypes[d], 4);
        const kvm_rows *r = open_rows(TMP "mixed.safetensors");
        assert_int_equal(kvm_rows_info_of(r)->dtype, dtypes[d]);
        assert_int_equal(kvm_rows_count(r), 10);
        assert_int_equal(kvm_rows_sequences(r), 3);
        assert_int_equal(kvm_rows_shape(r, KVM_SPACE_K, 1).heads, 0);
        assert_int_equal(kvm_rows_shape(r, KVM_SPACE_INPUT, 2).heads, 0);
        assert_int_equal(kvm_rows_shape(r, KVM_SPACE_STATE, 2).keys, 3);
        const kvm_rows_info want = mixed_info(dtypes[d]);
        for (int s = 0; s < KVM_SPACES; s++)
            for (ptrdiff_t l = 0; l < MIXED_LAYERS; l++) {
                const kvm_row_shape have = kvm_rows_shape(r, (kvm_space)s, l);
                assert_int_equal(have.heads * have.dim,
                                 kvm_shapes_width(&want.shapes, (kvm_space)s, l));
                if (have.dim > 0) is_mixed(r, (kvm_space)s, l);
            }
        /* a layer without such rows takes no room between the others */
        float side[14];
        check_ok(
            kvm_rows_read(compute, r, KVM_SPACE_K, 0, 3, 6, NULL, 1, side, 14, &err),
            &err);
        for (ptrdiff_t i = 0; i < 14; i++)
            assert_true(side[i] == mixed_value(KVM_SPACE_K, i < 8 ? 0 : 2, 1, 1,
                                               i < 8 ? i : i - 8));
    }
}

static void a_killed_capture_of_states_goes_on(void **state)
{
    (void)state;
    write_mixed(TMP "m.whole", KVM_BF16, 4);
    write_mixed(TMP "m.resumed", KVM_BF16, 1);
    assert_false(kvm_path_exists(KVM_STR(TMP "m.resumed")));
    write_mixed(TMP "m.resumed", KVM_BF16, 4);
    const kvm_str whole = check_read(&keep, TMP "m.whole");
    const kvm_str resumed = check_read(&keep, TMP "m.resumed");
    assert_int_equal(whole.len, resumed.len);
    assert_memory_equal(whole.at, resumed.at, (size_t)whole.len);
}

static void a_batch_is_its_sequences(void **state)
{
    (void)state;
    kvm_err err = {0};
    batch b;
    const kvm_rows_info info = mixed_info(KVM_BF16);
    write_mixed(TMP "m.one", KVM_BF16, 4);
    check_ok(kvm_rows_create(&b.w, &keep, KVM_STR(TMP "m.batch"), &info, &err), &err);
    check_ok(kvm_rows_begin_batch(b.w, 0, 3, mixed_rows, mixed_position, &err), &err);
    for (b.i = 2; b.i >= 0; b.i--) put_mixed(put_in_batch, &b, b.i);
    check_ok(kvm_rows_end_batch(b.w, &err), &err);
    check_ok(kvm_rows_publish(b.w, NULL, &err), &err);
    const kvm_str one = check_read(&keep, TMP "m.one");
    const kvm_str many = check_read(&keep, TMP "m.batch");
    assert_int_equal(one.len, many.len);
    assert_memory_equal(one.at, many.at, (size_t)one.len);
}

/* one row for a sequence is due of what is kept once, and there is no second */
static void what_is_kept_once_comes_once(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_rows_writer *w;
    const kvm_rows_info info = mixed_info(KVM_F32);
    const float rows[2 * 24] = {0};
    check_ok(kvm_rows_create(&w, &keep, KVM_STR(TMP "m.once"), &info, &err), &err);
    check_status(KVM_RANGE, kvm_rows_put(w, KVM_SPACE_STATE, 2, 0, 2, rows, &err),
                 &err);
    err = (kvm_err){0};
    check_status(KVM_RANGE, kvm_rows_put(w, KVM_SPACE_STATE, 2, 1, 1, rows, &err),
                 &err);
    static const struct {
        kvm_space space;
        ptrdiff_t layer;
    } absent[] = {{KVM_SPACE_K, 1},
                  {KVM_SPACE_STATE, 0},
                  {KVM_SPACE_INPUT, 2},
                  {KVM_SPACE_K_ROTATED, 0},
                  {KVM_SPACE_LATENT, 3}};
    for (size_t i = 0; i < COUNT(absent); i++) {
        err = (kvm_err){0};
        check_status(
            KVM_RANGE,
            kvm_rows_put(w, absent[i].space, absent[i].layer, 0, 1, rows, &err), &err);
        check_contains(err.msg, kvm_space_name(absent[i].space));
    }
    /* all but the state */
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; l < MIXED_LAYERS; l++)
            if (kvm_shapes_width(&info.shapes, (kvm_space)s, l) > 0 &&
                !kvm_space_derived((kvm_space)s) && s != KVM_SPACE_STATE)
                put_some(put_one, w, (kvm_space)s, l, 0, 0, 1);
    err = (kvm_err){0};
    check_status(KVM_MISMATCH, kvm_rows_end_sequence(w, 0, mixed_position, 1, &err),
                 &err);
    check_contains(err.msg, "state, layer 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spaces_of_several_widths),
        cmocka_unit_test(a_killed_capture_of_states_goes_on),
        cmocka_unit_test(a_batch_is_its_sequences),
        cmocka_unit_test(what_is_kept_once_comes_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
