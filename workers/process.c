#define _DEFAULT_SOURCE /* prctl's constants, signal names */
#include "workers/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { MOST_OUTPUT = 1 << 20 };

int kvm_process_code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* the new process until it is another program; errno goes into `told` when it cannot */
_Noreturn static void become(const char *const *argv, int out, int told, pid_t parent)
{
    union { /* execvp takes strings that it does not write */
        const char *const *given;
        char *const *taken;
    } args = {.given = argv};
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    dup2(null, 0);
    if (out >= 0) dup2(out, 1);
    execvp(argv[0], args.taken);
    const int why = errno;
    if (write(told, &why, sizeof why) < 0) _exit(126);
    _exit(127);
}

kvm_status kvm_process_start(pid_t *pid, const char *const *argv, int out, kvm_err *err)
{
    int told[2], why = 0;
    const pid_t parent = getpid();
    if (pipe(told)) return kvm_fail_errno(err, "cannot make a pipe");
    fcntl(told[0], F_SETFD, FD_CLOEXEC);
    fcntl(told[1], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    *pid = fork();
    if (*pid == 0) become(argv, out, told[1], parent);
    close(told[1]);
    const bool failed = *pid > 0 && read(told[0], &why, sizeof why) == sizeof why;
    close(told[0]);
    if (*pid < 0) return kvm_fail(err, KVM_NOMEM, "cannot fork: %s", strerror(errno));
    if (!failed) return KVM_OK;
    waitpid(*pid, NULL, 0);
    return kvm_fail(err, KVM_ENVIRONMENT, "%s cannot be started: %s", argv[0],
                    strerror(why));
}

/* what comes before the end of the pipe, or the time */
static kvm_status drain(int from, kvm_text *text, double until)
{
    char piece[4096];
    for (;;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        const double left = until - kvm_now();
        if (left <= 0) return KVM_BUSY;
        if (poll(&p, 1, (int)(left * 1000) + 1) <= 0) continue;
        const ssize_t n = read(from, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return KVM_OK;
        if (text->len < MOST_OUTPUT) kvm_text_add(text, (kvm_str){piece, n});
    }
}

kvm_status kvm_process_read(kvm_str *out, int *code, const char *const *argv,
                            double seconds, kvm_arena *keep, kvm_err *err)
{
    int ends[2], status = 0;
    pid_t pid;
    kvm_text text = {0};
    if (pipe(ends)) return kvm_fail_errno(err, "cannot make a pipe");
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    kvm_status s = kvm_process_start(&pid, argv, ends[1], err);
    close(ends[1]);
    if (!s) {
        s = drain(ends[0], &text, kvm_now() + seconds);
        if (s) kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        if (s) s = kvm_fail(err, s, "%s has not answered for %g s", argv[0], seconds);
    }
    close(ends[0]);
    *code = kvm_process_code(status);
    if (!s) {
        *out = kvm_str_copy(keep, kvm_text_str(&text));
        if (!out->at) s = kvm_nomem(err, keep);
    }
    kvm_text_free(&text);
    return s;
}

/* ---- trees ---- */

void kvm_process_adopt(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

typedef struct relation {
    pid_t pid, parent;
    bool ended; /* and is not waited for */
    bool below;
} relation;

/* the parent of a process; 0: it is gone */
static pid_t parent_of(const char *pid, bool *ended)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    const char *at = strrchr(text, ')'); /* a name may hold anything */
    if (!at || at[1] != ' ' || at[2] == '\0') return 0;
    *ended = at[2] == 'Z' || at[2] == 'X';
    return (pid_t)strtol(at + 3, NULL, 10);
}

static ptrdiff_t list_all(relation *all, ptrdiff_t most)
{
    ptrdiff_t n = 0;
    const struct dirent *e;
    DIR *d = opendir("/proc");
    while (d && n < most && (e = readdir(d))) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
        relation r = {.pid = (pid_t)strtol(e->d_name, NULL, 10)};
        r.parent = parent_of(e->d_name, &r.ended);
        if (r.parent > 0) all[n++] = r;
    }
    if (d) closedir(d);
    return n;
}

/* kills those below this process that there are now; whether there were any */
static bool kill_below(relation *all, ptrdiff_t most)
{
    const ptrdiff_t n = list_all(all, most);
    const pid_t self = getpid();
    bool any = false;
    for (bool more = true; more;) {
        more = false;
        for (ptrdiff_t i = 0; i < n; i++) {
            if (all[i].below) continue;
            bool below = all[i].parent == self;
            for (ptrdiff_t k = 0; k < n && !below; k++)
                below = all[k].below && all[k].pid == all[i].parent;
            all[i].below = below;
            more |= below;
        }
    }
    for (ptrdiff_t i = 0; i < n; i++)
        if (all[i].below && !all[i].ended && kill(all[i].pid, SIGKILL) == 0) any = true;
    return any;
}

bool kvm_process_end_tree(double seconds)
{
    enum { MOST = 65536 };
    const double until = kvm_now() + seconds;
    relation *all = calloc(MOST, sizeof *all);
    int quiet = 0; /* looks in a row that found none: one may change its parent */
    while (all && quiet < 2 && kvm_now() < until) {
        quiet = kill_below(all, MOST) ? 0 : quiet + 1;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        kvm_sleep(0.005);
    }
    free(all);
    return quiet > 0;
}
