/* Requests against servers that answer well, badly and not at all. */
#define _DEFAULT_SOURCE
#include "base/http.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/web.h"

#define DIR "build/tmp/http"
#define LOG DIR "/log"

static kvm_arena keep;
static web server, other;
static int other_port;
static kvm_http *client;
static char url[64];

static int set_up(void **state)
{
    (void)state;
    check_tmpdir("http");
    keep = check_arena(64 << 20);
    const kvm_http_options fast = {.backoff_s = 0.01,
                                   .connect_s = 5,
                                   .stall_s = 1,
                                   .answer_s = 5,
                                   .patience_s = 2};
    unsetenv("http_proxy");
    return kvm_http_new(&client, &keep, &fast, NULL) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    web_stop(&server);
    web_stop(&other);
    kvm_arena_free(&keep);
    return 0;
}

static void serve(web_answer *answer)
{
    server = web_start(answer, LOG);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/a", server.port);
}

static int times(const char *word)
{
    int n = 0;
    const kvm_str log = check_read(&keep, LOG);
    for (const char *at = log.at; (at = strstr(at, word)); at++) n++;
    return n;
}

static kvm_http_reply get(const char *path)
{
    kvm_err err = {0};
    kvm_http_reply r;
    const kvm_http_request q = {.url = kvm_str_fmt(&keep, "%s%s", url, path),
                                .redirects = 3};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    return r;
}

#define check_fails(status, word, ...)                                                 \
    do {                                                                               \
        kvm_http_reply none;                                                           \
        const kvm_http_request q = {__VA_ARGS__};                                      \
        check_refused(status, word, kvm_http_send(client, &q, &none, &keep, &no));     \
    } while (0)

/* ---- answers in memory ---- */

static void hello(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nETag:  \"x\" \r\n"
                "Date: Fri, 24 May 2013 00:00:00 GMT\r\n\r\nhello");
}

static void an_answer_comes(void **state)
{
    (void)state;
    serve(hello);
    const kvm_http_reply r = get("?secret=1");
    assert_int_equal(r.status, 200);
    check_str(r.body, "hello");
    check_str(kvm_http_field(&r, "etag"), "\"x\"");
    assert_null(kvm_http_field(&r, "tag").at);
    assert_true(kvm_http_date(&r, "date") == 1369353600);
    assert_true(kvm_http_date(&r, "etag") == -1);
    assert_int_equal(times("GET /a?secret=1 HTTP/1.1\r\n"), 1);
    assert_int_equal(times("Authorization"), 0);
}

static void echo(int fd, int nth, const char *request)
{
    (void)nth;
    web_say(fd, "HTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n");
    (void)request;
}

static void bodies_go(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_http_reply r;
    serve(echo);
    check_write(DIR "/file", KVM_STR("0123456789"));
    const int fd = open(DIR "/file", O_RDONLY);
    const kvm_http_header h[] = {{"X-One", KVM_STR("1")}};
    kvm_http_request q = {.method = KVM_HTTP_PUT,
                          .url = kvm_str_of(url),
                          .headers = h,
                          .header_count = 1,
                          .file = fd,
                          .file_at = 3,
                          .file_bytes = 4};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    assert_int_equal(r.status, 201);
    close(fd);
    q = (kvm_http_request){
        .method = KVM_HTTP_POST, .url = kvm_str_of(url), .body = KVM_STR("{}")};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    q = (kvm_http_request){.method = KVM_HTTP_DELETE, .url = kvm_str_of(url)};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    q = (kvm_http_request){.method = KVM_HTTP_HEAD, .url = kvm_str_of(url)};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    q = (kvm_http_request){.method = KVM_HTTP_PUT, .url = kvm_str_of(url)};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    const kvm_str log = check_read(&keep, LOG);
    check_contains(log.at, "PUT /a HTTP/1.1\r\n");
    check_contains(log.at, "X-One: 1\r\n");
    check_contains(log.at, "\r\n\r\n3456POST /a HTTP/1.1\r\n");
    check_contains(log.at, "\r\n\r\n{}DELETE /a HTTP/1.1\r\n");
    check_contains(log.at, "HEAD /a HTTP/1.1\r\n");
    assert_int_equal(times("Content-Length: 0"), 1);
}

static void long_answer(int fd, int nth, const char *request)
{
    (void)nth;
    const bool bad = strstr(request, "/abad") != NULL;
    web_say(fd, "HTTP/1.1 %s\r\nConnection: close\r\n\r\n", bad ? "404 No" : "200 OK");
    for (int i = 0; i < 1000; i++) web_say(fd, "%01000d", 0);
}

static void long_answers_are_cut_off(void **state)
{
    (void)state;
    serve(long_answer);
    check_fails(KVM_RANGE, "more than 1000 bytes", .url = kvm_str_of(url),
                .most_bytes = 1000);
    kvm_err err = {0};
    kvm_http_reply r;
    const kvm_http_request q = {.url = kvm_str_fmt(&keep, "%sbad", url),
                                .most_bytes = 1000};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    assert_int_equal(r.status, 404);
    assert_int_equal(r.body.len, 1000);
}

static void headers_for_ever(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 1000; i++) web_say(fd, "X-%d: %01000d\r\n", i, 0);
}

static void headers_are_bounded(void **state)
{
    (void)state;
    serve(headers_for_ever);
    check_fails(KVM_FORMAT, "bytes of headers", .url = kvm_str_of(url));
}

static void not_http(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "220 mail.example.org ESMTP\r\n");
}

static void other_protocols_are_refused(void **state)
{
    (void)state;
    serve(not_http);
    check_fails(KVM_FORMAT, "no web server", .url = kvm_str_of(url));
    check_fails(KVM_USAGE, "no URL", .url = KVM_STR("file:///etc/passwd"));
    check_fails(KVM_USAGE, "no URL", .url = KVM_STR("nothing"));
    check_fails(KVM_USAGE, "do not belong", .url = KVM_STR("http://a:secret@b/"));
    check_fails(KVM_USAGE, "a blank", .url = KVM_STR("http://b/a b"));
    const kvm_http_header h[] = {{"X-One", KVM_STR("1\r\nX-Two: 2")}};
    check_fails(KVM_USAGE, "X-One: a control byte", .url = kvm_str_of(url),
                .headers = h, .header_count = 1);
}

/* ---- redirects ---- */

static void elsewhere(int fd, int nth, const char *request)
{
    (void)nth;
    if (strstr(request, "GET /a/loop"))
        web_say(fd, "HTTP/1.1 302 Go\r\nLocation: /a/loop?signature=2\r\n"
                    "Content-Length: 0\r\n\r\n");
    else if (strstr(request, "GET /a/file"))
        web_say(fd, "HTTP/1.1 302 Go\r\nLocation: file:///etc/passwd\r\n"
                    "Content-Length: 0\r\n\r\n");
    else if (strstr(request, "GET /a/here"))
        web_say(fd, "HTTP/1.1 307 Go\r\nLocation: there\r\nContent-Length: 0\r\n\r\n");
    else if (strstr(request, "GET /a/away"))
        web_say(fd,
                "HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:%d/b\r\n"
                "Content-Length: 0\r\n\r\n",
                other_port);
    else
        hello(fd, nth, request);
}

static void redirects_lead_to_the_end_without_credentials(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_http_reply r;
    other = web_start(hello, DIR "/other");
    other_port = other.port;
    serve(elsewhere);
    const kvm_http_header h[] = {{"Authorization", KVM_STR("Bearer secret")}};
    kvm_http_request q = {.url = kvm_str_fmt(&keep, "%s/here", url),
                          .headers = h,
                          .header_count = 1,
                          .redirects = 3};
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    check_str(r.body, "hello");
    assert_int_equal(times("Authorization: Bearer secret"), 2); /* its own origin */
    q.url = kvm_str_fmt(&keep, "%s/away", url);
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    check_str(r.body, "hello");
    const kvm_str log = check_read(&keep, DIR "/other");
    check_contains(log.at, "GET /b HTTP/1.1");
    assert_null(strstr(log.at, "Authorization"));
    q.redirects = 0; /* the answer itself */
    check_ok(kvm_http_send(client, &q, &r, &keep, &err), &err);
    assert_int_equal(r.status, 302);
    check_refused(KVM_FORMAT, "elsewhere", kvm_http_check(&r, q.url, &no));
}

static void redirects_are_bounded(void **state)
{
    (void)state;
    serve(elsewhere);
    const kvm_str loop = kvm_str_fmt(&keep, "%s/loop?signature=1", url);
    check_fails(KVM_FORMAT, "/a/loop: redirects us more than 3 times", .url = loop,
                .redirects = 3);
    assert_int_equal(times("GET /a/loop"), 4);
    check_fails(KVM_USAGE, "no URL", .url = kvm_str_fmt(&keep, "%s/file", url),
                .redirects = 3);
}

/* ---- again ---- */

static void better_the_third_time(int fd, int nth, const char *request)
{
    if (nth == 0)
        return; /* closed without a word */
    else if (nth == 1)
        web_say(fd, "HTTP/1.1 503 Slow\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n");
    else
        hello(fd, nth, request);
}

static void trouble_of_the_other_side_is_waited_for(void **state)
{
    (void)state;
    serve(better_the_third_time);
    check_str(get("").body, "hello");
    assert_int_equal(times("GET /a"), 3);
}

static void busy(int fd, int nth, const char *request)
{
    (void)nth;
    const bool asks = strstr(request, "asks") != NULL;
    web_say(fd, "HTTP/1.1 429 No\r\n%sContent-Length: 0\r\n\r\n",
            asks ? "Retry-After: 100000\r\n" : "");
}

static void tries_are_counted(void **state)
{
    (void)state;
    serve(busy);
    const kvm_http_reply r = get("");
    assert_int_equal(r.status, 429);
    assert_int_equal(times("GET /a"), 5);
    get("?asks"); /* for a day: too long for us */
    assert_int_equal(times("GET /a?asks"), 1);
    kvm_err err = {0};
    check_status(KVM_IO, kvm_http_check(&r, KVM_STR("http://h/p?secret"), &err), &err);
    assert_string_equal(err.msg, "http://h/p: we ask too often: try again later (HTTP "
                                 "status 429)");
}

static void silent(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
    sleep(60);
}

static void silence_ends(void **state)
{
    (void)state;
    kvm_http *impatient;
    kvm_http_reply r;
    const kvm_http_options o = {.stall_s = 1, .tries = 1};
    serve(silent);
    assert_int_equal(kvm_http_new(&impatient, &keep, &o, NULL), KVM_OK);
    const kvm_http_request q = {.url = kvm_str_of(url)};
    check_refused(KVM_IO, "127.0.0.1", kvm_http_send(impatient, &q, &r, &keep, &no));
}

static bool stop_at_once(void *ctx, int64_t bytes)
{
    (void)bytes;
    ++*(int *)ctx;
    return false;
}

static void who_waits_can_be_told_to_stop(void **state)
{
    (void)state;
    int asked = 0;
    serve(busy);
    check_fails(KVM_CANCELLED, "cancelled", .url = kvm_str_of(url),
                .moved = stop_at_once, .ctx = &asked);
    assert_true(asked > 0);
}

static void nobody_there(void **state)
{
    (void)state;
    serve(hello);
    web_stop(&server);
    check_fails(KVM_ENVIRONMENT, "is this machine offline", .url = kvm_str_of(url));
    check_fails(KVM_ENVIRONMENT, "cannot be reached",
                .url = KVM_STR("http://no-such-host.invalid/?secret"));
}

/* A child does not speak on its parent's connection. */
static void a_child_has_its_own_connections(void **state)
{
    (void)state;
    serve(hello);
    get("");
    const pid_t pid = fork();
    if (pid == 0) {
        kvm_http_reply r;
        const kvm_http_request q = {.url = kvm_str_of(url)};
        _exit(kvm_http_send(client, &q, &r, &keep, NULL) || r.status != 200);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    get("");
    assert_int_equal(times("GET /a"), 3);
}

/* ---- files ---- */

static void in_halves(int fd, int nth, const char *request)
{
    const int have = 2 * nth;
    if (nth < 3)
        web_say(fd,
                "HTTP/1.1 206 Part\r\nETag: \"v1\"\r\nContent-Length: %d\r\n"
                "Content-Range: bytes %d-9/10\r\n\r\n%.*s",
                10 - have, have, 2, "0123456789" + have);
    else
        web_say(fd, "HTTP/1.1 206 Part\r\nContent-Length: 4\r\n"
                    "Content-Range: bytes 6-9/10\r\n\r\n6789");
    (void)request;
}

static void whole_again(int fd, int nth, const char *request)
{
    (void)request;
    web_say(fd, "HTTP/1.1 200 OK\r\nETag: W/\"weak\"\r\nContent-Length: 10\r\n\r\n%s",
            nth ? "abcdefghij" : "0123");
}

static void too_long(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n01234567890123456789");
}

static void not_from_there(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "HTTP/1.1 206 Part\r\nContent-Length: 4\r\n"
                "Content-Range: bytes 2-5/10\r\n\r\n2345");
}

static void range_is_gone(int fd, int nth, const char *request)
{
    if (nth == 0)
        web_say(fd, "HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n");
    else
        whole_again(fd, nth, request);
}

static int64_t told;
static bool tell(void *ctx, int64_t bytes)
{
    (void)ctx;
    told += bytes;
    return true;
}

/* the file's content afterwards, and how fetching ended */
static kvm_str fetch(web_answer *answer, const char *before, int64_t bytes,
                     kvm_status expected, const char *word)
{
    kvm_err err = {0};
    kvm_http_reply r;
    serve(answer);
    check_write(DIR "/part", kvm_str_of(before));
    const int fd = open(DIR "/part", O_RDWR);
    told = (int64_t)strlen(before);
    const kvm_http_request q = {
        .url = kvm_str_of(url), .moved = tell, .most_bytes = 15};
    const kvm_status s =
        kvm_http_fetch(client, &q, fd, KVM_STR(DIR "/part"), bytes, &r, &keep, &err);
    check_status(expected, s, &err);
    if (word) check_contains(err.msg, word);
    close(fd);
    web_stop(&server);
    return check_read(&keep, DIR "/part");
}

static void a_file_goes_on_where_it_broke_off(void **state)
{
    (void)state;
    check_str(fetch(in_halves, "", 10, KVM_OK, NULL), "0123456789");
    assert_int_equal(told, 10);
    assert_int_equal(times("Range: bytes=6-"), 1);
    assert_int_equal(times("If-Range: \"v1\""), 3);
}

static void a_file_begins_anew_where_ranges_are_unknown(void **state)
{
    (void)state;
    check_str(fetch(whole_again, "", -1, KVM_OK, NULL), "abcdefghij");
    assert_int_equal(told, 10);
    assert_int_equal(times("If-Range"), 0); /* a weak validator proves nothing */
    check_str(fetch(range_is_gone, "012345678", -1, KVM_OK, NULL), "abcdefghij");
}

static void a_file_has_the_length_that_was_expected(void **state)
{
    (void)state;
    fetch(whole_again, "", 11, KVM_FORMAT, "10 bytes, 11 were expected");
    fetch(too_long, "", 12, KVM_FORMAT, "sends more than 12 bytes");
    fetch(too_long, "", -1, KVM_FORMAT, "does not say how many");
    check_str(fetch(not_from_there, "0123", 10, KVM_FORMAT, "goes on at byte 2"),
              "0123");
}

static void a_refused_file_stays(void **state)
{
    (void)state;
    check_str(fetch(busy, "0123", 10, KVM_OK, NULL), "0123");
}

/* ---- texts ---- */

static void statuses_mean_something(void **state)
{
    (void)state;
    const struct {
        int status;
        kvm_status want;
    } rows[] = {{200, KVM_OK},          {204, KVM_OK},          {304, KVM_FORMAT},
                {401, KVM_ENVIRONMENT}, {403, KVM_ENVIRONMENT}, {404, KVM_NOTFOUND},
                {410, KVM_NOTFOUND},    {412, KVM_EXISTS},      {416, KVM_RANGE},
                {418, KVM_USAGE},       {429, KVM_IO},          {500, KVM_IO},
                {503, KVM_IO},          {100, KVM_USAGE}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        const kvm_http_reply r = {.status = rows[i].status};
        assert_int_equal(kvm_http_check(&r, KVM_STR("http://h/"), NULL), rows[i].want);
    }
}

static void names_are_encoded_and_shown(void **state)
{
    (void)state;
    check_str(kvm_http_encode(&keep, KVM_STR("a b/c+%\xC3\xA9~"), true),
              "a%20b/c%2B%25%C3%A9~");
    check_str(kvm_http_encode(&keep, KVM_STR("refs/pr/1"), false), "refs%2Fpr%2F1");
    assert_string_equal(kvm_http_shown(KVM_STR("https://u:p@h:1/a/b?sig=x#y")).at,
                        "https://h:1/a/b");
    assert_string_equal(kvm_http_shown(KVM_STR("sig=x")).at, "(no URL)");
}

static void secrets_stay_on_the_machine(void **state)
{
    (void)state;
    static const char *const safe[] = {"https://example.org",   "HTTPS://example.org/x",
                                       "http://localhost:80/a", "http://127.0.0.1",
                                       "http://127.1.2.3:8",    "http://[::1]:9/x"};
    static const char *const open[] = {"http://example.org",
                                       "HTTP://example.org",
                                       "http://localhost.example",
                                       "http://127.0.0.1.example",
                                       "http://127.0.0.1:1@example.org",
                                       "http://127.0.0.1@example.org",
                                       "http://[::1].example",
                                       "localhost"};
    for (size_t i = 0; i < sizeof safe / sizeof *safe; i++)
        assert_true(kvm_http_keeps_secrets(kvm_str_of(safe[i])));
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        assert_false(kvm_http_keeps_secrets(kvm_str_of(open[i])));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(an_answer_comes),
        T(secrets_stay_on_the_machine),
        T(bodies_go),
        T(long_answers_are_cut_off),
        T(headers_are_bounded),
        T(other_protocols_are_refused),
        T(redirects_lead_to_the_end_without_credentials),
        T(redirects_are_bounded),
        T(trouble_of_the_other_side_is_waited_for),
        T(tries_are_counted),
        T(silence_ends),
        T(who_waits_can_be_told_to_stop),
        T(nobody_there),
        T(a_child_has_its_own_connections),
        T(a_file_goes_on_where_it_broke_off),
        T(a_file_begins_anew_where_ranges_are_unknown),
        T(a_file_has_the_length_that_was_expected),
        T(a_refused_file_stays),
        T(statuses_mean_something),
        T(names_are_encoded_and_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
