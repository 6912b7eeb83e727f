/* check.h - cmocka with the headers it needs before it, for every test. */
#ifndef KVM_TESTS_SUPPORT_CHECK_H
#define KVM_TESTS_SUPPORT_CHECK_H

/* cmocka.h wants these four before it, in any order */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
