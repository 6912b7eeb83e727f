/* cli.h - one command: its options, its arguments, its exit code.
 *
 * A command is a row of commands.def and a file cmd_<name>.c. main.c parses the options
 * of its table (plus the common ones), then calls run(). Results go to stdout (text for
 * people, one JSON document with --json), everything else to stderr. Nobody but main.c
 * exits. */
#ifndef KVM_CLI_CLI_H
#define KVM_CLI_CLI_H

#include <stdio.h>

#include "base/json.h"

/* exit codes, as docs/kvmill.1 lists them */
enum {
    KVM_EXIT_DONE = 0,
    KVM_EXIT_FAILED = 1,
    KVM_EXIT_USAGE = 2,
    KVM_EXIT_GATE = 3,
    KVM_EXIT_ENVIRONMENT = 4
};

typedef enum kvm_opt_id {
    KVM_OPT_JSON,
    KVM_OPT_QUIET,
    KVM_OPT_STORE,
    KVM_OPT_HOME,
    KVM_OPT_CACHE,
    KVM_OPT_CATALOGUE,
    KVM_OPT_THREADS,
    KVM_OPT_BACKEND,
    KVM_OPT_OFFLOAD, /* common to all */
    KVM_OPT_AGAIN,
    KVM_OPT_SOURCE,
    KVM_OPT_TARGET,
    KVM_OPT_OUT,
    KVM_OPT_STAY,
    KVM_OPT_SWITCH,
    KVM_OPT_ALTERNATE,
    KVM_OPT_TOKENS,
    KVM_OPT_LIMIT,
    KVM_OPT_STATE,
    KVM_OPT_GFLOPS,
    KVM_OPT_GBS,
    KVM_OPT_LICENCE,
    KVM_OPT_TOKENIZER,
    KVM_OPT_DRY_RUN,
    KVM_OPT_HOURS,
    KVM_OPT_RUN,
    KVM_OPT_APART,
    KVM_OPT_FROM,
    KVM_OPT_TO,
    KVM_OPT_CLOSED_FORM,
    KVM_OPT_TEAM,
    KVM_OPT_WEIGHT,
    KVM_OPT_QUOTA_LIVE,
    KVM_OPT_QUOTA_DAY,
    KVM_OPT_CRON,
    KVM_OPT_ZONE,
    KVM_OPT_CATCH_UP,
    KVM_OPT_FOLLOW,
    KVM_OPT_REFRESH,
    KVM_OPT_CAPTURES,
    KVM_OPT_QUEUE,
    KVM_OPT_RECONCILE,
    KVM_OPT_REVISION,
    KVM_OPT_FILE,
    KVM_OPT_RANKS,
    KVM_OPT_LAUNCHER,
    KVM_OPT_LAUNCH_ARGS,
    KVM_OPT_ALLOW, /* may be given more than once */
    KVM_OPT_MEMORY,
    KVM_OPT_COUNT
} kvm_opt_id;

typedef struct kvm_option {
    kvm_opt_id id;
    const char *name;  /* "threads" for --threads */
    const char *value; /* "N" when it takes one, NULL for a flag */
    const char *help;
} kvm_option; /* tables end with name NULL */

typedef struct kvm_cli {
    const char *name;                 /* as the command was called */
    const char *value[KVM_OPT_COUNT]; /* NULL: not given; "" for a flag */
    const char *from[KVM_OPT_COUNT];  /* "--threads" or "KVMILL_THREADS": who gave it */
    kvm_str *args;                    /* what is left after the options */
    ptrdiff_t arg_count;
    kvm_arena *keep; /* for the life of the process */
} kvm_cli;

enum { KVM_ANY_ARGS = 1 << 20 };

typedef struct kvm_command {
    const char *name;
    const kvm_option *options; /* its own; NULL: only the common ones */
    kvm_status (*run)(kvm_cli *cli, kvm_err *err);
    ptrdiff_t most_args; /* more are KVM_USAGE */
} kvm_command;

extern const kvm_option kvm_common_options[];
char kvm_option_letter(kvm_opt_id id); /* 'f': -f is the same; 0: it has none */
extern const kvm_command
    kvm_command_step; /* every kind of kinds.def is a command by its name */
const kvm_command *kvm_command_find(kvm_str name); /* NULL: unknown */

static inline bool kvm_cli_has(const kvm_cli *cli, kvm_opt_id id)
{
    return cli->value[id] != NULL;
}
/* One of a command's verbs. */
typedef struct kvm_cli_verb {
    const char *name;
    kvm_status (*run)(kvm_cli *cli, kvm_err *err);
    ptrdiff_t most_args; /* behind the verb; more are KVM_USAGE */
} kvm_cli_verb;
/* the verb that the first argument names; the first one when there is no argument */
KVM_MUST kvm_status kvm_cli_dispatch(kvm_cli *cli, const kvm_cli_verb *verbs,
                                     ptrdiff_t n, kvm_err *err);
KVM_MUST kvm_status kvm_cli_i64(const kvm_cli *cli, kvm_opt_id id, int64_t fallback,
                                int64_t least, int64_t *out, kvm_err *err);
/* one argument is needed at place i: KVM_USAGE says what is missing */
KVM_MUST kvm_status kvm_cli_arg(const kvm_cli *cli, ptrdiff_t i, const char *what,
                                kvm_str *out, kvm_err *err);
/* the store's folder: --store or KVMILL_STORE; of a store in a bucket the home, --home
 * or KVMILL_HOME; else ./run */
kvm_str kvm_cli_store(const kvm_cli *cli);
/* --catalogue, KVMILL_CATALOGUE, else STORE/catalogue.db. KVM_USAGE for an address on
 * the command line that holds a password: everybody on the machine may read it there */
KVM_MUST kvm_status kvm_cli_where(kvm_cli *cli, kvm_str *where, kvm_err *err);
/* the same of any option that takes such an address */
KVM_MUST kvm_status kvm_cli_address(const kvm_cli *cli, kvm_opt_id id, kvm_str *where,
                                    kvm_err *err);
/* --queue, KVMILL_QUEUE, else empty: the workers of this machine */
KVM_MUST kvm_status kvm_cli_queue(const kvm_cli *cli, kvm_str *where, kvm_err *err);
/* --json: v pretty-printed to stdout; takes v */
KVM_MUST kvm_status kvm_cli_print_json(kvm_cli *cli, json_t *v, kvm_err *err);
int kvm_cli_exit_code(kvm_status s);

#endif
