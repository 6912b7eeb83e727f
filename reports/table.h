/* table.h - one table, three ways out: aligned text on a terminal, CSV, HTML (page).
 *
 * A table is made cell by cell, row after row; cells are text or figures (kvm_est with
 * a format). Text is shown with control characters and broken UTF-8 made harmless, and
 * measured by its width on a terminal, not its bytes. */
#ifndef KVM_REPORTS_TABLE_H
#define KVM_REPORTS_TABLE_H

#include "reports/number.h"

typedef enum kvm_tone {
    KVM_TONE_PLAIN,
    KVM_TONE_GOOD,
    KVM_TONE_WARN,
    KVM_TONE_BAD,
    KVM_TONE_MUTED,
    KVM_TONE_STRONG
} kvm_tone;

typedef enum kvm_column_kind {
    KVM_COL_TEXT,
    KVM_COL_NUMBER, /* one CSV column: the bare value */
    KVM_COL_EST     /* four CSV columns: key, key_low, key_high, key_note */
} kvm_column_kind;

typedef struct kvm_column {
    const char *key; /* of CSV and JSON: stable */
    kvm_str title;   /* for people, with the unit */
    kvm_column_kind kind;
} kvm_column;

typedef struct kvm_cell {
    kvm_str text; /* of a text cell; borrows */
    kvm_est est;  /* of a figure */
    kvm_format format;
    kvm_tone tone;
} kvm_cell;

typedef struct kvm_table {
    const char *name; /* of files: "quality"; static */
    kvm_str title;
    const kvm_column *columns; /* borrows */
    ptrdiff_t column_count;
    kvm_cell *cells; /* (rows, column_count) */
    ptrdiff_t cell_count, cell_cap;
    kvm_arena *keep;
    bool failed; /* the arena was spent: check once at the end */
} kvm_table;

kvm_table kvm_table_new(kvm_arena *keep, const char *name, kvm_str title,
                        const kvm_column *columns, ptrdiff_t column_count);
void kvm_table_text(kvm_table *t, kvm_str text, kvm_tone tone); /* next cell; borrows */
void kvm_table_est(kvm_table *t, kvm_est e, kvm_format format);
void kvm_table_num(kvm_table *t, double v, kvm_format format);
static inline ptrdiff_t kvm_table_rows(const kvm_table *t)
{
    return t->column_count ? t->cell_count / t->column_count : 0;
}

/* kvm_table_seconds - the one unit for all cells of KVM_FORMAT_SECONDS, that of their
 * geometric mean: a reader compares rows by their digits */
kvm_format kvm_table_seconds(const kvm_table *t);

/* What figures say beside their value (reasons, qualifications) becomes footnotes: the
 * same words get one number. */
typedef struct kvm_table_notes {
    const kvm_str *text; /* (count) */
    const int *of_cell;  /* (cell_count) 1-based; 0: none */
    int count;
} kvm_table_notes;
KVM_MUST kvm_status kvm_table_footnotes(kvm_table_notes *out, kvm_arena *keep,
                                        const kvm_table *t, kvm_err *err);
kvm_str kvm_superscript(kvm_arena *a, int number);

/* How the reader sees: from kvm_term_of(fd), or zero for plain text of any width. */
typedef struct kvm_term {
    int width;   /* 0: unlimited */
    bool colour; /* only on a terminal, and not when NO_COLOR is set or TERM is dumb */
} kvm_term;
kvm_term kvm_term_of(int fd);

/* kvm_table_print - heading, rule, rows, footnotes; wide text columns are cut with an
 * ellipsis to fit term.width. The scratch arena holds the cells' texts. */
KVM_MUST kvm_status kvm_table_print(kvm_text *out, const kvm_table *t, kvm_term term,
                                    kvm_arena scratch, kvm_err *err);
/* kvm_table_json - an array of objects by column key; figures as kvm_est_json when they
 * have an interval or a note, else as bare numbers; gives a new reference, or NULL */
json_t *kvm_table_json(const kvm_table *t);

/* kvm_text_width - columns on a terminal (wide and combining characters counted) */
int kvm_text_width(kvm_str s);
/* kvm_text_head - the longest start of s that is no wider than width columns;
 * borrows */
kvm_str kvm_text_head(kvm_str s, int width);
/* kvm_printable - s with control characters (escape sequences too) as U+FFFD, as well
 * as broken UTF-8; borrows s when nothing has to change; at NULL when the arena is
 * spent */
kvm_str kvm_printable(kvm_arena *a, kvm_str s);
/* kvm_paint - text in a tone for a terminal with colour, else the text alone */
void kvm_paint(kvm_text *out, kvm_str text, kvm_tone tone, kvm_term term);

#endif
