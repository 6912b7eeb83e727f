#define _GNU_SOURCE /* setgroups */
#include "tests/support/pg_server.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/janitor.h"

static char folder[64], data[80], bin[200];
static pid_t server, starter;

static void die(const char *what)
{
    fprintf(stderr, "# pg_server: %s: %s\n", what, strerror(errno));
    exit(99);
}

const char *pg_server_folder(void)
{
    return folder;
}

/* ---- programs of the server's user ---- */

static bool installed(void)
{
    glob_t g;
    if (glob("/usr/lib/postgresql/*/bin/postgres", 0, NULL, &g)) return false;
    snprintf(bin, sizeof bin, "%.*s", (int)strlen(g.gl_pathv[g.gl_pathc - 1]) - 9,
             g.gl_pathv[g.gl_pathc - 1]);
    globfree(&g);
    return geteuid() != 0 || getpwnam("postgres");
}

static pid_t begin(const char *const argv[])
{
    char path[300], log[100];
    snprintf(path, sizeof path, "%s/%s", bin, argv[0]);
    snprintf(log, sizeof log, "%s/log", folder);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid > 0) return pid;
    const struct passwd *user = geteuid() == 0 ? getpwnam("postgres") : NULL;
    if (user && (setgroups(0, NULL) || setgid(user->pw_gid) || setuid(user->pw_uid)))
        _exit(98);
    prctl(PR_SET_PDEATHSIG, SIGQUIT);
    setpgid(0, 0);
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int null = open("/dev/null", O_RDONLY);
    if (fd < 0 || null < 0 || chdir(folder)) _exit(97);
    dup2(null, 0), dup2(fd, 1), dup2(fd, 2);
    for (int i = 3; i < 256; i++) close(i);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(path, (char *const *)(uintptr_t)argv);
    _exit(96);
}

#define BEGIN(...) begin((const char *const[]){__VA_ARGS__, NULL})

/* ---- the folder ---- */

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/kvmill-pg-XXXXXX");
    if (!mkdtemp(folder)) die(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    const struct passwd *user = geteuid() == 0 ? getpwnam("postgres") : NULL;
    if (user && chown(folder, user->pw_uid, user->pw_gid)) die("chown");
    if (chmod(folder, 0755)) die("chmod");
    if (!janitor_leave(folder)) die("janitor");
}

/* ---- the server ---- */

static void url(char out[400], const char *more)
{
    snprintf(out, 400, "postgres://postgres@/postgres?host=%s%s", folder, more);
}

static void begin_server(void)
{
    const bool sync = getenv("KVM_PG_SYNC"); /* for who measures */
    server = BEGIN("postgres", "-D", data, "-k", folder, "-c",
                   "listen_addresses=", "-c", sync ? "fsync=on" : "fsync=off", "-c",
                   sync ? "full_page_writes=on" : "full_page_writes=off", "-c",
                   "max_connections=200", "-c", "shared_buffers=32MB", "-c",
                   "log_lock_waits=on", "-c", "deadlock_timeout=100ms");
}

/* One that is begun while children of a killed one are left gives up at once. */
static void start_server(void)
{
    char where[400];
    url(where, "");
    begin_server();
    for (const double until = kvm_now() + 60; PQping(where) != PQPING_OK;) {
        if (kvm_now() > until)
            die("the server does not start; its log is in its folder");
        kvm_sleep(0.02);
        if (waitpid(server, NULL, WNOHANG) == server) begin_server();
    }
}

static void end_server(int number)
{
    if (server <= 0 || starter != getpid()) return;
    kill(server, number);
    waitpid(server, NULL, 0);
    server = 0;
}

void pg_server_stop(void)
{
    end_server(SIGQUIT);
}

void pg_server_kill(void)
{
    end_server(SIGKILL);
}

bool pg_server_kill_backend(const char *where)
{
    const long long pid =
        pg_server_sql(where, "SELECT pid FROM pg_stat_activity WHERE backend_type = "
                             "'client backend' AND pid <> pg_backend_pid() ORDER BY "
                             "state = 'active' DESC, random() LIMIT 1");
    return pid > 0 && kill((pid_t)pid, SIGKILL) == 0;
}

void pg_server_again(void)
{
    start_server();
}

static void at_end(void)
{
    if (starter != getpid()) return;
    pg_server_stop();
    if (!getenv("KVM_PG_KEEP")) janitor_remove(folder);
}

/* Who may come in without a password: all but the user `locked`. */
static void write_rules(void)
{
    char path[100];
    snprintf(path, sizeof path, "%s/pg_hba.conf", data);
    FILE *f = fopen(path, "w");
    if (!f || fputs("local all locked scram-sha-256\nlocal all all trust\n", f) < 0 ||
        fclose(f))
        die(path);
}

bool pg_server_start(void)
{
    int status;
    if (starter) return true;
    if (!installed()) {
        printf("not ok 1 # SKIP\n# skipped: install postgresql\n"); /* tests/run */
        return false;
    }
    starter = getpid();
    make_folder();
    atexit(at_end);
    const pid_t made = BEGIN("initdb", "-D", data, "-U", "postgres", "-A", "trust",
                             "-E", "UTF8", "--locale=C", "--no-sync");
    if (waitpid(made, &status, 0) != made || status) die("initdb failed");
    write_rules();
    start_server();
    return true;
}

const char *pg_server_schema(void)
{
    static char text[4][400];
    static int n;
    char sql[64], more[80];
    snprintf(sql, sizeof sql, "CREATE SCHEMA s%d_%d", (int)getpid(), ++n);
    char *where = text[n % 4];
    url(where, "");
    pg_server_sql(where, sql);
    snprintf(more, sizeof more, "&options=-csearch_path%%3Ds%d_%d", (int)getpid(), n);
    url(where, more);
    return where;
}

/* whether the server was there to answer */
static bool ask(const char *where, const char *sql, long long *n)
{
    PGconn *conn = PQconnectdb(where);
    PGresult *r = PQexec(conn, sql);
    const ExecStatusType got = PQresultStatus(r);
    const bool there = PQstatus(conn) == CONNECTION_OK;
    if (there && got != PGRES_COMMAND_OK && got != PGRES_TUPLES_OK) {
        fprintf(stderr, "# %s\n# %s", sql, PQerrorMessage(conn));
        exit(99);
    }
    *n = -1;
    if (there && got == PGRES_TUPLES_OK && PQntuples(r) > 0) {
        const char *text = PQgetvalue(r, 0, 0);
        *n = *text == 't' ? 1 : strtoll(text, NULL, 10); /* true, or a number */
    }
    PQclear(r);
    PQfinish(conn);
    return there;
}

long long pg_server_sql(const char *where, const char *sql)
{
    long long n;
    for (const double until = kvm_now() + 60; !ask(where, sql, &n); kvm_sleep(0.05))
        if (kvm_now() > until) die("the server has not answered for a minute");
    return n;
}

/* ---- the line ---- */

proxy *pg_server_proxy(void)
{
    static proxy *p;
    static char path[100];
    snprintf(path, sizeof path, "%s/.s.PGSQL.5432", folder);
    if (!p) p = proxy_start(path);
    return p;
}

const char *pg_server_far(const char *where)
{
    static char text[400];
    const char *more = strchr(where, '&');
    snprintf(text, sizeof text, "postgres://postgres@127.0.0.1:%d/postgres%s%s",
             proxy_port(pg_server_proxy()), more ? "?" : "", more ? more + 1 : "");
    return text;
}
