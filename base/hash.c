#include "base/hash.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/os.h"

enum { SHA_BYTES = 32, READ_BYTES = 128 << 10 };

/* An opaque name for OpenSSL's context, so that its headers stay in this file. */
static EVP_MD_CTX *ctx_of(kvm_sha *h)
{
    return (EVP_MD_CTX *)(void *)h;
}

static kvm_status crypto_failed(kvm_err *err)
{
    return kvm_fail(err, KVM_NOMEM, "libcrypto could not compute a SHA-256");
}

static void hex_of(const unsigned char *digest, size_t n, char *hex)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * n] = 0;
}

void kvm_sha_hex(const unsigned char digest[32], char hex[65])
{
    hex_of(digest, SHA_BYTES, hex);
}

static kvm_status begin(kvm_sha **h, const EVP_MD *kind, kvm_err *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx || EVP_DigestInit_ex(ctx, kind, NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return crypto_failed(err);
    }
    *h = (kvm_sha *)(void *)ctx;
    return KVM_OK;
}

kvm_status kvm_sha_begin(kvm_sha **h, kvm_err *err)
{
    return begin(h, EVP_sha256(), err);
}

kvm_status kvm_sha_add(kvm_sha *h, const void *bytes, size_t n, kvm_err *err)
{
    return EVP_DigestUpdate(ctx_of(h), bytes, n) == 1 ? KVM_OK : crypto_failed(err);
}

kvm_status kvm_sha_end(kvm_sha *h, char hex[65], kvm_err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int n;
    const bool good = EVP_DigestFinal_ex(ctx_of(h), digest, &n) == 1;
    kvm_sha_drop(h);
    if (!good) return crypto_failed(err);
    hex_of(digest, n, hex);
    return KVM_OK;
}

void kvm_sha_drop(kvm_sha *h)
{
    EVP_MD_CTX_free(ctx_of(h));
}

kvm_status kvm_sha_of(kvm_str bytes, char hex[65], kvm_err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (EVP_Digest(bytes.at, (size_t)bytes.len, digest, NULL, EVP_sha256(), NULL) != 1)
        return crypto_failed(err);
    kvm_sha_hex(digest, hex);
    return KVM_OK;
}

static kvm_status sha_fd(int fd, kvm_sha *h, kvm_str path, kvm_arena scratch,
                         kvm_err *err)
{
    char *buffer = kvm_arena_alloc_raw(&scratch, 1, 64, READ_BYTES);
    if (!buffer) return kvm_nomem(err, &scratch);
    for (;;) {
        const ssize_t n = kvm_os->read(fd, buffer, READ_BYTES);
        if (n < 0) return kvm_fail_errno(err, "%.*s: cannot read", KVM_STR_ARG(path));
        if (n == 0) return KVM_OK;
        TRY(kvm_sha_add(h, buffer, (size_t)n, err));
    }
}

/* what h has so far, and the file's content; ends h */
static kvm_status end_with_file(kvm_sha *h, kvm_str path, char *hex, kvm_arena scratch,
                                kvm_err *err)
{
    int fd;
    const kvm_str name = kvm_str_copy(&scratch, path);
    kvm_status s = name.at ? kvm_file_open(&fd, name, err) : kvm_nomem(err, &scratch);
    if (!s) {
        s = sha_fd(fd, h, path, scratch, err);
        kvm_os->close(fd);
    }
    if (!s) return kvm_sha_end(h, hex, err);
    kvm_sha_drop(h);
    return s;
}

kvm_status kvm_sha_file(kvm_str path, char hex[65], kvm_arena scratch, kvm_err *err)
{
    kvm_sha *h;
    TRY(kvm_sha_begin(&h, err));
    return end_with_file(h, path, hex, scratch, err);
}

kvm_status kvm_git_blob(kvm_str path, int64_t bytes, char hex[41], kvm_arena scratch,
                        kvm_err *err)
{
    kvm_sha *h;
    char head[32];
    const int n = snprintf(head, sizeof head, "blob %lld", (long long)bytes);
    TRY(begin(&h, EVP_sha1(), err));
    const kvm_status s = kvm_sha_add(h, head, (size_t)n + 1, err); /* with its NUL */
    if (!s) return end_with_file(h, path, hex, scratch, err);
    kvm_sha_drop(h);
    return s;
}
