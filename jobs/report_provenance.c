/* report_provenance.c - where a report comes from: hashes of all that went into it,
 * under names that people read, and the program. */
#include <string.h>

#include "base/build.h"
#include "base/hash.h"
#include "jobs/ablations.h"
#include "jobs/report_parts.h"

static void add_row(json_t *rows, const char *name, const char *value)
{
    json_array_append_new(rows, json_pack("[s, s]", name, value ? value : "unknown"));
}

/* ---- the job's inputs ---- */

/* Inputs of one name, or, with a trailing dot, of any number: what follows the dot, in
 * words, ends the title. */
typedef const char *rest_title(kvm_report_builder *b, const char *rest, kvm_err *err);

/* the name of the suite that the numbered input figures.REST is of */
static const char *suite_of(kvm_report_builder *b, const char *figures,
                            const char *rest, kvm_err *err)
{
    const kvm_job_input *in;
    json_t *v;
    if (kvm_report_beside(b, figures, rest, &in, err)) return NULL;
    if (kvm_report_load(b, in, &v, err)) return NULL;
    return json_string_value(json_object_get(v, "suite"));
}

static const char *evaluated(kvm_report_builder *b, const char *rest, kvm_err *err)
{
    return suite_of(b, "figures", rest, err);
}

static const char *analysed(kvm_report_builder *b, const char *rest, kvm_err *err)
{
    return suite_of(b, "analysis_figures", rest, err);
}

/* "no_token.needle" -> "needle, without token identity" */
static const char *ablated(kvm_report_builder *b, const char *rest, kvm_err *err)
{
    kvm_str name, suite;
    const kvm_ablation *a = NULL;
    if (!kvm_str_cut(kvm_str_of(rest), '.', &name, &suite)) return rest;
    const bool whole = kvm_str_eq(name, KVM_STR("none"));
    if (!whole && kvm_ablation_find(&a, name, (kvm_jat){.file = "report"}, err))
        return NULL;
    return kvm_str_fmt(b->job->keep, "%.*s, %s", KVM_STR_ARG(suite),
                       whole ? "complete closed form" : a->title)
        .at;
}

/* the ablation's title, of its name */
static const char *ablation(kvm_report_builder *b, const char *rest, kvm_err *err)
{
    (void)b;
    const kvm_ablation *a;
    const kvm_jat at = {.file = "report"};
    return kvm_ablation_find(&a, kvm_str_of(rest), at, err) ? NULL : a->title;
}

static const char *candidate(kvm_report_builder *b, const char *rest, kvm_err *err)
{
    (void)err;
    const kvm_str step = kvm_str_fmt(b->job->keep, "fit %s", rest);
    return step.at ? kvm_report_step_title(b, step.at) : NULL;
}

static const char *step(kvm_report_builder *b, const char *rest, kvm_err *err)
{
    (void)err;
    return kvm_report_step_title(b, rest);
}

static const struct {
    const char *input, *title;
    rest_title *rest;
} inputs[] = {
    {"fit", "figures of the fit", NULL},
    {"translator", "translator, closed form", NULL},
    {"candidate.", "translator that was tried: ", candidate},
    {"mlp", "figures of the MLP maps", NULL},
    {"mlp_translator", "translator, MLP maps", NULL},
    {"distill", "figures of the distillation", NULL},
    {"distilled", "translator, distilled", NULL},
    {"items.", "scores by item: ", evaluated},
    {"figures.", "conditions of the scores: ", evaluated},
    {"ablation.", "scores by item, ablation: ", ablated},
    {"ablation_translator.", "translator, ablation: ", ablation},
    {"analysis.", "scores by item, caches taken apart: ", analysed},
    {"analysis_figures.", "conditions, caches taken apart: ", analysed},
    {"inversion", "tokens read out of caches", NULL},
    {"alternation", "conversations: scores by dialogue", NULL},
    {"alternation_figures", "conversations: conditions", NULL},
    {"alternation_seconds", "conversations: seconds", NULL},
    {"back_translator", "translator of the way back, closed form", NULL},
    {"back_distilled", "translator of the way back, distilled", NULL},
    {"timing", "time to the first token", NULL},
    {"tails", "time to the first token, tails", NULL},
    {"cost.", "cost: ", step},
};

static kvm_status title_of(const char **title, kvm_report_builder *b, const char *input,
                           kvm_err *err)
{
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        const size_t n = strlen(inputs[i].input);
        if (!inputs[i].rest ? strcmp(input, inputs[i].input) != 0
                            : strncmp(input, inputs[i].input, n) != 0)
            continue;
        *title = inputs[i].title;
        if (!inputs[i].rest) return KVM_OK;
        const char *rest = inputs[i].rest(b, input + n, err);
        if (!rest) break;
        *title = kvm_str_fmt(b->job->keep, "%s%s", inputs[i].title, rest).at;
        return *title ? KVM_OK : kvm_nomem(err, b->job->keep);
    }
    return kvm_fail(err, KVM_USAGE, "the input %s has no title for people", input);
}

/* ---- all of it ---- */

/* what the spec names, and what the jobs made of it */
static kvm_status add_inputs(kvm_report_builder *b, json_t *named, json_t *made,
                             kvm_err *err)
{
    char sha[65];
    const char *name, *title;
    json_t *hash;
    const json_t *spec = kvm_report_param(b, "spec");
    const kvm_str text = {json_string_value(spec), (ptrdiff_t)json_string_length(spec)};
    TRY(kvm_sha_of(text, sha, err));
    add_row(named, "spec, as it stands", sha);
    add_row(named, "calibration text", json_string_value(kvm_report_param(b, "text")));
    json_object_foreach(kvm_report_param(b, "suites"), name, hash)
    {
        const kvm_str suite = kvm_str_fmt(b->job->keep, "suite %s", name);
        if (!suite.at) return kvm_nomem(err, b->job->keep);
        add_row(named, suite.at, json_string_value(hash));
    }
    for (ptrdiff_t i = 0; i < b->job->input_count; i++) {
        TRY(title_of(&title, b, b->job->inputs[i].name, err));
        add_row(made, title, b->job->inputs[i].sha);
    }
    return KVM_OK;
}

static void add_program(kvm_report_builder *b, json_t *rows)
{
    const char *rounds = json_string_value(kvm_report_param(b, "backend"));
    add_row(rows, "version", KVM_PROGRAM_VERSION);
    add_row(rows, "commit", kvm_build_commit);
    add_row(rows, "compiler", kvm_build_compiler);
    add_row(rows, "flags", kvm_build_flags);
    if (rounds) add_row(rows, "activations rounded by backend", rounds);
}

static json_t *add_group(json_t *groups, const char *title)
{
    json_t *rows = json_array();
    json_array_append_new(groups,
                          json_pack("{s:s, s:o}", "title", title, "rows", rows));
    return rows;
}

kvm_status kvm_report_provenance(kvm_report_builder *b, kvm_err *err)
{
    static const char *const sides[] = {"source", "target"};
    json_t *groups = json_array();
    json_object_set_new(b->doc, "provenance", groups);
    json_t *models =
        add_group(groups, "Models (SHA-256 over config, tokenizer, weights)");
    for (int i = 0; i < 2; i++) {
        const json_t *m = kvm_report_param(b, sides[i]);
        add_row(models, json_string_value(json_object_get(m, "name")),
                json_string_value(json_object_get(m, "fingerprint")));
    }
    json_t *named = add_group(groups, "Named by the spec (SHA-256)");
    TRY(add_inputs(b, named, add_group(groups, "Results of this run (SHA-256)"), err));
    add_program(b, add_group(groups, "Program"));
    if (json_array_size(b->backends))
        json_array_append_new(groups,
                              json_pack("{s:s, s:O}", "title", "Backend of the scores",
                                        "rows", b->backends));
    json_object_set(b->doc, "spec", kvm_report_param(b, "spec"));
    return KVM_OK;
}
