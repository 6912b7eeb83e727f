#include "models/chat.h"

#include <string.h>

#include "models/unicode.h"

typedef struct writing {
    kvm_text out;
    const kvm_tokenizer *t;
    const kvm_chat_turn *turns; /* (n) */
    ptrdiff_t n;
    const kvm_chat_options *o;
    kvm_err *err;
} writing;

static const kvm_str USER = {"user", 4}, ASSISTANT = {"assistant", 9},
                     SYSTEM = {"system", 6};

static void put(writing *w, kvm_str s)
{
    kvm_text_add(&w->out, s);
}
static void put_text(writing *w, const char *s)
{
    put(w, kvm_str_of(s));
}
static bool is(const kvm_chat_turn *turn, kvm_str role)
{
    return kvm_str_eq(turn->role, role);
}

/* Python's str.strip() as Jinja's `trim` uses it. A text that is not UTF-8 may be cut
 * inside a character: only whole ones are looked at, and none of the bytes that white
 * space is made of begins an ill-formed sequence. */
static kvm_str trim(kvm_str s)
{
    for (ptrdiff_t i = 0, n; i < s.len; i += n) {
        const unsigned char *p = (const unsigned char *)s.at + i;
        n = *p < 0x80 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
        if (n > s.len - i || kvm_utf8_valid((kvm_str){s.at + i, n}) != n ||
            !kvm_unicode_is_py_space(kvm_utf8_next(&p))) {
            s = kvm_str_slice(s, i, s.len);
            break;
        }
        if (i + n == s.len) return (kvm_str){s.at, 0};
    }
    while (s.len > 0) {
        ptrdiff_t i = s.len - 1;
        while (i > 0 && ((unsigned char)s.at[i] & 0xC0) == 0x80) i--;
        const unsigned char *p = (const unsigned char *)s.at + i;
        const kvm_str last = kvm_str_slice(s, i, s.len);
        if (kvm_utf8_valid(last) != last.len) break;
        if (!kvm_unicode_is_py_space(kvm_utf8_next(&p))) break;
        s.len = i;
    }
    return s;
}

static kvm_str strip_breaks(kvm_str s, bool left, bool right)
{
    while (left && s.len > 0 && s.at[0] == '\n') s = kvm_str_slice(s, 1, s.len);
    while (right && s.len > 0 && s.at[s.len - 1] == '\n') s.len--;
    return s;
}

static ptrdiff_t find_last(kvm_str s, kvm_str needle)
{
    ptrdiff_t last = -1;
    for (ptrdiff_t from = 0, i; from <= s.len; from = last + needle.len) {
        i = kvm_str_find(kvm_str_slice(s, from, s.len), needle);
        if (i < 0) break;
        last = from + i;
    }
    return last;
}

/* --- ChatML --- */

static void im(writing *w, kvm_str role, kvm_str text)
{
    put_text(w, "<|im_start|>");
    put(w, role);
    put_text(w, "\n");
    put(w, text);
    put_text(w, "<|im_end|>\n");
}

/* The system prompt that a ChatML template writes when the conversation has none: text
 * without quotes or braces between `<|im_start|>system` + line break (as such or as \n)
 * and `<|im_end|>`. Empty: the template writes none. */
static kvm_str chatml_default(kvm_str template)
{
    const kvm_str open = KVM_STR("<|im_start|>system"), shut = KVM_STR("<|im_end|>");
    for (kvm_str rest = template;;) {
        const ptrdiff_t at = kvm_str_find(rest, open);
        if (at < 0) return KVM_STR("");
        rest = kvm_str_slice(rest, at + open.len, rest.len);
        const ptrdiff_t skip = kvm_str_starts(rest, KVM_STR("\n"))    ? 1
                               : kvm_str_starts(rest, KVM_STR("\\n")) ? 2
                                                                      : 0;
        const ptrdiff_t end = kvm_str_find(rest, shut);
        if (skip == 0 || end < skip) continue;
        const kvm_str text = kvm_str_slice(rest, skip, end);
        bool plain = text.len > 0;
        for (ptrdiff_t i = 0; i < text.len; i++)
            plain = plain && !strchr("'\"{}\\", text.at[i]);
        if (plain) return text;
    }
}

static kvm_status write_chatml(writing *w)
{
    const kvm_str fallback = chatml_default(kvm_tokenizer_chat_template(w->t));
    if (fallback.len > 0 && !is(&w->turns[0], SYSTEM)) im(w, SYSTEM, fallback);
    for (ptrdiff_t i = 0; i < w->n; i++) im(w, w->turns[i].role, w->turns[i].text);
    if (w->o->open_assistant) put_text(w, "<|im_start|>assistant\n");
    return KVM_OK;
}

/* Qwen3: an assistant's thoughts are dropped once a question came after them; those of
 * the last turn stay, or an empty block stands for them. */
static void qwen3_assistant(writing *w, kvm_str text, bool after_last_question,
                            bool last)
{
    const kvm_str open = KVM_STR("<think>"), shut = KVM_STR("</think>");
    kvm_str thought = {"", 0};
    const ptrdiff_t first = kvm_str_find(text, shut);
    if (first >= 0) {
        thought = strip_breaks(kvm_str_slice(text, 0, first), false, true);
        const ptrdiff_t begin = find_last(thought, open);
        if (begin >= 0) thought = kvm_str_slice(thought, begin + open.len, thought.len);
        thought = strip_breaks(thought, true, false);
        text = kvm_str_slice(text, find_last(text, shut) + shut.len, text.len);
        text = strip_breaks(text, true, false);
    }
    put_text(w, "<|im_start|>assistant\n");
    if (after_last_question && (last || thought.len > 0)) {
        put_text(w, "<think>\n");
        put(w, strip_breaks(thought, true, true));
        put_text(w, "\n</think>\n\n");
        text = strip_breaks(text, true, false);
    }
    put(w, text);
    put_text(w, "<|im_end|>\n");
}

static bool is_tool_response(kvm_str text)
{
    return kvm_str_starts(text, KVM_STR("<tool_response>")) &&
           kvm_str_ends(text, KVM_STR("</tool_response>"));
}

static kvm_status write_qwen3(writing *w)
{
    ptrdiff_t question = w->n - 1;
    for (ptrdiff_t i = w->n - 1; i >= 0; i--) {
        if (!is(&w->turns[i], USER) || is_tool_response(w->turns[i].text)) continue;
        question = i;
        break;
    }
    for (ptrdiff_t i = 0; i < w->n; i++) {
        const kvm_chat_turn *turn = &w->turns[i];
        if (is(turn, ASSISTANT))
            qwen3_assistant(w, turn->text, i > question, i == w->n - 1);
        else
            im(w, turn->role, turn->text);
    }
    if (!w->o->open_assistant) return KVM_OK;
    put_text(w, "<|im_start|>assistant\n");
    if (!w->o->thinking) put_text(w, "<think>\n\n</think>\n\n");
    return KVM_OK;
}

/* --- Llama 3 --- */

static void header(writing *w, kvm_str role)
{
    put_text(w, "<|start_header_id|>");
    put(w, role);
    put_text(w, "<|end_header_id|>\n\n");
}

static void put_bos(writing *w)
{
    const int32_t bos = kvm_tokenizer_bos(w->t);
    if (bos >= 0) put(w, kvm_tokenizer_piece(w->t, bos));
}

static void llama_turns(writing *w, ptrdiff_t from)
{
    for (ptrdiff_t i = from; i < w->n; i++) {
        header(w, w->turns[i].role);
        put(w, trim(w->turns[i].text));
        put_text(w, "<|eot_id|>");
    }
    if (w->o->open_assistant) header(w, ASSISTANT);
}

static kvm_status write_llama31(writing *w)
{
    const bool own = is(&w->turns[0], SYSTEM);
    put_bos(w);
    header(w, SYSTEM);
    put_text(w, "Cutting Knowledge Date: December 2023\nToday Date: ");
    put(w, w->o->date.len > 0 ? w->o->date : KVM_STR("26 Jul 2024"));
    put_text(w, "\n\n");
    if (own) put(w, trim(w->turns[0].text));
    put_text(w, "<|eot_id|>");
    llama_turns(w, own ? 1 : 0);
    return KVM_OK;
}

static kvm_status write_llama30(writing *w)
{
    put_bos(w);
    llama_turns(w, 0);
    return KVM_OK;
}

/* --- Ministral 3 --- */

/* `set default_system_message = '...'` of the template, its escapes undone */
static void put_default_system(writing *w)
{
    const kvm_str template = kvm_tokenizer_chat_template(w->t);
    const kvm_str mark = KVM_STR("set default_system_message = ");
    const ptrdiff_t at = kvm_str_find(template, mark);
    const kvm_str text =
        at < 0 ? KVM_STR("") : kvm_str_slice(template, at + mark.len, template.len);
    if (text.len < 2 || (text.at[0] != '\'' && text.at[0] != '"')) return;
    ptrdiff_t end = 1;
    while (end < text.len && text.at[end] != text.at[0])
        end += text.at[end] == '\\' ? 2 : 1;
    if (end <= 1 || end >= text.len) return; /* empty, or not closed */
    put_text(w, "[SYSTEM_PROMPT]");
    for (ptrdiff_t i = 1; i < end; i++) {
        const bool escape = text.at[i] == '\\' && i + 1 < end;
        if (escape) i++;
        const char c = escape && text.at[i] == 'n'   ? '\n'
                       : escape && text.at[i] == 't' ? '\t'
                                                     : text.at[i];
        put(w, (kvm_str){&c, 1});
    }
    put_text(w, "[/SYSTEM_PROMPT]");
}

static kvm_status write_ministral3(writing *w)
{
    const ptrdiff_t from = is(&w->turns[0], SYSTEM) ? 1 : 0;
    const int32_t eos = kvm_tokenizer_eos(w->t);
    put_bos(w);
    if (from == 1) {
        put_text(w, "[SYSTEM_PROMPT]");
        put(w, w->turns[0].text);
        put_text(w, "[/SYSTEM_PROMPT]");
    } else {
        put_default_system(w);
    }
    for (ptrdiff_t i = from; i < w->n; i++) {
        const bool user = (i - from) % 2 == 0;
        if (!is(&w->turns[i], user ? USER : ASSISTANT))
            return kvm_fail(w->err, KVM_USAGE,
                            "turn %td is of role %.*s; Ministral's template wants user "
                            "and assistant in turns, after at most one system turn",
                            i + 1, KVM_STR_ARG(w->turns[i].role));
        if (user) put_text(w, "[INST]");
        put(w, w->turns[i].text);
        if (user) put_text(w, "[/INST]");
        if (!user && eos >= 0) put(w, kvm_tokenizer_piece(w->t, eos));
    }
    return KVM_OK;
}

/* --- choosing --- */

typedef struct frame {
    const char *name, *first, *second, *mark;
    bool bare; /* also for a tokenizer without a template */
    kvm_status (*write)(writing *w);
} frame;
static const frame frames[] = {
#define X(name, first, second, mark, bare, write)                                      \
    {#name, first, second, mark, bare, write},
#include "models/chat_frames.def"
#undef X
};

static const frame *frame_of(const kvm_tokenizer *t)
{
    const kvm_str template = kvm_tokenizer_chat_template(t);
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        const frame *f = &frames[i];
        if (kvm_tokenizer_special(t, kvm_str_of(f->first)) < 0 ||
            kvm_tokenizer_special(t, kvm_str_of(f->second)) < 0)
            continue;
        if (template.len > 0 ? kvm_str_find(template, kvm_str_of(f->mark)) >= 0
                             : f->bare)
            return f;
    }
    return NULL;
}

const char *kvm_chat_frame(const kvm_tokenizer *t)
{
    const frame *f = frame_of(t);
    return f ? f->name : NULL;
}

static kvm_status check(const kvm_chat_turn *turns, ptrdiff_t n, kvm_err *err)
{
    if (n < 1) return kvm_fail(err, KVM_USAGE, "a conversation without turns");
    for (ptrdiff_t i = 0; i < n; i++)
        if (!is(&turns[i], USER) && !is(&turns[i], ASSISTANT) && !is(&turns[i], SYSTEM))
            return kvm_fail(
                err, KVM_USAGE,
                "turn %td is of role \"%s\"; known: system, user, assistant", i + 1,
                kvm_quote(turns[i].role).at);
    return KVM_OK;
}

kvm_status kvm_chat_render(const kvm_tokenizer *t, const kvm_chat_turn *turns,
                           ptrdiff_t n, const kvm_chat_options *o, kvm_arena *keep,
                           kvm_str *out, kvm_err *err)
{
    static const kvm_chat_options none;
    writing w = {.t = t, .turns = turns, .n = n, .o = o ? o : &none, .err = err};
    const frame *f = frame_of(t);
    TRY(check(turns, n, err));
    if (!f)
        return kvm_fail(
            err, KVM_UNSUPPORTED,
            "no known chat frame fits this tokenizer: it has neither "
            "<|im_start|> and <|im_end|>, nor <|start_header_id|> and "
            "<|eot_id|>, nor [INST] and [SYSTEM_PROMPT]; give it plain text");
    kvm_status s = f->write(&w);
    kvm_str text = {0};
    if (!s) text = kvm_str_copy(keep, kvm_text_str(&w.out));
    if (!s && w.out.failed)
        s = kvm_fail(err, KVM_NOMEM, "no memory for the text of %td turns", n);
    if (!s && !text.at) s = kvm_nomem(err, keep);
    kvm_text_free(&w.out);
    if (!s) *out = text;
    return s;
}
