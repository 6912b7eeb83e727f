/* config_source.c - fields of a config.json by name, of one type each. */
#include "models/config_internal.h"

/* the first of keys "a|b|c" that is there, else the first */
static kvm_jat first_of(const kvm_config_source *s, kvm_jat obj, const char *keys)
{
    kvm_jat first = {0};
    kvm_str key, rest = kvm_str_of(keys);
    while (rest.len > 0) {
        kvm_str_cut(rest, '|', &key, &rest);
        const kvm_str name = kvm_str_copy(s->keep, key);
        const kvm_jat at = kvm_json_get(obj, s->keep, name.at ? name.at : "");
        if (kvm_json_has(at)) return at;
        if (!first.file) first = at;
    }
    return first;
}

kvm_status kvm_config__size(const kvm_config_source *s, const char *keys,
                            ptrdiff_t fallback, ptrdiff_t *out)
{
    int64_t v;
    const kvm_jat at = first_of(s, s->text, keys);
    TRY(fallback < 0 ? kvm_json_i64(at, &v, s->err)
                     : kvm_json_i64_or(at, fallback, &v, s->err));
    if (v < 0 || v > INT32_MAX)
        return kvm_fail(s->err, KVM_RANGE, "%s: %s is %lld, which is no size", at.file,
                        at.path, (long long)v);
    *out = (ptrdiff_t)v;
    return KVM_OK;
}

kvm_status kvm_config__flag(const kvm_config_source *s, const char *keys, bool fallback,
                            bool *out)
{
    return kvm_json_bool_or(first_of(s, s->text, keys), fallback, out, s->err);
}

kvm_status kvm_config__number(const kvm_config_source *s, kvm_jat obj, const char *keys,
                              double fallback, double *out)
{
    return kvm_json_f64_or(first_of(s, obj, keys), fallback, out, s->err);
}

kvm_status kvm_config__word(const kvm_config_source *s, const char *keys,
                            const char *only)
{
    kvm_str word;
    const kvm_jat at = first_of(s, s->text, keys);
    TRY(kvm_json_str_or(at, kvm_str_of(only), &word, s->err));
    if (kvm_str_eq(word, kvm_str_of(only))) return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED, "%s: %s is \"%s\"; %s is run", at.file,
                    at.path, kvm_quote(word).at, only);
}

kvm_config_source kvm_config__within(const kvm_config_source *s, const char *key)
{
    kvm_config_source inner = *s;
    const kvm_jat at = kvm_json_get(s->text, s->keep, key);
    if (kvm_json_has(at)) inner.text = at;
    return inner;
}
