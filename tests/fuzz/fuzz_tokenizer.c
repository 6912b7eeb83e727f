/* Any bytes as a tokenizer.json or tekken.json, or, when they do not begin with a
 * brace, as a tiktoken.model with, behind a zero, its tokenizer_config.json: refused
 * with a reason, or it encodes a text to ids that it has. */
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

static kvm_status parse(kvm_tokenizer **t, kvm_arena *keep, kvm_str bytes, kvm_err *err)
{
    kvm_str ranks, config;
    const kvm_str name = KVM_STR("fuzz");
    if (kvm_str_starts(bytes, KVM_STR("{")))
        return kvm_tokenizer__parse_json(t, keep, bytes, name, err);
    if (!kvm_str_cut(bytes, 0, &ranks, &config))
        config = KVM_STR("{\"added_tokens_decoder\":{}}");
    return kvm_tokenizer__parse_tiktoken(t, keep, ranks, config, name, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_tokenizer *t;
    if (kvm_arena_init(&keep, (size_t)1 << 25, &err)) return 0;
    const kvm_str bytes = {(const char *)data, (ptrdiff_t)size};
    if (parse(&t, &keep, bytes, &err) == KVM_OK)
        use(t, &keep);
    else if (err.msg[0] == 0)
        abort(); /* a refusal says why */
    kvm_arena_free(&keep);
    return 0;
}
