/* config_layers.c - which kinds the blocks of a stack are built of, and their sizes. */
#include "models/config_internal.h"

/* ---- multi-head latent attention ---- */

static kvm_status read_mla(const kvm_config_source *s, kvm_config *c)
{
    kvm_mla_config *m = &c->mla;
    TRY(kvm_config__size(s, "q_lora_rank", 0, &m->query_rank));
    TRY(kvm_config__size(s, "kv_lora_rank", -1, &m->rank));
    TRY(kvm_config__size(s, "qk_nope_head_dim", -1, &m->nope));
    TRY(kvm_config__size(s, "qk_rope_head_dim", -1, &m->rope));
    TRY(kvm_config__size(s, "v_head_dim", -1, &m->value));
    TRY(kvm_config__flag(s, "rope_interleave", true, &c->rope.interleaved));
    c->head_dim = m->nope + m->rope;
    c->kv_heads = c->heads; /* of the expanded form */
    return KVM_OK;
}

/* ---- experts ---- */

static kvm_status read_moe(const kvm_config_source *s, kvm_config *c)
{
    kvm_moe_config *m = &c->moe;
    ptrdiff_t shared;
    TRY(kvm_config__size(s, "n_routed_experts|num_experts|num_local_experts", 0,
                         &m->experts));
    if (m->experts == 0) return KVM_OK;
    TRY(kvm_config__word(s, "scoring_func|moe_router_activation_func",
                         c->family->sigmoid ? "sigmoid" : "softmax"));
    if (c->family->sigmoid) TRY(kvm_config__word(s, "topk_method", "noaux_tc"));
    TRY(kvm_config__size(s, "num_experts_per_tok|num_experts_per_token", -1,
                         &m->active));
    TRY(kvm_config__size(s, "moe_intermediate_size", -1, &m->inner));
    TRY(kvm_config__size(s, "n_group|num_expert_group", 1, &m->groups));
    TRY(kvm_config__size(s, "topk_group", 1, &m->open_groups));
    TRY(kvm_config__flag(s, "norm_topk_prob|moe_renormalize", true, &m->normalised));
    TRY(kvm_config__number(s, s->text, "routed_scaling_factor", 1, &m->scale));
    TRY(kvm_config__size(s, "n_shared_experts|num_shared_experts", 0, &shared));
    TRY(kvm_config__size(s, "shared_expert_intermediate_size",
                         shared < 1 << 10 ? shared * m->inner : shared, &m->shared));
    return KVM_OK;
}

kvm_status kvm_config__sizes(const kvm_config_source *s, kvm_config *c)
{
    if (c->family->mixer == KVM_LAYER_MLA) TRY(read_mla(s, c));
    return c->family->moe ? read_moe(s, c) : KVM_OK;
}

/* Layers below first_k_dense_replace, those between the steps and those on a list have no
 * experts. */
static kvm_status read_experts(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t first, step, n = 0;
    if (c->moe.experts == 0) return KVM_OK;
    TRY(kvm_config__size(s, "first_k_dense_replace", 0, &first));
    TRY(kvm_config__size(s, "moe_layer_freq|decoder_sparse_step", 1, &step));
    for (ptrdiff_t l = first; step > 0 && l < c->layers; l++)
        if ((l + 1) % step == 0) c->blocks[l].ffn = c->family->moe;
    const kvm_jat dense = kvm_json_get(s->text, s->keep, "mlp_only_layers");
    if (kvm_json_has(dense)) TRY(kvm_json_array(dense, &n, s->err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t l;
        const kvm_jat at = kvm_json_item(dense, s->keep, i);
        TRY(kvm_json_i64(at, &l, s->err));
        if (l < 0 || l >= c->layers)
            return kvm_fail(s->err, KVM_RANGE, "%s: %s is layer %lld of a stack of %td",
                            at.file, at.path, (long long)l, c->layers);
        c->blocks[l].ffn = c->family->ffn;
    }
    return KVM_OK;
}

/* ---- windows ---- */

/* the words of layer_types for a layer that attends to everything */
static bool is_full(kvm_str type)
{
    static const char *const names[] = {"full_attention", "attention"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (kvm_str_eq(type, kvm_str_of(names[i]))) return true;
    return false;
}

static kvm_status read_layer_types(const kvm_config_source *s, kvm_jat types,
                                   kvm_config *c, ptrdiff_t window)
{
    ptrdiff_t n;
    TRY(kvm_json_array(types, &n, s->err));
    if (n < c->layers)
        return kvm_fail(s->err, KVM_FORMAT, "%s: %s has %td entries for %td layers",
                        types.file, types.path, n, c->layers);
    for (ptrdiff_t l = 0; l < c->layers; l++) {
        kvm_str type;
        const kvm_jat at = kvm_json_item(types, s->keep, l);
        TRY(kvm_json_str(at, &type, s->err));
        const bool sliding = kvm_str_eq(type, KVM_STR("sliding_attention"));
        if (sliding && window < 1)
            return kvm_fail(s->err, KVM_FORMAT,
                            "%s: %s slides, but sliding_window is %td", at.file,
                            at.path, window);
        if (!sliding && !is_full(type))
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s is \"%s\"; %s models have full_attention and "
                            "sliding_attention layers here",
                            at.file, at.path, kvm_quote(type).at, c->family->name);
        c->window[l] = sliding ? window : 0;
    }
    return KVM_OK;
}

static kvm_status read_windows(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t window, from;
    bool used;
    TRY(kvm_config__size(s, "sliding_window", 0, &window));
    const kvm_jat types = kvm_json_get(s->text, s->keep, "layer_types");
    if (kvm_json_has(types)) return read_layer_types(s, types, c, window);
    TRY(kvm_config__flag(s, "use_sliding_window", false, &used));
    TRY(kvm_config__size(s, "max_window_layers", 28, &from));
    if (c->family->windowed) used = true, from = 0;
    for (ptrdiff_t l = 0; used && l < c->layers; l++)
        c->window[l] = l >= from ? window : 0;
    return KVM_OK;
}

kvm_status kvm_config__layers(const kvm_config_source *s, kvm_config *c)
{
    TRY(kvm_config__uniform(c, s->keep, s->err));
    TRY(read_experts(s, c));
    return read_windows(s, c);
}
