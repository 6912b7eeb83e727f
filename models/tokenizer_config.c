/* What stands beside a tokenizer in a checkpoint folder: begin and end of text, further
 * stops, the chat template. Every file is optional. */
#include "base/file.h"
#include "models/tokenizer_internal.h"

static const size_t TEMPLATE_BYTES = (size_t)1 << 20;
enum { STOPS_MAX = 64 };

/* ends of a turn or of a text in the families that are read */
static const char *const known_stops[] = {
    "<|im_end|>", "<|endoftext|>",   "<|eot_id|>", "<|eom_id|>",
    "</s>",       "<|end_of_text|>", "[EOS]",      "<｜end▁of▁sentence｜>"};

kvm_status kvm_tokenizer__add_stop(kvm_tokenizer *t, kvm_arena *keep, int64_t id,
                                   kvm_err *err)
{
    if (!t->stops) t->stops = kvm_new(keep, int32_t, STOPS_MAX);
    if (!t->stops) return kvm_nomem(err, keep);
    if (id < 0 || id >= t->size || kvm_tokenizer_stops(t, (int32_t)id)) return KVM_OK;
    if (t->n_stops == STOPS_MAX)
        return kvm_fail(err, KVM_RANGE, "%.*s: more than %d end-of-text tokens",
                        KVM_STR_ARG(t->file), STOPS_MAX);
    t->stops[t->n_stops++] = (int32_t)id;
    return KVM_OK;
}

kvm_status kvm_tokenizer__known_stops(kvm_tokenizer *t, kvm_arena *keep, kvm_err *err)
{
    for (size_t i = 0; i < sizeof known_stops / sizeof *known_stops; i++)
        TRY(kvm_tokenizer__add_stop(
            t, keep, kvm_tokenizer_special(t, kvm_str_of(known_stops[i])), err));
    return KVM_OK;
}

/* A root of NULL when the folder has no such file. */
static kvm_status read(kvm_jat *root, kvm_str folder, const char *name, kvm_arena *tmp,
                       kvm_err *err)
{
    const kvm_str path = kvm_path_join(tmp, folder, kvm_str_of(name));
    if (!path.at) return kvm_nomem(err, tmp);
    *root = (kvm_jat){.file = path.at, .path = ""};
    if (!kvm_path_exists(path)) return KVM_OK;
    TRY(kvm_json_read(root, tmp, path, err));
    return kvm_json_object(*root, err);
}

static kvm_jat member(kvm_jat at, kvm_arena *tmp, const char *key)
{
    return at.v ? kvm_json_get(at, tmp, key) : (kvm_jat){.file = at.file, .path = key};
}

/* "<s>" or {"content": "<s>"}; null leaves what the tokenizer's own file says */
static kvm_status named_token(const kvm_tokenizer *t, kvm_jat at, kvm_arena *tmp,
                              int32_t *id, kvm_err *err)
{
    kvm_str text;
    if (!kvm_json_has(at)) return KVM_OK;
    TRY(kvm_json_str(json_is_object(at.v) ? kvm_json_get(at, tmp, "content") : at,
                     &text, err));
    *id = kvm_tokenizer__id(t, text, *tmp);
    if (*id >= 0) return KVM_OK;
    return kvm_fail(err, KVM_FORMAT, "%s: %s \"%s\" is not a token of the tokenizer",
                    at.file, at.path, kvm_quote(text).at);
}

/* eos_token_id: a number, a list, or null. *first: the first one when it is -1. */
static kvm_status numbered_stops(kvm_tokenizer *t, kvm_arena *keep, kvm_jat at,
                                 kvm_arena *tmp, int32_t *first, kvm_err *err)
{
    ptrdiff_t n = 1;
    const bool list = json_is_array(at.v);
    if (!kvm_json_has(at)) return KVM_OK;
    if (list) TRY(kvm_json_array(at, &n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t id;
        TRY(kvm_json_i64(list ? kvm_json_item(at, tmp, i) : at, &id, err));
        TRY(kvm_tokenizer__add_stop(t, keep, id, err));
        if (*first < 0 && id >= 0 && id < t->size) *first = (int32_t)id;
    }
    return KVM_OK;
}

static kvm_status chat_file(kvm_tokenizer *t, kvm_arena *keep, kvm_str folder,
                            kvm_arena *tmp, kvm_err *err)
{
    const kvm_str path = kvm_path_join(tmp, folder, KVM_STR("chat_template.jinja"));
    if (!path.at) return kvm_nomem(err, tmp);
    if (!kvm_path_exists(path)) return KVM_OK;
    return kvm_file_read(&t->chat_template, keep, path, TEMPLATE_BYTES, err);
}

/* chat_template: a text, or a list of {name, template} of which "default" counts */
static kvm_status chat_template(kvm_tokenizer *t, kvm_arena *keep, kvm_jat at,
                                kvm_arena *tmp, kvm_err *err)
{
    ptrdiff_t n = 0;
    kvm_str text = KVM_STR(""), name;
    if (json_is_array(at.v)) TRY(kvm_json_array(at, &n, err));
    if (kvm_json_has(at) && !json_is_array(at.v)) TRY(kvm_json_str(at, &text, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat item = kvm_json_item(at, tmp, i);
        TRY(kvm_json_object(item, err));
        TRY(kvm_json_str(kvm_json_get(item, tmp, "name"), &name, err));
        if (kvm_str_eq(name, KVM_STR("default")))
            TRY(kvm_json_str(kvm_json_get(item, tmp, "template"), &text, err));
    }
    t->chat_template = kvm_str_copy(keep, text);
    return t->chat_template.at ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_tokenizer__config(kvm_tokenizer *t, kvm_arena *keep, kvm_str folder,
                                 kvm_arena *tmp, kvm_err *err)
{
    kvm_jat own, model, generation;
    int64_t bos;
    int32_t first = -1;
    TRY(read(&own, folder, "tokenizer_config.json", tmp, err));
    TRY(read(&model, folder, "config.json", tmp, err));
    TRY(read(&generation, folder, "generation_config.json", tmp, err));

    TRY(named_token(t, member(own, tmp, "bos_token"), tmp, &t->bos, err));
    TRY(named_token(t, member(own, tmp, "eos_token"), tmp, &t->eos, err));
    TRY(kvm_tokenizer__add_stop(t, keep, t->eos, err));
    TRY(numbered_stops(t, keep, member(generation, tmp, "eos_token_id"), tmp, &first,
                       err));
    const kvm_jat eos = member(model, tmp, "eos_token_id");
    TRY(numbered_stops(t, keep, eos, tmp, &first, err));
    TRY(kvm_tokenizer__known_stops(t, keep, err));
    if (!own.v) { /* no word on the matter: the model's ids, then what encoding adds */
        TRY(kvm_json_i64_or(member(model, tmp, "bos_token_id"), -1, &bos, err));
        if (bos >= 0 && bos < t->size) t->bos = (int32_t)bos;
        if (t->bos < 0 && t->n_prefix == 1) t->bos = t->prefix[0];
        if (first >= 0) t->eos = first;
    }
    TRY(chat_template(t, keep, member(own, tmp, "chat_template"), tmp, err));
    return chat_file(t, keep, folder, tmp, err);
}
