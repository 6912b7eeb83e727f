/* hub.h - what a hub of models (huggingface.co, or whoever speaks its API) holds.
 *
 * A hub is KVMILL_HUB or HF_ENDPOINT, else huggingface.co; HF_TOKEN goes to it alone
 * and is never shown. What it says is not trusted: a file's name stays below the folder
 * that it is pulled into, and its content has to have the hash that the hub lists. */
#ifndef KVM_CLI_HUB_H
#define KVM_CLI_HUB_H

#include "base/http.h"

typedef struct kvm_hub {
    kvm_str endpoint;           /* without a slash at the end */
    kvm_http_header headers[1]; /* the token's */
    ptrdiff_t header_count;
    kvm_str repo; /* "ORG/NAME" */
} kvm_hub;

typedef struct kvm_hub_file {
    kvm_str name;  /* "model.safetensors", perhaps with folders in front */
    int64_t bytes; /* -1: not told */
    kvm_str hash;  /* 64 digits: SHA-256; 40: of a git blob; "": not told */
} kvm_hub_file;

typedef struct kvm_hub_list {
    kvm_str commit; /* what the revision stood for; files are taken of that one */
    kvm_hub_file *files;
    ptrdiff_t count;
} kvm_hub_list;

/* kvm_hub_open - a hub as the environment names it, and a repository there. KVM_USAGE:
 * a name that no repository has; a token that would travel unencrypted. */
KVM_MUST kvm_status kvm_hub_open(kvm_hub *hub, kvm_arena *keep, kvm_str repo,
                                 kvm_err *err);
/* kvm_hub_look - the files of a revision. KVM_NOTFOUND, KVM_ENVIRONMENT (private,
 * gated, or no hub can be reached), KVM_FORMAT (no hub's answer). */
KVM_MUST kvm_status kvm_hub_look(kvm_hub_list *list, const kvm_hub *hub,
                                 kvm_str revision, kvm_http *http, kvm_arena *keep,
                                 kvm_err *err);
/* kvm_hub_read - the same out of a hub's answer (JSON), which messages name `shown`.
 * Names are as the hub says: kvm_hub_name_is_safe. KVM_FORMAT. */
KVM_MUST kvm_status kvm_hub_read(kvm_hub_list *list, kvm_str body, kvm_str shown,
                                 kvm_str revision, kvm_arena *keep, kvm_err *err);
/* kvm_hub_ask - what the hub says of a file whose size or hash it did not list; what it
 * does not say stays as it was */
KVM_MUST kvm_status kvm_hub_ask(kvm_hub_file *file, const kvm_hub *hub, kvm_str commit,
                                kvm_http *http, kvm_arena *keep, kvm_err *err);
/* kvm_hub_request - a GET of a file; at of its url is NULL when keep is spent */
kvm_http_request kvm_hub_request(const kvm_hub *hub, kvm_str commit, kvm_str name,
                                 kvm_arena *keep);
/* kvm_hub_name_is_safe - whether a file may have that name below a folder of ours */
bool kvm_hub_name_is_safe(kvm_str name);

#endif
