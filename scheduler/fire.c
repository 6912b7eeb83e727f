#include "scheduler/fire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

enum { SAID_BYTES = 4096, PATH_BYTES = 4096 };

static bool log_path(char out[PATH_BYTES], const kvm_fires *f, const kvm_firing *one)
{
    return snprintf(out, PATH_BYTES, "%.*s/%s", KVM_STR_ARG(f->o.home), one->log) <
           PATH_BYTES;
}

/* ---- its end ---- */

/* the last line of what it said, without the program's name; "" when there is none */
static kvm_str last_line(const kvm_fires *f, const kvm_firing *one,
                         char said[SAID_BYTES])
{
    char path[PATH_BYTES];
    const int fd =
        log_path(path, f, one) ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0) return KVM_STR("");
    const off_t size = lseek(fd, 0, SEEK_END);
    const ssize_t n =
        pread(fd, said, SAID_BYTES, size > SAID_BYTES ? size - SAID_BYTES : 0);
    close(fd);
    kvm_str text = kvm_str_trim((kvm_str){said, n > 0 ? n : 0});
    for (ptrdiff_t i = text.len; i-- > 0;)
        if (text.at[i] == '\n') {
            text = kvm_str_slice(text, i + 1, text.len);
            break;
        }
    return text.len > 400 ? kvm_str_slice(text, 0, 400) : text;
}

/* its exit status as docs/kvmill.1 lists them */
static kvm_status status_of(int how)
{
    static const kvm_status of[] = {KVM_OK, KVM_INTERNAL, KVM_USAGE, KVM_GATE,
                                    KVM_ENVIRONMENT};
    const int code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    return code >= 0 && code < (int)(sizeof of / sizeof *of) ? of[code] : KVM_INTERNAL;
}

static kvm_status end_one(const kvm_fires *f, const kvm_firing *one, int how,
                          kvm_catalogue *c, kvm_err *err)
{
    char said[SAID_BYTES];
    kvm_str line = last_line(f, one, said);
    if (WIFSIGNALED(how) && kvm_now() >= one->until)
        line = KVM_STR("took longer than an hour and was ended");
    return kvm_tick_end(c, one->tick.schedule, one->tick.at, status_of(how), line, err);
}

/* A child is reaped once. When its end cannot be written then, its tick is taken
 * over by and by, which is harmless: an equal submission is found by its key. */
static kvm_status look_after(kvm_fires *f, kvm_catalogue *c, kvm_err *err)
{
    for (int i = 0; i < KVM_FIRES_MOST; i++) {
        kvm_firing *one = &f->of[i];
        int how = 0;
        if (!one->pid) continue;
        if (kvm_now() >= one->until) kill(-one->pid, SIGKILL);
        const pid_t got = waitpid(one->pid, &how, WNOHANG);
        if (got == 0) continue;
        const kvm_status s = got > 0 ? end_one(f, one, how, c, err) : KVM_OK;
        *one = (kvm_firing){0};
        if (s) return s;
    }
    return KVM_OK;
}

/* ---- its beginning ---- */

/* Never returns. The group is its own: a signal to the scheduler is not one to it. */
static void become(const kvm_fires *f, const kvm_due *d, const kvm_firing *one,
                   const char *program)
{
    char path[PATH_BYTES], tick[64], team[256], home[PATH_BYTES], file[PATH_BYTES],
        where[PATH_BYTES], allow[16 * PATH_BYTES];
    static char submit[] = "submit", again[] = "--again", end[] = "--";
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    const int null = open("/dev/null", O_RDONLY);
    const int log = log_path(path, f, one)
                        ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666)
                        : -1;
    if (null < 0 || log < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 ||
        dup2(log, 2) < 0)
        _exit(4);
    snprintf(tick, sizeof tick, "%lld:%.0f", (long long)d->tick.schedule, d->tick.at);
    snprintf(team, sizeof team, "%.*s", KVM_STR_ARG(d->team));
    snprintf(home, sizeof home, "%.*s", KVM_STR_ARG(f->o.home));
    snprintf(where, sizeof where, "%.*s", KVM_STR_ARG(f->o.catalogue));
    const int n = snprintf(allow, sizeof allow, "%.*s", KVM_STR_ARG(f->o.allow));
    snprintf(file, sizeof file, "%.*s", KVM_STR_ARG(d->file));
    if (setenv("KVMILL_TICK", tick, 1) || setenv("KVMILL_TEAM", team, 1) ||
        setenv("KVMILL_STORE", home, 1) || setenv("KVMILL_CATALOGUE", where, 1) ||
        unsetenv("KVMILL_TOKEN") || n >= (int)sizeof allow ||
        (n > 0 && setenv("KVMILL_ALLOW", allow, 1)))
        _exit(4);
    char name[] = "kvmill";
    char *const plain[] = {name, submit, end, file, NULL};
    char *const anew[] = {name, submit, again, end, file, NULL};
    execv(program, d->again ? anew : plain);
    _exit(4);
}

static kvm_status start(kvm_fires *f, kvm_firing *one, const kvm_due *d, kvm_err *err)
{
    char program[PATH_BYTES];
    snprintf(program, sizeof program, "%.*s", KVM_STR_ARG(f->o.program));
    if (!f->o.program.len) {
        const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
        if (n < 0) return kvm_fail_errno(err, "/proc/self/exe");
        program[n] = 0;
    }
    *one = (kvm_firing){.tick = d->tick, .until = kvm_now() + KVM_TICK_HOLD_S};
    snprintf(one->log, sizeof one->log, "logs/tick-%lld-%.0f.log",
             (long long)d->tick.schedule, d->tick.at);
    kvm_log(KVM_LOG_INFO, "schedule.fire", "schedule=\"%.*s\" log=%s",
            KVM_STR_ARG(d->name), one->log);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) become(f, d, one, program);
    if (pid < 0) {
        *one = (kvm_firing){0};
        return kvm_fail_errno(err, "fork");
    }
    one->pid = pid;
    setpgid(pid, pid); /* whoever comes first */
    return KVM_OK;
}

kvm_status kvm_fires_turn(kvm_fires *f, kvm_catalogue *c, kvm_arena scratch,
                          kvm_err *err)
{
    kvm_due *due;
    ptrdiff_t n = 0, room = 0, k = 0;
    TRY(look_after(f, c, err));
    for (int i = 0; i < KVM_FIRES_MOST; i++) room += !f->of[i].pid;
    if (!room) return KVM_OK;
    TRY(kvm_schedules_due(c, 0, room, &due, &n, &scratch, err));
    if (!n) return KVM_OK;
    const kvm_str logs = kvm_path_join(&scratch, f->o.home, KVM_STR("logs"));
    if (!logs.at) return kvm_nomem(err, &scratch);
    TRY(kvm_dir_make(logs, err));
    for (int i = 0; i < KVM_FIRES_MOST && k < n; i++)
        if (!f->of[i].pid) TRY(start(f, &f->of[i], &due[k++], err));
    return KVM_OK;
}

void kvm_fires_stop(kvm_fires *f)
{
    for (int i = 0; i < KVM_FIRES_MOST; i++) {
        if (!f->of[i].pid) continue;
        kill(-f->of[i].pid, SIGKILL);
        waitpid(f->of[i].pid, NULL, 0);
        f->of[i] = (kvm_firing){0};
    }
}
