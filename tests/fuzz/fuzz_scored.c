/* Any text as the log of scored items that a killed attempt left: refused with a
 * reason, or its leading lines are those of the items, in their order. */
#include <stdint.h>
#include <stdlib.h>

#include "jobs/scored.h"
#include "tests/fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"items.jsonl"};
static kvm_item items[] = {{.id = {"a", 1}}, {.id = {"b", 1}}};
static ptrdiff_t order[] = {1, 0};

static kvm_status take(kvm_job *j, const char *suite, const char *arm,
                       const char *metric, kvm_str item, double value, kvm_err *err)
{
    (void)suite, (void)arm, (void)metric, (void)value, (void)err;
    const kvm_scored *s = j->host_ctx;
    if (!kvm_str_eq(item, kvm_scored_item(s, s->done)->id)) abort();
    return KVM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const kvm_job_host host = {.sample = take};
    kvm_arena keep;
    kvm_err err = {0};
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    fuzz_files(names, 1, data, size);
    kvm_suite suite = {.name = KVM_STR("s"), .items = items, .count = 2};
    kvm_scored s = {
        .suite = &suite, .name = suite.name, .items = {.index = order, .n = 2}};
    kvm_job j = {.host = &host,
                 .host_ctx = &s,
                 .dir = kvm_str_of(fuzz_dir),
                 .team = &kvm_team_alone,
                 .keep = &keep};
    s.job = &j;
    if (kvm_scored_resume(&s, &err)) {
        if (err.msg[0] == 0) abort();
    } else if (s.done < 0 || s.done > 2) {
        abort();
    }
    kvm_arena_free(&keep);
    return 0;
}
