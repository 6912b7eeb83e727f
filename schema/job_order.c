#include "schema/job_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schema/job_internal.h"

/* ---- the rule ---- */

double kvm_team_share(const kvm_team_use *t)
{
    return t->weight > 0 ? (t->used_s + t->live_s) / t->weight : (double)INFINITY;
}

int64_t kvm_team_room(const kvm_team_use *t)
{
    if (t->quota_day_s > 0 && t->day_s + t->live_s >= t->quota_day_s) return 0;
    if (t->quota_live <= 0) return INT64_MAX;
    return t->live < t->quota_live ? t->quota_live - t->live : 0;
}

static int by_turn(const void *va, const void *vb)
{
    const kvm_job_candidate *a = va, *b = vb;
    if (a->priority != b->priority) return a->priority > b->priority ? -1 : 1;
    if (a->share != b->share) return a->share < b->share ? -1 : 1;
    return (a->fence.job > b->fence.job) - (a->fence.job < b->fence.job);
}

/* Whether an equal step is in the batch: the second would have to wait for the
 * first. */
static bool has_twin(const kvm_job_candidate *of, ptrdiff_t before,
                     const kvm_job_batch *batch, kvm_str key)
{
    ptrdiff_t taken = 0;
    for (ptrdiff_t i = 0; i < before && key.len && taken < batch->count; i++) {
        if (of[i].fence.job != batch->jobs[taken].job) continue;
        if (kvm_str_eq(of[i].key, key)) return true;
        taken++;
    }
    return false;
}

void kvm_jobs_order(kvm_job_candidate *of, ptrdiff_t count, kvm_team_use *teams,
                    ptrdiff_t most, kvm_job_batch *batch)
{
    for (ptrdiff_t i = 0; i < count; i++)
        of[i].share = kvm_team_share(&teams[of[i].team]);
    if (count) qsort(of, (size_t)count, sizeof *of, by_turn);
    batch->count = 0;
    bool small = true; /* so long as the batch is empty: either */
    for (ptrdiff_t i = 0; i < count && small && batch->count < most; i++) {
        kvm_team_use *t = &teams[of[i].team];
        if (batch->count > 0 && !of[i].small) continue;
        if (kvm_team_room(t) == 0 || has_twin(of, i, batch, of[i].key)) continue;
        t->live++;
        batch->jobs[batch->count++] = of[i].fence;
        small = of[i].small;
    }
}

/* ---- the catalogue ---- */

enum { FEW_TEAMS = 8 };

/* A look at the lanes of teams that have something waiting and room. */
typedef struct look {
    kvm_db *db;
    kvm_want want; /* defaults filled in */
    kvm_team_use *teams;
    ptrdiff_t batches; /* so many are wanted */
    kvm_job_candidate *found;
    ptrdiff_t count, room;
    kvm_arena *a;
} look;

static kvm_want with_defaults(const kvm_want *given)
{
    kvm_want w = *given;
    if (w.class_count == 0) {
        w.classes[0] = KVM_STR("cpu");
        w.classes[1] = KVM_STR("small");
        w.class_count = 2;
    }
    if (w.ranks <= 0) w.ranks = 1;
    if (w.most <= 0 || w.most > KVM_BATCH_MOST) w.most = KVM_BATCH_MOST;
    return w;
}

static kvm_cell class_of(const kvm_want *w, int i)
{
    return i < w->class_count ? kvm_cell_s(w->classes[i]) : (kvm_cell){0};
}

bool kvm_jobs__bounded(const kvm_team_use *teams, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i++)
        if (teams[i].quota_live > 0) return true;
    return false;
}

/* What a team has now matters where a quota bounds it, or another waits as well. */
static bool live_matters(const kvm_team_use *teams, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i++)
        if (teams[i].quota_day_s > 0) return true;
    return count > 1 || kvm_jobs__bounded(teams, count);
}

static kvm_status add_live(kvm_db *db, bool unsent, kvm_team_use *teams,
                           ptrdiff_t count, kvm_arena scratch, kvm_err *err)
{
    kvm_rows r;
    TRY(kvm_db_query(db, KVM_SQL_TEAMS_LIVE, KVM_ARGS(kvm_cell_i(unsent)), &r, &scratch,
                     err));
    for (ptrdiff_t i = 0; i < count; i++)
        for (ptrdiff_t row = 0; row < r.count; row++)
            if (kvm_rows_i64(&r, row, 0) == teams[i].id) {
                teams[i].live = kvm_rows_i64(&r, row, 1);
                teams[i].live_s = kvm_rows_f64(&r, row, 2);
            }
    return KVM_OK;
}

static kvm_status hold_bounded(kvm_db *db, const kvm_team_use *teams, ptrdiff_t count,
                               kvm_arena scratch, kvm_err *err)
{
    kvm_rows r;
    if (db->depth == 0 || !kvm_jobs__bounded(teams, count)) return KVM_OK;
    return kvm_db_query(db, KVM_SQL_TEAMS_HOLD, KVM_NO_ARGS, &r, &scratch, err);
}

/* Whose lanes are looked at. To find out who has something waiting costs as much as a
 * look at a lane: only where there are many, or nobody is expected to, it is asked. */
static kvm_status read_teams(kvm_db *db, const kvm_want *w, bool asked, kvm_rows *r,
                             kvm_arena *a, kvm_err *err)
{
    if (!asked && w->run == 0) { /* the lane of a run is of one team */
        TRY(kvm_db_query(db, KVM_SQL_TEAMS_SOME, KVM_ARGS(kvm_cell_i(FEW_TEAMS + 1)), r,
                         a, err));
        if (r->count <= FEW_TEAMS) return KVM_OK;
    }
    return kvm_db_query(db, KVM_SQL_TEAMS_NEXT,
                        KVM_ARGS(kvm_cell_i(w->run), class_of(w, 0), class_of(w, 1),
                                 class_of(w, 2), class_of(w, 3)),
                        r, a, err);
}

kvm_status kvm_jobs__teams(kvm_db *db, const kvm_want *want, bool asked,
                           kvm_team_use **out, ptrdiff_t *count, kvm_arena *a,
                           kvm_err *err)
{
    const kvm_want w = with_defaults(want);
    kvm_rows r;
    TRY(read_teams(db, &w, asked, &r, a, err));
    kvm_team_use *teams = kvm_new(a, kvm_team_use, r.count + 1);
    if (!teams) return kvm_nomem(err, a);
    for (ptrdiff_t i = 0; i < r.count; i++) {
        const int64_t today = (int64_t)(kvm_rows_f64(&r, i, 7) / KVM_DAY_S);
        teams[i] = (kvm_team_use){
            .id = kvm_rows_i64(&r, i, 0),
            .weight = kvm_rows_f64(&r, i, 1),
            .used_s = kvm_rows_f64(&r, i, 2),
            .quota_live = kvm_rows_i64(&r, i, 3),
            .quota_day_s = kvm_rows_f64(&r, i, 4),
            .day_s = kvm_rows_i64(&r, i, 5) == today ? kvm_rows_f64(&r, i, 6) : 0};
    }
    TRY(hold_bounded(db, teams, r.count, *a, err));
    if (live_matters(teams, r.count))
        TRY(add_live(db, w.unsent, teams, r.count, *a, err));
    *count = 0;
    for (ptrdiff_t i = 0; i < r.count; i++)
        if (kvm_team_room(&teams[i]) > 0) teams[(*count)++] = teams[i];
    *out = teams;
    return KVM_OK;
}

static bool make_room(look *k, ptrdiff_t more)
{
    if (k->count + more <= k->room) return true;
    const ptrdiff_t room = 2 * k->room + more;
    kvm_job_candidate *all = kvm_new(k->a, kvm_job_candidate, room);
    if (!all) return false;
    if (k->count) memcpy(all, k->found, sizeof *all * (size_t)k->count);
    k->found = all;
    k->room = room;
    return true;
}

/* The first jobs of a lane; as many as could go into the batches. */
static kvm_status read_lane(look *k, ptrdiff_t team, kvm_str class, int64_t ranks,
                            kvm_err *err)
{
    const kvm_want *w = &k->want;
    const bool small = kvm_str_eq(class, KVM_STR("small"));
    const int64_t room = kvm_team_room(&k->teams[team]);
    const ptrdiff_t fit = k->batches * (small ? w->most : 1);
    const ptrdiff_t most = room < fit ? (ptrdiff_t)room : fit;
    kvm_rows r;
    TRY(kvm_db_query(k->db, w->run ? KVM_SQL_LANE_OF_RUN : KVM_SQL_LANE_NEXT,
                     KVM_ARGS(kvm_cell_i(w->run ? w->run : k->teams[team].id),
                              kvm_cell_s(class), kvm_cell_i(ranks),
                              kvm_cell_i(w->memory_mib), kvm_cell_i(w->unsent),
                              kvm_cell_i(most)),
                     &r, k->a, err));
    if (!make_room(k, r.count)) return kvm_nomem(err, k->a);
    for (ptrdiff_t i = 0; i < r.count; i++)
        k->found[k->count++] = (kvm_job_candidate){
            .fence = {kvm_rows_i64(&r, i, 0), kvm_rows_i64(&r, i, 1)},
            .team = team,
            .priority = kvm_rows_i64(&r, i, 2),
            .small = small,
            .key = kvm_rows_str(&r, i, 3)};
    return KVM_OK;
}

/* Every number of ranks that jobs of this team and class need is a lane. */
static kvm_status read_lanes(look *k, ptrdiff_t team, kvm_str class, kvm_err *err)
{
    const kvm_want *w = &k->want;
    if (w->run || w->ranks == 1) return read_lane(k, team, class, w->ranks, err);
    for (int64_t ranks = 0;;) {
        TRY(kvm_db_one(k->db, KVM_SQL_LANE_ABOVE,
                       KVM_ARGS(kvm_cell_i(k->teams[team].id), kvm_cell_s(class),
                                kvm_cell_i(ranks), kvm_cell_i(w->ranks)),
                       &ranks, err));
        if (ranks == 0) return KVM_OK;
        TRY(read_lane(k, team, class, ranks, err));
    }
}

/* what has found its place is no candidate any more */
static void drop(look *k, const kvm_job_batch *batch)
{
    ptrdiff_t taken = 0, left = 0;
    for (ptrdiff_t i = 0; i < k->count; i++) /* both in the same order */
        if (taken < batch->count && k->found[i].fence.job == batch->jobs[taken].job)
            taken++;
        else
            k->found[left++] = k->found[i];
    k->count = left;
}

kvm_status kvm_jobs__of_teams(kvm_db *db, const kvm_want *want, kvm_team_use *teams,
                              ptrdiff_t count, kvm_job_batch *batches, ptrdiff_t most,
                              ptrdiff_t *found, kvm_arena scratch, kvm_err *err)
{
    look k = {.db = db,
              .want = with_defaults(want),
              .teams = teams,
              .batches = most,
              .a = &scratch};
    for (ptrdiff_t t = 0; t < count; t++)
        for (int i = 0; i < k.want.class_count; i++)
            TRY(read_lanes(&k, t, k.want.classes[i], err));
    for (*found = 0; *found < most; ++*found) {
        kvm_job_batch *b = &batches[*found];
        kvm_jobs_order(k.found, k.count, teams, k.want.most, b);
        if (b->count == 0) break;
        drop(&k, b);
    }
    return KVM_OK;
}

kvm_status kvm_jobs_next(kvm_catalogue *c, const kvm_want *want, kvm_job_batch *batches,
                         ptrdiff_t most, ptrdiff_t *count, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_team_use *teams;
    ptrdiff_t n;
    TRY(kvm_jobs__teams(c->db, want, false, &teams, &n, &scratch, err));
    return kvm_jobs__of_teams(c->db, want, teams, n, batches, most, count, scratch,
                              err);
}
