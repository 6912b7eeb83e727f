#include "schema/s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "schema/s3_internal.h"

enum { CONFLICTS = 5 };
static const int64_t PART_BYTES = (int64_t)64 << 20;

/* ---- the bucket ---- */

bool kvm_s3_address(kvm_str where)
{
    return kvm_str_starts(where, KVM_STR("s3://"));
}

static bool made_of(kvm_str s, const char *signs)
{
    for (ptrdiff_t i = 0; i < s.len; i++)
        if (!s.at[i] || !strchr(signs, s.at[i])) return false;
    return true;
}

/* Only what needs no escaping in a path, in XML or in a message. */
static kvm_status read_address(kvm_s3 *s, kvm_str address, kvm_arena *keep,
                               kvm_err *err)
{
    static const char bucket[] = "abcdefghijklmnopqrstuvwxyz0123456789.-",
                      prefix[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                 "0123456789.-_/";
    kvm_str tail;
    kvm_str_cut(kvm_str_slice(address, 5, address.len), '/', &s->bucket, &tail);
    while (kvm_str_ends(tail, KVM_STR("/"))) tail.len--;
    if (!kvm_s3_address(address) || s->bucket.len < 3 || s->bucket.len > 63 ||
        !made_of(s->bucket, bucket) || !made_of(tail, prefix) || tail.len > 512 ||
        kvm_str_starts(tail, KVM_STR("/")) || kvm_str_find(tail, KVM_STR("//")) >= 0 ||
        kvm_str_find(tail, KVM_STR("..")) >= 0)
        return kvm_fail(err, KVM_USAGE,
                        "\"%s\" is no address of a store: s3://BUCKET or "
                        "s3://BUCKET/PREFIX, of letters, digits and . - _",
                        kvm_quote(address).at);
    s->bucket = kvm_str_copy(keep, s->bucket);
    s->prefix = kvm_str_fmt(keep, "%.*s%s", KVM_STR_ARG(tail), tail.len > 0 ? "/" : "");
    return s->bucket.at && s->prefix.at ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_str one_of(const char *first, const char *second)
{
    const kvm_str v = kvm_str_trim(kvm_str_of(getenv(first)));
    return v.len > 0 || !second ? v : kvm_str_trim(kvm_str_of(getenv(second)));
}

static kvm_status read_keys(kvm_s3 *s, kvm_arena *keep, kvm_err *err)
{
    const kvm_str region = one_of("AWS_REGION", "AWS_DEFAULT_REGION");
    s->key = (kvm_sigv4_key){
        .id = kvm_str_copy(keep, one_of("AWS_ACCESS_KEY_ID", NULL)),
        .secret = kvm_str_copy(keep, one_of("AWS_SECRET_ACCESS_KEY", NULL)),
        .region = kvm_str_copy(keep, region.len > 0 ? region : KVM_STR("us-east-1")),
        .service = KVM_STR("s3")};
    s->token = kvm_str_copy(keep, one_of("AWS_SESSION_TOKEN", NULL));
    if (!s->key.id.at || !s->key.secret.at || !s->key.region.at || !s->token.at)
        return kvm_nomem(err, keep);
    if (s->key.id.len == 0 || s->key.secret.len == 0)
        return kvm_fail(err, KVM_ENVIRONMENT,
                        "s3://%.*s: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                        KVM_STR_ARG(s->bucket));
    return KVM_OK;
}

/* A bucket with a dot in its name has no host whose certificate holds. */
static kvm_status read_endpoint(kvm_s3 *s, kvm_arena *keep, kvm_err *err)
{
    kvm_str own = one_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    while (kvm_str_ends(own, KVM_STR("/"))) own.len--;
    const bool dots = kvm_str_find(s->bucket, KVM_STR(".")) >= 0;
    if (own.len > 0) {
        kvm_str host, path;
        const ptrdiff_t at = kvm_str_find(own, KVM_STR("://"));
        if (at < 0)
            return kvm_fail(err, KVM_USAGE,
                            "AWS_ENDPOINT_URL: \"%s\" is no http:// or https:// URL",
                            kvm_quote(own).at);
        const bool more =
            kvm_str_cut(kvm_str_slice(own, at + 3, own.len), '/', &host, &path);
        s->host = kvm_str_copy(keep, host);
        s->base = kvm_str_copy(keep, kvm_str_slice(own, 0, at + 3 + host.len));
        s->path = kvm_str_fmt(keep, "%s%.*s/%.*s", more ? "/" : "", KVM_STR_ARG(path),
                              KVM_STR_ARG(s->bucket));
    } else {
        s->host = kvm_str_fmt(keep, "%.*s%ss3.%.*s.amazonaws.com",
                              dots ? 0 : (int)s->bucket.len, s->bucket.at,
                              dots ? "" : ".", KVM_STR_ARG(s->key.region));
        s->base = kvm_str_fmt(keep, "https://%.*s", KVM_STR_ARG(s->host));
        s->path = kvm_str_fmt(keep, "%s%.*s", dots ? "/" : "",
                              dots ? (int)s->bucket.len : 0, s->bucket.at);
    }
    return s->host.at && s->base.at && s->path.at ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_s3_open(kvm_s3 **out, kvm_arena *keep, const kvm_s3_options *o,
                       kvm_err *err)
{
    kvm_s3 *s = kvm_new(keep, kvm_s3, 1);
    if (!s) return kvm_nomem(err, keep);
    s->part_bytes = o->part_bytes > 0 ? o->part_bytes : PART_BYTES;
    TRY(read_address(s, o->address, keep, err));
    TRY(read_keys(s, keep, err));
    TRY(read_endpoint(s, keep, err));
    TRY(kvm_http_new(&s->http, keep, &o->http, err));
    *out = s;
    return KVM_OK;
}

kvm_str kvm_s3_shown(const kvm_s3 *s, kvm_arena *keep, kvm_str key)
{
    return kvm_str_fmt(keep, "s3://%.*s/%.*s%.*s", KVM_STR_ARG(s->bucket),
                       KVM_STR_ARG(s->prefix), KVM_STR_ARG(key));
}

/* ---- requests ---- */

enum { MOST_HEADERS = 8 };

static void add_header(kvm_http_request *r, kvm_http_header *all, const char *name,
                       kvm_str value)
{
    all[r->header_count++] = (kvm_http_header){name, value};
}

/* "/bucket/prefix/key" as it is sent and signed; at is NULL: keep is spent */
static kvm_str path_of(const kvm_s3 *s, kvm_str key, kvm_arena *keep)
{
    if (!key.at) return s->path.len > 0 ? s->path : KVM_STR("/");
    const kvm_str encoded = kvm_http_encode(keep, key, true);
    if (!encoded.at) return encoded;
    return kvm_str_fmt(keep, "%.*s/%.*s%.*s", KVM_STR_ARG(s->path),
                       KVM_STR_ARG(s->prefix), KVM_STR_ARG(encoded));
}

/* Fills in the headers; the last one is the signature over the others. */
static kvm_status sign(kvm_s3 *s, const kvm_s3_call *call, kvm_str path,
                       kvm_http_request *r, kvm_http_header *all, kvm_arena *keep,
                       kvm_err *err)
{
    static const char *const words[] = {[KVM_HTTP_GET] = "GET",
                                        [KVM_HTTP_HEAD] = "HEAD",
                                        [KVM_HTTP_PUT] = "PUT",
                                        [KVM_HTTP_POST] = "POST",
                                        [KVM_HTTP_DELETE] = "DELETE"};
    char sha[65], now[17];
    kvm_str signature;
    kvm_sigv4_date(kvm_wall(), now);
    if (!call->sha) TRY(kvm_sha_of(call->body, sha, err));
    const kvm_str payload = kvm_str_copy(keep, kvm_str_of(call->sha ? call->sha : sha)),
                  date = kvm_str_copy(keep, kvm_str_of(now));
    if (!payload.at || !date.at) return kvm_nomem(err, keep);
    add_header(r, all, "Host", s->host);
    add_header(r, all, "x-amz-date", date);
    add_header(r, all, "x-amz-content-sha256", payload);
    if (s->token.len > 0) add_header(r, all, "x-amz-security-token", s->token);
    if (call->if_none && !s->unconditional)
        add_header(r, all, "If-None-Match", KVM_STR("*"));
    const kvm_sigv4_request to_sign = {.method = words[call->method],
                                       .path = path,
                                       .query = call->query,
                                       .headers = all,
                                       .header_count = r->header_count,
                                       .payload_sha = payload,
                                       .date = date};
    TRY(kvm_sigv4_sign(&signature, keep, &s->key, &to_sign, err));
    add_header(r, all, "Authorization", signature);
    return KVM_OK;
}

kvm_status kvm_s3__request(kvm_s3 *s, const kvm_s3_call *call, kvm_http_request *r,
                           kvm_arena *keep, kvm_err *err)
{
    kvm_http_header *all = kvm_new(keep, kvm_http_header, MOST_HEADERS);
    const kvm_str path = path_of(s, call->key, keep);
    if (!all || !path.at) return kvm_nomem(err, keep);
    *r = (kvm_http_request){.method = call->method,
                            .headers = all,
                            .body = call->body,
                            .file = call->fd,
                            .file_at = call->at,
                            .file_bytes = call->bytes,
                            .most_bytes = KVM_S3_ANSWER};
    r->url =
        kvm_str_fmt(keep, "%.*s%.*s%s%.*s", KVM_STR_ARG(s->base), KVM_STR_ARG(path),
                    call->query.len > 0 ? "?" : "", KVM_STR_ARG(call->query));
    if (!r->url.at) return kvm_nomem(err, keep);
    return sign(s, call, path, r, all, keep, err);
}

kvm_status kvm_s3__send(kvm_s3 *s, const kvm_s3_call *call, kvm_http_reply *reply,
                        kvm_arena *keep, kvm_err *err)
{
    kvm_http_request r;
    TRY(kvm_s3__request(s, call, &r, keep, err));
    return kvm_http_send(s->http, &r, reply, keep, err);
}

/* What to do about the codes that an operator meets. */
static const char *remedy(kvm_str code)
{
    static const char *const known[][2] = {
        {"NoSuchBucket", "make it, or name another with --store"},
        {"InvalidAccessKeyId", "is AWS_ACCESS_KEY_ID of this endpoint?"},
        {"SignatureDoesNotMatch", "is AWS_SECRET_ACCESS_KEY right?"},
        {"AuthorizationHeaderMalformed", "is AWS_REGION that of the bucket?"},
        {"PermanentRedirect", "is AWS_REGION that of the bucket?"},
        {"RequestTimeTooSkewed", "the clock of this machine is wrong"},
        {"ExpiredToken", "AWS_SESSION_TOKEN has run out: get another"},
        {"AccessDenied", "these keys may not do it"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (kvm_str_eq(code, kvm_str_of(known[i][0]))) return known[i][1];
    return "";
}

kvm_status kvm_s3__check(const kvm_s3 *s, kvm_str key, const kvm_http_reply *reply,
                         kvm_err *err)
{
    kvm_err why = {0};
    kvm_arena scratch;
    kvm_status status = kvm_http_check(reply, s->base, &why);
    if (!status) return KVM_OK;
    TRY(kvm_arena_init(&scratch, 1 << 20, err));
    const kvm_str shown = kvm_s3_shown(s, &scratch, key),
                  code = kvm_s3__text(reply->body, "Code", &scratch);
    const char *todo = code.at ? remedy(code) : "";
    const bool bucket = code.at && kvm_str_eq(code, KVM_STR("NoSuchBucket"));
    if (bucket || (status != KVM_NOTFOUND && status != KVM_EXISTS && status != KVM_IO))
        status = KVM_ENVIRONMENT;
    kvm_fail_at(err, status, __FILE__, __LINE__, "%.*s: HTTP status %d%s%s%s%s (%.*s)",
                KVM_STR_ARG(shown), reply->status, code.at ? ", " : "",
                code.at ? kvm_quote(code).at : "", *todo ? ": " : "", todo,
                KVM_STR_ARG(s->base));
    kvm_arena_free(&scratch);
    return status;
}

/* ---- objects ---- */

kvm_status kvm_s3_head(kvm_s3 *s, kvm_str key, int64_t *bytes, kvm_err *err)
{
    kvm_http_reply reply;
    kvm_arena keep;
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    const kvm_s3_call call = {.method = KVM_HTTP_HEAD, .key = key};
    kvm_status r = kvm_s3__send(s, &call, &reply, &keep, err);
    if (!r && reply.status == 404)
        *bytes = -1;
    else if (!r && !(r = kvm_s3__check(s, key, &reply, err)) &&
             !kvm_str_to_i64(kvm_http_field(&reply, "content-length"), bytes))
        r = kvm_fail(err, KVM_IO, "%.*s: no length of %.*s", KVM_STR_ARG(s->base),
                     KVM_STR_ARG(key));
    kvm_arena_free(&keep);
    return r;
}

kvm_status kvm_s3_get(kvm_s3 *s, kvm_str key, int fd, kvm_str name, int64_t bytes,
                      kvm_err *err)
{
    kvm_http_request request;
    kvm_http_reply reply;
    kvm_arena keep;
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    const kvm_s3_call call = {.method = KVM_HTTP_GET, .key = key};
    kvm_status r = kvm_s3__request(s, &call, &request, &keep, err);
    if (!r) r = kvm_http_fetch(s->http, &request, fd, name, bytes, &reply, &keep, err);
    if (!r) r = kvm_s3__check(s, key, &reply, err);
    kvm_arena_free(&keep);
    return r;
}

/* Who comes second finds it there: content and key are one. */
static kvm_status put_whole(kvm_s3 *s, kvm_str key, const kvm_s3_content *c,
                            kvm_arena *keep, kvm_err *err)
{
    kvm_http_reply reply;
    for (int tries = 1;; tries++) {
        const kvm_s3_call call = {.method = KVM_HTTP_PUT,
                                  .key = key,
                                  .if_none = !c->replace,
                                  .fd = c->fd,
                                  .bytes = c->bytes,
                                  .sha = c->sha};
        TRY(kvm_s3__send(s, &call, &reply, keep, err));
        if (call.if_none && reply.status == 412) return KVM_OK;
        if (call.if_none && reply.status == 501 && !s->unconditional)
            s->unconditional = true;
        else if (reply.status == 409 && tries < CONFLICTS) /* two at a time */
            kvm_sleep(0.1 * tries);
        else
            return kvm_s3__check(s, key, &reply, err);
    }
}

kvm_status kvm_s3_put(kvm_s3 *s, kvm_str key, const kvm_s3_content *c, kvm_err *err)
{
    kvm_arena keep;
    if (c->bytes > s->part_bytes) return kvm_s3__put_parts(s, key, c, err);
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    const kvm_status r = put_whole(s, key, c, &keep, err);
    kvm_arena_free(&keep);
    return r;
}

static kvm_status remove_at(kvm_s3 *s, kvm_str key, kvm_str query, kvm_arena *keep,
                            kvm_err *err)
{
    kvm_http_reply reply;
    const kvm_s3_call call = {.method = KVM_HTTP_DELETE, .key = key, .query = query};
    TRY(kvm_s3__send(s, &call, &reply, keep, err));
    return reply.status == 404 ? KVM_OK : kvm_s3__check(s, key, &reply, err);
}

kvm_status kvm_s3_delete(kvm_s3 *s, kvm_str key, kvm_err *err)
{
    kvm_arena keep;
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    const kvm_status r = remove_at(s, key, KVM_STR(""), &keep, err);
    kvm_arena_free(&keep);
    return r;
}

kvm_status kvm_s3_abort(kvm_s3 *s, kvm_str key, kvm_str upload, kvm_err *err)
{
    kvm_arena keep;
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    const kvm_str id = kvm_http_encode(&keep, upload, false);
    const kvm_str query = kvm_str_fmt(&keep, "uploadId=%.*s", KVM_STR_ARG(id));
    const kvm_status r = id.at && query.at ? remove_at(s, key, query, &keep, err)
                                           : kvm_nomem(err, &keep);
    kvm_arena_free(&keep);
    return r;
}
