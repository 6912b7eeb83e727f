#include "jobs/fit_recipes.h"

#include <string.h>

#include "jobs/open.h"

static const char chosen[] =
    "is auto, which a run chooses on validation (`kvmill run`): one fit needs a word";

/* a word of the parameters; absent: empty */
static kvm_status read_word(kvm_jat at, kvm_str *word, kvm_err *err)
{
    TRY(kvm_json_str_or(at, KVM_STR(""), word, err));
    return kvm_str_eq(*word, KVM_STR("auto"))
               ? kvm_json_fail(err, KVM_USAGE, at, "%s", chosen)
               : KVM_OK;
}

static kvm_status read_way(kvm_jat at, kvm_state_way *way, kvm_err *err)
{
    kvm_str word;
    TRY(read_word(at, &word, err));
    if (word.len == 0 || kvm_state_way_of_name(word, way))
        return kvm_json_fail(err, KVM_USAGE, at,
                             "is zero, copy, bilinear, replay or auto, not \"%s\"",
                             kvm_quote(word).at);
    return KVM_OK;
}

/* What is tried is one word for all layers: of lists there would be too many. */
static kvm_status read_layers_way(kvm_jat at, kvm_state_way *way, kvm_err *err)
{
    if (json_is_string(at.v) && !strcmp(json_string_value(at.v), "auto"))
        return kvm_json_fail(err, KVM_USAGE, at,
                             "is auto, which stands for the whole key (states: auto): "
                             "a list has a way for each layer, zero, copy, bilinear or "
                             "replay");
    return read_way(at, way, err);
}

/* one word for all recurrent layers, or a list */
static kvm_status read_states(kvm_job *j, kvm_outline_options *o, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(j->params, j->keep, "states");
    o->states = KVM_STATES_AUTO;
    if (!kvm_json_has(at)) return KVM_OK;
    if (!json_is_array(at.v)) return read_way(at, &o->states, err);
    TRY(kvm_json_array(at, &o->ways, err));
    kvm_state_way *each = kvm_new(j->keep, kvm_state_way, o->ways + 1);
    if (!each) return kvm_nomem(err, j->keep);
    for (ptrdiff_t i = 0; i < o->ways; i++)
        TRY(read_layers_way(kvm_json_item(at, j->keep, i), &each[i], err));
    o->each = each;
    return KVM_OK;
}

static kvm_status read_token(kvm_job *j, kvm_outline_options *o, kvm_err *err)
{
    kvm_str word;
    const kvm_jat at = kvm_json_get(j->params, j->keep, "token");
    TRY(read_word(at, &word, err));
    o->token_given = word.len > 0;
    if (!o->token_given || !kvm_token_kind_of_name(word, &o->token)) return KVM_OK;
    return kvm_json_fail(err, KVM_USAGE, at,
                         "is none, given, decoded or auto, not \"%s\"",
                         kvm_quote(word).at);
}

static kvm_status read_latents(kvm_job *j, kvm_outline_options *o, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(j->params, j->keep, "latents");
    int64_t point = KVM_POINT_RAW;
    if (kvm_json_has(at) && json_is_string(at.v)) {
        kvm_str word;
        TRY(read_word(at, &word, err));
        point = 0; /* no number, and no word that there is */
    } else {
        TRY(kvm_json_i64_or(at, point, &point, err));
    }
    o->engine = point == KVM_POINT_ENGINE;
    if (point == KVM_POINT_RAW || o->engine) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, at, "must be 1, 3 or auto");
}

static kvm_status read_indexers(kvm_job *j, kvm_outline_options *o, kvm_err *err)
{
    kvm_str word;
    const kvm_jat at = kvm_json_get(j->params, j->keep, "indexers");
    TRY(read_word(at, &word, err));
    o->dense = kvm_str_eq(word, KVM_STR("dense"));
    if (word.len == 0 || o->dense || kvm_str_eq(word, KVM_STR("predicted")))
        return KVM_OK;
    return kvm_json_fail(err, KVM_USAGE, at, "is predicted, dense or auto, not \"%s\"",
                         kvm_quote(word).at);
}

kvm_status kvm_fit_read_recipes(kvm_job *j, kvm_outline_options *o, kvm_err *err)
{
    kvm_str word;
    *o = (kvm_outline_options){0};
    const kvm_jat keys = kvm_json_get(j->params, j->keep, "keys");
    TRY(kvm_json_str_or(keys, KVM_STR("content"), &word, err));
    if (kvm_key_space_of_name(word, &o->keys))
        return kvm_json_fail(err, KVM_USAGE, keys,
                             "is content, rotated or content-norerotate, not \"%s\"",
                             kvm_quote(word).at);
    TRY(read_indexers(j, o, err));
    TRY(read_token(j, o, err));
    TRY(read_states(j, o, err));
    return read_latents(j, o, err);
}

kvm_status kvm_fit_check_recipes(kvm_jat fit, kvm_arena *keep, kvm_err *err)
{
    static const char *const keys[] = {"token", "states", "latents", "indexers"};
    kvm_outline_options o;
    json_t *copy = kvm_json_own(keep, json_deep_copy(fit.v));
    kvm_job job = {.keep = keep, .params = {.v = copy}};
    if (!copy) return kvm_nomem(err, keep);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *word = json_string_value(json_object_get(copy, keys[i]));
        if (word && kvm_str_eq(kvm_str_of(word), KVM_STR("auto")))
            json_object_del(copy, keys[i]);
    }
    TRY(kvm_json_place_as(&job.params, keep, fit, err));
    return kvm_fit_read_recipes(&job, &o, err);
}
