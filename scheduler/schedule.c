#include "scheduler/schedule.h"

#include <math.h>

#include "base/log.h"

enum { LOOK_BACK_S = 366 * 86400, STEPS_MOST = 10000 };

kvm_status kvm_schedule_read(kvm_schedule *s, kvm_arena *keep, kvm_str cron,
                             kvm_str zone, kvm_err *err)
{
    TRY(kvm_cron_parse(&s->cron, cron, err));
    return kvm_zone_read(&s->zone, keep, zone, err);
}

/* Clocks only ever show a time later than one that they have shown at a later instant,
 * but for times that they show twice, of which the second is passed over here: a night
 * has fewer minutes than STEPS_MOST. */
int64_t kvm_schedule_next(const kvm_schedule *s, int64_t after)
{
    int64_t wall = after + kvm_zone_offset(&s->zone, after), at = after;
    for (int i = 0; i < STEPS_MOST && at <= after; i++) {
        wall = kvm_cron_next(&s->cron, wall);
        at = kvm_zone_instant(&s->zone, wall);
    }
    return at > after ? at : after + LOOK_BACK_S;
}

bool kvm_catch_up_known(kvm_str word)
{
    return kvm_str_eq(word, KVM_STR("one")) || kvm_str_eq(word, KVM_STR("all")) ||
           kvm_str_eq(word, KVM_STR("none"));
}

/* What is found due, into room for `most`. */
typedef struct list {
    kvm_due *of;
    ptrdiff_t n, most;
} list;

static kvm_status claim(kvm_catalogue *c, const kvm_schedule_row *s, double at, list *l,
                        kvm_err *err)
{
    bool mine = false;
    if (l->n == l->most) return KVM_OK;
    TRY(kvm_tick_claim(c, s->id, at, KVM_TICK_HOLD_S, &mine, err));
    if (mine)
        l->of[l->n++] = (kvm_due){{s->id, at}, s->team, s->name, s->file, s->again};
    return KVM_OK;
}

/* The latest ticks in (from, now], up to KVM_CATCH_UP_MOST, in a ring. */
static ptrdiff_t missed(const kvm_schedule *s, int64_t from, int64_t now,
                        int64_t ring[KVM_CATCH_UP_MOST])
{
    ptrdiff_t n = 0;
    for (int64_t at = from; (at = kvm_schedule_next(s, at)) <= now; n++)
        ring[n % KVM_CATCH_UP_MOST] = at;
    return n;
}

static kvm_status look(kvm_catalogue *c, const kvm_schedule_row *row, double now,
                       list *l, kvm_arena scratch, kvm_err *err)
{
    kvm_schedule s;
    kvm_err why = {0};
    int64_t ring[KVM_CATCH_UP_MOST];
    if (kvm_schedule_read(&s, &scratch, row->cron, row->zone, &why)) {
        kvm_log(KVM_LOG_WARN, "schedule.unread", "schedule=\"%.*s\" error=\"%s\"",
                KVM_STR_ARG(row->name), why.msg);
        return KVM_OK;
    }
    const bool none = kvm_str_eq(row->catch_up, KVM_STR("none"));
    double from = fmax(row->since_at, row->last_at);
    from = fmax(from, now - (none ? KVM_TICK_LATE_S : LOOK_BACK_S));
    const ptrdiff_t n = missed(&s, (int64_t)floor(from), (int64_t)floor(now), ring);
    const bool all = kvm_str_eq(row->catch_up, KVM_STR("all"));
    ptrdiff_t first = all ? n - KVM_CATCH_UP_MOST : n - 1;
    for (ptrdiff_t i = first > 0 ? first : 0; i < n; i++)
        TRY(claim(c, row, (double)ring[i % KVM_CATCH_UP_MOST], l, err));
    return KVM_OK;
}

/* Those whose holder has died come first. */
static kvm_status take_over(kvm_catalogue *c, const kvm_schedule_row *rows,
                            ptrdiff_t count, list *l, kvm_arena scratch, kvm_err *err)
{
    kvm_tick_id *left;
    ptrdiff_t n;
    TRY(kvm_ticks_left(c, &left, &n, &scratch, err));
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t k = 0; k < count; k++)
            if (rows[k].id == left[i].schedule)
                TRY(claim(c, &rows[k], left[i].at, l, err));
    return KVM_OK;
}

static kvm_status look_at_all(kvm_catalogue *c, double now, list *l, kvm_arena *keep,
                              kvm_err *err)
{
    kvm_schedule_row *rows;
    ptrdiff_t n;
    double clock;
    TRY(kvm_schedules_read(c, &rows, &n, &clock, keep, err));
    TRY(take_over(c, rows, n, l, *keep, err));
    for (ptrdiff_t i = 0; i < n; i++)
        if (!rows[i].paused) TRY(look(c, &rows[i], now ? now : clock, l, *keep, err));
    return KVM_OK;
}

/* What has been claimed before a failure is handed out all the same: nobody else would
 * fire it for an hour. The failure comes again. */
kvm_status kvm_schedules_due(kvm_catalogue *c, double now, ptrdiff_t most,
                             kvm_due **due, ptrdiff_t *count, kvm_arena *keep,
                             kvm_err *err)
{
    kvm_err why = {0};
    list l = {.of = kvm_new(keep, kvm_due, most + 1), .most = most};
    if (!l.of) return kvm_nomem(err, keep);
    const kvm_status s = look_at_all(c, now, &l, keep, &why);
    if (s && !l.n) {
        if (err && !err->code) *err = why;
        return s;
    }
    *due = l.of;
    *count = l.n;
    return KVM_OK;
}
