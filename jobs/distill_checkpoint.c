#include "jobs/distill_checkpoint.h"

#include <math.h>
#include <string.h>

#include "translators/meta.h"

#define FORMAT "kvmill.distill_checkpoint.v1"

enum { ARRAYS = 4 };
static const char *const names[ARRAYS] = {"p", "m", "v", "best"};

static void arrays(kvm_distill *d, const kvm_distill_progress *p, float *all[ARRAYS])
{
    all[0] = kvm_distill_values(d);
    all[1] = kvm_distill_moment(d, 0);
    all[2] = kvm_distill_moment(d, 1);
    all[3] = p->best;
}

static kvm_status metadata(kvm_distill *d, const kvm_distill_progress *p,
                           const char *config, kvm_arena *own, json_t **meta,
                           kvm_err *err)
{
    kvm_str curve;
    *meta = kvm_json_own(own, json_object());
    if (!*meta) return kvm_nomem(err, own);
    TRY(kvm_json_pretty(&curve, own, p->curve, err)); /* keeps the order of keys */
    TRY(kvm_meta_put(*meta, "format", KVM_STR(FORMAT), err));
    TRY(kvm_meta_put(*meta, "config", kvm_str_of(config), err));
    TRY(kvm_meta_put(*meta, "curve", curve, err));
    TRY(kvm_meta_putf(*meta, err, "steps", "%td", *kvm_distill_steps(d)));
    TRY(kvm_meta_putf(*meta, err, "best_step", "%td", p->best_step));
    return kvm_meta_putf(*meta, err, "best_kl", "%.17g",
                         isfinite(p->best_kl) ? p->best_kl : -1.0);
}

static kvm_status save(kvm_distill *d, const kvm_distill_progress *p,
                       const char *config, kvm_str path, kvm_arena *own, kvm_err *err)
{
    json_t *meta;
    float *all[ARRAYS];
    kvm_st_spec spec[ARRAYS];
    kvm_st_writer *w;
    const ptrdiff_t n = kvm_distill_parameters(d);
    arrays(d, p, all);
    TRY(metadata(d, p, config, own, &meta, err));
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
    TRY(kvm_arena_init(&own, (size_t)64 << 20, err));
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

/* of numbers that are not, layers complain far from the cause */
static kvm_status all_finite(const kvm_st_tensor *t, const char *name, ptrdiff_t n,
                             kvm_str path, kvm_err *err)
{
    const float *x = t->t.data;
    for (ptrdiff_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return kvm_fail(err, KVM_FORMAT, "%.*s: number %td of %s is not finite",
                            KVM_STR_ARG(path), i, name);
    return KVM_OK;
}

static kvm_status load(kvm_distill *d, kvm_distill_progress *p, const char *config,
                       kvm_str path, kvm_arena *own, kvm_err *err)
{
    kvm_st *st;
    kvm_str found;
    json_t *curve;
    int64_t steps, best_step;
    double best_kl;
    float *all[ARRAYS];
    const ptrdiff_t n = kvm_distill_parameters(d);
    const kvm_st_tensor *t[ARRAYS];
    TRY(kvm_st_open(&st, own, path, err));
    TRY(kvm_meta_format(st, FORMAT, err));
    TRY(kvm_meta_str(st, "config", &found, err));
    if (!kvm_str_eq(found, kvm_str_of(config)))
        return kvm_fail(
            err, KVM_MISMATCH,
            "%.*s: a checkpoint of another distillation (models, translator, "
            "lessons or options differ); remove it to begin anew",
            KVM_STR_ARG(path));
    TRY(kvm_meta_i64(st, "steps", 0, INT32_MAX, &steps, err));
    TRY(kvm_meta_i64(st, "best_step", 0, INT32_MAX, &best_step, err));
    TRY(kvm_meta_f64(st, "best_kl", &best_kl, err));
    TRY(read_curve(&curve, st, path, own, err));
    for (int i = 0; i < ARRAYS; i++) {
        TRY(kvm_st_need(st, kvm_str_of(names[i]), KVM_F32, 1, &n, &t[i], err));
        TRY(all_finite(t[i], names[i], n, path, err));
    }
    if (json_array_extend(p->curve, curve)) return kvm_nomem(err, own);
    arrays(d, p, all); /* nothing is written before all is there */
    for (int i = 0; i < ARRAYS; i++) memcpy(all[i], t[i]->t.data, t[i]->bytes);
    *kvm_distill_steps(d) = (ptrdiff_t)steps;
    p->best_step = (ptrdiff_t)best_step;
    p->best_kl = best_kl < 0 ? HUGE_VAL : best_kl;
    return KVM_OK;
}

kvm_status kvm_distill_load(kvm_distill *d, kvm_distill_progress *p, const char *config,
                            kvm_str path, kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_reserve(&own, (size_t)1 << 34, err));
    kvm_status s = load(d, p, config, path, &own, err);
    kvm_arena_free(&own);
    if (s == KVM_FORMAT)
        s = kvm_err_prefix(err, s, "a damaged checkpoint; remove it to begin anew");
    return s;
}
