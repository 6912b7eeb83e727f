/* config_quantised.c - quantization_config: how weights of 8 bits are scaled. Which
 * weights those are, the tensors say themselves (models/scales.h). */
#include "models/config_internal.h"

/* what E4M3 weights with scales are called; `field` tells one method's formats apart */
static const struct method {
    const char *name, *field;
    const char *values[3];
} methods[] = {
    {"fp8", "fmt", {"e4m3"}},
    {"compressed-tensors", "format", {"float-quantized", "naive-quantized"}},
    {"modelopt", "quant_algo", {"FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN"}},
    {"fbgemm_fp8", NULL, {NULL}},
};
enum { METHODS = (int)(sizeof methods / sizeof *methods), MOST_BLOCK = 1 << 16 };

static kvm_status check_method(const kvm_config_source *s, kvm_jat q)
{
    kvm_str name, value;
    const kvm_jat at = kvm_json_get(q, s->keep, "quant_method");
    TRY(kvm_json_str(at, &name, s->err));
    const struct method *m = NULL;
    for (int i = 0; i < METHODS; i++)
        if (kvm_str_eq(name, kvm_str_of(methods[i].name))) m = &methods[i];
    if (!m)
        return kvm_fail(s->err, KVM_UNSUPPORTED,
                        "%s: %s is \"%s\"; of quantised safetensors those with FP8 "
                        "weights are read (fp8, compressed-tensors, modelopt, "
                        "fbgemm_fp8): use the BF16 release or a GGUF file",
                        at.file, at.path, kvm_quote(name).at);
    if (!m->field) return KVM_OK;
    const kvm_jat field = kvm_json_get(q, s->keep, m->field);
    TRY(kvm_json_str_or(field, kvm_str_of(m->values[0]), &value, s->err));
    for (int i = 0; i < 3 && m->values[i]; i++)
        if (kvm_str_eq(value, kvm_str_of(m->values[i]))) return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: %s is \"%s\"; of %s checkpoints those with E4M3 weights are "
                    "read (\"%s\"): use the BF16 release or a GGUF file",
                    field.file, field.path, kvm_quote(value).at, m->name, m->values[0]);
}

/* where the size of blocks stands: [rows, columns], or nothing */
static kvm_jat find_block(const kvm_config_source *s, kvm_jat q)
{
    const kvm_jat block = kvm_json_get(q, s->keep, "weight_block_size");
    const kvm_jat groups = kvm_json_get(q, s->keep, "config_groups");
    kvm_str key;
    const json_t *v;
    void *it = NULL;
    if (kvm_json_has(block) || !json_is_object(groups.v) ||
        !kvm_json_next(groups, &it, &key, &v))
        return block;
    const kvm_str name = kvm_str_copy(s->keep, key);
    const kvm_jat group = kvm_json_get(groups, s->keep, name.at ? name.at : "");
    return kvm_json_get(kvm_json_get(group, s->keep, "weights"), s->keep,
                        "block_structure");
}

kvm_status kvm_config__quantised(const kvm_config_source *s, kvm_config *c)
{
    kvm_jat q = kvm_json_get(s->text, s->keep, "quantization_config");
    if (!kvm_json_has(q)) q = kvm_json_get(s->root, s->keep, "quantization_config");
    if (!kvm_json_has(q)) q = kvm_json_get(s->root, s->keep, "compression_config");
    if (!kvm_json_has(q)) return KVM_OK;
    TRY(kvm_json_object(q, s->err));
    TRY(check_method(s, q));
    const kvm_jat block = find_block(s, q);
    if (!kvm_json_has(block)) return KVM_OK;
    ptrdiff_t n;
    int64_t size[2];
    TRY(kvm_json_array(block, &n, s->err));
    if (n != 2)
        return kvm_fail(s->err, KVM_FORMAT,
                        "%s: %s has %td entries, not [rows, columns]", block.file,
                        block.path, n);
    for (int i = 0; i < 2; i++) {
        TRY(kvm_json_i64(kvm_json_item(block, s->keep, i), &size[i], s->err));
        if (size[i] < 1 || size[i] > MOST_BLOCK)
            return kvm_fail(s->err, KVM_RANGE, "%s: %s: a block of %lld; 1 to %d",
                            block.file, block.path, (long long)size[i], MOST_BLOCK);
    }
    c->scale_rows = (ptrdiff_t)size[0];
    c->scale_cols = (ptrdiff_t)size[1];
    return KVM_OK;
}
