#include "translators/meta.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

kvm_status kvm_meta_str(const kvm_st *st, const char *key, kvm_str *out, kvm_err *err)
{
    const kvm_str v = kvm_st_meta(st, kvm_str_of(key));
    if (!v.at)
        return kvm_fail(err, KVM_FORMAT, "%s: metadata `%s` is missing",
                        kvm_st_path(st).at, key);
    *out = v;
    return KVM_OK;
}

kvm_status kvm_meta_i64(const kvm_st *st, const char *key, int64_t least, int64_t most,
                        int64_t *out, kvm_err *err)
{
    kvm_str text;
    int64_t v;
    TRY(kvm_meta_str(st, key, &text, err));
    if (!kvm_str_to_i64(text, &v) || v < least || v > most)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: metadata `%s` is '%s', expected a whole number from %lld "
                        "to %lld",
                        kvm_st_path(st).at, key, kvm_quote(text).at, (long long)least,
                        (long long)most);
    *out = v;
    return KVM_OK;
}

kvm_status kvm_meta_f64(const kvm_st *st, const char *key, double *out, kvm_err *err)
{
    kvm_str text;
    double v;
    TRY(kvm_meta_str(st, key, &text, err));
    if (!kvm_str_to_f64(text, &v) || !isfinite(v))
        return kvm_fail(err, KVM_FORMAT, "%s: metadata `%s` is '%s', expected a number",
                        kvm_st_path(st).at, key, kvm_quote(text).at);
    *out = v;
    return KVM_OK;
}

kvm_status kvm_meta_format(const kvm_st *st, const char *want, kvm_err *err)
{
    const kvm_str got = kvm_st_meta(st, KVM_STR("format")), w = kvm_str_of(want);
    if (got.at && kvm_str_eq(got, w)) return KVM_OK;
    const ptrdiff_t stem = (strrchr(want, '.') - want) + 1;
    const bool version = got.at && kvm_str_starts(got, kvm_str_slice(w, 0, stem));
    return kvm_fail(err, version ? KVM_VERSION : KVM_FORMAT,
                    "%s: format is '%s', expected '%s'%s", kvm_st_path(st).at,
                    kvm_quote(got.at ? got : KVM_STR("")).at, want,
                    version ? "; make it again with this version" : "");
}

/* a comma-separated list of `n` whole numbers >= 1 into one member of shapes */
static kvm_status read_list(const kvm_st *st, const char *key, kvm_row_shape *shape,
                            ptrdiff_t n, bool heads, kvm_err *err)
{
    enum { MOST = 1 << 20 };
    kvm_str rest, item;
    TRY(kvm_meta_str(st, key, &rest, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t v = 0;
        const bool more = kvm_str_cut(rest, ',', &item, &rest);
        if (more != (i + 1 < n) || !kvm_str_to_i64(item, &v) || v < 1 || v > MOST)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: metadata `%s`: entry %td of %td is '%s'",
                            kvm_st_path(st).at, key, i, n, kvm_quote(item).at);
        if (heads)
            shape[i].heads = (ptrdiff_t)v;
        else
            shape[i].dim = (ptrdiff_t)v;
    }
    return KVM_OK;
}

kvm_status kvm_meta_shapes(const kvm_st *st, const char *prefix, kvm_arena *keep,
                           ptrdiff_t *layers, const kvm_row_shape **k,
                           const kvm_row_shape **v, kvm_err *err)
{
    enum { MOST_LAYERS = 4096 };
    static const char object[] = "KV";
    char key[64];
    int64_t n;
    snprintf(key, sizeof key, "%slayers", prefix);
    TRY(kvm_meta_i64(st, key, 1, MOST_LAYERS, &n, err));
    kvm_row_shape *shapes[2];
    for (int o = 0; o < 2; o++) {
        shapes[o] = kvm_new(keep, kvm_row_shape, n);
        if (!shapes[o]) return kvm_nomem(err, keep);
        for (int heads = 0; heads < 2; heads++) {
            snprintf(key, sizeof key, "%s%s.%c", prefix, heads ? "heads" : "dim",
                     object[o]);
            TRY(read_list(st, key, shapes[o], (ptrdiff_t)n, heads, err));
        }
    }
    *layers = (ptrdiff_t)n;
    *k = shapes[0];
    *v = shapes[1];
    return KVM_OK;
}

kvm_status kvm_meta_put(json_t *meta, const char *key, kvm_str value, kvm_err *err)
{
    json_t *s = json_stringn(value.at ? value.at : "", (size_t)value.len);
    if (!s || json_object_set_new(meta, key, s))
        return kvm_fail(err, KVM_NOMEM, "metadata `%s` could not be stored", key);
    return KVM_OK;
}

kvm_status kvm_meta_putf(json_t *meta, kvm_err *err, const char *key, const char *fmt,
                         ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return kvm_meta_put(meta, key, kvm_str_of(text), err);
}

kvm_status kvm_meta_put_shapes(json_t *meta, const char *prefix, ptrdiff_t layers,
                               const kvm_row_shape *k, const kvm_row_shape *v,
                               kvm_err *err)
{
    static const char object[] = "KV";
    char key[64];
    snprintf(key, sizeof key, "%slayers", prefix);
    TRY(kvm_meta_putf(meta, err, key, "%td", layers));
    for (int o = 0; o < 2; o++) {
        const kvm_row_shape *shape = o ? v : k;
        for (int heads = 0; heads < 2; heads++) {
            kvm_text list = {0};
            for (ptrdiff_t l = 0; l < layers; l++)
                kvm_text_addf(&list, l ? ",%td" : "%td",
                              heads ? shape[l].heads : shape[l].dim);
            snprintf(key, sizeof key, "%s%s.%c", prefix, heads ? "heads" : "dim",
                     object[o]);
            const kvm_status s =
                list.failed ? kvm_fail(err, KVM_NOMEM, "no memory for metadata")
                            : kvm_meta_put(meta, key, kvm_text_str(&list), err);
            kvm_text_free(&list);
            TRY(s);
        }
    }
    return KVM_OK;
}
