/* graph.c - a pair spec becomes jobs.
 *
 *   capture S   capture T        shared with every partner and with the reverse
 *               direction
 *   stats S     stats S x T      the latter shared with the reverse direction, whose
 *               other one is stats T (read here too where maps are told the token)
 *   fit ─ mlp, distill ─ evaluate per suite ─ analyse per suite ─ timing
 *       └ ablations (fit + evaluate each)
 *   report                       takes all of it
 *
 * Params hold content (fingerprints, hashes); members named *_path are places and take
 * no part in keys. */
#include <string.h>

#include "jobs/ablations.h"
#include "jobs/graph_internal.h"

enum { MAX_NODES = 128, MAX_INPUTS = 96 };

static json_t *str_json(kvm_str s)
{
    return json_stringn(s.at, (size_t)s.len);
}

/* ---- nodes ---- */

/* Exact backends stay out of the keys: what one of them made, the others may go on
 * with. */
static kvm_status identify(kvm_builder *b, kvm_node *n)
{
    if (b->rounds.len == 0 || !(kvm_job_kind_flags(n->kind) & KVM_KIND_MODEL))
        return KVM_OK;
    n->identity =
        kvm_json_own(b->keep, json_pack("{s:o}", "backend", str_json(b->rounds)));
    return n->identity ? KVM_OK : kvm_nomem(b->err, b->keep);
}

kvm_status kvm_graph__node(kvm_builder *b, kvm_kind_id kind, kvm_str label,
                           json_t *params, ptrdiff_t *node)
{
    kvm_graph *g = b->graph;
    if (!kvm_json_own(b->keep, params) || !label.at) return kvm_nomem(b->err, b->keep);
    if (g->count == MAX_NODES)
        return kvm_fail(b->err, KVM_RANGE, "a spec may ask for at most %d jobs",
                        MAX_NODES);
    kvm_node *n = &g->nodes[g->count];
    *n = (kvm_node){.kind = kind,
                    .label = label,
                    .params = params,
                    .inputs = kvm_new(b->keep, kvm_node_input, MAX_INPUTS)};
    if (!n->inputs) return kvm_nomem(b->err, b->keep);
    *node = g->count++;
    return identify(b, n);
}

kvm_status kvm_graph__input(kvm_builder *b, ptrdiff_t node, const char *name,
                            ptrdiff_t from, const char *output)
{
    kvm_node *n = &b->graph->nodes[node];
    if (n->input_count == MAX_INPUTS)
        return kvm_fail(b->err, KVM_RANGE, "a report may take at most %d inputs",
                        MAX_INPUTS);
    n->inputs[n->input_count++] = (kvm_node_input){name, from, output};
    return KVM_OK;
}

kvm_status kvm_graph__numbered(kvm_builder *b, ptrdiff_t node, const char *name,
                               ptrdiff_t i, ptrdiff_t from, const char *output)
{
    kvm_str s = kvm_str_fmt(b->keep, "%s.%td", name, i);
    return s.at ? kvm_graph__input(b, node, s.at, from, output)
                : kvm_nomem(b->err, b->keep);
}

json_t *kvm_graph__section(const kvm_builder *b, const char *name)
{
    const kvm_jat at = kvm_json_get(b->spec->root, b->keep, name);
    return kvm_json_has(at) ? json_deep_copy(at.v) : json_object();
}

bool kvm_graph__has_section(const kvm_builder *b, const char *name)
{
    return kvm_json_has(kvm_json_get(b->spec->root, b->keep, name));
}

static void set(json_t *o, const char *key, json_t *v)
{
    if (!json_object_get(o, key))
        json_object_set_new(o, key, v);
    else
        json_decref(v);
}

static void put_text(const kvm_builder *b, json_t *params)
{
    json_object_set_new(params, "text", json_string(b->text_sha));
    json_object_set_new(params, "text_path", str_json(b->spec->text_path));
}

void kvm_graph__put_models(const kvm_builder *b, json_t *params)
{
    json_object_set_new(params, "source", json_string(b->source.info->fingerprint));
    json_object_set_new(params, "source_path", str_json(b->source.path));
    json_object_set_new(params, "target", json_string(b->target.info->fingerprint));
    json_object_set_new(params, "target_path", str_json(b->target.path));
}

static kvm_str label(kvm_builder *b, const char *what, kvm_str name)
{
    return kvm_str_fmt(b->keep, "%s %.*s", what, KVM_STR_ARG(name));
}

static json_t *calibration(const kvm_builder *b)
{
    json_t *c = kvm_graph__section(b, "calibration");
    set(c, "sequences", json_integer(b->sequences));
    set(c, "tokens", json_integer(KVM_TOKENS));
    set(c, "stride", json_integer(1));
    set(c, "held_out", json_real(0.2));
    return c;
}

void kvm_graph__put_calibration(const kvm_builder *b, json_t *params)
{
    json_t *c = calibration(b);
    put_text(b, params);
    json_object_set(params, "sequences", json_object_get(c, "sequences"));
    json_object_set(params, "tokens", json_object_get(c, "tokens"));
    json_decref(c);
}

kvm_status kvm_graph__fits(kvm_builder *b, kvm_jat at)
{
    const kvm_graph_side *sides[] = {&b->source, &b->target};
    int64_t v;
    TRY(kvm_json_i64_or(at, 0, &v, b->err));
    for (int i = 0; i < 2; i++)
        if (v > sides[i]->info->context)
            return kvm_json_fail(b->err, KVM_RANGE, at,
                                 "is %lld tokens, and the context of %.*s holds %lld",
                                 (long long)v, KVM_STR_ARG(sides[i]->info->name),
                                 (long long)sides[i]->info->context);
    return KVM_OK;
}

static kvm_status add_captures(kvm_builder *b)
{
    const kvm_jat c = kvm_json_get(b->spec->root, b->keep, "calibration");
    TRY(kvm_graph__fits(b, kvm_json_get(c, b->keep, "tokens")));
    const kvm_graph_side *sides[] = {&b->source, &b->target};
    for (int i = 0; i < 2; i++) {
        json_t *p = calibration(b);
        json_object_del(p, "held_out");
        put_text(b, p);
        json_object_set_new(p, "rows", kvm_needs_rows(b->needs->rows[i ^ b->reversed]));
        json_object_set_new(p, "model", json_string(sides[i]->info->fingerprint));
        json_object_set_new(p, "model_path", str_json(sides[i]->path));
        TRY(kvm_graph__node(b, KVM_JOB_CAPTURE,
                            label(b, "capture", sides[i]->info->name), p,
                            &b->capture[i]));
    }
    return KVM_OK;
}

json_t *kvm_graph__split_params(const kvm_builder *b)
{
    json_t *c = calibration(b);
    json_t *p = json_pack("{s:I, s:O}", "seed", (json_int_t)b->spec->seed, "held_out",
                          json_object_get(c, "held_out"));
    json_decref(c);
    return p;
}

static json_t *stats_params(const kvm_builder *b, const kvm_block_set *blocks)
{
    json_t *p = kvm_graph__split_params(b);
    json_object_set_new(p, "blocks", kvm_needs_blocks(blocks));
    return p;
}

kvm_status kvm_graph__gram(kvm_builder *b, int of, ptrdiff_t *node)
{
    const kvm_str name = of ? b->target.info->name : b->source.info->name;
    TRY(kvm_graph__node(b, KVM_JOB_STATS, label(b, "stats", name),
                        stats_params(b, &b->needs->gram[of ^ b->reversed]), node));
    return kvm_graph__input(b, *node, "a", b->capture[of], "capture");
}

/* The Gram of the source, that of the target where features are its own, and the cross
 * of the two captures. The cross of the reverse direction is the same file read
 * transposed: its node is built the same way round in both graphs, so its key is the
 * same. */
static kvm_status add_stats(kvm_builder *b)
{
    const ptrdiff_t first = b->capture[b->reversed], second = b->capture[!b->reversed];
    TRY(kvm_graph__gram(b, 0, &b->gram));
    b->own = -1;
    if (b->needs->own[b->reversed]) TRY(kvm_graph__gram(b, 1, &b->own));
    TRY(kvm_graph__node(b, KVM_JOB_STATS,
                        kvm_str_fmt(b->keep, "stats %.*s x %.*s",
                                    KVM_STR_ARG(b->source.info->name),
                                    KVM_STR_ARG(b->target.info->name)),
                        stats_params(b, &b->needs->cross), &b->cross));
    TRY(kvm_graph__input(b, b->cross, "a", first, "capture"));
    return kvm_graph__input(b, b->cross, "b", second, "capture");
}

static kvm_status add_fit(kvm_builder *b, json_t *params, kvm_str name, ptrdiff_t *node)
{
    TRY(kvm_graph__node(b, KVM_JOB_FIT, name, params, node));
    TRY(kvm_graph__input(b, *node, "gram", b->gram, "moments"));
    TRY(kvm_graph__input(b, *node, "cross", b->cross, "moments"));
    if (b->own >= 0) TRY(kvm_graph__input(b, *node, "own", b->own, "moments"));
    TRY(kvm_graph__input(b, *node, "source_capture", b->capture[0], "capture"));
    return kvm_graph__input(b, *node, "target_capture", b->capture[1], "capture");
}

static kvm_status add_mlp(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "mlp")) return KVM_OK;
    json_t *p = kvm_graph__section(b, "mlp"), *split = kvm_graph__split_params(b);
    json_object_set(p, "held_out", json_object_get(split, "held_out"));
    json_object_set_new(p, "split_seed", json_integer(b->spec->seed));
    set(p, "seed", json_integer(b->spec->seed));
    json_decref(split);
    TRY(kvm_graph__node(b, KVM_JOB_MLP, label(b, "mlp", b->graph->pair), p, &b->mlp));
    TRY(kvm_graph__input(b, b->mlp, "source_capture", b->capture[0], "capture"));
    TRY(kvm_graph__input(b, b->mlp, "target_capture", b->capture[1], "capture"));
    return kvm_graph__input(b, b->mlp, "translator", b->fit, "translator");
}

static kvm_status add_distill(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "distill")) return KVM_OK;
    json_t *p = kvm_graph__section(b, "distill"), *c = calibration(b);
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    json_object_set(p, "held_out", json_object_get(c, "held_out"));
    json_object_set_new(p, "split_seed", json_integer(b->spec->seed));
    set(p, "seed", json_integer(b->spec->seed));
    json_decref(c);
    TRY(kvm_graph__node(b, KVM_JOB_DISTILL, label(b, "distill", b->graph->pair), p,
                        &b->distill));
    return kvm_graph__input(b, b->distill, "translator", b->fit, "translator");
}

/* ---- evaluation ---- */

/* n texts, each one once */
static kvm_status listed_once(kvm_builder *b, kvm_jat list, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t k = 0; k < i; k++) {
            const kvm_jat at = kvm_json_item(list, b->keep, i);
            if (json_equal(at.v, kvm_json_item(list, b->keep, k).v))
                return kvm_json_fail(b->err, KVM_FORMAT, at,
                                     "\"%s\" stands in the list twice",
                                     json_string_value(at.v));
        }
    return KVM_OK;
}

kvm_status kvm_graph__suites(kvm_builder *b, kvm_jat list, ptrdiff_t *n)
{
    TRY(kvm_json_array(list, n, b->err));
    if (*n == 0)
        return kvm_json_fail(b->err, KVM_FORMAT, list,
                             "names none: name one, or leave the section out");
    return listed_once(b, list, *n);
}

/* the suite that the spec names at this place */
static kvm_status suite_of(kvm_builder *b, kvm_jat at, kvm_str *path, kvm_suite **out)
{
    kvm_str name;
    TRY(kvm_json_str(at, &name, b->err));
    kvm_status s = kvm_suite_find(path, b->keep, b->spec->dir, name, b->err);
    if (!s) s = kvm_suite_read(out, b->keep, *path, b->err);
    if (s) return kvm_json_prefix(b->err, s, at);
    if ((*out)->kind != KVM_SUITE_CALIBRATION) return KVM_OK;
    return kvm_json_fail(b->err, KVM_USAGE, at,
                         "suite \"%s\" is for calibration, not for scoring",
                         kvm_quote(name).at);
}

/* A spec that asks for more items than are scored would be answered with fewer. */
static kvm_status enough_items(kvm_builder *b, const kvm_suite *s)
{
    const kvm_jat evaluate = kvm_json_get(b->spec->root, b->keep, "evaluate");
    const kvm_jat at = kvm_json_get(evaluate, b->keep, "attention_items");
    int64_t wanted, items;
    TRY(kvm_json_i64_or(at, 0, &wanted, b->err));
    TRY(kvm_json_i64_or(kvm_json_get(evaluate, b->keep, "items"), 0, &items, b->err));
    if (items <= 0 || items > s->count) items = s->count;
    if (wanted <= items) return KVM_OK;
    return kvm_json_fail(b->err, KVM_RANGE, at,
                         "is %lld, and %lld items of suite %.*s are scored",
                         (long long)wanted, (long long)items, KVM_STR_ARG(s->name));
}

static kvm_status look_at_items(kvm_builder *b, const kvm_suite *s, kvm_jat at,
                                const char *section)
{
    const kvm_model_info *const models[] = {b->source.info, b->target.info};
    if (!b->overlap)
        TRY(kvm_spec__read_overlap(b->spec, &b->overlap, b->sequences,
                                   b->target.tokenizer, b->keep, b->err));
    return kvm_spec__check_items(
        b->spec, s, at, kvm_json_get(b->spec->root, b->keep, section), b->overlap,
        models, b->target.tokenizer, b->keep, b->err);
}

kvm_status kvm_graph__suite_params(kvm_builder *b, kvm_jat suite, const char *section,
                                   bool check, json_t **params, kvm_suite **out)
{
    kvm_str path;
    kvm_suite *s;
    TRY(suite_of(b, suite, &path, &s));
    if (check) TRY(look_at_items(b, s, suite, section));
    json_t *given = kvm_graph__section(b, section), *p = json_object();
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    json_object_set_new(p, "suite", json_string(s->sha));
    json_object_set_new(p, "suite_path", str_json(path));
    if (json_object_get(given, "items"))
        json_object_set(p, "items", json_object_get(given, "items"));
    json_decref(given);
    *params = p;
    *out = s;
    return KVM_OK;
}

static kvm_status evaluate_params(kvm_builder *b, kvm_jat suite, bool attention,
                                  json_t **out, kvm_str *name)
{
    kvm_suite *s;
    /* ablations score no other items */
    TRY(kvm_graph__suite_params(b, suite, "evaluate", attention && !b->reversed, out,
                                &s));
    *name = s->name;
    if (!attention || s->kind != KVM_SUITE_PERPLEXITY) return KVM_OK;
    const kvm_status st = enough_items(b, s);
    if (st) return json_decref(*out), st;
    json_t *given = kvm_graph__section(b, "evaluate");
    set(given, "attention_items", json_integer(8));
    json_t *items = json_object_get(given, "attention_items");
    json_object_set(*out, "attention_items", items);
    b->attention |= json_integer_value(items) > 0;
    json_decref(given);
    return KVM_OK;
}

/* Samples and the report know a suite by its name. */
static kvm_status named_once(kvm_builder *b, kvm_str evaluate, kvm_jat at)
{
    for (ptrdiff_t i = 0; i < b->graph->count; i++)
        if (kvm_str_eq(b->graph->nodes[i].label, evaluate))
            return kvm_json_fail(b->err, KVM_FORMAT, at,
                                 "\"%s\" has the name of a suite before it: each needs "
                                 "one of its own on its card",
                                 json_string_value(at.v));
    return KVM_OK;
}

static kvm_status add_suite(kvm_builder *b, kvm_jat suite, ptrdiff_t i)
{
    json_t *p;
    kvm_str name;
    ptrdiff_t node;
    TRY(evaluate_params(b, suite, true, &p, &name));
    const kvm_str evaluate = label(b, "evaluate", name);
    const kvm_status s = named_once(b, evaluate, suite);
    if (s) return json_decref(p), s;
    json_object_set(json_object_get(b->graph->nodes[b->report].params, "suites"),
                    name.at, json_object_get(p, "suite"));
    TRY(kvm_graph__node(b, KVM_JOB_EVALUATE, evaluate, p, &node));
    TRY(kvm_graph__input(b, node, "translator", b->fit, "translator"));
    if (b->mlp >= 0) TRY(kvm_graph__input(b, node, "mlp", b->mlp, "translator"));
    if (b->distill >= 0)
        TRY(kvm_graph__input(b, node, "distilled", b->distill, "translator"));
    TRY(kvm_graph__numbered(b, b->report, "items", i, node, "items"));
    return kvm_graph__numbered(b, b->report, "figures", i, node, "figures");
}

/* the row that the others are compared with: nothing taken away, the fit of the run */
static const kvm_ablation complete = {"none", "complete closed form", "{}", ""};

static kvm_status ablated_fit(kvm_builder *b, const kvm_ablation *a, ptrdiff_t *node)
{
    *node = b->fit;
    if (a == &complete) return KVM_OK;
    json_t *fit = kvm_graph__section(b, "fit");
    json_object_set_new(fit, "sweep", json_false());
    const kvm_status s = kvm_ablation_apply(a, fit, b->err);
    if (s) return json_decref(fit), s;
    return add_fit(b, fit, kvm_str_fmt(b->keep, "fit %s", a->name), node);
}

static kvm_status add_ablation(kvm_builder *b, const kvm_ablation *a, kvm_jat suite)
{
    json_t *p;
    kvm_str name;
    ptrdiff_t fit_node, node;
    TRY(ablated_fit(b, a, &fit_node));
    TRY(evaluate_params(b, suite, false, &p, &name));
    json_object_set_new(p, "arms", json_pack("[s]", "closed_form"));
    json_object_set_new(p, "as",
                        json_pack("s%++", name.at, (size_t)name.len, "/", a->name));
    TRY(kvm_graph__node(
        b, KVM_JOB_EVALUATE,
        kvm_str_fmt(b->keep, "ablation %s", a == &complete ? "of nothing" : a->name), p,
        &node));
    TRY(kvm_graph__input(b, node, "translator", fit_node, "translator"));
    kvm_str input = kvm_str_fmt(b->keep, "ablation.%s", a->name);
    if (!input.at) return kvm_nomem(b->err, b->keep);
    return kvm_graph__input(b, b->report, input.at, node, "items");
}

/* The report compares ablated fits with the arms of a suite that it shows. */
static kvm_status among_suites(kvm_builder *b, kvm_jat at)
{
    kvm_str path;
    kvm_suite *s;
    TRY(suite_of(b, at, &path, &s));
    for (ptrdiff_t i = 0; i < b->graph->count; i++) {
        const kvm_node *n = &b->graph->nodes[i];
        const char *sha = json_string_value(json_object_get(n->params, "suite"));
        if (n->kind == KVM_JOB_EVALUATE && sha && !strcmp(sha, s->sha)) return KVM_OK;
    }
    return kvm_json_fail(b->err, KVM_USAGE, at, "\"%s\" is none of evaluate.suites",
                         json_string_value(at.v));
}

static kvm_status add_ablations(kvm_builder *b, kvm_jat evaluate, kvm_jat first_suite)
{
    const kvm_jat list = kvm_json_get(evaluate, b->keep, "ablations");
    kvm_jat suite = kvm_json_get(evaluate, b->keep, "ablation_suite");
    if (kvm_json_has(suite))
        TRY(among_suites(b, suite));
    else
        suite = first_suite;
    if (!kvm_json_has(list)) return KVM_OK;
    ptrdiff_t n;
    TRY(kvm_json_array(list, &n, b->err));
    TRY(listed_once(b, list, n));
    if (n) TRY(add_ablation(b, &complete, suite));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat at = kvm_json_item(list, b->keep, i);
        kvm_str name;
        const kvm_ablation *a;
        TRY(kvm_json_str(at, &name, b->err));
        TRY(kvm_ablation_find(&a, name, at, b->err));
        TRY(add_ablation(b, a, suite));
    }
    return KVM_OK;
}

static kvm_status add_evaluations(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "evaluate")) return KVM_OK;
    const kvm_jat evaluate = kvm_json_get(b->spec->root, b->keep, "evaluate");
    const kvm_jat list = kvm_json_get(evaluate, b->keep, "suites");
    ptrdiff_t n;
    TRY(kvm_graph__suites(b, list, &n));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(add_suite(b, kvm_json_item(list, b->keep, i), i));
    return add_ablations(b, evaluate, kvm_json_item(list, b->keep, 0));
}

static kvm_status add_timing(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "timing")) return KVM_OK;
    const kvm_jat timing = kvm_json_get(b->spec->root, b->keep, "timing");
    const kvm_jat lengths = kvm_json_get(timing, b->keep, "lengths");
    ptrdiff_t n = 0;
    if (kvm_json_has(lengths)) TRY(kvm_json_array(lengths, &n, b->err));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(kvm_graph__fits(b, kvm_json_item(lengths, b->keep, i)));
    json_t *p = kvm_graph__section(b, "timing");
    ptrdiff_t node;
    kvm_graph__put_models(b, p);
    json_object_set_new(p, "seed", json_integer(b->spec->seed));
    TRY(kvm_graph__node(b, KVM_JOB_TIMING, label(b, "timing", b->graph->pair), p,
                        &node));
    TRY(kvm_graph__input(b, node, "translator", b->fit, "translator"));
    return kvm_graph__input(b, b->report, "timing", node, "timing");
}

/* ---- the report ---- */

static json_t *model_json(const kvm_graph_side *s)
{
    const kvm_model_info *i = s->info;
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "name", str_json(i->name),
        "family", str_json(i->family), "parameters", (json_int_t)i->parameters,
        "layers", (json_int_t)i->layers, "kv_heads", (json_int_t)i->kv_heads,
        "head_dim", (json_int_t)i->head_dim, "context", (json_int_t)i->context, "dtype",
        kvm_dtype_name(i->weight_dtype), "fingerprint", i->fingerprint);
}

static kvm_status report_params(kvm_builder *b, kvm_str reverse, json_t **out)
{
    json_t *p = json_object();
    json_object_set_new(p, "pair", str_json(b->graph->pair));
    if (reverse.len) json_object_set_new(p, "reverse", str_json(reverse));
    json_object_set_new(p, "source", model_json(&b->source));
    json_object_set_new(p, "target", model_json(&b->target));
    json_object_set_new(p, "calibration", calibration(b));
    json_object_set_new(p, "text", json_string(b->text_sha));
    json_object_set_new(p, "suites", json_object()); /* filled by add_suite */
    json_object_set_new(p, "spec", str_json(b->spec->text));
    json_object_set_new(p, "seed", json_integer(b->spec->seed));
    if (b->rounds.len) json_object_set_new(p, "backend", str_json(b->rounds));
    *out = p;
    return KVM_OK;
}

/* The report is the last job but the first to be known: its node is made first, filled
 * on the way, and moved to the end, where a node's inputs must point backwards. */
static kvm_status add_report_inputs(kvm_builder *b)
{
    static const char *const names[] = {"source", "target"};
    for (int i = 0; i < 2; i++) {
        kvm_str s = kvm_str_fmt(b->keep, "cost.capture %s", names[i]);
        if (!s.at) return kvm_nomem(b->err, b->keep);
        TRY(kvm_graph__input(b, b->report, s.at, b->capture[i], "cost"));
    }
    TRY(kvm_graph__input(b, b->report, "cost.stats source", b->gram, "cost"));
    if (b->own >= 0)
        TRY(kvm_graph__input(b, b->report, "cost.stats target", b->own, "cost"));
    TRY(kvm_graph__input(b, b->report, "cost.stats cross", b->cross, "cost"));
    TRY(kvm_graph__input(b, b->report, "cost.fit", b->fit, "cost"));
    TRY(kvm_graph__input(b, b->report, "fit", b->fit, "fit"));
    TRY(kvm_graph__input(b, b->report, "translator", b->fit, "translator"));
    if (b->mlp >= 0) {
        TRY(kvm_graph__input(b, b->report, "cost.mlp", b->mlp, "cost"));
        TRY(kvm_graph__input(b, b->report, "mlp", b->mlp, "figures"));
    }
    if (b->distill < 0) return KVM_OK;
    TRY(kvm_graph__input(b, b->report, "cost.distill", b->distill, "cost"));
    return kvm_graph__input(b, b->report, "distill", b->distill, "figures");
}

static void move_report_last(kvm_builder *b)
{
    kvm_graph *g = b->graph;
    const kvm_node report = g->nodes[0];
    memmove(g->nodes, g->nodes + 1, (size_t)(g->count - 1) * sizeof *g->nodes);
    g->nodes[g->count - 1] = report;
    for (ptrdiff_t i = 0; i < g->count; i++)
        for (ptrdiff_t k = 0; k < g->nodes[i].input_count; k++)
            g->nodes[i].inputs[k].node--;
}

static kvm_status build(kvm_builder *b, kvm_str reverse)
{
    json_t *p;
    b->graph->nodes = kvm_new(b->keep, kvm_node, MAX_NODES);
    if (!b->graph->nodes) return kvm_nomem(b->err, b->keep);
    TRY(kvm_json_canonical(&b->graph->spec, b->keep, b->spec->root.v, b->err));
    TRY(report_params(b, reverse, &p));
    TRY(kvm_graph__node(b, KVM_JOB_REPORT, label(b, "report", b->graph->pair), p,
                        &b->report));
    TRY(add_captures(b));
    TRY(add_stats(b));
    TRY(add_fit(b, kvm_graph__section(b, "fit"), label(b, "fit", b->graph->pair),
                &b->fit));
    TRY(add_mlp(b));
    TRY(add_distill(b));
    TRY(add_report_inputs(b));
    TRY(add_evaluations(b));
    TRY(kvm_graph__analyses(b));
    TRY(add_timing(b));
    if (!b->attention)
        b->graph->warning =
            KVM_STR("no suite of the kind perplexity with attention_items above 0: the "
                    "gate attention_cosine will not be measured, and without it the "
                    "report decides nothing");
    move_report_last(b);
    return kvm_spec__check_graph(b->spec, b->graph, b->source.info, b->keep, b->err);
}

/* ---- both directions ---- */

static kvm_status reverse_name(const kvm_spec *s, kvm_arena *keep, kvm_str *out,
                               kvm_err *err)
{
    const kvm_jat given = kvm_json_get(s->root, keep, "reverse_name");
    kvm_str head, tail;
    if (kvm_json_has(given)) return kvm_json_str(given, out, err);
    if (kvm_str_cut(s->name, '-', &head, &tail) && tail.len > 0 && tail.at[0] != '.' &&
        kvm_str_find(tail, KVM_STR("-")) < 0 && !kvm_str_eq(head, tail))
        *out = kvm_str_fmt(keep, "%.*s-%.*s", KVM_STR_ARG(tail), KVM_STR_ARG(head));
    else
        *out = kvm_str_fmt(keep, "%.*s-reversed", KVM_STR_ARG(s->name));
    return out->at ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_status open_side(kvm_graph_side *s, kvm_arena *keep, kvm_compute *c,
                            kvm_str path, kvm_err *err)
{
    kvm_model *m;
    TRY(kvm_model_open(&m, keep, c, path, &(kvm_model_options){.check_finite = true},
                       err));
    *s = (kvm_graph_side){.path = path,
                          .info = kvm_model_info_of(m),
                          .tokenizer = kvm_model_tokenizer(m)};
    return kvm_rows_shapes(&s->shapes, keep, m, err);
}

kvm_status kvm_spec_graphs(const kvm_spec *s, kvm_arena *keep, kvm_compute *c,
                           kvm_graph graphs[2], ptrdiff_t *n, kvm_err *err)
{
    kvm_graph_side source, target;
    kvm_str reverse = {0}, rounds = {0};
    char sha[65];
    ptrdiff_t sequences;
    const kvm_backend *backend = kvm_compute_backend(c);
    if (kvm_backend_rounds(backend)) {
        rounds = kvm_backend_label(backend, keep);
        if (!rounds.at) return kvm_nomem(err, keep);
    }
    TRY(open_side(&source, keep, c, s->source_path, err));
    TRY(open_side(&target, keep, c, s->target_path, err));
    const kvm_status differ =
        kvm_tokenizer_differ(source.tokenizer, target.tokenizer, err);
    if (differ)
        return kvm_err_prefix(err, differ, "%.*s and %.*s do not share a tokenizer",
                              KVM_STR_ARG(source.path), KVM_STR_ARG(target.path));
    TRY(kvm_spec__check_text(s, sha, &sequences, source.tokenizer, keep, err));
    const kvm_shapes shapes[] = {source.shapes, target.shapes};
    kvm_needs *needs = kvm_new(keep, kvm_needs, 1);
    if (!needs) return kvm_nomem(err, keep);
    TRY(kvm_needs_read(needs, s, shapes, keep, err));
    if (s->both_directions) TRY(reverse_name(s, keep, &reverse, err));
    *n = s->both_directions ? 2 : 1;
    for (ptrdiff_t i = 0; i < *n; i++) {
        graphs[i] = (kvm_graph){.pair = i ? reverse : s->name};
        kvm_builder b = {.spec = s,
                         .keep = keep,
                         .graph = &graphs[i],
                         .reversed = i == 1,
                         .source = i ? target : source,
                         .target = i ? source : target,
                         .needs = needs,
                         .sequences = sequences,
                         .rounds = rounds,
                         .mlp = -1,
                         .distill = -1,
                         .err = err};
        memcpy(b.text_sha, sha, 65);
        TRY(build(&b, i ? s->name : reverse));
    }
    return KVM_OK;
}
