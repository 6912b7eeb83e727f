#include "jobs/report_parts.h"

#include <string.h>

#include "base/file.h"
#include "reports/stats.h"

json_t *kvm_report_param(const kvm_report_builder *b, const char *key)
{
    return json_object_get(b->job->params.v, key);
}

kvm_status kvm_report_load(kvm_report_builder *b, const kvm_job_input *in, json_t **v,
                           kvm_err *err)
{
    kvm_jat root;
    TRY(kvm_json_read(&root, b->job->keep, in->path, err));
    *v = json_deep_copy(root.v);
    return kvm_json_own(b->job->keep, *v) ? KVM_OK : kvm_nomem(err, b->job->keep);
}

kvm_status kvm_report_load_lines(kvm_report_builder *b, const kvm_job_input *in,
                                 json_t **v, kvm_err *err)
{
    kvm_str text, line;
    *v = json_array();
    if (!kvm_json_own(b->job->keep, *v)) return kvm_nomem(err, b->job->keep);
    TRY(kvm_file_read(&text, b->job->keep, in->path, (size_t)1 << 32, err));
    while (kvm_str_cut(text, '\n', &line, &text)) {
        kvm_jat root;
        TRY(kvm_json_parse(&root, b->job->keep, line, in->path, err));
        json_array_append_new(*v, json_deep_copy(root.v));
    }
    return KVM_OK;
}

const kvm_job_input *kvm_report_nth(const kvm_report_builder *b, const char *prefix,
                                    ptrdiff_t i, const char **rest)
{
    const size_t n = strlen(prefix);
    for (ptrdiff_t k = 0; k < b->job->input_count; k++) {
        const kvm_job_input *in = &b->job->inputs[k];
        if (strncmp(in->name, prefix, n) != 0 || in->name[n] != '.' || i-- > 0)
            continue;
        if (rest) *rest = in->name + n + 1;
        return in;
    }
    return NULL;
}

kvm_status kvm_report_beside(const kvm_report_builder *b, const char *prefix,
                             const char *rest, const kvm_job_input **in, kvm_err *err)
{
    const char *other;
    for (ptrdiff_t i = 0; (*in = kvm_report_nth(b, prefix, i, &other)); i++)
        if (strcmp(other, rest) == 0) return KVM_OK;
    return kvm_fail(err, KVM_NOTFOUND, "the input %s.%s is missing", prefix, rest);
}

kvm_status kvm_report_column(double **out, const json_t *items, const char *cache,
                             const char *metric, kvm_arena *scratch, kvm_err *err)
{
    const size_t n = json_array_size(items);
    double *x = kvm_new(scratch, double, (ptrdiff_t)n + 1);
    if (!x) return kvm_nomem(err, scratch);
    for (size_t i = 0; i < n; i++) {
        const json_t *scores = json_object_get(json_array_get(items, i), "scores");
        const json_t *v = json_object_get(json_object_get(scores, cache), metric);
        if (!json_is_number(v))
            return kvm_fail(err, KVM_MISMATCH, "%s of %s is missing of item %zu",
                            metric, cache, i + 1);
        x[i] = json_number_value(v);
    }
    *out = x;
    return KVM_OK;
}

json_t *kvm_report_figure(const json_t *v, const char *why)
{
    return json_is_number(v) ? json_real(json_number_value(v))
                             : kvm_est_json(kvm_est_missing(kvm_str_of(why)));
}

kvm_report_name kvm_report_object(const char *label)
{
    static const struct {
        const char *label;
        kvm_report_name name;
    } rows[] = {
        {"K", {"k", "K content (position stripped)", "K"}},
        {"K_rotated", {"k_rotated", "K rotated", "K rotated"}},
        {"V", {"v", "V", "V"}},
        {"latent", {"latent", "Latent and rotary key, raw", "latent"}},
        {"latent_engine",
         {"latent_engine", "Latent and rotary key, as engines keep them",
          "latent, engine’s"}},
        {"input", {"input", "Inputs of recurrent layers", "input"}},
        {"index", {"index", "Index keys", "index key"}},
    };
    if (!label) label = "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].label, label) == 0) return rows[i].name;
    return (kvm_report_name){label, label, label};
}
