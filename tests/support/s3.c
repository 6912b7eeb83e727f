#define _DEFAULT_SOURCE
#include "tests/support/s3.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

static char home[200];
static pid_t server, starter;

static void die(const char *what)
{
    perror(what);
    exit(99);
}

static void at_end(void)
{
    if (starter != getpid()) return;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}

static FILE *open_in_home(const char *name, const char *mode)
{
    char path[220];
    snprintf(path, sizeof path, "%s/%s", home, name);
    return fopen(path, mode);
}

static int wait_for_port(void)
{
    int port = 0;
    for (const double until = kvm_now() + 60; kvm_now() < until; kvm_sleep(0.02)) {
        char line[16];
        FILE *f = open_in_home("port", "r");
        if (f && fgets(line, sizeof line, f)) port = (int)strtol(line, NULL, 10);
        if (f) fclose(f);
        if (port) return port;
        if (waitpid(server, NULL, WNOHANG) == server) die("python3 has ended");
    }
    die("the server does not start");
    return 0;
}

void s3_start(const char *folder)
{
    char endpoint[64], parent[24];
    if (starter) return;
    snprintf(home, sizeof home, "%s", folder);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    starter = getpid();
    server = fork();
    if (server < 0) die("fork");
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        execlp("python3", "python3", "tests/support/s3_server.py", home, parent, NULL);
        _exit(96);
    }
    atexit(at_end);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d/", wait_for_port());
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
    setenv("AWS_REGION", "us-test-1", 1);
    setenv("AWS_ACCESS_KEY_ID", "KEY", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush-hush", 1);
    unsetenv("AWS_ENDPOINT_URL_S3");
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("http_proxy");
}

void s3_fault(const char *method, const char *what, int after, int count)
{
    FILE *f = open_in_home("fault", "w");
    if (!f || fprintf(f, "%s %s %d %d\n", method, what, after, count) < 0 || fclose(f))
        die("fault");
}

int s3_count(const char *word, const char *and)
{
    char line[4096];
    int n = 0;
    FILE *f = open_in_home("log", "r");
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, word) && strstr(line, and);
    if (f) fclose(f);
    return n;
}
