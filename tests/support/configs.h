/* configs.h - configs out of their JSON, for the tests of models/config.h. All in the
 * header, as queue.h. */
#ifndef KVM_TESTS_SUPPORT_CONFIGS_H
#define KVM_TESTS_SUPPORT_CONFIGS_H

#include "models/config.h"
#include "tests/support/check.h"

#define SIZES                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"             \
    "\"num_attention_heads\":4,\"vocab_size\":97"

static inline kvm_status read(kvm_config *c, kvm_arena *a, const char *text,
                              kvm_err *err)
{
    kvm_jat root;
    TRY(kvm_json_parse(&root, a, kvm_str_of(text), KVM_STR("config.json"), err));
    return kvm_config_of_json(c, a, root, err);
}

static inline kvm_config good(kvm_arena *a, const char *text)
{
    kvm_config c;
    kvm_err err = {0};
    check_ok(read(&c, a, text, &err), &err);
    return c;
}

#endif
