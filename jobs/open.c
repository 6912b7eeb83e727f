#include "jobs/open.h"

#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/roots.h"

kvm_status kvm_job_compute(kvm_job *j, kvm_compute **c, kvm_err *err)
{
    const kvm_backend *b;
    TRY(kvm_backend_choose(&b, kvm_str_of(j->backend ? j->backend : "cpu"), err));
    return kvm_compute_new(c, j->keep, b, j->threads, err);
}

static kvm_status place_of(kvm_job *j, const char *role, kvm_str *path, kvm_err *err)
{
    kvm_str key = kvm_str_fmt(j->keep, "%s_path", role);
    if (!key.at) return kvm_nomem(err, j->keep);
    return kvm_json_str(kvm_json_get(j->params, j->keep, key.at), path, err);
}

kvm_status kvm_job_places(const kvm_job *j, kvm_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)j->params.v, name, v)
    {
        if (!kvm_str_ends(kvm_str_of(name), KVM_STR("_path")) || !json_is_string(v))
            continue;
        const kvm_str path = {json_string_value(v), (ptrdiff_t)json_string_length(v)};
        const kvm_status s = kvm_roots_admit(path, err);
        if (s) return kvm_err_prefix(err, s, "%s", name);
    }
    return KVM_OK;
}

kvm_status kvm_job_unchanged(kvm_job *j, const char *role, const char *found,
                             kvm_err *err)
{
    kvm_str path, planned;
    TRY(place_of(j, role, &path, err));
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, role), &planned, err));
    if (kvm_str_eq(planned, kvm_str_of(found))) return KVM_OK;
    if (j->alone)
        return kvm_fail(err, KVM_MISMATCH,
                        "%.*s has the hash %s, not the one of \"%s\"",
                        KVM_STR_ARG(path), found, role);
    const bool card = kvm_str_ends(path, KVM_STR(".yaml"));
    return kvm_fail(err, KVM_MISMATCH,
                    "%.*s%s changed since the run was planned (%.12s, planned %.12s): "
                    "submit the pair again",
                    KVM_STR_ARG(path), card ? " or its items" : "", found,
                    kvm_quote(planned).at);
}

kvm_status kvm_job_model(kvm_job *j, kvm_compute *c, const char *role, kvm_model **m,
                         kvm_err *err)
{
    return kvm_job_model_part(j, c, role, 0, 1, m, err);
}

kvm_status kvm_job_model_part(kvm_job *j, kvm_compute *c, const char *role, int part,
                              int parts, kvm_model **m, kvm_err *err)
{
    kvm_str path;
    const kvm_model_options o = {
        .offload = j->offload > 0, .part = part, .parts = parts};
    TRY(place_of(j, role, &path, err));
    TRY(kvm_model_open(m, j->keep, c, path, &o, err));
    return kvm_job_unchanged(j, role, kvm_model_info_of(*m)->fingerprint, err);
}

/* exact backends go on with each other's, as with each other's results */
kvm_status kvm_job_config(kvm_job *j, kvm_kind_id kind, const kvm_compute *c,
                          char hex[65], kvm_err *err)
{
    const kvm_backend *backend = kvm_compute_backend(c);
    json_t *identity = kvm_json_own(j->keep, json_object());
    const kvm_str label = kvm_backend_label(backend, j->keep);
    if (!identity || !label.at) return kvm_nomem(err, j->keep);
    if (kvm_backend_rounds(backend))
        json_object_set_new(identity, "backend",
                            json_stringn(label.at, (size_t)label.len));
    return kvm_job_key(hex, kind, j->params.v, identity, j->inputs, j->input_count,
                       KVM_STR(""), *j->keep, err);
}

kvm_status kvm_job_path(kvm_job *j, const char *name, kvm_str *path, kvm_err *err)
{
    if (j->enter) TRY(j->enter(j, err));
    *path = kvm_path_join(j->keep, j->dir, kvm_str_of(name));
    return path->at ? KVM_OK : kvm_nomem(err, j->keep);
}

kvm_status kvm_job_need_input(kvm_job *j, const char *name, const kvm_job_input **in,
                              kvm_err *err)
{
    *in = kvm_job_find_input(j, name);
    return *in ? KVM_OK
               : kvm_fail(err, KVM_NOTFOUND, "the input \"%s\" is missing", name);
}

kvm_status kvm_job_i64(kvm_job *j, const char *key, int64_t fallback, int64_t least,
                       int64_t most, ptrdiff_t *out, kvm_err *err)
{
    int64_t v;
    const kvm_jat at = kvm_json_get(j->params, j->keep, key);
    TRY(kvm_json_i64_or(at, fallback, &v, err));
    if (v < least || v > most)
        return kvm_json_fail(err, KVM_RANGE, at, "is %lld, must lie in %lld..%lld",
                             (long long)v, (long long)least, (long long)most);
    *out = (ptrdiff_t)v;
    return KVM_OK;
}

kvm_status kvm_job_f64(kvm_job *j, const char *key, double fallback, double least,
                       double most, double *out, kvm_err *err)
{
    double v;
    const kvm_jat at = kvm_json_get(j->params, j->keep, key);
    TRY(kvm_json_f64_or(at, fallback, &v, err));
    if (!(v >= least && v <= most))
        return kvm_json_fail(err, KVM_RANGE, at, "is %g, must lie in %g..%g", v, least,
                             most);
    *out = v;
    return KVM_OK;
}

kvm_status kvm_job_put_json(kvm_job *j, const char *output, const char *file, json_t *v,
                            kvm_err *err)
{
    kvm_str path, text;
    if (!kvm_json_own(j->keep, v)) return kvm_nomem(err, j->keep);
    if (!kvm_team_leads(j->team)) return KVM_OK;
    TRY(kvm_job_path(j, file, &path, err));
    TRY(kvm_json_pretty(&text, j->keep, v, err));
    TRY(kvm_file_publish(path, text, *j->keep, err));
    return j->host->output(j, output, path, err);
}

kvm_status kvm_job_put_cost(kvm_job *j, double started, kvm_err *err)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = kvm_cpu_seconds(&u);
    TRY(kvm_team_sum(j->team, &cpu, 1, err));
    json_t *v = json_pack(
        "{s:f, s:f, s:i, s:i, s:i}", "seconds", j->before.seconds + kvm_now() - started,
        "cpu_seconds", j->before.cpu_seconds + cpu, "attempts", j->before.attempts + 1,
        "threads", j->threads, "ranks", j->team->size);
    if (!v) return kvm_nomem(err, j->keep);
    return kvm_job_put_json(j, "cost", "cost.json", v, err);
}
