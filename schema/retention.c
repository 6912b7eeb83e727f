#include "schema/retention.h"

#include "schema/job_internal.h"

static kvm_status expire(kvm_catalogue *c, double age_s, ptrdiff_t *count, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_catalogue_hold(c, KVM_HOLD_OBJECTS, false, err));
    TRY(kvm_db_query(c->db, KVM_SQL_CAPTURES_EXPIRE, KVM_ARGS(kvm_cell_f(age_s)), &rows,
                     &scratch, err));
    for (ptrdiff_t i = 0; i < rows.count; i++)
        TRY(kvm_event__add(c->db, kvm_rows_i64(&rows, i, 0), kvm_rows_i64(&rows, i, 1),
                           "expired", kvm_rows_str(&rows, i, 2), scratch, err));
    *count = rows.count;
    return KVM_OK;
}

kvm_status kvm_captures_expire(kvm_catalogue *c, double age_s, ptrdiff_t *count,
                               kvm_err *err)
{
    TRY(kvm_db_begin(c->db, err));
    return kvm_db_end(c->db, expire(c, age_s, count, err), err);
}

kvm_status kvm_run_expired(kvm_catalogue *c, int64_t run, bool *yes, kvm_err *err)
{
    int64_t one = 0;
    TRY(kvm_db_one(c->db, KVM_SQL_RUN_EXPIRED, KVM_ARGS(kvm_cell_i(run)), &one, err));
    *yes = one != 0;
    return KVM_OK;
}
