/* Tokenizers that are wrong, each refused with its place; what stands beside one in a
 * checkpoint; the same tokenizer in its three forms. Ids themselves: tests/golden. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "models/tokenizer_internal.h"
#include "tests/support/check.h"

#define GOLDEN "tests/golden/tokenizers/"
#define TMP "build/tmp/tokenizer/"

/* --- small tokenizer.json files --- */

typedef struct parts {
    const char *model, *vocab, *merges, *added, *normalizer, *pre, *post, *decoder;
} parts;

#define VOCAB "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\xc4\xa0\":5"
#define BYTE_LEVEL                                                                     \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"

static kvm_str json_of(kvm_arena *a, parts p)
{
    const kvm_str s = kvm_str_fmt(
        a,
        "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
        "\"post_processor\":%s,\"decoder\":%s,\"model\":{\"type\":\"BPE\",%s"
        "\"vocab\":{%s},\"merges\":%s}}",
        p.added ? p.added : "[]", p.normalizer ? p.normalizer : "null",
        p.pre ? p.pre : BYTE_LEVEL, p.post ? p.post : "null",
        p.decoder ? p.decoder : "null", p.model ? p.model : "",
        p.vocab ? p.vocab : VOCAB, p.merges ? p.merges : "[\"a b\",[\"ab\",\"c\"]]");
    assert_non_null(s.at);
    return s;
}

static kvm_status load(kvm_tokenizer **t, kvm_arena *a, parts p, kvm_err *err)
{
    *err = (kvm_err){0};
    return kvm_tokenizer__parse_json(t, a, json_of(a, p), KVM_STR("t.json"), err);
}

static void ids_of(const kvm_tokenizer *t, kvm_arena *a, const char *text,
                   const kvm_encode_options *o, char out[256])
{
    kvm_err err = {0};
    kvm_encoder *e;
    int32_t *ids;
    ptrdiff_t n;
    int at = 0;
    check_ok(kvm_encoder_new(&e, a, t, &err), &err);
    check_ok(kvm_encode(e, kvm_str_of(text), o, a, &ids, &n, &err), &err);
    out[0] = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        at += snprintf(out + at, 256 - (size_t)at, i ? " %d" : "%d", (int)ids[i]);
}

static void check_ids(const kvm_tokenizer *t, kvm_arena *a, const char *text,
                      const char *want)
{
    char got[256];
    ids_of(t, a, text, NULL, got);
    assert_string_equal(got, want);
}

static void small_ones(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    check_ok(load(&t, &a, (parts){0}, &err), &err);
    assert_int_equal(kvm_tokenizer_size(t), 6);
    check_ids(t, &a, "abcab cb", "4 3 5 2 1");
    check_ids(t, &a, "", "");
    check_ids(t, &a, "xaxb",
              "3"); /* a byte that is missing is left out, first of all */
    check_ok(load(&t, &a, (parts){.model = "\"unk_token\":\"c\","}, &err), &err);
    check_ids(t, &a, "xxaxb", "2 2 0 2 1"); /* or becomes unk, one by one */
    check_ok(
        load(&t, &a, (parts){.model = "\"unk_token\":\"c\",\"fuse_unk\":true,"}, &err),
        &err);
    check_ids(t, &a, "xxaxb", "2 0 2 1");
    check_ok(
        load(&t, &a, (parts){.merges = "[\"b c\"]", .vocab = VOCAB ",\"bc\":9"}, &err),
        &err);
    assert_int_equal(kvm_tokenizer_size(t), 10); /* with holes */
    assert_null(kvm_tokenizer_piece(t, 8).at);
    assert_null(kvm_tokenizer_piece(t, -1).at);
    assert_null(kvm_tokenizer_piece(t, 10).at);
    check_str(kvm_tokenizer_piece(t, 5), " ");
    check_ids(t, &a, "abc", "0 9");
    check_ok(
        load(&t, &a, (parts){.merges = "[]", .model = "\"ignore_merges\":true,"}, &err),
        &err);
    check_ids(t, &a, "abc ab", "4 5 0 1");
    kvm_arena_free(&a);
}

static void around_a_text(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    char got[256];
    const char *added = "[{\"id\":6,\"content\":\"<s>\",\"special\":true},"
                        "{\"id\":7,\"content\":\"</s>\",\"special\":true},"
                        "{\"id\":8,\"content\":\"<x>\"}]";
    const char *post =
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>"
        "\"}}"
        ",{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}],"
        "\"special_tokens\":{\"<s>\":{\"ids\":[6]},\"</s>\":{\"ids\":[7]}}}";
    check_ok(load(&t, &a, (parts){.added = added, .post = post}, &err), &err);
    ids_of(t, &a, "a<s>b", &(kvm_encode_options){.add_bos = true}, got);
    assert_string_equal(got, "6 0 6 1 7");
    ids_of(t, &a, "a<s>b<x>", &(kvm_encode_options){.plain_specials = true}, got);
    assert_string_equal(got, "0 1 8"); /* < s > are no tokens here; <x> is no special */
    assert_true(kvm_tokenizer_is_special(t, 6) && !kvm_tokenizer_is_special(t, 8));
    assert_int_equal(kvm_tokenizer_special(t, KVM_STR("</s>")), 7);
    assert_int_equal(kvm_tokenizer_special(t, KVM_STR("ab")), -1);
    const int32_t ids[] = {6, 4, 8, 7};
    kvm_str back;
    check_ok(kvm_decode(t, ids, 4, false, &a, &back, &err), &err);
    check_str(back, "<s>abc<x></s>");
    check_ok(kvm_decode(t, ids, 4, true, &a, &back, &err), &err);
    check_str(back, "abc<x>");
    const int32_t none[] = {0, 99};
    check_status(KVM_RANGE, kvm_decode(t, none, 2, false, &a, &back, &err), &err);
    check_contains(err.msg, "99");
    kvm_arena_free(&a);
}

#define ADDED(id, content) "[{\"id\":" id ",\"content\":\"" content "\"}]"
#define SPLIT(pattern)                                                                 \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"      \
    "\"Regex\":\"" pattern                                                             \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}"
#define TEMPLATE(ids)                                                                  \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]," \
    "\"special_tokens\":" ids "}"

static const struct {
    kvm_status status;
    const char *says;
    parts p;
} wrong[] = {
    {KVM_UNSUPPORTED, "WordPiece", {.model = "\"type\":\"WordPiece\","}},
    {KVM_UNSUPPORTED, "model.type: null", {.model = "\"type\":null,"}},
    {KVM_FORMAT, "model.type: expected a string", {.model = "\"type\":[],"}},
    {KVM_UNSUPPORTED, "dropout", {.model = "\"dropout\":0.1,"}},
    {KVM_UNSUPPORTED, "SentencePiece", {.model = "\"byte_fallback\":true,"}},
    {KVM_UNSUPPORTED, "##", {.model = "\"continuing_subword_prefix\":\"##\","}},
    {KVM_UNSUPPORTED, "</w>", {.model = "\"end_of_word_suffix\":\"</w>\","}},
    {KVM_FORMAT, "unk_token \"zz\"", {.model = "\"unk_token\":\"zz\","}},
    {KVM_FORMAT, "fuse_unk", {.model = "\"fuse_unk\":3,"}},
    {KVM_FORMAT, "share id 1", {.vocab = "\"a\":1,\"b\":1", .merges = "[]"}},
    {KVM_FORMAT, "duplicate", {.vocab = "\"a\":0,\"a\":1", .merges = "[]"}},
    {KVM_FORMAT, "id -1", {.vocab = "\"a\":-1", .merges = "[]"}},
    {KVM_FORMAT, "id 1000000000", {.vocab = "\"a\":1000000000", .merges = "[]"}},
    {KVM_FORMAT,
     "\"b\" is no integer",
     {.vocab = "\"a\":0,\"b\":\"1\"", .merges = "[]"}},
    {KVM_FORMAT, "\"a\" is no integer", {.vocab = "\"a\":1e300", .merges = "[]"}},
    {KVM_FORMAT, "merge 2 needs the token \"q\"", {.merges = "[\"a b\",\"a q\"]"}},
    {KVM_FORMAT, "needs the token \"ba\"", {.merges = "[\"b a\"]"}},
    {KVM_FORMAT, "merge 1", {.merges = "[\"ab\"]"}},
    {KVM_FORMAT, "merge 1", {.merges = "[\"a b c\"]"}},
    {KVM_FORMAT, "merge 1", {.merges = "[\" a\"]"}},
    {KVM_FORMAT, "not a pair", {.merges = "[[\"a\",\"b\",\"c\"]]"}},
    {KVM_FORMAT, "not a pair", {.merges = "[[\"a\",1]]"}},
    {KVM_FORMAT, "not a pair", {.merges = "[7]"}},
    {KVM_FORMAT, "model.merges", {.merges = "{}"}},
    {KVM_FORMAT, "model.merges: is missing", {.merges = "null"}},
    {KVM_FORMAT, "has no text", {.added = ADDED("6", "")}},
    {KVM_FORMAT, "but 3 in the vocabulary", {.added = ADDED("6", "ab")}},
    {KVM_FORMAT, "another text", {.added = ADDED("3", "<s>")}},
    {KVM_FORMAT,
     "id 1099511627776, which is not in 0",
     {.added = ADDED("1099511627776", "<s>")}},
    {KVM_FORMAT, "id -5, which is not in 0", {.added = ADDED("-5", "<s>")}},
    {KVM_FORMAT,
     "two added tokens have id 6",
     {.added = "[{\"id\":6,\"content\":\"x\"},{\"id\":6,\"content\":\"y\"}]"}},
    {KVM_FORMAT,
     "are both \"x\"",
     {.added = "[{\"id\":6,\"content\":\"x\"},{\"id\":7,\"content\":\"x\"}]"}},
    {KVM_FORMAT, "added_tokens[0].id", {.added = "[{\"content\":\"x\"}]"}},
    {KVM_FORMAT, "added_tokens[0]", {.added = "[3]"}},
    {KVM_UNSUPPORTED, "Lowercase", {.normalizer = "{\"type\":\"Lowercase\"}"}},
    {KVM_UNSUPPORTED,
     "NFKC",
     {.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                    "{\"type\":\"NFKC\"}]}"}},
    {KVM_FORMAT, "normalizer.type", {.normalizer = "{}"}},
    {KVM_UNSUPPORTED, "no ByteLevel", {.pre = "null"}},
    {KVM_UNSUPPORTED, "Metaspace", {.pre = "{\"type\":\"Metaspace\"}"}},
    {KVM_UNSUPPORTED,
     "may follow",
     {.pre =
          "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]}"}},
    {KVM_FORMAT, "missing closing parenthesis", {.pre = SPLIT("a(b")}},
    {KVM_FORMAT, "quantifier", {.pre = SPLIT("a**|*")}},
    {KVM_UNSUPPORTED, "pretokenizers[0]", {.pre = SPLIT("[a[bc]]")}},
    {KVM_UNSUPPORTED, "intersection", {.pre = SPLIT("[a-z&&b]")}},
    {KVM_UNSUPPORTED, "\\b", {.pre = SPLIT("\\\\b")}},
    {KVM_UNSUPPORTED, "\"Latin\"", {.pre = SPLIT("\\\\p{Latin}")}},
    {KVM_UNSUPPORTED, "brace", {.pre = SPLIT("\\\\p{L")}},
    {KVM_UNSUPPORTED, "repeat", {.pre = SPLIT("a{2,3}+")}},
    {KVM_UNSUPPORTED, "repeat", {.pre = SPLIT("a{2}?")}},
    {KVM_UNSUPPORTED, "group", {.pre = SPLIT("a(?i)b")}},
    {KVM_UNSUPPORTED, "group", {.pre = SPLIT("(?<n>b)")}},
    {KVM_UNSUPPORTED, "class", {.pre = SPLIT("[]a]")}},
    {KVM_UNSUPPORTED, "its end", {.pre = SPLIT("[a")}},
    {KVM_UNSUPPORTED, "code", {.pre = SPLIT("\\\\x{110000}")}},
    {KVM_UNSUPPORTED, "code", {.pre = SPLIT("\\\\ud800")}},
    {KVM_UNSUPPORTED, "code", {.pre = SPLIT("\\\\xe9")}},
    {KVM_FORMAT, "empty pattern", {.pre = SPLIT("")}},
    {KVM_FORMAT, "too large", {.pre = SPLIT("((a{1,60000}){1,60000})")}},
    {KVM_UNSUPPORTED, "Roberta", {.post = "{\"type\":\"RobertaProcessing\"}"}},
    {KVM_FORMAT, "special_tokens.x.ids", {.post = TEMPLATE("{}")}},
    {KVM_FORMAT, "no token has id 77", {.post = TEMPLATE("{\"x\":{\"ids\":[77]}}")}},
    {KVM_UNSUPPORTED, "WordPiece", {.decoder = "{\"type\":\"WordPiece\"}"}},
};

static void what_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        kvm_arena a = check_arena((size_t)1 << 28);
        kvm_err err;
        kvm_tokenizer *t = NULL;
        parts p = wrong[i].p;
        const bool retyped = p.model && strncmp(p.model, "\"type\"", 6) == 0;
        if (retyped) { /* the type stands once only */
            const kvm_str json =
                kvm_str_fmt(&a, "{\"model\":{%s\"vocab\":{}}}", p.model);
            err = (kvm_err){0};
            check_status(
                wrong[i].status,
                kvm_tokenizer__parse_json(&t, &a, json, KVM_STR("t.json"), &err), &err);
        } else {
            check_status(wrong[i].status, load(&t, &a, p, &err), &err);
        }
        check_contains(err.msg, "t.json");
        check_contains(err.msg, wrong[i].says);
        assert_null(t);
        kvm_arena_free(&a);
    }
}

/* however long what is quoted, the message says where it stands and what is wrong */
static void quotes_are_short(void **state)
{
    (void)state;
    enum { LONG = 2000000 };
    kvm_arena a = check_arena((size_t)1 << 28);
    char *x = kvm_new(&a, char, LONG + 1);
    memset(x, 'x', LONG);
    const struct {
        kvm_status status;
        const char *says;
        parts p;
    } all[] = {
        {KVM_FORMAT,
         "..\" is not a regular expression: missing closing",
         {.pre = kvm_str_fmt(&a, SPLIT("%s("), x).at}},
        {KVM_UNSUPPORTED,
         "...\": the escape at character 2000001 is not supported",
         {.pre = kvm_str_fmt(&a, SPLIT("%s\\\\b"), x).at}},
        {KVM_FORMAT,
         "...\" has id 99999999, which",
         {.added = kvm_str_fmt(&a, ADDED("99999999", "%s"), x).at}},
        {KVM_UNSUPPORTED,
         "... is not supported; NFC",
         {.normalizer = kvm_str_fmt(&a, "{\"type\":\"%s\"}", x).at}},
        {KVM_FORMAT,
         "...\", which is not in the vocabulary",
         {.merges = kvm_str_fmt(&a, "[[\"%s\",\"b\"]]", x).at}},
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        kvm_err err;
        kvm_tokenizer *t;
        check_status(all[i].status, load(&t, &a, all[i].p, &err), &err);
        check_contains(err.msg, all[i].says);
        assert_true(strlen(err.msg) < 300);
    }
    kvm_arena_free(&a);
}

static void a_pattern_that_explodes(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    kvm_encoder *e;
    int32_t *ids;
    ptrdiff_t n;
    check_ok(load(&t, &a, (parts){.pre = SPLIT("(a|a)*(b|bb)*$")}, &err), &err);
    check_ok(kvm_encoder_new(&e, &a, t, &err), &err);
    const kvm_str text = KVM_STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac");
    check_status(KVM_RANGE, kvm_encode(e, text, NULL, &a, &ids, &n, &err), &err);
    check_contains(err.msg, "gave up");
    kvm_arena_free(&a);
}

/* --- files and folders --- */

static kvm_status open_at(kvm_tokenizer **t, kvm_arena *a, const char *path,
                          kvm_err *err)
{
    *err = (kvm_err){0};
    return kvm_tokenizer_open(t, a, kvm_str_of(path), err);
}

static void what_is_no_tokenizer(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    check_tmpdir("tokenizer");
    check_status(KVM_NOTFOUND, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "merges.txt");
    check_write(TMP "tokenizer.model", KVM_STR("x"));
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP, &err), &err);
    check_status(KVM_USAGE, open_at(&t, &a, TMP "tokenizer.model", &err), &err);
    check_status(KVM_NOTFOUND, open_at(&t, &a, TMP "none.json", &err), &err);
    check_write(TMP "bad.json", KVM_STR("{\"model\": [}"));
    check_status(KVM_FORMAT, open_at(&t, &a, TMP "bad.json", &err), &err);
    check_write(TMP "bad.gguf", KVM_STR("GGUF"));
    check_status(KVM_FORMAT, open_at(&t, &a, TMP "bad.gguf", &err), &err);
    kvm_arena_free(&a);
}

static void what_stands_beside(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 29);
    kvm_err err;
    kvm_tokenizer *t;
    check_tmpdir("tokenizer");
    check_write(TMP "tokenizer.json", check_read(&a, GOLDEN "llama3.json"));
    check_ok(open_at(&t, &a, TMP, &err), &err); /* alone: what encoding adds */
    const int32_t bos = kvm_tokenizer_special(t, KVM_STR("<|begin_of_text|>"));
    const int32_t eot = kvm_tokenizer_special(t, KVM_STR("<|eot_id|>"));
    assert_int_equal(kvm_tokenizer_bos(t), bos);
    assert_int_equal(kvm_tokenizer_eos(t), -1);
    assert_true(kvm_tokenizer_stops(t, eot) && !kvm_tokenizer_stops(t, 7));

    check_write(TMP "config.json",
                KVM_STR("{\"bos_token_id\":3,\"eos_token_id\":[5,6]}"));
    check_ok(open_at(&t, &a, TMP, &err), &err);
    assert_int_equal(kvm_tokenizer_bos(t), 3);
    assert_int_equal(kvm_tokenizer_eos(t), 5);
    assert_true(kvm_tokenizer_stops(t, 6) && !kvm_tokenizer_stops(t, 7));

    check_write(TMP "generation_config.json", KVM_STR("{\"eos_token_id\":7}"));
    check_write(
        TMP "tokenizer_config.json",
        KVM_STR("{\"bos_token\":null,\"eos_token\":{\"content\":\"<|eot_id|>\"},"
                "\"chat_template\":[{\"name\":\"tool\",\"template\":\"x\"},"
                "{\"name\":\"default\",\"template\":\"y\"}]}"));
    check_ok(open_at(&t, &a, TMP "tokenizer.json", &err), &err); /* its folder's */
    assert_int_equal(kvm_tokenizer_bos(t), -1);
    assert_int_equal(kvm_tokenizer_eos(t), eot);
    assert_true(kvm_tokenizer_stops(t, 7) && kvm_tokenizer_stops(t, 6));
    check_str(kvm_tokenizer_chat_template(t), "y");

    check_write(TMP "tokenizer_config.json", KVM_STR("{\"eos_token\":\"<nix>\"}"));
    check_status(KVM_FORMAT, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "<nix>");
    kvm_arena_free(&a);
}

/* --- one tokenizer, three forms --- */

static kvm_jat golden(kvm_arena *a, const char *name)
{
    kvm_err err = {0};
    kvm_jat root;
    const kvm_str path = kvm_str_fmt(a, GOLDEN "%s.json", name);
    check_ok(kvm_json_read(&root, a, path, &err), &err);
    return root;
}

static kvm_tokenizer *open_golden(kvm_arena *a, const char *name)
{
    kvm_err err;
    kvm_tokenizer *t;
    check_ok(open_at(&t, a, kvm_str_fmt(a, GOLDEN "%s.json", name).at, &err), &err);
    return t;
}

/* merge i as "left right" */
static kvm_str merge_at(kvm_arena *a, kvm_jat merges, ptrdiff_t i)
{
    const json_t *m = json_array_get(merges.v, (size_t)i);
    if (json_is_string(m)) return kvm_str_of(json_string_value(m));
    return kvm_str_fmt(a, "%s %s", json_string_value(json_array_get(m, 0)),
                       json_string_value(json_array_get(m, 1)));
}

static void add_text(kvm_text *f, kvm_str s)
{
    const uint64_t n = (uint64_t)s.len;
    kvm_text_add(f, (kvm_str){(const char *)&n, 8});
    kvm_text_add(f, s);
}

static void add_u32(kvm_text *f, uint32_t v)
{
    kvm_text_add(f, (kvm_str){(const char *)&v, 4});
}

static void add_u64(kvm_text *f, uint64_t v)
{
    kvm_text_add(f, (kvm_str){(const char *)&v, 8});
}

static void add_key_text(kvm_text *f, const char *key, const char *value)
{
    add_text(f, kvm_str_of(key));
    add_u32(f, 8);
    add_text(f, kvm_str_of(value));
}

static void begin_array(kvm_text *f, const char *key, uint32_t type, ptrdiff_t n)
{
    add_text(f, kvm_str_of(key));
    add_u32(f, 9);
    add_u32(f, type);
    add_u64(f, (uint64_t)n);
}

/* the golden tokenizer as a GGUF file; ids without a token become UNUSED ones. `pre`
 * NULL: no such key */
static void write_gguf(kvm_arena *a, kvm_jat root, const kvm_tokenizer *t,
                       const char *model, const char *pre, const char *path)
{
    kvm_text f = {0};
    kvm_err err = {0};
    ptrdiff_t n;
    const ptrdiff_t size = kvm_tokenizer_size(t);
    const kvm_jat m = kvm_json_get(root, a, "model"),
                  merges = kvm_json_get(m, a, "merges");
    const json_t *vocab = kvm_json_get(m, a, "vocab").v;
    kvm_str *text = kvm_new(a, kvm_str, size);
    uint32_t *type = kvm_new(a, uint32_t, size);
    const char *key;
    json_t *id;
    json_t *mutable = json_deep_copy(vocab);
    json_object_foreach(mutable, key, id)
    {
        text[json_integer_value(id)] = kvm_str_copy(a, kvm_str_of(key));
        type[json_integer_value(id)] = 1;
    }
    json_decref(mutable);
    for (ptrdiff_t i = 0; i < t->n_added; i++) {
        text[t->added[i].id] = t->added[i].content;
        type[t->added[i].id] = t->added[i].special ? 3 : 4;
    }
    kvm_text_add(&f, KVM_STR("GGUF"));
    add_u32(&f, 3);
    add_u64(&f, 0);
    add_u64(&f, 6 + (pre != NULL));
    add_key_text(&f, "tokenizer.ggml.model", model);
    if (pre) add_key_text(&f, "tokenizer.ggml.pre", pre);
    add_key_text(&f, "tokenizer.chat_template", "{{ messages }}");
    begin_array(&f, "tokenizer.ggml.tokens", 8, size);
    for (ptrdiff_t i = 0; i < size; i++)
        add_text(&f, text[i].at ? text[i] : KVM_STR("[PAD]"));
    begin_array(&f, "tokenizer.ggml.token_type", 5, size);
    for (ptrdiff_t i = 0; i < size; i++) add_u32(&f, type[i] ? type[i] : 5);
    check_ok(kvm_json_array(merges, &n, &err), &err);
    begin_array(&f, "tokenizer.ggml.merges", 8, n);
    for (ptrdiff_t i = 0; i < n; i++) add_text(&f, merge_at(a, merges, i));
    const int32_t bos = t->n_prefix ? t->prefix[0] : 0;
    add_text(&f, KVM_STR("tokenizer.ggml.bos_token_id"));
    add_u32(&f, 4);
    add_u32(&f, (uint32_t)bos);
    assert_false(f.failed);
    check_write(path, kvm_text_str(&f));
    kvm_text_free(&f);
}

static void inside_gguf(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"llama3", "llama-bpe"}, {"qwen2", "qwen2"},
                                          {"tekken", "tekken"},    {"smollm", "smollm"},
                                          {"gpt2", "gpt-2"},       {"gpt2", NULL}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_arena a = check_arena((size_t)1 << 29);
        kvm_err err;
        kvm_tokenizer *json = open_golden(&a, rows[i][0]), *gguf;
        check_tmpdir("tokenizer");
        write_gguf(&a, golden(&a, rows[i][0]), json, "gpt2", rows[i][1], TMP "t.gguf");
        check_ok(open_at(&gguf, &a, TMP "t.gguf", &err), &err);
        check_ok(kvm_tokenizer_differ(json, gguf, &err), &err);
        assert_string_equal(kvm_tokenizer_hash(json), kvm_tokenizer_hash(gguf));
        check_str(kvm_tokenizer_chat_template(gguf), "{{ messages }}");
        kvm_arena_free(&a);
    }
}

static void bad_gguf(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 29);
    kvm_err err;
    kvm_tokenizer *json = open_golden(&a, "gpt2"), *t;
    check_tmpdir("tokenizer");
    write_gguf(&a, golden(&a, "gpt2"), json, "llama", "default", TMP "t.gguf");
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP "t.gguf", &err), &err);
    check_contains(err.msg, "SentencePiece");
    write_gguf(&a, golden(&a, "gpt2"), json, "bert", "default", TMP "t.gguf");
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP "t.gguf", &err), &err);
    check_contains(err.msg, "\"bert\"");
    write_gguf(&a, golden(&a, "gpt2"), json, "gpt2", "wavelet", TMP "t.gguf");
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP "t.gguf", &err), &err);
    check_contains(err.msg, "\"wavelet\"");
    write_gguf(&a, golden(&a, "gpt2"), json, "gpt2", "qwen", TMP "t.gguf");
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP "t.gguf", &err), &err);
    kvm_arena_free(&a);
}

static void as_vocab_and_merges(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 29);
    kvm_err err = {0};
    kvm_text merges = {0}, config = {0};
    kvm_str vocab;
    ptrdiff_t n;
    kvm_tokenizer *json = open_golden(&a, "qwen2"), *t;
    const kvm_jat root = golden(&a, "qwen2"), m = kvm_json_get(root, &a, "model");
    const kvm_jat list = kvm_json_get(m, &a, "merges");
    check_ok(kvm_json_pretty(&vocab, &a, kvm_json_get(m, &a, "vocab").v, &err), &err);
    check_ok(kvm_json_array(list, &n, &err), &err);
    kvm_text_add(&merges, KVM_STR("#version: 0.2\n"));
    for (ptrdiff_t i = 0; i < n; i++)
        kvm_text_addf(&merges, "%s%s", merge_at(&a, list, i).at, i % 2 ? "\n" : "\r\n");
    kvm_text_add(&config, KVM_STR("{\"tokenizer_class\":\"Qwen2Tokenizer\","
                                  "\"added_tokens_decoder\":{"));
    for (ptrdiff_t i = 0; i < json->n_added; i++)
        kvm_text_addf(
            &config,
            "%s\"%d\":{\"content\":\"%s\",\"special\":%s,\"normalized\":false}",
            i ? "," : "", (int)json->added[i].id, json->added[i].content.at,
            json->added[i].special ? "true" : "false");
    kvm_text_add(&config, KVM_STR("}}"));
    check_tmpdir("tokenizer");
    check_write(TMP "vocab.json", vocab);
    check_write(TMP "merges.txt", kvm_text_str(&merges));
    check_write(TMP "tokenizer_config.json", kvm_text_str(&config));
    check_ok(open_at(&t, &a, TMP, &err), &err);
    check_ok(kvm_tokenizer_differ(json, t, &err), &err);
    check_write(TMP "tokenizer_config.json",
                KVM_STR("{\"tokenizer_class\":\"BertTokenizer\","
                        "\"added_tokens_decoder\":{}}"));
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "BertTokenizer");
    check_write(TMP "tokenizer_config.json",
                KVM_STR("{\"tokenizer_class\":\"Qwen2Tokenizer\","
                        "\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}"));
    check_status(KVM_FORMAT, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "\"x\" is no id");
    kvm_text_free(&merges);
    kvm_text_free(&config);
    kvm_arena_free(&a);
}

static void first_difference(void **state)
{
    (void)state;
    static const struct {
        parts p;
        const char *says;
    } rows[] = {
        {{.vocab = "\"a\":0,\"c\":1,\"b\":2,\"ab\":3,\"abc\":4,\"x\":5"}, "token 1 "},
        {{.vocab = VOCAB ",\"zz\":7"}, "number of ids is 6"},
        {{.merges = "[\"a b\"]"}, "number of merges"},
        {{.merges = "[[\"ab\",\"c\"],\"a b\"]"}, "merge 1 "},
        {{.normalizer = "{\"type\":\"NFC\"}"}, "NFC"},
        {{.model = "\"ignore_merges\":true,"}, "ignore_merges"},
        {{.model = "\"unk_token\":\"a\","}, "unk_token"},
        {{.pre = SPLIT("x")}, "pre-tokenizer 1 "},
        {{.added = ADDED("3", "ab")}, "token 3 \"ab\" is added"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
                  "\"id\":\"a\"}}],\"special_tokens\":{\"a\":{\"ids\":[0]}}}"},
         "around a text"},
    };
    kvm_arena a = check_arena((size_t)1 << 30);
    kvm_err err;
    kvm_tokenizer *t, *other;
    check_ok(load(&t, &a, (parts){0}, &err), &err);
    for (size_t i = 0; i < COUNT(rows); i++) {
        check_ok(load(&other, &a, rows[i].p, &err), &err);
        check_status(KVM_MISMATCH, kvm_tokenizer_differ(t, other, &err), &err);
        check_contains(err.msg, rows[i].says);
        assert_string_not_equal(kvm_tokenizer_hash(t), kvm_tokenizer_hash(other));
    }
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones),
        cmocka_unit_test(around_a_text),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(quotes_are_short),
        cmocka_unit_test(a_pattern_that_explodes),
        cmocka_unit_test(what_is_no_tokenizer),
        cmocka_unit_test(what_stands_beside),
        cmocka_unit_test(inside_gguf),
        cmocka_unit_test(bad_gguf),
        cmocka_unit_test(as_vocab_and_merges),
        cmocka_unit_test(first_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
