/* cost.h - what one job takes: seconds, bytes on disk, memory; for a plan, before
 * anything runs.
 *
 * Each row of kinds.def has its kvm_cost_<kind> in jobs/<kind>_cost.c. It reads the
 * node's parameters, the shapes of both models and the items as the job will, and what
 * an outline says (plan_internal.h). Work is counted in flops; seconds follow from the
 * machine's two rates. Private to jobs/. */
#ifndef KVM_JOBS_COST_H
#define KVM_JOBS_COST_H

#include "jobs/items.h"
#include "jobs/plan_internal.h"
#include "jobs/timing.h"

typedef struct kvm_cost {
    double seconds, bytes, memory; /* bytes: written; memory: of weights, rows, sums */
} kvm_cost;

typedef struct kvm_suite_items {
    kvm_str path;
    int64_t wanted;
    kvm_items items;
} kvm_suite_items;

/* who walks the graphs, and what the step is that is looked at */
typedef struct kvm_planner {
    const kvm_plan_context *p;
    kvm_suite_items *suites; /* (KVM_PLAN_SUITES) read so far */
    ptrdiff_t suite_count;
    const kvm_model *source, *target; /* of this step */
    const kvm_graph *graph;
    kvm_plan_pair pair; /* of this step */
    double k;           /* source layers of a map */
} kvm_planner;
enum { KVM_PLAN_SUITES = 64 };

/* *c: of the job alone, without its process; failures are those of reading items */
#define X(id, NAME, name, version, flags, what)                                        \
    KVM_MUST kvm_status kvm_cost_##name(kvm_planner *a, const kvm_node *n,             \
                                        kvm_cost *c, kvm_err *err);
#include "jobs/kinds.def"
#undef X

/* ---- a node's parameters ---- */

double kvm_cost__number(const kvm_node *n, const char *key, double fallback);
kvm_str kvm_cost__text(const kvm_node *n, const char *key); /* at NULL: absent */
/* so many parameters in the node's dtype */
double kvm_cost__map_bytes(const kvm_node *n, double parameters);
/* kvm_cost__items - those of the node's suite, read once for all nodes; *out borrows
 * from a. KVM_RANGE when there are too many suites. */
KVM_MUST kvm_status kvm_cost__items(kvm_planner *a, const kvm_node *n,
                                    const kvm_items **out, kvm_err *err);

/* ---- parts of many steps ---- */

/* seconds of one call: the weights are read once, whatever the tokens */
double kvm_cost__call_s(const kvm_planner *a, const kvm_model *m, double context,
                        double tokens, double logits);
/* of one token's rows */
double kvm_cost__apply_flops(const kvm_planner *a);
/* of a prompt: states are corrected once */
double kvm_cost__switch_flops(const kvm_planner *a, double tokens);
/* both models and the maps */
double kvm_cost__weights_bytes(const kvm_planner *a);
/* seconds of an item's three prefills, then of every arm: translators (maps) map the
 * prefix, controls put rows in; alone: the source itself answers nothing */
double kvm_cost__item_s(const kvm_planner *a, const kvm_suite *s,
                        const kvm_item_ids *ids, double arms, double maps, bool alone);

#endif
