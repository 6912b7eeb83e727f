/* What each frame of chat_frames.def writes. */
#include "models/chat_internal.h"

#include <string.h>

#include "models/unicode.h"

typedef kvm_chat_writing writing;

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

static kvm_str template_of(const writing *w)
{
    return kvm_tokenizer_chat_template(w->t);
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

/* The text that a template holds between `open` and `shut` without quotes or braces in
 * it: a system prompt that it writes when the conversation has none. Where `line`, a
 * line break (as such or as \n) comes first. Empty: the template writes none. */
static kvm_str default_system(kvm_str template, kvm_str open, bool line)
{
    const kvm_str shut = KVM_STR("<|im_end|>");
    for (kvm_str rest = template;;) {
        const ptrdiff_t at = kvm_str_find(rest, open);
        if (at < 0) return KVM_STR("");
        rest = kvm_str_slice(rest, at + open.len, rest.len);
        const ptrdiff_t skip = !line                                  ? 0
                               : kvm_str_starts(rest, KVM_STR("\n"))  ? 1
                               : kvm_str_starts(rest, KVM_STR("\\n")) ? 2
                                                                      : -1;
        const ptrdiff_t end = kvm_str_find(rest, shut);
        if (skip < 0 || end < skip) continue;
        const kvm_str text = kvm_str_slice(rest, skip, end);
        bool plain = text.len > 0;
        for (ptrdiff_t i = 0; i < text.len; i++)
            plain = plain && !strchr("'\"{}\\", text.at[i]);
        if (plain) return text;
    }
}

static kvm_status write_chatml(writing *w)
{
    const kvm_str fallback =
        default_system(template_of(w), KVM_STR("<|im_start|>system"), true);
    if (fallback.len > 0 && !is(&w->turns[0], SYSTEM)) im(w, SYSTEM, fallback);
    for (ptrdiff_t i = 0; i < w->n; i++) im(w, w->turns[i].role, w->turns[i].text);
    if (w->o->open_assistant) put_text(w, "<|im_start|>assistant\n");
    return KVM_OK;
}

/* Takes the thought out of an assistant's text: what stands before the first </think>,
 * behind the last <think> there; the text is what stands behind the last </think>. */
static kvm_str take_thought(kvm_str *text, bool breaks)
{
    const kvm_str open = KVM_STR("<think>"), shut = KVM_STR("</think>");
    const ptrdiff_t first = kvm_str_find(*text, shut);
    if (first < 0) return (kvm_str){"", 0};
    kvm_str thought = strip_breaks(kvm_str_slice(*text, 0, first), false, breaks);
    const ptrdiff_t begin = find_last(thought, open);
    if (begin >= 0) thought = kvm_str_slice(thought, begin + open.len, thought.len);
    *text = kvm_str_slice(*text, find_last(*text, shut) + shut.len, text->len);
    *text = strip_breaks(*text, breaks, false);
    return strip_breaks(thought, breaks, false);
}

/* Qwen3: an assistant's thoughts are dropped once a question came after them; those of
 * the last turn stay, or an empty block stands for them. */
static void qwen3_assistant(writing *w, kvm_str text, bool after_last_question,
                            bool last)
{
    const kvm_str thought = take_thought(&text, true);
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

/* the last turn of a user that is no result of a tool; -1: there is none */
static ptrdiff_t last_question(const writing *w, bool trimmed)
{
    for (ptrdiff_t i = w->n - 1; i >= 0; i--) {
        const kvm_str text = w->turns[i].text;
        if (!is(&w->turns[i], USER)) continue;
        if (!is_tool_response(trimmed ? trim(text) : text)) return i;
    }
    return -1;
}

static kvm_status write_qwen3(writing *w)
{
    ptrdiff_t question = last_question(w, false);
    if (question < 0) question = w->n - 1;
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

/* Qwen3.5 trims every text, writes a block of thoughts, empty or not, behind the last
 * question only, and opens one when it is to think. */
static kvm_status write_qwen35(writing *w)
{
    const ptrdiff_t question = last_question(w, true);
    if (question < 0)
        return kvm_fail(w->err, KVM_USAGE,
                        "no turn of a user; Qwen3.5's template wants one");
    for (ptrdiff_t i = 0; i < w->n; i++) {
        const kvm_chat_turn *turn = &w->turns[i];
        kvm_str text = trim(turn->text);
        if (i > 0 && is(turn, SYSTEM))
            return kvm_fail(w->err, KVM_USAGE,
                            "turn %td is of the system; Qwen3.5's template takes that "
                            "in front only",
                            i + 1);
        if (!is(turn, ASSISTANT)) {
            im(w, turn->role, text);
            continue;
        }
        const kvm_str thought = trim(take_thought(&text, true));
        put_text(w, "<|im_start|>assistant\n");
        if (i > question) {
            put_text(w, "<think>\n");
            put(w, thought);
            put_text(w, "\n</think>\n\n");
        }
        put(w, text);
        put_text(w, "<|im_end|>\n");
    }
    if (!w->o->open_assistant) return KVM_OK;
    put_text(w, "<|im_start|>assistant\n<think>\n");
    if (!w->o->thinking) put_text(w, "\n</think>\n\n");
    return KVM_OK;
}

/* --- Kimi: Moonlight, Kimi-VL, Kimi-Linear, K2 --- */

static void kimi_turn(writing *w, kvm_str role, kvm_str text)
{
    put_text(w, "<|im_");
    put(w, role);
    put_text(w, "|>");
    put(w, role);
    put_text(w, "<|im_middle|>");
    put(w, text);
    put_text(w, "<|im_end|>");
}

static kvm_status write_kimi(writing *w)
{
    const kvm_str fallback = default_system(
        template_of(w), KVM_STR("<|im_system|>system<|im_middle|>"), false);
    if (fallback.len > 0 && !is(&w->turns[0], SYSTEM)) kimi_turn(w, SYSTEM, fallback);
    for (ptrdiff_t i = 0; i < w->n; i++)
        kimi_turn(w, w->turns[i].role, w->turns[i].text);
    if (w->o->open_assistant) put_text(w, "<|im_assistant|>assistant<|im_middle|>");
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
        char c = text.at[i];
        if (escape && c == 'n') c = '\n';
        if (escape && c == 't') c = '\t';
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

/* --- DeepSeek --- */

#define DS_BOS "<｜begin▁of▁sentence｜>"
#define DS_EOS "<｜end▁of▁sentence｜>"
#define DS_USER "<｜User｜>"
#define DS_ASSISTANT "<｜Assistant｜>"

static bool template_has(const writing *w, kvm_str what)
{
    return kvm_str_find(template_of(w), what) >= 0;
}

/* Every system turn, wherever it stands, goes in front: all with an empty line between,
 * or (the first templates of V3 and R1) the last alone. */
static void deepseek_system(writing *w, bool all)
{
    bool any = false;
    ptrdiff_t last = w->n - 1;
    while (last >= 0 && !is(&w->turns[last], SYSTEM)) last--;
    put_bos(w);
    for (ptrdiff_t i = all ? 0 : last; i >= 0 && i <= last; i++) {
        if (!is(&w->turns[i], SYSTEM)) continue;
        if (any) put_text(w, "\n\n");
        put(w, w->turns[i].text);
        any = true;
    }
}

/* what stands behind the first, or the last, </think> */
static kvm_str after_thought(kvm_str text, bool first)
{
    const kvm_str shut = KVM_STR("</think>");
    const ptrdiff_t at = first ? kvm_str_find(text, shut) : find_last(text, shut);
    return at < 0 ? text : kvm_str_slice(text, at + shut.len, text.len);
}

/* V3 and R1; the latter drops thoughts, and its later templates open one. */
static kvm_status write_deepseek_v3(writing *w)
{
    const bool drops = template_has(w, KVM_STR("split('</think>')"));
    const bool opens = template_has(w, KVM_STR(DS_ASSISTANT "<think>"));
    deepseek_system(w, template_has(w, KVM_STR("is_first_sp")));
    for (ptrdiff_t i = 0; i < w->n; i++) {
        const kvm_chat_turn *turn = &w->turns[i];
        if (is(turn, SYSTEM)) continue;
        put_text(w, is(turn, USER) ? DS_USER : DS_ASSISTANT);
        put(w, drops && is(turn, ASSISTANT) ? after_thought(turn->text, false)
                                            : turn->text);
        if (is(turn, ASSISTANT)) put_text(w, DS_EOS);
    }
    if (w->o->open_assistant)
        put_text(w, opens ? DS_ASSISTANT "<think>\n" : DS_ASSISTANT);
    return KVM_OK;
}

/* V3.1 marks an answer, and a prompt for one, as with or without thoughts. */
static kvm_status write_deepseek_v31(writing *w)
{
    bool asked = false; /* a user spoke last */
    deepseek_system(w, true);
    for (ptrdiff_t i = 0; i < w->n; i++) {
        const kvm_chat_turn *turn = &w->turns[i];
        if (is(turn, USER)) {
            put_text(w, DS_USER);
            put(w, turn->text);
            asked = true;
        } else if (is(turn, ASSISTANT)) {
            if (asked) put_text(w, DS_ASSISTANT "</think>");
            put(w, after_thought(turn->text, true));
            put_text(w, DS_EOS);
            asked = false;
        }
    }
    if (w->o->open_assistant && asked)
        put_text(w, w->o->thinking ? DS_ASSISTANT "<think>" : DS_ASSISTANT "</think>");
    return KVM_OK;
}

/* V3.2 has code instead of a template. A question brings the mark behind it along (the
 * last turn's is the generation prompt here); the last one's opens a thought when it is
 * to think, and then an answer must have one. */
static kvm_status deepseek_v32_answer(writing *w, ptrdiff_t i, bool thinks)
{
    const kvm_str text = w->turns[i].text;
    const ptrdiff_t end = kvm_str_find(text, KVM_STR("</think>"));
    if (thinks && end < 0)
        return kvm_fail(w->err, KVM_USAGE,
                        "turn %td answers without <think>...</think>, which DeepSeek "
                        "V3.2 wants when it is to think",
                        i + 1);
    if (thinks) {
        kvm_str thought = kvm_str_slice(text, 0, end);
        if (kvm_str_starts(thought, KVM_STR("<think>")))
            thought = kvm_str_slice(thought, 7, thought.len);
        put(w, thought);
        put_text(w, "</think>");
    }
    put(w, after_thought(text, true));
    put_text(w, DS_EOS);
    return KVM_OK;
}

static kvm_status write_deepseek_v32(writing *w)
{
    ptrdiff_t last = w->n - 1;
    while (last >= 0 && !is(&w->turns[last], USER)) last--;
    put_text(w, DS_BOS);
    for (ptrdiff_t i = 0; i < w->n; i++) {
        const kvm_chat_turn *turn = &w->turns[i];
        if (is(turn, ASSISTANT)) {
            TRY(deepseek_v32_answer(w, i, w->o->thinking && i > last));
            continue;
        }
        if (is(turn, USER)) put_text(w, DS_USER);
        put(w, turn->text);
        if (is(turn, SYSTEM) || (i == w->n - 1 && !w->o->open_assistant)) continue;
        put_text(w, DS_ASSISTANT);
        put_text(w, w->o->thinking && i == last ? "<think>" : "</think>");
    }
    return KVM_OK;
}

/* --- GLM --- */

typedef enum glm { GLM_45, GLM_5, GLM_53 } glm;

static void glm_answer(writing *w, glm version, kvm_str text, bool after_last_user)
{
    const kvm_str whole = text;
    const kvm_str thought = take_thought(&text, version != GLM_53);
    /* 5.3 keeps what lies back, and an empty thought as such */
    const bool keeps =
        version == GLM_53 ? text.len < whole.len : after_last_user && thought.len > 0;
    if (version == GLM_45) put_text(w, "\n");
    if (keeps || version != GLM_5) put_text(w, "<think>");
    if (keeps) put(w, version == GLM_53 ? thought : trim(thought));
    put_text(w, "</think>");
    text = trim(text);
    if (version == GLM_45 && text.len > 0) put_text(w, "\n");
    put(w, text);
}

static void glm_turns(writing *w, glm version)
{
    ptrdiff_t last = w->n - 1;
    while (last >= 0 && !is(&w->turns[last], USER)) last--;
    for (ptrdiff_t i = 0; i < w->n; i++) {
        const kvm_chat_turn *turn = &w->turns[i];
        put_text(w, "<|");
        put(w, turn->role);
        put_text(w, "|>");
        if (is(turn, ASSISTANT)) {
            glm_answer(w, version, turn->text, i > last);
            continue;
        }
        if (version == GLM_45) put_text(w, "\n");
        put(w, turn->text);
        const bool off = version == GLM_45 && is(turn, USER) && !w->o->thinking;
        if (off && !kvm_str_ends(turn->text, KVM_STR("/nothink")))
            put_text(w, "/nothink");
    }
}

static kvm_status write_glm45(writing *w)
{
    put_text(w, "[gMASK]<sop>");
    glm_turns(w, GLM_45);
    if (!w->o->open_assistant) return KVM_OK;
    put_text(w, w->o->thinking ? "<|assistant|>" : "<|assistant|>\n<think></think>");
    return KVM_OK;
}

static kvm_status write_glm5(writing *w)
{
    put_text(w, "[gMASK]<sop>");
    glm_turns(w, GLM_5);
    if (!w->o->open_assistant) return KVM_OK;
    put_text(w, w->o->thinking ? "<|assistant|><think>" : "<|assistant|></think>");
    return KVM_OK;
}

/* 5.3 thinks in any case, at the effort that its template falls back to. */
static kvm_status write_glm53(writing *w)
{
    put_text(w, "[gMASK]<sop><|system|>Reasoning Effort: Max");
    glm_turns(w, GLM_53);
    if (w->o->open_assistant) put_text(w, "<|assistant|><think>");
    return KVM_OK;
}

const kvm_chat_row kvm_chat_rows[] = {
#define X(name, first, second, mark, bare, write)                                      \
    {#name, first, second, mark, bare, write},
#include "models/chat_frames.def"
#undef X
};
const ptrdiff_t kvm_chat_rows_n = sizeof kvm_chat_rows / sizeof *kvm_chat_rows;
