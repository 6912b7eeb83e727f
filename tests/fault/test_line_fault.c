/* What the line does to those at its ends: a direction is swallowed, for good or for a
 * while, or all comes late; of Redis, and of PostgreSQL. Each job ends once; silence is
 * noticed, and who connects again is given what it was given before. (queue.md, 5:
 * row 5.) */
#define _GNU_SOURCE /* nftw, MAP_ANONYMOUS */
#include <sys/mman.h>

#include "scheduler/redis.h"
#include "schema/db.h"
#include "tests/support/fleet.h"

static fleet f;

/* ---- of one connection ---- */

/* A connection at the line's end, in a process of its own. ask: also whether it has
 * what a new one is given. */
typedef struct asker {
    const char *what;
    proxy *(*line)(void);
    void (*open)(kvm_arena *keep);
    kvm_status (*ask)(kvm_arena *keep, bool *as_new, kvm_err *err);
} asker;

static kvm_redis *redis;
static void open_redis(kvm_arena *keep)
{
    const kvm_redis_options o = {.name = KVM_STR("line_fault")};
    const kvm_str where = kvm_str_fmt(keep, "%s/3", redis_server_far());
    MUST(kvm_redis_open(&redis, keep, where, &o, e));
}
static kvm_status ask_redis(kvm_arena *keep, bool *as_new, kvm_err *err)
{
    const kvm_reply *r;
    (void)keep;
    TRY(kvm_redis_call(redis, KVM_WORDS(KVM_STR("CLIENT"), KVM_STR("INFO")), 0, &r,
                       err));
    const kvm_str text = kvm_reply_text(r);
    *as_new = kvm_str_find(text, KVM_STR(" name=line_fault ")) >= 0 &&
              kvm_str_find(text, KVM_STR(" db=3 ")) >= 0;
    return KVM_OK;
}

static kvm_db *db;
static void open_postgres(kvm_arena *keep)
{
    (void)keep;
    MUST(kvm_db_open(&db, kvm_str_of(pg_server_far(f.b.db)), NULL, e));
}
static kvm_status ask_postgres(kvm_arena *keep, bool *as_new, kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, KVM_SQL_LEADER_OF, KVM_ARGS(kvm_cell_s(KVM_STR("x"))), &rows,
                     keep, err));
    TRY(db->driver->query(
        db, -1,
        "SELECT (current_setting('lock_timeout') <> '0' AND current_setting("
        "'idle_in_transaction_session_timeout') <> '0' AND current_setting("
        "'enable_seqscan') = 'off')::int",
        NULL, 0, &rows, keep, NULL, err));
    *as_new = rows.count == 1 && kvm_rows_i64(&rows, 0, 0) == 1;
    return KVM_OK;
}

static const asker askers[] = {
    {"Redis", redis_server_proxy, open_redis, ask_redis},
    {"PostgreSQL", pg_server_proxy, open_postgres, ask_postgres},
};
enum { ASKERS = 2, ASKER_S = 90 };

/* Seconds until the silence is noticed, and then until it answers as a new one does. */
static void notice(const asker *a, proxy_way way, double *noticed_s, double *again_s)
{
    kvm_arena keep;
    bool as_new = false;
    MUST(kvm_arena_init(&keep, 16 << 20, e));
    a->open(&keep);
    MUST(a->ask(&keep, &as_new, e));
    assert_true(as_new);
    proxy_be(a->line(), way, 0);
    double start = kvm_now();
    assert_int_equal(a->ask(&keep, &as_new, NULL), KVM_BUSY);
    *noticed_s = kvm_now() - start;
    proxy_be(a->line(), PROXY_PASS, 0);
    start = kvm_now();
    while (a->ask(&keep, &as_new, NULL)) kvm_sleep(0.05);
    *again_s = kvm_now() - start;
    if (!as_new) fail_msg("%s: what was set is gone", a->what);
}

/* Both servers' lines at once; who asks waits most of the time. */
static void silence(proxy_way way, const char *name)
{
    pid_t pids[ASKERS];
    double *seconds = mmap(NULL, 2 * ASKERS * sizeof *seconds, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seconds != MAP_FAILED);
    for (int i = 0; i < ASKERS; i++) {
        askers[i].line(); /* of this process, not of a child that ends */
        fflush(NULL);
        pids[i] = fork();
        if (pids[i]) continue;
        notice(&askers[i], way, &seconds[2 * i], &seconds[2 * i + 1]);
        _exit(0);
    }
    for (int i = 0; i < ASKERS; i++) {
        char text[100];
        assert_int_equal(fake_join(pids[i], ASKER_S), 0);
        print_message("# %s, %s: noticed after %.1f s, well again after %.1f s\n",
                      askers[i].what, name, seconds[2 * i], seconds[2 * i + 1]);
        snprintf(text, sizeof text, "line to %s %s: until it is noticed",
                 askers[i].what, name);
        chaos_record("5", text, 1, 0, 0, seconds[2 * i]);
        if (chaos_count(0, 1)) assert_true(seconds[2 * i] <= 15);
    }
    munmap(seconds, 2 * ASKERS * sizeof *seconds);
}

static void silence_is_noticed_and_settings_come_back(void **state)
{
    (void)state;
    if (!kvm_test_on_server) return; /* once, of both */
    fake_open(&f.b, "line_fault");
    for (int i = 0; i < chaos_count(1, 2); i++) {
        silence(PROXY_DEAF, "deaf");
        if (chaos_count(0, 1)) silence(PROXY_MUTE, "mute");
    }
    fake_close(&f.b);
}

/* ---- of a fleet ---- */

typedef struct fault {
    const char *what;
    bool database; /* its line; else that of Redis */
    proxy_way way;
    int delay_ms;
    double seconds; /* 0: until the end */
    bool whole;     /* in the whole form alone */
} fault;

static void strike(const fault *x)
{
    const int jobs = x->database ? chaos_count(8, 24) : chaos_count(32, 48);
    const fleet_plan p = {.name = "line_fault",
                          .queue = x->database ? NULL : redis_server_far(),
                          .far = x->database,
                          .jobs = jobs,
                          .ms = 60,
                          .workers = 4,
                          .lease_s = 30,
                          .reconcile_s = 1};
    proxy *line = x->database ? pg_server_proxy() : redis_server_proxy();
    fleet_begin(&f, &p);
    const double struck = kvm_wall();
    proxy_be(line, x->way, x->delay_ms);
    if (x->seconds > 0) {
        kvm_sleep(x->seconds);
        proxy_be(line, PROXY_PASS, 0);
    }
    const double rest = fleet_join(&f, struck);
    proxy_be(line, PROXY_PASS, 0);
    sound_record(&f.b, "5", x->what, 1, rest);
    fleet_end(&f);
}

static void whatever_the_line_does(void **state)
{
    (void)state;
    static const fault rows[] = {
        {"line to Redis deaf for good", false, PROXY_DEAF, 0, 0, true},
        {"line to Redis mute for 3 s", false, PROXY_MUTE, 0, 3, false},
        {"line to Redis 1 ms late", false, PROXY_PASS, 1, 0, true},
        {"line to Redis 100 ms late", false, PROXY_PASS, 100, 0, false},
        {"line to PostgreSQL deaf for 3 s", true, PROXY_DEAF, 0, 3, false},
        {"line to PostgreSQL mute for 20 s", true, PROXY_MUTE, 0, 20, true},
        {"line to PostgreSQL 1 ms late", true, PROXY_PASS, 1, 0, true},
        {"line to PostgreSQL 100 ms late", true, PROXY_PASS, 100, 0, false},
    };
    const bool whole = chaos_count(0, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].database && !kvm_test_on_server) continue;
        if (!whole && (rows[i].whole || rows[i].database != kvm_test_on_server))
            continue;
        for (int k = 0; k < chaos_count(1, 2); k++) strike(&rows[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_is_noticed_and_settings_come_back),
        cmocka_unit_test(whatever_the_line_does),
    };
    if (!redis_server_start()) return 0;
    return kvm_test_both("line faults", tests);
}
