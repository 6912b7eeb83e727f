#include "jobs/distill_checkpoint.h"

#include <math.h>

#include "translators/training.h"

static kvm_training training_of(kvm_distill *d, const kvm_distill_progress *p,
                                const char *config)
{
    return (kvm_training){
        .format = "kvmill.distill_checkpoint.v2",
        .what = "distillation (models, translator, lessons, options, backend or "
                "version differ)",
        .config = config,
        .told = {"curve", "steps", "best_step", "best_kl"},
        .name = {"p", "m", "v", "best"},
        .array = {kvm_distill_values(d), kvm_distill_moment(d, 0),
                  kvm_distill_moment(d, 1), p->best},
        .n = kvm_distill_parameters(d),
    };
}

static kvm_status put_strings(json_t *meta, kvm_distill *d,
                              const kvm_distill_progress *p, kvm_arena *own,
                              kvm_err *err)
{
    kvm_str curve;
    TRY(kvm_json_pretty(&curve, own, p->curve, err)); /* keeps the order of keys */
    TRY(kvm_meta_put(meta, "curve", curve, err));
    TRY(kvm_meta_putf(meta, err, "steps", "%td", *kvm_distill_steps(d)));
    TRY(kvm_meta_putf(meta, err, "best_step", "%td", p->best_step));
    return kvm_meta_putf(meta, err, "best_kl", "%.17g",
                         isfinite(p->best_kl) ? p->best_kl : -1.0);
}

kvm_status kvm_distill_save(kvm_distill *d, const kvm_distill_progress *p,
                            const char *config, kvm_str path, kvm_err *err)
{
    const kvm_training t = training_of(d, p, config);
    kvm_arena own = {0};
    /* address space for a curve of any length */
    TRY(kvm_arena_reserve(&own, (size_t)1 << 33, err));
    json_t *meta = kvm_json_own(&own, json_object());
    kvm_status s = meta ? put_strings(meta, d, p, &own, err) : kvm_nomem(err, &own);
    if (!s) s = kvm_training_save(&t, meta, path, err);
    kvm_arena_free(&own);
    return s;
}

/* the first point is the closed form, whose loss the figures name */
static kvm_status read_curve(json_t **curve, const kvm_st *st, kvm_arena *own,
                             kvm_err *err)
{
    kvm_str text;
    kvm_jat parsed;
    TRY(kvm_meta_str(st, "curve", &text, err));
    TRY(kvm_json_parse(&parsed, own, text, kvm_st_path(st), err));
    const json_t *first = json_array_get(parsed.v, 0);
    if (!json_is_number(json_object_get(first, "kl")))
        return kvm_json_fail(err, KVM_FORMAT, parsed, "the curve is no list of points");
    *curve = kvm_json_own(own, json_deep_copy(parsed.v));
    return *curve ? KVM_OK : kvm_nomem(err, own);
}

typedef struct reading {
    kvm_distill *d;
    kvm_distill_progress *p;
    ptrdiff_t most; /* steps */
} reading;

static kvm_status read_strings(void *ctx, const kvm_st *st, kvm_arena *own,
                               kvm_err *err)
{
    const reading *r = ctx;
    json_t *curve;
    int64_t steps, best_step;
    double best_kl;
    TRY(kvm_meta_i64(st, "steps", 0, r->most, &steps, err));
    TRY(kvm_meta_i64(st, "best_step", 0, steps, &best_step, err));
    TRY(kvm_meta_f64(st, "best_kl", &best_kl, err));
    TRY(read_curve(&curve, st, own, err));
    if (json_array_extend(r->p->curve, curve)) return kvm_nomem(err, own);
    *kvm_distill_steps(r->d) = (ptrdiff_t)steps;
    r->p->best_step = (ptrdiff_t)best_step;
    r->p->best_kl = best_kl < 0 ? HUGE_VAL : best_kl;
    return KVM_OK;
}

kvm_status kvm_distill_load(kvm_distill *d, kvm_distill_progress *p, const char *config,
                            ptrdiff_t steps, kvm_str path, kvm_err *err)
{
    const kvm_training t = training_of(d, p, config);
    reading r = {d, p, steps};
    return kvm_training_load(&t, read_strings, &r, path, err);
}
