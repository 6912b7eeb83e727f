/* What indexers choose of a prefix, counted: on choices made up, on caches of a model
 * with an indexer, and by an analysis of a pair, whose index keys may be left out. */
#include "jobs/selection.h"

#include <math.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/host.h"

#define DIR "build/tmp/selection_text"

static kvm_arena keep;
static kvm_compute *compute;
static kvm_model *model;
static kvm_encoder *encoder;

/* ---- a text that is longer than the 128 tokens that qsa looks at ---- */

static kvm_str story(const char *code)
{
    kvm_text t = {0};
    for (int i = 0; i < 12; i++) {
        kvm_text_addf(&t, "And the king said unto the queen, Behold, the city is "
                          "before thee, and the day is far spent. ");
        if (i == 3) kvm_text_addf(&t, "The code is %s. ", code);
    }
    const kvm_str s = kvm_str_copy(&keep, kvm_text_str(&t));
    kvm_text_free(&t);
    return s;
}

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    keep = check_arena((size_t)1 << 36);
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    check_ok(
        kvm_model_open(&model, &keep, compute, KVM_STR("tests/zoo/qsa"), NULL, &err),
        &err);
    check_ok(kvm_encoder_new(&encoder, &keep, kvm_model_tokenizer(model), &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

/* ---- made up ---- */

static uint64_t units(const char *chosen)
{
    uint64_t bits = 0;
    for (int i = 0; chosen[i]; i++) bits |= (uint64_t)(chosen[i] == 'x') << i;
    return bits;
}

static void shares(void **state)
{
    (void)state;
    uint64_t native[] = {units("xx..."), units("..xx."), units("xxxxx"), 0};
    uint64_t other[] = {units("x..x."), units("..xxx"), units("....."), units("x....")};
    const kvm_selection a = {native, 4, 1, 5, 2}, b = {other, 4, 1, 5, 2};
    /* the third leaves nothing out, the fourth chooses nothing: two pairs */
    assert_true(kvm_selection_overlap(&a, &b) == (0.5 + 1) / 2);
    assert_true(kvm_selection_overlap(&a, &a) == 1);
    const kvm_asking second = {.needle = 3, .end = 4}, both = {.needle = 3, .end = 5};
    assert_true(kvm_selection_needle(&a, &a, &second) == 0.5); /* unit 1 */
    assert_true(kvm_selection_needle(&a, &b, &second) == 0);
    assert_true(kvm_selection_needle(&a, &a, &both) == 1); /* units 1 and 2 */
    assert_true(kvm_selection_needle(&a, &b, &both) == 0.5);
    const kvm_asking none = {.needle = -1}, behind = {.needle = 10, .end = 12};
    assert_true(isnan(kvm_selection_needle(&a, &b, &none)));
    assert_true(isnan(kvm_selection_needle(&a, &b, &behind)));
    const kvm_selection empty = {0};
    assert_true(isnan(kvm_selection_overlap(&empty, &empty)));
}

/* ---- what is asked, and where its answer stands ---- */

static kvm_asking ask(kvm_suite_kind kind, const kvm_item *item, kvm_item_ids *ids)
{
    const kvm_suite s = {.kind = kind, .max_new_tokens = 8};
    kvm_err err = {0};
    kvm_asking a;
    check_ok(kvm_item_tokenise(ids, &keep, encoder, -1, &s, item, &err), &err);
    check_ok(kvm_asking_of(&a, &keep, encoder, kvm_model_tokenizer(model), &s, item,
                           ids, &err),
             &err);
    assert_int_equal(a.n, ids->feed_n + a.queries - 1);
    assert_memory_equal(a.ids, ids->feed, (size_t)ids->feed_n * sizeof *a.ids);
    return a;
}

static void needles_are_found(void **state)
{
    (void)state;
    static const kvm_str answer[] = {{"4711", 4}};
    kvm_item_ids ids;
    kvm_err err = {0};
    kvm_str text;
    kvm_item item = {.id = KVM_STR("a"),
                     .prefix = KVM_STR("The code is 4711. And many of them that sleep "
                                       "shall awake. The code is 4711. Behold."),
                     .question = KVM_STR("What is the code?"),
                     .choices = answer,
                     .choice_count = 1,
                     .length = 32};
    kvm_asking found[2];
    for (int i = 0; i < 2; i++) {
        item.depth = i ? 0.9 : 0.1;
        found[i] = ask(KVM_SUITE_NEEDLE, &item, &ids);
        const kvm_asking *a = &found[i];
        assert_true(a->needle >= 0 && a->end <= ids.prefix_n);
        check_ok(kvm_decode(kvm_model_tokenizer(model), ids.prefix + a->needle,
                            a->end - a->needle, false, &keep, &text, &err),
                 &err);
        check_contains(kvm_str_copy(&keep, text).at, "4711");
        check_ok(kvm_decode(kvm_model_tokenizer(model), ids.prefix + a->needle + 1,
                            a->end - a->needle - 1, false, &keep, &text, &err),
                 &err);
        assert_true(kvm_str_find(text, answer[0]) < 0); /* and nothing before it */
    }
    assert_true(found[0].end < found[1].needle);
    item.prefix = KVM_STR("There is no code in this text.");
    assert_int_equal(ask(KVM_SUITE_NEEDLE, &item, &ids).needle, -1);
    item.prefix = KVM_STR("The code is 4711.");
    assert_int_equal(ask(KVM_SUITE_GENERATION, &item, &ids).needle, -1);
}

static void continuations_are_asked(void **state)
{
    (void)state;
    static const kvm_str choices[] = {{" Ann smiled at him.", 19}, {" Bob", 4}};
    kvm_item_ids ids;
    kvm_item item = {.id = KVM_STR("a"),
                     .prefix = KVM_STR("The king"),
                     .question = KVM_STR(" said"),
                     .continuation = KVM_STR(" unto the queen, Behold"),
                     .choices = choices,
                     .choice_count = 2};
    kvm_asking a = ask(KVM_SUITE_PERPLEXITY, &item, &ids);
    assert_int_equal(a.queries, ids.after_n[0]);
    assert_memory_equal(a.ids + ids.feed_n, ids.after[0],
                        (size_t)(a.queries - 1) * sizeof *a.ids);
    a = ask(KVM_SUITE_MULTIPLE_CHOICE, &item, &ids);
    assert_int_equal(a.queries, ids.after_n[0]);
    item.answer = 1;
    assert_int_equal(ask(KVM_SUITE_MULTIPLE_CHOICE, &item, &ids).queries,
                     ids.after_n[1]);
    /* no more of an answer than caches have room for */
    static const kvm_str longest[] = {
        {"one two three four five six seven eight nine ten eleven twelve", 62}};
    item.choices = longest;
    item.choice_count = 1;
    item.answer = 0;
    a = ask(KVM_SUITE_GENERATION, &item, &ids);
    assert_true(a.n <= ids.longest && a.queries == 9);
}

/* ---- of a model ---- */

static kvm_cache *prefilled(const kvm_item_ids *ids, bool dense)
{
    static float rows[1 << 18];
    kvm_err err = {0};
    kvm_cache *c, *to;
    const ptrdiff_t room = ids->prefix_n + ids->longest;
    check_ok(kvm_cache_new(&c, &keep, model, room, &err), &err);
    check_ok(kvm_model_forward(model, c, ids->prefix, ids->prefix_n, NULL, &err), &err);
    if (!dense) return c;
    check_ok(kvm_cache_new(&to, &keep, model, room, &err), &err);
    check_ok(kvm_inject_begin(to, ids->prefix_n, &err), &err);
    check_ok(kvm_inject_dense(to, &err), &err);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(model)->objects; i++) {
        const kvm_object *o = kvm_model_object(model, i);
        kvm_tensor view;
        if (kvm_object_chooses(o)) continue;
        check_ok(kvm_cache_view(c, i, &view, &err), &err);
        if (kvm_object_per_prompt(o)) {
            const kvm_state s = {.data = view.data,
                                 .axes = kvm_str_of(kvm_object_axes(o->kind)),
                                 .dim = {o->shape[0], o->shape[1], o->shape[2]},
                                 .dtype = KVM_F32,
                                 .tokens = ids->prefix_n};
            check_ok(kvm_inject_state(to, i, &s, &err), &err);
            continue;
        }
        assert_true(ids->prefix_n * o->heads * o->dim <= (ptrdiff_t)COUNT(rows));
        check_ok(kvm_cache_read(c, i, 3, 0, ids->prefix_n, rows, &err), &err);
        check_ok(kvm_inject_rows(to, i, 3, 0, ids->prefix_n, rows, &err), &err);
    }
    check_ok(kvm_inject_end(to, &err), &err);
    return to;
}

static kvm_selection chosen(const kvm_item_ids *ids, const kvm_asking *a, bool dense)
{
    kvm_err err = {0};
    kvm_selection s;
    check_ok(kvm_selection_take(&s, &keep, model, prefilled(ids, dense), a, &err),
             &err);
    return s;
}

static void a_model_is_watched(void **state)
{
    (void)state;
    static const kvm_str answer[] = {{"4711", 4}};
    kvm_item_ids ids;
    const kvm_item item = {.id = KVM_STR("a"),
                           .prefix = story("4711"),
                           .question = KVM_STR("The code is"),
                           .choices = answer,
                           .choice_count = 1,
                           .depth = 0.3};
    const kvm_asking a = ask(KVM_SUITE_NEEDLE, &item, &ids);
    const kvm_selection native = chosen(&ids, &a, false),
                        dense = chosen(&ids, &a, true);
    assert_int_equal(native.pairs, 2 * a.queries); /* layers 3 and 7 */
    assert_int_equal(native.block, 2);
    assert_int_equal(native.units, ids.prefix_n / 2);
    for (ptrdiff_t i = 0; i < native.pairs; i++) {
        int n = 0, all = 0;
        for (ptrdiff_t u = 0; u < native.units; u++) {
            n += native.bits[i * native.words + u / 64] >> u % 64 & 1;
            all += dense.bits[i * native.words + u / 64] >> u % 64 & 1;
        }
        assert_in_range(n, 64 - ids.longest, 64); /* others may stand behind */
        assert_int_equal(all, native.units);
    }
    assert_true(kvm_selection_overlap(&native, &native) == 1);
    assert_true(kvm_selection_overlap(&native, &dense) == 1);
    assert_true(kvm_selection_needle(&native, &dense, &a) == 1);
    const double found = kvm_selection_needle(&native, &native, &a);
    assert_true(found >= 0 && found <= 1);
}

static void short_prefixes_have_no_share(void **state)
{
    (void)state;
    static const kvm_str answer[] = {{"4711", 4}};
    kvm_item_ids ids;
    const kvm_item item = {.id = KVM_STR("a"),
                           .prefix = KVM_STR("Behold, the code is 4711. And so on."),
                           .question = KVM_STR("The code is"),
                           .choices = answer,
                           .choice_count = 1};
    const kvm_asking a = ask(KVM_SUITE_NEEDLE, &item, &ids);
    const kvm_selection s = chosen(&ids, &a, false);
    assert_true(isnan(kvm_selection_overlap(&s, &s)));
    assert_true(isnan(kvm_selection_needle(&s, &s, &a)));
}

/* ---- of a pair ---- */

static double figure(host *h, const char *cache, const char *metric)
{
    const kvm_str text =
        check_read(&keep, host_output(h, host_node(h, "analyse long"), "items").at);
    kvm_str line, rest;
    kvm_jat root;
    kvm_err err = {0};
    assert_true(kvm_str_cut(text, '\n', &line, &rest));
    check_ok(kvm_json_parse(&root, &keep, line, KVM_STR("items"), &err), &err);
    const json_t *scores = json_object_get(root.v, "scores");
    const json_t *v = json_object_get(json_object_get(scores, cache), metric);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static const json_t *section(host *h, const char *name)
{
    return json_object_get(host_json(h, h->graph.count - 1, "json").v, name);
}

static void run_pair(host *h, const char *name, const char *fit)
{
    check_tmpdir("selection_text");
    check_write(DIR "/long.jsonl",
                kvm_str_fmt(&keep,
                            "{\"id\": \"a\", \"prefix\": \"%.*s\", \"question\": \"The "
                            "code is\", \"answer\": \"4711\", \"length\": 300, "
                            "\"depth\": 0.3}\n",
                            KVM_STR_ARG(story("4711"))));
    check_write(DIR "/long.yaml",
                KVM_STR("name: long\nkind: needle\nfile: long.jsonl\n"
                        "max_new_tokens: 8\nlicence: CC0-1.0\nprovenance: here\n"));
    host_open(h, name,
              kvm_str_fmt(&keep,
                          "name: gdn-a-qsa\nsource: ../../tests/zoo/gdn-a\n"
                          "target: ../../tests/zoo/qsa\n"
                          "calibration: {text: calibration, sequences: 12, tokens: "
                          "64}\nfit: {k: 1, lambda: 1e-3, sweep: false%s}\n"
                          "evaluate: {suites: [./selection_text/long.yaml]%s}\n"
                          "analyse: {suites: [./selection_text/long.yaml], tails: [], "
                          "tail_lengths: [], inversion: false}\n",
                          fit, *fit ? "" : ", ablations: [dense_indexers]")
                  .at);
    host_run_to(h, h->graph.count - 1);
}

static void a_pair_that_predicts_keys(void **state)
{
    (void)state;
    host h;
    run_pair(&h, "selection", "");
    assert_true(isnan(figure(&h, "native", "overlap")));
    assert_true(isnan(figure(&h, "layer.3", "overlap")));
    const double native = figure(&h, "native", "needle");
    const double translated = figure(&h, "translated", "overlap");
    assert_true(native >= 0 && native <= 1);
    assert_true(translated > 0 && translated < 1);
    assert_true(figure(&h, "swap.indexers", "overlap") > translated);
    const double but = figure(&h, "swap.but_indexers", "overlap");
    assert_true(but > 0 && but < 1);
    const json_t *suites = json_object_get(section(&h, "analyses"), "suites");
    const json_t *list = json_object_get(json_array_get(suites, 0), "indexers");
    static const char *const titles[] = {"native", "translated", "index keys native",
                                         "all native but index keys"};
    assert_int_equal(json_array_size(list), COUNT(titles));
    for (size_t i = 0; i < COUNT(titles); i++) {
        const json_t *row = json_array_get(list, i);
        const json_t *overlap =
            json_object_get(json_object_get(row, "overlap"), "value");
        assert_string_equal(json_string_value(json_object_get(row, "title")),
                            titles[i]);
        assert_int_equal(json_is_number(overlap), i > 0);
        if (i == 1) assert_true(json_number_value(overlap) == translated);
    }
    const json_t *rows = json_object_get(section(&h, "ablations"), "rows");
    assert_int_equal(json_array_size(rows), 2);
    host_close(&h);
}

static void a_pair_that_leaves_them_out(void **state)
{
    (void)state;
    host h;
    run_pair(&h, "selection_dense", ", indexers: dense");
    assert_true(figure(&h, "translated", "overlap") == 1);
    assert_true(figure(&h, "translated", "needle") == 1);
    assert_true(figure(&h, "swap.indexers", "overlap") < 1); /* chosen, and by whom */
    assert_true(figure(&h, "swap.but_indexers", "overlap") == 1);
    const json_t *objects = json_object_get(section(&h, "recipes"), "objects"), *row;
    size_t i, found = 0;
    json_array_foreach(objects, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "object")), "index") != 0)
            continue;
        check_contains(json_string_value(json_object_get(row, "how")), "left out");
        assert_int_equal(json_array_size(json_object_get(row, "layers")), 2);
        found++;
    }
    assert_int_equal(found, 1);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares),
        cmocka_unit_test(needles_are_found),
        cmocka_unit_test(continuations_are_asked),
        cmocka_unit_test(a_model_is_watched),
        cmocka_unit_test(short_prefixes_have_no_share),
        cmocka_unit_test(a_pair_that_predicts_keys),
        cmocka_unit_test(a_pair_that_leaves_them_out),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
