#include "jobs/distill_checkpoint.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "translators/meta.h"

#define FORMAT "kvmill.distill_checkpoint.v2"

enum { ARRAYS = 4 };
static const char *const names[ARRAYS] = {"p", "m", "v", "best"};

/* metadata, in front of its own hash; sha.ARRAY: SHA-256 of the array's bytes */
static const char *const told[] = {"format",  "config", "curve", "steps", "best_step",
                                   "best_kl", "sha.p",  "sha.m", "sha.v", "sha.best"};
enum { TOLD = sizeof told / sizeof *told, SHAS = TOLD - ARRAYS };

/* address space for a curve of any length, in the file and out of it */
static const size_t room = (size_t)1 << 34;

static void arrays(kvm_distill *d, const kvm_distill_progress *p, float *all[ARRAYS])
{
    all[0] = kvm_distill_values(d);
    all[1] = kvm_distill_moment(d, 0);
    all[2] = kvm_distill_moment(d, 1);
    all[3] = p->best;
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

static kvm_status metadata(kvm_distill *d, const kvm_distill_progress *p,
                           float *const all[ARRAYS], const char *config, json_t *meta,
                           kvm_arena *own, kvm_err *err)
{
    kvm_str curve;
    char hex[65];
    TRY(kvm_json_pretty(&curve, own, p->curve, err)); /* keeps the order of keys */
    TRY(kvm_meta_put(meta, "format", KVM_STR(FORMAT), err));
    TRY(kvm_meta_put(meta, "config", kvm_str_of(config), err));
    TRY(kvm_meta_put(meta, "curve", curve, err));
    TRY(kvm_meta_putf(meta, err, "steps", "%td", *kvm_distill_steps(d)));
    TRY(kvm_meta_putf(meta, err, "best_step", "%td", p->best_step));
    TRY(kvm_meta_putf(meta, err, "best_kl", "%.17g",
                      isfinite(p->best_kl) ? p->best_kl : -1.0));
    for (int i = 0; i < ARRAYS; i++) {
        TRY(hash_array(all[i], kvm_distill_parameters(d), hex, err));
        TRY(kvm_meta_put(meta, told[SHAS + i], kvm_str_of(hex), err));
    }
    TRY(hash_metadata(meta, hex, own, err));
    return kvm_meta_put(meta, "sha", kvm_str_of(hex), err);
}

static kvm_status save(kvm_distill *d, const kvm_distill_progress *p,
                       const char *config, kvm_str path, kvm_arena *own, kvm_err *err)
{
    float *all[ARRAYS];
    kvm_st_spec spec[ARRAYS];
    kvm_st_writer *w;
    const ptrdiff_t n = kvm_distill_parameters(d);
    json_t *meta = kvm_json_own(own, json_object());
    if (!meta) return kvm_nomem(err, own);
    arrays(d, p, all);
    TRY(metadata(d, p, all, config, meta, own, err));
    for (int i = 0; i < ARRAYS; i++)
        spec[i] = (kvm_st_spec){kvm_str_of(names[i]), KVM_F32, 1, {n}};
    TRY(kvm_st_begin(&w, own, path, spec, ARRAYS, meta, err));
    for (int i = 0; i < ARRAYS; i++)
        TRY(kvm_st_append(w, all[i], sizeof(float) * (size_t)n, err));
    return kvm_st_publish(w, NULL, err);
}

kvm_status kvm_distill_save(kvm_distill *d, const kvm_distill_progress *p,
                            const char *config, kvm_str path, kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_reserve(&own, room, err));
    const kvm_status s = save(d, p, config, path, &own, err);
    kvm_arena_free(&own);
    return s;
}

/* the first point is the closed form, whose loss the figures name */
static kvm_status read_curve(json_t **curve, kvm_st *st, kvm_str path, kvm_arena *own,
                             kvm_err *err)
{
    kvm_str text;
    kvm_jat parsed;
    TRY(kvm_meta_str(st, "curve", &text, err));
    TRY(kvm_json_parse(&parsed, own, text, path, err));
    const json_t *first = json_array_get(parsed.v, 0);
    if (!json_is_number(json_object_get(first, "kl")))
        return kvm_json_fail(err, KVM_FORMAT, parsed, "the curve is no list of points");
    *curve = kvm_json_own(own, json_deep_copy(parsed.v));
    return *curve ? KVM_OK : kvm_nomem(err, own);
}

/* metadata as it was written, then who wrote it */
static kvm_status check_metadata(const kvm_st *st, const char *config, kvm_arena *own,
                                 kvm_err *err)
{
    kvm_str value, sha;
    char hex[65];
    json_t *meta = kvm_json_own(own, json_object());
    if (!meta) return kvm_nomem(err, own);
    TRY(kvm_meta_format(st, FORMAT, err));
    for (int i = 0; i < TOLD; i++) {
        TRY(kvm_meta_str(st, told[i], &value, err));
        TRY(kvm_meta_put(meta, told[i], value, err));
    }
    TRY(kvm_meta_str(st, "sha", &sha, err));
    TRY(hash_metadata(meta, hex, own, err));
    if (!kvm_str_eq(sha, kvm_str_of(hex)))
        return kvm_fail(err, KVM_FORMAT, "%s: metadata is not what was written",
                        kvm_st_path(st).at);
    TRY(kvm_meta_str(st, "config", &value, err));
    if (kvm_str_eq(value, kvm_str_of(config))) return KVM_OK;
    return kvm_fail(
        err, KVM_MISMATCH,
        "%s: a checkpoint of another distillation (models, translator, lessons, "
        "options, backend or version differ); remove it to begin anew",
        kvm_st_path(st).at);
}

/* an array as it was written, of numbers: of others, layers complain far from the
 * cause */
static kvm_status need_array(const kvm_st *st, int i, ptrdiff_t n, const float **out,
                             kvm_err *err)
{
    const kvm_st_tensor *t;
    kvm_str sha;
    char hex[65];
    TRY(kvm_st_need(st, kvm_str_of(names[i]), KVM_F32, 1, &n, &t, err));
    const float *x = t->t.data;
    TRY(kvm_meta_str(st, told[SHAS + i], &sha, err));
    TRY(hash_array(x, n, hex, err));
    if (!kvm_str_eq(sha, kvm_str_of(hex)))
        return kvm_fail(err, KVM_FORMAT, "%s: %s is not what was written",
                        kvm_st_path(st).at, names[i]);
    for (ptrdiff_t k = 0; k < n; k++)
        if (!isfinite(x[k]))
            return kvm_fail(err, KVM_FORMAT, "%s: number %td of %s is not finite",
                            kvm_st_path(st).at, k, names[i]);
    *out = x;
    return KVM_OK;
}

static kvm_status load(kvm_distill *d, kvm_distill_progress *p, const char *config,
                       ptrdiff_t most, kvm_str path, kvm_arena *own, kvm_err *err)
{
    kvm_st *st;
    json_t *curve;
    int64_t steps, best_step;
    double best_kl;
    float *all[ARRAYS];
    const ptrdiff_t n = kvm_distill_parameters(d);
    const float *found[ARRAYS];
    TRY(kvm_st_open(&st, own, path, err));
    TRY(check_metadata(st, config, own, err));
    TRY(kvm_meta_i64(st, "steps", 0, most, &steps, err));
    TRY(kvm_meta_i64(st, "best_step", 0, steps, &best_step, err));
    TRY(kvm_meta_f64(st, "best_kl", &best_kl, err));
    TRY(read_curve(&curve, st, path, own, err));
    for (int i = 0; i < ARRAYS; i++) TRY(need_array(st, i, n, &found[i], err));
    if (json_array_extend(p->curve, curve)) return kvm_nomem(err, own);
    arrays(d, p, all); /* nothing is written before all is there */
    for (int i = 0; i < ARRAYS; i++)
        memcpy(all[i], found[i], sizeof *found[i] * (size_t)n);
    *kvm_distill_steps(d) = (ptrdiff_t)steps;
    p->best_step = (ptrdiff_t)best_step;
    p->best_kl = best_kl < 0 ? HUGE_VAL : best_kl;
    return KVM_OK;
}

kvm_status kvm_distill_load(kvm_distill *d, kvm_distill_progress *p, const char *config,
                            ptrdiff_t steps, kvm_str path, kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_reserve(&own, room, err));
    kvm_status s = load(d, p, config, steps, path, &own, err);
    kvm_arena_free(&own);
    if (s == KVM_FORMAT || s == KVM_NOTFOUND || s == KVM_SHAPE || s == KVM_DTYPE)
        s = kvm_err_prefix(err, s, "a damaged checkpoint; remove it to begin anew");
    if (s == KVM_VERSION)
        s = kvm_err_prefix(err, s, "an older checkpoint; remove it to begin anew");
    return s;
}
