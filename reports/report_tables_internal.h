/* report_tables_internal.h - what the files of report_tables share: columns and cells
 * of plain words. */
#ifndef KVM_REPORTS_REPORT_TABLES_INTERNAL_H
#define KVM_REPORTS_REPORT_TABLES_INTERNAL_H

#include "reports/report_tables.h"

#define COLUMNS(list) list, (ptrdiff_t)(sizeof(list) / sizeof *(list))
#define HEAD(key, title, kind)                                                         \
    {                                                                                  \
        key, {title, sizeof(title) - 1}, KVM_COL_##kind                                \
    }

static inline void kvm_table__words(kvm_table *t, kvm_str s)
{
    kvm_table_text(t, s, KVM_TONE_PLAIN);
}

static inline void kvm_table__static(kvm_table *t, const char *s)
{
    kvm_table__words(t, kvm_str_of(s));
}

/* of a difference of two scores */
static inline kvm_format kvm_table__difference(kvm_format score)
{
    return score == KVM_FORMAT_PERCENT ? KVM_FORMAT_POINTS : score;
}

#endif
