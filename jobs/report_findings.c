/* report_findings.c - what has been published of translated caches, judged by the
 * sections of the document so far (reports/findings.h). */
#include "jobs/report_parts.h"
#include "reports/findings.h"

static json_t *text(kvm_str s)
{
    return json_stringn(s.at, (size_t)s.len);
}

static json_t *finding_json(const kvm_finding_row *f)
{
    static const char *const words[] = {
#define X(NAME, word, says, tone) word,
        KVM_FINDING_VERDICTS(X)
#undef X
    };
    return json_pack("{s:o, s:o, s:o, s:o, s:s, s:o}", "key", text(f->key), "statement",
                     text(f->statement), "source", text(f->source), "criterion",
                     text(f->criterion), "verdict", words[f->verdict], "text",
                     text(f->text));
}

kvm_status kvm_report_findings(kvm_report_builder *b, kvm_err *err)
{
    kvm_document d;
    kvm_finding_row *rows;
    ptrdiff_t n;
    const kvm_jat doc = {.v = b->doc, .file = "report", .path = ""};
    TRY(kvm_document_read(&d, b->job->keep, doc, err));
    TRY(kvm_findings(&rows, &n, b->job->keep, &d, err));
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++)
        json_array_append_new(list, finding_json(&rows[i]));
    json_object_set_new(b->doc, "findings", list);
    return KVM_OK;
}
