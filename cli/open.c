#include "cli/open.h"

#include <unistd.h>

#include "base/file.h"
#include "workers/launch.h"
#include "workers/worker.h"

/* A store that cannot be made is the environment's fault, and another place the way
 * out. */
static kvm_status make_store(kvm_str home, kvm_err *err)
{
    kvm_err why = {0};
    const kvm_status s = kvm_dir_make(home, &why);
    if (!s) return KVM_OK;
    return kvm_fail(err, s == KVM_NOSPACE ? s : KVM_ENVIRONMENT,
                    "store %s; name another folder with --store or KVMILL_STORE",
                    why.msg);
}

kvm_status kvm_cli_address(const kvm_cli *cli, kvm_opt_id id, kvm_str *where,
                           kvm_err *err)
{
    kvm_str who, path, user, host, name, password;
    *where = kvm_str_of(cli->value[id]);
    const ptrdiff_t at = kvm_str_find(*where, KVM_STR("://"));
    if (at < 0 || !kvm_str_starts(kvm_str_of(cli->from[id]), KVM_STR("--")))
        return KVM_OK;
    kvm_str_cut(kvm_str_slice(*where, at + 3, where->len), '/', &who, &path);
    const bool asks = kvm_str_find(*where, KVM_STR("password=")) >= 0;
    if (!asks && (!kvm_str_cut(who, '@', &user, &host) ||
                  !kvm_str_cut(user, ':', &name, &password)))
        return KVM_OK;
    return kvm_fail(err, KVM_USAGE,
                    "%s: a password on the command line can be read by everybody on "
                    "this machine; put it into %s",
                    cli->from[id],
                    id == KVM_OPT_QUEUE ? "KVMILL_REDIS_PASSWORD or KVMILL_QUEUE"
                                        : "PGPASSWORD, ~/.pgpass or KVMILL_CATALOGUE");
}

kvm_status kvm_cli_queue(const kvm_cli *cli, kvm_str *where, kvm_err *err)
{
    *where = (kvm_str){0};
    if (!kvm_cli_has(cli, KVM_OPT_QUEUE)) return KVM_OK;
    return kvm_cli_address(cli, KVM_OPT_QUEUE, where, err);
}

kvm_status kvm_cli_where(kvm_cli *cli, kvm_str *where, kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_CATALOGUE))
        return kvm_cli_address(cli, KVM_OPT_CATALOGUE, where, err);
    *where = kvm_path_join(cli->keep, kvm_cli_store(cli), KVM_STR("catalogue.db"));
    return where->at ? KVM_OK : kvm_nomem(err, cli->keep);
}

kvm_status kvm_cli_catalogue(kvm_cli *cli, bool make, kvm_catalogue **c, kvm_err *err)
{
    kvm_str where, path;
    TRY(kvm_cli_where(cli, &where, err));
    if (make)
        TRY(make_store(kvm_cli_store(cli), err));
    else if (kvm_catalogue_file(where, &path) && !kvm_path_exists(path))
        return kvm_fail(
            err, KVM_ENVIRONMENT,
            "there is no catalogue %.*s: run `kvmill run PAIR.yaml` or `kvmill "
            "migrate` first, or name another with --store or --catalogue",
            KVM_STR_ARG(path));
    return kvm_catalogue_open(c, cli->keep, where, NULL, err);
}

kvm_status kvm_cli_store_options(const kvm_cli *cli, kvm_store_options *o, kvm_err *err)
{
    enum { MOST_MIB = 1 << 30 };
    int64_t mib;
    TRY(kvm_cli_i64(cli, KVM_OPT_CACHE, 0, 1, &mib, err));
    if (mib > MOST_MIB)
        return kvm_fail(err, KVM_USAGE, "%s: %lld MiB; at most %d",
                        cli->from[KVM_OPT_CACHE], (long long)mib, MOST_MIB);
    *o = (kvm_store_options){.where = kvm_str_of(cli->value[KVM_OPT_STORE]),
                             .cache_bytes = mib << 20};
    return KVM_OK;
}

kvm_status kvm_cli_open_store(kvm_cli *cli, kvm_arena *keep, kvm_store **s,
                              kvm_err *err)
{
    kvm_store_options o;
    TRY(kvm_cli_store_options(cli, &o, err));
    return kvm_store_open(s, keep, kvm_cli_store(cli), &o, err);
}

kvm_status kvm_cli_allow(kvm_cli *cli, kvm_str *allow, kvm_err *err)
{
    kvm_str where, path, folder;
    TRY(kvm_cli_where(cli, &where, err));
    const char *given = cli->value[KVM_OPT_ALLOW];
    const bool own = !given && kvm_catalogue_file(where, &path);
    *allow = own ? (kvm_str){0} : kvm_str_of(given);
    for (kvm_str rest = *allow; rest.len > 0;) {
        kvm_str_cut(rest, ':', &folder, &rest);
        const kvm_str name = kvm_str_copy(cli->keep, folder);
        if (!name.at) return kvm_nomem(err, cli->keep);
        if (name.len && !kvm_path_is_dir(name))
            return kvm_fail(err, KVM_USAGE, "%s: %s is no folder",
                            cli->from[KVM_OPT_ALLOW], name.at);
    }
    return KVM_OK;
}

const char *kvm_cli_backend(const kvm_cli *cli)
{
    return cli->value[KVM_OPT_BACKEND] ? cli->value[KVM_OPT_BACKEND] : "cpu";
}

kvm_status kvm_cli_threads(const kvm_cli *cli, int *threads, kvm_err *err)
{
    int64_t n;
    TRY(kvm_cli_i64(cli, KVM_OPT_THREADS, 0, 0, &n, err));
    if (n > 4096)
        return kvm_fail(err, KVM_USAGE, "%s: %lld threads are too many; at most 4096",
                        cli->from[KVM_OPT_THREADS], (long long)n);
    *threads = (int)n;
    return KVM_OK;
}

kvm_status kvm_cli_offload(const kvm_cli *cli, size_t *bytes, kvm_err *err)
{
    int64_t mib;
    TRY(kvm_cli_i64(cli, KVM_OPT_OFFLOAD, 0, 1, &mib, err));
    if (mib > 1 << 24)
        return kvm_fail(err, KVM_USAGE, "%s: %lld MiB; at most %d",
                        cli->from[KVM_OPT_OFFLOAD], (long long)mib, 1 << 24);
    *bytes = (size_t)mib << 20;
    return KVM_OK;
}

kvm_status kvm_cli_ranks(const kvm_cli *cli, int *ranks, kvm_err *err)
{
    int64_t n;
    TRY(kvm_cli_i64(cli, KVM_OPT_RANKS, 1, 1, &n, err));
    if (n > KVM_CREW_MOST)
        return kvm_fail(err, KVM_USAGE, "%s: %lld ranks; at most %d",
                        cli->from[KVM_OPT_RANKS], (long long)n, KVM_CREW_MOST);
    *ranks = (int)n;
    return KVM_OK;
}

/* words between blanks; a word with a blank in it cannot be had */
static kvm_status split_words(kvm_cli *cli, const char *text, const char *const **out,
                              kvm_err *err)
{
    enum { MOST = 64 };
    kvm_str rest = kvm_str_of(text);
    const char **words = kvm_new(cli->keep, const char *, MOST + 1);
    if (!words) return kvm_nomem(err, cli->keep);
    for (int n = 0; (rest = kvm_str_trim(rest)).len > 0;) {
        kvm_str word, behind;
        kvm_str_cut(rest, ' ', &word, &behind);
        if (n == MOST)
            return kvm_fail(err, KVM_USAGE, "%s: more than %d words",
                            cli->from[KVM_OPT_LAUNCH_ARGS], MOST);
        words[n++] = kvm_str_copy(cli->keep, word).at;
        if (!words[n - 1]) return kvm_nomem(err, cli->keep);
        rest = behind;
    }
    *out = words;
    return KVM_OK;
}

kvm_status kvm_cli_gangs(kvm_cli *cli, kvm_worker_options *o, kvm_err *err)
{
    const char *name = cli->value[KVM_OPT_LAUNCHER];
    const char *words = cli->value[KVM_OPT_LAUNCH_ARGS];
    TRY(kvm_cli_ranks(cli, &o->want.ranks, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_MEMORY, 0, 1, &o->want.memory_mib, err));
    if (o->want.memory_mib > 1 << 24)
        return kvm_fail(err, KVM_USAGE, "%s: %lld MiB; at most %d",
                        cli->from[KVM_OPT_MEMORY], (long long)o->want.memory_mib,
                        1 << 24);
    o->launcher = name ? kvm_launcher_find(kvm_str_of(name)) : &kvm_launch_fork;
    if (!o->launcher)
        return kvm_fail(err, KVM_USAGE, "%s: there is no launcher \"%s\"; there are %s",
                        cli->from[KVM_OPT_LAUNCHER], kvm_quote(kvm_str_of(name)).at,
                        kvm_launcher_names());
    return split_words(cli, words ? words : "", &o->launch_args, err);
}

kvm_status kvm_cli_compute(kvm_cli *cli, kvm_arena *keep, kvm_compute **c, kvm_err *err)
{
    int threads;
    TRY(kvm_cli_threads(cli, &threads, err));
    const kvm_backend *b;
    const kvm_status s = kvm_backend_choose(&b, kvm_str_of(kvm_cli_backend(cli)), err);
    if (s) return kvm_err_prefix(err, s, "%s", cli->from[KVM_OPT_BACKEND]);
    return kvm_compute_new(c, keep, b, threads, err);
}

kvm_status kvm_cli_print(kvm_str text, kvm_err *err)
{
    if (fwrite(text.at, 1, (size_t)text.len, stdout) != (size_t)text.len ||
        fflush(stdout))
        return kvm_fail_errno(err, "stdout");
    return KVM_OK;
}

kvm_status kvm_cli_print_table(kvm_cli *cli, const char *title, const kvm_table *t,
                               kvm_err *err)
{
    kvm_text out = {0};
    if (title) kvm_text_addf(&out, "\n%s\n", title);
    kvm_status s =
        kvm_table_print(&out, t, kvm_term_of(STDOUT_FILENO), *cli->keep, err);
    if (!s) s = kvm_cli_print(kvm_text_str(&out), err);
    kvm_text_free(&out);
    return s;
}

/* also those of two bytes in UTF-8, U+0080 to U+009F */
kvm_str kvm_cli_shown(kvm_arena *keep, kvm_str path)
{
    char *at = kvm_new(keep, char, path.len + 1);
    if (!at) return (kvm_str){0};
    for (ptrdiff_t i = 0; i < path.len; i++) {
        const unsigned char c = (unsigned char)path.at[i];
        const bool high = c == 0xC2 && i + 1 < path.len &&
                          ((unsigned char)path.at[i + 1] & 0xE0) == 0x80;
        at[i] = path.at[i];
        if (c < 0x20 || c == 0x7F || high) at[i] = '?';
        if (high) at[++i] = '?';
    }
    return (kvm_str){at, path.len};
}

json_t *kvm_cli_json_text(kvm_str text)
{
    json_t *v = json_stringn(text.at, (size_t)text.len);
    return v ? v : json_null();
}
