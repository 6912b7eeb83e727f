/* s3_list.c - what lies in a bucket: lists of objects and of uploads, page by page. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/zone.h"
#include "schema/s3_internal.h"

/* ---- XML ---- */

bool kvm_s3__next(kvm_str *at, const char *name, kvm_str *text)
{
    char open[64], close[64];
    snprintf(open, sizeof open, "<%s>", name);
    snprintf(close, sizeof close, "</%s>", name);
    const ptrdiff_t from = kvm_str_find(*at, kvm_str_of(open));
    if (from < 0) return false;
    const kvm_str rest = kvm_str_slice(*at, from + (ptrdiff_t)strlen(open), at->len);
    const ptrdiff_t to = kvm_str_find(rest, kvm_str_of(close));
    if (to < 0) return false;
    *text = kvm_str_slice(rest, 0, to);
    *at = kvm_str_slice(rest, to + (ptrdiff_t)strlen(close), rest.len);
    return true;
}

kvm_str kvm_s3__text(kvm_str xml, const char *name, kvm_arena *keep)
{
    static const struct {
        const char *entity, *sign;
    } entities[] = {{"&quot;", "\""}, {"&apos;", "'"}, {"&#34;", "\""},
                    {"&lt;", "<"},    {"&gt;", ">"},   {"&amp;", "&"}};
    kvm_str text;
    if (!kvm_s3__next(&xml, name, &text)) return (kvm_str){0};
    char *at = kvm_new(keep, char, text.len + 1);
    ptrdiff_t n = 0;
    if (!at) return (kvm_str){0};
    for (ptrdiff_t i = 0; i < text.len;) {
        const kvm_str rest = kvm_str_slice(text, i, text.len);
        size_t e = 0;
        while (e < sizeof entities / sizeof *entities &&
               !kvm_str_starts(rest, kvm_str_of(entities[e].entity)))
            e++;
        const bool known = e < sizeof entities / sizeof *entities;
        memcpy(&at[n++], known ? entities[e].sign : rest.at, 1);
        i += known ? (ptrdiff_t)strlen(entities[e].entity) : 1;
    }
    return (kvm_str){at, n};
}

/* "2026-01-31T12:00:00.000Z" in seconds since 1970; -1: none */
static double time_of(kvm_str text)
{
    static const ptrdiff_t from[] = {0, 5, 8, 11, 14, 17};
    enum { YEAR, MONTH, DAY, HOUR, MINUTE, SECOND, PARTS };
    int64_t of[PARTS];
    for (int i = 0; i < PARTS; i++) {
        const ptrdiff_t to = from[i] + (i == YEAR ? 4 : 2);
        if (to > text.len || !kvm_str_to_i64(kvm_str_slice(text, from[i], to), &of[i]))
            return -1;
    }
    if (of[MONTH] < 1 || of[MONTH] > 12) return -1;
    const int64_t days = kvm_days_of((int)of[YEAR], (int)of[MONTH], (int)of[DAY]);
    return (double)(days * 86400 + of[HOUR] * 3600 + of[MINUTE] * 60 + of[SECOND]);
}

/* ---- lists ---- */

const kvm_s3_list_kind kvm_s3__objects = {"list-type=2",
                                          "Contents",
                                          "LastModified",
                                          {"NextContinuationToken", NULL},
                                          {"continuation-token", NULL}};
const kvm_s3_list_kind kvm_s3__uploads = {"uploads=",
                                          "Upload",
                                          "Initiated",
                                          {"NextKeyMarker", "NextUploadIdMarker"},
                                          {"key-marker", "upload-id-marker"}};

/* An object without a date that can be read is as young as can be. */
static kvm_status tell_row(const kvm_s3_listing *l, kvm_str row, double now,
                           kvm_arena scratch, kvm_err *err)
{
    const kvm_str key = kvm_s3__text(row, "Key", &scratch),
                  upload = kvm_s3__text(row, "UploadId", &scratch),
                  size = kvm_s3__text(row, "Size", &scratch),
                  time = kvm_s3__text(row, l->kind->time, &scratch);
    const double when = time.at ? time_of(time) : -1;
    kvm_s3_listed o = {.upload = upload.at ? upload : KVM_STR(""),
                       .age_s = when >= 0 && now > when ? now - when : 0};
    if (!key.at || !kvm_str_starts(key, l->s->prefix)) return KVM_OK;
    if (!size.at || !kvm_str_to_i64(size, &o.bytes) || o.bytes < 0) o.bytes = 0;
    o.key = kvm_str_slice(key, l->s->prefix.len, key.len);
    return l->each(l->ctx, &o, err);
}

/* The query of the page behind this one; at becomes NULL when it is the last. */
static kvm_status next_query(const kvm_s3_listing *l, kvm_str body, kvm_str *query,
                             kvm_arena *keep, kvm_err *err)
{
    kvm_str next = l->first;
    const kvm_str more = kvm_s3__text(body, "IsTruncated", keep);
    if (!more.at || !kvm_str_eq(more, KVM_STR("true"))) {
        *query = (kvm_str){0};
        return KVM_OK;
    }
    for (int i = 0; i < 2 && l->kind->next[i]; i++) {
        const kvm_str mark = kvm_s3__text(body, l->kind->next[i], keep);
        const kvm_str encoded =
            kvm_http_encode(keep, mark.at ? mark : KVM_STR(""), false);
        next = kvm_str_fmt(keep, "%.*s&%s=%.*s", KVM_STR_ARG(next), l->kind->from[i],
                           KVM_STR_ARG(encoded));
        if (!encoded.at || !next.at) return kvm_nomem(err, keep);
    }
    if (kvm_str_eq(next, *query))
        return kvm_fail(err, KVM_IO, "%.*s: a list goes round in a circle",
                        KVM_STR_ARG(l->s->base));
    *query = next;
    return KVM_OK;
}

kvm_status kvm_s3__tell(const kvm_s3_listing *l, const kvm_http_reply *reply,
                        kvm_str *query, kvm_arena *keep, kvm_arena scratch,
                        kvm_err *err)
{
    kvm_str rows = reply->body, row;
    TRY(kvm_s3__check(l->s, l->begins, reply, err));
    const double date = kvm_http_date(reply, "date");
    while (kvm_s3__next(&rows, l->kind->row, &row))
        TRY(tell_row(l, row, date > 0 ? date : kvm_wall(), scratch, err));
    return next_query(l, reply->body, query, keep, err);
}

static kvm_status tell_page(const kvm_s3_listing *l, kvm_str *query, kvm_arena *keep,
                            kvm_arena scratch, kvm_err *err)
{
    kvm_http_reply reply;
    const kvm_s3_call call = {.method = KVM_HTTP_GET, .query = *query};
    TRY(kvm_s3__send(l->s, &call, &reply, &scratch, err));
    return kvm_s3__tell(l, &reply, query, keep, scratch, err);
}

static kvm_status tell_all(kvm_s3_listing *l, kvm_err *err)
{
    kvm_arena keep, page;
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    kvm_status s = kvm_arena_init(&page, KVM_S3_ARENA, err);
    const kvm_str begins = kvm_str_fmt(&keep, "%.*s%.*s", KVM_STR_ARG(l->s->prefix),
                                       KVM_STR_ARG(l->begins));
    const kvm_str encoded = kvm_http_encode(&keep, begins, false);
    l->first =
        kvm_str_fmt(&keep, "%s&prefix=%.*s", l->kind->query, KVM_STR_ARG(encoded));
    kvm_str query = l->first;
    if (!s && !(begins.at && encoded.at && query.at)) s = kvm_nomem(err, &keep);
    while (!s && query.at) s = tell_page(l, &query, &keep, page, err);
    kvm_arena_free(&page);
    kvm_arena_free(&keep);
    return s;
}

kvm_status kvm_s3_list(kvm_s3 *s, kvm_str begins, kvm_s3_each *each, void *ctx,
                       kvm_err *err)
{
    kvm_s3_listing l = {s, &kvm_s3__objects, begins, KVM_STR(""), each, ctx};
    return tell_all(&l, err);
}

kvm_status kvm_s3_uploads(kvm_s3 *s, kvm_str begins, kvm_s3_each *each, void *ctx,
                          kvm_err *err)
{
    kvm_s3_listing l = {s, &kvm_s3__uploads, begins, KVM_STR(""), each, ctx};
    return tell_all(&l, err);
}
