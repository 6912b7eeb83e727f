#include "models/gguf_meta.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/file.h"

/* GGUF value types by id; bytes 0: of variable length */
enum { T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, TYPES = 13 };
static const struct gguf_type {
    const char *name;
    unsigned char bytes, kind; /* kind: 'u'nsigned, 'i'nteger, 'f'loat, 'b'ool, other */
} types[TYPES] = {
    {"u8", 1, 'u'},     {"i8", 1, 'i'},    {"u16", 2, 'u'}, {"i16", 2, 'i'},
    {"u32", 4, 'u'},    {"i32", 4, 'i'},   {"f32", 4, 'f'}, {"bool", 1, 'b'},
    {"string", 0, 's'}, {"array", 0, 'a'}, {"u64", 8, 'u'}, {"i64", 8, 'i'},
    {"f64", 8, 'f'},
};

/* the least a key (length, one byte of name, type, u8) and a tensor info (length, one
 * byte of name, rank, one dim, type, offset) take: caps what a count may claim */
enum {
    KEY_MIN = 8 + 1 + 4 + 1,
    TENSOR_MIN = 8 + 1 + 4 + 8 + 4 + 8,
    NAME_MAX_BYTES = 256
};

typedef struct gguf_value {
    kvm_str key;
    const char *at;     /* the scalar, the string's bytes, or the first element */
    ptrdiff_t n;        /* string: bytes; array: elements; else 1 */
    unsigned char type; /* of the element when array */
    bool array;
} gguf_value;

struct kvm_gguf {
    kvm_str bytes, name;
    struct stat state;  /* of the mapped file; zero without one */
    gguf_value *values; /* (n_values), by key */
    ptrdiff_t n_values;
    kvm_gguf_tensor *tensors;        /* (n_tensors), file order */
    const kvm_gguf_tensor **by_name; /* (n_tensors) */
    ptrdiff_t n_tensors, alignment;
};

/* A cursor over the file. take() is the only place that advances it. */
typedef struct reader {
    kvm_str all, name;
    ptrdiff_t at;
    kvm_err *err;
} reader;

static kvm_status take(reader *r, ptrdiff_t n, const char **out, const char *what)
{
    const ptrdiff_t left = r->all.len - r->at;
    if (n > left)
        return kvm_fail(r->err, KVM_FORMAT,
                        "%.*s: truncated: %s needs %td bytes at offset %td, %td left; "
                        "fetch the file again",
                        KVM_STR_ARG(r->name), what, n, r->at, left);
    *out = r->all.at + r->at;
    r->at += n;
    return KVM_OK;
}

static kvm_status take_u32(reader *r, uint32_t *out, const char *what)
{
    const char *p = NULL;
    TRY(take(r, 4, &p, what));
    memcpy(out, p, 4);
    return KVM_OK;
}

static kvm_status take_u64(reader *r, uint64_t *out, const char *what)
{
    const char *p = NULL;
    TRY(take(r, 8, &p, what));
    memcpy(out, p, 8);
    return KVM_OK;
}

/* A count of things of at least `least` bytes each, which must fit into what is left */
static kvm_status take_count(reader *r, ptrdiff_t least, ptrdiff_t *out,
                             const char *what)
{
    const ptrdiff_t where = r->at;
    uint64_t n;
    TRY(take_u64(r, &n, what));
    if (n > (uint64_t)((r->all.len - r->at) / least))
        return kvm_fail(r->err, KVM_FORMAT,
                        "%.*s: %s at offset %td claims %llu, more than the %td bytes "
                        "after it can hold; fetch the file again",
                        KVM_STR_ARG(r->name), what, where, (unsigned long long)n,
                        r->all.len - r->at);
    *out = (ptrdiff_t)n;
    return KVM_OK;
}

static kvm_status take_string(reader *r, kvm_str *out, const char *what)
{
    TRY(take_count(r, 1, &out->len, what));
    return take(r, out->len, &out->at, what);
}

/* names go into messages and lookups: short, printable ASCII */
static kvm_status take_name(reader *r, kvm_str *out, const char *what)
{
    const ptrdiff_t where = r->at;
    TRY(take_string(r, out, what));
    bool good = out->len > 0 && out->len <= NAME_MAX_BYTES;
    for (ptrdiff_t i = 0; good && i < out->len; i++)
        good = out->at[i] > ' ' && out->at[i] <= '~';
    if (good) return KVM_OK;
    return kvm_fail(r->err, KVM_FORMAT,
                    "%.*s: %s at offset %td is not 1 to %d printable ASCII characters",
                    KVM_STR_ARG(r->name), what, where, NAME_MAX_BYTES);
}

static kvm_status bad_value(reader *r, kvm_str key, const char *why)
{
    return kvm_fail(r->err, KVM_FORMAT, "%.*s: key %.*s: %s", KVM_STR_ARG(r->name),
                    KVM_STR_ARG(key), why);
}

static kvm_status take_elements(reader *r, gguf_value *v)
{
    if (v->type == T_STRING) {
        v->at = r->all.at + r->at;
        for (ptrdiff_t i = 0; i < v->n; i++) {
            kvm_str s;
            TRY(take_string(r, &s, "a string of an array"));
        }
        return KVM_OK;
    }
    TRY(take(r, v->n * types[v->type].bytes, &v->at, "a value"));
    for (ptrdiff_t i = 0; v->type == T_BOOL && i < v->n; i++)
        if ((unsigned char)v->at[i] > 1)
            return bad_value(r, v->key, "a boolean is neither 0 nor 1");
    return KVM_OK;
}

static kvm_status take_value(reader *r, gguf_value *v)
{
    uint32_t type;
    TRY(take_name(r, &v->key, "the name of a key"));
    TRY(take_u32(r, &type, "the type of a key"));
    if (type >= TYPES) return bad_value(r, v->key, "unknown value type");
    v->n = 1;
    if (type == T_STRING) {
        kvm_str s;
        TRY(take_string(r, &s, "a string value"));
        *v = (gguf_value){.key = v->key, .at = s.at, .n = s.len, .type = T_STRING};
        return KVM_OK;
    }
    v->array = type == T_ARRAY;
    if (v->array) {
        TRY(take_u32(r, &type, "the element type of an array"));
        if (type == T_ARRAY)
            return bad_value(r, v->key, "arrays of arrays are refused");
        if (type >= TYPES) return bad_value(r, v->key, "unknown element type");
        const int least = type == T_STRING ? 8 : types[type].bytes;
        TRY(take_count(r, least, &v->n, "the length of an array"));
    }
    v->type = (unsigned char)type;
    return take_elements(r, v);
}

static int by_key(const void *a, const void *b)
{
    return kvm_str_cmp(((const gguf_value *)a)->key, ((const gguf_value *)b)->key);
}

static kvm_status take_values(reader *r, kvm_gguf *g, kvm_arena *keep)
{
    g->values = kvm_new(keep, gguf_value, g->n_values);
    if (!g->values) return kvm_nomem(r->err, keep);
    for (ptrdiff_t i = 0; i < g->n_values; i++) TRY(take_value(r, &g->values[i]));
    if (g->n_values > 0)
        qsort(g->values, (size_t)g->n_values, sizeof *g->values, by_key);
    for (ptrdiff_t i = 1; i < g->n_values; i++)
        if (kvm_str_eq(g->values[i - 1].key, g->values[i].key))
            return bad_value(r, g->values[i].key, "appears twice");
    return KVM_OK;
}

static kvm_status bad_tensor(reader *r, const kvm_gguf_tensor *t, const char *why)
{
    return kvm_fail(r->err, KVM_FORMAT, "%.*s: tensor %.*s: %s", KVM_STR_ARG(r->name),
                    KVM_STR_ARG(t->name), why);
}

static kvm_status take_dims(reader *r, kvm_gguf_tensor *t, ptrdiff_t *count)
{
    uint32_t rank;
    TRY(take_u32(r, &rank, "the rank of a tensor"));
    if (rank < 1 || rank > KVM_MAX_RANK)
        return bad_tensor(r, t, "its rank is not 1 to 4");
    t->rank = (int)rank;
    *count = 1;
    for (int d = 0; d < KVM_MAX_RANK; d++) {
        uint64_t n = 1;
        if (d < t->rank) TRY(take_u64(r, &n, "a dimension of a tensor"));
        if (n < 1 || n > PTRDIFF_MAX || !kvm_mul(*count, (ptrdiff_t)n, count))
            return bad_tensor(r, t, "its dimensions are zero or too large");
        t->dim[d] = (ptrdiff_t)n;
    }
    return KVM_OK;
}

/* offset stays relative to the data start until place_tensors */
static kvm_status take_tensor(reader *r, kvm_gguf_tensor *t, ptrdiff_t alignment)
{
    uint32_t type;
    uint64_t offset;
    ptrdiff_t count = 0;
    TRY(take_name(r, &t->name, "the name of a tensor"));
    TRY(take_dims(r, t, &count));
    TRY(take_u32(r, &type, "the type of a tensor"));
    TRY(take_u64(r, &offset, "the offset of a tensor"));
    if (kvm_dtype_of_gguf(type, &t->dtype))
        return kvm_fail(r->err, KVM_DTYPE,
                        "%.*s: tensor %.*s has GGUF type %u, which is not read here; "
                        "use a file of F32, F16, BF16, Q8_0, Q4_0/1, Q5_0/1 or Q4..6_K",
                        KVM_STR_ARG(r->name), KVM_STR_ARG(t->name), (unsigned)type);
    if (t->dim[0] % kvm_dtype_block(t->dtype) != 0)
        return bad_tensor(r, t, "its rows are not whole blocks of its type");
    if (!kvm_dtype_bytes(t->dtype, count, &t->bytes))
        return bad_tensor(r, t, "its dimensions are too large");
    if (offset % (uint64_t)alignment != 0)
        return bad_tensor(r, t, "its offset is not a multiple of the alignment");
    if (offset > (uint64_t)r->all.len)
        return bad_tensor(r, t, "it begins after the end of the file; fetch it again");
    t->offset = (ptrdiff_t)offset;
    return KVM_OK;
}

static int by_name(const void *a, const void *b)
{
    const kvm_gguf_tensor *const *x = a, *const *y = b;
    return kvm_str_cmp((*x)->name, (*y)->name);
}

static int by_offset(const void *a, const void *b)
{
    const kvm_gguf_tensor *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static ptrdiff_t round_up(ptrdiff_t n, ptrdiff_t to)
{
    return (n + to - 1) / to * to; /* n <= file size, to <= 65536: cannot wrap */
}

/* Offsets become absolute; the tensors must lie apart, inside the file, and nothing but
 * alignment may follow the last. */
static kvm_status place_tensors(reader *r, kvm_gguf *g)
{
    const ptrdiff_t base = round_up(r->at, g->alignment);
    ptrdiff_t end = base;
    qsort(g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, by_offset);
    for (ptrdiff_t i = 0; i < g->n_tensors; i++) {
        kvm_gguf_tensor *t = &g->tensors[g->by_name[i] - g->tensors];
        t->offset += base;
        if (t->offset < end)
            return bad_tensor(r, t, "it overlaps the tensor before it");
        if (t->offset > r->all.len || t->bytes > r->all.len - t->offset)
            return kvm_fail(r->err, KVM_FORMAT,
                            "%.*s: tensor %.*s lies at %td + %td bytes, but the file "
                            "ends at %td; fetch it again",
                            KVM_STR_ARG(r->name), KVM_STR_ARG(t->name), t->offset,
                            t->bytes, r->all.len);
        end = t->offset + t->bytes;
    }
    if (r->all.len > round_up(end, g->alignment))
        return kvm_fail(r->err, KVM_FORMAT,
                        "%.*s: %td bytes follow the last tensor; fetch the file again",
                        KVM_STR_ARG(r->name), r->all.len - end);
    return KVM_OK;
}

static kvm_status take_tensors(reader *r, kvm_gguf *g, kvm_arena *keep)
{
    g->tensors = kvm_new(keep, kvm_gguf_tensor, g->n_tensors);
    g->by_name = kvm_new(keep, const kvm_gguf_tensor *, g->n_tensors);
    if (!g->tensors || !g->by_name) return kvm_nomem(r->err, keep);
    for (ptrdiff_t i = 0; i < g->n_tensors; i++) {
        TRY(take_tensor(r, &g->tensors[i], g->alignment));
        g->by_name[i] = &g->tensors[i];
    }
    if (g->n_tensors == 0) return KVM_OK; /* a vocabulary-only file */
    TRY(place_tensors(r, g));
    qsort(g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, by_name);
    for (ptrdiff_t i = 1; i < g->n_tensors; i++)
        if (kvm_str_eq(g->by_name[i - 1]->name, g->by_name[i]->name))
            return bad_tensor(r, g->by_name[i], "appears twice");
    return KVM_OK;
}

static kvm_status take_header(reader *r, kvm_gguf *g)
{
    const char *magic = NULL;
    uint32_t version;
    TRY(take(r, 4, &magic, "the magic \"GGUF\""));
    if (memcmp(magic, "GGUF", 4) != 0)
        return kvm_fail(r->err, KVM_FORMAT,
                        "%.*s: not a GGUF file (it does not begin with \"GGUF\")",
                        KVM_STR_ARG(r->name));
    TRY(take_u32(r, &version, "the version"));
    if (version != 2 && version != 3)
        return kvm_fail(r->err, KVM_UNSUPPORTED,
                        "%.*s: GGUF version %u%s; 2 and 3 are read",
                        KVM_STR_ARG(r->name), (unsigned)version,
                        version && !(version & 0xFFFF) ? " (a big-endian file)" : "");
    TRY(take_count(r, TENSOR_MIN, &g->n_tensors, "the number of tensors"));
    return take_count(r, KEY_MIN, &g->n_values, "the number of keys");
}

kvm_status kvm_gguf_parse(kvm_gguf **out, kvm_arena *keep, kvm_str bytes, kvm_str name,
                          kvm_err *err)
{
    reader r = {.all = bytes, .name = name, .err = err};
    kvm_gguf *g = kvm_new(keep, kvm_gguf, 1);
    if (!g) return kvm_nomem(err, keep);
    g->bytes = bytes;
    g->name = kvm_str_copy(keep, name);
    if (!g->name.at) return kvm_nomem(err, keep);
    TRY(take_header(&r, g));
    TRY(take_values(&r, g, keep));
    uint64_t alignment;
    TRY(kvm_gguf_u64_or(g, "general.alignment", 32, &alignment, err));
    if (alignment < 8 || alignment > 65536 || (alignment & (alignment - 1)) != 0)
        return kvm_fail(err, KVM_FORMAT,
                        "%.*s: general.alignment is %llu, not a power of two from 8 to "
                        "65536",
                        KVM_STR_ARG(name), (unsigned long long)alignment);
    g->alignment = (ptrdiff_t)alignment;
    TRY(take_tensors(&r, g, keep));
    *out = g;
    return KVM_OK;
}

kvm_status kvm_gguf_open(kvm_gguf **out, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_str bytes;
    struct stat state;
    kvm_gguf *g;
    TRY(kvm_file_map_state(&bytes, &state, keep, path, err));
    TRY(kvm_gguf_parse(&g, keep, bytes, path, err));
    g->state = state;
    *out = g;
    return KVM_OK;
}

kvm_str kvm_gguf_bytes(const kvm_gguf *g)
{
    return g->bytes;
}
const struct stat *kvm_gguf_state(const kvm_gguf *g)
{
    return &g->state;
}
kvm_str kvm_gguf_name(const kvm_gguf *g)
{
    return g->name;
}

static const gguf_value *find(const kvm_gguf *g, const char *key)
{
    const gguf_value want = {.key = kvm_str_of(key)};
    if (g->n_values == 0) return NULL;
    return bsearch(&want, g->values, (size_t)g->n_values, sizeof want, by_key);
}

bool kvm_gguf_has(const kvm_gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

bool kvm_gguf_is_array(const kvm_gguf *g, const char *key)
{
    const gguf_value *v = find(g, key);
    return v && v->array;
}

static kvm_status wrong_kind(const kvm_gguf *g, const gguf_value *v, const char *want,
                             kvm_err *err)
{
    return kvm_fail(err, KVM_FORMAT, "%.*s: key %.*s: expected %s, found %s%s",
                    KVM_STR_ARG(g->name), KVM_STR_ARG(v->key), want,
                    v->array ? "an array of " : "", types[v->type].name);
}

static kvm_status absent(const kvm_gguf *g, const char *key, kvm_err *err)
{
    return kvm_fail(err, KVM_NOTFOUND, "%.*s: the key %s is missing",
                    KVM_STR_ARG(g->name), key);
}

/* Element i as an integer; false for floats, strings and u64 beyond int64. */
static bool as_i64(const gguf_value *v, ptrdiff_t i, int64_t *out)
{
    const int n = types[v->type].bytes, kind = types[v->type].kind;
    if (kind != 'u' && kind != 'i' && kind != 'b') return false;
    uint64_t bits = 0;
    memcpy(&bits, v->at + i * n, (size_t)n);
    if (kind == 'i' && n < 8 && (bits >> (8 * n - 1)) != 0) bits |= ~0ULL << (8 * n);
    if (kind != 'i' && bits > INT64_MAX) return false;
    *out = (int64_t)bits;
    return true;
}

static bool as_f64(const gguf_value *v, ptrdiff_t i, double *out)
{
    int64_t whole;
    if (types[v->type].kind == 'f' && types[v->type].bytes == 4) {
        float f;
        memcpy(&f, v->at + i * 4, 4);
        *out = (double)f;
    } else if (types[v->type].kind == 'f') {
        memcpy(out, v->at + i * 8, 8);
    } else {
        if (types[v->type].kind == 'b' || !as_i64(v, i, &whole)) return false;
        *out = (double)whole;
    }
    return true;
}

kvm_status kvm_gguf_u64_or(const kvm_gguf *g, const char *key, uint64_t fallback,
                           uint64_t *out, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    int64_t n = 0;
    if (v && (v->array || types[v->type].kind == 'b' || !as_i64(v, 0, &n) || n < 0))
        return wrong_kind(g, v, "an integer of at least 0", err);
    *out = v ? (uint64_t)n : fallback;
    return KVM_OK;
}

kvm_status kvm_gguf_u64(const kvm_gguf *g, const char *key, uint64_t *out, kvm_err *err)
{
    if (!find(g, key)) return absent(g, key, err);
    return kvm_gguf_u64_or(g, key, 0, out, err);
}

kvm_status kvm_gguf_f64_or(const kvm_gguf *g, const char *key, double fallback,
                           double *out, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    double x = fallback;
    if (v && (v->array || !as_f64(v, 0, &x))) return wrong_kind(g, v, "a number", err);
    *out = x;
    return KVM_OK;
}

kvm_status kvm_gguf_f64(const kvm_gguf *g, const char *key, double *out, kvm_err *err)
{
    if (!find(g, key)) return absent(g, key, err);
    return kvm_gguf_f64_or(g, key, 0, out, err);
}

kvm_status kvm_gguf_bool_or(const kvm_gguf *g, const char *key, bool fallback,
                            bool *out, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    if (v && (v->array || v->type != T_BOOL)) return wrong_kind(g, v, "a boolean", err);
    *out = v ? *v->at != 0 : fallback;
    return KVM_OK;
}

kvm_status kvm_gguf_str_or(const kvm_gguf *g, const char *key, kvm_str fallback,
                           kvm_str *out, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    if (v && (v->array || v->type != T_STRING))
        return wrong_kind(g, v, "a string", err);
    *out = v ? (kvm_str){v->at, v->n} : fallback;
    return KVM_OK;
}

kvm_status kvm_gguf_str(const kvm_gguf *g, const char *key, kvm_str *out, kvm_err *err)
{
    if (!find(g, key)) return absent(g, key, err);
    return kvm_gguf_str_or(g, key, (kvm_str){0}, out, err);
}

kvm_status kvm_gguf_strs(const kvm_gguf *g, const char *key, kvm_arena *keep,
                         kvm_str **out, ptrdiff_t *n, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    if (!v) return absent(g, key, err);
    if (!v->array || v->type != T_STRING)
        return wrong_kind(g, v, "an array of strings", err);
    kvm_str *s = kvm_new(keep, kvm_str, v->n);
    if (!s) return kvm_nomem(err, keep);
    const char *at = v->at;
    for (ptrdiff_t i = 0; i < v->n; i++) {
        uint64_t len;
        memcpy(&len, at, 8);
        s[i] = (kvm_str){at + 8, (ptrdiff_t)len};
        at += 8 + len;
    }
    *out = s;
    *n = v->n;
    return KVM_OK;
}

kvm_status kvm_gguf_i64s(const kvm_gguf *g, const char *key, kvm_arena *keep,
                         int64_t **out, ptrdiff_t *n, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    if (!v) return absent(g, key, err);
    int64_t *a = v->array ? kvm_new(keep, int64_t, v->n) : NULL;
    if (v->array && !a) return kvm_nomem(err, keep);
    bool good = v->array;
    for (ptrdiff_t i = 0; good && i < v->n; i++) good = as_i64(v, i, &a[i]);
    if (!good) return wrong_kind(g, v, "an array of integers", err);
    *out = a;
    *n = v->n;
    return KVM_OK;
}

kvm_status kvm_gguf_f64s(const kvm_gguf *g, const char *key, kvm_arena *keep,
                         double **out, ptrdiff_t *n, kvm_err *err)
{
    const gguf_value *v = find(g, key);
    if (!v) return absent(g, key, err);
    double *a = v->array ? kvm_new(keep, double, v->n) : NULL;
    if (v->array && !a) return kvm_nomem(err, keep);
    bool good = v->array;
    for (ptrdiff_t i = 0; good && i < v->n; i++) good = as_f64(v, i, &a[i]);
    if (!good) return wrong_kind(g, v, "an array of numbers", err);
    *out = a;
    *n = v->n;
    return KVM_OK;
}

ptrdiff_t kvm_gguf_tensors(const kvm_gguf *g)
{
    return g->n_tensors;
}

const kvm_gguf_tensor *kvm_gguf_tensor_at(const kvm_gguf *g, ptrdiff_t i)
{
    return i >= 0 && i < g->n_tensors ? &g->tensors[i] : NULL;
}

const kvm_gguf_tensor *kvm_gguf_tensor_find(const kvm_gguf *g, kvm_str name)
{
    const kvm_gguf_tensor want = {.name = name}, *key = &want;
    if (g->n_tensors == 0) return NULL;
    const kvm_gguf_tensor **hit =
        bsearch(&key, g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, by_name);
    return hit ? *hit : NULL;
}

const void *kvm_gguf_data(const kvm_gguf *g, const kvm_gguf_tensor *t)
{
    return g->bytes.at + t->offset;
}
