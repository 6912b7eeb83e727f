/* config_layers.c - the sizes of the kinds of layer that a family has. */
#include "models/config_internal.h"

#include <math.h>

/* ---- multi-head latent attention ---- */

static kvm_status no_rotation(const kvm_config_source *s, kvm_config *c)
{
    bool nope;
    if (!c->family->unrotated) return KVM_OK;
    c->rope.interleaved = false;
    TRY(kvm_config__flag(s, "mla_use_nope", true, &nope));
    if (nope) return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: mla_use_nope is false; %s models are run without positions",
                    s->root.file, c->family->name);
}

static kvm_status read_mla(const kvm_config_source *s, kvm_config *c)
{
    kvm_mla_config *m = &c->mla;
    TRY(kvm_config__size(s, "q_lora_rank", 0, &m->query_rank));
    TRY(kvm_config__size(s, "kv_lora_rank", -1, &m->rank));
    TRY(kvm_config__size(s, "qk_nope_head_dim", -1, &m->nope));
    TRY(kvm_config__size(s, "qk_rope_head_dim", -1, &m->rope));
    TRY(kvm_config__size(s, "v_head_dim", -1, &m->value));
    TRY(kvm_config__flag(s, "rope_interleave", true, &c->rope.interleaved));
    TRY(no_rotation(s, c));
    c->head_dim = m->nope + m->rope;
    c->kv_heads = c->heads; /* of the expanded form */
    return KVM_OK;
}

/* ---- indexers ---- */

static kvm_status check_tail(const kvm_config_source *s)
{
    bool tail;
    TRY(kvm_config__flag(s, "index_kpool_always_select_tail", true, &tail));
    if (tail) return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: index_kpool_always_select_tail is false; tokens behind the "
                    "last whole pool are always looked at here",
                    s->root.file);
}

static kvm_status read_index(const kvm_config_source *s, kvm_config *c)
{
    kvm_index_config *i = &c->index;
    TRY(kvm_config__size(s, "index_n_heads|indexer_n_heads", -1, &i->heads));
    TRY(kvm_config__size(s, "index_head_dim|indexer_head_dim", -1, &i->dim));
    TRY(kvm_config__size(s, "index_topk|indexer_budget", -1, &i->most));
    TRY(c->family->pooled
            ? kvm_config__size(s, "index_kpool", 16, &i->block)
            : kvm_config__size(s, "indexer_compress_ratio", 1, &i->block));
    i->context = c->context;
    i->pooled = c->family->pooled;
    if (i->pooled) TRY(check_tail(s));
    return kvm_config__flag(s, "indexer_rope_interleave", c->family->index_interleaved,
                            &i->interleaved);
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
    TRY(kvm_config__size(
        s, "shared_expert_intermediate_size|moe_shared_expert_intermediate_size",
        shared < 1 << 10 ? shared * m->inner : shared, &m->shared));
    TRY(kvm_config__size(s, "moe_latent_size", 0, &m->latent));
    return KVM_OK;
}

/* ---- recurrent layers ---- */

/* *bound where the field is there: a number, or null, which is none (0) */
static kvm_status read_one_bound(const kvm_config_source *s, kvm_jat obj,
                                 const char *key, double *bound)
{
    const json_t *v = json_object_get(obj.v, key);
    if (!v) return KVM_OK;
    *bound = 0;
    if (json_is_null(v)) return KVM_OK;
    const kvm_jat at = kvm_json_get(obj, s->keep, key);
    TRY(kvm_json_f64(at, bound, s->err));
    if (*bound < 0 && *bound > -1e3) return KVM_OK;
    return kvm_fail(s->err, KVM_RANGE,
                    "%s: %s is %g; a bound of log-decays lies below 0", at.file,
                    at.path, *bound);
}

/* As transformers has it: linear_lower_bound, by default the family's, gives way to
 * gate_lower_bound of Kimi's object. Log-decays without a bound are those of
 * kimi_linear, but beside that object safe_gate must be false for it. */
static kvm_status read_bound(const kvm_config_source *s, kvm_config *c)
{
    bool safe;
    double *bound = &c->recurrent.lower_bound;
    const kvm_jat object = kvm_json_get(s->text, s->keep, "linear_attn_config");
    *bound = c->family->lower_bound;
    TRY(read_one_bound(s, s->text, "linear_lower_bound", bound));
    if (!kvm_json_has(object)) return KVM_OK;
    TRY(read_one_bound(s, object, "gate_lower_bound", bound));
    TRY(kvm_json_bool_or(kvm_json_get(object, s->keep, "safe_gate"), true, &safe,
                         s->err));
    if (safe && *bound == 0) *bound = c->family->lower_bound;
    return KVM_OK;
}

static kvm_status read_kda(const kvm_config_source *s, kvm_config *c)
{
    kvm_recurrent_config *r = &c->recurrent;
    /* Kimi's own object, or the fields that transformers makes of it */
    const kvm_config_source inner = kvm_config__within(s, "linear_attn_config");
    TRY(kvm_json_object(inner.text, s->err));
    TRY(kvm_config__size(&inner, "linear_num_heads|num_heads", -1, &r->value_heads));
    TRY(kvm_config__size(&inner, "linear_head_dim|head_dim", -1, &r->value_dim));
    TRY(kvm_config__size(&inner, "linear_conv_kernel_dim|short_conv_kernel_size", 4,
                         &r->window));
    r->key_heads = r->value_heads;
    r->key_dim = r->value_dim;
    return c->family->lower_bound < 0 ? read_bound(s, c) : KVM_OK;
}

static kvm_status read_output_gate(const kvm_config_source *s, kvm_recurrent_config *r)
{
    kvm_str word;
    const kvm_jat at = kvm_json_get(s->text, s->keep, "output_gate_type");
    TRY(kvm_json_str_or(at, KVM_STR("silu"), &word, s->err));
    r->sigmoid_gate = kvm_str_eq(word, KVM_STR("sigmoid"));
    if (r->sigmoid_gate || kvm_str_eq(word, KVM_STR("silu")) ||
        kvm_str_eq(word, KVM_STR("swish")))
        return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: %s is \"%s\"; silu and sigmoid are run", at.file, at.path,
                    kvm_quote(word).at);
}

/* time_step_limit: two numbers, of which the second may be infinite, as Python writes
 * it or as transformers does ({"__float__": "Infinity"}) */
static kvm_status read_steps(const kvm_config_source *s, kvm_recurrent_config *r)
{
    ptrdiff_t n;
    double most = INFINITY;
    const kvm_jat limit = kvm_json_get(s->text, s->keep, "time_step_limit");
    if (!kvm_json_has(limit)) return KVM_OK;
    TRY(kvm_json_array(limit, &n, s->err));
    const kvm_jat least = kvm_json_item(limit, s->keep, 0);
    const kvm_jat last = kvm_json_item(limit, s->keep, 1);
    TRY(kvm_json_f64(least, &r->step_least, s->err));
    if (!json_is_object(last.v)) TRY(kvm_json_f64(last, &most, s->err));
    if (!(r->step_least >= 0 && r->step_least < most))
        return kvm_fail(s->err, KVM_RANGE, "%s: %s: steps from %g to %g", limit.file,
                        limit.path, r->step_least, most);
    r->step_most = most < 1e30 ? most : 0;
    return KVM_OK;
}

static kvm_status read_mamba2(const kvm_config_source *s, kvm_config *c)
{
    kvm_recurrent_config *r = &c->recurrent;
    bool bias, more;
    TRY(kvm_config__size(s, "mamba_num_heads", -1, &r->value_heads));
    TRY(kvm_config__size(s, "mamba_head_dim", -1, &r->value_dim));
    TRY(kvm_config__size(s, "n_groups", -1, &r->key_heads));
    TRY(kvm_config__size(s, "ssm_state_size", -1, &r->key_dim));
    TRY(kvm_config__size(s, "conv_kernel", 4, &r->window));
    TRY(kvm_config__word(s, "mamba_hidden_act", "silu"));
    TRY(kvm_config__flag(s, "use_conv_bias", true, &r->conv_bias));
    TRY(kvm_config__flag(s, "use_bias", false, &bias));
    TRY(kvm_config__flag(s, "mamba_proj_bias", false, &more));
    if (bias || more)
        return kvm_fail(s->err, KVM_UNSUPPORTED,
                        "%s: %s is true; projections of %s layers are run without a "
                        "bias",
                        s->root.file, bias ? "use_bias" : "mamba_proj_bias",
                        c->family->name);
    return read_steps(s, r);
}

static kvm_status read_recurrent(const kvm_config_source *s, kvm_config *c)
{
    kvm_recurrent_config *r = &c->recurrent;
    if (c->family->recurrent == KVM_LAYER_KDA) return read_kda(s, c);
    if (c->family->recurrent == KVM_LAYER_MAMBA2) return read_mamba2(s, c);
    TRY(kvm_config__size(s, "linear_num_key_heads", -1, &r->key_heads));
    TRY(kvm_config__size(s, "linear_num_value_heads", -1, &r->value_heads));
    TRY(kvm_config__size(s, "linear_key_head_dim", -1, &r->key_dim));
    TRY(kvm_config__size(s, "linear_value_head_dim", -1, &r->value_dim));
    TRY(kvm_config__size(s, "linear_conv_kernel_dim", 4, &r->window));
    return read_output_gate(s, r);
}

/* ---- clipped feed-forwards ---- */

static kvm_status read_limit(const kvm_config_source *s, kvm_config *c)
{
    TRY(kvm_config__number(s, s->text, "swiglu_limit", c->family->swiglu_limit,
                           &c->swiglu_limit));
    if (c->swiglu_limit > 0) return KVM_OK;
    return kvm_fail(s->err, KVM_RANGE, "%s: swiglu_limit is %g; it lies above 0",
                    s->root.file, c->swiglu_limit);
}

kvm_status kvm_config__sizes(const kvm_config_source *s, kvm_config *c)
{
    if (c->family->single) TRY(kvm_config__count(s, c));
    if (c->family->mixer == KVM_LAYER_MLA) TRY(read_mla(s, c));
    if (c->family->recurrent) TRY(read_recurrent(s, c));
    if (c->family->indexed) TRY(read_index(s, c));
    TRY(kvm_config__residual(s, c));
    if (c->family->swiglu_limit > 0) TRY(read_limit(s, c));
    return c->family->moe ? read_moe(s, c) : KVM_OK;
}
