/* page_internal.h - what the sections of a page share. A section draws from the
 * document into a text; a part that was not measured is said in words, never left
 * blank. */
#ifndef KVM_REPORTS_PAGE_INTERNAL_H
#define KVM_REPORTS_PAGE_INTERNAL_H

#include "reports/document.h"
#include "reports/report_tables.h"
#include "reports/svg.h"
#include "reports/table.h"
#include "reports/verdict.h"

typedef struct kvm_page {
    kvm_text *out;
    const kvm_document *d;
    const kvm_verdict *verdict;
    kvm_arena *mem;
    kvm_err *err;
} kvm_page;

/* markup as it is; only literals */
#define kvm_page__html(p, literal) kvm_text_add((p)->out, KVM_STR(literal))
void kvm_page__text(kvm_page *p, kvm_str s); /* escaped */
void kvm_page__number(kvm_page *p, double v, kvm_format format);

/* a heading with its anchor; says why when the section is absent and gives false */
bool kvm_page__section(kvm_page *p, kvm_section s, bool measured);
void kvm_page__section_end(kvm_page *p);
void kvm_page__lede(kvm_page *p, kvm_str s); /* a sentence under a heading */
void kvm_page__part(kvm_page *p, kvm_str heading);
void kvm_page__missing(kvm_page *p, kvm_str what, kvm_str why);

/* figures stand in grids that reflow; each is one figure element with a caption.
 * per_row: 2 or 3 on a wide screen */
void kvm_page__grid(kvm_page *p, int per_row);
void kvm_page__grid_end(kvm_page *p);
void kvm_page__figure(kvm_page *p, kvm_str heading, kvm_str note);
void kvm_page__figure_end(kvm_page *p);

/* rows with the same first cell share it when `grouped` */
KVM_MUST kvm_status kvm_page__table(kvm_page *p, const kvm_table *t, bool grouped);
/* the same, folded away under a summary */
KVM_MUST kvm_status kvm_page__folded(kvm_page *p, const kvm_table *t, kvm_str summary);

/* the sections */
KVM_MUST kvm_status kvm_page__gates(kvm_page *p);
KVM_MUST kvm_status kvm_page__quality(kvm_page *p);
KVM_MUST kvm_status kvm_page__needle(kvm_page *p);
KVM_MUST kvm_status kvm_page__answers(kvm_page *p);
KVM_MUST kvm_status kvm_page__timing(kvm_page *p);
KVM_MUST kvm_status kvm_page__build(kvm_page *p);
KVM_MUST kvm_status kvm_page__recipes(kvm_page *p);
KVM_MUST kvm_status kvm_page__training(kvm_page *p);
KVM_MUST kvm_status kvm_page__linearity(kvm_page *p);
KVM_MUST kvm_status kvm_page__layers(kvm_page *p);
KVM_MUST kvm_status kvm_page__ablations(kvm_page *p);
KVM_MUST kvm_status kvm_page__analyses(kvm_page *p);
KVM_MUST kvm_status kvm_page__inversion(kvm_page *p);
KVM_MUST kvm_status kvm_page__alternation(kvm_page *p);
KVM_MUST kvm_status kvm_page__findings(kvm_page *p);
KVM_MUST kvm_status kvm_page__provenance(kvm_page *p);

extern const char *const kvm_page_css[]; /* lines, NULL-terminated */

#endif
