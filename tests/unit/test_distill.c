/* Distillation: the gradient of the loss by every kind of parameter against
 * differences, going on from a checkpoint bit for bit, and what is refused. */
#include "translators/distill.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "jobs/distill_checkpoint.h"
#include "tests/support/check.h"
#include "tests/support/translators.h"

#define TMP "build/tmp/distill/"

enum { PREFIX = 40, AFTER = 13, LESSONS = 3 };
/* bytes that a lesson may take beside what it says: lists of pointers, and a red zone
 * behind each block where there are any */
#ifdef __SANITIZE_ADDRESS__
enum { BESIDE = 4096 };
#else
enum { BESIDE = 512 };
#endif

static const kvm_outline_options content = {.keys = KVM_KEYS_CONTENT};
static kvm_arena keep;
static kvm_compute *compute;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_tmpdir("distill");
    keep = check_arena((size_t)8 << 30);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_model *open_zoo(const char *name)
{
    kvm_err err = {0};
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true};
    check_ok(kvm_model_open(&m, &keep, compute,
                            kvm_str_fmt(&keep, "tests/zoo/%s", name), &o, &err),
             &err);
    return m;
}

/* a translator of made-up maps, and lessons of made-up tokens */
typedef struct bed {
    kvm_distill *d;
    kvm_lesson lesson[LESSONS];
} bed;

/* what is told before there is a translator: no less */
static void check_told_before(const kvm_distill *d, const kvm_translator *t,
                              const kvm_model *to, const kvm_outline_options *o,
                              ptrdiff_t top)
{
    kvm_err err = {0};
    kvm_outline outline;
    const kvm_lesson_size have = kvm_distill_lesson_size(d);
    const kvm_shapes *a = &t->source.shapes, *b = &t->target.shapes;
    check_ok(kvm_outline_make(&outline, o, a, b, &err), &err);
    const kvm_lesson_size most = kvm_lesson_size_most(
        &outline, a, b, have.block, kvm_model_info_of(to)->vocab, top);
    assert_true(most.rows >= have.rows && most.indexers == have.indexers);
    assert_int_equal(most.states, have.states);
    assert_true(kvm_lesson_bytes(&most, PREFIX, AFTER) >=
                kvm_lesson_bytes(&have, PREFIX, AFTER));
}

static void begin(bed *b, const char *source, const char *target,
                  const kvm_outline_options *o, ptrdiff_t top, kvm_translator *t)
{
    kvm_err err = {0};
    kvm_model *from = open_zoo(source), *to = open_zoo(target);
    made_translator(t, &keep, from, to, o, 0.5);
    const size_t free_before = kvm_arena_used(&keep);
    check_ok(
        kvm_distill_new(&b->d, &keep, compute, t, from, to, PREFIX, AFTER, top, &err),
        &err);
    enum { LISTS = 1 << 16 }; /* of pointers, and what is rounded up */
    const size_t parameters = (size_t)kvm_distill_parameters(b->d);
    assert_in_range(kvm_arena_used(&keep) - free_before, 16 * parameters,
                    16 * parameters + kvm_distill_bytes(from, to, PREFIX, AFTER) +
                        LISTS);
    check_told_before(b->d, t, to, o, top);
    int32_t *ids = kvm_new(&keep, int32_t, LESSONS * (PREFIX + AFTER));
    kvm_rng rng = kvm_rng_seed(3, 3);
    for (ptrdiff_t i = 0; i < LESSONS * (PREFIX + AFTER); i++)
        ids[i] = (int32_t)kvm_rng_below(&rng, 2048);
    for (int i = 0; i < LESSONS; i++) {
        const ptrdiff_t n = PREFIX - 7 * i; /* of several lengths */
        b->lesson[i] = (kvm_lesson){.prefix = ids, .prefix_n = n, .after_n = AFTER};
        b->lesson[i].after = ids + n;
        ids += PREFIX + AFTER;
        const size_t before = kvm_arena_used(&keep);
        check_ok(kvm_distill_prepare(b->d, &b->lesson[i], &keep, &err), &err);
        const size_t taken = kvm_arena_used(&keep) - before,
                     told = kvm_distill_lesson_bytes(b->d, n, AFTER);
        assert_in_range(taken, told, told + BESIDE);
    }
}

static bool by_index; /* the loss of indexers, which comes with a gradient alone */

static double loss(bed *b)
{
    kvm_err err = {0};
    kvm_distill_loss l;
    if (!by_index) {
        check_ok(kvm_distill_score(b->d, &b->lesson[0], &l, &err), &err);
        return l.kl;
    }
    const ptrdiff_t n = kvm_distill_parameters(b->d);
    float *g = kvm_distill_gradient(b->d), *was = kvm_new(&keep, float, n);
    memcpy(was, g, sizeof *g * (size_t)n);
    check_ok(kvm_distill_learn(b->d, &b->lesson[0], &l, &err), &err);
    memcpy(g, was, sizeof *g * (size_t)n);
    return l.index;
}

/* the loss's derivative along g, by differences of fourth order with steps of h */
static double difference(bed *b, float *p, const float *was, const float *g,
                         ptrdiff_t n, double norm, double h)
{
    static const int at[] = {-2, -1, 1, 2};
    static const double weight[] = {1, -8, 8, -1};
    double slope = 0;
    for (int k = 0; k < 4; k++) {
        for (ptrdiff_t i = 0; i < n; i++)
            p[i] = (float)((double)was[i] + at[k] * h * (double)g[i] / norm);
        slope += weight[k] * loss(b) / (12 * h);
    }
    memcpy(p, was, sizeof *p * (size_t)n);
    return slope;
}

/* The derivative along the gradient of parameters [from, from+n) is that gradient's
 * norm. An expert that is chosen otherwise on the way makes the loss jump: smaller
 * steps make that rarer, and rounding larger, so several are tried. */
static void check_slope(bed *b, ptrdiff_t from, ptrdiff_t n, const char *what)
{
    static const double steps[] = {2e-3, 2e-4, 2e-5, 5e-6};
    float *p = kvm_distill_values(b->d) + from;
    const float *g = kvm_distill_gradient(b->d) + from;
    float *was = kvm_new(&keep, float, n);
    double sum = 0, slope = 0;
    for (ptrdiff_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    const double norm = sqrt(sum);
    if (!(norm > 1e-7)) fail_msg("%s: the gradient is %g", what, norm);
    memcpy(was, p, sizeof *p * (size_t)n);
    for (size_t i = 0; i < COUNT(steps); i++) {
        slope = difference(b, p, was, g, n, norm, steps[i] / norm);
        if (fabs(slope - norm) < 5e-3 * norm) return;
    }
    fail_msg("%s: differences %g, gradient %g", what, slope, norm);
}

static void check_gradients(const char *source, const char *target,
                            const kvm_outline_options *o)
{
    bed b;
    kvm_translator t;
    kvm_err err = {0};
    kvm_distill_loss l;
    begin(&b, source, target, o, 0, &t);
    check_ok(kvm_distill_learn(b.d, &b.lesson[0], &l, &err), &err);
    assert_true(fabs(l.kl - loss(&b)) < 1e-5 * l.kl);
    ptrdiff_t at = 0, last_indexer = -1;
    for (ptrdiff_t i = 0; i < t.count; i++)
        if (t.steps[i].mapping.out == KVM_SPACE_INDEX) last_indexer = t.steps[i].layer;
    for (ptrdiff_t i = 0; i < t.count; i++) {
        const kvm_step *s = &t.steps[i];
        if (s->map == KVM_MAP_EXACT) continue;
        const ptrdiff_t n = s->outputs * s->inputs;
        const char *name = kvm_str_fmt(&keep, "%s -> %s, %s.%td", source, target,
                                       kvm_space_name(s->mapping.out), s->layer)
                               .at;
        by_index = s->mapping.out == KVM_SPACE_INDEX;
        /* What an earlier indexer chooses moves the queries of a later one; and of a
         * model that chooses so much, differences of the other loss mean little. */
        if (by_index ? s->layer == last_indexer : last_indexer < 0) {
            check_slope(&b, at, n, name);
            check_slope(&b, at + n, s->outputs, name);
        }
        by_index = false;
        at += n + s->outputs;
    }
    for (ptrdiff_t i = 0; i < t.state_count; i++) {
        const kvm_state_step *s = &t.states[i];
        if (s->map != KVM_STATE_BILINEAR || last_indexer >= 0) continue;
        const ptrdiff_t n[] = {kvm_tensor_count(&s->left), kvm_tensor_count(&s->right),
                               kvm_tensor_count(&s->window),
                               s->window.dim[0] * s->window.dim[1]};
        static const char *const parts[] = {"left", "right", "window", "bias"};
        for (int k = 0; k < 4; k++) {
            check_slope(
                &b, at, n[k],
                kvm_str_fmt(&keep, "state of layer %td, %s", s->layer, parts[k]).at);
            at += n[k];
        }
    }
    if (last_indexer < 0) assert_int_equal(at, kvm_distill_parameters(b.d));
}

static void keys_and_values(void **state)
{
    (void)state;
    check_gradients("small", "large", &content);
    check_gradients("large", "small", &(kvm_outline_options){.keys = KVM_KEYS_ROTATED});
}

static void latents_and_replayed_states(void **state)
{
    (void)state;
    check_gradients("mla", "kda", &content);
    check_gradients("kda", "mla", &content);
    check_gradients("kda", "mla",
                    &(kvm_outline_options){.keys = KVM_KEYS_CONTENT, .engine = true});
}

static void states_from_both_sides(void **state)
{
    (void)state;
    check_gradients("gdn-a", "gdn-b", &content);
}

static void states_layer_by_layer(void **state)
{
    (void)state;
    static const kvm_state_way ways[] = {KVM_STATES_COPY,     KVM_STATES_REPLAY,
                                         KVM_STATES_BILINEAR, KVM_STATES_REPLAY,
                                         KVM_STATES_ZERO,     KVM_STATES_BILINEAR};
    check_gradients("gdn-a", "gdn-b",
                    &(kvm_outline_options){
                        .keys = KVM_KEYS_CONTENT, .each = ways, .ways = COUNT(ways)});
}

static void keys_of_indexers(void **state)
{
    (void)state;
    check_gradients("gdn-a", "qsa", &content);
}

/* index keys that are left out have no loss, and the prefix is looked at whole */
static void no_keys_of_indexers(void **state)
{
    (void)state;
    const kvm_outline_options o = {.keys = KVM_KEYS_CONTENT, .dense = true};
    bed b;
    kvm_translator t;
    kvm_err err = {0};
    kvm_distill_loss l;
    begin(&b, "gdn-a", "qsa", &o, 0, &t);
    for (int k = 0; k < LESSONS; k++) assert_null(b.lesson[k].scores[0]);
    const double before = loss(&b);
    check_ok(kvm_distill_learn(b.d, &b.lesson[0], &l, &err), &err);
    assert_true(l.index == 0);
    assert_true(fabs(l.kl - before) < 1e-5 * l.kl);
    assert_true(kvm_distill_translator(b.d)->dense);
}

/* ---- going on ---- */

static void learn(bed *b, int steps)
{
    kvm_err err = {0};
    const kvm_distill_rates r = {1e-3, 0.01, 1};
    double norm;
    for (int i = 0; i < steps; i++) {
        for (int k = 0; k < LESSONS; k++) {
            kvm_distill_loss l;
            check_ok(kvm_distill_learn(b->d, &b->lesson[k], &l, &err), &err);
        }
        check_ok(kvm_distill_update(b->d, LESSONS, &r, &norm, &err), &err);
    }
}

/* AdamW as its paper has it, in double: a step whose gradient is shrunk to a norm, then
 * one that is not, which alone would forget a common factor */
static void gradients_are_clipped_by_their_norm(void **state)
{
    (void)state;
    bed b;
    kvm_translator t;
    kvm_err err = {0};
    double norm;
    begin(&b, "small", "large", &content, 0, &t);
    const ptrdiff_t n = kvm_distill_parameters(b.d);
    const float *p = kvm_distill_values(b.d), *g = kvm_distill_gradient(b.d);
    double *m = kvm_new(&keep, double, n), *v = kvm_new(&keep, double, n),
           *want = kvm_new(&keep, double, n);
    assert_true(m && v && want);
    for (int i = 1; i <= 2; i++) {
        double sum = 0;
        for (int k = 0; k < LESSONS; k++) {
            kvm_distill_loss l;
            check_ok(kvm_distill_learn(b.d, &b.lesson[k], &l, &err), &err);
        }
        for (ptrdiff_t k = 0; k < n; k++) sum += (double)g[k] * (double)g[k];
        const double mean = sqrt(sum) / LESSONS, shrink = i == 1 ? 0.25 : 1;
        const kvm_distill_rates r = {1e-3, 0.01, i == 1 ? 0.25 * mean : 2 * mean};
        for (ptrdiff_t k = 0; k < n; k++) {
            const double one = (double)g[k] * shrink / LESSONS;
            m[k] = 0.9 * m[k] + 0.1 * one;
            v[k] = 0.999 * v[k] + 0.001 * one * one;
            want[k] = (double)p[k] * (1 - r.rate * r.decay) -
                      r.rate * (m[k] / (1 - pow(0.9, i))) /
                          (sqrt(v[k] / (1 - pow(0.999, i))) + 1e-8);
        }
        check_ok(kvm_distill_update(b.d, LESSONS, &r, &norm, &err), &err);
        assert_true(fabs(norm - mean) < 1e-6 * mean); /* before clipping */
        for (ptrdiff_t k = 0; k < n; k++)
            if (!(fabs((double)p[k] - want[k]) < 2e-6 + 1e-6 * fabs(want[k])))
                fail_msg("step %d, parameter %td: %g, not %g", i, k, (double)p[k],
                         want[k]);
    }
}

static void a_checkpoint_goes_on_bit_for_bit(void **state)
{
    (void)state;
    bed one, two;
    kvm_translator t;
    kvm_err err = {0};
    const kvm_str path = KVM_STR(TMP "half");
    begin(&one, "small", "large", &content, 0, &t);
    begin(&two, "small", "large", &content, 0, &t);
    const ptrdiff_t n = kvm_distill_parameters(one.d);
    kvm_distill_progress at = {.best_kl = 0.5, .best_step = 2, .curve = json_array()};
    assert_non_null(kvm_json_own(&keep, at.curve));
    at.best = kvm_new(&keep, float, n);
    at.best[n - 1] = 7;
    json_array_append_new(at.curve, json_pack("{s:i, s:f}", "step", 0, "kl", 0.1));
    learn(&one, 2);
    check_ok(kvm_distill_save(one.d, &at, "a", path, &err), &err);
    learn(&one, 2);

    kvm_distill_progress back = {.curve = json_array()};
    assert_non_null(kvm_json_own(&keep, back.curve));
    back.best = kvm_new(&keep, float, n);
    check_status(KVM_MISMATCH, kvm_distill_load(two.d, &back, "b", 4, path, &err),
                 &err);
    check_contains(err.msg, "another distillation");
    err = (kvm_err){0};
    check_write(TMP "cut", KVM_STR("cut off"));
    check_status(KVM_FORMAT,
                 kvm_distill_load(two.d, &back, "a", 4, KVM_STR(TMP "cut"), &err),
                 &err);
    check_contains(err.msg, "a damaged checkpoint: ");
    check_contains(err.msg, TMP "cut");
    err = (kvm_err){0};
    check_ok(kvm_distill_load(two.d, &back, "a", 4, path, &err), &err);
    assert_int_equal(*kvm_distill_steps(two.d), 2);
    assert_true(back.best_kl == 0.5 && back.best_step == 2 && back.best[n - 1] == 7);
    kvm_str before, after; /* keys in their order too: figures are compared as bytes */
    check_ok(kvm_json_pretty(&before, &keep, at.curve, &err), &err);
    check_ok(kvm_json_pretty(&after, &keep, back.curve, &err), &err);
    assert_true(kvm_str_eq(before, after));
    learn(&two, 2);
    assert_memory_equal(kvm_distill_values(one.d), kvm_distill_values(two.d),
                        sizeof(float) * (size_t)n);
}

/* a checkpoint of a trainer that has done nothing, and a progress to read one into */
static void begin_saved(bed *b, kvm_distill_progress *at, kvm_str path)
{
    kvm_translator t;
    kvm_err err = {0};
    begin(b, "small", "large", &content, 0, &t);
    *at = (kvm_distill_progress){.best_kl = 1, .curve = json_array()};
    assert_non_null(kvm_json_own(&keep, at->curve));
    at->best = kvm_new(&keep, float, kvm_distill_parameters(b->d));
    json_array_append_new(at->curve, json_pack("{s:i, s:f}", "step", 0, "kl", 0.1));
    check_ok(kvm_distill_save(b->d, at, "a", path, &err), &err);
}

static void check_flipped(bed *b, kvm_distill_progress *at, char *bytes, ptrdiff_t n,
                          ptrdiff_t place, const char *named)
{
    kvm_err err = {0};
    bytes[place] ^= 1;
    check_write(TMP "flipped", (kvm_str){bytes, n});
    assert_int_not_equal(
        kvm_distill_load(b->d, at, "a", 4, KVM_STR(TMP "flipped"), &err), KVM_OK);
    check_contains(err.msg, named);
    check_contains(err.msg, "a damaged checkpoint: ");
    bytes[place] ^= 1;
}

/* Wherever a bit turns, it is found; in an array or in metadata, which one is said. */
static void a_flipped_bit_is_found_and_named(void **state)
{
    (void)state;
    static const char *const named[] = {"p is not", "m is not", "v is not",
                                        "best is not"};
    bed b;
    kvm_distill_progress at;
    begin_saved(&b, &at, KVM_STR(TMP "whole"));
    const kvm_str whole = check_read(&keep, TMP "whole");
    char *bytes = kvm_new(&keep, char, whole.len);
    memcpy(bytes, whole.at, (size_t)whole.len);
    const ptrdiff_t array = kvm_distill_parameters(b.d) * (ptrdiff_t)sizeof(float);
    const ptrdiff_t data = whole.len - 4 * array;
    for (int i = 0; i < 4; i++)
        check_flipped(&b, &at, bytes, whole.len, data + i * array + array / 3,
                      named[i]);
    const ptrdiff_t curve = kvm_str_find(whole, KVM_STR("0.1"));
    check_flipped(&b, &at, bytes, whole.len, curve, "metadata is not");
    for (ptrdiff_t i = 0; i < data; i += 41)
        check_flipped(&b, &at, bytes, whole.len, i, TMP "flipped");
}

static void refuse_saved(bed *b, kvm_distill_progress *at, const char *why)
{
    kvm_err err = {0};
    check_ok(kvm_distill_save(b->d, at, "a", KVM_STR(TMP "odd"), &err), &err);
    check_status(KVM_FORMAT,
                 kvm_distill_load(b->d, at, "a", 4, KVM_STR(TMP "odd"), &err), &err);
    check_contains(err.msg, why);
    check_contains(err.msg, "a damaged checkpoint: ");
}

/* written by a trainer gone wrong: no damage that a hash would show */
static void figures_that_cannot_be_are_refused(void **state)
{
    (void)state;
    bed b;
    kvm_distill_progress at;
    begin_saved(&b, &at, KVM_STR(TMP "before"));
    *kvm_distill_steps(b.d) = 5;
    refuse_saved(&b, &at, "`steps` is '5', expected a whole number from 0 to 4");
    *kvm_distill_steps(b.d) = 3;
    at.best_step = 4;
    refuse_saved(&b, &at, "`best_step` is '4', expected a whole number from 0 to 3");
    at.best_step = 3;
    at.best[1] = NAN;
    refuse_saved(&b, &at, "number 1 of best is not finite");
    at.best[1] = 0;
    json_array_clear(at.curve);
    refuse_saved(&b, &at, "the curve is no list of points");
}

/* of a million steps, each of which validates */
static void a_long_curve_is_kept(void **state)
{
    (void)state;
    enum { LONG = 70 << 20 };
    bed b;
    kvm_distill_progress at;
    kvm_err err = {0};
    const kvm_str path = KVM_STR(TMP "long");
    begin_saved(&b, &at, path);
    char *text = kvm_new(&keep, char, LONG);
    memset(text, 'x', LONG);
    json_array_append_new(at.curve, json_pack("{s:s%}", "note", text, (size_t)LONG));
    check_ok(kvm_distill_save(b.d, &at, "a", path, &err), &err);
    json_array_clear(at.curve);
    check_ok(kvm_distill_load(b.d, &at, "a", 4, path, &err), &err);
    assert_int_equal(json_array_size(at.curve), 2);
}

static void it_learns(void **state)
{
    (void)state;
    bed b;
    kvm_translator t;
    begin(&b, "small", "large", &content, 0, &t);
    const double before = loss(&b);
    learn(&b, 20);
    assert_true(loss(&b) < 0.7 * before);
}

/* The likeliest tokens alone: what that loses is known, and the loss is nearly the
 * same. */
static void the_likeliest_tell_nearly_all(void **state)
{
    (void)state;
    bed all, some;
    kvm_translator t;
    begin(&all, "small", "large", &content, 0, &t);
    begin(&some, "small", "large", &content, 512, &t);
    const kvm_said *s = &some.lesson[0].native;
    const double lost = s->lost / AFTER;
    assert_true(all.lesson[0].native.lost == 0 && lost > 0 && lost < 0.1);
    float room[2048];
    const float *spread = kvm_said_rows(s, 3, 1, room);
    const float *whole = kvm_said_rows(&all.lesson[0].native, 3, 1, NULL);
    double z = 0, sum = 0, kl = 0;
    for (int i = 0; i < 2048; i++) z += exp((double)whole[i]);
    for (int i = 0; i < 2048; i++) {
        const double lp = (double)whole[i] - log(z);
        sum += exp((double)spread[i]);
        kl += exp(lp) * (lp - (double)spread[i]);
    }
    assert_true(fabs(sum - 1) < 1e-5); /* a distribution */
    kvm_said one;
    kvm_err err = {0};
    check_ok(kvm_said_new(&one, &keep, 1, 2048, 512, &err), &err);
    check_ok(kvm_said_put(&one, 0, whole, &err), &err);
    assert_true(fabs(one.lost - kl) < 1e-5);
    assert_true(fabs(loss(&all) - loss(&some)) < 0.2 * loss(&all));
}

/* ---- what is refused ---- */

static void a_loss_that_is_no_number_changes_nothing(void **state)
{
    (void)state;
    bed b;
    kvm_translator t;
    kvm_err err = {0};
    kvm_distill_loss l;
    begin(&b, "small", "large", &content, 0, &t);
    b.lesson[0].native.logits[5] = NAN;
    check_status(KVM_NAN, kvm_distill_learn(b.d, &b.lesson[0], &l, &err), &err);
    const float *g = kvm_distill_gradient(b.d);
    for (ptrdiff_t i = 0; i < kvm_distill_parameters(b.d); i++) assert_true(g[i] == 0);
    double norm;
    const kvm_distill_rates r = {1e-3, 0, 1};
    kvm_distill_gradient(b.d)[3] = INFINITY;
    err = (kvm_err){0};
    check_status(KVM_NAN, kvm_distill_update(b.d, 1, &r, &norm, &err), &err);
    check_contains(err.msg, "step 1");
    assert_int_equal(*kvm_distill_steps(b.d), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_values),
        cmocka_unit_test(latents_and_replayed_states),
        cmocka_unit_test(states_from_both_sides),
        cmocka_unit_test(states_layer_by_layer),
        cmocka_unit_test(keys_of_indexers),
        cmocka_unit_test(no_keys_of_indexers),
        cmocka_unit_test(gradients_are_clipped_by_their_norm),
        cmocka_unit_test(a_checkpoint_goes_on_bit_for_bit),
        cmocka_unit_test(a_flipped_bit_is_found_and_named),
        cmocka_unit_test(figures_that_cannot_be_are_refused),
        cmocka_unit_test(a_long_curve_is_kept),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(the_likeliest_tell_nearly_all),
        cmocka_unit_test(a_loss_that_is_no_number_changes_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
