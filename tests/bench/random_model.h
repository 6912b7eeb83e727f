/* random_model.h - a folder with a config and random weights, for benches. */
#ifndef KVM_TESTS_BENCH_RANDOM_MODEL_H
#define KVM_TESTS_BENCH_RANDOM_MODEL_H

#include <math.h>

#include "base/file.h"
#include "base/rng.h"
#include "models/safetensors.h"
#include "tests/bench/bench.h"

enum { RANDOM_COLS = 8192 };

/* matrices of variance 1/columns, vectors (norms) of ones */
static inline void append_random(kvm_st_writer *w, const kvm_st_spec *s, kvm_rng *rng)
{
    static float x[RANDOM_COLS];
    static uint16_t half[RANDOM_COLS];
    const ptrdiff_t cols = s->dim[s->rank - 1];
    const double scale = sqrt(3.0 / (double)cols);
    ptrdiff_t rows = 1;
    for (int d = 0; d < s->rank - 1; d++) rows *= s->dim[d];
    if (cols > RANDOM_COLS) die(s->name.at, "has too many columns");
    for (ptrdiff_t r = 0; r < rows; r++) {
        for (ptrdiff_t i = 0; i < cols; i++)
            x[i] = s->rank == 1 ? 1 : (float)((2 * kvm_rng_unit(rng) - 1) * scale);
        if (s->dtype == KVM_F32) {
            OK(kvm_st_append(w, x, (size_t)cols * sizeof *x, &err));
        } else {
            OK(kvm_narrow_row(half, s->dtype, x, cols, &err));
            OK(kvm_st_append(w, half, (size_t)cols * sizeof *half, &err));
        }
    }
}

/* the folder dir, made when it is not there */
static inline void random_model(kvm_arena *keep, kvm_str dir, const char *config,
                                const kvm_st_spec *specs, ptrdiff_t n)
{
    const kvm_str weights = kvm_path_join(keep, dir, KVM_STR("model.safetensors"));
    kvm_st_writer *w;
    kvm_rng rng = kvm_rng_seed(135, 1);
    if (kvm_path_exists(weights)) return;
    OK(kvm_dir_make(dir, &err));
    OK(kvm_file_publish(kvm_path_join(keep, dir, KVM_STR("config.json")),
                        kvm_str_of(config), *keep, &err));
    OK(kvm_st_begin(&w, keep, weights, specs, n, NULL, &err));
    for (ptrdiff_t i = 0; i < n; i++) append_random(w, &specs[i], &rng);
    OK(kvm_st_publish(w, NULL, &err));
}

#endif
