/* Small tokenizers: how they cut, what is refused and why, where two differ. Files and
 * their forms: test_tokenizer_files.c; ids of real ones: tests/golden. */
#include <stdio.h>
#include <string.h>

#include "models/tokenizer_internal.h"
#include "tests/support/check.h"

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
        cmocka_unit_test(first_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
