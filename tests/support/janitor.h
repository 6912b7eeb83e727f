/* janitor.h - removes a folder when the test program has ended, well or not. */
#ifndef KVM_TESTS_SUPPORT_JANITOR_H
#define KVM_TESTS_SUPPORT_JANITOR_H

#include <stdbool.h>

/* a process that waits for the end of this one; false: it could not be started */
bool janitor_leave(const char *folder);
void janitor_remove(const char *folder); /* now, with all that is in it */

#endif
