/* Any bytes as a YAML document, then checked against a table of fields: no crash, and
 * whatever is read can be written as JSON and read again with the same meaning. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const kvm_field inner[] = {
    {.key = "name", .type = KVM_FIELD_STR, .required = true},
    {.key = "k", .type = KVM_FIELD_LIST, .item = KVM_FIELD_INT},
    {0},
};
static const kvm_field outer[] = {
    {.key = "a", .type = KVM_FIELD_NUM},
    {.key = "flag", .type = KVM_FIELD_BOOL},
    {.key = "fit", .type = KVM_FIELD_OBJECT, .inside = inner},
    {.key = "list", .type = KVM_FIELD_LIST, .inside = inner},
    {0},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0}, check = {0};
    /* below what is backed by huge pages, of which each input would clear one */
    if (kvm_arena_init(&keep, (size_t)24 << 20, &err)) return 0;
    char *text = malloc(size + !size);
    kvm_jat root, again;
    kvm_str once, twice;
    if (!text) abort();
    memcpy(text, data, size);
    const kvm_str input = {text, (ptrdiff_t)size};
    if (kvm_yaml_parse(&root, &keep, input, KVM_STR("fuzz.yaml"), &err)) {
        assert(err.code && err.msg[0]);
    } else {
        assert(!err.code && root.line > 0);
        const kvm_status s = kvm_schema_check(root, outer, keep, &check);
        assert(s == check.code);
        if (kvm_json_canonical(&once, &keep, root.v, &err)) abort();
        if (kvm_json_parse(&again, &keep, once, KVM_STR("again"), &err)) abort();
        if (kvm_json_canonical(&twice, &keep, again.v, &err)) abort();
        if (!kvm_str_eq(once, twice)) abort();
    }
    free(text);
    kvm_arena_free(&keep);
    return 0;
}
