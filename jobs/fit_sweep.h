/* fit_sweep.h - every k and every lambda at once, and the choice between them.
 *
 * Mappings that share a choice of layers are one group (K in the space that will be
 * mapped, and V). The sweep runs over the layer ranking's prefixes for every mapping of
 * the group and every target layer. The choice looks at R2 on the choosing split only
 * (rows.h), and so do the curves: for each k the best relative lambda of each mapping;
 * then the smallest k whose mean R2 is within k_slack of the best k's. */
#ifndef KVM_JOBS_FIT_SWEEP_H
#define KVM_JOBS_FIT_SWEEP_H

#include <jansson.h>

#include "base/progress.h"
#include "jobs/team.h"
#include "translators/select.h"

enum { KVM_GROUP = 2 }; /* mappings that may share a choice */

typedef struct kvm_fit_choice {
    ptrdiff_t k; /* 0: to be chosen */
    /* largest k of the sweep and of the greedy curves: a factor costs
     * (k * heads * D)^3 / 3 */
    ptrdiff_t k_most;
    kvm_lambda lambda; /* when lambda_given, for all mappings */
    bool lambda_given;
    kvm_lambda best[KVM_GROUP]; /* chosen, by mapping */
    double k_slack;
} kvm_fit_choice;

typedef struct kvm_fit_sweep {
    kvm_compute *compute;
    const kvm_moments *moments;
    const kvm_ranking *ranking;
    const kvm_mapping *mapping; /* (mappings) */
    int mappings;
    bool allow_wide;
    /* all k and lambdas with curves in the figures; false: only what the choice
     * needs */
    bool full;
    kvm_progress *progress;
    kvm_team *team; /* target layers are dealt out; all ranks get all figures */
} kvm_fit_sweep;

/* figures gets "k_curve", "lambda_curve", "greedy". KVM_RANGE when every k has more
 * features than rows. */
KVM_MUST kvm_status kvm_fit_run_sweep(const kvm_fit_sweep *s, kvm_fit_choice *choice,
                                      json_t *figures, kvm_arena *keep,
                                      kvm_arena scratch, kvm_err *err);
/* the target layers that get a greedy curve, a representative few; gives how many */
enum { KVM_GREEDY_TARGETS = 4 };
ptrdiff_t kvm_fit_greedy_targets(ptrdiff_t targets, ptrdiff_t of[KVM_GREEDY_TARGETS]);
/* figures' "maps" gets {space: {split: [[r2]]}} (source rows, target columns) */
KVM_MUST kvm_status kvm_fit_put_map(json_t *figures, const kvm_mapping *mapping,
                                    const kvm_r2_map *map, kvm_err *err);

#endif
