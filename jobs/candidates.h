/* candidates.h - what an `auto` of a spec's fit section stands for.
 *
 * A key that is left out has the default that its recipe says, from the models' shapes
 * alone. A key that is written `auto` has every word that the pair can do: all
 * combinations are fitted, and a job `choose` (choose.c) takes the one behind which the
 * target says most nearly what it says on its own cache. Words that come to the same
 * outline are one candidate, that of the first word; words come in the order of what a
 * switch with them takes, the cheapest first. A candidate that cannot be fitted has
 * lost: its fit puts out why, and no translator. */
#ifndef KVM_JOBS_CANDIDATES_H
#define KVM_JOBS_CANDIDATES_H

#include "jobs/job.h"
#include "translators/outline.h"

/* keys that may be auto, in the order in which combinations count */
#define KVM_AUTO_KEYS(X) X(states) X(token) X(latents) X(indexers)
enum {
#define X(key) KVM_AUTO__##key,
    KVM_AUTO_KEYS(X)
#undef X
        KVM_AUTO_COUNT
};
enum { KVM_CANDIDATES_MOST = 16 };

typedef struct kvm_candidate {
    json_t *fit;              /* the section, its autos replaced; owned by the arena */
    kvm_outline outline;      /* what it comes to */
    kvm_str title;            /* "states copy, token none"; empty: there is no other */
    int word[KVM_AUTO_COUNT]; /* of each key; -1: not auto */
} kvm_candidate;

typedef struct kvm_candidates {
    kvm_candidate *at; /* (n) at least one */
    ptrdiff_t n;
    bool several[KVM_AUTO_COUNT]; /* this key is auto and leaves a choice */
} kvm_candidates;

/* kvm_candidates_read - of a fit section (which may be absent) in one direction.
 * KVM_USAGE of what a key says, KVM_RANGE of more than KVM_CANDIDATES_MOST, and what
 * kvm_outline_make refuses when no combination can be. */
KVM_MUST kvm_status kvm_candidates_read(kvm_candidates *c, kvm_jat fit,
                                        const kvm_shapes *source,
                                        const kvm_shapes *target, kvm_arena *keep,
                                        kvm_err *err);
/* kvm_candidates_leave - KVM_USAGE names the first key of the section that is auto and
 * leaves no choice in any of n directions */
KVM_MUST kvm_status kvm_candidates_leave(const kvm_candidates *c, ptrdiff_t n,
                                         kvm_jat fit, kvm_arena *keep, kvm_err *err);
/* kvm_candidate_lost - whether a fit that ends so has lost against the others: its
 * numbers say that it cannot be. A file that is gone, damaged or not the planned one
 * says nothing of it, and a loss is kept under the step's key. */
bool kvm_candidate_lost(kvm_status s);
/* whether fits of both sections make the same, whatever is chosen */
bool kvm_candidates_same(const kvm_candidates *a, const kvm_candidates *b);

#endif
