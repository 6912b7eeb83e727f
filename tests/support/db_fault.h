/* db_fault.h - a driver in front of the real one, whose n-th call fails as a server's
 * does. Calls of the thread that asked for it are counted, on every connection. */
#ifndef KVM_TESTS_SUPPORT_DB_FAULT_H
#define KVM_TESTS_SUPPORT_DB_FAULT_H

#include "schema/db.h"

#define DB_FAULTS(X)                                                                   \
    X(BUSY, "a call finds a lock")                                                     \
    X(LOST, "the connection is lost before a call")                                    \
    X(UNHEARD, "a call was done, and its answer is lost with the connection")
typedef enum db_fault {
#define X(NAME, what) DB_FAULT_##NAME,
    DB_FAULTS(X)
#undef X
        DB_FAULT_COUNT
} db_fault;

/* db_fault_at - from now on, in databases that are opened from now on: the n-th call
 * (from 1) of this thread. 0: none */
void db_fault_at(db_fault what, int n);
bool db_fault_fired(void);
const char *db_fault_text(db_fault what); /* static */

#endif
