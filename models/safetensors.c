#include "models/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/file.h"

enum { MAX_HEADER = 100 * 1000 * 1000, MAX_INDEX = 100 * 1000 * 1000 };

struct kvm_st {
    kvm_str path;
    kvm_st_tensor *tensors; /* sorted by name */
    ptrdiff_t n;
    struct part {
        kvm_str path, whole; /* whole: all bytes of the file */
        struct stat state;   /* of the mapped file; zero without one */
        const json_t *meta;  /* `__metadata__`, or NULL */
    } * parts;               /* (files) sorted by path */
    ptrdiff_t files;
};

typedef struct shard {
    kvm_str path, whole;
    struct stat state;
    const char *data; /* first byte after the header */
    ptrdiff_t bytes;  /* of data */
    json_t *head;
} shard;

typedef struct span {
    ptrdiff_t begin, end;
    const char *name;
} span;

static uint64_t le64(const char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | (unsigned char)p[i];
    return v;
}

/* the header of s->whole */
static kvm_status read_head(shard *s, kvm_arena *keep, kvm_err *err)
{
    const kvm_str map = s->whole, path = s->path;
    if (map.len < 8)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: %td bytes are no safetensors file (8 bytes of header "
                        "length come first)",
                        path.at, map.len);
    const uint64_t n = le64(map.at);
    if (n > MAX_HEADER)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: a header of %llu bytes (at most %d): not a safetensors "
                        "file?",
                        path.at, (unsigned long long)n, MAX_HEADER);
    if ((ptrdiff_t)n > map.len - 8)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: the header says %llu bytes, the file holds %td after its "
                        "first 8: truncated",
                        path.at, (unsigned long long)n, map.len - 8);
    kvm_jat root;
    TRY(kvm_json_parse(&root, keep, kvm_str_slice(map, 8, 8 + (ptrdiff_t)n), path,
                       err));
    TRY(kvm_json_object(root, err));
    s->data = map.at + 8 + n;
    s->bytes = map.len - 8 - (ptrdiff_t)n;
    s->head = json_incref((json_t *)(uintptr_t)root.v);
    json_decref(s->head); /* the document owns it; only constness was in the way */
    return KVM_OK;
}

/* the shape of an entry into t, its number of elements into count */
static kvm_status read_shape(kvm_tensor *t, ptrdiff_t *count, const shard *s,
                             const char *name, const json_t *shape, kvm_err *err)
{
    ptrdiff_t room = 1; /* the product with axes of 0 left out bounds every stride */
    *count = 1;
    if (!json_is_array(shape))
        return kvm_fail(err, KVM_FORMAT, "%s: tensor %s has no shape", s->path.at,
                        name);
    const ptrdiff_t rank = (ptrdiff_t)json_array_size(shape);
    for (ptrdiff_t i = 0; i < rank; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        const ptrdiff_t d = json_is_integer(v) ? (ptrdiff_t)json_integer_value(v) : -1;
        if (d < 0 || !kvm_mul(room, d ? d : 1, &room))
            return kvm_fail(err, KVM_FORMAT,
                            "%s: tensor %s: axis %td of its shape is no size or makes "
                            "the product overflow",
                            s->path.at, name, i);
        *count *= d;
        if (i < KVM_MAX_RANK)
            t->dim[i] = d;
        else
            t->dim[KVM_MAX_RANK - 1] *= d;
    }
    t->rank = rank < KVM_MAX_RANK ? (int)rank : KVM_MAX_RANK;
    for (int i = t->rank - 1; i >= 0; i--)
        t->stride[i] = i == t->rank - 1 ? 1 : t->stride[i + 1] * t->dim[i + 1];
    return KVM_OK;
}

/* A view of the map, or a copy where the map's address does not suit the type. */
static kvm_status place(kvm_tensor *t, kvm_arena *keep, const char *at, ptrdiff_t bytes,
                        kvm_err *err)
{
    const int unit = kvm_dtype_block_bytes(t->dtype);
    t->data = (void *)(uintptr_t)at;
    if ((uintptr_t)at % (uintptr_t)unit == 0) return KVM_OK;
    t->data = kvm_new_raw(keep, char, bytes);
    if (!t->data) return kvm_nomem(err, keep);
    memcpy(t->data, at, (size_t)bytes);
    return KVM_OK;
}

static kvm_status read_entry(kvm_st_tensor *out, span *where, kvm_arena *keep,
                             const shard *s, const char *name, const json_t *entry,
                             kvm_err *err)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    *out = (kvm_st_tensor){.name = kvm_str_of(name), .file = s->path};
    if (!type || json_array_size(offsets) != 2 || !json_is_integer(b) ||
        !json_is_integer(e))
        return kvm_fail(err, KVM_FORMAT,
                        "%s: tensor %s lacks a dtype or data_offsets [begin, end]",
                        s->path.at, name);
    if (kvm_dtype_of_safetensors(kvm_str_of(type), &out->t.dtype))
        return kvm_fail(err, KVM_DTYPE,
                        "%s: tensor %s is of type %s, which is not read", s->path.at,
                        name, type);
    ptrdiff_t count, bytes = 0;
    TRY(read_shape(&out->t, &count, s, name, json_object_get(entry, "shape"), err));
    const json_int_t begin = json_integer_value(b), end = json_integer_value(e);
    if (begin < 0 || end < begin || end > s->bytes)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: tensor %s: bytes %lld to %lld, but the file holds %td of "
                        "data: truncated or damaged",
                        s->path.at, name, (long long)begin, (long long)end, s->bytes);
    if (!kvm_dtype_bytes(out->t.dtype, count, &bytes) || bytes != end - begin)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: tensor %s: %lld bytes for %td numbers of type %s",
                        s->path.at, name, (long long)(end - begin), count, type);
    out->bytes = (size_t)bytes;
    *where = (span){(ptrdiff_t)begin, (ptrdiff_t)end, name};
    return place(&out->t, keep, s->data + begin, bytes, err);
}

static int by_offset(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return kvm_str_cmp(((const kvm_st_tensor *)a)->name,
                       ((const kvm_st_tensor *)b)->name);
}

static int by_path(const void *a, const void *b)
{
    return kvm_str_cmp(((const struct part *)a)->path, ((const struct part *)b)->path);
}

static kvm_status check_tiling(const shard *s, span *spans, ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t at = 0;
    qsort(spans, (size_t)n, sizeof *spans, by_offset);
    for (ptrdiff_t i = 0; i < n; at = spans[i++].end)
        if (spans[i].begin != at)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: tensor %s begins at byte %td, the one before it ends "
                            "at %td (%s)",
                            s->path.at, spans[i].name, spans[i].begin, at,
                            spans[i].begin < at ? "overlap" : "gap");
    if (at != s->bytes)
        return kvm_fail(
            err, KVM_FORMAT,
            "%s: the last tensor ends at byte %td of %td of data: padded or "
            "damaged",
            s->path.at, at, s->bytes);
    return KVM_OK;
}

/* Append the tensors of one file; with an index only those that it places in `file`. */
static kvm_status add_shard(kvm_st *st, kvm_arena *keep, const shard *s,
                            const json_t *index, const char *file, kvm_err *err)
{
    span *spans = kvm_new(keep, span, (ptrdiff_t)json_object_size(s->head) + 1);
    if (!spans) return kvm_nomem(err, keep);
    ptrdiff_t n = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(s->head, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        kvm_st_tensor t;
        TRY(read_entry(&t, &spans[n++], keep, s, name, entry, err));
        if (index) {
            const char *in = json_string_value(json_object_get(index, name));
            if (!in || strcmp(in, file) != 0) continue;
        }
        st->tensors[st->n++] = t;
    }
    st->parts[st->files++] = (struct part){s->path, s->whole, s->state,
                                           json_object_get(s->head, "__metadata__")};
    return check_tiling(s, spans, n, err);
}

static kvm_status reserve(kvm_st *st, kvm_arena *keep, size_t tensors, size_t files,
                          kvm_err *err)
{
    st->tensors = kvm_new(keep, kvm_st_tensor, (ptrdiff_t)tensors + 1);
    st->parts = kvm_new(keep, struct part, (ptrdiff_t)files + 1);
    return st->tensors && st->parts ? KVM_OK : kvm_nomem(err, keep);
}

static kvm_status add_only(kvm_st *st, kvm_arena *keep, shard *s, kvm_err *err)
{
    TRY(read_head(s, keep, err));
    TRY(reserve(st, keep, json_object_size(s->head), 1, err));
    return add_shard(st, keep, s, NULL, NULL, err);
}

static kvm_status open_single(kvm_st *st, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    shard s = {.path = path};
    TRY(kvm_file_map_state(&s.whole, &s.state, keep, path, err));
    return add_only(st, keep, &s, err);
}

/* the distinct file names of a weight_map, as the keys of an object */
static kvm_status list_files(json_t *files, const json_t *map, kvm_str index,
                             kvm_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        const char *file = json_string_value(v);
        if (!file || !*file || strchr(file, '/'))
            return kvm_fail(err, KVM_FORMAT,
                            "%s: weight_map.%s names no file of this folder", index.at,
                            name);
        if (json_object_set_new(files, file, json_true()))
            return kvm_fail(err, KVM_NOMEM, "%s: out of memory", index.at);
    }
    return KVM_OK;
}

static kvm_status check_all_found(const kvm_st *st, const json_t *map, kvm_str index,
                                  kvm_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        if (!kvm_st_find(st, kvm_str_of(name)))
            return kvm_fail(err, KVM_FORMAT, "%s: %s is not in %s, where it should lie",
                            index.at, name, json_string_value(v));
    }
    return KVM_OK;
}

static kvm_status open_shard(kvm_st *st, kvm_arena *keep, kvm_str dir,
                             const json_t *map, const char *file, kvm_err *err)
{
    shard s = {.path = kvm_path_join(keep, dir, kvm_str_of(file))};
    if (!s.path.at) return kvm_nomem(err, keep);
    TRY(kvm_file_map_state(&s.whole, &s.state, keep, s.path, err));
    TRY(read_head(&s, keep, err));
    return add_shard(st, keep, &s, map, file, err);
}

static kvm_status open_sharded(kvm_st *st, kvm_arena *keep, kvm_str dir, kvm_str index,
                               kvm_err *err)
{
    kvm_str text;
    kvm_jat root;
    TRY(kvm_file_read(&text, keep, index, MAX_INDEX, err));
    TRY(kvm_json_parse(&root, keep, text, index, err));
    const json_t *map = json_object_get(root.v, "weight_map");
    if (!json_is_object(map))
        return kvm_fail(err, KVM_FORMAT, "%s: weight_map is no object", index.at);
    json_t *files = kvm_json_own(keep, json_object());
    if (!files) return kvm_fail(err, KVM_NOMEM, "%s: out of memory", index.at);
    TRY(list_files(files, map, index, err));
    TRY(reserve(st, keep, json_object_size(map), json_object_size(files), err));
    const char *file;
    json_t *v;
    json_object_foreach(files, file, v)
    {
        const kvm_status bad = open_shard(st, keep, dir, map, file, err);
        if (bad) return kvm_err_prefix(err, bad, "shard of %s", index.at);
    }
    qsort(st->tensors, (size_t)st->n, sizeof *st->tensors, by_name);
    return check_all_found(st, map, index, err);
}

static kvm_status open_folder(kvm_st *st, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    const kvm_str index =
        kvm_path_join(keep, path, KVM_STR("model.safetensors.index.json"));
    const kvm_str single = kvm_path_join(keep, path, KVM_STR("model.safetensors"));
    if (!index.at || !single.at) return kvm_nomem(err, keep);
    if (kvm_path_exists(index)) return open_sharded(st, keep, path, index, err);
    if (kvm_path_exists(single)) return open_single(st, keep, single, err);
    return kvm_fail(
        err, KVM_NOTFOUND,
        "%s: neither model.safetensors.index.json nor model.safetensors is "
        "here (pickled checkpoints are not read: they run code when loaded)",
        path.at);
}

static kvm_status begin(kvm_st **st, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    *st = kvm_new(keep, kvm_st, 1);
    if (!*st) return kvm_nomem(err, keep);
    (*st)->path = kvm_str_copy(keep, path);
    return (*st)->path.at ? KVM_OK : kvm_nomem(err, keep);
}

static void sort(kvm_st *st)
{
    qsort(st->tensors, (size_t)st->n, sizeof *st->tensors, by_name);
    qsort(st->parts, (size_t)st->files, sizeof *st->parts, by_path);
}

kvm_status kvm_st_open(kvm_st **out, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_st *st;
    TRY(begin(&st, keep, path, err));
    TRY(kvm_path_is_dir(path) ? open_folder(st, keep, st->path, err)
                              : open_single(st, keep, st->path, err));
    sort(st);
    *out = st;
    return KVM_OK;
}

kvm_status kvm_st_parse(kvm_st **out, kvm_arena *keep, kvm_str bytes, kvm_str name,
                        kvm_err *err)
{
    kvm_st *st;
    TRY(begin(&st, keep, name, err));
    shard s = {.path = st->path, .whole = bytes};
    TRY(add_only(st, keep, &s, err));
    sort(st);
    *out = st;
    return KVM_OK;
}

kvm_str kvm_st_path(const kvm_st *st)
{
    return st->path;
}
ptrdiff_t kvm_st_files(const kvm_st *st)
{
    return st->files;
}
kvm_str kvm_st_file(const kvm_st *st, ptrdiff_t i)
{
    return st->parts[i].path;
}
kvm_str kvm_st_whole(const kvm_st *st, ptrdiff_t i)
{
    return st->parts[i].whole;
}
const struct stat *kvm_st_state(const kvm_st *st, ptrdiff_t i)
{
    return &st->parts[i].state;
}
ptrdiff_t kvm_st_count(const kvm_st *st)
{
    return st->n;
}
const kvm_st_tensor *kvm_st_at(const kvm_st *st, ptrdiff_t i)
{
    return &st->tensors[i];
}

const kvm_st_tensor *kvm_st_find(const kvm_st *st, kvm_str name)
{
    const kvm_st_tensor key = {.name = name};
    return bsearch(&key, st->tensors, (size_t)st->n, sizeof key, by_name);
}

kvm_status kvm_st_need(const kvm_st *st, kvm_str name, kvm_dtype dtype, int rank,
                       const ptrdiff_t *dim, const kvm_st_tensor **out, kvm_err *err)
{
    const kvm_st_tensor *t = kvm_st_find(st, name);
    if (!t)
        return kvm_fail(err, KVM_NOTFOUND, "%s: tensor %.*s is missing", st->path.at,
                        KVM_STR_ARG(name));
    if (dtype != KVM_DTYPES && t->t.dtype != dtype)
        return kvm_fail(err, KVM_DTYPE, "%s: tensor %.*s is %s, expected %s",
                        t->file.at, KVM_STR_ARG(name), kvm_dtype_name(t->t.dtype),
                        kvm_dtype_name(dtype));
    if (t->t.rank != rank)
        return kvm_fail(err, KVM_SHAPE, "%s: tensor %.*s has %d axes, expected %d",
                        t->file.at, KVM_STR_ARG(name), t->t.rank, rank);
    for (int i = 0; i < rank; i++)
        if (dim[i] >= 0 && t->t.dim[i] != dim[i])
            return kvm_fail(err, KVM_SHAPE,
                            "%s: tensor %.*s: axis %d is %td, expected %td", t->file.at,
                            KVM_STR_ARG(name), i, t->t.dim[i], dim[i]);
    *out = t;
    return KVM_OK;
}

kvm_str kvm_st_meta(const kvm_st *st, kvm_str key)
{
    for (ptrdiff_t i = 0; i < st->files; i++) {
        const json_t *v = json_object_getn(st->parts[i].meta, key.at, (size_t)key.len);
        if (json_is_string(v))
            return (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)};
    }
    return (kvm_str){0};
}
