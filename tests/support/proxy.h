/* proxy.h - a line to a server of the test's own that may fall silent or be slow: a
 * port of 127.0.0.1 before the server's unix socket. A process of its own serves it,
 * which ends with the test program. */
#ifndef KVM_TESTS_SUPPORT_PROXY_H
#define KVM_TESTS_SUPPORT_PROXY_H

/* What it does from now on with connections that are open and new ones. */
typedef enum proxy_way {
    PROXY_PASS,
    PROXY_DEAF, /* takes what clients send and drops it */
    PROXY_MUTE  /* drops what the server answers */
} proxy_way;

typedef struct proxy proxy;

/* proxy_start - before the socket at `path`, for the rest of the program; any trouble
 * ends that. static */
proxy *proxy_start(const char *path);
int proxy_port(const proxy *p);
/* proxy_be - delay_ms: all that is sent arrives so much later, in either direction;
 * only what is sent from now on */
void proxy_be(proxy *p, proxy_way way, int delay_ms);

#endif
