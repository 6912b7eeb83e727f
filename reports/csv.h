/* csv.h - a table as RFC 4180: CRLF, fields quoted when they hold a quote, a comma or a
 * line break, a header row of keys. Numbers are written in full (shortest text that
 * reads back to the same double), missing ones as empty fields with their reason in the
 * note column. A text field that a spreadsheet would run as a formula (= + - @, tab, CR
 * first) gets an apostrophe in front. */
#ifndef KVM_REPORTS_CSV_H
#define KVM_REPORTS_CSV_H

#include "reports/table.h"

void kvm_table_csv(kvm_text *out,
                   const kvm_table *t); /* out->failed when memory is out */

#endif
