/* json.h - JSON through jansson, with errors that name the file and the path of the
 * value.
 *
 * A document is a json_t owned by the arena it was read into. Getters take a kvm_jat: a
 * value and the dotted path that led to it, so that `config.json: rope.factor: expected
 * a number, found the string "8"` costs the caller nothing. Depth is limited to 64,
 * duplicate keys and NaN are refused; an integer beyond 64 bits is read as a real. */
#ifndef KVM_BASE_JSON_H
#define KVM_BASE_JSON_H

#include <jansson.h>

#include "base/str.h"

typedef struct kvm_lines kvm_lines;

typedef struct kvm_jat {
    const json_t *v;        /* borrows; NULL = absent */
    const char *file;       /* for messages; borrows */
    const char *path;       /* dotted, for messages; borrows; "" at the root */
    int line;               /* > 0 when the document came from YAML */
    const kvm_lines *lines; /* private: where its members stand in YAML; else NULL */
} kvm_jat;

KVM_MUST kvm_status kvm_json_read(kvm_jat *root, kvm_arena *keep, kvm_str path,
                                  kvm_err *err);
/* the same for a file of Python's, which writes "no limit" as Infinity: that is read as
 * the largest real */
KVM_MUST kvm_status kvm_json_read_loose(kvm_jat *root, kvm_arena *keep, kvm_str path,
                                        kvm_err *err);
KVM_MUST kvm_status kvm_json_parse(kvm_jat *root, kvm_arena *keep, kvm_str text,
                                   kvm_str file_name, kvm_err *err);

/* members: the path string of the result lives in keep. kvm_jat.v is NULL when absent
 * or null. */
kvm_jat kvm_json_get(kvm_jat obj, kvm_arena *keep, const char *key);
kvm_jat kvm_json_item(kvm_jat arr, kvm_arena *keep, ptrdiff_t i);
static inline bool kvm_json_has(kvm_jat at)
{
    return at.v && !json_is_null(at.v);
}

/* typed reads; KVM_FORMAT with the place when absent or of another type. The _or forms
 * give the fallback when absent or null, and still refuse another type. Integers
 * accept 3.0. */
KVM_MUST kvm_status kvm_json_i64(kvm_jat at, int64_t *out, kvm_err *err);
KVM_MUST kvm_status kvm_json_i64_or(kvm_jat at, int64_t fallback, int64_t *out,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_json_f64(kvm_jat at, double *out, kvm_err *err);
KVM_MUST kvm_status kvm_json_f64_or(kvm_jat at, double fallback, double *out,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_json_bool_or(kvm_jat at, bool fallback, bool *out,
                                     kvm_err *err);
KVM_MUST kvm_status kvm_json_str(kvm_jat at, kvm_str *out,
                                 kvm_err *err); /* borrows from the document */
KVM_MUST kvm_status kvm_json_str_or(kvm_jat at, kvm_str fallback, kvm_str *out,
                                    kvm_err *err);
KVM_MUST kvm_status kvm_json_array(kvm_jat at, ptrdiff_t *n, kvm_err *err);
KVM_MUST kvm_status kvm_json_object(kvm_jat at, kvm_err *err);

/* kvm_json_fail - kvm_fail with a value's place in front: "FILE:LINE: PATH: ..." */
#define kvm_json_fail(err, code, at, ...)                                              \
    kvm_given(kvm_json_fail_at(err, code, at, __FILE__, __LINE__, __VA_ARGS__), code)
kvm_status kvm_json_fail_at(kvm_err *err, kvm_status code, kvm_jat at, const char *file,
                            int line, const char *fmt, ...) KVM_PRINTF(6, 7);

/* kvm_json_prefix - kvm_err_prefix with the place of the value that named the
 * culprit */
kvm_status kvm_json_prefix(kvm_err *err, kvm_status code, kvm_jat at);

/* kvm_json_place_as - copy, whose members were copied from original's, says where those
 * stand: it gets file, path and lines of original for what both have; else the line of
 * original itself. KVM_NOMEM. */
KVM_MUST kvm_status kvm_json_place_as(kvm_jat *copy, kvm_arena *keep, kvm_jat original,
                                      kvm_err *err);

/* kvm_json_next - the members of an object in the order of the file; false at the end:
 *   for (void *it = NULL; kvm_json_next(obj, &it, &key, &value);)
 * key and value borrow; an object that is absent has no members. */
bool kvm_json_next(kvm_jat obj, void **iter, kvm_str *key, const json_t **value);

/* kvm_json_canonical - sorted keys, no spaces, shortest round-trip numbers (3.0 and 3
 * are one number): what keys are hashed from. pretty: indented, in the order given. */
KVM_MUST kvm_status kvm_json_canonical(kvm_str *out, kvm_arena *keep, const json_t *v,
                                       kvm_err *err);
KVM_MUST kvm_status kvm_json_pretty(kvm_str *out, kvm_arena *keep, const json_t *v,
                                    kvm_err *err);
/* kvm_json_own - decref v when the arena goes; gives v back, NULL (v decref'd) when
 * spent */
json_t *kvm_json_own(kvm_arena *keep, json_t *v);

#endif
