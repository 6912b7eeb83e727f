/* Any bytes as a translator in one of the other layouts: refused with a reason, or
 * sound by the format's own checks. */
#include <stdint.h>
#include <stdlib.h>

#include "tests/fuzz/files.h"
#include "translators/translator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"mapper.json", "manifest.json",
                                    "mapper.safetensors"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kvm_status (*const read[])(kvm_translator *, kvm_arena *, kvm_str,
                                      kvm_err *) = {kvm_layout_a_read,
                                                    kvm_layout_b_read};
    kvm_arena keep;
    if (kvm_arena_init(&keep, (size_t)1 << 26, NULL)) return 0;
    fuzz_files(names, 3, data, size);
    for (int i = 0; i < 2; i++) {
        kvm_err err = {0};
        kvm_translator t;
        if (read[i](&t, &keep, kvm_str_of(fuzz_dir), &err)) {
            if (err.msg[0] == 0) abort(); /* a refusal says why */
        } else if (kvm_translator_check(&t, NULL)) {
            abort();
        }
    }
    kvm_arena_free(&keep);
    return 0;
}
