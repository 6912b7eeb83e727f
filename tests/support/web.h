/* web.h - a web server in a process of its own, for one test's answers.
 *
 * One connection at a time, and one request on it: request and body are appended to
 * `log`, then answer() writes whatever it likes to the socket, which is closed after
 * it. The process ends with web_stop or with the test. */
#ifndef KVM_TESTS_SUPPORT_WEB_H
#define KVM_TESTS_SUPPORT_WEB_H

#include <sys/types.h>

#include "base/status.h"

typedef struct web {
    int port;
    pid_t pid;
} web;

/* nth: 0 for the first connection; request: its head, NUL-terminated */
typedef void web_answer(int fd, int nth, const char *request);

web web_start(web_answer *answer, const char *log);
void web_stop(web *w);
void web_say(int fd, const char *fmt, ...) KVM_PRINTF(2, 3); /* in an answer */

#endif
