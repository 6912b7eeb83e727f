/* tekken.json of Mistral's checkpoints: tokens by rank as in tiktoken.model, behind the
 * ids of the special tokens, and the pattern beside them. The file lists more tokens
 * than the model has; the first default_vocab_size - default_num_special_tokens
 * count. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "models/tokenizer_internal.h"

static const size_t FILE_BYTES = (size_t)128 << 20;
enum { SPECIALS_MAX = 1 << 16 };

/* the special tokens of files that list none (versions up to v7) */
static const char *const unlisted[] = {"<unk>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "[AVAILABLE_TOOLS]",
                                       "[/AVAILABLE_TOOLS]",
                                       "[TOOL_RESULTS]",
                                       "[/TOOL_RESULTS]",
                                       "[TOOL_CALLS]",
                                       "[IMG]",
                                       "<pad>",
                                       "[IMG_BREAK]",
                                       "[IMG_END]",
                                       "[PREFIX]",
                                       "[MIDDLE]",
                                       "[SUFFIX]",
                                       "[SYSTEM_PROMPT]",
                                       "[/SYSTEM_PROMPT]",
                                       "[TOOL_CONTENT]"};
enum { UNLISTED = sizeof unlisted / sizeof *unlisted };

bool kvm_tokenizer__is_tekken(kvm_jat root)
{
    return json_is_array(json_object_get(root.v, "vocab"));
}

/* The file spells the token of byte 0 out as "\\u0000", which kvm_json refuses. Nobody
 * reads that spelling (token_str): it becomes U+FFFD. */
static void hide_zeros(char *text, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i + 6 <= n; i++) {
        if (text[i] != '\\') continue;
        if (memcmp(text + i, "\\u0000", 6) == 0) memcpy(text + i + 2, "fffd", 4);
        i++; /* what is escaped begins no escape */
    }
}

kvm_status kvm_tokenizer__tekken_root(kvm_jat *root, kvm_arena *tmp, kvm_str path,
                                      kvm_err *err)
{
    kvm_str text;
    kvm_arena own;
    TRY(kvm_arena_reserve(&own, 2 * FILE_BYTES + 4096, err));
    kvm_status s = kvm_file_read(&text, &own, path, FILE_BYTES, err);
    char *copy = s ? NULL : kvm_new_raw(&own, char, text.len);
    if (!s && !copy) s = kvm_nomem(err, &own);
    if (!s) {
        memcpy(copy, text.at, (size_t)text.len);
        hide_zeros(copy, text.len);
        s = kvm_json_parse(root, tmp, (kvm_str){copy, text.len}, path, err);
    }
    kvm_arena_free(&own);
    return s;
}

/* how many special tokens and how many others there are */
static kvm_status sizes(kvm_jat config, ptrdiff_t listed, int64_t *specials,
                        int64_t *others, kvm_arena *tmp, kvm_err *err)
{
    int64_t size;
    const kvm_jat at = kvm_json_get(config, tmp, "default_num_special_tokens");
    const kvm_jat all = kvm_json_get(config, tmp, "default_vocab_size");
    TRY(kvm_json_i64(at, specials, err));
    TRY(kvm_json_i64(all, &size, err));
    if (*specials < 0 || *specials > SPECIALS_MAX)
        return kvm_json_fail(err, KVM_FORMAT, at, "%lld is not in 0 .. %d",
                             (long long)*specials, SPECIALS_MAX);
    if (size <= *specials || size - *specials > listed)
        return kvm_json_fail(err, KVM_FORMAT, all,
                             "%lld with %lld special tokens, but vocab lists %td: part "
                             "of the file is missing, fetch it again",
                             (long long)size, (long long)*specials, listed);
    *others = size - *specials;
    return KVM_OK;
}

static kvm_status token(kvm_tokenizer *t, kvm_arena *keep, kvm_jat at, int64_t due,
                        int64_t first_id, kvm_arena tmp, kvm_err *err)
{
    kvm_str text;
    int64_t rank;
    char bytes[KVM_BPE_TOKEN_MAX];
    TRY(kvm_json_object(at, err));
    const kvm_jat rank_at = kvm_json_get(at, &tmp, "rank");
    const kvm_jat text_at = kvm_json_get(at, &tmp, "token_bytes");
    TRY(kvm_json_i64(rank_at, &rank, err));
    TRY(kvm_json_str(text_at, &text, err));
    if (rank != due)
        return kvm_json_fail(err, KVM_FORMAT, rank_at,
                             "%lld stands where %lld is due: sort vocab by rank, or "
                             "fetch the file again",
                             (long long)rank, (long long)due);
    const ptrdiff_t n = kvm_tokenizer__base64(bytes, text);
    if (n <= 0)
        return kvm_json_fail(err, KVM_FORMAT, text_at,
                             "\"%s\" is not 1 to %d bytes in base64: fetch the file "
                             "again",
                             kvm_quote(text).at, KVM_BPE_TOKEN_MAX / 3 * 3);
    const kvm_status s =
        kvm_bpe_add_raw(&t->bpe, keep, first_id + rank, (kvm_str){bytes, n}, err);
    return s ? kvm_json_prefix(err, s, at) : KVM_OK;
}

static kvm_status unlisted_names(kvm_jat config, kvm_str *name, int64_t n,
                                 kvm_arena *tmp, kvm_err *err)
{
    static const kvm_str old[] = {{"v1", 2}, {"v2", 2}, {"v3", 2}, {"v7", 2}};
    kvm_str version;
    bool known = false;
    const kvm_jat at = kvm_json_get(config, tmp, "version");
    TRY(kvm_json_str(at, &version, err));
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        known = known || kvm_str_eq(version, old[i]);
    if (!known || n < UNLISTED)
        return kvm_json_fail(err, KVM_FORMAT, at,
                             "a file of version %s with %lld special tokens has to "
                             "list them: fetch a newer one",
                             kvm_quote(version).at, (long long)n);
    for (int i = 0; i < UNLISTED; i++) name[i] = kvm_str_of(unlisted[i]);
    return KVM_OK;
}

static kvm_status listed_names(kvm_jat list, kvm_str *name, int64_t n, kvm_arena *tmp,
                               kvm_err *err)
{
    ptrdiff_t listed;
    TRY(kvm_json_array(list, &listed, err));
    for (ptrdiff_t i = 0; i < listed; i++) {
        int64_t rank;
        const kvm_jat at = kvm_json_item(list, tmp, i);
        TRY(kvm_json_object(at, err));
        const kvm_jat rank_at = kvm_json_get(at, tmp, "rank");
        TRY(kvm_json_i64(rank_at, &rank, err));
        if (rank < 0 || rank >= n || name[rank].at)
            return kvm_json_fail(err, KVM_FORMAT, rank_at,
                                 "%lld is not in 0 .. %lld, or taken", (long long)rank,
                                 (long long)n - 1);
        TRY(kvm_json_str(kvm_json_get(at, tmp, "token_str"), &name[rank], err));
    }
    return KVM_OK;
}

static kvm_status specials(kvm_tokenizer *t, kvm_arena *keep, kvm_jat root,
                           kvm_jat config, int64_t n, kvm_arena *tmp, kvm_err *err)
{
    kvm_str *name = kvm_new(tmp, kvm_str, (ptrdiff_t)n);
    if (!name) return kvm_nomem(err, tmp);
    const kvm_jat list = kvm_json_get(root, tmp, "special_tokens");
    TRY(kvm_json_has(list) ? listed_names(list, name, n, tmp, err)
                           : unlisted_names(config, name, n, tmp, err));
    TRY(kvm_tokenizer__begin_added(t, keep, (ptrdiff_t)n, err));
    for (int64_t id = 0; id < n; id++) {
        char filler[40];
        (void)snprintf(filler, sizeof filler, "<SPECIAL_%lld>", (long long)id);
        const kvm_added a = {.content = name[id].at ? name[id] : kvm_str_of(filler),
                             .special = true};
        const kvm_status s = kvm_tokenizer__add(t, keep, &a, id, *tmp, err);
        if (s) return kvm_err_prefix(err, s, "%s: special_tokens", root.file);
    }
    return KVM_OK;
}

/* The file says nothing about them, Mistral's own code does. */
static kvm_status ends(kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    t->bos = kvm_tokenizer_special(t, KVM_STR("<s>"));
    t->eos = kvm_tokenizer_special(t, KVM_STR("</s>"));
    t->prefix = kvm_new(keep, int32_t, 1);
    if (!t->prefix) return kvm_nomem(err, keep);
    t->prefix[0] = t->bos;
    t->n_prefix = t->bos >= 0;
    return KVM_OK;
}

kvm_status kvm_tokenizer__read_tekken(kvm_tokenizer *t, kvm_arena *keep, kvm_jat root,
                                      kvm_arena *tmp, kvm_err *err)
{
    kvm_str text;
    ptrdiff_t listed;
    int64_t n_specials, others;
    const kvm_jat config = kvm_json_get(root, tmp, "config");
    const kvm_jat vocab = kvm_json_get(root, tmp, "vocab");
    TRY(kvm_json_object(config, err));
    TRY(kvm_json_array(vocab, &listed, err));
    TRY(sizes(config, listed, &n_specials, &others, tmp, err));
    TRY(kvm_bpe_begin(&t->bpe, keep, (ptrdiff_t)(others + n_specials), err));
    for (int64_t i = 0; i < others; i++) {
        kvm_arena scratch = *tmp;
        TRY(token(t, keep, kvm_json_item(vocab, &scratch, (ptrdiff_t)i), i, n_specials,
                  scratch, err));
    }
    kvm_status s = kvm_bpe_end_by_rank(&t->bpe, keep, err);
    if (s) return kvm_json_prefix(err, s, vocab);
    TRY(specials(t, keep, root, config, n_specials, tmp, err));
    TRY(ends(t, keep, err));
    const kvm_jat pattern = kvm_json_get(config, tmp, "pattern");
    TRY(kvm_json_str(pattern, &text, err));
    /* what the pattern does not match is dropped, as tiktoken does */
    const kvm_step step = {.kind = KVM_STEP_REGEX, .drop_rest = true};
    s = kvm_tokenizer__step(t, keep, step, text, false, *tmp, err);
    return s ? kvm_json_prefix(err, s, pattern) : KVM_OK;
}
