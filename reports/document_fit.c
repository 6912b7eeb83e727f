/* document_fit.c - the parts of a report document that come from captures and fits. */
#include "reports/document_internal.h"

static void fail(kvm_doc_reader *r, kvm_status s)
{
    if (!r->status) r->status = s;
}

static void read_gates(kvm_doc_reader *r, kvm_jat doc)
{
    static const char *const words[KVM_GATE_VERDICTS] = {"pass", "fail", "unmeasured",
                                                         "inapplicable"};
    const kvm_jat list = kvm_doc__get(r, doc, "gates");
    kvm_gate *gates = kvm_doc__list_at(r, list, sizeof *gates, &r->d->gate_count);
    for (ptrdiff_t i = 0; i < r->d->gate_count; i++) {
        const kvm_jat at = kvm_doc__item(r, list, i);
        kvm_gate *g = &gates[i];
        g->name = kvm_doc__str(r, at, "name");
        g->title = kvm_doc__str(r, at, "title");
        g->need = kvm_doc__str(r, at, "need");
        g->where = kvm_doc__str(r, at, "where");
        g->note = kvm_doc__str(r, at, "note");
        g->value = kvm_doc__est(r, at, "value");
        g->format = kvm_doc__format(r, at);
        g->required = kvm_doc__flag(r, at, "required", true);
        const kvm_str verdict = kvm_doc__str(r, at, "verdict");
        int v = 0;
        while (v < KVM_GATE_VERDICTS && !kvm_str_eq(verdict, kvm_str_of(words[v]))) v++;
        if (v == KVM_GATE_VERDICTS)
            fail(r, kvm_fail(r->err, KVM_FORMAT,
                             "%s: %s.verdict: \"%.*s\"; expected pass, fail, "
                             "unmeasured or inapplicable",
                             at.file, at.path, KVM_STR_ARG(verdict)));
        g->verdict = (kvm_gate_verdict)v;
        if (!g->title.len) g->title = g->name;
    }
    r->d->gates = gates;
}

/* numbers of the layers along an edge of a map; from 0 where the document gives none */
static double *read_edge(kvm_doc_reader *r, kvm_jat at, const char *key, ptrdiff_t n)
{
    const kvm_numbers given = kvm_doc__layers(r, at, key);
    if (given.n) {
        kvm_doc__length(r, at, key, given.n, n);
        return given.at;
    }
    double *from_0 = kvm_new(r->keep, double, n);
    if (n && !from_0) fail(r, kvm_nomem(r->err, r->keep));
    for (ptrdiff_t i = 0; from_0 && i < n; i++) from_0[i] = (double)i;
    return from_0;
}

static void read_map(kvm_doc_reader *r, kvm_r2_map *m, kvm_jat at)
{
    m->title = kvm_doc__str(r, at, "title");
    if (!m->title.len) m->title = kvm_doc__str(r, at, "object");
    const kvm_jat list = kvm_doc__get(r, at, "r2");
    kvm_numbers *rows = kvm_doc__list_at(r, list, sizeof *rows, &m->rows);
    for (ptrdiff_t i = 0; i < m->rows && !r->status; i++) {
        const kvm_jat row = kvm_json_item(list, r->keep, i);
        rows[i] = kvm_doc__numbers_at(r, row);
        if (i) kvm_doc__length(r, row, "[]", rows[i].n, rows[0].n);
    }
    m->cols = m->rows && !r->status ? rows[0].n : 0;
    m->source = read_edge(r, at, "source_layers", m->rows);
    m->target = read_edge(r, at, "target_layers", m->cols);
    m->r2 = kvm_arena_alloc(r->keep, sizeof *m->r2 * (size_t)(m->cols ? m->cols : 1),
                            64, m->rows);
    if (m->rows && !m->r2) fail(r, kvm_nomem(r->err, r->keep));
    for (ptrdiff_t i = 0; i < m->rows && !r->status; i++)
        for (ptrdiff_t j = 0; j < m->cols; j++) m->r2[i * m->cols + j] = rows[i].at[j];
}

static void read_greedy(kvm_doc_reader *r, kvm_greedy *g, kvm_jat at)
{
    g->title = kvm_doc__str(r, at, "title");
    if (!g->title.len) g->title = kvm_doc__str(r, at, "object");
    const kvm_jat list = kvm_doc__get(r, at, "layers");
    g->layers = kvm_doc__list_at(r, list, sizeof *g->layers, &g->count);
    for (ptrdiff_t i = 0; i < g->count; i++) {
        const kvm_jat layer = kvm_doc__item(r, list, i);
        g->layers[i].target = kvm_doc__layer(r, layer, "target", i);
        g->layers[i].order = kvm_doc__numbers(r, layer, "order");
        g->layers[i].r2 = kvm_doc__numbers(r, layer, "r2");
    }
}

static void read_sweep(kvm_doc_reader *r, kvm_sweep *s, kvm_jat at, const char *knob)
{
    s->knob = kvm_doc__numbers(r, at, knob);
    const kvm_jat list = kvm_doc__get(r, at, "series");
    s->titles = kvm_doc__list_at(r, list, sizeof *s->titles, &s->count);
    s->chosen = kvm_doc__list_at(r, list, sizeof *s->chosen, &s->count);
    s->r2 = kvm_doc__list_at(r, list, sizeof *s->r2, &s->count);
    for (ptrdiff_t i = 0; i < s->count; i++) {
        const kvm_jat item = kvm_doc__item(r, list, i);
        s->titles[i] = kvm_doc__str(r, item, "title");
        s->chosen[i] = kvm_doc__num(r, item, "chosen");
        s->r2[i] = kvm_doc__numbers(r, item, "r2");
        kvm_doc__length(r, item, "r2", s->r2[i].n, s->knob.n);
    }
    const kvm_jat absolute = kvm_doc__get(r, at, "absolute");
    s->absolute = kvm_doc__num(r, absolute, "lambda");
    s->absolute_at = kvm_doc__num(r, absolute, "relative");
    s->absolute_r2 = kvm_doc__numbers(r, absolute, "r2");
    if (s->absolute_r2.n)
        kvm_doc__length(r, absolute, "r2", s->absolute_r2.n, s->count);
}

static void read_group(kvm_doc_reader *r, kvm_linear_group *g, kvm_jat at)
{
    const kvm_jat maps = kvm_doc__get(r, at, "maps");
    const kvm_jat greedy = kvm_doc__get(r, at, "greedy");
    g->title = kvm_doc__str(r, at, "title");
    g->how = kvm_doc__str(r, at, "how");
    g->maps = kvm_doc__list_at(r, maps, sizeof *g->maps, &g->map_count);
    for (ptrdiff_t i = 0; i < g->map_count; i++)
        read_map(r, &g->maps[i], kvm_doc__item(r, maps, i));
    g->greedy = kvm_doc__list_at(r, greedy, sizeof *g->greedy, &g->greedy_count);
    for (ptrdiff_t i = 0; i < g->greedy_count; i++)
        read_greedy(r, &g->greedy[i], kvm_doc__item(r, greedy, i));
    read_sweep(r, &g->k, kvm_doc__get(r, at, "k"), "k");
    read_sweep(r, &g->lambda, kvm_doc__get(r, at, "lambda"), "lambda");
}

static void read_linearity(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat list = kvm_doc__get(r, kvm_doc__get(r, doc, "linearity"), "groups");
    r->d->groups = kvm_doc__list_at(r, list, sizeof *r->d->groups, &r->d->group_count);
    for (ptrdiff_t i = 0; i < r->d->group_count; i++)
        read_group(r, &r->d->groups[i], kvm_doc__item(r, list, i));
}

/* an R2 for every object of the section; room for all where the row has none */
static kvm_est *read_r2(kvm_doc_reader *r, kvm_jat row, const char *key)
{
    const ptrdiff_t all = r->d->layer_object_count;
    const kvm_jat list = kvm_doc__get(r, row, key);
    ptrdiff_t n;
    kvm_est *out = kvm_doc__list_at(r, list, sizeof *out, &n);
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = kvm_doc__est_at(r, kvm_json_item(list, r->keep, i));
    if (n) {
        kvm_doc__length(r, row, key, n, all);
        return out;
    }
    out = kvm_new(r->keep, kvm_est, all);
    if (all && !out) fail(r, kvm_nomem(r->err, r->keep));
    for (ptrdiff_t i = 0; out && i < all; i++) out[i] = kvm_est_missing(KVM_STR(""));
    return out;
}

static void read_layer_set(kvm_doc_reader *r, kvm_layer_set *out, kvm_jat set)
{
    out->arm = kvm_doc__arm(r, set, kvm_doc__str(r, set, "arm"));
    const kvm_jat rows = kvm_doc__get(r, set, "rows");
    out->rows = kvm_doc__list_at(r, rows, sizeof *out->rows, &out->count);
    for (ptrdiff_t j = 0; j < out->count; j++) {
        const kvm_jat at = kvm_doc__item(r, rows, j);
        out->rows[j] = (kvm_layer_row){
            .layer = kvm_doc__layer(r, at, "layer", j),
            .r2 = read_r2(r, at, "r2"),
            .r2_fit = read_r2(r, at, "r2_fit"),
            .cosine = kvm_doc__est(r, at, "cosine"),
            .c_k = kvm_doc__est(r, at, "c_k"),
            .c_v = kvm_doc__est(r, at, "c_v"),
        };
    }
}

static void read_layers(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "layers");
    const kvm_jat objects = kvm_doc__get(r, at, "objects");
    const kvm_jat sets = kvm_doc__get(r, at, "arms");
    kvm_object_name *names =
        kvm_doc__list_at(r, objects, sizeof *names, &r->d->layer_object_count);
    for (ptrdiff_t i = 0; i < r->d->layer_object_count; i++) {
        const kvm_jat object = kvm_doc__item(r, objects, i);
        names[i].key = kvm_doc__str(r, object, "object");
        names[i].title = kvm_doc__str(r, object, "title");
        if (!names[i].title.len) names[i].title = names[i].key;
    }
    r->d->layer_objects = names;
    r->d->layers = kvm_doc__list_at(r, sets, sizeof *r->d->layers, &r->d->layer_count);
    for (ptrdiff_t i = 0; i < r->d->layer_count; i++)
        read_layer_set(r, &r->d->layers[i], kvm_doc__item(r, sets, i));
}

void kvm_doc__fit(kvm_doc_reader *r, kvm_jat doc)
{
    read_gates(r, doc);
    read_linearity(r, doc);
    read_layers(r, doc);
}
