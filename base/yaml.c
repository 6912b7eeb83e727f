/* From libyaml's events to a jansson tree.
 *
 * Invariants: depth never exceeds KVM_JSON_DEPTH and the tree, with every alias counted
 * as a copy of what it names, never exceeds YAML_NODES values, nor aliases ALIAS_BYTES
 * of text, so that no walk over a document of a few bytes takes forever or fills
 * memory. Aliases share the value of their anchor. Scalars are resolved by YAML 1.2's
 * core schema; where YAML 1.1 and 1.2 read one text differently and both readings are
 * plausible (010), it is refused. */
#include "base/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"
#include "base/json_internal.h"

enum {
    YAML_BYTES = 16 << 20,
    ALIAS_BYTES = 1 << 20, /* a spec repeats a few lines */
    YAML_NODES = 1000000,
    YAML_ANCHORS = 256
};

typedef struct node {
    json_t *v;       /* one reference */
    int height;      /* levels of containers in it */
    ptrdiff_t nodes; /* values in it, itself and those behind aliases included */
    ptrdiff_t bytes; /* of the texts and keys of all of them */
} node;

typedef struct anchor {
    kvm_str name; /* in reader.names */
    node node;    /* v is borrowed; NULL while the value is still open */
} anchor;

typedef struct reader {
    yaml_parser_t parser;
    kvm_str text;
    const char *file;
    int depth;
    ptrdiff_t nodes, alias_bytes;
    kvm_arena names;
    anchor anchors[YAML_ANCHORS];
    int n_anchors;
    kvm_line *lines; /* on the heap while it grows */
    ptrdiff_t n_lines, cap_lines;
} reader;

static kvm_status parse_node(reader *r, const yaml_event_t *e, node *out, kvm_err *err);

static int event_line(const yaml_event_t *e)
{
    return (int)e->start_mark.line + 1;
}

/* the line of the text, counted from 0, starts with white space that holds a tab */
static bool tab_indents(kvm_str text, size_t line)
{
    kvm_str head, tail = text;
    do {
        kvm_str_cut(tail, '\n', &head, &tail);
    } while (line-- > 0);
    ptrdiff_t i = 0;
    while (i < head.len && head.at[i] == ' ') i++;
    return i < head.len && head.at[i] == '\t';
}

static kvm_status syntax_error(const reader *r, kvm_err *err)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "is no YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", r->file);
    if (p->error == YAML_READER_ERROR)
        return kvm_fail(err, KVM_FORMAT, "%s: %s (byte %zu)", r->file, problem,
                        p->problem_offset);
    const int line = (int)p->problem_mark.line + 1;
    if (tab_indents(r->text, p->problem_mark.line))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: a tab cannot indent YAML: use spaces",
                        r->file, line);
    return kvm_fail(err, KVM_FORMAT, "%s:%d:%d: %s%s%s", r->file, line,
                    (int)p->problem_mark.column + 1, p->context ? p->context : "",
                    p->context ? ": " : "", problem);
}

static kvm_status next_event(reader *r, yaml_event_t *e, kvm_err *err)
{
    return yaml_parser_parse(&r->parser, e) ? KVM_OK : syntax_error(r, err);
}

static kvm_status add_line(reader *r, const json_t *in, uint64_t member, int line,
                           kvm_err *err)
{
    if (r->n_lines == r->cap_lines) {
        const ptrdiff_t cap = r->cap_lines ? 2 * r->cap_lines : 64;
        kvm_line *lines = realloc(r->lines, (size_t)cap * sizeof *lines);
        if (!lines) return kvm_fail(err, KVM_NOMEM, "%s: no memory", r->file);
        r->lines = lines;
        r->cap_lines = cap;
    }
    r->lines[r->n_lines++] = (kvm_line){.in = in, .member = member, .line = line};
    return KVM_OK;
}

/* --- scalars --- */

static bool one_of(kvm_str s, const char *a, const char *b, const char *c)
{
    return kvm_str_eq(s, kvm_str_of(a)) || kvm_str_eq(s, kvm_str_of(b)) ||
           kvm_str_eq(s, kvm_str_of(c));
}

/* digits of a base behind "0x" or "0o"; false unless all of s is that */
static bool based_integer(kvm_str s, int64_t *out, bool *fits)
{
    const bool hex = kvm_str_starts(s, KVM_STR("0x"));
    if (!hex && !kvm_str_starts(s, KVM_STR("0o"))) return false;
    const char *allowed = hex ? "0123456789abcdefABCDEF" : "01234567";
    if (s.len == 2 || (ptrdiff_t)strspn(s.at + 2, allowed) != s.len - 2) return false;
    int64_t value = 0;
    *fits = true;
    for (ptrdiff_t i = 2; i < s.len; i++) {
        const char c = s.at[i];
        const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, hex ? 16 : 8, &value) ||
            __builtin_add_overflow(value, digit, &value))
            *fits = false;
    }
    *out = value;
    return true;
}

static kvm_status resolve_number(kvm_str s, json_t **out, const char *file, int line,
                                 kvm_err *err)
{
    const ptrdiff_t sign = s.at[0] == '-' || s.at[0] == '+';
    const kvm_str body = kvm_str_slice(s, sign, s.len);
    double real;
    int64_t whole;
    if (body.len > 1 && body.at[0] == '0' && body.at[1] >= '0' && body.at[1] <= '9')
        return kvm_fail(err, KVM_FORMAT,
                        "%s:%d: %.40s: octal or ten? write 0o17 for base eight, no "
                        "leading zero for base ten, or quotes for a text",
                        file, line, s.at);
    if ((ptrdiff_t)strspn(body.at, "0123456789") == body.len) {
        if (!kvm_str_to_i64(s, &whole))
            return kvm_fail(err, KVM_FORMAT, "%s:%d: %.40s does not fit 64 bits", file,
                            line, s.at);
        *out = json_integer(whole);
        return KVM_OK;
    }
    if (!kvm_str_to_f64(s, &real))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: %.40s is out of range", file, line,
                        s.at);
    *out = json_real(real);
    return KVM_OK;
}

/* a plain scalar by the core schema; *out stays NULL for a string */
static kvm_status resolve(kvm_str s, json_t **out, const char *file, int line,
                          kvm_err *err)
{
    int64_t whole;
    bool fits;
    if (s.len == 0 || kvm_str_eq(s, KVM_STR("~")) ||
        one_of(s, "null", "Null", "NULL")) {
        *out = json_null();
    } else if (one_of(s, "true", "True", "TRUE")) {
        *out = json_true();
    } else if (one_of(s, "false", "False", "FALSE")) {
        *out = json_false();
    } else if (kvm_str_is_number(s)) {
        return resolve_number(s, out, file, line, err);
    } else if (based_integer(s, &whole, &fits)) {
        if (!fits)
            return kvm_fail(err, KVM_FORMAT, "%s:%d: %.40s does not fit 64 bits", file,
                            line, s.at);
        *out = json_integer(whole);
    } else {
        const ptrdiff_t sign = s.at[0] == '-' || s.at[0] == '+';
        const kvm_str body = kvm_str_slice(s, sign, s.len);
        if (one_of(body, ".inf", ".Inf", ".INF") || one_of(s, ".nan", ".NaN", ".NAN"))
            return kvm_fail(err, KVM_FORMAT, "%s:%d: %s: numbers here are finite", file,
                            line, s.at);
    }
    return KVM_OK;
}

static kvm_str scalar_text(const yaml_event_t *e)
{
    return (kvm_str){(const char *)e->data.scalar.value,
                     (ptrdiff_t)e->data.scalar.length};
}

static kvm_status parse_scalar(reader *r, const yaml_event_t *e, node *out,
                               kvm_err *err)
{
    const kvm_str s = scalar_text(e);
    json_t *v = NULL;
    if (memchr(s.at, 0, (size_t)s.len))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: a text holds a zero byte", r->file,
                        event_line(e));
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        TRY(resolve(s, &v, r->file, event_line(e), err));
    if (!v) v = json_stringn(s.at, (size_t)s.len);
    if (!v) return kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", r->file);
    *out = (node){.v = v, .nodes = 1, .bytes = s.len};
    return KVM_OK;
}

/* --- containers --- */

static kvm_status parse_list(reader *r, node *out, kvm_err *err)
{
    for (;;) {
        yaml_event_t e;
        node item = {0};
        TRY(next_event(r, &e, err));
        kvm_status s = KVM_OK;
        const bool end = e.type == YAML_SEQUENCE_END_EVENT;
        const uint64_t at = json_array_size(out->v);
        if (!end) s = add_line(r, out->v, at, event_line(&e), err);
        if (!end && !s) s = parse_node(r, &e, &item, err);
        yaml_event_delete(&e);
        if (s || end) return s;
        if (json_array_append_new(out->v, item.v))
            return kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", r->file);
        out->nodes += item.nodes;
        out->bytes += item.bytes;
        if (item.height >= out->height) out->height = item.height + 1;
    }
}

static kvm_status duplicate_key(const reader *r, const json_t *in, kvm_str key,
                                int line, kvm_err *err)
{
    int first = 0;
    for (ptrdiff_t i = r->n_lines - 1; i >= 0; i--)
        if (r->lines[i].in == in && r->lines[i].member == kvm_json__member(key))
            first = r->lines[i].line;
    return kvm_fail(
        err, KVM_FORMAT,
        "%s:%d: the key \"%.60s\" stands here for the second time (first on "
        "line %d)",
        r->file, line, key.at, first);
}

static kvm_status check_key(const reader *r, const json_t *in, const yaml_event_t *e,
                            kvm_err *err)
{
    const int line = event_line(e);
    if (e->type != YAML_SCALAR_EVENT || e->data.scalar.tag || e->data.scalar.anchor)
        return kvm_fail(err, KVM_FORMAT, "%s:%d: a key must be a plain text", r->file,
                        line);
    const kvm_str key = scalar_text(e);
    if (memchr(key.at, 0, (size_t)key.len))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: a key holds a zero byte", r->file,
                        line);
    if (kvm_str_eq(key, KVM_STR("<<")) &&
        e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return kvm_fail(
            err, KVM_FORMAT,
            "%s:%d: merge keys (<<) are no part of YAML 1.2: write the keys "
            "out",
            r->file, line);
    if (json_object_get(in, key.at)) return duplicate_key(r, in, key, line, err);
    return KVM_OK;
}

/* a key whose event is e (which stays the caller's) and the value behind it */
static kvm_status parse_member(reader *r, const yaml_event_t *e, node *out,
                               kvm_err *err)
{
    node value = {0};
    yaml_event_t value_event;
    TRY(check_key(r, out->v, e, err));
    const kvm_str key = scalar_text(e);
    TRY(add_line(r, out->v, kvm_json__member(key), event_line(e), err));
    TRY(next_event(r, &value_event, err));
    const kvm_status s = parse_node(r, &value_event, &value, err);
    yaml_event_delete(&value_event);
    if (s) return s;
    if (json_object_set_new(out->v, key.at, value.v))
        return kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", r->file);
    out->nodes += value.nodes;
    out->bytes += key.len + value.bytes;
    if (value.height >= out->height) out->height = value.height + 1;
    return KVM_OK;
}

static kvm_status parse_object(reader *r, node *out, kvm_err *err)
{
    for (;;) {
        yaml_event_t e;
        TRY(next_event(r, &e, err));
        const bool end = e.type == YAML_MAPPING_END_EVENT;
        const kvm_status s = end ? KVM_OK : parse_member(r, &e, out, err);
        yaml_event_delete(&e);
        if (s || end) return s;
    }
}

/* --- anchors --- */

static anchor *find_anchor(reader *r, kvm_str name)
{
    for (int i = 0; i < r->n_anchors; i++)
        if (kvm_str_eq(r->anchors[i].name, name)) return &r->anchors[i];
    return NULL;
}

/* Opens an anchor before its value is read, so that an alias inside it is seen. */
static kvm_status open_anchor(reader *r, const yaml_char_t *name, int line,
                              anchor **out, kvm_err *err)
{
    const kvm_str text = kvm_str_of((const char *)name);
    if (find_anchor(r, text))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: the anchor &%.60s is set twice",
                        r->file, line, text.at);
    const kvm_str kept = kvm_str_copy(&r->names, text);
    if (r->n_anchors == YAML_ANCHORS || !kept.at)
        return kvm_fail(err, KVM_RANGE, "%s:%d: too many anchors", r->file, line);
    *out = &r->anchors[r->n_anchors++];
    **out = (anchor){.name = kept};
    return KVM_OK;
}

static kvm_status parse_alias(reader *r, const yaml_event_t *e, node *out, kvm_err *err)
{
    const kvm_str name = kvm_str_of((const char *)e->data.alias.anchor);
    const anchor *a = find_anchor(r, name);
    const int line = event_line(e);
    if (!a)
        return kvm_fail(err, KVM_FORMAT, "%s:%d: there is no anchor &%.60s above",
                        r->file, line, name.at);
    if (!a->node.v)
        return kvm_fail(err, KVM_FORMAT, "%s:%d: *%.60s stands inside its own anchor",
                        r->file, line, name.at);
    if (r->depth + a->node.height > KVM_JSON_DEPTH)
        return kvm_fail(err, KVM_FORMAT, "%s:%d: nested deeper than %d", r->file, line,
                        KVM_JSON_DEPTH);
    r->nodes += a->node.nodes;
    r->alias_bytes += a->node.bytes;
    if (r->alias_bytes > ALIAS_BYTES)
        return kvm_fail(err, KVM_RANGE, "%s:%d: aliases repeat more than %d bytes",
                        r->file, line, ALIAS_BYTES);
    *out = a->node;
    json_incref(out->v);
    return KVM_OK;
}

/* --- one value --- */

static const yaml_char_t *tag_of(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT           ? e->data.scalar.tag
           : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.tag
                                                  : e->data.mapping_start.tag;
}

static const yaml_char_t *anchor_of(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT           ? e->data.scalar.anchor
           : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor
                                                  : e->data.mapping_start.anchor;
}

static kvm_status parse_container(reader *r, const yaml_event_t *e, node *out,
                                  kvm_err *err)
{
    const bool list = e->type == YAML_SEQUENCE_START_EVENT;
    if (r->depth >= KVM_JSON_DEPTH)
        return kvm_fail(err, KVM_FORMAT, "%s:%d: nested deeper than %d", r->file,
                        event_line(e), KVM_JSON_DEPTH);
    node made = {.v = list ? json_array() : json_object(), .height = 1, .nodes = 1};
    if (!made.v) return kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", r->file);
    r->depth++;
    const kvm_status s = list ? parse_list(r, &made, err) : parse_object(r, &made, err);
    r->depth--;
    if (s)
        json_decref(made.v);
    else
        *out = made;
    return s;
}

/* gives one reference in out->v; nothing on error */
static kvm_status parse_node(reader *r, const yaml_event_t *e, node *out, kvm_err *err)
{
    const int line = event_line(e);
    if (++r->nodes > YAML_NODES)
        return kvm_fail(err, KVM_RANGE, "%s:%d: more than %d values", r->file, line,
                        YAML_NODES);
    if (e->type == YAML_ALIAS_EVENT) {
        TRY(parse_alias(r, e, out, err));
        if (r->nodes <= YAML_NODES) return KVM_OK;
        json_decref(out->v);
        return kvm_fail(err, KVM_RANGE, "%s:%d: aliases repeat more than %d values",
                        r->file, line, YAML_NODES);
    }
    if (tag_of(e))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: tags (%.40s) are not read here",
                        r->file, line, (const char *)tag_of(e));
    anchor *a = NULL;
    if (anchor_of(e)) TRY(open_anchor(r, anchor_of(e), line, &a, err));
    TRY(e->type == YAML_SCALAR_EVENT ? parse_scalar(r, e, out, err)
                                     : parse_container(r, e, out, err));
    if (a) a->node = *out;
    return KVM_OK;
}

/* --- the document --- */

static kvm_status check_document_start(const reader *r, const yaml_event_t *e,
                                       kvm_err *err)
{
    if (e->type != YAML_DOCUMENT_START_EVENT)
        return kvm_fail(err, KVM_FORMAT, "%s: is empty", r->file);
    const yaml_version_directive_t *v = e->data.document_start.version_directive;
    if (v && (v->major != 1 || v->minor != 2))
        return kvm_fail(err, KVM_FORMAT, "%s:%d: %%YAML %d.%d; YAML 1.2 is read here",
                        r->file, event_line(e), v->major, v->minor);
    return KVM_OK;
}

static kvm_status parse_document(reader *r, node *out, int *line, kvm_err *err)
{
    yaml_event_t e;
    TRY(next_event(r, &e, err)); /* the start of the stream */
    yaml_event_delete(&e);
    TRY(next_event(r, &e, err));
    kvm_status s = check_document_start(r, &e, err);
    yaml_event_delete(&e);
    if (s) return s;
    TRY(next_event(r, &e, err));
    *line = event_line(&e);
    s = parse_node(r, &e, out, err);
    yaml_event_delete(&e);
    return s;
}

static kvm_status parse_end(reader *r, kvm_err *err)
{
    yaml_event_t e;
    TRY(next_event(r, &e, err)); /* the end of the document */
    yaml_event_delete(&e);
    TRY(next_event(r, &e, err));
    const bool last = e.type == YAML_STREAM_END_EVENT;
    const int line = event_line(&e);
    yaml_event_delete(&e);
    if (last) return KVM_OK;
    return kvm_fail(err, KVM_FORMAT, "%s:%d: a second document: one file holds one",
                    r->file, line);
}

static kvm_status keep_lines(reader *r, kvm_arena *keep, const kvm_lines **out,
                             kvm_err *err)
{
    kvm_lines *lines = kvm_new(keep, kvm_lines, 1);
    kvm_line *rows = kvm_new(keep, kvm_line, r->n_lines);
    if (!lines || !rows) return kvm_nomem(err, keep);
    if (r->n_lines > 0) {
        memcpy(rows, r->lines, (size_t)r->n_lines * sizeof *rows);
        qsort(rows, (size_t)r->n_lines, sizeof *rows, kvm_json__line_order);
    }
    *lines = (kvm_lines){.rows = rows, .n = r->n_lines};
    *out = lines;
    return KVM_OK;
}

static kvm_status parse(reader *r, kvm_jat *root, kvm_arena *keep, kvm_err *err)
{
    node top = {0};
    int line = 1;
    const kvm_lines *lines = NULL;
    TRY(parse_document(r, &top, &line, err));
    json_t *v = kvm_json_own(keep, top.v);
    if (!v) return kvm_nomem(err, keep);
    TRY(parse_end(r, err));
    TRY(keep_lines(r, keep, &lines, err));
    *root =
        (kvm_jat){.v = v, .file = r->file, .path = "", .line = line, .lines = lines};
    return KVM_OK;
}

kvm_status kvm_yaml_parse(kvm_jat *root, kvm_arena *keep, kvm_str text,
                          kvm_str file_name, kvm_err *err)
{
    /* told the encoding, libyaml counts the byte order mark as a column of line 1 */
    static const kvm_str mark = {"\xef\xbb\xbf", 3};
    const kvm_str file = kvm_str_copy(keep, file_name);
    if (!file.at) return kvm_nomem(err, keep);
    if (text.len < 0 || text.len > YAML_BYTES)
        return kvm_fail(err, KVM_RANGE, "%s: %td bytes; the limit for YAML is %d",
                        file.at, text.len, YAML_BYTES);
    if (kvm_str_starts(text, mark)) text = kvm_str_slice(text, mark.len, text.len);
    reader r = {.text = text, .file = file.at};
    TRY(kvm_arena_init(&r.names, (size_t)YAML_ANCHORS << 12, err));
    kvm_status s = KVM_OK;
    if (!yaml_parser_initialize(&r.parser)) {
        s = kvm_fail(err, KVM_NOMEM, "%s: no memory to read it", file.at);
    } else {
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r.parser,
                                     (const unsigned char *)(text.len ? text.at : ""),
                                     (size_t)text.len);
        s = parse(&r, root, keep, err);
        yaml_parser_delete(&r.parser);
    }
    free(r.lines);
    kvm_arena_free(&r.names);
    return s;
}

kvm_status kvm_yaml_read(kvm_jat *root, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_arena text_memory; /* the text is not needed once it is read */
    kvm_str text;
    TRY(kvm_arena_reserve(&text_memory, YAML_BYTES + 4096, err));
    kvm_status s = kvm_file_read(&text, &text_memory, path, YAML_BYTES, err);
    if (!s) s = kvm_yaml_parse(root, keep, text, path, err);
    kvm_arena_free(&text_memory);
    return s;
}
