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
    const kvm_str from =
        kvm_str_fmt(a, DIR "%.*s.json", KVM_STR_ARG(text_at(row, a, "tokenizer")));
    check_write(TMP "tokenizer.json", check_read(a, from.at));
    const kvm_jat own = kvm_json_get(row, a, "config");
    if (template_file) { /* the newer form: a file of its own */
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

static void one_case(const kvm_tokenizer *t, const char *name, kvm_jat at, kvm_arena *a)
{
    kvm_err err = {0};
    kvm_chat_turn turns[16];
    ptrdiff_t n;
    kvm_str out = {0};
    const kvm_jat list = kvm_json_get(at, a, "turns");
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
        fail_msg("%s: wrote\n%.*s\ninstead of\n%.*s", name, KVM_STR_ARG(out),
                 KVM_STR_ARG(want));
}

static void texts_are_the_templates(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_jat rows;
    ptrdiff_t n_rows, n;
    kvm_arena a = check_arena((size_t)1 << 30);
    check_ok(kvm_json_read(&rows, &a, KVM_STR(DIR "chat.json"), &err), &err);
    check_ok(kvm_json_array(rows, &n_rows, &err), &err);
    assert_true(n_rows >= 8);
    for (ptrdiff_t i = 0; i < n_rows; i++) {
        const kvm_jat row = kvm_json_item(rows, &a, i);
        const kvm_str name = text_at(row, &a, "name");
        const kvm_tokenizer *t = tokenizer_of(row, &a, i % 2 == 1);
        check_str(text_at(row, &a, "frame"), kvm_chat_frame(t));
        const kvm_jat cases = kvm_json_get(row, &a, "cases");
        check_ok(kvm_json_array(cases, &n, &err), &err);
        assert_true(n >= 20);
        for (ptrdiff_t k = 0; k < n; k++)
            one_case(t, name.at, kvm_json_item(cases, &a, k), &a);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_templates),
        cmocka_unit_test(what_fits_no_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
