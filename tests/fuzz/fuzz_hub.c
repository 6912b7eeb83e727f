/* Any text as what a hub says of a model: refused with a reason, or a list of files
 * whose sizes and hashes are such; and a name that counts as safe stays below its
 * folder. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Said in another way than kvm_hub_name_is_safe does it. */
static void check_name(kvm_str name, kvm_arena *keep)
{
    if (!kvm_hub_name_is_safe(name)) return;
    const kvm_str path = kvm_str_fmt(keep, "/%.*s/", KVM_STR_ARG(name));
    static const char *const bad[] = {"//", "/./", "/../", "\\", "\n"};
    if (!path.at || path.len != name.len + 2 || memchr(name.at, 0, (size_t)name.len))
        abort();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kvm_str_find(path, kvm_str_of(bad[i])) >= 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_hub_list list = {0};
    const kvm_str body = {(const char *)data, (ptrdiff_t)size};
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    check_name(body, &keep);
    if (kvm_hub_read(&list, body, KVM_STR("hub"), KVM_STR("main"), &keep, &err)) {
        if (err.msg[0] == 0) abort();
        list.count = 0;
    } else if (!list.commit.at) {
        abort();
    }
    for (ptrdiff_t i = 0; i < list.count; i++) {
        const kvm_hub_file *f = &list.files[i];
        if (f->bytes < -1 || (f->hash.len && f->hash.len != 40 && f->hash.len != 64))
            abort();
        check_name(f->name, &keep);
    }
    kvm_arena_free(&keep);
    return 0;
}
