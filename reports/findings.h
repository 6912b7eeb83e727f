/* findings.h - what has been published of translated caches beside what one pair shows:
 * the rows of findings.def, each with a verdict that is read off a report document. */
#ifndef KVM_REPORTS_FINDINGS_H
#define KVM_REPORTS_FINDINGS_H

#include "reports/document.h"

/* X(TAG, "where it was published") */
#define KVM_FINDING_SOURCES(X)                                                         \
    X(HYBRID, "Translating KV Caches Between Hybrid-Attention Language Models (2026)") \
    X(LINGO, "KV-Lingo: Learning KV-cache translators with distillation (2026)")

/* kvm_findings - every finding judged by the document's sections, in the order of
 * findings.def.
 *   rows   out (*n)  in keep: key, statement, source, criterion, verdict, and the
 *                    figures in a sentence, or what would measure them
 * KVM_NOMEM. */
KVM_MUST kvm_status kvm_findings(kvm_finding_row **rows, ptrdiff_t *n, kvm_arena *keep,
                                 const kvm_document *d, kvm_err *err);

#endif
