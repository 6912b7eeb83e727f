#include "models/config_internal.h"

#include <math.h>

#include "base/hash.h"

const kvm_family kvm_families[] = {
#define X(id, ...) {.name = #id, __VA_ARGS__},
#include "models/families.def"
#undef X
};
const ptrdiff_t kvm_families_count =
    (ptrdiff_t)(sizeof kvm_families / sizeof *kvm_families);

const kvm_family *kvm_config__family(kvm_str name, bool gguf)
{
    for (ptrdiff_t i = 0; i < kvm_families_count; i++) {
        const kvm_family *f = &kvm_families[i];
        const char *known = gguf ? f->gguf : f->name;
        if (known && kvm_str_eq(name, kvm_str_of(known))) return f;
    }
    return NULL;
}

kvm_str kvm_config__family_list(kvm_arena *keep, bool gguf)
{
    kvm_str s = KVM_STR("");
    for (ptrdiff_t i = 0; i < kvm_families_count; i++) {
        const char *name = gguf ? kvm_families[i].gguf : kvm_families[i].name;
        if (name)
            s = kvm_str_fmt(keep, "%s%s%s", s.len > 0 ? s.at : "",
                            s.len > 0 ? ", " : "", name);
    }
    return s;
}

/* Bounds that keep products of any four of these below 2^63 and allocations sane. */
static kvm_status check_sizes(const kvm_config *c, const char *file, kvm_err *err)
{
    const struct {
        const char *name;
        ptrdiff_t value, most;
    } fields[] = {
        {"hidden size", c->hidden, 1 << 17},
        {"feed-forward size", c->ffn > 0 ? c->ffn : c->moe.inner, 1 << 19},
        {"number of layers", c->layers, 1 << 11},
        {"number of heads", c->heads, 1 << 11},
        {"number of kv heads", c->kv_heads, 1 << 11},
        {"head size", c->head_dim, 1 << 12},
        {"vocabulary size", c->vocab, 1 << 23},
        {"context length", c->context, 1 << 27},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].most)
            return kvm_fail(err, KVM_RANGE, "%s: the %s is %td; 1 to %td are possible",
                            file, fields[i].name, fields[i].value, fields[i].most);
    if (c->heads % c->kv_heads != 0)
        return kvm_fail(err, KVM_RANGE,
                        "%s: %td heads cannot share %td kv heads evenly", file,
                        c->heads, c->kv_heads);
    if (!(c->eps > 0 && c->eps < 1))
        return kvm_fail(err, KVM_RANGE, "%s: rms_norm_eps is %g; it lies in (0, 1)",
                        file, c->eps);
    return KVM_OK;
}

static kvm_status check_rope(const kvm_config *c, const char *file, kvm_err *err)
{
    const kvm_rope_config *r = &c->rope;
    if (c->family->unrotated) return KVM_OK;
    if (r->width < 2 || r->width % 2 != 0 || r->width > c->head_dim)
        return kvm_fail(err, KVM_RANGE,
                        "%s: %td rotated entries in heads of %td: an even number of at "
                        "least 2 fits",
                        file, r->width, c->head_dim);
    if (!(r->theta > 1 && r->theta < 1e12))
        return kvm_fail(err, KVM_RANGE, "%s: rope_theta is %g; it lies above 1", file,
                        r->theta);
    if (r->kind == KVM_ROPE_DEFAULT) return KVM_OK;
    if (!(r->factor >= 1 && r->factor < 1e6))
        return kvm_fail(err, KVM_RANGE, "%s: the rope factor is %g; it is at least 1",
                        file, r->factor);
    if (r->kind == KVM_ROPE_LINEAR) return KVM_OK;
    if (r->original < 1 || r->original > 1 << 27)
        return kvm_fail(
            err, KVM_RANGE,
            "%s: original_max_position_embeddings is %td; this rope scaling "
            "needs it",
            file, r->original);
    if (r->kind == KVM_ROPE_LLAMA3 && !(r->low > 0 && r->high > r->low))
        return kvm_fail(
            err, KVM_RANGE,
            "%s: low_freq_factor %g and high_freq_factor %g: 0 < low < high", file,
            r->low, r->high);
    if (r->kind == KVM_ROPE_YARN &&
        !(r->beta_slow > 0 && r->beta_fast > r->beta_slow && r->attention_factor >= 0 &&
          r->attention_factor < 1e6 && fabs(r->mscale) < 1e6 &&
          fabs(r->mscale_all_dim) < 1e6))
        return kvm_fail(err, KVM_RANGE,
                        "%s: YaRN wants 0 < beta_slow < beta_fast and finite, "
                        "non-negative factors",
                        file);
    return KVM_OK;
}

/* bounds as in check_sizes */
static kvm_status check_mla(const kvm_config *c, const char *file, kvm_err *err)
{
    const kvm_mla_config *m = &c->mla;
    const struct {
        const char *name;
        ptrdiff_t value, least;
    } fields[] = {{"q_lora_rank", m->query_rank, 0},
                  {"kv_lora_rank", m->rank, 1},
                  {"qk_nope_head_dim", m->nope, 1},
                  {"qk_rope_head_dim", m->rope, c->family->unrotated ? 0 : 2},
                  {"v_head_dim", m->value, 1}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].least || fields[i].value > 1 << 14)
            return kvm_fail(err, KVM_RANGE, "%s: %s is %td; %td to %d are possible",
                            file, fields[i].name, fields[i].value, fields[i].least,
                            1 << 14);
    return KVM_OK;
}

static kvm_status check_moe(const kvm_moe_config *m, const char *file, kvm_err *err)
{
    if (m->experts > 1 << 14 || m->active < 1 || m->active > m->experts)
        return kvm_fail(err, KVM_RANGE,
                        "%s: a token goes through %td of %td experts; 1 to all of at "
                        "most %d are possible",
                        file, m->active, m->experts, 1 << 14);
    if (m->groups < 1 || m->experts % m->groups != 0)
        return kvm_fail(err, KVM_RANGE, "%s: %td experts do not make %td even groups",
                        file, m->experts, m->groups);
    if (m->open_groups < 1 || m->open_groups > m->groups ||
        m->active > m->open_groups * (m->experts / m->groups))
        return kvm_fail(err, KVM_RANGE,
                        "%s: %td of %td groups of %td experts cannot give the %td that "
                        "a token goes through",
                        file, m->open_groups, m->groups, m->experts / m->groups,
                        m->active);
    if (m->inner < 1 || m->inner > 1 << 19 || m->shared > 1 << 19 ||
        m->latent > 1 << 17)
        return kvm_fail(err, KVM_RANGE,
                        "%s: experts of width %td, shared ones of %td; up to %d; "
                        "moe_latent_size is %td, up to %d",
                        file, m->inner, m->shared, 1 << 19, m->latent, 1 << 17);
    if (!(m->scale > 0 && m->scale < 1e6))
        return kvm_fail(err, KVM_RANGE, "%s: routed_scaling_factor is %g", file,
                        m->scale);
    return KVM_OK;
}

static kvm_status check_recurrent(const kvm_config *c, const char *file, kvm_err *err)
{
    const kvm_recurrent_config *r = &c->recurrent;
    const bool scan = c->family->recurrent == KVM_LAYER_MAMBA2;
    const struct {
        const char *name, *of_scan;
        ptrdiff_t value, most;
    } fields[] = {
        {"linear_num_key_heads", "n_groups", r->key_heads, 1 << 10},
        {"linear_num_value_heads", "mamba_num_heads", r->value_heads, 1 << 10},
        {"linear_key_head_dim", "ssm_state_size", r->key_dim, 1 << 10},
        {"linear_value_head_dim", "mamba_head_dim", r->value_dim, 1 << 10},
        {"linear_conv_kernel_dim", "conv_kernel", r->window, 8}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].most)
            return kvm_fail(err, KVM_RANGE, "%s: %s is %td; 1 to %td are possible",
                            file, scan ? fields[i].of_scan : fields[i].name,
                            fields[i].value, fields[i].most);
    if (r->value_heads % r->key_heads != 0)
        return kvm_fail(err, KVM_RANGE, "%s: %td %s cannot share %td %s evenly", file,
                        r->value_heads, scan ? "heads" : "value heads", r->key_heads,
                        scan ? "groups" : "key heads");
    return KVM_OK;
}

static kvm_status check_index(const kvm_config *c, const char *file, kvm_err *err)
{
    const kvm_index_config *i = &c->index;
    if (i->heads < 1 || i->heads > 1 << 10 || i->dim < 1 || i->dim > 1 << 12 ||
        i->block < 1 || i->block > 1 << 10 || i->most < i->block ||
        (i->pooled && i->most % i->block != 0))
        return kvm_fail(
            err, KVM_RANGE,
            "%s: an indexer of %td heads of %td that chooses %td tokens, %td "
            "at a time",
            file, i->heads, i->dim, i->most, i->block);
    if (c->mla.rank > 0 && c->mla.query_rank == 0)
        return kvm_fail(err, KVM_FORMAT,
                        "%s: the indexer reads the query latent, but q_lora_rank is "
                        "missing",
                        file);
    if (c->rope.width > i->dim)
        return kvm_fail(err, KVM_RANGE, "%s: %td rotated entries in index keys of %td",
                        file, c->rope.width, i->dim);
    return KVM_OK;
}

kvm_status kvm_config__uniform(kvm_config *c, kvm_arena *keep, kvm_err *err)
{
    c->blocks = kvm_new(keep, kvm_block_kinds, c->layers);
    c->window = kvm_new(keep, ptrdiff_t, c->layers);
    if (!c->blocks || !c->window) return kvm_nomem(err, keep);
    for (ptrdiff_t l = 0; l < c->layers; l++)
        c->blocks[l] = (kvm_block_kinds){c->family->mixer, c->family->ffn};
    return KVM_OK;
}

kvm_status kvm_config__check(kvm_config *c, const char *file, kvm_err *err)
{
    if (c->mla.rank > 0 || c->family->mixer == KVM_LAYER_MLA)
        TRY(check_mla(c, file, err));
    if (c->family->recurrent) TRY(check_recurrent(c, file, err));
    TRY(check_sizes(c, file, err));
    if (c->moe.experts > 0) TRY(check_moe(&c->moe, file, err));
    TRY(check_rope(c, file, err));
    if (c->family->indexed) TRY(check_index(c, file, err));
    TRY(kvm_config__check_residual(c, file, err));
    if (c->family->scaled && c->rope.kind == KVM_ROPE_DEFAULT)
        return kvm_fail(
            err, KVM_FORMAT,
            "%s: %s models state their rope scaling, this file does not: is "
            "rope_parameters missing?",
            file, c->family->name);
    if (!(c->temperature >= 0 && c->temperature < 1e3) ||
        (c->temperature > 0 && c->rope.original < 1))
        return kvm_fail(
            err, KVM_RANGE,
            "%s: llama_4_scaling_beta is %g: it is at least 0 and comes with "
            "original_max_position_embeddings",
            file, c->temperature);
    return KVM_OK;
}

/* What only some families have: absent else, so that hashes outlive new kinds of layer.
 * Each gives 0, or something else when memory is short. */
static int add_index(json_t *v, const kvm_config *c)
{
    int bad = 0;
    const kvm_index_config *i = &c->index;
    json_t *full = json_array();
    for (ptrdiff_t l = 0; l < c->layers; l++)
        bad |= json_array_append_new(full, json_boolean(i->full[l]));
    return bad |
           json_object_set_new(v, "index",
                               json_pack("[I,I,I,I,b,o]", (json_int_t)i->heads,
                                         (json_int_t)i->dim, (json_int_t)i->most,
                                         (json_int_t)i->block, i->interleaved, full));
}

static int add_recurrent(json_t *v, const kvm_config *c)
{
    int bad = 0;
    const kvm_recurrent_config *r = &c->recurrent;
    json_t *mixers = json_array();
    for (ptrdiff_t l = 0; l < c->layers; l++)
        if (c->blocks[l].mixer == c->family->recurrent)
            bad |= json_array_append_new(mixers, json_integer(l));
    return bad |
           json_object_set_new(
               v, "recurrent",
               json_pack("[I,I,I,I,I,o]", (json_int_t)r->key_heads,
                         (json_int_t)r->value_heads, (json_int_t)r->key_dim,
                         (json_int_t)r->value_dim, (json_int_t)r->window, mixers));
}

static int add_single(json_t *v, const kvm_config *c)
{
    int bad = 0;
    const kvm_recurrent_config *r = &c->recurrent;
    json_t *blocks = json_array();
    for (ptrdiff_t l = 0; l < c->layers; l++)
        bad |= json_array_append_new(
            blocks, json_pack("[b,b]", c->blocks[l].mixer != KVM_LAYER_NONE,
                              c->blocks[l].ffn == c->family->moe));
    return bad | json_object_set_new(v, "single",
                                     json_pack("[b,f,f,I,o]", r->conv_bias,
                                               r->step_least, r->step_most,
                                               (json_int_t)c->moe.latent, blocks));
}

static int add_experts(json_t *v, const kvm_config *c)
{
    const kvm_moe_config *e = &c->moe;
    int bad =
        json_object_set_new(v, "moe",
                            json_pack("[I,I,I,I,I,I,b,f]", (json_int_t)e->experts,
                                      (json_int_t)e->active, (json_int_t)e->groups,
                                      (json_int_t)e->open_groups, (json_int_t)e->inner,
                                      (json_int_t)e->shared, e->normalised, e->scale));
    json_t *dense = json_array();
    for (ptrdiff_t l = 0; l < c->layers; l++)
        if (c->blocks[l].ffn == c->family->ffn)
            bad |= json_array_append_new(dense, json_integer(l));
    return bad | json_object_set_new(v, "dense", dense);
}

static bool add_kinds(json_t *v, const kvm_config *c)
{
    const kvm_mla_config *a = &c->mla;
    int bad = 0;
    if (c->rope.interleaved)
        bad |= json_object_set_new(v, "rope_interleaved", json_true());
    if (c->scale_rows > 0)
        bad |= json_object_set_new(
            v, "scales",
            json_pack("[I,I]", (json_int_t)c->scale_rows, (json_int_t)c->scale_cols));
    if (a->rank > 0)
        bad |= json_object_set_new(
            v, "mla",
            json_pack("[I,I,I,I,I]", (json_int_t)a->query_rank, (json_int_t)a->rank,
                      (json_int_t)a->nope, (json_int_t)a->rope, (json_int_t)a->value));
    bad |= kvm_config__hash_residual(v, c);
    if (c->index.heads > 0) bad |= add_index(v, c);
    if (c->family->recurrent) bad |= add_recurrent(v, c);
    if (c->family->single) bad |= add_single(v, c);
    if (c->moe.experts > 0) bad |= add_experts(v, c);
    return bad == 0;
}

kvm_status kvm_config_hash(const kvm_config *c, char hex[65], kvm_arena scratch,
                           kvm_err *err)
{
    const kvm_rope_config *r = &c->rope;
    json_t *v = json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:b,s:b,s:b,s:b,s:f}", "family",
        c->family->name, "hidden", (json_int_t)c->hidden, "ffn", (json_int_t)c->ffn,
        "layers", (json_int_t)c->layers, "heads", (json_int_t)c->heads, "kv_heads",
        (json_int_t)c->kv_heads, "head_dim", (json_int_t)c->head_dim, "vocab",
        (json_int_t)c->vocab, "context", (json_int_t)c->context, "eps", c->eps, "tied",
        c->tied, "qkv_bias", c->qkv_bias, "o_bias", c->o_bias, "mlp_bias", c->mlp_bias,
        "temperature", c->temperature);
    json_t *rope =
        json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:I,s:I}", "kind",
                  (int)r->kind, "theta", r->theta, "factor", r->factor, "low", r->low,
                  "high", r->high, "beta_fast", r->beta_fast, "beta_slow", r->beta_slow,
                  "mscale", r->mscale, "mscale_all_dim", r->mscale_all_dim,
                  "attention_factor", r->attention_factor, "truncate", r->truncate,
                  "original", (json_int_t)r->original, "width", (json_int_t)r->width);
    json_t *window = json_array();
    for (ptrdiff_t l = 0; l < c->layers; l++)
        json_array_append_new(window, json_integer(c->window[l]));
    kvm_status s = KVM_OK;
    if (!v || json_object_set_new(v, "rope", rope) ||
        json_object_set_new(v, "window", window) || !add_kinds(v, c))
        s = kvm_fail(err, KVM_NOMEM, "out of memory for the hash of a config");
    kvm_str text;
    if (!s) s = kvm_json_canonical(&text, &scratch, v, err);
    if (!s) s = kvm_sha_of(text, hex, err);
    json_decref(v);
    return s;
}
