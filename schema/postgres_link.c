/* postgres_link.c - a connection that notices when nobody is at the other end.
 *
 *   closed ─open_link─► open ─an error of the wire, or silence─► closed
 *
 * libpq waits for ever by default. Here nothing does: the socket is polled against a
 * deadline, however the other end went. A dead host fails the kernel's probes, one that
 * acknowledges bytes and drops them answers nothing, and the deadline ends both within
 * 15 s. The server gets less time than that (statement_timeout), so that it gives up
 * before it is given up, and rolls back what a process that stands still has open. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "schema/postgres.h"

enum { CONNECT_MS = 10000, STILL_MS = 30000 };

/* Waits for the socket; false when the time has come. */
static bool wait_for(PGconn *conn, short events, double until)
{
    struct pollfd f = {.fd = PQsocket(conn), .events = events};
    for (;;) {
        const double left = until - kvm_now();
        if (left <= 0 || f.fd < 0) return false;
        const int n = poll(&f, 1, (int)(left * 1e3) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

static bool finish_connecting(PGconn *conn)
{
    const double until = kvm_now() + CONNECT_MS / 1e3;
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    while (next == PGRES_POLLING_READING || next == PGRES_POLLING_WRITING) {
        if (!wait_for(conn, next == PGRES_POLLING_READING ? POLLIN : POLLOUT, until))
            return false;
        next = PQconnectPoll(conn);
    }
    return next == PGRES_POLLING_OK;
}

static void drop_notice(void *arg, const PGresult *r)
{
    (void)arg, (void)r;
}

/* What stands before the address may be overruled by it. */
static PGconn *start_connecting(const char *url)
{
    static const char *const keys[] = {
        "fallback_application_name", "tcp_user_timeout",
        "keepalives_idle",           "keepalives_interval",
        "keepalives_count",          "dbname",
        "client_encoding",           NULL};
    const char *const values[] = {"kvmill", "10000", "5", "2", "3", url, "UTF8", NULL};
    return PQconnectStartParams(keys, values, 1);
}

/* Rows are looked up by the index that a statement means (statements.def): what the
 * planner has counted is of another hour, for a queue fills and drains faster than
 * that, and a plan that was made when a table was small is kept. A bitmap is made of
 * all entries of an index, a drained queue's dead ones too, which a plain scan marks
 * and the next passes over: 28,352 of them were read for 512 jobs. */
static kvm_status set_session_up(kvm_pg *p, kvm_err *err)
{
    char sql[400];
    snprintf(sql, sizeof sql,
             "SET lock_timeout = %d; SET idle_in_transaction_session_timeout = %d; "
             "SET extra_float_digits = 1; SET standard_conforming_strings = on; "
             "SET enable_seqscan = off; SET enable_bitmapscan = off; "
             "SET enable_hashjoin = off; "
             "SET enable_mergejoin = off; SET random_page_cost = 1.1; SET jit = off",
             p->busy_ms, STILL_MS);
    return kvm_pg__run(p, sql, CONNECT_MS, err);
}

kvm_status kvm_pg__open_link(kvm_pg *p, kvm_err *err)
{
    PGconn *conn = start_connecting(p->url);
    if (conn) PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    if (!conn || PQstatus(conn) == CONNECTION_BAD || !finish_connecting(conn)) {
        const kvm_status s = kvm_pg__refused(p, conn, err);
        PQfinish(conn);
        return s;
    }
    PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
    PQsetNoticeReceiver(conn, drop_notice, NULL);
    PQsetnonblocking(conn, 1);
    p->conn = conn;
    p->owner = getpid();
    p->limit_ms = 0;
    memset(p->prepared, 0, sizeof p->prepared);
    const kvm_status s = set_session_up(p, err);
    if (s) kvm_pg__close_link(p);
    return s;
}

void kvm_pg__close_link(kvm_pg *p)
{
    if (p->conn && p->owner == getpid())
        PQfinish(p->conn);
    else if (p->conn)
        close(PQsocket(p->conn));
    p->conn = NULL;
}

/* What lies on an idle connection is a notice, or the server's last word. */
static bool gone(PGconn *conn)
{
    struct pollfd f = {.fd = PQsocket(conn), .events = POLLIN};
    for (int i = 0; i < 8 && poll(&f, 1, 0) > 0; i++)
        if (!PQconsumeInput(conn)) return true;
    return PQstatus(conn) == CONNECTION_BAD;
}

kvm_status kvm_pg__use(kvm_pg *p, bool in_transaction, kvm_err *err)
{
    if (p->owner != getpid())
        return kvm_fail(err, KVM_INTERNAL,
                        "catalogue %s: its connection belongs to another process",
                        p->shown);
    if (in_transaction && p->conn) return KVM_OK;
    if (in_transaction)
        return kvm_fail(err, KVM_BUSY,
                        "catalogue %s: the connection was lost within a transaction",
                        p->shown);
    if (p->conn && gone(p->conn)) kvm_pg__close_link(p);
    return p->conn ? KVM_OK : kvm_pg__open_link(p, err);
}

/* false: the connection is broken, or silent */
static bool send_all(PGconn *conn, double until)
{
    int more;
    while ((more = PQflush(conn)) > 0) {
        if (!wait_for(conn, POLLIN | POLLOUT, until)) return false;
        if (!PQconsumeInput(conn)) return false;
    }
    return more == 0;
}

static bool bad(const PGresult *r)
{
    const ExecStatusType s = PQresultStatus(r);
    return s != PGRES_COMMAND_OK && s != PGRES_TUPLES_OK && s != PGRES_EMPTY_QUERY;
}

PGresult *kvm_pg__result(kvm_pg *p, int ms)
{
    const double until = kvm_now() + ms / 1e3;
    PGresult *last = NULL;
    bool heard = send_all(p->conn, until);
    while (heard) {
        while (heard && PQisBusy(p->conn))
            heard = wait_for(p->conn, POLLIN, until) && PQconsumeInput(p->conn);
        PGresult *r = heard ? PQgetResult(p->conn) : NULL;
        if (!r) break;
        if (last && bad(last)) {
            PQclear(r);
            continue;
        }
        PQclear(last);
        last = r;
    }
    if (heard) return last;
    PQclear(last);
    return NULL;
}

kvm_status kvm_pg__run(kvm_pg *p, const char *sql, int ms, kvm_err *err)
{
    PGresult *r = PQsendQuery(p->conn, sql) ? kvm_pg__result(p, ms) : NULL;
    kvm_status s = KVM_OK;
    if (!r || bad(r)) s = kvm_pg__failed(p, r, sql, err);
    PQclear(r);
    return s;
}
