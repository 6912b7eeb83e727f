/* tiktoken.model, as Moonlight, Kimi-VL, Kimi-Linear and Kimi K2 ship it: a line for
 * each token, its bytes in base64 and its rank, which is its id. Ranks count up from 0,
 * so the special tokens stand behind the last one; tokenizer_config.json names them. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "models/tokenizer_internal.h"

static const size_t FILE_BYTES = (size_t)32 << 20;
/* ids behind the ranks that have a name in any case. (Moonlight's own code has two
 * more, which no embedding has room for.) */
enum { SPECIALS = 256 };

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

ptrdiff_t kvm_tokenizer__base64(char out[KVM_BPE_TOKEN_MAX], kvm_str text)
{
    if (text.len % 4 != 0 || text.len / 4 > KVM_BPE_TOKEN_MAX / 3) return -1;
    ptrdiff_t n = 0;
    uint32_t bits = 0;
    int held = 0, pad = 0;
    while (pad < 2 && pad < text.len && text.at[text.len - 1 - pad] == '=') pad++;
    for (ptrdiff_t i = 0; i < text.len - pad; i++) {
        const int digit = digit_of(text.at[i]);
        if (digit < 0) return -1;
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        out[n++] = (char)(bits >> held);
        bits &= (1u << held) - 1;
    }
    return bits == 0 ? n : -1; /* what is left over fills up with zeros */
}

static kvm_status token(kvm_tokenizer *t, kvm_arena *keep, kvm_str line, kvm_err *err)
{
    kvm_str text, number;
    int64_t rank;
    char bytes[KVM_BPE_TOKEN_MAX];
    (void)kvm_str_cut(line, ' ', &text, &number);
    const ptrdiff_t n = kvm_tokenizer__base64(bytes, text);
    if (n <= 0 || !kvm_str_to_i64(number, &rank))
        return kvm_fail(err, KVM_FORMAT,
                        "\"%s\" is not a token of 1 to %d bytes in base64, a space and "
                        "its rank: fetch the file again",
                        kvm_quote(line).at, KVM_BPE_TOKEN_MAX / 3 * 3);
    if (rank != t->bpe.size)
        return kvm_fail(err, KVM_FORMAT,
                        "the rank %lld stands where %td is due: part of the file is "
                        "missing or out of order, fetch it again",
                        (long long)rank, t->bpe.size);
    return kvm_bpe_add_raw(&t->bpe, keep, rank, (kvm_str){bytes, n}, err);
}

static kvm_status tokens(kvm_tokenizer *t, kvm_arena *keep, kvm_str text,
                         const char *file, kvm_err *err)
{
    kvm_str line;
    ptrdiff_t lines = 1, at = 0;
    for (ptrdiff_t i = 0; i < text.len; i++) lines += text.at[i] == '\n';
    TRY(kvm_bpe_begin(&t->bpe, keep, lines, err));
    while (text.len > 0) {
        (void)kvm_str_cut(text, '\n', &line, &text);
        if (kvm_str_ends(line, KVM_STR("\r"))) line.len--;
        at++;
        if (line.len == 0) continue;
        const kvm_status s = token(t, keep, line, err);
        if (s) return kvm_err_prefix(err, s, "%s:%td", file, at);
    }
    const kvm_status s = kvm_bpe_end_by_rank(&t->bpe, keep, err);
    return s ? kvm_err_prefix(err, s, "%s", file) : KVM_OK;
}

/* the largest id that the list names; KVM_FORMAT for what is no id behind the ranks */
static kvm_status last_id(const kvm_tokenizer *t, kvm_jat list, int64_t *last,
                          kvm_err *err)
{
    kvm_str key;
    const json_t *value;
    *last = t->bpe.size + SPECIALS - 1;
    for (void *it = NULL; kvm_json_next(list, &it, &key, &value);) {
        int64_t id;
        if (!kvm_str_to_i64(key, &id) || id < t->bpe.size || id >= t->bpe.limit)
            return kvm_json_fail(err, KVM_FORMAT, list,
                                 "\"%s\" is no id behind those of the %td tokens of "
                                 "tiktoken.model: the two files do not belong together",
                                 kvm_quote(key).at, t->bpe.size);
        if (id > *last) *last = id;
    }
    return KVM_OK;
}

/* Special tokens are found as they are written: tiktoken knows neither stripping nor
 * whole words, so those flags of the list are passed over, as its own code does. */
static kvm_status special(kvm_tokenizer *t, kvm_arena *keep, kvm_jat list, int64_t id,
                          kvm_arena tmp, kvm_err *err)
{
    char key[24], name[48];
    kvm_added a = {.special = true};
    (void)snprintf(key, sizeof key, "%lld", (long long)id);
    (void)snprintf(name, sizeof name, "<|reserved_token_%s|>", key);
    a.content = kvm_str_of(name);
    const kvm_jat at = kvm_json_get(list, &tmp, key);
    if (at.v) {
        TRY(kvm_json_object(at, err));
        TRY(kvm_json_str(kvm_json_get(at, &tmp, "content"), &a.content, err));
        TRY(kvm_json_bool_or(kvm_json_get(at, &tmp, "special"), false, &a.special,
                             err));
    }
    const kvm_status s = kvm_tokenizer__add(t, keep, &a, id, tmp, err);
    return s ? kvm_json_prefix(err, s, list) : KVM_OK;
}

/* The pattern stands in code: what class is named decides. */
static kvm_status pattern(kvm_tokenizer *t, kvm_arena *keep, kvm_jat config,
                          kvm_arena *tmp, kvm_err *err)
{
    kvm_str name;
    const kvm_str known = KVM_STR("TikTokenTokenizer");
    const kvm_jat at = kvm_json_get(config, tmp, "tokenizer_class");
    TRY(kvm_json_str_or(at, known, &name, err));
    if (!kvm_str_eq(name, known))
        return kvm_json_fail(err, KVM_UNSUPPORTED, at,
                             "tiktoken.model with the pattern of %s is not known; save "
                             "the tokenizer as tokenizer.json",
                             kvm_quote(name).at);
    const kvm_pattern *p = kvm_pattern_by_name("kimi");
    return kvm_tokenizer__step(t, keep, (kvm_step){.kind = KVM_STEP_REGEX},
                               kvm_str_of(p->text), false, *tmp, err);
}

kvm_status kvm_tokenizer__read_tiktoken(kvm_tokenizer *t, kvm_arena *keep, kvm_str text,
                                        const char *file, kvm_jat config,
                                        kvm_arena *tmp, kvm_err *err)
{
    int64_t last;
    TRY(kvm_json_object(config, err));
    TRY(tokens(t, keep, text, file, err));
    const kvm_jat list = kvm_json_get(config, tmp, "added_tokens_decoder");
    TRY(kvm_json_object(list, err));
    TRY(last_id(t, list, &last, err));
    const ptrdiff_t first = t->bpe.size;
    TRY(kvm_tokenizer__begin_added(t, keep, (ptrdiff_t)last + 1 - first, err));
    for (int64_t id = first; id <= last; id++)
        TRY(special(t, keep, list, id, *tmp, err));
    t->sliced = true;
    return pattern(t, keep, config, tmp, err);
}

kvm_status kvm_tokenizer__from_tiktoken(kvm_tokenizer *t, kvm_arena *keep,
                                        kvm_str folder, kvm_arena *tmp, kvm_err *err)
{
    kvm_str text;
    kvm_jat config;
    const kvm_str path = kvm_path_join(tmp, folder, KVM_STR("tiktoken.model"));
    const kvm_str beside = kvm_path_join(tmp, folder, KVM_STR("tokenizer_config.json"));
    if (!path.at || !beside.at) return kvm_nomem(err, tmp);
    if (!kvm_path_exists(beside))
        return kvm_fail(err, KVM_NOTFOUND,
                        "%s: tokenizer_config.json, which names its special tokens, is "
                        "not beside it: fetch it from the same checkpoint",
                        path.at);
    TRY(kvm_file_read(&text, tmp, path, FILE_BYTES, err));
    TRY(kvm_json_read(&config, tmp, beside, err));
    return kvm_tokenizer__read_tiktoken(t, keep, text, path.at, config, tmp, err);
}
