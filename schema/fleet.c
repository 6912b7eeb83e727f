#include "schema/fleet.h"

#include "schema/catalogue_internal.h"

kvm_status kvm_fleet_look(kvm_catalogue *c, double silent_s,
                          kvm_fleet_workers **workers, ptrdiff_t *count,
                          kvm_arena *keep, kvm_err *err)
{
    kvm_rows r;
    TRY(kvm_db_query(c->db, KVM_SQL_FLEET_WORKERS, KVM_ARGS(kvm_cell_f(silent_s)), &r,
                     keep, err));
    kvm_fleet_workers *all = kvm_new(keep, kvm_fleet_workers, r.count + 1);
    if (!all) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < r.count; i++)
        all[i] = (kvm_fleet_workers){.classes = kvm_rows_str(&r, i, 0),
                                     .ranks = (int)kvm_rows_i64(&r, i, 1),
                                     .memory_mib = kvm_rows_i64(&r, i, 2),
                                     .count = kvm_rows_i64(&r, i, 3)};
    *workers = all;
    *count = r.count;
    return KVM_OK;
}

kvm_status kvm_fleet_unclaimed(kvm_catalogue *c, double age_s, kvm_fleet_sent **sent,
                               ptrdiff_t *count, kvm_arena *keep, kvm_err *err)
{
    kvm_rows r;
    TRY(kvm_db_query(c->db, KVM_SQL_FLEET_UNCLAIMED,
                     KVM_ARGS(kvm_cell_f(age_s), kvm_cell_i(KVM_UNCLAIMED_MOST)), &r,
                     keep, err));
    kvm_fleet_sent *all = kvm_new(keep, kvm_fleet_sent, r.count + 1);
    if (!all) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < r.count; i++)
        all[i] =
            (kvm_fleet_sent){.fence = {kvm_rows_i64(&r, i, 0), kvm_rows_i64(&r, i, 1)},
                             .class = kvm_rows_str(&r, i, 2),
                             .ranks = (int)kvm_rows_i64(&r, i, 3),
                             .memory_mib = kvm_rows_i64(&r, i, 4)};
    *sent = all;
    *count = r.count;
    return KVM_OK;
}

kvm_status kvm_fleet_jobs_look(kvm_catalogue *c, kvm_fleet_jobs **jobs,
                               ptrdiff_t *count, kvm_arena *keep, kvm_err *err)
{
    static const kvm_sql sql[] = {KVM_SQL_FLEET_WAITING, KVM_SQL_FLEET_LIVE};
    kvm_rows r[2];
    for (int i = 0; i < 2; i++)
        TRY(kvm_db_query(c->db, sql[i], KVM_NO_ARGS, &r[i], keep, err));
    kvm_fleet_jobs *all = kvm_new(keep, kvm_fleet_jobs, r[0].count + r[1].count + 1);
    if (!all) return kvm_nomem(err, keep);
    *count = 0;
    for (int i = 0; i < 2; i++)
        for (ptrdiff_t k = 0; k < r[i].count; k++)
            all[(*count)++] = (kvm_fleet_jobs){.class = kvm_rows_str(&r[i], k, 0),
                                               .ranks = (int)kvm_rows_i64(&r[i], k, 1),
                                               .state = kvm_rows_str(&r[i], k, 2),
                                               .count = kvm_rows_i64(&r[i], k, 3),
                                               .oldest_s = kvm_rows_f64(&r[i], k, 4)};
    *jobs = all;
    return KVM_OK;
}
