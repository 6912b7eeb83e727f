/* Any text as a public data set, in the format that the first part of the input names:
 * refused with a reason, or items that are objects. */
#include <stdint.h>
#include <stdlib.h>

#include "jobs/suite_import.h"
#include "tests/fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FORMAT, INPUT, LABELS, FILES };
static const char *const names[] = {"format", "in.jsonl", "in-labels.lst"};

static const struct {
    const char *name;
    kvm_status (*read)(kvm_import *im, kvm_err *err);
} formats[] = {
#define X(name, kind, metric, chance, max_new, stop, licence, input)                   \
    {#name, kvm_import_##name},
#include "jobs/suite_formats.def"
#undef X
};

static void import(int format, kvm_arena *keep)
{
    kvm_err err = {0};
    const kvm_import_options o = {.input = kvm_str_of(fuzz_path[INPUT]), .tokens = 64};
    kvm_import im = {.o = &o,
                     .keep = keep,
                     .items = kvm_json_own(keep, json_array()),
                     .why = "",
                     .note = ""};
    if (!im.items) return;
    const kvm_status s = formats[format].read(&im, &err);
    if (s && err.msg[0] == 0) abort(); /* a refusal says why */
    for (size_t i = 0; !s && i < json_array_size(im.items); i++)
        if (!json_is_object(json_array_get(im.items, i))) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_str name, rest;
    if (kvm_arena_init(&keep, (size_t)1 << 26, NULL)) return 0;
    fuzz_files(names, FILES, data, size);
    kvm_str_cut((kvm_str){(const char *)data, (ptrdiff_t)size}, '\n', &name, &rest);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (kvm_str_eq(name, kvm_str_of(formats[i].name))) import((int)i, &keep);
    kvm_arena_free(&keep);
    return 0;
}
