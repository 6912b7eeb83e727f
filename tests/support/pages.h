/* pages.h - documents of a report and their pages, for the tests of reports/page.h. All
 * in the header, as queue.h. */
#ifndef KVM_TESTS_SUPPORT_PAGES_H
#define KVM_TESTS_SUPPORT_PAGES_H

#include "reports/page.h"
#include "tests/support/check.h"
#include "tests/support/markup.h"

typedef struct state {
    kvm_arena keep, scratch;
} state;

static inline int begin(void **at)
{
    static state s;
    kvm_err err = {0};
    assert_int_equal(kvm_arena_init(&s.keep, (size_t)64 << 20, &err), KVM_OK);
    assert_int_equal(kvm_arena_init(&s.scratch, (size_t)64 << 20, &err), KVM_OK);
    *at = &s;
    return 0;
}

static inline int end(void **at)
{
    state *s = *at;
    kvm_arena_free(&s->keep);
    kvm_arena_free(&s->scratch);
    return 0;
}

static inline kvm_jat parse(state *s, const char *text)
{
    kvm_jat doc;
    kvm_err err = {0};
    check_ok(kvm_json_parse(&doc, &s->keep, kvm_str_of(text), KVM_STR("doc"), &err),
             &err);
    return doc;
}

/* the page of a document, checked to be well-formed */
static inline kvm_str page_of(state *s, kvm_jat doc)
{
    kvm_text out = {0};
    kvm_err err = {0};
    check_ok(kvm_page_html(&out, doc, s->scratch, &err), &err);
    const kvm_str html = kvm_str_copy(&s->keep, kvm_text_str(&out));
    kvm_text_free(&out);
    assert_non_null(html.at);
    check_markup(html);
    return html;
}

#define HEAD "{\"format\":\"kvmill.report\",\"version\":4,"
#define PAIR                                                                           \
    "\"pair\":{\"name\":\"a-b\",\"source\":{\"name\":\"A\"},\"target\":{\"name\":"     \
    "\"B\"}}"

#endif
