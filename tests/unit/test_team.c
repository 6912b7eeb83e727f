/* What ranks do together, on teams of 1 to 5 processes: what comes of each call, and
 * who hears of a failure. */
#include "jobs/team.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/crew.h"

/* more than one piece, and no whole number of them */
enum { MANY = KVM_TEAM_PIECE + 12345 };
static unsigned char bytes[MANY];
static float sum[MANY], part[MANY];

static void all_fare(int size, crew_work *work, void *ctx)
{
    crew_end ends[CREW_MOST];
    crew_run(size, work, ctx, ends);
    for (int r = 0; r < size; r++) check_ok(ends[r].status, &ends[r].err);
}

#define WANT(what)                                                                     \
    do {                                                                               \
        if (!(what))                                                                   \
            return kvm_fail(err, KVM_INTERNAL, "rank %d: not so: %s", t->rank, #what); \
    } while (0)

static kvm_status unite(kvm_team *t, void *ctx, kvm_err *err)
{
    (void)ctx;
    for (ptrdiff_t i = 0; i < MANY; i++)
        bytes[i] = (unsigned char)(kvm_team_mine(t, i / 7) ? i % 251 : 0);
    TRY(kvm_team_unite(t, bytes, MANY, err));
    for (ptrdiff_t i = 0; i < MANY; i++) WANT(bytes[i] == i % 251);
    double x[3] = {0};
    if (kvm_team_mine(t, 4)) x[1] = (double)NAN;
    if (kvm_team_leads(t)) x[2] = -0.0;
    TRY(kvm_team_unite(t, x, sizeof x, err));
    WANT(x[0] == 0 && isnan(x[1]) && signbit(x[2]));
    return kvm_team_unite(t, x, 0, err);
}

static kvm_status sums(kvm_team *t, void *ctx, kvm_err *err)
{
    (void)ctx;
    double x[3] = {1, 0.1 * (t->rank + 1), t->rank ? 1 : 1e300}, in_order = 0.1;
    TRY(kvm_team_sum(t, x, 3, err));
    for (int r = 1; r < t->size; r++) in_order += 0.1 * (r + 1);
    WANT(x[0] == t->size && x[1] == in_order && x[2] == 1e300);
    return KVM_OK;
}

static float term(ptrdiff_t i, ptrdiff_t n)
{
    return (float)sin((double)(i % 1000 + 37 * n)) * 1e3F;
}

/* seven terms, dealt out to any number of ranks, give the bits of one rank */
static kvm_status terms(kvm_team *t, void *ctx, kvm_err *err)
{
    enum { TERMS = 7 };
    (void)ctx;
    memset(sum, 0, sizeof sum);
    for (ptrdiff_t n = 0; n < TERMS; n += t->size) {
        const ptrdiff_t now = TERMS - n < t->size ? TERMS - n : t->size;
        for (ptrdiff_t i = 0; i < MANY; i++)
            part[i] = t->rank < now ? term(i, n + t->rank) : (float)NAN;
        TRY(kvm_team_add(t, sum, part, MANY, (int)now, err));
    }
    for (ptrdiff_t i = 0; i < MANY; i++) {
        float want = 0;
        for (ptrdiff_t n = 0; n < TERMS; n++) want += term(i, n);
        WANT(sum[i] == want);
    }
    return KVM_OK;
}

/* what rank 0 puts onto the belt arrives at rank r after r steps, as r-1 left it */
static kvm_status pass(kvm_team *t, void *ctx, kvm_err *err)
{
    (void)ctx;
    for (int step = 0; step < 4 + t->size; step++) {
        const int at = step - t->rank; /* which of the pieces is here */
        if (t->rank == 0) memset(bytes, step, MANY);
        for (ptrdiff_t i = 0; i < MANY && at >= 0; i++)
            WANT(bytes[i] == at + (i == 7 ? 10 * t->rank : 0));
        bytes[7] = (unsigned char)(bytes[7] + 10);
        TRY(kvm_team_pass(t, bytes, MANY, err));
    }
    return kvm_team_pass(t, bytes, 0, err);
}

static void calls_give_the_same_on_any_number_of_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size += size == 3 ? 2 : 1) {
        all_fare(size, unite, NULL);
        all_fare(size, sums, NULL);
        all_fare(size, terms, NULL);
        all_fare(size, pass, NULL);
    }
}

/* Rank `rank` fails before the others' call, or where all agree on how they fared. */
typedef struct failing {
    int rank, second;
    bool late;
} failing;

static kvm_status fail_one(kvm_team *t, const failing *f, kvm_err *err)
{
    double x = 1;
    if (!f->late && (t->rank == f->rank || t->rank == f->second))
        return kvm_fail(err, KVM_RANGE, "rank %d has no such thing", t->rank);
    TRY(kvm_team_sum(t, &x, 1, err));
    WANT(f->late);
    if (t->rank == f->rank) return kvm_fail(err, KVM_NAN, "too late");
    return KVM_OK;
}

static kvm_status work_that_fails(kvm_team *t, void *ctx, kvm_err *err)
{
    return fail_one(t, ctx, err);
}

static void the_failure_of_one_is_that_of_all(void **state)
{
    (void)state;
    crew_end ends[CREW_MOST];
    for (int rank = 0; rank < 3; rank++)
        for (int late = 0; late < 2; late++) {
            failing f = {rank, -1, late};
            char msg[64];
            snprintf(msg, sizeof msg, "rank %d has no such thing", rank);
            crew_run(3, work_that_fails, &f, ends);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(ends[r].status, late ? KVM_NAN : KVM_RANGE);
                assert_int_equal(ends[r].err.code, ends[r].status);
                assert_string_equal(ends[r].err.msg, late ? "too late" : msg);
            }
        }
}

static void of_two_failures_all_get_the_first_ranks(void **state)
{
    (void)state;
    crew_end ends[CREW_MOST];
    failing f = {2, 1, false};
    crew_run(4, work_that_fails, &f, ends);
    for (int r = 0; r < 4; r++)
        assert_string_equal(ends[r].err.msg, "rank 1 has no such thing");
}

/* what a job makes of a fit that failed: it says so, and goes on */
static kvm_status go_on(kvm_team *t, void *ctx, kvm_err *err)
{
    kvm_err why = {0};
    double x = 1;
    const kvm_status s = kvm_team_agree(t, fail_one(t, ctx, &why), &why);
    WANT(s == KVM_RANGE && why.code == KVM_RANGE);
    TRY(kvm_team_sum(t, &x, 1, err));
    WANT(x == t->size);
    return kvm_team_wait(t, err);
}

static void a_team_goes_on_after_a_failure_that_all_answered_for(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        failing f = {rank, -1, false};
        all_fare(3, go_on, &f);
    }
}

/* who does not pass a failure on hears of it again */
static kvm_status deaf(kvm_team *t, void *ctx, kvm_err *err)
{
    double x = 1;
    kvm_err lost = {0};
    (void)ctx;
    if (t->rank == 1) return kvm_fail(err, KVM_SHAPE, "rank 1 is out");
    if (kvm_team_sum(t, &x, 1, &lost) == KVM_OK) return KVM_OK;
    return kvm_team_wait(t, err);
}

static void a_failure_is_not_got_rid_of(void **state)
{
    (void)state;
    crew_end ends[CREW_MOST];
    crew_run(2, deaf, NULL, ends);
    assert_int_equal(ends[0].status, KVM_SHAPE);
    assert_int_equal(ends[1].status, KVM_SHAPE);
}

static kvm_status stray(kvm_team *t, void *ctx, kvm_err *err)
{
    double x = 1;
    (void)ctx;
    return t->rank ? kvm_team_wait(t, err) : kvm_team_sum(t, &x, 1, err);
}

static kvm_status differ(kvm_team *t, void *ctx, kvm_err *err)
{
    (void)ctx;
    TRY(kvm_team_same(t, "backend", "cpu", err));
    return kvm_team_same(t, "backend", t->rank == 2 ? "cpu-avx2" : "cpu", err);
}

static void ranks_that_differ_are_told(void **state)
{
    (void)state;
    crew_end ends[CREW_MOST];
    crew_run(2, stray, NULL, ends);
    assert_int_equal(ends[1].status, KVM_INTERNAL);
    check_contains(ends[1].err.msg, "lost each other");
    crew_run(3, differ, NULL, ends);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ends[r].status, KVM_MISMATCH);
        check_contains(ends[r].err.msg, "rank 2 \"cpu-avx2\"");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_give_the_same_on_any_number_of_ranks),
        cmocka_unit_test(the_failure_of_one_is_that_of_all),
        cmocka_unit_test(of_two_failures_all_get_the_first_ranks),
        cmocka_unit_test(a_team_goes_on_after_a_failure_that_all_answered_for),
        cmocka_unit_test(a_failure_is_not_got_rid_of),
        cmocka_unit_test(ranks_that_differ_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
