/* report.c - one document from all that was measured of a pair, and its page, JSON and
 * CSV. */
#include <dirent.h>

#include "jobs/open.h"
#include "jobs/report_parts.h"
#include "reports/page.h"

static const kvm_field params[] = {
    {"pair", KVM_FIELD_STR, true, "name of the pair; file names derive from it", NULL,
     0},
    {"reverse", KVM_FIELD_STR, false, "name of the other direction", NULL, 0},
    {"source", KVM_FIELD_OBJECT, true, "the model as the page shows it", NULL, 0},
    {"target", KVM_FIELD_OBJECT, true, "the model as the page shows it", NULL, 0},
    {"calibration", KVM_FIELD_OBJECT, true, "the spec's section", NULL, 0},
    {"text", KVM_FIELD_STR, true, "hash of the calibration text", NULL, 0},
    {"suites", KVM_FIELD_OBJECT, false, "hash of card and items of each suite", NULL,
     0},
    {"spec", KVM_FIELD_STR, true, "the pair's YAML as it stands", NULL, 0},
    {"seed", KVM_FIELD_INT, true, "of the bootstrap", NULL, 0},
    {"backend", KVM_FIELD_STR, false, "the backend, when it rounds activations", NULL,
     0},
    {0},
};

/* the fingerprint stands under provenance */
static json_t *shown_model(kvm_report_builder *b, const char *side)
{
    json_t *m = json_deep_copy(kvm_report_param(b, side));
    json_object_del(m, "fingerprint");
    return m;
}

static void add_pair(kvm_report_builder *b)
{
    json_t *pair =
        json_pack("{s:O, s:o, s:o}", "name", kvm_report_param(b, "pair"), "source",
                  shown_model(b, "source"), "target", shown_model(b, "target"));
    const char *reverse = json_string_value(kvm_report_param(b, "reverse"));
    if (reverse)
        json_object_set_new(
            pair, "reverse",
            json_pack("{s:s, s:s+}", "name", reverse, "href", reverse, ".html"));
    json_object_set_new(b->doc, "pair", pair);
}

static void add_notes(kvm_report_builder *b)
{
    if (!kvm_job_find_input(b->job, "timing")) return;
    if (!kvm_job_find_input(b->job, "mlp") && !kvm_job_find_input(b->job, "distill") &&
        !kvm_job_find_input(b->job, "alternation"))
        return;
    json_object_set_new(b->doc, "notes",
                        json_pack("[s]",
                                  "The switches that pay for the build count the "
                                  "steps of the closed form, not of what was "
                                  "trained, nor of the way back: it is the closed "
                                  "form that was timed."));
}

static kvm_status fill(kvm_report_builder *b, kvm_err *err)
{
    const kvm_job_input *fit = kvm_job_find_input(b->job, "fit");
    if (fit) TRY(kvm_report_load(b, fit, &b->fit, err));
    add_pair(b);
    TRY(kvm_report_fit(b, err));
    TRY(kvm_report_recipes(b, err));
    TRY(kvm_report_training(b, err));
    TRY(kvm_report_layers(b, err));
    TRY(kvm_report_quality(b, err));
    TRY(kvm_report_answers(b, err));
    TRY(kvm_report_gates(b, err));
    TRY(kvm_report_ablations(b, err));
    TRY(kvm_report_analyses(b, err));
    TRY(kvm_report_inversion(b, err));
    TRY(kvm_report_alternation(b, err));
    TRY(kvm_report_findings(b, err));
    TRY(kvm_report_timing(b, err));
    TRY(kvm_report_provenance(b, err));
    add_notes(b);
    return KVM_OK;
}

/* NAME.html -> "html", NAME.json -> "json", NAME.suites.csv -> "csv.suites" */
static kvm_status declare_file(kvm_job *j, kvm_str dir, kvm_str file, kvm_str pair,
                               kvm_err *err)
{
    if (!kvm_str_starts(file, pair)) return KVM_OK;
    kvm_str rest = kvm_str_slice(file, pair.len + 1, file.len), name = rest, extension;
    kvm_str path = kvm_path_join(j->keep, dir, file);
    if (kvm_str_cut(rest, '.', &name, &extension))
        name = kvm_str_fmt(j->keep, "%.*s.%.*s", KVM_STR_ARG(extension),
                           KVM_STR_ARG(name));
    else
        name = kvm_str_copy(j->keep, rest);
    if (!path.at || !name.at) return kvm_nomem(err, j->keep);
    return j->host->output(j, name.at, path, err);
}

static kvm_status declare_files(kvm_job *j, kvm_str dir, kvm_str pair, kvm_err *err)
{
    DIR *d = opendir(dir.at);
    if (!d) return kvm_fail_errno(err, "%s", dir.at);
    kvm_status s = KVM_OK;
    for (struct dirent *e; !s && (e = readdir(d));)
        if (e->d_name[0] != '.')
            s = declare_file(j, dir, kvm_str_copy(j->keep, kvm_str_of(e->d_name)), pair,
                             err);
    closedir(d);
    return s;
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    kvm_report_builder b = {.job = j,
                            .doc = json_object(),
                            .absent = json_object(),
                            .backends = json_array()};
    if (!kvm_json_own(j->keep, b.doc) || !kvm_json_own(j->keep, b.backends))
        return kvm_nomem(err, j->keep);
    ptrdiff_t seed;
    TRY(kvm_job_i64(j, "seed", 1, 0, INT64_MAX, &seed, err));
    b.seed = (uint64_t)seed;
    json_object_set_new(b.doc, "format", json_string(KVM_REPORT_FORMAT));
    json_object_set_new(b.doc, "version", json_integer(KVM_REPORT_VERSION));
    json_object_set_new(b.doc, "absent", b.absent);
    TRY(fill(&b, err));
    kvm_str dir, pair;
    TRY(kvm_job_path(j, "report", &dir, err));
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "pair"), &pair, err));
    const kvm_jat doc = {.v = b.doc, .file = "report", .path = ""};
    TRY(kvm_report_publish(dir, doc, *j->keep, err));
    return declare_files(j, dir, pair, err);
}

static const char *const inputs[] = {"fit",
                                     "translator",
                                     "candidate.*",
                                     "mlp?",
                                     "mlp_translator?",
                                     "distill?",
                                     "distilled?",
                                     "items.*",
                                     "figures.*",
                                     "ablation.*",
                                     "ablation_translator.*",
                                     "timing?",
                                     "analysis.*",
                                     "analysis_figures.*",
                                     "tails?",
                                     "inversion?",
                                     "cost.*",
                                     "alternation?",
                                     "alternation_figures?",
                                     "alternation_seconds?",
                                     "back_translator?",
                                     "back_distilled?",
                                     NULL};
static const char *const outputs[] = {"html", "json", "csv.*", NULL};
const kvm_job_kind kvm_job_report = {
    .id = KVM_JOB_REPORT,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .run = run,
};
