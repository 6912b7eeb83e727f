#include "cli/hub.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum {
    REDIRECTS = 5,
    LIST_BYTES = 32 << 20,
    MOST_FILES = 20000,
    NAME_BYTES = 1024,
    PART_BYTES = 200 /* of one folder or file; ours get a suffix besides */
};

/* ---- the hub ---- */

/* "NAME" or "ORG/NAME" of letters, digits, '-', '_' and '.' */
static bool is_repo(kvm_str repo)
{
    int slashes = 0;
    if (repo.len > NAME_BYTES || !kvm_hub_name_is_safe(repo)) return false;
    for (ptrdiff_t i = 0; i < repo.len; i++) {
        const char c = repo.at[i];
        slashes += c == '/';
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c >= '0' && c <= '9') || strchr("-_./", c)))
            return false;
    }
    return slashes < 2;
}

static kvm_str endpoint_of(void)
{
    static const char *const names[] = {"KVMILL_HUB", "HF_ENDPOINT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        kvm_str v = kvm_str_of(getenv(names[i]));
        while (kvm_str_ends(v, KVM_STR("/"))) v.len--;
        if (v.len > 0) return v;
    }
    return KVM_STR("https://huggingface.co");
}

kvm_status kvm_hub_open(kvm_hub *hub, kvm_arena *keep, kvm_str repo, kvm_err *err)
{
    const kvm_str token = kvm_str_trim(kvm_str_of(getenv("HF_TOKEN")));
    *hub = (kvm_hub){.endpoint = endpoint_of(), .repo = repo};
    if (!is_repo(repo))
        return kvm_fail(err, KVM_USAGE,
                        "\"%s\" is no repository: ORG/NAME, as in Qwen/Qwen3-0.6B",
                        kvm_quote(repo).at);
    if (token.len == 0) return KVM_OK;
    if (!kvm_http_keeps_secrets(hub->endpoint))
        return kvm_fail(
            err, KVM_USAGE,
            "HF_TOKEN would travel unencrypted to %s: use https, or unset it",
            kvm_http_shown(hub->endpoint).at);
    const kvm_str value = kvm_str_fmt(keep, "Bearer %.*s", KVM_STR_ARG(token));
    if (!value.at) return kvm_nomem(err, keep);
    hub->headers[hub->header_count++] = (kvm_http_header){"Authorization", value};
    return KVM_OK;
}

/* A hub says 401 of what does not exist, too: names of private models are private. */
static kvm_status explain(const kvm_hub *hub, kvm_str revision, kvm_status s,
                          const kvm_err *why, kvm_err *err)
{
    const char *token =
        hub->header_count ? "HF_TOKEN must have access to" : "set HF_TOKEN for";
    if (s == KVM_ENVIRONMENT || s == KVM_NOTFOUND)
        return kvm_fail(
            err, s,
            "%.*s, revision %.*s: not there, or not for us: check its name; "
            "%s a private or gated one (%s)",
            KVM_STR_ARG(hub->repo), KVM_STR_ARG(revision), token, why->msg);
    if (err && !err->code) *err = *why;
    return s;
}

/* ---- what there is ---- */

bool kvm_hub_name_is_safe(kvm_str name)
{
    kvm_str rest = name, part;
    if (name.len <= 0 || name.len > NAME_BYTES || kvm_str_ends(name, KVM_STR("/")) ||
        kvm_str_ends(name, KVM_STR(".part")))
        return false;
    for (ptrdiff_t i = 0; i < name.len; i++)
        if ((unsigned char)name.at[i] < ' ' || name.at[i] == 0x7F || name.at[i] == '\\')
            return false;
    while (rest.len > 0) {
        kvm_str_cut(rest, '/', &part, &rest);
        if (part.len == 0 || part.len > PART_BYTES || kvm_str_eq(part, KVM_STR(".")) ||
            kvm_str_eq(part, KVM_STR("..")))
            return false;
    }
    return true;
}

static kvm_str hash_of(kvm_str s, kvm_arena *keep)
{
    const bool known = s.len == 64 || s.len == 40;
    for (ptrdiff_t i = 0; i < s.len && known; i++)
        if (!s.at[i] || !strchr("0123456789abcdef", s.at[i])) return KVM_STR("");
    return known ? kvm_str_copy(keep, s) : KVM_STR("");
}

/* {"rfilename": "x", "size": 3, "blobId": 40 digits, "lfs": {"sha256": 64 digits}} */
static kvm_status read_file(kvm_hub_file *f, kvm_jat row, kvm_arena *keep, kvm_err *err)
{
    kvm_str name, blob, sha;
    const kvm_jat lfs = kvm_json_get(row, keep, "lfs");
    TRY(kvm_json_str(kvm_json_get(row, keep, "rfilename"), &name, err));
    TRY(kvm_json_i64_or(kvm_json_get(row, keep, "size"), -1, &f->bytes, err));
    TRY(kvm_json_str_or(kvm_json_get(row, keep, "blobId"), KVM_STR(""), &blob, err));
    TRY(kvm_json_str_or(kvm_json_get(lfs, keep, "sha256"), KVM_STR(""), &sha, err));
    f->name = kvm_str_copy(keep, name);
    f->hash = hash_of(kvm_json_has(lfs) ? sha : blob, keep);
    if (!f->name.at || !f->hash.at) return kvm_nomem(err, keep);
    if (f->bytes < -1) return kvm_json_fail(err, KVM_FORMAT, row, "a size below zero");
    return KVM_OK;
}

kvm_status kvm_hub_read(kvm_hub_list *list, kvm_str body, kvm_str shown,
                        kvm_str revision, kvm_arena *keep, kvm_err *err)
{
    kvm_jat root;
    kvm_str commit;
    TRY(kvm_json_parse(&root, keep, body, shown, err));
    const kvm_jat rows = kvm_json_get(root, keep, "siblings");
    TRY(kvm_json_array(rows, &list->count, err));
    if (list->count > MOST_FILES)
        return kvm_json_fail(err, KVM_FORMAT, rows, "%td files; at most %d",
                             list->count, MOST_FILES);
    TRY(kvm_json_str_or(kvm_json_get(root, keep, "sha"), revision, &commit, err));
    list->commit = kvm_str_copy(keep, commit);
    list->files = kvm_new(keep, kvm_hub_file, list->count + 1);
    if (!list->commit.at || !list->files) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < list->count; i++)
        TRY(read_file(&list->files[i], kvm_json_item(rows, keep, i), keep, err));
    return KVM_OK;
}

kvm_status kvm_hub_look(kvm_hub_list *list, const kvm_hub *hub, kvm_str revision,
                        kvm_http *http, kvm_arena *keep, kvm_err *err)
{
    kvm_http_reply reply;
    kvm_err why = {0};
    const kvm_str encoded = kvm_http_encode(keep, revision, false);
    const kvm_str url = kvm_str_fmt(
        keep, "%.*s/api/models/%.*s/revision/%.*s?blobs=true",
        KVM_STR_ARG(hub->endpoint), KVM_STR_ARG(hub->repo), KVM_STR_ARG(encoded));
    if (!encoded.at || !url.at) return kvm_nomem(err, keep);
    const kvm_http_request r = {.url = url,
                                .headers = hub->headers,
                                .header_count = hub->header_count,
                                .redirects = REDIRECTS,
                                .most_bytes = LIST_BYTES};
    TRY(kvm_http_send(http, &r, &reply, keep, err));
    kvm_status s = kvm_http_check(&reply, url, &why);
    if (s) return explain(hub, revision, s, &why, err);
    const kvm_str shown = kvm_str_copy(keep, kvm_str_of(kvm_http_shown(url).at));
    if (!shown.at) return kvm_nomem(err, keep);
    s = kvm_hub_read(list, reply.body, shown, revision, keep, &why);
    if (s == KVM_FORMAT)
        return kvm_fail(err, s, "%s: is this a hub? (KVMILL_HUB, HF_ENDPOINT)",
                        why.msg);
    if (s && err) *err = why;
    return s;
}

/* ---- one file ---- */

kvm_http_request kvm_hub_request(const kvm_hub *hub, kvm_str commit, kvm_str name,
                                 kvm_arena *keep)
{
    const kvm_str c = kvm_http_encode(keep, commit, false),
                  n = kvm_http_encode(keep, name, true);
    kvm_http_request r = {.headers = hub->headers,
                          .header_count = hub->header_count,
                          .redirects = REDIRECTS};
    if (c.at && n.at)
        r.url =
            kvm_str_fmt(keep, "%.*s/%.*s/resolve/%.*s/%.*s", KVM_STR_ARG(hub->endpoint),
                        KVM_STR_ARG(hub->repo), KVM_STR_ARG(c), KVM_STR_ARG(n));
    return r;
}

/* "\"0123…\"" */
static kvm_str unquote(kvm_str tag)
{
    return tag.len > 1 && tag.at[0] == '"' ? kvm_str_slice(tag, 1, tag.len - 1) : tag;
}

/* The hub's own answer has its fields, not that of where it redirects to. */
kvm_status kvm_hub_ask(kvm_hub_file *file, const kvm_hub *hub, kvm_str commit,
                       kvm_http *http, kvm_arena *keep, kvm_err *err)
{
    kvm_http_reply reply;
    kvm_http_request r = kvm_hub_request(hub, commit, file->name, keep);
    if (!r.url.at) return kvm_nomem(err, keep);
    r.method = KVM_HTTP_HEAD;
    r.redirects = 0;
    TRY(kvm_http_send(http, &r, &reply, keep, err));
    const bool moves = reply.status >= 300 && reply.status < 400;
    if (!moves) TRY(kvm_http_check(&reply, r.url, err));
    kvm_str tag = kvm_http_field(&reply, "x-linked-etag"),
            size = kvm_http_field(&reply, "x-linked-size");
    if (!tag.at) tag = kvm_http_field(&reply, "etag");
    if (!size.at && !moves) size = kvm_http_field(&reply, "content-length");
    int64_t bytes;
    if (file->bytes < 0 && size.at && kvm_str_to_i64(size, &bytes) && bytes >= 0)
        file->bytes = bytes;
    if (file->hash.len == 0) file->hash = hash_of(unquote(tag), keep);
    return file->hash.at ? KVM_OK : kvm_nomem(err, keep);
}
