/* pretokenize_regex.h - the inside of a kvm_regex, for the code that runs it. */
#ifndef KVM_MODELS_PRETOKENIZE_REGEX_H
#define KVM_MODELS_PRETOKENIZE_REGEX_H

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include "models/pretokenize.h"

struct kvm_regex {
    pcre2_code *code;
    kvm_str text; /* as compiled */
};

#endif
