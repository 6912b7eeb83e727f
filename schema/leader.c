#include "schema/leader.h"

#include "schema/catalogue_internal.h"

kvm_status kvm_leader_hold(kvm_catalogue *c, kvm_str name, kvm_str holder,
                           double seconds, bool *leads, kvm_err *err)
{
    int64_t changed = 0;
    TRY(kvm_db_exec(c->db, KVM_SQL_LEADER_HOLD,
                    KVM_ARGS(kvm_cell_s(name), kvm_cell_s(holder), kvm_cell_f(seconds)),
                    &changed, err));
    *leads = changed > 0;
    return KVM_OK;
}

kvm_status kvm_leader_leave(kvm_catalogue *c, kvm_str name, kvm_str holder,
                            kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_LEADER_LEAVE,
                       KVM_ARGS(kvm_cell_s(name), kvm_cell_s(holder)), NULL, err);
}

kvm_status kvm_leader_of(kvm_catalogue *c, kvm_str name, kvm_str *holder,
                         kvm_arena *keep, kvm_err *err)
{
    kvm_rows rows;
    *holder = (kvm_str){0};
    TRY(kvm_db_query(c->db, KVM_SQL_LEADER_OF, KVM_ARGS(kvm_cell_s(name)), &rows, keep,
                     err));
    if (rows.count) *holder = kvm_rows_str(&rows, 0, 0);
    return KVM_OK;
}
