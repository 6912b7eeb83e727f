/* publish.h - a pair's report out of the store, as files people open:
 * HOME/reports/PAIR.html, .json, .TABLE.csv. */
#ifndef KVM_CLI_PUBLISH_H
#define KVM_CLI_PUBLISH_H

#include "cli/open.h"

/* run 0: the newest that has a report. html, json: their paths, in cli->keep.
 * KVM_NOTFOUND when there is none. */
KVM_MUST kvm_status kvm_cli_publish_report(kvm_cli *cli, kvm_catalogue *c,
                                           kvm_store *store, kvm_str pair, int64_t run,
                                           kvm_str *html, kvm_str *json, kvm_err *err);

#endif
