/* redis_server.h - a Redis server of the test's own: in a folder below /tmp, on a unix
 * socket and a port of 127.0.0.1, without anything on disk. It ends with the test
 * program, however that ends, and its folder with it. */
#ifndef KVM_TESTS_SUPPORT_REDIS_SERVER_H
#define KVM_TESTS_SUPPORT_REDIS_SERVER_H

#include <stdbool.h>

#include "tests/support/proxy.h"

/* redis_server_start - false, with a line that says why, when Redis is not installed;
 * any other trouble ends the program. Once more: nothing. */
bool redis_server_start(void);
/* redis_server_stop - kill -9: what it held is lost, unless it keeps it */
void redis_server_stop(void);
void redis_server_again(void); /* after a stop; returns when it answers */
/* redis_server_again_from_disk - with what was last SAVEd, slowly: it says LOADING for
 * a while. Returns at once. */
void redis_server_again_from_disk(void);
const char *redis_server_unix(void); /* redis+unix://…; static */
const char *redis_server_tcp(void);  /* redis://127.0.0.1:PORT; static */
/* redis_server_do - a command as redis-cli takes it, sent over the socket ("FLUSHALL"):
 * its answer's first line in static text, an error with its '-' */
const char *redis_server_do(const char *command);

/* redis_server_keep - whether it writes an append-only file (synced each second), which
 * redis_server_again then reads; the server runs */
void redis_server_keep(bool keeps);

/* redis_server_proxy - a line to it, the same each time; far: its address at that
 * line's end, static */
proxy *redis_server_proxy(void);
const char *redis_server_far(void);

#endif
