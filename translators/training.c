#include "translators/training.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"

/* address space for strings of any length, in the file and out of it */
static const size_t room = (size_t)1 << 34;

static ptrdiff_t count_of(const char *const *list, ptrdiff_t most)
{
    ptrdiff_t n = 0;
    while (n < most && list[n]) n++;
    return n;
}

static ptrdiff_t arrays_of(const kvm_training *t)
{
    return count_of(t->name, KVM_TRAINING_ARRAYS);
}

static kvm_status sha_key(kvm_str *key, const char *array, kvm_arena *own, kvm_err *err)
{
    *key = kvm_str_fmt(own, "sha.%s", array);
    return key->at ? KVM_OK : kvm_nomem(err, own);
}

static kvm_status hash_metadata(const json_t *meta, char hex[65], kvm_arena *own,
                                kvm_err *err)
{
    kvm_str text;
    TRY(kvm_json_canonical(&text, own, meta, err));
    return kvm_sha_of(text, hex, err);
}

static kvm_status hash_array(const float *x, ptrdiff_t n, char hex[65], kvm_err *err)
{
    return kvm_sha_of((kvm_str){(const char *)x, n * (ptrdiff_t)sizeof *x}, hex, err);
}

/* ---- save ---- */

static kvm_status put_hashes(const kvm_training *t, json_t *meta, kvm_arena *own,
                             kvm_err *err)
{
    char hex[65];
    kvm_str key;
    for (ptrdiff_t i = 0; i < arrays_of(t); i++) {
        TRY(sha_key(&key, t->name[i], own, err));
        TRY(hash_array(t->array[i], t->n, hex, err));
        TRY(kvm_meta_put(meta, key.at, kvm_str_of(hex), err));
    }
    TRY(hash_metadata(meta, hex, own, err));
    return kvm_meta_put(meta, "sha", kvm_str_of(hex), err);
}

static kvm_status save(const kvm_training *t, json_t *meta, kvm_str path,
                       kvm_arena *own, kvm_err *err)
{
    kvm_st_spec spec[KVM_TRAINING_ARRAYS];
    kvm_st_writer *w;
    const ptrdiff_t arrays = arrays_of(t);
    TRY(kvm_meta_put(meta, "format", kvm_str_of(t->format), err));
    TRY(kvm_meta_put(meta, "config", kvm_str_of(t->config), err));
    TRY(put_hashes(t, meta, own, err));
    for (ptrdiff_t i = 0; i < arrays; i++)
        spec[i] = (kvm_st_spec){kvm_str_of(t->name[i]), KVM_F32, 1, {t->n}};
    TRY(kvm_st_begin(&w, own, path, spec, arrays, meta, err));
    for (ptrdiff_t i = 0; i < arrays; i++)
        TRY(kvm_st_append(w, t->array[i], sizeof(float) * (size_t)t->n, err));
    return kvm_st_publish(w, NULL, err);
}

kvm_status kvm_training_save(const kvm_training *t, json_t *meta, kvm_str path,
                             kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_reserve(&own, room, err));
    const kvm_status s = save(t, meta, path, &own, err);
    kvm_arena_free(&own);
    return s;
}

/* ---- load ---- */

static kvm_status copy_string(json_t *meta, const kvm_st *st, const char *key,
                              kvm_err *err)
{
    kvm_str value;
    TRY(kvm_meta_str(st, key, &value, err));
    return kvm_meta_put(meta, key, value, err);
}

static kvm_status read_metadata(json_t *meta, const kvm_training *t, const kvm_st *st,
                                kvm_arena *own, kvm_err *err)
{
    kvm_str key;
    TRY(copy_string(meta, st, "format", err));
    TRY(copy_string(meta, st, "config", err));
    for (ptrdiff_t i = 0; i < count_of(t->told, KVM_TRAINING_TOLD); i++)
        TRY(copy_string(meta, st, t->told[i], err));
    for (ptrdiff_t i = 0; i < arrays_of(t); i++) {
        TRY(sha_key(&key, t->name[i], own, err));
        TRY(copy_string(meta, st, key.at, err));
    }
    return KVM_OK;
}

static kvm_status check_format(const kvm_training *t, const kvm_st *st, kvm_err *err)
{
    if (kvm_meta_format(st, t->format, NULL) != KVM_VERSION)
        return kvm_meta_format(st, t->format, err);
    return kvm_fail(err, KVM_VERSION,
                    "%s: another version of kvmill began this training (its format is "
                    "%s, here it is %s)",
                    kvm_st_path(st).at,
                    kvm_quote(kvm_st_meta(st, KVM_STR("format"))).at, t->format);
}

/* metadata as it was written, then who wrote it */
static kvm_status check_metadata(const kvm_training *t, const kvm_st *st,
                                 kvm_arena *own, kvm_err *err)
{
    kvm_str sha, config;
    char hex[65];
    json_t *meta = kvm_json_own(own, json_object());
    if (!meta) return kvm_nomem(err, own);
    TRY(check_format(t, st, err));
    TRY(read_metadata(meta, t, st, own, err));
    TRY(kvm_meta_str(st, "sha", &sha, err));
    TRY(hash_metadata(meta, hex, own, err));
    if (!kvm_str_eq(sha, kvm_str_of(hex)))
        return kvm_fail(err, KVM_FORMAT, "%s: metadata is not what was written",
                        kvm_st_path(st).at);
    TRY(kvm_meta_str(st, "config", &config, err));
    if (kvm_str_eq(config, kvm_str_of(t->config))) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH, "%s: a checkpoint of another %s",
                    kvm_st_path(st).at, t->what);
}

/* an array as it was written, of numbers: of others, layers complain far from the
 * cause */
static kvm_status need_array(const kvm_training *t, ptrdiff_t i, const kvm_st *st,
                             const float **out, kvm_arena *own, kvm_err *err)
{
    const kvm_st_tensor *tensor;
    kvm_str key, sha;
    char hex[65];
    TRY(kvm_st_need(st, kvm_str_of(t->name[i]), KVM_F32, 1, &t->n, &tensor, err));
    const float *x = tensor->t.data;
    TRY(sha_key(&key, t->name[i], own, err));
    TRY(kvm_meta_str(st, key.at, &sha, err));
    TRY(hash_array(x, t->n, hex, err));
    if (!kvm_str_eq(sha, kvm_str_of(hex)))
        return kvm_fail(err, KVM_FORMAT, "%s: %s is not what was written",
                        kvm_st_path(st).at, t->name[i]);
    for (ptrdiff_t k = 0; k < t->n; k++)
        if (!isfinite(x[k]))
            return kvm_fail(err, KVM_FORMAT, "%s: number %td of %s is not finite",
                            kvm_st_path(st).at, k, t->name[i]);
    *out = x;
    return KVM_OK;
}

static kvm_status take(const kvm_training *t, kvm_training_read *read, void *ctx,
                       const kvm_st *st, kvm_arena *own, kvm_err *err)
{
    const float *found[KVM_TRAINING_ARRAYS];
    const ptrdiff_t arrays = arrays_of(t);
    TRY(check_metadata(t, st, own, err));
    for (ptrdiff_t i = 0; i < arrays; i++)
        TRY(need_array(t, i, st, &found[i], own, err));
    TRY(read(ctx, st, own, err));
    for (ptrdiff_t i = 0; i < arrays; i++)
        memcpy(t->array[i], found[i], sizeof *found[i] * (size_t)t->n);
    return KVM_OK;
}

static bool is_damage(kvm_status s)
{
    return s == KVM_FORMAT || s == KVM_NOTFOUND || s == KVM_SHAPE || s == KVM_DTYPE;
}

/* bytes.at NULL: the file of that name */
static kvm_status load(const kvm_training *t, kvm_training_read *read, void *ctx,
                       kvm_str bytes, kvm_str name, kvm_err *err)
{
    kvm_arena own = {0};
    kvm_st *st;
    TRY(kvm_arena_reserve(&own, room, err));
    kvm_status s = bytes.at ? kvm_st_parse(&st, &own, bytes, name, err)
                            : kvm_st_open(&st, &own, name, err);
    if (!s) s = take(t, read, ctx, st, &own, err);
    kvm_arena_free(&own);
    if (is_damage(s)) s = kvm_err_prefix(err, s, "a damaged checkpoint");
    return s;
}

kvm_status kvm_training_load(const kvm_training *t, kvm_training_read *read, void *ctx,
                             kvm_str path, kvm_err *err)
{
    return load(t, read, ctx, (kvm_str){0}, path, err);
}

kvm_status kvm_training_anew(kvm_status loaded, kvm_err *err)
{
    if (!is_damage(loaded) && loaded != KVM_MISMATCH && loaded != KVM_VERSION)
        return loaded;
    kvm_log(KVM_LOG_WARN, "training.anew", "why=\"%s\"", err ? err->msg : "");
    if (err) *err = (kvm_err){0};
    return KVM_OK;
}

kvm_status kvm_training_parse(const kvm_training *t, kvm_training_read *read, void *ctx,
                              kvm_str bytes, kvm_str name, kvm_err *err)
{
    return load(t, read, ctx, bytes, name, err);
}
