/* build.h - what this program was built from; every result records it. The values are
 * written by scripts/build_info at build time. */
#ifndef KVM_BASE_BUILD_H
#define KVM_BASE_BUILD_H

#define KVM_PROGRAM_VERSION "0.1.0" /* KVM_VERSION is a status */

extern const char *const kvm_build_commit;   /* 12 hex digits, "-dirty", or "none" */
extern const char *const kvm_build_compiler; /* first line of cc --version */
extern const char *const kvm_build_flags;    /* optimisation and sanitizers */

#endif
