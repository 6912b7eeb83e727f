/* utf8.h - texts as a server takes them: UTF-8 without NUL. Messages quote file names
 * of any kind, and are cut at a number of bytes. Private to schema/. */
#ifndef KVM_SCHEMA_UTF8_H
#define KVM_SCHEMA_UTF8_H

#include "base/str.h"

/* kvm_utf8 - s is left alone when it is UTF-8, else becomes a copy of the same length
 * with '?' for every byte that is not; heap: the copy, which the caller frees, NULL
 * when there is none. false: out of memory. */
bool kvm_utf8(kvm_str *s, char **heap);

#endif
