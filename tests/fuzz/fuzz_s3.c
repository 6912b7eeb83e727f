/* Any headers and any bytes as what a bucket answers: refused in words, or told of with
 * nothing out of its range, and a list that has another page asks for one. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "schema/s3_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static kvm_status see(void *ctx, const kvm_s3_listed *o, kvm_err *err)
{
    (void)err;
    ++*(int *)ctx;
    if (!o->key.at || o->key.len < 0 || !o->upload.at || o->bytes < 0 ||
        !(o->age_s >= 0) || isinf(o->age_s))
        abort();
    return KVM_OK;
}

static void list(kvm_s3 *s, const kvm_s3_list_kind *kind, const kvm_http_reply *reply,
                 kvm_arena *keep, kvm_arena scratch)
{
    int seen = 0;
    kvm_err err = {0};
    const kvm_str first = KVM_STR("list-type=2&prefix=runs%2F");
    kvm_str query = first;
    const kvm_s3_listing l = {s, kind, KVM_STR(""), first, see, &seen};
    if (kvm_s3__tell(&l, reply, &query, keep, scratch, &err)) {
        if (err.msg[0] == 0) abort();
    } else if (reply->status != 200 ||
               (query.at &&
                (query.len <= first.len || memchr(query.at, ' ', (size_t)query.len)))) {
        abort();
    }
}

/* The input is headers, an empty line, and the body. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int statuses[] = {200, 403, 404, 412, 500, 301};
    enum { STATUSES = sizeof statuses / sizeof *statuses };
    kvm_s3 s = {.base = KVM_STR("https://s3.example"),
                .bucket = KVM_STR("maps"),
                .prefix = KVM_STR("runs/")};
    const kvm_str all = {(const char *)data, (ptrdiff_t)size};
    const ptrdiff_t cut = kvm_str_find(all, KVM_STR("\n\n"));
    kvm_arena keep, scratch;
    kvm_http_reply reply = {.headers = kvm_str_slice(all, 0, cut < 0 ? 0 : cut),
                            .body = kvm_str_slice(all, cut < 0 ? 0 : cut + 2, all.len)};
    if (kvm_arena_init(&keep, (size_t)1 << 24, NULL)) return 0;
    if (kvm_arena_init(&scratch, (size_t)1 << 24, NULL)) abort();
    for (int i = 0; i < STATUSES; i++) {
        reply.status = statuses[i];
        list(&s, &kvm_s3__objects, &reply, &keep, scratch);
        list(&s, &kvm_s3__uploads, &reply, &keep, scratch);
    }
    kvm_arena_free(&scratch);
    kvm_arena_free(&keep);
    return 0;
}
