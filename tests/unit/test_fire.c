/* What is due is submitted by a child: it gets what it needs, its end is recorded, and
 * whatever it does the scheduler goes on. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "scheduler/fire.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "schema/teams.h"
#include "tests/support/queue.h"

static kvm_arena keep;
static char path[400], home[256];
static kvm_catalogue *c;
static kvm_fires fires;

static int set_up(void **state)
{
    (void)state;
    setenv("TZDIR", "tests/golden/zones", 1);
    snprintf(home, sizeof home, "%s", kvm_test_home("fire"));
    snprintf(path, sizeof path, "%s", kvm_test_catalogue(home));
    if (kvm_arena_init(&keep, 256 << 20, NULL)) return -1;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_of(path), NULL, e));
    fires = (kvm_fires){
        .o = {.home = kvm_str_of(home), .catalogue = KVM_STR("postgres://u:pw@h/d")}};
    kvm_log_set(KVM_LOG_ERROR, NULL, NULL);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_fires_stop(&fires);
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    kvm_arena_free(&keep);
    return 0;
}

/* a program that is run in kvmill's place */
static void program(const char *script)
{
    const kvm_str text = kvm_str_fmt(&keep, "#!/bin/sh\n%s\n", script);
    fires.o.program = kvm_str_fmt(&keep, "%s/program", home);
    MUST(kvm_file_publish(fires.o.program, text, keep, e));
    assert_int_equal(chmod(fires.o.program.at, 0755), 0);
}

/* due since a minute ago */
static void due(const char *name, bool again)
{
    const kvm_schedule_row s = {.team = KVM_STR("prose"),
                                .name = kvm_str_of(name),
                                .file = KVM_STR("/a b/pair.yaml"),
                                .cron = KVM_STR("* * * * *"),
                                .zone = KVM_STR("Europe/Berlin"),
                                .catch_up = KVM_STR("one"),
                                .again = again};
    MUST(kvm_schedule_add(c, &s, e));
    kvm_test_sql(path, "UPDATE schedule SET since_at = since_at - 60");
}

/* until so many ticks have ended; no new ones meanwhile */
static void turn_until(int64_t ended)
{
    const double until = kvm_now() + 20;
    MUST(kvm_fires_turn(&fires, c, keep, e));
    kvm_test_sql(path, "UPDATE schedule SET paused = 1");
    while (kvm_test_number(path, "SELECT COUNT(*) FROM tick WHERE ended_at > 0") <
           ended) {
        if (kvm_now() > until) fail_msg("no end");
        MUST(kvm_fires_turn(&fires, c, keep, e));
        kvm_sleep(0.01);
    }
}

static kvm_str said(void)
{
    kvm_str text;
    json_t *rows;
    MUST(kvm_catalogue_view(c, &rows, &keep, "v_schedules", NULL, 0, 0, e));
    const double at =
        json_real_value(json_object_get(json_array_get(rows, 0), "last_tick_at"));
    const kvm_str log = kvm_str_fmt(&keep, "%s/logs/tick-1-%.0f.log", home, at);
    MUST(kvm_file_read(&text, &keep, log, 1 << 20, e));
    return text;
}

static const char *message(void)
{
    json_t *rows;
    MUST(kvm_catalogue_view(c, &rows, &keep, "v_schedules", NULL, 0, 0, e));
    return json_string_value(json_object_get(json_array_get(rows, 0), "last_message"));
}

static void the_child_is_given_what_it_needs(void **state)
{
    (void)state;
    program("echo \"$# $1 $2 $3 $4|$KVMILL_TEAM|$KVMILL_TICK|$KVMILL_CATALOGUE|"
            "$KVMILL_STORE|$KVMILL_TOKEN\"; echo small-large: run 7, 9 jobs >&2");
    setenv("KVMILL_TOKEN", "not its", 1);
    due("s", true);
    turn_until(1);
    unsetenv("KVMILL_TOKEN");
    const kvm_str text = said();
    check_contains(text.at, "4 submit --again -- /a b/pair.yaml|prose|1:");
    check_contains(text.at, "|postgres://u:pw@h/d|build/tmp/fire");
    assert_null(strstr(text.at, "not its"));
    assert_string_equal(message(), "small-large: run 7, 9 jobs");
    assert_int_equal(kvm_test_number(path, "SELECT status FROM tick"), KVM_OK);
}

static void its_failure_is_recorded(void **state)
{
    (void)state;
    program("echo one; echo; echo 'kvmill submit: pair.yaml:3: no such model'; exit 2");
    due("s", false);
    turn_until(1);
    assert_string_equal(message(), "kvmill submit: pair.yaml:3: no such model");
    assert_int_equal(kvm_test_number(path, "SELECT status FROM tick"), KVM_USAGE);
}

static void its_death_is_recorded(void **state)
{
    (void)state;
    program("kill -SEGV $$");
    due("s", false);
    turn_until(1);
    assert_int_equal(kvm_test_number(path, "SELECT status FROM tick"), KVM_INTERNAL);
}

static void what_cannot_be_run_is_recorded(void **state)
{
    (void)state;
    program("");
    fires.o.program = KVM_STR("/none");
    due("s", false);
    turn_until(1);
    assert_int_equal(kvm_test_number(path, "SELECT status FROM tick"), KVM_ENVIRONMENT);
}

static void one_that_hangs_is_ended(void **state)
{
    (void)state;
    program("sleep 1000 & wait");
    due("s", false);
    MUST(kvm_fires_turn(&fires, c, keep, e));
    assert_true(fires.of[0].pid > 0);
    fires.of[0].until = kvm_now();
    turn_until(1);
    check_contains(message(), "longer than an hour");
}

static void a_few_run_at_once_and_the_rest_wait(void **state)
{
    (void)state;
    program("while [ ! -e \"$KVMILL_STORE/go\" ]; do sleep 0.02; done");
    for (int i = 0; i < KVM_FIRES_MOST + 2; i++)
        due(kvm_str_fmt(&keep, "s%d", i).at, false);
    MUST(kvm_fires_turn(&fires, c, keep, e));
    MUST(kvm_fires_turn(&fires, c, keep, e));
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM tick"),
                     KVM_FIRES_MOST);
    MUST(kvm_file_publish(kvm_str_fmt(&keep, "%s/go", home), KVM_STR(""), keep, e));
    for (const double until = kvm_now() + 20;
         kvm_test_number(path, "SELECT COUNT(*) FROM tick WHERE ended_at > 0") <
         KVM_FIRES_MOST + 2;) {
        if (kvm_now() > until) fail_msg("no end");
        MUST(kvm_fires_turn(&fires, c, keep, e));
        kvm_sleep(0.01);
    }
}

/* The program itself, for a team with a token, which the scheduler has not; a spec of
 * models elsewhere. False: there is no program. */
static bool submits(kvm_str allow, bool again, const char **runs)
{
    char here[300];
    const char *build = getenv("KVM_BUILD");
    fires.o.program = kvm_str_fmt(&keep, "%s/kvmill", build ? build : "build/release");
    if (!kvm_path_exists(fires.o.program) || !getcwd(here, sizeof here)) {
        printf("# skipped: no program in %s\n", build ? build : "build/release");
        return false;
    }
    if (kvm_str_eq(allow, KVM_STR("zoo")))
        allow = kvm_str_fmt(&keep, "%s/tests/zoo", here);
    const kvm_str file = kvm_str_fmt(&keep, "%s/%s/few.yaml", here, home);
    const kvm_str spec =
        kvm_str_fmt(&keep,
                    "name: small-large\nsource: %s/tests/zoo/small\n"
                    "target: %s/tests/zoo/large\ncalibration: {text: "
                    "calibration, sequences: 3, tokens: 40}\nevaluate: "
                    "{suites: [facts-mc], items: 3}\n",
                    here, here);
    const kvm_str move = kvm_str_fmt(&keep, "UPDATE schedule SET file = '%s'", file.at);
    *runs =
        kvm_str_fmt(&keep,
                    "SELECT COUNT(*) FROM v_runs WHERE team = 'prose' AND file = '%s'",
                    file.at)
            .at;
    MUST(kvm_file_publish(file, spec, keep, e));
    MUST(kvm_team_set(c, KVM_STR("prose"), &(kvm_team_terms){-1, -1, -1}, e));
    MUST(kvm_team_token(c, KVM_STR("prose"), KVM_STR("secret"), e));
    fires.o.catalogue = kvm_str_of(path);
    fires.o.allow = allow;
    due("s", again);
    kvm_test_sql(path, move.at);
    turn_until(1);
    return true;
}

static void the_program_submits_for_the_team(void **state)
{
    (void)state;
    const char *runs;
    if (!submits(kvm_test_on_server ? KVM_STR("zoo") : KVM_STR(""), false, &runs))
        return;
    if (kvm_test_number(path, "SELECT status FROM tick")) fail_msg("%s", message());
    check_contains(said().at, "small-large: run 1, ");
    assert_int_equal(kvm_test_number(path, runs), 1);
}

/* A scheduler that dies when its child has submitted leaves a tick without an end: who
 * takes that over finds the run, though each time is to have one of its own. */
static void a_tick_that_is_taken_over_is_submitted_once(void **state)
{
    (void)state;
    const char *runs;
    if (!submits(kvm_test_on_server ? KVM_STR("zoo") : KVM_STR(""), true, &runs))
        return;
    assert_int_equal(kvm_test_number(path, runs), 1);
    kvm_test_sql(path, "UPDATE tick SET ended_at = NULL, status = NULL, until_at = 1");
    kvm_test_sql(path, "UPDATE schedule SET paused = 0, cron = '0 0 1 1 *'");
    turn_until(1);
    if (kvm_test_number(path, "SELECT status FROM tick")) fail_msg("%s", message());
    assert_int_equal(kvm_test_number(path, runs), 1);
}

/* where the scheduler's machine has it; a catalogue that is a file is one's own */
static void a_schedule_names_what_its_scheduler_allows(void **state)
{
    (void)state;
    const char *runs;
    char other[300];
    snprintf(other, sizeof other, "%s", home);
    if (!submits(kvm_test_on_server ? KVM_STR("") : kvm_str_of(other), false, &runs))
        return;
    assert_int_equal(kvm_test_number(path, "SELECT status FROM tick"), KVM_USAGE);
    check_contains(message(), "small/config.json: lies outside");
    assert_int_equal(kvm_test_number(path, runs), 0);
}

static void a_scheduler_that_stops_leaves_nobody(void **state)
{
    (void)state;
    program("sleep 1000");
    due("s", false);
    MUST(kvm_fires_turn(&fires, c, keep, e));
    const pid_t pid = fires.of[0].pid;
    assert_true(pid > 0);
    kvm_fires_stop(&fires);
    for (int i = 0; i < 1000 && kill(-pid, 0) == 0; i++)
        kvm_sleep(0.01); /* the child's child: killed, and buried by another */
    assert_int_equal(kill(-pid, 0), -1);
    assert_int_equal(kvm_test_number(path, "SELECT COUNT(*) FROM tick WHERE ended_at "
                                           "IS NULL"),
                     1); /* taken over when its time is over */
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(the_child_is_given_what_it_needs),
        T(its_failure_is_recorded),
        T(its_death_is_recorded),
        T(what_cannot_be_run_is_recorded),
        T(one_that_hangs_is_ended),
        T(a_few_run_at_once_and_the_rest_wait),
        T(the_program_submits_for_the_team),
        T(a_schedule_names_what_its_scheduler_allows),
        T(a_tick_that_is_taken_over_is_submitted_once),
        T(a_scheduler_that_stops_leaves_nobody),
    };
    return kvm_test_both("fire", tests);
}
