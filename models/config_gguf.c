#include "models/config.h"

/* "A.key" of the file's architecture A */
typedef struct source {
    const kvm_gguf *g;
    kvm_str arch;
    kvm_arena *keep;
    kvm_err *err;
} source;

static kvm_status key_of(const source *s, const char *key, kvm_str *out)
{
    *out = kvm_str_fmt(s->keep, "%.*s.%s", KVM_STR_ARG(s->arch), key);
    return out->at ? KVM_OK : kvm_nomem(s->err, s->keep);
}

static kvm_status size_of(const source *s, const char *key, ptrdiff_t fallback,
                          ptrdiff_t *out)
{
    kvm_str k;
    uint64_t v;
    TRY(key_of(s, key, &k));
    TRY(fallback < 0 ? kvm_gguf_u64(s->g, k.at, &v, s->err)
                     : kvm_gguf_u64_or(s->g, k.at, (uint64_t)fallback, &v, s->err));
    if (v > INT32_MAX)
        return kvm_fail(s->err, KVM_RANGE, "%s: %s is %llu, which is no size",
                        kvm_gguf_name(s->g).at, k.at, (unsigned long long)v);
    *out = (ptrdiff_t)v;
    return KVM_OK;
}

static kvm_status number(const source *s, const char *key, double fallback, double *out)
{
    kvm_str k;
    TRY(key_of(s, key, &k));
    return kvm_gguf_f64_or(s->g, k.at, fallback, out, s->err);
}

static bool has_tensor(const source *s, const char *name)
{
    return kvm_gguf_tensor_find(s->g, kvm_str_of(name)) != NULL;
}

static kvm_status read_sizes(const source *s, kvm_config *c)
{
    TRY(size_of(s, "embedding_length", -1, &c->hidden));
    TRY(size_of(s, "feed_forward_length", -1, &c->ffn));
    TRY(size_of(s, "block_count", -1, &c->layers));
    TRY(size_of(s, "attention.head_count", -1, &c->heads));
    TRY(size_of(s, "attention.head_count_kv", c->heads, &c->kv_heads));
    TRY(size_of(s, "attention.key_length", c->heads ? c->hidden / c->heads : 0,
                &c->head_dim));
    ptrdiff_t value;
    TRY(size_of(s, "attention.value_length", c->head_dim, &value));
    if (value != c->head_dim)
        return kvm_fail(s->err, KVM_UNSUPPORTED,
                        "%s: keys of %td and values of %td entries per head; %s models "
                        "have equal ones",
                        kvm_gguf_name(s->g).at, c->head_dim, value, c->family->name);
    TRY(size_of(s, "context_length", -1, &c->context));
    TRY(number(s, "attention.layer_norm_rms_epsilon", c->family->eps, &c->eps));
    const kvm_gguf_tensor *e = kvm_gguf_tensor_find(s->g, KVM_STR("token_embd.weight"));
    if (!e || e->rank != 2)
        return kvm_fail(s->err, KVM_FORMAT,
                        "%s: token_embd.weight is missing or no matrix: is this a "
                        "projector or an adapter instead of a model?",
                        kvm_gguf_name(s->g).at);
    c->vocab = e->dim[1];
    return KVM_OK;
}

/* a factor that other architectures scale by: the families here are run with 1 */
static kvm_status only_one(const source *s, const char *key)
{
    double v;
    TRY(number(s, key, 1, &v));
    if (v >= 1 && v <= 1) return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED, "%s: %.*s.%s is %g; only 1 is run",
                    kvm_gguf_name(s->g).at, KVM_STR_ARG(s->arch), key, v);
}

/* The converter states yarn_attn_factor where the config has attention_factor, and for
 * mscale_all_dim yarn_log_multiplier, with an mscale of 1. */
static kvm_status read_yarn(const source *s, kvm_config *c)
{
    kvm_rope_config *r = &c->rope;
    TRY(only_one(s, "rope.scaling.yarn_ext_factor"));
    TRY(number(s, "rope.scaling.yarn_attn_factor", 0, &r->attention_factor));
    TRY(number(s, "rope.scaling.yarn_beta_fast", 32, &r->beta_fast));
    TRY(number(s, "rope.scaling.yarn_beta_slow", 1, &r->beta_slow));
    TRY(number(s, "rope.scaling.yarn_log_multiplier", 0, &r->mscale_all_dim));
    r->mscale = r->mscale_all_dim != 0 ? 1 : 0;
    r->truncate = true;
    return KVM_OK;
}

/* A file that states a factor and no type is linear, as llama.cpp reads it; older ones
 * call the factor scale_linear. llama3 scaling comes as the tensor rope_freqs of
 * divisors (models/rope.h). */
static kvm_status read_rope(const source *s, kvm_config *c)
{
    kvm_str k, type;
    kvm_rope_config *r = &c->rope;
    TRY(number(s, "rope.freq_base", c->family->theta, &r->theta));
    TRY(size_of(s, "rope.dimension_count", c->head_dim, &r->width));
    TRY(number(s, "rope.scale_linear", 0, &r->factor));
    TRY(number(s, "rope.scaling.factor", r->factor, &r->factor));
    TRY(only_one(s, "rope.scaling.attn_factor"));
    TRY(key_of(s, "rope.scaling.type", &k));
    TRY(kvm_gguf_str_or(s->g, k.at, r->factor > 0 ? KVM_STR("linear") : KVM_STR("none"),
                        &type, s->err));
    if (kvm_str_eq(type, KVM_STR("linear")))
        r->kind = KVM_ROPE_LINEAR;
    else if (kvm_str_eq(type, KVM_STR("yarn")))
        r->kind = KVM_ROPE_YARN;
    else if (!kvm_str_eq(type, KVM_STR("none")))
        return kvm_fail(s->err, KVM_UNSUPPORTED,
                        "%s: %s is \"%s\"; none, linear and yarn are run",
                        kvm_gguf_name(s->g).at, k.at, kvm_quote(type).at);
    if (r->kind == KVM_ROPE_DEFAULT) r->factor = 0;
    double beta;
    TRY(number(s, "attention.temperature_scale", 0, &beta));
    c->temperature = c->family->tempered ? beta : 0;
    if (r->kind == KVM_ROPE_YARN || c->temperature > 0)
        TRY(size_of(s, "rope.scaling.original_context_length", c->context,
                    &r->original));
    return r->kind == KVM_ROPE_YARN ? read_yarn(s, c) : KVM_OK;
}

static kvm_status find_family(source *s, kvm_config *c)
{
    const char *file = kvm_gguf_name(s->g).at;
    uint64_t parts;
    TRY(kvm_gguf_u64_or(s->g, "split.count", 1, &parts, s->err));
    if (parts > 1)
        return kvm_fail(s->err, KVM_UNSUPPORTED,
                        "%s: one of %llu parts; join them first: llama-gguf-split "
                        "--merge FIRST-PART.gguf WHOLE.gguf",
                        file, (unsigned long long)parts);
    TRY(kvm_gguf_str(s->g, "general.architecture", &s->arch, s->err));
    c->family = kvm_config__family(s->arch, true);
    if (c->family) return KVM_OK;
    const kvm_str known = kvm_config__family_list(s->keep, true);
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: general.architecture is \"%s\"; these run here: %s", file,
                    kvm_quote(s->arch).at, known.at ? known.at : "");
}

kvm_status kvm_config_of_gguf(kvm_config *out, kvm_arena *keep, const kvm_gguf *g,
                              kvm_err *err)
{
    kvm_config c = {0};
    source s = {.g = g, .keep = keep, .err = err};
    TRY(find_family(&s, &c));
    TRY(read_sizes(&s, &c));
    TRY(read_rope(&s, &c));
    c.tied = !has_tensor(&s, "output.weight");
    c.qkv_bias = c.family->qkv_bias || has_tensor(&s, "blk.0.attn_q.bias");
    c.o_bias = has_tensor(&s, "blk.0.attn_output.bias");
    c.mlp_bias = has_tensor(&s, "blk.0.ffn_down.bias");
    TRY(kvm_config__check(&c, kvm_gguf_name(g).at, err));
    TRY(kvm_config__uniform(&c, keep, err));
    ptrdiff_t window;
    TRY(size_of(&s, "attention.sliding_window", 0, &window));
    for (ptrdiff_t l = 0; c.family->windowed && l < c.layers; l++) c.window[l] = window;
    *out = c;
    return KVM_OK;
}
