/* What a team may have at once, however many look in the same moment. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/teams.h"

#include "tests/support/fake_kinds.h"

enum { JOBS = 12, CROWD = 5 };
static fake_base b;

static int set_up(void **state)
{
    (void)state;
    fake_open(&b, "limits");
    const kvm_graph g = kvm_test_graph(&b.keep, JOBS, false, KVM_JOB_CAPTURE, 0);
    fake_submit(&b, &g, false);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fake_close(&b);
    return 0;
}

#define NUMBER(sql) kvm_test_number(b.db, sql)
#define RUNNING NUMBER("SELECT COUNT(*) FROM job WHERE state = 'running'")

static int64_t join_in(kvm_catalogue *c, const char *name)
{
    int64_t worker;
    MUST(kvm_worker_register(c, kvm_str_of(name), KVM_STR("h"), KVM_STR("m"), &worker,
                             e));
    MUST(kvm_worker_serves(c, worker, &(kvm_want){0}, e));
    return worker;
}

/* takes so often, each time one */
static void take(kvm_catalogue *c, int64_t worker, int times)
{
    for (int i = 0; i < times; i++) {
        kvm_arena a = b.keep;
        kvm_claim k;
        bool found;
        MUST(kvm_test_claim(c, &k, &found, &a, worker, 0, 60, e));
    }
}

/* processes that all look when the moment has come */
static void crowd(void)
{
    pid_t pids[CROWD];
    const double moment = kvm_now() + 0.3;
    for (int i = 0; i < CROWD; i++) {
        if ((pids[i] = fork())) continue;
        char name[16];
        kvm_catalogue *c;
        snprintf(name, sizeof name, "w%d", i);
        MUST(kvm_catalogue_open(&c, &b.keep, fake_catalogue, NULL, e));
        const int64_t worker = join_in(c, name);
        while (kvm_now() < moment) kvm_sleep(0.001);
        take(c, worker, 2);
        _exit(0);
    }
    for (int i = 0; i < CROWD; i++) assert_int_equal(fake_join(pids[i], 60), 0);
}

static void a_crowd_keeps_the_quota(void **state)
{
    (void)state;
    MUST(kvm_team_set(b.c, KVM_STR("default"), &(kvm_team_terms){-1, 3, -1}, e));
    crowd();
    assert_int_equal(RUNNING, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(a_crowd_keeps_the_quota),
    };
    return kvm_test_both("limits", tests);
}
