#define _GNU_SOURCE
#include "tests/support/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

enum { LINES = 256, PART = 16 << 10 };

struct proxy {
    struct shared {
        volatile int way, delay_ms;
    } * shared;
    int port;
};

/* What has been read and is not due yet. */
typedef struct part {
    struct part *next;
    double due;
    ssize_t bytes; /* 0: the end */
    char text[];
} part;

/* Both ends of a connection; at [0] what the client sends. */
typedef struct line {
    int fd[2];
    bool ended[2];
    part *first[2], *last[2];
} line;

static struct server {
    const char *path;
    struct shared *shared;
    line lines[LINES];
} s;

static void die(const char *what)
{
    fprintf(stderr, "# proxy: %s: %s\n", what, strerror(errno));
    exit(99);
}

static int call(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd);
    return -1;
}

static void drop(line *l)
{
    for (int side = 0; side < 2; side++) {
        for (part *p = l->first[side], *next; p; p = next) next = p->next, free(p);
        if (l->fd[side] >= 0) close(l->fd[side]);
    }
    *l = (line){.fd = {-1, -1}};
}

static void take(line *l, int side)
{
    part *p = malloc(sizeof *p + PART);
    if (!p) die("malloc");
    const ssize_t n = read(l->fd[side], p->text, PART);
    *p = (part){.due = kvm_now() + s.shared->delay_ms / 1e3, .bytes = n > 0 ? n : 0};
    l->ended[side] = n <= 0;
    const proxy_way silent = side == 0 ? PROXY_DEAF : PROXY_MUTE;
    if (n > 0 && s.shared->way == (int)silent) {
        free(p);
        return;
    }
    if (l->last[side])
        l->last[side]->next = p;
    else
        l->first[side] = p;
    l->last[side] = p;
}

/* Sends what is due; false: the connection is over. */
static bool give(line *l, int side, double now)
{
    part *p;
    while ((p = l->first[side]) && p->due <= now) {
        if (p->bytes == 0 || write(l->fd[!side], p->text, (size_t)p->bytes) != p->bytes)
            return false;
        l->first[side] = p->next;
        if (!p->next) l->last[side] = NULL;
        free(p);
    }
    return true;
}

static void welcome(int listener)
{
    int i = 0;
    while (i < LINES && s.lines[i].fd[0] >= 0) i++;
    const int client = accept(listener, NULL, NULL);
    const int server = i < LINES ? call(s.path) : -1;
    if (client >= 0 && server >= 0)
        s.lines[i] = (line){.fd = {client, server}};
    else
        close(client), close(server);
}

/* milliseconds until something is due; -1: nothing is */
static int left(double now)
{
    double first = -1;
    for (int i = 0; i < LINES; i++)
        for (int side = 0; side < 2; side++) {
            const part *p = s.lines[i].first[side];
            if (p && (first < 0 || p->due < first)) first = p->due;
        }
    if (first < 0) return -1;
    return first > now ? (int)((first - now) * 1e3) + 1 : 0;
}

static void serve(int listener)
{
    struct pollfd f[1 + 2 * LINES];
    for (int i = 0; i < LINES; i++) s.lines[i] = (line){.fd = {-1, -1}};
    for (;;) {
        f[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < 2 * LINES; i++) {
            const line *l = &s.lines[i / 2];
            f[1 + i] = (struct pollfd){.fd = l->ended[i % 2] ? -1 : l->fd[i % 2],
                                       .events = POLLIN};
        }
        if (poll(f, 1 + 2 * LINES, left(kvm_now())) < 0) continue;
        for (int i = 0; i < 2 * LINES; i++)
            if (f[1 + i].fd >= 0 && f[1 + i].revents) take(&s.lines[i / 2], i % 2);
        const double now = kvm_now();
        for (int i = 0; i < LINES; i++)
            if (!give(&s.lines[i], 0, now) || !give(&s.lines[i], 1, now))
                drop(&s.lines[i]);
        if (f[0].revents) welcome(listener);
    }
}

proxy *proxy_start(const char *path)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    proxy *p = calloc(1, sizeof *p);
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    s.path = path;
    s.shared = mmap(NULL, sizeof *s.shared, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!p || s.shared == MAP_FAILED || listener < 0 ||
        bind(listener, (const struct sockaddr *)&at, n) || listen(listener, LINES) ||
        getsockname(listener, (struct sockaddr *)&at, &n))
        die("cannot listen");
    *p = (proxy){.shared = s.shared, .port = ntohs(at.sin_port)};
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_IGN);
        for (int i = 3; i < 1024; i++)
            if (i != listener) close(i);
        serve(listener);
    }
    close(listener);
    return p;
}

int proxy_port(const proxy *p)
{
    return p->port;
}

void proxy_be(proxy *p, proxy_way way, int delay_ms)
{
    p->shared->way = (int)way;
    p->shared->delay_ms = delay_ms;
}
