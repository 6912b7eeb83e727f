#include "schema/step_key.h"

#include "base/hash.h"

/* Takes the value in any case; false when it could not be set. */
static bool set(json_t *object, kvm_str name, json_t *value, kvm_arena *scratch)
{
    const kvm_str key = kvm_str_copy(scratch, name);
    if (key.at && value && !json_object_get(object, key.at))
        return json_object_set_new(object, key.at, value) == 0;
    json_decref(value);
    return false;
}

static json_t *copy_or_empty(const json_t *v)
{
    return v ? json_deep_copy(v) : json_object();
}

/* Parameters whose name ends in _path say where things lie, not what they are: their
 * content is named by a hash beside them, so a moved checkpoint keeps its keys. */
static json_t *without_places(const json_t *params)
{
    json_t *out = copy_or_empty(params);
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(
        out, next, name, value) if (kvm_str_ends(kvm_str_of(name), KVM_STR("_path")))
        json_object_del(out, name);
    return out;
}

static bool fill(json_t *all, json_t *inputs, const kvm_step_facts *step,
                 kvm_arena *scratch)
{
    for (ptrdiff_t i = 0; i < step->input_count; i++) {
        const kvm_str sha = step->input_shas[i];
        if (!set(inputs, step->input_names[i], json_stringn(sha.at, (size_t)sha.len),
                 scratch))
            return false;
    }
    return set(all, KVM_STR("kind"), json_string(step->kind), scratch) &&
           set(all, KVM_STR("version"), json_integer(step->version), scratch) &&
           set(all, KVM_STR("params"), without_places(step->params), scratch) &&
           set(all, KVM_STR("identity"), copy_or_empty(step->identity), scratch) &&
           set(all, KVM_STR("inputs"), json_incref(inputs), scratch) &&
           (step->machine.len == 0 ||
            set(all, KVM_STR("machine"),
                json_stringn(step->machine.at, (size_t)step->machine.len), scratch));
}

kvm_status kvm_step_key(char key[65], const kvm_step_facts *step, kvm_arena scratch,
                        kvm_err *err)
{
    json_t *all = json_object(), *inputs = json_object();
    kvm_str text = {0};
    kvm_status s = KVM_OK;
    if (!all || !inputs || !fill(all, inputs, step, &scratch))
        s = kvm_fail(err, KVM_FORMAT,
                     "the key of a %s step: an input named twice, text that is not "
                     "UTF-8, or no memory",
                     step->kind);
    if (!s) s = kvm_json_canonical(&text, &scratch, all, err);
    if (!s) s = kvm_sha_of(text, key, err);
    json_decref(inputs);
    json_decref(all);
    return s;
}
