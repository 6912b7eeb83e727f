/* roots.h - bounds on what this process reads.
 *
 * A worker opens the files that a job's parameters name, and whoever may submit has
 * chosen those. So a process in which jobs run is bounded: kvm_file_* open regular
 * files below the roots alone, wherever links and `..` have led, for what is asked is
 * where an opened file really lies (base/file.c). The bounds are the process's, as
 * kvm_os is, and set before it reads what others have named; without them everything
 * may be read. They hold for reading by name: no sandbox, since a job's code is ours.
 */
#ifndef KVM_BASE_ROOTS_H
#define KVM_BASE_ROOTS_H

#include "base/str.h"

enum { KVM_ROOTS_MOST = 64 };

/* kvm_roots_set - from now on these folders (copied) bound what is read, in place of
 * those before. One that is not there bounds nothing in. remedy: static text, how
 * another one is allowed. KVM_RANGE: more than KVM_ROOTS_MOST. */
KVM_MUST kvm_status kvm_roots_set(const kvm_str *folders, ptrdiff_t n,
                                  const char *remedy, kvm_err *err);
void kvm_roots_clear(void); /* no bounds any more */

/* kvm_roots_admit - KVM_DENIED, naming path, roots and remedy, for what lies outside,
 * links and `..` resolved, whether it is there or not: nothing is told of what others
 * have. */
KVM_MUST kvm_status kvm_roots_admit(kvm_str path, kvm_err *err);
/* kvm_roots_admit_opened - the same of what fd is; path: as it was named */
KVM_MUST kvm_status kvm_roots_admit_opened(int fd, const char *path, kvm_err *err);

#endif
