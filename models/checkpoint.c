#include "models/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "models/safetensors.h"

struct kvm_checkpoint {
    kvm_str path;
    kvm_config config;
    kvm_st *st; /* one of the two, or neither: of a config alone */
    kvm_gguf *gguf;
    char *zeros; /* (ZEROS) what its tensors hold then; untouched, so no memory */
    const char *prefix; /* of the safetensors names */
    kvm_dtype dtype;    /* of what is imagined */
};

static const struct row {
    int level; /* 0: once; 1: per layer; 2: per expert of a layer */
    const char *hf, *gguf;
} rows[KVM_WEIGHT_IDS] = {
#define X(id, level, hf, gguf) {level, hf, gguf},
#include "models/weights.def"
#undef X
};

/* of transformers' multimodal wrappers, with the text model inside or outside of
 * "model", of plain language models, and of Nemotron-H as published, in a wrapper or
 * not: in this order, the first under which there is an embedding */
static const char *const prefixes[] = {"model.language_model.",
                                       "language_model.model.",
                                       "model.",
                                       "language_model.backbone.",
                                       "backbone.",
                                       ""};
static const char *const head_prefixes[] = {"", "language_model.", "model."};

static const size_t ZEROS = (size_t)1 << 36; /* the largest tensor, and room */

enum { NAME_BYTES = 160 }; /* the longest prefix, layer number and row of weights.def */

static const kvm_st_tensor *find_named(const kvm_st *st, const char *prefix,
                                       const char *name)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return kvm_st_find(st, kvm_str_of(full));
}

static bool has_embedding(const kvm_checkpoint *ck, kvm_arena scratch,
                          const char *prefix)
{
    kvm_str name, rest = kvm_str_of(rows[KVM_W_EMBED].hf);
    while (rest.len > 0) {
        kvm_str_cut(rest, '|', &name, &rest);
        const kvm_str plain = kvm_str_copy(&scratch, name);
        if (plain.at && find_named(ck->st, prefix, plain.at)) return true;
    }
    return false;
}

/* the layer whose tensor this is, -1: of none */
static ptrdiff_t layer_of(kvm_str name, const char *prefix, const char *stack)
{
    const kvm_str before[] = {kvm_str_of(prefix), kvm_str_of(stack)};
    kvm_str number, rest;
    int64_t layer;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        if (!kvm_str_starts(name, before[i])) return -1;
        name = kvm_str_slice(name, before[i].len, name.len);
    }
    if (!kvm_str_cut(name, '.', &number, &rest)) return -1;
    return kvm_str_to_i64(number, &layer) && layer >= 0 ? (ptrdiff_t)layer : -1;
}

/* Layers behind the stack that predict further tokens, as DeepSeek and GLM ship them,
 * join two hidden states by this projection, which no layer of a stack has. */
static bool predicts_further(const kvm_checkpoint *ck, ptrdiff_t layer)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "layers.%td.eh_proj.weight", layer);
    return ck->st && find_named(ck->st, ck->prefix, name);
}

/* a config that counts fewer layers than the weights have would run without the last
 * ones in silence */
static kvm_status check_behind(const kvm_checkpoint *ck, kvm_str file, kvm_str name,
                               kvm_err *err)
{
    const ptrdiff_t layers = ck->config.layers;
    const ptrdiff_t layer =
        layer_of(name, ck->gguf ? "" : ck->prefix, ck->gguf ? "blk." : "layers.");
    if (layer < layers || predicts_further(ck, layer)) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "%s: tensor %.*s is of layer %td, counted from 0, but %s is %td: "
                    "the model would run without its last layers; correct the number, "
                    "or download config and weights of one model again",
                    file.at, KVM_STR_ARG(name), layer,
                    ck->gguf ? "block_count" : "num_hidden_layers of config.json",
                    layers);
}

static kvm_status check_stack(const kvm_checkpoint *ck, kvm_err *err)
{
    const ptrdiff_t n = ck->gguf ? kvm_gguf_tensors(ck->gguf) : kvm_st_count(ck->st);
    for (ptrdiff_t i = 0; i < n; i++) {
        if (ck->gguf)
            TRY(check_behind(ck, ck->path, kvm_gguf_tensor_at(ck->gguf, i)->name, err));
        else
            TRY(check_behind(ck, kvm_st_at(ck->st, i)->file, kvm_st_at(ck->st, i)->name,
                             err));
    }
    return KVM_OK;
}

static void add_bytes(const kvm_checkpoint *ck, kvm_str name, ptrdiff_t bytes,
                      ptrdiff_t *layers)
{
    const ptrdiff_t layer =
        layer_of(name, ck->gguf ? "" : ck->prefix, ck->gguf ? "blk." : "layers.");
    if (layer >= 0 && layer < ck->config.layers) layers[layer] += bytes;
}

void kvm_checkpoint_weigh(const kvm_checkpoint *ck, ptrdiff_t *layers)
{
    memset(layers, 0, sizeof *layers * (size_t)ck->config.layers);
    for (ptrdiff_t i = 0; ck->gguf && i < kvm_gguf_tensors(ck->gguf); i++) {
        const kvm_gguf_tensor *t = kvm_gguf_tensor_at(ck->gguf, i);
        add_bytes(ck, t->name, t->bytes, layers);
    }
    for (ptrdiff_t i = 0; ck->st && i < kvm_st_count(ck->st); i++) {
        const kvm_st_tensor *t = kvm_st_at(ck->st, i);
        add_bytes(ck, t->name, (ptrdiff_t)t->bytes, layers);
    }
}

static kvm_status open_folder(kvm_checkpoint *ck, kvm_arena *keep, kvm_err *err)
{
    kvm_jat root;
    const kvm_str config = kvm_path_join(keep, ck->path, KVM_STR("config.json"));
    if (!config.at) return kvm_nomem(err, keep);
    if (!kvm_path_exists(config))
        return kvm_fail(
            err, KVM_NOTFOUND,
            "%s: no config.json here; a checkpoint is a Hugging Face folder "
            "or a .gguf file",
            ck->path.at);
    TRY(kvm_json_read_loose(&root, keep, config, err));
    TRY(kvm_config_of_json(&ck->config, keep, root, err));
    const kvm_status s = kvm_st_open(&ck->st, keep, ck->path, err);
    if (s == KVM_FORMAT)
        return kvm_err_prefix(err, s, "damaged weights; download them again");
    if (s) return s;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (!has_embedding(ck, *keep, prefixes[i])) continue;
        ck->prefix = prefixes[i];
        return KVM_OK;
    }
    return kvm_fail(
        err, KVM_NOTFOUND,
        "%s: no tensor embed_tokens.weight under model., model.language_model. or "
        "language_model.model., no embeddings.weight under backbone.: not a language "
        "model, or an adapter",
        ck->path.at);
}

static void free_zeros(void *zeros)
{
    kvm_arena_free(zeros);
}

kvm_status kvm_checkpoint_imagine(kvm_checkpoint **out, kvm_arena *keep, kvm_str path,
                                  kvm_err *err)
{
    kvm_jat root;
    kvm_checkpoint *ck = kvm_new(keep, kvm_checkpoint, 1);
    kvm_arena *zeros = kvm_new(keep, kvm_arena, 1);
    if (!ck || !zeros) return kvm_nomem(err, keep);
    ck->path = kvm_str_copy(keep, path);
    if (!ck->path.at) return kvm_nomem(err, keep);
    TRY(kvm_json_read(&root, keep, ck->path, err));
    TRY(kvm_config_of_json(&ck->config, keep, root, err));
    TRY(kvm_config_dtype(&ck->dtype, keep, root, err));
    TRY(kvm_arena_reserve(zeros, ZEROS + 4096, err));
    TRY(kvm_arena_defer(keep, free_zeros, zeros, err));
    ck->zeros = kvm_new_raw(zeros, char, (ptrdiff_t)ZEROS);
    if (!ck->zeros) return kvm_nomem(err, zeros);
    ck->prefix = "";
    *out = ck;
    return KVM_OK;
}

kvm_status kvm_checkpoint_open(kvm_checkpoint **out, kvm_arena *keep, kvm_str path,
                               kvm_err *err)
{
    kvm_checkpoint *ck = kvm_new(keep, kvm_checkpoint, 1);
    if (!ck) return kvm_nomem(err, keep);
    ck->path = kvm_str_copy(keep, path);
    if (!ck->path.at) return kvm_nomem(err, keep);
    if (kvm_path_is_dir(path)) {
        TRY(open_folder(ck, keep, err));
    } else {
        TRY(kvm_gguf_open(&ck->gguf, keep, ck->path, err));
        TRY(kvm_config_of_gguf(&ck->config, keep, ck->gguf, err));
    }
    TRY(check_stack(ck, err));
    *out = ck;
    return KVM_OK;
}

const kvm_config *kvm_checkpoint_config(const kvm_checkpoint *ck)
{
    return &ck->config;
}
kvm_str kvm_checkpoint_path(const kvm_checkpoint *ck)
{
    return ck->path;
}
bool kvm_checkpoint_permuted(const kvm_checkpoint *ck)
{
    return ck->gguf && ck->config.family->permuted;
}

/* The i-th of the names that the row has, prefix left out; false when there are fewer.
 * A row's own "E" stands for the expert. */
static bool spell(const kvm_checkpoint *ck, kvm_weight_at w, int i,
                  char out[NAME_BYTES])
{
    kvm_str name = {0}, rest = kvm_str_of(ck->gguf ? rows[w.id].gguf : rows[w.id].hf);
    for (; i >= 0; i--) {
        if (rest.len == 0) return false;
        kvm_str_cut(rest, '|', &name, &rest);
    }
    const char *stack = ck->gguf ? "blk" : "layers";
    kvm_str head = name, tail = KVM_STR("");
    if (rows[w.id].level < 1)
        snprintf(out, NAME_BYTES, "%.*s", KVM_STR_ARG(name));
    else if (rows[w.id].level > 1 && kvm_str_cut(name, 'E', &head, &tail))
        snprintf(out, NAME_BYTES, "%s.%td.%.*s%td%.*s", stack, w.layer,
                 KVM_STR_ARG(head), w.expert, KVM_STR_ARG(tail));
    else
        snprintf(out, NAME_BYTES, "%s.%td.%.*s", stack, w.layer, KVM_STR_ARG(name));
    return true;
}

static bool find_st(const kvm_checkpoint *ck, kvm_weight_id id, const char *name,
                    kvm_found *out)
{
    const kvm_st_tensor *t = NULL;
    if (id == KVM_W_HEAD) {
        for (size_t i = 0; !t && i < sizeof head_prefixes / sizeof *head_prefixes; i++)
            t = find_named(ck->st, head_prefixes[i], name);
    } else {
        t = find_named(ck->st, ck->prefix, name);
    }
    if (t) *out = (kvm_found){.t = t->t, .name = t->name, .file = t->file};
    return t != NULL;
}

/* dims are stored fastest first: turn them round */
static bool find_gguf(const kvm_checkpoint *ck, const char *name, kvm_found *out)
{
    const kvm_gguf_tensor *t = kvm_gguf_tensor_find(ck->gguf, kvm_str_of(name));
    if (!t) return false;
    *out = (kvm_found){.name = t->name, .file = kvm_gguf_name(ck->gguf)};
    out->t = (kvm_tensor){.data = (void *)(uintptr_t)kvm_gguf_data(ck->gguf, t),
                          .rank = t->rank,
                          .dtype = t->dtype};
    ptrdiff_t stride = 1;
    for (int i = t->rank - 1, j = 0; i >= 0; i--, j++) {
        out->t.dim[i] = t->dim[j];
        out->t.stride[i] = stride;
        stride *= t->dim[j];
    }
    return true;
}

/* name: the one that was found, else the row's first; its last where blocks are of one
 * layer each, for so the rows have those names */
static bool find(const kvm_checkpoint *ck, kvm_weight_at w, char name[NAME_BYTES],
                 kvm_found *out)
{
    int n = 0;
    for (; spell(ck, w, n, name); n++)
        if (ck->gguf ? find_gguf(ck, name, out) : find_st(ck, w.id, name, out))
            return true;
    if (!spell(ck, w, ck->config.family->single ? n - 1 : 0, name)) *name = 0;
    return false;
}

bool kvm_checkpoint_has(const kvm_checkpoint *ck, kvm_weight_at w)
{
    if (ck->zeros) return false;
    char name[NAME_BYTES];
    kvm_found f;
    return find(ck, w, name, &f);
}

bool kvm_checkpoint_beside(const kvm_checkpoint *ck, kvm_weight_at w,
                           const char *ending, kvm_found *out)
{
    char name[NAME_BYTES], full[2 * NAME_BYTES];
    kvm_found f;
    if (!ck->st || !find(ck, w, name, &f)) return false;
    snprintf(full, sizeof full, "%.*s%s", KVM_STR_ARG(f.name), ending);
    const kvm_st_tensor *t = kvm_st_find(ck->st, kvm_str_of(full));
    if (t) *out = (kvm_found){.t = t->t, .name = t->name, .file = t->file};
    return t != NULL;
}

static void shape_text(char out[64], int rank, const ptrdiff_t *dim)
{
    int at = snprintf(out, 64, "[");
    for (int i = 0; i < rank && at < 64; i++)
        at += snprintf(out + at, (size_t)(64 - at), "%s%td", i ? ", " : "", dim[i]);
    if (at < 64) snprintf(out + at, (size_t)(64 - at), "]");
}

/* extents of one aside: convolutions are stored as (C, 1, W) */
static bool same_shape(const kvm_tensor *t, int rank, const ptrdiff_t *dim)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < t->rank && t->dim[i] == 1) i++;
        while (j < rank && dim[j] == 1) j++;
        if (i == t->rank || j == rank) return i == t->rank && j == rank;
        if (t->dim[i++] != dim[j++]) return false;
    }
}

/* what is asked for, all zeros */
static kvm_status imagine(const kvm_checkpoint *ck, int rank, const ptrdiff_t *dim,
                          kvm_found *out, kvm_err *err)
{
    kvm_tensor t = {.data = ck->zeros, .rank = rank, .dtype = ck->dtype};
    ptrdiff_t bytes = kvm_dtype_block_bytes(ck->dtype);
    for (int i = rank - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = bytes / kvm_dtype_block_bytes(ck->dtype);
        if (!kvm_mul(bytes, dim[i], &bytes) || (size_t)bytes > ZEROS)
            return kvm_fail(err, KVM_RANGE, "%s: a tensor of more than %zu GiB",
                            ck->path.at, ZEROS >> 30);
    }
    *out = (kvm_found){.t = t, .name = KVM_STR("?"), .file = ck->path};
    return KVM_OK;
}

kvm_status kvm_checkpoint_get(const kvm_checkpoint *ck, kvm_weight_at w, int rank,
                              const ptrdiff_t *dim, kvm_found *out, kvm_err *err)
{
    if (ck->zeros) return imagine(ck, rank, dim, out, err);
    char name[NAME_BYTES], found[64], wanted[64];
    kvm_found f;
    if (!find(ck, w, name, &f))
        return kvm_fail(err, KVM_NOTFOUND, "%s: tensor %s%s is missing", ck->path.at,
                        ck->gguf || w.id == KVM_W_HEAD ? "" : ck->prefix, name);
    if (!same_shape(&f.t, rank, dim)) {
        shape_text(found, f.t.rank, f.t.dim);
        shape_text(wanted, rank, dim);
        return kvm_fail(err, KVM_SHAPE,
                        "%s: tensor %.*s has shape %s, but the config implies %s",
                        f.file.at, KVM_STR_ARG(f.name), found, wanted);
    }
    f.t.rank = rank;
    for (ptrdiff_t i = rank - 1, stride = 1; i >= 0; stride *= dim[i--])
        f.t.dim[i] = dim[i], f.t.stride[i] = stride;
    *out = f;
    return KVM_OK;
}

kvm_status kvm_checkpoint_get_rows(const kvm_checkpoint *ck, kvm_weight_at w,
                                   ptrdiff_t usual, ptrdiff_t cols, kvm_found *out,
                                   kvm_err *err)
{
    char name[NAME_BYTES];
    kvm_found f;
    ptrdiff_t dim[2] = {ck->zeros ? usual : 0, cols};
    if (!ck->zeros && find(ck, w, name, &f) && f.t.rank == 2) dim[0] = f.t.dim[0];
    return kvm_checkpoint_get(ck, w, 2, dim, out, err);
}

ptrdiff_t kvm_checkpoint_files(const kvm_checkpoint *ck)
{
    return ck->gguf ? 1 : ck->st ? kvm_st_files(ck->st) : 0;
}

kvm_str kvm_checkpoint_file(const kvm_checkpoint *ck, ptrdiff_t i)
{
    return ck->gguf ? ck->path : kvm_st_file(ck->st, i);
}

kvm_str kvm_checkpoint_whole(const kvm_checkpoint *ck, ptrdiff_t i)
{
    return ck->gguf ? kvm_gguf_bytes(ck->gguf) : kvm_st_whole(ck->st, i);
}

const struct stat *kvm_checkpoint_state(const kvm_checkpoint *ck, ptrdiff_t i)
{
    return ck->gguf ? kvm_gguf_state(ck->gguf) : kvm_st_state(ck->st, i);
}
