#include "scheduler/submit.h"

#include <string.h>

#include "base/hash.h"
#include "schema/fault.h"
#include "schema/retention.h"

/* A graph as jobs: canonical texts, checked wiring. */
typedef struct plan {
    kvm_job_new *jobs;
    char key[65]; /* of the run */
    bool timed;
} plan;

static kvm_status canonical(kvm_str *out, const json_t *v, kvm_arena *a, kvm_err *err)
{
    if (v) return kvm_json_canonical(out, a, v, err);
    *out = KVM_STR("{}");
    return KVM_OK;
}

static kvm_status check_inputs(const kvm_graph *g, ptrdiff_t i, kvm_err *err)
{
    const kvm_node *n = &g->nodes[i];
    for (ptrdiff_t k = 0; k < n->input_count; k++) {
        if (n->inputs[k].node < 0 || n->inputs[k].node >= i)
            return kvm_fail(err, KVM_FORMAT,
                            "step %td (%.*s): its input %s comes from step %td, which "
                            "is not before it",
                            i, KVM_STR_ARG(n->label), n->inputs[k].name,
                            n->inputs[k].node);
        for (ptrdiff_t m = 0; m < k; m++)
            if (!strcmp(n->inputs[m].name, n->inputs[k].name))
                return kvm_fail(err, KVM_FORMAT,
                                "step %td (%.*s): two inputs are named %s", i,
                                KVM_STR_ARG(n->label), n->inputs[k].name);
    }
    return KVM_OK;
}

static kvm_status plan_node(plan *p, const kvm_graph *g, ptrdiff_t i,
                            const kvm_submit_options *o, kvm_arena *a, kvm_err *err)
{
    const kvm_node *n = &g->nodes[i];
    const int flags = kvm_job_kind_flags(n->kind);
    const char *kind = kvm_job_kind_name(n->kind);
    if (!kind)
        return kvm_fail(err, KVM_NOTFOUND, "step %td is of the unknown kind %d", i,
                        (int)n->kind);
    TRY(check_inputs(g, i, err));
    kvm_job_dep *deps = kvm_new(a, kvm_job_dep, n->input_count + 1);
    if (!deps) return kvm_nomem(err, a);
    for (ptrdiff_t k = 0; k < n->input_count; k++)
        deps[k] = (kvm_job_dep){.input = kvm_str_of(n->inputs[k].name),
                                .needs = n->inputs[k].node,
                                .output = kvm_str_of(n->inputs[k].output)};
    p->jobs[i] =
        (kvm_job_new){.kind = (int)n->kind,
                      .kind_name = kind,
                      .version = kvm_job_kind_version(n->kind),
                      .timed = (flags & KVM_KIND_TIMED) != 0,
                      .class = flags & KVM_KIND_SMALL ? "small" : "cpu",
                      .ranks = flags & KVM_KIND_GANG && o->ranks > 1 ? o->ranks : 1,
                      .priority = o->priority,
                      .label = n->label,
                      .deps = deps,
                      .dep_count = n->input_count};
    p->timed = p->timed || p->jobs[i].timed;
    TRY(canonical(&p->jobs[i].params, n->params, a, err));
    return canonical(&p->jobs[i].identity, n->identity, a, err);
}

/* Each text goes in with its length, so that no two graphs read alike. */
static void hash_text(kvm_text *t, kvm_str s)
{
    kvm_text_addf(t, "%td:", s.len);
    kvm_text_add(t, s);
}

/* Teams go on with their own runs; their equal steps are skipped all the same. Keys of
 * the team that is meant when none is named were made before there were others. */
static kvm_status run_key(plan *p, const kvm_graph *g, const kvm_submit_options *o,
                          kvm_err *err)
{
    kvm_text t = {0};
    hash_text(&t, g->pair);
    hash_text(&t, g->spec);
    hash_text(&t, p->timed ? o->machine : KVM_STR(""));
    if (!kvm_str_eq(o->team, KVM_STR("default"))) hash_text(&t, o->team);
    for (ptrdiff_t i = 0; i < g->count; i++) {
        const kvm_job_new *j = &p->jobs[i];
        kvm_text_addf(&t, "\n%s %d ", j->kind_name, j->version);
        hash_text(&t, j->params);
        hash_text(&t, j->identity);
        for (ptrdiff_t k = 0; k < j->dep_count; k++) {
            kvm_text_addf(&t, " %lld ", (long long)j->deps[k].needs);
            hash_text(&t, j->deps[k].input);
            hash_text(&t, j->deps[k].output);
        }
    }
    const kvm_status s = t.failed ? kvm_fail(err, KVM_NOMEM, "out of memory")
                                  : kvm_sha_of(kvm_text_str(&t), p->key, err);
    kvm_text_free(&t);
    return s;
}

static kvm_status make_plan(plan *p, const kvm_graph *g, const kvm_submit_options *o,
                            kvm_arena *a, kvm_err *err)
{
    *p = (plan){.jobs = kvm_new(a, kvm_job_new, g->count + 1)};
    if (!p->jobs) return kvm_nomem(err, a);
    if (g->count == 0)
        return kvm_fail(err, KVM_FORMAT, "pair %.*s: the graph has no steps",
                        KVM_STR_ARG(g->pair));
    for (ptrdiff_t i = 0; i < g->count; i++) TRY(plan_node(p, g, i, o, a, err));
    return run_key(p, g, o, err);
}

/* A finished run counts as done while every artefact of it is in the store, but for
 * those whose time was over; others go on while none is missing. */
static kvm_status still_there(kvm_catalogue *c, kvm_store *store, int64_t run,
                              kvm_run_state state, bool *yes, kvm_arena scratch,
                              kvm_err *err)
{
    kvm_result_artefact *all;
    ptrdiff_t n = 0;
    if (state != KVM_RUN_SUCCEEDED) {
        bool expired = false;
        TRY(kvm_run_expired(c, run, &expired, err));
        *yes = !expired;
        return KVM_OK;
    }
    TRY(kvm_run_artefacts(c, run, &all, &n, &scratch, err));
    *yes = true;
    for (ptrdiff_t i = 0; i < n && *yes; i++)
        TRY(kvm_store_look(store, all[i].sha.at, all[i].bytes, yes, err));
    return KVM_OK;
}

static kvm_status insert_all(kvm_catalogue *c, const plan *p, const kvm_graph *g,
                             const kvm_submit_options *o, int64_t *run,
                             kvm_arena scratch, kvm_err *err)
{
    int64_t *ids = kvm_new(&scratch, int64_t, g->count);
    if (!ids) return kvm_nomem(err, &scratch);
    const kvm_run_new r = {.team = o->team,
                           .pair = g->pair,
                           .spec = g->spec,
                           .key = p->key,
                           .priority = o->priority,
                           .file = o->file};
    TRY(kvm_run_insert(c, &r, run, err));
    for (ptrdiff_t i = 0; i < g->count; i++) {
        kvm_job_new j = p->jobs[i];
        kvm_arena a = scratch;
        kvm_job_dep *deps = kvm_new(&a, kvm_job_dep, j.dep_count + 1);
        if (!deps) return kvm_nomem(err, &a);
        for (ptrdiff_t k = 0; k < j.dep_count; k++) {
            deps[k] = j.deps[k];
            deps[k].needs = ids[j.deps[k].needs];
        }
        j.run = *run;
        j.deps = deps;
        TRY(kvm_job_insert(c, &j, &ids[i], err));
    }
    kvm_fault(KVM_FAULT_IN_SUBMIT);
    return KVM_OK;
}

static kvm_status record_models(kvm_catalogue *c, const kvm_graph *g, kvm_err *err)
{
    for (int i = 0; i < 2; i++) {
        const kvm_graph_model *m = &g->models[i];
        if (!m->fingerprint) continue;
        const kvm_model_new row = {m->name,       m->family,        m->fingerprint,
                                   m->config_sha, m->tokenizer_sha, m->weights_sha};
        TRY(kvm_model_record(c, &row, err));
    }
    return KVM_OK;
}

static kvm_status submit(kvm_catalogue *c, kvm_store *store, const plan *p,
                         const kvm_graph *g, const kvm_submit_options *o,
                         kvm_submitted *out, kvm_arena scratch, kvm_err *err)
{
    int64_t run = 0;
    kvm_run_state state = KVM_RUN_OPEN;
    TRY(kvm_run_hold(c, p->key, err));
    if (!o->again) TRY(kvm_run_find(c, p->key, &run, &state, err));
    if (o->again && o->tick.len)
        TRY(kvm_run_fired(c, p->key, o->tick, &run, &state, err));
    bool there = true;
    if (run) TRY(still_there(c, store, run, state, &there, scratch, err));
    out->jobs = g->count;
    out->run = run;
    if (!run || !there) {
        out->outcome = KVM_SUBMIT_NEW;
        TRY(insert_all(c, p, g, o, &out->run, scratch, err));
        if (o->tick.len) TRY(kvm_run_fire(c, out->run, o->tick, err));
    } else if (state == KVM_RUN_SUCCEEDED) {
        out->outcome = KVM_SUBMIT_DONE;
    } else {
        out->outcome = KVM_SUBMIT_RESUMED;
        for (ptrdiff_t i = 0; i < g->count; i++)
            TRY(kvm_run_ranks(c, run, p->jobs[i].kind, p->jobs[i].ranks, err));
        TRY(kvm_run_retry(c, run, &out->retried, err));
    }
    TRY(record_models(c, g, err));
    return kvm_run_current(c, out->run, o->file, &out->stale, err);
}

/* One transaction from the look to the last row, and one at a time for each key: of two
 * who submit the same graph at once, the second finds the first one's run. */
kvm_status kvm_submit(kvm_catalogue *c, kvm_store *store, const kvm_graph *g,
                      const kvm_submit_options *options, kvm_submitted *out,
                      kvm_arena scratch, kvm_err *err)
{
    kvm_submit_options o = options ? *options : (kvm_submit_options){0};
    if (!o.team.len) o.team = KVM_STR("default");
    kvm_submitted done = {0};
    plan p;
    TRY(make_plan(&p, g, &o, &scratch, err));
    TRY(kvm_catalogue_begin(c, err));
    const kvm_status s = submit(c, store, &p, g, &o, &done, scratch, err);
    if (s) {
        kvm_catalogue_rollback(c);
        return s;
    }
    TRY(kvm_catalogue_commit(c, err));
    kvm_fault(KVM_FAULT_AFTER_SUBMIT);
    *out = done;
    return KVM_OK;
}
