/* yaml.h - YAML read as a person means it, into the same tree as JSON, with line
 * numbers.
 *
 * libyaml's events, YAML 1.2 core schema: 1e-3 is a number, `no` and `yes` are strings
 * (an error says "write false"), 010 is refused (octal or ten?), duplicate keys,
 * anchors with cycles, tags and more than one document are refused. Every node keeps
 * its line, so that a spec error names it.
 *
 * A document has at most 16 MiB, 256 anchors, 64 levels and a million values, each
 * alias counted as a copy of what it names; all aliases together repeat at most 1 MiB
 * of text (keys, strings, numbers as they are written). Beyond that it is KVM_RANGE,
 * and KVM_FORMAT where it is too deep. */
#ifndef KVM_BASE_YAML_H
#define KVM_BASE_YAML_H

#include "base/json.h"

KVM_MUST kvm_status kvm_yaml_read(kvm_jat *root, kvm_arena *keep, kvm_str path,
                                  kvm_err *err);
KVM_MUST kvm_status kvm_yaml_parse(kvm_jat *root, kvm_arena *keep, kvm_str text,
                                   kvm_str file_name, kvm_err *err);

/* A row of a document's schema: what may stand under an object. kvm_schema_check
 * refuses unknown keys (with the nearest known one), wrong types and missing required
 * keys, naming file and line. */
typedef enum kvm_field_type {
    KVM_FIELD_STR,
    KVM_FIELD_INT,
    KVM_FIELD_NUM,
    KVM_FIELD_BOOL,
    KVM_FIELD_LIST,
    KVM_FIELD_OBJECT,
    KVM_FIELD_ANY
} kvm_field_type;
typedef struct kvm_field {
    const char *key;
    kvm_field_type type;
    bool required;
    const char *help;               /* one line, for `kvmill help spec` */
    const struct kvm_field *inside; /* of an OBJECT or each item of a LIST; NULL: any */
    kvm_field_type item;            /* of a LIST without `inside` */
} kvm_field;                        /* tables end with a row whose key is NULL */
/* An object that is written empty, as a section whose lines are all commented out is,
 * is refused: nobody can tell whether it is wanted. */
KVM_MUST kvm_status kvm_schema_check(kvm_jat obj, const kvm_field *fields,
                                     kvm_arena scratch, kvm_err *err);

#endif
