/* http_try.c - one request and its answer, in libcurl's terms. Nothing else includes
 * its headers. */
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/http_internal.h"
#include "base/os.h"

enum { SLOW_BYTES = 1024 }; /* a second: less is no progress */

/* ---- the client ---- */

static void begin_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* A child of a fork leaves its parent's connections alone: closing them here would end
 * TLS sessions that the parent goes on with. So their memory is given up. */
kvm_status kvm_http__connect(kvm_http *h, kvm_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_curl);
    if (h->curl && h->owner == (long)getpid()) return KVM_OK;
    h->owner = (long)getpid();
    h->curl = curl_easy_init();
    return h->curl ? KVM_OK : kvm_fail(err, KVM_NOMEM, "no memory for a connection");
}

void kvm_http__close(kvm_http *h)
{
    if (h->curl && h->owner == (long)getpid()) curl_easy_cleanup(h->curl);
    h->curl = NULL;
}

void kvm_http__free(kvm_http_try *t)
{
    kvm_text_free(&t->headers);
    kvm_text_free(&t->body);
    free(t->next);
    t->next = NULL;
}

/* ---- bytes that come ---- */

double kvm_http_date(const kvm_http_reply *reply, const char *name)
{
    char text[64];
    const kvm_str field = kvm_http_field(reply, name);
    if (field.len <= 0 || field.len >= (ptrdiff_t)sizeof text) return -1;
    snprintf(text, sizeof text, "%.*s", KVM_STR_ARG(field));
    return (double)curl_getdate(text, NULL);
}

static bool good(const kvm_http_try *t)
{
    return t->status >= 200 && t->status < 300;
}

static bool moved(kvm_http_try *t, int64_t bytes)
{
    if (!t->r->moved || t->r->moved(t->r->ctx, bytes)) return true;
    t->sink = kvm_fail(&t->why, KVM_CANCELLED, "cancelled");
    return false;
}

/* "HTTP/1.1 206 Partial Content" */
static int status_of(kvm_str line)
{
    kvm_str version, code, rest;
    int64_t status;
    kvm_str_cut(line, ' ', &version, &rest);
    kvm_str_cut(kvm_str_trim(rest), ' ', &code, &rest);
    return kvm_str_to_i64(code, &status) && status > 0 && status < 1000 ? (int)status
                                                                        : 0;
}

static size_t take_header(char *at, size_t size, size_t n, void *ctx)
{
    kvm_http_try *t = ctx;
    n *= size;
    const kvm_str line = {at, (ptrdiff_t)n};
    if (kvm_str_starts(line, KVM_STR("HTTP/"))) { /* a next answer begins */
        t->headers.len = 0;
        t->status = status_of(line);
    }
    if ((size_t)t->headers.len + n > KVM_HTTP_HEADERS) {
        t->sink = kvm_fail(&t->why, KVM_FORMAT, "more than %d bytes of headers",
                           KVM_HTTP_HEADERS);
        return 0;
    }
    kvm_text_add(&t->headers, line);
    return t->headers.failed ? 0 : n;
}

static kvm_http_reply reply_of(const kvm_http_try *t)
{
    return (kvm_http_reply){.status = t->status, .headers = kvm_text_str(&t->headers)};
}

/* "bytes 100-199/200": where the answer goes on, and the whole; -1: not said */
static void read_range(kvm_str field, int64_t *from, int64_t *whole)
{
    kvm_str unit, range, span, total, first, last;
    *from = *whole = -1;
    if (!kvm_str_cut(field, ' ', &unit, &range) ||
        !kvm_str_eq(unit, KVM_STR("bytes")) ||
        !kvm_str_cut(range, '/', &span, &total) ||
        !kvm_str_cut(span, '-', &first, &last))
        return;
    if (!kvm_str_to_i64(first, from)) *from = -1;
    if (!kvm_str_to_i64(total, whole)) *whole = -1;
}

/* Only a strong validator says that two answers have the same bytes. */
static void keep_validator(kvm_http_file *f, const kvm_http_reply *r)
{
    const kvm_str tag = kvm_http_field(r, "etag");
    f->etag[0] = 0;
    if (tag.len > 1 && tag.len < (ptrdiff_t)sizeof f->etag && tag.at[0] == '"')
        snprintf(f->etag, sizeof f->etag, "%.*s", KVM_STR_ARG(tag));
}

static kvm_status begin_anew(kvm_http_try *t, kvm_err *err)
{
    kvm_http_file *f = t->file;
    if (kvm_os->ftruncate(f->fd, 0))
        return kvm_fail_errno(err, "%.*s: cannot cut", KVM_STR_ARG(f->name));
    const int64_t had = f->have;
    f->have = 0;
    if (had > 0 && !moved(t, -had)) return t->sink;
    return KVM_OK;
}

/* The file stands where the answer's first byte belongs. */
static kvm_status begin_file(kvm_http_try *t, kvm_err *err)
{
    kvm_http_file *f = t->file;
    const kvm_http_reply r = reply_of(t);
    int64_t from = 0, whole = -1;
    if (t->status == 206)
        read_range(kvm_http_field(&r, "content-range"), &from, &whole);
    else if (!kvm_str_to_i64(kvm_http_field(&r, "content-length"), &whole))
        whole = -1;
    if (t->status == 206 && from != f->have)
        return kvm_fail(err, KVM_FORMAT,
                        "the answer goes on at byte %lld where %lld was asked for",
                        (long long)from, (long long)f->have);
    if (!f->given && t->status == 200) f->whole = -1; /* as announced this time */
    if (f->whole >= 0 && whole >= 0 && whole != f->whole)
        return kvm_fail(err, KVM_FORMAT, "it has %lld bytes, %lld were expected",
                        (long long)whole, (long long)f->whole);
    if (t->status == 200 && f->have > 0) TRY(begin_anew(t, err));
    if (f->whole < 0) f->whole = whole;
    keep_validator(f, &r);
    return KVM_OK;
}

static kvm_status into_file(kvm_http_try *t, const char *at, size_t n, kvm_err *err)
{
    kvm_http_file *f = t->file;
    const int64_t most = f->whole >= 0 ? f->whole : (int64_t)t->r->most_bytes;
    if ((int64_t)n > most - f->have)
        return kvm_fail(err, KVM_FORMAT, "it sends more than %lld bytes%s",
                        (long long)most,
                        f->whole >= 0 ? "" : " and does not say how many come");
    TRY(kvm_file_write_at(f->fd, f->name, at, n, f->have, err));
    f->have += (int64_t)n;
    return moved(t, (int64_t)n) ? KVM_OK : t->sink;
}

static kvm_status into_memory(kvm_http_try *t, const char *at, size_t n, kvm_err *err)
{
    const size_t room = t->r->most_bytes - (size_t)t->body.len;
    kvm_text_add(&t->body, (kvm_str){at, (ptrdiff_t)(n < room ? n : room)});
    if (t->body.failed) return kvm_fail(err, KVM_NOMEM, "no memory for the answer");
    if (n <= room) return KVM_OK;
    t->cut = !good(t);
    return kvm_fail(err, KVM_RANGE, "the answer has more than %zu bytes",
                    t->r->most_bytes);
}

static size_t take_body(char *at, size_t size, size_t n, void *ctx)
{
    kvm_http_try *t = ctx;
    kvm_status s = KVM_OK;
    n *= size;
    const bool file = t->file && (t->status == 200 || t->status == 206);
    if (file && !t->begun) s = begin_file(t, &t->why);
    t->begun = true;
    if (!s) s = file ? into_file(t, at, n, &t->why) : into_memory(t, at, n, &t->why);
    if (!s) return n;
    t->sink = s;
    return CURL_WRITEFUNC_ERROR;
}

/* ---- bytes that go ---- */

static int64_t upload_bytes(const kvm_http_request *r)
{
    return r->file_bytes > 0 ? r->file_bytes : r->body.len;
}

static size_t give_body(char *to, size_t size, size_t n, void *ctx)
{
    kvm_http_try *t = ctx;
    const kvm_http_request *r = t->r;
    const int64_t left = upload_bytes(r) - t->sent;
    n *= size;
    if ((int64_t)n > left) n = (size_t)left;
    if (n == 0) return 0;
    if (r->file_bytes <= 0)
        memcpy(to, r->body.at + t->sent, n);
    else if ((t->sink = kvm_file_read_at(r->file, KVM_STR("the file to send"), to, n,
                                         (off_t)(r->file_at + t->sent), &t->why)))
        return CURL_READFUNC_ABORT;
    t->sent += (int64_t)n;
    return moved(t, (int64_t)n) ? n : CURL_READFUNC_ABORT;
}

/* libcurl goes back to the first byte when a kept connection turns out to be closed */
static int go_back(void *ctx, curl_off_t at, int whence)
{
    kvm_http_try *t = ctx;
    if (whence != SEEK_SET || at < 0 || at > t->sent) return CURL_SEEKFUNC_CANTSEEK;
    const int64_t back = t->sent - at;
    t->sent = at;
    return back == 0 || moved(t, -back) ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

static int ask(void *ctx, curl_off_t all, curl_off_t now, curl_off_t up,
               curl_off_t gone)
{
    (void)all, (void)now, (void)up, (void)gone;
    return !moved(ctx, 0);
}

/* ---- the try ---- */

static bool add_line(struct curl_slist **list, const char *name, kvm_str value)
{
    kvm_text line = {0};
    kvm_text_addf(&line, "%s: %.*s", name, KVM_STR_ARG(value));
    struct curl_slist *more = line.failed ? NULL : curl_slist_append(*list, line.at);
    kvm_text_free(&line);
    if (more) *list = more;
    return more != NULL;
}

static struct curl_slist *lines_of(const kvm_http_try *t, bool own)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    const kvm_http_file *f = t->file;
    bool all = list != NULL;
    char range[32];
    for (ptrdiff_t i = 0; own && all && i < t->r->header_count; i++)
        all = add_line(&list, t->r->headers[i].name, t->r->headers[i].value);
    if (f && f->have > 0) {
        snprintf(range, sizeof range, "bytes=%lld-", (long long)f->have);
        all = all && add_line(&list, "Range", kvm_str_of(range));
        if (f->etag[0]) all = all && add_line(&list, "If-Range", kvm_str_of(f->etag));
    }
    if (all) return list;
    curl_slist_free_all(list);
    return NULL;
}

#define SET(option, value) curl_easy_setopt(curl, option, value)

static void set_method(CURL *curl, const kvm_http_request *r)
{
    switch (r->method) {
    case KVM_HTTP_GET:
        SET(CURLOPT_HTTPGET, 1L);
        return;
    case KVM_HTTP_HEAD:
        SET(CURLOPT_NOBODY, 1L);
        return;
    case KVM_HTTP_DELETE:
        SET(CURLOPT_CUSTOMREQUEST, "DELETE");
        return;
    case KVM_HTTP_POST: /* sent as PUT sends */
        SET(CURLOPT_CUSTOMREQUEST, "POST");
        break;
    case KVM_HTTP_PUT:
        break;
    }
    SET(CURLOPT_UPLOAD, 1L);
    SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)upload_bytes(r));
}

static void set_up(CURL *curl, kvm_http *h, kvm_http_try *t, const char *url,
                   struct curl_slist *lines)
{
    curl_easy_reset(curl);
    SET(CURLOPT_URL, url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* a file a connection */
    SET(CURLOPT_USERAGENT, "kvmill");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(h->o.connect_s * 1000));
    SET(CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
    SET(CURLOPT_LOW_SPEED_TIME, (long)(h->o.stall_s < 1 ? 1 : h->o.stall_s));
    if (!t->file && t->r->file_bytes <= 0)
        SET(CURLOPT_TIMEOUT_MS, (long)(h->o.answer_s * 1000));
    SET(CURLOPT_HTTPHEADER, lines);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, t);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, t);
    SET(CURLOPT_READFUNCTION, give_body);
    SET(CURLOPT_READDATA, t);
    SET(CURLOPT_SEEKFUNCTION, go_back);
    SET(CURLOPT_SEEKDATA, t);
    SET(CURLOPT_XFERINFOFUNCTION, ask);
    SET(CURLOPT_XFERINFODATA, t);
    SET(CURLOPT_NOPROGRESS, 0L);
    set_method(curl, t->r);
}

/* What libcurl says of a try without an answer, or with half of one. The `default` is
 * its list of codes, which grows. */
static kvm_status explain(kvm_http_try *t, CURLcode code, const char *text,
                          kvm_quoted url, kvm_err *err)
{
    if (!*text) text = curl_easy_strerror(code);
    if (t->sink) return t->sink; /* its message is the caller's to place */
    switch ((int)code) {
    case CURLE_URL_MALFORMAT:
        return kvm_fail(err, KVM_USAGE, "%s: no URL of http or https (%s)", url.at,
                        text);
    case CURLE_UNSUPPORTED_PROTOCOL: /* its URL was looked at before */
        return kvm_fail(err, KVM_FORMAT, "%s: what answers is no web server (%s)",
                        url.at, text);
    case CURLE_OUT_OF_MEMORY:
        return kvm_fail(err, KVM_NOMEM, "%s: no memory", url.at);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
        return kvm_fail(err, KVM_ENVIRONMENT,
                        "%s: its certificate is not trusted (%s): install "
                        "ca-certificates, or the authority that signed it",
                        url.at, text);
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
        t->again = t->unreachable = true;
        return kvm_fail(err, KVM_ENVIRONMENT,
                        "%s: cannot be reached (%s): is this machine offline, or the "
                        "address wrong?",
                        url.at, text);
    default:
        t->again = true;
        return kvm_fail(err, KVM_IO, "%s: %s", url.at, text);
    }
}

static kvm_status perform(CURL *curl, kvm_http_try *t, const char *url, kvm_err *err)
{
    char text[CURL_ERROR_SIZE] = "", *next = NULL;
    long status = 0;
    SET(CURLOPT_ERRORBUFFER, text);
    const CURLcode code = curl_easy_perform(curl);
    SET(CURLOPT_ERRORBUFFER, NULL);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    t->status = (int)status;
    const kvm_quoted shown = kvm_http_shown(kvm_str_of(url));
    /* an answer before all was sent (a refusal) is an answer */
    const bool answered = code == CURLE_OK || t->cut ||
                          (code == CURLE_SEND_ERROR && status >= 300 && !t->sink);
    if (!answered) {
        const kvm_status s = explain(t, code, text, shown, err);
        if (!t->sink) return s;
        if (err && !err->code) *err = t->why;
        return s == KVM_CANCELLED ? s : kvm_err_prefix(err, s, "%s", shown.at);
    }
    if (t->file && (status == 200 || status == 206) && !t->begun) {
        const kvm_status s = begin_file(t, err);
        if (s) return kvm_err_prefix(err, s, "%s", shown.at);
    }
    t->again = status == 408 || status == 425 || status == 429 ||
               (status >= 500 && status != 501);
    if (curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &next) == CURLE_OK && next &&
        !(t->next = strdup(next)))
        return kvm_fail(err, KVM_NOMEM, "no memory for an address");
    return KVM_OK;
}

kvm_status kvm_http__once(kvm_http *h, kvm_http_try *t, const char *url, bool own,
                          kvm_err *err)
{
    TRY(kvm_http__connect(h, err));
    struct curl_slist *lines = lines_of(t, own);
    if (!lines) return kvm_fail(err, KVM_NOMEM, "no memory for headers");
    set_up(h->curl, h, t, url, lines);
    const kvm_status s = perform(h->curl, t, url, err);
    curl_easy_reset(h->curl); /* forgets lines and t */
    curl_slist_free_all(lines);
    return s;
}
