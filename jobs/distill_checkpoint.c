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
    TRY(kvm_json_canonical(&curve, own, p->curve, err));
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

static kvm_status load(kvm_distill *d, kvm_distill_progress *p, const char *config,
                       kvm_str path, kvm_arena *own, kvm_err *err)
{
    kvm_st *st;
    kvm_str found, curve;
    kvm_jat parsed;
    int64_t steps, best_step;
    double best_kl;
    float *all[ARRAYS];
    ptrdiff_t points;
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
    TRY(kvm_meta_str(st, "curve", &curve, err));
    TRY(kvm_json_parse(&parsed, own, curve, path, err));
    TRY(kvm_json_array(parsed, &points, err));
    json_t *copy = kvm_json_own(own, json_deep_copy(parsed.v));
    if (!copy) return kvm_nomem(err, own);
    for (int i = 0; i < ARRAYS; i++)
        TRY(kvm_st_need(st, kvm_str_of(names[i]), KVM_F32, 1, &n, &t[i], err));
    if (json_array_extend(p->curve, copy)) return kvm_nomem(err, own);
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
    const kvm_status s = load(d, p, config, path, &own, err);
    kvm_arena_free(&own);
    return s;
}
