#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "models/safetensors.h"

struct kvm_st_writer {
    kvm_out *out;
    kvm_str path;
    ptrdiff_t expected, written; /* bytes of data */
};

static json_t *entry_of(const kvm_st_spec *s, ptrdiff_t begin, ptrdiff_t end)
{
    json_t *shape = json_array();
    for (int i = 0; i < s->rank; i++)
        json_array_append_new(shape, json_integer(s->dim[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", kvm_dtype_name(s->dtype), "shape",
                     shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static kvm_status spec_bytes(const kvm_st_spec *s, kvm_str path, ptrdiff_t *bytes,
                             kvm_err *err)
{
    ptrdiff_t count = 1;
    kvm_dtype known;
    bool ok = s->rank >= 0 && s->rank <= KVM_MAX_RANK && s->name.len > 0 &&
              !kvm_str_eq(s->name, KVM_STR("__metadata__")) &&
              !kvm_dtype_of_safetensors(kvm_str_of(kvm_dtype_name(s->dtype)), &known);
    for (int i = 0; ok && i < s->rank; i++) ok = kvm_mul(count, s->dim[i], &count);
    if (!ok || !kvm_dtype_bytes(s->dtype, count, bytes))
        return kvm_fail(
            err, KVM_USAGE,
            "%s: tensor %.*s cannot be written: its name, rank, shape or type "
            "(%s) is not one of the format",
            path.at, KVM_STR_ARG(s->name), kvm_dtype_name(s->dtype));
    return KVM_OK;
}

static kvm_status add_entries(json_t *head, kvm_st_writer *w, const kvm_st_spec *specs,
                              ptrdiff_t n, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_st_spec *s = &specs[i];
        ptrdiff_t bytes, end;
        TRY(spec_bytes(s, w->path, &bytes, err));
        if (!kvm_add(w->expected, bytes, &end))
            return kvm_fail(err, KVM_USAGE, "%s: the file would be too large",
                            w->path.at);
        if (json_object_getn(head, s->name.at, (size_t)s->name.len))
            return kvm_fail(err, KVM_USAGE, "%s: tensor %.*s is named twice",
                            w->path.at, KVM_STR_ARG(s->name));
        if (json_object_setn_new(head, s->name.at, (size_t)s->name.len,
                                 entry_of(s, w->expected, end)))
            return kvm_fail(err, KVM_USAGE, "%s: %.*s cannot be a tensor's name",
                            w->path.at, KVM_STR_ARG(s->name));
        w->expected = end;
    }
    return KVM_OK;
}

static kvm_status add_meta(json_t *head, const kvm_st_writer *w, const json_t *meta,
                           kvm_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)meta, key, v)
    {
        if (!json_is_string(v))
            return kvm_fail(err, KVM_USAGE, "%s: __metadata__.%s must be a string",
                            w->path.at, key);
    }
    if (meta && json_object_set_new(head, "__metadata__", json_deep_copy(meta)))
        return kvm_fail(err, KVM_NOMEM, "%s: out of memory", w->path.at);
    return KVM_OK;
}

/* 8 bytes of length, the header, spaces up to a multiple of 64 so that the first tensor
 * of a mapped file suits vector loads */
static kvm_status write_head(kvm_st_writer *w, const json_t *head, kvm_err *err)
{
    char *text = json_dumps(head, JSON_COMPACT);
    if (!text) return kvm_fail(err, KVM_NOMEM, "%s: out of memory", w->path.at);
    const size_t len = strlen(text), pad = (64 - (8 + len) % 64) % 64;
    char spaces[64], size[8];
    memset(spaces, ' ', sizeof spaces);
    for (int i = 0; i < 8; i++) size[i] = (char)((uint64_t)(len + pad) >> (8 * i));
    kvm_status s = kvm_out_write(w->out, size, sizeof size, err);
    if (!s) s = kvm_out_write(w->out, text, len, err);
    if (!s) s = kvm_out_write(w->out, spaces, pad, err);
    free(text);
    return s;
}

kvm_status kvm_st_begin(kvm_st_writer **out, kvm_arena *keep, kvm_str path,
                        const kvm_st_spec *specs, ptrdiff_t n, const json_t *meta,
                        kvm_err *err)
{
    kvm_st_writer *w = kvm_new(keep, kvm_st_writer, 1);
    if (!w) return kvm_nomem(err, keep);
    w->path = kvm_str_copy(keep, path);
    if (!w->path.at) return kvm_nomem(err, keep);
    json_t *head = json_object();
    if (!head) return kvm_fail(err, KVM_NOMEM, "%s: out of memory", w->path.at);
    kvm_status s = add_meta(head, w, meta, err);
    if (!s) s = add_entries(head, w, specs, n, err);
    if (!s) s = kvm_out_begin(&w->out, keep, w->path, err);
    if (!s) s = write_head(w, head, err);
    json_decref(head);
    if (s) {
        if (w->out) kvm_out_drop(w->out);
        return s;
    }
    *out = w;
    return KVM_OK;
}

kvm_status kvm_st_append(kvm_st_writer *w, const void *bytes, size_t n, kvm_err *err)
{
    if (n > (size_t)(w->expected - w->written))
        return kvm_fail(err, KVM_MISMATCH,
                        "%s: %zu bytes more, but its header leaves room for %td",
                        w->path.at, n, w->expected - w->written);
    TRY(kvm_out_write(w->out, bytes, n, err));
    w->written += (ptrdiff_t)n;
    return KVM_OK;
}

void kvm_st_unhashed(kvm_st_writer *w)
{
    kvm_out_unhashed(w->out);
}

kvm_status kvm_st_publish(kvm_st_writer *w, char sha_hex[65], kvm_err *err)
{
    if (w->written != w->expected)
        return kvm_fail(err, KVM_MISMATCH, "%s: %td bytes of data, its header says %td",
                        w->path.at, w->written, w->expected);
    return kvm_out_publish(w->out, sha_hex, err);
}

void kvm_st_drop(kvm_st_writer *w)
{
    kvm_out_drop(w->out);
}
