/* graph_internal.h - a graph while it is built, for the files that add to it: graph.c
 * (captures, moments, timing), graph_fit.c (the translator), graph_suites.c (what
 * scores a suite), graph_evaluate.c, graph_analyse.c, graph_alternate.c,
 * graph_report.c. */
#ifndef KVM_JOBS_GRAPH_INTERNAL_H
#define KVM_JOBS_GRAPH_INTERNAL_H

#include "jobs/needs.h"
#include "jobs/spec_internal.h"

typedef struct kvm_graph_side {
    kvm_str path;
    const kvm_model *model;
    const kvm_model_info *info;
    const kvm_tokenizer *tokenizer;
    kvm_shapes shapes;
} kvm_graph_side;

typedef struct kvm_builder {
    const kvm_spec *spec;
    kvm_arena *keep;
    kvm_graph *graph;
    kvm_graph_side source, target;
    const kvm_needs *needs;
    char text_sha[65];
    ptrdiff_t sequences; /* of the calibration, as they will be read */
    bool reversed;
    bool attention; /* a suite measures attention outputs */
    bool quality;   /* a suite has scores above chance that the verdict rests on */
    kvm_overlap *overlap; /* windows of the calibration text; NULL: not read yet */
    kvm_str rounds; /* the backend's name when it rounds activations; else empty */
    /* node indices; -1: none */
    ptrdiff_t capture[2], gram, own, cross, fit, mlp, distill, report;
    kvm_err *err;
} kvm_builder;

/* ---- nodes ---- */

/* takes params; *node: its index */
KVM_MUST kvm_status kvm_graph__node(kvm_builder *b, kvm_kind_id kind, kvm_str label,
                                    json_t *params, ptrdiff_t *node);
KVM_MUST kvm_status kvm_graph__input(kvm_builder *b, ptrdiff_t node, const char *name,
                                     ptrdiff_t from, const char *output);
/* name.i, for inputs of which there are any number */
KVM_MUST kvm_status kvm_graph__numbered(kvm_builder *b, ptrdiff_t node,
                                        const char *name, ptrdiff_t i, ptrdiff_t from,
                                        const char *output);

/* "what name"; at NULL when keep is spent */
kvm_str kvm_graph__label(kvm_builder *b, const char *what, kvm_str name);

/* ---- what the spec says ---- */

json_t *kvm_graph__str(kvm_str s);
/* takes v: the member's value unless it has one */
void kvm_graph__set(json_t *o, const char *key, json_t *v);
/* a deep copy of a section, or an empty object */
json_t *kvm_graph__section(const kvm_builder *b, const char *name);
bool kvm_graph__has_section(const kvm_builder *b, const char *name);
/* the Gram of the source's (0) or the target's (1) capture, made once; *node: its
 * index */
KVM_MUST kvm_status kvm_graph__gram(kvm_builder *b, int of, ptrdiff_t *node);
/* a deep copy of the section `calibration`, with what it leaves open */
json_t *kvm_graph__calibration(const kvm_builder *b);
/* seed and share of the split by sequence */
json_t *kvm_graph__split_params(const kvm_builder *b);
/* fingerprints of both models and where they lie, into params */
void kvm_graph__put_models(const kvm_builder *b, json_t *params);
/* the calibration text, and how many sequences of how many tokens are read of it, into
 * params */
void kvm_graph__put_calibration(const kvm_builder *b, json_t *params);
/* so many tokens must fit both models' contexts */
KVM_MUST kvm_status kvm_graph__fits(kvm_builder *b, kvm_jat at);

/* ---- suites ---- */

/* How the suites of a section are scored: each by a job of this kind. */
typedef struct kvm_scoring {
    const char *section; /* labels begin with it */
    kvm_kind_id kind;
    kvm_suite_holds wanted;
    const char *as; /* behind the suite's name in samples; NULL: just the name */
    const char *const *keys; /* of the section that params take over; ends with NULL */
    /* what params hold besides, by the suite; NULL: nothing */
    kvm_status (*fill)(kvm_builder *b, const kvm_suite *s, json_t *params);
    /* the report's inputs, numbered, where there is a list of suites */
    const char *items, *figures;
} kvm_scoring;

/* n texts, each one once */
KVM_MUST kvm_status kvm_graph__listed_once(kvm_builder *b, kvm_jat list, ptrdiff_t n);
/* n suites, at least one, each once */
KVM_MUST kvm_status kvm_graph__suites(kvm_builder *b, kvm_jat list, ptrdiff_t *n);
/* the suite that the spec names at this place, and where its card lies */
KVM_MUST kvm_status kvm_graph__suite(kvm_builder *b, kvm_jat at, kvm_suite_holds wanted,
                                     kvm_str *path, kvm_suite **out);
/* kvm_graph__suite_params - params of a job that scores the suite named at `suite`
 * (scored.h), with the keys of its section; check: look at the items, which is done
 * once for a section: the other direction's models read the same. The report is told of
 * the suite. A new reference. */
KVM_MUST kvm_status kvm_graph__suite_params(kvm_builder *b, const kvm_scoring *by,
                                            kvm_jat suite, bool check, json_t **params,
                                            kvm_suite **out);
/* the job that scores the suite named at `suite`, without inputs; *node: its index */
KVM_MUST kvm_status kvm_graph__score(kvm_builder *b, const kvm_scoring *by,
                                     kvm_jat suite, ptrdiff_t *node);
/* the jobs of all suites that the section lists, on the translators that the kind
 * takes, for the report to take */
KVM_MUST kvm_status kvm_graph__score_suites(kvm_builder *b, const kvm_scoring *by);

/* ---- what each file adds ---- */

/* kvm_graph__translator - a fit of what b captured, or, where the section leaves a
 * choice, one for each candidate and the choice; takes the section; *node: the one
 * whose outputs "translator" and "fit" hold */
KVM_MUST kvm_status kvm_graph__translator(kvm_builder *b, json_t *fit, kvm_str name,
                                          ptrdiff_t *node);
/* kvm_graph__costs_of_fit - what b's translator took, for the report to take: cost.fit,
 * or of every candidate cost.fit N and itself as candidate.N, and cost.choose. back: of
 * the way back, cost.fit back N and so on */
KVM_MUST kvm_status kvm_graph__costs_of_fit(kvm_builder *b, bool back);
/* evaluations and ablations, for the report to take */
KVM_MUST kvm_status kvm_graph__evaluations(kvm_builder *b);
/* the distillation of b's fit, when the spec asks for one; what: of its label */
KVM_MUST kvm_status kvm_graph__distill(kvm_builder *b, const char *what);
/* analyses, for the report to take */
KVM_MUST kvm_status kvm_graph__analyses(kvm_builder *b);
/* conversations, and the other direction's translator, which they need */
KVM_MUST kvm_status kvm_graph__alternation(kvm_builder *b);
/* kvm_graph__report - the report's node, before any other; reverse: name of the other
 * direction, or empty */
KVM_MUST kvm_status kvm_graph__report(kvm_builder *b, kvm_str reverse);
/* what it takes of the nodes that b names */
KVM_MUST kvm_status kvm_graph__report_inputs(kvm_builder *b);
/* to the end, once all the others are there */
void kvm_graph__report_last(kvm_builder *b);

#endif
