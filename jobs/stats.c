/* stats.c - second moments of one capture (its Gram matrices), or of two (their cross
 * products).
 *
 * A Gram file belongs to a capture and is shared by all partners of its model; a cross
 * file belongs to a pair of captures and serves both directions. Ranks take a share of
 * its sums each (moments.h). */
#include <stdio.h>

#include "base/clock.h"
#include "base/file.h"
#include "jobs/open.h"
#include "translators/moments.h"

static const kvm_field params[] = {
    {"seed", KVM_FIELD_INT, true, "of the split by sequence", NULL, 0},
    {"held_out", KVM_FIELD_NUM, true,
     "fraction of the sequences that is kept from the fit", NULL, 0},
    {"memory_mib", KVM_FIELD_INT, false, "budget of sums and row blocks", NULL, 0},
    {"blocks", KVM_FIELD_LIST, false,
     "products: a space with itself, or two as A+B (each space with itself)", NULL,
     KVM_FIELD_STR},
    {0},
};

static kvm_status read_blocks(kvm_job *j, kvm_moments_options *o, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(j->params, j->keep, "blocks");
    if (!kvm_json_has(list)) return KVM_OK;
    TRY(kvm_json_array(list, &o->block_count, err));
    kvm_block_id *id = kvm_new(j->keep, kvm_block_id, o->block_count);
    if (!id) return kvm_nomem(err, j->keep);
    for (ptrdiff_t i = 0; i < o->block_count; i++) {
        const kvm_jat at = kvm_json_item(list, j->keep, i);
        kvm_str name, a, b;
        TRY(kvm_json_str(at, &name, err));
        if (!kvm_str_cut(name, '+', &a, &b)) b = a;
        if (kvm_space_of_name(a, &id[i].a) || kvm_space_of_name(b, &id[i].b))
            return kvm_json_fail(err, KVM_USAGE, at, "is no product of two spaces");
    }
    o->blocks = id;
    return KVM_OK;
}

static kvm_status read_params(kvm_job *j, kvm_moments_options *o, kvm_err *err)
{
    ptrdiff_t seed, mib;
    TRY(kvm_job_i64(j, "seed", 0, 0, INT64_MAX, &seed, err));
    TRY(kvm_job_f64(j, "held_out", 0.2, 0.01, 0.9, &o->fraction, err));
    TRY(kvm_job_i64(j, "memory_mib", 1024, 1, 1 << 24, &mib, err));
    o->seed = (uint64_t)seed;
    o->budget = (size_t)mib << 20;
    return read_blocks(j, o, err);
}

static kvm_status share_path(kvm_job *j, int rank, kvm_str *path, kvm_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "moments.%d-%d", rank, j->team->size);
    return kvm_job_path(j, name, path, err);
}

static kvm_status sum(kvm_compute *c, const kvm_rows *a, const kvm_rows *b,
                      const kvm_moments_options *o, kvm_str path, kvm_err *err)
{
    return b ? kvm_moments_cross(c, a, b, o, path, NULL, err)
             : kvm_moments_gram(c, a, o, path, NULL, err);
}

/* every rank's share, then the one that leads puts them together */
static kvm_status sum_together(kvm_job *j, kvm_compute *c, const kvm_rows *a,
                               const kvm_rows *b, const kvm_moments_options *o,
                               kvm_str path, kvm_err *err)
{
    kvm_str *share = kvm_new(j->keep, kvm_str, o->parts);
    if (!share) return kvm_nomem(err, j->keep);
    for (int r = 0; r < o->parts; r++) TRY(share_path(j, r, &share[r], err));
    TRY(sum(c, a, b, o, share[o->part], err));
    TRY(kvm_team_wait(j->team, err));
    if (!kvm_team_leads(j->team)) return KVM_OK;
    TRY(kvm_moments_join(a, b, o, share, path, NULL, err));
    for (int r = 0; r < o->parts; r++) TRY(kvm_file_remove(share[r], err));
    return KVM_OK;
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    const kvm_job_input *a, *b = kvm_job_find_input(j, "b");
    kvm_compute *c;
    kvm_rows *rows_a, *rows_b = NULL;
    kvm_str path;
    kvm_moments_options o = {
        .progress = j->progress, .part = j->team->rank, .parts = j->team->size};
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
    }
    TRY(o.parts > 1 ? sum_together(j, c, rows_a, rows_b, &o, path, err)
                    : sum(c, rows_a, rows_b, &o, path, err));
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
