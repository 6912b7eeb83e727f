/* Tokenizers as files: what is none, what stands beside one in a checkpoint, and the
 * same tokenizer in its three forms. */
#include "base/file.h"
#include "base/json.h"
#include "models/tokenizer_internal.h"
#include "tests/support/check.h"

#define GOLDEN "tests/golden/tokenizers/"
#define TMP "build/tmp/tokenizer_files/"

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
    check_tmpdir("tokenizer_files");
    check_status(KVM_NOTFOUND, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "merges.txt");
    check_contains(err.msg, "tiktoken.model, tekken.json");
    check_write(TMP "tokenizer.model", KVM_STR("x"));
    check_status(KVM_UNSUPPORTED, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "SentencePiece");
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
    check_tmpdir("tokenizer_files");
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
        check_tmpdir("tokenizer_files");
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
    check_tmpdir("tokenizer_files");
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
    check_tmpdir("tokenizer_files");
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

/* --- ranks of tokens --- */

/* tokenizer.json goes before tiktoken.model, that before tekken.json */
static void the_first_form_counts(void **state)
{
    (void)state;
    kvm_arena a = check_arena((size_t)1 << 29);
    kvm_err err;
    kvm_tokenizer *t, *by_path;
    check_tmpdir("tokenizer_files");
    check_write(TMP "tekken.json", check_read(&a, GOLDEN "tekken_ranks.json"));
    check_ok(open_at(&t, &a, TMP, &err), &err);
    check_str(kvm_tokenizer_piece(t, 3), "[INST]");
    check_str(kvm_tokenizer_piece(t, 29), "<SPECIAL_29>");
    check_str(kvm_tokenizer_piece(t, 30 + 'a'), "a");
    assert_int_equal(kvm_tokenizer_bos(t), 1);
    assert_int_equal(kvm_tokenizer_eos(t), 2);
    assert_true(kvm_tokenizer_stops(t, 2));
    check_ok(open_at(&by_path, &a, GOLDEN "tekken_ranks.json", &err), &err);
    check_ok(kvm_tokenizer_differ(t, by_path, &err), &err);

    check_write(TMP "tiktoken.model", check_read(&a, GOLDEN "kimi/tiktoken.model"));
    check_status(KVM_NOTFOUND, open_at(&t, &a, TMP, &err), &err);
    check_contains(err.msg, "tokenizer_config.json");
    check_write(TMP "tokenizer_config.json",
                check_read(&a, GOLDEN "kimi/tokenizer_config.json"));
    check_ok(open_at(&t, &a, TMP, &err), &err);
    const int32_t bos = kvm_tokenizer_special(t, KVM_STR("[BOS]"));
    assert_int_equal(kvm_tokenizer_size(t), bos + 256);
    assert_int_equal(kvm_tokenizer_bos(t), bos);
    assert_int_equal(kvm_tokenizer_eos(t), bos + 1);
    assert_true(kvm_tokenizer_stops(t, bos + 1) && kvm_tokenizer_stops(t, bos + 2));
    assert_false(kvm_tokenizer_is_special(t, bos + 20)); /* <think> */
    check_str(kvm_tokenizer_piece(t, bos + 5),
              kvm_str_fmt(&a, "<|reserved_token_%d|>", (int)bos + 5).at);
    check_ok(open_at(&by_path, &a, TMP "tiktoken.model", &err), &err);
    check_ok(kvm_tokenizer_differ(t, by_path, &err), &err);

    check_write(TMP "tokenizer.json", check_read(&a, GOLDEN "gpt2.json"));
    check_write(TMP "tokenizer_config.json", KVM_STR("{}"));
    check_ok(open_at(&t, &a, TMP, &err), &err);
    assert_int_equal(kvm_tokenizer_special(t, KVM_STR("[BOS]")), -1);
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_tokenizer), cmocka_unit_test(what_stands_beside),
        cmocka_unit_test(inside_gguf),          cmocka_unit_test(bad_gguf),
        cmocka_unit_test(as_vocab_and_merges),  cmocka_unit_test(the_first_form_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
