/* fault.h - fails chosen calls of the operating system (base/os.h).
 *
 *   for (long n = 1; ; n++) {
 *       fault_begin((fault_plan){.nth = n, .error = EIO});
 *       ... the work ...
 *       if (!fault_end()) break;    // no nth call: every one has been failed once
 *   }
 * Not for threads that make calls at the same time. */
#ifndef KVM_TESTS_SUPPORT_FAULT_H
#define KVM_TESTS_SUPPORT_FAULT_H

#include <stdbool.h>

typedef struct fault_plan {
    long nth;         /* which call fails, counted from 1 */
    int error;        /* its errno */
    bool forever;     /* and so do all after it */
    bool halves;      /* reads and writes move half of what they were asked to */
    const char *only; /* count and fail only calls of this name ("write"); NULL: all */
} fault_plan;

void fault_begin(fault_plan plan);
bool fault_end(void);         /* back to the real calls; whether the fault fired */
const char *fault_call(void); /* the name of the (first) call that failed, or "" */
long fault_open_files(void);  /* opened less closed since fault_begin */
long fault_mappings(void);    /* mapped less unmapped since fault_begin */

#endif
