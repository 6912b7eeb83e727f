/* Any bytes as a file of the time zone database: no crash, and what is read answers
 * every question with a number that lies near by. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/zone.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { FAR = 3 * 86400 };
    kvm_arena keep;
    kvm_zone z;
    kvm_err err = {0};
    if (kvm_arena_init(&keep, (size_t)4 << 20, &err)) return 0;
    char *text = malloc(size + !size);
    if (!text) abort();
    memcpy(text, data, size);
    const kvm_str bytes = {text, (ptrdiff_t)size};
    if (kvm_zone_parse(&z, &keep, bytes, KVM_STR("fuzz"), &err)) {
        assert(err.code && err.msg[0]);
    } else {
        for (int year = 1; year < 9999; year += 37) {
            const int64_t at = kvm_days_of(year, 1 + year % 12, 1) * 86400 + year;
            const int32_t offset = kvm_zone_offset(&z, at);
            assert(offset >= -FAR && offset <= FAR);
            const int64_t back = kvm_zone_instant(&z, at);
            assert(back >= at - FAR && back <= at + FAR);
        }
    }
    free(text);
    kvm_arena_free(&keep);
    return 0;
}
