/* bench_translators - moments, the fit's sweep and applying, against their ceilings.
 *
 *   bench_translators [part] [threads] [rounds] [block]
 *   part: moments sweep apply (all)
 *
 * Every part verifies before it times. Arms of one comparison are interleaved and
 * figures are medians of ratios of the same rounds. The sweep's moments stay in
 * build/tmp/bench for tests/bench/bench_translators.py, which does the same algebra
 * with numpy and scipy. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "models/safetensors.h"
#include "tests/bench/bench.h"
#include "tests/support/captures.h"
#include "translators/apply.h"
#include "translators/select.h"

#define TMP "build/tmp/bench/"

enum { MOST_ROUNDS = 51 };

static kvm_arena keep, scratch;
static kvm_compute *compute;
static int rounds = 7;

static float *noise(ptrdiff_t n)
{
    float *x = kvm_new_raw(&keep, float, n);
    kvm_rng rng = kvm_rng_seed(1, (uint64_t)n);
    if (!x) die("noise", "out of memory");
    for (ptrdiff_t i = 0; i < n; i++) x[i] = (float)kvm_rng_unit(&rng) - 0.5F;
    return x;
}

/* ---- moments ---- */

static void bench_moments(ptrdiff_t layers, ptrdiff_t rows)
{
    const ptrdiff_t f = layers * 128;
    made m = {.name = "moments",
              .layers = layers,
              .heads = 2,
              .k_dim = 64,
              .v_dim = 64,
              .sequences = rows / 512,
              .tokens = 512};
    kvm_rows *r;
    made_capture(&m, TMP "moments.capture");
    OK(kvm_rows_open(&r, &keep, KVM_STR(TMP "moments.capture"), &err));
    float *x = noise(4096 * f), *g = noise(f * f);
    const kvm_moments_options o = {.hash_a = "x"};
    double ratio[MOST_ROUNDS], ours[MOST_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        double start = seconds_of(compute);
        OK(kvm_moments_gram(compute, r, &o, KVM_STR(TMP "moments.gram"), NULL, &err));
        const double seconds = seconds_of(compute) - start;
        start = seconds_of(compute);
        for (ptrdiff_t n = 0; n < 3 * rows; n += 4096)
            cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)f, 4096, 1, x,
                        (int)f, 1, g, (int)f);
        ratio[i] = (seconds_of(compute) - start) / seconds;
        ours[i] = 3.0 * (double)rows * (double)f * (double)(f + 1) / seconds / 1e9;
    }
    printf("moments  %5td features, %6td rows x 3 spaces: %6.1f GF/s (ssyrk flops), "
           "%.2f of ssyrk\n",
           f, rows, median(ours, rounds), median(ratio, rounds));
}

/* ---- sweep ---- */

static void bench_sweep(const char *label, ptrdiff_t from, ptrdiff_t to,
                        ptrdiff_t heads, ptrdiff_t dim, ptrdiff_t sequences)
{
    made a = {.name = "a",
              .layers = from,
              .heads = heads,
              .k_dim = dim,
              .v_dim = dim,
              .sequences = sequences,
              .tokens = 256};
    made b = a;
    b.name = "b";
    b.layers = to;
    kvm_rows *ra, *rb;
    kvm_moments *m;
    const kvm_moments_options o = {.hash_a = "a", .hash_b = "b"};
    made_capture(&a, TMP "a.capture");
    made_capture(&b, TMP "b.capture");
    OK(kvm_rows_open(&ra, &keep, KVM_STR(TMP "a.capture"), &err));
    OK(kvm_rows_open(&rb, &keep, KVM_STR(TMP "b.capture"), &err));
    const kvm_str gram = kvm_str_fmt(&keep, TMP "%s.gram", label);
    const kvm_str cross = kvm_str_fmt(&keep, TMP "%s.cross", label);
    OK(kvm_moments_gram(compute, ra, &o, gram, NULL, &err));
    OK(kvm_moments_cross(compute, ra, rb, &o, cross, NULL, &err));
    OK(kvm_moments_open(&m, &keep, gram, cross, (kvm_str){0}, &err));
    ptrdiff_t ks[KVM_KS];
    const ptrdiff_t nk = kvm_select_ks(from, ks);
    kvm_ridge_figures *g = kvm_new(&keep, kvm_ridge_figures, nk * KVM_LAMBDAS);
    const kvm_mapping mapping[] = {kvm_mapping_same(KVM_SPACE_K),
                                   kvm_mapping_same(KVM_SPACE_V)};
    double seconds[MOST_ROUNDS], maps[MOST_ROUNDS], sum = 0;
    for (int i = 0; i < rounds; i++) {
        kvm_r2_map r2[2];
        kvm_ranking order;
        double start = seconds_of(compute);
        for (int s = 0; s < 2; s++)
            OK(kvm_select_maps(compute, m, &mapping[s], &(kvm_map_options){0}, &r2[s],
                               &keep, scratch, &err));
        OK(kvm_select_rank(&order, &keep, r2, 2, KVM_FIT, &err));
        maps[i] = seconds_of(compute) - start;
        start = seconds_of(compute);
        sum = 0;
        for (ptrdiff_t t = 0; t < to; t++)
            for (int s = 0; s < 2; s++) {
                const kvm_space space = mapping[s].out;
                const kvm_features x =
                    made_features(&keep, space, order.order + t * from, from, -1);
                OK(kvm_ridge_sweep(compute, m, x, (kvm_output){space, t}, ks, nk,
                                   kvm_lambda_grid, KVM_LAMBDAS, false, g, scratch,
                                   &err));
                for (ptrdiff_t k = 0; k < nk * KVM_LAMBDAS; k++)
                    sum += g[k].r2[KVM_FIT] + g[k].r2[KVM_CHOOSE];
            }
        seconds[i] = seconds_of(compute) - start;
    }
    printf(
        "sweep    %s: %td -> %td layers of %td x %td, %td k x %d lambda: maps %.4f s, "
        "sweep %.4f s, checksum %.9f\n",
        label, from, to, heads, dim, nk, KVM_LAMBDAS, median(maps, rounds),
        median(seconds, rounds), sum);
}

/* ---- apply ---- */

/* a llama with the cache of a larger model: everything else is as small as it goes */
static kvm_model *hollow_model(const char *name, ptrdiff_t layers, ptrdiff_t heads,
                               ptrdiff_t dim)
{
    enum { HIDDEN = 32, VOCAB = 8, FFN = 32 };
    const kvm_str dir = kvm_str_fmt(&keep, TMP "%s", name);
    OK(kvm_dir_make(dir, &err));
    const kvm_str config = kvm_str_fmt(
        &keep,
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
        "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%td,"
        "\"num_attention_heads\":%td,\"num_key_value_heads\":%td,\"head_dim\":%td,"
        "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"vocab_size\":%d,"
        "\"max_position_embeddings\":40000,\"tie_word_embeddings\":true,"
        "\"hidden_act\":\"silu\",\"attention_bias\":false,\"mlp_bias\":false}",
        HIDDEN, FFN, layers, heads, heads, dim, VOCAB);
    OK(kvm_file_publish(kvm_path_join(&keep, dir, KVM_STR("config.json")), config,
                        scratch, &err));
    kvm_st_spec *s = kvm_new(&keep, kvm_st_spec, 2 + 9 * layers);
    ptrdiff_t n = 0, total = 0;
    s[n++] = (kvm_st_spec){
        KVM_STR("model.embed_tokens.weight"), KVM_F32, 2, {VOCAB, HIDDEN}};
    s[n++] = (kvm_st_spec){KVM_STR("model.norm.weight"), KVM_F32, 1, {HIDDEN}};
    const struct {
        const char *name;
        ptrdiff_t out, in;
    } parts[] = {{"self_attn.q_proj", heads * dim, HIDDEN},
                 {"self_attn.k_proj", heads * dim, HIDDEN},
                 {"self_attn.v_proj", heads * dim, HIDDEN},
                 {"self_attn.o_proj", HIDDEN, heads * dim},
                 {"mlp.gate_proj", FFN, HIDDEN},
                 {"mlp.up_proj", FFN, HIDDEN},
                 {"mlp.down_proj", HIDDEN, FFN},
                 {"input_layernorm", HIDDEN, 0},
                 {"post_attention_layernorm", HIDDEN, 0}};
    for (ptrdiff_t l = 0; l < layers; l++)
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            s[n++] = (kvm_st_spec){
                kvm_str_fmt(&keep, "model.layers.%td.%s.weight", l, parts[p].name),
                KVM_F32,
                parts[p].in ? 2 : 1,
                {parts[p].out, parts[p].in}};
    kvm_st_writer *w;
    OK(kvm_st_begin(&w, &keep, kvm_path_join(&keep, dir, KVM_STR("model.safetensors")),
                    s, n, NULL, &err));
    for (ptrdiff_t i = 0; i < n; i++)
        total += s[i].dim[0] * (s[i].rank == 2 ? s[i].dim[1] : 1);
    OK(kvm_st_append(w, noise(total), 4 * (size_t)total, &err));
    OK(kvm_st_publish(w, NULL, &err));
    kvm_model *m;
    OK(kvm_model_open(&m, &keep, compute, dir,
                      &(kvm_model_options){.no_tokenizer = true}, &err));
    return m;
}

static kvm_translator random_translator(const kvm_model *from, const kvm_model *to,
                                        ptrdiff_t k)
{
    kvm_translator t = {.keys = KVM_KEYS_CONTENT};
    OK(kvm_side_of_model(&t.source, &keep, from, &err));
    OK(kvm_side_of_model(&t.target, &keep, to, &err));
    t.count = 2 * t.target.shapes.layers;
    kvm_step *steps = kvm_new(&keep, kvm_step, t.count);
    t.steps = steps;
    kvm_rng rng = kvm_rng_seed(3, 0);
    for (ptrdiff_t i = 0; i < t.count; i++) {
        const kvm_row_shape in = t.source.shapes.of[KVM_SPACE_K][0],
                            out = t.target.shapes.of[KVM_SPACE_K][0];
        ptrdiff_t *order = kvm_new(&keep, ptrdiff_t, t.source.shapes.layers);
        int32_t *source = kvm_new(&keep, int32_t, k);
        for (ptrdiff_t l = 0; l < t.source.shapes.layers; l++) order[l] = l;
        kvm_rng_shuffle(&rng, order, t.source.shapes.layers);
        for (ptrdiff_t l = 0; l < k; l++) source[l] = (int32_t)order[l];
        steps[i] =
            (kvm_step){.mapping = kvm_mapping_same(i % 2 ? KVM_SPACE_V : KVM_SPACE_K),
                       .layer = i / 2,
                       .map = KVM_MAP_RIDGE,
                       .sources = k,
                       .source = i % 2 ? steps[i - 1].source : source,
                       .inputs = k * in.heads * in.dim,
                       .outputs = out.heads * out.dim,
                       .groups = 1};
        kvm_step *s = &steps[i];
        s->weight[0] =
            kvm_view3(noise(s->outputs * s->inputs), KVM_F32, 1, s->outputs, s->inputs);
        s->bias[0] = noise(s->outputs);
    }
    return t;
}

/* random rows in every object */
static kvm_cache *filled(const kvm_model *m, ptrdiff_t tokens)
{
    kvm_cache *c;
    OK(kvm_cache_new(&c, &keep, m, tokens, &err));
    OK(kvm_inject_begin(c, tokens, &err));
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        kvm_arena saved = keep; /* the rows may be overwritten afterwards */
        OK(kvm_inject_rows(c, i, KVM_POINT_ENGINE, 0, tokens,
                           noise(tokens * o->heads * o->dim), &err));
        keep = saved;
    }
    OK(kvm_inject_end(c, &err));
    return c;
}

static void bench_apply(const char *label, kvm_model *from, kvm_model *to, ptrdiff_t k,
                        ptrdiff_t tokens, ptrdiff_t block)
{
    const kvm_arena saved = keep;
    const kvm_translator t = random_translator(from, to, k);
    const kvm_cache *cache = filled(from, tokens);
    kvm_cache *out;
    kvm_apply *a;
    OK(kvm_cache_new(&out, &keep, to, tokens, &err));
    OK(kvm_apply_new(&a, &keep, compute, &t, from, to,
                     &(kvm_apply_options){.block = block}, &err));
    const ptrdiff_t in = t.steps[0].inputs, o = t.steps[0].outputs;
    float *x = noise(tokens * in), *y = noise(tokens * o);
    double ratio[MOST_ROUNDS], speed[MOST_ROUNDS];
    kvm_apply_times times = {0}, warm = {0};
    for (int i = -1; i < rounds; i++) {
        kvm_cache_clear(out);
        double start = seconds_of(compute);
        OK(kvm_apply_run(a, &(kvm_handover){.cache = cache}, out,
                         i < 0 ? &warm : &times, &err));
        const double seconds = seconds_of(compute) - start;
        start = seconds_of(compute);
        for (ptrdiff_t s = 0; s < t.count; s++)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tokens, (int)o,
                        (int)in, 1, x, (int)in, t.steps[s].weight[0].data, (int)in, 0,
                        y, (int)o);
        if (i < 0) continue;
        ratio[i] = (seconds_of(compute) - start) / seconds;
        speed[i] = (double)tokens / seconds;
    }
    const double per =
        100 / (times.read + times.strip + times.map + times.rotate + times.inject);
    const double rate = median(speed, rounds);
    printf(
        "apply    %s k=%td %5td tokens: %8.0f tokens/s %6.2f GB/s %6.1f GF/s, %.2f of "
        "sgemm; read %.0f strip %.0f map %.0f rotate %.0f inject %.0f %%\n",
        label, k, tokens, rate, rate * kvm_apply_bytes(a) / 1e9,
        rate * kvm_apply_flops(a) / 1e9, median(ratio, rounds), times.read * per,
        times.strip * per, times.map * per, times.rotate * per, times.inject * per);
    keep = saved;
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "all";
    const int threads = number_of(argc, argv, 2, 0);
    const ptrdiff_t block = number_of(argc, argv, 4, 0);
    rounds = number_of(argc, argv, 3, rounds);
    if (rounds < 1 || rounds > MOST_ROUNDS) die("rounds", "1 to 51");
    OK(kvm_arena_init(&keep, (size_t)32 << 30, &err));
    OK(kvm_arena_init(&scratch, (size_t)8 << 30, &err));
    OK(kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), threads,
                       &err));
    OK(kvm_dir_make(KVM_STR(TMP), &err));
    openblas_set_num_threads(kvm_compute_threads(compute));
    printf("%s\n", kvm_compute_describe(compute, &keep).at);
    const bool all = strcmp(part, "all") == 0;
    if (all || strcmp(part, "moments") == 0) {
        bench_moments(8, 65536);
        bench_moments(16, 65536);
    }
    if (all || strcmp(part, "sweep") == 0) {
        bench_sweep("zoo", 4, 6, 2, 32, 64);
        bench_sweep("middle", 12, 6, 3, 64, 64);
    }
    if (all || strcmp(part, "apply") == 0) {
        kvm_model *small = hollow_model("smollm", 30, 3, 64);
        kvm_model *half = hollow_model("half", 24, 2, 64);
        kvm_model *large = hollow_model("large", 28, 2, 128);
        const ptrdiff_t tokens[] = {512, 2048, 8192};
        for (size_t i = 0; i < 3; i++) {
            bench_apply("30x3x64 -> 30x3x64 ", small, small, 8, tokens[i], block);
            bench_apply("24x2x64 -> 28x2x128", half, large, 8, tokens[i], block);
        }
    }
    kvm_arena_free(&scratch);
    kvm_arena_free(&keep);
    return 0;
}
