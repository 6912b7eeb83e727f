/* rows_write.c - a capture as it is made: sequences into the spool (rows_spool.h). */
#include "translators/rows.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/os.h"
#include "translators/meta.h"
#include "translators/rows_spool.h"

enum { PIECE = 1 << 18 };

/* ---- creating ---- */

static kvm_status describe(kvm_rows_writer *w, char sha[65], kvm_err *err)
{
    const kvm_rows_info *i = &w->info;
    w->meta = kvm_json_own(w->keep, json_object());
    if (!w->meta) return kvm_nomem(err, w->keep);
    const struct {
        const char *key;
        kvm_str value;
    } text[] = {{"format", KVM_STR(KVM_CAPTURE_FORMAT)},
                {"model", i->model},
                {"model_name", i->model_name},
                {"text", i->text},
                {"tokenizer", i->tokenizer}};
    for (size_t t = 0; t < sizeof text / sizeof *text; t++)
        TRY(kvm_meta_put(w->meta, text[t].key, text[t].value, err));
    TRY(kvm_meta_putf(w->meta, err, "stride", "%td", i->stride));
    TRY(kvm_meta_putf(w->meta, err, "tokens", "%td", i->tokens));
    TRY(kvm_meta_putf(w->meta, err, "rope.width", "%td", i->rope.width));
    TRY(kvm_meta_putf(w->meta, err, "rope.interleaved", "%d", i->rope.interleaved));
    TRY(kvm_meta_putf(w->meta, err, "rope.factor", "%.9g", (double)i->rope.factor));
    TRY(kvm_meta_put_shapes(w->meta, "", &i->shapes, err));
    kvm_str text_of;
    TRY(kvm_json_canonical(&text_of, w->keep, w->meta, err));
    kvm_sha *h;
    TRY(kvm_sha_begin(&h, err));
    kvm_status s = kvm_sha_add(h, text_of.at, (size_t)text_of.len, err);
    if (!s) s = kvm_sha_add(h, kvm_dtype_name(i->dtype), 3, err);
    if (!s && i->rope.width)
        s = kvm_sha_add(h, i->rope.inv_freq,
                        sizeof(float) * (size_t)(i->rope.width / 2), err);
    if (!s && w->cut)
        s = kvm_sha_add(h, w->cut, sizeof *w->cut * (size_t)(w->parts + 1), err);
    if (s) {
        kvm_sha_drop(h);
        return s;
    }
    return kvm_sha_end(h, sha, err);
}

static kvm_status plan(kvm_rows_writer *w, kvm_err *err)
{
    const kvm_rows_info *i = &w->info;
    const ptrdiff_t layers = i->shapes.layers;
    const ptrdiff_t from = w->cut ? w->cut[w->part] : 0,
                    to = w->cut ? w->cut[w->part + 1] : layers;
    w->track = kvm_new(w->keep, kvm_track, KVM_SPACES * layers);
    w->at = kvm_new(w->keep, ptrdiff_t, KVM_SPACES * layers);
    if (!w->track || !w->at) return kvm_nomem(err, w->keep);
    for (ptrdiff_t o = 0; o < KVM_SPACES * layers; o++) w->at[o] = -1;
    for (ptrdiff_t l = from; l < to; l++)
        for (int s = 0; s < KVM_SPACES; s++) {
            const ptrdiff_t width = kvm_space_derived((kvm_space)s)
                                        ? 0
                                        : kvm_shapes_width(&i->shapes, (kvm_space)s, l);
            if (width == 0) continue;
            w->at[s * layers + l] = w->tracks;
            const bool once = kvm_space_once((kvm_space)s);
            const kvm_track t = {.space = (kvm_space)s,
                                 .layer = l,
                                 .width = width,
                                 .once = once,
                                 .dtype = once ? KVM_F32 : i->dtype};
            w->track[w->tracks++] = t;
            *(once ? &w->once_bytes : &w->row_bytes) +=
                width * kvm_dtype_block_bytes(t.dtype);
        }
    ptrdiff_t bytes;
    if (!kvm_mul(w->row_bytes + 4, i->tokens, &bytes))
        return kvm_fail(err, KVM_RANGE, "a sequence of %td tokens is too long",
                        i->tokens);
    w->record_bytes = KVM_RECORD_HEAD + bytes + w->once_bytes + KVM_SPOOL_MAGIC_BYTES;
    return KVM_OK;
}

void kvm_rows__close(void *arg)
{
    kvm_rows_writer *w = arg;
    if (w->fd >= 0) kvm_os->close(w->fd);
    if (w->batch.fd >= 0) kvm_os->close(w->batch.fd);
    w->fd = w->batch.fd = -1;
}

static kvm_status write_all(kvm_rows_writer *w, const char *bytes, ptrdiff_t n,
                            kvm_err *err)
{
    while (n > 0) {
        const ssize_t r = kvm_os->write(w->fd, bytes, (size_t)n);
        if (r <= 0) return kvm_fail_errno(err, "%s: cannot write", w->spool.at);
        bytes += r;
        n -= r;
    }
    if (kvm_os->fdatasync(w->fd))
        return kvm_fail_errno(err, "%s: cannot sync", w->spool.at);
    return KVM_OK;
}

static ptrdiff_t size_of_record(const kvm_rows_writer *w, ptrdiff_t rows)
{
    return KVM_RECORD_HEAD + rows * (w->row_bytes + 4) + w->once_bytes +
           KVM_SPOOL_MAGIC_BYTES;
}

ptrdiff_t kvm_track__rows(const kvm_track *t, ptrdiff_t n)
{
    return t->once ? 1 : n;
}

ptrdiff_t kvm_track__bytes(const kvm_track *t, ptrdiff_t n)
{
    return kvm_track__rows(t, n) * t->width * kvm_dtype_block_bytes(t->dtype);
}

ptrdiff_t kvm_rows__record(const kvm_rows_writer *w, kvm_str bytes, ptrdiff_t at,
                           int32_t *sequence, ptrdiff_t *size)
{
    int32_t head[2];
    if (bytes.len - at < KVM_RECORD_HEAD) return -1;
    memcpy(head, bytes.at + at, sizeof head);
    if (head[1] < 1 || head[1] > w->info.tokens) return -1;
    *sequence = head[0];
    *size = size_of_record(w, head[1]);
    if (bytes.len - at < *size || memcmp(bytes.at + at + *size - KVM_SPOOL_MAGIC_BYTES,
                                         KVM_RECORD_END, KVM_SPOOL_MAGIC_BYTES) != 0)
        return -1;
    return head[1];
}

kvm_str kvm_rows__spool(const kvm_rows_writer *w, int part, kvm_arena *a)
{
    if (w->parts == 1) return kvm_str_fmt(a, "%.*s.spool", KVM_STR_ARG(w->path));
    return kvm_str_fmt(a, "%.*s.%s%d-%d.spool", KVM_STR_ARG(w->path),
                       w->cut ? "layers-" : "", part, w->parts);
}

kvm_held kvm_rows__scan(const kvm_rows_writer *w, kvm_str bytes)
{
    kvm_held h = {.last = -1};
    ptrdiff_t n, size;
    int32_t sequence;
    if (bytes.len < KVM_SPOOL_HEAD || memcmp(bytes.at, w->head, KVM_SPOOL_HEAD) != 0)
        return h;
    h.end = KVM_SPOOL_HEAD;
    while ((n = kvm_rows__record(w, bytes, h.end, &sequence, &size)) > 0 &&
           sequence > h.last) {
        if (h.done == 0) h.first = sequence;
        h.end += size;
        h.rows += n;
        h.done++;
        h.last = sequence;
    }
    return h;
}

/* count what a killed writer left and cut off what it did not finish */
static kvm_status resume(kvm_rows_writer *w, kvm_err *err)
{
    kvm_arena own = {0};
    kvm_str bytes = {0};
    if (kvm_path_exists(w->spool)) {
        TRY(kvm_arena_init(&own, 1 << 16, err));
        const kvm_status s = kvm_file_map(&bytes, &own, w->spool, err);
        if (s) {
            kvm_arena_free(&own);
            return s;
        }
    }
    w->held = kvm_rows__scan(w, bytes);
    kvm_arena_free(&own);
    w->fd = kvm_os->open(w->spool.at, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (w->fd < 0) return kvm_fail_errno(err, "%s: cannot open", w->spool.at);
    if (kvm_os->ftruncate(w->fd, w->held.end))
        return kvm_fail_errno(err, "%s: cannot cut to length", w->spool.at);
    if (w->held.end > 0) return KVM_OK;
    TRY(write_all(w, w->head, KVM_SPOOL_HEAD, err));
    w->held.end = KVM_SPOOL_HEAD;
    return KVM_OK;
}

static kvm_status copy_info(kvm_rows_info *to, kvm_arena *keep,
                            const kvm_rows_info *from, kvm_err *err)
{
    *to = *from;
    for (int s = 0; s < KVM_SPACES; s++) {
        if (!from->shapes.of[s]) continue;
        kvm_row_shape *shape = kvm_new(keep, kvm_row_shape, from->shapes.layers);
        if (!shape) return kvm_nomem(err, keep);
        memcpy(shape, from->shapes.of[s], sizeof *shape * (size_t)from->shapes.layers);
        to->shapes.of[s] = shape;
    }
    if (from->rope.width) {
        float *f = kvm_new(keep, float, from->rope.width / 2);
        if (!f) return kvm_nomem(err, keep);
        memcpy(f, from->rope.inv_freq, sizeof *f * (size_t)(from->rope.width / 2));
        to->rope.inv_freq = f;
    }
    kvm_str *text[] = {&to->model, &to->model_name, &to->text, &to->tokenizer};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        *text[i] = kvm_str_copy(keep, *text[i]);
        if (!text[i]->at) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

/* all but its spool */
static kvm_status lay_out(kvm_rows_writer **out, kvm_arena *keep, kvm_str path,
                          const kvm_rows_info *info, int part, int parts,
                          const ptrdiff_t *cut, kvm_err *err)
{
    if (part < 0 || part >= parts)
        return kvm_fail(err, KVM_USAGE, "%.*s: there is no part %d of %d",
                        KVM_STR_ARG(path), part, parts);
    if (info->shapes.layers < 1 || info->tokens < 1 || info->stride < 1 ||
        (info->dtype != KVM_F32 && info->dtype != KVM_BF16))
        return kvm_fail(
            err, KVM_USAGE,
            "a capture needs layers, tokens and stride >= 1 and F32 or BF16");
    kvm_rows_writer *w = kvm_new(keep, kvm_rows_writer, 1);
    if (!w) return kvm_nomem(err, keep);
    w->keep = keep;
    w->fd = w->batch.fd = -1;
    w->part = part;
    w->parts = parts;
    if (cut) {
        ptrdiff_t *own = kvm_new(keep, ptrdiff_t, parts + 1);
        if (!own) return kvm_nomem(err, keep);
        w->cut = memcpy(own, cut, sizeof *cut * (size_t)(parts + 1));
    }
    w->path = kvm_str_copy(keep, path);
    if (!w->path.at) return kvm_nomem(err, keep);
    w->spool = kvm_rows__spool(w, part, keep);
    if (!w->spool.at) return kvm_nomem(err, keep);
    TRY(copy_info(&w->info, keep, info, err));
    memcpy(w->head, KVM_SPOOL_MAGIC, KVM_SPOOL_MAGIC_BYTES);
    TRY(describe(w, w->head + KVM_SPOOL_MAGIC_BYTES, err));
    *out = w;
    return plan(w, err);
}

static kvm_status create(kvm_rows_writer **out, kvm_arena *keep, kvm_str path,
                         const kvm_rows_info *info, int part, int parts,
                         const ptrdiff_t *cut, kvm_err *err)
{
    kvm_rows_writer *w;
    TRY(lay_out(&w, keep, path, info, part, parts, cut, err));
    w->record = kvm_new_raw(keep, char, w->record_bytes);
    if (!w->record) return kvm_nomem(err, keep);
    TRY(kvm_arena_defer(keep, kvm_rows__close, w, err));
    TRY(resume(w, err));
    *out = w;
    return KVM_OK;
}

kvm_status kvm_rows_create(kvm_rows_writer **w, kvm_arena *keep, kvm_str path,
                           const kvm_rows_info *info, kvm_err *err)
{
    return create(w, keep, path, info, 0, 1, NULL, err);
}

kvm_status kvm_rows_create_share(kvm_rows_writer **w, kvm_arena *keep, kvm_str path,
                                 const kvm_rows_info *info, int part, int parts,
                                 kvm_err *err)
{
    return create(w, keep, path, info, part, parts, NULL, err);
}

kvm_status kvm_rows_create_layers(kvm_rows_writer **w, kvm_arena *keep, kvm_str path,
                                  const kvm_rows_info *info, int part, int parts,
                                  const ptrdiff_t *cut, kvm_err *err)
{
    return create(w, keep, path, info, part, parts, cut, err);
}

kvm_status kvm_rows__part(kvm_rows_writer **out, const kvm_rows_writer *w, int part,
                          kvm_arena *keep, kvm_err *err)
{
    return lay_out(out, keep, w->path, &w->info, part, w->parts, w->cut, err);
}

ptrdiff_t kvm_rows_done(const kvm_rows_writer *w)
{
    return w->held.done;
}

/* ---- filling ---- */

ptrdiff_t kvm_rows__place(const kvm_rows_writer *w, ptrdiff_t o, ptrdiff_t n)
{
    ptrdiff_t at = KVM_RECORD_HEAD + 4 * n;
    for (ptrdiff_t p = 0; p < o; p++) at += kvm_track__bytes(&w->track[p], n);
    return at;
}

/* where track o's rows start in the open record, which is laid out for `n` rows */
static char *track_rows(const kvm_rows_writer *w, ptrdiff_t o, ptrdiff_t n)
{
    return w->record + kvm_rows__place(w, o, n);
}

/* which track n rows are of, of a sequence of at most `most` rows */
static kvm_status find_track(const kvm_rows_writer *w, kvm_space space, ptrdiff_t layer,
                             ptrdiff_t first, ptrdiff_t n, ptrdiff_t most,
                             const float *rows, ptrdiff_t *out, kvm_err *err)
{
    const ptrdiff_t layers = w->info.shapes.layers;
    const bool there = layer >= 0 && layer < layers && (int)space < KVM_SPACES &&
                       w->at[(int)space * layers + layer] >= 0;
    if (!there)
        return kvm_fail(
            err, KVM_RANGE, "%s: the capture holds no %s of layer %td", w->path.at,
            (int)space < KVM_SPACES ? kvm_space_name(space) : "such rows", layer);
    most = kvm_track__rows(&w->track[w->at[(int)space * layers + layer]], most);
    if (first < 0 || n < 0 || n > most - first)
        return kvm_fail(err, KVM_RANGE,
                        "%s: rows %td..%td of layer %td; sequences hold %td rows",
                        w->path.at, first, first + n - 1, layer, most);
    *out = w->at[(int)space * layers + layer];
    const ptrdiff_t width = w->track[*out].width;
    for (ptrdiff_t i = 0; i < n * width; i++)
        if (!isfinite(rows[i]))
            return kvm_fail(err, KVM_NAN, "%s: %s of layer %td, row %td is not finite",
                            w->path.at, kvm_space_name(space), layer,
                            first + i / width);
    return KVM_OK;
}

kvm_status kvm_rows_put(kvm_rows_writer *w, kvm_space space, ptrdiff_t layer,
                        ptrdiff_t first, ptrdiff_t n, const float *rows, kvm_err *err)
{
    ptrdiff_t o;
    TRY(find_track(w, space, layer, first, n, w->info.tokens, rows, &o, err));
    kvm_track *t = &w->track[o];
    char *to = track_rows(w, o, w->info.tokens) +
               first * t->width * kvm_dtype_block_bytes(t->dtype);
    TRY(kvm_narrow_row(to, t->dtype, rows, n * t->width, err));
    t->have += n;
    return KVM_OK;
}

kvm_status kvm_rows_end_sequence(kvm_rows_writer *w, int32_t sequence,
                                 const int32_t *position, ptrdiff_t n, kvm_err *err)
{
    if (n < 1 || n > w->info.tokens || sequence <= w->held.last)
        return kvm_fail(
            err, KVM_RANGE,
            "%s: sequence %d with %td rows after sequence %d; numbers ascend "
            "and a sequence has 1 to %td rows",
            w->path.at, (int)sequence, n, (int)w->held.last, w->info.tokens);
    for (ptrdiff_t o = 0; o < w->tracks; o++)
        if (w->track[o].have != kvm_track__rows(&w->track[o], n))
            return kvm_fail(err, KVM_MISMATCH,
                            "%s: sequence %d has %td rows of %s, layer %td, not %td",
                            w->path.at, (int)sequence, w->track[o].have,
                            kvm_space_name(w->track[o].space), w->track[o].layer,
                            kvm_track__rows(&w->track[o], n));
    const int32_t head[2] = {sequence, (int32_t)n};
    for (ptrdiff_t o = 0; o < w->tracks; o++) /* close up a short sequence */
        memmove(track_rows(w, o, n), track_rows(w, o, w->info.tokens),
                (size_t)kvm_track__bytes(&w->track[o], n));
    memcpy(w->record, head, sizeof head);
    memcpy(w->record + KVM_RECORD_HEAD, position, sizeof *position * (size_t)n);
    const ptrdiff_t size = size_of_record(w, n);
    memcpy(w->record + size - KVM_SPOOL_MAGIC_BYTES, KVM_RECORD_END,
           KVM_SPOOL_MAGIC_BYTES);
    TRY(write_all(w, w->record, size, err));
    if (w->held.done == 0) w->held.first = sequence;
    w->held.end += size;
    w->held.rows += n;
    w->held.done++;
    w->held.last = sequence;
    for (ptrdiff_t o = 0; o < w->tracks; o++) w->track[o].have = 0;
    return KVM_OK;
}

/* ---- several sequences at once ---- */

static kvm_status reserve_batch(kvm_rows_writer *w, ptrdiff_t n, kvm_err *err)
{
    struct batch *b = &w->batch;
    if (!b->piece && !(b->piece = kvm_new_raw(w->keep, char, PIECE)))
        return kvm_nomem(err, w->keep);
    if (n > b->room) {
        b->at = kvm_new(w->keep, off_t, n + 1);
        b->rows = kvm_new(w->keep, ptrdiff_t, n);
        b->have = kvm_new(w->keep, ptrdiff_t, n * w->tracks);
        if (!b->at || !b->rows || !b->have) return kvm_nomem(err, w->keep);
        b->room = n;
    }
    memset(b->have, 0, sizeof *b->have * (size_t)(n * w->tracks));
    if (b->fd >= 0) return KVM_OK;
    /* the other one appends, wherever it is told to write */
    b->fd = kvm_os->open(w->spool.at, O_WRONLY | O_CLOEXEC, 0);
    return b->fd < 0 ? kvm_fail_errno(err, "%s: cannot open", w->spool.at) : KVM_OK;
}

kvm_status kvm_rows_begin_batch(kvm_rows_writer *w, int32_t first, ptrdiff_t n,
                                const ptrdiff_t *rows, const int32_t *position,
                                kvm_err *err)
{
    struct batch *b = &w->batch;
    if (n < 1 || first <= w->held.last || first > INT32_MAX - n)
        return kvm_fail(err, KVM_RANGE,
                        "%s: %td sequences from %d after sequence %d: numbers ascend",
                        w->path.at, n, (int)first, (int)w->held.last);
    TRY(reserve_batch(w, n, err));
    b->n = n;
    b->first = first;
    b->at[0] = w->held.end;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (rows[i] < 1 || rows[i] > w->info.tokens)
            return kvm_fail(err, KVM_RANGE,
                            "%s: a sequence of %td rows; 1 to %td are possible",
                            w->path.at, rows[i], w->info.tokens);
        b->rows[i] = rows[i];
        b->at[i + 1] = b->at[i] + size_of_record(w, rows[i]);
    }
    if (kvm_os->ftruncate(b->fd, b->at[n]))
        return kvm_fail_errno(err, "%s: cannot make room", w->spool.at);
    for (ptrdiff_t i = 0; i < n; i++) {
        const int32_t head[2] = {first + (int32_t)i, (int32_t)rows[i]};
        TRY(kvm_file_write_at(b->fd, w->spool, head, sizeof head, b->at[i], err));
        TRY(kvm_file_write_at(b->fd, w->spool, position,
                              sizeof *position * (size_t)rows[i],
                              b->at[i] + KVM_RECORD_HEAD, err));
    }
    return KVM_OK;
}

kvm_status kvm_rows_put_in(kvm_rows_writer *w, ptrdiff_t i, kvm_space space,
                           ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                           const float *rows, kvm_err *err)
{
    struct batch *b = &w->batch;
    if (i < 0 || i >= b->n)
        return kvm_fail(err, KVM_RANGE, "%s: sequence %td of a batch of %td",
                        w->path.at, i, b->n);
    ptrdiff_t o;
    TRY(find_track(w, space, layer, first, n, b->rows[i], rows, &o, err));
    const kvm_track *t = &w->track[o];
    const ptrdiff_t bytes = kvm_dtype_block_bytes(t->dtype), count = n * t->width;
    off_t at = b->at[i] + kvm_rows__place(w, o, b->rows[i]) + first * t->width * bytes;
    for (ptrdiff_t x = 0, m; x < count; x += m, at += m * bytes) {
        m = count - x < PIECE / bytes ? count - x : PIECE / bytes;
        TRY(kvm_narrow_row(b->piece, t->dtype, rows + x, m, err));
        TRY(kvm_file_write_at(b->fd, w->spool, b->piece, (size_t)(m * bytes), at, err));
    }
    b->have[i * w->tracks + o] += n;
    return KVM_OK;
}

kvm_status kvm_rows_end_batch(kvm_rows_writer *w, kvm_err *err)
{
    struct batch *b = &w->batch;
    for (ptrdiff_t i = 0; i < b->n; i++)
        for (ptrdiff_t o = 0; o < w->tracks; o++)
            if (b->have[i * w->tracks + o] != kvm_track__rows(&w->track[o], b->rows[i]))
                return kvm_fail(
                    err, KVM_MISMATCH,
                    "%s: sequence %td has %td rows of %s, layer %td, not %td",
                    w->path.at, b->first + i, b->have[i * w->tracks + o],
                    kvm_space_name(w->track[o].space), w->track[o].layer,
                    kvm_track__rows(&w->track[o], b->rows[i]));
    if (kvm_os->fdatasync(b->fd))
        return kvm_fail_errno(err, "%s: cannot sync", w->spool.at);
    for (ptrdiff_t i = 0; i < b->n; i++)
        TRY(kvm_file_write_at(b->fd, w->spool, KVM_RECORD_END, KVM_SPOOL_MAGIC_BYTES,
                              b->at[i + 1] - KVM_SPOOL_MAGIC_BYTES, err));
    if (kvm_os->fdatasync(b->fd))
        return kvm_fail_errno(err, "%s: cannot sync", w->spool.at);
    if (w->held.done == 0) w->held.first = b->first;
    for (ptrdiff_t i = 0; i < b->n; i++) w->held.rows += b->rows[i];
    w->held.end = b->at[b->n];
    w->held.done += b->n;
    w->held.last = b->first + (int32_t)b->n - 1;
    b->n = 0;
    return KVM_OK;
}
