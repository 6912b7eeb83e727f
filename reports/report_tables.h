/* report_tables.h - a report's numbers as tables: the CSV files are all of them, the
 * page shows most. A table of no rows means that its part was not measured. */
#ifndef KVM_REPORTS_REPORT_TABLES_H
#define KVM_REPORTS_REPORT_TABLES_H

#include "reports/document.h"
#include "reports/table.h"

/* X(NAME, function suffix, "name of the CSV file") */
#define KVM_REPORT_TABLES(X)                                                           \
    X(GATES, gates, "gates")                                                           \
    X(QUALITY, quality, "quality")                                                     \
    X(NEEDLE, needle, "needle")                                                        \
    X(ANSWERS, answers, "answers")                                                     \
    X(TIMING, timing, "timing")                                                        \
    X(STAGES, stages, "stages")                                                        \
    X(BUILD, build, "build")                                                           \
    X(AMORTISE, amortise, "amortise")                                                  \
    X(RECIPES, recipes, "recipes")                                                     \
    X(TRIED, tried, "tried")                                                           \
    X(TRAINING, training, "training")                                                  \
    X(CURVE, curve, "curve")                                                           \
    X(MAPS, maps, "linearity")                                                         \
    X(GREEDY, greedy, "greedy")                                                        \
    X(SWEEPS, sweeps, "sweeps")                                                        \
    X(LAYERS, layers, "layers")                                                        \
    X(ABLATIONS, ablations, "ablations")                                               \
    X(ANALYSES, analyses, "analyses")                                                  \
    X(CHOSEN, chosen, "chosen")                                                        \
    X(TAILS, tails, "tails")                                                           \
    X(INVERSION, inversion, "inversion")                                               \
    X(ALTERNATION, alternation, "alternation")                                         \
    X(TURNS, turns, "turns")                                                           \
    X(FINDINGS, findings, "findings")                                                  \
    X(PROVENANCE, provenance, "provenance")

#define X(NAME, suffix, file)                                                          \
    kvm_table kvm_report_table_##suffix(kvm_arena *keep, const kvm_document *d);
KVM_REPORT_TABLES(X)
#undef X

/* the translators alone, beside the target's and the source's own score */
kvm_table kvm_report_table_translators(kvm_arena *keep, const kvm_document *d);

/* the ablations' figures of one suite, with what the first differs by */
kvm_table kvm_report_table_ablated(kvm_arena *keep, const kvm_document *d,
                                   kvm_str suite);

/* a row for every object: means over its layers */
kvm_table kvm_report_table_brief_recipes(kvm_arena *keep, const kvm_document *d);

/* needle recall with a column for every cache, values only */
kvm_table kvm_report_table_recall(kvm_arena *keep, const kvm_document *d);

typedef struct kvm_report_table {
    const char *name;
    kvm_table (*make)(kvm_arena *keep, const kvm_document *d);
} kvm_report_table;
extern const kvm_report_table kvm_report_tables[]; /* ends with a NULL name */

#endif
