/* submit.h - a spec becomes runs in the catalogue.
 *
 * The models are opened for the plan only, and are closed with it: who works afterwards
 * does so in a process that has one thread. */
#ifndef KVM_CLI_SUBMIT_H
#define KVM_CLI_SUBMIT_H

#include "cli/cli.h"
#include "scheduler/submit.h"

typedef struct kvm_cli_planned { /* one direction */
    kvm_str pair;
    kvm_submitted submitted;
} kvm_cli_planned;

typedef struct
    kvm_cli_plans { /* of one spec file: a pair's directions, or a family's */
    kvm_cli_planned *of;
    ptrdiff_t n;
} kvm_cli_plans;

/* kvm_cli_submit - all runs of the spec at `path`, for --team; the store is made
 * when the spec has been found good. plans: in cli's keep. */
KVM_MUST kvm_status kvm_cli_submit(kvm_cli *cli, kvm_str path, kvm_cli_plans *plans,
                                   kvm_err *err);
/* what became of it, to stderr: a new run, an old one; and which one is stale */
void kvm_cli_announce(const kvm_cli_planned *p);

#endif
