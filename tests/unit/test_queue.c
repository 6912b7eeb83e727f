/* The queue: hints of both drivers, and what the Redis one makes of streams that are
 * gone, entries that are broken, workers that died. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "scheduler/queue.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/queue.h"
#include "tests/support/redis_server.h"

static kvm_arena keep;

static int set_up(void **state)
{
    (void)state;
    MUST(kvm_arena_init(&keep, 64 << 20, e));
    return 0;
}
static int set_up_server(void **state)
{
    redis_server_do("FLUSHALL");
    return set_up(state);
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static int exit_of(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* ---- a batch as text ---- */

static kvm_job_batch batch_of(ptrdiff_t count, int64_t first)
{
    kvm_job_batch b = {.count = count};
    for (ptrdiff_t i = 0; i < count; i++) b.jobs[i] = (kvm_fence){first + i, i % 3};
    return b;
}

static void batches_are_texts(void **state)
{
    (void)state;
    char text[KVM_BATCH_TEXT];
    kvm_job_batch b = batch_of(KVM_BATCH_MOST, INT64_MAX - KVM_BATCH_MOST), read;
    b.jobs[1].token = INT64_MAX;
    assert_true(kvm_batch_read(&read, kvm_batch_write(&b, text)));
    assert_int_equal(read.count, b.count);
    assert_memory_equal(read.jobs, b.jobs, sizeof b.jobs);
    b = batch_of(2, 7);
    assert_true(kvm_str_eq(kvm_batch_write(&b, text), KVM_STR("7 0 8 1")));
}

static void other_texts_are_no_batches(void **state)
{
    (void)state;
    const char *const bad[] = {"",
                               " ",
                               "1",
                               "1 ",
                               " 1 0",
                               "1 0 ",
                               "1  0",
                               "1 0 2",
                               "0 0",
                               "-1 0",
                               "1 -1",
                               "1 +1",
                               "1 0\n",
                               "a b",
                               "1 0x1",
                               "1,0",
                               "1 0 0 0",
                               "9223372036854775808 0",
                               "1 99999999999999999999"};
    kvm_job_batch b = batch_of(1, 5);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kvm_batch_read(&b, kvm_str_of(bad[i]))) fail_msg("\"%s\" was read", bad[i]);
    char text[KVM_BATCH_TEXT + 8] = "1 0";
    for (int i = 1; i <= KVM_BATCH_MOST; i++) strncat(text, " 1 0", 5);
    assert_false(kvm_batch_read(&b, kvm_str_of(text))); /* one too many */
    assert_int_equal(b.jobs[0].job, 5);                 /* untouched */
}

/* ---- local ---- */

static void a_local_queue_wakes(void **state)
{
    (void)state;
    kvm_queue *q;
    kvm_hint hint;
    bool found = true;
    const kvm_queue_options o = {.home = kvm_str_of(kvm_test_home("queue"))};
    MUST(kvm_queue_open(&q, &keep, &o, e));
    assert_false(kvm_queue_scheduled(q));
    MUST(kvm_queue_take(q, &hint, &found, 0, e));
    assert_false(found);
    MUST(kvm_queue_settle(q, NULL, e));
    double start = kvm_now();
    MUST(kvm_queue_take(q, &hint, &found, 60, e)); /* woken, or the test runs out */
    assert_false(found);
    assert_true(kvm_now() - start < 30);
}

/* ---- Redis ---- */

static const kvm_queue_class cpu = {{"cpu", 3}, 1, 0};

static kvm_queue *open_at(const char *where, const char *name, const char *classes)
{
    kvm_queue *q;
    kvm_queue_options o = {.where = kvm_str_of(where),
                           .catalogue = KVM_STR("0123456789abcdef"),
                           .name = kvm_str_of(name)};
    kvm_str rest = kvm_str_of(classes);
    while (rest.len)
        kvm_str_cut(rest, ' ', &o.want.classes[o.want.class_count++], &rest);
    MUST(kvm_queue_open(&q, &keep, &o, e));
    return q;
}
static kvm_queue *open_worker(const char *name)
{
    return open_at(redis_server_unix(), name, "cpu");
}
static void send_to(kvm_queue *q, const kvm_queue_class *class, ptrdiff_t n,
                    int64_t first)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_job_batch b = batch_of(1, first + i);
        MUST(kvm_queue_send(q, class, &b, 1, e));
    }
}
/* the first job of the next hint; 0: none */
static int64_t take(kvm_queue *q, kvm_hint *hint)
{
    bool found = false;
    MUST(kvm_queue_take(q, hint, &found, 0, e));
    return found ? hint->batch.jobs[0].job : 0;
}
static int64_t length(const char *class)
{
    char command[100];
    snprintf(command, sizeof command, "XLEN kvmill:0123456789abcdef:%s", class);
    return strtoll(redis_server_do(command) + 1, NULL, 10);
}
static kvm_queue_stream look(kvm_queue *q, const char *class)
{
    kvm_queue_stream *all;
    ptrdiff_t n;
    MUST(kvm_queue_look(q, &all, &n, &keep, e));
    for (ptrdiff_t i = 0; i < n; i++)
        if (kvm_str_ends(all[i].key, kvm_str_of(class))) return all[i];
    return (kvm_queue_stream){0};
}

static void each_batch_goes_to_one_worker(void **state)
{
    (void)state;
    kvm_queue *s = open_at(redis_server_tcp(), "scheduler", "");
    kvm_queue *w[2] = {open_worker("a"), open_worker("b")};
    kvm_hint hint[2];
    assert_true(kvm_queue_scheduled(w[0]));
    assert_int_equal(take(w[0], &hint[0]), 0);
    const kvm_job_batch b = batch_of(KVM_BATCH_MOST, 100);
    MUST(kvm_queue_send(s, &cpu, &b, 1, e));
    send_to(s, &cpu, 3, 1);
    ptrdiff_t waiting;
    MUST(kvm_queue_waiting(s, &cpu, &waiting, e));
    assert_int_equal(waiting, 4);
    assert_int_equal(take(w[0], &hint[0]), 100);
    assert_int_equal(hint[0].batch.count, KVM_BATCH_MOST);
    assert_memory_equal(hint[0].batch.jobs, b.jobs, sizeof b.jobs);
    assert_int_equal(take(w[1], &hint[1]), 1);
    MUST(kvm_queue_waiting(s, &cpu, &waiting, e));
    assert_int_equal(waiting, 2);
    assert_int_equal(look(s, "cpu").pending, 2);
    assert_int_equal(look(s, "cpu").consumers, 2);
    MUST(kvm_queue_settle(w[0], &hint[0], e));
    MUST(kvm_queue_settle(w[0], &hint[0], e)); /* twice is harmless */
    MUST(kvm_queue_settle(w[1], &hint[1], e));
    assert_int_equal(length("cpu"), 2);
    assert_int_equal(take(w[1], &hint[1]), 2);
    assert_int_equal(take(w[0], &hint[0]), 3);
    assert_int_equal(take(w[0], &hint[0]), 0);
}

static void what_can_do_more_has_a_stream_of_its_own(void **state)
{
    (void)state;
    kvm_queue *s = open_worker("scheduler"), *big;
    const kvm_queue_class gang = {{"gpu", 3}, 4, 65536};
    const kvm_queue_options o = {.where = kvm_str_of(redis_server_unix()),
                                 .catalogue = KVM_STR("0123456789abcdef"),
                                 .name = KVM_STR("big"),
                                 .want = {.classes = {{"gpu", 3}, {"cpu", 3}},
                                          .class_count = 2,
                                          .ranks = 4,
                                          .memory_mib = 65536}};
    kvm_hint hint;
    MUST(kvm_queue_open(&big, &keep, &o, e));
    send_to(s, &cpu, 1, 1);
    send_to(s, &gang, 1, 2);
    assert_int_equal(length("gpu:4:65536m"), 1);
    assert_int_equal(take(big, &hint), 2);
    assert_int_equal(take(big, &hint), 0);
    assert_int_equal(take(s, &hint), 1);
}

/* Two streams get an entry each while a worker waits for both. */
static void what_comes_along_is_handed_on(void **state)
{
    (void)state;
    const kvm_queue_class small = {{"small", 5}, 1, 0};
    kvm_queue *w = open_at(redis_server_unix(), "a", "cpu small");
    kvm_queue *other = open_at(redis_server_unix(), "b", "small cpu");
    kvm_hint hint;
    assert_int_equal(take(w, &hint), 0); /* groups are made */
    const pid_t pid = fork();
    if (pid == 0) {
        kvm_sleep(0.3);
        redis_server_do("MULTI\r\nXADD kvmill:0123456789abcdef:cpu * b \"1 0\"\r\n"
                        "XADD kvmill:0123456789abcdef:small * b \"2 0\"\r\nEXEC");
        _exit(0);
    }
    bool found = false;
    MUST(kvm_queue_take(w, &hint, &found, 20, e));
    assert_true(found);
    const int64_t first = hint.batch.jobs[0].job;
    const int64_t second = take(other, &hint);
    assert_int_equal(first + second, 3);
    assert_int_equal(take(w, &hint), 0);
    send_to(other, &small, 1, 9);
    assert_int_equal(take(w, &hint), 9);
    assert_int_equal(exit_of(pid), 0);
}

static void lost_streams_are_made_again(void **state)
{
    (void)state;
    kvm_queue *w = open_worker("a");
    kvm_hint hint;
    const char *const ways[] = {"FLUSHALL", "DEL kvmill:0123456789abcdef:cpu",
                                "XGROUP DESTROY kvmill:0123456789abcdef:cpu workers",
                                NULL};
    for (int i = 0; i < 4; i++) {
        send_to(w, &cpu, 1, 1);
        assert_int_equal(take(w, &hint), 1);
        if (ways[i]) {
            redis_server_do(ways[i]);
        } else {
            redis_server_stop();
            redis_server_again();
        }
        for (int k = 0; k < 100 && kvm_queue_settle(w, &hint, NULL); k++)
            kvm_sleep(0.05);
        send_to(w, &cpu, 1, 2);
        const int64_t got = take(w, &hint);
        assert_true(got == 1 ||
                    got == 2); /* a group that is new reads from the start */
        MUST(kvm_queue_settle(w, &hint, e));
        redis_server_do("FLUSHALL");
    }
}

static void a_stream_that_goes_while_waited_for_is_no_trouble(void **state)
{
    (void)state;
    const char *const ways[] = {"FLUSHALL", "DEL kvmill:0123456789abcdef:cpu",
                                "XGROUP DESTROY kvmill:0123456789abcdef:cpu workers"};
    for (int i = 0; i < 3; i++) {
        kvm_queue *w = open_worker("a");
        kvm_hint hint;
        bool found = false;
        assert_int_equal(take(w, &hint), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            kvm_sleep(0.2);
            redis_server_do(ways[i]);
            kvm_sleep(0.2);
            redis_server_do("XADD kvmill:0123456789abcdef:cpu * b \"5 0\"");
            _exit(0);
        }
        MUST(kvm_queue_take(w, &hint, &found, 20, e));
        if (!found) assert_int_equal(take(w, &hint), 5);
        assert_int_equal(hint.batch.jobs[0].job, 5);
        assert_int_equal(exit_of(pid), 0);
        redis_server_do("FLUSHALL");
    }
}

static void broken_entries_are_dropped(void **state)
{
    (void)state;
    kvm_queue *w = open_worker("a");
    kvm_hint hint;
    const char *const broken[] = {"b \"\"",    "b \"1\"",    "b \"1 2 3\"",
                                  "c \"1 2\"", "b \"-1 0\"", "x y z w"};
    assert_int_equal(take(w, &hint), 0);
    for (int i = 0; i < 6; i++) {
        char command[100];
        snprintf(command, sizeof command, "XADD kvmill:0123456789abcdef:cpu * %s",
                 broken[i]);
        redis_server_do(command);
        assert_int_equal(take(w, &hint), 0);
        assert_int_equal(length("cpu"), 0);
    }
    redis_server_do("DEL kvmill:0123456789abcdef:cpu");
    redis_server_do("SET kvmill:0123456789abcdef:cpu text");
    bool found;
    assert_int_equal(kvm_queue_take(w, &hint, &found, 0, NULL), KVM_MISMATCH);
}

/* ---- the audit ---- */

static int64_t seen[16];
static int seen_count;
static kvm_status there(void *ctx, const kvm_job_batch *b, kvm_err *err)
{
    (void)ctx, (void)err;
    for (ptrdiff_t i = 0; i < b->count && seen_count < 16; i++)
        seen[seen_count++] = b->jobs[i].job;
    return KVM_OK;
}
static int audit(kvm_queue *q, double idle_s)
{
    seen_count = 0;
    MUST(kvm_queue_audit(q, &cpu, idle_s, there, NULL, e));
    return seen_count;
}

static void what_nobody_settles_is_taken_back(void **state)
{
    (void)state;
    kvm_queue *s = open_worker("scheduler"), *w = open_worker("a");
    kvm_hint hint;
    assert_int_equal(audit(s, 0.01), 0); /* no stream at all */
    send_to(s, &cpu, 3, 1);
    assert_int_equal(audit(s, 0.01), 3); /* no group: nothing was taken */
    assert_int_equal(take(w, &hint), 1);
    assert_int_equal(audit(s, 60), 3);
    assert_int_equal(seen[0] + seen[1] + seen[2], 6);
    kvm_sleep(0.05);
    assert_int_equal(audit(s, 0.01), 2); /* job 1 is in no stream now */
    assert_int_equal(seen[0] + seen[1], 5);
    MUST(kvm_queue_settle(w, &hint, e)); /* too late, and harmless */
    assert_int_equal(take(w, &hint), 2);
    assert_int_equal(look(s, "cpu").pending, 1);
}

/* Entries that were acknowledged, but not deleted, and those whose consumer somebody
 * has removed: nobody will get them. Those behind the oldest pending one stay. */
static void only_what_is_done_is_trimmed(void **state)
{
    (void)state;
    kvm_queue *s = open_worker("scheduler"), *w = open_worker("a"),
              *gone = open_worker("gone");
    kvm_hint hint[6];
    send_to(s, &cpu, 6, 1);
    assert_int_equal(take(gone, &hint[0]), 1);
    for (int i = 1; i < 4; i++) assert_int_equal(take(w, &hint[i]), i + 1);
    redis_server_do("XGROUP DELCONSUMER kvmill:0123456789abcdef:cpu workers gone");
    char command[160];
    snprintf(command, sizeof command, "XACK kvmill:0123456789abcdef:cpu workers %s",
             hint[3].receipt);
    redis_server_do(command);
    assert_int_equal(audit(s, 60), 5); /* 2 and 3 pending, 4 acknowledged, 5, 6 */
    assert_int_equal(seen[0], 2);
    MUST(kvm_queue_settle(w, &hint[1], e));
    MUST(kvm_queue_settle(w, &hint[2], e));
    assert_int_equal(audit(s, 60), 2);
    assert_int_equal(seen[0], 5);
    assert_int_equal(take(w, &hint[4]), 5);
    assert_int_equal(take(w, &hint[5]), 6);
}

static void another_group_keeps_its_entries(void **state)
{
    (void)state;
    kvm_queue *s = open_worker("scheduler"), *w = open_worker("a");
    kvm_hint hint;
    send_to(s, &cpu, 2, 1);
    assert_int_equal(take(w, &hint), 1);
    redis_server_do("XGROUP CREATE kvmill:0123456789abcdef:cpu others 0");
    char command[160];
    snprintf(command, sizeof command, "XACK kvmill:0123456789abcdef:cpu workers %s",
             hint.receipt);
    redis_server_do(command);
    audit(s, 60);
    assert_int_equal(length("cpu"), 2);
}

static void streams_without_readers_are_forgotten(void **state)
{
    (void)state;
    kvm_queue *s = open_worker("scheduler"),
              *w = open_at(redis_server_unix(), "g", "gpu");
    const kvm_queue_class gpu = {{"gpu", 3}, 1, 0};
    kvm_hint hint;
    send_to(s, &cpu, 1, 1);
    send_to(s, &gpu, 1, 2);
    assert_int_equal(take(w, &hint), 2);
    MUST(kvm_queue_forget(s, &cpu, 1, 60, e)); /* read just now */
    assert_int_equal(length("gpu"), 1);
    kvm_sleep(0.05);
    MUST(kvm_queue_forget(s, &cpu, 1, 0.01, e));
    assert_int_equal(length("gpu"), 0);
    assert_int_equal(length("cpu"), 1);
    assert_null(look(s, "gpu").key.at);
    assert_non_null(look(s, "cpu").key.at);
    assert_int_equal(take(w, &hint), 0); /* and made again by who reads it */
    send_to(s, &gpu, 1, 3);
    assert_int_equal(take(w, &hint), 3);
}

static void a_scheduler_hears_what_happened_before_it_listens(void **state)
{
    (void)state;
    kvm_queue *s = open_worker("scheduler"), *w = open_worker("a");
    for (int i = 0; i < 3; i++) {
        MUST(kvm_queue_wake(w, e));
        MUST(kvm_queue_settle(w, NULL, e));
        const double start = kvm_now();
        MUST(kvm_queue_listen(s, 60, e));
        assert_true(kvm_now() - start < 30);
    }
    MUST(kvm_queue_listen(s, 0.01, e)); /* nothing more */
    assert_int_equal(length("wake"), 1);
    redis_server_do("FLUSHALL");
    redis_server_do("XADD kvmill:0123456789abcdef:wake 1-1 w 1"); /* an older clock */
    MUST(kvm_queue_listen(s, 0.01, e));
    redis_server_do("CLIENT KILL TYPE normal SKIPME yes");
    if (kvm_queue_listen(s, 0.01, NULL)) MUST(kvm_queue_listen(s, 60, e));
}

static void a_server_that_is_not_there_is_waited_for(void **state)
{
    (void)state;
    kvm_queue *w;
    kvm_hint hint;
    bool found;
    redis_server_stop();
    w = open_worker("a");
    assert_int_equal(kvm_queue_take(w, &hint, &found, 0.1, NULL), KVM_BUSY);
    assert_false(found);
    redis_server_again();
    for (int i = 0; i < 100 && kvm_queue_take(w, &hint, &found, 0.1, NULL); i++)
        continue;
    send_to(w, &cpu, 1, 1);
    assert_int_equal(take(w, &hint), 1);

    redis_server_do("CONFIG SET requirepass secret");
    kvm_queue_options o = w->o;
    kvm_err err = {0};
    assert_int_equal(kvm_queue_open(&w, &keep, &o, &err), KVM_ENVIRONMENT);
    o.where = KVM_STR("redis://:wrong-one@h:x");
    assert_int_equal(kvm_queue_open(&w, &keep, &o, NULL), KVM_USAGE);
    redis_server_stop(); /* without the password it takes no commands of ours */
    redis_server_again();
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
#define WITH_SERVER(fn) cmocka_unit_test_setup_teardown(fn, set_up_server, tear_down)

int main(void)
{
    const struct CMUnitTest alone[] = {
        TEST(batches_are_texts),
        TEST(other_texts_are_no_batches),
        TEST(a_local_queue_wakes),
    };
    const struct CMUnitTest served[] = {
        WITH_SERVER(each_batch_goes_to_one_worker),
        WITH_SERVER(what_can_do_more_has_a_stream_of_its_own),
        WITH_SERVER(what_comes_along_is_handed_on),
        WITH_SERVER(lost_streams_are_made_again),
        WITH_SERVER(a_stream_that_goes_while_waited_for_is_no_trouble),
        WITH_SERVER(broken_entries_are_dropped),
        WITH_SERVER(what_nobody_settles_is_taken_back),
        WITH_SERVER(only_what_is_done_is_trimmed),
        WITH_SERVER(another_group_keeps_its_entries),
        WITH_SERVER(streams_without_readers_are_forgotten),
        WITH_SERVER(a_scheduler_hears_what_happened_before_it_listens),
        WITH_SERVER(a_server_that_is_not_there_is_waited_for),
    };
    const int bad = cmocka_run_group_tests_name("queue", alone, NULL, NULL);
    if (!redis_server_start()) return bad;
    return bad + cmocka_run_group_tests_name("redis queue", served, NULL, NULL);
}
