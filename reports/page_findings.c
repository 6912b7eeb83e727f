/* page_findings.c - finding by finding: what has been published of such pairs, and what
 * this one shows. */
#include "reports/page_internal.h"

static const struct {
    const char *says, *tone;
} words[] = {
#define X(NAME, word, says, tone) {says, tone},
    KVM_FINDING_VERDICTS(X)
#undef X
};

static void finding(kvm_page *p, const kvm_finding_row *f)
{
    kvm_text_addf(p->out, "<dt><span class=\"%s\">%s</span> ", words[f->verdict].tone,
                  words[f->verdict].says);
    kvm_page__text(p, f->statement);
    kvm_page__html(p, "</dt>\n<dd>");
    kvm_page__text(p, f->text);
    kvm_page__html(p, "<small>Counts as reproduced when: ");
    kvm_page__text(p, f->criterion);
    if (f->source.len) {
        kvm_page__html(p, " Published: ");
        kvm_page__text(p, f->source);
    }
    kvm_page__html(p, "</small></dd>\n");
}

kvm_status kvm_page__findings(kvm_page *p)
{
    const ptrdiff_t n = p->d->findings.count;
    if (!kvm_page__section(p, KVM_SECTION_FINDINGS, n > 0)) return KVM_OK;
    kvm_page__lede(
        p, KVM_STR("What has been found on other pairs, asked of this one. Each "
                   "finding has its criterion beside it; one whose interval "
                   "lies on both sides of it is undecided."));
    kvm_page__html(p, "<dl class=\"findings\">\n");
    for (ptrdiff_t i = 0; i < n; i++) finding(p, &p->d->findings.at[i]);
    kvm_page__html(p, "</dl>\n");
    kvm_page__section_end(p);
    return KVM_OK;
}
