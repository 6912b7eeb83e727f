/* listing.h - the rows of a view as people read them. */
#ifndef KVM_CLI_LISTING_H
#define KVM_CLI_LISTING_H

#include "cli/open.h"

/* seconds since 1970 as 2026-11-30T08:15:00Z; in keep, at NULL when that is spent */
kvm_str kvm_cli_time(kvm_arena *keep, double seconds);
/* the named columns of rows, in this order; NULL ends. Times are those called *_at. */
KVM_MUST kvm_status kvm_cli_print_rows(kvm_cli *cli, const json_t *rows,
                                       const char *name, const char *const *columns,
                                       kvm_err *err);
/* the rows of a view, up to --limit: all of it with --json, else the columns that
 * people look at first */
KVM_MUST kvm_status kvm_cli_show_view(kvm_cli *cli, kvm_catalogue *c, const char *view,
                                      const kvm_view_filter *filters, ptrdiff_t count,
                                      const char *const *columns, kvm_err *err);
/* names the pairs there are when `pair` is none of them */
KVM_MUST kvm_status kvm_cli_check_pair(kvm_cli *cli, kvm_catalogue *c, kvm_str pair,
                                       kvm_err *err);

#endif
