/* tokenizer.json, as the `tokenizers` library writes it. What is not read is refused by
 * name: a part that was passed over in silence would give other ids. */
#include <string.h>

#include "models/tokenizer_internal.h"

static kvm_jat get(kvm_jat at, kvm_arena *tmp, const char *key)
{
    return kvm_json_get(at, tmp, key);
}

static kvm_status unsupported(kvm_jat at, kvm_str what, const char *remedy,
                              kvm_err *err)
{
    return kvm_json_fail(err, KVM_UNSUPPORTED, at, "%s is not supported; %s",
                         kvm_quote(what).at, remedy);
}

static kvm_status type_of(kvm_jat at, kvm_arena *tmp, kvm_str *type, kvm_err *err)
{
    TRY(kvm_json_object(at, err));
    return kvm_json_str(get(at, tmp, "type"), type, err);
}

/* --- model --- */

kvm_status kvm_tokenizer__vocab(kvm_tokenizer *t, kvm_arena *keep, kvm_jat vocab,
                                kvm_err *err)
{
    TRY(kvm_json_object(vocab, err));
    TRY(kvm_bpe_begin(&t->bpe, keep, (ptrdiff_t)json_object_size(vocab.v), err));
    void *doc; /* jansson's iterators want it mutable; nothing is changed */
    memcpy(&doc, &vocab.v, sizeof doc);
    for (void *i = json_object_iter(doc); i; i = json_object_iter_next(doc, i)) {
        const json_t *id = json_object_iter_value(i);
        const kvm_str text = {json_object_iter_key(i),
                              (ptrdiff_t)json_object_iter_key_len(i)};
        if (!json_is_integer(id))
            return kvm_fail(err, KVM_FORMAT, "%s: %s: the id of \"%s\" is no integer",
                            vocab.file, vocab.path, kvm_quote(text).at);
        const kvm_status s =
            kvm_bpe_add(&t->bpe, keep, json_integer_value(id), text, err);
        if (s) return kvm_err_prefix(err, s, "%s: %s", vocab.file, vocab.path);
    }
    return KVM_OK;
}

kvm_status kvm_tokenizer__merge_text(kvm_tokenizer *t, kvm_str pair, kvm_arena scratch,
                                     kvm_err *err)
{
    kvm_str left, right;
    if (!kvm_str_cut(pair, ' ', &left, &right) || left.len == 0 || right.len == 0 ||
        memchr(right.at, ' ', (size_t)right.len))
        return kvm_fail(err, KVM_FORMAT,
                        "merge %td \"%s\" is not two tokens with a space between",
                        t->bpe.n_merges + 1, kvm_quote(pair).at);
    return kvm_bpe_add_merge(&t->bpe, left, right, scratch, err);
}

static kvm_status merge(kvm_tokenizer *t, const json_t *m, kvm_arena scratch,
                        kvm_err *err)
{
    if (json_is_string(m))
        return kvm_tokenizer__merge_text(
            t, (kvm_str){json_string_value(m), (ptrdiff_t)json_string_length(m)},
            scratch, err);
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
    if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b))
        return kvm_fail(err, KVM_FORMAT, "merge %td is not a pair of tokens",
                        t->bpe.n_merges + 1);
    return kvm_bpe_add_merge(
        &t->bpe, (kvm_str){json_string_value(a), (ptrdiff_t)json_string_length(a)},
        (kvm_str){json_string_value(b), (ptrdiff_t)json_string_length(b)}, scratch,
        err);
}

static kvm_status merges(kvm_tokenizer *t, kvm_arena *keep, kvm_jat at, kvm_arena *tmp,
                         kvm_err *err)
{
    ptrdiff_t n;
    TRY(kvm_json_array(at, &n, err));
    TRY(kvm_bpe_begin_merges(&t->bpe, keep, n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_status s = merge(t, json_array_get(at.v, (size_t)i), *tmp, err);
        if (s) return kvm_err_prefix(err, s, "%s: %s", at.file, at.path);
    }
    kvm_bpe_end(&t->bpe);
    return KVM_OK;
}

/* options of the library's BPE that no byte-level model uses */
static kvm_status refuse_options(kvm_jat model, kvm_arena *tmp, kvm_err *err)
{
    static const char *const texts[] = {"continuing_subword_prefix",
                                        "end_of_word_suffix"};
    double dropout;
    bool fallback;
    for (int i = 0; i < 2; i++) {
        kvm_str s;
        const kvm_jat at = get(model, tmp, texts[i]);
        TRY(kvm_json_str_or(at, KVM_STR(""), &s, err));
        if (s.len > 0) return unsupported(at, s, "byte-level BPE has none", err);
    }
    TRY(kvm_json_f64_or(get(model, tmp, "dropout"), 0, &dropout, err));
    if (dropout > 0 || dropout < 0)
        return unsupported(get(model, tmp, "dropout"), KVM_STR("dropout"),
                           "set it to null", err);
    const kvm_jat at = get(model, tmp, "byte_fallback");
    TRY(kvm_json_bool_or(at, false, &fallback, err));
    if (fallback)
        return unsupported(at, KVM_STR("byte_fallback"),
                           "this is a SentencePiece model; byte-level BPE is read",
                           err);
    return KVM_OK;
}

static kvm_status model(kvm_tokenizer *t, kvm_arena *keep, kvm_jat at, kvm_arena *tmp,
                        kvm_err *err)
{
    kvm_str type, unk;
    bool fuse_unk, ignore_merges;
    TRY(kvm_json_object(at, err));
    /* old files say no type and are BPE; null is neither */
    if (json_is_null(json_object_get(at.v, "type")))
        return unsupported(get(at, tmp, "type"), KVM_STR("null"),
                           "byte-level BPE is read", err);
    TRY(kvm_json_str_or(get(at, tmp, "type"), KVM_STR("BPE"), &type, err));
    if (!kvm_str_eq(type, KVM_STR("BPE")))
        return unsupported(at, type, "byte-level BPE is read", err);
    TRY(refuse_options(at, tmp, err));
    TRY(kvm_tokenizer__vocab(t, keep, get(at, tmp, "vocab"), err));
    TRY(kvm_json_str_or(get(at, tmp, "unk_token"), (kvm_str){0}, &unk, err));
    TRY(kvm_json_bool_or(get(at, tmp, "fuse_unk"), false, &fuse_unk, err));
    TRY(kvm_json_bool_or(get(at, tmp, "ignore_merges"), false, &ignore_merges, err));
    t->bpe.fuse_unk = fuse_unk;
    t->bpe.ignore_merges = ignore_merges;
    if (unk.at) {
        t->bpe.unk = kvm_bpe_find(&t->bpe, unk, *tmp);
        if (t->bpe.unk < 0)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: %s: unk_token \"%s\" is not in the vocabulary",
                            at.file, at.path, kvm_quote(unk).at);
    }
    return merges(t, keep, get(at, tmp, "merges"), tmp, err);
}

/* --- added tokens --- */

kvm_status kvm_tokenizer__add_json(kvm_tokenizer *t, kvm_arena *keep, kvm_jat token,
                                   int64_t id, kvm_arena *tmp, kvm_err *err)
{
    kvm_added a = {0};
    TRY(kvm_json_object(token, err));
    TRY(kvm_json_str(get(token, tmp, "content"), &a.content, err));
    TRY(kvm_json_bool_or(get(token, tmp, "special"), false, &a.special, err));
    TRY(kvm_json_bool_or(get(token, tmp, "lstrip"), false, &a.lstrip, err));
    TRY(kvm_json_bool_or(get(token, tmp, "rstrip"), false, &a.rstrip, err));
    TRY(kvm_json_bool_or(get(token, tmp, "single_word"), false, &a.single_word, err));
    TRY(kvm_json_bool_or(get(token, tmp, "normalized"), !a.special, &a.normalized,
                         err));
    const kvm_status s = kvm_tokenizer__add(t, keep, &a, id, *tmp, err);
    return s ? kvm_err_prefix(err, s, "%s: %s", token.file, token.path) : KVM_OK;
}

static kvm_status added_tokens(kvm_tokenizer *t, kvm_arena *keep, kvm_jat at,
                               kvm_arena *tmp, kvm_err *err)
{
    ptrdiff_t n = 0;
    if (kvm_json_has(at)) TRY(kvm_json_array(at, &n, err));
    TRY(kvm_tokenizer__begin_added(t, keep, n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t id;
        const kvm_jat token = kvm_json_item(at, tmp, i);
        TRY(kvm_json_object(token, err));
        TRY(kvm_json_i64(get(token, tmp, "id"), &id, err));
        TRY(kvm_tokenizer__add_json(t, keep, token, id, tmp, err));
    }
    return KVM_OK;
}

/* --- normalizer, pre-tokenizer, decoder: trees of Sequences --- */

typedef struct reading {
    kvm_tokenizer *t;
    kvm_arena *keep, *tmp;
    kvm_err *err;
    bool byte_level; /* seen; nothing may follow it */
} reading;

typedef kvm_status read_part(reading *r, kvm_jat at, kvm_str type);

/* Each leaf of a tree of Sequences; `list` is the member that holds the parts. */
static kvm_status each_part(reading *r, kvm_jat at, const char *list, read_part *read)
{
    kvm_str type;
    ptrdiff_t n;
    if (!kvm_json_has(at)) return KVM_OK;
    TRY(type_of(at, r->tmp, &type, r->err));
    if (!kvm_str_eq(type, KVM_STR("Sequence"))) return read(r, at, type);
    const kvm_jat parts = get(at, r->tmp, list);
    TRY(kvm_json_array(parts, &n, r->err));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(each_part(r, kvm_json_item(parts, r->tmp, i), list, read));
    return KVM_OK;
}

static kvm_status normalizer(reading *r, kvm_jat at, kvm_str type)
{
    if (!kvm_str_eq(type, KVM_STR("NFC")))
        return unsupported(at, type, "NFC is read", r->err);
    r->t->nfc = true;
    return KVM_OK;
}

static kvm_status add_step(reading *r, kvm_jat at, kvm_step step, kvm_str pattern,
                           bool literal)
{
    const kvm_status s =
        kvm_tokenizer__step(r->t, r->keep, step, pattern, literal, *r->tmp, r->err);
    return s ? kvm_err_prefix(r->err, s, "%s: %s", at.file, at.path) : KVM_OK;
}

static kvm_status split(reading *r, kvm_jat at)
{
    kvm_str pattern, behavior;
    bool invert;
    const kvm_jat p = get(at, r->tmp, "pattern");
    TRY(kvm_json_object(p, r->err));
    const kvm_jat literal = get(p, r->tmp, "String");
    TRY(kvm_json_str(literal.v ? literal : get(p, r->tmp, "Regex"), &pattern, r->err));
    TRY(kvm_json_str(get(at, r->tmp, "behavior"), &behavior, r->err));
    TRY(kvm_json_bool_or(get(at, r->tmp, "invert"), false, &invert, r->err));
    const bool removed = kvm_str_eq(behavior, KVM_STR("Removed"));
    if (!removed && !kvm_str_eq(behavior, KVM_STR("Isolated")))
        return unsupported(get(at, r->tmp, "behavior"), behavior,
                           "Isolated and Removed are read", r->err);
    const kvm_step step = {.kind = KVM_STEP_REGEX,
                           .drop_match = removed && !invert,
                           .drop_rest = removed && invert};
    return add_step(r, at, step, pattern, literal.v != NULL);
}

static kvm_status byte_level(reading *r, kvm_jat at)
{
    bool prefix, regex;
    TRY(kvm_json_bool_or(get(at, r->tmp, "add_prefix_space"), true, &prefix, r->err));
    TRY(kvm_json_bool_or(get(at, r->tmp, "use_regex"), true, &regex, r->err));
    if (prefix)
        TRY(add_step(r, at, (kvm_step){.kind = KVM_STEP_PREFIX}, (kvm_str){0}, false));
    if (regex)
        TRY(add_step(r, at, (kvm_step){.kind = KVM_STEP_REGEX},
                     kvm_str_of(kvm_pattern_by_name("gpt2")->text), false));
    r->byte_level = true;
    return KVM_OK;
}

static kvm_status pre_tokenizer(reading *r, kvm_jat at, kvm_str type)
{
    if (r->byte_level)
        return unsupported(at, type, "nothing may follow ByteLevel", r->err);
    if (kvm_str_eq(type, KVM_STR("Split"))) return split(r, at);
    if (kvm_str_eq(type, KVM_STR("ByteLevel"))) return byte_level(r, at);
    if (!kvm_str_eq(type, KVM_STR("Digits")))
        return unsupported(at, type, "Split, Digits and ByteLevel are read", r->err);
    kvm_step step = {.kind = KVM_STEP_DIGITS};
    TRY(kvm_json_bool_or(get(at, r->tmp, "individual_digits"), false, &step.each,
                         r->err));
    return add_step(r, at, step, (kvm_str){0}, false);
}

static kvm_status decoder(reading *r, kvm_jat at, kvm_str type)
{
    if (kvm_str_eq(type, KVM_STR("ByteLevel"))) return KVM_OK;
    return unsupported(at, type, "ByteLevel is read", r->err);
}

/* --- post-processor --- */

/* {"SpecialToken": {"id": NAME}} -> the ids that special_tokens gives NAME */
static kvm_status template_token(reading *r, kvm_jat token, kvm_jat specials,
                                 int32_t *to, ptrdiff_t *n)
{
    kvm_str name;
    ptrdiff_t count;
    TRY(kvm_json_str(get(token, r->tmp, "id"), &name, r->err));
    const kvm_str key = kvm_str_copy(r->tmp, name);
    if (!key.at) return kvm_nomem(r->err, r->tmp);
    TRY(kvm_json_object(specials, r->err));
    const kvm_jat ids = get(get(specials, r->tmp, key.at), r->tmp, "ids");
    TRY(kvm_json_array(ids, &count, r->err));
    for (ptrdiff_t i = 0; i < count; i++) {
        int64_t id;
        const kvm_jat at = kvm_json_item(ids, r->tmp, i);
        TRY(kvm_json_i64(at, &id, r->err));
        if (id < 0 || id >= r->t->size || !kvm_tokenizer_piece(r->t, (int32_t)id).at)
            return kvm_fail(r->err, KVM_FORMAT, "%s: %s: no token has id %lld", at.file,
                            at.path, (long long)id);
        if (to) to[*n] = (int32_t)id;
        ++*n;
    }
    return KVM_OK;
}

/* The ids of the special tokens before ($A not yet seen) or after the text; to may be
 * NULL, to count. */
static kvm_status template_side(reading *r, kvm_jat at, bool after, int32_t *to,
                                ptrdiff_t *n)
{
    ptrdiff_t parts;
    bool seen = false;
    const kvm_jat single = get(at, r->tmp, "single");
    TRY(kvm_json_array(single, &parts, r->err));
    *n = 0;
    for (ptrdiff_t i = 0; i < parts; i++) {
        const kvm_jat part = kvm_json_item(single, r->tmp, i);
        TRY(kvm_json_object(part, r->err));
        const kvm_jat token = get(part, r->tmp, "SpecialToken");
        if (token.v && seen == after)
            TRY(template_token(r, token, get(at, r->tmp, "special_tokens"), to, n));
        seen = seen || get(part, r->tmp, "Sequence").v;
    }
    return KVM_OK;
}

static kvm_status side(reading *r, kvm_jat at, bool after, int32_t **ids, ptrdiff_t *n)
{
    TRY(template_side(r, at, after, NULL, n));
    *ids = kvm_new(r->keep, int32_t, *n);
    if (!*ids) return kvm_nomem(r->err, r->keep);
    return template_side(r, at, after, *ids, n);
}

static kvm_status post_processor(reading *r, kvm_jat at, kvm_str type)
{
    if (kvm_str_eq(type, KVM_STR("ByteLevel"))) return KVM_OK; /* offsets only */
    if (!kvm_str_eq(type, KVM_STR("TemplateProcessing")))
        return unsupported(at, type, "TemplateProcessing and ByteLevel are read",
                           r->err);
    if (r->t->n_prefix || r->t->n_suffix)
        return unsupported(at, type, "there is one before it", r->err);
    TRY(side(r, at, false, &r->t->prefix, &r->t->n_prefix));
    return side(r, at, true, &r->t->suffix, &r->t->n_suffix);
}

kvm_status kvm_tokenizer__read_json(kvm_tokenizer *t, kvm_arena *keep, kvm_jat root,
                                    kvm_arena *tmp, kvm_err *err)
{
    reading r = {.t = t, .keep = keep, .tmp = tmp, .err = err};
    TRY(kvm_json_object(root, err));
    TRY(model(t, keep, get(root, tmp, "model"), tmp, err));
    TRY(added_tokens(t, keep, get(root, tmp, "added_tokens"), tmp, err));
    TRY(each_part(&r, get(root, tmp, "normalizer"), "normalizers", normalizer));
    TRY(each_part(&r, get(root, tmp, "pre_tokenizer"), "pretokenizers", pre_tokenizer));
    if (!r.byte_level)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%s: the pre_tokenizer has no ByteLevel: this is not a "
                        "byte-level BPE, the only kind that is read",
                        root.file);
    TRY(each_part(&r, get(root, tmp, "post_processor"), "processors", post_processor));
    return each_part(&r, get(root, tmp, "decoder"), "decoders", decoder);
}
