#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "jobs/candidates.h"
#include "jobs/fit_sweep.h"
#include "jobs/plan_internal.h"
#include "jobs/spec_internal.h"
#include "jobs/timing.h"

enum { SIDE = 768, COPY_BYTES = 64 << 20, ROUNDS = 5 };
static const ptrdiff_t square = (ptrdiff_t)SIDE * SIDE;

static kvm_status product_rate(double *rate, kvm_compute *c, kvm_arena scratch,
                               kvm_err *err)
{
    float *a = kvm_new(&scratch, float, square), *b = kvm_new(&scratch, float, square);
    float *out = kvm_new(&scratch, float, square);
    if (!a || !b || !out) return kvm_nomem(err, &scratch);
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        const double started = kvm_now();
        TRY(kvm_op_gemm32(c, kvm_view2(out, KVM_F32, SIDE, SIDE),
                          kvm_view2(a, KVM_F32, SIDE, SIDE), false,
                          kvm_view2(b, KVM_F32, SIDE, SIDE), false, 0, err));
        const double rate_now = 2.0 * SIDE * SIDE * SIDE / (kvm_now() - started);
        if (rate_now > best) best = rate_now;
    }
    *rate = best;
    return KVM_OK;
}

static kvm_status memory_rate(double *rate, kvm_arena scratch, kvm_err *err)
{
    char *a = kvm_new(&scratch, char, COPY_BYTES),
         *b = kvm_new(&scratch, char, COPY_BYTES);
    if (!a || !b) return kvm_nomem(err, &scratch);
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        const double started = kvm_now();
        memcpy(r & 1 ? a : b, r & 1 ? b : a, COPY_BYTES);
        const double rate_now = 2.0 * COPY_BYTES / (kvm_now() - started);
        if (rate_now > best) best = rate_now;
    }
    *rate = best;
    return KVM_OK;
}

kvm_status kvm_plan_measure(kvm_machine_rates *r, kvm_compute *c, kvm_err *err)
{
    kvm_arena scratch = {0};
    TRY(kvm_arena_reserve(&scratch, (size_t)1 << 30, err));
    kvm_status s = product_rate(&r->flops, c, scratch, err);
    if (!s) s = memory_rate(&r->bytes, scratch, err);
    kvm_arena_free(&scratch);
    return s;
}

/* What maps are fitted between: rows of a kind to rows of the same kind. Spaces: of
 * those with a position, content and rotated. */
static const struct {
    kvm_object_kind kind;
    double spaces;
} row_kinds[] = {{KVM_OBJECT_K, 2},         {KVM_OBJECT_V, 1},
                 {KVM_OBJECT_LATENT, 1},    {KVM_OBJECT_ROTARY_KEY, 2},
                 {KVM_OBJECT_INDEX_KEY, 2}, {KVM_OBJECT_INDEX_GATE, 1}};
enum { ROW_KINDS = (int)(sizeof row_kinds / sizeof *row_kinds) };

double kvm_plan__features(const kvm_model *m, kvm_object_kind kind)
{
    double n = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        if (o->kind == kind) n += (double)(o->heads * o->dim);
    }
    return n;
}

/* layers that keep such an object; 1 for none, whose features are 0 */
static double layers_of(const kvm_model *m, kvm_object_kind kind)
{
    double n = 0;
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++)
        n += kvm_model_object(m, i)->kind == kind;
    return n > 0 ? n : 1;
}

double kvm_plan__moment_bytes(const kvm_model *a, const kvm_model *b, bool symmetric)
{
    double n = 0;
    for (int i = 0; i < ROW_KINDS; i++)
        n += row_kinds[i].spaces * kvm_plan__features(a, row_kinds[i].kind) *
             kvm_plan__features(b, row_kinds[i].kind);
    return n * KVM_SPLITS * 8 * (symmetric ? 0.5 : 1);
}

double kvm_plan__row_width(const kvm_model *m)
{
    double width = 0;
    for (int i = 0; i < ROW_KINDS; i++)
        width += kvm_plan__features(m, row_kinds[i].kind);
    return width;
}

static json_t *model_plan(const kvm_model *m)
{
    const kvm_model_info *i = kvm_model_info_of(m);
    return json_pack(
        "{s:s%, s:I, s:I, s:I, s:I, s:I, s:f}", "name", i->name.at, (size_t)i->name.len,
        "parameters", (json_int_t)i->parameters, "weight_bytes",
        (json_int_t)i->weight_bytes, "layers", (json_int_t)i->layers,
        "cache_bytes_per_token", (json_int_t)i->token_bytes, "cache_bytes_per_prompt",
        (json_int_t)i->prompt_bytes, "flops_per_token", i->flops_per_token);
}

static json_t *capture_plan(const kvm_model *m, double sequences, double tokens,
                            double stride, double row_bytes, const kvm_machine_rates *r)
{
    const double states = sequences * (double)kvm_model_info_of(m)->prompt_bytes;
    const double flops = sequences * kvm_prefill_flops(kvm_model_info_of(m), tokens);
    const double rows = sequences * tokens / stride;
    return json_pack("{s:s%, s:f, s:f, s:f, s:f}", "model",
                     kvm_model_info_of(m)->name.at,
                     (size_t)kvm_model_info_of(m)->name.len, "rows", rows, "bytes",
                     rows * kvm_plan__row_width(m) * row_bytes + states, "flops", flops,
                     "seconds", flops / r->flops);
}

/* a curve of the first n layers that greedy selection takes for one target layer: for
 * each of them the gain of every layer that is left and, but for the last, its
 * elimination from those (kvm_select_greedy); then one sweep over the prefixes. width:
 * features of a layer, beside: features that are always taken, out: entries of the
 * target's. */
static double greedy_flops(double layers, double width, double beside, double out,
                           ptrdiff_t n)
{
    const double factor = width * width * width / 3;
    double flops = (double)(n * n * n) * factor;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double left = layers - (double)i,
                     prefix = (double)(i + 1) * width + beside;
        flops += left * (factor + 2 * width * width * out) + 4 * prefix * prefix * out;
        if (i + 1 < n)
            flops += factor + 2 * left * width * width * (layers * width + out);
    }
    return flops;
}

/* for each target layer and lambda one Cholesky factor of the largest k, and for each
 * k two triangular solves and the errors on the choosing split (kvm_ridge_sweep); then
 * the greedy curves */
double kvm_plan__map_flops(double layers, double width, double beside, double targets,
                           double out, double k_most, bool full)
{
    ptrdiff_t ks[KVM_KS], curve[KVM_GREEDY_TARGETS];
    double squares = 0, widest = 0;
    const ptrdiff_t n = kvm_select_ks((ptrdiff_t)layers, ks);
    const double curves =
        full ? (double)kvm_fit_greedy_targets((ptrdiff_t)targets, curve) : 0;
    if (!(out > 0 && width > 0)) return 0;
    for (ptrdiff_t k = 0; k < n && (k == 0 || (double)ks[k] <= k_most); k++) {
        widest = (double)ks[k] * width + beside;
        squares += widest * widest;
    }
    return KVM_LAMBDAS * (targets * widest * widest * widest / 3 + 4 * squares * out) +
           curves * greedy_flops(layers, width, beside, out / targets,
                                 (ptrdiff_t)fmin(k_most, layers));
}

/* The cross moments are computed for the first direction; they serve both. */
static json_t *fit_plan(const kvm_plan_context *p, int direction)
{
    const kvm_plan_pair *pair = &p->pair[direction];
    const kvm_str source = kvm_model_info_of(direction ? p->target : p->source)->name,
                  target = kvm_model_info_of(direction ? p->source : p->target)->name;
    const double held = p->held / 2 * p->sequences;
    const double stats = kvm_plan__moments_flops(pair, direction == 0, p->rows);
    const double fit = kvm_plan__sweep_flops(pair, p->k_most, true) +
                       kvm_plan__states_flops(pair, p->sequences - 2 * held, held);
    return json_pack("{s:s%, s:s%, s:f, s:f, s:f, s:f}", "source", source.at,
                     (size_t)source.len, "target", target.at, (size_t)target.len,
                     "stats_flops", stats, "stats_s", stats / p->rates->flops,
                     "fit_flops", fit, "fit_s",
                     2 * fit / p->rates->flops); /* fp64: half the rate */
}

/* the kind that most layers of the source keep: k counts its layers */
static kvm_object_kind main_kind(const kvm_model *source)
{
    kvm_object_kind best = KVM_OBJECT_K;
    for (int i = 0; i < ROW_KINDS; i++)
        if (kvm_plan__features(source, row_kinds[i].kind) > 0 &&
            (kvm_plan__features(source, best) == 0 ||
             layers_of(source, row_kinds[i].kind) > layers_of(source, best)))
            best = row_kinds[i].kind;
    return best;
}

static json_t *translator_plan(const kvm_plan_context *p)
{
    ptrdiff_t ks[KVM_KS];
    const kvm_object_kind kind = main_kind(p->source);
    const double layers = layers_of(p->source, kind);
    const ptrdiff_t n = kvm_select_ks((ptrdiff_t)layers, ks);
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++) {
        const double k = (double)ks[i], all = kvm_plan__parameters(&p->pair[0], k);
        const double width = k * kvm_plan__features(p->source, kind) / layers;
        const double rows = p->rows * (1 - p->held);
        json_array_append_new(
            list, json_pack("{s:I, s:f, s:f, s:f, s:f}", "k", (json_int_t)ks[i],
                            "parameters", all, "bytes_f32", 4 * all, "features", width,
                            "rows_per_feature", width > 0 ? rows / width : 0));
    }
    return list;
}

/* at the lengths that the spec times, or those that it would by default */
static kvm_status ttft_plan(json_t **out, const kvm_plan_context *p, kvm_err *err)
{
    int64_t lengths[KVM_TIMING_LENGTHS];
    ptrdiff_t count;
    const kvm_model_info *s = kvm_model_info_of(p->source),
                         *t = kvm_model_info_of(p->target);
    const kvm_machine_rates *r = p->rates;
    const double apply =
        kvm_plan__apply_flops(&p->pair[0], p->target, (double)s->layers);
    const kvm_jat timing = kvm_json_get(p->spec->root, p->keep, "timing");
    TRY(kvm_timing_lengths(kvm_json_get(timing, p->keep, "lengths"), p->keep, lengths,
                           &count, err));
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < count; i++) {
        const double n = (double)lengths[i];
        const double decode = (double)t->weight_bytes / r->bytes;
        const double moved = n * (double)(s->token_bytes + t->token_bytes) +
                             (double)(s->prompt_bytes + t->prompt_bytes);
        const double maps = n * apply + kvm_plan__prompt_flops(&p->pair[0]);
        const double cold = kvm_prefill_flops(t, n) / r->flops + decode;
        const double swap = maps / r->flops + moved / r->bytes + decode;
        json_array_append_new(list, json_pack("{s:f, s:f, s:f, s:f}", "tokens", n,
                                              "cold_s", cold, "switch_s", swap,
                                              "speedup", cold / swap));
    }
    *out = kvm_json_own(p->keep, list);
    return *out ? KVM_OK : kvm_nomem(err, p->keep);
}

static kvm_status number(const kvm_spec *s, kvm_arena *keep, const char *section,
                         const char *key, double fallback, double *out, kvm_err *err)
{
    return kvm_json_f64_or(
        kvm_json_get(kvm_json_get(s->root, keep, section), keep, key), fallback, out,
        err);
}

static kvm_status row_bytes(const kvm_spec *s, kvm_arena *keep, double *bytes,
                            kvm_err *err)
{
    kvm_str dtype;
    TRY(kvm_json_str_or(
        kvm_json_get(kvm_json_get(s->root, keep, "calibration"), keep, "dtype"),
        KVM_STR("f32"), &dtype, err));
    *bytes = kvm_str_eq(dtype, KVM_STR("bf16")) ? 2 : 4;
    return KVM_OK;
}

/* of what the captures read: by their params, where defaults are filled in, or, without
 * a graph, by the spec */
static kvm_status captured(const kvm_spec *s, const kvm_graph *g, kvm_arena *keep,
                           const char *key, double fallback, double *out, kvm_err *err)
{
    for (ptrdiff_t i = 0; g && i < g->count; i++)
        if (g->nodes[i].kind == KVM_JOB_CAPTURE) {
            *out = json_number_value(json_object_get(g->nodes[i].params, key));
            return KVM_OK;
        }
    return number(s, keep, "calibration", key, fallback, out, err);
}

bool kvm_plan_is_config(kvm_str path)
{
    return kvm_str_ends(path, KVM_STR(".json"));
}

static kvm_status open_model(kvm_model **m, kvm_arena *keep, kvm_compute *c,
                             kvm_str path, kvm_err *err)
{
    const bool config = kvm_plan_is_config(path);
    const kvm_model_options o = {.no_tokenizer = config, .imagined = config};
    return kvm_model_open(m, keep, c, path, &o, err);
}

static kvm_status pairs_of(kvm_plan_context *p, kvm_err *err)
{
    kvm_shapes *shapes = kvm_new(p->keep, kvm_shapes, 2);
    if (!shapes) return kvm_nomem(err, p->keep);
    TRY(kvm_rows_shapes(&shapes[0], p->keep, p->source, err));
    TRY(kvm_rows_shapes(&shapes[1], p->keep, p->target, err));
    const kvm_jat fit = kvm_json_get(p->spec->root, p->keep, "fit");
    for (int i = 0; i < (kvm_spec__fits_back(p->spec) ? 2 : 1); i++) {
        kvm_candidates c;
        TRY(kvm_candidates_read(&c, fit, &shapes[i], &shapes[1 - i], p->keep, err));
        p->pair[i] = (kvm_plan_pair){&shapes[i], &shapes[1 - i], c.at[c.n - 1].outline};
    }
    return KVM_OK;
}

kvm_status kvm_plan_json(json_t **out, const kvm_spec *s, const kvm_graph *graphs,
                         ptrdiff_t before, ptrdiff_t n, kvm_compute *c,
                         const kvm_machine_rates *r, kvm_arena *keep, kvm_err *err)
{
    kvm_model *source, *target;
    const kvm_graph *g = n > 0 ? &graphs[before] : NULL;
    json_t *ttft, *jobs, *total;
    double tokens, stride;
    kvm_plan_context p = {
        .spec = s, .rates = r, .threads = kvm_compute_threads(c), .keep = keep};
    TRY(captured(s, g, keep, "sequences", KVM_SEQUENCES, &p.sequences, err));
    TRY(captured(s, g, keep, "tokens", KVM_TOKENS, &tokens, err));
    TRY(captured(s, g, keep, "stride", 1, &stride, err));
    TRY(open_model(&source, keep, c, s->source_path, err));
    TRY(open_model(&target, keep, c, s->target_path, err));
    TRY(number(s, keep, "calibration", "held_out", 0.2, &p.held, err));
    TRY(number(s, keep, "fit", "k_most", HUGE_VAL, &p.k_most, err));
    TRY(row_bytes(s, keep, &p.row_bytes, err));
    p.source = source;
    p.target = target;
    p.rows = p.sequences * tokens / stride;
    TRY(pairs_of(&p, err));
    TRY(ttft_plan(&ttft, &p, err));
    TRY(kvm_plan__jobs(&jobs, &total, &p, graphs, before, n, err));
    json_t *fits = json_array();
    for (int i = 0; i < (s->both_directions ? 2 : 1); i++)
        json_array_append_new(fits, fit_plan(&p, i));
    *out = json_pack(
        "{s:{s:f, s:f}, s:[o, o], s:[o, o], s:{s:f, s:f, s:f}, s:o, s:o, "
        "s:O, s:O, s:O}",
        "machine", "flops", r->flops, "bytes", r->bytes, "models", model_plan(source),
        model_plan(target), "capture",
        capture_plan(source, p.sequences, tokens, stride, p.row_bytes, r),
        capture_plan(target, p.sequences, tokens, stride, p.row_bytes, r), "moments",
        "gram_source_bytes", kvm_plan__moment_bytes(source, source, true),
        "gram_target_bytes", kvm_plan__moment_bytes(target, target, true),
        "cross_bytes", kvm_plan__moment_bytes(source, target, false), "translator",
        translator_plan(&p), "fit", fits, "ttft", ttft, "jobs", jobs, "total", total);
    return *out ? KVM_OK : kvm_nomem(err, keep);
}
