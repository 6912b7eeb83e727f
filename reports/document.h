/* document.h - the report document (page.h) as structs: read once, strictly, then
 * drawn.
 *
 * Strings borrow from the document, everything else lives in the arena. A number that
 * is absent or null is NaN, an absent figure says "not measured" with the reason that
 * the document gives for its section. Counts of zero mean an absent part. */
#ifndef KVM_REPORTS_DOCUMENT_H
#define KVM_REPORTS_DOCUMENT_H

#include "base/json.h"
#include "reports/number.h"

/* The parts of a page, in its order. X(NAME, "key in the document", "heading") */
#define KVM_SECTIONS(X)                                                                \
    X(GATES, "gates", "Gates")                                                         \
    X(SUITES, "suites", "Quality")                                                     \
    X(NEEDLE, "needle", "Needle recall")                                               \
    X(ANSWERS, "answers", "How answers are given")                                     \
    X(TIMING, "timing", "Time to the first token")                                     \
    X(BUILD, "build", "Cost of the translator")                                        \
    X(RECIPES, "recipes", "Recipes")                                                   \
    X(TRAINING, "training", "Training")                                                \
    X(LINEARITY, "linearity", "How linear the caches are")                             \
    X(LAYERS, "layers", "Layer by layer")                                              \
    X(ABLATIONS, "ablations", "Ablations")                                             \
    X(ANALYSES, "analyses", "What of the cache matters")                               \
    X(INVERSION, "inversion", "Tokens read out of caches")                             \
    X(ALTERNATION, "alternation", "Taking turns")                                      \
    X(FINDINGS, "findings", "Beside what has been published")                          \
    X(PROVENANCE, "provenance", "Provenance")

typedef enum kvm_section {
#define X(NAME, key, heading) KVM_SECTION_##NAME,
    KVM_SECTIONS(X)
#undef X
        KVM_SECTION_COUNT
} kvm_section;

typedef struct kvm_model_card {
    kvm_str name, family, dtype;
    double parameters, layers, kv_heads, head_dim, context;
    kvm_str *keeps; /* (keep_count) names of spaces of its cache: "latent", "state" */
    ptrdiff_t keep_count; /* 0: not stated */
} kvm_model_card;

typedef struct kvm_numbers {
    double *at; /* (n) */
    ptrdiff_t n;
} kvm_numbers;

typedef enum kvm_gate_verdict {
    KVM_GATE_PASS,
    KVM_GATE_FAIL,
    KVM_GATE_UNMEASURED,
    KVM_GATE_INAPPLICABLE, /* such a pair has nothing to measure */
    KVM_GATE_VERDICTS
} kvm_gate_verdict;

typedef struct kvm_gate {
    kvm_str name, title, need, where, note;
    kvm_est value;
    kvm_format format;
    kvm_gate_verdict verdict;
    bool required;
} kvm_gate;

typedef struct kvm_r2_map {
    kvm_str title;
    double *r2;              /* (rows = source layers, cols = target layers) */
    double *source, *target; /* (rows), (cols) numbers of the layers */
    ptrdiff_t rows, cols;
} kvm_r2_map;

typedef struct kvm_greedy_layer {
    ptrdiff_t target;
    kvm_numbers order, r2;
} kvm_greedy_layer;

typedef struct kvm_greedy {
    kvm_str title;
    kvm_greedy_layer *layers;
    ptrdiff_t count;
} kvm_greedy;

/* A sweep of one knob: the k curve or the lambda curve. */
typedef struct kvm_sweep {
    kvm_numbers knob;
    kvm_str *titles; /* (count) */
    double *chosen;  /* (count) */
    kvm_numbers *r2; /* (count), each of knob.n */
    ptrdiff_t count;
    double absolute, absolute_at; /* the absolute lambda and where it falls, or NaN */
    kvm_numbers absolute_r2;      /* (count) */
} kvm_sweep;

/* Objects that share a choice of source layers. */
typedef struct kvm_linear_group {
    kvm_str title, how;
    kvm_r2_map *maps;
    ptrdiff_t map_count;
    kvm_greedy *greedy;
    ptrdiff_t greedy_count;
    kvm_sweep k, lambda;
} kvm_linear_group;

/* What one target layer's rows of an object are made of. */
typedef struct kvm_recipe_layer {
    ptrdiff_t layer;
    kvm_numbers sources; /* numbers of source layers, best first */
    kvm_est r2_fit, r2_choose, r2_held, r2_copy;
    double rows, features, weight_norm;
} kvm_recipe_layer;

typedef struct kvm_recipe {
    kvm_str title, how;
    double k, lambda;
    bool absolute; /* lambda is */
    kvm_recipe_layer *layers;
    ptrdiff_t count;
} kvm_recipe;

typedef struct kvm_training_point {
    double step, kl, first_kl, train_kl, norm, rate, tokens_per_s;
} kvm_training_point;

typedef struct kvm_object_name {
    kvm_str key, title;
} kvm_object_name;

typedef struct kvm_layer_row {
    ptrdiff_t layer;
    kvm_est *r2, *r2_fit; /* (layer_objects) */
    kvm_est cosine, c_k, c_v;
} kvm_layer_row;

typedef struct kvm_layer_set {
    kvm_arm arm;
    kvm_layer_row *rows;
    ptrdiff_t count;
} kvm_layer_set;

typedef struct kvm_suite_arm {
    bool present;
    kvm_est score, retention, floor_normalised, gap_recovered, versus_native,
        versus_control;
    kvm_est versus_each[KVM_CONTROLS]; /* less each of kvm_controls, paired */
    kvm_est versus_closed; /* of a translator: less the closed form, paired */
} kvm_suite_arm;

typedef struct kvm_suite {
    kvm_str name, title, metric, note;
    kvm_format format;
    bool lower_better;
    bool secondary; /* shown, but neither the means nor the verdict look at it */
    double chance, items;
    kvm_suite_arm arms[KVM_ARM_COUNT];
} kvm_suite;

typedef struct kvm_needle_point {
    double tokens, achieved, bos, items; /* items: of this length */
    kvm_est arms[KVM_ARM_COUNT]; /* missing ones have an empty note when not listed */
    bool present[KVM_ARM_COUNT];
} kvm_needle_point;

/* How the answers of one suite are given. Shares are of the items. */
typedef struct kvm_answers_arm {
    bool present;
    kvm_est tokens, versus_native; /* of an answer; less the target's own, paired */
    kvm_est blank, empty;          /* share that begins with a blank, that is blank */
    kvm_est first_agreement;       /* share whose first token is the target's own */
} kvm_answers_arm;
typedef struct kvm_answers {
    kvm_str suite;
    double items;
    kvm_answers_arm arms[KVM_ARM_COUNT];
} kvm_answers;

typedef struct kvm_stage {
    kvm_str name;
    double seconds;
} kvm_stage;

typedef struct kvm_stages {
    kvm_stage *at;
    ptrdiff_t n;
} kvm_stages;

typedef struct kvm_time_point {
    double tokens, rounds;
    kvm_est cold, swap, speedup;
    kvm_stages cold_stages, switch_stages;
    double computed_bytes, peak_bytes, tokens_per_s;
    kvm_str note;
} kvm_time_point;

/* what a step of the build table is good for */
typedef enum kvm_step_serves {
    KVM_STEP_MODEL,      /* "model": every pair of it */
    KVM_STEP_DIRECTIONS, /* "directions": both of this pair */
    KVM_STEP_DIRECTION,  /* "direction": this one */
    KVM_STEP_SERVES_COUNT
} kvm_step_serves;

typedef struct kvm_build_step {
    kvm_str title;
    double seconds, cpu_seconds, attempts; /* of all attempts */
    kvm_step_serves serves;
} kvm_build_step;

typedef struct kvm_amortised {
    double tokens;
    kvm_est switches;
} kvm_amortised;

typedef struct kvm_ablation_column {
    kvm_str title, suite, metric; /* metric: as jobs/metrics.def names it, or "" */
    kvm_format format;
    double tokens, beyond; /* needles of this length, or longer than that; NaN: all */
    double items;          /* scored; NaN: not stated */
    kvm_est native;        /* the target's own score */
} kvm_ablation_column;
typedef struct kvm_ablation_row {
    kvm_str name, title,
        note;        /* name: as jobs/ablations.def has it; "none": complete */
    kvm_est *cells;  /* (columns) */
    kvm_est *versus; /* (columns) less the complete row's, paired; NULL: not stated */
} kvm_ablation_row;

/* A cache put together out of others (jobs/analyse_caches.h). */
typedef struct kvm_analysed_cache {
    kvm_str group, title; /* group: "swap", "split", "tail"; "": the translated cache */
    kvm_str name;         /* of the cache: "layer.3" */
    double share;         /* of a tail */
    kvm_est score, versus; /* versus: less the translated cache's, paired */
} kvm_analysed_cache;

/* The single layer whose native objects help most, chosen on half of the items; its
 * figures are of the other half. */
typedef struct kvm_best_layer {
    kvm_str name, title;     /* of the cache: "layer.3"; empty: there is none */
    double chosen_on, items; /* of either half */
    kvm_est translated, all; /* scores of the translated cache, of all native */
    kvm_est score, versus;   /* of the layer; less the translated cache's, paired */
    kvm_est share;           /* of what all native restores */
} kvm_best_layer;

/* What indexers choose of the prefix on one of them (jobs/selection.h). */
typedef struct kvm_chosen_units {
    kvm_str title;
    kvm_est overlap; /* share of the native choice; of the native cache: missing */
    kvm_est needle;  /* share of pairs of query and layer that choose the needle's */
} kvm_chosen_units;

/* One measure of one suite. */
typedef struct kvm_analysis {
    kvm_str name, title, suite, metric; /* name: "prose.kl" */
    kvm_format format;
    bool lower_better;
    double items;
    int translator; /* arm whose cache is taken apart */
    kvm_est native;
    kvm_analysed_cache *caches; /* the translated one first */
    ptrdiff_t count;
    kvm_best_layer best;
    kvm_chosen_units *chosen; /* (chosen_count) 0: of another measure, or no indexers */
    ptrdiff_t chosen_count;
} kvm_analysis;

typedef struct kvm_tail_time {
    double share;
    kvm_est seconds, speedup;
} kvm_tail_time;
typedef struct kvm_tail_times {
    double tokens, rounds;
    kvm_est cold;
    kvm_tail_time *at;
    ptrdiff_t count;
} kvm_tail_times;

/* Tokens read out of the rows of one object, layer by layer. */
typedef struct kvm_inverted_layer {
    double layer, r2;
    kvm_est top1;
} kvm_inverted_layer;
typedef struct kvm_inverted {
    kvm_str model, side, object;
    double point, features;
    kvm_inverted_layer *layers;
    ptrdiff_t count;
} kvm_inverted;

/* a fit that was not taken, or the one that was */
typedef struct kvm_tried {
    kvm_str title, reason; /* why it lost, where no figure says; else empty */
    double kl, first_kl, parameters;
    bool chosen;
} kvm_tried;

/* One turn of all conversations in one condition. */
typedef struct kvm_turn_figures {
    double turn, answer_tokens;
    kvm_est seconds, seconds_so_far; /* of this turn; of it and those before it */
    kvm_str model;                   /* "source" or "target": whose turn it is */
    kvm_est f1, gold, first_kl, versus_native, versus_segment; /* versus: of f1 */
} kvm_turn_figures;
typedef struct kvm_condition_figures {
    kvm_str key, title;
    kvm_turn_figures *turns;
    ptrdiff_t count;
    /* of the mean over the turns */
    kvm_est f1, gold, versus_native, versus_segment;
    kvm_est gold_versus_native, gold_versus_segment;
} kvm_condition_figures;

/* X(NAME, "word of the document", "mark and words of the page", "tone of its text") */
#define KVM_FINDING_VERDICTS(X)                                                        \
    X(REPRODUCED, "reproduced", "✓ reproduced", "good")                                \
    X(NOT_REPRODUCED, "not_reproduced", "✗ not reproduced", "bad")                     \
    X(UNDECIDED, "undecided", "? undecided", "warn")                                   \
    X(NOT_MEASURED, "not_measured", "– not measured", "muted")                         \
    X(INAPPLICABLE, "inapplicable", "– does not apply", "muted")

typedef enum kvm_finding_verdict {
#define X(NAME, word, says, tone) KVM_FINDING_##NAME,
    KVM_FINDING_VERDICTS(X)
#undef X
        KVM_FINDING_VERDICT_COUNT
} kvm_finding_verdict;

typedef struct kvm_finding_row {
    kvm_str key, statement, source, criterion, text;
    kvm_finding_verdict verdict;
} kvm_finding_row;

typedef struct kvm_facts {
    kvm_str title;
    kvm_str (*rows)[2]; /* (count) label, value */
    ptrdiff_t count;
} kvm_facts;

typedef struct kvm_document {
    kvm_str sample, made, name, reverse_name, reverse_href, spec;
    kvm_model_card source, target;
    kvm_str absent[KVM_SECTION_COUNT];
    struct {
        bool present;
        int arm; /* < 0: the best one */
        kvm_str shape;
        double parameters, bytes;
    } translator;
    struct {
        bool present;
        kvm_str text;
        double sequences, sequence_tokens, stride, features;
        double rows, choosing_rows, held_out_rows;
    } calibration;
    kvm_gate *gates;
    ptrdiff_t gate_count;
    struct {
        kvm_str token; /* "none", "given" or "decoded"; empty: not stated */
        /* "zero", "copy", "bilinear", "replay"; "auto": layers differ; empty: the
         * target keeps none */
        kvm_str states;
        kvm_str indexers;   /* "dense": index keys are left out; else empty */
        double latents;     /* capture point that latents are fitted at; NaN: none */
        kvm_est token_top1; /* held-out tokens that are decoded right */
        double token_rows;
        kvm_recipe *at;
        ptrdiff_t count;
        kvm_tried *tried; /* fits that it was chosen among */
        ptrdiff_t tried_count;
        double lessons, after; /* that they were judged on; tokens of each */
    } recipes;
    struct {
        bool present;
        double steps, batch, lessons, validation, parameters, seconds, tokens_per_s;
        double closed_kl, best_kl, best_step;
        kvm_training_point *points;
        ptrdiff_t count;
    } training;
    kvm_linear_group *groups;
    ptrdiff_t group_count;
    kvm_object_name *layer_objects;
    ptrdiff_t layer_object_count;
    kvm_layer_set *layers;
    ptrdiff_t layer_count;
    kvm_suite *suites;
    ptrdiff_t suite_count;
    struct {
        kvm_needle_point *points;
        ptrdiff_t count;
        double items;
        kvm_str note;
    } needle;
    struct {
        kvm_answers *at;
        ptrdiff_t count;
    } answers;
    struct {
        kvm_time_point *points;
        ptrdiff_t count;
        kvm_est break_even;
        kvm_str machine;
        double threads, rounds, warmups; /* rounds: at most, of a length */
    } timing;
    struct {
        kvm_build_step *steps;
        ptrdiff_t step_count;
        double bytes;
        kvm_amortised *amortise;
        ptrdiff_t amortise_count;
    } build;
    struct {
        kvm_ablation_column *columns;
        ptrdiff_t column_count;
        kvm_ablation_row *rows;
        ptrdiff_t row_count;
    } ablations;
    struct {
        kvm_analysis *suites;
        ptrdiff_t suite_count;
        kvm_tail_times *tails; /* by length */
        ptrdiff_t tail_count;
    } analyses;
    struct {
        double rows, vocab;
        kvm_inverted *series;
        ptrdiff_t count;
        kvm_inverted codebook; /* of the first layer; count 0: none */
    } inversion;
    struct {
        kvm_str suite;
        double dialogues, refresh;
        int translator; /* arm: both directions are of it */
        kvm_condition_figures *conditions;
        ptrdiff_t count;
    } alternation;
    struct {
        kvm_finding_row *at;
        ptrdiff_t count;
    } findings;
    kvm_facts *provenance;
    ptrdiff_t fact_count;
    kvm_str *notes;
    ptrdiff_t note_count;
} kvm_document;

/* kvm_document_read - every error names the place in the document: KVM_FORMAT for a
 * wrong type, word or length, KVM_VERSION for another version, KVM_RANGE for more than
 * a page can hold. */
KVM_MUST kvm_status kvm_document_read(kvm_document *out, kvm_arena *keep, kvm_jat doc,
                                      kvm_err *err);

/* whether a model keeps rows or states of that name; of one that does not say: yes */
bool kvm_model_keeps(const kvm_model_card *m, const char *name);

/* kvm_document_arm - the translator the verdict speaks of: the one named, or the one
 * with the best mean floor-normalised retention; -1 when none was scored */
int kvm_document_arm(const kvm_document *d);
/* whether no step of the training validated below the closed form that it began
 * with, which is then what is called distilled */
bool kvm_document_kept_closed_form(const kvm_document *d);

/* whether the means and the verdict look at a suite: it is not secondary, and has
 * KVM_LEAST_ITEMS items, or does not say how many */
bool kvm_suite_decides(const kvm_suite *s);
/* kvm_mean_ratio - mean over the suites that decide of one arm's ratio (0 retention, 1
 * floor-normalised, 2 gap recovered, of suites that have a retention) where it was
 * measured; *suites how many */
double kvm_mean_ratio(const kvm_document *d, int arm, int which, ptrdiff_t *suites);

#endif
