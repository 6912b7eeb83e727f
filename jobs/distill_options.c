#include "jobs/distill_options.h"

#include <math.h>

#include "jobs/open.h"
#include "jobs/params.h"

kvm_status kvm_distill_read_options(kvm_distill_options *o, kvm_job *j, kvm_err *err)
{
    TRY(kvm_job_i64(j, "steps", 400, 1, 1000000, &o->steps, err));
    TRY(kvm_job_i64(j, "batch", 8, 1, 4096, &o->batch, err));
    TRY(kvm_job_i64(j, "after", 64, 1, 65536, &o->after, err));
    TRY(kvm_job_i64(j, "prefix", 0, 0, INT32_MAX, &o->prefix, err));
    TRY(kvm_job_i64(j, "warmup", 20, 0, 1000000, &o->warmup, err));
    TRY(kvm_job_i64(j, "validate", 50, 1, 1000000, &o->validate, err));
    TRY(kvm_job_i64(j, "lessons", 0, 0, INT32_MAX, &o->lessons, err));
    TRY(kvm_job_i64(j, "native_top", 0, 0, INT32_MAX, &o->top, err));
    TRY(kvm_job_i64(j, "memory_mib", 4096, 1, 1 << 24, &o->memory_mib, err));
    TRY(kvm_job_i64(j, "seed", 1, 0, INT64_MAX, &o->seed, err));
    TRY(kvm_job_i64(j, "split_seed", 1, 0, INT64_MAX, &o->split_seed, err));
    TRY(kvm_job_i64(j, "sequences", 0, KVM_LEAST_SEQUENCES, INT32_MAX, &o->sequences,
                    err));
    TRY(kvm_job_i64(j, "tokens", 0, 2, INT32_MAX, &o->tokens, err));
    TRY(kvm_job_f64(j, "rate", 3e-4, 1e-12, 1, &o->rate, err));
    TRY(kvm_job_f64(j, "decay", 0, 0, 1, &o->decay, err));
    TRY(kvm_job_f64(j, "clip", 1, 0, 1e9, &o->clip, err));
    TRY(kvm_job_f64(j, "held_out", 0.2, 0.01, 0.9, &o->held_out, err));
    TRY(kvm_param_dtype(j, &o->dtype, err));
    if (o->after < o->tokens) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, kvm_json_get(j->params, j->keep, "after"),
                         "is %td, must leave a prefix of a sequence's %td tokens",
                         o->after, o->tokens);
}

kvm_status kvm_distill_warning(kvm_str *warning, kvm_job *j, kvm_err *err)
{
    kvm_distill_options o;
    *warning = KVM_STR("");
    TRY(kvm_distill_read_options(&o, j, err));
    if (o.warmup < o.steps) return KVM_OK;
    *warning = kvm_str_fmt(j->keep,
                           "distill.warmup is %td of %td steps: the rate still rises "
                           "when training ends; give more steps, or a shorter warmup",
                           o.warmup, o.steps);
    return warning->at ? KVM_OK : kvm_nomem(err, j->keep);
}

kvm_status kvm_distill_fits(kvm_job *j, const kvm_distill_options *o, double bytes,
                            ptrdiff_t lessons, const char *what, kvm_err *err)
{
    if (bytes <= (double)o->memory_mib * 1048576) return KVM_OK;
    return kvm_json_fail(
        err, KVM_RANGE, kvm_json_get(j->params, j->keep, "memory_mib"),
        "is %td, and %td lessons take %s%.0f MiB: raise it, or ask for "
        "fewer lessons, shorter prefixes or fewer tokens after them",
        o->memory_mib, lessons, what, ceil(bytes / 1048576));
}

/* lessons that the split of the sequences gives: n[0] to learn from, n[1] to validate
 * on */
static kvm_status count_lessons(const kvm_distill_options *o, kvm_arena *keep,
                                ptrdiff_t n[2], kvm_err *err)
{
    kvm_split *of;
    ptrdiff_t each[KVM_SPLITS] = {0};
    TRY(kvm_split_sequences(&of, o->sequences, (uint64_t)o->split_seed, o->held_out,
                            keep, err));
    for (ptrdiff_t s = 0; s < o->sequences; s++) each[of[s]]++;
    for (int k = 0; k < 2; k++) {
        const ptrdiff_t all = each[k ? KVM_CHOOSE : KVM_FIT];
        n[k] = o->lessons > 0 && o->lessons < all ? o->lessons : all;
    }
    return KVM_OK;
}

/* a batch that was asked for and holds a lesson twice */
static kvm_status check_batch(kvm_job *j, const kvm_distill_options *o,
                              ptrdiff_t lessons, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(j->params, j->keep, "batch");
    if (!kvm_json_has(at) || o->batch <= lessons) return KVM_OK;
    return kvm_json_fail(err, KVM_RANGE, at,
                         "is %td, and there are %td lessons to learn from: give a "
                         "smaller batch, or more sequences or lessons",
                         o->batch, lessons);
}

/* tokens that an indexer chooses at a time; 0: there is none */
static ptrdiff_t block_of(const kvm_model *m)
{
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        if (o->kind == KVM_OBJECT_INDEX_KEY) return o->block;
    }
    return 0;
}

kvm_status kvm_distill_plan_fits(kvm_job *j, const kvm_outline *outline,
                                 const kvm_shapes *source, const kvm_shapes *target,
                                 const kvm_model *model, kvm_err *err)
{
    kvm_distill_options o;
    ptrdiff_t each_split[2];
    const ptrdiff_t vocab = kvm_model_info_of(model)->vocab;
    TRY(kvm_distill_read_options(&o, j, err));
    TRY(count_lessons(&o, j->keep, each_split, err));
    TRY(check_batch(j, &o, each_split[0], err));
    const ptrdiff_t lessons = each_split[0] + each_split[1];
    const kvm_lesson_size size = kvm_lesson_size_most(
        outline, source, target, block_of(model), vocab, kvm_said_top(vocab, o.top));
    const ptrdiff_t all = o.tokens - o.after;
    const ptrdiff_t prefix = o.prefix > 0 && o.prefix < all ? o.prefix : all;
    const double each = (double)kvm_lesson_bytes(&size, prefix, o.after);
    return kvm_distill_fits(j, &o, each * (double)lessons, lessons, "up to ", err);
}
