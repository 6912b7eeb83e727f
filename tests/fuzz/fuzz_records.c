/* Any text as what a job left of its figures: refused with a reason, or read; a torn
 * last line is no reason. */
#include <stdint.h>
#include <stdlib.h>

#include "tests/fuzz/files.h"
#include "workers/host.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"records.jsonl"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_records r;
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    fuzz_files(names, 1, data, size);
    if (kvm_records_read(&r, &keep, kvm_str_of(fuzz_path[0]), &err) && err.msg[0] == 0)
        abort();
    kvm_arena_free(&keep);
    return 0;
}
