/* chat.h - conversations as the text that each family's stock template writes
 * (chat_template of tokenizer_config.json). A closed set of frames, rows of
 * chat_frames.def; the frame of a checkpoint is found from its special tokens and from
 * marks in its template, never by running a Jinja program. A default system prompt is
 * taken from the template's own text.
 *
 * The text begins with the begin-of-text token where the template writes it: encode it
 * without add_bos. */
#ifndef KVM_MODELS_CHAT_H
#define KVM_MODELS_CHAT_H

#include "models/tokenizer.h"

typedef struct kvm_chat_turn {
    kvm_str role, text; /* role: system | user | assistant */
} kvm_chat_turn;

typedef struct kvm_chat_options {
    bool open_assistant; /* end with the generation prompt */
    bool thinking;       /* families that have it; false writes the empty think block
                          * where the stock template does */
    kvm_str date;        /* llama3's "Today Date" line; empty: the template's own
                          * fallback, 26 Jul 2024 */
} kvm_chat_options;

/* kvm_chat_render - o NULL: every option off. KVM_UNSUPPORTED when no frame fits the
 * tokenizer (naming the special tokens looked for), KVM_USAGE for another role, no
 * turns, or an order of turns that the template refuses. */
KVM_MUST kvm_status kvm_chat_render(const kvm_tokenizer *t, const kvm_chat_turn *turns,
                                    ptrdiff_t n, const kvm_chat_options *o,
                                    kvm_arena *keep, kvm_str *out, kvm_err *err);
/* kvm_chat_frame - name of the frame that fits, static; NULL: none does */
const char *kvm_chat_frame(const kvm_tokenizer *t);

#endif
