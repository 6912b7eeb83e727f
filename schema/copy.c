#include "schema/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "schema/catalogue_internal.h"
#include "schema/utf8.h"

enum { PAGE = 500, ARGS = 120 }; /* rows that are read at once; most arguments */

static const struct {
    const char *name, *key;
    bool numbered;
    const char *which;
} tables[] = {
#define X(name, key, numbered, which) {#name, key, numbered, which},
#include "schema/tables.def"
#undef X
};
enum { TABLES = sizeof tables / sizeof *tables };

/* A sum over the hashes of rows, for two databases may order texts differently. */
typedef struct digest {
    int64_t rows;
    uint64_t sum[4];
} digest;

/* ---- what a table holds ---- */

static kvm_status add_row(digest *d, const kvm_cell *cells, ptrdiff_t columns,
                          kvm_err *err)
{
    kvm_text t = {0};
    char hex[65], word[17] = "";
    for (ptrdiff_t i = 0; i < columns; i++) {
        kvm_str s = cells[i].s;
        char *heap = NULL;
        if (cells[i].type == KVM_CELL_NULL) kvm_text_addf(&t, "-;");
        if (cells[i].type == KVM_CELL_INT)
            kvm_text_addf(&t, "%lld;", (long long)cells[i].i);
        if (cells[i].type == KVM_CELL_NUM) kvm_text_addf(&t, "%.17g;", cells[i].f);
        if (cells[i].type != KVM_CELL_TEXT) continue;
        t.failed |= !kvm_utf8(&s, &heap);
        kvm_text_addf(&t, "%td:", s.len);
        kvm_text_add(&t, s);
        free(heap);
    }
    const kvm_status s = t.failed ? kvm_fail(err, KVM_NOMEM, "out of memory")
                                  : kvm_sha_of(kvm_text_str(&t), hex, err);
    kvm_text_free(&t);
    if (s) return s;
    for (ptrdiff_t k = 0; k < 4; k++) {
        memcpy(word, hex + 16 * k, 16);
        d->sum[k] += strtoull(word, NULL, 16);
    }
    d->rows++;
    return KVM_OK;
}

static kvm_status query(kvm_db *db, kvm_str sql, const kvm_cell *args, ptrdiff_t n,
                        kvm_rows *rows, kvm_arena *a, kvm_err *err)
{
    if (!sql.at) return kvm_nomem(err, a);
    return db->driver->query(db, -1, sql.at, args, n, rows, a, NULL, err);
}

/* The values of the key's columns in a row. */
static ptrdiff_t key_of(const kvm_rows *r, ptrdiff_t row, const char *key,
                        kvm_cell out[8])
{
    kvm_str name, rest = kvm_str_of(key);
    ptrdiff_t n = 0;
    while (rest.len > 0 && n < 8) {
        kvm_str_cut(rest, ',', &name, &rest);
        for (ptrdiff_t i = 0; i < r->columns; i++)
            if (kvm_str_eq(kvm_str_trim(name), kvm_str_of(r->names[i])))
                out[n++] = r->cells[row * r->columns + i];
    }
    return n;
}

/* The next rows behind the key of `last`, which has n columns; 0: the first. */
static kvm_status page(kvm_db *db, int t, const kvm_cell *last, ptrdiff_t n,
                       kvm_rows *rows, kvm_arena *a, kvm_err *err)
{
    kvm_str behind = KVM_STR("");
    for (ptrdiff_t i = 0; i < n && behind.at; i++)
        behind =
            kvm_str_fmt(a, "%.*s%s$%td", KVM_STR_ARG(behind), i ? ", " : "", i + 1);
    if (n && behind.at)
        behind = kvm_str_fmt(a, " AND (%s) > (%s)", tables[t].key, behind.at);
    if (!behind.at) return kvm_nomem(err, a);
    return query(db,
                 kvm_str_fmt(a, "SELECT * FROM %s WHERE %s%s ORDER BY %s LIMIT %d",
                             tables[t].name, tables[t].which, behind.at, tables[t].key,
                             (int)PAGE),
                 last, n, rows, a, err);
}

/* ---- into the other ---- */

/* up to `count` rows from row `from` on, in one statement */
static kvm_status insert(kvm_db *db, int t, const kvm_rows *r, ptrdiff_t from,
                         ptrdiff_t count, kvm_arena a, kvm_err *err)
{
    kvm_text sql = {0};
    kvm_text_addf(&sql, "INSERT INTO %s(", tables[t].name);
    for (ptrdiff_t i = 0; i < r->columns; i++)
        kvm_text_addf(&sql, "%s%s", i ? ", " : "", r->names[i]);
    for (ptrdiff_t i = 0; i < count * r->columns; i++)
        kvm_text_addf(&sql, "%s$%td",
                      i == 0                ? ") VALUES ("
                      : i % r->columns == 0 ? "), ("
                                            : ", ",
                      i + 1);
    kvm_text_addf(&sql, ")");
    const kvm_status s =
        sql.failed ? kvm_fail(err, KVM_NOMEM, "out of memory")
                   : query(db, kvm_text_str(&sql), &r->cells[from * r->columns],
                           count * r->columns, NULL, &a, err);
    kvm_text_free(&sql);
    return s;
}

static kvm_status insert_all(kvm_db *db, int t, const kvm_rows *r, kvm_arena a,
                             kvm_err *err)
{
    const ptrdiff_t at_once = ARGS / r->columns;
    for (ptrdiff_t i = 0; i < r->count; i += at_once)
        TRY(insert(db, t, r, i, r->count - i < at_once ? r->count - i : at_once, a,
                   err));
    return KVM_OK;
}

/* Reads a table to its end; the rows go to `to`, when it is not NULL. */
static kvm_status walk(kvm_db *db, int t, kvm_db *to, digest *d, kvm_arena scratch,
                       kvm_err *err)
{
    kvm_cell last[8];
    kvm_arena halves[2] = {kvm_arena_split(&scratch, kvm_arena_left(&scratch) / 2),
                           scratch}; /* the last row's key outlives its page */
    ptrdiff_t n = 0;
    *d = (digest){0};
    for (int turn = 0;; turn = !turn) {
        kvm_arena a = halves[turn];
        kvm_rows r;
        TRY(page(db, t, last, n, &r, &a, err));
        for (ptrdiff_t i = 0; i < r.count; i++)
            TRY(add_row(d, &r.cells[i * r.columns], r.columns, err));
        if (to && r.count) TRY(insert_all(to, t, &r, a, err));
        if (r.count < PAGE) return KVM_OK;
        n = key_of(&r, r.count - 1, tables[t].key, last);
    }
}

static kvm_status renumber(kvm_db *db, int t, kvm_arena a, kvm_err *err)
{
    char *sql;
    const kvm_str text = kvm_str_fmt(&a, "{renumber %s}", tables[t].name);
    if (!text.at) return kvm_nomem(err, &a);
    TRY(kvm_db_expand(db, text.at, &sql, err));
    kvm_rows rows;
    const kvm_status s = query(db, kvm_str_of(sql), KVM_NO_ARGS, &rows, &a, err);
    free(sql);
    return s;
}

static kvm_status copy_table(kvm_catalogue *from, kvm_catalogue *to, int t,
                             kvm_copied *done, kvm_err *err)
{
    digest was, is;
    TRY(walk(from->db, t, to->db, &was, from->scratch, err));
    TRY(walk(to->db, t, NULL, &is, to->scratch, err));
    if (memcmp(&was, &is, sizeof was) != 0)
        return kvm_fail(
            err, KVM_MISMATCH,
            "table %s: %lld rows went to %.*s and %lld other ones came back",
            tables[t].name, (long long)was.rows, KVM_STR_ARG(to->where),
            (long long)is.rows);
    if (tables[t].numbered) TRY(renumber(to->db, t, to->scratch, err));
    *done = (kvm_copied){tables[t].name, was.rows};
    return KVM_OK;
}

/* ---- whether it may be done ---- */

static kvm_status count_rows(kvm_catalogue *c, const char *from, int64_t *rows,
                             kvm_err *err)
{
    kvm_arena a = c->scratch;
    kvm_rows r;
    TRY(query(c->db, kvm_str_fmt(&a, "SELECT COUNT(*) FROM %s", from), KVM_NO_ARGS, &r,
              &a, err));
    *rows = kvm_rows_i64(&r, 0, 0);
    return KVM_OK;
}

static kvm_status check_both(kvm_catalogue *from, kvm_catalogue *to, kvm_err *err)
{
    int64_t n;
    TRY(count_rows(from, "job WHERE state IN ('running', 'cancelling')", &n, err));
    if (n)
        return kvm_fail(err, KVM_BUSY,
                        "catalogue %.*s: %lld jobs are running; stop the workers first",
                        KVM_STR_ARG(from->where), (long long)n);
    for (int t = 0; t < TABLES; t++) {
        TRY(count_rows(to, tables[t].name, &n, err));
        if (n)
            return kvm_fail(err, KVM_EXISTS,
                            "catalogue %.*s is not empty: table %s has %lld rows; name "
                            "a new one",
                            KVM_STR_ARG(to->where), tables[t].name, (long long)n);
    }
    return KVM_OK;
}

static kvm_status copy_all(kvm_catalogue *from, kvm_catalogue *to, kvm_copied *done,
                           ptrdiff_t *count, kvm_err *err)
{
    *count = 0;
    TRY(kvm_catalogue_hold(to, KVM_STR("migrate"), false, err));
    TRY(check_both(from, to, err));
    for (int t = 0; t < TABLES; t++) {
        kvm_copied one;
        TRY(copy_table(from, to, t, &one, err));
        if (*count && done[*count - 1].table == one.table)
            done[*count - 1].rows += one.rows; /* in two parts */
        else
            done[(*count)++] = one;
    }
    return KVM_OK;
}

kvm_status kvm_catalogue_copy(kvm_catalogue *from, kvm_catalogue *to, kvm_copied **out,
                              ptrdiff_t *count, kvm_arena *keep, kvm_err *err)
{
    kvm_copied *done = kvm_new(keep, kvm_copied, TABLES);
    if (!done) return kvm_nomem(err, keep);
    TRY(kvm_db_begin(from->db, err));
    kvm_status s = kvm_db_exec(from->db, KVM_SQL_SNAPSHOT, KVM_NO_ARGS, NULL, err);
    if (!s) s = kvm_db_begin(to->db, err);
    if (!s) s = kvm_db_end(to->db, copy_all(from, to, done, count, err), err);
    kvm_db_rollback(from->db);
    *out = done;
    return s;
}
