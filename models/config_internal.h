/* config_internal.h - a config.json being read: config_json.c asks config_layers.c and
 * config_blocks.c for what only some families have, config_quantised.c for the scales
 * of weights, and all ask config_source.c for fields. */
#ifndef KVM_MODELS_CONFIG_INTERNAL_H
#define KVM_MODELS_CONFIG_INTERNAL_H

#include "models/config.h"

/* Fields are looked for in `text` (of a multimodal wrapper what it says of its language
 * model, else the root), flags of the wrapper in `root`. */
typedef struct kvm_config_source {
    kvm_jat root, text;
    kvm_arena *keep;
    kvm_err *err;
} kvm_config_source;

/* keys: "a" or "a|b": the first that is there. fallback < 0: one must be. */
KVM_MUST kvm_status kvm_config__size(const kvm_config_source *s, const char *keys,
                                     ptrdiff_t fallback, ptrdiff_t *out);
KVM_MUST kvm_status kvm_config__flag(const kvm_config_source *s, const char *keys,
                                     bool fallback, bool *out);
KVM_MUST kvm_status kvm_config__number(const kvm_config_source *s, kvm_jat obj,
                                       const char *keys, double fallback, double *out);
/* KVM_UNSUPPORTED unless the word is absent or this one, which is what runs here */
KVM_MUST kvm_status kvm_config__word(const kvm_config_source *s, const char *keys,
                                     const char *only);

/* the same source, its fields in the object `key` of text where there is one */
kvm_config_source kvm_config__within(const kvm_config_source *s, const char *key);

/* models/config_layers.c: the sizes of the family's kinds of layer */
KVM_MUST kvm_status kvm_config__sizes(const kvm_config_source *s, kvm_config *c);
/* models/config_blocks.c: for sizes that were checked, which kind each block is built
 * of, and the windows */
KVM_MUST kvm_status kvm_config__layers(const kvm_config_source *s, kvm_config *c);
/* where blocks are of one layer each: as many as the pattern has letters, which is what
 * num_hidden_layers says or leaves out */
KVM_MUST kvm_status kvm_config__count(const kvm_config_source *s, kvm_config *c);

/* models/config_residual.c: the sizes of the family's residual kind, and what is said
 * of single layers; the last adds them to v, and gives 0 unless memory is short */
KVM_MUST kvm_status kvm_config__residual(const kvm_config_source *s, kvm_config *c);
KVM_MUST kvm_status kvm_config__residual_layers(const kvm_config_source *s,
                                                kvm_config *c);
KVM_MUST kvm_status kvm_config__check_residual(const kvm_config *c, const char *file,
                                               kvm_err *err);
int kvm_config__hash_residual(json_t *v, const kvm_config *c);

/* models/config_quantised.c: KVM_UNSUPPORTED names a method whose weights are not
 * read */
KVM_MUST kvm_status kvm_config__quantised(const kvm_config_source *s, kvm_config *c);

#endif
