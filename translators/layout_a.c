/* Mapper layout A: DIR/mapper.safetensors and DIR/manifest.json.
 *   key_weight.<l>, value_weight.<l> (Ht, k*Hs*Ds, Dt); key_bias.<l>, value_bias.<l>
 *   (Ht, Dt); features by selection rank (best first), then head, then entry; all F32
 *   or all BF16; metadata format=kvbridge, schema=1, storage_dtype
 * Our fingerprint of a model travels as its `revision`. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "translators/translator_internal.h"

static const kvm_layout_names names = {
    .weight = {"key_weight", "value_weight"},
    .bias = {"key_bias", "value_bias"},
    .heads_outermost = true,
};

static const char *storage_name(kvm_dtype d)
{
    return d == KVM_BF16 ? "bfloat16" : "float32";
}

static json_t *signature(const kvm_side_info *s)
{
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:s, s:s}", "model_id",
                     kvm_layout__str_json(s->name), "revision",
                     kvm_layout__str_json(s->fingerprint), "tokenizer_hash",
                     kvm_layout__str_json(s->tokenizer), "num_layers",
                     (json_int_t)s->shapes.layers, "num_kv_heads",
                     (json_int_t)kvm_layout__shape(s).heads, "head_dim",
                     (json_int_t)kvm_layout__shape(s).dim, "attention_kind",
                     "full_attention", "architecture", "");
}

static ptrdiff_t tensor_bytes(const kvm_translator *t, kvm_dtype dtype)
{
    return kvm_translator_parameters(t) * kvm_dtype_block_bytes(dtype);
}

static json_t *manifest(const kvm_translator *t, kvm_dtype dtype, const char *sha)
{
    const double lambda = fabs(t->steps[0].lambda);
    return json_pack(
        "{s:s, s:i, s:s, s:s, s:I, s:o, s:o, s:{s:I, s:f, s:b}, s:o, s:o, s:o}",
        "format", "kvbridge", "schema_version", 1, "weights_sha256", sha,
        "storage_dtype", storage_name(dtype), "tensor_bytes",
        (json_int_t)tensor_bytes(t, dtype), "source_signature", signature(&t->source),
        "target_signature", signature(&t->target), "fit_config", "top_k",
        (json_int_t)t->steps[0].sources, "ridge_alpha", isfinite(lambda) ? lambda : 0.0,
        "content_space", t->keys == KVM_KEYS_CONTENT, "selected_layers",
        kvm_layout__selected_json(t), "fit_key_r2", kvm_layout__r2_json(t, KVM_SPACE_K),
        "fit_value_r2", kvm_layout__r2_json(t, KVM_SPACE_V));
}

kvm_status kvm_layout_a_write(const kvm_translator *t, kvm_dtype dtype, kvm_str dir,
                              kvm_arena scratch, kvm_err *err)
{
    TRY(kvm_layout__check(t, "A", err));
    if (t->keys == KVM_KEYS_CONTENT_NOROTATE)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "layout A cannot say content-norerotate; write layout B");
    TRY(kvm_dir_make(dir, err));
    const kvm_str weights = kvm_path_join(&scratch, dir, KVM_STR("mapper.safetensors"));
    const kvm_str path = kvm_path_join(&scratch, dir, KVM_STR("manifest.json"));
    if (!weights.at || !path.at) return kvm_nomem(err, &scratch);
    /* what a failure leaves is no mapper, not new weights described by old words */
    TRY(kvm_file_remove(path, err));
    char sha[65];
    json_t *meta = json_pack("{s:s, s:s, s:s}", "format", "kvbridge", "schema", "1",
                             "storage_dtype", storage_name(dtype));
    if (!meta) return kvm_fail(err, KVM_NOMEM, "%s: no memory for it", weights.at);
    const kvm_status s =
        kvm_layout__write(t, &names, dtype, meta, weights, scratch, sha, err);
    json_decref(meta);
    TRY(s);
    return kvm_layout__publish(manifest(t, dtype, sha), path, scratch, err);
}

/* ---- reading ---- */

/* 64 hex digits: a fingerprint of ours; any other revision says nothing that we can
 * check */
static bool is_fingerprint(kvm_str s)
{
    return s.len == 64 && strspn(s.at, "0123456789abcdef") == 64;
}

static kvm_status read_side(kvm_jat root, kvm_arena *keep, const char *key,
                            kvm_side_info *s, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(root, keep, key);
    int64_t layers, heads, dim;
    TRY(kvm_json_object(at, err));
    TRY(kvm_layout__copy_str(at, keep, "model_id", &s->name, err));
    TRY(kvm_layout__copy_str(at, keep, "revision", &s->fingerprint, err));
    TRY(kvm_layout__copy_str(at, keep, "tokenizer_hash", &s->tokenizer, err));
    if (!is_fingerprint(s->fingerprint)) s->fingerprint = KVM_STR("");
    TRY(kvm_json_i64(kvm_json_get(at, keep, "num_layers"), &layers, err));
    TRY(kvm_json_i64(kvm_json_get(at, keep, "num_kv_heads"), &heads, err));
    TRY(kvm_json_i64(kvm_json_get(at, keep, "head_dim"), &dim, err));
    return kvm_layout__side(s, keep, layers, heads, dim, at.file, err);
}

static kvm_status check_hash(kvm_jat root, kvm_arena *keep, kvm_str weights,
                             kvm_err *err)
{
    kvm_str want;
    char have[65];
    const kvm_jat at = kvm_json_get(root, keep, "weights_sha256");
    TRY(kvm_json_str(at, &want, err));
    TRY(kvm_sha_file(weights, have, *keep, err));
    if (kvm_str_eq(want, kvm_str_of(have))) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH,
                    "%s: %s does not match %s; one of the two was replaced", at.file,
                    at.path, weights.at);
}

static kvm_status check_format(kvm_jat root, kvm_arena *keep, kvm_err *err)
{
    kvm_str format;
    int64_t schema;
    const kvm_jat at = kvm_json_get(root, keep, "format");
    TRY(kvm_json_str(at, &format, err));
    TRY(kvm_json_i64(kvm_json_get(root, keep, "schema_version"), &schema, err));
    if (!kvm_str_eq(format, KVM_STR("kvbridge")))
        return kvm_fail(err, KVM_FORMAT, "%s: format '%s', expected 'kvbridge'",
                        at.file, kvm_quote(format).at);
    if (schema != 1)
        return kvm_fail(err, KVM_VERSION, "%s: schema_version %lld, expected 1",
                        at.file, (long long)schema);
    return KVM_OK;
}

kvm_status kvm_layout_a_read(kvm_translator *out, kvm_arena *keep, kvm_str dir,
                             kvm_err *err)
{
    kvm_translator t = {.pair = KVM_STR(""), .moments = KVM_STR("")};
    const kvm_str path = kvm_path_join(keep, dir, KVM_STR("manifest.json"));
    t.path = kvm_path_join(keep, dir, KVM_STR("mapper.safetensors"));
    if (!path.at || !t.path.at) return kvm_nomem(err, keep);
    kvm_jat root;
    TRY(kvm_json_read(&root, keep, path, err));
    TRY(check_format(root, keep, err));
    TRY(check_hash(root, keep, t.path, err));
    TRY(read_side(root, keep, "source_signature", &t.source, err));
    TRY(read_side(root, keep, "target_signature", &t.target, err));
    const kvm_jat fit = kvm_json_get(root, keep, "fit_config");
    bool content;
    double alpha;
    TRY(kvm_json_object(fit, err));
    TRY(kvm_json_bool_or(kvm_json_get(fit, keep, "content_space"), true, &content,
                         err));
    TRY(kvm_json_f64_or(kvm_json_get(fit, keep, "ridge_alpha"), 0, &alpha, err));
    t.keys = content ? KVM_KEYS_CONTENT : KVM_KEYS_ROTATED;
    const int32_t **sources;
    ptrdiff_t k = 0;
    TRY(kvm_layout__selected(kvm_json_get(root, keep, "selected_layers"), &t, keep,
                             &sources, &k, err));
    kvm_st *st;
    TRY(kvm_st_open(&st, keep, t.path, err));
    TRY(kvm_layout__read(&t, st, &names, sources, k, keep, err));
    *out = t;
    return KVM_OK;
}
