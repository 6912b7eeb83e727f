/* report_tables_findings.c - tables of what a translator loses and carries over:
 * answers, ablations, findings. */
#include "reports/report_tables_internal.h"

kvm_table kvm_report_table_answers(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("suite", "Suite", TEXT),
        HEAD("cache", "Cache", TEXT),
        HEAD("items", "Items", NUMBER),
        HEAD("tokens", "Tokens", EST),
        HEAD("versus_native", "Versus native", EST),
        HEAD("blank", "Begin with a blank", EST),
        HEAD("empty", "Empty", EST),
        HEAD("first_agreement", "First token as native", EST)};
    kvm_table t = kvm_table_new(keep, "answers", KVM_STR("Answers"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->answers.count; i++)
        for (int a = 0; a < KVM_ARM_COUNT; a++) {
            const kvm_answers *s = &d->answers.at[i];
            const kvm_answers_arm *arm = &s->arms[a];
            if (!arm->present) continue;
            kvm_table__words(&t, s->suite);
            kvm_table__static(&t, kvm_arms[a].label);
            kvm_table_num(&t, s->items, KVM_FORMAT_COUNT);
            kvm_table_est(&t, arm->tokens, KVM_FORMAT_NUMBER);
            kvm_table_est(&t, arm->versus_native, KVM_FORMAT_NUMBER);
            kvm_table_est(&t, arm->blank, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->empty, KVM_FORMAT_PERCENT);
            kvm_table_est(&t, arm->first_agreement, KVM_FORMAT_PERCENT);
        }
    return t;
}

/* ---- ablations ---- */

static kvm_est versus_of(const kvm_ablation_row *row, ptrdiff_t column)
{
    return row->versus ? row->versus[column]
                       : kvm_est_missing(KVM_STR("what is compared with"));
}

/* "prose: KL to native"; the titles are the keys */
static kvm_str heading(kvm_arena *keep, const kvm_ablation_column *c, const char *what)
{
    return kvm_str_fmt(keep, "%.*s%s%.*s%s", KVM_STR_ARG(c->suite),
                       c->suite.len ? ": " : "", KVM_STR_ARG(c->title), what);
}

kvm_table kvm_report_table_ablations(kvm_arena *keep, const kvm_document *d)
{
    const ptrdiff_t n = d->ablations.column_count;
    const kvm_table failed = {.name = "ablations", .failed = true};
    kvm_column *columns = kvm_new(keep, kvm_column, 2 * n + 2);
    if (!columns) return failed;
    columns[0] = (kvm_column)HEAD("variant", "Variant", TEXT);
    for (ptrdiff_t c = 0; c < 2 * n; c++) {
        const kvm_str title =
            heading(keep, &d->ablations.columns[c / 2], c % 2 ? ", difference" : "");
        columns[c + 1] = (kvm_column){title.at, title, KVM_COL_EST};
        if (!title.at) return failed;
    }
    columns[2 * n + 1] = (kvm_column)HEAD("note", "Note", TEXT);
    kvm_table t =
        kvm_table_new(keep, "ablations", KVM_STR("Ablations"), columns, 2 * n + 2);
    for (ptrdiff_t r = 0; r < d->ablations.row_count; r++) {
        const kvm_ablation_row *row = &d->ablations.rows[r];
        kvm_table__words(&t, row->title);
        for (ptrdiff_t c = 0; c < n; c++) {
            const kvm_format format = d->ablations.columns[c].format;
            kvm_table_est(&t, row->cells[c], format);
            kvm_table_est(&t, versus_of(row, c), kvm_table__difference(format));
        }
        kvm_table__words(&t, row->note.len ? row->note : KVM_STR("–"));
    }
    return t;
}

kvm_table kvm_report_table_ablated(kvm_arena *keep, const kvm_document *d,
                                   kvm_str suite)
{
    const ptrdiff_t most = d->ablations.column_count;
    kvm_column *columns = kvm_new(keep, kvm_column, most + 3);
    ptrdiff_t *of = kvm_new(keep, ptrdiff_t, most + 1), n = 0;
    if (!columns || !of) return (kvm_table){.name = "ablated", .failed = true};
    columns[0] = (kvm_column)HEAD("variant", "Variant", TEXT);
    for (ptrdiff_t c = 0; c < most; c++) {
        if (!kvm_str_eq(d->ablations.columns[c].suite, suite)) continue;
        of[n++] = c;
        columns[n] = (kvm_column){"score", d->ablations.columns[c].title, KVM_COL_EST};
    }
    columns[n + 1] =
        (kvm_column){"versus",
                     kvm_str_fmt(keep, "%.*s, difference",
                                 KVM_STR_ARG(d->ablations.columns[of[0]].title)),
                     KVM_COL_EST};
    columns[n + 2] = (kvm_column)HEAD("note", "Note", TEXT);
    kvm_table t = kvm_table_new(keep, "ablated", KVM_STR("Ablations"), columns, n + 3);
    for (ptrdiff_t r = 0; r < d->ablations.row_count; r++) {
        const kvm_ablation_row *row = &d->ablations.rows[r];
        const kvm_format first = d->ablations.columns[of[0]].format;
        kvm_table__words(&t, row->title);
        for (ptrdiff_t c = 0; c < n; c++)
            kvm_table_est(&t, row->cells[of[c]], d->ablations.columns[of[c]].format);
        kvm_table_est(&t, versus_of(row, of[0]), kvm_table__difference(first));
        kvm_table__words(&t, row->note.len ? row->note : KVM_STR("–"));
    }
    return t;
}

/* ---- findings ---- */

kvm_table kvm_report_table_findings(kvm_arena *keep, const kvm_document *d)
{
    static const kvm_column columns[] = {
        HEAD("finding", "Finding", TEXT),     HEAD("statement", "Statement", TEXT),
        HEAD("verdict", "Verdict", TEXT),     HEAD("figures", "Figures", TEXT),
        HEAD("criterion", "Criterion", TEXT), HEAD("source", "Published", TEXT)};
    static const char *const words[] = {
#define X(NAME, word, says, tone) word,
        KVM_FINDING_VERDICTS(X)
#undef X
    };
    kvm_table t =
        kvm_table_new(keep, "findings", KVM_STR("Findings"), COLUMNS(columns));
    for (ptrdiff_t i = 0; i < d->findings.count; i++) {
        const kvm_finding_row *f = &d->findings.at[i];
        kvm_table__words(&t, f->key);
        kvm_table__words(&t, f->statement);
        kvm_table__static(&t, words[f->verdict]);
        kvm_table__words(&t, f->text);
        kvm_table__words(&t, f->criterion);
        kvm_table__words(&t, f->source);
    }
    return t;
}
