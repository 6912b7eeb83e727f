/* A bucket's server that answers nonsense: every answer is refused, skipped or
 * understood, and none of them believed. */
#include "schema/s3.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/web.h"

#define DIR "build/tmp/s3"

static kvm_arena keep;
static web server;
static kvm_s3 *s3;

static int set_up(void **state)
{
    (void)state;
    check_tmpdir("s3");
    keep = check_arena(64 << 20);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    web_stop(&server);
    kvm_arena_free(&keep);
    return 0;
}

static void serve(web_answer *answer)
{
    char endpoint[64];
    kvm_err err = {0};
    const kvm_s3_options o = {.address = KVM_STR("s3://mill/p"),
                              .part_bytes = 10,
                              .http = {.tries = 2, .backoff_s = 0.01}};
    server = web_start(answer, DIR "/log");
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d/base", server.port);
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    unsetenv("AWS_ENDPOINT_URL_S3");
    unsetenv("http_proxy");
    check_ok(kvm_s3_open(&s3, &keep, &o, &err), &err);
}

static void say_body(int fd, const char *body)
{
    web_say(fd,
            "HTTP/1.1 200 OK\r\nDate: Fri, 24 May 2013 00:00:10 GMT\r\n"
            "Content-Length: %zu\r\n\r\n%s",
            strlen(body), body);
}

/* ---- lists ---- */

typedef struct seen {
    int rows;
    char keys[200];
    int64_t bytes;
    double age_s;
} seen;

static kvm_status note(void *ctx, const kvm_s3_listed *o, kvm_err *err)
{
    seen *n = ctx;
    (void)err;
    n->rows++;
    snprintf(n->keys + strlen(n->keys), sizeof n->keys - strlen(n->keys), "%.*s%.*s ",
             KVM_STR_ARG(o->key), KVM_STR_ARG(o->upload));
    n->bytes += o->bytes;
    n->age_s += o->age_s;
    return KVM_OK;
}

static void odd_rows(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    say_body(fd, "<Contents><Key>p/a&amp;&lt;b</Key><Size>3</Size>"
                 "<LastModified>2013-05-24T00:00:00.000Z</LastModified></Contents>"
                 "<Contents><Size>3</Size></Contents>"
                 "<Contents><Key>q/other</Key></Contents>"
                 "<Contents><Key>p/c</Key><Size>-7</Size>"
                 "<LastModified>yesterday</LastModified></Contents>"
                 "<Contents><Key>p/d</Key><Size>999999999999999999999</Size>"
                 "<LastModified>2013-99-24T00:00:00Z</LastModified></Contents>"
                 "<Contents><Key>p/torn");
}

static void odd_rows_are_skipped_or_young(void **state)
{
    (void)state;
    seen n = {0};
    kvm_err err = {0};
    serve(odd_rows);
    check_ok(kvm_s3_list(s3, KVM_STR("x"), note, &n, &err), &err);
    assert_string_equal(n.keys, "a&<b c d ");
    assert_int_equal(n.bytes, 3);
    assert_true(n.age_s == 10); /* by the server's clock */
    check_contains(check_read(&keep, DIR "/log").at,
                   "GET /base/mill?list-type=2&prefix=p%2Fx HTTP/1.1");
}

static void the_same_page(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    say_body(fd, "<IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
                 "<Upload><Key>p/k</Key><UploadId>u</UploadId></Upload>");
}

static void a_list_without_end_ends(void **state)
{
    (void)state;
    seen n = {0};
    serve(the_same_page);
    check_refused(KVM_IO, "in a circle",
                  kvm_s3_uploads(s3, KVM_STR(""), note, &n, &no));
    assert_string_equal(n.keys, "ku ku ");
}

/* ---- uploads ---- */

static const char *upload_answer, *part_answer;

static void uploads(int fd, int nth, const char *request)
{
    (void)nth;
    if (strstr(request, "POST ") && strstr(request, "uploads="))
        say_body(fd, upload_answer);
    else if (strstr(request, "PUT "))
        web_say(fd, "%s", part_answer);
    else
        say_body(fd, "");
}

static kvm_status put(const char *upload, const char *part, kvm_err *err)
{
    upload_answer = upload;
    part_answer = part;
    serve(uploads);
    check_write(DIR "/file", KVM_STR("0123456789abcdef"));
    const int fd = open(DIR "/file", O_RDONLY);
    const kvm_s3_content c = {
        .fd = fd, .sha = "irrelevant here", .bytes = 16, .note = KVM_STR(DIR "/note")};
    const kvm_status s = kvm_s3_put(s3, KVM_STR("k"), &c, err);
    close(fd);
    web_stop(&server);
    return s;
}

#define ID "<UploadId>u</UploadId>"
#define TAG(tag) "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: " tag "\r\n\r\n"

static void uploads_of_nonsense_are_refused(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_refused(KVM_IO, "gave it no name", put("", TAG("\"t\""), &no));
    check_refused(KVM_IO, "gave it no name",
                  put("<UploadId></UploadId>", TAG("\"t\""), &no));
    check_refused(KVM_IO, "gave it no tag", put(ID, TAG(""), &no));
    check_refused(KVM_IO, "gave it no tag", put(ID, TAG("\"</ETag><Part>\""), &no));
    check_write(DIR "/note",
                KVM_STR("{\"upload\":7}\n[]\n{\"part\":1e9,\"tag\":\"t\"}\n"
                        "{\"part\":1,\"tag\":\"<\"}\nno JSON\n"));
    check_ok(put(ID, TAG("\"t\""), &err), &err); /* a note of nonsense is none */
    check_contains(check_read(&keep, DIR "/log").at,
                   "<PartNumber>2</PartNumber><ETag>\"t\"</ETag>");
}

/* ---- single answers ---- */

static void without_length(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    web_say(fd, "HTTP/1.1 200 OK\r\n\r\n");
}

static void refuses(int fd, int nth, const char *request)
{
    (void)nth, (void)request;
    const char *body = "<Error><Code>\x1b[2JOdd&Code</Code><Message>secret</Message>";
    web_say(fd, "HTTP/1.1 418 No\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
}

static void answers_are_told_in_our_words(void **state)
{
    (void)state;
    int64_t bytes;
    kvm_err err = {0};
    serve(without_length);
    check_refused(KVM_IO, "no length", kvm_s3_head(s3, KVM_STR("k"), &bytes, &no));
    web_stop(&server);
    serve(refuses);
    assert_int_equal(kvm_s3_delete(s3, KVM_STR("k"), &err), KVM_ENVIRONMENT);
    check_contains(err.msg, "s3://mill/p/k: HTTP status 418, ?[2JOdd&Code");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(odd_rows_are_skipped_or_young),
        T(a_list_without_end_ends),
        T(uploads_of_nonsense_are_refused),
        T(answers_are_told_in_our_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
