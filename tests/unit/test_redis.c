/* The connection to Redis: addresses, what it is given again after a reconnect, what it
 * does when the server is gone, silent, full, or answers nonsense. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "scheduler/redis.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/queue.h"
#include "tests/support/redis_server.h"

#define W(text) KVM_STR(text)

static kvm_arena keep;

static int set_up(void **state)
{
    (void)state;
    MUST(kvm_arena_init(&keep, 1 << 20, e));
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

/* ---- addresses ---- */

static void addresses_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *where, *user, *password, *host, *path;
        int port, db;
        const char *shown;
    } rows[] = {
        {"redis://h", "", "", "h", "", 6379, 0, "redis://h:6379/0"},
        {"redis://h/", "", "", "h", "", 6379, 0, "redis://h:6379/0"},
        {"redis://u:p@h:1/7", "u", "p", "h", "", 1, 7, "redis://u@h:1/7"},
        {"redis://:p@h", "", "p", "h", "", 6379, 0, "redis://h:6379/0"},
        {"redis://u@h", "u", "", "h", "", 6379, 0, "redis://u@h:6379/0"},
        {"redis://u:a%40b%3A%2f@h", "u", "a@b:/", "h", "", 6379, 0,
         "redis://u@h:6379/0"},
        {"redis://u:a@b@h", "u", "a@b", "h", "", 6379, 0, "redis://u@h:6379/0"},
        {"redis://[::1]:99/2", "", "", "::1", "", 99, 2, "redis://::1:99/2"},
        {"redis+unix:///run/r.sock", "", "", "", "/run/r.sock", 0, 0,
         "redis+unix:///run/r.sock?db=0"},
        {"redis+unix://u:p@/a@b/s?db=3", "u", "p", "", "/a@b/s", 0, 3,
         "redis+unix://u@/a@b/s?db=3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kvm_redis_address a;
        MUST(kvm_redis_address_read(&a, &keep, kvm_str_of(rows[i].where), e));
        assert_true(kvm_str_eq(a.user, kvm_str_of(rows[i].user)));
        assert_true(kvm_str_eq(a.password, kvm_str_of(rows[i].password)));
        assert_true(kvm_str_eq(a.host, kvm_str_of(rows[i].host)));
        assert_true(kvm_str_eq(a.path, kvm_str_of(rows[i].path)));
        assert_string_equal(a.shown.at, rows[i].shown);
        assert_int_equal(a.db, rows[i].db);
        if (a.host.len) assert_int_equal(a.port, rows[i].port);
    }
}

static void bad_addresses_are_refused_without_being_shown(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "redis:",
        "redis://",
        "redis://:secret@",
        "redis://u:secret@h:port",
        "redis://u:secret@h:70000",
        "redis://u:secret@h:1/x",
        "redis://u:secret@h:1/-1",
        "redis://u:secret%4@h",
        "redis://u:secret%00@h",
        "redis://u:secret@[::1",
        "redis://u:secret@[::1]x",
        "redis+unix://u:secret@",
        "redis+unix://u:secret@/",
        "redis+unix://u:secret@/s?x=1",
        "redis+unix://u:secret@/s?db=",
        "postgres://u:secret@h",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvm_err err = {0};
        kvm_redis_address a;
        assert_int_equal(kvm_redis_address_read(&a, &keep, kvm_str_of(bad[i]), &err),
                         KVM_USAGE);
        assert_null(strstr(err.msg, "secret"));
        assert_non_null(strstr(err.msg, "redis://[USER"));
    }
    kvm_redis_address a;
    assert_int_equal(kvm_redis_address_read(&a, &keep, KVM_STR("rediss://h"), NULL),
                     KVM_UNSUPPORTED);
}

static void the_password_comes_from_the_environment_too(void **state)
{
    (void)state;
    kvm_redis_address a;
    const char *home = kvm_test_home("redis");
    char path[300];
    snprintf(path, sizeof path, "%s/password", home);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs("of the file \nsecond line\n", f) >= 0 && fclose(f) == 0);
    setenv("KVMILL_REDIS_PASSWORD_FILE", path, 1);
    MUST(kvm_redis_address_read(&a, &keep, KVM_STR("redis://h"), e));
    assert_true(kvm_str_eq(a.password, KVM_STR("of the file")));
    setenv("KVMILL_REDIS_PASSWORD", "of the variable", 1);
    MUST(kvm_redis_address_read(&a, &keep, KVM_STR("redis://h"), e));
    assert_true(kvm_str_eq(a.password, KVM_STR("of the variable")));
    MUST(kvm_redis_address_read(&a, &keep, KVM_STR("redis://:own@h"), e));
    assert_true(kvm_str_eq(a.password, KVM_STR("own")));
    unsetenv("KVMILL_REDIS_PASSWORD");
    setenv("KVMILL_REDIS_PASSWORD_FILE", "build/tmp/no such file", 1);
    assert_int_equal(kvm_redis_address_read(&a, &keep, KVM_STR("redis://h"), NULL),
                     KVM_NOTFOUND);
    unsetenv("KVMILL_REDIS_PASSWORD_FILE");
}

/* ---- a server ---- */

static kvm_redis *open_at(const char *where, const kvm_redis_options *o)
{
    kvm_redis *r;
    MUST(kvm_redis_open(&r, &keep, kvm_str_of(where), o, e));
    return r;
}
static const kvm_reply *ask(kvm_redis *r, const kvm_str *words, ptrdiff_t n)
{
    const kvm_reply *reply;
    MUST(kvm_redis_call(r, words, n, 0, &reply, e));
    return reply;
}
#define ASK(r, ...) ask(r, KVM_WORDS(__VA_ARGS__))

static kvm_status refusal(kvm_redis *r, const kvm_str *words, ptrdiff_t n)
{
    const kvm_reply *reply;
    kvm_err err = {0};
    const kvm_status s = kvm_redis_call(r, words, n, 0, &reply, &err);
    if (s) assert_true(err.msg[0] != 0 && err.code == s);
    return s;
}
#define REFUSAL(r, ...) refusal(r, KVM_WORDS(__VA_ARGS__))

static void bytes_go_through_unchanged(void **state)
{
    (void)state;
    const char *const where[] = {redis_server_unix(), redis_server_tcp()};
    for (int i = 0; i < 2; i++) {
        kvm_redis *r = open_at(where[i], NULL);
        char bytes[100000];
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (char)(k * 7);
        const kvm_str all = {bytes, sizeof bytes};
        ASK(r, W("SET"), W("k\0\r\n%b"), all);
        assert_true(kvm_str_eq(kvm_reply_text(ASK(r, W("GET"), W("k\0\r\n%b"))), all));
        assert_int_equal(ASK(r, W("GET"), W("none"))->type, KVM_REPLY_NIL);
        assert_int_equal(kvm_reply_number(ASK(r, W("INCR"), W("n"))), i + 1);
    }
}

static void many_commands_are_one_exchange(void **state)
{
    (void)state;
    kvm_redis *r = open_at(redis_server_unix(), NULL);
    const kvm_reply *all;
    for (int i = 0; i < 1000; i++) {
        kvm_redis_add(r, KVM_WORDS(W("INCR"), W("n")));
        if (i == 500) kvm_redis_add(r, KVM_WORDS(W("NO"), W("SUCH")));
    }
    MUST(kvm_redis_exchange(r, 0, &all, e));
    assert_int_equal(all->count, 1001);
    assert_int_equal(kvm_reply_number(kvm_reply_at(all, 500)), 501);
    assert_int_equal(kvm_redis_refused(r, kvm_reply_at(all, 501), NULL),
                     KVM_UNSUPPORTED);
    assert_int_equal(kvm_reply_number(kvm_reply_at(all, 1000)), 1000);
}

static void refusals_are_statuses(void **state)
{
    (void)state;
    kvm_redis *r = open_at(redis_server_unix(), NULL);
    ASK(r, W("SET"), W("text"), W("x"));
    ASK(r, W("XGROUP"), W("CREATE"), W("s"), W("g"), W("0"), W("MKSTREAM"));
    assert_int_equal(REFUSAL(r, W("XLEN"), W("text")), KVM_MISMATCH);
    assert_int_equal(REFUSAL(r, W("XGROUP"), W("CREATE"), W("s"), W("g"), W("0")),
                     KVM_EXISTS);
    assert_int_equal(REFUSAL(r, W("XREADGROUP"), W("GROUP"), W("no"), W("c"),
                             W("STREAMS"), W("s"), W(">")),
                     KVM_NOTFOUND);
    assert_int_equal(REFUSAL(r, W("XGROUP"), W("CREATE"), W("none"), W("g"), W("0")),
                     KVM_NOTFOUND);
    assert_int_equal(REFUSAL(r, W("XINFO"), W("GROUPS"), W("none")), KVM_NOTFOUND);
    redis_server_do("CONFIG SET maxmemory 1");
    assert_int_equal(REFUSAL(r, W("SET"), W("a"), W("b")), KVM_NOMEM);
    redis_server_do("CONFIG SET maxmemory 0");
    redis_server_do("REPLICAOF 127.0.0.1 1");
    assert_int_equal(REFUSAL(r, W("SET"), W("a"), W("b")), KVM_ENVIRONMENT);
    redis_server_do("REPLICAOF NO ONE");
    assert_int_equal(REFUSAL(r, W("SET"), W("a"), W("b")), KVM_OK);
    assert_int_equal(REFUSAL(r, W("SET"), W("a")), KVM_IO); /* wrong number */
}

static void who_may_not_is_told_so(void **state)
{
    (void)state;
    char where[200];
    redis_server_do("ACL SETUSER limited on >right ~kvmill:* +@all -flushall");
    snprintf(where, sizeof where, "redis://limited:right@%s", redis_server_tcp() + 8);
    kvm_redis *r = open_at(where, NULL);
    assert_int_equal(REFUSAL(r, W("SET"), W("kvmill:a"), W("b")), KVM_OK);
    assert_int_equal(REFUSAL(r, W("SET"), W("other"), W("b")), KVM_ENVIRONMENT);
    assert_int_equal(REFUSAL(r, W("FLUSHALL")), KVM_ENVIRONMENT);

    kvm_err err = {0};
    const kvm_reply *reply;
    snprintf(where, sizeof where, "redis://limited:wrong@%s", redis_server_tcp() + 8);
    r = open_at(where, NULL);
    assert_int_equal(kvm_redis_call(r, KVM_WORDS(W("PING")), 0, &reply, &err),
                     KVM_ENVIRONMENT);
    assert_non_null(strstr(err.msg, "WRONGPASS"));
    assert_null(strstr(err.msg, ":wrong"));

    redis_server_do("ACL SETUSER default >all-right");
    err = (kvm_err){0};
    r = open_at(redis_server_unix(), NULL);
    assert_int_equal(kvm_redis_call(r, KVM_WORDS(W("PING")), 0, &reply, &err),
                     KVM_ENVIRONMENT);
    assert_non_null(strstr(err.msg, "KVMILL_REDIS_PASSWORD"));
    setenv("KVMILL_REDIS_PASSWORD", "all-right", 1);
    r = open_at(redis_server_unix(), NULL);
    unsetenv("KVMILL_REDIS_PASSWORD");
    ASK(r, W("ACL"), W("SETUSER"), W("default"), W("nopass"));
}

/* what the server knows of this session: user, database, name */
static void assert_session(kvm_redis *r, const char *name)
{
    char want[3][64];
    const kvm_str info = kvm_reply_text(ASK(r, W("CLIENT"), W("INFO")));
    snprintf(want[0], sizeof want[0], " name=%s ", name);
    snprintf(want[1], sizeof want[1], " db=5 ");
    snprintf(want[2], sizeof want[2], " user=limited ");
    for (int i = 0; i < 3; i++)
        if (kvm_str_find(info, kvm_str_of(want[i])) < 0)
            fail_msg("no%sin %.*s", want[i], KVM_STR_ARG(info));
}

static void a_new_connection_is_set_up_like_the_last(void **state)
{
    (void)state;
    char where[200];
    const kvm_redis_options o = {.name = W("host/1 2\xC3\xA9/3")};
    for (int restart = 0; restart < 2; restart++) {
        redis_server_do("ACL SETUSER limited on >right ~* +@all");
        snprintf(where, sizeof where, "redis://limited:right@%s/5",
                 redis_server_tcp() + 8);
        kvm_redis *r = open_at(where, &o);
        assert_session(r, "host/1_2__/3");
        ASK(r, W("SET"), W("in 5"), W("x"));
        if (restart) {
            redis_server_stop();
            assert_int_equal(REFUSAL(r, W("PING")), KVM_BUSY);
            redis_server_again();
            redis_server_do("ACL SETUSER limited on >right ~* +@all");
        } else {
            redis_server_do("CLIENT KILL TYPE normal SKIPME yes");
        }
        for (int i = 0; i < 100 && REFUSAL(r, W("PING")); i++) kvm_sleep(0.1);
        assert_session(r, "host/1_2__/3");
    }
}

/* sockets that a started program would inherit */
static int leaking_sockets(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    const struct dirent *entry;
    while ((entry = readdir(d))) {
        struct stat st;
        const int fd = (int)strtol(entry->d_name, NULL, 10);
        if (fd > 2 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) &&
            !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
            n++;
    }
    closedir(d);
    return n;
}

static void started_programs_inherit_nothing(void **state)
{
    (void)state;
    ASK(open_at(redis_server_unix(), NULL), W("PING"));
    ASK(open_at(redis_server_tcp(), NULL), W("PING"));
    assert_int_equal(leaking_sockets(), 0);
}

static void silence_ends_and_no_answer_comes_late(void **state)
{
    (void)state;
    const kvm_redis_options o = {.answer_s = 0.3};
    kvm_redis *r = open_at(redis_server_far(), &o);
    proxy *line = redis_server_proxy();
    const proxy_way ways[] = {PROXY_DEAF, PROXY_MUTE};
    for (int i = 0; i < 2; i++) {
        proxy_be(line, PROXY_PASS, 0);
        ASK(r, W("SET"), W("k"), W("old"));
        proxy_be(line, ways[i], 0);
        assert_int_equal(REFUSAL(r, W("GET"), W("k")), KVM_BUSY);
        assert_int_equal(REFUSAL(r, W("GET"), W("k")), KVM_BUSY);
        proxy_be(line, PROXY_PASS, 0);
        for (int k = 0; k < 100 && REFUSAL(r, W("SET"), W("k"), W("new")); k++)
            kvm_sleep(0.1);
        assert_true(kvm_str_eq(kvm_reply_text(ASK(r, W("GET"), W("k"))), W("new")));
    }
    proxy_be(line, PROXY_PASS, 50); /* slow is not silent */
    ASK(r, W("PING"));
    proxy_be(line, PROXY_PASS, 0);
}

static volatile sig_atomic_t asked;
static bool stop_soon(void)
{
    asked = asked + 1;
    return asked > 2;
}

static void waiting_can_be_stopped(void **state)
{
    (void)state;
    const kvm_redis_options o = {.stop = stop_soon};
    kvm_redis *r = open_at(redis_server_unix(), &o);
    const kvm_reply *reply;
    asked = -100;
    ASK(r, W("PING"));
    asked = 0;
    assert_int_equal(kvm_redis_call(r,
                                    KVM_WORDS(W("XREAD"), W("BLOCK"), W("600000"),
                                              W("STREAMS"), W("s"), W("0")),
                                    600, &reply, NULL),
                     KVM_CANCELLED);
    asked = -100;
    ASK(r, W("PING")); /* on a new connection */
    asked = 100;
    ASK(r, W("PING")); /* and who stops may still say what he has done */
}

/* ---- servers that are none ---- */

typedef struct fake {
    int listener, accepted;
    kvm_str answer; /* to the second thing that a client says */
    pthread_t thread;
    char where[64];
} fake;

static void *be_fake(void *arg)
{
    fake *f = arg;
    char drop[4096];
    int fd;
    while ((fd = accept(f->listener, NULL, NULL)) >= 0) {
        f->accepted++;
        if (f->answer.at && read(fd, drop, sizeof drop) > 0 &&
            send(fd, "+OK\r\n", 5, MSG_NOSIGNAL) == 5 &&
            read(fd, drop, sizeof drop) > 0 &&
            send(fd, f->answer.at, (size_t)f->answer.len, MSG_NOSIGNAL) > 0)
            while (read(fd, drop, sizeof drop) > 0) continue;
        close(fd);
    }
    return NULL;
}

static void fake_begin(fake *f, kvm_str answer)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    *f = (fake){.answer = answer};
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(f->listener >= 0);
    assert_int_equal(bind(f->listener, (const struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(f->listener, 8), 0);
    assert_int_equal(getsockname(f->listener, (struct sockaddr *)&at, &n), 0);
    snprintf(f->where, sizeof f->where, "redis://127.0.0.1:%d", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&f->thread, NULL, be_fake, f), 0);
}

static void fake_end(fake *f)
{
    shutdown(f->listener, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->listener);
}

static kvm_status answered(kvm_str answer, kvm_err *err)
{
    fake f;
    const kvm_reply *reply;
    kvm_arena a = {0};
    kvm_redis *r;
    const kvm_redis_options o = {.answer_s = 0.5};
    MUST(kvm_arena_init(&a, 1 << 20, e));
    fake_begin(&f, answer);
    MUST(kvm_redis_open(&r, &a, kvm_str_of(f.where), &o, e));
    kvm_redis_add(r, KVM_WORDS(W("A")));
    kvm_redis_add(r, KVM_WORDS(W("B")));
    const kvm_status s = kvm_redis_exchange(r, 0, &reply, err);
    kvm_arena_free(&a);
    fake_end(&f);
    return s;
}

static void nonsense_closes_the_connection(void **state)
{
    (void)state;
    static const struct {
        kvm_str answer;
        kvm_status status;
    } rows[] = {
        {{"+a\r\n:1\r\n", 8}, KVM_OK},
        {{"*0\r\n*-1\r\n", 9}, KVM_OK},
        {{"-LOADING wait\r\n-ERR\r\n", 21}, KVM_OK},
        {{"+a\r\n", 4}, KVM_BUSY},          /* one is missing */
        {{"+a\r\n$5\r\nab", 10}, KVM_BUSY}, /* half of one */
        {{"+a\r\n$9223372036854775807\r\nab", 28}, KVM_BUSY},
        {{"+a\r\n:1\r\n:2\r\n", 12}, KVM_FORMAT}, /* one too many */
        {{"HTTP/1.1 400 Bad Request\r\n\r\n", 28}, KVM_FORMAT},
        {{"*2147483647\r\n", 13}, KVM_FORMAT},
        {{"*99999999999999999999\r\n", 23}, KVM_FORMAT},
        {{"$-2\r\n", 5}, KVM_FORMAT},
        {{":x\r\n", 4}, KVM_FORMAT},
        {{"%1\r\n+a\r\n:1\r\n", 12}, KVM_FORMAT}, /* the newer protocol */
        {{"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 44},
         KVM_FORMAT},
        {{"\0\0\0\0\0\0\0\0", 8}, KVM_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kvm_err err = {0};
        if (answered(rows[i].answer, &err) != rows[i].status)
            fail_msg("row %zu: %s", i, err.msg);
    }
}

static void an_answer_without_end_is_cut_off(void **state)
{
    (void)state;
    const ptrdiff_t n = 20 << 20;
    const kvm_str begins = KVM_STR("$90000000\r\n");
    char *bytes = malloc((size_t)n);
    assert_non_null(bytes);
    memset(bytes, 'x', (size_t)n);
    memcpy(bytes, begins.at, (size_t)begins.len);
    assert_int_equal(answered((kvm_str){bytes, n}, NULL), KVM_FORMAT);
    free(bytes);
}

static void who_is_not_there_is_not_asked_without_end(void **state)
{
    (void)state;
    fake f;
    fake_begin(&f, (kvm_str){0}); /* hangs up on everybody */
    kvm_redis *r = open_at(f.where, NULL);
    for (int i = 0; i < 200; i++) assert_int_equal(REFUSAL(r, W("PING")), KVM_BUSY);
    fake_end(&f);
    assert_true(f.accepted >= 1 && f.accepted <= 4);
}

static void what_is_read_amiss_reads_as_nothing(void **state)
{
    (void)state;
    const kvm_reply number = {.type = KVM_REPLY_INT, .number = 7};
    const kvm_reply pair[] = {{.type = KVM_REPLY_TEXT, .text = W("name")},
                              {.type = KVM_REPLY_TEXT, .text = W("12")}};
    const kvm_reply list = {.type = KVM_REPLY_LIST, .items = pair, .count = 2};
    const kvm_reply odd = {.type = KVM_REPLY_LIST, .items = pair, .count = 1};
    assert_int_equal(kvm_reply_at(&number, 0)->type, KVM_REPLY_NIL);
    assert_int_equal(kvm_reply_at(&list, 2)->type, KVM_REPLY_NIL);
    assert_int_equal(kvm_reply_at(&list, -1)->type, KVM_REPLY_NIL);
    assert_int_equal(kvm_reply_text(&number).len, 0);
    assert_int_equal(kvm_reply_number(&list), 0);
    assert_int_equal(kvm_reply_number(kvm_reply_of(&list, "name")), 12);
    assert_int_equal(kvm_reply_number(kvm_reply_of(&list, "other")), 0);
    assert_int_equal(kvm_reply_number(kvm_reply_of(&odd, "name")), 0);
    assert_int_equal(kvm_reply_number(kvm_reply_of(&number, "name")), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
#define WITH_SERVER(fn) cmocka_unit_test_setup_teardown(fn, set_up_server, tear_down)

int main(void)
{
    const struct CMUnitTest alone[] = {
        TEST(addresses_are_read),
        TEST(bad_addresses_are_refused_without_being_shown),
        TEST(the_password_comes_from_the_environment_too),
        TEST(nonsense_closes_the_connection),
        TEST(an_answer_without_end_is_cut_off),
        TEST(who_is_not_there_is_not_asked_without_end),
        TEST(what_is_read_amiss_reads_as_nothing),
    };
    const struct CMUnitTest served[] = {
        WITH_SERVER(bytes_go_through_unchanged),
        WITH_SERVER(many_commands_are_one_exchange),
        WITH_SERVER(refusals_are_statuses),
        WITH_SERVER(who_may_not_is_told_so),
        WITH_SERVER(a_new_connection_is_set_up_like_the_last),
        WITH_SERVER(started_programs_inherit_nothing),
        WITH_SERVER(silence_ends_and_no_answer_comes_late),
        WITH_SERVER(waiting_can_be_stopped),
    };
    const int bad = cmocka_run_group_tests_name("redis", alone, NULL, NULL);
    if (!redis_server_start()) return bad;
    return bad + cmocka_run_group_tests_name("redis server", served, NULL, NULL);
}
