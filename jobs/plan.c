#include <math.h>
#include <string.h>

#include "base/clock.h"
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

double kvm_plan__translator_parameters(const kvm_model *source, const kvm_model *target,
                                       double k)
{
    double n = 0;
    for (int i = 0; i < ROW_KINDS; i++) {
        const double in = kvm_plan__features(source, row_kinds[i].kind);
        const double layers = layers_of(source, row_kinds[i].kind);
        if (in > 0)
            n += kvm_plan__features(target, row_kinds[i].kind) *
                 (fmin(k, layers) * in / layers + 1);
    }
    return n;
}

/* the Gram matrices of the source, whose symmetric half is computed; with a target also
 * their cross products */
static double stats_flops(const kvm_model *source, const kvm_model *target, double rows)
{
    double flops = 0;
    for (int i = 0; i < ROW_KINDS; i++) {
        const double n = kvm_plan__features(source, row_kinds[i].kind);
        const double out = target ? kvm_plan__features(target, row_kinds[i].kind) : 0;
        flops += row_kinds[i].spaces * rows * (n * n + 2 * n * out);
    }
    return flops;
}

/* a curve of the first n layers that greedy selection takes for one target layer: for
 * each of them the gain of every layer that is left and, but for the last, its
 * elimination from those (kvm_select_greedy); then one sweep over the prefixes. width:
 * features of a layer, out: entries of the target's. */
static double greedy_flops(double layers, double width, double out, ptrdiff_t n)
{
    const double factor = width * width * width / 3;
    double flops = (double)(n * n * n) * factor;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double left = layers - (double)i, prefix = (double)(i + 1) * width;
        flops += left * (factor + 2 * width * width * out) + 4 * prefix * prefix * out;
        if (i + 1 < n)
            flops += factor + 2 * left * width * width * (layers * width + out);
    }
    return flops;
}

/* for each target layer and lambda one Cholesky factor of the largest k, and for each
 * k two triangular solves and the errors on the choosing split (kvm_ridge_sweep); then
 * the greedy curves */
double kvm_plan__map_flops(double layers, double width, double targets, double out,
                           double k_most, bool full)
{
    ptrdiff_t ks[KVM_KS], curve[KVM_GREEDY_TARGETS];
    double squares = 0, widest = 0;
    const ptrdiff_t n = kvm_select_ks((ptrdiff_t)layers, ks);
    const double curves =
        full ? (double)kvm_fit_greedy_targets((ptrdiff_t)targets, curve) : 0;
    if (!(out > 0 && width > 0)) return 0;
    for (ptrdiff_t k = 0; k < n && (k == 0 || (double)ks[k] <= k_most); k++) {
        widest = (double)ks[k] * width;
        squares += widest * widest;
    }
    return KVM_LAMBDAS * (targets * widest * widest * widest / 3 + 4 * squares * out) +
           curves * greedy_flops(layers, width, out / targets,
                                 (ptrdiff_t)fmin(k_most, layers));
}

static double sweep_flops(const kvm_model *source, const kvm_model *target,
                          double k_most, bool full)
{
    double flops = 0;
    for (int i = 0; i < ROW_KINDS; i++) {
        const kvm_object_kind kind = row_kinds[i].kind;
        const double layers = layers_of(source, kind);
        flops += kvm_plan__map_flops(layers, kvm_plan__features(source, kind) / layers,
                                     layers_of(target, kind),
                                     kvm_plan__features(target, kind), k_most, full);
    }
    return flops;
}

/* cross: the cross moments are computed for this direction; they serve both */
static json_t *fit_plan(const kvm_model *source, const kvm_model *target, bool cross,
                        double rows, double k_most, const kvm_machine_rates *r)
{
    const double stats = stats_flops(source, cross ? target : NULL, rows);
    const double sweep = sweep_flops(source, target, k_most, true);
    return json_pack("{s:s%, s:s%, s:f, s:f, s:f, s:f}", "source",
                     kvm_model_info_of(source)->name.at,
                     (size_t)kvm_model_info_of(source)->name.len, "target",
                     kvm_model_info_of(target)->name.at,
                     (size_t)kvm_model_info_of(target)->name.len, "stats_flops", stats,
                     "stats_s", stats / r->flops, "fit_flops", sweep, "fit_s",
                     2 * sweep / r->flops); /* fp64: half the rate */
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

static json_t *translator_plan(const kvm_model *source, const kvm_model *target,
                               double fit_rows)
{
    ptrdiff_t ks[KVM_KS];
    const kvm_object_kind kind = main_kind(source);
    const double layers = layers_of(source, kind);
    const ptrdiff_t n = kvm_select_ks((ptrdiff_t)layers, ks);
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++) {
        const double k = (double)ks[i],
                     all = kvm_plan__translator_parameters(source, target, k);
        const double width = k * kvm_plan__features(source, kind) / layers;
        json_array_append_new(
            list, json_pack("{s:I, s:f, s:f, s:f, s:f}", "k", (json_int_t)ks[i],
                            "parameters", all, "bytes_f32", 4 * all, "features", width,
                            "rows_per_feature", width > 0 ? fit_rows / width : 0));
    }
    return list;
}

/* at the lengths that the spec times, or those that it would by default */
static kvm_status ttft_plan(json_t **out, const kvm_spec *spec, const kvm_model *source,
                            const kvm_model *target, const kvm_machine_rates *r,
                            kvm_arena *keep, kvm_err *err)
{
    int64_t lengths[KVM_TIMING_LENGTHS];
    ptrdiff_t count;
    const kvm_model_info *s = kvm_model_info_of(source), *t = kvm_model_info_of(target);
    const double all =
        kvm_plan__translator_parameters(source, target, (double)s->layers);
    const kvm_jat timing = kvm_json_get(spec->root, keep, "timing");
    TRY(kvm_timing_lengths(kvm_json_get(timing, keep, "lengths"), keep, lengths, &count,
                           err));
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < count; i++) {
        const double n = (double)lengths[i];
        const double decode = (double)t->weight_bytes / r->bytes;
        const double moved = n * (double)(s->token_bytes + t->token_bytes);
        const double cold = kvm_prefill_flops(t, n) / r->flops + decode;
        const double swap = 2 * all * n / r->flops + moved / r->bytes + decode;
        json_array_append_new(list, json_pack("{s:f, s:f, s:f, s:f}", "tokens", n,
                                              "cold_s", cold, "switch_s", swap,
                                              "speedup", cold / swap));
    }
    *out = kvm_json_own(keep, list);
    return *out ? KVM_OK : kvm_nomem(err, keep);
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

kvm_status kvm_plan_json(json_t **out, const kvm_spec *s, const kvm_graph *graphs,
                         ptrdiff_t n, kvm_compute *c, const kvm_machine_rates *r,
                         kvm_arena *keep, kvm_err *err)
{
    kvm_model *source, *target;
    const kvm_graph *g = n > 0 ? &graphs[0] : NULL;
    json_t *ttft, *jobs, *total;
    double sequences, tokens, stride, held, k_most, bytes;
    TRY(captured(s, g, keep, "sequences", KVM_SEQUENCES, &sequences, err));
    TRY(captured(s, g, keep, "tokens", KVM_TOKENS, &tokens, err));
    TRY(captured(s, g, keep, "stride", 1, &stride, err));
    TRY(open_model(&source, keep, c, s->source_path, err));
    TRY(open_model(&target, keep, c, s->target_path, err));
    TRY(number(s, keep, "calibration", "held_out", 0.2, &held, err));
    TRY(number(s, keep, "fit", "k_most", HUGE_VAL, &k_most, err));
    TRY(row_bytes(s, keep, &bytes, err));
    const double rows = sequences * tokens / stride;
    TRY(ttft_plan(&ttft, s, source, target, r, keep, err));
    TRY(kvm_plan__jobs(&jobs, &total,
                       &(kvm_plan_context){.spec = s,
                                           .source = source,
                                           .target = target,
                                           .rates = r,
                                           .threads = kvm_compute_threads(c),
                                           .sequences = sequences,
                                           .rows = rows,
                                           .held = held,
                                           .row_bytes = bytes,
                                           .k_most = k_most,
                                           .keep = keep},
                       graphs, n, err));
    json_t *fits = json_pack("[o]", fit_plan(source, target, true, rows, k_most, r));
    if (s->both_directions)
        json_array_append_new(fits, fit_plan(target, source, false, rows, k_most, r));
    *out =
        json_pack("{s:{s:f, s:f}, s:[o, o], s:[o, o], s:{s:f, s:f, s:f}, s:o, s:o, "
                  "s:O, s:O, s:O}",
                  "machine", "flops", r->flops, "bytes", r->bytes, "models",
                  model_plan(source), model_plan(target), "capture",
                  capture_plan(source, sequences, tokens, stride, bytes, r),
                  capture_plan(target, sequences, tokens, stride, bytes, r), "moments",
                  "gram_source_bytes", kvm_plan__moment_bytes(source, source, true),
                  "gram_target_bytes", kvm_plan__moment_bytes(target, target, true),
                  "cross_bytes", kvm_plan__moment_bytes(source, target, false),
                  "translator", translator_plan(source, target, rows * (1 - held)),
                  "fit", fits, "ttft", ttft, "jobs", jobs, "total", total);
    return *out ? KVM_OK : kvm_nomem(err, keep);
}
