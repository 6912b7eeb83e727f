/* Any bytes as a translator or as a capture: refused with a reason, or sound to use. */
#include <stdint.h>
#include <stdlib.h>

#include "translators/translator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static float sum_of(const kvm_tensor *w)
{
    float sum = 0, x;
    for (ptrdiff_t k = 0; k < kvm_tensor_count(w); k++) {
        const char *at =
            (const char *)w->data + k * (ptrdiff_t)kvm_dtype_block_bytes(w->dtype);
        if (kvm_widen_row(&x, at, w->dtype, 1, NULL)) abort();
        sum += x;
    }
    return sum;
}

/* every number that a step points at */
static float touch(const kvm_translator *t)
{
    float sum = 0;
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_step *s = &t->steps[i];
        const int parts = s->map == KVM_MAP_MLP ? 3 : s->map == KVM_MAP_RIDGE;
        for (int p = 0; p < parts; p++) sum += sum_of(&s->weight[p]) + s->bias[p][0];
        for (ptrdiff_t k = 0; k < s->sources; k++) sum += (float)s->source[k];
    }
    for (ptrdiff_t i = 0; i < t->state_count; i++) {
        const kvm_state_step *s = &t->states[i];
        if (s->map != KVM_STATE_BILINEAR) continue;
        sum += sum_of(&s->left) + sum_of(&s->right) + sum_of(&s->window);
        for (ptrdiff_t k = 0; k < s->window.dim[0] * s->window.dim[1]; k++)
            sum += s->bias[k];
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_translator t;
    kvm_rows *r;
    const kvm_str bytes = {(const char *)data, (ptrdiff_t)size};
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    if (kvm_translator_parse(&t, &keep, bytes, KVM_STR("fuzz"), &err) == KVM_OK) {
        if (touch(&t) == 0.5F && kvm_translator_check(&t, NULL)) abort();
    } else if (err.msg[0] == 0) {
        abort();
    }
    err = (kvm_err){0};
    if (kvm_rows_parse(&r, &keep, bytes, KVM_STR("fuzz"), &err) == KVM_OK) {
        if (kvm_rows_position(r)[kvm_rows_count(r) - 1] < 0) abort();
    } else if (err.msg[0] == 0) {
        abort();
    }
    kvm_arena_free(&keep);
    return 0;
}
