/* vocab.json + merges.txt, the form of older Qwen and GPT-2 checkpoints: the pattern
 * follows from the family, the added tokens stand in tokenizer_config.json. */
#include <string.h>

#include "base/file.h"
#include "models/tokenizer_internal.h"

static const size_t MERGES_BYTES = (size_t)32 << 20;

static kvm_status merges(kvm_tokenizer *t, kvm_arena *keep, kvm_str path,
                         kvm_arena *tmp, kvm_err *err)
{
    kvm_str text, line, rest;
    ptrdiff_t lines = 1;
    TRY(kvm_file_read(&text, tmp, path, MERGES_BYTES, err));
    for (ptrdiff_t i = 0; i < text.len; i++) lines += text.at[i] == '\n';
    TRY(kvm_bpe_begin_merges(&t->bpe, keep, lines, err));
    for (rest = text; rest.len > 0;) {
        (void)kvm_str_cut(rest, '\n', &line, &rest);
        if (kvm_str_ends(line, KVM_STR("\r"))) line.len--;
        if (line.len == 0 || kvm_str_starts(line, KVM_STR("#version"))) continue;
        const kvm_status s = kvm_tokenizer__merge_text(t, line, *tmp, err);
        if (s) return kvm_err_prefix(err, s, "%.*s", KVM_STR_ARG(path));
    }
    kvm_bpe_end(&t->bpe);
    return KVM_OK;
}

static kvm_status added(kvm_tokenizer *t, kvm_arena *keep, kvm_jat config,
                        kvm_arena *tmp, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(config, tmp, "added_tokens_decoder");
    if (!list.v)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%s: no added_tokens_decoder, so the ids of the special tokens "
                        "are unknown; save the tokenizer with a recent transformers",
                        config.file);
    TRY(kvm_json_object(list, err));
    TRY(kvm_tokenizer__begin_added(t, keep, (ptrdiff_t)json_object_size(list.v), err));
    void *doc; /* jansson's iterators want it mutable; nothing is changed */
    memcpy(&doc, &list.v, sizeof doc);
    for (void *i = json_object_iter(doc); i; i = json_object_iter_next(doc, i)) {
        const char *key = json_object_iter_key(i);
        int64_t id;
        if (!kvm_str_to_i64(kvm_str_of(key), &id))
            return kvm_fail(err, KVM_FORMAT, "%s: %s: \"%.60s\" is no id", list.file,
                            list.path, key);
        TRY(kvm_tokenizer__add_json(t, keep, kvm_json_get(list, tmp, key), id, tmp,
                                    err));
    }
    return KVM_OK;
}

/* rows: class of tokenizer_config.json -> row of pretokenizers.def */
static const struct {
    const char *class_name, *pattern;
} classes[] = {
    {"Qwen2Tokenizer", "qwen2"},
    {"Qwen2TokenizerFast", "qwen2"},
    {"GPT2Tokenizer", "gpt2"},
    {"GPT2TokenizerFast", "gpt2"},
};

static kvm_status pattern(kvm_tokenizer *t, kvm_arena *keep, kvm_jat config,
                          kvm_arena *tmp, kvm_err *err)
{
    kvm_str name;
    TRY(kvm_json_str(kvm_json_get(config, tmp, "tokenizer_class"), &name, err));
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (!kvm_str_eq(name, kvm_str_of(classes[i].class_name))) continue;
        const kvm_pattern *p = kvm_pattern_by_name(classes[i].pattern);
        t->nfc = p->nfc;
        return kvm_tokenizer__step(t, keep, (kvm_step){.kind = KVM_STEP_REGEX},
                                   kvm_str_of(p->text), false, *tmp, err);
    }
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "%s: the pattern of tokenizer_class %s is not known; save the "
                    "tokenizer as tokenizer.json with a recent transformers",
                    config.file, kvm_quote(name).at);
}

kvm_status kvm_tokenizer__from_files(kvm_tokenizer *t, kvm_arena *keep, kvm_str folder,
                                     kvm_arena *tmp, kvm_err *err)
{
    kvm_jat vocab, config;
    const kvm_str vocab_path = kvm_path_join(tmp, folder, KVM_STR("vocab.json"));
    const kvm_str merges_path = kvm_path_join(tmp, folder, KVM_STR("merges.txt"));
    const kvm_str config_path =
        kvm_path_join(tmp, folder, KVM_STR("tokenizer_config.json"));
    if (!vocab_path.at || !merges_path.at || !config_path.at)
        return kvm_nomem(err, tmp);
    TRY(kvm_json_read(&config, tmp, config_path, err));
    TRY(kvm_json_read(&vocab, tmp, vocab_path, err));
    TRY(kvm_tokenizer__vocab(t, keep, vocab, err));
    TRY(merges(t, keep, merges_path, tmp, err));
    TRY(added(t, keep, config, tmp, err));
    return pattern(t, keep, config, tmp, err);
}
