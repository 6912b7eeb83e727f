/* JSON text in two forms from one writer: canonical (keys sorted by bytes, no spaces)
 * and pretty (indented, keys in their order). Numbers are the shortest decimals that
 * read back as the same double, and whole numbers have no fraction, so that equal
 * values give equal bytes wherever they were read from. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_internal.h"

typedef struct writer {
    kvm_text out;
    bool pretty;
    int depth;
} writer;

typedef struct entry {
    kvm_str key;
    const json_t *value;
} entry;

static kvm_status write_value(writer *w, const json_t *v, kvm_err *err);

static int entry_order(const void *a, const void *b)
{
    return kvm_str_cmp(((const entry *)a)->key, ((const entry *)b)->key);
}

static void write_string(writer *w, kvm_str s)
{
    kvm_text_add(&w->out, KVM_STR("\""));
    ptrdiff_t plain = 0;
    for (ptrdiff_t i = 0; i < s.len; i++) {
        const unsigned char c = (unsigned char)s.at[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        kvm_text_add(&w->out, kvm_str_slice(s, plain, i));
        if (c == '"' || c == '\\')
            kvm_text_addf(&w->out, "\\%c", c);
        else if (c == '\n')
            kvm_text_add(&w->out, KVM_STR("\\n"));
        else
            kvm_text_addf(&w->out, "\\u%04x", c);
        plain = i + 1;
    }
    kvm_text_add(&w->out, kvm_str_slice(s, plain, s.len));
    kvm_text_add(&w->out, KVM_STR("\""));
}

static void write_real(writer *w, double v)
{
    if (fabs(v) <= 0x1p53 && v == floor(v)) {
        kvm_text_addf(&w->out, "%lld", (long long)v);
        return;
    }
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    kvm_text_add(&w->out, kvm_str_of(text));
}

static void new_line(writer *w)
{
    if (w->pretty) kvm_text_addf(&w->out, "\n%*s", 2 * w->depth, "");
}

static kvm_status write_array(writer *w, const json_t *v, kvm_err *err)
{
    const size_t n = json_array_size(v);
    kvm_text_add(&w->out, KVM_STR("["));
    w->depth++;
    for (size_t i = 0; i < n; i++) {
        if (i > 0) kvm_text_add(&w->out, KVM_STR(","));
        new_line(w);
        TRY(write_value(w, json_array_get(v, i), err));
    }
    w->depth--;
    if (n > 0) new_line(w);
    kvm_text_add(&w->out, KVM_STR("]"));
    return KVM_OK;
}

static kvm_status write_entries(writer *w, const entry *entries, size_t n, kvm_err *err)
{
    kvm_text_add(&w->out, KVM_STR("{"));
    w->depth++;
    for (size_t i = 0; i < n; i++) {
        if (i > 0) kvm_text_add(&w->out, KVM_STR(","));
        new_line(w);
        write_string(w, entries[i].key);
        kvm_text_add(&w->out, w->pretty ? KVM_STR(": ") : KVM_STR(":"));
        TRY(write_value(w, entries[i].value, err));
    }
    w->depth--;
    if (n > 0) new_line(w);
    kvm_text_add(&w->out, KVM_STR("}"));
    return KVM_OK;
}

static kvm_status write_object(writer *w, const json_t *v, kvm_err *err)
{
    const size_t n = json_object_size(v);
    entry *entries = calloc(n + 1, sizeof *entries);
    if (!entries) return kvm_fail(err, KVM_NOMEM, "no memory to write JSON");
    size_t i = 0;
    const kvm_jat at = {.v = v};
    for (void *it = NULL;
         i < n && kvm_json_next(at, &it, &entries[i].key, &entries[i].value);)
        i++;
    if (!w->pretty) qsort(entries, n, sizeof *entries, entry_order);
    const kvm_status s = write_entries(w, entries, n, err);
    free(entries);
    return s;
}

static kvm_status write_value(writer *w, const json_t *v, kvm_err *err)
{
    if (!v) return kvm_fail(err, KVM_INTERNAL, "no JSON value to write");
    if (w->depth > KVM_JSON_DEPTH)
        return kvm_fail(err, KVM_FORMAT, "JSON nested deeper than %d", KVM_JSON_DEPTH);
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return write_object(w, v, err);
    case JSON_ARRAY:
        return write_array(w, v, err);
    case JSON_STRING:
        write_string(w,
                     (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)});
        break;
    case JSON_INTEGER:
        kvm_text_addf(&w->out, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        write_real(w, json_real_value(v));
        break;
    case JSON_TRUE:
        kvm_text_add(&w->out, KVM_STR("true"));
        break;
    case JSON_FALSE:
        kvm_text_add(&w->out, KVM_STR("false"));
        break;
    case JSON_NULL:
        kvm_text_add(&w->out, KVM_STR("null"));
        break;
    }
    return KVM_OK;
}

static kvm_status write_json(kvm_str *out, kvm_arena *keep, const json_t *v,
                             bool pretty, kvm_err *err)
{
    writer w = {.pretty = pretty};
    kvm_status s = write_value(&w, v, err);
    if (!s && pretty) kvm_text_add(&w.out, KVM_STR("\n"));
    if (!s && w.out.failed) s = kvm_fail(err, KVM_NOMEM, "no memory to write JSON");
    if (!s) {
        const kvm_str text = kvm_str_copy(keep, kvm_text_str(&w.out));
        if (text.at)
            *out = text;
        else
            s = kvm_nomem(err, keep);
    }
    kvm_text_free(&w.out);
    return s;
}

kvm_status kvm_json_canonical(kvm_str *out, kvm_arena *keep, const json_t *v,
                              kvm_err *err)
{
    return write_json(out, keep, v, false, err);
}

kvm_status kvm_json_pretty(kvm_str *out, kvm_arena *keep, const json_t *v, kvm_err *err)
{
    return write_json(out, keep, v, true, err);
}
