#include "tests/support/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int chaos_count(int brief, int whole)
{
    const char *set = getenv("KVMILL_CHAOS");
    return set && !strcmp(set, "1") ? whole : brief;
}

/* In one write, for several programs may append. */
static void append(const char *path, const char *line)
{
    char text[600];
    const int n = snprintf(text, sizeof text, "%s\n", line);
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0 && n < (int)sizeof text && write(fd, text, (size_t)n) == n) {
        close(fd);
        return;
    }
    fprintf(stderr, "# KVMILL_CHAOS_TABLE: %s: %s\n", path, strerror(errno));
    exit(99);
}

void chaos_record(const char *row, const char *what, int injected, int lost,
                  int doubled, double recovery_s)
{
    const char *path = getenv("KVMILL_CHAOS_TABLE");
    if (!path || !*path) return;
    json_t *j = json_pack("{s:s, s:s, s:i, s:i, s:i}", "row", row, "what", what,
                          "injected", injected, "lost", lost, "doubled", doubled);
    if (j && recovery_s >= 0)
        json_object_set_new(j, "recovery_s", json_real(recovery_s));
    char *line = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    append(path, line ? line : "{}");
    free(line);
    json_decref(j);
}
