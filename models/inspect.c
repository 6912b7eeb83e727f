#include "models/inspect.h"

#include "models/model_internal.h"

static const char *const scalings[] = {[KVM_ROPE_DEFAULT] = "none",
                                       [KVM_ROPE_LINEAR] = "linear",
                                       [KVM_ROPE_LLAMA3] = "llama3",
                                       [KVM_ROPE_YARN] = "yarn"};

static json_t *text(kvm_str s)
{
    return json_stringn(s.at ? s.at : "", s.at ? (size_t)s.len : 0);
}

static json_t *describe_model(const kvm_model *m)
{
    const kvm_model_info *i = &m->info;
    return json_pack(
        "{s:o,s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:I,s:s,s:I,s:s,s:s,s:s}",
        "path", text(i->path), "name", text(i->name), "family", text(i->family),
        "layers", (json_int_t)i->layers, "hidden", (json_int_t)i->hidden, "heads",
        (json_int_t)i->heads, "kv_heads", (json_int_t)i->kv_heads, "head_dim",
        (json_int_t)i->head_dim, "ffn", (json_int_t)i->ffn, "vocab",
        (json_int_t)i->vocab, "context", (json_int_t)i->context, "tied_head",
        m->config.tied, "parameters", (json_int_t)i->parameters, "weight_dtype",
        kvm_dtype_name(i->weight_dtype), "weight_bytes", (json_int_t)i->weight_bytes,
        "fingerprint", i->fingerprint, "config_hash", i->config_hash, "weights_hash",
        i->weights_hash);
}

static json_t *describe_position(const kvm_model *m)
{
    const kvm_rope_config *r = &m->config.rope;
    float factor = 1;
    for (ptrdiff_t i = 0; i < m->info.objects; i++)
        if (m->objects[i].rotary) factor = m->objects[i].rope.factor;
    json_t *v = json_pack("{s:s,s:s,s:f,s:I,s:f}", "encoding", "rotary, halves",
                          "scaling", scalings[r->kind], "theta", r->theta, "width",
                          (json_int_t)r->width, "attention_factor", (double)factor);
    if (r->kind != KVM_ROPE_DEFAULT) {
        json_object_set_new(v, "factor", json_real(r->factor));
        if (r->original > 0)
            json_object_set_new(v, "original_context", json_integer(r->original));
    }
    if (m->config.temperature > 0)
        json_object_set_new(v, "query_temperature", json_real(m->config.temperature));
    return v;
}

static json_t *describe_points(const kvm_object *o)
{
    return json_pack("[{s:i,s:s},{s:i,s:s},{s:i,s:s}]", "point", KVM_POINT_RAW, "what",
                     "projection", "point", KVM_POINT_NORMED, "what",
                     o->normed ? "after the norm per head" : "as 1", "point",
                     KVM_POINT_ENGINE, "what",
                     o->rotary ? "rotated at its position" : "as 1");
}

static json_t *describe_object(const kvm_object *o)
{
    const kvm_object_row *k = &kvm_object_rows[o->kind];
    const json_int_t bytes = o->heads * o->dim * kvm_dtype_block_bytes(o->dtype);
    json_t *shape =
        k->per_prompt
            ? json_pack("[I,I]", (json_int_t)o->heads, (json_int_t)o->dim)
            : json_pack("[I,s,I]", (json_int_t)o->heads, "T", (json_int_t)o->dim);
    return json_pack("{s:s,s:s,s:o,s:s,s:s,s:I,s:I,s:s,s:o}", "object",
                     kvm_object_name(o->kind), "what", k->what, "shape", shape, "axes",
                     k->shape, "dtype", kvm_dtype_name(o->dtype), "bytes_per_token",
                     k->per_prompt ? 0 : bytes, "bytes_per_prompt",
                     k->per_prompt ? bytes : 0, "position",
                     o->rotary ? "rotary" : "none", "points", describe_points(o));
}

static json_t *describe_layers(const kvm_model *m)
{
    json_t *layers = json_array();
    for (ptrdiff_t l = 0, i = 0; l < m->config.layers; l++) {
        json_t *objects = json_array();
        for (; i < m->info.objects && m->objects[i].layer == l; i++)
            json_array_append_new(objects, describe_object(&m->objects[i]));
        json_array_append_new(
            layers, json_pack("{s:I,s:s,s:I,s:o}", "layer", (json_int_t)l, "kind",
                              m->blocks[l].mixer->kind->name, "window",
                              (json_int_t)m->config.window[l], "objects", objects));
    }
    return layers;
}

static json_t *describe_totals(const kvm_model *m)
{
    const kvm_model_info *i = &m->info;
    json_t *at = json_array();
    for (ptrdiff_t n = 1024; n <= i->context && n <= 1 << 20; n *= 4)
        json_array_append_new(
            at, json_pack("{s:I,s:I}", "tokens", (json_int_t)n, "bytes",
                          (json_int_t)i->prompt_bytes +
                              (json_int_t)n * (json_int_t)i->token_bytes));
    return json_pack("{s:I,s:I,s:I,s:o}", "objects", (json_int_t)i->objects,
                     "bytes_per_token", (json_int_t)i->token_bytes, "bytes_per_prompt",
                     (json_int_t)i->prompt_bytes, "at", at);
}

kvm_status kvm_model_inspect(json_t **out, kvm_arena *keep, const kvm_model *m,
                             kvm_err *err)
{
    json_t *v =
        kvm_json_own(keep, json_pack("{s:o,s:o,s:o,s:o}", "model", describe_model(m),
                                     "position", describe_position(m), "layers",
                                     describe_layers(m), "totals", describe_totals(m)));
    if (!v)
        return kvm_fail(err, KVM_NOMEM, "%s: no memory to describe it",
                        m->info.path.at);
    *out = v;
    return KVM_OK;
}
