/* postgres.h - shared by the driver's files: postgres.c (statements and transactions),
 * postgres_link.c (the connection) and postgres_error.c (what went wrong). Private to
 * schema/. */
#ifndef KVM_SCHEMA_POSTGRES_H
#define KVM_SCHEMA_POSTGRES_H

#include <libpq-fe.h>
#include <sys/types.h>

#include "schema/db.h"

enum { KVM_PG_ARGS = 120 }; /* the most a statement may have */

/* A connection and what is known of its session. */
typedef struct kvm_pg {
    PGconn *conn; /* NULL: lost, or not yet opened */
    pid_t owner;  /* who opened it: a forked child must not touch it */
    int busy_ms, answer_ms;
    int limit_ms; /* the session's statement_timeout; 0: not known */
    bool prepared[KVM_SQL_COUNT];
    Oid types[KVM_SQL_COUNT][KVM_PG_ARGS]; /* as prepared; 0: left to the server */
    char *url;                             /* heap; may hold the password */
    char shown[256];                       /* the same without it */
} kvm_pg;

/* kvm_pg__open_link - connects within 10 s and sets the session up. KVM_BUSY: nobody
 * answered, or not yet; KVM_ENVIRONMENT: somebody did and said no. */
KVM_MUST kvm_status kvm_pg__open_link(kvm_pg *p, kvm_err *err);
/* kvm_pg__close_link - says goodbye; in a forked child only the child's copy of the
 * socket is closed, for the session is the parent's */
void kvm_pg__close_link(kvm_pg *p);
/* kvm_pg__use - before a statement: a connection that is known to be gone is opened
 * again, unless a transaction was open on it (KVM_BUSY). KVM_INTERNAL in a forked
 * child. */
KVM_MUST kvm_status kvm_pg__use(kvm_pg *p, bool in_transaction, kvm_err *err);
/* kvm_pg__result - what the server answers to what was sent: the first error, else the
 * last result, which the caller clears; NULL when the connection is lost. A server that
 * is silent for `ms` counts as lost. */
PGresult *kvm_pg__result(kvm_pg *p, int ms);
/* kvm_pg__run - statements without arguments in one message; rows are dropped */
KVM_MUST kvm_status kvm_pg__run(kvm_pg *p, const char *sql, int ms, kvm_err *err);

/* kvm_pg__failed - fills err from a result (NULL: the connection is lost, and is
 * dropped). sql: what was asked, NULL: not worth showing. */
kvm_status kvm_pg__failed(kvm_pg *p, const PGresult *r, const char *sql, kvm_err *err);
/* kvm_pg__refused - the same of a connection that could not be made */
kvm_status kvm_pg__refused(kvm_pg *p, PGconn *conn, kvm_err *err);

#endif
