#include "models/tokenizer.h"

#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/hash.h"
#include "models/tokenizer_internal.h"

/* address space for what reading needs: paths of JSON, lists of a GGUF, merges.txt */
static const size_t TMP_BYTES = (size_t)128 << 20, TMP_PARSE_BYTES = (size_t)32 << 20;

/* --- building, shared by the readers --- */

kvm_status kvm_tokenizer__begin_added(kvm_tokenizer *t, kvm_arena *keep, ptrdiff_t n,
                                      kvm_err *err)
{
    t->added = kvm_new(keep, kvm_added, n);
    t->added_at = kvm_new_raw(keep, int32_t, t->bpe.limit);
    if (!t->added || !t->added_at) return kvm_nomem(err, keep);
    memset(t->added_at, 0xFF, sizeof(int32_t) * (size_t)t->bpe.limit);
    t->size = t->bpe.size;
    return KVM_OK;
}

kvm_status kvm_tokenizer__add(kvm_tokenizer *t, kvm_arena *keep, const kvm_added *a,
                              int64_t id, kvm_arena scratch, kvm_err *err)
{
    const long long shown = id;
    const kvm_quoted text = kvm_quote(a->content);
    if (a->content.len == 0)
        return kvm_fail(err, KVM_FORMAT, "added token %lld has no text", shown);
    if (id < 0 || id >= t->bpe.limit)
        return kvm_fail(err, KVM_FORMAT,
                        "added token \"%s\" has id %lld, which is not in 0 .. %td",
                        text.at, shown, t->bpe.limit - 1);
    if (t->added_at[id] >= 0)
        return kvm_fail(err, KVM_FORMAT, "two added tokens have id %lld", shown);
    /* tiktoken keeps special tokens apart: one may spell a token of the vocabulary */
    const int32_t known =
        t->bpe.by_rank ? -1 : kvm_bpe_find(&t->bpe, a->content, scratch);
    if (known >= 0 && known != id)
        return kvm_fail(err, KVM_FORMAT,
                        "added token \"%s\" has id %lld, but %d in the vocabulary",
                        text.at, shown, (int)known);
    if (known < 0 && t->bpe.piece[id].at)
        return kvm_fail(err, KVM_FORMAT,
                        "added token \"%s\" has id %lld, which the vocabulary gives to "
                        "another text",
                        text.at, shown);
    kvm_added *to = &t->added[t->n_added];
    *to = *a;
    to->id = (int32_t)id;
    to->content = kvm_str_copy(keep, a->content);
    if (!to->content.at) return kvm_nomem(err, keep);
    t->added_at[id] = (int32_t)t->n_added++;
    if (id >= t->size) t->size = (ptrdiff_t)id + 1;
    return KVM_OK;
}

static kvm_status describe(kvm_step *step, kvm_arena *keep, kvm_str pattern,
                           bool literal, kvm_err *err)
{
    switch (step->kind) {
    case KVM_STEP_MATCHER:
        step->source = kvm_str_fmt(keep, "split %.*s", KVM_STR_ARG(pattern));
        break;
    case KVM_STEP_REGEX:
        step->source =
            kvm_str_fmt(keep, "split %s%s%s%.*s", literal ? "text " : "",
                        step->drop_match ? "without matches " : "",
                        step->drop_rest ? "only matches " : "", KVM_STR_ARG(pattern));
        break;
    case KVM_STEP_DIGITS:
        step->source = step->each ? KVM_STR("each digit") : KVM_STR("digits");
        break;
    case KVM_STEP_PREFIX:
        step->source = KVM_STR("space in front");
        break;
    }
    return step->source.at ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_tokenizer__step(kvm_tokenizer *t, kvm_arena *keep, kvm_step step,
                               kvm_str pattern, bool literal, kvm_arena scratch,
                               kvm_err *err)
{
    if (t->pre.n == KVM_STEPS_MAX)
        return kvm_fail(err, KVM_UNSUPPORTED, "more than %d pre-tokenizers",
                        KVM_STEPS_MAX);
    if (step.kind == KVM_STEP_REGEX) {
        const kvm_pattern *known =
            literal || step.drop_match ? NULL : kvm_pattern_by_text(pattern);
        if (known) { /* they match everything, so that there is no rest to drop */
            step = (kvm_step){.kind = KVM_STEP_MATCHER, .match = known->match};
        } else {
            TRY(kvm_regex_new(&step.re, keep, pattern, literal, scratch, err));
        }
    }
    TRY(describe(&step, keep, pattern, literal, err));
    t->pre.step[t->pre.n++] = step;
    return KVM_OK;
}

int32_t kvm_tokenizer__id(const kvm_tokenizer *t, kvm_str text, kvm_arena scratch)
{
    const int32_t id = kvm_tokenizer_special(t, text);
    return id >= 0 ? id : kvm_bpe_find(&t->bpe, text, scratch);
}

/* --- hash --- */

static kvm_status hash_number(kvm_sha *h, int64_t n, kvm_err *err)
{
    return kvm_sha_add(h, &n, sizeof n, err);
}

static kvm_status hash_text(kvm_sha *h, kvm_str s, kvm_err *err)
{
    TRY(hash_number(h, s.len, err));
    return kvm_sha_add(h, s.at, (size_t)s.len, err);
}

static kvm_status hash_ids(kvm_sha *h, const int32_t *ids, ptrdiff_t n, kvm_err *err)
{
    TRY(hash_number(h, n, err));
    for (ptrdiff_t i = 0; i < n; i++) TRY(hash_number(h, ids[i], err));
    return KVM_OK;
}

static int64_t flags_of(const kvm_added *a)
{
    return a->special | a->lstrip << 1 | a->rstrip << 2 | a->single_word << 3 |
           a->normalized << 4;
}

static kvm_status hash_all(kvm_sha *h, const kvm_tokenizer *t, kvm_err *err)
{
    TRY(hash_text(h, KVM_STR("kvmill tokenizer 1"), err));
    for (int32_t id = 0; id < t->size; id++) {
        const kvm_str piece = kvm_tokenizer_piece(t, id);
        const int32_t added = t->added_at[id];
        TRY(hash_number(h, piece.at ? 1 : 0, err));
        TRY(hash_number(h, added < 0 ? -1 : flags_of(&t->added[added]), err));
        TRY(hash_text(h, piece.at ? piece : KVM_STR(""), err));
    }
    TRY(hash_number(h, t->bpe.n_merges, err));
    for (ptrdiff_t i = 0; i < t->bpe.n_merges; i++)
        TRY(hash_ids(h, &t->bpe.merges[i].left, 2, err));
    TRY(hash_number(h,
                    t->bpe.ignore_merges | t->bpe.fuse_unk << 1 | t->nfc << 2 |
                        t->bpe.by_rank << 3 | t->sliced << 4,
                    err));
    TRY(hash_number(h, t->bpe.unk, err));
    TRY(hash_number(h, t->pre.n, err));
    for (int i = 0; i < t->pre.n; i++) TRY(hash_text(h, t->pre.step[i].source, err));
    TRY(hash_ids(h, t->prefix, t->n_prefix, err));
    return hash_ids(h, t->suffix, t->n_suffix, err);
}

static kvm_status hash(kvm_tokenizer *t, kvm_err *err)
{
    kvm_sha *h;
    TRY(kvm_sha_begin(&h, err));
    const kvm_status s = hash_all(h, t, err);
    if (s) {
        kvm_sha_drop(h);
        return s;
    }
    return kvm_sha_end(h, t->hash, err);
}

/* --- opening --- */

static kvm_status begin(kvm_tokenizer **out, kvm_arena *keep, kvm_str file,
                        kvm_err *err)
{
    kvm_tokenizer *t = kvm_new(keep, kvm_tokenizer, 1);
    if (!t) return kvm_nomem(err, keep);
    t->bos = t->eos = -1;
    t->file = kvm_str_copy(keep, file);
    if (!t->file.at) return kvm_nomem(err, keep);
    TRY(kvm_unicode_classes(&t->pre.classes, keep, err));
    *out = t;
    return KVM_OK;
}

/* What remains when a reader has filled its part. */
static kvm_status end(kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    TRY(kvm_tokenizer__index_added(t, keep, err));
    return hash(t, err);
}

static ptrdiff_t name_at(kvm_str path)
{
    ptrdiff_t n = path.len;
    while (n > 0 && path.at[n - 1] != '/') n--;
    return n;
}

static kvm_str folder_of(kvm_str path)
{
    const ptrdiff_t n = name_at(path);
    return n > 0 ? kvm_str_slice(path, 0, n) : KVM_STR(".");
}

static bool has(kvm_str folder, const char *name, kvm_arena tmp)
{
    const kvm_str path = kvm_path_join(&tmp, folder, kvm_str_of(name));
    return path.at && kvm_path_exists(path);
}

static kvm_status no_tokenizer(kvm_str folder, kvm_arena tmp, kvm_err *err)
{
    if (has(folder, "tokenizer.model", tmp))
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%.*s: only tokenizer.model is there, SentencePiece mostly; "
                        "save the tokenizer as tokenizer.json with a recent "
                        "transformers",
                        KVM_STR_ARG(folder));
    return kvm_fail(err, KVM_NOTFOUND,
                    "%.*s: no tokenizer here (looked for tokenizer.json, vocab.json "
                    "with merges.txt, tiktoken.model, tekken.json)",
                    KVM_STR_ARG(folder));
}

static kvm_status read_root(kvm_tokenizer *t, kvm_arena *keep, kvm_jat root,
                            kvm_arena *tmp, kvm_err *err)
{
    return kvm_tokenizer__is_tekken(root)
               ? kvm_tokenizer__read_tekken(t, keep, root, tmp, err)
               : kvm_tokenizer__read_json(t, keep, root, tmp, err);
}

static kvm_status from_json(kvm_tokenizer *t, kvm_arena *keep, kvm_str path,
                            kvm_arena *tmp, kvm_err *err)
{
    kvm_jat root;
    if (!path.at) return kvm_nomem(err, tmp);
    const kvm_str name = kvm_str_slice(path, name_at(path), path.len);
    if (kvm_str_find(name, KVM_STR("tekken")) >= 0)
        TRY(kvm_tokenizer__tekken_root(&root, tmp, path, err));
    else
        TRY(kvm_json_read(&root, tmp, path, err));
    return read_root(t, keep, root, tmp, err);
}

static kvm_status read_folder(kvm_tokenizer *t, kvm_arena *keep, kvm_str folder,
                              kvm_arena *tmp, kvm_err *err)
{
    const kvm_str json = kvm_path_join(tmp, folder, KVM_STR("tokenizer.json"));
    const kvm_str tekken = kvm_path_join(tmp, folder, KVM_STR("tekken.json"));
    if (has(folder, "tokenizer.json", *tmp))
        TRY(from_json(t, keep, json, tmp, err));
    else if (has(folder, "vocab.json", *tmp) && has(folder, "merges.txt", *tmp))
        TRY(kvm_tokenizer__from_files(t, keep, folder, tmp, err));
    else if (has(folder, "tiktoken.model", *tmp))
        TRY(kvm_tokenizer__from_tiktoken(t, keep, folder, tmp, err));
    else if (has(folder, "tekken.json", *tmp))
        TRY(from_json(t, keep, tekken, tmp, err));
    else
        return no_tokenizer(folder, *tmp, err);
    return kvm_tokenizer__config(t, keep, folder, tmp, err);
}

static kvm_status read_path(kvm_tokenizer *t, kvm_arena *keep, kvm_str path,
                            kvm_arena *tmp, kvm_err *err)
{
    if (kvm_path_is_dir(path)) return read_folder(t, keep, path, tmp, err);
    if (!kvm_path_exists(path))
        return kvm_fail(err, KVM_NOTFOUND, "%.*s: no such file or folder",
                        KVM_STR_ARG(path));
    if (kvm_str_ends(path, KVM_STR(".gguf")))
        return kvm_tokenizer__from_gguf(t, keep, path, tmp, err);
    if (kvm_str_ends(path, KVM_STR(".json")))
        TRY(from_json(t, keep, path, tmp, err));
    else if (kvm_str_ends(path, KVM_STR("tiktoken.model")))
        TRY(kvm_tokenizer__from_tiktoken(t, keep, folder_of(path), tmp, err));
    else
        return kvm_fail(err, KVM_USAGE,
                        "%.*s: not a checkpoint folder, a tokenizer.json, a "
                        "tiktoken.model, a tekken.json or a .gguf file",
                        KVM_STR_ARG(path));
    return kvm_tokenizer__config(t, keep, folder_of(path), tmp, err);
}

kvm_status kvm_tokenizer_open(kvm_tokenizer **out, kvm_arena *keep, kvm_str path,
                              kvm_err *err)
{
    kvm_tokenizer *t = NULL;
    kvm_arena tmp;
    TRY(begin(&t, keep, path, err));
    TRY(kvm_arena_init(&tmp, TMP_BYTES, err));
    kvm_status s = read_path(t, keep, path, &tmp, err);
    if (!s) s = end(t, keep, err);
    kvm_arena_free(&tmp);
    if (!s) *out = t;
    return s;
}

kvm_status kvm_tokenizer__parse_json(kvm_tokenizer **out, kvm_arena *keep, kvm_str text,
                                     kvm_str name, kvm_err *err)
{
    kvm_tokenizer *t = NULL;
    kvm_arena tmp;
    kvm_jat root;
    TRY(begin(&t, keep, name, err));
    TRY(kvm_arena_init(&tmp, TMP_PARSE_BYTES, err));
    kvm_status s = kvm_json_parse(&root, &tmp, text, name, err);
    if (!s) s = read_root(t, keep, root, &tmp, err);
    if (!s) s = end(t, keep, err);
    kvm_arena_free(&tmp);
    if (!s) *out = t;
    return s;
}

kvm_status kvm_tokenizer__parse_tiktoken(kvm_tokenizer **out, kvm_arena *keep,
                                         kvm_str text, kvm_str config, kvm_str name,
                                         kvm_err *err)
{
    kvm_tokenizer *t = NULL;
    kvm_arena tmp;
    kvm_jat root;
    TRY(begin(&t, keep, name, err));
    TRY(kvm_arena_init(&tmp, TMP_PARSE_BYTES, err));
    kvm_status s =
        kvm_json_parse(&root, &tmp, config, KVM_STR("tokenizer_config.json"), err);
    if (!s)
        s = kvm_tokenizer__read_tiktoken(t, keep, text, t->file.at, root, &tmp, err);
    if (!s) s = end(t, keep, err);
    kvm_arena_free(&tmp);
    if (!s) *out = t;
    return s;
}

/* --- looking up --- */

ptrdiff_t kvm_tokenizer_size(const kvm_tokenizer *t)
{
    return t->size;
}
int32_t kvm_tokenizer_bos(const kvm_tokenizer *t)
{
    return t->bos;
}
int32_t kvm_tokenizer_eos(const kvm_tokenizer *t)
{
    return t->eos;
}
const char *kvm_tokenizer_hash(const kvm_tokenizer *t)
{
    return t->hash;
}
kvm_str kvm_tokenizer_chat_template(const kvm_tokenizer *t)
{
    return t->chat_template;
}

static const kvm_added *added(const kvm_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->size || t->added_at[id] < 0) return NULL;
    return &t->added[t->added_at[id]];
}

kvm_str kvm_tokenizer_piece(const kvm_tokenizer *t, int32_t id)
{
    const kvm_added *a = added(t, id);
    if (a) return a->content;
    return id >= 0 && id < t->bpe.size ? t->bpe.piece[id] : (kvm_str){0};
}

int32_t kvm_tokenizer_special(const kvm_tokenizer *t, kvm_str content)
{
    for (ptrdiff_t i = 0; i < t->n_added; i++)
        if (kvm_str_eq(t->added[i].content, content)) return t->added[i].id;
    return -1;
}

bool kvm_tokenizer_is_special(const kvm_tokenizer *t, int32_t id)
{
    const kvm_added *a = added(t, id);
    return a && a->special;
}

bool kvm_tokenizer_stops(const kvm_tokenizer *t, int32_t id)
{
    for (ptrdiff_t i = 0; i < t->n_stops; i++)
        if (t->stops[i] == id) return true;
    return false;
}

kvm_status kvm_decode(const kvm_tokenizer *t, const int32_t *ids, ptrdiff_t n,
                      bool skip_specials, kvm_arena *keep, kvm_str *out, kvm_err *err)
{
    ptrdiff_t len = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_str piece = kvm_tokenizer_piece(t, ids[i]);
        if (!piece.at)
            return kvm_fail(err, KVM_RANGE,
                            "token id %d is not in the vocabulary of %td", (int)ids[i],
                            t->size);
        if (skip_specials && kvm_tokenizer_is_special(t, ids[i])) continue;
        if (!kvm_add(len, piece.len, &len))
            return kvm_fail(err, KVM_RANGE, "the text of %td tokens is too long", n);
    }
    char *text = kvm_new(keep, char, len + 1);
    if (!text) return kvm_nomem(err, keep);
    len = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (skip_specials && kvm_tokenizer_is_special(t, ids[i])) continue;
        const kvm_str piece = kvm_tokenizer_piece(t, ids[i]);
        if (piece.len > 0) memcpy(text + len, piece.at, (size_t)piece.len);
        len += piece.len;
    }
    *out = (kvm_str){text, len};
    return KVM_OK;
}

/* --- comparing --- */

static kvm_status differ_by(const kvm_tokenizer *a, const kvm_tokenizer *b,
                            kvm_err *err, const char *what, ptrdiff_t at, kvm_str x,
                            kvm_str y)
{
    return kvm_fail(err, KVM_MISMATCH,
                    "the tokenizers differ: %s %td is \"%s\" in %.*s and \"%s\" in "
                    "%.*s",
                    what, at, kvm_quote(x).at, KVM_STR_ARG(a->file), kvm_quote(y).at,
                    KVM_STR_ARG(b->file));
}

static kvm_status differ_count(const kvm_tokenizer *a, const kvm_tokenizer *b,
                               kvm_err *err, const char *what, ptrdiff_t x, ptrdiff_t y)
{
    if (x == y) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "the tokenizers differ: %s is %td in %.*s and %td in %.*s", what, x,
                    KVM_STR_ARG(a->file), y, KVM_STR_ARG(b->file));
}

static kvm_status differ_ids(const kvm_tokenizer *a, const kvm_tokenizer *b,
                             kvm_err *err)
{
    for (int32_t id = 0; id < a->size && id < b->size; id++) {
        const kvm_str x = kvm_tokenizer_piece(a, id), y = kvm_tokenizer_piece(b, id);
        const kvm_added *p = added(a, id), *q = added(b, id);
        if (!!x.at != !!y.at || !kvm_str_eq(x, y))
            return differ_by(a, b, err, "token", id, x.at ? x : KVM_STR("(none)"),
                             y.at ? y : KVM_STR("(none)"));
        if (!p != !q || (p && flags_of(p) != flags_of(q)))
            return kvm_fail(err, KVM_MISMATCH,
                            "the tokenizers differ: token %d \"%s\" is added with "
                            "other flags in %.*s than in %.*s",
                            (int)id, kvm_quote(x).at, KVM_STR_ARG(a->file),
                            KVM_STR_ARG(b->file));
    }
    return differ_count(a, b, err, "the number of ids", a->size, b->size);
}

static kvm_status differ_merges(const kvm_tokenizer *a, const kvm_tokenizer *b,
                                kvm_err *err)
{
    for (ptrdiff_t i = 0; i < a->bpe.n_merges && i < b->bpe.n_merges; i++) {
        const kvm_merge x = a->bpe.merges[i], y = b->bpe.merges[i];
        if (x.left != y.left || x.right != y.right)
            return differ_by(a, b, err, "merge", i + 1, kvm_tokenizer_piece(a, x.made),
                             kvm_tokenizer_piece(b, y.made));
    }
    return differ_count(a, b, err, "the number of merges", a->bpe.n_merges,
                        b->bpe.n_merges);
}

kvm_status kvm_tokenizer_differ(const kvm_tokenizer *a, const kvm_tokenizer *b,
                                kvm_err *err)
{
    if (strcmp(a->hash, b->hash) == 0) return KVM_OK;
    TRY(differ_ids(a, b, err));
    TRY(differ_merges(a, b, err));
    for (int i = 0; i < a->pre.n && i < b->pre.n; i++)
        if (!kvm_str_eq(a->pre.step[i].source, b->pre.step[i].source))
            return differ_by(a, b, err, "pre-tokenizer", i + 1, a->pre.step[i].source,
                             b->pre.step[i].source);
    TRY(differ_count(a, b, err, "the number of pre-tokenizers", a->pre.n, b->pre.n));
    TRY(differ_count(a, b, err, "NFC", a->nfc, b->nfc));
    TRY(differ_count(a, b, err, "ignore_merges", a->bpe.ignore_merges,
                     b->bpe.ignore_merges));
    TRY(differ_count(a, b, err, "merging by rank", a->bpe.by_rank, b->bpe.by_rank));
    TRY(differ_count(a, b, err, "cutting long texts", a->sliced, b->sliced));
    TRY(differ_count(a, b, err, "unk_token", a->bpe.unk, b->bpe.unk));
    return kvm_fail(
        err, KVM_MISMATCH,
        "the tokenizers differ in what they put around a text: %.*s and %.*s",
        KVM_STR_ARG(a->file), KVM_STR_ARG(b->file));
}
