/* open.h - what several commands open: the store's catalogue, a compute context, a pair's graphs. */
#ifndef KVM_CLI_OPEN_H
#define KVM_CLI_OPEN_H

#include "cli/cli.h"
#include "jobs/spec.h"
#include "schema/catalogue.h"
#include "schema/store.h"

/* HOME/catalogue.db; `make`: the folder and the catalogue are created, else KVM_ENVIRONMENT says how to */
KVM_MUST kvm_status kvm_cli_catalogue(kvm_cli *cli, bool make, kvm_catalogue **c, kvm_err *err);
/* --backend and --threads */
KVM_MUST kvm_status kvm_cli_compute(kvm_cli *cli, kvm_arena *keep, kvm_compute **c, kvm_err *err);
const char *kvm_cli_backend(const kvm_cli *cli);
KVM_MUST kvm_status kvm_cli_threads(const kvm_cli *cli, int *threads, kvm_err *err);
/* text to stdout, whole */
KVM_MUST kvm_status kvm_cli_print(kvm_str text, kvm_err *err);

#endif
