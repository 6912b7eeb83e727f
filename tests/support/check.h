/* check.h - cmocka's headers and the few helpers that every test wants.
 * Tests run from the root of the repository and write below build/tmp/<test> only. */
#ifndef KVM_TESTS_SUPPORT_CHECK_H
#define KVM_TESTS_SUPPORT_CHECK_H

/* cmocka.h wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/str.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* check_status - s is what was expected, else the test fails with err's message. Under
 * success err must be untouched; under failure it must carry the same code. */
#define check_status(expected, s, err)                                                 \
    check_status_at(expected, s, err, __FILE__, __LINE__)
#define check_ok(s, err) check_status_at(KVM_OK, s, err, __FILE__, __LINE__)
void check_status_at(kvm_status expected, kvm_status got, const kvm_err *err,
                     const char *file, int line);

#define check_contains(text, part) check_contains_at(text, part, __FILE__, __LINE__)
void check_contains_at(const char *text, const char *part, const char *file, int line);

/* call, which takes &no, is refused so, with `word` in the message */
#define check_refused(status, word, call)                                              \
    do {                                                                               \
        kvm_err no = {0};                                                              \
        check_status(status, call, &no);                                               \
        check_contains(no.msg, word);                                                  \
    } while (0)

#define check_str(s, text) check_str_at(s, text, __FILE__, __LINE__)
void check_str_at(kvm_str s, const char *text, const char *file, int line);

/* check_spent - fn in arenas of 0, 8, 16 ... < most bytes: each time KVM_NOMEM or
 * KVM_OK, and both of them occur */
void check_spent(size_t most, kvm_status (*fn)(kvm_arena *a, kvm_err *err));
kvm_arena check_arena(size_t bytes); /* fails the test when there is none */
void check_tmpdir(const char *name); /* build/tmp/<name>, made and empty, ours */
void check_write(const char *path, kvm_str s); /* with plain libc calls */
kvm_str check_read(kvm_arena *keep, const char *path);
int check_open_files(void); /* descriptors that this process holds */

#endif
