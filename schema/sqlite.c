/* sqlite.c - the SQLite driver: WAL, BEGIN IMMEDIATE, foreign keys, local disk only.
 *
 * Every write transaction takes the write lock when it begins: of those that read first
 * and wrote later, 840 of 1,200 failed at once with four writers, however long the busy
 * timeout; of those that begin IMMEDIATE, 2. synchronous is NORMAL unless asked: a
 * commit survives kill -9 of every process; a power cut may take back the last ones,
 * whose jobs then run again. The log is folded into the file every 8,000 pages instead
 * of 1,000: each time syncs twice, and a job dirties about twenty pages. */
#include <errno.h>
#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "schema/list.h"
#include "schema/netfs.h"

typedef struct lite {
    sqlite3 *db;
    int busy_ms;
    sqlite3_stmt *kept[KVM_SQL_COUNT];
    char path[1024]; /* for messages */
} lite;

/* no more may be written: the disk, a quota or a limit is reached */
static bool full(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

static kvm_status status_of(lite *l, int rc)
{
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return KVM_BUSY;
    case SQLITE_NOMEM:
        return KVM_NOMEM;
    case SQLITE_FULL:
        return KVM_NOSPACE;
    case SQLITE_IOERR:
        return full(sqlite3_system_errno(l->db)) ? KVM_NOSPACE : KVM_IO;
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return KVM_ENVIRONMENT;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return KVM_DAMAGED;
    case SQLITE_CONSTRAINT:
        return rc == SQLITE_CONSTRAINT_UNIQUE || rc == SQLITE_CONSTRAINT_PRIMARYKEY
                   ? KVM_EXISTS
                   : KVM_MISMATCH;
    default:
        return KVM_DATABASE;
    }
}

/* What a person can do about a code; NULL when the message says it all. */
static const char *remedy(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return "put a sound copy back, or move the file away: a new catalogue is then "
               "made and the work done again";
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return "it must be a file that this user may write, in a folder where this "
               "user "
               "may make files; or name another store";
    default:
        return NULL;
    }
}

static kvm_status fail(lite *l, int rc, const char *sql, kvm_err *err)
{
    const kvm_status s = status_of(l, rc);
    const int code = sqlite3_system_errno(l->db);
    const bool io = (rc & 0xff) == SQLITE_IOERR;
    if ((io || (rc & 0xff) == SQLITE_CANTOPEN) && (code == EMFILE || code == ENFILE))
        return kvm_fail(err, KVM_ENVIRONMENT,
                        "catalogue %s: too many open files: raise `ulimit -n`",
                        l->path);
    if (s == KVM_NOSPACE)
        return kvm_fail(err, s,
                        "catalogue %s: no space left (%s): free some, then the same "
                        "command goes on",
                        l->path, io ? strerror(code) : sqlite3_errmsg(l->db));
    if (remedy(rc))
        return kvm_fail(err, s, "catalogue %s: %s; %s", l->path, sqlite3_errmsg(l->db),
                        remedy(rc));
    if (s == KVM_BUSY)
        return kvm_fail(err, s,
                        "catalogue %s: another process has held its write lock for "
                        "%d ms",
                        l->path, l->busy_ms);
    return kvm_fail(err, s, "catalogue %s: %s (%s; in: %.80s)", l->path,
                    sqlite3_errmsg(l->db), sqlite3_errstr(rc), sql);
}

/* Of canonical JSON, by its letters: a view may not call json_extract where the schema
 * is not trusted. A quote inside a text stands behind a backslash, so only a key reads
 * so. */
static void text_member(kvm_text *out, kvm_str column, kvm_str member)
{
    kvm_text rest = {0};
    kvm_text_addf(&rest, "substr(%.*s, instr(%.*s, '\"%.*s\":\"') + %td)",
                  KVM_STR_ARG(column), KVM_STR_ARG(column), KVM_STR_ARG(member),
                  member.len + 4);
    kvm_text_addf(out,
                  "CASE WHEN instr(%.*s, '\"%.*s\":\"') > 0 THEN substr(%s, 1, "
                  "instr(%s, '\"') - 1) END",
                  KVM_STR_ARG(column), KVM_STR_ARG(member), rest.at ? rest.at : "",
                  rest.at ? rest.at : "");
    out->failed |= rest.failed;
    kvm_text_free(&rest);
}

/* "$1: id i, name t"; JSON knows its types */
static bool rows_of(kvm_text *out, kvm_str word)
{
    kvm_str list, rest, name;
    char type;
    int n = 0;
    if (!kvm_str_cut(word, ':', &list, &rest)) return false;
    kvm_text_addf(out, "(SELECT ");
    for (; kvm_list_column(&rest, &name, &type); n++)
        kvm_text_addf(out, "%sjson_extract(value, '$[%d]') AS %.*s", n ? ", " : "", n,
                      KVM_STR_ARG(name));
    kvm_text_addf(out, " FROM json_each(%.*s))", KVM_STR_ARG(list));
    return n > 0 && rest.len == 0;
}

static bool lite_word(kvm_text *out, kvm_str word)
{
    kvm_str column, member;
    if (kvm_str_starts(word, KVM_STR("rows ")))
        return rows_of(out, kvm_str_slice(word, 5, word.len));
    if (kvm_str_eq(word, KVM_STR("now")))
        kvm_text_add(out, KVM_STR("((julianday('now') - 2440587.5) * 86400.0)"));
    else if (kvm_str_eq(word, KVM_STR("id")))
        kvm_text_add(out, KVM_STR("INTEGER PRIMARY KEY"));
    else if (kvm_str_starts(word, KVM_STR("by ")))
        kvm_text_addf(out, "INDEXED BY %.*s", (int)word.len - 3, word.at + 3);
    else if (kvm_str_starts(word, KVM_STR("text ")) &&
             kvm_str_cut(kvm_str_slice(word, 5, word.len), ' ', &column, &member))
        text_member(out, column, member);
    else if (kvm_str_starts(word, KVM_STR("alone ")) ||
             kvm_str_starts(word, KVM_STR("shared ")) ||
             kvm_str_starts(word, KVM_STR("mine ")))
        kvm_text_add(out, KVM_STR("1"));
    else if (kvm_str_eq(word, KVM_STR("objects")))
        kvm_text_add(out, KVM_STR("sqlite_master"));
    else if (kvm_str_eq(word, KVM_STR("snapshot")) ||
             kvm_str_eq(word, KVM_STR("unsynced")) ||
             kvm_str_starts(word, KVM_STR("renumber ")))
        kvm_text_add(out, KVM_STR("SELECT 1")); /* it is so anyway */
    else if (!kvm_str_eq(word, KVM_STR("lock")) && !kvm_str_eq(word, KVM_STR("skip")))
        return false; /* locks are nothing here: BEGIN IMMEDIATE has locked all */
    return true;
}

static kvm_status plain(lite *l, const char *sql, kvm_err *err)
{
    const int rc = sqlite3_exec(l->db, sql, NULL, NULL, NULL);
    return rc ? fail(l, rc, sql, err) : KVM_OK;
}

/* power(x, y): SQLite may have been built without it */
static void lite_power(sqlite3_context *ctx, int n, sqlite3_value **v)
{
    (void)n;
    sqlite3_result_double(ctx,
                          pow(sqlite3_value_double(v[0]), sqlite3_value_double(v[1])));
}

/* Two processes that make the file at once: the switch to WAL does not wait for a lock
 * by itself. */
static kvm_status use_wal(lite *l, kvm_err *err)
{
    const double until = kvm_now() + l->busy_ms / 1e3;
    for (;;) {
        sqlite3_stmt *st = NULL;
        int rc = sqlite3_prepare_v2(l->db, "PRAGMA journal_mode = WAL", -1, &st, NULL);
        if (!rc) rc = sqlite3_step(st);
        const bool wal = rc == SQLITE_ROW &&
                         !strcmp((const char *)sqlite3_column_text(st, 0), "wal");
        sqlite3_finalize(st);
        if (wal) return KVM_OK;
        if (rc == SQLITE_ROW)
            return kvm_fail(err, KVM_ENVIRONMENT,
                            "catalogue %s: this file system cannot hold a "
                            "write-ahead log; put the store on a local disk",
                            l->path);
        if ((rc & 0xff) != SQLITE_BUSY || kvm_now() > until)
            return fail(l, rc, "PRAGMA journal_mode", err);
        kvm_sleep(0.01);
    }
}

static kvm_status set_up(lite *l, const kvm_db_options *o, kvm_err *err)
{
    sqlite3_extended_result_codes(l->db, 1);
    sqlite3_busy_timeout(l->db, o->busy_ms);
    const int rc =
        sqlite3_create_function(l->db, "power", 2, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                                NULL, lite_power, NULL, NULL);
    if (rc) return fail(l, rc, "power", err);
    TRY(use_wal(l, err));
    TRY(plain(
        l, o->full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL",
        err));
    return plain(l,
                 "PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; "
                 "PRAGMA wal_autocheckpoint = 8000; "
                 "PRAGMA trusted_schema = OFF",
                 err);
}

static kvm_status refuse_network(kvm_str where, kvm_err *err)
{
    char dir[1024] = ".";
    for (ptrdiff_t i = where.len; i-- > 0;)
        if (where.at[i] == '/') {
            memcpy(dir, where.at, (size_t)(i + 1));
            dir[i + 1] = 0;
            break;
        }
    const char *network = kvm_netfs_name(kvm_str_of(dir));
    if (!network) return KVM_OK;
    return kvm_fail(err, KVM_ENVIRONMENT,
                    "catalogue %.*s lies on %s, a network file system, whose locks do "
                    "not protect it: put the store on a local disk",
                    KVM_STR_ARG(where), network);
}

static void lite_close(kvm_db *db)
{
    lite *l = db->impl;
    for (int i = 0; i < KVM_SQL_COUNT; i++) sqlite3_finalize(l->kept[i]);
    sqlite3_close(l->db);
    free(l);
}

static kvm_status lite_open(kvm_db *db, kvm_str where, const kvm_db_options *options,
                            kvm_err *err)
{
    if (kvm_str_starts(where, KVM_STR("sqlite:")))
        where = kvm_str_slice(where, 7, where.len);
    if (where.len <= 0 || where.len >= (ptrdiff_t)sizeof((lite *)0)->path)
        return kvm_fail(err, KVM_USAGE, "catalogue: a path of %td bytes", where.len);
    TRY(refuse_network(where, err));
    lite *l = calloc(1, sizeof *l);
    if (!l) return kvm_fail(err, KVM_NOMEM, "catalogue: out of memory");
    memcpy(l->path, where.at, (size_t)where.len);
    l->busy_ms = options->busy_ms;
    db->impl = l;
    db->shown = l->path;
    const int rc = sqlite3_open_v2(
        l->path, &l->db,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    kvm_status s;
    if (!l->db)
        s = kvm_fail(err, KVM_NOMEM, "catalogue: out of memory");
    else if (rc)
        s = fail(l, rc, "open", err);
    else
        s = set_up(l, options, err);
    if (s) lite_close(db);
    return s;
}

static kvm_status lite_begin(kvm_db *db, kvm_err *err)
{
    return plain(db->impl, "BEGIN IMMEDIATE", err);
}

static kvm_status lite_commit(kvm_db *db, kvm_err *err)
{
    return plain(db->impl, "COMMIT", err);
}

static void lite_rollback(kvm_db *db)
{
    lite *l = db->impl;
    if (!sqlite3_get_autocommit(l->db))
        sqlite3_exec(l->db, "ROLLBACK", NULL, NULL, NULL);
}

static kvm_status lite_script(kvm_db *db, const char *sql, kvm_err *err)
{
    return plain(db->impl, sql, err);
}

/* $3 -> args[2]; the arguments outlive the step */
static int bind(sqlite3_stmt *st, const kvm_cell *args, ptrdiff_t n)
{
    const int count = sqlite3_bind_parameter_count(st);
    for (int i = 1; i <= count; i++) {
        const char *name = sqlite3_bind_parameter_name(st, i);
        const long k = name ? strtol(name + 1, NULL, 10) : 0;
        if (k < 1 || k > n) return SQLITE_RANGE;
        const kvm_cell *c = &args[k - 1];
        int rc = SQLITE_OK;
        switch (c->type) {
        case KVM_CELL_NULL:
            rc = sqlite3_bind_null(st, i);
            break;
        case KVM_CELL_INT:
            rc = sqlite3_bind_int64(st, i, c->i);
            break;
        case KVM_CELL_NUM:
            rc = sqlite3_bind_double(st, i, c->f);
            break;
        case KVM_CELL_TEXT:
            rc = sqlite3_bind_text64(st, i, c->s.at, (sqlite3_uint64)c->s.len,
                                     SQLITE_STATIC, SQLITE_UTF8);
            break;
        }
        if (rc) return rc;
    }
    return SQLITE_OK;
}

static bool copy_row(sqlite3_stmt *st, kvm_cell *cells, int columns, kvm_arena *keep)
{
    for (int i = 0; i < columns; i++) {
        kvm_cell *c = &cells[i];
        switch (sqlite3_column_type(st, i)) {
        case SQLITE_INTEGER:
            *c = kvm_cell_i(sqlite3_column_int64(st, i));
            break;
        case SQLITE_FLOAT:
            *c = kvm_cell_f(sqlite3_column_double(st, i));
            break;
        case SQLITE_NULL:
            *c = (kvm_cell){0};
            break;
        default: {
            const char *text = (const char *)sqlite3_column_text(st, i);
            if (!text) return false;
            *c = kvm_cell_s(
                kvm_str_copy(keep, (kvm_str){text, sqlite3_column_bytes(st, i)}));
            if (!c->s.at) return false;
        }
        }
    }
    return true;
}

/* Cells grow by doubling, in keep: a result of n rows costs at most twice its size. */
static bool room(kvm_rows *rows, ptrdiff_t *cap, kvm_arena *keep)
{
    if (rows->count < *cap) return true;
    const ptrdiff_t more = *cap ? 2 * *cap : 8;
    kvm_cell *cells = kvm_new(keep, kvm_cell, more * rows->columns);
    if (!cells) return false;
    if (rows->count)
        memcpy(cells, rows->cells,
               sizeof *cells * (size_t)(rows->count * rows->columns));
    rows->cells = cells;
    *cap = more;
    return true;
}

static bool start_rows(sqlite3_stmt *st, kvm_rows *rows, kvm_arena *keep)
{
    *rows = (kvm_rows){.columns = sqlite3_column_count(st)};
    const char **names = kvm_new(keep, const char *, rows->columns + 1);
    for (int i = 0; names && i < rows->columns; i++) {
        names[i] = kvm_str_copy(keep, kvm_str_of(sqlite3_column_name(st, i))).at;
        if (!names[i]) names = NULL;
    }
    rows->names = names;
    return names != NULL;
}

static kvm_status step_all(lite *l, sqlite3_stmt *st, const char *sql, kvm_rows *rows,
                           kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t cap = 0;
    int rc;
    if (rows && !start_rows(st, rows, keep)) return kvm_nomem(err, keep);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        if (!rows) continue;
        if (!room(rows, &cap, keep)) return kvm_nomem(err, keep);
        kvm_cell *at = (kvm_cell *)(uintptr_t)rows->cells + rows->count * rows->columns;
        if (!copy_row(st, at, (int)rows->columns, keep)) return kvm_nomem(err, keep);
        rows->count++;
    }
    return rc == SQLITE_DONE ? KVM_OK : fail(l, rc, sql, err);
}

static kvm_status lite_query(kvm_db *db, int slot, const char *sql,
                             const kvm_cell *args, ptrdiff_t n, kvm_rows *rows,
                             kvm_arena *keep, int64_t *changed, kvm_err *err)
{
    lite *l = db->impl;
    sqlite3_stmt *st = slot >= 0 ? l->kept[slot] : NULL;
    int rc = SQLITE_OK;
    if (!st) {
        rc = sqlite3_prepare_v3(l->db, sql, -1,
                                slot >= 0 ? SQLITE_PREPARE_PERSISTENT : 0, &st, NULL);
        if (rc) return fail(l, rc, sql, err);
        if (slot >= 0) l->kept[slot] = st;
    }
    kvm_status s = KVM_OK;
    if ((rc = bind(st, args, n)) != SQLITE_OK) s = fail(l, rc, sql, err);
    if (!s) s = step_all(l, st, sql, rows, keep, err);
    if (!s && changed) *changed = sqlite3_changes64(l->db);
    sqlite3_reset(st);
    if (slot < 0) sqlite3_finalize(st);
    return s;
}

static kvm_status lite_tables(kvm_db *db, const char *name, int64_t *known,
                              int64_t *tables, kvm_err *err)
{
    kvm_arena a = db->small;
    kvm_rows rows;
    TRY(lite_query(db, -1,
                   "SELECT COUNT(CASE WHEN name = $1 THEN 1 END), COUNT(*) "
                   "FROM sqlite_master WHERE type = 'table'",
                   KVM_ARGS(kvm_cell_c(name)), &rows, &a, NULL, err));
    *known = kvm_rows_i64(&rows, 0, 0);
    *tables = kvm_rows_i64(&rows, 0, 1);
    return KVM_OK;
}

static int add_problem(void *ctx, int columns, char **values, char **names)
{
    const char *text = columns > 0 && values[0] ? values[0] : "?";
    (void)names;
    if (strcmp(text, "ok")) json_array_append_new(ctx, json_string(text));
    return 0;
}

static kvm_status lite_check(kvm_db *db, json_t *problems, kvm_err *err)
{
    static const char *const checks[] = {"PRAGMA integrity_check(20)",
                                         "SELECT 'row ' || rowid || ' of ' || "
                                         "\"table\" || ' names a missing ' || parent "
                                         "FROM pragma_foreign_key_check LIMIT 20"};
    lite *l = db->impl;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const int rc = sqlite3_exec(l->db, checks[i], add_problem, problems, NULL);
        if (rc) return fail(l, rc, checks[i], err);
    }
    return KVM_OK;
}

const kvm_db_driver kvm_db_sqlite = {
    .name = "SQLite",
    .word = lite_word,
    .open = lite_open,
    .close = lite_close,
    .begin = lite_begin,
    .commit = lite_commit,
    .rollback = lite_rollback,
    .script = lite_script,
    .query = lite_query,
    .tables = lite_tables,
    .check = lite_check,
};
