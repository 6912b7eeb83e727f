/* The tokenizer inside a GGUF file: tokens by id with a type each, merges as text, and
 * a name for the pattern. */
#include <string.h>

#include "models/gguf_meta.h"
#include "models/tokenizer_internal.h"

/* tokenizer.ggml.token_type */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

static kvm_status refuse_other_models(const kvm_gguf *g, kvm_err *err)
{
    kvm_str model;
    TRY(kvm_gguf_str(g, "tokenizer.ggml.model", &model, err));
    if (kvm_str_eq(model, KVM_STR("gpt2"))) return KVM_OK;
    const bool sentencepiece = kvm_str_eq(model, KVM_STR("llama"));
    return kvm_fail(
        err, KVM_UNSUPPORTED,
        "%.*s: its tokenizer is \"%s\"%s; byte-level BPE (\"gpt2\") is read",
        KVM_STR_ARG(kvm_gguf_name(g)), kvm_quote(model).at,
        sentencepiece ? ", that is SentencePiece" : "");
}

static kvm_status types(const kvm_gguf *g, kvm_arena *tmp, int64_t **type,
                        ptrdiff_t n_tokens, kvm_err *err)
{
    ptrdiff_t n;
    TRY(kvm_gguf_i64s(g, "tokenizer.ggml.token_type", tmp, type, &n, err));
    if (n != n_tokens)
        return kvm_fail(err, KVM_FORMAT,
                        "%.*s: tokenizer.ggml has %td tokens, but %td types",
                        KVM_STR_ARG(kvm_gguf_name(g)), n_tokens, n);
    for (ptrdiff_t i = 0; i < n; i++)
        if ((*type)[i] < NORMAL || (*type)[i] > UNUSED)
            return kvm_fail(
                err, KVM_UNSUPPORTED,
                "%.*s: token %td is of type %lld, which byte-level BPE does "
                "not have",
                KVM_STR_ARG(kvm_gguf_name(g)), i, (long long)(*type)[i]);
    return KVM_OK;
}

static kvm_status tokens(kvm_tokenizer *t, kvm_arena *keep, const kvm_gguf *g,
                         kvm_arena *tmp, kvm_err *err)
{
    kvm_str *text;
    int64_t *type;
    ptrdiff_t n;
    TRY(kvm_gguf_strs(g, "tokenizer.ggml.tokens", tmp, &text, &n, err));
    TRY(types(g, tmp, &type, n, err));
    TRY(kvm_bpe_begin(&t->bpe, keep, n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        if (type[i] != NORMAL) continue;
        const kvm_status s = kvm_bpe_add(&t->bpe, keep, i, text[i], err);
        if (s) return kvm_err_prefix(err, s, "%.*s", KVM_STR_ARG(t->file));
    }
    TRY(kvm_tokenizer__begin_added(t, keep, n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        if (type[i] == NORMAL || type[i] == UNUSED) continue;
        const kvm_added a = {.content = text[i], .special = type[i] != USER_DEFINED};
        const kvm_status s = kvm_tokenizer__add(t, keep, &a, i, *tmp, err);
        if (s) return kvm_err_prefix(err, s, "%.*s", KVM_STR_ARG(t->file));
    }
    return KVM_OK;
}

static kvm_status merges(kvm_tokenizer *t, kvm_arena *keep, const kvm_gguf *g,
                         kvm_arena *tmp, kvm_err *err)
{
    kvm_str *pair;
    ptrdiff_t n;
    TRY(kvm_gguf_strs(g, "tokenizer.ggml.merges", tmp, &pair, &n, err));
    TRY(kvm_bpe_begin_merges(&t->bpe, keep, n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_status s = kvm_tokenizer__merge_text(t, pair[i], *tmp, err);
        if (s) return kvm_err_prefix(err, s, "%.*s", KVM_STR_ARG(t->file));
    }
    kvm_bpe_end(&t->bpe);
    return KVM_OK;
}

static kvm_status pattern(kvm_tokenizer *t, kvm_arena *keep, const kvm_gguf *g,
                          const kvm_pattern **found, kvm_arena *tmp, kvm_err *err)
{
    kvm_str pre;
    TRY(kvm_gguf_str_or(g, "tokenizer.ggml.pre", KVM_STR("default"), &pre, err));
    const kvm_str wanted = kvm_str_fmt(tmp, ",%.*s,", KVM_STR_ARG(pre));
    if (!wanted.at) return kvm_nomem(err, tmp);
    const kvm_pattern *p = NULL;
    for (ptrdiff_t i = 0; i < kvm_patterns_n && !p; i++)
        if (kvm_str_find(kvm_str_of(kvm_patterns[i].gguf), wanted) >= 0)
            p = &kvm_patterns[i];
    if (!p)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%.*s: tokenizer.ggml.pre \"%s\" is not known; known: those "
                        "of models/pretokenizers.def",
                        KVM_STR_ARG(t->file), kvm_quote(pre).at);
    t->nfc = p->nfc;
    t->bpe.ignore_merges = p->ignore_merges;
    if (p->digits_first)
        TRY(kvm_tokenizer__step(t, keep, (kvm_step){KVM_STEP_DIGITS, .each = true},
                                (kvm_str){0}, false, *tmp, err));
    *found = p;
    return kvm_tokenizer__step(t, keep, (kvm_step){.kind = KVM_STEP_REGEX},
                               kvm_str_of(p->text), false, *tmp, err);
}

static kvm_status id_key(const kvm_tokenizer *t, const kvm_gguf *g, const char *key,
                         int32_t *id, kvm_err *err)
{
    uint64_t n;
    *id = -1;
    if (!kvm_gguf_has(g, key)) return KVM_OK;
    TRY(kvm_gguf_u64(g, key, &n, err));
    if (n >= (uint64_t)t->size)
        return kvm_fail(err, KVM_FORMAT, "%.*s: %s is %llu, but there are %td tokens",
                        KVM_STR_ARG(t->file), key, (unsigned long long)n, t->size);
    *id = (int32_t)n;
    return KVM_OK;
}

static kvm_status around(const kvm_gguf *g, kvm_arena *keep, const char *key,
                         bool fallback, int32_t id, int32_t **ids, ptrdiff_t *n,
                         kvm_err *err)
{
    bool add;
    TRY(kvm_gguf_bool_or(g, key, fallback, &add, err));
    *n = add && id >= 0;
    *ids = kvm_new(keep, int32_t, 1);
    if (!*ids) return kvm_nomem(err, keep);
    **ids = id;
    return KVM_OK;
}

static kvm_status specials(kvm_tokenizer *t, kvm_arena *keep, const kvm_gguf *g,
                           const kvm_pattern *p, kvm_err *err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    TRY(id_key(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err));
    TRY(id_key(t, g, ends[0], &t->eos, err));
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int32_t id;
        TRY(id_key(t, g, ends[i], &id, err));
        TRY(kvm_tokenizer__add_stop(t, keep, id, err));
    }
    TRY(around(g, keep, "tokenizer.ggml.add_bos_token", p->bos, t->bos, &t->prefix,
               &t->n_prefix, err));
    return around(g, keep, "tokenizer.ggml.add_eos_token", false, t->eos, &t->suffix,
                  &t->n_suffix, err);
}

kvm_status kvm_tokenizer__from_gguf(kvm_tokenizer *t, kvm_arena *keep, kvm_str path,
                                    kvm_arena *tmp, kvm_err *err)
{
    kvm_gguf *g;
    const kvm_pattern *p = NULL;
    kvm_str chat;
    TRY(kvm_gguf_open(&g, tmp, path, err));
    TRY(refuse_other_models(g, err));
    TRY(tokens(t, keep, g, tmp, err));
    TRY(merges(t, keep, g, tmp, err));
    TRY(pattern(t, keep, g, &p, tmp, err));
    TRY(specials(t, keep, g, p, err));
    TRY(kvm_tokenizer__known_stops(t, keep, err));
    TRY(kvm_gguf_str_or(g, "tokenizer.chat_template", KVM_STR(""), &chat, err));
    t->chat_template = kvm_str_copy(keep, chat);
    return t->chat_template.at ? KVM_OK : kvm_nomem(err, keep);
}
