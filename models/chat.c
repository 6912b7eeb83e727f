/* Which frame fits a tokenizer, and the call that has it written. */
#include "models/chat.h"

#include "models/chat_internal.h"

static bool has_tokens(const kvm_tokenizer *t, const kvm_chat_row *r)
{
    return kvm_tokenizer_special(t, kvm_str_of(r->first)) >= 0 &&
           kvm_tokenizer_special(t, kvm_str_of(r->second)) >= 0;
}

/* "!x": the template must not hold x; every one holds the empty text */
static bool has_mark(kvm_str template, const char *mark)
{
    const bool without = mark[0] == '!';
    const kvm_str text = kvm_str_of(without ? mark + 1 : mark);
    return (kvm_str_find(template, text) >= 0) != without;
}

static const kvm_chat_row *row_of(const kvm_tokenizer *t)
{
    const kvm_str template = kvm_tokenizer_chat_template(t);
    for (ptrdiff_t i = 0; i < kvm_chat_rows_n; i++) {
        const kvm_chat_row *r = &kvm_chat_rows[i];
        if (!has_tokens(t, r)) continue;
        if (template.len > 0 ? has_mark(template, r->mark) : r->bare) return r;
    }
    return NULL;
}

const char *kvm_chat_frame(const kvm_tokenizer *t)
{
    const kvm_chat_row *r = row_of(t);
    return r ? r->name : NULL;
}

static bool known_role(kvm_str role)
{
    return kvm_str_eq(role, KVM_STR("user")) || kvm_str_eq(role, KVM_STR("system")) ||
           kvm_str_eq(role, KVM_STR("assistant"));
}

static kvm_status check(const kvm_chat_turn *turns, ptrdiff_t n, kvm_err *err)
{
    if (n < 1) return kvm_fail(err, KVM_USAGE, "a conversation without turns");
    for (ptrdiff_t i = 0; i < n; i++)
        if (!known_role(turns[i].role))
            return kvm_fail(
                err, KVM_USAGE,
                "turn %td is of role \"%s\"; known: system, user, assistant", i + 1,
                kvm_quote(turns[i].role).at);
    return KVM_OK;
}

/* Tokens that are known with a template that is not, or no known tokens. */
static kvm_status no_frame(const kvm_tokenizer *t, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < kvm_chat_rows_n; i++)
        if (has_tokens(t, &kvm_chat_rows[i]))
            return kvm_fail(
                err, KVM_UNSUPPORTED,
                "the tokenizer has %s and %s, but its chat template is none "
                "that is known with them; give it plain text",
                kvm_chat_rows[i].first, kvm_chat_rows[i].second);
    return kvm_fail(
        err, KVM_UNSUPPORTED,
        "no known chat frame fits this tokenizer: it has none of "
        "<|im_start|>, <|im_middle|>, <|start_header_id|>, [INST], [gMASK], "
        "<｜User｜>; give it plain text");
}

kvm_status kvm_chat_render(const kvm_tokenizer *t, const kvm_chat_turn *turns,
                           ptrdiff_t n, const kvm_chat_options *o, kvm_arena *keep,
                           kvm_str *out, kvm_err *err)
{
    static const kvm_chat_options none;
    kvm_chat_writing w = {
        .t = t, .turns = turns, .n = n, .o = o ? o : &none, .err = err};
    const kvm_chat_row *r = row_of(t);
    TRY(check(turns, n, err));
    if (!r) return no_frame(t, err);
    kvm_status s = r->write(&w);
    kvm_str text = {0};
    if (!s) text = kvm_str_copy(keep, kvm_text_str(&w.out));
    if (!s && w.out.failed)
        s = kvm_fail(err, KVM_NOMEM, "no memory for the text of %td turns", n);
    if (!s && !text.at) s = kvm_nomem(err, keep);
    kvm_text_free(&w.out);
    if (!s) *out = text;
    return s;
}
