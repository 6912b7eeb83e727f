#define _DEFAULT_SOURCE
#include "tests/support/web.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HEAD_BYTES = 64 << 10 };

static void die(const char *what)
{
    perror(what);
    exit(99);
}

void web_say(int fd, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vdprintf(fd, fmt, args);
    va_end(args);
}

static void append(const char *log, const char *bytes, size_t n)
{
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) die(log);
    close(fd);
}

/* the head, and how many bytes of the body came along */
static size_t read_head(int fd, char head[HEAD_BYTES], size_t *rest)
{
    size_t n = 0;
    while (n < HEAD_BYTES - 1) {
        const ssize_t got = read(fd, head + n, HEAD_BYTES - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        head[n] = 0;
        const char *end = strstr(head, "\r\n\r\n");
        if (!end) continue;
        *rest = n - (size_t)(end + 4 - head);
        return n;
    }
    head[n] = 0;
    *rest = 0;
    return n;
}

static void serve_one(int fd, int nth, web_answer *answer, const char *log)
{
    static char head[HEAD_BYTES];
    char buffer[4096];
    size_t have;
    const size_t n = read_head(fd, head, &have);
    if (n == 0) return;
    append(log, head, n);
    const char *length = strstr(head, "Content-Length: ");
    for (long left = length ? strtol(length + 16, NULL, 10) - (long)have : 0;
         left > 0;) {
        const ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0) break;
        append(log, buffer, (size_t)got);
        left -= got;
    }
    answer(fd, nth, head);
}

web web_start(web_answer *answer, const char *log)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (struct sockaddr *)(void *)&at, size) || listen(s, 16) ||
        getsockname(s, (struct sockaddr *)(void *)&at, &size))
        die("cannot listen");
    web w = {.port = ntohs(at.sin_port)};
    fflush(NULL);
    w.pid = fork();
    if (w.pid < 0) die("fork");
    if (w.pid > 0) {
        close(s);
        return w;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    for (int nth = 0;; nth++) {
        const int fd = accept(s, NULL, NULL);
        if (fd < 0) _exit(98);
        serve_one(fd, nth, answer, log);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
}

void web_stop(web *w)
{
    if (w->pid > 0) {
        kill(w->pid, SIGKILL);
        waitpid(w->pid, NULL, 0);
    }
    *w = (web){0};
}
