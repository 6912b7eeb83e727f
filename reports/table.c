#include "reports/table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#define REPLACEMENT "\xef\xbf\xbd"
#define ELLIPSIS "\xe2\x80\xa6"
#define RULE "\xe2\x94\x80"
#define DASH "\xe2\x80\x93"

enum { GAP = 2, NARROWEST = 8 };

/* ---- making one ---- */

kvm_table kvm_table_new(kvm_arena *keep, const char *name, kvm_str title,
                        const kvm_column *columns, ptrdiff_t column_count)
{
    return (kvm_table){.name = name,
                       .title = title,
                       .columns = columns,
                       .column_count = column_count,
                       .keep = keep};
}

static void add_cell(kvm_table *t, kvm_cell cell)
{
    if (t->cell_count == t->cell_cap) {
        const ptrdiff_t cap = t->cell_cap ? 2 * t->cell_cap : 64;
        kvm_cell *cells = kvm_new(t->keep, kvm_cell, cap);
        if (!cells) {
            t->failed = true;
            return;
        }
        if (t->cell_count) memcpy(cells, t->cells, sizeof *cells * t->cell_count);
        t->cells = cells;
        t->cell_cap = cap;
    }
    t->cells[t->cell_count++] = cell;
}

void kvm_table_text(kvm_table *t, kvm_str text, kvm_tone tone)
{
    add_cell(t, (kvm_cell){.text = text, .tone = tone});
}

void kvm_table_est(kvm_table *t, kvm_est e, kvm_format format)
{
    add_cell(t, (kvm_cell){.est = e, .format = format});
}

void kvm_table_num(kvm_table *t, double v, kvm_format format)
{
    kvm_table_est(t, kvm_est_of(v), format);
}

kvm_format kvm_table_seconds(const kvm_table *t)
{
    double sum = 0;
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < t->cell_count; i++) {
        const kvm_cell *c = &t->cells[i];
        const bool figure = t->columns[i % t->column_count].kind != KVM_COL_TEXT;
        if (!figure || c->format != KVM_FORMAT_SECONDS || !isfinite(c->est.value) ||
            !(c->est.value > 0))
            continue;
        sum += log(c->est.value);
        n++;
    }
    return kvm_seconds_unit(n ? exp(sum / (double)n) : 1);
}

/* ---- footnotes ---- */

kvm_status kvm_table_footnotes(kvm_table_notes *out, kvm_arena *keep,
                               const kvm_table *t, kvm_err *err)
{
    int *of_cell = kvm_new(keep, int, t->cell_count);
    kvm_str *text = kvm_new(keep, kvm_str, t->cell_count);
    if ((!of_cell || !text) && t->cell_count) return kvm_nomem(err, keep);
    int count = 0;
    for (ptrdiff_t i = 0; i < t->cell_count; i++) {
        const bool figure = t->columns[i % t->column_count].kind != KVM_COL_TEXT;
        kvm_str note = t->cells[i].est.note;
        if (figure && !note.len && !kvm_est_has(t->cells[i].est))
            note = KVM_STR("not measured");
        if (!figure || !note.len) continue;
        int n = 0;
        while (n < count && !kvm_str_eq(text[n], note)) n++;
        if (n == count) text[count++] = note;
        of_cell[i] = n + 1;
    }
    *out = (kvm_table_notes){text, of_cell, count};
    return KVM_OK;
}

kvm_str kvm_superscript(kvm_arena *a, int number)
{
    static const char *const digit[] = {"⁰", "¹", "²", "³", "⁴",
                                        "⁵", "⁶", "⁷", "⁸", "⁹"};
    kvm_str out = KVM_STR("");
    for (int left = number; left > 0 && out.at; left /= 10)
        out = kvm_str_fmt(a, "%s%.*s", digit[left % 10], KVM_STR_ARG(out));
    return out;
}

/* ---- text on a terminal ---- */

/* The next character of s at *at: its code point, or -1 for a byte that is no UTF-8.
 * *at moves on. */
static utf8proc_int32_t next_char(kvm_str s, ptrdiff_t *at)
{
    utf8proc_int32_t c;
    const utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s.at + *at, s.len - *at, &c);
    *at += n > 0 ? n : 1;
    return n > 0 ? c : -1;
}

/* Escape sequences start with a control character; the bidirectional overrides can make
 * a line read as another one. */
static bool harmful(utf8proc_int32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f;
}

int kvm_text_width(kvm_str s)
{
    int width = 0;
    for (ptrdiff_t at = 0; at < s.len;) {
        const utf8proc_int32_t c = next_char(s, &at);
        width += c < 0 ? 1 : utf8proc_charwidth(c);
    }
    return width;
}

kvm_str kvm_printable(kvm_arena *a, kvm_str s)
{
    ptrdiff_t bad = 0;
    for (ptrdiff_t at = 0; at < s.len;) bad += harmful(next_char(s, &at));
    if (!bad) return s;
    char *out = kvm_new(a, char, s.len + 2 * bad + 1); /* a byte becomes three */
    if (!out) return (kvm_str){NULL, 0};
    ptrdiff_t to = 0;
    for (ptrdiff_t at = 0; at < s.len;) {
        const ptrdiff_t from = at;
        const utf8proc_int32_t c = next_char(s, &at);
        const bool is_harmful = harmful(c);
        const char *piece = is_harmful ? REPLACEMENT : s.at + from;
        const ptrdiff_t n = is_harmful ? 3 : at - from;
        if (c == '\n' || c == '\t')
            out[to++] = ' ';
        else
            memcpy(out + to, piece, (size_t)n), to += n;
    }
    return (kvm_str){out, to};
}

kvm_term kvm_term_of(int fd)
{
    kvm_term term = {0};
    if (!isatty(fd)) return term;
    const char *name = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    struct winsize size;
    term.colour =
        !(no_colour && *no_colour) && name && *name && strcmp(name, "dumb") != 0;
    term.width = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    return term;
}

void kvm_paint(kvm_text *out, kvm_str text, kvm_tone tone, kvm_term term)
{
    static const char *const code[] = {
        [KVM_TONE_PLAIN] = "", [KVM_TONE_GOOD] = "32", [KVM_TONE_WARN] = "33",
        [KVM_TONE_BAD] = "31", [KVM_TONE_MUTED] = "2", [KVM_TONE_STRONG] = "1"};
    if (!term.colour || tone == KVM_TONE_PLAIN || !text.len) {
        kvm_text_add(out, text);
        return;
    }
    kvm_text_addf(out, "\033[%sm%.*s\033[0m", code[tone], KVM_STR_ARG(text));
}

kvm_str kvm_text_head(kvm_str s, int width)
{
    int used = 0;
    ptrdiff_t end = 0;
    for (ptrdiff_t at = 0; at < s.len;) {
        const utf8proc_int32_t c = next_char(s, &at);
        used += c < 0 ? 1 : utf8proc_charwidth(c);
        if (used > width) break;
        end = at;
    }
    return (kvm_str){s.at, end};
}

/* s cut to `width` columns, the last of them an ellipsis */
static kvm_str cut_to(kvm_arena *a, kvm_str s, int width)
{
    if (kvm_text_width(s) <= width) return s;
    const kvm_str head = kvm_text_head(s, width - 1);
    return kvm_str_fmt(a, "%.*s" ELLIPSIS, KVM_STR_ARG(head));
}

static void spaces(kvm_text *out, int n)
{
    for (; n > 0; n--) kvm_text_add(out, KVM_STR(" "));
}

/* Everything one print needs: the cells' texts and the columns' widths. */
typedef struct layout {
    const kvm_table *t;
    kvm_str *head; /* (columns) */
    kvm_str *text; /* (cells) */
    int *width;    /* (columns) */
    kvm_arena *mem;
} layout;

static kvm_str cell_text(kvm_arena *a, const kvm_cell *cell, kvm_column_kind kind,
                         int note)
{
    if (kind == KVM_COL_TEXT) return kvm_printable(a, cell->text);
    const kvm_str value = kvm_est_has(cell->est)
                              ? kvm_est_text(a, cell->est, cell->format)
                              : KVM_STR(DASH);
    if (!note || !value.at) return value;
    const kvm_str mark = kvm_superscript(a, note);
    return kvm_str_fmt(a, "%.*s%.*s", KVM_STR_ARG(value), KVM_STR_ARG(mark));
}

static kvm_status measure(layout *l, const kvm_table_notes *notes, kvm_err *err)
{
    const kvm_table *t = l->t;
    l->head = kvm_new(l->mem, kvm_str, t->column_count);
    l->text = kvm_new(l->mem, kvm_str, t->cell_count + 1);
    l->width = kvm_new(l->mem, int, t->column_count);
    if (!l->head || !l->text || !l->width) return kvm_nomem(err, l->mem);
    for (ptrdiff_t c = 0; c < t->column_count; c++) {
        l->head[c] = kvm_printable(l->mem, t->columns[c].title);
        if (!l->head[c].at) return kvm_nomem(err, l->mem);
        l->width[c] = kvm_text_width(l->head[c]);
    }
    for (ptrdiff_t i = 0; i < t->cell_count; i++) {
        const ptrdiff_t c = i % t->column_count;
        l->text[i] =
            cell_text(l->mem, &t->cells[i], t->columns[c].kind, notes->of_cell[i]);
        if (!l->text[i].at) return kvm_nomem(err, l->mem);
        const int width = kvm_text_width(l->text[i]);
        if (width > l->width[c]) l->width[c] = width;
    }
    return KVM_OK;
}

/* Narrows the widest text column, one at a time, until the table fits. */
static void fit_width(layout *l, int limit)
{
    int total = -GAP;
    for (ptrdiff_t c = 0; c < l->t->column_count; c++) total += l->width[c] + GAP;
    while (limit > 0 && total > limit) {
        ptrdiff_t widest = -1;
        for (ptrdiff_t c = 0; c < l->t->column_count; c++)
            if (l->t->columns[c].kind == KVM_COL_TEXT && l->width[c] > NARROWEST &&
                (widest < 0 || l->width[c] > l->width[widest]))
                widest = c;
        if (widest < 0) return;
        l->width[widest]--;
        total--;
    }
}

static void put_cell(kvm_text *out, const layout *l, ptrdiff_t column, kvm_str text,
                     kvm_tone tone, kvm_term term)
{
    const bool right = l->t->columns[column].kind != KVM_COL_TEXT;
    const bool last = column == l->t->column_count - 1;
    const kvm_str shown = cut_to(l->mem, text, l->width[column]);
    const int pad = l->width[column] - kvm_text_width(shown);
    if (right) spaces(out, pad);
    kvm_paint(out, shown, tone, term);
    if (!last) spaces(out, GAP + (right ? 0 : pad));
    if (last) kvm_text_add(out, KVM_STR("\n"));
}

kvm_status kvm_table_print(kvm_text *out, const kvm_table *t, kvm_term term,
                           kvm_arena scratch, kvm_err *err)
{
    if (t->failed) return kvm_nomem(err, t->keep);
    layout l = {.t = t, .mem = &scratch};
    kvm_table_notes notes;
    TRY(kvm_table_footnotes(&notes, &scratch, t, err));
    TRY(measure(&l, &notes, err));
    fit_width(&l, term.width);
    int total = -GAP;
    for (ptrdiff_t c = 0; c < t->column_count; c++) {
        put_cell(out, &l, c, l.head[c], KVM_TONE_STRONG, term);
        total += l.width[c] + GAP;
    }
    kvm_text rule = {0};
    for (int i = 0; i < total; i++) kvm_text_add(&rule, KVM_STR(RULE));
    kvm_paint(out, kvm_text_str(&rule), KVM_TONE_MUTED, term);
    kvm_text_add(out, KVM_STR("\n"));
    kvm_text_free(&rule);
    for (ptrdiff_t i = 0; i < t->cell_count; i++)
        put_cell(out, &l, i % t->column_count, l.text[i], t->cells[i].tone, term);
    for (int n = 0; n < notes.count; n++) {
        const kvm_str mark = kvm_superscript(&scratch, n + 1);
        const kvm_str text = kvm_printable(&scratch, notes.text[n]);
        kvm_text_addf(out, "%.*s %.*s\n", KVM_STR_ARG(mark), KVM_STR_ARG(text));
    }
    return out->failed ? kvm_fail(err, KVM_NOMEM, "no memory for a table of %td rows",
                                  kvm_table_rows(t))
                       : KVM_OK;
}

json_t *kvm_table_json(const kvm_table *t)
{
    json_t *rows = json_array();
    for (ptrdiff_t r = 0; rows && r < kvm_table_rows(t); r++) {
        json_t *row = json_object();
        for (ptrdiff_t c = 0; row && c < t->column_count; c++) {
            const kvm_cell *cell = &t->cells[r * t->column_count + c];
            const bool bare = !kvm_est_has_interval(cell->est) && !cell->est.note.len;
            json_t *v;
            if (t->columns[c].kind == KVM_COL_TEXT)
                v = json_stringn(cell->text.at, (size_t)cell->text.len);
            else if (!bare)
                v = kvm_est_json(cell->est);
            else
                v = kvm_est_has(cell->est) ? json_real(cell->est.value) : json_null();
            /* text that is no UTF-8 has no JSON: it is missing rather than wrong */
            json_object_set_new(row, t->columns[c].key, v ? v : json_null());
        }
        json_array_append_new(rows, row);
    }
    return rows;
}
