#include "schema/list.h"

#include <stdlib.h>

#include "schema/utf8.h"

static void add_text(kvm_text *t, kvm_str s)
{
    char *heap = NULL;
    t->failed |= !kvm_utf8(&s, &heap);
    kvm_text_add(t, KVM_STR("\""));
    ptrdiff_t from = 0;
    for (ptrdiff_t i = 0; i < s.len; i++) {
        const unsigned char c = (unsigned char)s.at[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        kvm_text_add(t, kvm_str_slice(s, from, i));
        kvm_text_addf(t, "\\u%04x", c);
        from = i + 1;
    }
    kvm_text_add(t, kvm_str_slice(s, from, s.len));
    kvm_text_add(t, KVM_STR("\""));
    free(heap);
}

static void add_cell(kvm_text *t, const kvm_cell *c)
{
    switch (c->type) {
    case KVM_CELL_NULL:
        kvm_text_add(t, KVM_STR("null"));
        break;
    case KVM_CELL_INT:
        kvm_text_addf(t, "%lld", (long long)c->i);
        break;
    case KVM_CELL_NUM:
        kvm_text_addf(t, "%.17g", c->f);
        break;
    case KVM_CELL_TEXT:
        add_text(t, c->s);
        break;
    }
}

void kvm_list_add(kvm_list *l, const kvm_cell *cells, ptrdiff_t n)
{
    kvm_text_add(&l->text, l->count++ ? KVM_STR(",[") : KVM_STR("[["));
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i) kvm_text_add(&l->text, KVM_STR(","));
        add_cell(&l->text, &cells[i]);
    }
    kvm_text_add(&l->text, KVM_STR("]"));
}

kvm_status kvm_list_give(kvm_list *l, kvm_cell *arg, kvm_arena *keep, kvm_err *err)
{
    kvm_text_add(&l->text, l->count ? KVM_STR("]") : KVM_STR("[]"));
    const bool failed = l->text.failed;
    const kvm_str s = kvm_str_copy(keep, kvm_text_str(&l->text));
    kvm_text_free(&l->text);
    *l = (kvm_list){0};
    if (failed) return kvm_fail(err, KVM_NOMEM, "catalogue: out of memory");
    if (!s.at) return kvm_nomem(err, keep);
    *arg = kvm_cell_s(s);
    return KVM_OK;
}

bool kvm_list_column(kvm_str *rest, kvm_str *name, char *type)
{
    kvm_str column, word;
    if (rest->len == 0) return false;
    kvm_str_cut(*rest, ',', &column, rest);
    if (!kvm_str_cut(kvm_str_trim(column), ' ', name, &word) || word.len != 1)
        return false;
    *type = word.at[0];
    return *type == 'i' || *type == 'f' || *type == 't';
}
