/* netfs.h - whether a path lies on a network file system, where SQLite's locks cannot
 * be trusted. */
#ifndef KVM_SCHEMA_NETFS_H
#define KVM_SCHEMA_NETFS_H

#include "base/str.h"

/* kvm_netfs_name - "NFS", "SMB", "Lustre", "sshfs" …; NULL: local, or not known to be
 * otherwise */
const char *kvm_netfs_name(kvm_str path);
/* its two halves, for tests: by statfs' f_type; by the type that /proc/self/mountinfo
 * shows for a device (FUSE tells no more than "FUSE" in f_type) */
const char *kvm_netfs_of_magic(unsigned long magic);
const char *kvm_netfs_of_mounts(kvm_str mountinfo, unsigned major_, unsigned minor_);

#endif
