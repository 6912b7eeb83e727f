#include "models/model.h"

#include "base/file.h"
#include "models/model_internal.h"

const kvm_object_row kvm_object_rows[KVM_OBJECT_KINDS] = {
#define TOKEN false
#define PROMPT true
#define X(id, kind, text, growth, shape, what) [id] = {text, shape, what, growth},
#include "models/objects.def"
#undef X
#undef PROMPT
#undef TOKEN
};

const char *kvm_object_name(kvm_object_kind k)
{
    return kvm_object_rows[k].name;
}

bool kvm_object_per_prompt(const kvm_object *o)
{
    return kvm_object_rows[o->kind].per_prompt;
}

bool kvm_object_chooses(const kvm_object *o)
{
    return o->kind == KVM_OBJECT_INDEX_KEY || o->kind == KVM_OBJECT_INDEX_GATE;
}

const char *kvm_object_axes(kvm_object_kind k)
{
    return kvm_object_rows[k].shape;
}

ptrdiff_t kvm_object_bytes(const kvm_object *o)
{
    return o->heads * o->dim * kvm_dtype_block_bytes(o->dtype);
}

kvm_status kvm_object_of_name(kvm_str name, kvm_object_kind *k)
{
    for (int i = 0; i < KVM_OBJECT_KINDS; i++) {
        if (!kvm_str_eq(name, kvm_str_of(kvm_object_rows[i].name))) continue;
        *k = (kvm_object_kind)i;
        return KVM_OK;
    }
    return KVM_NOTFOUND;
}

static kvm_status load_stack(kvm_model *m, kvm_loader *ld, kvm_err *err)
{
    const kvm_config *c = &m->config;
    m->blocks = kvm_new(ld->keep, kvm_block, c->layers);
    if (!m->blocks) return kvm_nomem(err, ld->keep);
    for (ptrdiff_t l = m->cut[m->part]; l < m->cut[m->part + 1]; l++) {
        kvm_block *b = &m->blocks[l];
        const kvm_block_kinds *kinds = &c->blocks[l];
        if (m->offload) ld->extents = &b->extents;
        if (c->stream.ngrams && c->stream.ngrams[l])
            TRY(kvm_ngram_load(&b->ngram, ld, l, err));
        TRY(kvm_site_load(&b->mixer, ld, kinds->mixer, &kvm_mixer_site, l, err));
        TRY(kvm_site_load(&b->ffn, ld, kinds->ffn, &kvm_ffn_site, l, err));
        kvm_model__leave(b); /* what loading looked at */
    }
    ld->extents = NULL;
    return KVM_OK;
}

void kvm_model__want(const kvm_block *b)
{
    for (const kvm_extent *e = b->extents; e; e = e->next)
        kvm_file_want(e->at, (size_t)e->bytes);
}

void kvm_model__leave(const kvm_block *b)
{
    for (const kvm_extent *e = b->extents; e; e = e->next)
        kvm_file_leave(e->at, (size_t)e->bytes);
}

/* Tied: logits go through the embedding, and a head in the file is ignored as the
 * reference ignores it. */
static kvm_status load_ends(kvm_model *m, kvm_loader *ld, kvm_err *err)
{
    const kvm_config *c = &m->config;
    const ptrdiff_t in_layers = ld->matrix_parameters;
    TRY(kvm_load_matrix(ld, KVM_W_EMBED, 0, c->vocab, c->hidden, &m->embed, err));
    TRY(kvm_site_load(&m->last, ld, KVM_LAYER_NONE, &kvm_final_site, 0, err));
    if (c->tied)
        return kvm_weight_new(&m->head, ld->keep, m->compute, m->embed, NULL, err);
    const kvm_linear_row row = {
        .weight = KVM_W_HEAD, .bias = KVM_W_HEAD, .out = c->vocab, .in = c->hidden};
    const kvm_status s = kvm_load_linear(ld, &row, &m->head, err);
    ld->matrix_parameters = in_layers;
    return s == KVM_NOTFOUND
               ? kvm_err_prefix(err, s, "the config says that the head is not tied")
               : s;
}

/* The engine's own type of a cache: that of unquantised weights, BF16 beside FP8 ones,
 * else F16. */
static kvm_dtype cache_dtype(kvm_dtype weights)
{
    if (weights == KVM_F8_E4M3) return KVM_BF16;
    return weights == KVM_F32 || weights == KVM_BF16 ? weights : KVM_F16;
}

kvm_status kvm_model__objects(kvm_object **out, ptrdiff_t *n, kvm_arena *keep,
                              const kvm_config *c, const kvm_rope *rope,
                              kvm_dtype stored, kvm_err *err)
{
    kvm_object *all = kvm_new(keep, kvm_object, c->layers * KVM_LAYER_OBJECTS);
    if (!all) return kvm_nomem(err, keep);
    *n = 0;
    for (ptrdiff_t l = 0; l < c->layers; l++) {
        const kvm_layer_kind *mixer = kvm_layer_kinds[c->blocks[l].mixer];
        if (mixer) *n += mixer->objects(c, l, rope, all + *n);
        *n += kvm_ngram_objects(c, l, all + *n);
    }
    for (ptrdiff_t i = 0; i < *n; i++) { /* states are F32 whatever the weights are */
        const kvm_object_kind k = all[i].kind;
        all[i].dtype = k == KVM_OBJECT_STATE || k == KVM_OBJECT_SSM_STATE ? KVM_F32
                       : k == KVM_OBJECT_LAST_IDS                         ? KVM_I64
                                                  : cache_dtype(stored);
    }
    *out = all;
    return KVM_OK;
}

static kvm_status list_objects(kvm_model *m, kvm_arena *keep, const kvm_rope *rope,
                               kvm_err *err)
{
    kvm_model_info *info = &m->info;
    TRY(kvm_model__objects(&m->objects, &info->objects, keep, &m->config, rope,
                           info->weight_dtype, err));
    for (ptrdiff_t i = info->objects - 1; i >= 0; i--) {
        const kvm_object *o = &m->objects[i];
        kvm_layer *mixer = m->blocks[o->layer].mixer.layer;
        if (mixer) mixer->first_object = i; /* else another part has it */
        if (o->kind == KVM_OBJECT_NGRAM_WINDOW) m->blocks[o->layer].ngram_object = i;
        const ptrdiff_t bytes = kvm_object_bytes(o);
        if (kvm_object_per_prompt(o))
            m->recurrent = true, info->prompt_bytes += bytes;
        else
            info->token_bytes += bytes;
    }
    return KVM_OK;
}

static kvm_str base_name(kvm_str path)
{
    while (path.len > 1 && path.at[path.len - 1] == '/') path.len--;
    ptrdiff_t from = path.len;
    while (from > 0 && path.at[from - 1] != '/') from--;
    const kvm_str name = kvm_str_slice(path, from, path.len);
    return kvm_str_ends(name, KVM_STR(".gguf")) ? kvm_str_slice(name, 0, name.len - 5)
                                                : name;
}

static void fill_info(kvm_model *m, const kvm_loader *ld)
{
    const kvm_config *c = &m->config;
    kvm_model_info *info = &m->info;
    info->path = kvm_checkpoint_path(ld->ck);
    info->family = kvm_str_of(c->family->name);
    info->name = base_name(info->path);
    info->layers = c->layers;
    info->hidden = c->hidden;
    info->heads = c->heads;
    info->kv_heads = c->kv_heads;
    info->head_dim = c->head_dim;
    info->ffn = c->ffn;
    info->vocab = c->vocab;
    info->context = c->context;
    for (int d = 0; d < KVM_DTYPES; d++)
        if (ld->dtype_bytes[d] > ld->dtype_bytes[info->weight_dtype])
            info->weight_dtype = (kvm_dtype)d;
    info->parameters = ld->parameters;
    info->weight_bytes = ld->bytes;
    info->flops_per_token = 2.0 * (double)ld->matrix_parameters;
    info->flops_per_logits = 2.0 * (double)c->vocab * (double)c->hidden;
    info->config_hash = m->config_hash;
    info->weights_hash = m->weights_hash;
    info->fingerprint = m->fingerprint;
}

static void free_work(void *work)
{
    kvm_arena_free(work);
}

static kvm_status open_tokenizer(kvm_model *m, kvm_arena *keep, kvm_str path,
                                 kvm_err *err)
{
    TRY(kvm_tokenizer_open(&m->tokenizer, keep, path, err));
    const ptrdiff_t size = kvm_tokenizer_size(m->tokenizer);
    if (size <= m->config.vocab) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "%s: the tokenizer has ids up to %td, the model embeds %td tokens: "
                    "they are not of one checkpoint",
                    m->info.path.at, size - 1, m->config.vocab);
}

kvm_status kvm_model_open(kvm_model **out, kvm_arena *keep, kvm_compute *c,
                          kvm_str path, const kvm_model_options *o, kvm_err *err)
{
    kvm_checkpoint *ck;
    kvm_model *m = kvm_new(keep, kvm_model, 1);
    if (!m) return kvm_nomem(err, keep);
    TRY(o && o->imagined ? kvm_checkpoint_imagine(&ck, keep, path, err)
                         : kvm_checkpoint_open(&ck, keep, path, err));
    m->config = *kvm_checkpoint_config(ck);
    m->compute = c;
    m->offload = o && o->offload;
    kvm_loader ld = {.ck = ck, .config = &m->config, .compute = c, .keep = keep};
    kvm_str *memos = NULL;
    if (o && o->check_finite) {
        bool known;
        TRY(kvm_model__finite_memos(&memos, &known, ck, keep, err));
        ld.check_finite = !known;
    }
    m->part = o ? o->part : 0;
    TRY(kvm_model__cut(&m->cut, keep, ck, o && o->parts > 0 ? o->parts : 1, err));
    TRY(kvm_load_norm_form(&ld, err));
    TRY(kvm_load_rope(&ld, err));
    TRY(load_stack(m, &ld, err));
    TRY(load_ends(m, &ld, err));
    if (ld.check_finite)
        kvm_model__remember_finite(memos, kvm_checkpoint_files(ck), *keep);
    fill_info(m, &ld);
    TRY(list_objects(m, keep, &ld.rope, err));
    m->logits = kvm_new_raw(keep, float, m->config.vocab);
    if (!m->logits) return kvm_nomem(err, keep);
    if (!o || !o->no_tokenizer) TRY(open_tokenizer(m, keep, path, err));
    TRY(kvm_model__fingerprint(m, ck, *keep, err));
    TRY(kvm_arena_defer(keep, free_work, &m->work, err));
    *out = m;
    return KVM_OK;
}

const kvm_model_info *kvm_model_info_of(const kvm_model *m)
{
    return &m->info;
}
const kvm_object *kvm_model_object(const kvm_model *m, ptrdiff_t i)
{
    return &m->objects[i];
}
const kvm_tokenizer *kvm_model_tokenizer(const kvm_model *m)
{
    return m->tokenizer;
}
kvm_compute *kvm_model_compute(const kvm_model *m)
{
    return m->compute;
}

ptrdiff_t kvm_model_find_object(const kvm_model *m, kvm_object_kind kind,
                                ptrdiff_t layer)
{
    for (ptrdiff_t i = 0; i < m->info.objects; i++)
        if (m->objects[i].kind == kind && m->objects[i].layer == layer) return i;
    return -1;
}
