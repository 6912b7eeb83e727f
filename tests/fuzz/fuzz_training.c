/* Any bytes as the checkpoint of a training: refused with a reason, or of this training
 * and numbers throughout. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "translators/training.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NUMBERS = 5 };

static kvm_status read_steps(void *ctx, const kvm_st *st, kvm_arena *own, kvm_err *err)
{
    (void)own;
    return kvm_meta_i64(st, "steps", 0, 9, ctx, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_err err = {0};
    int64_t steps = 0;
    float p[NUMBERS] = {0}, m[NUMBERS] = {0};
    const kvm_training t = {.format = "kvmill.fuzz_checkpoint.v1",
                            .what = "training",
                            .config = "c",
                            .told = {"steps"},
                            .name = {"p", "m"},
                            .array = {p, m},
                            .n = NUMBERS};
    const kvm_str bytes = {(const char *)data, (ptrdiff_t)size};
    if (kvm_training_parse(&t, read_steps, &steps, bytes, KVM_STR("fuzz"), &err)) {
        if (err.msg[0] == 0) abort();
        for (int i = 0; i < NUMBERS; i++)
            if (p[i] != 0 || m[i] != 0) abort(); /* a refusal leaves what was there */
    } else {
        for (int i = 0; i < NUMBERS; i++)
            if (!isfinite(p[i]) || !isfinite(m[i])) abort();
        if (steps < 0 || steps > 9) abort();
    }
    return 0;
}
