/* Any bytes as a JSON document: no crash, and what is read has one canonical text. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    if (kvm_arena_init(&keep, (size_t)8 << 20, &err)) return 0;
    char *text = malloc(size + !size);
    kvm_jat root, again;
    kvm_str once, twice;
    if (!text) abort();
    memcpy(text, data, size);
    const kvm_str input = {text, (ptrdiff_t)size};
    if (kvm_json_parse(&root, &keep, input, KVM_STR("fuzz.json"), &err)) {
        assert(err.code && err.msg[0] && err.msg[KVM_ERR_BYTES - 1] == 0);
    } else {
        assert(!err.code);
        if (kvm_json_canonical(&once, &keep, root.v, &err)) abort();
        if (kvm_json_parse(&again, &keep, once, KVM_STR("again"), &err)) abort();
        if (kvm_json_canonical(&twice, &keep, again.v, &err)) abort();
        if (!kvm_str_eq(once, twice)) abort();
        if (kvm_json_pretty(&once, &keep, root.v, &err)) abort();
    }
    free(text);
    kvm_arena_free(&keep);
    return 0;
}
