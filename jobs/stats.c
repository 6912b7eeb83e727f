/* stats.c - second moments of one capture (its Gram matrices), or of two (their cross
 * products).
 *
 * A Gram file belongs to a capture and is shared by all partners of its model; a cross
 * file belongs to a pair of captures and serves both directions. */
#include "base/clock.h"
#include "jobs/open.h"
#include "translators/moments.h"

static const kvm_field params[] = {
    {"seed", KVM_FIELD_INT, true, "of the split by sequence", NULL, 0},
    {"held_out", KVM_FIELD_NUM, true,
     "fraction of the sequences that is kept from the fit", NULL, 0},
    {"memory_mib", KVM_FIELD_INT, false, "budget of sums and row blocks", NULL, 0},
    {0},
};

static kvm_status read_params(kvm_job *j, kvm_moments_options *o, kvm_err *err)
{
    ptrdiff_t seed, mib;
    TRY(kvm_job_i64(j, "seed", 0, 0, INT64_MAX, &seed, err));
    TRY(kvm_job_f64(j, "held_out", 0.2, 0.01, 0.9, &o->fraction, err));
    TRY(kvm_job_i64(j, "memory_mib", 1024, 1, 1 << 24, &mib, err));
    o->seed = (uint64_t)seed;
    o->budget = (size_t)mib << 20;
    return KVM_OK;
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    const kvm_job_input *a, *b = kvm_job_find_input(j, "b");
    kvm_compute *c;
    kvm_rows *rows_a, *rows_b;
    kvm_str path;
    kvm_moments_options o = {.progress = j->progress};
    TRY(kvm_job_need_input(j, "a", &a, err));
    TRY(kvm_job_compute(j, &c, err));
    TRY(read_params(j, &o, err));
    TRY(kvm_job_path(j, "moments.safetensors", &path, err));
    TRY(kvm_rows_open(&rows_a, j->keep, a->path, err));
    o.hash_a = a->sha;
    if (b) {
        o.hash_b = b->sha;
        TRY(kvm_rows_open(&rows_b, j->keep, b->path, err));
        TRY(kvm_rows_same(rows_a, rows_b, err));
        TRY(kvm_moments_cross(c, rows_a, rows_b, &o, path, NULL, err));
    } else {
        TRY(kvm_moments_gram(c, rows_a, &o, path, NULL, err));
    }
    TRY(j->host->output(j, "moments", path, err));
    return kvm_job_put_cost(j, started, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    kvm_moments_options o = {0};
    return read_params(j, &o, err);
}

static const char *const inputs[] = {"a", "b?", NULL};
static const char *const outputs[] = {"moments", "cost", NULL};
const kvm_job_kind kvm_job_stats = {
    .id = KVM_JOB_STATS,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "calibration",
    .run = run,
    .check = check,
};
