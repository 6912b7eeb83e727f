/* s3_parts.c - a long object is sent in parts, each hashed and acknowledged, and is
 * there when the upload is completed.
 *
 *   begun -> parts sent, in any number of attempts -> completed
 *      \______________________________________\______> aborted (by a sweep, by S3)
 *
 * The note has a line when the upload was begun and one per part that was acknowledged,
 * each written before the next request. A killed process thus leaves an upload that the
 * next one goes on with, and an upload that nobody goes on with leaves a note and parts
 * that a sweep takes. */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "schema/s3_internal.h"

enum { MOST_PARTS = 10000, TAG_BYTES = 128, NOTE_BYTES = 4 << 20, CHUNK = 1 << 20 };

typedef struct tag {
    char text[TAG_BYTES]; /* with its quotes; "": not sent */
} tag;

typedef struct upload {
    kvm_s3 *s;
    kvm_str key;
    const kvm_s3_content *c;
    int64_t part_bytes;
    ptrdiff_t parts;
    tag *tags; /* (parts) */
    kvm_str id;
    kvm_log_file *note;
    kvm_arena *keep;
    kvm_arena scratch; /* another one, used by value */
} upload;

/* ---- the note ---- */

static bool is_tag(kvm_str s)
{
    if (s.len < 1 || s.len >= TAG_BYTES) return false;
    for (ptrdiff_t i = 0; i < s.len; i++)
        if (s.at[i] <= ' ' || s.at[i] >= 0x7F || strchr("<>&", s.at[i])) return false;
    return true;
}

static void read_line(upload *u, kvm_str line, kvm_arena *keep)
{
    kvm_jat at;
    int64_t n;
    kvm_str text;
    if (kvm_json_parse(&at, keep, line, KVM_STR("note"), NULL)) return;
    if (!kvm_json_str(kvm_json_get(at, keep, "upload"), &text, NULL)) {
        if (!kvm_json_i64(kvm_json_get(at, keep, "part_bytes"), &n, NULL) &&
            n == u->part_bytes)
            u->id = kvm_str_copy(u->keep, text);
    } else if (!kvm_json_i64(kvm_json_get(at, keep, "part"), &n, NULL) && n >= 1 &&
               n <= u->parts &&
               !kvm_json_str(kvm_json_get(at, keep, "tag"), &text, NULL) &&
               is_tag(text))
        memcpy(u->tags[n - 1].text, text.at, (size_t)text.len + 1);
}

/* What an attempt before this one has sent; a note that says nothing of use is none. */
static void read_note(upload *u)
{
    kvm_str text, line;
    if (kvm_file_read(&text, u->keep, u->c->note, NOTE_BYTES, NULL)) return;
    while (text.len > 0) {
        kvm_str_cut(text, '\n', &line, &text);
        read_line(u, line, u->keep);
    }
}

static kvm_status add_line(upload *u, json_t *line, kvm_err *err)
{
    kvm_str text;
    if (!kvm_json_own(u->keep, line)) return kvm_nomem(err, u->keep);
    TRY(kvm_json_canonical(&text, u->keep, line, err));
    return kvm_log_append(u->note, text, true, err);
}

static kvm_status forget(upload *u, kvm_err *err)
{
    u->id = (kvm_str){0};
    for (ptrdiff_t i = 0; i < u->parts; i++) u->tags[i].text[0] = 0;
    return kvm_file_remove(u->c->note, err);
}

/* ---- the upload ---- */

static kvm_status begin(upload *u, kvm_err *err)
{
    kvm_http_reply reply;
    kvm_arena scratch = u->scratch;
    const kvm_s3_call call = {
        .method = KVM_HTTP_POST, .key = u->key, .query = KVM_STR("uploads=")};
    TRY(kvm_file_remove(u->c->note, err));
    TRY(kvm_s3__send(u->s, &call, &reply, &scratch, err));
    TRY(kvm_s3__check(u->s, u->key, &reply, err));
    const kvm_str id = kvm_s3__text(reply.body, "UploadId", &scratch);
    if (!id.at || id.len == 0 || id.len > 2048)
        return kvm_fail(err, KVM_IO, "%.*s: began an upload and gave it no name",
                        KVM_STR_ARG(u->s->base));
    u->id = kvm_str_copy(u->keep, id);
    if (!u->id.at) return kvm_nomem(err, u->keep);
    TRY(kvm_log_open(&u->note, u->keep, u->c->note, err));
    return add_line(u,
                    json_pack("{s:s%, s:I}", "upload", u->id.at, (size_t)u->id.len,
                              "part_bytes", (json_int_t)u->part_bytes),
                    err);
}

static kvm_status hash_part(const upload *u, int64_t at, int64_t bytes, char sha[65],
                            kvm_arena scratch, kvm_err *err)
{
    kvm_sha *h;
    char *buffer = kvm_new_raw(&scratch, char, CHUNK);
    if (!buffer) return kvm_nomem(err, &scratch);
    TRY(kvm_sha_begin(&h, err));
    kvm_status s = KVM_OK;
    while (bytes > 0 && !s) {
        const size_t n = bytes < CHUNK ? (size_t)bytes : CHUNK;
        s = kvm_file_read_at(u->c->fd, KVM_STR("the file to send"), buffer, n,
                             (off_t)at, err);
        if (!s) s = kvm_sha_add(h, buffer, n, err);
        at += (int64_t)n;
        bytes -= (int64_t)n;
    }
    if (!s) return kvm_sha_end(h, sha, err);
    kvm_sha_drop(h);
    return s;
}

/* KVM_NOTFOUND: the upload was aborted meanwhile */
static kvm_status send_part(upload *u, ptrdiff_t i, kvm_err *err)
{
    char sha[65];
    kvm_http_reply reply;
    kvm_arena scratch = u->scratch;
    const int64_t at = i * u->part_bytes, left = u->c->bytes - at;
    const kvm_str id = kvm_http_encode(&scratch, u->id, false);
    kvm_s3_call call = {.method = KVM_HTTP_PUT,
                        .key = u->key,
                        .fd = u->c->fd,
                        .at = at,
                        .bytes = left < u->part_bytes ? left : u->part_bytes,
                        .sha = sha};
    call.query =
        kvm_str_fmt(&scratch, "partNumber=%td&uploadId=%.*s", i + 1, KVM_STR_ARG(id));
    if (!id.at || !call.query.at) return kvm_nomem(err, &scratch);
    TRY(hash_part(u, at, call.bytes, sha, scratch, err));
    TRY(kvm_s3__send(u->s, &call, &reply, &scratch, err));
    TRY(kvm_s3__check(u->s, u->key, &reply, err));
    const kvm_str got = kvm_http_field(&reply, "etag");
    if (!is_tag(got))
        return kvm_fail(err, KVM_IO, "%.*s: took a part and gave it no tag",
                        KVM_STR_ARG(u->s->base));
    memcpy(u->tags[i].text, got.at, (size_t)got.len);
    u->tags[i].text[got.len] = 0;
    return KVM_OK;
}

static kvm_status send_parts(upload *u, kvm_err *err)
{
    if (!u->note) TRY(kvm_log_open(&u->note, u->keep, u->c->note, err));
    for (ptrdiff_t i = 0; i < u->parts; i++) {
        if (u->tags[i].text[0]) continue;
        TRY(send_part(u, i, err));
        TRY(add_line(u,
                     json_pack("{s:I, s:s}", "part", (json_int_t)(i + 1), "tag",
                               u->tags[i].text),
                     err));
    }
    return KVM_OK;
}

static kvm_status is_there(upload *u, bool *there, kvm_err *err)
{
    int64_t bytes;
    TRY(kvm_s3_head(u->s, u->key, &bytes, err));
    *there = bytes == u->c->bytes;
    return KVM_OK;
}

/* The answer may be a failure under the status 200. KVM_NOTFOUND: the upload is not, or
 * no longer, there. */
static kvm_status complete(upload *u, kvm_err *err)
{
    kvm_http_reply reply;
    kvm_arena scratch = u->scratch;
    kvm_text body = {0};
    const kvm_str id = kvm_http_encode(&scratch, u->id, false);
    const kvm_str query = kvm_str_fmt(&scratch, "uploadId=%.*s", KVM_STR_ARG(id));
    kvm_text_add(&body, KVM_STR("<CompleteMultipartUpload>"));
    for (ptrdiff_t i = 0; i < u->parts; i++)
        kvm_text_addf(&body, "<Part><PartNumber>%td</PartNumber><ETag>%s</ETag></Part>",
                      i + 1, u->tags[i].text);
    kvm_text_add(&body, KVM_STR("</CompleteMultipartUpload>"));
    const kvm_s3_call call = {.method = KVM_HTTP_POST,
                              .key = u->key,
                              .query = query,
                              .if_none = !u->c->replace,
                              .body = kvm_text_str(&body)};
    kvm_status s = id.at && query.at && !body.failed
                       ? kvm_s3__send(u->s, &call, &reply, &scratch, err)
                       : kvm_nomem(err, &scratch);
    kvm_text_free(&body);
    TRY(s);
    if (call.if_none && reply.status == 412) /* another was first */
        return kvm_s3_abort(u->s, u->key, u->id, err);
    if (reply.status == 501 && !u->s->unconditional) {
        u->s->unconditional = true;
        return complete(u, err);
    }
    TRY(kvm_s3__check(u->s, u->key, &reply, err));
    if (kvm_str_find(reply.body, KVM_STR("<Error>")) < 0) return KVM_OK;
    reply.status = 500;
    return kvm_s3__check(u->s, u->key, &reply, err);
}

/* One attempt with the upload that the note knows, or a new one. *gone: it has been
 * aborted, and a new one is to be begun. */
static kvm_status attempt(upload *u, bool *gone, kvm_err *err)
{
    kvm_err why = {0};
    bool there = false;
    *gone = false;
    if (!u->id.at) TRY(begin(u, err));
    kvm_status s = send_parts(u, &why);
    if (!s) s = complete(u, &why);
    if (s == KVM_NOTFOUND) { /* completed, perhaps, and the answer was lost */
        TRY(is_there(u, &there, err));
        if (!there) *gone = true;
        return forget(u, err);
    }
    if (!s) return forget(u, err);
    if (err && !err->code) *err = why;
    return s;
}

kvm_status kvm_s3__put_parts(kvm_s3 *s, kvm_str key, const kvm_s3_content *c,
                             kvm_err *err)
{
    kvm_arena keep;
    bool gone = true;
    upload u = {.s = s, .key = key, .c = c, .part_bytes = s->part_bytes, .keep = &keep};
    while (c->bytes / u.part_bytes >= MOST_PARTS) u.part_bytes *= 2;
    u.parts = (ptrdiff_t)((c->bytes + u.part_bytes - 1) / u.part_bytes);
    TRY(kvm_arena_init(&keep, KVM_S3_ARENA, err));
    kvm_status r = kvm_arena_init(&u.scratch, KVM_S3_ARENA, err);
    u.tags = kvm_new(&keep, tag, u.parts);
    if (!r && !u.tags) r = kvm_nomem(err, &keep);
    if (!r) read_note(&u);
    for (int tries = 0; !r && gone && tries < 3; tries++) r = attempt(&u, &gone, err);
    if (!r && gone)
        r = kvm_fail(err, KVM_IO, "%.*s: aborts every upload of %.*s",
                     KVM_STR_ARG(s->base), KVM_STR_ARG(key));
    kvm_arena_free(&u.scratch);
    kvm_arena_free(&keep);
    return r;
}
