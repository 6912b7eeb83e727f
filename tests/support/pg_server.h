/* pg_server.h - a PostgreSQL server of the test's own: in a folder below /tmp, on a
 * unix socket there, without fsync. It ends with the test program, however that ends,
 * and its folder with it. Root starts it as the user postgres, for the server refuses
 * root. */
#ifndef KVM_TESTS_SUPPORT_PG_SERVER_H
#define KVM_TESTS_SUPPORT_PG_SERVER_H

#include <stdbool.h>

#include "tests/support/proxy.h"

/* pg_server_start - false, with a line that says why, when PostgreSQL is not installed;
 * any other trouble ends the program. Once more: nothing. */
bool pg_server_start(void);
/* pg_server_stop - immediate: as if it had crashed. Transactions that are open are
 * lost, committed ones are not. */
void pg_server_stop(void);
/* pg_server_kill - kill -9 of the postmaster: who it serves notices by itself */
void pg_server_kill(void);
/* pg_server_kill_backend - kill -9 of the process that serves one connection to this
 * address; the postmaster then ends all others and recovers. false: there is none */
bool pg_server_kill_backend(const char *where);
void pg_server_again(void); /* after a stop or a kill; returns when it answers */
/* pg_server_schema - the address of an empty schema; static text, the latest 4 last */
const char *pg_server_schema(void);
const char *pg_server_folder(void); /* of its socket */
/* pg_server_sql - runs it as the superuser, at the address; its first value as a
 * number, -1 when there is no row. Asks again while the server is away: not for what
 * may not be done twice */
long long pg_server_sql(const char *where, const char *sql);

/* pg_server_proxy - a line to it, the same each time; far: an address as it reads at
 * that line's end, static */
proxy *pg_server_proxy(void);
const char *pg_server_far(const char *where);

#endif
