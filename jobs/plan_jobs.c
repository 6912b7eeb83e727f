/* plan_jobs.c - what every job of a spec's graphs takes: seconds, bytes on disk,
 * memory. What a single job of a kind takes is in <kind>_cost.c (cost.h).
 *
 * Work is counted in flops from the shapes of models and maps, the items as they will
 * be read, arms, rounds and lengths; seconds follow from the machine's two rates. They
 * are estimates: kernels reach the rate of one large product more or less, answers may
 * end before their limit, and where the fit chooses k it may choose a smaller one. */
#include <math.h>
#include <string.h>

#include "jobs/cost.h"

static const double START_S = 0.05; /* a process that opens what it works on */
/* bytes that memory moves while one is hashed, of results and of a job's inputs */
static const double HASHED = 12;
static const double PROCESS_BYTES = 64.0 * 1048576; /* program, libraries, buffers */

static kvm_status cost_of(kvm_planner *a, const kvm_node *n, kvm_cost *c, kvm_err *err)
{
    switch (n->kind) {
#define X(id, NAME, name, version, flags, what)                                        \
    case KVM_JOB_##NAME:                                                               \
        return kvm_cost_##name(a, n, c, err);
#include "jobs/kinds.def"
#undef X
    }
    *c = (kvm_cost){0};
    return KVM_OK;
}

/* seconds of one thread for the hashes of what a job reads and writes */
static double hashed_s(const kvm_planner *a, const kvm_node *n, const double *bytes)
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
static void face(kvm_planner *a, const kvm_node *n, bool reversed)
{
    const kvm_str first = kvm_cost__text(n, "source_path");
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

/* what the ranks of a gang share out */
static const char *shared_out(kvm_kind_id kind)
{
    const int flags = kvm_job_kind_flags(kind);
    return flags & KVM_KIND_LAYERS ? "work or layers"
           : flags & KVM_KIND_GANG ? "work"
                                   : "nothing";
}

static json_t *row_named(json_t *jobs, const char *kind, kvm_kind_id id)
{
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        json_t *row = json_array_get(jobs, i);
        if (!strcmp(json_string_value(json_object_get(row, "kind")), kind)) return row;
    }
    json_t *row = json_pack("{s:s, s:s}", "kind", kind, "ranks_share", shared_out(id));
    json_array_append_new(jobs, row);
    return row;
}

static void add(json_t *jobs, const char *kind, kvm_kind_id id, kvm_cost c)
{
    json_t *row = row_named(jobs, kind, id);
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
                          const kvm_graph *graphs, ptrdiff_t before, ptrdiff_t n,
                          kvm_err *err)
{
    kvm_planner a = {.p = p,
                     .suites = kvm_new(p->keep, kvm_suite_items, KVM_PLAN_SUITES)};
    *jobs = kvm_json_own(p->keep, json_array());
    if (!a.suites || !*jobs) return kvm_nomem(err, p->keep);
    for (ptrdiff_t g = before; g < before + n; g++) {
        a.graph = &graphs[g];
        double *bytes = kvm_new(p->keep, double, graphs[g].count);
        if (!bytes) return kvm_nomem(err, p->keep);
        for (ptrdiff_t i = 0; i < graphs[g].count; i++) {
            const kvm_node *node = &graphs[g].nodes[i];
            kvm_cost c;
            if (done_before(graphs, g, i)) continue;
            face(&a, node, g > before);
            TRY(cost_of(&a, node, &c, err));
            bytes[i] = c.bytes;
            c.seconds += START_S + hashed_s(&a, node, bytes) / p->threads;
            c.memory += PROCESS_BYTES;
            add(*jobs, row_of(&graphs[g], node), node->kind, c);
        }
    }
    *total = kvm_json_own(p->keep, sum(*jobs, p->threads));
    return *total ? KVM_OK : kvm_nomem(err, p->keep);
}
