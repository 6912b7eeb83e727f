/* plan_jobs.c - what every job of a spec's graphs takes: seconds, bytes on disk,
 * memory.
 *
 * Work is counted in flops from the shapes of models and maps, the items as they will
 * be read, arms, rounds and lengths; seconds follow from the machine's two rates. They
 * are estimates: kernels reach the rate of one large product more or less, answers may
 * end before their limit, and where the fit chooses k it may choose a smaller one. */
#include <math.h>
#include <string.h>

#include "jobs/alternate.h"
#include "jobs/analyse_caches.h"
#include "jobs/items.h"
#include "jobs/plan_internal.h"
#include "jobs/timing.h"
#include "kernels/backend.h"
#include "translators/distill.h"
#include "translators/mlp.h"
#include "translators/ridge.h"

enum { MAX_SUITES = 64 };

static const double START_S = 0.05; /* a process that opens what it works on */
/* bytes that memory moves while one is hashed, of results and of a job's inputs */
static const double HASHED = 12;
static const double REPORT_S = 1.5;                 /* resamples, tables, page */
static const double PROCESS_BYTES = 64.0 * 1048576; /* program, libraries, buffers */

typedef struct cost {
    double seconds, bytes, memory;
} cost;

typedef struct suite_items {
    kvm_str path;
    int64_t wanted;
    kvm_items items;
} suite_items;

typedef struct planner {
    const kvm_plan_context *p;
    suite_items *suites; /* (MAX_SUITES) read so far */
    ptrdiff_t suite_count;
    const kvm_model *source, *target; /* of this step */
    const kvm_graph *graph;
    kvm_plan_pair pair; /* of this step */
    double k;           /* source layers of a map */
} planner;

static double number(const kvm_node *n, const char *key, double fallback)
{
    const json_t *v = json_object_get(n->params, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static kvm_str text(const kvm_node *n, const char *key)
{
    const json_t *v = json_object_get(n->params, key);
    return (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)};
}

/* one call: the weights are read once, whatever the tokens */
static double call_s(const planner *a, const kvm_model *m, double context,
                     double tokens, double logits)
{
    const kvm_model_info *i = kvm_model_info_of(m);
    const double flops =
        kvm_forward_flops(i, context, tokens) + logits * i->flops_per_logits;
    return flops / a->p->rates->flops + (double)i->weight_bytes / a->p->rates->bytes;
}

static double apply_flops(const planner *a)
{
    return kvm_plan__apply_flops(&a->pair, a->target, a->k);
}

/* states are corrected once a prompt */
static double switch_flops(const planner *a, double tokens)
{
    return tokens * apply_flops(a) + kvm_plan__prompt_flops(&a->pair);
}

static double weights_bytes(const planner *a)
{
    return (double)(kvm_model_info_of(a->source)->weight_bytes +
                    kvm_model_info_of(a->target)->weight_bytes) +
           2 * apply_flops(a);
}

/* ---- the kinds ---- */

static cost capture_cost(const planner *a, const kvm_node *n)
{
    const bool first = kvm_str_eq(text(n, "model_path"), a->p->spec->source_path);
    const kvm_model *m = first ? a->p->source : a->p->target;
    const double tokens = number(n, "tokens", 0);
    const double bytes =
        kvm_plan__capture_bytes(json_object_get(n->params, "rows"),
                                m == a->source ? a->pair.source : a->pair.target,
                                a->p->rows, number(n, "sequences", 0), a->p->row_bytes);
    return (cost){number(n, "sequences", 0) * call_s(a, m, 0, tokens, 0) +
                      bytes / a->p->rates->bytes,
                  bytes,
                  (double)kvm_model_info_of(m)->weight_bytes +
                      tokens * (double)kvm_model_info_of(m)->token_bytes};
}

/* the shapes of a stats node's input i */
static const kvm_shapes *captured_of(const planner *a, const kvm_node *n, ptrdiff_t i)
{
    const kvm_node *capture = &a->graph->nodes[n->inputs[i].node];
    const char *model = kvm_model_info_of(a->source)->fingerprint;
    return kvm_str_eq(text(capture, "model"), kvm_str_of(model)) ? a->pair.source
                                                                 : a->pair.target;
}

static cost stats_cost(const planner *a, const kvm_node *n)
{
    const bool gram = n->input_count == 1;
    const double flops = kvm_plan__blocks_flops(
        json_object_get(n->params, "blocks"), captured_of(a, n, 0),
        gram ? NULL : captured_of(a, n, 1), a->p->rows);
    const double bytes = flops / a->p->rows * KVM_SPLITS * sizeof(double) / 2;
    return (cost){flops / a->p->rates->flops, bytes,
                  fmin(bytes, (double)((size_t)1 << 30))};
}

static double map_bytes(const kvm_node *n, double parameters)
{
    return parameters * (kvm_str_eq(text(n, "dtype"), KVM_STR("bf16")) ? 2 : 4);
}

static double layers_of_map(const planner *a, const kvm_node *n)
{
    const double layers = (double)kvm_model_info_of(a->source)->layers;
    return fmin(layers, number(n, "k", number(n, "k_most", layers)));
}

static cost fit_cost(const planner *a, const kvm_node *n)
{
    const bool full = !json_is_false(json_object_get(n->params, "sweep"));
    const double k = layers_of_map(a, n),
                 layers = (double)kvm_model_info_of(a->source)->layers;
    const double wide = k * kvm_plan__features(a->source, KVM_OBJECT_K) / layers;
    const double sequences = a->p->sequences, held = a->p->held / 2 * sequences;
    const double flops =
        kvm_plan__fit_flops(&a->pair, full ? number(n, "k_most", layers) : k, full) +
        kvm_plan__states_flops(&a->pair, sequences - 2 * held, held);
    return (cost){2 * flops / a->p->rates->flops, /* fp64 */
                  map_bytes(n, kvm_plan__parameters(&a->pair, k)),
                  kvm_plan__moment_bytes(a->source, a->source, true) +
                      kvm_plan__moment_bytes(a->source, a->target, false) +
                      3 * 8 * wide * wide};
}

static cost mlp_cost(const planner *a, const kvm_node *n)
{
    static const kvm_object_kind kinds[] = {KVM_OBJECT_K, KVM_OBJECT_V};
    const double hidden = number(n, "hidden", 1024), epochs = number(n, "epochs", 20);
    const double rows = a->p->rows * (1 - a->p->held);
    const double targets = (double)kvm_model_info_of(a->target)->layers;
    const bool per_head = json_is_true(json_object_get(n->params, "per_head"));
    const double heads = per_head ? (double)kvm_model_info_of(a->target)->kv_heads : 1;
    cost c = {0};
    for (int i = 0; i < 2; i++) {
        const double in = a->k * kvm_plan__features(a->source, kinds[i]) /
                          (double)kvm_model_info_of(a->source)->layers;
        const double out = kvm_plan__features(a->target, kinds[i]) / targets;
        const double each = heads * hidden * (in + hidden + out / heads);
        /* forward, and both halves of backward; at the end R2 over all rows */
        c.seconds +=
            targets * each * 2 * (3 * rows * epochs + a->p->rows) / a->p->rates->flops;
        c.bytes += map_bytes(n, targets * each);
        c.memory =
            fmax(c.memory,
                 (double)kvm_mlp_bytes(
                     (ptrdiff_t)in, (ptrdiff_t)out, (ptrdiff_t)heads, (ptrdiff_t)rows,
                     &(kvm_mlp_options){.hidden = (ptrdiff_t)hidden,
                                        .batch = (ptrdiff_t)number(n, "batch", 0)}));
    }
    return c;
}

/* Every lesson read by both models once; then for each lesson of a batch the maps
 * forward and back, the target over the continuation forward (twice: the tape makes
 * activations anew) and back, and the validations. Attention to the prefix counts in
 * both ways. */
static cost distill_cost(const planner *a, const kvm_node *n)
{
    const double steps = number(n, "steps", 400), batch = number(n, "batch", 8);
    const double after = number(n, "after", 64), tokens = number(n, "tokens", 0);
    const double all = number(n, "sequences", 0), most = number(n, "lessons", 0);
    const double fits = all * (1 - a->p->held), holds = a->p->held * all / 2;
    const double held = most > 0 ? fmin(most, holds) : holds;
    const double asked = number(n, "prefix", 0); /* 0: all before what follows */
    const double prefix = asked > 0 ? fmin(tokens - after, asked) : tokens - after;
    const double each = call_s(a, a->target, prefix, after, after);
    const double maps = switch_flops(a, prefix) / a->p->rates->flops;
    const double validations = steps / number(n, "validate", 50) + 1;
    const double lessons = (most > 0 ? fmin(most, fits) : fits) + held;
    const ptrdiff_t vocab = kvm_model_info_of(a->target)->vocab;
    const double lesson_bytes =
        4 * (prefix * kvm_plan__row_width(a->source) +
             (double)kvm_said_numbers(
                 (ptrdiff_t)after, vocab,
                 kvm_said_top(vocab, (ptrdiff_t)number(n, "native_top", 0))));
    const double parameters = kvm_plan__parameters(&a->pair, a->k);
    return (cost){lessons * (call_s(a, a->source, 0, prefix, 0) +
                             call_s(a, a->target, 0, prefix + after, after)) +
                      steps * batch * (3 * maps + 4 * each) +
                      validations * held * (maps + each),
                  map_bytes(n, parameters) + 16 * parameters,
                  weights_bytes(a) + lessons * lesson_bytes + 20 * parameters +
                      (double)kvm_distill_bytes(a->source, a->target, (ptrdiff_t)prefix,
                                                (ptrdiff_t)after)};
}

/* Every lesson heard natively once, then by each candidate: the source reads its
 * prefix, the maps run over it, the target reads on. (Lengths as choose.c has them.) */
static cost choose_cost(const planner *a, const kvm_node *n)
{
    const double candidates =
        (double)json_array_size(json_object_get(n->params, "titles"));
    const double tokens = number(n, "tokens", 0), after = fmin(64, tokens / 2);
    const double lessons = fmin(64, a->p->held * number(n, "sequences", 0) / 2);
    const double prefix = tokens - after;
    const double reads = call_s(a, a->target, prefix, after, after);
    const double maps = switch_flops(a, prefix) / a->p->rates->flops;
    const ptrdiff_t vocab = kvm_model_info_of(a->target)->vocab;
    const double said =
        (double)kvm_said_numbers((ptrdiff_t)after, vocab, kvm_said_top(vocab, 0));
    return (cost){lessons * (call_s(a, a->target, 0, prefix, 0) + reads) +
                      candidates * lessons *
                          (call_s(a, a->source, 0, prefix, 0) + maps + reads),
                  map_bytes(n, kvm_plan__parameters(&a->pair, a->k)),
                  weights_bytes(a) + 4 * lessons * said};
}

/* ---- evaluate ---- */

static kvm_status items_of(planner *a, const kvm_node *n, const kvm_items **out,
                           kvm_err *err)
{
    const kvm_str path = text(n, "suite_path");
    const int64_t wanted = (int64_t)number(n, "items", 0);
    const ptrdiff_t turns = (ptrdiff_t)number(n, "turns", KVM_TURNS);
    kvm_suite *s;
    for (ptrdiff_t i = 0; i < a->suite_count; i++)
        if (kvm_str_eq(a->suites[i].path, path) && a->suites[i].wanted == wanted &&
            a->suites[i].items.suite->turns == turns) {
            *out = &a->suites[i].items;
            return KVM_OK;
        }
    if (a->suite_count == MAX_SUITES)
        return kvm_fail(err, KVM_RANGE, "more than %d suites", MAX_SUITES);
    suite_items *new = &a->suites[a->suite_count];
    *new = (suite_items){.path = path, .wanted = wanted};
    TRY(kvm_suite_read(&s, a->p->keep, path, err));
    s->turns = turns;
    TRY(kvm_items_read(&new->items, a->p->keep, s, (ptrdiff_t)wanted,
                       kvm_model_tokenizer(a->target), err));
    a->suite_count++;
    *out = &new->items;
    return KVM_OK;
}

/* what follows the prefix, on one cache; a generated answer may end sooner */
static double score_s(const planner *a, const kvm_suite *s, const kvm_item_ids *ids,
                      const kvm_model *m)
{
    const double prefix = (double)ids->prefix_n;
    double seconds = call_s(a, m, prefix, (double)ids->feed_n, 1);
    for (ptrdiff_t i = 0; i < ids->after_count; i++)
        seconds +=
            call_s(a, m, prefix, (double)ids->after_n[i], (double)ids->after_n[i]);
    if (s->kind == KVM_SUITE_GENERATION || s->kind == KVM_SUITE_NEEDLE)
        seconds += (double)s->max_new_tokens * call_s(a, m, prefix, 1, 1);
    return seconds;
}

/* three prefills, then every arm: translators map the prefix, controls put rows in */
static double item_s(const planner *a, const kvm_suite *s, const kvm_item_ids *ids,
                     double arms, double maps, bool alone)
{
    const double n = (double)ids->prefix_n;
    double seconds = 2 * call_s(a, a->source, 0, n, 0) + call_s(a, a->target, 0, n, 0);
    if (!alone) seconds += score_s(a, s, ids, a->source);
    return seconds + arms * score_s(a, s, ids, a->target) +
           maps * n * apply_flops(a) / a->p->rates->flops;
}

/* the prefix read again, and the target's attention on each translator's rows */
static double attention_s(const planner *a, const kvm_item_ids *ids, double maps)
{
    const double n = (double)ids->prefix_n;
    const kvm_model_info *t = kvm_model_info_of(a->target);
    const double attention =
        kvm_prefill_flops(t, n) - t->flops_per_token * n + n * apply_flops(a);
    return 2 * call_s(a, a->source, 0, n, 0) + 2 * call_s(a, a->target, 0, n, 0) +
           maps * 2 * attention / a->p->rates->flops;
}

static kvm_status evaluate_cost(planner *a, const kvm_node *n, cost *c, kvm_err *err)
{
    const kvm_items *it;
    TRY(items_of(a, n, &it, err));
    const bool alone = json_object_get(n->params, "arms"); /* an ablation: two arms */
    const double translators = (double)n->input_count;
    const double maps = alone ? 1 : translators + 1; /* also of the wrong donor */
    const double arms = alone ? 2 : 4 + maps;
    const double attention = number(n, "attention_items", 0);
    double longest = 0;
    *c = (cost){0};
    for (ptrdiff_t i = 0; i < it->n; i++) {
        c->seconds += item_s(a, it->suite, &it->ids[i], arms, maps, alone);
        if ((double)i < attention)
            c->seconds += attention_s(a, &it->ids[i], translators);
        longest = fmax(longest, (double)(it->ids[i].prefix_n + it->ids[i].longest));
    }
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    c->memory = weights_bytes(a) +
                longest * (3 * (double)s->token_bytes + 2 * (double)t->token_bytes);
    return KVM_OK;
}

/* Every cache put together is scored; of the tails the source reads the head again, and
 * the target the rest. */
static kvm_status analyse_cost(planner *a, const kvm_node *n, cost *c, kvm_err *err)
{
    enum { SPLITS = 3, SWAPS = KVM_PART_COUNT + 1 };
    const kvm_items *it;
    double longest = 0;
    kvm_tails tails;
    const kvm_jat params = {.v = n->params, .file = "", .path = "analyse"};
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    TRY(items_of(a, n, &it, err));
    TRY(kvm_tails_read(&tails, params, a->p->keep, kvm_default_tails, KVM_DEFAULT_TAILS,
                       err));
    const double caches = 2 + (double)t->layers + SWAPS + SPLITS + (double)tails.n;
    *c = (cost){0};
    for (ptrdiff_t i = 0; i < it->n; i++) {
        const kvm_item_ids *ids = &it->ids[i];
        const double prefix = (double)ids->prefix_n;
        c->seconds += item_s(a, it->suite, ids, caches, 1, true);
        for (ptrdiff_t k = 0; k < tails.n; k++) {
            const double head = prefix * (1 - tails.share[k]);
            c->seconds += call_s(a, a->source, 0, head, 0) +
                          head * apply_flops(a) / a->p->rates->flops +
                          call_s(a, a->target, head, prefix - head, 0);
        }
        longest = fmax(longest, prefix + (double)ids->longest);
    }
    c->memory = weights_bytes(a) +
                longest * (2 * (double)s->token_bytes + 3 * (double)t->token_bytes);
    return KVM_OK;
}

/* Of one turn: what catching up takes in each condition, the history read once more for
 * the reference of those that translate, question and answer, which is read again. */
static double turn_s(const planner *a, const kvm_model *m, double history, double news,
                     double question, double most)
{
    const double map = apply_flops(a) / a->p->rates->flops;
    const double reread = call_s(a, m, 0, history, 0);
    const double talk = call_s(a, m, history, question, 1) +
                        most * call_s(a, m, history, 1, 1) +
                        call_s(a, m, history, most, 0);
    const double translated = 2 * news * map + history * map;
    const double references = 3 * (reread + call_s(a, m, history, question, 1));
    return reread + translated + references + KVM_CONDITION_COUNT * talk;
}

static kvm_status alternate_cost(planner *a, const kvm_node *n, cost *c, kvm_err *err)
{
    const kvm_items *it;
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    TRY(items_of(a, n, &it, err));
    const double most = (double)it->suite->max_new_tokens;
    *c = (cost){0};
    for (ptrdiff_t i = 0; i < it->n; i++) {
        const kvm_item_ids *ids = &it->ids[i];
        double history = (double)ids->prefix_n, news = history;
        for (ptrdiff_t k = 0; k <= ids->after_count; k++) {
            const double question = (double)(k ? ids->after_n[k - 1] : ids->feed_n);
            c->seconds +=
                turn_s(a, k % 2 ? a->target : a->source, history, news, question, most);
            news = question + most;
            history += news;
        }
    }
    c->memory = weights_bytes(a) + 2 * apply_flops(a) +
                2 * (double)it->longest * (double)(s->token_bytes + t->token_bytes);
    return KVM_OK;
}

static cost invert_cost(const planner *a)
{
    const double held = a->p->rows * a->p->held / 2;
    const kvm_model *const models[] = {a->source, a->target};
    cost c = {.seconds = (kvm_plan__invert_flops(a->pair.source, a->source, held) +
                          kvm_plan__invert_flops(a->pair.target, a->target, held)) /
                         a->p->rates->flops};
    for (int i = 0; i < 2; i++) {
        const kvm_model_info *m = kvm_model_info_of(models[i]);
        c.memory += (double)m->weight_bytes + 8 * (double)(m->vocab * m->hidden);
    }
    return c;
}

/* ---- timing ---- */

static kvm_status timing_cost(const planner *a, const kvm_node *n, cost *c,
                              kvm_err *err)
{
    int64_t lengths[KVM_TIMING_LENGTHS];
    ptrdiff_t count;
    const kvm_jat params = {.v = n->params, .file = "", .path = "timing"};
    kvm_tails tails;
    TRY(kvm_timing_lengths(kvm_json_get(params, a->p->keep, "lengths"), a->p->keep,
                           lengths, &count, err));
    TRY(kvm_tails_read(&tails, params, a->p->keep, NULL, 0, err));
    const kvm_model_info *s = kvm_model_info_of(a->source),
                         *t = kvm_model_info_of(a->target);
    const double rounds = number(n, "rounds", KVM_ROUNDS);
    *c = (cost){0};
    for (ptrdiff_t i = 0; i < count; i++) {
        const double length = (double)lengths[i];
        const double arms = 3 + 2 * (double)tails.n; /* calls of the target */
        const double round = (kvm_round_flops(t, apply_flops(a), length) +
                              kvm_tails_flops(t, apply_flops(a), &tails, length)) /
                                 a->p->rates->flops +
                             arms * (double)t->weight_bytes / a->p->rates->bytes;
        c->seconds += call_s(a, a->source, 0, length, 0) +
                      round * (number(n, "warmups", KVM_WARMUPS) +
                               kvm_rounds_within((ptrdiff_t)rounds,
                                                 number(n, "seconds", 0), round));
    }
    c->memory =
        weights_bytes(a) + ((double)lengths[count - 1] + 1) *
                               (2 * (double)s->token_bytes + (double)t->token_bytes);
    return KVM_OK;
}

static kvm_status cost_of(planner *a, const kvm_node *n, cost *c, kvm_err *err)
{
    switch (n->kind) {
    case KVM_JOB_CAPTURE:
        *c = capture_cost(a, n);
        return KVM_OK;
    case KVM_JOB_STATS:
        *c = stats_cost(a, n);
        return KVM_OK;
    case KVM_JOB_FIT:
        *c = fit_cost(a, n);
        return KVM_OK;
    case KVM_JOB_MLP:
        *c = mlp_cost(a, n);
        return KVM_OK;
    case KVM_JOB_DISTILL:
        *c = distill_cost(a, n);
        return KVM_OK;
    case KVM_JOB_CHOOSE:
        *c = choose_cost(a, n);
        return KVM_OK;
    case KVM_JOB_EVALUATE:
        return evaluate_cost(a, n, c, err);
    case KVM_JOB_ANALYSE:
        return analyse_cost(a, n, c, err);
    case KVM_JOB_INVERT:
        *c = invert_cost(a);
        return KVM_OK;
    case KVM_JOB_ALTERNATE:
        return alternate_cost(a, n, c, err);
    case KVM_JOB_TIMING:
        return timing_cost(a, n, c, err);
    case KVM_JOB_REPORT:
        *c = (cost){REPORT_S, 0, 0};
        return KVM_OK;
    }
    *c = (cost){0};
    return KVM_OK;
}

/* ---- all of them ---- */

/* seconds of one thread for the hashes of what a job reads and writes */
static double hashed_s(const planner *a, const kvm_node *n, const double *bytes)
{
    double all = bytes[n - a->graph->nodes];
    for (ptrdiff_t i = 0; i < n->input_count; i++) all += bytes[n->inputs[i].node];
    return all * HASHED / a->p->rates->bytes;
}

/* equal steps have equal keys: the second one is not run */
static bool same_step(const kvm_graph *g, ptrdiff_t i, const kvm_graph *h, ptrdiff_t k)
{
    const kvm_node *a = &g->nodes[i], *b = &h->nodes[k];
    if (a->kind != b->kind || a->input_count != b->input_count ||
        !json_equal(a->params, b->params))
        return false;
    for (ptrdiff_t m = 0; m < a->input_count; m++)
        if (strcmp(a->inputs[m].name, b->inputs[m].name) != 0 ||
            strcmp(a->inputs[m].output, b->inputs[m].output) != 0 ||
            !same_step(g, a->inputs[m].node, h, b->inputs[m].node))
            return false;
    return true;
}

static bool done_before(const kvm_graph *graphs, ptrdiff_t g, ptrdiff_t node)
{
    for (ptrdiff_t h = 0; h < g; h++)
        for (ptrdiff_t k = 0; k < graphs[h].count; k++)
            if (same_step(&graphs[g], node, &graphs[h], k)) return true;
    return false;
}

/* "ablation" for what an ablation adds to the graph */
static const char *row_of(const kvm_graph *g, const kvm_node *n)
{
    const char *kind = kvm_job_kind_name(n->kind);
    const bool ablated = n->kind == KVM_JOB_EVALUATE
                             ? json_object_get(n->params, "as") != NULL
                         : n->kind == KVM_JOB_FIT || n->kind == KVM_JOB_CHOOSE
                             ? !kvm_str_ends(n->label, g->pair)
                             : false;
    return ablated ? "ablation" : kind;
}

/* A graph may fit the other direction too: conversations need both. */
static void face(planner *a, const kvm_node *n, bool reversed)
{
    const kvm_str first = text(n, "source_path");
    if (first.at) reversed = !kvm_str_eq(first, a->p->spec->source_path);
    a->source = reversed ? a->p->target : a->p->source;
    a->target = reversed ? a->p->source : a->p->target;
    a->k = fmin((double)kvm_model_info_of(a->source)->layers, a->p->k_most);
    a->pair = a->p->pair[reversed];
}

static double of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static json_t *row_named(json_t *jobs, const char *kind)
{
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        json_t *row = json_array_get(jobs, i);
        if (!strcmp(json_string_value(json_object_get(row, "kind")), kind)) return row;
    }
    json_t *row = json_pack("{s:s}", "kind", kind);
    json_array_append_new(jobs, row);
    return row;
}

static void add(json_t *jobs, const char *kind, cost c)
{
    json_t *row = row_named(jobs, kind);
    const double memory = fmax(of(row, "memory_bytes"), c.memory);
    json_object_set_new(row, "jobs", json_integer((json_int_t)of(row, "jobs") + 1));
    json_object_set_new(row, "seconds", json_real(of(row, "seconds") + c.seconds));
    json_object_set_new(row, "bytes", json_real(of(row, "bytes") + c.bytes));
    json_object_set_new(row, "memory_bytes", json_real(memory));
}

static json_t *sum(const json_t *jobs, int threads)
{
    double seconds = 0, bytes = 0, memory = 0;
    json_int_t count = 0;
    size_t i;
    json_t *row;
    json_array_foreach(jobs, i, row)
    {
        count += (json_int_t)of(row, "jobs");
        seconds += of(row, "seconds");
        bytes += of(row, "bytes");
        memory = fmax(memory, of(row, "memory_bytes"));
    }
    return json_pack("{s:I, s:f, s:f, s:i, s:f, s:f}", "jobs", count, "seconds",
                     seconds, "cpu_seconds", seconds * threads, "threads", threads,
                     "bytes", bytes, "memory_bytes", memory);
}

kvm_status kvm_plan__jobs(json_t **jobs, json_t **total, const kvm_plan_context *p,
                          const kvm_graph *graphs, ptrdiff_t n, kvm_err *err)
{
    planner a = {.p = p, .suites = kvm_new(p->keep, suite_items, MAX_SUITES)};
    *jobs = kvm_json_own(p->keep, json_array());
    if (!a.suites || !*jobs) return kvm_nomem(err, p->keep);
    for (ptrdiff_t g = 0; g < n; g++) {
        a.graph = &graphs[g];
        double *bytes = kvm_new(p->keep, double, graphs[g].count);
        if (!bytes) return kvm_nomem(err, p->keep);
        for (ptrdiff_t i = 0; i < graphs[g].count; i++) {
            const kvm_node *node = &graphs[g].nodes[i];
            cost c;
            if (done_before(graphs, g, i)) continue;
            face(&a, node, g == 1);
            TRY(cost_of(&a, node, &c, err));
            bytes[i] = c.bytes;
            c.seconds += START_S + hashed_s(&a, node, bytes) / p->threads;
            c.memory += PROCESS_BYTES;
            add(*jobs, row_of(&graphs[g], node), c);
        }
    }
    *total = kvm_json_own(p->keep, sum(*jobs, p->threads));
    return *total ? KVM_OK : kvm_nomem(err, p->keep);
}
