#include "schema/catalogue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/hash.h"
#include "schema/catalogue_internal.h"
#include "schema/migrations.h"

enum { SCRATCH_BYTES = 256 << 20 }; /* reserved, not used: the rows of one call */

int kvm_catalogue_newest(void)
{
    return kvm_migrations[kvm_migration_count - 1].version;
}

void kvm_catalogue_close(kvm_catalogue *c)
{
    if (!c || !c->db) return;
    kvm_db_close(c->db);
    kvm_arena_free(&c->scratch);
    c->db = NULL;
}

static void close_late(void *c)
{
    kvm_catalogue_close(c);
}

/* The catalogue's version; 0 when it has none yet. */
static kvm_status read_version(kvm_catalogue *c, int *version, kvm_err *err)
{
    int64_t v = 0;
    TRY(kvm_db_one(c->db, KVM_SQL_VERSION, KVM_NO_ARGS, &v, err));
    *version = (int)v;
    if (v <= kvm_catalogue_newest()) return KVM_OK;
    return kvm_fail(
        err, KVM_VERSION,
        "catalogue %.*s has schema %d, made by a newer kvmill; this one (%s) "
        "knows up to %d: use the newer program",
        KVM_STR_ARG(c->where), *version, KVM_PROGRAM_VERSION, kvm_catalogue_newest());
}

/* The table of versions comes first. A database that has other tables but not this one
 * belongs to somebody else. */
static kvm_status bootstrap(kvm_catalogue *c, kvm_err *err)
{
    int64_t known = 0, tables = 0;
    TRY(c->db->driver->tables(c->db, "schema_version", &known, &tables, err));
    if (known) return KVM_OK;
    if (tables)
        return kvm_fail(err, KVM_ENVIRONMENT,
                        "catalogue %.*s: this database has %lld tables but none of "
                        "kvmill's: it is not a catalogue; name another store",
                        KVM_STR_ARG(c->where), (long long)tables);
    return c->db->driver->script(c->db,
                                 "CREATE TABLE schema_version (version BIGINT PRIMARY "
                                 "KEY, sha TEXT NOT NULL, program TEXT NOT NULL, "
                                 "applied_at DOUBLE PRECISION NOT NULL)",
                                 err);
}

static kvm_status apply(kvm_catalogue *c, const kvm_migration *m, kvm_err *err)
{
    char sha[65], *sql = NULL;
    TRY(kvm_sha_of(kvm_str_of(m->sql), sha, err));
    TRY(kvm_db_expand(c->db, m->sql, &sql, err));
    const kvm_status s = c->db->driver->script(c->db, sql, err);
    free(sql);
    if (s) return kvm_err_prefix(err, s, "migration %d", m->version);
    return kvm_db_exec(c->db, KVM_SQL_VERSION_ADD,
                       KVM_ARGS(kvm_cell_i(m->version), kvm_cell_c(sha),
                                kvm_cell_c(KVM_PROGRAM_VERSION)),
                       NULL, err);
}

static kvm_status migrate(kvm_catalogue *c, int *from, kvm_err *err)
{
    TRY(kvm_catalogue_hold(c, KVM_STR("migrate"), false, err));
    TRY(bootstrap(c, err));
    TRY(read_version(c, from, err));
    for (int i = 0; i < kvm_migration_count; i++)
        if (kvm_migrations[i].version > *from) TRY(apply(c, &kvm_migrations[i], err));
    return c->db->driver->make_reader ? c->db->driver->make_reader(c->db, err) : KVM_OK;
}

/* The write lock is taken, or the name held, before the version is read: of two
 * starters the second finds the work done. */
kvm_status kvm_catalogue_migrate(kvm_catalogue *c, int *from, int *to, kvm_err *err)
{
    int before = 0;
    TRY(kvm_db_begin(c->db, err));
    TRY(kvm_db_end(c->db, migrate(c, &before, err), err));
    if (from) *from = before;
    if (to) *to = kvm_catalogue_newest();
    return KVM_OK;
}

/* Most openings find nothing to migrate: they take no lock. */
static kvm_status up_to_date(kvm_catalogue *c, bool *yes, kvm_err *err)
{
    int64_t known = 0, tables = 0;
    int version = 0;
    TRY(c->db->driver->tables(c->db, "schema_version", &known, &tables, err));
    if (known) TRY(read_version(c, &version, err));
    *yes = version == kvm_catalogue_newest();
    return KVM_OK;
}

static kvm_status make_current(kvm_catalogue *c, bool no_migrate, kvm_err *err)
{
    bool yes = false;
    TRY(up_to_date(c, &yes, err));
    if (yes) return KVM_OK;
    if (no_migrate)
        return kvm_fail(err, KVM_VERSION,
                        "the schema of catalogue %.*s is older than this program's "
                        "(%d): run `kvmill migrate`",
                        KVM_STR_ARG(c->where), kvm_catalogue_newest());
    return kvm_catalogue_migrate(c, NULL, NULL, err);
}

kvm_status kvm_catalogue_open(kvm_catalogue **out, kvm_arena *keep, kvm_str where,
                              const kvm_catalogue_options *options, kvm_err *err)
{
    const kvm_catalogue_options o = options ? *options : (kvm_catalogue_options){0};
    kvm_catalogue *c = kvm_new(keep, kvm_catalogue, 1);
    if (!c) return kvm_nomem(err, keep);
    TRY(kvm_arena_init(&c->scratch, SCRATCH_BYTES, err));
    kvm_status s = kvm_db_open(
        &c->db, where, &(kvm_db_options){o.busy_ms, o.full_sync, o.answer_ms}, err);
    if (s) {
        kvm_arena_free(&c->scratch);
        return s;
    }
    TRY(kvm_arena_defer(keep, close_late, c, err));
    c->where = kvm_str_of(c->db->shown);
    s = make_current(c, o.no_migrate, err);
    if (s) {
        kvm_catalogue_close(c);
        return s;
    }
    *out = c;
    return KVM_OK;
}

kvm_status kvm_catalogue_begin(kvm_catalogue *c, kvm_err *err)
{
    return kvm_db_begin(c->db, err);
}

kvm_status kvm_catalogue_commit(kvm_catalogue *c, kvm_err *err)
{
    return kvm_db_commit(c->db, err);
}

void kvm_catalogue_rollback(kvm_catalogue *c)
{
    kvm_db_rollback(c->db);
}

kvm_status kvm_catalogue_hold(kvm_catalogue *c, kvm_str name, bool shared, kvm_err *err)
{
    int64_t ignored = 0;
    return kvm_db_one(c->db, shared ? KVM_SQL_HOLD_SHARED : KVM_SQL_HOLD_ALONE,
                      KVM_ARGS(kvm_cell_s(name)), &ignored, err);
}

kvm_status kvm_catalogue_unsynced(kvm_catalogue *c, kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_UNSYNCED, KVM_NO_ARGS, NULL, err);
}

/* What is wrong with the schema's history: text that differs, versions that are
 * missing. */
static kvm_status drift(kvm_catalogue *c, json_t *problems, kvm_arena scratch,
                        kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_VERSIONS, KVM_NO_ARGS, &rows, &scratch, err));
    for (int i = 0; i < kvm_migration_count; i++) {
        const kvm_migration *m = &kvm_migrations[i];
        char sha[65];
        const char *what = "is missing";
        TRY(kvm_sha_of(kvm_str_of(m->sql), sha, err));
        for (ptrdiff_t r = 0; r < rows.count; r++)
            if (kvm_rows_i64(&rows, r, 0) == m->version)
                what = kvm_str_eq(kvm_rows_str(&rows, r, 1), kvm_str_of(sha))
                           ? NULL
                           : "was applied with another text";
        if (what)
            json_array_append_new(problems,
                                  json_sprintf("migration %d %s", m->version, what));
    }
    return KVM_OK;
}

/* The next word of a script; a word is what stands between spaces and brackets. */
static kvm_str next_word(kvm_str *rest)
{
    static const char between[] = " \t\n(;";
    ptrdiff_t from = 0;
    while (from < rest->len && strchr(between, rest->at[from])) from++;
    ptrdiff_t to = from;
    while (to < rest->len && !strchr(between, rest->at[to])) to++;
    const kvm_str word = kvm_str_slice(*rest, from, to);
    *rest = kvm_str_slice(*rest, to, rest->len);
    return word;
}

static bool is_object(kvm_str word)
{
    return kvm_str_eq(word, KVM_STR("TABLE")) || kvm_str_eq(word, KVM_STR("INDEX")) ||
           kvm_str_eq(word, KVM_STR("VIEW"));
}

static bool is_there(const kvm_rows *names, kvm_str name)
{
    for (ptrdiff_t i = 0; i < names->count; i++)
        if (kvm_str_eq(kvm_rows_str(names, i, 0), name)) return true;
    return false;
}

/* DROP KIND NAME: in the rest of a script, or in a later one. */
static bool is_dropped(kvm_str rest, int script, kvm_str name)
{
    for (;;) {
        while (rest.len > 0) {
            if (!kvm_str_eq(next_word(&rest), KVM_STR("DROP"))) continue;
            next_word(&rest);
            if (kvm_str_eq(next_word(&rest), name)) return true;
        }
        if (++script == kvm_migration_count) return false;
        rest = kvm_str_of(kvm_migrations[script].sql);
    }
}

/* Every table, index and view that a script creates, and no later one drops, is still
 * there: CREATE [UNIQUE] KIND NAME. */
static kvm_status missing(kvm_catalogue *c, json_t *problems, kvm_arena scratch,
                          kvm_err *err)
{
    kvm_rows names;
    TRY(kvm_db_query(c->db, KVM_SQL_OBJECTS, KVM_NO_ARGS, &names, &scratch, err));
    for (int i = 0; i < kvm_migration_count; i++) {
        kvm_str rest = kvm_str_of(kvm_migrations[i].sql);
        while (rest.len > 0) {
            if (!kvm_str_eq(next_word(&rest), KVM_STR("CREATE"))) continue;
            kvm_str kind = next_word(&rest);
            if (kvm_str_eq(kind, KVM_STR("UNIQUE"))) kind = next_word(&rest);
            const kvm_str name = is_object(kind) ? next_word(&rest) : KVM_STR("");
            if (name.len && !is_there(&names, name) && !is_dropped(rest, i, name))
                json_array_append_new(problems,
                                      json_sprintf("migration %d made %.*s, which is "
                                                   "gone",
                                                   kvm_migrations[i].version,
                                                   KVM_STR_ARG(name)));
        }
    }
    return KVM_OK;
}

kvm_status kvm_catalogue_lacks_reader(kvm_catalogue *c, kvm_str *sql, kvm_arena *keep,
                                      kvm_err *err)
{
    kvm_text t = {0};
    kvm_status s = KVM_OK;
    if (c->db->driver->lacks_reader) s = c->db->driver->lacks_reader(c->db, &t, err);
    *sql = kvm_str_copy(keep, kvm_text_str(&t));
    kvm_text_free(&t);
    if (s) return s;
    return sql->at && !t.failed ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_catalogue_id(kvm_catalogue *c, char id[KVM_CATALOGUE_ID], kvm_err *err)
{
    char sha[65], born[40];
    kvm_arena scratch = c->scratch;
    kvm_rows rows;
    TRY(kvm_db_query(c->db, KVM_SQL_CATALOGUE_BORN, KVM_NO_ARGS, &rows, &scratch, err));
    snprintf(born, sizeof born, "%.6f", rows.count ? kvm_rows_f64(&rows, 0, 0) : 0);
    TRY(kvm_sha_of(kvm_str_of(born), sha, err));
    snprintf(id, KVM_CATALOGUE_ID, "%.16s", sha);
    return KVM_OK;
}

bool kvm_catalogue_file(kvm_str where, kvm_str *path)
{
    *path = where;
    if (kvm_str_starts(where, KVM_STR("sqlite:")))
        *path = kvm_str_slice(where, 7, where.len);
    return kvm_str_find(where, KVM_STR("://")) < 0;
}

kvm_status kvm_catalogue_check(kvm_catalogue *c, json_t **problems, kvm_arena *keep,
                               kvm_err *err)
{
    json_t *list = kvm_json_own(keep, json_array());
    if (!list) return kvm_nomem(err, keep);
    TRY(c->db->driver->check(c->db, list, err));
    TRY(drift(c, list, c->scratch, err));
    TRY(missing(c, list, c->scratch, err));
    *problems = list;
    return KVM_OK;
}
