/* cmd_step.c - `kvmill capture|stats|fit|mlp|evaluate|timing|report PARAMS.yaml --out
 * DIR [INPUT=FILE...]`: one step of the mill on plain files, without catalogue and
 * queue.
 *
 * PARAMS.yaml holds the kind's parameters (`kvmill help KIND`). Where it names a place
 * (model_path …) and not its hash, the hash is computed here. Results are files of DIR,
 * figures stand in DIR/records.jsonl. */
#include <string.h>

#include "base/hash.h"
#include "cli/open.h"
#include "jobs/calibration.h"
#include "jobs/suite.h"
#include "workers/host.h"

enum { MAX_INPUTS = 64 };

static kvm_status fingerprint(kvm_cli *cli, kvm_str path, const char **hex,
                              kvm_err *err)
{
    kvm_compute *c;
    kvm_model *m;
    TRY(kvm_cli_compute(cli, cli->keep, &c, err));
    TRY(kvm_model_open(&m, cli->keep, c, path, &(kvm_model_options){0}, err));
    *hex = kvm_model_info_of(m)->fingerprint;
    return KVM_OK;
}

static kvm_status text_hash(kvm_cli *cli, kvm_str path, const char **hex, kvm_err *err)
{
    char *sha = kvm_new(cli->keep, char, 65);
    if (!sha) return kvm_nomem(err, cli->keep);
    *hex = sha;
    return kvm_calibration_hash(sha, path, *cli->keep, err);
}

static kvm_status suite_hash(kvm_cli *cli, kvm_str path, const char **hex, kvm_err *err)
{
    kvm_suite *s;
    TRY(kvm_suite_read(&s, cli->keep, path, err));
    *hex = s->sha;
    return KVM_OK;
}

static const struct {
    const char *key, *place;
    kvm_status (*hash)(kvm_cli *cli, kvm_str path, const char **hex, kvm_err *err);
} places[] = {
    {"model", "model_path", fingerprint},   {"source", "source_path", fingerprint},
    {"target", "target_path", fingerprint}, {"text", "text_path", text_hash},
    {"suite", "suite_path", suite_hash},
};

/* params gets a copy of itself with the hashes that its places lack */
static kvm_status fill_hashes(kvm_cli *cli, kvm_jat *params, kvm_err *err)
{
    json_t *p = kvm_json_own(cli->keep, json_deep_copy(params->v));
    if (!p) return kvm_nomem(err, cli->keep);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *hex;
        kvm_str path;
        if (!json_object_get(p, places[i].place) || json_object_get(p, places[i].key))
            continue;
        TRY(kvm_json_str(kvm_json_get(*params, cli->keep, places[i].place), &path,
                         err));
        TRY(places[i].hash(cli, path, &hex, err));
        json_object_set_new(p, places[i].key, json_string(hex));
    }
    kvm_jat filled = {.v = p};
    TRY(kvm_json_place_as(&filled, cli->keep, *params, err));
    *params = filled;
    return KVM_OK;
}

static kvm_status read_inputs(kvm_cli *cli, kvm_job_input *inputs, ptrdiff_t *n,
                              kvm_err *err)
{
    for (ptrdiff_t i = 1; i < cli->arg_count; i++) {
        kvm_str name, path;
        char *sha = kvm_new(cli->keep, char, 65);
        if (!sha) return kvm_nomem(err, cli->keep);
        if (!kvm_str_cut(cli->args[i], '=', &name, &path) || *n == MAX_INPUTS)
            return kvm_fail(err, KVM_USAGE, "\"%s\": an input is given as NAME=FILE",
                            kvm_quote(cli->args[i]).at);
        name = kvm_str_copy(cli->keep, name);
        path = kvm_str_copy(cli->keep, path);
        if (!name.at || !path.at) return kvm_nomem(err, cli->keep);
        TRY(kvm_sha_file(path, sha, *cli->keep, err));
        inputs[(*n)++] = (kvm_job_input){name.at, path, sha};
    }
    return KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_kind_id id;
    kvm_str file;
    kvm_job_input inputs[MAX_INPUTS];
    kvm_progress progress;
    kvm_job j = {.keep = cli->keep,
                 .inputs = inputs,
                 .team = &kvm_team_alone,
                 .backend = kvm_cli_backend(cli),
                 .alone = true};
    TRY(kvm_job_kind_find(kvm_str_of(cli->name), &id));
    const kvm_job_kind *kind = kvm_job_kind_of(id);
    TRY(kvm_cli_arg(cli, 0, "the parameters (PARAMS.yaml)", &file, err));
    if (!cli->value[KVM_OPT_OUT])
        return kvm_fail(err, KVM_USAGE, "--out DIR is missing");
    TRY(kvm_yaml_read(&j.params, cli->keep, file, err));
    TRY(fill_hashes(cli, &j.params, err));
    TRY(kvm_schema_check(j.params, kind->params, *cli->keep, err));
    TRY(read_inputs(cli, inputs, &j.input_count, err));
    TRY(kvm_cli_threads(cli, &j.threads, err));
    TRY(kvm_cli_offload(cli, &j.offload, err));
    TRY(kvm_host_files(&j, cli->keep, kvm_str_of(cli->value[KVM_OPT_OUT]), err));
    if (!kvm_cli_has(cli, KVM_OPT_QUIET)) {
        kvm_progress_terminal(&progress, cli->name);
        j.progress = &progress;
    }
    const kvm_status s = kind->run(&j, err);
    kvm_progress_end(j.progress);
    return s;
}

static const kvm_option options[] = {
    {KVM_OPT_OUT, "out", "DIR", "where results go"},
    {0},
};
const kvm_command kvm_command_step = {"step", options, run, KVM_ANY_ARGS};
