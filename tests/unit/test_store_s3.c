/* A store in a bucket: what one home puts another gets, whatever the server does. */
#define _XOPEN_SOURCE 700
#include "schema/s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "schema/store.h"
#include "tests/support/queue.h"
#include "tests/support/s3.h"

#define DIR "build/tmp/store_s3"

static kvm_arena keep;
static int serial; /* contents of every test are new to the bucket */

static int start(void **state)
{
    (void)state;
    check_tmpdir("store_s3_server");
    s3_start("build/tmp/store_s3_server");
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    check_tmpdir("store_s3");
    s3_fault("NONE", "none", 0, 0);
    return kvm_arena_init(&keep, 256 << 20, NULL) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static const kvm_store_options plain = {.where = {"s3://mill/pre/fix/", 18},
                                        .part_bytes = 1000,
                                        .http = {.backoff_s = 0.01, .tries = 3}};

/* what another process of that home would open */
static kvm_store *opened(const char *home, kvm_store_options o)
{
    kvm_store *s;
    MUST(kvm_store_open(&s, &keep, kvm_str_fmt(&keep, DIR "/%s", home), &o, e));
    return s;
}

static kvm_store *at(const char *home)
{
    return opened(home, plain);
}

static kvm_store *one_try(const char *home)
{
    kvm_store_options o = plain;
    o.http.tries = 1;
    return opened(home, o);
}

typedef struct thing {
    char sha[65];
    int64_t bytes;
    kvm_str path, content;
} thing;

/* a file like no other */
static thing make(int64_t bytes)
{
    thing t = {.bytes = bytes};
    char *content = kvm_new(&keep, char, bytes + 1);
    serial++;
    kvm_rng r = kvm_rng_seed((uint64_t)getpid(), (uint64_t)serial);
    for (int64_t i = 0; i < bytes; i++)
        content[i] = (char)('a' + kvm_rng_below(&r, 26));
    t.content = (kvm_str){content, bytes};
    t.path = kvm_str_fmt(&keep, DIR "/output.%d", serial);
    check_write(t.path.at, t.content);
    MUST(kvm_sha_of(t.content, t.sha, e));
    return t;
}

static void again(const thing *t)
{
    check_write(t->path.at, t->content);
}

static kvm_status put(kvm_store *s, const thing *t, kvm_err *err)
{
    return kvm_store_put(s, t->path, t->sha, t->bytes, err);
}

static bool has(kvm_store *s, const thing *t)
{
    bool there;
    MUST(kvm_store_look(s, t->sha, t->bytes, &there, e));
    return there;
}

static const char *object(const char *home, const thing *t, const char *end)
{
    return kvm_str_fmt(&keep, DIR "/%s/objects/%.2s/%s%s", home, t->sha, t->sha + 2,
                       end)
        .at;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void check_got(kvm_store *s, const thing *t)
{
    kvm_str path, content;
    MUST(kvm_store_get(s, &path, &keep, t->sha, t->bytes, e));
    MUST(kvm_file_read(&content, &keep, path, 1 << 20, e));
    assert_true(kvm_str_eq(content, t->content));
}

static kvm_status try_get(kvm_store *s, const thing *t, kvm_err *err)
{
    kvm_str path;
    return kvm_store_get(s, &path, &keep, t->sha, t->bytes, err);
}

#define RETRIED(word, call)                                                            \
    do {                                                                               \
        kvm_err no = {0};                                                              \
        const kvm_status s_ = call;                                                    \
        assert_int_equal(kvm_status_action(s_), KVM_RETRY);                            \
        assert_int_equal(s_, no.code);                                                 \
        check_contains(no.msg, word);                                                  \
        assert_null(strstr(no.msg, "hush"));                                           \
    } while (0)

/* ---- from home to home ---- */

static void what_one_home_puts_another_gets(void **state)
{
    (void)state;
    const thing t = make(700), nothing = make(0);
    kvm_store *a = at("a"), *b = at("b");
    assert_false(has(b, &t));
    MUST(put(a, &t, e));
    MUST(put(a, &nothing, e));
    assert_false(exists(t.path.at));
    assert_true(has(b, &t));
    thing other = t;
    other.bytes = 699;
    assert_false(has(b, &other));
    assert_false(exists(object("b", &t, "")));
    check_got(b, &t);
    check_got(b, &nothing);
    assert_true(exists(object("b", &t, "")));
    assert_int_equal(s3_count("GET ", t.sha + 2), 1);
    check_got(at("b"), &t); /* it is here now */
    check_got(a, &t);       /* and was never gone there */
    assert_int_equal(s3_count("GET ", t.sha + 2), 1);
    assert_int_equal(s3_count("PUT /mill/pre/fix/objects/", t.sha + 2), 1);
}

static void equal_content_is_sent_once(void **state)
{
    (void)state;
    const thing t = make(500);
    char sha[65];
    MUST(put(at("a"), &t, e));
    again(&t);
    MUST(put(at("b"), &t, e));
    MUST(kvm_store_add(at("c"), t.content, sha, e));
    assert_int_equal(s3_count("PUT", t.sha + 2), 1);
    assert_false(exists(t.path.at));
    check_got(at("b"), &t);
}

static void what_is_in_no_bucket_has_gone(void **state)
{
    (void)state;
    const thing t = make(10);
    check_refused(KVM_DAMAGED, "run again", try_get(at("a"), &t, &no));
    assert_false(exists(object("a", &t, ".part")));
    thing unknown = t;
    unknown.bytes = -1;
    check_refused(KVM_DAMAGED, "run again", try_get(at("a"), &unknown, &no));
}

static void what_has_rotted_here_is_fetched_again(void **state)
{
    (void)state;
    const thing t = make(100);
    MUST(put(at("a"), &t, e));
    FILE *f = fopen(object("a", &t, ""), "r+");
    assert_true(f && fputs("rot", f) >= 0 && fclose(f) == 0);
    check_got(at("a"), &t);
    assert_int_equal(truncate(object("a", &t, ""), 7), 0);
    check_got(at("a"), &t);
}

/* ---- a server in trouble ---- */

static void puts_are_tried_again(void **state)
{
    (void)state;
    const char *const faults[] = {"drop", "slow", "lost"};
    for (size_t i = 0; i < COUNT(faults); i++) {
        const thing t = make(900);
        s3_fault("PUT", faults[i], 0, 2);
        MUST(put(at("a"), &t, e));
        check_got(at("b"), &t);
    }
}

static void servers_without_conditions_serve(void **state)
{
    (void)state;
    const thing t = make(900), u = make(2900);
    s3_fault("PUT", "noif", 0, 1);
    MUST(put(at("a"), &t, e));
    s3_fault("POST", "noif", 0, 1);
    MUST(put(at("a"), &u, e));
    check_got(at("b"), &t);
    check_got(at("b"), &u);
}

static void a_put_that_fails_leaves_all_as_it_was(void **state)
{
    (void)state;
    const struct {
        const char *fault, *word;
    } rows[] = {{"drop", "127.0.0.1"}, {"slow", "SlowDown"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        const thing t = make(900);
        kvm_store *s = one_try("a");
        s3_fault("PUT", rows[i].fault, 0, 1 + (i == 0)); /* a kept connection that
                                                             ends is no answer */
        RETRIED(rows[i].word, put(s, &t, &no));
        assert_true(exists(t.path.at));
        assert_false(has(s, &t));
        assert_false(exists(object("a", &t, "")));
        MUST(put(s, &t, e));
        check_got(at("b"), &t);
    }
}

static void a_get_that_breaks_off_goes_on(void **state)
{
    (void)state;
    const thing t = make(901);
    MUST(put(at("a"), &t, e));
    s3_fault("GET", "cut", 0, 2);
    check_got(at("b"), &t);
    s3_fault("GET", "cut", 0, 1);
    RETRIED("127.0.0.1", try_get(one_try("c"), &t, &no));
    assert_false(exists(object("c", &t, "")));
    assert_true(exists(object("c", &t, ".part"))); /* for the next attempt */
    check_got(at("c"), &t);
}

static void bad_content_is_not_taken(void **state)
{
    (void)state;
    const struct {
        const char *fault, *word;
    } rows[] = {{"wrong", "has the hash"},
                {"short", "were expected"},
                {"html", "were expected"},
                {"slow", "SlowDown"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        const thing t = make(700);
        MUST(put(at("a"), &t, e));
        s3_fault("GET", rows[i].fault, 0, 2);
        RETRIED(rows[i].word, try_get(one_try("b"), &t, &no));
        assert_false(exists(object("b", &t, "")));
        s3_fault("NONE", "none", 0, 0);
        check_got(at("b"), &t);
    }
}

/* One bad answer may be the way's fault. */
static void wrong_content_is_asked_for_twice(void **state)
{
    (void)state;
    const thing t = make(700);
    MUST(put(at("a"), &t, e));
    s3_fault("GET", "wrong", 0, 1);
    check_got(at("b"), &t);
    assert_false(exists(object("b", &t, ".bad")));
}

static void what_the_bucket_spoilt_is_replaced(void **state)
{
    (void)state;
    const thing t = make(700);
    MUST(put(at("a"), &t, e));
    s3_fault("GET", "wrong", 0, 2);
    RETRIED("a job that makes it again", try_get(at("b"), &t, &no));
    assert_true(exists(object("b", &t, ".bad")));
    again(&t);
    MUST(put(at("b"), &t, e));
    assert_int_equal(s3_count("PUT", t.sha + 2), 2);
    assert_false(exists(object("b", &t, ".bad")));
    again(&t);
    MUST(put(at("b"), &t, e)); /* it is not doubted for ever */
    assert_int_equal(s3_count("PUT", t.sha + 2), 2);
}

/* ---- in parts ---- */

static void long_content_goes_in_parts(void **state)
{
    (void)state;
    const thing t = make(4321);
    MUST(put(at("a"), &t, e));
    assert_int_equal(s3_count("PUT", t.sha + 2), 5);
    assert_int_equal(s3_count("partNumber=5", t.sha + 2), 1);
    assert_false(exists(object("a", &t, ".upload")));
    check_got(at("b"), &t);
    again(&t);
    MUST(put(at("b"), &t, e));
    assert_int_equal(s3_count("PUT", t.sha + 2), 5);
}

static void parts_that_were_sent_are_not_sent_again(void **state)
{
    (void)state;
    const thing t = make(4500);
    s3_fault("PUT", "slow", 2, 1);
    RETRIED("SlowDown", put(one_try("a"), &t, &no));
    assert_int_equal(s3_count("PUT", t.sha + 2), 3); /* the third was refused */
    assert_true(exists(object("a", &t, ".upload")));
    assert_false(has(at("a"), &t));
    MUST(put(at("a"), &t, e)); /* another process */
    assert_int_equal(s3_count("PUT", t.sha + 2), 3 + 3);
    assert_int_equal(s3_count("uploads=", t.sha + 2), 1);
    assert_false(exists(object("a", &t, ".upload")));
    check_got(at("b"), &t);
}

static void an_upload_that_failed_is_gone_on_with(void **state)
{
    (void)state;
    const thing t = make(4500);
    s3_fault("POST", "error", 0, 1);
    RETRIED("InternalError", put(one_try("a"), &t, &no));
    assert_true(exists(object("a", &t, ".upload")));
    assert_true(exists(t.path.at));
    assert_false(has(at("a"), &t));
    assert_int_equal(s3_count("partNumber", t.sha + 2), 5);
    MUST(put(at("a"), &t, e)); /* only to be completed */
    assert_int_equal(s3_count("partNumber", t.sha + 2), 5);
    assert_int_equal(s3_count("POST", "uploads= 200"), s3_count("POST", "uploads= "));
    check_got(at("b"), &t);
}

static void an_upload_that_was_aborted_is_begun_anew(void **state)
{
    (void)state;
    const thing t = make(2500);
    s3_fault("PUT", "gone", 0, 1);
    MUST(put(at("a"), &t, e));
    check_got(at("b"), &t);
    assert_int_equal(s3_count("uploads=", t.sha + 2), 2);
}

static void an_upload_whose_answer_was_lost_is_done(void **state)
{
    (void)state;
    const thing t = make(2500);
    kvm_store *s = at("a");
    s3_fault("POST", "slow", 0, 1); /* of the first, to begin it */
    MUST(put(s, &t, e));
    const thing u = make(2500);
    s3_fault("POST", "lost", 0, 2); /* begun twice; the second is gone on with */
    MUST(put(s, &u, e));
    check_got(at("b"), &t);
    check_got(at("b"), &u);
}

/* ---- the cache ---- */

static void the_cache_is_bounded(void **state)
{
    (void)state;
    kvm_store_options o = plain;
    o.cache_bytes = 1000;
    const thing a = make(400), b = make(400), c = make(400), d = make(900);
    kvm_arena once = check_arena(16 << 20);
    kvm_str path;
    kvm_store *s = opened("a", o);
    MUST(put(s, &a, e));
    kvm_sleep(0.02);
    MUST(put(s, &b, e));
    kvm_sleep(0.02);
    MUST(kvm_store_get(s, &path, &once, a.sha, a.bytes, e)); /* used last */
    kvm_sleep(0.02);
    MUST(put(s, &c, e));
    assert_true(exists(object("a", &a, "")) && exists(object("a", &c, "")));
    assert_false(exists(object("a", &b, "")));
    MUST(put(at("x"), &d, e));
    MUST(kvm_store_get(s, &path, &once, d.sha, d.bytes, e)); /* a is in use */
    assert_true(exists(object("a", &a, "")) && exists(object("a", &d, "")));
    assert_false(exists(object("a", &c, "")));
    kvm_arena_free(&once);
    MUST(kvm_store_get(s, &path, &keep, c.sha, c.bytes, e));
    assert_false(exists(object("a", &d, "")));
    check_got(s, &b);
}

/* a home that was a store of its own before */
static void the_last_copy_is_not_evicted(void **state)
{
    (void)state;
    kvm_store_options o = plain;
    kvm_store *alone;
    char sha[65];
    const thing old = make(600), new = make(600);
    MUST(kvm_store_open(&alone, &keep, KVM_STR(DIR "/a"), NULL, e));
    MUST(kvm_store_add(alone, old.content, sha, e));
    o.cache_bytes = 700;
    MUST(put(opened("a", o), &new, e));
    assert_true(exists(object("a", &old, "")));
    check_got(opened("a", o), &old);
}

static void processes_of_a_home_fetch_once(void **state)
{
    (void)state;
    const thing t = make(900);
    pid_t pids[4];
    MUST(put(at("a"), &t, e));
    for (size_t i = 0; i < COUNT(pids); i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            kvm_err err = {0};
            _exit(try_get(at("b"), &t, &err) != KVM_OK);
        }
    }
    for (size_t i = 0; i < COUNT(pids); i++) {
        int status;
        waitpid(pids[i], &status, 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(s3_count("GET", t.sha + 2), 1);
}

/* ---- garbage ---- */

typedef struct swept {
    int files[KVM_SWEPT_COUNT];
} swept;

static void count_swept(void *ctx, kvm_swept what, const char *path, int64_t bytes)
{
    swept *w = ctx;
    (void)bytes;
    if (strncmp(path, "s3://mill/pre/fix/objects/", 26) == 0) w->files[what]++;
}

static swept sweep(kvm_store *s, kvm_catalogue *c, double age_s, bool dry)
{
    swept w = {0};
    const kvm_sweep o = {age_s, dry, count_swept, &w};
    MUST(kvm_store_sweep(s, c, &o, e));
    return w;
}

/* the objects of all tests before are garbage, too: this one is the last */
static void the_sweep_takes_what_nobody_names(void **state)
{
    (void)state;
    kvm_catalogue *c;
    const thing named = make(300), loose = make(300), torn = make(2500);
    kvm_store *s = at("a");
    MUST(kvm_catalogue_open(&c, &keep, KVM_STR(DIR "/catalogue.db"), NULL, e));
    MUST(put(s, &named, e));
    MUST(put(s, &loose, e));
    s3_fault("POST", "error", 0, 1);
    RETRIED("InternalError", put(one_try("a"), &torn, &no));
    kvm_test_commit(c, &keep, named.sha, named.bytes);
    kvm_sleep(3.2); /* the server tells whole seconds */
    assert_int_equal(sweep(s, c, 3600, false).files[KVM_SWEPT_OBJECT], 0);
    const swept dry = sweep(s, c, 0, true);
    assert_true(has(s, &loose));
    const swept wet = sweep(s, c, 0, false);
    assert_true(wet.files[KVM_SWEPT_OBJECT] > 3); /* more than a page */
    assert_int_equal(dry.files[KVM_SWEPT_OBJECT], wet.files[KVM_SWEPT_OBJECT]);
    assert_true(wet.files[KVM_SWEPT_TEMPORARY] >= 1);
    assert_int_equal(dry.files[KVM_SWEPT_TEMPORARY], wet.files[KVM_SWEPT_TEMPORARY]);
    assert_true(has(s, &named));
    assert_false(has(s, &loose));
    const swept none = sweep(s, c, 0, false);
    assert_int_equal(none.files[KVM_SWEPT_OBJECT] + none.files[KVM_SWEPT_TEMPORARY], 0);
    MUST(put(at("b"), &torn, e)); /* begun anew */
    check_got(at("c"), &torn);
}

/* ---- who may ---- */

static void keys_and_places_are_checked(void **state)
{
    (void)state;
    const struct {
        const char *name, *value, *word;
        bool endpoint;
    } rows[] = {
        {"AWS_SECRET_ACCESS_KEY", "hush", "AWS_SECRET_ACCESS_KEY right", false},
        {"AWS_ACCESS_KEY_ID", "NOKEY", "AWS_ACCESS_KEY_ID of this endpoint", false},
        {"AWS_ACCESS_KEY_ID", "TOKENKEY", "AWS_SESSION_TOKEN", false},
        {"AWS_REGION", "eu-test-2", "AWS_REGION", false},
        {"AWS_ENDPOINT_URL", "http://127.0.0.1:1", "offline", true}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        const thing t = make(30);
        const char *was = getenv(rows[i].name);
        char *before = strdup(was ? was : "");
        setenv(rows[i].name, rows[i].value, 1);
        kvm_store *s = at("a");
        setenv(rows[i].name, before, 1);
        if (rows[i].endpoint)
            RETRIED(rows[i].word, put(s, &t, &no));
        else /* what answers a HEAD says no more than its status */
            RETRIED(rows[i].word, try_get(s, &t, &no));
        free(before);
    }
    setenv("AWS_ACCESS_KEY_ID", "TOKENKEY", 1);
    setenv("AWS_SESSION_TOKEN", "TOKEN", 1);
    const thing t = make(30);
    MUST(put(at("a"), &t, e));
    setenv("AWS_ACCESS_KEY_ID", "KEY", 1);
    unsetenv("AWS_SESSION_TOKEN");
}

static void addresses_are_checked(void **state)
{
    (void)state;
    const char *const bad[] = {"s3://",          "s3://UP",        "s3://ab",
                               "s3://mill/a//b", "s3://mill/../x", "s3://mill/a b",
                               "s3://mi<ll",     "s3://mill/ä"};
    kvm_store *s;
    kvm_store_options o = plain;
    for (size_t i = 0; i < COUNT(bad); i++) {
        o.where = kvm_str_of(bad[i]);
        check_refused(KVM_USAGE, "no address of a store",
                      kvm_store_open(&s, &keep, KVM_STR(DIR "/a"), &o, &no));
    }
    o.where = KVM_STR("s3://none");
    const thing t = make(5);
    MUST(kvm_store_open(&s, &keep, KVM_STR(DIR "/a"), &o, e));
    RETRIED("NoSuchBucket: make it", put(s, &t, &no));
    unsetenv("AWS_SECRET_ACCESS_KEY");
    check_refused(KVM_ENVIRONMENT, "set AWS_ACCESS_KEY_ID",
                  kvm_store_open(&s, &keep, KVM_STR(DIR "/a"), &plain, &no));
    setenv("AWS_SECRET_ACCESS_KEY", "hush-hush", 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(what_one_home_puts_another_gets),
        T(equal_content_is_sent_once),
        T(what_is_in_no_bucket_has_gone),
        T(what_has_rotted_here_is_fetched_again),
        T(puts_are_tried_again),
        T(servers_without_conditions_serve),
        T(a_put_that_fails_leaves_all_as_it_was),
        T(a_get_that_breaks_off_goes_on),
        T(bad_content_is_not_taken),
        T(wrong_content_is_asked_for_twice),
        T(what_the_bucket_spoilt_is_replaced),
        T(long_content_goes_in_parts),
        T(parts_that_were_sent_are_not_sent_again),
        T(an_upload_that_failed_is_gone_on_with),
        T(an_upload_that_was_aborted_is_begun_anew),
        T(an_upload_whose_answer_was_lost_is_done),
        T(the_cache_is_bounded),
        T(the_last_copy_is_not_evicted),
        T(processes_of_a_home_fetch_once),
        T(keys_and_places_are_checked),
        T(addresses_are_checked),
        T(the_sweep_takes_what_nobody_names),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
