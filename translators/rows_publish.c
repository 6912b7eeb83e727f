/* rows_publish.c - the spools of a capture's parts turned round into its file. */
#include <string.h>

#include "base/file.h"
#include "base/os.h"
#include "models/safetensors.h"
#include "translators/rows_spool.h"

enum { POSITION, SEQUENCE, INV_FREQ, FIRST_TRACK };

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

/* all parts' spools as they are read */
typedef struct spools {
    kvm_str *bytes; /* (parts) */
    kvm_held *held; /* (parts) */
    ptrdiff_t done, rows;
} spools;

static kvm_status open_spools(const kvm_rows_writer *w, spools *s, kvm_arena *own,
                              kvm_err *err)
{
    int32_t last = -1;
    *s = (spools){.bytes = kvm_new(own, kvm_str, w->parts),
                  .held = kvm_new(own, kvm_held, w->parts)};
    if (!s->bytes || !s->held) return kvm_nomem(err, own);
    for (int p = 0; p < w->parts; p++) {
        const kvm_str path = kvm_rows__spool(w, p, own);
        if (!path.at) return kvm_nomem(err, own);
        TRY(kvm_file_map(&s->bytes[p], own, path, err));
        const kvm_held h = s->held[p] = kvm_rows__scan(w, s->bytes[p]);
        if (h.end != s->bytes[p].len || (h.done > 0 && h.first <= last))
            return kvm_fail(err, KVM_MISMATCH,
                            "%s: is no part of this capture, or not whole", path.at);
        if (h.done > 0) last = h.last;
        s->done += h.done;
        s->rows += h.rows;
    }
    if (s->done > 0) return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "%s: no sequence was captured", w->path.at);
}

static kvm_status append_all(const kvm_rows_writer *w, kvm_st_writer *st, int part,
                             ptrdiff_t o, const spools *s, kvm_err *err)
{
    for (int p = 0; p < w->parts; p++) {
        const kvm_str bytes = s->bytes[p];
        ptrdiff_t size, n;
        int32_t sequence;
        for (ptrdiff_t at = KVM_SPOOL_HEAD; at < s->held[p].end; at += size) {
            n = kvm_rows__record(w, bytes, at, &sequence, &size);
            if (n < 0)
                return kvm_fail(err, KVM_IO, "%s: a spool changed while it was read",
                                w->path.at);
            TRY(append_part(w, st, part, o, bytes.at + at, n, err));
        }
        kvm_file_leave(bytes.at, (size_t)bytes.len); /* may be larger than memory */
    }
    return KVM_OK;
}

static kvm_status write_file(kvm_rows_writer *w, kvm_arena *own, char sha_hex[65],
                             kvm_err *err)
{
    spools all;
    TRY(open_spools(w, &all, own, err));
    kvm_st_spec *spec = kvm_new(own, kvm_st_spec, FIRST_TRACK + w->tracks);
    if (!spec) return kvm_nomem(err, own);
    ptrdiff_t specs = 0;
    spec[specs++] = (kvm_st_spec){KVM_STR("position"), KVM_I32, 1, {all.rows}};
    spec[specs++] = (kvm_st_spec){KVM_STR("sequence"), KVM_I32, 1, {all.rows}};
    if (w->info.rope.width)
        spec[specs++] = (kvm_st_spec){
            KVM_STR("rope.inv_freq"), KVM_F32, 1, {w->info.rope.width / 2}};
    for (ptrdiff_t o = 0; o < w->tracks; o++) {
        const kvm_track *t = &w->track[o];
        const kvm_str name = kvm_rows__name(own, t->space, t->layer);
        if (!name.at) return kvm_nomem(err, own);
        spec[specs++] =
            (kvm_st_spec){name, t->dtype, 2, {t->once ? all.done : all.rows, t->width}};
    }
    kvm_st_writer *st;
    TRY(kvm_st_begin(&st, own, w->path, spec, specs, w->meta, err));
    TRY(append_all(w, st, POSITION, 0, &all, err));
    TRY(append_all(w, st, SEQUENCE, 0, &all, err));
    if (w->info.rope.width)
        TRY(kvm_st_append(st, w->info.rope.inv_freq,
                          sizeof(float) * (size_t)(w->info.rope.width / 2), err));
    for (ptrdiff_t o = 0; o < w->tracks; o++)
        TRY(append_all(w, st, FIRST_TRACK, o, &all, err));
    return kvm_st_publish(st, sha_hex, err);
}

kvm_status kvm_rows_publish(kvm_rows_writer *w, char sha_hex[65], kvm_err *err)
{
    kvm_arena own = {0};
    TRY(kvm_arena_init(&own, (size_t)16 << 20, err));
    kvm_status s = write_file(w, &own, sha_hex, err);
    if (!s) kvm_rows__close(w);
    for (int p = 0; p < w->parts && !s; p++) {
        const kvm_str spool = kvm_rows__spool(w, p, &own);
        if (!spool.at)
            s = kvm_nomem(err, &own);
        else if (kvm_os->unlink(spool.at))
            s = kvm_fail_errno(err, "%s: cannot remove", spool.at);
    }
    kvm_arena_free(&own);
    return s;
}
