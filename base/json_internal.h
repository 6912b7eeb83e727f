/* json_internal.h - where the members of a YAML document stand, for json.c and
 * yaml.c. */
#ifndef KVM_BASE_JSON_INTERNAL_H
#define KVM_BASE_JSON_INTERNAL_H

#include "base/json.h"

/* A line belongs to a place (container and member), not to a value: jansson has only
 * one null, one true and one false. */
typedef struct kvm_line {
    const json_t *in;
    uint64_t member; /* index in a list; kvm_json__member of the key in an object */
    int line;
} kvm_line;

struct kvm_lines {
    const kvm_line *rows; /* sorted by kvm_json__line_order */
    ptrdiff_t n;
};

uint64_t kvm_json__member(kvm_str key);
int kvm_json__line_order(const void *a, const void *b);
/* the line of a member, or 0 when it is not known */
int kvm_json__line(const kvm_lines *lines, const json_t *in, uint64_t member);
/* the largest depth of nesting of any document */
enum { KVM_JSON_DEPTH = 64 };

#endif
