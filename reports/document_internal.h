/* document_internal.h - the reader behind document.c: every call does nothing once one
 * has failed, so a part is read straight down and the status is asked at the end. */
#ifndef KVM_REPORTS_DOCUMENT_INTERNAL_H
#define KVM_REPORTS_DOCUMENT_INTERNAL_H

#include "reports/document.h"

enum { KVM_DOC_MOST = 4096 }; /* entries of one list: no model has more layers */

typedef struct kvm_doc_reader {
    kvm_document *d;
    kvm_arena *keep;
    kvm_err *err;
    kvm_status status; /* the first failure */
} kvm_doc_reader;

kvm_jat kvm_doc__get(kvm_doc_reader *r, kvm_jat at, const char *key);
/* a member's value, or "" / NaN / the fallback when absent */
kvm_str kvm_doc__str(kvm_doc_reader *r, kvm_jat at, const char *key);
double kvm_doc__num(kvm_doc_reader *r, kvm_jat at, const char *key);
bool kvm_doc__flag(kvm_doc_reader *r, kvm_jat at, const char *key, bool fallback);
kvm_est kvm_doc__est(kvm_doc_reader *r, kvm_jat at, const char *key);
kvm_est kvm_doc__est_at(kvm_doc_reader *r, kvm_jat at);
kvm_format kvm_doc__format(kvm_doc_reader *r, kvm_jat at); /* its "format" member */
kvm_arm kvm_doc__arm(kvm_doc_reader *r, kvm_jat at, kvm_str key);
/* room for the entries of a list, zeroed; NULL and n = 0 when absent or empty */
void *kvm_doc__list_at(kvm_doc_reader *r, kvm_jat at, size_t size, ptrdiff_t *n);
kvm_jat kvm_doc__item(kvm_doc_reader *r, kvm_jat list, ptrdiff_t i); /* an object */
kvm_numbers kvm_doc__numbers(kvm_doc_reader *r, kvm_jat at, const char *key);
kvm_numbers kvm_doc__numbers_at(kvm_doc_reader *r, kvm_jat at);
/* the texts of a list; NULL and *n = 0 when absent or empty */
kvm_str *kvm_doc__words(kvm_doc_reader *r, kvm_jat at, const char *key, ptrdiff_t *n);
/* at.key as a layer's number, or as a list of them; `fallback` (of a list: its place)
 * where it is none */
ptrdiff_t kvm_doc__layer(kvm_doc_reader *r, kvm_jat at, const char *key,
                         ptrdiff_t fallback);
kvm_numbers kvm_doc__layers(kvm_doc_reader *r, kvm_jat at, const char *key);
/* fails unless the list at.key has as many entries as it must */
void kvm_doc__length(kvm_doc_reader *r, kvm_jat at, const char *key, ptrdiff_t is,
                     ptrdiff_t must);

void kvm_doc__fit(kvm_doc_reader *r, kvm_jat doc);        /* gates, linearity, layers */
void kvm_doc__translator(kvm_doc_reader *r, kvm_jat doc); /* recipes, training */
void kvm_doc__results(kvm_doc_reader *r, kvm_jat doc);    /* suites ... provenance */
void kvm_doc__analyses(kvm_doc_reader *r, kvm_jat doc);   /* analyses, inversion */
void kvm_doc__alternation(kvm_doc_reader *r, kvm_jat doc);
void kvm_doc__findings(kvm_doc_reader *r, kvm_jat doc); /* findings */
/* its "better" member */
bool kvm_doc__lower_better(kvm_doc_reader *r, kvm_jat at);

#endif
