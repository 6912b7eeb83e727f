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
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/janitor.h"

static char folder[64], unix_url[128], tcp_url[64], far_url[64];
static int port;
static bool append; /* what it holds outlives it */
static pid_t server, starter;

static void die(const char *what)
{
    fprintf(stderr, "# redis_server: %s: %s\n", what, strerror(errno));
    exit(99);
}

static void no_others(void)
{
    for (int i = 3; i < 256; i++) close(i);
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
        no_others();
        execlp("redis-server", "redis-server", "--port", text, "--bind", "127.0.0.1",
               "--unixsocket", path, "--unixsocketperm", "700", "--save", "",
               "--appendonly", append ? "yes" : "no", "--maxmemory-policy",
               "noeviction", "--dbfilename", file, "--key-load-delay", delay_us,
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

/* ---- the line ---- */

proxy *redis_server_proxy(void)
{
    static proxy *p;
    static char path[100];
    snprintf(path, sizeof path, "%s/socket", folder);
    if (!p) p = proxy_start(path);
    return p;
}

const char *redis_server_far(void)
{
    snprintf(far_url, sizeof far_url, "redis://127.0.0.1:%d",
             proxy_port(redis_server_proxy()));
    return far_url;
}

void redis_server_keep(bool keeps)
{
    redis_server_do(keeps ? "CONFIG SET appendonly yes" : "CONFIG SET appendonly no");
    append = keeps;
}
