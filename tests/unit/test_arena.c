/* Arenas: alignment, zeroing, overflow, exhaustion, scratch by value, cleanups. */
#include "base/arena.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/fault.h"

static void blocks_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 20);
    for (size_t align = 1; align <= 4096; align *= 2) {
        char *p = kvm_arena_alloc(&a, 3, align, 5);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        for (int i = 0; i < 15; i++) assert_int_equal(p[i], 0);
        memset(p, 0xff, 15);
    }
    float *f = kvm_new_raw(&a, float, 100);
    assert_int_equal((uintptr_t)f % 64, 0);
    kvm_arena_free(&a);
}

static void zeroed_again_where_scratch_was_dirty(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 16);
    kvm_arena scratch = a;
    memset(kvm_new(&scratch, char, 1000), 0xaa, 1000);
    const char *p = kvm_new(&a, char, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0);
    memset(kvm_new(&a, char, 1000), 0xbb, 1000);
    kvm_arena_reset(&a);
    assert_int_equal(kvm_arena_used(&a), 0);
    p = kvm_new(&a, char, 2000);
    for (int i = 0; i < 2000; i++) assert_int_equal(p[i], 0);
    kvm_arena_free(&a);
}

static void sizes_that_wrap_or_do_not_fit_give_null(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 16);
    const size_t used = kvm_arena_used(&a);
    assert_null(kvm_arena_alloc(&a, 8, 8, PTRDIFF_MAX));
    assert_null(kvm_arena_alloc(&a, SIZE_MAX, 8, 2));
    assert_null(kvm_arena_alloc(&a, 1, 1, -1));
    assert_null(kvm_arena_alloc(&a, 1, 1, (1 << 16) + 1));
    assert_null(kvm_arena_alloc_raw(&a, 2, 8, PTRDIFF_MAX / 2 + 2));
    assert_int_equal(kvm_arena_used(&a), used);
    assert_non_null(kvm_arena_alloc(&a, 1, 1, 0)); /* nothing is no failure */
    assert_non_null(kvm_arena_alloc(&a, 1, 1, (1 << 15)));
    kvm_arena_free(&a);

    kvm_err err = {0};
    check_status(KVM_NOMEM, kvm_arena_init(&a, SIZE_MAX, &err), &err);
    err = (kvm_err){0};
    check_status(KVM_NOMEM, kvm_arena_init(&a, PTRDIFF_MAX - 5000, &err), &err);
}

static void a_spent_arena_stays_spent_and_says_so(void **state)
{
    (void)state;
    kvm_arena a = check_arena(4096);
    int blocks = 0;
    while (kvm_new(&a, int, 16)) blocks++;
    assert_true(blocks > 30 && blocks <= 64);
    assert_null(kvm_new(&a, int, 16));
    kvm_err err = {0};
    check_status(KVM_NOMEM, kvm_nomem(&err, &a), &err);
    check_contains(err.msg, "4096");
    kvm_arena_reset(&a);
    assert_non_null(kvm_new(&a, int, 16));
    kvm_arena_free(&a);
}

static void a_zero_arena_is_spent_and_may_be_freed(void **state)
{
    (void)state;
    kvm_arena a = {0};
    assert_null(kvm_new(&a, char, 1));
    assert_null(kvm_new(&a, char, 0));
    assert_int_equal(kvm_arena_left(&a), 0);
    kvm_arena_reset(&a);
    kvm_arena_free(&a);
    kvm_arena_free(&a);
}

static void a_split_shares_memory_but_not_its_end(void **state)
{
    (void)state;
    kvm_arena a = check_arena(1 << 16);
    kvm_arena part = kvm_arena_split(&a, 1000);
    assert_int_equal(kvm_arena_left(&part), 1000);
    const char *p = kvm_new(&part, char, 1000);
    assert_non_null(p);
    assert_null(kvm_new(&part, char, 1));
    const char *q = kvm_new(&a, char, 1);
    assert_true(q >= p + 1000);
    kvm_arena none = kvm_arena_split(&a, 1 << 17);
    assert_int_equal(kvm_arena_left(&none), 0);
    none = kvm_arena_split(&a, SIZE_MAX);
    assert_null(kvm_new(&none, char, 1));
    kvm_arena_free(&part); /* gives nothing back: it owns nothing */
    assert_int_equal(*q, 0);
    kvm_arena_free(&a);
}

static char order[8];
static void note(void *arg)
{
    const size_t n = strlen(order);
    order[n] = *(const char *)arg;
    order[n + 1] = 0;
}

static void cleanups_run_once_in_reverse(void **state)
{
    (void)state;
    kvm_err err = {0};
    char letters[] = "abc";
    kvm_arena a = check_arena(4096);
    order[0] = 0;
    for (int i = 0; i < 3; i++)
        check_ok(kvm_arena_defer(&a, note, &letters[i], &err), &err);
    kvm_arena_reset(&a);
    assert_string_equal(order, "cba");
    check_ok(kvm_arena_defer(&a, note, &letters[1], &err), &err);
    kvm_arena_free(&a);
    assert_string_equal(order, "cbab");
    kvm_arena_free(&a);
    assert_string_equal(order, "cbab");
}

static void a_cleanup_that_cannot_be_kept_runs_at_once(void **state)
{
    (void)state;
    kvm_err err = {0};
    char letter = 'x';
    kvm_arena a = {0};
    order[0] = 0;
    check_status(KVM_NOMEM, kvm_arena_defer(&a, note, &letter, &err), &err);
    assert_string_equal(order, "x");
}

static void a_mapping_that_fails_is_an_error(void **state)
{
    (void)state;
    kvm_arena a = {0};
    kvm_err err = {0};
    fault_begin((fault_plan){.nth = 1, .only = "mmap"});
    const kvm_status s = kvm_arena_init(&a, 4096, &err);
    assert_true(fault_end());
    check_status(KVM_NOMEM, s, &err);
    assert_null(a.base);
}

/* Address space is not memory: far more than the machine has can be reserved. */
static void reserving_costs_nothing(void **state)
{
    (void)state;
#if !defined(__SANITIZE_THREAD__)
    kvm_arena a = check_arena((size_t)1 << 40);
    assert_non_null(kvm_new(&a, char, 4096));
    kvm_arena_free(&a);
#endif
}

/* In a child whose address space is limited: many reservations of far too much each get
 * something that can be written to, in the end the message says what to raise. */
static int reserve_within(size_t limit)
{
    enum { MOST = 64 };
    const struct rlimit r = {limit, limit};
    kvm_arena a[MOST] = {{0}};
    kvm_err err = {0};
    int n = 0;
    if (setrlimit(RLIMIT_AS, &r)) return 10;
    while (n < MOST && kvm_arena_reserve(&a[n], (size_t)1 << 40, &err) == KVM_OK) {
        const size_t bytes = kvm_arena_left(&a[n]);
        if (bytes < KVM_ARENA_LEAST) return 11;
        a[n].base[0] = a[n].base[bytes - 1] = 1;
        if (n > 0 && bytes > kvm_arena_left(&a[n - 1])) return 12;
        n++;
    }
    if (n < 6) return 13; /* the first one left room for others */
    if (n < MOST && (err.code != KVM_NOMEM || !strstr(err.msg, "ulimit -v"))) return 14;
    return 0;
}

static void a_limited_address_space_is_shared(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: the shadow of sanitizers is larger than any such limit\n");
    skip();
#endif
    static const size_t limits[] = {(size_t)1 << 30, (size_t)3 << 30, (size_t)20 << 30};
    for (size_t i = 0; i < COUNT(limits); i++) {
        int status;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(reserve_within(limits[i]));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limited_address_space_is_shared),
        cmocka_unit_test(blocks_are_aligned_zeroed_and_apart),
        cmocka_unit_test(zeroed_again_where_scratch_was_dirty),
        cmocka_unit_test(sizes_that_wrap_or_do_not_fit_give_null),
        cmocka_unit_test(a_spent_arena_stays_spent_and_says_so),
        cmocka_unit_test(a_zero_arena_is_spent_and_may_be_freed),
        cmocka_unit_test(a_split_shares_memory_but_not_its_end),
        cmocka_unit_test(cleanups_run_once_in_reverse),
        cmocka_unit_test(a_cleanup_that_cannot_be_kept_runs_at_once),
        cmocka_unit_test(a_mapping_that_fails_is_an_error),
        cmocka_unit_test(reserving_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
