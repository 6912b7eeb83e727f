/* commit.c - from a finished child to committed results.
 *
 * First every output is made durable and hashed where it lies (slow; the heartbeat goes
 * on), then all are renamed into the store (fast), then one transaction names them and
 * makes the jobs of the batch succeeded. A worker that dies in between leaves files
 * nobody names, or nothing.
 *
 * A server may commit and its answer be lost (KVM_BUSY, schema/db.h). What is insisted
 * on here bears that: ends are fenced, so the second try finds the attempts ended and
 * says that they are lost. Nothing is done twice; the worker only does not know that it
 * was itself who won, and a next one removes the folders. Elsewhere: a claim nobody
 * heard of is held by nobody and runs out with its lease; renewing and reaping may be
 * repeated; a submission finds its run by the key. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "schema/fault.h"
#include "workers/machine.h"
#include "workers/worker_internal.h"

/* An output must be a file below the job's own folder: it is about to be moved away. */
static kvm_status check_path(const kvm_work *k, const kvm_recorded_output *o,
                             kvm_err *err)
{
    const kvm_str in = kvm_str_slice(o->path, k->dir.len, o->path.len);
    if (kvm_str_starts(o->path, k->dir) && in.len > 1 && in.at[0] == '/' &&
        kvm_str_find(in, KVM_STR("/../")) < 0)
        return KVM_OK;
    return kvm_fail(err, KVM_INTERNAL, "output %.*s: %.*s is not in the job's folder",
                    KVM_STR_ARG(o->name), KVM_STR_ARG(o->path));
}

static kvm_status hash_outputs(kvm_worker *w, kvm_work *k, kvm_err *err)
{
    const kvm_records *r = &k->records;
    kvm_result_artefact *all =
        kvm_new(&w->mem, kvm_result_artefact, r->output_count + 1);
    if (!all) return kvm_nomem(err, &w->mem);
    for (ptrdiff_t i = 0; i < r->output_count; i++) {
        const kvm_recorded_output *o = &r->outputs[i];
        char sha[65];
        for (ptrdiff_t n = 0; n < i; n++)
            if (kvm_str_eq(o->name, r->outputs[n].name))
                return kvm_fail(err, KVM_INTERNAL, "output %.*s was declared twice",
                                KVM_STR_ARG(o->name));
        TRY(check_path(k, o, err));
        TRY(kvm_store_hash(w->store, o->path, sha, &all[i].bytes, err));
        all[i].name = o->name;
        all[i].sha = kvm_str_copy(&w->mem, kvm_str_of(sha));
        if (!all[i].sha.at) return kvm_nomem(err, &w->mem);
    }
    k->records.result.artefacts = all;
    k->records.result.artefact_count = r->output_count;
    return KVM_OK;
}

/* A timing's key holds the machine and the backend it was measured on. */
static kvm_status timed_key(kvm_worker *w, kvm_work *k, kvm_err *err)
{
    const kvm_claim *c = &k->claim;
    char key[65];
    const char *backend;
    kvm_jat params, identity;
    TRY(kvm_child__backend(&backend, w, c, &w->mem, err));
    const kvm_str machine = strcmp(backend, w->o.backend) != 0
                                ? kvm_machine_class(&w->mem, backend)
                                : w->o.machine;
    kvm_job_input *in = kvm_new(&w->mem, kvm_job_input, c->input_count + 1);
    if (!in || !machine.at) return kvm_nomem(err, &w->mem);
    for (ptrdiff_t i = 0; i < c->input_count; i++)
        in[i] =
            (kvm_job_input){.name = c->inputs[i].name.at, .sha = c->inputs[i].sha.at};
    TRY(kvm_json_parse(&params, &w->mem, c->params, c->label, err));
    TRY(kvm_json_parse(&identity, &w->mem, c->identity, c->label, err));
    TRY(kvm_job_key(key, (kvm_kind_id)c->kind, params.v, identity.v, in, c->input_count,
                    machine, w->mem, err));
    k->records.result.key = kvm_str_copy(&w->mem, kvm_str_of(key));
    return k->records.result.key.at ? KVM_OK : kvm_nomem(err, &w->mem);
}

kvm_status kvm_commit__hash(kvm_worker *w, kvm_work *k, kvm_err *err)
{
    TRY(hash_outputs(w, k, err));
    return k->claim.timed ? timed_key(w, k, err) : KVM_OK;
}

/* Whoever has the job now has its folder too. */
static kvm_status still_ours(const kvm_load *l, ptrdiff_t place, kvm_err *err)
{
    if (atomic_load(&l->beat.lease[place]) != KVM_LEASE_LOST &&
        kvm_beat__left(&l->beat) > 0)
        return KVM_OK;
    return kvm_fail(err, KVM_LOST, "job %lld: the lease ended while it was published",
                    (long long)l->works[place].claim.fence.job);
}

kvm_status kvm_commit__publish(kvm_worker *w, const kvm_load *l, ptrdiff_t place,
                               kvm_err *err)
{
    const kvm_records *r = &l->works[place].records;
    for (ptrdiff_t i = 0; i < r->output_count; i++) {
        TRY(still_ours(l, place, err));
        TRY(kvm_store_put(w->store, r->outputs[i].path, r->result.artefacts[i].sha.at,
                          r->result.artefacts[i].bytes, err));
    }
    return still_ours(l, place, err);
}

/* ---- the transaction ---- */

/* KVM_NOTFOUND: swept, or deleted by a person */
static kvm_status check_objects(kvm_worker *w, const kvm_result *r, kvm_err *err)
{
    for (ptrdiff_t i = 0; r && i < r->artefact_count; i++) {
        const kvm_result_artefact *a = &r->artefacts[i];
        bool there;
        TRY(kvm_store_look(w->store, a->sha.at, a->bytes, &there, err));
        if (!there)
            return kvm_fail(err, KVM_NOTFOUND, "output %.*s has gone from the store",
                            KVM_STR_ARG(a->name));
    }
    return KVM_OK;
}

/* No sweep can come between the look at the objects and the commit that names them. */
static kvm_status end_all(kvm_worker *w, kvm_ending *e, ptrdiff_t count, kvm_err *err)
{
    kvm_end ends[KVM_BATCH_MOST];
    bool lost[KVM_BATCH_MOST];
    bool names = false;
    for (ptrdiff_t i = 0; i < count; i++) {
        ends[i] = e[i].end;
        names = names || e[i].end.how == KVM_END_SUCCEED;
        if (e[i].end.how == KVM_END_SKIP) kvm_fault(KVM_FAULT_IN_SKIP);
    }
    if (names) TRY(kvm_catalogue_hold(w->catalogue, KVM_HOLD_OBJECTS, true, err));
    for (ptrdiff_t i = 0; i < count; i++)
        if (ends[i].how == KVM_END_SUCCEED) TRY(check_objects(w, ends[i].result, err));
    TRY(kvm_jobs_end(w->catalogue, ends, count, lost, &w->o.policy, err));
    for (ptrdiff_t i = 0; i < count; i++) e[i].lost = lost[i];
    return KVM_OK;
}

static kvm_status try_to_end(kvm_worker *w, kvm_ending *e, ptrdiff_t count,
                             kvm_err *err)
{
    TRY(kvm_catalogue_begin(w->catalogue, err));
    const kvm_status s = end_all(w, e, count, err);
    if (!s) return kvm_catalogue_commit(w->catalogue, err);
    kvm_catalogue_rollback(w->catalogue);
    return s;
}

kvm_status kvm_commit__ends(kvm_worker *w, const kvm_load *l, kvm_ending *e,
                            ptrdiff_t count, kvm_err *err)
{
    const long long job = (long long)e->end.fence.job;
    kvm_trouble told = {0};
    double full = 0;
    for (;;) {
        kvm_err mine = {0};
        const kvm_status s = try_to_end(w, e, count, &mine);
        const bool again = kvm_status_action(s) == KVM_RETRY &&
                           kvm_beat__left(&l->beat) > w->o.lease_s / 6 &&
                           kvm_worker__drains() < 2;
        if (s == KVM_NOSPACE && again) { /* told once, by the worker's end */
            if (full <= 0) full = kvm_now();
            w->full = w->full || kvm_now() - full > KVM_FULL_S;
        }
        if (!again || (s == KVM_NOSPACE && w->full)) {
            kvm_log_relief(&told, "commit.again", job);
            if (err && s && !err->code) *err = mine;
            return s;
        }
        if (s != KVM_NOSPACE) kvm_log_trouble(&told, "commit.again", job, mine.msg);
        kvm_sleep(0.2);
    }
}
