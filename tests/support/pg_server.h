/* pg_server.h - a PostgreSQL server of the test's own: in a folder below /tmp, on a
 * unix socket there, without fsync. It ends with the test program, however that ends,
 * and its folder with it. Root starts it as the user postgres, for the server refuses
 * root. */
#ifndef KVM_TESTS_SUPPORT_PG_SERVER_H
#define KVM_TESTS_SUPPORT_PG_SERVER_H

#include <stdbool.h>

/* pg_server_start - false, with a line that says why, when PostgreSQL is not installed;
 * any other trouble ends the program. Once more: nothing. */
bool pg_server_start(void);
/* pg_server_stop - immediate: as if it had crashed. Transactions that are open are
 * lost, committed ones are not. */
void pg_server_stop(void);
void pg_server_again(void); /* after a stop; returns when it answers */
/* pg_server_schema - the address of an empty schema; static text, the latest 4 last */
const char *pg_server_schema(void);
const char *pg_server_folder(void); /* of its socket */
/* pg_server_sql - runs it as the superuser, at the address; its first value as a
 * number, -1 when there is no row */
long long pg_server_sql(const char *where, const char *sql);

#endif
