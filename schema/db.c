#include "schema/db.h"

#include <stdlib.h>
#include <string.h>

static const char *const text_of[KVM_SQL_COUNT] = {
#define X(NAME, text) [KVM_SQL_##NAME] = text,
#include "schema/statements.def"
#undef X
};

const kvm_db_driver *(*kvm_db_in_front)(const kvm_db_driver *real);

int64_t kvm_rows_i64(const kvm_rows *r, ptrdiff_t row, ptrdiff_t column)
{
    const kvm_cell *c = &r->cells[row * r->columns + column];
    return c->type == KVM_CELL_INT ? c->i : c->type == KVM_CELL_NUM ? (int64_t)c->f : 0;
}

double kvm_rows_f64(const kvm_rows *r, ptrdiff_t row, ptrdiff_t column)
{
    const kvm_cell *c = &r->cells[row * r->columns + column];
    return c->type == KVM_CELL_NUM ? c->f : c->type == KVM_CELL_INT ? (double)c->i : 0;
}

kvm_str kvm_rows_str(const kvm_rows *r, ptrdiff_t row, ptrdiff_t column)
{
    const kvm_cell *c = &r->cells[row * r->columns + column];
    return c->type == KVM_CELL_TEXT ? c->s : KVM_STR("");
}

/* A scheme names a driver, anything else is the path of an SQLite file. */
static const kvm_db_driver *driver_of(kvm_str where)
{
    static const struct {
        const char *scheme;
        const kvm_db_driver *driver;
    } drivers[] = {{"sqlite:", &kvm_db_sqlite},
                   {"postgres://", &kvm_db_postgres},
                   {"postgresql://", &kvm_db_postgres}};
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
        if (kvm_str_starts(where, kvm_str_of(drivers[i].scheme)))
            return drivers[i].driver;
    return kvm_str_find(where, KVM_STR("://")) < 0 ? &kvm_db_sqlite : NULL;
}

kvm_status kvm_db_open(kvm_db **out, kvm_str where, const kvm_db_options *options,
                       kvm_err *err)
{
    kvm_db_options o = options ? *options : (kvm_db_options){0};
    if (o.busy_ms == 0) o.busy_ms = 5000;
    if (o.answer_ms == 0) o.answer_ms = 12000;
    const kvm_db_driver *driver = driver_of(where);
    if (!driver) /* what follows the scheme may hold a password */
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "catalogue %.*s…: no driver for this address; give the path of "
                        "a file, or postgres://USER@HOST/DATABASE",
                        (int)kvm_str_find(where, KVM_STR("://")) + 3, where.at);
    kvm_db *db = calloc(1, sizeof *db);
    if (!db) return kvm_fail(err, KVM_NOMEM, "catalogue: out of memory");
    db->driver = kvm_db_in_front ? kvm_db_in_front(driver) : driver;
    kvm_status s = kvm_arena_init(&db->small, 1 << 16, err);
    if (!s) s = db->driver->open(db, where, &o, err);
    if (s) {
        kvm_arena_free(&db->small);
        free(db);
        return s;
    }
    *out = db;
    return KVM_OK;
}

void kvm_db_close(kvm_db *db)
{
    if (!db) return;
    kvm_db_rollback(db);
    db->driver->close(db);
    for (int i = 0; i < KVM_SQL_COUNT; i++) free(db->text[i]);
    kvm_arena_free(&db->small);
    free(db);
}

kvm_status kvm_db_begin(kvm_db *db, kvm_err *err)
{
    if (db->depth == 0) TRY(db->driver->begin(db, err));
    db->depth++;
    return KVM_OK;
}

kvm_status kvm_db_commit(kvm_db *db, kvm_err *err)
{
    if (db->depth == 0)
        return kvm_fail(err, KVM_DATABASE,
                        "catalogue: the transaction was rolled back");
    if (db->depth > 1) {
        db->depth--;
        return KVM_OK;
    }
    const kvm_status s = db->driver->commit(db, err);
    if (s)
        kvm_db_rollback(db);
    else
        db->depth = 0;
    return s;
}

void kvm_db_rollback(kvm_db *db)
{
    if (db->depth > 0) db->driver->rollback(db);
    db->depth = 0;
}

kvm_status kvm_db_end(kvm_db *db, kvm_status s, kvm_err *err)
{
    if (!s) return kvm_db_commit(db, err);
    kvm_db_rollback(db);
    return s;
}

kvm_status kvm_db_expand(const kvm_db *db, const char *text, char **out, kvm_err *err)
{
    kvm_text t = {0};
    kvm_str rest = kvm_str_of(text), head, word;
    while (kvm_str_cut(rest, '{', &head, &rest)) {
        kvm_text_add(&t, head);
        if (!kvm_str_cut(rest, '}', &word, &rest) || !db->driver->word(&t, word)) {
            kvm_text_free(&t);
            return kvm_fail(err, KVM_INTERNAL, "%s does not know the word {%.40s",
                            db->driver->name, word.at);
        }
    }
    kvm_text_add(&t, head);
    kvm_text_add(&t, (kvm_str){"", 1});
    if (t.failed) {
        kvm_text_free(&t);
        return kvm_fail(err, KVM_NOMEM, "catalogue: out of memory");
    }
    *out = t.at;
    return KVM_OK;
}

static kvm_status run(kvm_db *db, kvm_sql sql, const kvm_cell *args, ptrdiff_t n,
                      kvm_rows *rows, kvm_arena *keep, int64_t *changed, kvm_err *err)
{
    if (!db->text[sql]) TRY(kvm_db_expand(db, text_of[sql], &db->text[sql], err));
    return db->driver->query(db, sql, db->text[sql], args, n, rows, keep, changed, err);
}

kvm_status kvm_db_exec(kvm_db *db, kvm_sql sql, const kvm_cell *args, ptrdiff_t n,
                       int64_t *changed, kvm_err *err)
{
    return run(db, sql, args, n, NULL, NULL, changed, err);
}

kvm_status kvm_db_query(kvm_db *db, kvm_sql sql, const kvm_cell *args, ptrdiff_t n,
                        kvm_rows *rows, kvm_arena *keep, kvm_err *err)
{
    return run(db, sql, args, n, rows, keep, NULL, err);
}

kvm_status kvm_db_one(kvm_db *db, kvm_sql sql, const kvm_cell *args, ptrdiff_t n,
                      int64_t *value, kvm_err *err)
{
    kvm_arena a = db->small;
    kvm_rows rows;
    TRY(run(db, sql, args, n, &rows, &a, NULL, err));
    *value = rows.count > 0 ? kvm_rows_i64(&rows, 0, 0) : 0;
    return KVM_OK;
}
