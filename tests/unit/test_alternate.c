/* Conversations of two models, run in this process: what each line's tokens come from,
 * which conditions must agree, that a killed job goes on to the same bits. */
#include <stdlib.h>
#include <string.h>

#include "jobs/alternate_lines.h"
#include "reports/page.h"
#include "tests/support/check.h"
#include "tests/support/host.h"

#define SPEC(source, target)                                                           \
    "source: ../../tests/zoo/" source "\ntarget: ../../tests/zoo/" target              \
    "\ncalibration: {text: calibration, sequences: 16, tokens: 128}\n"                 \
    "fit: {allow_wide: true, k: 1, lambda: 1e-3, sweep: false}\n"                      \
    "alternate: {suite: dialogues, items: 2, turns: 5, refresh: 4}\n"

enum { TURNS = 5 };
static host h;

static int setup(void **state)
{
    *state = &h;
    host_open(&h, "alternate", "name: mla-kda\n" SPEC("mla", "kda"));
    host_run_to(&h, h.graph.count - 1);
    return 0;
}

static kvm_str items_of(host *of)
{
    const ptrdiff_t node = host_node(of, "alternate dialogues");
    return check_read(&of->keep, host_output(of, node, "items").at);
}

/* line i of the items */
static const json_t *line_of(host *of, ptrdiff_t i)
{
    kvm_err err = {0};
    kvm_jat line;
    kvm_str text = items_of(of), at = {0};
    for (ptrdiff_t n = 0; n <= i; n++) assert_true(kvm_str_cut(text, '\n', &at, &text));
    check_ok(kvm_json_parse(&line, &of->keep, at, KVM_STR("items"), &err), &err);
    return line.v;
}

/* what the line says of one turn of a condition, under `key` */
static const json_t *turn_of(const json_t *line, const char *key, const char *condition,
                             int turn)
{
    char arm[32];
    snprintf(arm, sizeof arm, "%s.%d", condition, turn);
    const json_t *v = json_object_get(json_object_get(line, key), arm);
    if (!v) fail_msg("no %s of %s", key, arm);
    return v;
}

static void check_same_turn(const json_t *line, const char *a, const char *b, int turn)
{
    static const char *const keys[] = {"scores", "said"};
    for (int k = 0; k < 2; k++)
        if (!json_equal(turn_of(line, keys[k], a, turn),
                        turn_of(line, keys[k], b, turn)))
            fail_msg("turn %d: %s of %s and %s differ", turn, keys[k], a, b);
}

/* Until two conditions part, they are one conversation. */
static void conditions_agree_until_they_part(void **state)
{
    (void)state;
    for (ptrdiff_t i = 0; i < 2; i++) {
        const json_t *line = line_of(&h, i);
        check_same_turn(line, "segment", "native", 1);
        check_same_turn(line, "naive", "segment", 1);
        check_same_turn(line, "naive", "segment", 2);
        for (int turn = 1; turn <= 4; turn++)
            check_same_turn(line, "refresh", "segment", turn);
    }
}

static json_int_t count(const json_t *line, const char *condition, const char *what,
                        size_t side)
{
    const json_t *c = json_object_get(json_object_get(line, "lines"), condition);
    return json_integer_value(json_array_get(json_object_get(c, what), side));
}

/* Segments: each token of the story and of the turns is read by one model and
 * translated into the other's line at most once. All again: more each time. */
static void nothing_is_translated_twice(void **state)
{
    (void)state;
    for (ptrdiff_t i = 0; i < 2; i++) {
        const json_t *l = line_of(&h, i);
        const json_int_t read = count(l, "segment", "read", 0),
                         whole = read + count(l, "segment", "translated", 0);
        /* the target's line ends before the last turn, which the source reads */
        assert_true(count(l, "segment", "read", 1) +
                        count(l, "segment", "translated", 1) <
                    whole);
        assert_true(count(l, "segment", "translated", 0) ==
                    count(l, "segment", "read", 1));
        assert_true(count(l, "segment", "translated", 1) < read);
        assert_true(count(l, "naive", "translated", 0) >
                    count(l, "segment", "translated", 0));
        assert_true(count(l, "native", "translated", 0) == 0);
        assert_true(count(l, "native", "read", 0) > whole);
        /* one re-read of all that stood before turn 5, in place of one segment */
        assert_true(count(l, "refresh", "read", 0) > read);
        assert_true(count(l, "refresh", "translated", 0) <
                    count(l, "segment", "translated", 0));
    }
}

static kvm_apply *apply_of(kvm_arena *keep, const char *fit, kvm_model *from,
                           kvm_model *to)
{
    kvm_err err = {0};
    kvm_apply *a = NULL;
    kvm_translator *t = kvm_new(keep, kvm_translator, 1);
    const kvm_str path = host_output(&h, host_node(&h, fit), "translator");
    check_ok(kvm_translator_open(t, keep, path, &err), &err);
    check_ok(kvm_apply_new(&a, keep, kvm_model_compute(to), t, from, to, NULL, &err),
             &err);
    return a;
}

/* every line holds the tokens that went into it, after each catch-up all there are */
static void lines_hold_what_they_took(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/zoo/mla", "tests/zoo/kda"};
    const int32_t story[] = {5, 300, 41, 7, 900, 12, 77, 1500, 3, 64};
    const int32_t question[] = {9, 411, 23};
    const kvm_item item = {0};
    kvm_arena arena = check_arena((size_t)4 << 30);
    kvm_err err = {0};
    kvm_compute *c;
    kvm_model *m[KVM_SIDES];
    kvm_lines l;
    check_ok(kvm_compute_new(&c, &arena, kvm_backend_find(KVM_STR("cpu")), 2, &err),
             &err);
    for (int i = 0; i < KVM_SIDES; i++)
        check_ok(kvm_model_open(&m[i], &arena, c, kvm_str_of(paths[i]),
                                &(kvm_model_options){0}, &err),
                 &err);
    kvm_apply *const into[KVM_SIDES] = {
        apply_of(&arena, "fit back mla-kda", m[1], m[0]),
        apply_of(&arena, "fit mla-kda", m[0], m[1])};
    check_ok(kvm_lines_new(&l, &arena, m, into, 80, &err), &err);
    check_ok(kvm_lines_begin(&l, story, COUNT(story), &err), &err);
    float *logits = kvm_new_raw(&arena, float, kvm_model_info_of(m[0])->vocab);
    for (int turn = 1; turn <= TURNS; turn++) {
        const kvm_side side = turn % 2 ? KVM_SOURCE : KVM_TARGET;
        kvm_line *line = &l.line[side];
        double seconds;
        kvm_answer answer;
        check_ok(kvm_lines_catch_up(
                     &l, side, turn == 1 ? KVM_CATCH_UP_READ : KVM_CATCH_UP_SEGMENT,
                     &seconds, &err),
                 &err);
        assert_int_equal(kvm_cache_length(line->cache), l.n);
        check_ok(kvm_lines_ask(&l, side, question, COUNT(question), logits, &err),
                 &err);
        check_ok(kvm_lines_answer(&l, side, &item, 4, logits, &answer, &arena, &err),
                 &err);
        assert_int_equal(kvm_cache_length(line->cache), l.n);
        assert_int_equal(line->read + line->translated, l.n);
    }
    check_status(KVM_RANGE, kvm_lines_begin(&l, story, 81, &err), &err);
    kvm_arena_free(&arena);
}

/* A model that hands its cache to itself says what it says anyway. */
static void a_model_with_itself_gives_native_answers(void **state)
{
    (void)state;
    host same;
    host_open(&same, "alternate_same",
              "name: twins\nsource: ../../tests/zoo/small\n"
              "target: ../../tests/zoo/small\n"
              "calibration: {text: calibration, sequences: 40, tokens: 128}\n"
              "fit: {allow_wide: true, k: 1, lambda: 1e-9, sweep: false}\n"
              "alternate: {suite: dialogues, items: 2, turns: 5, refresh: 2}\n");
    host_run_to(&same, same.graph.count - 1);
    static const char *const conditions[] = {"segment", "naive", "refresh"};
    for (ptrdiff_t i = 0; i < 2; i++)
        for (size_t c = 0; c < COUNT(conditions); c++)
            for (int turn = 1; turn <= TURNS; turn++) {
                const json_t *line = line_of(&same, i);
                const json_t *mine = turn_of(line, "said", conditions[c], turn);
                if (!json_equal(mine, turn_of(line, "said", "native", turn)))
                    fail_msg("%s, turn %d: \"%s\"", conditions[c], turn,
                             json_string_value(mine));
            }
    host_close(&same);
}

/* an attempt that was killed after one dialogue gives the same bits as one that was
 * not, whatever its seconds */
static void a_killed_conversation_goes_on(void **state)
{
    (void)state;
    kvm_err err = {0};
    const ptrdiff_t node = host_node(&h, "alternate dialogues");
    const kvm_str whole = items_of(&h);
    const ptrdiff_t first = kvm_str_find(whole, KVM_STR("\n")) + 1;
    const json_t *times = host_json(&h, node, "seconds").v;
    char *one =
        json_dumps(json_array_get(json_object_get(times, "items"), 0), JSON_COMPACT);
    const kvm_str left = kvm_str_fmt(&h.keep, "%s\n", one);
    free(one);
    host_leave(&h, "items.jsonl", kvm_str_slice(whole, 0, first));
    host_leave(&h, "seconds.jsonl", left);
    check_ok(host_run(&h, node, &err), &err);
    assert_true(kvm_str_eq(whole, items_of(&h)));
    times = host_json(&h, node, "seconds").v;
    assert_int_equal(json_array_size(json_object_get(times, "items")), 2);
}

/* the report's figures are means over the dialogues of the items' scores */
static void the_report_shows_turns(void **state)
{
    (void)state;
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v;
    const json_t *part = json_object_get(doc, "alternation");
    const json_t *naive = json_array_get(json_object_get(part, "conditions"), 2);
    const json_t *turn = json_array_get(json_object_get(naive, "turns"), 3);
    double want = 0;
    for (ptrdiff_t i = 0; i < 2; i++)
        want += json_number_value(json_object_get(
                    turn_of(line_of(&h, i), "scores", "naive", 4), "f1")) /
                2;
    assert_string_equal(json_string_value(json_object_get(naive, "key")), "naive");
    assert_string_equal(json_string_value(json_object_get(turn, "model")), "target");
    const double is =
        json_number_value(json_object_get(json_object_get(turn, "f1"), "value"));
    assert_true(is > want - 1e-9 && is < want + 1e-9);
    assert_int_equal(json_integer_value(json_object_get(part, "dialogues")), 2);
}

/* what catching up took is a median with its quartiles, as every other time */
static void seconds_have_a_spread(void **state)
{
    (void)state;
    kvm_err err = {0};
    double so_far = 0;
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v;
    const json_t *all =
        json_object_get(json_object_get(doc, "alternation"), "conditions");
    const json_t *turns = json_object_get(json_array_get(all, 0), "turns");
    for (size_t t = 0; t < TURNS; t++) {
        const json_t *turn = json_array_get(turns, t);
        const json_t *now = json_object_get(turn, "seconds"),
                     *sum = json_object_get(turn, "seconds_so_far");
        const double value = json_number_value(json_object_get(now, "value"));
        assert_true(json_number_value(json_object_get(now, "low")) <= value);
        assert_true(json_number_value(json_object_get(now, "high")) >= value);
        assert_true(json_number_value(json_object_get(sum, "value")) > so_far);
        so_far = json_number_value(json_object_get(sum, "value"));
    }
    /* a page drawn of it has the interval */
    kvm_text html = {0};
    check_ok(
        kvm_page_html(&html, host_json(&h, h.graph.count - 1, "json"), h.keep, &err),
        &err);
    check_contains(kvm_text_str(&html).at, "Catching up, in all");
    kvm_text_free(&html);
}

/* the suite of the conversations is among what the spec names, and nothing stands under
 * the name that jobs have for it */
static void provenance_names_the_dialogues(void **state)
{
    (void)state;
    const json_t *doc = host_json(&h, h.graph.count - 1, "json").v, *group, *row;
    bool dialogues = false;
    size_t g, r;
    json_array_foreach(json_object_get(doc, "provenance"), g, group)
    {
        json_array_foreach(json_object_get(group, "rows"), r, row)
        {
            const char *name = json_string_value(json_array_get(row, 0));
            dialogues |= strcmp(name, "suite dialogues") == 0;
            if (strchr(name, '_') || strncmp(name, "cost.", 5) == 0)
                fail_msg("\"%s\" is no name for people", name);
        }
    }
    assert_true(dialogues);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conditions_agree_until_they_part),
        cmocka_unit_test(nothing_is_translated_twice),
        cmocka_unit_test(lines_hold_what_they_took),
        cmocka_unit_test(a_model_with_itself_gives_native_answers),
        cmocka_unit_test(the_report_shows_turns),
        cmocka_unit_test(seconds_have_a_spread),
        cmocka_unit_test(provenance_names_the_dialogues),
        cmocka_unit_test(a_killed_conversation_goes_on),
    };
    return cmocka_run_group_tests(tests, setup, host_teardown);
}
