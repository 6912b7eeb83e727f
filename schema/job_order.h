/* job_order.h - which jobs are next: priority, then fair share between teams, then age.
 *
 * A team's share is what it has used (seconds times ranks, halved every 7 days; what is
 * running counts up to now) over its weight: the least is next. Age is the order of
 * submission, without an end to its weight. Passed over are paused teams and jobs,
 * teams at a quota, jobs whose time has not come or whose key is running.
 *
 * The catalogue gives the first jobs of each lane (team, class, ranks) by an index, so
 * a look costs the same whatever else is waiting; here they are put in order. */
#ifndef KVM_SCHEMA_JOB_ORDER_H
#define KVM_SCHEMA_JOB_ORDER_H

#include "schema/job_state.h"

/* kvm_jobs_next - batches[most] of what is next, *count of them: each is one job, or
 * several small ones when the first is small. Within a transaction they are held until
 * it ends, and those that others hold are passed over; a team with a quota_live is held
 * too, and waited for, so that those who look in the same moment keep it together. */
KVM_MUST kvm_status kvm_jobs_next(kvm_catalogue *c, const kvm_want *want,
                                  kvm_job_batch *batches, ptrdiff_t most,
                                  ptrdiff_t *count, kvm_err *err);

/* What a team may have and has. */
typedef struct kvm_team_use {
    int64_t id;
    double weight;
    double used_s;      /* as of now */
    int64_t live;       /* jobs … */
    double live_s;      /* … and what they have used so far */
    int64_t quota_live; /* 0: any number */
    double quota_day_s; /* 0: any */
    double day_s;       /* used today */
} kvm_team_use;
/* kvm_team_share - the least is next; a team without weight comes last */
double kvm_team_share(const kvm_team_use *t);
/* kvm_team_room - how many jobs more it may have; 0: it is passed over */
int64_t kvm_team_room(const kvm_team_use *t);

typedef struct kvm_job_candidate {
    kvm_fence fence;
    ptrdiff_t team; /* index into teams */
    int64_t priority;
    bool small;
    kvm_str key;  /* empty: none */
    double share; /* its team's: filled in by kvm_jobs_order */
} kvm_job_candidate;
/* kvm_jobs_order - puts the candidates in order and the first into the batch; when it
 * is small, those small ones behind it that have other keys and room in their team, up
 * to `most`. What is taken becomes live in its team. */
void kvm_jobs_order(kvm_job_candidate *of, ptrdiff_t count, kvm_team_use *teams,
                    ptrdiff_t most, kvm_job_batch *batch);

#endif
