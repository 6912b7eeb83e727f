/* family.c - a spec whose `family` lists models stands for a pair of every two of them,
 * in both directions. Each pair is a spec of its own, as if somebody had written it
 * down, called NAME.A-B by the models' folders. */
#include <string.h>

#include "jobs/spec_internal.h"

enum { MOST_MODELS = 64 };

typedef struct member { /* one model of the family */
    kvm_jat at;
    kvm_str given, path, name;
} member;

/* "small" of ../zoo/small/ and of small.gguf */
static kvm_str name_of(kvm_str path)
{
    while (path.len > 1 && path.at[path.len - 1] == '/') path.len--;
    ptrdiff_t start = path.len;
    while (start > 0 && path.at[start - 1] != '/') start--;
    kvm_str name = kvm_str_slice(path, start, path.len);
    if (kvm_str_ends(name, KVM_STR(".gguf"))) name.len -= 5;
    return name;
}

static kvm_status read_members(member **out, ptrdiff_t *n, const kvm_spec *all,
                               kvm_arena *keep, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(all->root, keep, "family");
    TRY(kvm_json_array(list, n, err));
    if (*n < 2 || *n > MOST_MODELS)
        return kvm_json_fail(err, KVM_RANGE, list, "lists %td model%s, must be 2..%d",
                             *n, *n == 1 ? "" : "s", MOST_MODELS);
    member *m = kvm_new(keep, member, *n);
    if (!m) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < *n; i++) {
        m[i].at = kvm_json_item(list, keep, i);
        TRY(kvm_json_str(m[i].at, &m[i].given, err));
        TRY(kvm_spec__resolve_model(&m[i].path, keep, all, m[i].at, err));
        m[i].name = name_of(m[i].given);
        for (ptrdiff_t k = 0; k < i; k++)
            if (kvm_str_eq(m[k].name, m[i].name))
                return kvm_json_fail(err, KVM_FORMAT, m[i].at,
                                     "is the second model called %s: runs are named "
                                     "by them",
                                     kvm_quote(m[i].name).at);
    }
    *out = m;
    return KVM_OK;
}

static kvm_status set(json_t *root, const char *key, kvm_str value, kvm_err *err)
{
    if (!value.at ||
        json_object_set_new(root, key, json_stringn(value.at, (size_t)value.len)))
        return kvm_fail(err, KVM_NOMEM, "out of memory");
    return KVM_OK;
}

/* the document of one pair, whose lines are the family's */
static kvm_status pair_of(kvm_spec *s, const kvm_spec *all, const member *a,
                          const member *b, kvm_arena *keep, kvm_err *err)
{
    json_t *root = kvm_json_own(keep, json_deep_copy(all->root.v));
    if (!root) return kvm_nomem(err, keep);
    const kvm_str there = kvm_str_fmt(keep, "%.*s.%.*s-%.*s", KVM_STR_ARG(all->name),
                                      KVM_STR_ARG(a->name), KVM_STR_ARG(b->name));
    const kvm_str back = kvm_str_fmt(keep, "%.*s.%.*s-%.*s", KVM_STR_ARG(all->name),
                                     KVM_STR_ARG(b->name), KVM_STR_ARG(a->name));
    json_object_del(root, "family");
    TRY(set(root, "name", there, err));
    TRY(set(root, "reverse_name", back, err));
    TRY(set(root, "source", a->given, err));
    TRY(set(root, "target", b->given, err));
    json_object_set_new(root, "both_directions", json_true());
    *s = *all;
    s->root = (kvm_jat){.v = root};
    TRY(kvm_json_place_as(&s->root, keep, all->root, err));
    s->name = there;
    s->source_path = a->path;
    s->target_path = b->path;
    s->both_directions = true;
    return kvm_json_prefix(err, kvm_spec__check_name(there, b->at, err), b->at);
}

/* what a pair says and a family cannot */
static kvm_status no_pair(const kvm_spec *all, kvm_arena *keep, kvm_err *err)
{
    static const char *const keys[] = {"source", "target", "both_directions",
                                       "reverse_name"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const kvm_jat at = kvm_json_get(all->root, keep, keys[i]);
        if (kvm_json_has(at))
            return kvm_json_fail(err, KVM_USAGE, at,
                                 "is of a pair, and this spec has a `family`, whose "
                                 "models are all translated into each other: leave "
                                 "one of the two out");
    }
    return KVM_OK;
}

kvm_status kvm_spec__family(kvm_spec **specs, ptrdiff_t *n, const kvm_spec *all,
                            kvm_arena *keep, kvm_err *err)
{
    member *m;
    ptrdiff_t models;
    TRY(no_pair(all, keep, err));
    TRY(read_members(&m, &models, all, keep, err));
    *specs = kvm_new(keep, kvm_spec, models * (models - 1) / 2);
    if (!*specs) return kvm_nomem(err, keep);
    *n = 0;
    for (ptrdiff_t i = 0; i < models; i++)
        for (ptrdiff_t k = i + 1; k < models; k++)
            TRY(pair_of(&(*specs)[(*n)++], all, &m[i], &m[k], keep, err));
    return KVM_OK;
}
