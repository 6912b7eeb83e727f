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
                    version ? "%s: is in format %s, and this version reads %s: make it "
                              "again with this version"
                            : "%s: is in format \"%s\", not %s: another kind of file",
                    kvm_st_path(st).at, kvm_quote(got.at ? got : KVM_STR("")).at, want);
}

/* the numbers of a row's shape, as they are listed */
static const char *const part_names[] = {"dim", "heads", "keys"};

static int parts_of(kvm_space s)
{
    return s == KVM_SPACE_STATE ? 3 : 2;
}

static ptrdiff_t *part_of(kvm_row_shape *s, int part)
{
    return part == 0 ? &s->dim : part == 1 ? &s->heads : &s->keys;
}

/* a comma-separated list of `n` whole numbers into one member of shapes */
static kvm_status read_list(const kvm_st *st, const char *key, kvm_row_shape *shape,
                            ptrdiff_t n, int part, kvm_err *err)
{
    enum { MOST = 1 << 24 };
    kvm_str rest, item;
    TRY(kvm_meta_str(st, key, &rest, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t v = 0;
        const bool more = kvm_str_cut(rest, ',', &item, &rest);
        if (more != (i + 1 < n) || !kvm_str_to_i64(item, &v) || v < 0 || v > MOST)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: metadata `%s`: entry %td of %td is '%s'",
                            kvm_st_path(st).at, key, i, n, kvm_quote(item).at);
        *part_of(&shape[i], part) = (ptrdiff_t)v;
    }
    return KVM_OK;
}

static kvm_status read_shapes(const kvm_st *st, const char *prefix, kvm_space space,
                              ptrdiff_t layers, kvm_arena *keep,
                              const kvm_row_shape **out, kvm_err *err)
{
    char key[64];
    kvm_row_shape *shape = kvm_new(keep, kvm_row_shape, layers);
    if (!shape) return kvm_nomem(err, keep);
    for (int part = 0; part < parts_of(space); part++) {
        snprintf(key, sizeof key, "%s%s.%s", prefix, part_names[part],
                 kvm_space_name(space));
        TRY(read_list(st, key, shape, layers, part, err));
    }
    for (ptrdiff_t l = 0; l < layers; l++)
        if ((shape[l].heads == 0) != (shape[l].dim == 0) ||
            (shape[l].keys > 0 && shape[l].dim % shape[l].keys))
            return kvm_fail(err, KVM_FORMAT,
                            "%s: metadata `%s`: layer %td has %td heads of %td",
                            kvm_st_path(st).at, key, l, shape[l].heads, shape[l].dim);
    *out = shape;
    return KVM_OK;
}

kvm_status kvm_meta_shapes(const kvm_st *st, const char *prefix, kvm_arena *keep,
                           kvm_shapes *out, kvm_err *err)
{
    enum { MOST_LAYERS = 4096 };
    char key[64];
    int64_t n;
    kvm_str rest, item;
    kvm_shapes s = {0};
    snprintf(key, sizeof key, "%slayers", prefix);
    TRY(kvm_meta_i64(st, key, 1, MOST_LAYERS, &n, err));
    s.layers = (ptrdiff_t)n;
    snprintf(key, sizeof key, "%sspaces", prefix);
    TRY(kvm_meta_str(st, key, &rest, err));
    for (bool more = true; more;) {
        kvm_space space;
        more = kvm_str_cut(rest, ',', &item, &rest);
        if (kvm_space_of_name(item, &space) || kvm_space_derived(space) || s.of[space])
            return kvm_fail(err, KVM_FORMAT,
                            "%s: metadata `%s`: '%s' is no space of rows, or stands "
                            "there twice",
                            kvm_st_path(st).at, key, kvm_quote(item).at);
        TRY(read_shapes(st, prefix, space, s.layers, keep, &s.of[space], err));
    }
    for (int i = 0; i < KVM_SPACES; i++) s.of[i] = s.of[kvm_space_rows[i].stored];
    *out = s;
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

static kvm_status put_text(json_t *meta, const char *key, kvm_text *text, kvm_err *err)
{
    const kvm_status s = text->failed
                             ? kvm_fail(err, KVM_NOMEM, "no memory for metadata")
                             : kvm_meta_put(meta, key, kvm_text_str(text), err);
    kvm_text_free(text);
    return s;
}

kvm_status kvm_meta_put_shapes(json_t *meta, const char *prefix,
                               const kvm_shapes *shapes, kvm_err *err)
{
    char key[64];
    kvm_text spaces = {0};
    snprintf(key, sizeof key, "%slayers", prefix);
    TRY(kvm_meta_putf(meta, err, key, "%td", shapes->layers));
    for (int i = 0; i < KVM_SPACES; i++)
        if (shapes->of[i] && !kvm_space_derived((kvm_space)i))
            kvm_text_addf(&spaces, kvm_text_str(&spaces).len ? ",%s" : "%s",
                          kvm_space_name((kvm_space)i));
    snprintf(key, sizeof key, "%sspaces", prefix);
    TRY(put_text(meta, key, &spaces, err));
    for (int i = 0; i < KVM_SPACES; i++) {
        const kvm_space space = (kvm_space)i;
        if (!shapes->of[i] || kvm_space_derived(space)) continue;
        for (int part = 0; part < parts_of(space); part++) {
            kvm_text list = {0};
            for (ptrdiff_t l = 0; l < shapes->layers; l++) {
                kvm_row_shape shape = shapes->of[i][l];
                kvm_text_addf(&list, l ? ",%td" : "%td", *part_of(&shape, part));
            }
            snprintf(key, sizeof key, "%s%s.%s", prefix, part_names[part],
                     kvm_space_name(space));
            TRY(put_text(meta, key, &list, err));
        }
    }
    return KVM_OK;
}
