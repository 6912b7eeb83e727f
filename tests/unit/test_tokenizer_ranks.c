/* Small tokenizers made of ranks (tiktoken.model, tekken.json): how they merge and what
 * is refused; and patterns that take one class from another. Ids of larger ones:
 * tests/golden. */
#include <stdio.h>
#include <string.h>

#include "models/tokenizer_internal.h"
#include "tests/support/check.h"

static void put_base64(kvm_text *to, kvm_str bytes)
{
    const char *abc =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (ptrdiff_t i = 0; i < bytes.len; i += 3) {
        unsigned v = 0;
        const ptrdiff_t n = bytes.len - i < 3 ? bytes.len - i : 3;
        for (ptrdiff_t k = 0; k < 3; k++)
            v = v << 8 | (k < n ? (unsigned char)bytes.at[i + k] : 0);
        for (int k = 0; k < 4; k++)
            kvm_text_addf(to, "%c", k <= n ? abc[v >> (18 - 6 * k) & 63] : '=');
    }
}

/* lines for all bytes but `without`, then for the words, then `more` as it is */
static kvm_str model_of(kvm_arena *a, int without, const char *const *words, int n,
                        const char *more)
{
    kvm_text f = {0};
    int rank = 0;
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        if (i == without) continue;
        put_base64(&f, (kvm_str){&byte, 1});
        kvm_text_addf(&f, " %d\n", rank++);
    }
    for (int i = 0; i < n; i++) {
        put_base64(&f, kvm_str_of(words[i]));
        kvm_text_addf(&f, " %d\n", rank++);
    }
    kvm_text_add(&f, kvm_str_of(more));
    const kvm_str s = kvm_str_copy(a, kvm_text_str(&f));
    assert_non_null(s.at);
    kvm_text_free(&f);
    return s;
}

#define NAMES(list) "{\"added_tokens_decoder\":{" list "}}"

static kvm_status load(kvm_tokenizer **t, kvm_arena *a, kvm_str text,
                       const char *config, kvm_err *err)
{
    *err = (kvm_err){0};
    return kvm_tokenizer__parse_tiktoken(t, a, text, kvm_str_of(config),
                                         KVM_STR("t.model"), err);
}

static void check_ids(const kvm_tokenizer *t, kvm_arena *a, const char *text,
                      bool plain, const char *want)
{
    char got[256] = "";
    kvm_err err = {0};
    kvm_encoder *e;
    int32_t *ids;
    ptrdiff_t n;
    int at = 0;
    const kvm_encode_options o = {.add_bos = true, .plain_specials = plain};
    check_ok(kvm_encoder_new(&e, a, t, &err), &err);
    check_ok(kvm_encode(e, kvm_str_of(text), &o, a, &ids, &n, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++)
        at += snprintf(got + at, 256 - (size_t)at, i ? " %d" : "%d", (int)ids[i]);
    assert_string_equal(got, want);
}

static void merging_by_rank(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    /* 256 aa, 257 aaa, 258 bc, 259 ab, 260 abc, 261 xyz (which no merge makes) */
    static const char *const words[] = {"aa", "aaa", "bc", "ab", "abc", "xyz"};
    const kvm_str text = model_of(&a, -1, words, COUNT(words), "\n\r\n");
    check_ok(load(&t, &a, text,
                  NAMES("\"263\":{\"content\":\"ab\"},\"262\":{\"content\":\"<s>\","
                        "\"special\":true}"),
                  &err),
             &err);
    assert_int_equal(kvm_tokenizer_size(t), 262 + 256);
    check_ids(t, &a, "aaaaa", false, "256 257"); /* aa aa a, then aa aaa */
    check_ids(t, &a, "bcbcaxyz", false, "258 258 97 120 121 122");
    check_ids(t, &a, "xyz", false, "261");
    check_ids(t, &a, "<s>ab!<|reserved_token_264|>", false, "262 263 33 264");
    check_ids(t, &a, "<s>abc", true, "60 115 62 260"); /* not even the unspecial */
    assert_true(kvm_tokenizer_is_special(t, 262) && !kvm_tokenizer_is_special(t, 263));
    assert_true(kvm_tokenizer_is_special(t, 264));
    kvm_arena_free(&a);
}

/* A part ends after 400,000 characters and the count of a run begins anew in the next:
 * the ids of a long text are those of its parts. */
static void parts_of_a_long_text(void **state)
{
    (void)state;
    enum { HEAD = 390001, RUN = 60000, N = HEAD + RUN };
    static const ptrdiff_t end[] = {400000, 425000, 450000, N};
    static const char *const words[] = {"qq", "qqqq", " w"};
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    kvm_encoder *e;
    int32_t *ids, *part;
    ptrdiff_t n, n_part, at = 0, begin = 0;
    check_ok(load(&t, &a, model_of(&a, -1, words, COUNT(words), ""), NAMES(""), &err),
             &err);
    check_ok(kvm_encoder_new(&e, &a, t, &err), &err);
    char *text = kvm_new(&a, char, N);
    for (ptrdiff_t i = 0; i < N; i++) text[i] = " wq"[i >= HEAD ? 2 : i % 2];
    check_ok(kvm_encode(e, (kvm_str){text, N}, NULL, &a, &ids, &n, &err), &err);
    for (size_t i = 0; i < COUNT(end); begin = end[i++]) {
        const kvm_str s = kvm_str_slice((kvm_str){text, N}, begin, end[i]);
        check_ok(kvm_encode(e, s, NULL, &a, &part, &n_part, &err), &err);
        assert_true(at + n_part <= n);
        assert_memory_equal(ids + at, part, (size_t)n_part * sizeof *part);
        at += n_part;
    }
    assert_int_equal(at, n);
    kvm_arena_free(&a);
}

static const struct {
    kvm_status status;
    int without;
    const char *more, *config, *says;
} wrong[] = {
    {KVM_FORMAT, -1, "!!!! 256\n", NAMES(""), "t.model:257: \"!!!! 256\""},
    {KVM_FORMAT, -1, "YWE 256\n", NAMES(""), "base64, a space and its rank: fetch"},
    {KVM_FORMAT, -1, "YWF= 256\n", NAMES(""), "t.model:257: "}, /* a bit is left over */
    {KVM_FORMAT, -1, "Y=== 256\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, "YW=E 256\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, " 256\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, "==== 256\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, "YWE=\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, "YWE= x\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, "YWE= 256 7\n", NAMES(""), "t.model:257: "},
    {KVM_FORMAT, -1, "YWE= 257\n", NAMES(""), "t.model:257: the rank 257 stands where"},
    {KVM_FORMAT, -1, "YWE= -1\n", NAMES(""), "256 is due: part of the file is missing"},
    {KVM_FORMAT, -1, "YWE= 256\n\nYWE= 257\n", NAMES(""),
     "t.model:259: token \"aa\" has the ids 256 and 257"},
    {KVM_FORMAT, -1, "YQ== 256\n", NAMES(""), "token \"a\" has the ids 97 and 256"},
    {KVM_FORMAT, 'q', "", NAMES(""), "t.model: the byte 0x71 is no token of its own"},
    {KVM_FORMAT, -1, "", "{}", "added_tokens_decoder"},
    {KVM_FORMAT, -1, "", "[]", "tokenizer_config.json"},
    {KVM_FORMAT, -1, "", NAMES("\"9\":{\"content\":\"x\"}"), "\"9\" is no id behind"},
    {KVM_FORMAT, -1, "", NAMES("\"x\":{\"content\":\"x\"}"), "do not belong together"},
    {KVM_FORMAT, -1, "", NAMES("\"99999999\":{\"content\":\"x\"}"), "\"99999999\""},
    {KVM_FORMAT, -1, "", NAMES("\"300\":{}"), "added_tokens_decoder.300.content"},
    {KVM_FORMAT, -1, "", NAMES("\"300\":7"), "added_tokens_decoder.300"},
    {KVM_FORMAT, -1, "", NAMES("\"300\":{\"content\":\"\"}"), "has no text"},
    {KVM_FORMAT, -1, "",
     NAMES("\"256\":{\"content\":\"x\"},\"257\":{\"content\":\"x\"}"),
     "are both \"x\""},
    {KVM_UNSUPPORTED, -1, "",
     "{\"tokenizer_class\":\"QWenTokenizer\",\"added_tokens_decoder\":{}}",
     "tokenizer_class: tiktoken.model with the pattern of QWenTokenizer"},
};

static void what_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        kvm_arena a = check_arena((size_t)1 << 28);
        kvm_err err;
        kvm_tokenizer *t = NULL;
        const kvm_str text = model_of(&a, wrong[i].without, NULL, 0, wrong[i].more);
        check_status(wrong[i].status, load(&t, &a, text, wrong[i].config, &err), &err);
        check_contains(err.msg, wrong[i].says);
        assert_null(t);
        kvm_arena_free(&a);
    }
}

static void a_token_of_any_length(void **state)
{
    (void)state;
    enum { MOST = KVM_BPE_TOKEN_MAX / 3 * 3 };
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t = NULL;
    char word[MOST + 2] = "";
    const char *const words[] = {word};
    memset(word, ' ', MOST + 1);
    check_status(KVM_FORMAT,
                 load(&t, &a, model_of(&a, -1, words, 1, ""), NAMES(""), &err), &err);
    check_contains(err.msg, "...\" is not a token of 1 to 2046 bytes");
    word[MOST] = 0;
    check_ok(load(&t, &a, model_of(&a, -1, words, 1, ""), NAMES(""), &err), &err);
    check_ids(t, &a, word, false, "256");
    kvm_arena_free(&a);
}

/* --- tekken.json --- */

typedef struct tekken {
    const char *config, *specials, *pattern, *last; /* NULL: the usual */
} tekken;

static kvm_status load_tekken(kvm_tokenizer **t, kvm_arena *a, tekken k, kvm_err *err)
{
    kvm_text f = {0};
    *err = (kvm_err){0};
    kvm_text_addf(&f, "{\"config\":{%s,\"pattern\":\"%s\"},\"special_tokens\":%s",
                  k.config ? k.config
                           : "\"default_num_special_tokens\":3,"
                             "\"default_vocab_size\":260,\"version\":\"v11\"",
                  k.pattern ? k.pattern : "[a-z]+",
                  k.specials ? k.specials : "[{\"rank\":1,\"token_str\":\"<s>\"}]");
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        kvm_text_addf(&f, "%s{\"rank\":%d,\"token_bytes\":\"", i ? "," : ",\"vocab\":[",
                      i);
        put_base64(&f, (kvm_str){&byte, 1});
        kvm_text_add(&f, KVM_STR("\"}"));
    }
    kvm_text_addf(&f, ",%s]}",
                  k.last ? k.last
                         : "{\"rank\":256,\"token_bytes\":\"YWI=\"},"
                           "{\"rank\":257,\"token_bytes\":\"bad, but beyond\"}");
    const kvm_status s =
        kvm_tokenizer__parse_json(t, a, kvm_text_str(&f), KVM_STR("tekken.json"), err);
    kvm_text_free(&f);
    return s;
}

static void small_tekken(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err;
    kvm_tokenizer *t;
    check_ok(load_tekken(&t, &a, (tekken){0}, &err), &err);
    assert_int_equal(kvm_tokenizer_size(t), 260);
    check_str(kvm_tokenizer_piece(t, 0), "<SPECIAL_0>");
    check_str(kvm_tokenizer_piece(t, 2), "<SPECIAL_2>");
    check_ids(t, &a, "<s>abab<SPECIAL_2>ba", false, "1 1 259 259 2 101 100");
    check_ids(t, &a, "ab 12 ab", true, "1 259 259"); /* no match, no token */
    assert_int_equal(kvm_tokenizer_bos(t), 1);
    assert_int_equal(kvm_tokenizer_eos(t), -1);
    const tekken old = {.specials = "null",
                        .config = "\"default_num_special_tokens\":20,"
                                  "\"default_vocab_size\":277,\"version\":\"v3\""};
    check_ok(load_tekken(&t, &a, old, &err), &err);
    check_str(kvm_tokenizer_piece(t, 17), "[SYSTEM_PROMPT]");
    assert_int_equal(kvm_tokenizer_eos(t), 2);
    kvm_arena_free(&a);
}

#define SIZES(specials, all)                                                           \
    "\"version\":\"v11\",\"default_num_special_tokens\":" specials                     \
    ",\"default_vocab_size\":" all

static const struct {
    kvm_status status;
    const char *says;
    tekken k;
} wrong_tekken[] = {
    {KVM_FORMAT,
     "vocab[256].token_bytes: \"YWI\" is not",
     {.last = "{\"rank\":256,\"token_bytes\":\"YWI\"}"}},
    {KVM_FORMAT, "vocab[256].token_bytes", {.last = "{\"rank\":256}"}},
    {KVM_FORMAT,
     "vocab[256].rank: 255 stands where 256 is due: sort",
     {.last = "{\"rank\":255,\"token_bytes\":\"YWI=\"}"}},
    {KVM_FORMAT,
     "vocab[256]: token \"a\" has the ids 100 and 259",
     {.last = "{\"rank\":256,\"token_bytes\":\"YQ==\"}"}},
    {KVM_FORMAT, "vocab[256]", {.last = "7"}},
    {KVM_FORMAT,
     "config.default_vocab_size: 262 with 3 special tokens, but vocab",
     {.config = SIZES("3", "262")}},
    {KVM_FORMAT, "config.default_vocab_size: 3 with", {.config = SIZES("3", "3")}},
    {KVM_FORMAT, "vocab: the byte 0xfe is no token", {.config = SIZES("3", "257")}},
    {KVM_FORMAT, "config.default_num_special_tokens: -1", {.config = SIZES("-1", "9")}},
    {KVM_FORMAT, "config.default_num_special_tokens", {.config = "\"x\":1"}},
    {KVM_FORMAT, "config.version: a file of version v11", {.specials = "null"}},
    {KVM_FORMAT, "special_tokens", {.specials = "{}"}},
    {KVM_FORMAT,
     "special_tokens[0].rank: 3 is not in 0 .. 2",
     {.specials = "[{\"rank\":3,\"token_str\":\"x\"}]"}},
    {KVM_FORMAT,
     "special_tokens[1].rank: 1 is not in",
     {.specials =
          "[{\"rank\":1,\"token_str\":\"x\"},{\"rank\":1,\"token_str\":\"y\"}]"}},
    {KVM_FORMAT, "special_tokens[0].token_str", {.specials = "[{\"rank\":1}]"}},
    {KVM_FORMAT,
     "are both \"<SPECIAL_2>\"",
     {.specials = "[{\"rank\":1,\"token_str\":\"<SPECIAL_2>\"}]"}},
    {KVM_FORMAT, "not a regular expression", {.pattern = "a("}},
};

static void what_tekken_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(wrong_tekken); i++) {
        kvm_arena a = check_arena((size_t)1 << 28);
        kvm_err err;
        kvm_tokenizer *t = NULL;
        check_status(wrong_tekken[i].status,
                     load_tekken(&t, &a, wrong_tekken[i].k, &err), &err);
        check_contains(err.msg, "tekken.json");
        check_contains(err.msg, wrong_tekken[i].says);
        assert_null(t);
        kvm_arena_free(&a);
    }
}

/* --- `[x&&[^y]]` --- */

static void one_class_without_another(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *says; /* NULL: fits "ab", cut into a and b */
    } rows[] = {
        {"[a-z&&[^b-z]]+|b", NULL},          {"[a-b&&[^\\\\P{L}b]]+|[^a&]", NULL},
        {"[^a-z&&[^b]]", "an intersection"}, {"[a-z&&[^b]c]", "more behind"},
        {"[a-z&&[^]]", "an empty class"},    {"[a-z&&[^b", "its end"},
        {"[a-z&&[^b]", "more behind"},       {"[a-z&&[^b&&c]]", "an intersection"},
        {"[&&[^b]]", "an empty class"},
    };
    kvm_arena a = check_arena((size_t)1 << 29);
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err;
        kvm_tokenizer *t;
        const kvm_status s =
            load_tekken(&t, &a, (tekken){.pattern = rows[i].pattern}, &err);
        if (rows[i].says) {
            check_status(KVM_UNSUPPORTED, s, &err);
            check_contains(err.msg, rows[i].says);
            continue;
        }
        check_ok(s, &err);
        check_ids(t, &a, "ab", false, "1 100 101"); /* not 259, ab */
    }
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_by_rank),
        cmocka_unit_test(parts_of_a_long_text),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_token_of_any_length),
        cmocka_unit_test(small_tekken),
        cmocka_unit_test(what_tekken_refuses),
        cmocka_unit_test(one_class_without_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
