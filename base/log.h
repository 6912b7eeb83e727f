/* log.h - one `key=value` line to stderr through a sink: time, level, event, then
 * fields. */
#ifndef KVM_BASE_LOG_H
#define KVM_BASE_LOG_H

#include "base/status.h"

typedef enum kvm_log_level {
    KVM_LOG_DEBUG,
    KVM_LOG_INFO,
    KVM_LOG_WARN,
    KVM_LOG_ERROR
} kvm_log_level;
typedef void kvm_log_sink(void *ctx, kvm_log_level level,
                          const char *line); /* line without newline */
void kvm_log_set(kvm_log_level least, kvm_log_sink *sink,
                 void *ctx); /* sink NULL: stderr */
/* kvm_log(KVM_LOG_INFO, "job.start", "job=%lld kind=%s", id, kind) */
void kvm_log(kvm_log_level level, const char *event, const char *fmt, ...)
    KVM_PRINTF(3, 4);

/* Trouble that lasts (a full disk, a catalogue that is locked) is met at every try and
 * told once per cause: kvm_log_trouble warns when `error` is not what it said last,
 * kvm_log_relief says how often it was met. job 0: of no job. Zero value: no trouble;
 * for one thread. */
typedef struct kvm_trouble {
    char error[KVM_ERR_BYTES];
    long times;
} kvm_trouble;
void kvm_log_trouble(kvm_trouble *t, const char *event, long long job,
                     const char *error);
void kvm_log_relief(kvm_trouble *t, const char *event, long long job);

#endif
