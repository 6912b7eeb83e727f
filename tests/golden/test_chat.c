/* Conversations as transformers' apply_chat_template writes them:
 * tests/golden/tokenizers/chat.py says from which templates. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "models/chat.h"
#include "tests/support/check.h"

#define DIR "tests/golden/tokenizers/"
#define TMP "build/tmp/chat/"

static kvm_str text_at(kvm_jat at, kvm_arena *a, const char *key)
{
    kvm_err err = {0};
    kvm_str s;
    check_ok(kvm_json_str_or(kvm_json_get(at, a, key), (kvm_str){0}, &s, &err), &err);
    return s;
}

static bool flag_at(kvm_jat at, kvm_arena *a, const char *key)
{
    kvm_err err = {0};
    bool b;
    check_ok(kvm_json_bool_or(kvm_json_get(at, a, key), false, &b, &err), &err);
    return b;
}

/* a checkpoint folder with the golden tokenizer and this template */
static kvm_tokenizer *tokenizer_of(kvm_jat row, kvm_arena *a, bool template_file)
{
    kvm_err err = {0};
    kvm_tokenizer *t;
    kvm_str config;
    check_tmpdir("chat");
    const kvm_str name = text_at(row, a, "tokenizer");
    if (kvm_str_eq(name, KVM_STR("kimi")))
        check_write(TMP "tiktoken.model", check_read(a, DIR "kimi/tiktoken.model"));
    else
        check_write(
            TMP "tokenizer.json",
            check_read(a, kvm_str_fmt(a, DIR "%.*s.json", KVM_STR_ARG(name)).at));
    const kvm_jat own = kvm_json_get(row, a, "config");
    if (template_file && kvm_json_get(own, a, "chat_template")
                             .v) { /* the newer form: a file of its own */
        check_write(TMP "chat_template.jinja", text_at(own, a, "chat_template"));
        json_t *bare = json_deep_copy(own.v);
        assert_int_equal(json_object_del(bare, "chat_template"), 0);
        check_ok(kvm_json_pretty(&config, a, bare, &err), &err);
        json_decref(bare);
    } else {
        check_ok(kvm_json_pretty(&config, a, own.v, &err), &err);
    }
    check_write(TMP "tokenizer_config.json", config);
    check_ok(kvm_tokenizer_open(&t, a, KVM_STR(TMP), &err), &err);
    return t;
}

static ptrdiff_t talk_of(kvm_jat at, kvm_arena *a)
{
    kvm_err err = {0};
    int64_t n;
    check_ok(kvm_json_i64(kvm_json_get(at, a, "talk"), &n, &err), &err);
    return (ptrdiff_t)n;
}

static void one_case(const kvm_tokenizer *t, const char *name, kvm_jat talks,
                     kvm_jat at, kvm_arena *a)
{
    kvm_err err = {0};
    kvm_chat_turn turns[16];
    ptrdiff_t n;
    kvm_str out = {0};
    const kvm_jat list = kvm_json_item(talks, a, talk_of(at, a));
    check_ok(kvm_json_array(list, &n, &err), &err);
    assert_true(n <= (ptrdiff_t)COUNT(turns));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat turn = kvm_json_item(list, a, i);
        check_ok(kvm_json_str(kvm_json_item(turn, a, 0), &turns[i].role, &err), &err);
        check_ok(kvm_json_str(kvm_json_item(turn, a, 1), &turns[i].text, &err), &err);
    }
    const kvm_chat_options o = {.open_assistant = flag_at(at, a, "open"),
                                .thinking = flag_at(at, a, "thinking"),
                                .date = text_at(at, a, "date")};
    const kvm_str want = text_at(at, a, "text");
    const kvm_status s = kvm_chat_render(t, turns, n, &o, a, &out, &err);
    if (!want.at) { /* the template refuses this order of turns */
        check_status(KVM_USAGE, s, &err);
        return;
    }
    check_ok(s, &err);
    if (!kvm_str_eq(out, want))
        fail_msg("%s, conversation %td: wrote\n%.*s\ninstead of\n%.*s", name,
                 talk_of(at, a), KVM_STR_ARG(out), KVM_STR_ARG(want));
}

static void texts_are_the_templates(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_jat all;
    ptrdiff_t n_rows, n;
    kvm_arena a = check_arena((size_t)1 << 30);
    check_ok(kvm_json_read(&all, &a, KVM_STR(DIR "chat.json"), &err), &err);
    const kvm_jat talks = kvm_json_get(all, &a, "talks");
    const kvm_jat rows = kvm_json_get(all, &a, "frames");
    check_ok(kvm_json_array(rows, &n_rows, &err), &err);
    assert_true(n_rows >= 17);
    for (ptrdiff_t i = 0; i < n_rows; i++) {
        const kvm_jat row = kvm_json_item(rows, &a, i);
        const kvm_str name = text_at(row, &a, "name");
        const kvm_tokenizer *t = tokenizer_of(row, &a, i % 2 == 1);
        check_str(text_at(row, &a, "frame"), kvm_chat_frame(t));
        const kvm_jat cases = kvm_json_get(row, &a, "cases");
        check_ok(kvm_json_array(cases, &n, &err), &err);
        assert_true(n >= 20);
        for (ptrdiff_t k = 0; k < n; k++)
            one_case(t, name.at, talks, kvm_json_item(cases, &a, k), &a);
    }
    kvm_arena_free(&a);
}

static void what_fits_no_frame(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_tokenizer *t;
    kvm_str out = {0};
    const kvm_chat_turn odd = {KVM_STR("tool"), KVM_STR("x")};
    const kvm_chat_turn user = {KVM_STR("user"), KVM_STR("x")};
    kvm_arena a = check_arena((size_t)1 << 28);
    check_ok(kvm_tokenizer_open(&t, &a, KVM_STR(DIR "gpt2.json"), &err), &err);
    assert_null(kvm_chat_frame(t));
    check_status(KVM_UNSUPPORTED, kvm_chat_render(t, &user, 1, NULL, &a, &out, &err),
                 &err);
    check_contains(err.msg, "<|im_start|>");
    check_ok(kvm_tokenizer_open(&t, &a, KVM_STR(DIR "qwen2.json"), &(kvm_err){0}),
             NULL);
    assert_string_equal(kvm_chat_frame(t), "chatml"); /* by its tokens alone */
    err = (kvm_err){0};
    check_ok(kvm_chat_render(t, &user, 1, NULL, &a, &out, &err), &err);
    check_str(out, "<|im_start|>user\nx<|im_end|>\n");
    check_status(KVM_USAGE, kvm_chat_render(t, &odd, 1, NULL, &a, &out, &err), &err);
    check_contains(err.msg, "tool");
    err = (kvm_err){0};
    check_status(KVM_USAGE, kvm_chat_render(t, &user, 0, NULL, &a, &out, &err), &err);
    kvm_arena_free(&a);
}

/* tokens that a frame knows, without a template or with one that is not known */
static void by_tokens_alone(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *frame, *text; /* frame NULL: the message's token */
    } rows[] = {
        {DIR "kimi", "kimi", "<|im_user|>user<|im_middle|>x<|im_end|>"},
        {DIR "deepseek.json", "deepseek_v32", "<｜begin▁of▁sentence｜><｜User｜>x"},
        {DIR "tekken_ranks.json", "ministral3", "<s>[INST]x[/INST]"},
        {DIR "glm.json", NULL, "[gMASK]"}, /* versions differ: no guess */
        {TMP, NULL, "<|im_middle|>"},      /* thinks, in a way that is not known */
    };
    kvm_arena a = check_arena((size_t)1 << 29);
    check_tmpdir("chat");
    check_write(TMP "tiktoken.model", check_read(&a, DIR "kimi/tiktoken.model"));
    check_write(TMP "tokenizer_config.json",
                check_read(&a, DIR "kimi/tokenizer_config.json"));
    check_write(TMP "chat_template.jinja", KVM_STR("<|im_middle|><think></think>"));
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        kvm_tokenizer *t;
        kvm_str out = {0};
        const kvm_chat_turn user = {KVM_STR("user"), KVM_STR("x")};
        check_ok(kvm_tokenizer_open(&t, &a, kvm_str_of(rows[i].tokenizer), &err), &err);
        const kvm_status s = kvm_chat_render(t, &user, 1, NULL, &a, &out, &err);
        if (!rows[i].frame) {
            assert_null(kvm_chat_frame(t));
            check_status(KVM_UNSUPPORTED, s, &err);
            check_contains(err.msg, rows[i].text);
            continue;
        }
        check_ok(s, &err);
        assert_string_equal(kvm_chat_frame(t), rows[i].frame);
        check_str(out, rows[i].text);
    }
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_templates),
        cmocka_unit_test(what_fits_no_frame),
        cmocka_unit_test(by_tokens_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
