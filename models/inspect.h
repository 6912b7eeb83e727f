/* inspect.h - what a checkpoint would keep in its cache, as data. */
#ifndef KVM_MODELS_INSPECT_H
#define KVM_MODELS_INSPECT_H

#include "base/json.h"
#include "models/model.h"

/* kvm_model_inspect - out is owned by keep:
 *   model     path, name, family, sizes, parameters, weight dtype and bytes, hashes
 *   position  encoding, scaling, theta, width, attention_factor; factor,
 *             original_context and query_temperature where there are such
 *   layers    [{layer, kind, ffn, window, objects: [{object, what, shape, axes, dtype,
 *             bytes_per_token, bytes_per_prompt, position, points: [{point, what}]}]}]
 *   totals    objects, bytes_per_token, bytes_per_prompt,
 *             at: [{tokens, bytes}] at lengths up to the context */
KVM_MUST kvm_status kvm_model_inspect(json_t **out, kvm_arena *keep, const kvm_model *m,
                                      kvm_err *err);
/* kvm_config_inspect - the same from a config.json alone, of which nothing need be
 * downloaded but this file: of model only path, family and sizes */
KVM_MUST kvm_status kvm_config_inspect(json_t **out, kvm_arena *keep, kvm_str path,
                                       kvm_err *err);

#endif
