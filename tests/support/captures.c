#include "tests/support/captures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(kvm_status s, const kvm_err *err)
{
    if (!s) return;
    fprintf(stderr, "making a capture: %s\n", err->msg);
    abort();
}

kvm_rope made_rope(float *inv_freq, ptrdiff_t width, double theta, float factor,
                   bool interleaved)
{
    for (ptrdiff_t j = 0; j < width / 2; j++)
        inv_freq[j] = (float)pow(theta, -2.0 * (double)j / (double)width);
    return (kvm_rope){inv_freq, width, interleaved, factor};
}

kvm_features made_features(kvm_arena *keep, kvm_space s, const int32_t *layers,
                           ptrdiff_t count, ptrdiff_t head)
{
    kvm_feature *item = kvm_new(keep, kvm_feature, count);
    for (ptrdiff_t i = 0; i < count; i++)
        item[i] = (kvm_feature){KVM_SOURCE, s, layers[i]};
    return (kvm_features){item, count, head};
}

ptrdiff_t made_width(const made *m)
{
    return m->layers * m->heads * (m->k_dim + m->v_dim);
}

static void noise(const made *m, kvm_rng *rng, float *row)
{
    for (ptrdiff_t i = 0; i < made_width(m); i++) row[i] = (float)kvm_rng_normal(rng);
}

static void put_sequence(const made *m, kvm_rows_writer *w, int32_t s, kvm_rng *rng,
                         kvm_arena scratch)
{
    kvm_err err = {0};
    const ptrdiff_t width = made_width(m), k = m->heads * m->k_dim,
                    v = m->heads * m->v_dim;
    float *rows = kvm_new(&scratch, float, m->tokens *width);
    float *one = kvm_new(&scratch, float, m->tokens *(k > v ? k : v));
    int32_t *position = kvm_new(&scratch, int32_t, m->tokens);
    for (ptrdiff_t t = 0; t < m->tokens; t++) {
        position[t] = (int32_t)t;
        if (m->row)
            m->row(m->ctx, s, t, rows + t * width);
        else
            noise(m, rng, rows + t * width);
    }
    ptrdiff_t at = 0;
    for (ptrdiff_t o = 0; o < 2 * m->layers; o++) {
        const ptrdiff_t n = o % 2 ? v : k;
        for (ptrdiff_t t = 0; t < m->tokens; t++)
            memcpy(one + t * n, rows + t * width + at, sizeof *one * (size_t)n);
        must(kvm_rows_put(w, o % 2 ? KVM_SPACE_V : KVM_SPACE_K, o / 2, 0, m->tokens,
                          one, &err),
             &err);
        at += n;
    }
    must(kvm_rows_end_sequence(w, s, position, m->tokens, &err), &err);
}

void made_capture(const made *m, const char *path)
{
    kvm_arena keep, scratch;
    kvm_err err = {0};
    must(kvm_arena_init(&keep, (size_t)2 << 30, &err), &err);
    must(kvm_arena_init(&scratch, (size_t)2 << 30, &err), &err);
    kvm_row_shape *k = kvm_new(&keep, kvm_row_shape, m->layers);
    kvm_row_shape *v = kvm_new(&keep, kvm_row_shape, m->layers);
    for (ptrdiff_t l = 0; l < m->layers; l++) {
        k[l] = (kvm_row_shape){m->heads, m->k_dim, 0};
        v[l] = (kvm_row_shape){m->heads, m->v_dim, 0};
    }
    const kvm_rows_info info = {.model = kvm_str_of(m->name),
                                .model_name = kvm_str_of(m->name),
                                .text = KVM_STR("made-up"),
                                .tokenizer = KVM_STR("none"),
                                .shapes = kvm_shapes_kv(m->layers, k, v),
                                .stride = 1,
                                .tokens = m->tokens,
                                .dtype = m->dtype,
                                .rope = m->rope};
    kvm_rows_writer *w;
    must(kvm_rows_create(&w, &keep, kvm_str_of(path), &info, &err), &err);
    uint64_t seed = 0;
    for (const char *c = m->name; *c; c++) seed = seed * 31 + (unsigned char)*c;
    kvm_rng rng = kvm_rng_seed(seed, 1);
    for (ptrdiff_t s = kvm_rows_done(w); s < m->sequences; s++)
        put_sequence(m, w, (int32_t)s, &rng, scratch);
    must(kvm_rows_publish(w, NULL, &err), &err);
    kvm_arena_free(&scratch);
    kvm_arena_free(&keep);
}
