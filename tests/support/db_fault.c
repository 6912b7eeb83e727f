#include "tests/support/db_fault.h"

#include <pthread.h>
#include <string.h>

static const kvm_db_driver *real;
static kvm_db_driver front;
static db_fault kind;
static int calls, failing;
static bool fired;
static pthread_t thread;
/* Within the transaction that its connection has left; others than our thread neither
 * ask for it nor end it. */
static const kvm_db *lost;

const char *db_fault_text(db_fault what)
{
    static const char *const texts[] = {
#define X(NAME, what) what,
        DB_FAULTS(X)
#undef X
    };
    return texts[what];
}

static bool ours(void)
{
    return pthread_equal(thread, pthread_self());
}

static bool fails_now(void)
{
    if (!failing || !ours()) return false;
    if (++calls != failing) return false;
    return fired = true;
}

static kvm_status trouble(kvm_err *err)
{
    return kvm_fail(err, KVM_BUSY, "%s", db_fault_text(kind));
}

/* What was open is gone, as the server rolls it back; the caller has yet to see it. */
static kvm_status lose(kvm_db *db, kvm_err *err)
{
    if (kind != DB_FAULT_BUSY && db->depth > 0) {
        real->rollback(db);
        lost = db;
    }
    return trouble(err);
}

static bool gone(const kvm_db *db)
{
    return ours() && lost == db;
}

static kvm_status f_begin(kvm_db *db, kvm_err *err)
{
    const bool now = fails_now();
    if (ours()) lost = NULL;
    return now ? trouble(err) : real->begin(db, err);
}

static kvm_status f_commit(kvm_db *db, kvm_err *err)
{
    const bool now = fails_now();
    if (gone(db)) return trouble(err);
    if (now && kind == DB_FAULT_UNHEARD) {
        const kvm_status s = real->commit(db, err);
        lost = db;
        return s ? s : trouble(err);
    }
    return now ? lose(db, err) : real->commit(db, err);
}

static void f_rollback(kvm_db *db)
{
    if (!gone(db)) real->rollback(db);
    if (ours()) lost = NULL;
}

static kvm_status f_script(kvm_db *db, const char *sql, kvm_err *err)
{
    const bool now = fails_now();
    if (gone(db)) return trouble(err);
    return now ? lose(db, err) : real->script(db, sql, err);
}

static kvm_status f_query(kvm_db *db, int slot, const char *sql, const kvm_cell *args,
                          ptrdiff_t n, kvm_rows *rows, kvm_arena *keep,
                          int64_t *changed, kvm_err *err)
{
    const bool now = fails_now();
    if (gone(db)) return trouble(err);
    if (now && (kind != DB_FAULT_UNHEARD || db->depth > 0)) return lose(db, err);
    const kvm_status s = real->query(db, slot, sql, args, n, rows, keep, changed, err);
    return s || !now ? s : trouble(err);
}

static const kvm_db_driver *in_front(const kvm_db_driver *driver)
{
    real = driver;
    front = *driver;
    front.begin = f_begin;
    front.commit = f_commit;
    front.rollback = f_rollback;
    front.script = f_script;
    front.query = f_query;
    return &front;
}

void db_fault_at(db_fault what, int n)
{
    kind = what;
    failing = n;
    calls = 0;
    fired = false;
    lost = NULL;
    thread = pthread_self();
    kvm_db_in_front = in_front;
}

bool db_fault_fired(void)
{
    return fired;
}
