#include "tests/support/check.h"

#include <string.h>
#include <utf8proc.h>

#include "tests/support/markup.h"

enum { DEEPEST = 64 };

typedef struct scan {
    kvm_str text;
    ptrdiff_t at;
    kvm_str open[DEEPEST];
    int depth;
} scan;

static void fail_here(const scan *s, const char *what)
{
    const ptrdiff_t from = s->at > 60 ? s->at - 60 : 0;
    const kvm_str near = kvm_str_slice(s->text, from, s->at + 60);
    fail_msg("markup, byte %td: %s near \"%.*s\"", s->at, what, KVM_STR_ARG(near));
}

static void check_characters(scan *s)
{
    for (s->at = 0; s->at < s->text.len;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate(
            (const utf8proc_uint8_t *)s->text.at + s->at, s->text.len - s->at, &c);
        if (n <= 0) fail_here(s, "broken UTF-8");
        if ((c < 0x20 && c != '\n') || (c >= 0x7f && c < 0xa0))
            fail_here(s, "a control character");
        s->at += n;
    }
    s->at = 0;
}

static char peek(const scan *s)
{
    if (s->at >= s->text.len) return 0;
    return s->text.at[s->at];
}

static kvm_str name(scan *s)
{
    const ptrdiff_t from = s->at;
    while (peek(s) && !strchr(" \n/>=\"<", peek(s))) s->at++;
    if (s->at == from) fail_here(s, "a name is missing");
    return kvm_str_slice(s->text, from, s->at);
}

static void entity(scan *s)
{
    const ptrdiff_t from = s->at++;
    while (peek(s) && peek(s) != ';' && s->at - from < 10) s->at++;
    if (peek(s) != ';') fail_here(s, "a bare &");
    s->at++;
}

static void attribute(scan *s)
{
    name(s);
    if (peek(s) != '=') fail_here(s, "an attribute without a value");
    s->at++;
    if (peek(s) != '"') fail_here(s, "an attribute without quotes");
    s->at++;
    while (peek(s) != '"') {
        if (!peek(s) || peek(s) == '<') fail_here(s, "an attribute does not end");
        if (peek(s) == '&')
            entity(s);
        else
            s->at++;
    }
    s->at++;
}

static void close_tag(scan *s)
{
    const kvm_str closed = name(s);
    if (peek(s) != '>') fail_here(s, "a closing tag does not end");
    if (s->depth < 1 || !kvm_str_eq(s->open[s->depth - 1], closed))
        fail_here(s, "closes what is not open");
    s->depth--;
    s->at++;
}

static void tag(scan *s)
{
    s->at++;
    if (peek(s) == '!') { /* the document type */
        while (peek(s) && peek(s) != '>') s->at++;
        s->at++;
        return;
    }
    if (peek(s) == '/') {
        s->at++;
        close_tag(s);
        return;
    }
    const kvm_str opened = name(s);
    while (peek(s) == ' ' || peek(s) == '\n') {
        s->at++;
        attribute(s);
    }
    const bool selfclosed = peek(s) == '/';
    if (selfclosed) s->at++;
    if (peek(s) != '>') fail_here(s, "a tag does not end");
    s->at++;
    if (selfclosed || kvm_str_eq(opened, KVM_STR("meta"))) return;
    if (s->depth == DEEPEST) fail_here(s, "too deep");
    s->open[s->depth++] = opened;
    if (!kvm_str_eq(opened, KVM_STR("style"))) return;
    const ptrdiff_t end =
        kvm_str_find(kvm_str_slice(s->text, s->at, s->text.len), KVM_STR("</style>"));
    if (end < 0) fail_here(s, "style does not end");
    s->at += end;
}

void check_markup(kvm_str text)
{
    scan s = {.text = text};
    check_characters(&s);
    while (s.at < text.len) {
        if (peek(&s) == '<')
            tag(&s);
        else if (peek(&s) == '&')
            entity(&s);
        else if (peek(&s) == '>')
            fail_here(&s, "a bare >");
        else
            s.at++;
    }
    if (s.depth) fail_here(&s, "an element stays open");
}
