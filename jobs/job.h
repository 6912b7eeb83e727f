/* job.h - one step of the mill, as the worker sees it.
 *
 * A job is (kind, parameters, input artefacts). Its key is the SHA-256 over the
 * canonical JSON of all that its result depends on, so an equal step is done once.
 * run() reads its inputs (verified files), writes its outputs into an empty directory
 * of its own and declares them; the worker publishes them into the store and commits
 * them with the metrics in one transaction, or not at all. A job knows no queue and no
 * SQL. */
#ifndef KVM_JOBS_JOB_H
#define KVM_JOBS_JOB_H

#include <jansson.h>

#include "base/progress.h"
#include "base/yaml.h"
#include "jobs/team.h"

enum {
    KVM_KIND_TIMED = 1,
    KVM_KIND_MODEL = 2,
    KVM_KIND_SMALL = 4,
    KVM_KIND_GANG = 8,
    KVM_KIND_LAYERS = 16
};

typedef enum kvm_kind_id {
#define X(id, NAME, name, version, flags, what) KVM_JOB_##NAME = id,
#include "jobs/kinds.def"
#undef X
} kvm_kind_id;

typedef struct kvm_job_input {
    const char *name; /* "source_capture"; as the kind lists it */
    kvm_str path;     /* a verified file in the store */
    const char *sha;  /* hex */
} kvm_job_input;

typedef struct kvm_job kvm_job;

/* What a job may ask its worker to do (a vtable, so that `kvmill fit` on plain files
 * and the tests can stand in). */
typedef struct kvm_job_host {
    /* a file in the job's directory is a result, under this name (copied name) */
    kvm_status (*output)(kvm_job *j, const char *name, kvm_str path, kvm_err *err);
    /* one number, e.g. "r2_held" with labels {"object":"K","layer":3}; labels
     * borrowed, may be NULL */
    kvm_status (*metric)(kvm_job *j, const char *name, double value,
                         const json_t *labels, kvm_err *err);
    /* one item's score: suite, arm ("closed_form"), metric ("exact_match"), item id,
     * value */
    kvm_status (*sample)(kvm_job *j, const char *suite, const char *arm,
                         const char *metric, kvm_str item, double value, kvm_err *err);
    /* one timing cell: arm, tokens, stage, seconds[n] in the order measured */
    kvm_status (*timing)(kvm_job *j, const char *arm, ptrdiff_t tokens,
                         const char *stage, const double *seconds, ptrdiff_t n,
                         kvm_err *err);
    kvm_status (*event)(kvm_job *j, const char *what, kvm_str text,
                        kvm_err *err); /* shown by `kvmill jobs logs` */
} kvm_job_host;
extern const kvm_job_host kvm_host_silent; /* takes everything, tells nobody */

/* what earlier attempts at the job took; zero when there were none */
typedef struct kvm_job_spent {
    double seconds, cpu_seconds; /* of the job's process: to half a second */
    int attempts;
} kvm_job_spent;

struct kvm_job {
    const kvm_job_host *host;
    void *host_ctx;
    kvm_jat params; /* checked against the kind's table */
    const kvm_job_input *inputs;
    ptrdiff_t input_count;
    /* empty at first attempt; a later attempt of the same job finds what the
     * killed one left (resume). enter: called by kvm_job_path before a place in it is
     * given, each time; NULL: it is there */
    kvm_str dir;
    kvm_status (*enter)(kvm_job *j, kvm_err *err);
    kvm_job_spent before;
    kvm_team *team;         /* the ranks at it; &kvm_team_alone where there is one */
    bool alone;             /* one step on plain files: no run has planned it */
    kvm_arena *keep;        /* for the life of the job */
    kvm_progress *progress; /* polls cancellation */
    const char *backend;    /* "cpu" */
    int threads;            /* 0: all */
    /* > 0: captures go layer by layer, so that a model need not fit into memory, and so
     * many bytes lie between two layers at most; takes no part in keys: same bits */
    size_t offload;
    /* > 0: where a model's weights are more bytes than this, the ranks of a capture
     * share out its layers instead of the sequences; takes no part in keys either */
    size_t memory;
};

typedef struct kvm_job_kind {
    kvm_kind_id id;
    /* names, NULL-terminated; a trailing '?' marks optional, '*' any number
     * (name.0, name.1 …) */
    const char *const *inputs;
    const char *const *outputs;     /* names, NULL-terminated, likewise */
    const struct kvm_field *params; /* base/yaml.h table: what params may hold */
    const char *section; /* of the pair spec that params come from; NULL: none */
    kvm_status (*run)(kvm_job *j, kvm_err *err);
    /* NULL, or reads the parameters and nothing else, so that a plan refuses what run()
     * would */
    kvm_status (*check)(kvm_job *j, kvm_err *err);
} kvm_job_kind;

const kvm_job_kind *kvm_job_kind_of(kvm_kind_id id); /* NULL: unknown */
const char *kvm_job_kind_name(kvm_kind_id id);       /* "capture"; static */
kvm_status kvm_job_kind_find(kvm_str name, kvm_kind_id *id);
int kvm_job_kind_version(kvm_kind_id id);
int kvm_job_kind_flags(kvm_kind_id id);

/* the input of that name, NULL when absent */
const kvm_job_input *kvm_job_find_input(const kvm_job *j, const char *name);

/* ---- a graph of jobs before it is in the catalogue (made from a pair spec by
 * jobs/spec.c) ---- */

typedef struct kvm_node_input {
    const char *name;   /* input name of this node */
    ptrdiff_t node;     /* index of the producing node in the graph */
    const char *output; /* its output name */
} kvm_node_input;

typedef struct kvm_node {
    kvm_kind_id kind;
    kvm_str label; /* "capture small": for people */
    /* takes part in the key, but for members named *_path, which are places;
     * owned by the graph's arena */
    json_t *params;
    /* further things the result depends on and that are no artefacts: {"backend":
     * "cpu-bf16"} where a model runs on a backend that rounds. NULL: none */
    json_t *identity;
    kvm_node_input *inputs;
    ptrdiff_t input_count;
} kvm_node;

/* what a fingerprint is made of; borrows from the model */
typedef struct kvm_graph_model {
    kvm_str name, family;
    const char *fingerprint, *config_sha, *tokenizer_sha, *weights_sha; /* hex */
} kvm_graph_model;

typedef struct kvm_graph {
    kvm_str pair;    /* "small-large" */
    kvm_str spec;    /* canonical JSON of the whole spec */
    kvm_str warning; /* what its report will not be able to say, or what will not go as
                        the spec seems to want it; empty: nothing */
    kvm_node *nodes; /* in dependency order: inputs point backwards */
    ptrdiff_t count;
    kvm_graph_model models[2]; /* source and target; zero: not known */
} kvm_graph;

/* kvm_job_key - SHA-256 hex of canonical {kind, version, params, identity, inputs:
 * {name: sha}, machine (timed kinds only)}. Known once the inputs' hashes are. */
KVM_MUST kvm_status kvm_job_key(char key[65], kvm_kind_id kind, const json_t *params,
                                const json_t *identity, const kvm_job_input *inputs,
                                ptrdiff_t n, kvm_str machine, kvm_arena scratch,
                                kvm_err *err);

#endif
