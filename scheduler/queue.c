#include "scheduler/queue.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

struct kvm_queue {
    int fd; /* both ends of the FIFO: it neither blocks nor ends; -1: polling alone */
};

static void close_queue(void *arg)
{
    kvm_queue *q = arg;
    if (q->fd >= 0) close(q->fd);
    q->fd = -1;
}

/* A file system without FIFOs, or something else of that name: workers poll. */
kvm_status kvm_queue_local(kvm_queue **out, kvm_arena *keep, kvm_str home, kvm_err *err)
{
    char path[PATH_MAX];
    kvm_queue *q = kvm_new(keep, kvm_queue, 1);
    if (!q) return kvm_nomem(err, keep);
    if (snprintf(path, sizeof path, "%.*s/wake", KVM_STR_ARG(home)) >= (int)sizeof path)
        return kvm_fail(err, KVM_USAGE, "%.60s…: the path is too long", path);
    TRY(kvm_dir_make(home, err));
    struct stat st;
    q->fd = -1;
    if (mkfifo(path, 0600) == 0 || errno == EEXIST)
        q->fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (q->fd >= 0 && (fstat(q->fd, &st) || !S_ISFIFO(st.st_mode))) close_queue(q);
    TRY(kvm_arena_defer(keep, close_queue, q, err));
    *out = q;
    return KVM_OK;
}

/* A full FIFO holds hints enough. */
void kvm_queue_wake(kvm_queue *q)
{
    if (q->fd < 0) return;
    const ssize_t n = write(q->fd, "w", 1);
    (void)n;
}

bool kvm_queue_wait(kvm_queue *q, double seconds)
{
    char drop[64];
    struct pollfd p = {.fd = q->fd, .events = POLLIN};
    if (q->fd < 0) {
        kvm_sleep(seconds);
        return false;
    }
    if (poll(&p, 1, (int)(seconds * 1e3)) <= 0) return false;
    return read(q->fd, drop, 1) > 0; /* one hint, one worker */
}

/* Hint, then mark: a crash between the two sends the hint again, which harms nobody. */
kvm_status kvm_queue_relay(kvm_queue *q, kvm_catalogue *c, kvm_err *err)
{
    for (;;) {
        int64_t ids[KVM_OUTBOX_MOST];
        ptrdiff_t count = 0;
        TRY(kvm_outbox_next(c, ids, &count, err));
        if (count == 0) return KVM_OK;
        for (ptrdiff_t i = 0; i < count; i++) kvm_queue_wake(q);
        TRY(kvm_outbox_sent(c, ids, count, err));
    }
}
