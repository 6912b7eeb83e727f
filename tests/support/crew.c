#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/support/crew.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "workers/crew.h"

static void be(kvm_crew *c, int rank, crew_work *work, void *ctx, crew_end *end)
{
    kvm_team t;
    kvm_crew_join(c, rank, &t);
    end->status = kvm_team_agree(&t, work(&t, ctx, &end->err), &end->err);
    end->err.file = NULL; /* of another process */
}

void crew_run(int size, crew_work *work, void *ctx, crew_end *ends)
{
    pid_t pid[CREW_MOST] = {0};
    kvm_arena keep = check_arena(1 << 20);
    kvm_crew *c;
    kvm_err err = {0};
    assert_true(size >= 1 && size <= CREW_MOST);
    check_ok(kvm_crew_new(&c, &keep, size, &err), &err);
    crew_end *all = mmap(NULL, sizeof *all * CREW_MOST, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    fflush(NULL);
    for (int r = 1; r < size; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] > 0) continue;
        be(c, r, work, ctx, &all[r]);
        fflush(NULL);
        _exit(0);
    }
    be(c, 0, work, ctx, &all[0]);
    for (int r = 1; r < size; r++) {
        int status = 0;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        if (status != 0) fail_msg("rank %d has ended with status %d", r, status);
    }
    memcpy(ends, all, sizeof *ends * (size_t)size);
    munmap(all, sizeof *all * CREW_MOST);
    kvm_arena_free(&keep);
}
