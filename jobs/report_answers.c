/* report_answers.c - how answers are given, whatever they say: a cache carries manners
 * over too, and neither KL nor accuracy shows it. */
#include "jobs/report_parts.h"

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* what score_item.h and evaluate.c say of an answer, by its name in the document */
static const struct {
    const char *metric, *name;
} rows[] = {{"answer_tokens", "tokens"},
            {"answer_blank", "blank"},
            {"answer_empty", "empty"},
            {"first_agreement", "first_agreement"}};

static bool answered(const json_t *items, kvm_arm arm)
{
    const json_t *scores = get(json_array_get(items, 0), "scores");
    return get(get(scores, kvm_arms[arm].key), rows[0].metric) != NULL;
}

static kvm_status add_arm(const kvm_report_builder *b, const json_t *items, kvm_arm arm,
                          json_t *arms, kvm_arena scratch, kvm_err *err)
{
    const char *key = kvm_arms[arm].key;
    json_t *row = json_object();
    json_object_set_new(arms, key, row);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kvm_arena room = scratch;
        double *x, *own;
        kvm_est mean, versus;
        TRY(kvm_report_column(&x, items, key, rows[i].metric, &room, err));
        TRY(kvm_report_column(&own, items, kvm_arms[KVM_ARM_NATIVE].key, rows[i].metric,
                              &room, err));
        const kvm_pair_of_scores p = {.item = x,
                                      .base = own,
                                      .n = (ptrdiff_t)json_array_size(items),
                                      .seed = b->seed};
        TRY(kvm_paired(&mean, &versus, &p, room, err));
        json_object_set_new(row, rows[i].name, kvm_est_json(mean));
        if (i == 0) json_object_set_new(row, "versus_native", kvm_est_json(versus));
    }
    return KVM_OK;
}

static kvm_status add_suite(kvm_report_builder *b, json_t *answers,
                            const kvm_job_input *in, const char *suite,
                            kvm_arena scratch, kvm_err *err)
{
    json_t *items;
    TRY(kvm_report_load_lines(b, in, &items, err));
    if (!answered(items, KVM_ARM_NATIVE)) return KVM_OK;
    json_t *arms = json_object();
    json_array_append_new(answers,
                          json_pack("{s:s, s:I, s:o}", "suite", suite, "items",
                                    (json_int_t)json_array_size(items), "arms", arms));
    for (kvm_arm arm = 0; arm < KVM_ARM_COUNT; arm++)
        if (answered(items, arm)) TRY(add_arm(b, items, arm, arms, scratch, err));
    return KVM_OK;
}

static kvm_status add_suites(kvm_report_builder *b, json_t *answers, kvm_arena scratch,
                             kvm_err *err)
{
    const kvm_job_input *items, *figures_in;
    const char *rest;
    for (ptrdiff_t i = 0; (items = kvm_report_nth(b, "items", i, &rest)); i++) {
        json_t *figures;
        TRY(kvm_report_beside(b, "figures", rest, &figures_in, err));
        TRY(kvm_report_load(b, figures_in, &figures, err));
        TRY(add_suite(b, answers, items, json_string_value(get(figures, "suite")),
                      scratch, err));
    }
    return KVM_OK;
}

kvm_status kvm_report_answers(kvm_report_builder *b, kvm_err *err)
{
    json_t *answers = json_array();
    kvm_arena scratch = {0};
    json_object_set_new(b->doc, "answers", answers);
    TRY(kvm_arena_reserve(&scratch, (size_t)4 << 30, err));
    const kvm_status s = add_suites(b, answers, scratch, err);
    kvm_arena_free(&scratch);
    if (!json_array_size(answers))
        json_object_set_new(b->absent, "answers",
                            json_string("no suite of the spec asks for answers"));
    return s;
}
