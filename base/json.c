#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_internal.h"

static const size_t JSON_BYTES = (size_t)512 << 20; /* largest document */

/* --- lines --- */

uint64_t kvm_json__member(kvm_str key) /* FNV-1a */
{
    uint64_t h = 0xcbf29ce484222325u;
    for (ptrdiff_t i = 0; i < key.len; i++)
        h = (h ^ (unsigned char)key.at[i]) * 0x100000001b3u;
    return h;
}

int kvm_json__line_order(const void *a, const void *b)
{
    const kvm_line *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->in, q = (uintptr_t)y->in;
    if (p != q) return p < q ? -1 : 1;
    return (x->member > y->member) - (x->member < y->member);
}

int kvm_json__line(const kvm_lines *lines, const json_t *in, uint64_t member)
{
    if (!lines || lines->n == 0) return 0;
    const kvm_line key = {.in = in, .member = member};
    const kvm_line *row = bsearch(&key, lines->rows, (size_t)lines->n,
                                  sizeof *lines->rows, kvm_json__line_order);
    return row ? row->line : 0;
}

/* --- reading --- */

static int line_of(kvm_str text, ptrdiff_t at)
{
    int line = 1;
    for (ptrdiff_t i = 0; i < at; i++) line += text.at[i] == '\n';
    return line;
}

/* the offset of the quote that ends the string whose first byte is at i */
static ptrdiff_t string_end(kvm_str text, ptrdiff_t i)
{
    while (i < text.len && text.at[i] != '"') i += text.at[i] == '\\' ? 2 : 1;
    return i;
}

/* One pass before jansson's, over text that need not be JSON. Depth is checked here
 * since jansson recurses. Model configurations hold integers such as 10^30 ("no
 * limit"), which jansson refuses: with an exponent behind them it reads them as reals.
 * `patched` gets the text in which that was done, and stays empty when there is no such
 * number. */
static kvm_status prepare(kvm_str text, const char *file, bool infinities,
                          kvm_text *patched, kvm_err *err)
{
    int depth = 0;
    ptrdiff_t copied = 0;
    for (ptrdiff_t i = 0; i < text.len; i++) {
        const char c = text.at[i];
        if (c == '"') {
            i = string_end(text, i + 1);
        } else if (c == '{' || c == '[') {
            if (++depth > KVM_JSON_DEPTH)
                return kvm_fail(err, KVM_FORMAT, "%s:%d: nested deeper than %d", file,
                                line_of(text, i), KVM_JSON_DEPTH);
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == 'I' && infinities &&
                   kvm_str_starts(kvm_str_slice(text, i, text.len),
                                  KVM_STR("Infinity"))) {
            kvm_text_add(patched, kvm_str_slice(text, copied, i));
            kvm_text_add(patched, KVM_STR("1.7976931348623157e308"));
            copied = i + 8;
            i = copied - 1;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            ptrdiff_t end = i + 1;
            while (end < text.len && strchr("0123456789.eE+-", text.at[end]) &&
                   text.at[end])
                end++;
            const kvm_str number = kvm_str_slice(text, i, end);
            int64_t fits;
            if (number.len >= 19 && !memchr(number.at, '.', (size_t)number.len) &&
                !memchr(number.at, 'e', (size_t)number.len) &&
                !memchr(number.at, 'E', (size_t)number.len) &&
                kvm_str_is_number(number) && !kvm_str_to_i64(number, &fits)) {
                kvm_text_add(patched, kvm_str_slice(text, copied, end));
                kvm_text_add(patched, KVM_STR("e0"));
                copied = end;
            }
            i = end - 1;
        }
    }
    if (copied > 0) kvm_text_add(patched, kvm_str_slice(text, copied, text.len));
    return patched->failed ? kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", file)
                           : KVM_OK;
}

static kvm_status load(json_t **out, kvm_str text, const char *file, kvm_err *err)
{
    json_error_t e;
    json_t *v = json_loadb(text.at, (size_t)text.len,
                           JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (v) {
        *out = v;
        return KVM_OK;
    }
    const enum json_error_code why = json_error_code(&e);
    /* the parser's words for these are names of its own flags */
    const bool zero =
        why == json_error_null_character || why == json_error_null_byte_in_key;
    return kvm_fail(
        err, why == json_error_out_of_memory ? KVM_NOMEM : KVM_FORMAT, "%s:%d:%d: %s",
        file, e.line > 0 ? e.line : 1, e.column > 0 ? e.column : 1,
        zero ? "\\u0000 stands in a string, which no text may hold: remove it"
             : e.text);
}

static kvm_status parse(kvm_jat *root, kvm_arena *keep, kvm_str text, kvm_str file_name,
                        bool infinities, kvm_err *err)
{
    const kvm_str file = kvm_str_copy(keep, file_name);
    if (!file.at) return kvm_nomem(err, keep);
    if (kvm_str_starts(text, KVM_STR("\xef\xbb\xbf"))) /* a byte order mark */
        text = kvm_str_slice(text, 3, text.len);
    if (text.len < 0 || (size_t)text.len > JSON_BYTES)
        return kvm_fail(err, KVM_RANGE, "%s: %td bytes; the limit for JSON is %zu",
                        file.at, text.len, JSON_BYTES);
    kvm_text patched = {0};
    json_t *v = NULL;
    kvm_status s = prepare(text, file.at, infinities, &patched, err);
    if (!s) s = load(&v, patched.len ? kvm_text_str(&patched) : text, file.at, err);
    kvm_text_free(&patched);
    if (s) return s;
    v = kvm_json_own(keep, v);
    if (!v) return kvm_nomem(err, keep);
    *root = (kvm_jat){.v = v, .file = file.at, .path = ""};
    return KVM_OK;
}

kvm_status kvm_json_parse(kvm_jat *root, kvm_arena *keep, kvm_str text,
                          kvm_str file_name, kvm_err *err)
{
    return parse(root, keep, text, file_name, false, err);
}

static kvm_status read(kvm_jat *root, kvm_arena *keep, kvm_str path, bool infinities,
                       kvm_err *err)
{
    kvm_arena text_memory; /* the text is not needed once it is read */
    kvm_str text;
    TRY(kvm_arena_reserve(&text_memory, JSON_BYTES + 4096, err));
    kvm_status s = kvm_file_read(&text, &text_memory, path, JSON_BYTES, err);
    if (!s) s = parse(root, keep, text, path, infinities, err);
    kvm_arena_free(&text_memory);
    return s;
}

kvm_status kvm_json_read(kvm_jat *root, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    return read(root, keep, path, false, err);
}

kvm_status kvm_json_read_loose(kvm_jat *root, kvm_arena *keep, kvm_str path,
                               kvm_err *err)
{
    return read(root, keep, path, true, err);
}

static void drop(void *v)
{
    json_decref(v);
}

json_t *kvm_json_own(kvm_arena *keep, json_t *v)
{
    return kvm_arena_defer(keep, drop, v, NULL) == KVM_OK ? v : NULL;
}

/* --- members --- */

static kvm_jat member(kvm_jat of, kvm_str path, const json_t *v, uint64_t place)
{
    const int line = kvm_json__line(of.lines, of.v, place);
    return (kvm_jat){.v = v && !json_is_null(v) ? v : NULL,
                     .file = of.file,
                     .path = path.at ? path.at : of.path,
                     .line = line ? line : of.line,
                     .lines = of.lines};
}

kvm_jat kvm_json_get(kvm_jat obj, kvm_arena *keep, const char *key)
{
    const kvm_str path = obj.path && *obj.path
                             ? kvm_str_fmt(keep, "%s.%s", obj.path, key)
                             : kvm_str_copy(keep, kvm_str_of(key));
    return member(obj, path, json_object_get(obj.v, key),
                  kvm_json__member(kvm_str_of(key)));
}

kvm_jat kvm_json_item(kvm_jat arr, kvm_arena *keep, ptrdiff_t i)
{
    const kvm_str path = kvm_str_fmt(keep, "%s[%td]", arr.path ? arr.path : "", i);
    return member(arr, path, i >= 0 ? json_array_get(arr.v, (size_t)i) : NULL,
                  (uint64_t)i);
}

/* jansson iterates over objects that it may change; this one it does not. */
static json_t *unconst(const json_t *v)
{
    union {
        const json_t *in;
        json_t *out;
    } same = {.in = v};
    return same.out;
}

/* rows of what both values hold; `room` of them are left */
static void place(const kvm_lines *lines, const json_t *copy, const json_t *original,
                  kvm_line *rows, ptrdiff_t *n, ptrdiff_t room)
{
    const bool list = json_is_array(original);
    if (json_typeof(copy) != json_typeof(original)) return;
    if (!list && !json_is_object(original)) return;
    void *it = json_object_iter(unconst(original));
    for (size_t i = 0; list ? i < json_array_size(original) : it != NULL; i++) {
        const char *key = list ? NULL : json_object_iter_key(it);
        const json_t *from =
            list ? json_array_get(original, i) : json_object_iter_value(it);
        const json_t *to = list ? json_array_get(copy, i) : json_object_get(copy, key);
        const uint64_t m = list ? i : kvm_json__member(kvm_str_of(key));
        const int line = kvm_json__line(lines, original, m);
        if (to && line && *n < room)
            rows[(*n)++] = (kvm_line){.in = copy, .member = m, .line = line};
        if (to) place(lines, to, from, rows, n, room);
        if (!list) it = json_object_iter_next(unconst(original), it);
    }
}

kvm_status kvm_json_place_as(kvm_jat *copy, kvm_arena *keep, kvm_jat original,
                             kvm_err *err)
{
    copy->file = original.file;
    copy->path = original.path;
    copy->line = original.line;
    copy->lines = NULL;
    if (!original.v || !original.lines) return KVM_OK;
    kvm_lines *lines = kvm_new(keep, kvm_lines, 1);
    kvm_line *rows = kvm_new(keep, kvm_line, original.lines->n);
    if (!lines || !rows) return kvm_nomem(err, keep);
    place(original.lines, copy->v, original.v, rows, &lines->n, original.lines->n);
    if (lines->n) qsort(rows, (size_t)lines->n, sizeof *rows, kvm_json__line_order);
    lines->rows = rows;
    copy->lines = lines;
    return KVM_OK;
}

bool kvm_json_next(kvm_jat obj, void **iter, kvm_str *key, const json_t **value)
{
    json_t *o = unconst(obj.v);
    if (!json_is_object(o)) return false;
    *iter = *iter ? json_object_iter_next(o, *iter) : json_object_iter(o);
    if (!*iter) return false;
    *key = kvm_str_of(json_object_iter_key(*iter));
    *value = json_object_iter_value(*iter);
    return true;
}

/* --- typed reads --- */

kvm_status kvm_json_fail_at(kvm_err *err, kvm_status code, kvm_jat at, const char *file,
                            int line, const char *fmt, ...)
{
    char message[KVM_ERR_BYTES], number[16] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (at.line > 0) snprintf(number, sizeof number, ":%d", at.line);
    const kvm_quoted path = kvm_quote(kvm_str_of(at.path)); /* keys are input too */
    return kvm_fail_at(err, code, file, line, "%s%s: %s%s%s",
                       at.file ? at.file : "JSON", number, path.at,
                       *path.at ? ": " : "", message);
}

kvm_status kvm_json_prefix(kvm_err *err, kvm_status code, kvm_jat at)
{
    char number[16] = "";
    if (at.line > 0) snprintf(number, sizeof number, ":%d", at.line);
    return kvm_err_prefix(err, code, "%s%s: %s", at.file ? at.file : "JSON", number,
                          kvm_quote(kvm_str_of(at.path)).at);
}

static const char *kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

static kvm_status wrong(kvm_jat at, const char *expected, kvm_err *err)
{
    if (!at.v || json_is_null(at.v))
        return kvm_json_fail(err, KVM_FORMAT, at, "is missing (expected %s)", expected);
    if (!json_is_string(at.v))
        return kvm_json_fail(err, KVM_FORMAT, at, "expected %s, found %s", expected,
                             kind(at.v));
    const char *text = json_string_value(at.v);
    const bool cut = strlen(text) > 40;
    return kvm_json_fail(err, KVM_FORMAT, at,
                         "expected %s, found the string \"%.40s%s\"", expected, text,
                         cut ? "..." : "");
}

kvm_status kvm_json_i64(kvm_jat at, int64_t *out, kvm_err *err)
{
    if (json_is_integer(at.v)) {
        *out = json_integer_value(at.v);
        return KVM_OK;
    }
    if (json_is_real(at.v)) { /* 3.0 is an integer while doubles can count in ones */
        const double v = json_real_value(at.v);
        if (fabs(v) <= 0x1p53 && v == floor(v)) {
            *out = (int64_t)v;
            return KVM_OK;
        }
    }
    return wrong(at, "an integer", err);
}

kvm_status kvm_json_i64_or(kvm_jat at, int64_t fallback, int64_t *out, kvm_err *err)
{
    if (kvm_json_has(at)) return kvm_json_i64(at, out, err);
    *out = fallback;
    return KVM_OK;
}

kvm_status kvm_json_f64(kvm_jat at, double *out, kvm_err *err)
{
    if (!json_is_number(at.v)) return wrong(at, "a number", err);
    *out = json_number_value(at.v);
    return KVM_OK;
}

kvm_status kvm_json_f64_or(kvm_jat at, double fallback, double *out, kvm_err *err)
{
    if (kvm_json_has(at)) return kvm_json_f64(at, out, err);
    *out = fallback;
    return KVM_OK;
}

/* YAML 1.1 took these for truth values; here they are strings, and people mistake
 * them */
static const char *meant_bool(const json_t *v)
{
    static const char *const words[][2] = {
        {"yes", "true"}, {"on", "true"},   {"y", "true"},
        {"no", "false"}, {"off", "false"}, {"n", "false"},
    };
    const kvm_str text = kvm_str_of(json_string_value(v));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const kvm_str word = kvm_str_of(words[i][0]);
        bool same = text.len == word.len;
        for (ptrdiff_t j = 0; same && j < word.len; j++)
            same = (text.at[j] | 0x20) == word.at[j];
        if (same) return words[i][1];
    }
    return NULL;
}

kvm_status kvm_json_bool_or(kvm_jat at, bool fallback, bool *out, kvm_err *err)
{
    if (!kvm_json_has(at)) {
        *out = fallback;
        return KVM_OK;
    }
    if (json_is_boolean(at.v)) {
        *out = json_is_true(at.v);
        return KVM_OK;
    }
    const char *meant = json_is_string(at.v) ? meant_bool(at.v) : NULL;
    if (meant)
        return kvm_json_fail(
            err, KVM_FORMAT, at,
            "expected true or false, found the string \"%s\": write %s",
            json_string_value(at.v), meant);
    return wrong(at, "true or false", err);
}

kvm_status kvm_json_str(kvm_jat at, kvm_str *out, kvm_err *err)
{
    if (!json_is_string(at.v)) return wrong(at, "a string", err);
    *out = (kvm_str){json_string_value(at.v), (ptrdiff_t)json_string_length(at.v)};
    return KVM_OK;
}

kvm_status kvm_json_str_or(kvm_jat at, kvm_str fallback, kvm_str *out, kvm_err *err)
{
    if (kvm_json_has(at)) return kvm_json_str(at, out, err);
    *out = fallback;
    return KVM_OK;
}

kvm_status kvm_json_array(kvm_jat at, ptrdiff_t *n, kvm_err *err)
{
    if (!json_is_array(at.v)) return wrong(at, "a list", err);
    *n = (ptrdiff_t)json_array_size(at.v);
    return KVM_OK;
}

kvm_status kvm_json_object(kvm_jat at, kvm_err *err)
{
    return json_is_object(at.v) ? KVM_OK : wrong(at, "an object", err);
}
