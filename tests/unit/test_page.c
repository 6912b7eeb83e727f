/* The page of a report: every section, parts that are missing, documents that are
 * refused, and the files that are published. */
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "reports/document.h"
#include "tests/support/pages.h"

#define SAMPLE "tests/golden/reports/sample.json"
#define DIR "build/tmp/test_page"

static kvm_jat sample(state *s)
{
    kvm_jat doc;
    kvm_err err = {0};
    check_ok(kvm_json_read(&doc, &s->keep, KVM_STR(SAMPLE), &err), &err);
    return doc;
}

/* no number of the page is nan or inf; "provenance" is fine */
static void check_no_nan(kvm_str html)
{
    static const char *const words[] = {"nan", "inf"};
    for (size_t w = 0; w < COUNT(words); w++)
        for (const char *p = html.at; (p = strstr(p, words[w])); p++) {
            const char before = p[-1], after = p[3];
            if (!strchr("abcdefghijklmnopqrstuvwxyz", before) &&
                !strchr("abcdefghijklmnopqrstuvwxyz", after))
                fail_msg("%s near %.60s", words[w], p - 20);
        }
}

static void sample_has_every_section(void **at)
{
    static const char *const parts[] = {
        "<section id=\"gates\">",
        "<section id=\"suites\">",
        "<section id=\"needle\">",
        "<section id=\"timing\">",
        "<section id=\"build\">",
        "<section id=\"recipes\">",
        "<section id=\"training\">",
        "<section id=\"linearity\">",
        "<section id=\"layers\">",
        "<section id=\"ablations\">",
        "<section id=\"analyses\">",
        "<section id=\"inversion\">",
        "<section id=\"answers\">",
        "<section id=\"findings\">",
        "<section id=\"alternation\">",
        "Gold in answer by turn",
        "all translated again",
        "class=\"good\">✓ reproduced</span>",
        "class=\"bad\">✗ not reproduced</span>",
        "class=\"warn\">? undecided</span>",
        "class=\"muted\">– not measured</span>",
        "Counts as reproduced when: the figure is above",
        " · keeps K, V, state, index",
        "KL to native, difference",
        "recall beyond 512",
        "Native objects put in",
        "Partial recompute",
        "chosen on every second of the items (32 items), judged on the 32 others: "
        "layer "
        "1 native, 0.0240 [0.0210, 0.0270]; translated 0.0660",
        "attention alone",
        "zoo-large K, point 3",
        "6,144 held-out rows, 2,048 tokens",
        "<section id=\"provenance\">",
        "Sample, not a measurement.",
        "K content (position stripped)",
        "K rotated",
        "Cloze, 4-way",
        "wrong donor",
        "zero cache",
        "break-even ",
        "absolute λ 0.01",
        "chosen k",
        "c_K",
        "href=\"sample-large-small.html\"",
        "prefers-color-scheme:dark",
        "@media print",
        "5d2f…made-up…09ac",
        "The reversed pair reuses both captures."};
    const kvm_str html = page_of(*at, sample(*at));
    for (size_t i = 0; i < COUNT(parts); i++) check_contains(html.at, parts[i]);
    assert_null(strstr(html.at, "class=\"absent\"")); /* everything is measured */
    check_no_nan(html);
    assert_null(strstr(html.at, "http://")); /* self-contained */
    assert_null(strstr(html.at, "https://"));
    assert_null(strstr(html.at, "<script"));
}

static void the_verdict_speaks_first(void **at)
{
    state *s = *at;
    kvm_str headline, sentence;
    kvm_err err = {0};
    check_ok(kvm_report_verdict(&headline, &sentence, &s->keep, sample(s), &err), &err);
    check_str(headline, "The translated cache serves.");
    check_contains(sentence.at, "On 4 measures, zoo-large keeps ");
    check_contains(sentence.at, " of the gap between the two models");
    check_contains(sentence.at,
                   "At 2,048 tokens, up to where quality was measured, the "
                   "first token comes ");
    check_contains(sentence.at, "7 of 8 gates passed: Error concentration c_K, worst "
                                "layer failed (advice only).");
    const kvm_str html = page_of(s, sample(s));
    assert_true(strstr(html.at, "The translated cache serves.") <
                strstr(html.at, "<section"));
}

static void empty_document_is_a_whole_page(void **at)
{
    const kvm_str html = page_of(
        *at, parse(*at, HEAD PAIR ",\"absent\":{\"timing\":\"spec has none\"}}"));
    ptrdiff_t absent = 0;
    for (const char *p = html.at; (p = strstr(p, "class=\"absent\"")); p++) absent++;
    assert_int_equal(absent, KVM_SECTION_COUNT); /* every section says so */
    check_contains(html.at, "Not measured (spec has none).");
    check_contains(html.at, "Not measured (the document gives no reason).");
    check_contains(html.at, "Not decided: not everything was measured.");
}

/* Drops one member at a time, at every depth down to `depth`: the page stays whole or
 * the document is refused, nothing else. */
static void drop_each(state *s, kvm_jat doc, json_t *in, int depth, int *drawn)
{
    json_t *names = json_array();
    const char *key;
    json_t *value;
    json_object_foreach(in, key, value) json_array_append_new(names, json_string(key));
    for (size_t i = 0; i < json_array_size(names); i++) {
        key = json_string_value(json_array_get(names, i));
        value = json_incref(json_object_get(in, key));
        json_object_del(in, key);
        kvm_text out = {0};
        kvm_err err = {0};
        const kvm_status got = kvm_page_html(&out, doc, s->scratch, &err);
        if (got == KVM_OK) {
            check_markup(kvm_text_str(&out));
            ++*drawn;
        } else {
            assert_int_equal(got, KVM_FORMAT);
        }
        kvm_text_free(&out);
        json_object_set(in, key, value);
        json_t *inside = json_is_array(value) ? json_array_get(value, 0) : value;
        if (depth > 0 && json_is_object(inside))
            drop_each(s, doc, inside, depth - 1, drawn);
        json_decref(value);
    }
    json_decref(names);
}

static void any_part_may_be_missing(void **at)
{
    json_t *copy = json_deep_copy(sample(*at).v);
    const kvm_jat doc = {.v = copy, .file = "copy", .path = ""};
    int drawn = 0;
    drop_each(*at, doc, copy, 3, &drawn);
    json_decref(copy);
    assert_in_range(drawn, 80, 10000);
}

static void nulls_are_said_to_be_missing(void **at)
{
    const kvm_str html = page_of(
        *at,
        parse(
            *at, HEAD PAIR
            ",\"suites\":[{\"name\":\"s\",\"arms\":{\"native\":{\"score\":null},"
            "\"closed_form\":{\"score\":{\"value\":null,\"note\":\"no items\"}}}}],"
            "\"timing\":{\"points\":[{\"tokens\":64}]},"
            "\"recipes\":{\"objects\":[{\"layers\":[{}]},{}]},"
            "\"training\":{\"curve\":[{}]},"
            "\"linearity\":{\"groups\":[{\"maps\":[{\"title\":\"K\",\"r2\":[[null,0.5],"
            "[-9,1]]}]},{}]},"
            "\"layers\":{\"objects\":[{\"object\":\"k\"}],\"arms\":[{\"arm\":\"mlp\","
            "\"rows\":[{}]}]}}"));
    check_contains(html.at, "no items");
    check_contains(html.at, "not measured");
    check_no_nan(html);
}

static void hostile_names_are_text(void **at)
{
    const kvm_str html = page_of(
        *at, parse(*at, HEAD
                   "\"pair\":{\"name\":\"<script>x</script>\",\"reverse\":{\"name\":"
                   "\"r\",\"href\":\"javascript:alert(1)\"},\"source\":{\"name\":"
                   "\"\\\"><img src=x onerror=y>\"},\"target\":{\"name\":"
                   "\"B&\\u0001\\u202e\"}},\"spec\":\"</pre><script>\",\"notes\":"
                   "[\"<b>\"],\"provenance\":[{\"title\":\"<i>\",\"rows\":[[\"<u>\","
                   "\"'\"]]}]}"));
    assert_null(strstr(html.at, "<script"));
    assert_null(strstr(html.at, "<img"));
    assert_null(strstr(html.at, "javascript:"));
    assert_null(strstr(html.at, "<u>"));
    check_contains(html.at, "&lt;script&gt;x&lt;/script&gt;");
}

/* ---- what a translator is made of ---- */

/* the part of the page from a section's heading to its end */
static const char *section(state *s, kvm_str html, const char *key)
{
    const kvm_str head = kvm_str_fmt(&s->keep, "<section id=\"%s\">", key);
    const char *from = strstr(html.at, head.at);
    assert_non_null(from);
    const char *to = strstr(from, "</section>");
    return kvm_str_copy(&s->keep, (kvm_str){from, to - from}).at;
}

static void recipes_name_layers_and_token(void **at)
{
    const char *part = section(*at, page_of(*at, sample(*at)), "recipes");
    check_contains(part, "it is read out of the source&#39;s first layer");
    check_contains(part, "Of 8,192 held-out tokens 100.0\u00a0% are read right.");
    check_contains(part,
                   "<th scope=\"row\">K</th><td>keys from keys, by head content</td>"
                   "<td>0–5</td><td>0–3</td><td class=\"n\">4</td>");
    check_contains(part, "<td>2, 5</td><td>–</td>"); /* of the layer's own rows */
    check_contains(part, "exactly, from the token alone");
    check_contains(part, "does not apply");
    /* means of states: held-out 0.76, the worst 0.73, and 0.37 as they were copied */
    check_contains(part,
                   "0.760</td><td class=\"n\">0.730</td><td class=\"n\">0.370</td>");
}

static void a_copy_is_a_column_only_where_something_is_copied(void **at)
{
    const char *doc = HEAD PAIR ",\"recipes\":{\"token\":\"none\",\"objects\":[{"
                                "\"title\":\"K\",\"lambda\":0.01,\"absolute\":true,"
                                "\"layers\":[{\"layer\":7,\"sources\":[9,3],"
                                "\"r2_held\":0.5}]}]}}";
    const char *part = section(*at, page_of(*at, parse(*at, doc)), "recipes");
    check_contains(part, "No map is told which token a row is of.");
    check_contains(part, "<td>7</td><td>3, 9</td>");
    check_contains(part, "<sup>2</sup> absolute");
    const char *folded = strstr(part, "<details>");
    assert_non_null(folded);
    check_contains(folded, "<td>9, 3</td>"); /* best first */
    assert_true(strstr(part, "R² as copied") > folded);
}

static void training_shows_the_closed_form_and_the_best_step(void **at)
{
    const char *part = section(*at, page_of(*at, sample(*at)), "training");
    check_contains(part, "closed form</text>");
    check_contains(part, "best: step 300</text>");
    check_contains(part, ">validation</text>");
    check_contains(part, ">training</text>");
    check_contains(part, "611\u00a0s");
    check_contains(part, "nothing was learned yet");
}

static void layers_with_gaps_keep_their_numbers(void **at)
{
    const kvm_str html = page_of(*at, sample(*at));
    const char *linear = section(*at, html, "linearity");
    check_contains(linear, "<h3>K, V</h3>");
    check_contains(linear, "<h3>input</h3>");
    check_contains(linear, "13 \u2192 21: 0.410");
    check_contains(linear, "layer 24</text>");
    check_contains(linear, "chosen, V</text>"); /* another lambda than that of K */
    const char *layers = section(*at, html, "layers");
    check_contains(layers, "state R² held-out");
    assert_null(strstr(layers, "state R² in-sample")); /* none has it */
    check_contains(layers, "no such map");
}

static void a_table_has_one_unit_of_time(void **at)
{
    const char *doc = HEAD PAIR
        ",\"timing\":{\"points\":["
        "{\"tokens\":64,\"cold\":{\"value\":0.9,\"low\":0.0009,\"high\":1.5},"
        "\"switch\":0.0031},{\"tokens\":128,\"cold\":20.5,\"switch\":0.0042}]}}";
    const char *part = section(*at, page_of(*at, parse(*at, doc)), "timing");
    const char *table = strstr(part, "<table");
    assert_non_null(table);
    check_contains(table, ">900\u00a0ms <small>[0.900, 1,500]</small>");
    check_contains(table, ">20,500\u00a0ms<");
    check_contains(table, ">3.10\u00a0ms<");
    assert_null(strstr(table, "\u00a0s<"));
}

/* ---- refusals ---- */

#define GROUP(members) ",\"linearity\":{\"groups\":[{" members "}]}}"

static const struct {
    const char *doc, *says;
    kvm_status status;
} bad[] = {
    {"[]", "expected an object", KVM_FORMAT},
    {"{\"format\":\"other\",\"version\":1}", "format is \"other\"", KVM_FORMAT},
    {"{\"format\":\"kvmill.report\",\"version\":1}", "version 1", KVM_VERSION},
    {HEAD PAIR ",\"suits\":[]}", "nearest: suites", KVM_FORMAT},
    {HEAD "\"pair\":{\"name\":\"x\"}}", "pair.source", KVM_FORMAT},
    {HEAD "\"pair\":{\"source\":{\"name\":\"A\"},\"target\":{\"name\":\"B\"}}}",
     "pair.name", KVM_FORMAT},
    {HEAD PAIR ",\"timing\":5}", "timing", KVM_FORMAT},
    {HEAD PAIR ",\"gates\":[{\"verdict\":\"maybe\"}]}", "gates[0].verdict", KVM_FORMAT},
    {HEAD PAIR ",\"gates\":[{\"verdict\":\"pass\",\"value\":\"x\"}]}", "value",
     KVM_FORMAT},
    {HEAD PAIR ",\"suites\":[{\"name\":\"s\",\"arms\":{\"closedform\":{}}}]}",
     "nearest: closed_form", KVM_FORMAT},
    {HEAD PAIR ",\"suites\":[{\"name\":\"s\",\"better\":\"up\"}]}", "better",
     KVM_FORMAT},
    {HEAD PAIR ",\"suites\":[{\"name\":\"s\",\"format\":\"pct\"}]}", "format",
     KVM_FORMAT},
    {HEAD PAIR GROUP("\"maps\":[{\"r2\":[[1,2],[1]]}]"), "1 entries where 2 belong",
     KVM_FORMAT},
    {HEAD PAIR GROUP("\"maps\":[{\"r2\":[[1,2]],\"target_layers\":[3]}]"),
     "target_layers: 1 entries where 2 belong", KVM_FORMAT},
    {HEAD PAIR GROUP("\"k\":{\"k\":[1,2],\"series\":[{\"r2\":[1]}]}"),
     "1 entries where 2 belong", KVM_FORMAT},
    {HEAD PAIR ",\"recipes\":{\"token\":\"guessed\"}}", "recipes.token: \"guessed\"",
     KVM_FORMAT},
    {HEAD PAIR ",\"layers\":{\"objects\":[{\"object\":\"k\"}],\"arms\":[{\"arm\":"
               "\"mlp\",\"rows\":[{\"r2\":[1,2]}]}]}}",
     "2 entries where 1 belong", KVM_FORMAT},
    {HEAD PAIR
     ",\"ablations\":{\"columns\":[{\"title\":\"a\"}],\"rows\":[{\"cells\":[]}"
     "]}}",
     "0 entries where 1 belong", KVM_FORMAT},
    {HEAD PAIR ",\"analyses\":{\"suites\":[{\"translator\":\"closed\"}]}}",
     "\"closed\" is no arm", KVM_FORMAT},
    {HEAD PAIR ",\"analyses\":{\"tails\":[{\"switches\":3}]}}", "switches", KVM_FORMAT},
    {HEAD PAIR ",\"alternation\":{\"translator\":\"lucky\"}}",
     "alternation: \"lucky\" is no arm", KVM_FORMAT},
    {HEAD PAIR
     ",\"alternation\":{\"translator\":\"distilled\",\"conditions\":[{\"turns\":"
     "[7]}]}}",
     "turns", KVM_FORMAT},
    {HEAD PAIR ",\"inversion\":{\"series\":[{\"layers\":[1]}]}}", "layers", KVM_FORMAT},
    {HEAD PAIR ",\"build\":{\"steps\":[{\"title\":\"fit\",\"serves\":\"all\"}]}}",
     "build.steps[0].serves: \"all\"", KVM_FORMAT},
    {HEAD PAIR ",\"build\":{\"steps\":[{\"title\":\"fit\"}]}}", "serves: \"\"",
     KVM_FORMAT},
    {HEAD PAIR ",\"absent\":{\"tming\":\"x\"}}", "tming", KVM_FORMAT},
    {HEAD PAIR ",\"provenance\":[{\"rows\":[[\"only one\"]]}]}", "2 belong",
     KVM_FORMAT},
};

static void wrong_documents_are_refused_with_the_place(void **at)
{
    state *s = *at;
    for (size_t i = 0; i < COUNT(bad); i++) {
        kvm_text out = {0};
        kvm_err err = {0};
        const kvm_jat doc = parse(s, bad[i].doc);
        check_status(bad[i].status, kvm_page_html(&out, doc, s->scratch, &err), &err);
        check_contains(err.msg, bad[i].says);
        kvm_text_free(&out);
    }
}

static void spent_arena_is_an_error(void **at)
{
    state *s = *at;
    const kvm_jat doc = sample(s);
    for (size_t bytes = 64; bytes < 400000; bytes = bytes * 2 + 40) {
        kvm_text out = {0};
        kvm_err err = {0};
        kvm_arena all = s->scratch;
        const kvm_arena small = kvm_arena_split(&all, bytes);
        const kvm_status got = kvm_page_html(&out, doc, small, &err);
        if (got) assert_int_equal(got, KVM_NOMEM);
        if (bytes < 4000) assert_int_equal(got, KVM_NOMEM);
        kvm_text_free(&out);
    }
}

/* ---- files ---- */

static void publishes_page_json_and_csv(void **at)
{
    static const char *const names[] = {
        "html",          "json",           "gates.csv",    "quality.csv",
        "needle.csv",    "timing.csv",     "stages.csv",   "build.csv",
        "amortise.csv",  "linearity.csv",  "greedy.csv",   "sweeps.csv",
        "layers.csv",    "ablations.csv",  "analyses.csv", "tails.csv",
        "inversion.csv", "provenance.csv", "recipes.csv",  "training.csv",
        "curve.csv",     "answers.csv",    "findings.csv", "alternation.csv",
        "turns.csv"};
    state *s = *at;
    kvm_err err = {0};
    const kvm_jat doc = sample(s);
    check_ok(kvm_report_publish(KVM_STR(DIR), doc, s->scratch, &err), &err);
    for (size_t i = 0; i < COUNT(names); i++) {
        kvm_str text;
        const kvm_str path =
            kvm_str_fmt(&s->keep, DIR "/sample-small-large.%s", names[i]);
        check_ok(kvm_file_read(&text, &s->keep, path, (size_t)8 << 20, &err), &err);
        assert_in_range(text.len, 40, 4 << 20);
    }
    kvm_jat again;
    check_ok(
        kvm_json_read(&again, &s->keep, KVM_STR(DIR "/sample-small-large.json"), &err),
        &err);
    kvm_str before, after;
    check_ok(kvm_json_canonical(&before, &s->keep, doc.v, &err), &err);
    check_ok(kvm_json_canonical(&after, &s->keep, again.v, &err), &err);
    assert_true(kvm_str_eq(before, after));
}

static void names_that_leave_the_folder_are_refused(void **at)
{
    state *s = *at;
    static const char *const names[] = {"../x", "a/b", ".x", "a\\\\b"};
    for (size_t i = 0; i < COUNT(names); i++) {
        kvm_err err = {0};
        const kvm_str doc = kvm_str_fmt(
            &s->keep,
            HEAD "\"pair\":{\"name\":\"%s\",\"source\":{\"name\":\"A\"},\"target\":{"
                 "\"name\":\"B\"}}}",
            names[i]);
        check_status(
            KVM_FORMAT,
            kvm_report_publish(KVM_STR(DIR), parse(s, doc.at), s->scratch, &err), &err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sample_has_every_section, begin, end),
        cmocka_unit_test_setup_teardown(the_verdict_speaks_first, begin, end),
        cmocka_unit_test_setup_teardown(empty_document_is_a_whole_page, begin, end),
        cmocka_unit_test_setup_teardown(any_part_may_be_missing, begin, end),
        cmocka_unit_test_setup_teardown(nulls_are_said_to_be_missing, begin, end),
        cmocka_unit_test_setup_teardown(hostile_names_are_text, begin, end),
        cmocka_unit_test_setup_teardown(recipes_name_layers_and_token, begin, end),
        cmocka_unit_test_setup_teardown(
            a_copy_is_a_column_only_where_something_is_copied, begin, end),
        cmocka_unit_test_setup_teardown(
            training_shows_the_closed_form_and_the_best_step, begin, end),
        cmocka_unit_test_setup_teardown(layers_with_gaps_keep_their_numbers, begin,
                                        end),
        cmocka_unit_test_setup_teardown(a_table_has_one_unit_of_time, begin, end),
        cmocka_unit_test_setup_teardown(wrong_documents_are_refused_with_the_place,
                                        begin, end),
        cmocka_unit_test_setup_teardown(spent_arena_is_an_error, begin, end),
        cmocka_unit_test_setup_teardown(publishes_page_json_and_csv, begin, end),
        cmocka_unit_test_setup_teardown(names_that_leave_the_folder_are_refused, begin,
                                        end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
