/* status.h - how calls end.
 *
 * Every call that can fail returns a kvm_status and takes a `kvm_err *err` last. The
 * first failure fills err (code, file, line, a message that names the file, the place
 * and the remedy); callers pass it up untouched with TRY, or put context in front with
 * kvm_err_prefix. err may be NULL. Libraries never print, exit or abort on input;
 * `assert` is for our own bugs only. */
#ifndef KVM_BASE_STATUS_H
#define KVM_BASE_STATUS_H

#include <stdbool.h>

typedef enum kvm_status {
#define X(id, name, action, text) KVM_##name = id,
#include "base/status.def"
#undef X
} kvm_status;

typedef enum kvm_action { KVM_DONE, KVM_RETRY, KVM_FAIL, KVM_STOP } kvm_action;

enum { KVM_ERR_BYTES = 512 };

typedef struct kvm_err {
    kvm_status code;
    int line;                /* of the source file that noticed */
    const char *file;        /* static */
    char msg[KVM_ERR_BYTES]; /* NUL-terminated, one line */
} kvm_err;

#define KVM_MUST __attribute__((warn_unused_result))
#define KVM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

#define TRY(e)                                                                         \
    do {                                                                               \
        const kvm_status try_ = (e);                                                   \
        if (try_) return try_;                                                         \
    } while (0)

/* kvm_fail - fill err (when it is not NULL and still KVM_OK) and give the code back:
 *   return kvm_fail(err, KVM_FORMAT, "%s: header says %lld bytes", path, n);
 * The code passes through kvm_given, so that compilers and analyzers see that a failure
 * is one, and do not warn of outputs that only success sets. */
#define kvm_fail(err, code, ...)                                                       \
    kvm_given(kvm_fail_at(err, code, __FILE__, __LINE__, __VA_ARGS__), code)
static inline kvm_status kvm_given(kvm_status filled, kvm_status code)
{
    (void)filled;
    return code;
}
kvm_status kvm_fail_at(kvm_err *err, kvm_status code, const char *file, int line,
                       const char *fmt, ...) KVM_PRINTF(5, 6);

/* kvm_fail_errno - the same from errno, translated once at the call: ENOSPC, EDQUOT,
 * EFBIG -> NOSPACE; ENOENT, ENOTDIR -> NOTFOUND; EEXIST -> EXISTS; ENOMEM -> NOMEM;
 * EACCES, EPERM, EROFS, EMFILE, ENFILE -> ENVIRONMENT; else IO. The message ends in
 * strerror's text; errno is left as it was. */
#define kvm_fail_errno(err, ...)                                                       \
    kvm_failed(kvm_fail_errno_at(err, __FILE__, __LINE__, __VA_ARGS__))
static inline kvm_status kvm_failed(kvm_status s)
{
    return s ? s : KVM_INTERNAL;
}
kvm_status kvm_fail_errno_at(kvm_err *err, const char *file, int line, const char *fmt,
                             ...) KVM_PRINTF(4, 5);

/* kvm_err_prefix - put "context: " in front of the message; gives code back.
 *   s = f(err); if (s) return kvm_err_prefix(err, s, "layer %td", l); */
kvm_status kvm_err_prefix(kvm_err *err, kvm_status code, const char *fmt, ...)
    KVM_PRINTF(3, 4);

const char *kvm_status_name(kvm_status s); /* static: "FORMAT" */
const char *kvm_status_text(kvm_status s); /* static */
kvm_action kvm_status_action(kvm_status s);

#endif
