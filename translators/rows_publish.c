/* rows_publish.c - the spools of a capture's parts turned round into its file. */
#include <string.h>

#include "base/file.h"
#include "base/os.h"
#include "models/safetensors.h"
#include "translators/rows_spool.h"

enum { POSITION, SEQUENCE, INV_FREQ, FIRST_TRACK };

/* a part's spool as it is read */
typedef struct spool {
    const kvm_rows_writer *of; /* what its records look like */
    kvm_str path, bytes;
    kvm_held held;
} spool;

/* Of all parts: in one group where they share the sequences, in a group each where each
 * has layers of its own. A track is in the spools of one group. */
typedef struct spools {
    spool *at; /* (groups, each) */
    int groups, each;
    ptrdiff_t done, rows, tracks;
} spools;

/* bytes of tensor `part` from the record of n rows at `at` */
static kvm_status append_part(const kvm_rows_writer *w, kvm_st_writer *st, int part,
                              ptrdiff_t o, const char *at, ptrdiff_t n, kvm_err *err)
{
    int32_t head[2];
    memcpy(head, at, sizeof head);
    if (part == POSITION)
        return kvm_st_append(st, at + KVM_RECORD_HEAD, 4 * (size_t)n, err);
    if (part == SEQUENCE) {
        for (ptrdiff_t i = 0; i < n; i++) TRY(kvm_st_append(st, head, 4, err));
        return KVM_OK;
    }
    return kvm_st_append(st, at + kvm_rows__place(w, o, n),
                         (size_t)kvm_track__bytes(&w->track[o], n), err);
}

static kvm_status open_spool(const kvm_rows_writer *w, int p, spool *s, kvm_arena *own,
                             kvm_err *err)
{
    kvm_rows_writer *other;
    s->path = kvm_rows__spool(w, p, own);
    if (!s->path.at) return kvm_nomem(err, own);
    s->of = w;
    if (w->cut) {
        TRY(kvm_rows__part(&other, w, p, own, err));
        s->of = other;
    }
    TRY(kvm_file_map(&s->bytes, own, s->path, err));
    s->held = kvm_rows__scan(s->of, s->bytes);
    return KVM_OK;
}

/* behind the part before, or of the same sequences */
static bool follows(const spools *s, const kvm_held *h, const kvm_held *before)
{
    if (!before) return true;
    if (s->each == 1)
        return h->done == before->done && h->rows == before->rows &&
               h->last == before->last;
    return h->done == 0 || h->first > before->last;
}

static kvm_status open_spools(const kvm_rows_writer *w, spools *s, kvm_arena *own,
                              kvm_err *err)
{
    const kvm_held *before = NULL;
    *s = (spools){.at = kvm_new(own, spool, w->parts),
                  .groups = w->cut ? w->parts : 1,
                  .each = w->cut ? 1 : w->parts};
    if (!s->at) return kvm_nomem(err, own);
    for (int p = 0; p < w->parts; p++) {
        TRY(open_spool(w, p, &s->at[p], own, err));
        const kvm_held *h = &s->at[p].held;
        if (h->end != s->at[p].bytes.len || !follows(s, h, before))
            return kvm_fail(err, KVM_MISMATCH,
                            "%s: is no part of this capture, or not whole",
                            s->at[p].path.at);
        if (h->done > 0) before = h;
        if (p < s->each) {
            s->done += h->done;
            s->rows += h->rows;
        }
        if (p % s->each == 0) s->tracks += s->at[p].of->tracks;
    }
    if (s->done > 0) return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "%s: no sequence was captured", w->path.at);
}

/* from the spools of one group */
static kvm_status append_all(const spools *s, int group, kvm_st_writer *st, int part,
                             ptrdiff_t o, kvm_err *err)
{
    for (int p = 0; p < s->each; p++) {
        const spool *from = &s->at[group * s->each + p];
        const kvm_str bytes = from->bytes;
        ptrdiff_t size, n;
        int32_t sequence;
        for (ptrdiff_t at = KVM_SPOOL_HEAD; at < from->held.end; at += size) {
            n = kvm_rows__record(from->of, bytes, at, &sequence, &size);
            if (n < 0)
                return kvm_fail(err, KVM_IO, "%s: changed while it was read",
                                from->path.at);
            TRY(append_part(from->of, st, part, o, bytes.at + at, n, err));
        }
        kvm_file_leave(bytes.at, (size_t)bytes.len); /* may be larger than memory */
    }
    return KVM_OK;
}

static kvm_status describe(const kvm_rows_writer *w, const spools *all,
                           kvm_st_spec *spec, ptrdiff_t *n, kvm_arena *own,
                           kvm_err *err)
{
    spec[(*n)++] = (kvm_st_spec){KVM_STR("position"), KVM_I32, 1, {all->rows}};
    spec[(*n)++] = (kvm_st_spec){KVM_STR("sequence"), KVM_I32, 1, {all->rows}};
    if (w->info.rope.width)
        spec[(*n)++] = (kvm_st_spec){
            KVM_STR("rope.inv_freq"), KVM_F32, 1, {w->info.rope.width / 2}};
    for (int g = 0; g < all->groups; g++) {
        const kvm_rows_writer *of = all->at[g * all->each].of;
        for (ptrdiff_t o = 0; o < of->tracks; o++) {
            const kvm_track *t = &of->track[o];
            const kvm_str name = kvm_rows__name(own, t->space, t->layer);
            if (!name.at) return kvm_nomem(err, own);
            spec[(*n)++] = (kvm_st_spec){
                name, t->dtype, 2, {t->once ? all->done : all->rows, t->width}};
        }
    }
    return KVM_OK;
}

static kvm_status write_file(kvm_rows_writer *w, kvm_arena *own, char sha_hex[65],
                             kvm_err *err)
{
    spools all;
    ptrdiff_t specs = 0;
    TRY(open_spools(w, &all, own, err));
    kvm_st_spec *spec = kvm_new(own, kvm_st_spec, FIRST_TRACK + all.tracks);
    if (!spec) return kvm_nomem(err, own);
    TRY(describe(w, &all, spec, &specs, own, err));
    kvm_st_writer *st;
    TRY(kvm_st_begin(&st, own, w->path, spec, specs, w->meta, err));
    if (!sha_hex) kvm_st_unhashed(st);
    TRY(append_all(&all, 0, st, POSITION, 0, err));
    TRY(append_all(&all, 0, st, SEQUENCE, 0, err));
    if (w->info.rope.width)
        TRY(kvm_st_append(st, w->info.rope.inv_freq,
                          sizeof(float) * (size_t)(w->info.rope.width / 2), err));
    for (int g = 0; g < all.groups; g++)
        for (ptrdiff_t o = 0; o < all.at[g * all.each].of->tracks; o++)
            TRY(append_all(&all, g, st, FIRST_TRACK, o, err));
    return kvm_st_publish(st, sha_hex, err);
}

kvm_status kvm_rows_publish(kvm_rows_writer *w, char sha_hex[65], kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own, (size_t)256 << 20, err));
    kvm_status s = write_file(w, &own, sha_hex, err);
    if (!s) kvm_rows__close(w);
    for (int p = 0; p < w->parts && !s; p++) {
        const kvm_str path = kvm_rows__spool(w, p, &own);
        if (!path.at)
            s = kvm_nomem(err, &own);
        else if (kvm_os->unlink(path.at))
            s = kvm_fail_errno(err, "%s: cannot remove", path.at);
    }
    kvm_arena_free(&own);
    return s;
}
