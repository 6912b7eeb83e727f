/* graph.c - a pair spec becomes jobs.
 *
 *   capture S   capture T        shared with every partner and with the reverse
 *               direction
 *   stats S     stats S x T      the latter shared with the reverse direction, whose
 *               other one is stats T (read here too where maps are told the token)
 *   fit                          or one for each candidate, and `choose` (graph_fit.c)
 *   fit ─ mlp, distill ─ evaluate per suite ─ analyse per suite ─ timing
 *       └ ablations (fit + evaluate each)
 *   alternate                    takes the fit (or distill) of the other direction too
 *   report                       takes all of it
 *
 * Evaluations and ablations are made in graph_evaluate.c, analyses in graph_analyse.c,
 * conversations in graph_alternate.c, what these have in common in graph_suites.c, the
 * report in graph_report.c.
 *
 * Params hold content (fingerprints, hashes); members named *_path are places and take
 * no part in keys. */
#include <string.h>

#include "jobs/candidates.h"
#include "jobs/distill_options.h"
#include "jobs/graph_internal.h"

enum { MAX_NODES = 512, MAX_INPUTS = 192 };

json_t *kvm_graph__str(kvm_str s)
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
        kvm_json_own(b->keep, json_pack("{s:o}", "backend", kvm_graph__str(b->rounds)));
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

void kvm_graph__set(json_t *o, const char *key, json_t *v)
{
    if (!json_object_get(o, key))
        json_object_set_new(o, key, v);
    else
        json_decref(v);
}

static void put_text(const kvm_builder *b, json_t *params)
{
    json_object_set_new(params, "text", json_string(b->text_sha));
    json_object_set_new(params, "text_path", kvm_graph__str(b->spec->text_path));
}

void kvm_graph__put_models(const kvm_builder *b, json_t *params)
{
    json_object_set_new(params, "source", json_string(b->source.info->fingerprint));
    json_object_set_new(params, "source_path", kvm_graph__str(b->source.path));
    json_object_set_new(params, "target", json_string(b->target.info->fingerprint));
    json_object_set_new(params, "target_path", kvm_graph__str(b->target.path));
}

kvm_str kvm_graph__label(kvm_builder *b, const char *what, kvm_str name)
{
    return kvm_str_fmt(b->keep, "%s %.*s", what, KVM_STR_ARG(name));
}

json_t *kvm_graph__calibration(const kvm_builder *b)
{
    json_t *c = kvm_graph__section(b, "calibration");
    kvm_graph__set(c, "sequences", json_integer(b->sequences));
    kvm_graph__set(c, "tokens", json_integer(KVM_TOKENS));
    kvm_graph__set(c, "stride", json_integer(1));
    kvm_graph__set(c, "held_out", json_real(0.2));
    return c;
}

void kvm_graph__put_calibration(const kvm_builder *b, json_t *params)
{
    json_t *c = kvm_graph__calibration(b);
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
        json_t *p = kvm_graph__calibration(b);
        json_object_del(p, "held_out");
        put_text(b, p);
        json_object_set_new(p, "rows", kvm_needs_rows(b->needs->rows[i ^ b->reversed]));
        json_object_set_new(p, "model", json_string(sides[i]->info->fingerprint));
        json_object_set_new(p, "model_path", kvm_graph__str(sides[i]->path));
        TRY(kvm_graph__node(b, KVM_JOB_CAPTURE,
                            kvm_graph__label(b, "capture", sides[i]->info->name), p,
                            &b->capture[i]));
    }
    return KVM_OK;
}

json_t *kvm_graph__split_params(const kvm_builder *b)
{
    json_t *c = kvm_graph__calibration(b);
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
    for (*node = 0; *node < b->graph->count; ++*node) {
        const kvm_node *n = &b->graph->nodes[*node];
        if (n->kind == KVM_JOB_STATS && n->input_count == 1 &&
            n->inputs[0].node == b->capture[of])
            return KVM_OK;
    }
    const kvm_str name = of ? b->target.info->name : b->source.info->name;
    TRY(kvm_graph__node(b, KVM_JOB_STATS, kvm_graph__label(b, "stats", name),
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

static kvm_status add_mlp(kvm_builder *b)
{
    if (!kvm_graph__has_section(b, "mlp")) return KVM_OK;
    json_t *p = kvm_graph__section(b, "mlp"), *split = kvm_graph__split_params(b);
    json_object_set(p, "held_out", json_object_get(split, "held_out"));
    json_object_set_new(p, "split_seed", json_integer(b->spec->seed));
    kvm_graph__set(p, "seed", json_integer(b->spec->seed));
    json_decref(split);
    TRY(kvm_graph__node(b, KVM_JOB_MLP, kvm_graph__label(b, "mlp", b->graph->pair), p,
                        &b->mlp));
    TRY(kvm_graph__input(b, b->mlp, "source_capture", b->capture[0], "capture"));
    TRY(kvm_graph__input(b, b->mlp, "target_capture", b->capture[1], "capture"));
    return kvm_graph__input(b, b->mlp, "translator", b->fit, "translator");
}

kvm_status kvm_graph__distill(kvm_builder *b, const char *what)
{
    if (!kvm_graph__has_section(b, "distill")) return KVM_OK;
    json_t *p = kvm_graph__section(b, "distill"), *c = kvm_graph__calibration(b);
    kvm_graph__put_models(b, p);
    kvm_graph__put_calibration(b, p);
    json_object_set(p, "held_out", json_object_get(c, "held_out"));
    json_object_set_new(p, "split_seed", json_integer(b->spec->seed));
    kvm_graph__set(p, "seed", json_integer(b->spec->seed));
    json_decref(c);
    TRY(kvm_graph__node(b, KVM_JOB_DISTILL, kvm_graph__label(b, what, b->graph->pair),
                        p, &b->distill));
    return kvm_graph__input(b, b->distill, "translator", b->fit, "translator");
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
    TRY(kvm_graph__node(b, KVM_JOB_TIMING,
                        kvm_graph__label(b, "timing", b->graph->pair), p, &node));
    TRY(kvm_graph__input(b, node, "translator", b->fit, "translator"));
    return kvm_graph__input(b, b->report, "timing", node, "timing");
}

/* ---- what a spec is told before it runs ---- */

static kvm_status warn(kvm_builder *b, kvm_str text)
{
    kvm_str *w = &b->graph->warning;
    if (!text.len) return KVM_OK;
    *w = w->len ? kvm_str_fmt(b->keep, "%.*s; %.*s", KVM_STR_ARG(*w), KVM_STR_ARG(text))
                : text;
    return w->at ? KVM_OK : kvm_nomem(b->err, b->keep);
}

/* more layers than either model has are no mistake, and no more than all */
static kvm_status note_k_most(kvm_builder *b)
{
    const kvm_jat fit = kvm_json_get(b->spec->root, b->keep, "fit");
    const kvm_jat at = kvm_json_get(fit, b->keep, "k_most");
    const ptrdiff_t from = b->source.info->layers, to = b->target.info->layers;
    const bool back = kvm_spec__fits_back(b->spec);
    const ptrdiff_t most = back && to > from ? to : from;
    if (!kvm_json_has(at) || json_integer_value(at.v) <= most) return KVM_OK;
    const kvm_str text = kvm_str_fmt(
        b->keep, "fit.k_most is %lld, and %td layers can be read: all are tried",
        (long long)json_integer_value(at.v), most);
    return text.at ? warn(b, text) : kvm_nomem(b->err, b->keep);
}

/* what the verdict needs and no suite of the spec measures */
static kvm_status warn_of_verdict(kvm_builder *b)
{
    if (!b->attention)
        TRY(warn(b, KVM_STR("no suite of the kind perplexity with attention_items "
                            "above 0: the gate attention_cosine will not be measured, "
                            "and without it the report decides nothing")));
    if (b->quality) return KVM_OK;
    return warn(b, KVM_STR("no suite of recall, choice or answers (kind needle, "
                           "multiple_choice or generation): how much of its quality "
                           "the target keeps will not be measured, and without it the "
                           "report decides nothing"));
}

/* one node's lessons, whichever way it translates */
static kvm_status check_lessons(kvm_builder *b, kvm_job *j, const kvm_graph_side *from,
                                const kvm_graph_side *to)
{
    kvm_candidates c;
    const kvm_jat fit = kvm_json_get(b->spec->root, b->keep, "fit");
    TRY(kvm_candidates_read(&c, fit, &from->shapes, &to->shapes, b->keep, b->err));
    for (ptrdiff_t i = 0; i < c.n; i++) /* any of them may be the one */
        TRY(kvm_distill_plan_fits(j, &c.at[i].outline, &from->shapes, &to->shapes,
                                  to->model, b->err));
    return KVM_OK;
}

/* A distillation comes after captures, moments and fit: that its lessons do not fit, or
 * that its rate never gets where the spec wants it, is said before them. */
static kvm_status check_distillations(kvm_builder *b)
{
    kvm_str warning = KVM_STR("");
    const kvm_jat section = kvm_json_get(b->spec->root, b->keep, "distill");
    for (ptrdiff_t i = 0; i < b->graph->count; i++) {
        const kvm_node *n = &b->graph->nodes[i];
        if (n->kind != KVM_JOB_DISTILL) continue;
        kvm_job j = {.keep = b->keep, .params = {.v = n->params}};
        const char *reads = json_string_value(json_object_get(n->params, "source"));
        const bool back = strcmp(reads, b->source.info->fingerprint) != 0;
        TRY(kvm_json_place_as(&j.params, b->keep, section, b->err));
        TRY(check_lessons(b, &j, back ? &b->target : &b->source,
                          back ? &b->source : &b->target));
        TRY(kvm_distill_warning(&warning, &j, b->err)); /* of all the same */
    }
    return warn(b, warning);
}

/* ---- all of it ---- */

static kvm_status build(kvm_builder *b, kvm_str reverse)
{
    b->graph->nodes = kvm_new(b->keep, kvm_node, MAX_NODES);
    if (!b->graph->nodes) return kvm_nomem(b->err, b->keep);
    TRY(kvm_json_canonical(&b->graph->spec, b->keep, b->spec->root.v, b->err));
    TRY(kvm_graph__report(b, reverse));
    TRY(add_captures(b));
    TRY(add_stats(b));
    TRY(kvm_graph__translator(b, kvm_graph__section(b, "fit"), b->graph->pair,
                              &b->fit));
    TRY(add_mlp(b));
    TRY(kvm_graph__distill(b, "distill"));
    TRY(kvm_graph__report_inputs(b));
    TRY(kvm_graph__evaluations(b));
    TRY(kvm_graph__analyses(b));
    TRY(kvm_graph__alternation(b));
    TRY(add_timing(b));
    TRY(warn_of_verdict(b));
    kvm_graph__report_last(b);
    const kvm_model_info *const fitted_from[] = {b->source.info, b->target.info};
    TRY(kvm_spec__check_graph(b->spec, b->graph, fitted_from,
                              kvm_spec__fits_back(b->spec) ? 2 : 1, b->keep, b->err));
    TRY(check_distillations(b));
    return note_k_most(b);
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
                          .model = m,
                          .info = kvm_model_info_of(m),
                          .tokenizer = kvm_model_tokenizer(m)};
    return kvm_rows_shapes(&s->shapes, keep, m, err);
}

/* What the graphs of one file have in common. */
typedef struct shared_side {
    kvm_graph_side side;
    kvm_spaces rows; /* all that a pair needs of it */
    kvm_block_set gram;
} shared_side;
typedef struct common {
    kvm_arena *keep;
    kvm_compute *compute;
    shared_side *sides; /* a model each */
    ptrdiff_t side_count;
    kvm_str rounds;
    char text_sha[65];
    ptrdiff_t sequences;
} common;

typedef struct pair { /* one spec */
    const kvm_spec *spec;
    shared_side *side[2];
    kvm_needs needs;
} pair;

static kvm_status side_of(common *c, kvm_str path, shared_side **out, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < c->side_count; i++)
        if (kvm_str_eq(c->sides[i].side.path, path)) {
            *out = &c->sides[i];
            return KVM_OK;
        }
    *out = &c->sides[c->side_count++];
    return open_side(&(*out)->side, c->keep, c->compute, path, err);
}

static kvm_status open_pair(common *c, pair *p, kvm_err *err)
{
    TRY(side_of(c, p->spec->source_path, &p->side[0], err));
    TRY(side_of(c, p->spec->target_path, &p->side[1], err));
    const kvm_graph_side *a = &p->side[0]->side, *b = &p->side[1]->side;
    const kvm_status differ = kvm_tokenizer_differ(a->tokenizer, b->tokenizer, err);
    return kvm_err_prefix(err, differ, "%.*s and %.*s do not share a tokenizer",
                          KVM_STR_ARG(a->path), KVM_STR_ARG(b->path));
}

static kvm_status read_needs(const common *c, pair *p, kvm_err *err)
{
    const kvm_shapes shapes[] = {p->side[0]->side.shapes, p->side[1]->side.shapes};
    TRY(kvm_needs_read(&p->needs, p->spec, shapes, c->keep, err));
    for (int i = 0; i < 2; i++)
        kvm_needs_gather(&p->side[i]->rows, &p->side[i]->gram, &p->needs, i);
    return KVM_OK;
}

static kvm_graph_model model_of(const kvm_graph_side *s)
{
    return (kvm_graph_model){.name = s->info->name,
                             .family = s->info->family,
                             .fingerprint = s->info->fingerprint,
                             .config_sha = s->info->config_hash,
                             .tokenizer_sha = kvm_tokenizer_hash(s->tokenizer),
                             .weights_sha = s->info->weights_hash};
}

static kvm_status graphs_of(const common *c, pair *p, kvm_graphs *graphs, kvm_err *err)
{
    const kvm_spec *s = p->spec;
    kvm_str reverse = {0};
    if (s->both_directions) TRY(reverse_name(s, c->keep, &reverse, err));
    for (int i = 0; i < 2; i++) {
        p->needs.rows[i] = p->side[i]->rows;
        p->needs.gram[i] = p->side[i]->gram;
    }
    graphs->n = s->both_directions ? 2 : 1;
    for (int i = 0; i < graphs->n; i++) {
        graphs->of[i] = (kvm_graph){
            .pair = i ? reverse : s->name,
            .models = {model_of(&p->side[i]->side), model_of(&p->side[1 - i]->side)}};
        kvm_builder b = {.spec = s,
                         .keep = c->keep,
                         .graph = &graphs->of[i],
                         .reversed = i == 1,
                         .source = p->side[i]->side,
                         .target = p->side[1 - i]->side,
                         .needs = &p->needs,
                         .sequences = c->sequences,
                         .rounds = c->rounds,
                         .mlp = -1,
                         .distill = -1,
                         .err = err};
        memcpy(b.text_sha, c->text_sha, 65);
        TRY(build(&b, i ? s->name : reverse));
    }
    return KVM_OK;
}

kvm_status kvm_specs_graphs(const kvm_spec *specs, ptrdiff_t count, kvm_arena *keep,
                            kvm_compute *compute, kvm_graphs **graphs, kvm_err *err)
{
    common c = {.keep = keep,
                .compute = compute,
                .sides = kvm_new(keep, shared_side, 2 * count)};
    pair *pairs = kvm_new(keep, pair, count);
    *graphs = kvm_new(keep, kvm_graphs, count);
    if (!c.sides || !pairs || !*graphs) return kvm_nomem(err, keep);
    const kvm_backend *backend = kvm_compute_backend(compute);
    if (kvm_backend_rounds(backend)) {
        c.rounds = kvm_backend_label(backend, keep);
        if (!c.rounds.at) return kvm_nomem(err, keep);
    }
    for (ptrdiff_t i = 0; i < count; i++) {
        pairs[i].spec = &specs[i];
        TRY(open_pair(&c, &pairs[i], err));
    }
    TRY(kvm_spec__check_text(&specs[0], c.text_sha, &c.sequences,
                             pairs[0].side[0]->side.tokenizer, keep, err));
    for (ptrdiff_t i = 0; i < count; i++) TRY(read_needs(&c, &pairs[i], err));
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(graphs_of(&c, &pairs[i], &(*graphs)[i], err));
    return KVM_OK;
}

kvm_status kvm_spec_graphs(const kvm_spec *s, kvm_arena *keep, kvm_compute *c,
                           kvm_graph graphs[2], ptrdiff_t *n, kvm_err *err)
{
    kvm_graphs *both;
    TRY(kvm_specs_graphs(s, 1, keep, c, &both, err));
    memcpy(graphs, both->of, sizeof both->of);
    *n = both->n;
    return KVM_OK;
}
