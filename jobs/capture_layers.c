/* capture_layers.c - a capture of a model that one rank cannot hold: each rank has a
 * run of its layers, and sequences pass from rank to rank.
 *
 * At every step of the belt a rank has another piece of a sequence (of at most 512
 * tokens) than the others: the one which the rank before it had a step earlier. So of n
 * pieces and R ranks there are n + R - 1 steps, and all ranks work in most of them. A
 * sequence's rows are in R spools, those of a rank's layers in its own. A rank that a
 * killed attempt had taken further than others computes what they need, and keeps none
 * of it twice. */
#include "base/log.h"
#include "jobs/capture_internal.h"

/* a piece of a sequence on its way */
typedef struct piece {
    ptrdiff_t sequence, first, n;
} piece;

typedef struct belt {
    kvm_capturing *c;
    kvm_cache *cache;
    piece *pieces;
    ptrdiff_t count, done; /* done: sequences that this rank's spool has */
    void *between;
    kvm_capture sink;
} belt;

static kvm_status model_path(kvm_job *j, kvm_str *path, kvm_err *err)
{
    return kvm_json_str(kvm_json_get(j->params, j->keep, "model_path"), path, err);
}

kvm_status kvm_capture__by_layers(kvm_job *j, bool *yes, kvm_err *err)
{
    kvm_str path;
    kvm_model_weight w;
    *yes = false;
    if (j->memory == 0 || j->offload > 0 || j->team->size == 1) return KVM_OK;
    TRY(model_path(j, &path, err));
    TRY(kvm_model_weigh(&w, path, j->team->size, err));
    *yes = (size_t)w.all > j->memory;
    if (*yes && kvm_team_leads(j->team))
        kvm_log((size_t)w.most > j->memory ? KVM_LOG_WARN : KVM_LOG_INFO,
                "capture.layers",
                "weights_mib=%td part_mib=%td memory_mib=%zu ranks=%d", w.all >> 20,
                w.most >> 20, j->memory >> 20, j->team->size);
    return KVM_OK;
}

/* the first sequence that not every rank has */
static kvm_status find_start(belt *b, ptrdiff_t *start, kvm_err *err)
{
    kvm_team *t = b->c->job->team;
    int64_t *done = kvm_new(b->c->job->keep, int64_t, t->size);
    if (!done) return kvm_nomem(err, b->c->job->keep);
    b->done = kvm_rows_done(b->c->writer);
    done[t->rank] = b->done;
    TRY(kvm_team_unite(t, done, (ptrdiff_t)sizeof *done * t->size, err));
    *start = (ptrdiff_t)done[0];
    for (int r = 1; r < t->size; r++)
        if (done[r] < *start) *start = (ptrdiff_t)done[r];
    return KVM_OK;
}

/* the pieces that forwards of whole sequences take, from `start` on */
static kvm_status cut_up(belt *b, ptrdiff_t start, kvm_err *err)
{
    const kvm_calibration *text = &b->c->text;
    ptrdiff_t most = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !(b->pieces = kvm_new(b->c->job->keep, piece, b->count + 1)))
            return kvm_nomem(err, b->c->job->keep);
        b->count = 0;
        for (ptrdiff_t s = start; s < text->sequences; s++) {
            const ptrdiff_t n = text->offset[s + 1] - text->offset[s];
            const ptrdiff_t step = kvm_model_piece(n);
            for (ptrdiff_t t = 0; t < n; t += step, b->count++) {
                const piece p = {s, t, n - t < step ? n - t : step};
                const size_t bytes = kvm_model_between(b->c->model, p.first, p.n);
                if ((ptrdiff_t)bytes > most) most = (ptrdiff_t)bytes;
                if (pass) b->pieces[b->count] = p;
            }
        }
    }
    b->between = kvm_new(b->c->job->keep, char, most + 1);
    return b->between ? KVM_OK : kvm_nomem(err, b->c->job->keep);
}

static kvm_status tell(const belt *b, ptrdiff_t piece_at, kvm_err *err)
{
    kvm_job *j = b->c->job;
    kvm_progress_at(j->progress, (double)piece_at, (double)b->count, "pieces");
    if (!kvm_progress_cancelled(j->progress)) return KVM_OK;
    return kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td pieces", piece_at,
                    b->count);
}

static kvm_status run_piece(belt *b, const piece *p, kvm_err *err)
{
    kvm_capturing *c = b->c;
    const bool leads = kvm_team_leads(c->job->team), keeps = p->sequence >= b->done;
    const ptrdiff_t from = c->text.offset[p->sequence];
    c->length = c->text.offset[p->sequence + 1] - from;
    if (p->first == 0) {
        kvm_cache_clear(b->cache);
        if (leads && keeps) TRY(kvm_capture__begin(c, p->sequence, err));
    }
    TRY(kvm_model_run_part(c->model, b->cache, c->text.ids + from + p->first, p->n,
                           b->between, keeps ? &b->sink : NULL, err));
    return keeps && p->first + p->n == c->length ? kvm_capture__end(c, p->sequence, err)
                                                 : KVM_OK;
}

/* of the largest that anybody hands on at this step */
static ptrdiff_t handed_on(const belt *b, ptrdiff_t step)
{
    size_t most = 0;
    for (int r = 0; r + 1 < b->c->job->team->size; r++) {
        const ptrdiff_t i = step - r;
        if (i < 0 || i >= b->count) continue;
        const size_t bytes =
            kvm_model_between(b->c->model, b->pieces[i].first, b->pieces[i].n);
        if (bytes > most) most = bytes;
    }
    return (ptrdiff_t)most;
}

static kvm_status run_belt(belt *b, kvm_err *err)
{
    kvm_team *t = b->c->job->team;
    const ptrdiff_t steps = b->count > 0 ? b->count + t->size - 1 : 0;
    for (ptrdiff_t step = 0; step < steps; step++) {
        const ptrdiff_t i = step - t->rank;
        if (i >= 0 && i < b->count) {
            TRY(tell(b, i, err));
            const kvm_status s = run_piece(b, &b->pieces[i], err);
            if (s) return kvm_err_prefix(err, s, "sequence %td", b->pieces[i].sequence);
        }
        if (step + 1 < steps)
            TRY(kvm_team_pass(t, b->between, handed_on(b, step), err));
    }
    return KVM_OK;
}

kvm_status kvm_capture__run_layers(kvm_capturing *c, kvm_err *err)
{
    belt b = {.c = c, .sink = kvm_gather_capture(c->gather)};
    ptrdiff_t start;
    TRY(kvm_cache_new(&b.cache, c->job->keep, c->model, c->text.longest, err));
    TRY(find_start(&b, &start, err));
    TRY(cut_up(&b, start, err));
    return run_belt(&b, err);
}
