/* chat_internal.h - between chat.c, which chooses a frame, and chat_frames.c, which
 * writes the text of one. */
#ifndef KVM_MODELS_CHAT_INTERNAL_H
#define KVM_MODELS_CHAT_INTERNAL_H

#include "models/chat.h"

typedef struct kvm_chat_writing {
    kvm_text out;
    const kvm_tokenizer *t;
    const kvm_chat_turn *turns; /* (n), n > 0, each of a known role */
    ptrdiff_t n;
    const kvm_chat_options *o;
    kvm_err *err;
} kvm_chat_writing;

typedef struct kvm_chat_row { /* of chat_frames.def */
    const char *name, *first, *second, *mark;
    bool bare; /* also for a tokenizer without a template */
    kvm_status (*write)(kvm_chat_writing *w);
} kvm_chat_row;
extern const kvm_chat_row kvm_chat_rows[];
extern const ptrdiff_t kvm_chat_rows_n;

#endif
