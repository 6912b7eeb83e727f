#include "jobs/spec.h"

#include <string.h>

#include "base/file.h"
#include "jobs/calibration.h"
#include "jobs/params.h"
#include "jobs/spec_internal.h"
#include "jobs/suite.h"

enum { SPEC_MAX_BYTES = 1 << 20 };

static const kvm_field calibration_fields[] = {
    {"text", KVM_FIELD_STR, true,
     "a calibration suite (.yaml or a bundled name) or a text file", NULL, 0},
    {"sequences", KVM_FIELD_INT, false,
     "how many sequences (300, or what the text gives)", NULL, 0},
    {"tokens", KVM_FIELD_INT, false, "tokens per sequence (512)", NULL, 0},
    {"stride", KVM_FIELD_INT, false, "every so many tokens become a row (1)", NULL, 0},
    {"held_out", KVM_FIELD_NUM, false,
     "fraction of sequences kept from the fit (0.2): half of them choose k and lambda, "
     "half are held out for figures",
     NULL, 0},
    {"dtype", KVM_FIELD_STR, false, "rows on disk: f32 or bf16 (f32)", NULL, 0},
    {0},
};
static const kvm_field mlp_fields[] = {KVM_MLP_PARAMS, {0}};
static const kvm_field distill_fields[] = {KVM_DISTILL_PARAMS, {0}};
static const kvm_field evaluate_fields[] = {
    {"suites", KVM_FIELD_LIST, true, "bundled names or paths of suite cards", NULL,
     KVM_FIELD_STR},
    KVM_EVALUATE_PARAMS,
    {"ablations", KVM_FIELD_LIST, false,
     "rotated, norerotate, k1, absolute, depth, matched, engine, no_token, "
     "zero_states, "
     "copy_states, dense_indexers",
     NULL, KVM_FIELD_STR},
    {"ablation_suites", KVM_FIELD_LIST, false,
     "the suites they are scored on, of those above (the first)", NULL, KVM_FIELD_STR},
    {0},
};
static const kvm_field analyse_fields[] = {
    {"suites", KVM_FIELD_LIST, true, "bundled names or paths of suite cards", NULL,
     KVM_FIELD_STR},
    KVM_ANALYSE_PARAMS,
    {"inversion", KVM_FIELD_BOOL, false,
     "read tokens out of the cached rows of both models (true)", NULL, 0},
    {"tail_lengths", KVM_FIELD_LIST, false,
     "prefix lengths in tokens at which the tails are timed (1024); []: none", NULL,
     KVM_FIELD_INT},
    {0},
};
static const kvm_field alternate_fields[] = {
    {"suite", KVM_FIELD_STR, true, "of dialogues: a bundled name or a path", NULL, 0},
    KVM_ALTERNATE_PARAMS,
    {0},
};
static const kvm_field timing_fields[] = {KVM_TIMING_PARAMS, {0}};
const kvm_field kvm_spec_fields[] = {
    {"name", KVM_FIELD_STR, true,
     "of the pair, SOURCE-TARGET say; a family's pairs are called NAME.A-B", NULL, 0},
    {"reverse_name", KVM_FIELD_STR, false,
     "of the other direction (TARGET-SOURCE, else NAME-reversed)", NULL, 0},
    {"source", KVM_FIELD_STR, false, "checkpoint: a folder or a .gguf file", NULL, 0},
    {"target", KVM_FIELD_STR, false, "checkpoint: a folder or a .gguf file", NULL, 0},
    {"both_directions", KVM_FIELD_BOOL, false, "also target to source (false)", NULL,
     0},
    {"family", KVM_FIELD_LIST, false,
     "in place of source and target: checkpoints, each translated into every other",
     NULL, KVM_FIELD_STR},
    {"seed", KVM_FIELD_INT, false, "of every random choice (1)", NULL, 0},
    {"calibration", KVM_FIELD_OBJECT, true, "the text both models are run over",
     calibration_fields, 0},
    {"fit", KVM_FIELD_OBJECT, false, "the closed form", kvm_fit_params, 0},
    {"mlp", KVM_FIELD_OBJECT, false, "the MLP maps; absent: none", mlp_fields, 0},
    {"distill", KVM_FIELD_OBJECT, false,
     "maps trained on the target's KL; absent: none", distill_fields, 0},
    {"evaluate", KVM_FIELD_OBJECT, false, "quality; absent: none", evaluate_fields, 0},
    {"analyse", KVM_FIELD_OBJECT, false, "translated caches taken apart; absent: none",
     analyse_fields, 0},
    {"alternate", KVM_FIELD_OBJECT, false,
     "conversations in which both models take turns; absent: none", alternate_fields,
     0},
    {"timing", KVM_FIELD_OBJECT, false, "time to first token; absent: none",
     timing_fields, 0},
    {0},
};

static kvm_str dir_of(kvm_arena *keep, kvm_str path)
{
    ptrdiff_t end = path.len;
    while (end > 0 && path.at[end - 1] != '/') end--;
    return end ? kvm_str_copy(keep, kvm_str_slice(path, 0, end)) : KVM_STR(".");
}

/* remedy: what to do when nothing is there */
static kvm_status resolve(kvm_str *out, kvm_arena *keep, kvm_str dir, kvm_jat at,
                          const char *remedy, kvm_err *err)
{
    kvm_str given;
    TRY(kvm_json_str(at, &given, err));
    if (given.len == 0) return kvm_json_fail(err, KVM_FORMAT, at, "is empty");
    *out = given.at[0] == '/' ? kvm_str_copy(keep, given)
                              : kvm_path_join(keep, dir, given);
    if (!out->at) return kvm_nomem(err, keep);
    if (!kvm_path_exists(*out))
        return kvm_json_fail(err, KVM_NOTFOUND, at, "there is no %.*s: %s",
                             KVM_STR_ARG(*out), remedy);
    return KVM_OK;
}

kvm_status kvm_spec__resolve_model(kvm_str *out, kvm_arena *keep, const kvm_spec *s,
                                   kvm_jat at, kvm_err *err)
{
    return resolve(out, keep, s->dir, at, "name a checkpoint, a folder or a .gguf file",
                   err);
}

kvm_status kvm_spec__check_name(kvm_str name, kvm_jat at, kvm_err *err)
{
    bool good = name.len > 0 && name.len <= 100 && name.at[0] != '.';
    for (ptrdiff_t i = 0; i < name.len; i++) {
        const char c = name.at[i];
        good &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    }
    return good ? KVM_OK
                : kvm_json_fail(err, KVM_FORMAT, at,
                                "\"%s\" must be 1..100 letters, digits, '-', '_' or "
                                "'.', and not begin with '.'",
                                kvm_quote(name).at);
}

/* Reports are files of these names: the other direction must not overwrite this one. */
static kvm_status check_reverse(const kvm_spec *s, kvm_jat at, kvm_err *err)
{
    kvm_str reverse;
    if (!kvm_json_has(at)) return KVM_OK;
    TRY(kvm_json_str(at, &reverse, err));
    TRY(kvm_spec__check_name(reverse, at, err));
    return kvm_str_eq(reverse, s->name)
               ? kvm_json_fail(err, KVM_FORMAT, at,
                               "is the name of the pair itself: both directions need "
                               "one of their own")
               : KVM_OK;
}

/* one of the two models that a pair names */
static kvm_status read_model(kvm_str *path, const kvm_spec *s, const char *key,
                             kvm_arena *keep, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(s->root, keep, key);
    if (kvm_json_has(at)) return kvm_spec__resolve_model(path, keep, s, at, err);
    return kvm_json_fail(err, KVM_FORMAT, s->root,
                         "\"%s\" is missing: checkpoint: a folder or a .gguf file "
                         "(several models, all into each other: \"family\")",
                         key);
}

static kvm_status read_pair(kvm_spec *s, kvm_arena *keep, kvm_err *err)
{
    TRY(check_reverse(s, kvm_json_get(s->root, keep, "reverse_name"), err));
    TRY(read_model(&s->source_path, s, "source", keep, err));
    TRY(read_model(&s->target_path, s, "target", keep, err));
    return kvm_json_bool_or(kvm_json_get(s->root, keep, "both_directions"), false,
                            &s->both_directions, err);
}

static kvm_status read_text(kvm_spec *s, kvm_arena *keep, kvm_err *err)
{
    kvm_str text;
    const kvm_jat calibration = kvm_json_get(s->root, keep, "calibration");
    const kvm_jat at = kvm_json_get(calibration, keep, "text");
    TRY(kvm_json_str(at, &text, err));
    if (kvm_str_find(text, KVM_STR(".")) < 0 && kvm_str_find(text, KVM_STR("/")) < 0)
        return kvm_json_prefix(
            err, kvm_suite_find(&s->text_path, keep, s->dir, text, err), at);
    return resolve(&s->text_path, keep, s->dir, at,
                   "kvmill does not make it; the specs of tests/zoo say in their first "
                   "lines what does",
                   err);
}

/* what pairs and families have in common */
static kvm_status read_common(kvm_spec *s, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    *s = (kvm_spec){.file = path, .dir = dir_of(keep, path)};
    TRY(kvm_file_read(&s->text, keep, path, SPEC_MAX_BYTES, err));
    TRY(kvm_yaml_parse(&s->root, keep, s->text, path, err));
    TRY(kvm_schema_check(s->root, kvm_spec_fields, *keep, err));
    const kvm_jat name = kvm_json_get(s->root, keep, "name");
    TRY(kvm_json_str(name, &s->name, err));
    TRY(kvm_spec__check_name(s->name, name, err));
    const kvm_jat seed = kvm_json_get(s->root, keep, "seed");
    TRY(kvm_json_i64_or(seed, 1, &s->seed, err));
    if (s->seed < 0)
        return kvm_json_fail(err, KVM_RANGE, seed, "is %lld, must be 0 or more",
                             (long long)s->seed);
    return KVM_OK;
}

kvm_status kvm_spec_read(kvm_spec *s, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    TRY(read_common(s, keep, path, err));
    const kvm_jat family = kvm_json_get(s->root, keep, "family");
    if (kvm_json_has(family))
        return kvm_json_fail(err, KVM_USAGE, family,
                             "a spec of one pair is wanted here, with a source and a "
                             "target; families are taken by run, submit, plan and "
                             "report");
    TRY(read_pair(s, keep, err));
    return read_text(s, keep, err);
}

kvm_status kvm_specs_read(kvm_spec **specs, ptrdiff_t *n, kvm_arena *keep, kvm_str path,
                          kvm_err *err)
{
    kvm_spec all;
    TRY(read_common(&all, keep, path, err));
    if (kvm_json_has(kvm_json_get(all.root, keep, "family"))) {
        TRY(read_text(&all, keep, err));
        return kvm_spec__family(specs, n, &all, keep, err);
    }
    *n = 1;
    *specs = kvm_new(keep, kvm_spec, 1);
    if (!*specs) return kvm_nomem(err, keep);
    return kvm_spec_read(*specs, keep, path, err);
}
