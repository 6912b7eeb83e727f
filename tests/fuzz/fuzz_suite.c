/* Any text as a suite's card and its items: refused with a reason, or a suite whose
 * items are whole. */
#include <stdint.h>
#include <stdlib.h>

#include "jobs/suite.h"
#include "tests/fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"card.yaml", "items.jsonl"};

static unsigned sum_of(kvm_str s)
{
    unsigned sum = 0;
    for (ptrdiff_t i = 0; i < s.len; i++) sum += (unsigned char)s.at[i];
    return sum;
}

static unsigned touch(const kvm_suite *s)
{
    unsigned sum = 0;
    for (ptrdiff_t i = 0; i < s->count; i++) {
        const kvm_item *it = &s->items[i];
        sum += sum_of(it->id) + sum_of(it->prefix) + sum_of(it->question) +
               sum_of(it->continuation);
        if (it->choice_count && (it->answer < 0 || it->answer >= it->choice_count))
            abort();
        for (ptrdiff_t k = 0; k < it->choice_count; k++)
            sum += sum_of(it->choices[k]) + (it->leads ? sum_of(it->leads[k]) : 0);
        for (ptrdiff_t k = 0; k < it->stop_count; k++) sum += sum_of(it->stop[k]);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_suite *s;
    ptrdiff_t *index, n;
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    fuzz_files(names, 2, data, size);
    if (kvm_suite_read(&s, &keep, kvm_str_of(fuzz_path[0]), &err)) {
        if (err.msg[0] == 0) abort(); /* a refusal says why */
    } else if (!kvm_suite_sample(&index, &n, &keep, s, 3, &err)) {
        touch(s);
        for (ptrdiff_t i = 0; i < n; i++)
            if (index[i] < 0 || index[i] >= s->count) abort();
    }
    kvm_arena_free(&keep);
    return 0;
}
