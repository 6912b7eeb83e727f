/* cmd_doctor.c - `kvmill doctor`: what this program is, what it runs on, and what is
 * wrong. */
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/build.h"
#include "base/file.h"
#include "cli/open.h"
#include "reports/table.h"
#include "schema/s3.h"
#include "workers/machine.h"

typedef struct checkup {
    kvm_cli *cli;
    json_t *rows;
    ptrdiff_t bad;
} checkup;

static void add(checkup *d, const char *what, bool good, kvm_str found)
{
    d->bad += !good;
    json_array_append_new(d->rows, json_pack("{s:s, s:b, s:s%}", "check", what, "good",
                                             good, "found", found.at ? found.at : "",
                                             found.at ? (size_t)found.len : (size_t)0));
}

static void check_program(checkup *d)
{
    kvm_arena *keep = d->cli->keep;
    add(d, "program", true,
        kvm_str_fmt(keep, "kvmill %s, commit %s", KVM_PROGRAM_VERSION,
                    kvm_build_commit));
    add(d, "compiler", true,
        kvm_str_fmt(keep, "%s %s", kvm_build_compiler, kvm_build_flags));
    add(d, "machine", true, kvm_machine_class(keep, kvm_cli_backend(d->cli)));
}

static void check_compute(checkup *d)
{
    kvm_compute *c;
    kvm_err err = {0};
    if (kvm_cli_compute(d->cli, d->cli->keep, &c, &err))
        add(d, "compute", false, kvm_str_copy(d->cli->keep, kvm_str_of(err.msg)));
    else
        add(d, "compute", true, kvm_compute_describe(c, d->cli->keep));
    add(d, "device", true, KVM_STR("CPU only: this binary holds no GPU backend"));
}

static void check_memory(checkup *d)
{
    const double bytes =
        (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    add(d, "memory", true, kvm_str_fmt(d->cli->keep, "%.1f GiB", bytes / (1 << 30)));
}

static void check_store(checkup *d)
{
    kvm_arena *keep = d->cli->keep;
    const kvm_str home = kvm_cli_store(d->cli);
    struct statvfs v;
    if (!kvm_path_exists(home)) {
        add(d, "store", true,
            kvm_str_fmt(keep, "%.*s: not made yet", KVM_STR_ARG(home)));
        return;
    }
    if (!kvm_path_is_dir(home)) {
        add(d, "store", false,
            kvm_str_fmt(keep, "%.*s: is a file, not a directory", KVM_STR_ARG(home)));
        return;
    }
    const bool writable = access(home.at, W_OK) == 0 && statvfs(home.at, &v) == 0;
    const double free_gib =
        writable ? (double)v.f_bavail * (double)v.f_frsize / (1 << 30) : 0;
    add(d, "store", writable && free_gib > 0.1,
        kvm_str_fmt(keep, "%.*s: %s, %.1f GiB free", KVM_STR_ARG(home),
                    writable ? "writable" : "NOT writable", free_gib));
}

static void check_bucket(checkup *d)
{
    kvm_store *s;
    kvm_err err = {0};
    kvm_arena *keep = d->cli->keep;
    const kvm_str where = kvm_str_of(d->cli->value[KVM_OPT_STORE]);
    if (!kvm_s3_address(where)) return;
    kvm_status r = kvm_cli_open_store(d->cli, keep, &s, &err);
    if (!r) r = kvm_store_check(s, &err);
    add(d, "bucket", !r,
        r ? kvm_str_copy(keep, kvm_str_of(err.msg))
          : kvm_str_fmt(keep, "%.*s: can be read", KVM_STR_ARG(where)));
}

static void check_catalogue(checkup *d)
{
    kvm_catalogue *c;
    kvm_err err = {0};
    json_t *problems;
    kvm_arena *keep = d->cli->keep;
    kvm_str where, path, sql;
    kvm_status s = kvm_cli_where(d->cli, &where, &err);
    if (!s && kvm_catalogue_file(where, &path) && !kvm_path_exists(path)) {
        add(d, "catalogue", true, KVM_STR("not made yet"));
        return;
    }
    if (!s) s = kvm_cli_catalogue(d->cli, false, &c, &err);
    if (!s) s = kvm_catalogue_check(c, &problems, keep, &err);
    if (!s) s = kvm_catalogue_lacks_reader(c, &sql, keep, &err);
    if (s) {
        add(d, "catalogue", false, kvm_str_copy(keep, kvm_str_of(err.msg)));
        return;
    }
    size_t i;
    json_t *p;
    json_array_foreach(problems, i, p)
        add(d, "catalogue", false, kvm_str_of(json_string_value(p)));
    if (json_array_size(problems) == 0)
        add(d, "catalogue", true,
            kvm_str_fmt(keep, "sound, schema %d", kvm_catalogue_newest()));
    if (sql.len > 0)
        add(d, "reader", true,
            kvm_str_fmt(keep,
                        "for dashboards that only read, a superuser may run: %.*s",
                        KVM_STR_ARG(sql)));
}

static kvm_status show(checkup *d, kvm_err *err)
{
    if (kvm_cli_has(d->cli, KVM_OPT_JSON))
        return kvm_cli_print_json(d->cli, json_incref(d->rows), err);
    const kvm_term term = kvm_term_of(STDOUT_FILENO);
    kvm_text t = {0};
    size_t i;
    json_t *row;
    json_array_foreach(d->rows, i, row)
    {
        const bool good = json_is_true(json_object_get(row, "good"));
        kvm_paint(&t, good ? KVM_STR("ok   ") : KVM_STR("BAD  "),
                  good ? KVM_TONE_GOOD : KVM_TONE_BAD, term);
        const kvm_str found = kvm_cli_shown(
            d->cli->keep, kvm_str_of(json_string_value(json_object_get(row, "found"))));
        kvm_text_addf(&t, "%-10s %.*s\n",
                      json_string_value(json_object_get(row, "check")),
                      KVM_STR_ARG(found));
    }
    const kvm_status s = kvm_cli_print(kvm_text_str(&t), err);
    kvm_text_free(&t);
    return s;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    checkup d = {.cli = cli, .rows = json_array()};
    if (!kvm_json_own(cli->keep, d.rows)) return kvm_nomem(err, cli->keep);
    check_program(&d);
    check_compute(&d);
    check_memory(&d);
    check_store(&d);
    check_bucket(&d);
    check_catalogue(&d);
    TRY(show(&d, err));
    return d.bad ? kvm_fail(err, KVM_ENVIRONMENT, "%td check%s failed", d.bad,
                            d.bad == 1 ? "" : "s")
                 : KVM_OK;
}

const kvm_command kvm_command_doctor = {"doctor", NULL, run, 0};
