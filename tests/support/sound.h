/* sound.h - what has become of the jobs: none lost, none doubled, nothing left over.
 * For tests that kill and cut off; all in the header, as queue.h. */
#ifndef KVM_TESTS_SUPPORT_SOUND_H
#define KVM_TESTS_SUPPORT_SOUND_H

#include "tests/support/chaos.h"
#include "tests/support/fake_kinds.h"

/* jobs without a committed result; all are meant to have one */
static inline int sound_lost(const fake_base *b)
{
    return (int)kvm_test_number(
        b->db,
        "SELECT COUNT(*) FROM job WHERE state NOT IN ('succeeded', 'skipped') OR "
        "NOT EXISTS (SELECT 1 FROM artefact a WHERE a.job_id = job.id)");
}

/* jobs with more than one: two attempts that both committed, or what these left */
static inline int sound_doubled(const fake_base *b)
{
    return (int)kvm_test_number(
        b->db,
        "SELECT COUNT(*) FROM job WHERE (SELECT COUNT(*) FROM attempt a WHERE a.job_id "
        "= job.id AND a.outcome IN ('succeeded', 'skipped')) > 1 OR (SELECT COUNT(*) "
        "FROM artefact a WHERE a.job_id = job.id) > 1");
}

/* Counts, notes them (chaos.h), and fails the test when there is one. */
static inline void sound_record(const fake_base *b, const char *row, const char *what,
                                int injected, double recovery_s)
{
    char text[160];
    const int lost = sound_lost(b), doubled = sound_doubled(b);
    snprintf(text, sizeof text, "%s, %s", what,
             kvm_test_on_server ? "PostgreSQL" : "SQLite");
    chaos_record(row, text, injected, lost, doubled, recovery_s);
    print_message("# %s: %d injected, %d lost, %d doubled, %.1f s\n", text, injected,
                  lost, doubled, recovery_s);
    assert_int_equal(lost, 0);
    assert_int_equal(doubled, 0);
}

/* No process that has run a job is left. Of a number that is taken again by now, the
 * program tells. */
static inline void sound_no_orphans(void)
{
    char file[300], line[32], self[300], other[300], exe[64];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    snprintf(file, sizeof file, "%s/pids", fake_home);
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f)) {
        const long pid = strtol(line, NULL, 10);
        snprintf(exe, sizeof exe, "/proc/%ld/exe", pid);
        const double until = kvm_now() + 10;
        while (fake_alive(pid) && readlink(exe, other, sizeof other) == n &&
               !memcmp(self, other, (size_t)n)) {
            if (kvm_now() > until) fail_msg("process %ld is still there", pid);
            kvm_sleep(0.01);
        }
    }
    if (f) fclose(f);
}

/* The run has succeeded with all its jobs; every artefact is what its hash says, none
 * is a temporary file; the last one is `last`, as an undisturbed run makes it (NULL:
 * not looked at); the catalogue agrees with itself. */
static inline void sound_assert(const fake_base *b, int64_t run, int jobs,
                                const char *last)
{
    kvm_result_artefact *all;
    ptrdiff_t n = 0;
    kvm_run_info info;
    json_t *problems;
    kvm_str path, text = {0};
    kvm_arena keep;
    kvm_store *fresh; /* has verified nothing yet */
    sound_no_orphans();
    MUST(kvm_arena_init(&keep, 64 << 20, e));
    MUST(kvm_run_look(b->c, run, &info, &keep, e));
    if (info.state != KVM_RUN_SUCCEEDED)
        fail_msg("the run is in state %d: %.*s", (int)info.state,
                 KVM_STR_ARG(info.trouble_message));
    assert_int_equal(info.jobs[KVM_STATE_SUCCEEDED] + info.jobs[KVM_STATE_SKIPPED],
                     jobs);
    assert_int_equal(sound_lost(b), 0);
    assert_int_equal(sound_doubled(b), 0);
    MUST(kvm_store_open(&fresh, &keep, kvm_str_of(fake_home), NULL, e));
    MUST(kvm_run_artefacts(b->c, run, &all, &n, &keep, e));
    assert_int_equal(n, jobs);
    for (ptrdiff_t i = 0; i < n; i++) {
        MUST(kvm_store_get(fresh, &path, &keep, all[i].sha.at, all[i].bytes, e));
        MUST(kvm_file_read(&text, &keep, path, 1 << 20, e));
        assert_int_equal(kvm_str_find(path, KVM_STR(".tmp")), -1);
    }
    if (last) assert_string_equal(text.at, last);
    MUST(kvm_catalogue_check(b->c, &problems, &keep, e));
    assert_int_equal(json_array_size(problems), 0);
    kvm_arena_free(&keep);
}

#endif
