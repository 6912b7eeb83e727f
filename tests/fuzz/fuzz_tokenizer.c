/* Any bytes as a tokenizer.json: refused with a reason, or it encodes a text to ids
 * that it has. */
#include <stdint.h>
#include <stdlib.h>

#include "models/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const kvm_tokenizer *t, kvm_arena *a)
{
    static const char text[] = "It's a\u0301 test <s> ab\n\n  12 \u4e2d\xff end";
    kvm_encoder *e;
    int32_t *ids;
    ptrdiff_t n;
    kvm_str back;
    const kvm_encode_options o = {.add_bos = true};
    if (kvm_encoder_new(&e, a, t, NULL)) return;
    if (kvm_encode(e, (kvm_str){text, sizeof text - 1}, &o, a, &ids, &n, NULL)) return;
    if (kvm_decode(t, ids, n, false, a, &back, NULL)) abort(); /* an id of its own */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_tokenizer *t;
    if (kvm_arena_init(&keep, (size_t)1 << 25, &err)) return 0;
    const kvm_str bytes = {(const char *)data, (ptrdiff_t)size};
    if (kvm_tokenizer__parse_json(&t, &keep, bytes, KVM_STR("fuzz"), &err) == KVM_OK)
        use(t, &keep);
    else if (err.msg[0] == 0)
        abort(); /* a refusal says why */
    kvm_arena_free(&keep);
    return 0;
}
