/* Zones and crons: against Python's zoneinfo, and what is refused. */
#include "scheduler/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "tests/support/check.h"

static kvm_arena keep;

static int set_up(void **state)
{
    (void)state;
    setenv("TZDIR", "tests/golden/zones", 1);
    return kvm_arena_init(&keep, 64 << 20, NULL) ? -1 : 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static const char *text(const json_t *row, const char *name)
{
    return json_string_value(json_object_get(row, name));
}

static json_int_t number(const json_t *row, const char *name)
{
    return json_integer_value(json_object_get(row, name));
}

static void check_sha(kvm_text *t, const char *want, const char *what)
{
    char sha[65];
    assert_int_equal(kvm_sha_of(kvm_text_str(t), sha, NULL), KVM_OK);
    if (strcmp(sha, want) != 0) fail_msg("%s: not as zoneinfo has it", what);
    kvm_text_free(t);
}

static void check_offsets(const kvm_zone *z, const json_t *row)
{
    kvm_text t = {0};
    const int64_t from = kvm_days_of(1900, 1, 1) * 86400;
    const int64_t to = kvm_days_of(2100, 1, 1) * 86400;
    for (int64_t at = from; at < to; at += 5 * 86400 + 7 * 3600)
        kvm_text_addf(&t, "%d\n", (int)kvm_zone_offset(z, at));
    check_sha(&t, text(row, "offsets"), text(row, "zone"));
}

static void check_ticks(const char *zone, const json_t *row, int64_t from, int64_t to)
{
    kvm_schedule s;
    kvm_err err = {0};
    kvm_text t = {0};
    size_t near = 0;
    json_int_t count = 0;
    const json_t *list = json_object_get(row, "near");
    if (kvm_schedule_read(&s, &keep, kvm_str_of(text(row, "cron")), kvm_str_of(zone),
                          &err))
        fail_msg("%s", err.msg);
    for (int64_t at = from; (at = kvm_schedule_next(&s, at)) <= to; count++) {
        kvm_text_addf(&t, "%lld\n", (long long)at);
        const int64_t next = json_integer_value(json_array_get(list, near));
        if (at == next) near++;
        if (near < json_array_size(list) && at > next)
            fail_msg("%s in %s: passed over %lld", text(row, "cron"), zone,
                     (long long)next);
    }
    if (near != json_array_size(list) || count != number(row, "count"))
        fail_msg("%s in %s: %lld ticks, %zu of those near a change", text(row, "cron"),
                 zone, count, near);
    check_sha(&t, text(row, "sha"), zone);
}

static void ticks_are_those_of_zoneinfo(void **state)
{
    (void)state;
    kvm_jat doc;
    kvm_err err = {0};
    size_t i, k = 0;
    json_t *zone, *cron;
    if (kvm_json_read(&doc, &keep, KVM_STR("tests/golden/zones/vectors.json"), &err))
        fail_msg("%s", err.msg);
    json_array_foreach(json_object_get(doc.v, "zones"), i, zone)
    {
        kvm_zone z;
        if (kvm_zone_read(&z, &keep, kvm_str_of(text(zone, "zone")), &err))
            fail_msg("%s", err.msg);
        check_offsets(&z, zone);
        json_array_foreach(json_object_get(zone, "crons"), k, cron) check_ticks(
            text(zone, "zone"), cron, number(doc.v, "from"), number(doc.v, "to"));
    }
    assert_int_equal(i, 7);
    assert_int_equal(k, 9);
}

/* 2026-03-29 02:30 does not exist in Berlin and 2026-10-25 02:30 comes twice. */
static void a_night_of_change_has_one_tick(void **state)
{
    (void)state;
    kvm_schedule s;
    assert_int_equal(kvm_schedule_read(&s, &keep, KVM_STR("*/10 2 * * *"),
                                       KVM_STR("Europe/Berlin"), NULL),
                     KVM_OK);
    const int64_t leap = kvm_days_of(2026, 3, 29) * 86400 + 3600; /* 01:00 UTC */
    int64_t at = kvm_schedule_next(&s, leap - 7200);
    assert_true(at == leap);
    at = kvm_schedule_next(&s, at);
    assert_true(at == leap - 3600 + 86400); /* 02:00 in summer is 00:00 UTC */
    const int64_t back = kvm_days_of(2026, 10, 25) * 86400;
    at = back - 1;
    for (int64_t i = 0; i < 6; i++) {
        at = kvm_schedule_next(&s, at);
        assert_true(at == back + i * 600); /* while it is still summer */
    }
    assert_true(kvm_schedule_next(&s, at) == back + 86400 + 3600);
    assert_true(kvm_schedule_next(&s, back + 3600) == back + 86400 + 3600);
}

static void the_calendar_is_gregorian(void **state)
{
    (void)state;
    assert_int_equal(kvm_days_of(1970, 1, 1), 0);
    assert_int_equal(kvm_days_of(2000, 3, 1), 11017);
    assert_int_equal(kvm_weekday_of(0), 4);
    assert_int_equal(kvm_weekday_of(-5), 6);
    int y, m, d;
    for (int64_t days = -800000; days < 800000; days += 17) {
        kvm_date_of(days, &y, &m, &d);
        assert_true(m >= 1 && m <= 12 && d >= 1 && d <= 31);
        assert_true(kvm_days_of(y, m, d) == days);
    }
    kvm_date_of(kvm_days_of(1900, 2, 28) + 1, &y, &m, &d);
    assert_int_equal(m, 3);
    kvm_date_of(kvm_days_of(2000, 2, 28) + 1, &y, &m, &d);
    assert_int_equal(d, 29);
}

static void bad_crons_are_told(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "minute"},
        {"* * * *", "day of the week"},
        {"* * * * * *", "five fields"},
        {"60 * * * *", "minute"},
        {"-1 * * * *", "minute"},
        {"1- * * * *", "minute"},
        {"5-1 * * * *", "minute"},
        {"1,,2 * * * *", "minute"},
        {"1, * * * *", "minute"},
        {"*/0 * * * *", "minute"},
        {"*/ * * * *", "minute"},
        {"*/+2 * * * *", "minute"},
        {"5/2 * * * *", "minute"},
        {"* 24 * * *", "hour"},
        {"* * 0 * *", "day of the month"},
        {"* * 32 * *", "day of the month"},
        {"* * * 13 *", "month"},
        {"* * * foo *", "month"},
        {"* * * mon *", "month"},
        {"* * * * 8", "day of the week"},
        {"* * * * jan", "day of the week"},
        {"0 0 30 2 *", "never comes"},
        {"0 0 31 4,6,9,11 *", "never comes"},
        {"99999999999999999999 * * * *", "minute"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvm_cron c;
        kvm_err err = {0};
        assert_int_equal(kvm_cron_parse(&c, kvm_str_of(bad[i][0]), &err), KVM_USAGE);
        check_contains(err.msg, bad[i][1]);
    }
}

static void good_crons_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int next; /* after Thursday, 1970-01-01 00:00, in minutes */
    } good[] = {
        {"* * * * *", 1},
        {"  */5   * * * *  ", 5},
        {"0 0 * * THU", 7 * 1440},
        {"0 0 * * 7", 3 * 1440},
        {"0 0 * * 0", 3 * 1440},
        {"0 0 * * 5-7", 1440},
        {"0 0 2 * sat", 1440},       /* either day */
        {"0 0 */2 * sat", 2 * 1440}, /* both */
        {"1-59/58 * * * *", 1},
        {"30 6,7 1-2,5 jan *", 390},
        {"0 0 29 2 *", (365 + 365 + 31 + 28) * 1440},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        kvm_cron c;
        kvm_err err = {0};
        if (kvm_cron_parse(&c, kvm_str_of(good[i].text), &err)) fail_msg("%s", err.msg);
        if (kvm_cron_next(&c, 0) != INT64_C(60) * good[i].next)
            fail_msg("%s: %lld", good[i].text, (long long)kvm_cron_next(&c, 0) / 60);
    }
}

static void bad_zones_are_told(void **state)
{
    (void)state;
    static const char *const names[] = {
        "", "/etc/passwd", "../zones/make.py", "Europe//Berlin", "Europe/", "a b", "."};
    kvm_zone z;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(kvm_zone_read(&z, &keep, kvm_str_of(names[i]), NULL),
                         KVM_USAGE);
    kvm_err err = {0};
    assert_int_equal(kvm_zone_read(&z, &keep, KVM_STR("Europe/Nowhere"), &err),
                     KVM_NOTFOUND);
    check_contains(err.msg, "tzdata");
    assert_int_equal(kvm_zone_read(&z, &keep, KVM_STR("Europe"), NULL), KVM_NOTFOUND);
    setenv("TZDIR", "tests/unit", 1);
    kvm_err no_zone = {0};
    assert_int_equal(kvm_zone_read(&z, &keep, KVM_STR("Berlin"), &no_zone),
                     KVM_NOTFOUND);
    setenv("TZDIR", "/none", 1); /* UTC needs no file */
    assert_int_equal(kvm_zone_read(&z, &keep, KVM_STR("UTC"), NULL), KVM_OK);
    assert_int_equal(kvm_zone_offset(&z, 1e9), 0);
    assert_true(kvm_zone_instant(&z, 1000000000) == 1000000000);
}

/* Every cut of a file is refused, whatever it leaves. */
static void a_torn_zone_is_refused(void **state)
{
    (void)state;
    kvm_str whole;
    kvm_zone z;
    assert_int_equal(kvm_file_read(&whole, &keep,
                                   KVM_STR("tests/golden/zones/Asia/Kolkata"), 1 << 20,
                                   NULL),
                     KVM_OK);
    assert_int_equal(kvm_zone_parse(&z, &keep, whole, KVM_STR("x"), NULL), KVM_OK);
    for (ptrdiff_t n = 0; n < whole.len; n++) {
        char *cut = malloc((size_t)n + 1);
        assert_non_null(cut);
        memcpy(cut, whole.at, (size_t)n);
        assert_int_equal(
            kvm_zone_parse(&z, &keep, (kvm_str){cut, n}, KVM_STR("x"), NULL),
            KVM_FORMAT);
        free(cut);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(ticks_are_those_of_zoneinfo), T(a_night_of_change_has_one_tick),
        T(the_calendar_is_gregorian),   T(bad_crons_are_told),
        T(good_crons_are_read),         T(bad_zones_are_told),
        T(a_torn_zone_is_refused),
    };
    return cmocka_run_group_tests_name("cron", tests, NULL, NULL);
}
