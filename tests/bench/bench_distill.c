/* bench_distill - a distillation step beside the same step in PyTorch, and the memory
 * that steps take.
 *
 *   bench_distill [part] [rounds] [threads] [batch] [prefix] [after] [SOURCE TARGET]
 *   part: step memory (all)
 *   KVM_PYTHON: a python3 with torch and transformers, for the peer (python3)
 *
 * step    The example pair, every map over all layers of the source; a batch of 8
 *         lessons, 448 tokens and 64 behind them, then AdamW. bench_distill.py is the
 *         peer: the same models, maps, lessons and threads. The first steps of both
 *         must agree in loss and gradient norm; then they take turns, and the ratio is
 *         the median of the rounds' ratios. Without the peer only our side is printed,
 *         and of another pair than the example.
 *         The floor: two forwards of the target, since weights have no gradients, and
 *         the maps twice, at the FMA peak of the same rounds.
 * memory  The peak of a process that makes a step, less what it had before the
 *         distillation, its lesson and its parameters; beside it what
 *         kvm_distill_bytes says. By vocabulary and tokens behind the prefix, models
 *         of random weights, each in a process of its own.
 *
 * With one thread seconds are the processes' own, so that a busy machine measures
 * too. */
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jobs/timing.h"
#include "tests/bench/random_model.h"
#include "tests/support/translators.h"
#include "translators/distill.h"
#include "translators/translator_internal.h"

#define DIR "build/tmp/bench_distill/"

enum { MOST_ROUNDS = 101, ALIKE = 3 /* steps that both must agree in */ };

static const kvm_distill_rates rates = {1e-4, 0.01, 1};

typedef struct bench {
    kvm_arena keep, own; /* models and maps; a distillation */
    kvm_compute *c;
    kvm_model *source, *target;
    kvm_translator t;
    kvm_distill *d;
    kvm_lesson *lesson; /* (batch) */
    ptrdiff_t batch, prefix, after;
    int rounds, threads;
    int32_t *ids;          /* (batch, prefix + after) */
    const char *from, *to; /* of step; NULL: the example pair */
} bench;

/* ---- a distillation ---- */

/* every map over all layers of the source that have what it reads, as a fit of the
 * example pair chooses them */
static void widen_maps(bench *b, kvm_rng *rng)
{
    kvm_step *steps = kvm_new(&b->keep, kvm_step, b->t.count);
    if (!steps) die("maps", "out of memory");
    for (ptrdiff_t i = 0; i < b->t.count; i++) {
        kvm_step *s = &steps[i];
        *s = b->t.steps[i];
        if (s->map != KVM_MAP_RIDGE || s->mapping.side == KVM_TARGET) continue;
        int32_t *all = kvm_new(&b->keep, int32_t, b->t.source.shapes.layers);
        if (!all) die("maps", "out of memory");
        s->sources =
            kvm_mapping_layers(&s->mapping, KVM_SOURCE, &b->t.source.shapes, all);
        s->source = all;
        s->inputs = kvm_step__inputs(&b->t, s);
        float *w = kvm_new(&b->keep, float, s->outputs * s->inputs);
        if (!w) die("maps", "out of memory");
        for (ptrdiff_t e = 0; e < s->outputs * s->inputs; e++)
            w[e] = (float)(0.5 / sqrt((double)s->inputs) * kvm_rng_normal(rng));
        s->weight[0] = kvm_view3(w, KVM_F32, 1, s->outputs, s->inputs);
    }
    b->t.steps = steps;
}

static void make_lessons(bench *b, kvm_rng *rng)
{
    const ptrdiff_t each = b->prefix + b->after, n = b->batch * each;
    b->ids = kvm_new(&b->own, int32_t, n);
    b->lesson = kvm_new(&b->own, kvm_lesson, b->batch);
    if (!b->ids || !b->lesson) die("lessons", "out of memory");
    for (ptrdiff_t i = 0; i < n; i++)
        b->ids[i] =
            (int32_t)kvm_rng_below(rng, (uint64_t)kvm_model_info_of(b->target)->vocab);
    for (ptrdiff_t i = 0; i < b->batch; i++) {
        b->lesson[i] = (kvm_lesson){.prefix = b->ids + i * each,
                                    .prefix_n = b->prefix,
                                    .after = b->ids + i * each + b->prefix,
                                    .after_n = b->after};
        OK(kvm_distill_prepare(b->d, &b->lesson[i], &b->own, &err));
    }
}

static void open_models(bench *b, const char *source, const char *target)
{
    kvm_rng rng = kvm_rng_seed(448, 64);
    const kvm_model_options o = {.no_tokenizer = true};
    const kvm_outline_options content = {.keys = KVM_KEYS_CONTENT};
    OK(kvm_compute_new(&b->c, &b->keep, kvm_backend_find(KVM_STR("cpu")), b->threads,
                       &err));
    OK(kvm_model_open(&b->source, &b->keep, b->c, kvm_str_of(source), &o, &err));
    OK(kvm_model_open(&b->target, &b->keep, b->c, kvm_str_of(target), &o, &err));
    made_translator(&b->t, &b->keep, b->source, b->target, &content, 0.5);
    widen_maps(b, &rng);
}

/* a distillation and its lessons, in `own` */
static void begin(bench *b, ptrdiff_t top)
{
    kvm_rng rng = kvm_rng_seed(8, 8);
    OK(kvm_arena_init(&b->own, (size_t)8 << 30, &err));
    OK(kvm_distill_new(&b->d, &b->own, b->c, &b->t, b->source, b->target, b->prefix,
                       b->after, top, &err));
    make_lessons(b, &rng);
}

typedef struct figures {
    double loss, norm, seconds;
} figures;

static figures step(bench *b)
{
    figures f = {0};
    const double start = seconds_of(b->c);
    for (ptrdiff_t i = 0; i < b->batch; i++) {
        kvm_distill_loss loss;
        OK(kvm_distill_learn(b->d, &b->lesson[i], &loss, &err));
        f.loss += loss.kl / (double)b->batch;
    }
    OK(kvm_distill_update(b->d, b->batch, &rates, &f.norm, &err));
    f.seconds = seconds_of(b->c) - start;
    return f;
}

/* ---- the peer ---- */

typedef struct peer {
    FILE *to, *from; /* NULL: there is none */
    pid_t child;
    char name[256];
} peer;

static void write_exchange(bench *b)
{
    kvm_text ids = {0};
    OK(kvm_dir_make(KVM_STR(DIR), &err));
    OK(kvm_translator_write(&b->t, KVM_F32, KVM_STR(DIR "maps.safetensors"), b->keep,
                            NULL, &err));
    for (ptrdiff_t i = 0; i < b->batch * (b->prefix + b->after); i++)
        kvm_text_addf(&ids, "%d ", (int)b->ids[i]);
    if (ids.failed) die("lessons", "out of memory");
    OK(kvm_file_publish(KVM_STR(DIR "lessons"), kvm_text_str(&ids), b->keep, &err));
    kvm_text_free(&ids);
}

static void become_peer(const bench *b, const char *source, const char *target)
{
    char n[6][32];
    const char *python = getenv("KVM_PYTHON");
    snprintf(n[0], sizeof n[0], "%td", b->prefix);
    snprintf(n[1], sizeof n[1], "%td", b->after);
    snprintf(n[2], sizeof n[2], "%d", b->threads);
    snprintf(n[3], sizeof n[3], "%.17g", rates.rate);
    snprintf(n[4], sizeof n[4], "%.17g", rates.decay);
    snprintf(n[5], sizeof n[5], "%.17g", rates.clip);
    if (!python) python = "python3";
    execlp(python, python, "tests/bench/bench_distill.py", source, target,
           DIR "maps.safetensors", DIR "lessons", n[0], n[1], n[2], n[3], n[4], n[5],
           (char *)NULL);
    _exit(127);
}

static void start_peer(bench *b, const char *source, const char *target, peer *p)
{
    int to[2], from[2];
    write_exchange(b);
    if (pipe(to) || pipe(from)) die("pipe", "none left");
    fflush(stdout);
    p->child = fork();
    if (p->child < 0) die("fork", "failed");
    if (p->child == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        for (int i = 0; i < 2; i++) close(to[i]), close(from[i]);
        become_peer(b, source, target);
    }
    close(to[0]), close(from[1]);
    p->to = fdopen(to[1], "w");
    p->from = fdopen(from[0], "r");
    if (p->to && p->from && fgets(p->name, sizeof p->name, p->from)) {
        p->name[strcspn(p->name, "\n")] = 0;
        return;
    }
    printf(
        "step     PyTorch does not answer (KVM_PYTHON names a python3 that has torch "
        "and transformers): our side alone\n");
    p->from = NULL;
}

static figures peer_step(const peer *p)
{
    figures f;
    if (fputs("step\n", p->to) < 0 || fflush(p->to) ||
        fscanf(p->from, "%lf %lf %lf", &f.loss, &f.norm, &f.seconds) != 3)
        die("PyTorch", "gave no figures");
    return f;
}

static void stop_peer(const peer *p)
{
    if (p->to) fclose(p->to);
    if (p->child) waitpid(p->child, NULL, 0);
}

static double apart(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

/* ---- step ---- */

static double floor_flops(const bench *b)
{
    const kvm_model_info *i = kvm_model_info_of(b->target);
    const double after = (double)b->after, prefix = (double)b->prefix;
    const double target =
        kvm_forward_flops(i, prefix, after) + after * i->flops_per_logits;
    const double maps = 2 * prefix * (double)kvm_translator_parameters(&b->t);
    return (double)b->batch * 2 * (target + maps);
}

static void bench_step(bench b)
{
    const char *const source = b.to ? b.from : "tests/zoo/small";
    const char *const target = b.to ? b.to : "tests/zoo/large";
    static double ours[MOST_ROUNDS], theirs[MOST_ROUNDS], ratio[MOST_ROUNDS];
    static double share[MOST_ROUNDS];
    peer p = {0};
    double loss = 0, norm = 0; /* largest difference */
    OK(kvm_arena_init(&b.keep, (size_t)4 << 30, &err));
    open_models(&b, source, target);
    begin(&b, 0);
    if (!b.to) start_peer(&b, source, target, &p);
    for (int i = 0; i < ALIKE; i++) {
        const figures a = step(&b);
        if (!p.from) continue;
        const figures z = peer_step(&p);
        loss = fmax(loss, apart(a.loss, z.loss));
        norm = fmax(norm, apart(a.norm, z.norm));
    }
    if (!(loss < 1e-4 && norm < 1e-3)) die("PyTorch", "another loss or gradient");
    for (int i = 0; i < b.rounds; i++) {
        if (p.from && i % 2) theirs[i] = peer_step(&p).seconds;
        ours[i] = step(&b).seconds;
        if (p.from && i % 2 == 0) theirs[i] = peer_step(&p).seconds;
        ratio[i] = theirs[i] / ours[i];
        share[i] = floor_flops(&b) / fma_peak(b.c) / ours[i];
    }
    printf("step     %s -> %s, %td lessons of %td + %td tokens, %d threads: %.1f ms, "
           "of which the floor's %.2f GFLOP at the FMA peak %.0f %%\n",
           source, target, b.batch, b.prefix, b.after, b.threads,
           1e3 * median(ours, b.rounds), floor_flops(&b) / 1e9,
           100 * median(share, b.rounds));
    const double times = median(ratio, b.rounds); /* sorts them */
    if (p.from)
        printf(
            "         %s: %.1f ms; ours is %.2f times as fast (%.2f to %.2f); losses "
            "within %.1e, norms %.1e\n",
            p.name, 1e3 * median(theirs, b.rounds), times, ratio[0],
            ratio[b.rounds - 1], loss, norm);
    stop_peer(&p);
    kvm_arena_free(&b.own);
    kvm_arena_free(&b.keep);
}

/* ---- memory ---- */

enum { WIDE = 256, FFN = 512, LAYERS = 4, KV = 128 };

static const struct {
    const char *name;
    ptrdiff_t rows, cols; /* cols 0: a norm */
} shapes[] = {
    {"input_layernorm", WIDE, 0},     {"post_attention_layernorm", WIDE, 0},
    {"self_attn.q_proj", WIDE, WIDE}, {"self_attn.k_proj", KV, WIDE},
    {"self_attn.v_proj", KV, WIDE},   {"self_attn.o_proj", WIDE, WIDE},
    {"mlp.gate_proj", FFN, WIDE},     {"mlp.up_proj", FFN, WIDE},
    {"mlp.down_proj", WIDE, FFN},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const char *model_of(kvm_arena *keep, ptrdiff_t vocab)
{
    static kvm_st_spec specs[LAYERS * SHAPES + 2];
    ptrdiff_t n = 0;
    const kvm_str dir = kvm_str_fmt(keep, DIR "%td", vocab);
    const kvm_str config = kvm_str_fmt(
        keep,
        "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,"
        "\"num_hidden_layers\":%d,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"vocab_size\":%td,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"
        "\"rope_theta\":10000,\"tie_word_embeddings\":true}\n",
        WIDE, FFN, LAYERS, vocab);
    specs[n++] =
        (kvm_st_spec){KVM_STR("model.embed_tokens.weight"), KVM_BF16, 2, {vocab, WIDE}};
    specs[n++] = (kvm_st_spec){KVM_STR("model.norm.weight"), KVM_BF16, 1, {WIDE}};
    for (ptrdiff_t l = 0; l < LAYERS; l++)
        for (ptrdiff_t i = 0; i < SHAPES; i++)
            specs[n++] = (kvm_st_spec){
                kvm_str_fmt(keep, "model.layers.%td.%s.weight", l, shapes[i].name),
                KVM_BF16,
                shapes[i].cols ? 2 : 1,
                {shapes[i].rows, shapes[i].cols}};
    random_model(keep, dir, config.at, specs, n);
    return dir.at;
}

/* a line of /proc/self/status, as bytes */
static double status_bytes(const char *key)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) die("/proc/self/status", "cannot be read");
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), "%lf", &kib);
    fclose(f);
    return 1024 * kib;
}

/* the highest memory so far is from now on what there is now (proc(5), clear_refs) */
static double reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f || fputs("5", f) < 0 || fclose(f)) die("/proc/self/clear_refs", "is closed");
    return status_bytes("VmRSS:");
}

static void bench_memory(bench b, ptrdiff_t vocab, ptrdiff_t after)
{
    b.batch = 1;
    b.after = after;
    OK(kvm_arena_init(&b.keep, (size_t)4 << 30, &err));
    const char *path = model_of(&b.keep, vocab);
    const ptrdiff_t top = kvm_said_top(vocab, 0);
    open_models(&b, path, path);
    begin(&b, top); /* pages of weights and of the models' own buffers are touched */
    step(&b);
    kvm_arena_free(&b.own);
    const double before = reset_peak();
    begin(&b, top);
    step(&b);
    const double lesson = (double)kvm_distill_lesson_bytes(b.d, b.prefix, b.after);
    const double taken = status_bytes("VmHWM:") - before - lesson -
                         16 * (double)kvm_distill_parameters(b.d);
    const double said =
        (double)kvm_distill_bytes(b.source, b.target, b.prefix, b.after);
    printf("memory   vocabulary %6td, %4td tokens behind %td: a step took %6.1f MiB of "
           "the "
           "%6.1f that were said (all logits: %6.1f)\n",
           vocab, after, b.prefix, taken / 1048576, said / 1048576,
           4 * (double)(vocab * after) / 1048576);
    kvm_arena_free(&b.own);
    kvm_arena_free(&b.keep);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "all";
    bench b = {.rounds = number_of(argc, argv, 2, 15),
               .threads = number_of(argc, argv, 3, 1),
               .batch = number_of(argc, argv, 4, 8),
               .prefix = number_of(argc, argv, 5, 448),
               .after = number_of(argc, argv, 6, 64),
               .from = argc > 8 ? argv[7] : NULL,
               .to = argc > 8 ? argv[8] : NULL};
    static const ptrdiff_t vocab[] = {2048, 32768, 131072}, after[] = {64, 256, 1024};
    const bool all = strcmp(part, "all") == 0;
    if (b.rounds < 1 || b.rounds > MOST_ROUNDS) b.rounds = MOST_ROUNDS;
    if (all || strcmp(part, "step") == 0) bench_step(b);
    for (int i = 0; i < 9 && (all || strcmp(part, "memory") == 0); i++)
        bench_memory(b, vocab[i / 3], after[i % 3]);
    return 0;
}
