/* Any text as the spec of a pair or a family: refused by file and line, or read by
 * every job that has a section in it, and by what counts rows and products of made-up
 * models. */
#include <stdint.h>
#include <stdlib.h>

#include "jobs/needs.h"
#include "tests/fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"pair.yaml"};

/* a side of each kind: keys and values, latents, states */
static kvm_shapes made_up(int which)
{
    static const kvm_row_shape plain[] = {{2, 8, 0}, {2, 8, 0}},
                               once[] = {{0}, {2, 32, 4}};
    kvm_shapes s = {.layers = 2};
    for (int i = 0; i < KVM_SPACES; i++)
        if (which >> i & 1) s.of[i] = kvm_space_once((kvm_space)i) ? once : plain;
    for (int i = 0; i < KVM_SPACES; i++) s.of[i] = s.of[kvm_space_rows[i].stored];
    return s;
}

static void check_sections(const kvm_spec *s, kvm_arena *keep)
{
    for (int id = 1; kvm_job_kind_name((kvm_kind_id)id); id++) {
        const kvm_job_kind *kind = kvm_job_kind_of((kvm_kind_id)id);
        kvm_err err = {0};
        if (!kind || !kind->section || !kind->check) continue;
        kvm_job j = {.keep = keep,
                     .params = kvm_json_get(s->root, keep, kind->section)};
        if (kvm_json_has(j.params) && kind->check(&j, &err) && err.msg[0] == 0) abort();
    }
}

static void check_needs(const kvm_spec *s, size_t size, kvm_arena *keep)
{
    kvm_err err = {0};
    kvm_needs needs = {0};
    const kvm_shapes sides[] = {made_up((int)(size % 61)), made_up((int)(size % 7))};
    if (kvm_needs_read(&needs, s, sides, keep, &err) && err.msg[0] == 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_spec *specs;
    ptrdiff_t n = 0;
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    fuzz_files(names, 1, data, size);
    if (kvm_specs_read(&specs, &n, &keep, kvm_str_of(fuzz_path[0]), &err)) {
        if (err.msg[0] == 0) abort(); /* a refusal says why */
    } else {
        for (ptrdiff_t i = 0; i < n && i < 2; i++) check_needs(&specs[i], size, &keep);
        check_sections(specs, &keep); /* those of a family are one text */
    }
    kvm_arena_free(&keep);
    return 0;
}
