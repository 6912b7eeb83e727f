#include "jobs/params.h"

kvm_status kvm_param_word(kvm_job *j, const char *key, const char *first,
                          const char *second, bool *is_second, kvm_err *err)
{
    kvm_str word;
    const kvm_jat at = kvm_json_get(j->params, j->keep, key);
    TRY(kvm_json_str_or(at, kvm_str_of(first), &word, err));
    *is_second = kvm_str_eq(word, kvm_str_of(second));
    if (!*is_second && !kvm_str_eq(word, kvm_str_of(first)))
        return kvm_json_fail(err, KVM_USAGE, at, "is %s or %s, not \"%s\"", first,
                             second, kvm_quote(word).at);
    return KVM_OK;
}

kvm_status kvm_param_dtype(kvm_job *j, kvm_dtype *d, kvm_err *err)
{
    bool bf16;
    TRY(kvm_param_word(j, "dtype", "f32", "bf16", &bf16, err));
    *d = bf16 ? KVM_BF16 : KVM_F32;
    return KVM_OK;
}
