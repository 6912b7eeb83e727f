/* queue_local.c - a FIFO beside the store wakes the workers of this machine. A byte is
 * a hint that there may be work; which, the worker looks up. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "scheduler/queue.h"

typedef struct fifo {
    int fd; /* both ends: it neither blocks nor ends; -1: polling alone */
} fifo;

static void close_fifo(void *arg)
{
    fifo *f = arg;
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

/* A file system without FIFOs, or something else of that name: workers poll. */
static kvm_status open_local(kvm_queue *q, kvm_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    fifo *f = kvm_new(q->keep, fifo, 1);
    if (!f) return kvm_nomem(err, q->keep);
    if (snprintf(path, sizeof path, "%.*s/wake", KVM_STR_ARG(q->o.home)) >=
        (int)sizeof path)
        return kvm_fail(err, KVM_USAGE, "%.60s…: the path is too long", path);
    TRY(kvm_dir_make(q->o.home, err));
    f->fd = -1;
    if (mkfifo(path, 0600) == 0 || errno == EEXIST)
        f->fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (f->fd >= 0 && (fstat(f->fd, &st) || !S_ISFIFO(st.st_mode))) close_fifo(f);
    TRY(kvm_arena_defer(q->keep, close_fifo, f, err));
    q->impl = f;
    return KVM_OK;
}

/* Never blocks; a full FIFO holds hints enough. */
static kvm_status wake(kvm_queue *q, kvm_err *err)
{
    const fifo *f = q->impl;
    (void)err;
    if (f->fd < 0) return KVM_OK;
    const ssize_t n = write(f->fd, "w", 1);
    (void)n;
    return KVM_OK;
}

static kvm_status send_local(kvm_queue *q, const kvm_queue_class *class,
                             const kvm_job_batch *batches, ptrdiff_t n, kvm_err *err)
{
    (void)class, (void)batches;
    for (ptrdiff_t i = 0; i < n; i++) TRY(wake(q, err));
    return KVM_OK;
}

/* One hint, one worker. Signals end it. */
static kvm_status take(kvm_queue *q, kvm_hint *hint, bool *found, double seconds,
                       kvm_err *err)
{
    char drop;
    const fifo *f = q->impl;
    struct pollfd p = {.fd = f->fd, .events = POLLIN};
    (void)hint, (void)err;
    *found = false;
    if (f->fd < 0) {
        kvm_sleep(seconds);
        return KVM_OK;
    }
    if (poll(&p, 1, (int)(seconds * 1e3)) <= 0) return KVM_OK;
    const ssize_t n = read(f->fd, &drop, 1);
    (void)n;
    return KVM_OK;
}

static kvm_status settle(kvm_queue *q, const kvm_hint *hint, kvm_err *err)
{
    (void)hint;
    return wake(q, err);
}

const kvm_queue_driver kvm_queue_local = {.name = "local",
                                          .open = open_local,
                                          .send = send_local,
                                          .take = take,
                                          .settle = settle,
                                          .wake = wake};
