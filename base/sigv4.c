#define _DEFAULT_SOURCE /* explicit_bzero */
#include "base/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"

enum { SHA = 32, DATE = 16, MOST_KEY = 256 };

void kvm_sigv4_date(double wall, char out[17])
{
    const time_t t = (time_t)wall;
    struct tm utc;
    gmtime_r(&t, &utc);
    strftime(out, 17, "%Y%m%dT%H%M%SZ", &utc);
}

/* ---- the canonical request ---- */

typedef struct pair {
    kvm_str name, value;
} pair;

static int by_name_and_value(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    const int names = kvm_str_cmp(x->name, y->name);
    return names ? names : kvm_str_cmp(x->value, y->value);
}

/* "b=2&a" as "a=&b=2" */
static kvm_status add_query(kvm_text *out, kvm_str query, kvm_arena scratch,
                            kvm_err *err)
{
    ptrdiff_t n = 0;
    kvm_str rest = query, part;
    pair *all = kvm_new(&scratch, pair, query.len + 1);
    if (!all) return kvm_nomem(err, &scratch);
    while (rest.len > 0) {
        kvm_str_cut(rest, '&', &part, &rest);
        kvm_str_cut(part, '=', &all[n].name, &all[n].value);
        if (part.len > 0) n++;
    }
    qsort(all, (size_t)n, sizeof *all, by_name_and_value);
    for (ptrdiff_t i = 0; i < n; i++)
        kvm_text_addf(out, "%s%.*s=%.*s", i ? "&" : "", KVM_STR_ARG(all[i].name),
                      KVM_STR_ARG(all[i].value));
    return KVM_OK;
}

static kvm_str lower(kvm_arena *a, const char *name)
{
    const kvm_str s = kvm_str_copy(a, kvm_str_of(name));
    char *at = kvm_new(a, char, s.len + 1);
    if (!s.at || !at) return (kvm_str){0};
    for (ptrdiff_t i = 0; i < s.len; i++) {
        at[i] = s.at[i];
        if (at[i] >= 'A' && at[i] <= 'Z') at[i] = (char)(at[i] - 'A' + 'a');
    }
    return (kvm_str){at, s.len};
}

/* without blanks around, and one where there are several */
static void add_value(kvm_text *out, kvm_str value)
{
    value = kvm_str_trim(value);
    for (ptrdiff_t i = 0; i < value.len; i++)
        if (value.at[i] != ' ' || value.at[i - 1] != ' ')
            kvm_text_add(out, kvm_str_slice(value, i, i + 1));
}

static int by_name(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    const int names = kvm_str_cmp(x->name, y->name);
    if (names) return names;
    return x->value.at < y->value.at ? -1 : x->value.at > y->value.at;
}

/* "host:x\n" for each, values of one name joined, and "host;x-amz-date" of their
 * names */
static kvm_status add_headers(kvm_text *out, kvm_text *names,
                              const kvm_sigv4_request *r, kvm_arena scratch,
                              kvm_err *err)
{
    pair *all = kvm_new(&scratch, pair, r->header_count + 1);
    if (!all) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < r->header_count; i++) {
        all[i] = (pair){lower(&scratch, r->headers[i].name), r->headers[i].value};
        if (!all[i].name.at) return kvm_nomem(err, &scratch);
    }
    qsort(all, (size_t)r->header_count, sizeof *all, by_name);
    for (ptrdiff_t i = 0; i < r->header_count; i++) {
        if (i == 0 || !kvm_str_eq(all[i].name, all[i - 1].name)) {
            kvm_text_addf(names, "%s%.*s", i ? ";" : "", KVM_STR_ARG(all[i].name));
            kvm_text_addf(out, "%s%.*s:", i ? "\n" : "", KVM_STR_ARG(all[i].name));
        } else
            kvm_text_add(out, KVM_STR(","));
        add_value(out, all[i].value);
    }
    kvm_text_add(out, KVM_STR("\n"));
    return KVM_OK;
}

static kvm_status canonical(kvm_text *out, kvm_text *names, const kvm_sigv4_request *r,
                            kvm_arena scratch, kvm_err *err)
{
    kvm_text_addf(out, "%s\n%.*s\n", r->method, KVM_STR_ARG(r->path));
    TRY(add_query(out, r->query, scratch, err));
    kvm_text_add(out, KVM_STR("\n"));
    TRY(add_headers(out, names, r, scratch, err));
    kvm_text_addf(out, "\n%.*s\n%.*s", KVM_STR_ARG(kvm_text_str(names)),
                  KVM_STR_ARG(r->payload_sha));
    if (out->failed || names->failed)
        return kvm_fail(err, KVM_NOMEM, "no memory for a signature");
    return KVM_OK;
}

/* ---- the signature ---- */

static kvm_status hmac(unsigned char out[SHA], const void *key, size_t key_bytes,
                       kvm_str text, kvm_err *err)
{
    unsigned int n = SHA;
    if (HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text.at,
             (size_t)text.len, out, &n))
        return KVM_OK;
    return kvm_fail(err, KVM_NOMEM, "libcrypto could not compute an HMAC");
}

/* HMAC(HMAC(HMAC(HMAC("AWS4" secret, day), region), service), "aws4_request") */
static kvm_status signing_key(unsigned char out[SHA], const kvm_sigv4_key *key,
                              kvm_str day, kvm_err *err)
{
    char first[4 + MOST_KEY] = "AWS4";
    const kvm_str steps[] = {day, key->region, key->service, KVM_STR("aws4_request")};
    if (key->secret.len > MOST_KEY)
        return kvm_fail(err, KVM_USAGE, "a secret key of %td bytes; at most %d",
                        key->secret.len, MOST_KEY);
    memcpy(first + 4, key->secret.at, (size_t)key->secret.len);
    kvm_status s = hmac(out, first, 4 + (size_t)key->secret.len, steps[0], err);
    for (int i = 1; i < 4 && !s; i++) {
        unsigned char last[SHA];
        memcpy(last, out, SHA);
        s = hmac(out, last, SHA, steps[i], err);
    }
    explicit_bzero(first, sizeof first);
    return s;
}

static kvm_status sign(kvm_str *authorization, kvm_arena *keep,
                       const kvm_sigv4_key *key, const kvm_sigv4_request *r,
                       kvm_str canonical_request, kvm_str names, kvm_arena scratch,
                       kvm_err *err)
{
    unsigned char mac[SHA], signer[SHA];
    char request_sha[65], hex[2 * SHA + 1];
    const kvm_str day = kvm_str_slice(r->date, 0, 8);
    const kvm_str scope =
        kvm_str_fmt(&scratch, "%.*s/%.*s/%.*s/aws4_request", KVM_STR_ARG(day),
                    KVM_STR_ARG(key->region), KVM_STR_ARG(key->service));
    TRY(kvm_sha_of(canonical_request, request_sha, err));
    const kvm_str to_sign =
        kvm_str_fmt(&scratch, "AWS4-HMAC-SHA256\n%.*s\n%.*s\n%s", KVM_STR_ARG(r->date),
                    KVM_STR_ARG(scope), request_sha);
    if (!scope.at || !to_sign.at) return kvm_nomem(err, &scratch);
    TRY(signing_key(signer, key, day, err));
    TRY(hmac(mac, signer, SHA, to_sign, err));
    kvm_sha_hex(mac, hex);
    *authorization =
        kvm_str_fmt(keep,
                    "AWS4-HMAC-SHA256 Credential=%.*s/%.*s, SignedHeaders=%.*s, "
                    "Signature=%s",
                    KVM_STR_ARG(key->id), KVM_STR_ARG(scope), KVM_STR_ARG(names), hex);
    return authorization->at ? KVM_OK : kvm_nomem(err, keep);
}

kvm_status kvm_sigv4_sign(kvm_str *authorization, kvm_arena *keep,
                          const kvm_sigv4_key *key, const kvm_sigv4_request *r,
                          kvm_err *err)
{
    kvm_arena scratch;
    kvm_text request = {0}, names = {0};
    if (r->date.len != DATE || r->date.at[8] != 'T')
        return kvm_fail(err, KVM_USAGE, "\"%s\" is no date like 20150830T123600Z",
                        kvm_quote(r->date).at);
    TRY(kvm_arena_init(&scratch, 1 << 20, err));
    kvm_status s = canonical(&request, &names, r, scratch, err);
    if (!s)
        s = sign(authorization, keep, key, r, kvm_text_str(&request),
                 kvm_text_str(&names), scratch, err);
    kvm_text_free(&request);
    kvm_text_free(&names);
    kvm_arena_free(&scratch);
    return s;
}
