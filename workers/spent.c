#include "workers/spent.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/os.h"

enum { LINE = 48 }; /* of one length, so that it is replaced whole */

static int open_file(kvm_str folder, int flags)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%.*s/spent", KVM_STR_ARG(folder));
    return n < (int)sizeof path ? kvm_os->open(path, flags | O_CLOEXEC, 0666) : -1;
}

kvm_job_spent kvm_spent_read(kvm_str folder)
{
    char line[LINE + 1] = "";
    const int fd = open_file(folder, O_RDONLY);
    if (fd < 0) return (kvm_job_spent){0};
    const bool whole = kvm_os->read(fd, line, LINE) == LINE;
    kvm_os->close(fd);
    char *at = line;
    const double seconds = strtod(at, &at), cpu = strtod(at, &at);
    const long attempts = strtol(at, &at, 10);
    if (!whole || *at != '\n' || !(seconds >= 0) || !(cpu >= 0) || !isfinite(seconds) ||
        !isfinite(cpu) || attempts < 0 || attempts > INT_MAX)
        return (kvm_job_spent){0};
    return (kvm_job_spent){seconds, cpu, (int)attempts};
}

void kvm_spent_write(kvm_str folder, kvm_job_spent s)
{
    char line[LINE + 1];
    if (snprintf(line, sizeof line, "%18.3f %18.3f %9d\n", s.seconds, s.cpu_seconds,
                 s.attempts) != LINE)
        return;
    const int fd = open_file(folder, O_WRONLY | O_CREAT);
    if (fd < 0) return;
    if (kvm_os->write(fd, line, LINE) != LINE) kvm_os->ftruncate(fd, 0);
    kvm_os->close(fd);
}
