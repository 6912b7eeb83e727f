#include "jobs/fit_recipes.h"

#include "jobs/open.h"
#include "jobs/params.h"

kvm_status kvm_fit_read_recipes(kvm_job *j, kvm_outline_options *o, kvm_err *err)
{
    kvm_str word;
    TRY(kvm_param_word(j, "indexers", "predicted", "dense", &o->dense, err));
    const kvm_jat token = kvm_json_get(j->params, j->keep, "token");
    const kvm_jat states = kvm_json_get(j->params, j->keep, "states");
    const kvm_jat keys = kvm_json_get(j->params, j->keep, "keys");
    ptrdiff_t point;
    TRY(kvm_json_str_or(keys, KVM_STR("content"), &word, err));
    if (kvm_key_space_of_name(word, &o->keys))
        return kvm_json_fail(err, KVM_USAGE, keys,
                             "is content, rotated or content-norerotate, not \"%s\"",
                             kvm_quote(word).at);
    TRY(kvm_json_str_or(token, KVM_STR("auto"), &word, err));
    o->token_given = !kvm_str_eq(word, KVM_STR("auto"));
    if (o->token_given && kvm_token_kind_of_name(word, &o->token))
        return kvm_json_fail(err, KVM_USAGE, token,
                             "is none, given, decoded or auto, not \"%s\"",
                             kvm_quote(word).at);
    TRY(kvm_json_str_or(states, KVM_STR("auto"), &word, err));
    if (kvm_state_way_of_name(word, &o->states))
        return kvm_json_fail(err, KVM_USAGE, states,
                             "is zero, copy, bilinear, replay or auto, not \"%s\"",
                             kvm_quote(word).at);
    TRY(kvm_job_i64(j, "latents", KVM_POINT_RAW, KVM_POINT_RAW, KVM_POINT_ENGINE,
                    &point, err));
    o->engine = point == KVM_POINT_ENGINE;
    if (point != KVM_POINT_NORMED) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, kvm_json_get(j->params, j->keep, "latents"),
                         "is 2, must be 1 or 3");
}
