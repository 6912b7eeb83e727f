/* Rows of spaces out of what a forward hands over object by object, and those kept. */
#include "translators/gather.h"

#include <string.h>

#include "tests/support/caches.h"
#include "tests/support/check.h"

#define MODELS "tests/golden/models/"

enum { TOKENS = 20, CHUNK = 7, VOCAB = 97, POINTS = 4 };

static kvm_arena keep;
static kvm_compute *compute;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)8 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
        &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static const int32_t *some_ids(void)
{
    static int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 31 + 7) % VOCAB;
    return ids;
}

/* a forward in chunks into a new cache */
static kvm_cache *prefill(kvm_model *m, kvm_capture sink, kvm_err *err)
{
    kvm_cache *c;
    kvm_err none = {0};
    const kvm_forward_options o = {.chunk = CHUNK, .capture = &sink};
    check_ok(kvm_cache_new(&c, &keep, m, 64, &none), &none);
    const kvm_status s = kvm_model_forward(m, c, some_ids(), TOKENS, &o, err);
    assert_int_equal(s, err->code);
    return c;
}

/* ---- what a forward hands over, written down ---- */

typedef struct record {
    float *rows; /* (TOKENS, width); of what is kept once: the last one */
    ptrdiff_t width, tokens;
} record;
typedef struct tape {
    const kvm_model *m;
    record of[128][POINTS];
} tape;

static ptrdiff_t width_at(const kvm_object *o, int point)
{
    if (!kvm_object_per_prompt(o) || point == KVM_POINT_ENGINE)
        return o->heads * o->dim;
    return point == KVM_POINT_RAW ? o->replay : o->inputs;
}

static kvm_status write_down(void *ctx, ptrdiff_t object, int point, ptrdiff_t first,
                             ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    tape *t = ctx;
    record *r = &t->of[object][point];
    const kvm_object *o = kvm_model_object(t->m, object);
    r->width = width_at(o, point);
    if (!r->rows) r->rows = kvm_new(&keep, float, TOKENS * r->width);
    const bool once = kvm_object_per_prompt(o) && point == KVM_POINT_ENGINE;
    memcpy(r->rows + (once ? 0 : first * r->width), rows,
           sizeof *rows * (size_t)(n * r->width));
    r->tokens = once ? first : first + n;
    return KVM_OK;
}

static tape *record_forward(kvm_model *m)
{
    kvm_err err = {0};
    tape *t = kvm_new(&keep, tape, 1);
    t->m = m;
    assert_true(kvm_model_info_of(m)->objects <= (ptrdiff_t)COUNT(t->of));
    prefill(m, (kvm_capture){.rows = write_down, .points = 14, .ctx = t}, &err);
    check_ok(err.code, &err);
    return t;
}

/* row t of a layer: the parts of its objects side by side */
static ptrdiff_t expected_row(const tape *made, kvm_space s, ptrdiff_t layer,
                              ptrdiff_t t, float *out)
{
    ptrdiff_t at = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(made->m)->objects; i++) {
        const kvm_object *o = kvm_model_object(made->m, i);
        const kvm_space_row *row = &kvm_space_rows[s];
        if (o->layer != layer || (o->kind != row->object && o->kind != row->other))
            continue;
        const record *r = &made->of[i][row->point];
        if (!r->rows) continue;
        assert_int_equal(r->tokens, TOKENS);
        memcpy(out + at, r->rows + t * r->width, sizeof *out * (size_t)r->width);
        at += r->width;
    }
    return at;
}

/* ---- gathered ---- */

typedef struct gathered {
    const tape *want;
    const kvm_shapes *shapes;
    ptrdiff_t next[KVM_SPACES][64]; /* token that is due */
    ptrdiff_t rows;
} gathered;

static kvm_status compare(void *ctx, kvm_space space, ptrdiff_t layer, ptrdiff_t first,
                          ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)err;
    gathered *g = ctx;
    const ptrdiff_t width = kvm_shapes_width(g->shapes, space, layer);
    ptrdiff_t *next = &g->next[space][layer];
    float want[16384];
    assert_true(width > 0 && width <= (ptrdiff_t)COUNT(want));
    if (kvm_space_once(space)) { /* after each chunk; the last is the whole prompt's */
        assert_int_equal(n, 1);
        assert_true(first > *next);
        *next = first;
        if (first < TOKENS) return KVM_OK;
    } else {
        assert_int_equal(first, *next);
        *next += n;
    }
    for (ptrdiff_t t = 0; t < n; t++) {
        const ptrdiff_t at = kvm_space_once(space) ? 0 : first + t;
        assert_int_equal(expected_row(g->want, space, layer, at, want), width);
        assert_memory_equal(rows + t * width, want, sizeof *want * (size_t)width);
    }
    g->rows += n;
    return KVM_OK;
}

static const char *const models[] = {
    MODELS "qwen3",      MODELS "deepseek_v3", MODELS "deepseek_v32",
    MODELS "glm5_next",  MODELS "glm_moe_dsa", MODELS "kimi_linear",
    MODELS "nemotron_h", MODELS "qwen3_5",     MODELS "qwen4_exp",
    "tests/zoo/gdn-a",   "tests/zoo/kda"};

/* every space of every kind of layer, in pieces of a chunk: whole rows, in order */
static void rows_are_the_parts_side_by_side(void **state)
{
    (void)state;
    unsigned seen = 0;
    for (size_t i = 0; i < COUNT(models); i++) {
        kvm_err err = {0};
        kvm_model *m = open_model(&keep, compute, models[i]);
        const tape *t = record_forward(m);
        kvm_shapes shapes;
        kvm_gather *g;
        check_ok(kvm_rows_shapes(&shapes, &keep, m, &err), &err);
        assert_true(shapes.layers <= 64);
        gathered got = {.want = t, .shapes = &shapes};
        kvm_spaces which = 0;
        for (int s = 0; s < KVM_SPACES; s++)
            if (shapes.of[s] && !kvm_space_derived((kvm_space)s) &&
                s != KVM_SPACE_TOKEN)
                which |= 1U << s;
        check_ok(kvm_gather_new(&g, &keep, m, which, CHUNK, compare, &got, &err), &err);
        prefill(m, kvm_gather_capture(g), &err);
        check_ok(err.code, &err);
        for (int s = 0; s < KVM_SPACES; s++)
            for (ptrdiff_t l = 0; which >> s & 1 && l < shapes.layers; l++)
                if (kvm_shapes_width(&shapes, (kvm_space)s, l) > 0)
                    assert_int_equal(got.next[s][l], TOKENS);
        assert_true(got.rows > 0);
        seen |= which;
    }
    /* all spaces but the derived one and the token were there */
    assert_int_equal(seen, ((1U << KVM_SPACES) - 1) & ~(1U << KVM_SPACE_K_ROTATED) &
                               ~(1U << KVM_SPACE_TOKEN));
}

static kvm_status nothing(void *ctx, kvm_space space, ptrdiff_t layer, ptrdiff_t first,
                          ptrdiff_t n, const float *rows, kvm_err *err)
{
    (void)ctx, (void)space, (void)layer, (void)first, (void)n, (void)rows, (void)err;
    return KVM_OK;
}

static void parts_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_gather *g;
    const kvm_model *m = open_model(&keep, compute, MODELS "deepseek_v3");
    check_ok(
        kvm_gather_new(&g, &keep, m, 1U << KVM_SPACE_LATENT, 4, nothing, NULL, &err),
        &err);
    const kvm_capture c = kvm_gather_capture(g);
    const ptrdiff_t latent = kvm_model_find_object(m, KVM_OBJECT_LATENT, 0);
    const ptrdiff_t rotary = kvm_model_find_object(m, KVM_OBJECT_ROTARY_KEY, 0);
    const float rows[4 * 512] = {0};
    check_ok(c.rows(c.ctx, latent, 1, 0, 4, rows, &err), &err);
    check_status(KVM_MISMATCH, c.rows(c.ctx, rotary, 1, 2, 4, rows, &err), &err);
    check_contains(err.msg, "other tokens");
    err = (kvm_err){0};
    check_status(KVM_RANGE, c.rows(c.ctx, latent, 1, 0, 5, rows, &err), &err);
    check_contains(err.msg, "at most 4");
}

/* ---- kept ---- */

static void what_is_taken_is_there_afterwards(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_taken *taken;
    kvm_model *m = open_model(&keep, compute, MODELS "kimi_linear");
    const tape *t = record_forward(m);
    kvm_shapes shapes;
    const kvm_spaces which = 1U << KVM_SPACE_LATENT | 1U << KVM_SPACE_INPUT;
    check_ok(kvm_rows_shapes(&shapes, &keep, m, &err), &err);
    check_ok(kvm_taken_new(&taken, &keep, m, which, TOKENS, &err), &err);
    prefill(m, kvm_taken_capture(taken), &err);
    check_ok(err.code, &err);
    ptrdiff_t layers = 0;
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; l < shapes.layers; l++) {
            const float *rows = kvm_taken_rows(taken, (kvm_space)s, l);
            const ptrdiff_t width = kvm_shapes_width(&shapes, (kvm_space)s, l);
            assert_true((rows != NULL) == (width > 0 && which >> s & 1));
            float want[16384];
            layers += rows != NULL;
            for (ptrdiff_t i = 0; rows && i < TOKENS; i++) {
                expected_row(t, (kvm_space)s, l, i, want);
                assert_memory_equal(rows + i * width, want,
                                    sizeof *want * (size_t)width);
            }
        }
    assert_int_equal(layers, 4); /* three of KDA, one of latents */
    assert_true(kvm_taken_seconds(taken) > 0);
}

static void more_than_there_is_room_for_is_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_taken *taken;
    kvm_model *m = open_model(&keep, compute, MODELS "deepseek_v3");
    check_ok(kvm_taken_new(&taken, &keep, m, 1U << KVM_SPACE_LATENT, TOKENS - 1, &err),
             &err);
    prefill(m, kvm_taken_capture(taken), &err);
    check_status(KVM_RANGE, err.code, &err);
    check_contains(err.msg, "19 rows");
}

/* of which tokens rows are there: the last run of pieces, as far as nothing was cut */
static void pieces_are_known(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_taken *taken;
    kvm_model *m = open_model(&keep, compute, MODELS "deepseek_v3");
    enum { WIDTH = 256 };
    const kvm_space s = KVM_SPACE_LATENT;
    static const float rows[TOKENS * WIDTH];
    static const struct {
        ptrdiff_t first, n, from, end; /* a piece comes; what is there then */
    } pieces[] = {{0, 3, 0, 3},  {3, 1, 0, 4},   {4, 6, 0, 10},  {5, 2, 0, 7},
                  {9, 4, 9, 13}, {13, 7, 9, 20}, {11, 1, 9, 12}, {2, 9, 2, 11}};
    check_ok(kvm_taken_new(&taken, &keep, m, 1U << s, TOKENS, &err), &err);
    assert_false(kvm_taken_has(taken, s, 1, 0, 1));
    for (size_t i = 0; i < COUNT(pieces); i++) {
        const ptrdiff_t from = pieces[i].from, end = pieces[i].end;
        check_ok(
            kvm_taken_put(taken, s, 1, pieces[i].first, pieces[i].n, rows, WIDTH, &err),
            &err);
        assert_true(kvm_taken_has(taken, s, 1, from, end - from));
        assert_false(kvm_taken_has(taken, s, 1, from, end - from + 1));
        assert_false(from > 0 && kvm_taken_has(taken, s, 1, from - 1, 2));
        assert_false(kvm_taken_has(taken, s, 0, from, 1)); /* of another layer */
    }
    kvm_taken_cut(taken, 5);
    assert_true(kvm_taken_has(taken, s, 1, 2, 3));
    assert_false(kvm_taken_has(taken, s, 1, 2, 4));
    kvm_taken_cut(taken, 0);
    assert_false(kvm_taken_has(taken, s, 1, 0, 1));
    check_ok(kvm_taken_put(taken, KVM_SPACE_K, 1, 0, 1, rows, WIDTH, &err), &err);
    assert_null(kvm_taken_rows(taken, KVM_SPACE_K, 1)); /* of which none are kept */
    check_refused(KVM_RANGE, "20 rows",
                  kvm_taken_put(taken, s, 1, TOKENS - 1, 2, rows, WIDTH, &no));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_parts_side_by_side),
        cmocka_unit_test(parts_that_do_not_belong_together_are_refused),
        cmocka_unit_test(what_is_taken_is_there_afterwards),
        cmocka_unit_test(more_than_there_is_room_for_is_refused),
        cmocka_unit_test(pieces_are_known),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
