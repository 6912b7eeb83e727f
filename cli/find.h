/* find.h - the artefact that a person means: by its spec, its run, its hash, or as a
 * file; and the reports. */
#ifndef KVM_CLI_FIND_H
#define KVM_CLI_FIND_H

#include "cli/open.h"

typedef struct kvm_found {
    kvm_str path;
    kvm_str source, target; /* the checkpoints that the spec names; else empty */
    const char *what;       /* "distilled translator"; NULL: a file outside the store */
    const char *sha;        /* its hash; NULL likewise */
} kvm_found;

/* What a command that finds translators has among its options. */
#define KVM_CLI_CLOSED_FORM                                                            \
    {                                                                                  \
        KVM_OPT_CLOSED_FORM, "closed-form", NULL,                                      \
            "of PAIR.yaml or a run the closed form, although one was distilled"        \
    }

/* kvm_cli_spec_translator - what the newest run of just this spec that has one made:
 * what was distilled, where it was and --closed-form is not given, else the closed
 * form; KVM_NOTFOUND names the store and what to do */
KVM_MUST kvm_status kvm_cli_spec_translator(kvm_cli *cli, const kvm_spec *spec,
                                            kvm_found *out, kvm_err *err);
/* kvm_cli_find - the translator of PAIR.yaml or of a run's number; the artefact whose
 * hash begins so (four digits or more); or a file or folder that is there. The latter
 * two leave --closed-form nothing to choose: KVM_USAGE. */
KVM_MUST kvm_status kvm_cli_find(kvm_cli *cli, kvm_str what, kvm_found *out,
                                 kvm_err *err);

/* kvm_cli_say_found - "distilled translator d2257f34ab01…" on stderr; nothing of a file
 * outside the store */
void kvm_cli_say_found(const kvm_found *found);

typedef struct kvm_found_report {
    kvm_str pair;
    int64_t run; /* 0: the newest of the pair */
} kvm_found_report;

/* kvm_cli_find_reports - of PAIR.yaml: of each of its directions the newest report of a
 * run of just this spec; of a run's number: that run's; else of the pair of that name.
 * *found (n) in cli->keep. KVM_NOTFOUND names the store and what to do; a pair's name
 * is not looked up. */
KVM_MUST kvm_status kvm_cli_find_reports(kvm_cli *cli, kvm_catalogue *c, kvm_str what,
                                         kvm_found_report **found, ptrdiff_t *n,
                                         kvm_err *err);

#endif
