/* document_findings.c - the section of a report document that stands beside what has
 * been published. */
#include "reports/document_internal.h"

static kvm_finding_verdict read_verdict(kvm_doc_reader *r, kvm_jat at)
{
    static const char *const words[] = {
#define X(NAME, word, says, tone) word,
        KVM_FINDING_VERDICTS(X)
#undef X
    };
    const kvm_str word = kvm_doc__str(r, at, "verdict");
    for (kvm_finding_verdict v = 0; v < KVM_FINDING_VERDICT_COUNT; v++)
        if (kvm_str_eq(word, kvm_str_of(words[v]))) return v;
    if (!r->status)
        r->status = kvm_fail(r->err, KVM_FORMAT, "%s: %s.verdict: \"%s\" is no verdict",
                             at.file, at.path, kvm_quote(word).at);
    return KVM_FINDING_NOT_MEASURED;
}

void kvm_doc__findings(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat list = kvm_doc__get(r, doc, "findings");
    kvm_finding_row *rows =
        kvm_doc__list_at(r, list, sizeof *rows, &r->d->findings.count);
    for (ptrdiff_t i = 0; i < r->d->findings.count; i++) {
        const kvm_jat at = kvm_doc__item(r, list, i);
        rows[i] = (kvm_finding_row){
            .key = kvm_doc__str(r, at, "key"),
            .statement = kvm_doc__str(r, at, "statement"),
            .source = kvm_doc__str(r, at, "source"),
            .criterion = kvm_doc__str(r, at, "criterion"),
            .text = kvm_doc__str(r, at, "text"),
            .verdict = read_verdict(r, at),
        };
    }
    r->d->findings.at = rows;
}
