#include "jobs/ablations.h"

static const kvm_ablation rows[] = {
#define X(name, title, change, lacking) {#name, title, change, lacking},
#include "jobs/ablations.def"
#undef X
};
static const char names[] =
#define X(name, title, change, lacking) " " #name
#include "jobs/ablations.def"
#undef X
    ;

kvm_status kvm_ablation_find(const kvm_ablation **a, kvm_str name, kvm_jat at,
                             kvm_err *err)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (kvm_str_eq(name, kvm_str_of(rows[i].name))) {
            *a = &rows[i];
            return KVM_OK;
        }
    return kvm_json_fail(err, KVM_USAGE, at, "no ablation \"%s\"; there are%s",
                         kvm_quote(name).at, names);
}

kvm_status kvm_ablation_apply(const kvm_ablation *a, json_t *fit_params, kvm_err *err)
{
    json_t *change = json_loads(a->change, 0, NULL);
    if (!change) return kvm_fail(err, KVM_INTERNAL, "ablation %s is no JSON", a->name);
    const char *key;
    json_t *value;
    json_object_foreach(change, key, value)
    {
        if (json_is_null(value))
            json_object_del(fit_params, key);
        else
            json_object_set(fit_params, key, value);
    }
    json_decref(change);
    return KVM_OK;
}
