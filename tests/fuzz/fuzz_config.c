/* Any bytes as config.json, or as a GGUF file: refused with a reason, or sizes that the
 * rest may multiply. */
#include <stdint.h>
#include <stdlib.h>

#include "models/config.h"
#include "models/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static kvm_status read(kvm_config *c, kvm_arena *keep, kvm_str bytes, kvm_err *err)
{
    kvm_gguf *g;
    kvm_jat root;
    if (kvm_str_starts(bytes, KVM_STR("GGUF"))) {
        TRY(kvm_gguf_parse(&g, keep, bytes, KVM_STR("fuzz"), err));
        return kvm_config_of_gguf(c, keep, g, err);
    }
    TRY(kvm_json_parse(&root, keep, bytes, KVM_STR("fuzz"), err));
    return kvm_config_of_json(c, keep, root, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_config c;
    kvm_rope rope;
    char hex[65];
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    if (read(&c, &keep, (kvm_str){(const char *)data, (ptrdiff_t)size}, &err)) {
        if (err.msg[0] == 0) abort();
    } else if (c.heads % c.kv_heads != 0 || c.rope.width > c.head_dim ||
               kvm_config_hash(&c, hex, keep, &err) ||
               kvm_rope_of(&rope, &keep, &c.rope, NULL, &err)) {
        abort();
    }
    kvm_arena_free(&keep);
    return 0;
}
