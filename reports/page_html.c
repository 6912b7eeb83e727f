/* page_html.c - text, headings, figures and tables of a page. */
#include "reports/page_internal.h"

static const struct {
    const char *key, *heading;
} sections[KVM_SECTION_COUNT] = {
#define X(NAME, key, heading) {key, heading},
    KVM_SECTIONS(X)
#undef X
};

void kvm_page__text(kvm_page *p, kvm_str s)
{
    kvm_xml_text(p->out, s);
}

void kvm_page__number(kvm_page *p, double v, kvm_format format)
{
    kvm_page__text(p, kvm_str_of(kvm_numeral_of(v, format).at));
}

void kvm_page__missing(kvm_page *p, kvm_str what, kvm_str why)
{
    kvm_page__html(p, "<p class=\"absent\">");
    kvm_page__text(p, what.len ? what : KVM_STR("Not measured"));
    if (what.len) kvm_page__html(p, ": not measured");
    kvm_page__html(p, " (");
    kvm_page__text(p, why.len ? why : KVM_STR("the document gives no reason"));
    kvm_page__html(p, ").</p>\n");
}

bool kvm_page__section(kvm_page *p, kvm_section s, bool measured)
{
    kvm_text_addf(p->out, "<section id=\"%s\">\n<h2>%s</h2>\n", sections[s].key,
                  sections[s].heading);
    if (!measured) {
        kvm_page__missing(p, KVM_STR(""), p->d->absent[s]);
        kvm_page__section_end(p);
    }
    return measured;
}

void kvm_page__section_end(kvm_page *p)
{
    kvm_page__html(p, "</section>\n");
}

void kvm_page__lede(kvm_page *p, kvm_str s)
{
    kvm_page__html(p, "<p class=\"lede\">");
    kvm_page__text(p, s);
    kvm_page__html(p, "</p>\n");
}

void kvm_page__part(kvm_page *p, kvm_str heading)
{
    kvm_page__html(p, "<h3>");
    kvm_page__text(p, heading);
    kvm_page__html(p, "</h3>\n");
}

void kvm_page__grid(kvm_page *p, int per_row)
{
    kvm_text_addf(p->out, "<div class=\"grid g%d\">\n", per_row);
}

void kvm_page__grid_end(kvm_page *p)
{
    kvm_page__html(p, "</div>\n");
}

void kvm_page__figure(kvm_page *p, kvm_str heading, kvm_str note)
{
    kvm_page__html(p, "<figure><figcaption><b>");
    kvm_page__text(p, heading);
    kvm_page__html(p, "</b>");
    if (note.len) {
        kvm_page__html(p, "<span>");
        kvm_page__text(p, note);
        kvm_page__html(p, "</span>");
    }
    kvm_page__html(p, "</figcaption><div class=\"scroll\">\n");
}

void kvm_page__figure_end(kvm_page *p)
{
    kvm_page__html(p, "</div></figure>\n");
}

/* ---- tables ---- */

/* A column of words that says nothing in any row: notes, say, where there are none. */
static bool idle_column(const kvm_table *t, ptrdiff_t column)
{
    if (!column || t->columns[column].kind != KVM_COL_TEXT) return false;
    for (ptrdiff_t i = column; i < t->cell_count; i += t->column_count)
        if (!kvm_str_eq(t->cells[i].text, KVM_STR("–"))) return false;
    return true;
}

static void head(kvm_page *p, const kvm_table *t)
{
    kvm_page__html(p, "<thead><tr>");
    for (ptrdiff_t c = 0; c < t->column_count; c++) {
        if (idle_column(t, c)) continue;
        kvm_text_addf(p->out, "<th scope=\"col\"%s>",
                      t->columns[c].kind == KVM_COL_TEXT ? "" : " class=\"n\"");
        kvm_page__text(p, t->columns[c].title);
        kvm_page__html(p, "</th>");
    }
    kvm_page__html(p, "</tr></thead>\n");
}

/* A number of a figure: value, interval in small type beside it, mark of its note. */
static void figure_cell(kvm_page *p, const kvm_cell *cell, kvm_format seconds, int note)
{
    const kvm_format format =
        cell->format == KVM_FORMAT_SECONDS ? seconds : cell->format;
    if (kvm_est_has(cell->est))
        kvm_page__number(p, cell->est.value, format);
    else
        kvm_page__html(p, "–");
    if (note) kvm_text_addf(p->out, "<sup>%d</sup>", note);
    const kvm_numeral interval = kvm_numeral_interval(cell->est, format);
    if (!*interval.at) return;
    kvm_page__html(p, " <small>");
    kvm_page__text(p, kvm_str_of(interval.at));
    kvm_page__html(p, "</small>");
}

static const char *tone_class(kvm_tone tone)
{
    switch (tone) {
    case KVM_TONE_GOOD:
        return " class=\"good\"";
    case KVM_TONE_WARN:
        return " class=\"warn\"";
    case KVM_TONE_BAD:
        return " class=\"bad\"";
    case KVM_TONE_MUTED:
        return " class=\"muted\"";
    case KVM_TONE_STRONG:
        return " class=\"strong\"";
    case KVM_TONE_PLAIN:
        break;
    }
    return "";
}

/* how many rows from r on share the text of their first cell */
static ptrdiff_t group_length(const kvm_table *t, ptrdiff_t r)
{
    ptrdiff_t n = 1;
    const kvm_str first = t->cells[r * t->column_count].text;
    while (r + n < kvm_table_rows(t) &&
           kvm_str_eq(t->cells[(r + n) * t->column_count].text, first))
        n++;
    return n;
}

static void row(kvm_page *p, const kvm_table *t, const kvm_table_notes *notes,
                kvm_format seconds, ptrdiff_t r, ptrdiff_t span)
{
    kvm_page__html(p, "<tr>");
    for (ptrdiff_t c = 0; c < t->column_count; c++) {
        const kvm_cell *cell = &t->cells[r * t->column_count + c];
        const bool text = t->columns[c].kind == KVM_COL_TEXT;
        if (c == 0 && span == 0) continue; /* shared with the row above */
        if (idle_column(t, c)) continue;
        if (c == 0 && text && span > 1)
            kvm_text_addf(p->out, "<th scope=\"rowgroup\" rowspan=\"%td\">", span);
        else if (c == 0 && text)
            kvm_page__html(p, "<th scope=\"row\">");
        else
            kvm_text_addf(p->out, "<td%s>",
                          text ? tone_class(cell->tone) : " class=\"n\"");
        if (text)
            kvm_page__text(p, cell->text);
        else
            figure_cell(p, cell, seconds, notes->of_cell[r * t->column_count + c]);
        if (c == 0 && text)
            kvm_page__html(p, "</th>");
        else
            kvm_page__html(p, "</td>");
    }
    kvm_page__html(p, "</tr>\n");
}

static void footnotes(kvm_page *p, const kvm_table_notes *notes)
{
    if (!notes->count) return;
    kvm_page__html(p, "<p class=\"foot\">");
    for (int n = 0; n < notes->count; n++) {
        kvm_text_addf(p->out, "<span><sup>%d</sup> ", n + 1);
        kvm_page__text(p, notes->text[n]);
        kvm_page__html(p, "</span> ");
    }
    kvm_page__html(p, "</p>\n");
}

kvm_status kvm_page__table(kvm_page *p, const kvm_table *t, bool grouped)
{
    if (t->failed) return kvm_nomem(p->err, p->mem);
    kvm_table_notes notes;
    TRY(kvm_table_footnotes(&notes, p->mem, t, p->err));
    /* in a wide table the intervals stand below their values */
    kvm_text_addf(p->out, "<div class=\"scroll\"><table%s>\n",
                  t->column_count > 7 ? " class=\"tall\"" : "");
    const kvm_format seconds = kvm_table_seconds(t);
    head(p, t);
    for (ptrdiff_t r = 0; r < kvm_table_rows(t);) {
        const ptrdiff_t n = grouped ? group_length(t, r) : 1;
        kvm_page__html(p, "<tbody>");
        for (ptrdiff_t i = 0; i < n; i++) row(p, t, &notes, seconds, r + i, i ? 0 : n);
        kvm_page__html(p, "</tbody>\n");
        r += n;
    }
    kvm_page__html(p, "</table></div>\n");
    footnotes(p, &notes);
    return KVM_OK;
}

kvm_status kvm_page__folded(kvm_page *p, const kvm_table *t, kvm_str summary)
{
    if (!kvm_table_rows(t)) return KVM_OK;
    kvm_page__html(p, "<details><summary>");
    kvm_page__text(p, summary);
    kvm_page__html(p, "</summary>\n");
    TRY(kvm_page__table(p, t, t->columns[0].kind == KVM_COL_TEXT));
    kvm_page__html(p, "</details>\n");
    return KVM_OK;
}
