/* gang_mpi.c - ranks over MPI: the only file that knows it. A program of this is
 * started by mpirun or srun with the gang's folder as its argument.
 *
 * Where all ranks stand on one machine, what they bring goes through memory that they
 * share, which is several times as fast as MPI's own collectives there. Who waits looks
 * a little while, then sleeps: others compute meanwhile, maybe on the same CPUs. */
#define _DEFAULT_SOURCE /* prctl's constants */
#include "workers/gang_mpi.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { WINDOW_MOST = 32 << 20, SPINS = 2000 };

typedef struct gang {
    MPI_Comm node;
    int node_rank, node_size;
    MPI_Win window;
    char
        *room; /* (2, size, KVM_TEAM_PIECE) shared, or (size, KVM_TEAM_PIECE) our own */
    bool shared;
    long calls;
} gang;

static kvm_status check(int rc, const char *what, kvm_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (rc == MPI_SUCCESS) return KVM_OK;
    MPI_Error_string(rc, text, &n);
    return kvm_fail(err, KVM_IO, "MPI: %s: %s", what, text);
}

static kvm_status wait_for(MPI_Request *r, const char *what, kvm_err *err)
{
    int done = 0;
    for (long spin = 0; !done; spin++) {
        TRY(check(MPI_Test(r, &done, MPI_STATUS_IGNORE), what, err));
        if (!done && spin > SPINS) kvm_sleep(0.0001);
    }
    return KVM_OK;
}

/* Two rooms in turn: who is in the next call already may write while others still read
 * what the last one gave. */
static kvm_status through_window(kvm_team *t, gang *g, const void *mine, ptrdiff_t n,
                                 const void **all, kvm_err *err)
{
    MPI_Request r;
    char *room = g->room + (g->calls++ % 2) * t->size * (ptrdiff_t)KVM_TEAM_PIECE;
    memcpy(room + t->rank * n, mine, (size_t)n);
    TRY(check(MPI_Win_sync(g->window), "window", err));
    TRY(check(MPI_Ibarrier(MPI_COMM_WORLD, &r), "barrier", err));
    TRY(wait_for(&r, "barrier", err));
    TRY(check(MPI_Win_sync(g->window), "window", err));
    *all = room;
    return KVM_OK;
}

static kvm_status gather(kvm_team *t, const void *mine, ptrdiff_t n, const void **all,
                         kvm_err *err)
{
    gang *g = t->ctx;
    MPI_Request r;
    if (g->shared) return through_window(t, g, mine, n, all, err);
    TRY(check(MPI_Iallgather(mine, (int)n, MPI_BYTE, g->room, (int)n, MPI_BYTE,
                             MPI_COMM_WORLD, &r),
              "gather", err));
    TRY(wait_for(&r, "gather", err));
    *all = g->room;
    return KVM_OK;
}

static kvm_status open_window(gang *g, int rank, size_t bytes, kvm_err *err)
{
    MPI_Aint size;
    int unit;
    TRY(check(MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)bytes : 0, 1, MPI_INFO_NULL,
                                      g->node, &g->room, &g->window),
              "shared window", err));
    TRY(check(MPI_Win_shared_query(g->window, 0, &size, &unit, &g->room),
              "shared window", err));
    g->shared = true;
    return check(MPI_Win_lock_all(MPI_MODE_NOCHECK, g->window), "shared window", err);
}

static kvm_status open_gang(kvm_team *t, gang *g, kvm_err *err)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check(MPI_Comm_rank(MPI_COMM_WORLD, &t->rank), "rank", err));
    TRY(check(MPI_Comm_size(MPI_COMM_WORLD, &t->size), "size", err));
    TRY(check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, t->rank,
                                  MPI_INFO_NULL, &g->node),
              "machines", err));
    TRY(check(MPI_Comm_rank(g->node, &g->node_rank), "rank", err));
    TRY(check(MPI_Comm_size(g->node, &g->node_size), "size", err));
    t->gather = gather;
    t->ctx = g;
    const size_t bytes = (size_t)t->size * KVM_TEAM_PIECE;
    if (t->size > 1 && g->node_size == t->size && 2 * bytes <= WINDOW_MOST)
        return open_window(g, t->rank, 2 * bytes, err);
    g->room = malloc(bytes);
    return g->room ? KVM_OK
                   : kvm_fail(err, KVM_NOMEM, "no memory for %d ranks", t->size);
}

static void close_gang(gang *g)
{
    if (g->shared) {
        MPI_Win_unlock_all(g->window);
        MPI_Win_free(&g->window);
    } else {
        free(g->room);
    }
}

int kvm_gang_main(int argc, char **argv, kvm_kind_of *kind_of)
{
    kvm_team team = {.size = 1};
    gang g = {0};
    kvm_err err = {0};
    int level;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the launcher: a rank alone has no use */
    if (getppid() == 1) return 1;
    if (argc != 2) {
        fprintf(stderr,
                "usage: %s FOLDER\nA rank of a gang; mpirun or srun starts it "
                "for `kvmill worker --launcher`.\n",
                argv[0]);
        return 2;
    }
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return 1;
    kvm_log_set(KVM_LOG_INFO, NULL, NULL);
    kvm_status s = open_gang(&team, &g, &err);
    if (!s)
        s = kvm_gang_rank(&team, (kvm_seat){g.node_rank, g.node_size},
                          kvm_str_of(argv[1]), kind_of, &err);
    if (s) {
        kvm_log(KVM_LOG_ERROR, "rank.failed", "rank=%d status=%s error=\"%s\"",
                team.rank, kvm_status_name(s), err.msg);
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, 1); /* the others may wait for this one */
    }
    close_gang(&g);
    MPI_Finalize();
    return 0;
}
