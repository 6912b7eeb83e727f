/* bench_tape - a distillation step: 64 tokens behind an injected prefix of 512, and the
 * way back to the prefix's objects.
 *
 *   bench_tape [CHECKPOINT] [rounds] [threads] [prefix] [tokens] [backend]
 *
 * Medians of: the recorded forward, the backward (head, loss and all blocks), and both
 * beside a forward that forms the logits of all 64 tokens. bench_tape.py times the same
 * step in PyTorch. With one thread seconds are the process's own, so that a busy
 * machine measures too. */
#include <string.h>

#include "models/backward.h"
#include "tests/bench/bench.h"

enum { MOST_ROUNDS = 64 };

typedef struct bench {
    kvm_arena keep;
    kvm_compute *c;
    kvm_model *m;
    kvm_cache *cache;
    kvm_tape *tape;
    kvm_gradients *g;
    ptrdiff_t prefix, tokens, vocab;
    int32_t *ids;
    float *native, *logits; /* (tokens, vocab) */
    double *kl;
} bench;

static kvm_status loss_rows(void *ctx, ptrdiff_t from, ptrdiff_t n, float *logits,
                            kvm_err *err)
{
    bench *b = ctx;
    return kvm_op_kl_back(b->c, b->kl + from, kvm_view2(logits, KVM_F32, n, b->vocab),
                          kvm_view2(b->native + from * b->vocab, KVM_F32, n, b->vocab),
                          1 / (double)b->tokens, err);
}

static void open_all(bench *b, const char *path, int threads, const char *backend)
{
    kvm_rng rng = kvm_rng_seed(64, 1);
    const kvm_model_options o = {.no_tokenizer = true};
    OK(kvm_arena_init(&b->keep, (size_t)4 << 30, &err));
    OK(kvm_compute_new(&b->c, &b->keep, kvm_backend_find(kvm_str_of(backend)), threads,
                       &err));
    OK(kvm_model_open(&b->m, &b->keep, b->c, kvm_str_of(path), &o, &err));
    const ptrdiff_t n = b->prefix + b->tokens;
    b->vocab = kvm_model_info_of(b->m)->vocab;
    b->ids = kvm_new(&b->keep, int32_t, n);
    b->native = kvm_new(&b->keep, float, b->tokens * b->vocab);
    b->logits = kvm_new(&b->keep, float, b->tokens * b->vocab);
    b->kl = kvm_new(&b->keep, double, b->tokens);
    if (!b->ids || !b->native || !b->logits || !b->kl) die("room", "too little");
    for (ptrdiff_t i = 0; i < n; i++)
        b->ids[i] = (int32_t)kvm_rng_below(&rng, (uint64_t)b->vocab);
    for (ptrdiff_t i = 0; i < b->tokens * b->vocab; i++)
        b->native[i] = (float)kvm_rng_normal(&rng);
    OK(kvm_cache_new(&b->cache, &b->keep, b->m, n, &err));
    OK(kvm_tape_new(&b->tape, &b->keep, b->m, b->prefix, b->tokens, &err));
    OK(kvm_gradients_new(&b->g, &b->keep, b->m, n, &err));
    OK(kvm_model_forward(b->m, b->cache, b->ids, b->prefix, NULL, &err));
    kvm_cache_mark(b->cache);
}

/* seconds of recording, of the way back, and of a plain forward with logits */
static void step(bench *b, double *record, double *back, double *plain)
{
    const int32_t *ids = b->ids + b->prefix;
    const kvm_loss loss = {.rows = loss_rows, .ctx = b};
    const kvm_forward_options o = {.logits_last = b->tokens, .logits = b->logits};
    const double t0 = seconds_of(b->c);
    OK(kvm_tape_record(b->tape, b->cache, ids, b->tokens, &err));
    const double t1 = seconds_of(b->c);
    OK(kvm_gradients_clear(b->g, b->prefix, &err));
    OK(kvm_tape_backward(b->tape, b->cache, &loss, b->g, &err));
    const double t2 = seconds_of(b->c);
    OK(kvm_cache_truncate(b->cache, b->prefix, &err));
    const double t3 = seconds_of(b->c);
    OK(kvm_model_forward(b->m, b->cache, ids, b->tokens, &o, &err));
    *plain = seconds_of(b->c) - t3;
    OK(kvm_cache_truncate(b->cache, b->prefix, &err));
    *record = t1 - t0;
    *back = t2 - t1;
}

int main(int argc, char **argv)
{
    static bench b;
    static double record[MOST_ROUNDS], back[MOST_ROUNDS], plain[MOST_ROUNDS];
    const char *path = argc > 1 ? argv[1] : "tests/zoo/small";
    int rounds = number_of(argc, argv, 2, 15);
    const int threads = number_of(argc, argv, 3, 1);
    b.prefix = number_of(argc, argv, 4, 512);
    b.tokens = number_of(argc, argv, 5, 64);
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = MOST_ROUNDS;
    open_all(&b, path, threads, argc > 6 ? argv[6] : "cpu");
    step(&b, record, back, plain); /* pages are touched */
    for (int i = 0; i < rounds; i++) step(&b, record + i, back + i, plain + i);
    const double r = median(record, rounds), w = median(back, rounds);
    const double p = median(plain, rounds);
    printf("%s, %td tokens behind %td, %d threads: forward with logits %.2f ms, "
           "recorded %.2f, back %.2f (%.2f times the forward), step %.2f\n",
           path, b.tokens, b.prefix, threads, 1e3 * p, 1e3 * r, 1e3 * w, w / p,
           1e3 * (r + w));
    kvm_arena_free(&b.keep);
    return 0;
}
