/* chat.h - conversations as the text that each family's stock template writes (models.md section 5). A closed set
 * of frames (llama3, chatml = Qwen2/Qwen3, ministral3 …), rows of chat_frames.def; the frame of a checkpoint is
 * found from its special tokens and family, never by running a Jinja program. */
#ifndef KVM_MODELS_CHAT_H
#define KVM_MODELS_CHAT_H

#include "models/tokenizer.h"

typedef struct kvm_chat_turn { kvm_str role, text; } kvm_chat_turn; /* role: system | user | assistant */
typedef struct kvm_chat_options {
    bool open_assistant; /* end with the generation prompt */
    bool thinking;       /* families that have it; false writes the empty think block where the stock template does */
    kvm_str date;        /* llama3's "Today Date" line; empty: the template's own fallback */
} kvm_chat_options;
/* KVM_UNSUPPORTED when no frame fits the tokenizer (naming the special tokens looked for) */
KVM_MUST kvm_status kvm_chat_render(const kvm_tokenizer *t, const kvm_chat_turn *turns, ptrdiff_t n,
                                    const kvm_chat_options *o, kvm_arena *keep, kvm_str *out, kvm_err *err);

#endif
