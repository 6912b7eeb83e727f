/* report_alternation.c - conversations of two models: every condition's scores by turn,
 * and how they differ from re-reading and from translating the new segment, paired by
 * dialogue. */
#include "jobs/alternate.h"
#include "jobs/report_parts.h"

typedef struct conversations {
    kvm_report_builder *b;
    const json_t *items;   /* lines of the job */
    const json_t *seconds; /* likewise, with what catching up took */
    ptrdiff_t n, turns;
    kvm_arena scratch; /* of one figure */
} conversations;

static const json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* a metric of one turn of every dialogue; turn 0: the mean of all turns. NULL with a
 * message when one lacks it */
static kvm_status column(double **out, const conversations *v, kvm_condition c,
                         ptrdiff_t turn, const char *metric, kvm_arena *scratch,
                         kvm_err *err)
{
    const ptrdiff_t first = turn ? turn : 1, last = turn ? turn : v->turns;
    double *x = kvm_new(scratch, double, v->n + 1);
    if (!x) return kvm_nomem(err, scratch);
    for (ptrdiff_t t = first; t <= last; t++) {
        kvm_str arm = kvm_str_fmt(scratch, "%s.%td", kvm_conditions[c].key, t);
        if (!arm.at) return kvm_nomem(err, scratch);
        for (ptrdiff_t i = 0; i < v->n; i++) {
            const json_t *line = json_array_get(v->items, (size_t)i);
            const json_t *score = get(get(get(line, "scores"), arm.at), metric);
            if (!json_is_number(score))
                return kvm_fail(err, KVM_MISMATCH,
                                "%s of %s is missing of dialogue %td", metric, arm.at,
                                i + 1);
            x[i] += json_number_value(score) / (double)(last - first + 1);
        }
    }
    *out = x;
    return KVM_OK;
}

/* score: the metric's mean; versus: less that of condition `base` */
static kvm_status compare(kvm_est *score, kvm_est *versus, const conversations *v,
                          kvm_condition c, kvm_condition base, ptrdiff_t turn,
                          const char *metric, kvm_err *err)
{
    kvm_arena scratch = v->scratch;
    double *x, *y;
    TRY(column(&x, v, c, turn, metric, &scratch, err));
    TRY(column(&y, v, base, turn, metric, &scratch, err));
    const kvm_pair_of_scores p = {.item = x, .base = y, .n = v->n, .seed = v->b->seed};
    return kvm_paired(score, versus, &p, scratch, err);
}

/* the metric under `key` */
static kvm_status add_mean(const conversations *v, json_t *to, kvm_condition c,
                           ptrdiff_t turn, const char *metric, const char *key,
                           kvm_err *err)
{
    kvm_est score, none;
    TRY(compare(&score, &none, v, c, c, turn, metric, err));
    json_object_set_new(to, key, kvm_est_json(score));
    return KVM_OK;
}

/* what the metric differs by from the two conditions that others are held against:
 * native and segment are keys of `keys` in this order */
static kvm_status add_versus(const conversations *v, json_t *to, kvm_condition c,
                             ptrdiff_t turn, const char *metric,
                             const char *const keys[2], kvm_err *err)
{
    static const kvm_condition bases[] = {KVM_CONDITION_NATIVE, KVM_CONDITION_SEGMENT};
    for (int i = 0; i < 2; i++) {
        kvm_est score, versus;
        TRY(compare(&score, &versus, v, c, bases[i], turn, metric, err));
        if (c == bases[i])
            versus = kvm_est_missing(KVM_STR("the condition to compare with"));
        json_object_set_new(to, keys[i], kvm_est_json(versus));
    }
    return KVM_OK;
}

static const char *const versus_keys[] = {"versus_native", "versus_segment"};
static const char *const gold_versus_keys[] = {"gold_versus_native",
                                               "gold_versus_segment"};

/* the median over the dialogues of what turns first..last took, with its quartiles,
 * under `key` */
static kvm_status add_seconds(const conversations *v, json_t *to, kvm_condition c,
                              ptrdiff_t first, ptrdiff_t last, const char *key,
                              kvm_err *err)
{
    kvm_arena scratch = v->scratch;
    double *x = kvm_new(&scratch, double, v->n + 1);
    if (!x) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < v->n; i++) {
        const json_t *line = json_array_get(v->seconds, (size_t)i);
        const json_t *turns = get(line, kvm_conditions[c].key);
        for (ptrdiff_t turn = first; turn <= last; turn++) {
            const json_t *one = json_array_get(turns, (size_t)(turn - 1));
            if (!json_is_number(one))
                return kvm_fail(err, KVM_MISMATCH,
                                "seconds of %s, turn %td are missing",
                                kvm_conditions[c].key, turn);
            x[i] += json_number_value(one);
        }
    }
    json_object_set_new(to, key, kvm_est_json(kvm_median(x, v->n, scratch)));
    return KVM_OK;
}

static kvm_status add_turn(const conversations *v, json_t *turns, kvm_condition c,
                           ptrdiff_t turn, kvm_err *err)
{
    kvm_est tokens, none;
    json_t *t = json_pack("{s:I, s:s}", "turn", (json_int_t)turn, "model",
                          turn % 2 ? "source" : "target");
    json_array_append_new(turns, t);
    TRY(add_mean(v, t, c, turn, "f1", "f1", err));
    TRY(add_versus(v, t, c, turn, "f1", versus_keys, err));
    TRY(add_mean(v, t, c, turn, "gold_in_answer", "gold", err));
    TRY(add_mean(v, t, c, turn, "first_kl", "first_kl", err));
    TRY(compare(&tokens, &none, v, c, c, turn, "answer_tokens", err));
    json_object_set_new(t, "answer_tokens", json_real(tokens.value));
    TRY(add_seconds(v, t, c, turn, turn, "seconds", err));
    return add_seconds(v, t, c, 1, turn, "seconds_so_far", err);
}

static kvm_status add_condition(const conversations *v, json_t *list, kvm_condition c,
                                kvm_err *err)
{
    json_t *turns = json_array();
    json_t *row = json_pack("{s:s, s:s, s:o}", "key", kvm_conditions[c].key, "title",
                            kvm_conditions[c].title, "turns", turns);
    json_array_append_new(list, row);
    for (ptrdiff_t turn = 1; turn <= v->turns; turn++)
        TRY(add_turn(v, turns, c, turn, err));
    TRY(add_mean(v, row, c, 0, "f1", "f1", err));
    TRY(add_versus(v, row, c, 0, "f1", versus_keys, err));
    TRY(add_mean(v, row, c, 0, "gold_in_answer", "gold", err));
    return add_versus(v, row, c, 0, "gold_in_answer", gold_versus_keys, err);
}

static kvm_status load(conversations *v, json_t **figures, const kvm_job_input *in,
                       kvm_err *err)
{
    const kvm_job_input *of = kvm_job_find_input(v->b->job, "alternation_figures");
    const kvm_job_input *times = kvm_job_find_input(v->b->job, "alternation_seconds");
    json_t *items, *seconds;
    if (!of || !times)
        return kvm_fail(err, KVM_NOTFOUND, "the input alternation_%s is missing",
                        of ? "seconds" : "figures");
    TRY(kvm_report_load_lines(v->b, in, &items, err));
    TRY(kvm_report_load(v->b, of, figures, err));
    TRY(kvm_report_load(v->b, times, &seconds, err));
    v->items = items;
    v->seconds = get(seconds, "items");
    v->n = (ptrdiff_t)json_array_size(items);
    v->turns = (ptrdiff_t)json_integer_value(get(*figures, "turns"));
    return KVM_OK;
}

kvm_status kvm_report_alternation(kvm_report_builder *b, kvm_err *err)
{
    const kvm_job_input *in = kvm_job_find_input(b->job, "alternation");
    conversations v = {.b = b};
    json_t *figures, *list = json_array();
    if (!in) {
        json_decref(list);
        json_object_set_new(b->absent, "alternation",
                            json_string("the spec asks for none"));
        return KVM_OK;
    }
    json_t *part = json_pack("{s:o}", "conditions", list);
    json_object_set_new(b->doc, "alternation", part);
    TRY(load(&v, &figures, in, err));
    json_object_set(part, "suite", json_object_get(figures, "suite"));
    json_object_set(part, "refresh", json_object_get(figures, "refresh"));
    json_object_set_new(part, "dialogues", json_integer(v.n));
    json_object_set_new(part, "translator",
                        json_string(kvm_job_find_input(b->job, "distill")
                                        ? "distilled"
                                        : "closed_form"));
    TRY(kvm_arena_reserve(&v.scratch, (size_t)4 << 30, err));
    kvm_status s = KVM_OK;
    for (int c = 0; !s && c < KVM_CONDITION_COUNT; c++)
        s = add_condition(&v, list, (kvm_condition)c, err);
    kvm_arena_free(&v.scratch);
    return s;
}
