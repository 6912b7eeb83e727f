/* Any text as a gang's task and any bytes as its progress: refused with a reason, or
 * read with everything in its range. (A task names its folder, which is another in each
 * process: the last check refuses the others.) */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/files.h"
#include "workers/gang.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"task.json", "progress"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_task t;
    kvm_gang_progress p;
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    fuzz_files(names, 2, data, size);
    if (kvm_task_read(&t, &keep, kvm_str_of(fuzz_dir), &err)) {
        if (err.msg[0] == 0) abort();
    } else if (t.ranks < 2 || !t.claim.inputs || t.claim.input_count < 0) {
        abort();
    }
    if (kvm_gang_progress_read(kvm_str_of(fuzz_dir), &p) &&
        (!isfinite(p.done) || !isfinite(p.total) || !memchr(p.unit, 0, sizeof p.unit)))
        abort();
    kvm_arena_free(&keep);
    return 0;
}
