#include <string.h>

#include "base/json_internal.h"
#include "base/yaml.h"

static const kvm_field *find_field(const kvm_field *fields, kvm_str key)
{
    for (const kvm_field *f = fields; f->key; f++)
        if (kvm_str_eq(key, kvm_str_of(f->key))) return f;
    return NULL;
}

static kvm_status unknown_key(kvm_jat obj, kvm_str key, const kvm_field *fields,
                              kvm_arena scratch, kvm_err *err)
{
    kvm_jat at = kvm_json_get(obj, &scratch, key.at);
    kvm_text known = {0};
    ptrdiff_t n = 0;
    while (fields[n].key) n++;
    kvm_str *names = kvm_new(&scratch, kvm_str, n);
    if (!names) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < n; i++) {
        names[i] = kvm_str_of(fields[i].key);
        kvm_text_addf(&known, "%s%s", i ? ", " : "", fields[i].key);
    }
    const ptrdiff_t near = kvm_str_nearest(key, names, n);
    const kvm_status s =
        near >= 0 ? kvm_json_fail(err, KVM_FORMAT, at,
                                  "unknown key; did you mean \"%s\"?", fields[near].key)
                  : kvm_json_fail(err, KVM_FORMAT, at, "unknown key; known are: %s",
                                  known.at ? known.at : "none");
    kvm_text_free(&known);
    return s;
}

static kvm_status check_value(kvm_jat at, kvm_field_type type, const kvm_field *field,
                              kvm_arena scratch, kvm_err *err);

static kvm_status check_items(kvm_jat list, const kvm_field *field, kvm_arena scratch,
                              kvm_err *err)
{
    ptrdiff_t n = 0;
    TRY(kvm_json_array(list, &n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_arena item_memory = scratch;
        const kvm_jat item = kvm_json_item(list, &item_memory, i);
        if (field->inside)
            TRY(kvm_schema_check(item, field->inside, item_memory, err));
        else
            TRY(check_value(item, field->item, NULL, item_memory, err));
    }
    return KVM_OK;
}

static kvm_status check_value(kvm_jat at, kvm_field_type type, const kvm_field *field,
                              kvm_arena scratch, kvm_err *err)
{
    kvm_str text;
    int64_t whole;
    double real;
    bool truth;
    ptrdiff_t n;
    switch (type) {
    case KVM_FIELD_STR:
        return kvm_json_str(at, &text, err);
    case KVM_FIELD_INT:
        return kvm_json_i64(at, &whole, err);
    case KVM_FIELD_NUM:
        return kvm_json_f64(at, &real, err);
    case KVM_FIELD_BOOL:
        return kvm_json_bool_or(at, false, &truth, err);
    case KVM_FIELD_LIST:
        return field ? check_items(at, field, scratch, err)
                     : kvm_json_array(at, &n, err);
    case KVM_FIELD_OBJECT:
        return field && field->inside
                   ? kvm_schema_check(at, field->inside, scratch, err)
                   : kvm_json_object(at, err);
    case KVM_FIELD_ANY:
        return KVM_OK;
    }
    return kvm_fail(err, KVM_INTERNAL, "unknown field type %d", (int)type);
}

/* a section whose lines are all commented out: does who wrote it want it? */
static kvm_status empty_section(kvm_jat at, const kvm_field *inside, kvm_err *err)
{
    for (const kvm_field *f = inside; f && f->key; f++)
        if (f->required)
            return kvm_json_fail(err, KVM_FORMAT, at,
                                 "is empty: it needs \"%s\"; leave the section out "
                                 "when it is not wanted",
                                 f->key);
    return kvm_json_fail(err, KVM_FORMAT, at,
                         "is empty: write {} for what it has by default, or leave it "
                         "out");
}

kvm_status kvm_schema_check(kvm_jat obj, const kvm_field *fields, kvm_arena scratch,
                            kvm_err *err)
{
    kvm_str key;
    const json_t *value;
    TRY(kvm_json_object(obj, err));
    for (void *it = NULL; kvm_json_next(obj, &it, &key, &value);)
        if (!find_field(fields, key))
            return unknown_key(obj, key, fields, scratch, err);
    for (const kvm_field *f = fields; f->key; f++) {
        kvm_arena member_memory = scratch;
        const kvm_jat at = kvm_json_get(obj, &member_memory, f->key);
        if (f->type == KVM_FIELD_OBJECT && json_is_null(json_object_get(obj.v, f->key)))
            return empty_section(at, f->inside, err);
        if (kvm_json_has(at))
            TRY(check_value(at, f->type, f, member_memory, err));
        else if (f->required)
            return kvm_json_fail(err, KVM_FORMAT, obj, "\"%s\" is missing%s%s", f->key,
                                 f->help ? ": " : "", f->help ? f->help : "");
    }
    return KVM_OK;
}
