/* Any bytes as a GGUF header: refused with a reason, or every lookup stays inside the
 * file. */
#include <stdint.h>
#include <stdlib.h>

#include "models/gguf_meta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned sum_of(kvm_str s)
{
    unsigned sum = 0;
    for (ptrdiff_t i = 0; i < s.len; i++) sum += (unsigned char)s.at[i];
    return sum;
}

/* every kind of read of a key that may be there */
static unsigned read_key(const kvm_gguf *g, const char *key, kvm_arena *a)
{
    unsigned sum = 0;
    uint64_t u;
    double d, *ds;
    bool b;
    kvm_str s, *strs;
    int64_t *is;
    ptrdiff_t n;
    if (!kvm_gguf_u64_or(g, key, 1, &u, NULL)) sum += (unsigned)u;
    if (!kvm_gguf_f64(g, key, &d, NULL)) sum += d > 0;
    if (!kvm_gguf_bool_or(g, key, true, &b, NULL)) sum += b;
    if (!kvm_gguf_str(g, key, &s, NULL)) sum += sum_of(s);
    if (!kvm_gguf_strs(g, key, a, &strs, &n, NULL))
        for (ptrdiff_t i = 0; i < n; i++) sum += sum_of(strs[i]);
    if (!kvm_gguf_i64s(g, key, a, &is, &n, NULL))
        for (ptrdiff_t i = 0; i < n; i++) sum += (unsigned)is[i];
    if (!kvm_gguf_f64s(g, key, a, &ds, &n, NULL))
        for (ptrdiff_t i = 0; i < n; i++) sum += ds[i] > 0;
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_gguf *g;
    unsigned sum = 0;
    if (kvm_arena_init(&keep, (size_t)1 << 24, &err)) return 0;
    const kvm_str bytes = {(const char *)data, (ptrdiff_t)size};
    if (kvm_gguf_parse(&g, &keep, bytes, KVM_STR("fuzz"), &err) == KVM_OK) {
        static const char *const keys[] = {
            "general.alignment", "k", "a", "s", "n", "f"};
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            sum += read_key(g, keys[i], &keep);
        for (ptrdiff_t i = 0; i < kvm_gguf_tensors(g); i++) {
            const kvm_gguf_tensor *t = kvm_gguf_tensor_at(g, i);
            if (kvm_gguf_tensor_find(g, t->name) != t) abort();
            sum += sum_of((kvm_str){kvm_gguf_data(g, t), t->bytes});
        }
    } else if (err.msg[0] == 0) {
        abort(); /* a refusal says why */
    }
    kvm_arena_free(&keep);
    return sum == 0xFFFFFFFFu ? -1 : 0;
}
