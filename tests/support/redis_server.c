#define _GNU_SOURCE
#include "tests/support/redis_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/janitor.h"

static char folder[64], unix_url[128], tcp_url[64], proxy_url[64];
static int port;
static pid_t server, proxy, starter;

static void die(const char *what)
{
    fprintf(stderr, "# redis_server: %s: %s\n", what, strerror(errno));
    exit(99);
}

static void no_others(int keep)
{
    for (int i = 3; i < 256; i++)
        if (i != keep) close(i);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* ---- talking to it ---- */

static int call_unix(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/socket", folder);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd);
    return -1;
}

const char *redis_server_do(const char *command)
{
    static char line[512];
    ssize_t n = 0;
    const int fd = call_unix();
    line[0] = 0;
    if (fd < 0) return line;
    dprintf(fd, "%s\r\n", command);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 10000) > 0) n = read(fd, line, sizeof line - 1);
    close(fd);
    line[n > 0 ? n : 0] = 0;
    if (line[0] == '$')
        memmove(line, strchr(line, '\n') + 1, strlen(strchr(line, '\n')));
    line[strcspn(line, "\r")] = 0;
    return line;
}

/* ---- the server ---- */

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&at, n) ||
        getsockname(fd, (struct sockaddr *)&at, &n))
        die("no free port");
    close(fd);
    return ntohs(at.sin_port);
}

/* Each key takes so long to load (redis.conf hides it: it is for such tests). */
static void start_process(const char *file, const char *delay_us)
{
    char text[16], path[100];
    snprintf(text, sizeof text, "%d", port);
    snprintf(path, sizeof path, "%s/socket", folder);
    fflush(NULL);
    server = fork();
    if (server < 0) die("fork");
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpgid(0, 0);
        const int null = open("/dev/null", O_RDWR);
        if (chdir(folder) || null < 0) _exit(97);
        dup2(null, 0), dup2(null, 1), dup2(null, 2);
        no_others(-1);
        execlp("redis-server", "redis-server", "--port", text, "--bind", "127.0.0.1",
               "--unixsocket", path, "--unixsocketperm", "700", "--save", "",
               "--appendonly", "no", "--maxmemory-policy", "noeviction", "--dbfilename",
               file, "--key-load-delay", delay_us,
               "--loading-process-events-interval-bytes", "1024", "--logfile", "log",
               (char *)NULL);
        _exit(96);
    }
}

static void start_server(void)
{
    start_process("none.rdb", "0");
    for (const double until = kvm_now() + 30; strcmp(redis_server_do("PING"), "+PONG");
         kvm_sleep(0.01))
        if (kvm_now() > until || waitpid(server, NULL, WNOHANG) == server)
            die("the server does not start");
}

void redis_server_stop(void)
{
    if (server <= 0 || starter != getpid()) return;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = 0;
}

void redis_server_again(void)
{
    start_server();
}

static void at_end(void)
{
    if (starter != getpid()) return;
    if (proxy > 0) kill(proxy, SIGKILL), waitpid(proxy, NULL, 0);
    redis_server_stop();
    janitor_remove(folder);
}

static bool installed(void)
{
    const char *path = getenv("PATH");
    char name[300];
    for (const char *at = path ? path : ""; *at;) {
        const int n = (int)strcspn(at, ":");
        snprintf(name, sizeof name, "%.*s/redis-server", n, at);
        if (access(name, X_OK) == 0) return true;
        at += n + (at[n] == ':');
    }
    return false;
}

bool redis_server_start(void)
{
    if (starter) return true;
    if (!installed()) {
        printf("not ok 1 # SKIP\n# skipped: install redis-server\n"); /* tests/run */
        return false;
    }
    starter = getpid();
    snprintf(folder, sizeof folder, "/tmp/kvmill-redis-XXXXXX");
    if (!mkdtemp(folder)) die(folder);
    if (!janitor_leave(folder)) die("janitor");
    atexit(at_end);
    port = free_port();
    snprintf(unix_url, sizeof unix_url, "redis+unix://%s/socket", folder);
    snprintf(tcp_url, sizeof tcp_url, "redis://127.0.0.1:%d", port);
    start_server();
    return true;
}

const char *redis_server_unix(void)
{
    return unix_url;
}

const char *redis_server_tcp(void)
{
    return tcp_url;
}

void redis_server_again_from_disk(void)
{
    start_process("dump.rdb", "100000");
}

/* ---- the proxy ---- */

static struct shared {
    volatile int way, delay_ms;
} * shared;

enum { LINKS = 64 };

/* Moves what is there; false: one end is closed. */
static bool move(int from, int to, bool drop)
{
    char part[16 << 10];
    const ssize_t n = read(from, part, sizeof part);
    if (n <= 0) return false;
    if (shared->delay_ms) kvm_sleep(shared->delay_ms / 1e3);
    return drop || write(to, part, (size_t)n) == n;
}

static void serve(int listener)
{
    struct pollfd p[1 + 2 * LINKS] = {{.fd = listener, .events = POLLIN}};
    for (int i = 1; i <= 2 * LINKS; i++)
        p[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    for (;;) {
        if (poll(p, 1 + 2 * LINKS, -1) < 0) continue;
        for (int i = 1; i < 2 * LINKS; i += 2) { /* client, server */
            bool open = true;
            if (p[i].revents)
                open = move(p[i].fd, p[i + 1].fd, shared->way == REDIS_PROXY_DEAF);
            if (open && p[i + 1].revents)
                open = move(p[i + 1].fd, p[i].fd, shared->way == REDIS_PROXY_MUTE);
            if (open) continue;
            close(p[i].fd), close(p[i + 1].fd);
            p[i].fd = p[i + 1].fd = -1;
        }
        int i = 1;
        while (i < 2 * LINKS && p[i].fd >= 0) i += 2;
        if (!p[0].revents || i >= 2 * LINKS) continue;
        p[i].fd = accept(listener, NULL, NULL);
        p[i + 1].fd = call_unix();
        p[i].revents = p[i + 1].revents = 0;
        if (p[i].fd >= 0 && p[i + 1].fd >= 0) continue;
        close(p[i].fd), close(p[i + 1].fd);
        p[i].fd = p[i + 1].fd = -1;
    }
}

const char *redis_proxy_start(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    if (proxy) return proxy_url;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || listener < 0 ||
        bind(listener, (const struct sockaddr *)&at, n) || listen(listener, LINKS) ||
        getsockname(listener, (struct sockaddr *)&at, &n))
        die("proxy");
    snprintf(proxy_url, sizeof proxy_url, "redis://127.0.0.1:%d", ntohs(at.sin_port));
    proxy = fork();
    if (proxy < 0) die("fork");
    if (proxy == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_IGN);
        no_others(listener);
        serve(listener);
    }
    close(listener);
    return proxy_url;
}

void redis_proxy_be(redis_proxy_way way, int delay_ms)
{
    shared->way = (int)way;
    shared->delay_ms = delay_ms;
}
