/* settle.c - what becomes of the jobs of a batch when their child has ended.
 *
 *   its records have a verdict ──► well: publish, succeed (or skip)   else: fail
 *   none, and the child was at it ──► crash     none, and it was not ──► release
 *   its lease is gone ──► nothing is written and none of its files touched
 *
 * All ends are one transaction. When that cannot be (one of them has a result that the
 * catalogue refuses, or was cancelled just now), each is one of its own. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/os.h"
#include "schema/fault.h"
#include "workers/worker_internal.h"

/* What is known of the batch when its child has ended. */
typedef struct verdicts {
    kvm_worker *w;
    kvm_load *l;
    kvm_child_end end;
    const char *how;
    const kvm_err *failed; /* there was no child; or NULL */
    ptrdiff_t culprit;     /* the job that the child ended at; -1: none */
    kvm_err trouble;       /* why the child left no verdict */
    kvm_str records;       /* of all jobs that were begun, in their order */
} verdicts;

/* ---- notes ---- */

static void count(kvm_worker_stats *s, kvm_worker_what what)
{
    switch (what) {
    case KVM_WORKER_START:
    case KVM_WORKER_DRAIN:
        break;
    case KVM_WORKER_SUCCEED:
        s->succeeded++;
        break;
    case KVM_WORKER_SKIP:
        s->skipped++;
        break;
    case KVM_WORKER_RETRY:
        s->retried++;
        break;
    case KVM_WORKER_FAIL:
        s->failed++;
        break;
    case KVM_WORKER_CANCEL:
        s->cancelled++;
        break;
    case KVM_WORKER_LOST:
        s->lost++;
        break;
    case KVM_WORKER_RELEASE:
        s->released++;
        break;
    }
}

void kvm_worker__note(kvm_worker *w, const kvm_work *k, kvm_worker_what what,
                      const char *message)
{
    count(&w->stats, what);
    if (!w->o.note) return;
    const kvm_worker_note n = {.what = what,
                               .run = k->claim.run,
                               .job = k->claim.fence.job,
                               .attempt = k->claim.attempt,
                               .kind = (kvm_kind_id)k->claim.kind,
                               .label = k->claim.label,
                               .seconds = kvm_now() - k->started,
                               .message = message,
                               .log = k->claim.log};
    w->o.note(w->o.note_ctx, &n);
}

/* ---- one job's end ---- */

static kvm_phase phase_of(const verdicts *v, ptrdiff_t i)
{
    if (v->failed) return KVM_PHASE_WAITS;
    return (kvm_phase)atomic_load(&v->w->shared->phase[i]);
}

/* The job that it was at; of a child that died before it began one, the next. */
static ptrdiff_t find_culprit(const verdicts *v)
{
    for (ptrdiff_t i = 0; i < v->l->count; i++)
        if (phase_of(v, i) == KVM_PHASE_RUNS) return i;
    if (v->failed || v->end != KVM_CHILD_EXITED) return -1;
    for (ptrdiff_t i = 0; i < v->l->count; i++)
        if (phase_of(v, i) == KVM_PHASE_WAITS && !atomic_load(&v->w->shared->cancel[i]))
            return i;
    return -1;
}

static void fail_with(kvm_ending *e, const kvm_err *why)
{
    e->end.how = KVM_END_FAIL;
    e->why = *why;
    e->work->records.result.artefact_count = 0;
}

static void crash_with(kvm_ending *e, const char *how)
{
    e->end.how = KVM_END_CRASH;
    snprintf(e->how, sizeof e->how, "%.127s", how);
}

/* What the child has recorded; nothing when that cannot be read. */
static kvm_str read_records(kvm_worker *w)
{
    struct stat st;
    if (kvm_os->fstat(w->records, &st) || st.st_size > KVM_RECORDS_BYTES)
        return KVM_STR("");
    char *at = kvm_new(&w->mem, char, st.st_size + 1);
    const kvm_str name = KVM_STR("the job's records");
    if (!at || kvm_file_read_at(w->records, name, at, (size_t)st.st_size, 0, NULL))
        return KVM_STR("");
    return (kvm_str){at, st.st_size};
}

/* The records of a job that was begun lie behind those of all that are over before
 * it. */
static kvm_str records_of(const verdicts *v, ptrdiff_t i)
{
    const kvm_shared *s = v->w->shared;
    int64_t from = 0, to = v->records.len;
    for (ptrdiff_t n = 0; n < i; n++)
        if (phase_of(v, n) == KVM_PHASE_OVER) from = atomic_load(&s->recorded[n]);
    if (phase_of(v, i) == KVM_PHASE_OVER) to = atomic_load(&s->recorded[i]);
    if (from < 0 || from > to || to > v->records.len) return KVM_STR("");
    return kvm_str_slice(v->records, from, to);
}

/* Of a job that was begun: by what it has recorded. */
static void judge_begun(const verdicts *v, kvm_ending *e)
{
    kvm_work *k = e->work;
    kvm_err err = {0};
    const char *how = v->how;
    char text[128];
    if (kvm_records_parse(&k->records, &v->w->mem, records_of(v, e->place),
                          KVM_STR("the job's records"), &err)) {
        k->records = (kvm_records){0};
        if (err.code == KVM_FORMAT) how = err.msg;
    }
    for (ptrdiff_t i = 0; i < k->records.verified_count; i++)
        kvm_store_trust(v->w->store, k->records.verified[i].at);
    const bool at = e->place == v->culprit;
    const kvm_err *verdict = k->records.ended        ? &k->records.end
                             : at && v->trouble.code ? &v->trouble
                                                     : NULL;
    const bool stopped = !verdict || verdict->code == KVM_CANCELLED;
    if (verdict && !verdict->code) {
        e->end.how = k->records.reuse ? KVM_END_SKIP : KVM_END_SUCCEED;
    } else if (stopped && v->end == KVM_CHILD_DRAINED) {
        e->end.how = KVM_END_RELEASE;
    } else if (stopped && k->timed_out) {
        snprintf(text, sizeof text, "the job ran past its budget of %g s",
                 k->claim.timeout_s);
        crash_with(e, text);
    } else if (verdict) {
        fail_with(e, verdict);
    } else {
        crash_with(e, how);
    }
}

static double seconds_of(const verdicts *v, ptrdiff_t i)
{
    const kvm_shared *s = v->w->shared;
    switch (phase_of(v, i)) {
    case KVM_PHASE_WAITS:
        break;
    case KVM_PHASE_RUNS:
        return kvm_now() - kvm_unbits(atomic_load(&s->began));
    case KVM_PHASE_OVER:
        return kvm_unbits(atomic_load(&s->took[i]));
    }
    return 0;
}

static void judge(const verdicts *v, kvm_ending *e)
{
    const kvm_work *k = e->work;
    const kvm_err *trouble = &v->trouble;
    e->end = (kvm_end){.fence = k->claim.fence,
                       .how = KVM_END_RELEASE,
                       .equal = k->claim.equal,
                       .seconds = seconds_of(v, e->place)};
    if (k->why.code)
        fail_with(e, &k->why);
    else if (v->failed)
        fail_with(e, v->failed);
    else if (phase_of(v, e->place) != KVM_PHASE_WAITS)
        judge_begun(v, e);
    else if (e->place == v->culprit && trouble->code)
        fail_with(e, trouble);
    else if (e->place == v->culprit)
        crash_with(e, v->how);
}

/* An ending may be copied, so what it points at in itself is set last. */
static void point(kvm_ending *e)
{
    e->end.result = &e->work->records.result;
    e->end.why = &e->why;
    e->end.message = kvm_str_of(e->how);
}

/* ---- what has been written ---- */

/* The job has no result: tells where that has led. */
static void tell_badly(kvm_worker *w, const kvm_ending *e)
{
    kvm_err err = {0};
    kvm_job_state now = KVM_STATE_READY;
    const bool fails = e->end.how == KVM_END_FAIL;
    if (kvm_job_state_of(w->catalogue, e->end.fence.job, &now, &err)) {
        kvm_worker__note(w, e->work, KVM_WORKER_LOST, err.msg);
        return;
    }
    const bool ended = kvm_state_class_of(now) == KVM_CLASS_ENDED;
    if (now == KVM_STATE_CANCELLED) {
        kvm_worker__note(w, e->work, KVM_WORKER_CANCEL, "on request");
        return;
    }
    if (ended && w->stats.failed == 0) w->stats.why = fails ? e->why.code : KVM_OK;
    kvm_worker__note(w, e->work, ended ? KVM_WORKER_FAIL : KVM_WORKER_RETRY,
                     fails ? e->why.msg : e->how);
}

static void tell(kvm_worker *w, const kvm_ending *e)
{
    if (e->lost) {
        kvm_worker__note(w, e->work, KVM_WORKER_LOST,
                         "another worker has it, or nobody");
        return;
    }
    switch (e->end.how) {
    case KVM_END_SUCCEED:
    case KVM_END_SKIP:
        kvm_fault(KVM_FAULT_AFTER_COMMIT);
        kvm_tree__remove(e->work->folder);
        kvm_fault(KVM_FAULT_AFTER_CLEAN);
        kvm_worker__note(
            w, e->work,
            e->end.how == KVM_END_SKIP ? KVM_WORKER_SKIP : KVM_WORKER_SUCCEED, "");
        break;
    case KVM_END_FAIL:
    case KVM_END_CRASH:
        tell_badly(w, e);
        break;
    case KVM_END_RELEASE:
        kvm_worker__note(w, e->work, KVM_WORKER_RELEASE, "");
        break;
    }
}

/* When its results cannot be had, that is how it ends. */
static void end_alone(kvm_worker *w, const kvm_load *l, kvm_ending *e)
{
    kvm_err err = {0};
    point(e);
    kvm_status s = kvm_commit__ends(w, l, e, 1, &err);
    const bool done = e->end.how == KVM_END_SUCCEED || e->end.how == KVM_END_SKIP;
    if (s && s != KVM_LOST && done) {
        if (s == KVM_NOTFOUND) err.code = KVM_IO; /* another attempt makes it */
        fail_with(e, &err);
        point(e);
        err = (kvm_err){0};
        s = kvm_commit__ends(w, l, e, 1, &err);
    }
    if (s)
        kvm_worker__note(w, e->work, KVM_WORKER_LOST, err.msg);
    else
        tell(w, e);
}

static void end_together(kvm_worker *w, const kvm_load *l, kvm_ending *e, ptrdiff_t n)
{
    kvm_err err = {0};
    for (ptrdiff_t i = 0; i < n; i++) point(&e[i]);
    const kvm_status s = n > 1 ? kvm_commit__ends(w, l, e, n, &err) : KVM_OK;
    for (ptrdiff_t i = 0; i < n; i++)
        if (n > 1 && !s)
            tell(w, &e[i]);
        else if (s && kvm_status_action(s) == KVM_RETRY) /* there is no time left */
            kvm_worker__note(w, e[i].work, KVM_WORKER_LOST, err.msg);
        else
            end_alone(w, l, &e[i]);
}

/* Outputs of those that have done their work: first all are hashed, then moved. A lease
 * that has ended meanwhile is told; gives how many are left, at the front. */
static ptrdiff_t publish(kvm_worker *w, const kvm_load *l, kvm_ending *e, ptrdiff_t n)
{
    ptrdiff_t left = 0;
    bool any = false;
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_err err = {0};
        if (e[i].end.how != KVM_END_SUCCEED) continue;
        any = true;
        if (kvm_commit__hash(w, e[i].work, &err)) fail_with(&e[i], &err);
    }
    if (any) kvm_fault(KVM_FAULT_BEFORE_PUBLISH);
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_err err = {0};
        const bool done = e[i].end.how == KVM_END_SUCCEED;
        const kvm_status s =
            done ? kvm_commit__publish(w, l, e[i].place, &err) : KVM_OK;
        if (s == KVM_LOST)
            kvm_worker__note(w, e[i].work, KVM_WORKER_LOST, err.msg);
        else if (s)
            fail_with(&e[i], &err);
        if (s != KVM_LOST) e[left++] = e[i];
    }
    if (any) kvm_fault(KVM_FAULT_AFTER_PUBLISH);
    return left;
}

static bool is_lost(const verdicts *v, ptrdiff_t i)
{
    return v->end == KVM_CHILD_FENCED ||
           atomic_load(&v->l->beat.lease[i]) == KVM_LEASE_LOST;
}

void kvm_settle__load(kvm_worker *w, kvm_load *l, kvm_child_end end, const char *how,
                      const kvm_err *failed)
{
    verdicts v = {.w = w, .l = l, .end = end, .how = how, .failed = failed};
    kvm_ending *e = kvm_new(&w->mem, kvm_ending, l->count);
    ptrdiff_t n = 0;
    if (!e) return; /* the leases run out */
    v.culprit = find_culprit(&v);
    v.trouble = w->shared->trouble;
    v.trouble.msg[sizeof v.trouble.msg - 1] = 0; /* the child may have written it */
    v.trouble.file = NULL;
    v.records = read_records(w);
    for (ptrdiff_t i = 0; i < l->count; i++) {
        if (is_lost(&v, i)) {
            kvm_worker__note(w, &l->works[i], KVM_WORKER_LOST, "the lease was lost");
            continue;
        }
        e[n] = (kvm_ending){.work = &l->works[i], .place = i};
        judge(&v, &e[n++]);
    }
    end_together(w, l, e, publish(w, l, e, n));
}
