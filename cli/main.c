/* main.c - find the command, read its options, run it, turn its status into an exit
 * code. */
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/build.h"
#include "cli/cli.h"
#include "jobs/job.h"
#include "schema/s3.h"

enum { MAX_OPTIONS = 32, FIRST_LONG = 1000 };
static const size_t KEEP_BYTES = (size_t)1
                                 << 40; /* address space; pages cost when touched */

const kvm_option kvm_common_options[] = {
    {KVM_OPT_JSON, "json", NULL, "print one JSON document instead of text"},
    {KVM_OPT_QUIET, "quiet", NULL, "no progress"},
    {KVM_OPT_STORE, "store", "WHERE",
     "artefacts, and the catalogue: a folder, or s3://BUCKET[/PREFIX] with AWS_* in "
     "the "
     "environment (KVMILL_STORE, else ./run)"},
    {KVM_OPT_HOME, "home", "DIR",
     "what a store in a bucket needs here: work, logs, objects in use (KVMILL_HOME, "
     "else ./run)"},
    {KVM_OPT_CACHE, "cache", "MIB",
     "how much of a bucket's objects the home keeps (KVMILL_CACHE, else no bound)"},
    {KVM_OPT_CATALOGUE, "catalogue", "WHERE",
     "a file, or postgres://USER@HOST/DATABASE; the password from PGPASSWORD or "
     "~/.pgpass "
     "(KVMILL_CATALOGUE, else catalogue.db in the store)"},
    {KVM_OPT_THREADS, "threads", "N",
     "threads of the kernels (KVMILL_THREADS, else all CPUs)"},
    {KVM_OPT_BACKEND, "backend", "NAME",
     "cpu, cpu-avx512, cpu-avx2, cpu-plain, cpu-bf16 (rounds activations) or ref "
     "(KVMILL_BACKEND, else cpu)"},
    {KVM_OPT_OFFLOAD, "offload", "MIB",
     "capture layer by layer, for models larger than memory, with up to so many MiB "
     "between two layers, more of it on disk (KVMILL_OFFLOAD, else off)"},
    {0},
};

#define X(id, args, help) extern const kvm_command kvm_command_##id;
#include "cli/commands.def"
#undef X

static const kvm_command *const commands[] = {
#define X(id, args, help) &kvm_command_##id,
#include "cli/commands.def"
#undef X
};

const kvm_command *kvm_command_find(kvm_str name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (kvm_str_eq(name, kvm_str_of(commands[i]->name))) return commands[i];
    kvm_kind_id kind;
    return kvm_job_kind_find(name, &kind) ? NULL : &kvm_command_step;
}

kvm_status kvm_cli_i64(const kvm_cli *cli, kvm_opt_id id, int64_t fallback,
                       int64_t least, int64_t *out, kvm_err *err)
{
    if (!cli->value[id]) {
        *out = fallback;
        return KVM_OK;
    }
    int64_t v;
    if (!kvm_str_to_i64(kvm_str_of(cli->value[id]), &v) || v < least)
        return kvm_fail(err, KVM_USAGE,
                        "%s: \"%s\" is not a whole number of at least %lld",
                        cli->from[id], cli->value[id], (long long)least);
    *out = v;
    return KVM_OK;
}

kvm_status kvm_cli_arg(const kvm_cli *cli, ptrdiff_t i, const char *what, kvm_str *out,
                       kvm_err *err)
{
    if (i >= cli->arg_count) return kvm_fail(err, KVM_USAGE, "%s is missing", what);
    *out = cli->args[i];
    return KVM_OK;
}

kvm_status kvm_cli_dispatch(kvm_cli *cli, const kvm_cli_verb *verbs, ptrdiff_t n,
                            kvm_err *err)
{
    if (cli->arg_count == 0) return verbs[0].run(cli, err);
    for (ptrdiff_t i = 0; i < n; i++)
        if (kvm_str_eq(cli->args[0], kvm_str_of(verbs[i].name)))
            return cli->arg_count - 1 > verbs[i].most_args
                       ? kvm_fail(err, KVM_USAGE, "\"%s\" is one argument too many",
                                  kvm_quote(cli->args[1 + verbs[i].most_args]).at)
                       : verbs[i].run(cli, err);
    return kvm_fail(err, KVM_USAGE,
                    "\"%s\" is none of the verbs that `kvmill help` lists",
                    kvm_quote(cli->args[0]).at);
}

kvm_str kvm_cli_store(const kvm_cli *cli)
{
    const char *store = cli->value[KVM_OPT_STORE], *home = cli->value[KVM_OPT_HOME];
    const bool bucket = store && kvm_s3_address(kvm_str_of(store));
    if (bucket || !store) store = home;
    return kvm_str_of(store ? store : "run");
}

kvm_status kvm_cli_print_json(kvm_cli *cli, json_t *v, kvm_err *err)
{
    kvm_str text;
    if (!kvm_json_own(cli->keep, v)) return kvm_nomem(err, cli->keep);
    TRY(kvm_json_pretty(&text, cli->keep, v, err));
    if (printf("%.*s\n", KVM_STR_ARG(text)) < 0 || fflush(stdout) != 0)
        return kvm_fail_errno(err, "stdout");
    return KVM_OK;
}

int kvm_cli_exit_code(kvm_status s)
{
    switch (s) {
    case KVM_OK:
        return KVM_EXIT_DONE;
    case KVM_USAGE:
    case KVM_FORMAT:
    case KVM_SHAPE:
    case KVM_DTYPE:
    case KVM_RANGE:
    case KVM_NOTFOUND:
    case KVM_UNSUPPORTED:
    case KVM_MISMATCH:
    case KVM_NAN:
    case KVM_EXISTS:
    case KVM_DENIED:
        return KVM_EXIT_USAGE;
    case KVM_GATE:
        return KVM_EXIT_GATE;
    case KVM_IO:
    case KVM_DATABASE:
    case KVM_DAMAGED:
    case KVM_ENVIRONMENT:
    case KVM_VERSION:
    case KVM_NOSPACE:
    case KVM_NOMEM:
        return KVM_EXIT_ENVIRONMENT;
    case KVM_SINGULAR:
    case KVM_BUSY:
    case KVM_CANCELLED:
    case KVM_LOST:
    case KVM_INTERNAL:
        return KVM_EXIT_FAILED;
    }
    return KVM_EXIT_FAILED;
}

/* the rows of both tables as getopt_long wants them; val = FIRST_LONG + id */
static int fill_options(struct option *out, const kvm_option *rows, int n)
{
    for (; rows && rows->name && n < MAX_OPTIONS - 1; rows++)
        out[n++] =
            (struct option){rows->name, rows->value ? required_argument : no_argument,
                            NULL, FIRST_LONG + (int)rows->id};
    return n;
}

/* flags that are known by a letter too, as elsewhere */
static const struct {
    kvm_opt_id id;
    char letter;
} letters[] = {{KVM_OPT_FOLLOW, 'f'}};

char kvm_option_letter(kvm_opt_id id)
{
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (letters[i].id == id) return letters[i].letter;
    return 0;
}

/* the option of that letter, or NULL */
static const kvm_option *by_letter(const kvm_option *rows, int letter)
{
    for (; rows && rows->name; rows++)
        if (kvm_option_letter(rows->id) == letter) return rows;
    return NULL;
}

static kvm_status bad_option(const struct option *known, int n, const char *given,
                             kvm_err *err)
{
    kvm_str names[MAX_OPTIONS];
    for (int i = 0; i < n; i++) names[i] = kvm_str_of(known[i].name);
    kvm_str head, value;
    kvm_str_cut(kvm_str_of(given), '=', &head, &value);
    while (kvm_str_starts(head, KVM_STR("-"))) head = kvm_str_slice(head, 1, head.len);
    const ptrdiff_t nearest = kvm_str_nearest(head, names, n);
    if (nearest >= 0 && kvm_str_eq(head, names[nearest]))
        return kvm_fail(err, KVM_USAGE, "option %s %s", given,
                        known[nearest].has_arg ? "lacks its value" : "takes no value");
    if (nearest >= 0)
        return kvm_fail(err, KVM_USAGE, "option %s: did you mean --%.*s?", given,
                        KVM_STR_ARG(names[nearest]));
    return kvm_fail(err, KVM_USAGE, "option %s is unknown or lacks its value", given);
}

static kvm_status take_option(kvm_cli *cli, int id, const char *name, const char *value,
                              kvm_err *err)
{
    cli->from[id] = kvm_str_fmt(cli->keep, "--%s", name).at;
    if (!cli->from[id]) return kvm_nomem(err, cli->keep);
    if (value && !*value)
        return kvm_fail(err, KVM_USAGE, "%s: the value is empty", cli->from[id]);
    const char *before = id == KVM_OPT_ALLOW ? cli->value[id] : NULL;
    if (before) value = kvm_str_fmt(cli->keep, "%s:%s", before, value).at;
    if (before && !value) return kvm_nomem(err, cli->keep);
    cli->value[id] = value ? value : "";
    return KVM_OK;
}

static kvm_status parse(kvm_cli *cli, const kvm_command *cmd, int argc, char **argv,
                        kvm_err *err)
{
    struct option options[MAX_OPTIONS] = {0};
    int n = fill_options(options, kvm_common_options, 0);
    n = fill_options(options, cmd->options, n);
    opterr = 0;
    int row = 0;
    for (int c; (c = getopt_long(argc, argv, "f", options, &row)) != -1;) {
        const kvm_option *o = c < FIRST_LONG ? by_letter(cmd->options, c) : NULL;
        if (c < FIRST_LONG && !o) return bad_option(options, n, argv[optind - 1], err);
        TRY(take_option(cli, o ? (int)o->id : c - FIRST_LONG,
                        o ? o->name : options[row].name, optarg, err));
    }
    cli->arg_count = argc - optind;
    if (cli->arg_count > cmd->most_args)
        return kvm_fail(err, KVM_USAGE, "\"%s\" is one argument too many",
                        argv[optind + cmd->most_args]);
    cli->args = kvm_new(cli->keep, kvm_str, cli->arg_count + 1);
    if (!cli->args) return kvm_nomem(err, cli->keep);
    for (ptrdiff_t i = 0; i < cli->arg_count; i++)
        cli->args[i] = kvm_str_of(argv[optind + i]);
    return KVM_OK;
}

static void read_environment(kvm_cli *cli)
{
    static const struct {
        kvm_opt_id id;
        const char *name;
    } vars[] = {{KVM_OPT_STORE, "KVMILL_STORE"},
                {KVM_OPT_HOME, "KVMILL_HOME"},
                {KVM_OPT_CACHE, "KVMILL_CACHE"},
                {KVM_OPT_CATALOGUE, "KVMILL_CATALOGUE"},
                {KVM_OPT_THREADS, "KVMILL_THREADS"},
                {KVM_OPT_BACKEND, "KVMILL_BACKEND"},
                {KVM_OPT_OFFLOAD, "KVMILL_OFFLOAD"},
                {KVM_OPT_TEAM, "KVMILL_TEAM"},
                {KVM_OPT_QUEUE, "KVMILL_QUEUE"},
                {KVM_OPT_ALLOW, "KVMILL_ALLOW"},
                {KVM_OPT_MEMORY, "KVMILL_MEMORY"},
                {KVM_OPT_CAPTURES, "KVMILL_CAPTURES_DAYS"}};
    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++) {
        const char *v = getenv(vars[i].name);
        if (cli->value[vars[i].id] || !v || !*v) continue;
        cli->value[vars[i].id] = v;
        cli->from[vars[i].id] = vars[i].name;
    }
}

static bool asks_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* `kvmill run … --help` is `kvmill help run` */
static void turn_to_help(int *argc, char **argv)
{
    static char help[] = "help";
    if (asks_help(argv[1])) return;
    for (int i = 2; i < *argc && strcmp(argv[i], "--") != 0; i++)
        if (asks_help(argv[i])) {
            argv[2] = argv[1];
            argv[1] = help;
            *argc = 3;
            argv[*argc] = NULL;
        }
}

static kvm_status print_version(kvm_cli *cli, kvm_err *err)
{
    (void)cli;
    if (printf("kvmill %s, commit %s\n", KVM_PROGRAM_VERSION, kvm_build_commit) < 0)
        return kvm_fail_errno(err, "stdout");
    return KVM_OK;
}
static const kvm_command version_command = {"--version", NULL, print_version, 0};

static kvm_status find_command(int *argc, char ***argv, const kvm_command **cmd,
                               kvm_err *err)
{
    *cmd = &kvm_command_help;
    if (*argc < 2) return KVM_OK;
    turn_to_help(argc, *argv);
    kvm_str name = kvm_str_of((*argv)[1]);
    if (asks_help(name.at)) name = KVM_STR("help");
    if (kvm_str_eq(name, KVM_STR("--version"))) {
        *cmd = &version_command;
        ++*argv;
        --*argc;
        return KVM_OK;
    }
    *cmd = kvm_command_find(name);
    if (*cmd) {
        ++*argv;
        --*argc;
        return KVM_OK;
    }
    static const kvm_str names[] = {
#define X(id, args, help) {#id, sizeof #id - 1},
#include "cli/commands.def"
#undef X
    };
    const ptrdiff_t nearest =
        kvm_str_nearest(name, names, (ptrdiff_t)(sizeof names / sizeof *names));
    if (nearest >= 0)
        return kvm_fail(err, KVM_USAGE, "no command \"%s\": did you mean %.*s?",
                        kvm_quote(name).at, KVM_STR_ARG(names[nearest]));
    return kvm_fail(err, KVM_USAGE, "no command \"%s\"; `kvmill help` lists them",
                    kvm_quote(name).at);
}

/* MiB of address space. OpenBLAS asks for 128 a thread and spins when it gets none, at
 * the program's end as well: what cannot work is refused before it does. Of jobs the
 * steps on moments need most: with two threads the example pair ran in 7168, and not in
 * 6144. */
enum { LEAST_MIB = 3072, LEAST_OF_JOBS_MIB = 8192 };

static kvm_status check_address_space(long long least, kvm_err *err)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_AS, &r) || r.rlim_cur >> 20 >= (rlim_t)least) return KVM_OK;
    return kvm_fail(err, KVM_ENVIRONMENT,
                    "%lld MiB of address space are too few: allow at least %d (`ulimit "
                    "-v %d`), more for more than two threads; what is reserved is not "
                    "used",
                    (long long)(r.rlim_cur >> 20), LEAST_OF_JOBS_MIB,
                    LEAST_OF_JOBS_MIB * 1024);
}

static bool works(const kvm_command *cmd)
{
    return cmd == &kvm_command_run || cmd == &kvm_command_worker ||
           cmd == &kvm_command_step;
}

static void refuse_small_address_space(void)
{
    kvm_err err = {0};
    if (!check_address_space(LEAST_MIB, &err)) return;
    fprintf(stderr, "kvmill: %s\n", err.msg);
    _exit(KVM_EXIT_ENVIRONMENT);
}

/* Whoever reads our output has seen enough (`| head`) and closed the pipe: we end as
 * other programs do, by SIGPIPE and without a word; a shell shows 141. Ignored until
 * now, since it must not end a worker that says how far it is. */
static void end_by_closed_pipe(const kvm_err *err)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    if (!kvm_str_starts(kvm_str_of(err->msg), KVM_STR("stdout: ")) ||
        poll(&out, 1, 0) != 1 || !(out.revents & POLLERR))
        return;
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

int main(int argc, char **argv)
{
    refuse_small_address_space();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe and a file too large are errors of */
    signal(SIGXFSZ, SIG_IGN); /* write(), reported where it is called */
    kvm_err err = {0};
    kvm_arena keep = {0};
    kvm_cli cli = {.keep = &keep};
    const kvm_command *cmd = NULL;
    kvm_status s = kvm_arena_reserve(&keep, KEEP_BYTES, &err);
    if (!s) s = find_command(&argc, &argv, &cmd, &err);
    if (!s) cli.name = argv[0];
    if (!s) s = parse(&cli, cmd, argc, argv, &err);
    if (!s && works(cmd)) s = check_address_space(LEAST_OF_JOBS_MIB, &err);
    if (!s) {
        read_environment(&cli);
        s = cmd->run(&cli, &err);
    }
    if (!s && (fflush(stdout) || ferror(stdout))) s = kvm_fail_errno(&err, "stdout");
    if (s) end_by_closed_pipe(&err);
    if (s)
        fprintf(stderr, "kvmill%s%s: %s\n", cli.name ? " " : "",
                cli.name ? cli.name : "", err.msg);
    kvm_arena_free(&keep);
    return kvm_cli_exit_code(s);
}
