/* Any bytes as files of moments (a Gram, a cross and the target's own Gram): refused
 * with a reason, or every product that they say they hold can be gathered. */
#include <stdint.h>
#include <stdlib.h>

#include "tests/fuzz/files.h"
#include "translators/moments.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { GRAM, CROSS, OWN, FILES, WIDEST = 512 };
static const char *const names[] = {"gram", "cross", "own"};
static double room[2][WIDEST * WIDEST];

/* the products of one layer's rows of either side with another's */
static double gather(const kvm_moments *m, kvm_feature of, kvm_output y)
{
    const kvm_features x = {&of, 1, -1};
    const ptrdiff_t f = kvm_features_width(m, x);
    const kvm_row_shape s = kvm_moments_shape(m, KVM_TARGET, y.space, y.layer);
    const ptrdiff_t p = s.heads * s.dim;
    if (kvm_moments_has(m, x, y, NULL) || f < 1 || f > WIDEST || p < 1 || p > WIDEST)
        return 0;
    double sum = 0;
    for (int k = 0; k < KVM_SPLITS; k++) {
        kvm_moments_get_gram(m, (kvm_split)k, x, room[0]);
        kvm_moments_get_cross(m, (kvm_split)k, x, y, 0, p, room[1], p);
        sum += room[0][f * f - 1] + room[1][f * p - 1];
        kvm_moments_get_mean(m, (kvm_split)k, x, room[0]);
        kvm_moments_get_target(m, (kvm_split)k, y, 0, p, room[1], NULL);
        sum += room[0][f - 1] + room[1][p - 1];
    }
    return sum;
}

static double touch(const kvm_moments *m)
{
    enum { FEW = 3 };
    double sum = 0;
    for (int a = 0; a < KVM_SPACES; a++)
        for (int b = 0; b < KVM_SPACES; b++)
            for (ptrdiff_t l = 0; l < FEW; l++)
                for (int side = 0; side < 2; side++) {
                    if (l >= kvm_moments_layers(m, (kvm_side)side) ||
                        l >= kvm_moments_layers(m, KVM_TARGET))
                        continue;
                    sum += gather(m, (kvm_feature){(kvm_side)side, (kvm_space)a, l},
                                  (kvm_output){(kvm_space)b, l});
                }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena keep;
    kvm_err err = {0};
    kvm_moments *m;
    if (kvm_arena_init(&keep, (size_t)1 << 26, &err)) return 0;
    fuzz_files(names, FILES, data, size);
    const kvm_str gram = kvm_str_of(fuzz_path[GRAM]),
                  cross = kvm_str_of(fuzz_path[CROSS]),
                  own = kvm_str_of(fuzz_path[OWN]);
    for (int with = 0; with < 2; with++) {
        err = (kvm_err){0};
        if (!kvm_moments_open(&m, &keep, gram, cross, with ? own : (kvm_str){0}, &err))
            touch(m);
        else if (err.msg[0] == 0)
            abort(); /* a refusal says why */
    }
    kvm_arena_free(&keep);
    return 0;
}
