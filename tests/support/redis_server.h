/* redis_server.h - a Redis server of the test's own: in a folder below /tmp, on a unix
 * socket and a port of 127.0.0.1, without anything on disk. It ends with the test
 * program, however that ends, and its folder with it. And a proxy before it, whose peer
 * may fall silent. */
#ifndef KVM_TESTS_SUPPORT_REDIS_SERVER_H
#define KVM_TESTS_SUPPORT_REDIS_SERVER_H

#include <stdbool.h>

/* redis_server_start - false, with a line that says why, when Redis is not installed;
 * any other trouble ends the program. Once more: nothing. */
bool redis_server_start(void);
/* redis_server_stop - kill -9: what it held is lost */
void redis_server_stop(void);
void redis_server_again(void); /* after a stop, empty; returns when it answers */
/* redis_server_again_from_disk - with what was last SAVEd, slowly: it says LOADING for
 * a while. Returns at once. */
void redis_server_again_from_disk(void);
const char *redis_server_unix(void); /* redis+unix://…; static */
const char *redis_server_tcp(void);  /* redis://127.0.0.1:PORT; static */
/* redis_server_do - a command as redis-cli takes it, sent over the socket ("FLUSHALL"):
 * its answer's first line in static text, an error with its '-' */
const char *redis_server_do(const char *command);

/* redis_proxy_start - the address of a proxy before the server, in a process of its
 * own; static. It ends with the test program. */
const char *redis_proxy_start(void);
/* What it does from now on with connections that are open and new ones. */
typedef enum redis_proxy_way {
    REDIS_PROXY_PASS,
    REDIS_PROXY_DEAF, /* takes what clients send and drops it */
    REDIS_PROXY_MUTE  /* drops what the server answers */
} redis_proxy_way;
void redis_proxy_be(redis_proxy_way way, int delay_ms);

#endif
