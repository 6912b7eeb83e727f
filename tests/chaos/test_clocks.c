/* Machines whose clocks are wrong by an hour, and clocks that jump while jobs run:
 * leases are the database's, and each tick fires once. (queue.md, 5: row 8; the nights
 * on which clocks change are in unit/test_schedule.)
 *
 * The processes of this program have the clock of CLOCK_REALTIME that `skew` says: the
 * C library's calls are found here first, also by the libraries that are linked to. */
#define _XOPEN_SOURCE 700 /* nftw */
#define _DEFAULT_SOURCE   /* syscall, MAP_ANONYMOUS */
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "schema/schedules.h"
#include "tests/chaos/fleet.h"

enum { HOUR = 3600, WORKERS = 3, WHO_MOST = 8 };

static volatile long *skew; /* [WHO_MOST] seconds, shared; 0 is the test's own */
static int who;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    const long rc = syscall(SYS_clock_gettime, clock, t);
    if (rc == 0 && skew && clock == CLOCK_REALTIME) t->tv_sec += skew[who];
    return (int)rc;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}

/* what is forked next lives by that clock; its place in skew */
static int next_has(long seconds)
{
    static int last;
    who = last = last % (WHO_MOST - 1) + 1;
    skew[who] = seconds;
    return who;
}

static int start_worker(kvm_worker_options o, long seconds, pid_t *pid)
{
    const int at = next_has(seconds);
    *pid = fake_worker(o, NULL);
    who = 0;
    return at;
}
static pid_t start_scheduler(long seconds)
{
    next_has(seconds);
    const pid_t pid = fleet_start_scheduler();
    who = 0;
    return pid;
}

static void the_clocks_are_wrong(void **state)
{
    (void)state;
    const double now = kvm_wall();
    next_has(HOUR);
    const double theirs = kvm_wall();
    who = 0;
    assert_true(theirs - now >= HOUR && kvm_wall() - now < HOUR / 2);
}

/* A lease that were the worker's clock's would be over at once, or never end. */
static void leases_are_the_databases(void **state)
{
    (void)state;
    const int jobs = chaos_count(60, 600);
    pid_t pids[WORKERS];
    int at[WORKERS];
    static const long hours[WORKERS] = {HOUR, -HOUR, 0};
    fleet_open("clocks");
    kvm_graph g = kvm_test_graph(&b.keep, jobs, false, KVM_JOB_CAPTURE, 0);
    for (int i = 0; i < jobs; i++) fake_do(&g, i, "ok", 100);
    fake_submit(&b, &g, false);
    fleet_scheduler = start_scheduler(HOUR);
    const pid_t second = start_scheduler(-HOUR);
    for (int i = 0; i < WORKERS; i++)
        at[i] = start_worker(fleet_options(60), hours[i], &pids[i]);
    int jumps = 0;
    for (; NUMBER(FLEET_LEFT) > 0; jumps++) { /* all clocks, one after the other */
        kvm_sleep(0.3);
        skew[at[jumps % WORKERS]] = (jumps / WORKERS % 3 - 1) * (long)HOUR;
    }
    kill(second, SIGTERM);
    assert_int_equal(fake_join(second, 60), 0);
    fleet_stop(pids, WORKERS);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM job WHERE state = 'succeeded' AND "
                            "token = 1 AND attempt = 1 AND crashes + retries = 0"),
                     jobs);
    fleet_record("8", "the clock of a worker jumps by an hour or two", jumps, -1);
    fake_close(&b);
}

/* Its machine stands still with a job in hand: the lease ends by the database's clock,
 * another takes the job, and what the first one then writes is refused. */
static void a_lease_ends_whatever_its_holders_clock(long seconds)
{
    const double lease_s = 3;
    pid_t slow, quick;
    fleet_open("clocks");
    kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, 0);
    fake_do(&g, 0, "ok", 1500);
    fake_submit(&b, &g, false);
    fleet_scheduler = start_scheduler(-seconds);
    start_worker(fleet_options(lease_s), seconds, &slow);
    fake_until(b.db, "SELECT COUNT(*) FROM job WHERE state = 'running'", 1, 60);
    while (!fake_pid(0)) kvm_sleep(0.01);
    const long child = fake_pid(0);
    kill(slow, SIGSTOP);
    kill((pid_t)child, SIGSTOP);
    const double stopped = kvm_now();
    start_worker(fleet_options(60), -seconds, &quick);
    fake_until(b.db,
               "SELECT COUNT(*) FROM job WHERE token = 2 AND state IN ('running',"
               "'succeeded')",
               1, 120);
    const double recovery_s = kvm_now() - stopped;
    fake_until(b.db, FLEET_LEFT, 0, 120);
    kill(slow, SIGCONT);
    kill((pid_t)child, SIGCONT);
    fleet_stop((const pid_t[]){slow, quick}, 2);
    assert_int_equal(NUMBER("SELECT token FROM job WHERE state = 'succeeded'"), 2);
    assert_int_equal(sound_doubled(&b), 0);
    assert_true(recovery_s > lease_s / 2); /* not at once either */
    fleet_record("8", "a worker whose clock is an hour off stands still", 1,
                 recovery_s);
    fake_close(&b);
}

static void a_lease_ends_whatever_the_clock(void **state)
{
    (void)state;
    for (int i = 0; i < chaos_count(1, 10); i++) {
        a_lease_ends_whatever_its_holders_clock(HOUR);
        a_lease_ends_whatever_its_holders_clock(-HOUR);
    }
}

/* ---- schedules ---- */

static int64_t submitted(const char *schedule)
{
    char path[300], line[64];
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/ticks", fake_home);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) n += !strncmp(line, schedule, 2);
    if (f) fclose(f);
    return n;
}

/* each minute since so many minutes ago, all of them */
static void add_schedule(const char *name, int minutes)
{
    char sql[200];
    const kvm_schedule_row s = {.team = KVM_STR("t"),
                                .name = kvm_str_of(name),
                                .file = KVM_STR("/pair.yaml"),
                                .cron = KVM_STR("* * * * *"),
                                .zone = KVM_STR("UTC"),
                                .catch_up = KVM_STR("all")};
    MUST(kvm_schedule_add(b.c, &s, e));
    snprintf(sql, sizeof sql,
             "UPDATE schedule SET since_at = since_at - %d WHERE name = '%s'",
             60 * minutes, name);
    kvm_test_sql(b.db, sql);
}

#define ENDED "SELECT COUNT(*) FROM tick WHERE ended_at IS NOT NULL AND schedule_id = "

/* so many ticks at least have ended, and none comes after: it is paused */
static void until_fired(const char *id, int minutes)
{
    char sql[200];
    snprintf(sql, sizeof sql, ENDED "%s", id);
    for (const double until = kvm_now() + 120; NUMBER(sql) < minutes; kvm_sleep(0.05))
        if (kvm_now() > until)
            fail_msg("schedule %s: %lld ticks", id, (long long)NUMBER(sql));
    kvm_test_sql(b.db, "UPDATE schedule SET paused = 1");
    fake_until(b.db, "SELECT COUNT(*) FROM tick WHERE ended_at IS NULL", 0, 60);
}

static void each_tick_fires_once(void **state)
{
    (void)state;
    const int minutes = chaos_count(4, 60);
    fleet_open("clocks");
    fleet_scheduler = start_scheduler(HOUR);
    fake_until(b.db, "SELECT COUNT(*) FROM leader", 1, 60);
    const pid_t second = start_scheduler(-HOUR);
    add_schedule("s", minutes);
    until_fired("1", minutes);
    kill(fleet_scheduler, SIGTERM); /* the other goes on, two hours before */
    assert_int_equal(fake_join(fleet_scheduler, 60), 0);
    fleet_scheduler = second;
    add_schedule("t", minutes);
    kvm_test_sql(b.db, "UPDATE schedule SET paused = 0");
    until_fired("2", minutes);
    fleet_stop(NULL, 0);
    const int64_t ticks = NUMBER("SELECT COUNT(*) FROM tick");
    assert_int_equal(submitted("1:") + submitted("2:"), ticks);
    assert_true(ticks >= 2 * minutes && ticks < 2 * minutes + 20);
    assert_int_equal(NUMBER("SELECT COUNT(*) FROM tick WHERE at > EXTRACT(EPOCH FROM "
                            "clock_timestamp()) OR status <> 0"),
                     0);
    fleet_record("8", "two schedulers two hours apart, each tick once", 1, -1);
    fake_close(&b);
}

/* what a scheduler starts in kvmill's place: this program */
static int be_submit(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s/ticks", getenv("KVMILL_STORE"));
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    return fd < 0 || dprintf(fd, "%s\n", getenv("KVMILL_TICK")) < 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "submit")) return be_submit();
    void *page = mmap(NULL, sizeof(long[WHO_MOST]), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 1;
    skew = page;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clocks_are_wrong),
        cmocka_unit_test(leases_are_the_databases),
        cmocka_unit_test(a_lease_ends_whatever_the_clock),
        cmocka_unit_test(each_tick_fires_once),
    };
    if (!fleet_servers()) return 0;
    return cmocka_run_group_tests_name("clocks", tests, NULL, NULL);
}
