/* db.h - the one door to a database: statements in, rows out, behind a driver.
 *
 * Private to schema/. Statements stand once, in statements.def, for every database;
 * what differs is a word in braces, {now} or {id}, that the driver spells. Parameters
 * are $1, $2 … Rows are copied into the caller's arena, so no cursor stays open. A
 * connection belongs to one thread at a time and does not survive a fork: the child
 * neither uses nor closes it. */
#ifndef KVM_SCHEMA_DB_H
#define KVM_SCHEMA_DB_H

#include <jansson.h>

#include "base/str.h"

typedef enum kvm_sql {
#define X(NAME, text) KVM_SQL_##NAME,
#include "schema/statements.def"
#undef X
    KVM_SQL_COUNT
} kvm_sql;

typedef enum kvm_cell_type {
    KVM_CELL_NULL,
    KVM_CELL_INT,
    KVM_CELL_NUM,
    KVM_CELL_TEXT
} kvm_cell_type;

typedef struct kvm_cell {
    kvm_cell_type type;
    int64_t i;
    double f;
    kvm_str s;
} kvm_cell;

static inline kvm_cell kvm_cell_i(int64_t i)
{
    return (kvm_cell){.type = KVM_CELL_INT, .i = i};
}
static inline kvm_cell kvm_cell_f(double f)
{
    return (kvm_cell){.type = KVM_CELL_NUM, .f = f};
}
static inline kvm_cell kvm_cell_s(kvm_str s) /* borrows; s.at == NULL binds null */
{
    return (kvm_cell){.type = s.at ? KVM_CELL_TEXT : KVM_CELL_NULL, .s = s};
}
static inline kvm_cell kvm_cell_c(const char *s)
{
    return kvm_cell_s((kvm_str){s, s ? kvm_str_of(s).len : 0});
}
/* the arguments of a statement: KVM_ARGS(kvm_cell_i(id), kvm_cell_s(name)) */
#define KVM_ARGS(...)                                                                  \
    (const kvm_cell[]){__VA_ARGS__},                                                   \
        (ptrdiff_t)(sizeof((const kvm_cell[]){__VA_ARGS__}) / sizeof(kvm_cell))
#define KVM_NO_ARGS NULL, 0

typedef struct kvm_rows {
    ptrdiff_t count;
    ptrdiff_t columns;
    const char *const *names; /* [columns] */
    const kvm_cell *cells;    /* (count, columns) */
} kvm_rows;

/* a cell read as that type; null and text read as 0, numbers as the empty string */
int64_t kvm_rows_i64(const kvm_rows *r, ptrdiff_t row, ptrdiff_t column);
double kvm_rows_f64(const kvm_rows *r, ptrdiff_t row, ptrdiff_t column);
kvm_str kvm_rows_str(const kvm_rows *r, ptrdiff_t row, ptrdiff_t column);

typedef struct kvm_db_options {
    int busy_ms;    /* how long a statement waits for another writer; 0: 5,000 */
    bool full_sync; /* every commit reaches the disk before it returns (SQLite) */
    int answer_ms;  /* a server that has not answered for so long is taken for gone;
                     * 0: 12,000 */
} kvm_db_options;

typedef struct kvm_db kvm_db;

/* A database. New one = new driver file + a row in kvm_db_open's table. */
typedef struct kvm_db_driver {
    const char *name;
    /* appends what {word} stands for; false when the driver does not know it */
    bool (*word)(kvm_text *out, kvm_str word);
    /* fills db->impl and db->shown; errors say what to do */
    kvm_status (*open)(kvm_db *db, kvm_str where, const kvm_db_options *options,
                       kvm_err *err);
    void (*close)(kvm_db *db);
    /* begin takes the write lock at once (SQLite); a server's lost connection is opened
     * again here, or by a statement outside of a transaction */
    kvm_status (*begin)(kvm_db *db, kvm_err *err);
    /* KVM_BUSY of a server may mean that it was committed and the answer was lost:
     * callers repeat what is fenced, or look */
    kvm_status (*commit)(kvm_db *db, kvm_err *err);
    void (*rollback)(kvm_db *db);
    /* several statements without arguments or rows: migrations */
    kvm_status (*script)(kvm_db *db, const char *sql, kvm_err *err);
    /* one statement. slot >= 0: prepared once and kept under that number. rows may be
     * NULL; else they are copied into keep. changed may be NULL: rows touched. */
    kvm_status (*query)(kvm_db *db, int slot, const char *sql, const kvm_cell *args,
                        ptrdiff_t n, kvm_rows *rows, kvm_arena *keep, int64_t *changed,
                        kvm_err *err);
    /* known: 1 when that table exists; tables: how many there are at all */
    kvm_status (*tables)(kvm_db *db, const char *name, int64_t *known, int64_t *tables,
                         kvm_err *err);
    /* appends what the database's own checks find wrong, as JSON strings */
    kvm_status (*check)(kvm_db *db, json_t *problems, kvm_err *err);
    /* the role kvmill_reader, who may read the views and nothing else: made, when this
     * user may, in the transaction that has made the schema. NULL: no roles. */
    kvm_status (*make_reader)(kvm_db *db, kvm_err *err);
    /* appends the SQL by which another user makes it; nothing when it is there. NULL:
     * as above. */
    kvm_status (*lacks_reader)(kvm_db *db, kvm_text *sql, kvm_err *err);
} kvm_db_driver;

extern const kvm_db_driver kvm_db_sqlite, kvm_db_postgres;

/* Tests put a driver in front of the one that an address names; NULL: nobody does. */
extern const kvm_db_driver *(*kvm_db_in_front)(const kvm_db_driver *real);

struct kvm_db {
    const kvm_db_driver *driver;
    void *impl;
    const char *shown; /* the address as messages name it, without password; impl's */
    kvm_arena small;   /* for single values; used by value */
    int depth;         /* of begin; inner ones join the outer transaction */
    char *text[KVM_SQL_COUNT]; /* expanded on first use, heap */
};

/* kvm_db_open - where: a path (SQLite) or postgres://USER@HOST:PORT/DATABASE; the
 * password, when one is needed, comes from PGPASSWORD, ~/.pgpass or the address.
 * KVM_ENVIRONMENT for a network file system, a place that may not be written, a server
 * that cannot be reached or lets nobody in; KVM_DAMAGED for a file that is no sound
 * database, from any later call as well; KVM_UNSUPPORTED for an unknown scheme. */
KVM_MUST kvm_status kvm_db_open(kvm_db **db, kvm_str where,
                                const kvm_db_options *options, kvm_err *err);
void kvm_db_close(kvm_db *db); /* rolls back what is open; NULL is fine */

/* Transactions nest by counting: the outermost commit commits; any rollback rolls all
 * back (the outer levels then fail with KVM_DATABASE at their commit). */
KVM_MUST kvm_status kvm_db_begin(kvm_db *db, kvm_err *err);
KVM_MUST kvm_status kvm_db_commit(kvm_db *db, kvm_err *err);
void kvm_db_rollback(kvm_db *db);
/* kvm_db_end - commit when s is KVM_OK, else roll back and give s: return
 * kvm_db_end(db, s, err); */
KVM_MUST kvm_status kvm_db_end(kvm_db *db, kvm_status s, kvm_err *err);

KVM_MUST kvm_status kvm_db_exec(kvm_db *db, kvm_sql sql, const kvm_cell *args,
                                ptrdiff_t n, int64_t *changed, kvm_err *err);
KVM_MUST kvm_status kvm_db_query(kvm_db *db, kvm_sql sql, const kvm_cell *args,
                                 ptrdiff_t n, kvm_rows *rows, kvm_arena *keep,
                                 kvm_err *err);
/* kvm_db_one - the first column of the first row as a number (RETURNING id, EXISTS-like
 * reads); 0 when there is no row. */
KVM_MUST kvm_status kvm_db_one(kvm_db *db, kvm_sql sql, const kvm_cell *args,
                               ptrdiff_t n, int64_t *value, kvm_err *err);
/* kvm_db_expand - the text with every {word} spelled for this driver; heap, the caller
 * frees. KVM_INTERNAL for an unknown word. */
KVM_MUST kvm_status kvm_db_expand(const kvm_db *db, const char *text, char **out,
                                  kvm_err *err);

#endif
