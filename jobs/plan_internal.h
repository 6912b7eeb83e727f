/* plan_internal.h - shared by plan.c (what the two models' shapes say), plan_jobs.c
 * and cost.h (what every job of the graphs takes). */
#ifndef KVM_JOBS_PLAN_INTERNAL_H
#define KVM_JOBS_PLAN_INTERNAL_H

#include "jobs/plan.h"
#include "translators/outline.h"

/* one direction; shapes borrowed */
typedef struct kvm_plan_pair {
    const kvm_shapes *source, *target;
    kvm_outline outline; /* of fits that are chosen among, of the last: its switch is
                            the dearest (candidates.h) */
} kvm_plan_pair;

typedef struct kvm_plan_context {
    const kvm_spec *spec;
    const kvm_model *source, *target; /* of the first direction */
    kvm_plan_pair pair[2];            /* by direction */
    const kvm_machine_rates *rates;
    int threads;
    double sequences, rows, held, row_bytes; /* of a capture; share kept from the fit */
    double k_most;
    kvm_arena *keep;
} kvm_plan_context;

/* entries of one object kind over all layers: the features of a Gram matrix */
double kvm_plan__features(const kvm_model *m, kvm_object_kind kind);
/* entries of a token's rows of every kind */
double kvm_plan__row_width(const kvm_model *m);
/* every kind of row, content and where there is a position rotated, over every split,
 * fp64 */
double kvm_plan__moment_bytes(const kvm_model *a, const kvm_model *b, bool symmetric);
/* One choice of layers swept for the maps of a mapping (kvm_fit_run_sweep): from
 * `layers` of `width` features each, `beside` more that every map reads, to `targets`
 * of `out` entries together. */
double kvm_plan__map_flops(double layers, double width, double beside, double targets,
                           double out, double k_most, bool full);

/* ---- what an outline says (plan_fit.c) ---- */

/* rows of these spaces, by name: of every token, or of every sequence */
double kvm_plan__capture_bytes(const json_t *spaces, const kvm_shapes *s, double rows,
                               double sequences, double row_bytes);
/* products of a stats node's blocks over so many rows; b NULL: a Gram, of whose blocks
 * of one space half is computed */
double kvm_plan__blocks_flops(const json_t *blocks, const kvm_shapes *a,
                              const kvm_shapes *b, double rows);
/* the products that the outline needs: of the source's rows; if `cross`, also of both
 * and of the target's */
double kvm_plan__moments_flops(const kvm_plan_pair *p, bool cross, double rows);
/* sweep and curves of every mapping; full: keys in both of their spaces */
double kvm_plan__sweep_flops(const kvm_plan_pair *p, double k_most, bool full);
/* the same, and the ranking of source layers before it */
double kvm_plan__fit_flops(const kvm_plan_pair *p, double k_most, bool full);
/* states corrected by pairs of so many sequences */
double kvm_plan__states_flops(const kvm_plan_pair *p, double fit, double choose);
/* of the maps with k source layers and of the corrections of states: weights and
 * bias */
double kvm_plan__parameters(const kvm_plan_pair *p, double k);
/* multiplications of a token's rows by the maps, and the target's recurrence over those
 * that a replay is given */
double kvm_plan__apply_flops(const kvm_plan_pair *p, const kvm_model *target, double k);
/* of states that are corrected, once a prompt */
double kvm_plan__prompt_flops(const kvm_plan_pair *p);

/* of an inversion: every layer that keeps rows which it reads (invert.h), of so many
 * held-out rows */
double kvm_plan__invert_flops(const kvm_shapes *s, const kvm_model *m, double held);

/* kvm_plan__jobs - "jobs" and "total" of a plan (plan.h); both owned by p->keep */
KVM_MUST kvm_status kvm_plan__jobs(json_t **jobs, json_t **total,
                                   const kvm_plan_context *p, const kvm_graph *graphs,
                                   ptrdiff_t before, ptrdiff_t n, kvm_err *err);

#endif
