#include "workers/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { TEXT_BYTES = 256 };

/* The first line of a small file of /proc; "" when there is none. */
static void first_line(const char *path, char text[TEXT_BYTES])
{
    text[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f) return;
    if (!fgets(text, TEXT_BYTES, f)) text[0] = 0;
    fclose(f);
    text[strcspn(text, "\n")] = 0;
}

static void cpu_model(char text[TEXT_BYTES])
{
    char line[TEXT_BYTES];
    struct utsname u;
    text[0] = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !text[0] && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10))
            snprintf(text, TEXT_BYTES, "%.*s", (int)strcspn(colon + 2, "\n"),
                     colon + 2);
    }
    if (f) fclose(f);
    if (!text[0] && uname(&u) == 0) snprintf(text, TEXT_BYTES, "%.64s", u.machine);
}

kvm_str kvm_machine_class(kvm_arena *keep, const char *backend)
{
    char model[TEXT_BYTES];
    cpu_model(model);
    return kvm_str_fmt(keep, "%s, %ld cpus, %s", model[0] ? model : "unknown",
                       sysconf(_SC_NPROCESSORS_ONLN), backend);
}

kvm_str kvm_machine_host(kvm_arena *keep)
{
    struct utsname u;
    const char *name = uname(&u) == 0 ? u.nodename : "unknown";
    return kvm_str_copy(keep, kvm_str_of(name));
}

/* What a process name is made of; two that agree in all of it are the same process. */
typedef struct identity {
    char host[TEXT_BYTES], boot[TEXT_BYTES], space[TEXT_BYTES];
    long pid;
    unsigned long long start; /* clock ticks after boot */
} identity;

/* Field 22 of /proc/PID/stat, counted behind the command's closing parenthesis; 0: no
 * such process, or a dead one that nobody has waited for. */
static unsigned long long start_of(long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X') return 0;
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

static void here(identity *me)
{
    struct utsname u;
    snprintf(me->host, sizeof me->host, "%s", uname(&u) == 0 ? u.nodename : "unknown");
    first_line("/proc/sys/kernel/random/boot_id", me->boot);
    const ssize_t n = readlink("/proc/self/ns/pid", me->space, sizeof me->space - 1);
    me->space[n > 0 ? n : 0] = 0;
    me->pid = (long)getpid();
    me->start = start_of(me->pid);
}

kvm_str kvm_worker_name(kvm_arena *keep)
{
    identity me;
    unsigned nonce = 0;
    here(&me);
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &nonce, sizeof nonce) < 0) nonce = 0;
        close(fd);
    }
    return kvm_str_fmt(keep, "%s/%s/%s/%ld/%llu/%08x", me.host, me.boot, me.space,
                       me.pid, me.start, nonce);
}

bool kvm_worker_dead(kvm_str name)
{
    identity me;
    kvm_str part[6] = {{0}}, rest = name; /* host boot space pid start nonce */
    int64_t pid, start;
    for (int i = 0; i < 6; i++) kvm_str_cut(rest, '/', &part[i], &rest);
    if (part[5].len == 0 || !kvm_str_to_i64(part[3], &pid) ||
        !kvm_str_to_i64(part[4], &start))
        return false;
    here(&me);
    if (!kvm_str_eq(part[0], kvm_str_of(me.host))) return false;
    if (!kvm_str_eq(part[1], kvm_str_of(me.boot))) return true;
    if (!kvm_str_eq(part[2], kvm_str_of(me.space))) return false;
    return start_of((long)pid) != (unsigned long long)start;
}
