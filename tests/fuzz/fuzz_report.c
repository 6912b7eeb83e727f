/* fuzz_report - any text as a report document: a page that is well-formed by length, or
 * one error; never a crash. */
#include <stdint.h>
#include <stdlib.h>

#include "reports/page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kvm_arena keep, scratch;
    if (!keep.base && (kvm_arena_init(&keep, (size_t)64 << 20, NULL) ||
                       kvm_arena_init(&scratch, (size_t)256 << 20, NULL)))
        abort();
    kvm_jat doc;
    kvm_text out = {0};
    const kvm_str text = {(const char *)data, (ptrdiff_t)size};
    if (!kvm_json_parse(&doc, &keep, text, KVM_STR("fuzz"), NULL))
        if (!kvm_page_html(&out, doc, scratch, NULL) && out.len < 1000) abort();
    kvm_text_free(&out);
    kvm_arena_reset(&keep);
    return 0;
}
