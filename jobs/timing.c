/* timing.c - the switch against the cold prefill, over lengths.
 *
 * Both arms run in one process on the same kernels and threads, no capture hooks in
 * any, interleaved round by round after the warm-ups, the order turned every round:
 *   cold    the target reads the n tokens, then takes one more (first decode)
 *   switch  what the source handed out beside its cache costs what it cost (capture);
 *           its cache, already there, is copied out (transfer), tokens are read out of
 *           it where maps are told them (tokens), rows mapped (translate), states made
 *           (states), all put in (inject), and the target takes the same one more token
 *   tail.r  a switch of the first (1 - r) n tokens, the last r n read by the target
 *           (recompute)
 * Output "timing": {"points": [{"tokens", "rounds", "cold": {stage: [s…]}, "switch":
 * {stage: [s…]}, "tail.0.05": …, "computed_bytes": tokens * kvm_apply_bytes, …}]}. */
#include <sys/resource.h>

#include "base/clock.h"
#include "jobs/open.h"
#include "jobs/params.h"
#include "jobs/timing.h"
#include "translators/apply.h"

static const kvm_field params[] = {
    KVM_TIMING_PARAMS,
    /* filled in by the graph */
    KVM_PAIR_PARAMS,
    {"seed", KVM_FIELD_INT, false, "of the token ids", NULL, 0},
    {"tails", KVM_FIELD_LIST, false, "shares that the target reads itself (none)", NULL,
     KVM_FIELD_NUM},
    {0},
};

/* stages of both arms; a stage that an arm does not have stays 0 and is not reported */
#define STAGES(X)                                                                      \
    X(prefill)                                                                         \
    X(capture)                                                                         \
    X(transfer) X(tokens) X(translate) X(states) X(inject) X(recompute) X(first_decode)
typedef enum stage {
#define X(name) STAGE_##name,
    STAGES(X)
#undef X
        STAGE_COUNT
} stage;
static const char *const stage_names[] = {
#define X(name) #name,
    STAGES(X)
#undef X
};

typedef struct cell { /* seconds of one arm at one length */
    double *at[STAGE_COUNT], *total;
} cell;

/* A switch as the source hands it over: the whole prefix, or the head before a tail. */
typedef struct leg {
    const char *arm;
    double tail; /* share */
    kvm_cache *source;
    kvm_taken *taken; /* NULL: the cache is enough */
    double capturing; /* seconds it took to take them, of this length */
    cell cell;
} leg;

typedef struct timing {
    kvm_job *job;
    kvm_model *source, *target;
    kvm_translator translator;
    kvm_apply *apply;
    bool recurrent; /* states are made */
    kvm_tails tails;
    leg leg[1 + KVM_MOST_TAILS]; /* the whole prefix, then its heads */
    ptrdiff_t legs;
    cell cold;
    int64_t lengths[KVM_TIMING_LENGTHS];
    ptrdiff_t length_count, rounds, warmups;
    double budget;
    int32_t *ids;
    kvm_cache *received, *target_cache;
    float *logits;
    json_t *points;
    double started, done; /* flops behind us */
} timing;

static kvm_status read_params(timing *t, kvm_err *err)
{
    kvm_job *j = t->job;
    TRY(kvm_timing_lengths(kvm_json_get(j->params, j->keep, "lengths"), j->keep,
                           t->lengths, &t->length_count, err));
    TRY(kvm_job_i64(j, "rounds", KVM_ROUNDS, 1, 10000, &t->rounds, err));
    TRY(kvm_job_i64(j, "warmups", KVM_WARMUPS, 0, 1000, &t->warmups, err));
    TRY(kvm_tails_read(&t->tails, j->params, j->keep, NULL, 0, err));
    return kvm_job_f64(j, "seconds", 0, 0, 1e6, &t->budget, err);
}

static bool makes_states(const kvm_translator *t)
{
    for (ptrdiff_t i = 0; i < t->count; i++)
        if (t->steps[i].mapping.out == KVM_SPACE_INPUT) return true;
    return t->state_count > 0;
}

static kvm_status open_models(timing *t, kvm_err *err)
{
    kvm_job *j = t->job;
    kvm_compute *c;
    const kvm_job_input *in;
    TRY(kvm_job_compute(j, &c, err));
    TRY(kvm_job_model(j, c, "source", &t->source, err));
    TRY(kvm_job_model(j, c, "target", &t->target, err));
    TRY(kvm_job_need_input(j, "translator", &in, err));
    TRY(kvm_translator_open(&t->translator, j->keep, in->path, err));
    t->recurrent = makes_states(&t->translator);
    return kvm_apply_new(&t->apply, j->keep, c, &t->translator, t->source, t->target,
                         NULL, err);
}

static kvm_status open_legs(timing *t, ptrdiff_t longest, kvm_err *err)
{
    kvm_arena *keep = t->job->keep;
    const kvm_spaces takes = kvm_apply_takes(t->apply);
    t->legs = 1 + t->tails.n;
    for (ptrdiff_t i = 0; i < t->legs; i++) {
        leg *l = &t->leg[i];
        l->tail = i ? t->tails.share[i - 1] : 0;
        l->arm = i ? kvm_str_fmt(keep, "tail.%g", l->tail).at : "switch";
        if (!l->arm) return kvm_nomem(err, keep);
        TRY(kvm_cache_new(&l->source, keep, t->source, longest, err));
        if (takes) TRY(kvm_taken_new(&l->taken, keep, t->source, takes, longest, err));
    }
    return KVM_OK;
}

static kvm_status open_caches(timing *t, kvm_err *err)
{
    kvm_job *j = t->job;
    const ptrdiff_t longest = (ptrdiff_t)t->lengths[t->length_count - 1] + 1;
    const ptrdiff_t vocab = kvm_model_info_of(t->target)->vocab;
    ptrdiff_t seed;
    TRY(kvm_job_i64(j, "seed", 1, 0, INT64_MAX, &seed, err));
    TRY(open_legs(t, longest, err));
    TRY(kvm_cache_new(&t->received, j->keep, t->source, longest, err));
    TRY(kvm_cache_new(&t->target_cache, j->keep, t->target, longest, err));
    t->ids = kvm_new(j->keep, int32_t, longest);
    t->logits = kvm_new_raw(j->keep, float, vocab);
    if (!t->ids || !t->logits) return kvm_nomem(err, j->keep);
    kvm_rng rng = kvm_rng_seed((uint64_t)seed, 0);
    for (ptrdiff_t i = 0; i < longest; i++)
        t->ids[i] = (int32_t)kvm_rng_below(&rng, (uint64_t)vocab);
    return KVM_OK;
}

/* ---- one round ---- */

static double lap(double *clock)
{
    const double now = kvm_now(), spent = now - *clock;
    *clock = now;
    return spent;
}

static kvm_status first_decode(timing *t, ptrdiff_t n, kvm_err *err)
{
    return kvm_model_forward(
        t->target, t->target_cache, t->ids + n, 1,
        &(kvm_forward_options){.logits_last = 1, .logits = t->logits}, err);
}

static kvm_status run_cold(timing *t, ptrdiff_t n, double s[STAGE_COUNT], kvm_err *err)
{
    kvm_cache_clear(t->target_cache);
    double clock = kvm_now();
    TRY(kvm_model_forward(t->target, t->target_cache, t->ids, n,
                          &(kvm_forward_options){0}, err));
    s[STAGE_prefill] = lap(&clock);
    TRY(first_decode(t, n, err));
    s[STAGE_first_decode] = lap(&clock);
    return KVM_OK;
}

/* tokens that the target reads itself */
static ptrdiff_t tail_of(const leg *l, ptrdiff_t n)
{
    return l->tail > 0 ? kvm_tail_tokens(l->tail, n) : 0;
}

static kvm_status run_switch(timing *t, const leg *l, ptrdiff_t n,
                             double s[STAGE_COUNT], kvm_err *err)
{
    kvm_apply_times times = {0};
    const ptrdiff_t tail = tail_of(l, n);
    kvm_cache_clear(t->received);
    kvm_cache_clear(t->target_cache);
    double clock = kvm_now();
    TRY(kvm_cache_copy(t->received, l->source, err));
    s[STAGE_transfer] = lap(&clock);
    const kvm_handover from = {.cache = t->received, .taken = l->taken, .ids = t->ids};
    TRY(kvm_apply_run(t->apply, &from, t->target_cache, &times, err));
    s[STAGE_capture] = l->capturing;
    s[STAGE_inject] = times.inject;
    if (kvm_apply_ids(t->apply)) s[STAGE_tokens] = times.tokens;
    if (t->recurrent) s[STAGE_states] = times.states;
    s[STAGE_translate] =
        lap(&clock) - s[STAGE_inject] - s[STAGE_tokens] - s[STAGE_states];
    if (tail > 0) {
        TRY(kvm_model_forward(t->target, t->target_cache, t->ids + n - tail, tail,
                              &(kvm_forward_options){0}, err));
        s[STAGE_recompute] = lap(&clock);
    }
    TRY(first_decode(t, n, err));
    s[STAGE_first_decode] = lap(&clock);
    return KVM_OK;
}

static void keep_round(cell *c, ptrdiff_t round, const double s[STAGE_COUNT])
{
    c->total[round] = 0;
    for (int k = 0; k < STAGE_COUNT; k++) {
        c->at[k][round] = s[k];
        c->total[round] += s[k];
    }
}

/* every arm once; which is first turns with the round */
static kvm_status one_round(timing *t, ptrdiff_t n, ptrdiff_t round, kvm_err *err)
{
    const ptrdiff_t arms = 1 + t->legs;
    const ptrdiff_t first = ((round % arms) + arms) % arms;
    for (ptrdiff_t i = 0; i < arms; i++) {
        const ptrdiff_t arm = (first + i) % arms;
        double s[STAGE_COUNT] = {0};
        if (arm == 0)
            TRY(run_cold(t, n, s, err));
        else
            TRY(run_switch(t, &t->leg[arm - 1], n, s, err));
        if (round >= 0)
            keep_round(arm == 0 ? &t->cold : &t->leg[arm - 1].cell, round, s);
    }
    return KVM_OK;
}

/* ---- one length ---- */

static json_t *seconds_json(const double *s, ptrdiff_t n)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++) json_array_append_new(list, json_real(s[i]));
    return list;
}

static kvm_status put_cell(timing *t, const char *arm, ptrdiff_t tokens, const cell *c,
                           ptrdiff_t rounds, json_t *point, kvm_err *err)
{
    json_t *stages = json_object();
    json_object_set_new(point, arm, stages);
    for (int k = 0; k < STAGE_COUNT; k++) {
        bool any = false;
        for (ptrdiff_t r = 0; r < rounds; r++) any |= c->at[k][r] > 0;
        if (!any) continue;
        json_object_set_new(stages, stage_names[k], seconds_json(c->at[k], rounds));
        TRY(t->job->host->timing(t->job, arm, tokens, stage_names[k], c->at[k], rounds,
                                 err));
    }
    json_object_set_new(stages, "total", seconds_json(c->total, rounds));
    return t->job->host->timing(t->job, arm, tokens, "total", c->total, rounds, err);
}

static kvm_status new_cell(timing *t, cell *c, kvm_err *err)
{
    double *all = kvm_new(t->job->keep, double, (STAGE_COUNT + 1) * t->rounds);
    if (!all) return kvm_nomem(err, t->job->keep);
    for (int k = 0; k < STAGE_COUNT; k++) c->at[k] = all + k * t->rounds;
    c->total = all + STAGE_COUNT * t->rounds;
    return KVM_OK;
}

static double peak_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss * 1024; /* Linux counts KiB */
}

/* ---- how far: flops, for a round of a long prefix takes thousands of times as long as
 * one of a short one ---- */

static double round_flops(const timing *t, double n)
{
    const kvm_model_info *i = kvm_model_info_of(t->target);
    const double apply = kvm_apply_flops(t->apply);
    return kvm_round_flops(i, apply, n) + kvm_tails_flops(i, apply, &t->tails, n);
}

/* of a length that has not begun, at the rate so far */
static double length_flops(const timing *t, double n)
{
    const double round = round_flops(t, n), spent = kvm_now() - t->started;
    const double each_s = t->done > 0 ? round * spent / t->done : 0;
    return kvm_prefill_flops(kvm_model_info_of(t->source), n) +
           round *
               ((double)t->warmups + kvm_rounds_within(t->rounds, t->budget, each_s));
}

/* `left` rounds of length i are to come, and all that is longer */
static void show(timing *t, ptrdiff_t i, double left)
{
    double rest = left * round_flops(t, (double)t->lengths[i]);
    for (ptrdiff_t k = i + 1; k < t->length_count; k++)
        rest += length_flops(t, (double)t->lengths[k]);
    kvm_progress_at(t->job->progress, t->done, t->done + rest, "FLOPs");
}

static void did(timing *t, ptrdiff_t i, double flops, double left)
{
    t->done += flops;
    show(t, i, left);
}

/* The source reads the prefix, which has happened before a switch, but for what it
 * costs to take rows that its cache does not keep. */
static kvm_status read_source(timing *t, leg *l, ptrdiff_t n, kvm_err *err)
{
    kvm_capture sink;
    kvm_forward_options o = {0};
    if (l->taken) {
        sink = kvm_taken_capture(l->taken);
        o.capture = &sink;
    }
    kvm_cache_clear(l->source);
    const double before = l->taken ? kvm_taken_seconds(l->taken) : 0;
    TRY(kvm_model_forward(t->source, l->source, t->ids, n - tail_of(l, n), &o, err));
    l->capturing = l->taken ? kvm_taken_seconds(l->taken) - before : 0;
    return KVM_OK;
}

static kvm_status time_length(timing *t, ptrdiff_t i, kvm_err *err)
{
    const ptrdiff_t n = (ptrdiff_t)t->lengths[i];
    const double each = round_flops(t, (double)n);
    TRY(new_cell(t, &t->cold, err));
    for (ptrdiff_t k = 0; k < t->legs; k++) {
        TRY(new_cell(t, &t->leg[k].cell, err));
        if (t->leg[k].taken) /* its pages are touched before that counts */
            TRY(read_source(t, &t->leg[k], n, err));
        TRY(read_source(t, &t->leg[k], n, err));
    }
    did(t, i, kvm_prefill_flops(kvm_model_info_of(t->source), (double)n),
        (double)(t->warmups + t->rounds));
    for (ptrdiff_t r = -t->warmups; r < 0; r++) {
        TRY(one_round(t, n, r, err));
        did(t, i, each, (double)(t->rounds - r - 1));
    }
    const double started = kvm_now();
    ptrdiff_t rounds = 0;
    while (rounds < t->rounds) {
        if (kvm_progress_cancelled(t->job->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled at %td tokens", n);
        TRY(one_round(t, n, rounds++, err));
        const double each_s = (kvm_now() - started) / (double)rounds;
        did(t, i, each,
            kvm_rounds_within(t->rounds, t->budget, each_s) - (double)rounds);
        if (t->budget > 0 && rounds >= KVM_LEAST_ROUNDS &&
            kvm_now() - started > t->budget)
            break;
    }
    json_t *point = json_pack(
        "{s:I, s:I, s:f, s:f, s:f}", "tokens", (json_int_t)n, "rounds",
        (json_int_t)rounds, "computed_bytes", kvm_apply_bytes(t->apply) * (double)n,
        "flops", kvm_apply_flops(t->apply) * (double)n, "peak_bytes", peak_bytes());
    json_array_append_new(t->points, point);
    TRY(put_cell(t, "cold", n, &t->cold, rounds, point, err));
    for (ptrdiff_t k = 0; k < t->legs; k++)
        TRY(put_cell(t, t->leg[k].arm, n, &t->leg[k].cell, rounds, point, err));
    return KVM_OK;
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    timing t = {.job = j, .points = json_array(), .started = kvm_now()};
    json_t *figures = json_pack("{s:o}", "points", t.points);
    if (!figures) return kvm_nomem(err, j->keep);
    kvm_json_own(j->keep, figures);
    TRY(read_params(&t, err));
    TRY(open_models(&t, err));
    TRY(open_caches(&t, err));
    for (ptrdiff_t i = 0; i < t.length_count; i++) {
        const kvm_status s = time_length(&t, i, err);
        if (s) return kvm_err_prefix(err, s, "%lld tokens", (long long)t.lengths[i]);
    }
    const kvm_str compute = kvm_compute_describe(kvm_model_compute(t.target), j->keep);
    json_object_set_new(figures, "compute",
                        json_stringn(compute.at, (size_t)compute.len));
    json_object_set_new(figures, "warmups", json_integer(t.warmups));
    json_object_set_new(figures, "threads",
                        json_integer(kvm_compute_threads(kvm_model_compute(t.target))));
    return kvm_job_put_json(j, "timing", "timing.json", json_incref(figures), err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    timing t = {.job = j};
    return read_params(&t, err);
}

static const char *const inputs[] = {"translator", NULL};
static const char *const outputs[] = {"timing", NULL};
const kvm_job_kind kvm_job_timing = {
    .id = KVM_JOB_TIMING,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "timing",
    .run = run,
    .check = check,
};
