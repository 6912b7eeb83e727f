#include "scheduler/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "schema/fault.h"
#include "schema/fleet.h"

static const double FORGET_S = 600;  /* a stream of workers that do not come back */
static const double SETTLED_S = 0.5; /* what was sent just now is in its stream */
enum { AT_ONCE = 8 };                /* batches that one transaction marks */

/* ---- who is there ---- */

static void add_class(kvm_dispatch *d, kvm_str name, const kvm_fleet_workers *w)
{
    for (ptrdiff_t i = 0; i < d->count; i++) {
        const kvm_queue_class *c = &d->classes[i].class;
        if (kvm_str_eq(c->name, name) && c->ranks == w->ranks &&
            c->memory_mib == w->memory_mib) {
            d->classes[i].workers += w->count;
            return;
        }
    }
    if (d->count == KVM_DISPATCH_CLASSES) return;
    d->classes[d->count++] = (kvm_dispatch_class){
        .class = {name, w->ranks, w->memory_mib}, .workers = w->count};
}

kvm_status kvm_dispatch_look(kvm_dispatch *d, double silent_s, kvm_err *err)
{
    kvm_fleet_workers *all;
    ptrdiff_t n;
    kvm_arena_reset(&d->names);
    d->count = 0;
    TRY(kvm_fleet_look(d->catalogue, silent_s, &all, &n, &d->names, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_str name, rest = all[i].classes;
        while (rest.len > 0) {
            kvm_str_cut(rest, ' ', &name, &rest);
            if (name.len > 0) add_class(d, name, &all[i]);
        }
    }
    return KVM_OK;
}

/* ---- ready jobs ---- */

/* A mark that is lost is made again; it is no claim, the token stays as it is. */
static kvm_status mark(kvm_dispatch *d, const kvm_want *want, kvm_job_batch *batches,
                       ptrdiff_t most, ptrdiff_t *n, kvm_err *err)
{
    TRY(kvm_catalogue_unsynced(d->catalogue, err));
    TRY(kvm_jobs_next(d->catalogue, want, batches, most, n, err));
    for (ptrdiff_t i = 0; i < *n; i++)
        TRY(kvm_jobs_dispatched(d->catalogue, &batches[i], err));
    return KVM_OK;
}

static kvm_status mark_some(kvm_dispatch *d, const kvm_want *want,
                            kvm_job_batch *batches, ptrdiff_t most, ptrdiff_t *n,
                            kvm_err *err)
{
    TRY(kvm_catalogue_begin(d->catalogue, err));
    const kvm_status s = mark(d, want, batches, most, n, err);
    if (!s && *n > 0) return kvm_catalogue_commit(d->catalogue, err);
    kvm_catalogue_rollback(d->catalogue);
    return s;
}

static kvm_status fill(kvm_dispatch *d, const kvm_dispatch_class *c,
                       kvm_job_batch *batches, int64_t *jobs, kvm_err *err)
{
    const kvm_want want = {.classes = {c->class.name},
                           .class_count = 1,
                           .ranks = c->class.ranks,
                           .memory_mib = c->class.memory_mib,
                           .unsent = true};
    ptrdiff_t waiting, n = AT_ONCE;
    TRY(kvm_queue_waiting(d->queue, &c->class, &waiting, err));
    const bool small = kvm_str_eq(c->class.name, KVM_STR("small"));
    const int64_t window =
        2 * c->workers + (small ? KVM_DISPATCH_SPARE_SMALL : KVM_DISPATCH_SPARE);
    int64_t room = 2 * waiting > window ? 0 : window - waiting;
    for (; room > 0 && n == AT_ONCE; room -= n) {
        const ptrdiff_t most = room < AT_ONCE ? (ptrdiff_t)room : AT_ONCE;
        TRY(mark_some(d, &want, batches, most, &n, err));
        kvm_fault(KVM_FAULT_BEFORE_SEND);
        TRY(kvm_queue_send(d->queue, &c->class, batches, n, err));
        kvm_fault(KVM_FAULT_AFTER_SEND);
        for (ptrdiff_t i = 0; i < n; i++) *jobs += batches[i].count;
    }
    return KVM_OK;
}

/* A key of another type keeps one class from its hints, whose workers then look by
 * themselves, and no other class. */
static kvm_status or_broken(kvm_dispatch *d, kvm_dispatch_class *c, kvm_status s,
                            const kvm_err *why, kvm_err *err)
{
    c->broken = s == KVM_MISMATCH;
    if (c->broken) kvm_log_trouble(&d->trouble, "queue.broken", 0, why->msg);
    if (!s || c->broken) return KVM_OK;
    if (err && !err->code) *err = *why;
    return s;
}

kvm_status kvm_dispatch_ready(kvm_dispatch *d, int64_t *jobs, kvm_err *err)
{
    kvm_arena scratch = d->scratch;
    kvm_job_batch *batches = kvm_new(&scratch, kvm_job_batch, AT_ONCE);
    if (!batches) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < d->count; i++) {
        kvm_err why = {0};
        kvm_dispatch_class *c = &d->classes[i];
        TRY(or_broken(d, c, fill(d, c, batches, jobs, &why), &why, err));
    }
    return KVM_OK;
}

/* ---- hints that went astray ---- */

/* a text's bytes are fences, one after another */
static kvm_status there(void *ctx, const kvm_job_batch *b, kvm_err *err)
{
    kvm_text *all = ctx;
    kvm_text_add(
        all, (kvm_str){(const char *)b->jobs, b->count * (ptrdiff_t)sizeof *b->jobs});
    return all->failed ? kvm_fail(err, KVM_NOMEM, "out of memory") : KVM_OK;
}

static int by_job(const void *a, const void *b)
{
    const kvm_fence *x = a, *y = b;
    if (x->job != y->job) return x->job < y->job ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static bool fits(const kvm_queue_class *c, const kvm_fleet_sent *j)
{
    return kvm_str_eq(c->name, j->class) && c->ranks >= j->ranks &&
           (c->memory_mib == 0 || c->memory_mib >= j->memory_mib);
}

static kvm_status send_again(kvm_dispatch *d, const kvm_queue_class *c,
                             kvm_job_batch *b, int64_t *jobs, kvm_err *err)
{
    if (b->count == 0) return KVM_OK;
    TRY(kvm_jobs_dispatched(d->catalogue, b, err));
    TRY(kvm_queue_send(d->queue, c, b, 1, err));
    *jobs += b->count;
    b->count = 0;
    return KVM_OK;
}

/* Small jobs go together, as they did. A job that no worker here can do stays as it is:
 * who comes will look. done[i]: has its place. */
static kvm_status send_missing(kvm_dispatch *d, const kvm_queue_class *c,
                               const kvm_fleet_sent *sent, bool *done, ptrdiff_t n,
                               int64_t *jobs, kvm_err *err)
{
    kvm_job_batch b = {0};
    const ptrdiff_t most = kvm_str_eq(c->name, KVM_STR("small")) ? KVM_BATCH_MOST : 1;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (done[i] || !fits(c, &sent[i])) continue;
        done[i] = true;
        b.jobs[b.count++] = sent[i].fence;
        if (b.count == most) TRY(send_again(d, c, &b, jobs, err));
    }
    return send_again(d, c, &b, jobs, err);
}

static kvm_status audit(kvm_dispatch *d, double idle_s, kvm_text *found, int64_t *jobs,
                        kvm_err *err)
{
    kvm_arena scratch = d->scratch;
    kvm_queue_class live[KVM_DISPATCH_CLASSES];
    kvm_fleet_sent *sent;
    ptrdiff_t n;
    for (ptrdiff_t i = 0; i < d->count; i++) {
        kvm_err why = {0};
        live[i] = d->classes[i].class;
        const kvm_status s =
            kvm_queue_audit(d->queue, &live[i], idle_s, there, found, &why);
        TRY(or_broken(d, &d->classes[i], s, &why, err));
    }
    TRY(kvm_queue_forget(d->queue, live, d->count, FORGET_S, err));
    TRY(kvm_fleet_unclaimed(d->catalogue, SETTLED_S, &sent, &n, &scratch, err));
    bool *done = kvm_new(&scratch, bool, n + 1);
    if (!done) return kvm_nomem(err, &scratch);
    const size_t count = (size_t)found->len / sizeof(kvm_fence);
    if (count) qsort(found->at, count, sizeof(kvm_fence), by_job);
    for (ptrdiff_t i = 0; i < n && count; i++)
        done[i] = bsearch(&sent[i].fence, found->at, count, sizeof(kvm_fence), by_job);
    for (ptrdiff_t i = 0; i < d->count; i++)
        if (!d->classes[i].broken)
            TRY(send_missing(d, &live[i], sent, done, n, jobs, err));
    return KVM_OK;
}

kvm_status kvm_dispatch_audit(kvm_dispatch *d, double idle_s, int64_t *jobs,
                              kvm_err *err)
{
    kvm_text found = {0};
    const kvm_status s = audit(d, idle_s, &found, jobs, err);
    kvm_text_free(&found);
    return s;
}
