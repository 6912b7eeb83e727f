#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* the bytes of the UTF-8 character at p, or 0 when there is none */
static int utf8_length(const unsigned char *p)
{
    const int n = p[0] < 0x80                    ? 1
                  : p[0] >= 0xc2 && p[0] <= 0xdf ? 2
                  : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                  : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                 : 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0; /* overlong, surrogate, beyond Unicode */
    return n;
}

/* A message is one line of UTF-8: control and broken bytes of a hostile file name or
 * key (or of a character that was cut) become '?', so that no log line or terminal is
 * forged by one and the message may stand in JSON. */
static void one_line(char *text)
{
    unsigned char *p = (unsigned char *)text;
    while (*p) {
        const int n = utf8_length(p);
        if (n == 0 || *p < 0x20 || *p == 0x7f) *p = '?';
        p += n ? n : 1;
    }
}

/* Whether err still waits for its first failure; sets its place and code. */
static bool claim(kvm_err *err, kvm_status code, const char *file, int line)
{
    if (!err || err->code) return false;
    err->code = code;
    err->file = file;
    err->line = line;
    return true;
}

kvm_status kvm_fail_at(kvm_err *err, kvm_status code, const char *file, int line,
                       const char *fmt, ...)
{
    if (claim(err, code, file, line)) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
        one_line(err->msg);
    }
    return code;
}

static kvm_status status_of_errno(int code)
{
    switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return KVM_NOSPACE;
    case ENOENT:
    case ENOTDIR:
        return KVM_NOTFOUND;
    case ENOMEM:
        return KVM_NOMEM;
    case EEXIST:
        return KVM_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
    case EMFILE:
    case ENFILE:
        return KVM_ENVIRONMENT;
    default:
        return KVM_IO;
    }
}

kvm_status kvm_fail_errno_at(kvm_err *err, const char *file, int line, const char *fmt,
                             ...)
{
    const int code = errno;
    const kvm_status status = status_of_errno(code);
    if (claim(err, status, file, line)) {
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
        if (n >= 0 && (size_t)n < sizeof err->msg - 2) {
            char text[128];
            if (strerror_r(code, text, sizeof text))
                snprintf(text, sizeof text, "error %d", code);
            snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s%s", text,
                     code == EMFILE ? ": raise `ulimit -n`" : "");
        }
        one_line(err->msg);
    }
    errno = code;
    return status;
}

kvm_status kvm_err_prefix(kvm_err *err, kvm_status code, const char *fmt, ...)
{
    if (!err || !code) return code;
    char message[KVM_ERR_BYTES];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    const int left = (int)sizeof message - n - 3; /* what ": " and the NUL leave */
    if (n >= 0 && left > 0)
        snprintf(message + n, sizeof message - (size_t)n, ": %.*s", left, err->msg);
    memcpy(err->msg, message, sizeof message);
    one_line(err->msg);
    return code;
}

const char *kvm_status_name(kvm_status s)
{
    switch (s) {
#define X(id, name, action, text)                                                      \
    case KVM_##name:                                                                   \
        return #name;
#include "base/status.def"
#undef X
    }
    return "UNKNOWN";
}

const char *kvm_status_text(kvm_status s)
{
    switch (s) {
#define X(id, name, action, text)                                                      \
    case KVM_##name:                                                                   \
        return text;
#include "base/status.def"
#undef X
    }
    return "unknown status";
}

kvm_action kvm_status_action(kvm_status s)
{
    switch (s) {
#define X(id, name, action, text)                                                      \
    case KVM_##name:                                                                   \
        return KVM_##action;
#include "base/status.def"
#undef X
    }
    return KVM_FAIL;
}
