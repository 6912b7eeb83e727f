/* team.h - for whom a command acts, and whether it may. */
#ifndef KVM_CLI_TEAM_H
#define KVM_CLI_TEAM_H

#include "cli/open.h"
#include "schema/job_state.h"

/* --team, KVMILL_TEAM, else "default" */
KVM_MUST kvm_status kvm_cli_team(const kvm_cli *cli, kvm_str *team, kvm_err *err);
/* kvm_cli_admit - the team's token, when it has one, is in KVMILL_TOKEN: never an
 * argument, which everybody on the machine may read */
KVM_MUST kvm_status kvm_cli_admit(kvm_cli *cli, kvm_catalogue *c, kvm_str team,
                                  kvm_err *err);
/* the same for submitting a file: or a scheduler fires the tick that KVMILL_TICK
 * names */
KVM_MUST kvm_status kvm_cli_admit_file(kvm_cli *cli, kvm_catalogue *c, kvm_str team,
                                       kvm_str file, kvm_err *err);
/* the same for a job or a run that is there, by whose it is; a --team that it is not is
 * KVM_USAGE. KVM_NOTFOUND */
KVM_MUST kvm_status kvm_cli_admit_which(kvm_cli *cli, kvm_catalogue *c, kvm_which which,
                                        kvm_err *err);

#define KVM_CLI_TEAM_OPTION                                                            \
    {                                                                                  \
        KVM_OPT_TEAM, "team", "NAME",                                                  \
            "for whom (KVMILL_TEAM, else default); its token in KVMILL_TOKEN"          \
    }

#endif
