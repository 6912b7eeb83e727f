/* progress.h - how far long work is, with an ETA. On a terminal one line redrawn in
 * place (at most 10 times a second); elsewhere a plain line at most every 10 s; nothing
 * when quiet. Reporters only ever call kvm_progress_at; a NULL progress is fine.
 * `cancelled` is polled on the way. */
#ifndef KVM_BASE_PROGRESS_H
#define KVM_BASE_PROGRESS_H

#include "base/status.h"

typedef struct kvm_progress {
    void (*show)(struct kvm_progress *p, double done, double total, const char *unit,
                 double eta_s);
    bool (*cancelled)(struct kvm_progress *p); /* NULL: never */
    void *ctx;
    const char *title;     /* borrows: "capture small" */
    double started, shown; /* private: kvm_now of the first and the latest line */
} kvm_progress;

/* bytes of the longest unit that is shown whole, its NUL included */
enum { KVM_PROGRESS_UNIT = 32 };

void kvm_progress_terminal(kvm_progress *p,
                           const char *title); /* draws on stderr as fits it */
void kvm_progress_begin(kvm_progress *p, const char *title);
/* done may hold a share of the next one; of a total it should grow as time does, for
 * the time left is read off it */
void kvm_progress_at(kvm_progress *p, double done, double total, const char *unit);
void kvm_progress_end(kvm_progress *p); /* clears or ends the line */
bool kvm_progress_cancelled(kvm_progress *p);

#endif
