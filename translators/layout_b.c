/* Mapper layout B: DIR/mapper.safetensors and DIR/mapper.json.
 *   K.W.<l>, V.W.<l> (k*Hs*Ds, Ht*Dt); K.b.<l>, V.b.<l> (Ht*Dt); F32 or BF16
 * A and B hold the same numbers: (Ht, I, Dt) against (I, Ht*Dt). Our fingerprints
 * travel in `meta`. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "translators/translator_internal.h"

#define FORMAT "kvtransfer.mapper.v1"

static const kvm_layout_names names = {
    .weight = {"K.W", "V.W"},
    .bias = {"K.b", "V.b"},
};

static json_t *model_json(const kvm_side_info *s)
{
    return json_pack("{s:o, s:I, s:I, s:I, s:f, s:f}", "name",
                     kvm_layout__str_json(s->name), "n_layers",
                     (json_int_t)s->shapes.layers, "n_kv",
                     (json_int_t)kvm_layout__shape(s).heads, "head_dim",
                     (json_int_t)kvm_layout__shape(s).dim, "rope_theta", s->theta,
                     "attention_scaling", (double)s->rope.factor);
}

static json_t *mapper_json(const kvm_translator *t)
{
    const double lambda = fabs(t->steps[0].lambda);
    json_t *meta =
        json_pack("{s:o, s:o, s:o, s:o}", "source_fingerprint",
                  kvm_layout__str_json(t->source.fingerprint), "target_fingerprint",
                  kvm_layout__str_json(t->target.fingerprint), "source_tokenizer",
                  kvm_layout__str_json(t->source.tokenizer), "target_tokenizer",
                  kvm_layout__str_json(t->target.tokenizer));
    json_t *r2 = json_pack("{s:o, s:o}", "K", kvm_layout__r2_json(t, KVM_SPACE_K), "V",
                           kvm_layout__r2_json(t, KVM_SPACE_V));
    return json_pack("{s:s, s:o, s:o, s:I, s:f, s:s, s:o, s:o, s:I, s:o}", "format",
                     FORMAT, "source", model_json(&t->source), "target",
                     model_json(&t->target), "k", (json_int_t)t->steps[0].sources,
                     "lam", isfinite(lambda) ? lambda : 0.0, "key_space",
                     t->keys == KVM_KEYS_ROTATED ? "rope" : kvm_key_space_name(t->keys),
                     "selected", kvm_layout__selected_json(t), "fit_r2", r2, "n_params",
                     (json_int_t)kvm_translator_parameters(t), "meta", meta);
}

kvm_status kvm_layout_b_write(const kvm_translator *t, kvm_dtype dtype, kvm_str dir,
                              kvm_arena scratch, kvm_err *err)
{
    TRY(kvm_layout__check(t, "B", err));
    TRY(kvm_dir_make(dir, err));
    const kvm_str weights = kvm_path_join(&scratch, dir, KVM_STR("mapper.safetensors"));
    const kvm_str path = kvm_path_join(&scratch, dir, KVM_STR("mapper.json"));
    if (!weights.at || !path.at) return kvm_nomem(err, &scratch);
    /* weights with the description of others would be read as it says */
    TRY(kvm_file_remove(path, err));
    TRY(kvm_layout__write(t, &names, dtype, NULL, weights, scratch, NULL, err));
    return kvm_layout__publish(mapper_json(t), path, scratch, err);
}

/* ---- reading ---- */

static kvm_status read_side(kvm_jat root, kvm_arena *keep, const char *key,
                            kvm_side_info *s, kvm_err *err)
{
    const kvm_jat at = kvm_json_get(root, keep, key);
    int64_t layers, heads, dim;
    double factor;
    TRY(kvm_json_object(at, err));
    TRY(kvm_layout__copy_str(at, keep, "name", &s->name, err));
    TRY(kvm_json_i64(kvm_json_get(at, keep, "n_layers"), &layers, err));
    TRY(kvm_json_i64(kvm_json_get(at, keep, "n_kv"), &heads, err));
    TRY(kvm_json_i64(kvm_json_get(at, keep, "head_dim"), &dim, err));
    TRY(kvm_layout__side(s, keep, layers, heads, dim, at.file, err));
    TRY(kvm_json_f64_or(kvm_json_get(at, keep, "rope_theta"), 0, &s->theta, err));
    const kvm_jat scale = kvm_json_get(at, keep, "attention_scaling");
    TRY(kvm_json_f64_or(scale, 1, &factor, err));
    if (kvm_rows_factor(&s->rope, factor)) return KVM_OK;
    return kvm_json_fail(err, KVM_FORMAT, scale,
                         "is %g; a rotary scales by more than 0", factor);
}

static kvm_status read_head(kvm_translator *t, kvm_jat root, kvm_arena *keep,
                            kvm_err *err)
{
    kvm_str format, keys;
    const kvm_jat f = kvm_json_get(root, keep, "format");
    const kvm_jat s = kvm_json_get(root, keep, "key_space");
    TRY(kvm_json_str(f, &format, err));
    if (!kvm_str_eq(format, KVM_STR(FORMAT)))
        return kvm_fail(err, KVM_VERSION, "%s: format '%s', expected '" FORMAT "'",
                        f.file, kvm_quote(format).at);
    TRY(kvm_json_str_or(s, KVM_STR("content"), &keys, err));
    if (kvm_str_eq(keys, KVM_STR("rope"))) keys = KVM_STR("rotated");
    if (kvm_key_space_of_name(keys, &t->keys))
        return kvm_fail(err, KVM_FORMAT, "%s: %s: '%s' is no key space", s.file, s.path,
                        kvm_quote(keys).at);
    TRY(read_side(root, keep, "source", &t->source, err));
    TRY(read_side(root, keep, "target", &t->target, err));
    const kvm_jat meta = kvm_json_get(root, keep, "meta");
    TRY(kvm_layout__copy_str(meta, keep, "source_fingerprint", &t->source.fingerprint,
                             err));
    TRY(kvm_layout__copy_str(meta, keep, "target_fingerprint", &t->target.fingerprint,
                             err));
    TRY(kvm_layout__copy_str(meta, keep, "source_tokenizer", &t->source.tokenizer,
                             err));
    return kvm_layout__copy_str(meta, keep, "target_tokenizer", &t->target.tokenizer,
                                err);
}

kvm_status kvm_layout_b_read(kvm_translator *out, kvm_arena *keep, kvm_str dir,
                             kvm_err *err)
{
    kvm_translator t = {.pair = KVM_STR(""), .moments = KVM_STR("")};
    const kvm_str path = kvm_path_join(keep, dir, KVM_STR("mapper.json"));
    t.path = kvm_path_join(keep, dir, KVM_STR("mapper.safetensors"));
    if (!path.at || !t.path.at) return kvm_nomem(err, keep);
    kvm_jat root;
    TRY(kvm_json_read(&root, keep, path, err));
    TRY(read_head(&t, root, keep, err));
    const int32_t **sources;
    ptrdiff_t k = 0;
    int64_t stated;
    TRY(kvm_layout__selected(kvm_json_get(root, keep, "selected"), &t, keep, &sources,
                             &k, err));
    const kvm_jat at = kvm_json_get(root, keep, "k");
    TRY(kvm_json_i64_or(at, k, &stated, err));
    if (stated != k)
        return kvm_fail(err, KVM_FORMAT, "%s: k is %lld, `selected` lists %td", at.file,
                        (long long)stated, k);
    kvm_st *st;
    TRY(kvm_st_open(&st, keep, t.path, err));
    TRY(kvm_layout__read(&t, st, &names, sources, k, keep, err));
    *out = t;
    return KVM_OK;
}
