#include "reports/csv.h"

#include <stdio.h>
#include <string.h>

static bool one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

/* The start of a file's field that spreadsheets take for a formula. */
static bool formula(kvm_str s)
{
    return s.len > 0 && one_of(s.at[0], "=+-@\t\r");
}

static void put_field(kvm_text *out, kvm_str s)
{
    bool quoted = formula(s);
    for (ptrdiff_t i = 0; i < s.len && !quoted; i++)
        quoted = one_of(s.at[i], ",\"\r\n");
    if (!quoted) {
        kvm_text_add(out, s);
        return;
    }
    kvm_text_add(out, formula(s) ? KVM_STR("\"'") : KVM_STR("\""));
    for (kvm_str rest = s, head; rest.len;) {
        const bool quote = kvm_str_cut(rest, '"', &head, &rest);
        kvm_text_add(out, head);
        if (quote) kvm_text_add(out, KVM_STR("\"\""));
    }
    kvm_text_add(out, KVM_STR("\""));
}

/* The shortest decimal text that reads back to the same double; empty when missing. */
static void put_number(kvm_text *out, double v)
{
    char text[40];
    double back;
    if (!isfinite(v)) return;
    if (v == floor(v) && fabs(v) < 1e15) { /* 1000, not 1e+03 */
        kvm_text_addf(out, "%.0f", v);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        const int n = snprintf(text, sizeof text, "%.*g", digits, v);
        if (kvm_str_to_f64((kvm_str){text, n}, &back) && back == v) break;
    }
    kvm_text_add(out, kvm_str_of(text));
}

static void put_key(kvm_text *out, const char *key, const char *suffix)
{
    kvm_text whole = {0};
    kvm_text_addf(&whole, "%s%s", key, suffix);
    if (*suffix) kvm_text_add(out, KVM_STR(","));
    put_field(out, kvm_text_str(&whole));
    out->failed |= whole.failed;
    kvm_text_free(&whole);
}

static void put_separator(kvm_text *out, const kvm_table *t, ptrdiff_t column)
{
    kvm_text_add(out, column == t->column_count - 1 ? KVM_STR("\r\n") : KVM_STR(","));
}

void kvm_table_csv(kvm_text *out, const kvm_table *t)
{
    for (ptrdiff_t c = 0; c < t->column_count; c++) {
        put_key(out, t->columns[c].key, "");
        if (t->columns[c].kind == KVM_COL_EST) {
            put_key(out, t->columns[c].key, "_low");
            put_key(out, t->columns[c].key, "_high");
            put_key(out, t->columns[c].key, "_note");
        }
        put_separator(out, t, c);
    }
    for (ptrdiff_t i = 0; i < t->cell_count; i++) {
        const kvm_cell *cell = &t->cells[i];
        const ptrdiff_t c = i % t->column_count;
        if (t->columns[c].kind == KVM_COL_TEXT)
            put_field(out, cell->text);
        else
            put_number(out, cell->est.value);
        if (t->columns[c].kind == KVM_COL_EST) {
            kvm_text_add(out, KVM_STR(","));
            put_number(out, cell->est.low);
            kvm_text_add(out, KVM_STR(","));
            put_number(out, cell->est.high);
            kvm_text_add(out, KVM_STR(","));
            put_field(out, cell->est.note);
        }
        put_separator(out, t, c);
    }
}
