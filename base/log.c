#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LINE_BYTES = 2048 };

/* Set by kvm_log_set before any other thread starts; only read afterwards. */
static struct {
    kvm_log_level least;
    kvm_log_sink *sink;
    void *ctx;
} logging = {.least = KVM_LOG_INFO};

void kvm_log_set(kvm_log_level least, kvm_log_sink *sink, void *ctx)
{
    logging.least = least;
    logging.sink = sink;
    logging.ctx = ctx;
}

static const char *level_name(kvm_log_level level)
{
    switch (level) {
    case KVM_LOG_DEBUG:
        return "debug";
    case KVM_LOG_INFO:
        return "info";
    case KVM_LOG_WARN:
        return "warn";
    case KVM_LOG_ERROR:
        return "error";
    }
    return "unknown";
}

/* One write, so that lines of several threads and processes do not mix. On a terminal a
 * progress line may stand half drawn: it is cleared first and drawn again later. */
static void to_stderr(const char *line)
{
    char out[LINE_BYTES + 8];
    const int n = snprintf(out, sizeof out, "%s%s\n",
                           isatty(STDERR_FILENO) ? "\r\x1b[K" : "", line);
    ssize_t written = n > 0 ? write(STDERR_FILENO, out, (size_t)n) : 0;
    (void)written; /* a log that cannot be written has nowhere to say so */
}

void kvm_log(kvm_log_level level, const char *event, const char *fmt, ...)
{
    if (level < logging.least) return;
    char line[LINE_BYTES], time[32];
    kvm_wall_text(kvm_wall(), time);
    const int n = snprintf(line, sizeof line, "time=%s level=%s event=%s", time,
                           level_name(level), event);
    if (fmt && *fmt && n > 0 && n + 1 < LINE_BYTES) {
        line[n] = ' ';
        va_list args;
        va_start(args, fmt);
        vsnprintf(line + n + 1, sizeof line - (size_t)n - 1, fmt, args);
        va_end(args);
    }
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    if (logging.sink)
        logging.sink(logging.ctx, level, line);
    else
        to_stderr(line);
}

void kvm_log_trouble(kvm_trouble *t, const char *event, long long job,
                     const char *error)
{
    if (t->times && strncmp(error, t->error, sizeof t->error - 1) == 0) {
        t->times++;
        return;
    }
    kvm_log_relief(t, event, job);
    snprintf(t->error, sizeof t->error, "%s", error);
    t->times = 1;
    kvm_log(KVM_LOG_WARN, event, "job=%lld error=\"%s\"", job, error);
}

void kvm_log_relief(kvm_trouble *t, const char *event, long long job)
{
    if (t->times)
        kvm_log(KVM_LOG_INFO, event, "job=%lld over=1 times=%ld", job, t->times);
    t->times = 0;
}
