#include "base/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/http_internal.h"
#include "base/os.h"

/* ---- addresses ---- */

typedef struct url_parts {
    kvm_str scheme, authority, rest; /* "https", "host:443", "/path?query" */
} url_parts;

static bool cut_url(kvm_str url, url_parts *p)
{
    const ptrdiff_t at = kvm_str_find(url, KVM_STR("://"));
    if (at < 0) return false;
    const kvm_str behind = kvm_str_slice(url, at + 3, url.len);
    ptrdiff_t end = 0;
    while (end < behind.len && !strchr("/?#", behind.at[end])) end++;
    *p = (url_parts){kvm_str_slice(url, 0, at), kvm_str_slice(behind, 0, end),
                     kvm_str_slice(behind, end, behind.len)};
    return true;
}

kvm_quoted kvm_http_shown(kvm_str url)
{
    url_parts p;
    char text[sizeof((kvm_quoted *)NULL)->at];
    kvm_str user, host, path, query;
    if (!cut_url(url, &p)) return kvm_quote(KVM_STR("(no URL)"));
    if (!kvm_str_cut(p.authority, '@', &user, &host)) host = p.authority;
    kvm_str_cut(p.rest, '?', &path, &query);
    const int n = snprintf(text, sizeof text, "%.*s://%.*s%.*s", KVM_STR_ARG(p.scheme),
                           KVM_STR_ARG(host), KVM_STR_ARG(path));
    return kvm_quote((kvm_str){text, n < (int)sizeof text ? n : (int)sizeof text - 1});
}

static bool is_https(kvm_str scheme)
{
    return scheme.len == 5 && !strncasecmp(scheme.at, "https", 5);
}

bool kvm_http_keeps_secrets(kvm_str url)
{
    url_parts p;
    kvm_str host, port;
    if (!cut_url(url, &p)) return false;
    if (is_https(p.scheme) || kvm_str_starts(p.authority, KVM_STR("[::1]:")) ||
        kvm_str_eq(p.authority, KVM_STR("[::1]")))
        return true;
    kvm_str_cut(p.authority, ':', &host, &port);
    bool number = kvm_str_starts(host, KVM_STR("127."));
    for (ptrdiff_t i = 0; i < host.len && number; i++)
        number = host.at[i] == '.' || (host.at[i] >= '0' && host.at[i] <= '9');
    for (ptrdiff_t i = 0; i < port.len; i++) /* what is before an @ is no host */
        if (port.at[i] < '0' || port.at[i] > '9') return false;
    return number || kvm_str_eq(host, KVM_STR("localhost"));
}

static kvm_status check_url(kvm_str url, kvm_err *err)
{
    url_parts p;
    const bool cut = cut_url(url, &p);
    if (!cut || (!is_https(p.scheme) &&
                 (p.scheme.len != 4 || strncasecmp(p.scheme.at, "http", 4) != 0)))
        return kvm_fail(err, KVM_USAGE, "%s: no URL of http or https",
                        kvm_http_shown(url).at);
    if (memchr(p.authority.at, '@', (size_t)p.authority.len))
        return kvm_fail(err, KVM_USAGE,
                        "%s: user and password do not belong into an URL",
                        kvm_http_shown(url).at);
    for (ptrdiff_t i = 0; i < url.len; i++)
        if ((unsigned char)url.at[i] <= ' ' || url.at[i] == 0x7F)
            return kvm_fail(err, KVM_USAGE, "%s: a blank or a control byte in an URL",
                            kvm_http_shown(url).at);
    return KVM_OK;
}

/* Whether two addresses are of one scheme, host and port, as they are written. */
static bool same_origin(kvm_str a, kvm_str b)
{
    url_parts x, y;
    return cut_url(a, &x) && cut_url(b, &y) && x.scheme.len == y.scheme.len &&
           x.authority.len == y.authority.len &&
           !strncasecmp(x.scheme.at, y.scheme.at, (size_t)x.scheme.len) &&
           !strncasecmp(x.authority.at, y.authority.at, (size_t)x.authority.len);
}

kvm_str kvm_http_encode(kvm_arena *keep, kvm_str s, bool slashes)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    char *at = kvm_new(keep, char, 3 * s.len + 1);
    ptrdiff_t n = 0;
    if (!at) return (kvm_str){0};
    for (ptrdiff_t i = 0; i < s.len; i++) {
        const unsigned char c = (unsigned char)s.at[i];
        if ((c && strchr(plain, c)) || (slashes && c == '/'))
            at[n++] = (char)c;
        else
            n += snprintf(at + n, 4, "%%%02X", c);
    }
    return (kvm_str){at, n};
}

/* ---- answers ---- */

kvm_str kvm_http_field(const kvm_http_reply *reply, const char *name)
{
    kvm_str rest = reply->headers, line, found = {0}, key, value;
    while (rest.len > 0) {
        kvm_str_cut(rest, '\n', &line, &rest);
        if (kvm_str_cut(line, ':', &key, &value) &&
            key.len == (ptrdiff_t)strlen(name) &&
            !strncasecmp(key.at, name, (size_t)key.len))
            found = kvm_str_trim(value);
    }
    return found;
}

kvm_status kvm_http_check(const kvm_http_reply *reply, kvm_str url, kvm_err *err)
{
    static const struct {
        int from, to;
        kvm_status status;
        const char *what;
    } meanings[] = {
        {401, 401, KVM_ENVIRONMENT, "it asks for credentials, or knows ours not"},
        {403, 403, KVM_ENVIRONMENT, "it may not be had with these credentials"},
        {404, 404, KVM_NOTFOUND, "there is no such thing"},
        {407, 407, KVM_ENVIRONMENT, "the proxy asks for credentials"},
        {408, 408, KVM_IO, "it waited too long for us"},
        {410, 410, KVM_NOTFOUND, "it has gone"},
        {412, 412, KVM_EXISTS, "it is there already"},
        {416, 416, KVM_RANGE, "it has no such bytes"},
        {425, 425, KVM_IO, "too early: try again later"},
        {429, 429, KVM_IO, "we ask too often: try again later"},
        {500, 599, KVM_IO, "it is in trouble: try again later"},
        {300, 399, KVM_FORMAT, "it sends us elsewhere"},
        {0, 999, KVM_USAGE, "it refuses the request"},
    };
    if (reply->status >= 200 && reply->status < 300) return KVM_OK;
    size_t i = 0;
    while (reply->status < meanings[i].from || reply->status > meanings[i].to) i++;
    return kvm_fail(err, meanings[i].status, "%s: %s (HTTP status %d)",
                    kvm_http_shown(url).at, meanings[i].what, reply->status);
}

/* ---- requests ---- */

static void close_client(void *arg)
{
    kvm_http__close(arg);
}

kvm_status kvm_http_new(kvm_http **out, kvm_arena *keep, const kvm_http_options *given,
                        kvm_err *err)
{
    kvm_http *h = kvm_new(keep, kvm_http, 1);
    if (!h) return kvm_nomem(err, keep);
    if (given) h->o = *given;
    if (h->o.connect_s <= 0) h->o.connect_s = 15;
    if (h->o.stall_s <= 0) h->o.stall_s = 60;
    if (h->o.answer_s <= 0) h->o.answer_s = 300;
    if (h->o.tries <= 0) h->o.tries = 5;
    if (h->o.offline_tries <= 0) h->o.offline_tries = 3;
    if (h->o.backoff_s <= 0) h->o.backoff_s = 0.5;
    if (h->o.patience_s <= 0) h->o.patience_s = 60;
    h->jitter = kvm_rng_seed((uint64_t)getpid(), (uint64_t)(kvm_wall() * 1e6));
    TRY(kvm_arena_defer(keep, close_client, h, err));
    *out = h;
    return KVM_OK;
}

static kvm_status check_request(const kvm_http_request *r, kvm_err *err)
{
    TRY(check_url(r->url, err));
    for (ptrdiff_t i = 0; i < r->header_count; i++) {
        const kvm_str v = r->headers[i].value;
        for (ptrdiff_t n = 0; n < v.len; n++)
            if ((unsigned char)v.at[n] < ' ' && v.at[n] != '\t')
                return kvm_fail(err, KVM_USAGE, "header %s: a control byte in it",
                                r->headers[i].name);
    }
    return KVM_OK;
}

/* From one address to the next, as redirects lead. */
static kvm_status follow(kvm_http *h, kvm_http_try *t, kvm_err *err)
{
    const kvm_http_request *r = t->r;
    const bool follows = r->method == KVM_HTTP_GET || r->method == KVM_HTTP_HEAD;
    kvm_status s;
    kvm_text url = {0}, next = {0};
    kvm_text_add(&url, r->url);
    for (int hops = 0;; hops++) {
        url_parts was, is;
        const kvm_str here = kvm_text_str(&url);
        s = url.failed ? kvm_fail(err, KVM_NOMEM, "no memory for an address")
                       : kvm_http__once(h, t, url.at, same_origin(r->url, here), err);
        if (s || !t->next || !follows || r->redirects == 0) break;
        if (hops == r->redirects) {
            s = kvm_fail(err, KVM_FORMAT, "%s: redirects us more than %d times",
                         kvm_http_shown(r->url).at, r->redirects);
            break;
        }
        next.len = 0;
        kvm_text_add(&next, kvm_str_of(t->next));
        s = check_url(kvm_text_str(&next), err);
        if (!s && cut_url(here, &was) && cut_url(kvm_text_str(&next), &is) &&
            is_https(was.scheme) && !is_https(is.scheme))
            s = kvm_fail(err, KVM_FORMAT, "%s: redirects us from https to http",
                         kvm_http_shown(here).at);
        if (s) break;
        const kvm_text swap = url;
        url = next;
        next = swap;
        kvm_http__free(t);
        *t = (kvm_http_try){.r = r, .file = t->file};
    }
    kvm_text_free(&url);
    kvm_text_free(&next);
    return s;
}

/* Seconds until the next try: what the server asks for, else more each time. */
static double wait_of(kvm_http *h, const kvm_http_try *t, int tried)
{
    const kvm_http_reply r = {.headers = kvm_text_str(&t->headers)};
    const kvm_str asked = kvm_http_field(&r, "retry-after");
    int64_t seconds;
    double wait = h->o.backoff_s;
    for (int i = 1; i < tried && wait < h->o.patience_s; i++) wait *= 2;
    if (wait > h->o.patience_s) wait = h->o.patience_s;
    wait *= 0.75 + 0.5 * kvm_rng_unit(&h->jitter); /* not all workers at once */
    if (kvm_str_to_i64(asked, &seconds)) return seconds > 0 ? (double)seconds : wait;
    const double until = kvm_http_date(&r, "retry-after"),
                 now = kvm_http_date(&r, "date");
    return until > now && now > 0 ? until - now : wait;
}

static bool wait_for(const kvm_http_request *r, double seconds)
{
    for (const double until = kvm_now() + seconds; kvm_now() < until;) {
        const double left = until - kvm_now();
        kvm_sleep(left < 0.1 ? left : 0.1);
        if (r->moved && !r->moved(r->ctx, 0)) return false;
    }
    return true;
}

static kvm_status give_reply(const kvm_http_try *t, kvm_http_reply *reply,
                             kvm_arena *keep, kvm_err *err)
{
    const kvm_http_reply r = {.status = t->status,
                              .headers = kvm_str_copy(keep, kvm_text_str(&t->headers)),
                              .body = kvm_str_copy(keep, kvm_text_str(&t->body))};
    if (!r.headers.at || !r.body.at) return kvm_nomem(err, keep);
    *reply = r;
    return KVM_OK;
}

/* Whether a try that ended so is followed by another one, after the wait. */
static bool goes_on(kvm_http *h, const kvm_http_try *t, int tried, kvm_status *s,
                    kvm_err *err)
{
    const int most = t->unreachable ? h->o.offline_tries : h->o.tries;
    if (!t->again || tried >= most) return false;
    const double wait = wait_of(h, t, tried);
    if (wait > h->o.patience_s * 1.25) return false;
    if (wait_for(t->r, wait)) return true;
    if (err) *err = (kvm_err){0}; /* what happened before is not why it ends */
    *s = kvm_fail(err, KVM_CANCELLED, "%s: cancelled", kvm_http_shown(t->r->url).at);
    return false;
}

/* A broken file is short of what it should have: libcurl sees that by the length of the
 * answer, we by that of the whole. */
static kvm_status is_whole(kvm_http_try *t, kvm_err *err)
{
    const kvm_http_file *f = t->file;
    if (!f || (t->status != 200 && t->status != 206) || f->whole < 0 ||
        f->have == f->whole)
        return KVM_OK;
    t->again = true;
    return kvm_fail(err, KVM_IO, "%s: ended after %lld of %lld bytes",
                    kvm_http_shown(t->r->url).at, (long long)f->have,
                    (long long)f->whole);
}

static kvm_status send_all(kvm_http *h, const kvm_http_request *r, kvm_http_file *file,
                           kvm_http_reply *reply, kvm_arena *keep, kvm_err *err)
{
    int64_t best = file ? file->have : 0;
    for (int tried = 1;; tried++) {
        kvm_http_try t = {.r = r, .file = file};
        kvm_err why = {0};
        kvm_status s = follow(h, &t, &why);
        if (!s) s = is_whole(&t, &why);
        if (file && file->have > best) { /* it gets on: those before do not count */
            best = file->have;
            tried = 1;
        }
        if (r->moved && t.again && t.sent > 0) (void)r->moved(r->ctx, -t.sent);
        const bool again = goes_on(h, &t, tried, &s, &why);
        if (!again && !s) s = give_reply(&t, reply, keep, &why);
        kvm_http__free(&t);
        if (again) continue;
        if (s && err && !err->code) *err = why;
        return s;
    }
}

static kvm_http_request with_defaults(const kvm_http_request *r)
{
    kvm_http_request full = *r;
    if (full.most_bytes == 0) full.most_bytes = 1 << 20;
    return full;
}

kvm_status kvm_http_send(kvm_http *h, const kvm_http_request *r, kvm_http_reply *reply,
                         kvm_arena *keep, kvm_err *err)
{
    const kvm_http_request full = with_defaults(r);
    TRY(check_request(r, err));
    return send_all(h, &full, NULL, reply, keep, err);
}

kvm_status kvm_http_fetch(kvm_http *h, const kvm_http_request *r, int fd, kvm_str name,
                          int64_t bytes, kvm_http_reply *reply, kvm_arena *keep,
                          kvm_err *err)
{
    const kvm_http_request full = with_defaults(r);
    const kvm_http_file empty = {
        .fd = fd, .name = name, .whole = bytes, .given = bytes >= 0};
    kvm_http_file file = empty;
    struct stat st;
    TRY(check_request(r, err));
    if (kvm_os->fstat(fd, &st))
        return kvm_fail_errno(err, "%.*s: cannot stat", KVM_STR_ARG(name));
    file.have = st.st_size;
    if (bytes >= 0 && file.have >= bytes) { /* nothing is left to ask for */
        if (kvm_os->ftruncate(fd, 0))
            return kvm_fail_errno(err, "%.*s: cannot cut", KVM_STR_ARG(name));
        if (r->moved) (void)r->moved(r->ctx, -file.have);
        file.have = 0;
    }
    kvm_status s = send_all(h, &full, &file, reply, keep, err);
    if (s || reply->status != 416) return s;
    if (kvm_os->ftruncate(fd, 0)) /* it has become shorter than what we have of it */
        return kvm_fail_errno(err, "%.*s: cannot cut", KVM_STR_ARG(name));
    file = empty;
    return send_all(h, &full, &file, reply, keep, err);
}
