/* results.c - the rows that an attempt leaves behind. */
#include <math.h>

#include "schema/job_internal.h"

void kvm_event__list(kvm_list *l, int64_t run, int64_t job, kvm_str what, kvm_str text)
{
    kvm_list_add(l, KVM_ARGS(kvm_cell_i(run), job ? kvm_cell_i(job) : (kvm_cell){0},
                             kvm_cell_s(what), kvm_cell_s(text)));
}

kvm_status kvm_events__write(kvm_db *db, kvm_list *l, kvm_arena scratch, kvm_err *err)
{
    kvm_cell arg;
    if (l->count == 0) return KVM_OK;
    TRY(kvm_list_give(l, &arg, &scratch, err));
    return kvm_db_exec(db, KVM_SQL_EVENTS_ADD, &arg, 1, NULL, err);
}

kvm_status kvm_event__add(kvm_db *db, int64_t run, int64_t job, const char *what,
                          kvm_str text, kvm_arena scratch, kvm_err *err)
{
    kvm_list l = {0};
    kvm_event__list(&l, run, job, kvm_str_of(what), text);
    return kvm_events__write(db, &l, scratch, err);
}

static kvm_status finite(double v, kvm_str name, kvm_err *err)
{
    if (isfinite(v)) return KVM_OK;
    return kvm_fail(err, KVM_NAN, "the result %.*s is not a finite number",
                    KVM_STR_ARG(name));
}

static kvm_status write_timings(kvm_db *db, int64_t job, const kvm_result_timing *t,
                                kvm_err *err)
{
    for (ptrdiff_t k = 0; k < t->count; k++) {
        TRY(finite(t->seconds[k], t->stage, err));
        TRY(kvm_db_exec(db, KVM_SQL_TIMING_ADD,
                        KVM_ARGS(kvm_cell_i(job), kvm_cell_s(t->arm),
                                 kvm_cell_i(t->tokens), kvm_cell_s(t->stage),
                                 kvm_cell_i(k), kvm_cell_f(t->seconds[k])),
                        NULL, err));
    }
    return KVM_OK;
}

static kvm_status write_artefacts(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                                  kvm_arena scratch, kvm_err *err)
{
    kvm_list l = {0};
    kvm_cell arg;
    for (ptrdiff_t i = 0; i < count; i++)
        for (ptrdiff_t k = 0; k < of[i].result->artefact_count; k++) {
            const kvm_result_artefact *a = &of[i].result->artefacts[k];
            kvm_list_add(&l, KVM_ARGS(kvm_cell_i(of[i].move.is.id), kvm_cell_s(a->name),
                                      kvm_cell_s(a->sha), kvm_cell_i(a->bytes)));
        }
    if (l.count == 0) return KVM_OK;
    TRY(kvm_list_give(&l, &arg, &scratch, err));
    return kvm_db_exec(db, KVM_SQL_ARTEFACTS_ADD, &arg, 1, NULL, err);
}

/* Numbers go one by one: out of a list they may come with another last bit. */
static kvm_status write_numbers(kvm_db *db, int64_t job, const kvm_result *r,
                                kvm_err *err)
{
    for (ptrdiff_t i = 0; i < r->metric_count; i++) {
        const kvm_result_metric *m = &r->metrics[i];
        TRY(finite(m->value, m->name, err));
        TRY(kvm_db_exec(db, KVM_SQL_METRIC_ADD,
                        KVM_ARGS(kvm_cell_i(job), kvm_cell_s(m->name),
                                 kvm_cell_s(m->labels), kvm_cell_f(m->value)),
                        NULL, err));
    }
    for (ptrdiff_t i = 0; i < r->sample_count; i++) {
        const kvm_result_sample *x = &r->samples[i];
        TRY(finite(x->value, x->metric, err));
        TRY(kvm_db_exec(db, KVM_SQL_SAMPLE_ADD,
                        KVM_ARGS(kvm_cell_i(job), kvm_cell_s(x->suite),
                                 kvm_cell_s(x->arm), kvm_cell_s(x->metric),
                                 kvm_cell_s(x->item), kvm_cell_f(x->value)),
                        NULL, err));
    }
    for (ptrdiff_t i = 0; i < r->timing_count; i++)
        TRY(write_timings(db, job, &r->timings[i], err));
    return KVM_OK;
}

kvm_status kvm_results__write(kvm_db *db, const kvm_job_leave *of, ptrdiff_t count,
                              kvm_arena scratch, kvm_err *err)
{
    TRY(write_artefacts(db, of, count, scratch, err));
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(write_numbers(db, of[i].move.is.id, of[i].result, err));
    return KVM_OK;
}
