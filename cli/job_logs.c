/* job_logs.c - `kvmill jobs logs`: what the attempts of a job wrote. The files lie
 * below the store, wherever the worker is that writes them. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/jobs.h"
#include "schema/job_state.h"

enum { PIECE = 65536 };
static const double LOOK_S = 0.3;

/* what an attempt wrote; *text is {0} when nothing is there */
static kvm_status read_log(kvm_cli *cli, const json_t *attempt, kvm_str *text,
                           kvm_err *err)
{
    const char *log = json_string_value(json_object_get(attempt, "log"));
    *text = (kvm_str){0};
    if (!log) return KVM_OK;
    const kvm_str path = kvm_path_join(cli->keep, kvm_cli_store(cli), kvm_str_of(log));
    if (!path.at) return kvm_nomem(err, cli->keep);
    if (!kvm_path_exists(path)) return KVM_OK;
    return kvm_file_read(text, cli->keep, path, (size_t)1 << 30, err);
}

static kvm_status print_all(kvm_cli *cli, kvm_catalogue *c, int64_t job, kvm_err *err)
{
    json_t *rows, *row, *out = json_array();
    size_t i;
    const kvm_view_filter f = {"job", {0}, job};
    if (!kvm_json_own(cli->keep, out)) return kvm_nomem(err, cli->keep);
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_attempts", &f, 1, 0, err));
    json_array_foreach(rows, i, row)
    {
        const json_int_t attempt = json_integer_value(json_object_get(row, "attempt"));
        kvm_str text;
        TRY(read_log(cli, row, &text, err));
        if (kvm_cli_has(cli, KVM_OPT_JSON)) {
            json_array_append_new(
                out, json_pack("{s:I, s:O, s:o}", "attempt", attempt, "log",
                               json_object_get(row, "log"), "text",
                               text.at ? kvm_cli_json_text(text) : json_null()));
            continue;
        }
        printf("== attempt %lld\n", attempt);
        if (text.at) TRY(kvm_cli_print(text, err));
    }
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(out), err)
               : KVM_OK;
}

/* ---- --follow ---- */

/* the newest attempt; *log {0}: none yet. ended: it writes no more */
static kvm_status newest(kvm_catalogue *c, int64_t job, kvm_str *log, bool *ended,
                         kvm_arena *keep, kvm_err *err)
{
    json_t *rows;
    const kvm_view_filter f = {"job", {0}, job};
    TRY(kvm_catalogue_view(c, &rows, keep, "v_attempts", &f, 1, 0, err));
    const json_t *row = json_array_get(rows, json_array_size(rows) - 1);
    const char *path = json_string_value(json_object_get(row, "log"));
    *ended = json_is_real(json_object_get(row, "ended_at"));
    *log = path ? kvm_str_copy(keep, kvm_str_of(path)) : (kvm_str){0};
    return path && !log->at ? kvm_nomem(err, keep) : KVM_OK;
}

/* what has been written since; fd -1: not opened yet */
static kvm_status copy_on(int *fd, kvm_str path, kvm_err *err)
{
    char piece[PIECE];
    if (*fd < 0) *fd = open(path.at, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0) return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "%s", path.at);
    for (;;) {
        const ssize_t n = read(*fd, piece, sizeof piece);
        if (n < 0) return kvm_fail_errno(err, "%s", path.at);
        if (n == 0) return KVM_OK;
        TRY(kvm_cli_print((kvm_str){piece, n}, err));
    }
}

/* A job that nobody has begun is waited for, as long as it can be begun. */
static kvm_status find_attempt(kvm_cli *cli, kvm_catalogue *c, int64_t job,
                               kvm_str *log, kvm_err *err)
{
    bool ended;
    TRY(newest(c, job, log, &ended, cli->keep, err));
    while (!log->at) {
        kvm_job_state now;
        TRY(kvm_job_state_of(c, job, &now, err));
        if (kvm_state_class_of(now) == KVM_CLASS_ENDED) return KVM_OK;
        kvm_sleep(LOOK_S);
        TRY(newest(c, job, log, &ended, cli->keep, err));
    }
    return KVM_OK;
}

/* Ends with the attempt: whether it has ended is asked before the last look. */
static kvm_status follow(kvm_cli *cli, kvm_catalogue *c, int64_t job, kvm_err *err)
{
    kvm_str log, later;
    int fd = -1;
    bool ended = false;
    kvm_arena each = {0};
    TRY(find_attempt(cli, c, job, &log, err));
    if (!log.at) return KVM_OK;
    const kvm_str path = kvm_path_join(cli->keep, kvm_cli_store(cli), log);
    if (!path.at) return kvm_nomem(err, cli->keep);
    TRY(kvm_arena_reserve(&each, 64 << 20, err));
    kvm_status s = KVM_OK;
    while (!s && !ended) {
        kvm_arena_reset(&each);
        s = newest(c, job, &later, &ended, &each, err);
        ended = ended || (!s && !kvm_str_eq(later, log)); /* another one has begun */
        if (!s) s = copy_on(&fd, path, err);
        if (!s && !ended) kvm_sleep(LOOK_S);
    }
    if (fd >= 0) close(fd);
    kvm_arena_free(&each);
    return s;
}

kvm_status kvm_cli_job_logs(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    int64_t job;
    TRY(kvm_cli_find_job(cli, &c, &job, err));
    return kvm_cli_has(cli, KVM_OPT_FOLLOW) ? follow(cli, c, job, err)
                                            : print_all(cli, c, job, err);
}
