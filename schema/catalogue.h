/* catalogue.h - the database that owns all state: open, migrate, look.
 *
 * One file per store (SQLite, local disk) or one database per team (PostgreSQL). What
 * changes a job's state is in job_state.h; a run's results are written there too, with
 * the state, in one transaction. This header opens a catalogue and reads it: a
 * documented view (docs/views.md) comes out as a JSON array of objects, for tables,
 * --json and dashboards alike. A handle belongs to one thread at a time and must not be
 * used in a forked child. */
#ifndef KVM_SCHEMA_CATALOGUE_H
#define KVM_SCHEMA_CATALOGUE_H

#include <jansson.h>

#include "base/json.h"

typedef struct kvm_catalogue kvm_catalogue;

typedef struct kvm_catalogue_options {
    int busy_ms;     /* wait for another writer so long, then KVM_BUSY; 0: 5,000 */
    bool full_sync;  /* commits survive power loss; else they survive kill -9. A server
                      * does as it is configured. */
    bool no_migrate; /* an older or empty schema is KVM_VERSION instead of migrated */
    int answer_ms;   /* a server silent for so long is taken for gone; 0: 12,000 */
} kvm_catalogue_options;

/* kvm_catalogue_open - `where` is a path, whose file is made when absent, or
 * postgres://USER@HOST:PORT/DATABASE, which is there. options NULL: defaults. Closed by
 * keep's cleanup or kvm_catalogue_close, whichever comes first. KVM_VERSION: the schema
 * is newer than this program. KVM_ENVIRONMENT: network file system, no place to write,
 * another program's, or a server that is not there or lets nobody in. KVM_DAMAGED: no
 * sound database, which a later call may find too. Of a server any later call may give
 * KVM_BUSY, for a lock or a lost connection: rolled back and tried again it goes on. */
KVM_MUST kvm_status kvm_catalogue_open(kvm_catalogue **c, kvm_arena *keep,
                                       kvm_str where,
                                       const kvm_catalogue_options *options,
                                       kvm_err *err);
void kvm_catalogue_close(kvm_catalogue *c); /* safe twice */

/* kvm_catalogue_migrate - to this program's schema, in one transaction; two starters do
 * it once. from/to (may be NULL): versions before and after. */
KVM_MUST kvm_status kvm_catalogue_migrate(kvm_catalogue *c, int *from, int *to,
                                          kvm_err *err);
int kvm_catalogue_newest(void); /* the schema version this program knows */

/* Several calls as one transaction; calls that need one of their own join it. After any
 * failure roll back. */
KVM_MUST kvm_status kvm_catalogue_begin(kvm_catalogue *c, kvm_err *err);
KVM_MUST kvm_status kvm_catalogue_commit(kvm_catalogue *c, kvm_err *err);
void kvm_catalogue_rollback(kvm_catalogue *c);

/* kvm_catalogue_hold - within a transaction, and until it ends: nobody else holds this
 * name; or only others who share it. It comes before any row that the transaction
 * locks. Where a transaction keeps all others out anyway (SQLite) it does nothing.
 *   KVM_HOLD_OBJECTS  shared by who names objects of the store, alone for who removes
 *                     those that nobody names */
#define KVM_HOLD_OBJECTS KVM_STR("objects")
KVM_MUST kvm_status kvm_catalogue_hold(kvm_catalogue *c, kvm_str name, bool shared,
                                       kvm_err *err);

/* kvm_catalogue_unsynced - the transaction that is open is committed without waiting
 * for the disk, where others do wait (PostgreSQL): when the server's machine dies right
 * after, it may be as if it had never been. For what hints need, never for a token. */
KVM_MUST kvm_status kvm_catalogue_unsynced(kvm_catalogue *c, kvm_err *err);

/* a condition on a view: column = value; text, or a number when text.at is NULL */
typedef struct kvm_view_filter {
    const char *column;
    kvm_str text;
    int64_t number;
} kvm_view_filter;

/* kvm_catalogue_view - rows of v_quality, v_ttft, v_regressions, v_queue, v_pairs,
 * v_artefacts, v_lineage, v_runs, v_attempts, v_events, v_metrics, v_workers, v_teams
 * or v_schedules as [{column: value}], in the view's documented order.
 *   rows   out: owned by keep
 *   limit  0: all
 * KVM_NOTFOUND: no such view or column (the message lists those there are). */
KVM_MUST kvm_status kvm_catalogue_view(kvm_catalogue *c, json_t **rows, kvm_arena *keep,
                                       const char *view, const kvm_view_filter *filters,
                                       ptrdiff_t filter_count, ptrdiff_t limit,
                                       kvm_err *err);

/* kvm_catalogue_output - the newest result `output` of a kind ("fit") for a pair, or,
 * when run > 0, of that run: hash and size. KVM_NOTFOUND when no such job has
 * succeeded. */
KVM_MUST kvm_status kvm_catalogue_output(kvm_catalogue *c, kvm_str pair, int64_t run,
                                         const char *kind, const char *output,
                                         char sha[65], int64_t *bytes, kvm_err *err);

/* kvm_catalogue_check - what is wrong with the database, for `kvmill doctor`: its own
 * checks of pages, keys and indexes, and drift: migrations whose text is not this
 * program's, tables, indexes and views that are no longer there.
 * problems: JSON strings, owned by keep; empty when sound. */
KVM_MUST kvm_status kvm_catalogue_check(kvm_catalogue *c, json_t **problems,
                                        kvm_arena *keep, kvm_err *err);
/* kvm_catalogue_lacks_reader - the SQL by which a user with more rights makes the role
 * kvmill_reader, who may read the views and nothing else; empty when it is there, or
 * when this database knows no roles. A migration makes it where it may. sql: in keep.
 * */
KVM_MUST kvm_status kvm_catalogue_lacks_reader(kvm_catalogue *c, kvm_str *sql,
                                               kvm_arena *keep, kvm_err *err);
/* kvm_catalogue_id - 16 hexadecimal digits by which others name this catalogue: of the
 * moment in which its schema was made, so a copy in another database is another one.
 * Two might agree; what bears the name must bear that. */
enum { KVM_CATALOGUE_ID = 17 };
KVM_MUST kvm_status kvm_catalogue_id(kvm_catalogue *c, char id[KVM_CATALOGUE_ID],
                                     kvm_err *err);
/* kvm_catalogue_file - whether it is a file, and then its path (borrows) */
bool kvm_catalogue_file(kvm_str where, kvm_str *path);

#endif
