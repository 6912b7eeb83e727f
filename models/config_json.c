#include "models/config_internal.h"

static kvm_status find_family(const kvm_config_source *s, const kvm_family **family)
{
    kvm_str name;
    const kvm_jat at = kvm_json_get(s->text, s->keep, "model_type");
    TRY(kvm_json_str(at, &name, s->err));
    if (kvm_str_ends(name, KVM_STR("_text"))) /* the inner config of a wrapper */
        name = kvm_str_slice(name, 0, name.len - 5);
    *family = kvm_config__family(name, false);
    if (*family) return KVM_OK;
    const kvm_str known = kvm_config__family_list(s->keep, false);
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: %s is \"%s\"; these families run here: %s", at.file, at.path,
                    kvm_quote(name).at, known.at ? known.at : "");
}

static kvm_status read_sizes(const kvm_config_source *s, kvm_config *c)
{
    TRY(kvm_config__size(s, "hidden_size", -1, &c->hidden));
    TRY(kvm_config__size(s, "intermediate_size", c->family->moe ? 0 : -1, &c->ffn));
    TRY(kvm_config__size(s, "num_hidden_layers", c->family->single ? 0 : -1,
                         &c->layers));
    TRY(kvm_config__size(s, "num_attention_heads", -1, &c->heads));
    TRY(kvm_config__size(s, "num_key_value_heads", c->heads, &c->kv_heads));
    TRY(kvm_config__size(s, "head_dim", c->heads ? c->hidden / c->heads : 0,
                         &c->head_dim));
    TRY(kvm_config__size(s, "vocab_size", -1, &c->vocab));
    TRY(kvm_config__size(s, "max_position_embeddings|model_max_length", 2048,
                         &c->context));
    return kvm_config__number(s, s->text, "rms_norm_eps|layer_norm_epsilon",
                              c->family->eps, &c->eps);
}

/* What this runtime would otherwise leave out in silence. */
static kvm_status read_flags(const kvm_config_source *s, kvm_config *c)
{
    bool attention_bias;
    TRY(kvm_config__word(s, "mlp_hidden_act|hidden_act",
                         c->family->squared ? "relu2" : "silu"));
    TRY(kvm_config__quantised(s, c));
    TRY(kvm_config__flag(s, "attention_bias", false, &attention_bias));
    TRY(kvm_config__flag(s, "mlp_bias", false, &c->mlp_bias));
    c->qkv_bias = c->family->qkv_bias || attention_bias;
    c->o_bias = attention_bias;
    bool tied;
    TRY(kvm_json_bool_or(kvm_json_get(s->root, s->keep, "tie_word_embeddings"), false,
                         &tied, s->err));
    return kvm_config__flag(s, "tie_word_embeddings", tied, &c->tied);
}

static const struct {
    const char *name;
    kvm_rope_kind kind;
} rope_kinds[] = {
    {"default", KVM_ROPE_DEFAULT}, {"mrope", KVM_ROPE_DEFAULT},
    {"linear", KVM_ROPE_LINEAR},   {"llama3", KVM_ROPE_LLAMA3},
    {"yarn", KVM_ROPE_YARN},
};

static kvm_status read_rope_kind(const kvm_config_source *s, kvm_jat rope,
                                 kvm_rope_kind *kind)
{
    kvm_str name;
    kvm_jat at = kvm_json_get(rope, s->keep, "rope_type");
    if (!kvm_json_has(at)) at = kvm_json_get(rope, s->keep, "type");
    TRY(kvm_json_str_or(at, KVM_STR("default"), &name, s->err));
    for (size_t i = 0; i < sizeof rope_kinds / sizeof *rope_kinds; i++) {
        if (!kvm_str_eq(name, kvm_str_of(rope_kinds[i].name))) continue;
        *kind = rope_kinds[i].kind;
        return KVM_OK;
    }
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: %s is \"%s\"; default, linear, llama3 and yarn are run",
                    at.file, at.path, kvm_quote(name).at);
}

static kvm_status read_yarn(const kvm_config_source *s, kvm_jat rope,
                            kvm_rope_config *r)
{
    TRY(kvm_config__number(s, rope, "beta_fast", 32, &r->beta_fast));
    TRY(kvm_config__number(s, rope, "beta_slow", 1, &r->beta_slow));
    TRY(kvm_config__number(s, rope, "mscale", 0, &r->mscale));
    TRY(kvm_config__number(s, rope, "mscale_all_dim", 0, &r->mscale_all_dim));
    TRY(kvm_config__number(s, rope, "attention_factor", 0, &r->attention_factor));
    return kvm_json_bool_or(kvm_json_get(rope, s->keep, "truncate"), true, &r->truncate,
                            s->err);
}

/* rope is rope_parameters (new dialect), rope_scaling (old) or absent */
static kvm_status read_scaling(const kvm_config_source *s, kvm_jat rope, kvm_config *c)
{
    kvm_rope_config *r = &c->rope;
    if (r->kind == KVM_ROPE_DEFAULT) return KVM_OK;
    TRY(kvm_json_f64(kvm_json_get(rope, s->keep, "factor"), &r->factor, s->err));
    if (r->kind == KVM_ROPE_LINEAR) return KVM_OK;
    int64_t original;
    kvm_jat at = kvm_json_get(s->text, s->keep, "original_max_position_embeddings");
    if (!kvm_json_has(at))
        at = kvm_json_get(rope, s->keep, "original_max_position_embeddings");
    TRY(kvm_json_i64_or(at, c->context, &original, s->err));
    r->original = original < 0 || original > INT32_MAX ? 0 : (ptrdiff_t)original;
    if (r->kind == KVM_ROPE_YARN) return read_yarn(s, rope, r);
    TRY(kvm_json_f64(kvm_json_get(rope, s->keep, "low_freq_factor"), &r->low, s->err));
    return kvm_json_f64(kvm_json_get(rope, s->keep, "high_freq_factor"), &r->high,
                        s->err);
}

/* Newer configs may hold one rope_parameters per layer type; no family here does. */
static kvm_status check_flat(const kvm_config_source *s, kvm_jat rope)
{
    const char *key;
    json_t *v;
    TRY(kvm_json_object(rope, s->err));
    json_object_foreach((json_t *)(uintptr_t)rope.v, key, v)
    {
        if (json_is_object(v))
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s.%s: a rotary of its own per layer type is not run",
                            rope.file, rope.path, key);
    }
    return KVM_OK;
}

static kvm_status read_rope(const kvm_config_source *s, kvm_config *c)
{
    double partial, theta, beta;
    kvm_jat rope = kvm_json_get(s->text, s->keep, "rope_parameters");
    if (!kvm_json_has(rope)) rope = kvm_json_get(s->text, s->keep, "rope_scaling");
    if (kvm_json_has(rope)) TRY(check_flat(s, rope));
    TRY(read_rope_kind(s, rope, &c->rope.kind));
    TRY(kvm_config__number(s, s->text, "rope_theta", c->family->theta, &theta));
    TRY(kvm_config__number(s, rope, "rope_theta", theta, &c->rope.theta));
    const double usual = c->family->partial > 0 ? c->family->partial : 1;
    TRY(kvm_config__number(s, s->text, "partial_rotary_factor", usual, &partial));
    TRY(kvm_config__number(s, rope, "partial_rotary_factor", partial, &partial));
    if (!(partial > 0 && partial <= 1))
        return kvm_fail(s->err, KVM_RANGE,
                        "%s: partial_rotary_factor is %g; it lies in (0, 1]", rope.file,
                        partial);
    const bool mla = c->mla.rank > 0;
    c->rope.width = mla ? c->mla.rope : (ptrdiff_t)((double)c->head_dim * partial);
    if (c->family->unrotated) c->rope.width = 0;
    TRY(read_scaling(s, rope, c));
    TRY(kvm_config__number(s, rope, "llama_4_scaling_beta", 0, &beta));
    c->temperature = c->family->tempered ? beta : 0;
    return KVM_OK;
}

/* where a multimodal wrapper keeps what it says of its language model, in transformers'
 * words or in those of Nemotron VL as published; no wrapper: the root */
static kvm_jat text_of(kvm_jat root, kvm_arena *keep)
{
    static const char *const names[] = {"text_config", "llm_config"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const kvm_jat text = kvm_json_get(root, keep, names[i]);
        if (kvm_json_has(text)) return text;
    }
    return root;
}

kvm_status kvm_config_of_json(kvm_config *out, kvm_arena *keep, kvm_jat root,
                              kvm_err *err)
{
    kvm_config c = {0};
    TRY(kvm_json_object(root, err));
    kvm_config_source s = {
        .root = root, .text = text_of(root, keep), .keep = keep, .err = err};
    TRY(kvm_json_object(s.text, err));
    TRY(find_family(&s, &c.family));
    TRY(read_sizes(&s, &c));
    TRY(read_flags(&s, &c));
    TRY(kvm_config__sizes(&s, &c));
    TRY(read_rope(&s, &c));
    TRY(kvm_config__check(&c, root.file, err));
    TRY(kvm_config__layers(&s, &c));
    *out = c;
    return KVM_OK;
}

kvm_status kvm_config_dtype(kvm_dtype *d, kvm_arena *keep, kvm_jat root, kvm_err *err)
{
    static const struct {
        const char *name;
        kvm_dtype type;
    } types[] = {{"float32", KVM_F32}, {"float16", KVM_F16}, {"bfloat16", KVM_BF16}};
    kvm_str name;
    const kvm_jat text = text_of(root, keep);
    kvm_jat at = kvm_json_get(text, keep, "torch_dtype");
    if (!kvm_json_has(at)) at = kvm_json_get(text, keep, "dtype");
    if (!kvm_json_has(at)) at = kvm_json_get(root, keep, "torch_dtype");
    TRY(kvm_json_str_or(at, KVM_STR("bfloat16"), &name, err));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!kvm_str_eq(name, kvm_str_of(types[i].name))) continue;
        *d = types[i].type;
        return KVM_OK;
    }
    return kvm_fail(err, KVM_UNSUPPORTED, "%s: %s is \"%s\"", at.file, at.path,
                    kvm_quote(name).at);
}
