#include "cli/open.h"

#include <unistd.h>

#include "base/file.h"

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

kvm_status kvm_cli_catalogue(kvm_cli *cli, bool make, kvm_catalogue **c, kvm_err *err)
{
    const kvm_str home = kvm_cli_store(cli);
    const kvm_str path = kvm_path_join(cli->keep, home, KVM_STR("catalogue.db"));
    if (!path.at) return kvm_nomem(err, cli->keep);
    if (make)
        TRY(make_store(home, err));
    else if (!kvm_path_exists(path))
        return kvm_fail(
            err, KVM_ENVIRONMENT,
            "there is no catalogue in %.*s: run `kvmill run PAIR.yaml` or `kvmill "
            "migrate` first, or name another folder with --store",
            KVM_STR_ARG(home));
    return kvm_catalogue_open(c, cli->keep, path, NULL, err);
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
