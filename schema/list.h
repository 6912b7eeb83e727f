/* list.h - any number of rows as one argument of a statement: the JSON text
 * [[1,"a"],[2,null]], which the word {rows} (statements.def) makes a table of. Private
 * to schema/.
 *
 *   kvm_list l = {0};
 *   for (...) kvm_list_add(&l, KVM_ARGS(kvm_cell_i(id), kvm_cell_s(text)));
 *   TRY(kvm_list_give(&l, &arg, arena, err));
 *
 * Integers and texts come out of the database as they went in, but for what is no UTF-8
 * (schema/utf8.h). Numbers may differ in the last bit: results are bound one by one. */
#ifndef KVM_SCHEMA_LIST_H
#define KVM_SCHEMA_LIST_H

#include "schema/db.h"

typedef struct kvm_list { /* zero value: empty; on the heap until it is given */
    kvm_text text;
    ptrdiff_t count;
} kvm_list;

void kvm_list_add(kvm_list *l, const kvm_cell *cells, ptrdiff_t n);
/* kvm_list_give - as an argument, its text copied into keep; the list is empty again,
 * whether it succeeds or not. KVM_NOMEM also for what kvm_list_add lacked. */
KVM_MUST kvm_status kvm_list_give(kvm_list *l, kvm_cell *arg, kvm_arena *keep,
                                  kvm_err *err);

/* For drivers: the next column `NAME TYPE` of the word's argument, after which *rest
 * stands behind its comma; false when there is none. type: i, f or t. */
bool kvm_list_column(kvm_str *rest, kvm_str *name, char *type);

#endif
