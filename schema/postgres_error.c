/* postgres_error.c - what a server's refusal means here: its SQLSTATE becomes a status,
 * once, and the message says what to do. */
#include <string.h>

#include "schema/postgres.h"

/* Rows name a whole SQLSTATE, or a class by its first two characters; the first that
 * fits counts. What is repeated later is KVM_BUSY, whoever was at fault. */
static const struct {
    const char *state;
    kvm_status status;
    const char *remedy; /* NULL: the message says it all */
} meanings[] = {
    {"23505", KVM_EXISTS, NULL},
    {"23", KVM_MISMATCH, NULL},
    {"40001", KVM_BUSY, "another transaction came in between"},
    {"40P01", KVM_BUSY, "another transaction waited for this one"},
    {"55P03", KVM_BUSY, "another process has held a lock for too long"},
    {"57014", KVM_BUSY, "the server was given no more time for it"},
    {"57P", KVM_BUSY, "the server is stopping or starting"},
    {"25P03", KVM_BUSY, "this process stood still within a transaction"},
    {"53300", KVM_BUSY, "raise max_connections, or run fewer workers"},
    {"08", KVM_BUSY, NULL},
    {"53100", KVM_NOSPACE,
     "free space on the server's disk, then the same command goes on"},
    {"53200", KVM_NOMEM, NULL},
    {"58", KVM_IO, NULL},
    {"28", KVM_ENVIRONMENT,
     "give the password in PGPASSWORD or ~/.pgpass, or let this user in (pg_hba.conf)"},
    {"3D000", KVM_ENVIRONMENT, "make the database first: createdb NAME"},
    {"42501", KVM_ENVIRONMENT,
     "give this user the right: he needs a database, or a schema, of his own"},
    {"3F000", KVM_ENVIRONMENT, "make the schema that search_path names"},
    {"25006", KVM_ENVIRONMENT,
     "this server only reads (a standby?): name the one that writes"},
    {"22021", KVM_FORMAT, NULL},
    {"22P05", KVM_FORMAT, NULL},
    {"XX001", KVM_DAMAGED, "put a sound copy back"},
    {"XX002", KVM_DAMAGED, "an index is damaged: REINDEX it"},
};

static kvm_status meaning(const char *state, const char **remedy)
{
    *remedy = NULL;
    for (size_t i = 0; state && i < sizeof meanings / sizeof *meanings; i++)
        if (!strncmp(state, meanings[i].state, strlen(meanings[i].state))) {
            *remedy = meanings[i].remedy;
            return meanings[i].status;
        }
    return KVM_DATABASE;
}

/* A message of several lines as one; where in its source the server noticed is of no
 * use. */
enum { LINE = 300 };
static void one_line(const char *text, char out[LINE])
{
    size_t n = 0;
    const char *end = text ? strstr(text, "\nLOCATION:") : NULL;
    for (const char *c = text; c && *c && c != end && n < LINE - 1; c++)
        if (*c != '\n' && *c != '\t')
            out[n++] = *c;
        else if (n && out[n - 1] != ' ')
            out[n++] = ' ';
    while (n && out[n - 1] == ' ') n--;
    out[n] = 0;
}

static kvm_status told(const kvm_pg *p, kvm_status s, const char *text,
                       const char *remedy, const char *sql, kvm_err *err)
{
    if (remedy) return kvm_fail(err, s, "catalogue %s: %s; %s", p->shown, text, remedy);
    if (s != KVM_DATABASE || !sql)
        return kvm_fail(err, s, "catalogue %s: %s", p->shown, text);
    return kvm_fail(err, s, "catalogue %s: %s (in: %.80s)", p->shown, text, sql);
}

kvm_status kvm_pg__failed(kvm_pg *p, const PGresult *r, const char *sql, kvm_err *err)
{
    char text[LINE];
    const char *remedy, *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
    const char *why = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    if (!state || PQstatus(p->conn) == CONNECTION_BAD) {
        if (!why) why = p->conn ? PQerrorMessage(p->conn) : "";
        one_line(*why ? why : "it has not answered in time", text);
        kvm_pg__close_link(p);
        return kvm_fail(err, KVM_BUSY, "catalogue %s: the connection was lost: %s",
                        p->shown, text);
    }
    const kvm_status s = meaning(state, &remedy);
    one_line(why ? why : state, text);
    const char *severity = PQresultErrorField(r, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (severity && strcmp(severity, "ERROR") != 0) kvm_pg__close_link(p); /* FATAL */
    return told(p, s, text, remedy, sql, err);
}

/* libpq hands out no SQLSTATE of a connection that failed, but writes it into a verbose
 * message: "…: FATAL:  28P01: password …", the first word in the server's language.
 * NULL: the server was not reached. */
static const char *state_within(const char *message, char state[6])
{
    for (const char *c = message; (c = strstr(c, ":  ")); c += 3)
        if (strspn(c + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && c[8] == ':') {
            memcpy(state, c + 3, 5);
            state[5] = 0;
            return state;
        }
    return NULL;
}

kvm_status kvm_pg__refused(kvm_pg *p, PGconn *conn, kvm_err *err)
{
    char text[LINE], code[6];
    const char *remedy, *message = conn ? PQerrorMessage(conn) : "out of memory";
    const char *state = state_within(message, code);
    const kvm_status s = state ? meaning(state, &remedy) : KVM_BUSY;
    one_line(*message ? message : "nobody has answered in time", text);
    if (!state)
        remedy = PQconnectionNeedsPassword(conn)
                     ? "it asks for a password: PGPASSWORD or ~/.pgpass may hold it"
                     : "is the server running there?";
    return told(p, s, text, remedy, NULL, err);
}
