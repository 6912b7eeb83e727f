/* teams.h - whose work it is: shares, quotas, and who may act for a team.
 *
 * Every run belongs to a team; "default" when nothing else was said. A team may have
 * a token: who submits, cancels, retries or pauses for it must have it too. Of a
 * token the catalogue keeps the SHA-256 alone. This keeps teams out of each other's
 * way; who may write to the database itself needs no token. */
#ifndef KVM_SCHEMA_TEAMS_H
#define KVM_SCHEMA_TEAMS_H

#include "schema/catalogue.h"

/* A negative number leaves what is there (of a new team: weight 1, no quota). */
typedef struct kvm_team_terms {
    double weight;      /* its part of the machines beside the others', > 0 */
    int64_t quota_live; /* most jobs at once, 0: any */
    double quota_day_s; /* most device-seconds a day (UTC), 0: any */
} kvm_team_terms;

/* kvm_team_check_name - letters, digits, . _ -, up to 64; KVM_USAGE */
KVM_MUST kvm_status kvm_team_check_name(kvm_str name, kvm_err *err);
/* kvm_team_set - makes the team, or gives it other terms */
KVM_MUST kvm_status kvm_team_set(kvm_catalogue *c, kvm_str name,
                                 const kvm_team_terms *terms, kvm_err *err);
/* kvm_team_pause - none of its jobs is begun until it is resumed. KVM_NOTFOUND */
KVM_MUST kvm_status kvm_team_pause(kvm_catalogue *c, kvm_str name, bool paused,
                                   kvm_err *err);
/* kvm_team_token - from now on this one is its token. KVM_NOTFOUND */
KVM_MUST kvm_status kvm_team_token(kvm_catalogue *c, kvm_str name, kvm_str token,
                                   kvm_err *err);
/* kvm_team_admit - KVM_USAGE when the team has another token. One that is not there yet
 * has none. */
KVM_MUST kvm_status kvm_team_admit(kvm_catalogue *c, kvm_str name, kvm_str token,
                                   kvm_err *err);

/* kvm_decayed - device-seconds of `age_s` ago, as they count today: half after 7
 * days */
double kvm_decayed(double seconds, double age_s);

#endif
