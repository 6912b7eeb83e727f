/* markup.h - a checker of HTML and SVG as kvmill writes them: elements balance,
 * attributes are quoted, no bare '<' or '&', valid UTF-8 without control characters. */
#ifndef KVM_TESTS_SUPPORT_MARKUP_H
#define KVM_TESTS_SUPPORT_MARKUP_H

#include "base/str.h"

/* fails the running test with the place */
void check_markup(kvm_str text);

#endif
