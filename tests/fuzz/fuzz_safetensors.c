/* Any bytes as a safetensors file: refused, or every tensor lies inside the file. */
#include <stdint.h>
#include <stdlib.h>

#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_st *st;
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    const kvm_str bytes = {(const char *)data, (ptrdiff_t)size};
    unsigned sum = 0;
    if (kvm_st_parse(&st, &keep, bytes, KVM_STR("fuzz"), &err) == KVM_OK) {
        for (ptrdiff_t i = 0; i < kvm_st_count(st); i++) {
            const kvm_st_tensor *t = kvm_st_at(st, i);
            const unsigned char *at = t->t.data;
            for (size_t j = 0; j < t->bytes; j++) sum += at[j];
            if (kvm_st_find(st, t->name) != t) abort();
        }
        (void)kvm_st_meta(st, KVM_STR("format"));
    } else if (err.msg[0] == 0) {
        abort(); /* a refusal says why */
    }
    kvm_arena_free(&keep);
    return sum == 0xFFFFFFFFu ? -1 : 0;
}
