#include "translators/moments.h"

#include <stdio.h>

#include "base/hash.h"
#include "translators/meta.h"
#include "translators/moments_internal.h"

typedef struct job {
    kvm_summing sum;
    const kvm_moments_options *o;
    double fraction;
    kvm_arena *own; /* small things: names, indices, vectors */
    ptrdiff_t *index[KVM_SPLITS], n[KVM_SPLITS];
    kvm_panels panels_a[KVM_SPACES], panels_b[KVM_SPACES];
    kvm_block_id blocks[KVM_BLOCKS];
    ptrdiff_t block_count;
} job;

/* a row for every token: states have none */
static bool holds(const kvm_rows *r, kvm_space s)
{
    return kvm_rows_info_of(r)->shapes.of[s] != NULL && !kvm_space_once(s);
}

static kvm_status panels_of(const kvm_rows *r, kvm_panels *out, kvm_arena *own,
                            kvm_err *err)
{
    const kvm_shapes *shapes = &kvm_rows_info_of(r)->shapes;
    for (int s = 0; s < KVM_SPACES; s++)
        if (shapes->of[s])
            TRY(kvm_moments__panels(&out[s], own, shapes->of[s], shapes->layers, err));
    return KVM_OK;
}

static kvm_status choose_blocks(job *j, kvm_err *err)
{
    const kvm_rows *b = j->sum.b ? j->sum.b : j->sum.a;
    const kvm_moments_options *o = j->o;
    for (int s = 0; !o->blocks && s < KVM_SPACES; s++)
        if (holds(j->sum.a, (kvm_space)s) && holds(b, (kvm_space)s))
            j->blocks[j->block_count++] = (kvm_block_id){(kvm_space)s, (kvm_space)s};
    if (o->blocks && (o->block_count < 1 || o->block_count > KVM_BLOCKS))
        return kvm_fail(err, KVM_RANGE, "moments of %td blocks", o->block_count);
    for (ptrdiff_t i = 0; o->blocks && i < o->block_count; i++) {
        const kvm_block_id id = j->blocks[j->block_count++] = o->blocks[i];
        if (holds(j->sum.a, id.a) && holds(b, id.b) && (j->sum.b || id.a <= id.b))
            continue;
        return kvm_fail(err, KVM_RANGE, "%s, %s: there is no block of %s and %s",
                        kvm_rows_path(j->sum.a).at, kvm_rows_path(b).at,
                        kvm_space_name(id.a), kvm_space_name(id.b));
    }
    if (j->block_count == 0)
        return kvm_fail(err, KVM_MISMATCH, "%s and %s hold no rows of one space",
                        kvm_rows_path(j->sum.a).at, kvm_rows_path(b).at);
    return KVM_OK;
}

static kvm_status make_panels(job *j, kvm_err *err)
{
    TRY(panels_of(j->sum.a, j->panels_a, j->own, err));
    TRY(panels_of(j->sum.b ? j->sum.b : j->sum.a, j->panels_b, j->own, err));
    return choose_blocks(j, err);
}

static kvm_block_layout layout(const job *j, ptrdiff_t block)
{
    const kvm_block_id id = j->blocks[block];
    return kvm_moments__layout(id, j->sum.b != NULL, &j->panels_a[id.a],
                               &j->panels_b[id.b]);
}

static kvm_status put_side(json_t *meta, const char *side, const kvm_rows *r,
                           const char *hash, kvm_arena *own, kvm_err *err)
{
    char key[32], computed[65];
    const kvm_rows_info *i = kvm_rows_info_of(r);
    if (!hash) {
        TRY(kvm_sha_file(kvm_rows_path(r), computed, *own, err));
        hash = computed;
    }
    const struct {
        const char *key;
        kvm_str value;
    } text[] = {{"capture", kvm_str_of(hash)},
                {"model", i->model},
                {"model_name", i->model_name}};
    for (size_t t = 0; t < sizeof text / sizeof *text; t++) {
        snprintf(key, sizeof key, "%s%s", side, text[t].key);
        TRY(kvm_meta_put(meta, key, text[t].value, err));
    }
    return kvm_meta_put_shapes(meta, side, &i->shapes, err);
}

/* the file up to its sums */
static kvm_status begin(job *j, kvm_str path, kvm_st_writer **st, kvm_err *err)
{
    json_t *meta = kvm_json_own(j->own, json_object());
    if (!meta) return kvm_nomem(err, j->own);
    TRY(kvm_meta_put(meta, "format", KVM_STR(KVM_MOMENTS_FORMAT), err));
    TRY(kvm_meta_putf(meta, err, "kind", "%s", j->sum.b ? "cross" : "gram"));
    TRY(kvm_meta_putf(meta, err, "split.seed", "%lld", (long long)j->o->seed));
    TRY(kvm_meta_putf(meta, err, "split.fraction", "%.17g", j->fraction));
    TRY(put_side(meta, "a.", j->sum.a, j->o->hash_a, j->own, err));
    if (j->sum.b) TRY(put_side(meta, "b.", j->sum.b, j->o->hash_b, j->own, err));
    TRY(kvm_moments__put_blocks(meta, j->blocks, j->block_count, err));
    ptrdiff_t specs = 1, n = 0;
    for (ptrdiff_t i = 0; i < j->block_count; i++) {
        const kvm_block_layout l = layout(j, i);
        specs += KVM_SPLITS * kvm_moments__spec_count(&l);
    }
    kvm_st_spec *spec = kvm_new(j->own, kvm_st_spec, specs);
    if (!spec) return kvm_nomem(err, j->own);
    spec[n++] = (kvm_st_spec){KVM_STR("rows"), KVM_I64, 1, {KVM_SPLITS}};
    for (ptrdiff_t i = 0; i < j->block_count; i++)
        for (int p = 0; p < KVM_SPLITS; p++) {
            const kvm_block_layout l = layout(j, i);
            TRY(kvm_moments__specs(spec, &n, j->own, &l, (kvm_split)p, err));
        }
    TRY(kvm_st_begin(st, j->own, path, spec, n, meta, err));
    int64_t rows[KVM_SPLITS];
    for (int p = 0; p < KVM_SPLITS; p++) rows[p] = j->n[p];
    return kvm_st_append(*st, rows, sizeof rows, err);
}

/* the most that one pass over one panel takes, over all blocks */
static size_t least(const job *j)
{
    size_t most = 0;
    for (ptrdiff_t block = 0; block < j->block_count; block++) {
        const kvm_block_layout l = layout(j, block);
        const size_t bytes = kvm_moments__least(&l);
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t kvm_moments_least_budget(const kvm_rows *a, const kvm_rows *b,
                                const kvm_moments_options *o)
{
    kvm_arena own = {0};
    job j = {.sum = {.a = a, .b = b}, .o = o, .own = &own};
    size_t bytes = SIZE_MAX;
    if (!kvm_arena_init(&own, (size_t)16 << 20, NULL) && !make_panels(&j, NULL))
        bytes = least(&j);
    kvm_arena_free(&own);
    return bytes;
}

/* ---- dealing out ---- */

static double split_cost(const job *j, int p, double row)
{
    return row * (double)(j->n[p] + 1);
}

static double all_cost(const job *j)
{
    double sum = 0;
    for (ptrdiff_t block = 0; block < j->block_count; block++) {
        const kvm_block_layout l = layout(j, block);
        for (int p = 0; p < KVM_SPLITS; p++)
            for (ptrdiff_t r = 0; r < l.a->count; r++)
                sum += split_cost(j, p, kvm_moments__row_cost(&l, r));
    }
    return sum;
}

/* Rows of tiles in the order of the file: a row is of the share in which the middle of
 * its cost lies, so each share is a run of them. */
typedef struct dealing {
    double all, before;
    int parts;
} dealing;

static dealing deal(const job *j)
{
    return (dealing){.all = all_cost(j), .parts = j->o->parts > 1 ? j->o->parts : 1};
}

/* the rows of a block and split that are of a share, and `bytes` of them */
static kvm_tile_rows rows_of_share(const job *j, dealing *d, const kvm_block_layout *l,
                                   int p, int share, size_t *bytes)
{
    kvm_tile_rows r = {0};
    for (ptrdiff_t i = 0; i < l->a->count; i++) {
        const double cost = split_cost(j, p, kvm_moments__row_cost(l, i));
        const int of = (int)((d->before + cost / 2) / d->all * d->parts);
        d->before += cost;
        if (of != share) continue;
        if (r.last == 0) r.first = i;
        r.last = i + 1;
        *bytes += kvm_moments__row_bytes(l, i);
    }
    return r;
}

static kvm_status sum_share(job *j, kvm_arena *passes, kvm_err *err)
{
    for (int counting = 1; counting >= 0; counting--) {
        dealing d = deal(j);
        size_t bytes = 0;
        for (ptrdiff_t i = 0; i < j->block_count; i++) {
            const kvm_block_layout l = layout(j, i);
            for (int p = 0; p < KVM_SPLITS; p++) {
                const kvm_tile_rows r = rows_of_share(j, &d, &l, p, j->o->part, &bytes);
                if (counting)
                    j->sum.total += (double)j->n[p] *
                                    (double)kvm_moments__passes(&l, r, j->sum.budget);
                else if (r.last > r.first)
                    TRY(kvm_moments__sum(&j->sum, &l, r, j->index[p], j->n[p], *j->own,
                                         passes, err));
            }
        }
    }
    return KVM_OK;
}

static size_t bytes_of_share(const job *j, int share)
{
    dealing d = deal(j);
    size_t bytes = 0;
    for (ptrdiff_t i = 0; i < j->block_count; i++) {
        const kvm_block_layout l = layout(j, i);
        for (int p = 0; p < KVM_SPLITS; p++) rows_of_share(j, &d, &l, p, share, &bytes);
    }
    return bytes;
}

/* ---- files ---- */

static kvm_status sum_all(job *j, kvm_str path, kvm_arena *passes, char sha_hex[65],
                          kvm_err *err)
{
    const bool bare = j->o->parts > 1;
    if (bare && (j->o->part < 0 || j->o->part >= j->o->parts))
        return kvm_fail(err, KVM_USAGE, "share %d of %d does not exist", j->o->part,
                        j->o->parts);
    TRY(bare ? kvm_out_begin(&j->sum.to.share, j->own, path, err)
             : begin(j, path, &j->sum.to.file, err));
    TRY(sum_share(j, passes, err));
    return bare ? kvm_out_publish(j->sum.to.share, sha_hex, err)
                : kvm_st_publish(j->sum.to.file, sha_hex, err);
}

static kvm_status join(job *j, const kvm_str *share, kvm_str path, char sha_hex[65],
                       kvm_err *err)
{
    kvm_st_writer *st;
    TRY(begin(j, path, &st, err));
    for (int i = 0; i < j->o->parts; i++) {
        kvm_str bytes;
        TRY(kvm_file_map(&bytes, j->own, share[i], err));
        if ((size_t)bytes.len != bytes_of_share(j, i))
            return kvm_fail(
                err, KVM_MISMATCH, "%.*s: has %td bytes, share %d of %d %zu",
                KVM_STR_ARG(share[i]), bytes.len, i, j->o->parts, bytes_of_share(j, i));
        TRY(kvm_st_append(st, bytes.at, (size_t)bytes.len, err));
        kvm_file_leave(bytes.at, (size_t)bytes.len);
    }
    return kvm_st_publish(st, sha_hex, err);
}

static kvm_status prepare(job *j, kvm_err *err)
{
    const size_t names = (size_t)1 << 30; /* address space; touched as needed */
    TRY(kvm_arena_init(j->own, names, err));
    TRY(make_panels(j, err));
    for (int p = 0; p < KVM_SPLITS; p++)
        TRY(kvm_rows_split(j->sum.a, j->o->seed, j->fraction, (kvm_split)p, j->own,
                           &j->index[p], &j->n[p], err));
    return KVM_OK;
}

static job new_job(const kvm_rows *a, const kvm_rows *b, const kvm_moments_options *o,
                   kvm_arena *own)
{
    return (job){.sum = {.progress = o->progress,
                         .a = a,
                         .b = b,
                         .budget = o->budget ? o->budget : (size_t)1 << 30},
                 .o = o,
                 .fraction = o->fraction == 0 ? 0.2 : o->fraction,
                 .own = own};
}

static kvm_status run(kvm_compute *c, const kvm_rows *a, const kvm_rows *b,
                      const kvm_moments_options *o, kvm_str path, char sha_hex[65],
                      kvm_err *err)
{
    enum { MIB = 1 << 20 };
    kvm_arena own = {0}, passes = {0};
    job j = new_job(a, b, o, &own);
    j.sum.c = c;
    kvm_status s = prepare(&j, err);
    if (!s && least(&j) > j.sum.budget)
        s = kvm_fail(err, KVM_RANGE,
                     "%s: moments need a memory budget of at least %zu MiB, not %zu",
                     kvm_rows_path(a).at, least(&j) / MIB + 1, j.sum.budget / MIB);
    if (!s) s = kvm_arena_init(&passes, j.sum.budget + (size_t)64 * MIB, err);
    if (!s) s = sum_all(&j, path, &passes, sha_hex, err);
    kvm_arena_free(&passes);
    kvm_arena_free(&own);
    return s;
}

kvm_status kvm_moments_join(const kvm_rows *a, const kvm_rows *b,
                            const kvm_moments_options *o, const kvm_str *share,
                            kvm_str path, char sha_hex[65], kvm_err *err)
{
    kvm_arena own = {0};
    job j = new_job(a, b, o, &own);
    kvm_status s = prepare(&j, err);
    if (!s) s = join(&j, share, path, sha_hex, err);
    kvm_arena_free(&own);
    return s;
}

kvm_status kvm_moments_gram(kvm_compute *c, const kvm_rows *a,
                            const kvm_moments_options *o, kvm_str path,
                            char sha_hex[65], kvm_err *err)
{
    return run(c, a, NULL, o, path, sha_hex, err);
}

kvm_status kvm_moments_cross(kvm_compute *c, const kvm_rows *a, const kvm_rows *b,
                             const kvm_moments_options *o, kvm_str path,
                             char sha_hex[65], kvm_err *err)
{
    TRY(kvm_rows_same(a, b, err));
    return run(c, a, b, o, path, sha_hex, err);
}
