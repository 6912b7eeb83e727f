/* report_parts.h - the parts of a report document, each from the artefacts it is
 * measured in. Every part adds its members (reports/page.h) to doc, or a reason to
 * doc's "absent". */
#ifndef KVM_JOBS_REPORT_PARTS_H
#define KVM_JOBS_REPORT_PARTS_H

#include "jobs/job.h"
#include "reports/stats.h"

typedef struct kvm_report_builder {
    kvm_job *job;
    json_t *doc;      /* owned by the job's arena */
    json_t *fit;      /* figures of the fit; NULL: none */
    json_t *absent;   /* inside doc */
    json_t *backends; /* [suite, what scored it] of each evaluation; owned likewise */
    uint64_t seed;
} kvm_report_builder;

/* a row of metrics.def */
typedef enum kvm_metric_mean {
    KVM_MEAN_ITEM,
    KVM_MEAN_TOKEN,
    KVM_MEAN_PERPLEXITY
} kvm_metric_mean;
typedef struct kvm_report_metric {
    const char *kind, *name, *title, *format; /* kind: of suite */
    bool low;                                 /* is better */
    kvm_metric_mean mean;
} kvm_report_metric;
extern const kvm_report_metric kvm_report_metrics[]; /* ends with a NULL kind */

/* a parameter of the job; borrowed, NULL when absent */
json_t *kvm_report_param(const kvm_report_builder *b, const char *key);
/* an input's JSON (or the lines of a .jsonl as an array), owned by the job's arena */
KVM_MUST kvm_status kvm_report_load(kvm_report_builder *b, const kvm_job_input *in,
                                    json_t **v, kvm_err *err);
KVM_MUST kvm_status kvm_report_load_lines(kvm_report_builder *b,
                                          const kvm_job_input *in, json_t **v,
                                          kvm_err *err);
/* inputs "prefix.rest" one after another: i counts matches; NULL past the last; *rest
 * is what follows the dot */
const kvm_job_input *kvm_report_nth(const kvm_report_builder *b, const char *prefix,
                                    ptrdiff_t i, const char **rest);

/* kvm_report_beside - the input PREFIX.REST that belongs to another one's rest;
 * KVM_NOTFOUND names it */
KVM_MUST kvm_status kvm_report_beside(const kvm_report_builder *b, const char *prefix,
                                      const char *rest, const kvm_job_input **in,
                                      kvm_err *err);
/* kvm_report_column - a metric of one cache (an arm's key, or an analysed cache) on
 * every item of an array of lines; KVM_MISMATCH names the first that lacks it */
KVM_MUST kvm_status kvm_report_column(double **out, const json_t *items,
                                      const char *cache, const char *metric,
                                      kvm_arena *scratch, kvm_err *err);
/* the arm that the page speaks of, whose translator commands take of such a run: what
 * was distilled, else the closed form */
kvm_arm kvm_report_arm(const kvm_report_builder *b);
/* attention figures of an arm, by layer: of the first suite that measured them; *out
 * NULL: none did */
KVM_MUST kvm_status kvm_report_attention(kvm_report_builder *b, kvm_arm arm,
                                         json_t **out, kvm_err *err);

/* the stated lengths of needles among items, ascending, each once; gives how many */
enum { KVM_REPORT_LENGTHS = 32 };
ptrdiff_t kvm_report_lengths(const json_t *items, int64_t lengths[KVM_REPORT_LENGTHS]);

/* a list of seconds as numbers, in the arena; NULL: it is spent */
const double *kvm_report_numbers(const json_t *list, ptrdiff_t *n, kvm_arena *a);
/* of the rounds of a stage of a timing's arm; "total": of all its stages */
kvm_est kvm_report_median(const json_t *arm, const char *stage, kvm_arena scratch);
/* how much sooner an arm is than the cold start */
kvm_est kvm_report_speedup(const kvm_report_builder *b, const json_t *cold,
                           const json_t *arm, kvm_arena scratch);

/* what people read for an object that a fit labels: key of the document, title of a
 * figure, and in a table; static but for labels without a row, which are all three */
typedef struct kvm_report_name {
    const char *key, *title, *brief;
} kvm_report_name;
kvm_report_name kvm_report_object(const char *label); /* NULL: empty */

/* kvm_report_step_title - what people read for a step whose cost is the input
 * cost.STEP: "capture of small"; in the arena, NULL for a step that there is not */
const char *kvm_report_step_title(const kvm_report_builder *b, const char *step);

/* of states: one row a sequence */
#define KVM_REPORT_NO_SHARE "too few sequences are held out"
/* a figure as the document has it: the number, or why there is none; a new reference */
json_t *kvm_report_figure(const json_t *v, const char *why);

KVM_MUST kvm_status kvm_report_fit(
    kvm_report_builder *b, kvm_err *err); /* translator, calibration, linearity */
KVM_MUST kvm_status kvm_report_recipes(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_training(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_layers(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_quality(kvm_report_builder *b,
                                       kvm_err *err); /* suites, needle */
KVM_MUST kvm_status kvm_report_answers(kvm_report_builder *b, kvm_err *err);
/* gates: reads the sections before it */
KVM_MUST kvm_status kvm_report_gates(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_ablations(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_analyses(kvm_report_builder *b,
                                        kvm_err *err); /* analyses */
KVM_MUST kvm_status kvm_report_inversion(kvm_report_builder *b,
                                         kvm_err *err); /* inversion */
KVM_MUST kvm_status kvm_report_alternation(kvm_report_builder *b, kvm_err *err);
/* findings: reads the sections before it */
KVM_MUST kvm_status kvm_report_findings(kvm_report_builder *b, kvm_err *err);
KVM_MUST kvm_status kvm_report_timing(kvm_report_builder *b,
                                      kvm_err *err); /* timing, build */
/* provenance, spec: reads the backends that the sections before it found */
KVM_MUST kvm_status kvm_report_provenance(kvm_report_builder *b, kvm_err *err);

#endif
