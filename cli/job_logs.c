/* job_logs.c - `kvmill jobs logs`: what the attempts of a job wrote. The files lie
 * below the store, wherever the worker is that writes them. Small jobs that ran
 * together share one, in which each begins with a line of its own. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/jobs.h"
#include "schema/job_state.h"

enum { PIECE = 65536 };
static const double LOOK_S = 0.3;

/* ---- one attempt's part of a log ---- */

/* what the first line of an attempt has; the last blank tells 1 from 10 */
#define BEGINS "event=job.begin job="
typedef char beginning[80];
static kvm_str beginning_of(beginning text, const json_t *attempt)
{
    const json_int_t job = json_integer_value(json_object_get(attempt, "job"));
    const json_int_t token = json_integer_value(json_object_get(attempt, "token"));
    snprintf(text, sizeof(beginning), BEGINS "%lld token=%lld ", job, token);
    return kvm_str_of(text);
}

/* where the line begins that has the word; -1: none has */
static ptrdiff_t find_line(kvm_str text, kvm_str word)
{
    ptrdiff_t at = kvm_str_find(text, word);
    while (at > 0 && text.at[at - 1] != '\n') at--;
    return at;
}

/* The attempt's part of whole lines. *inside: it had begun before them, or goes on
 * behind them. */
static kvm_str own_part(kvm_str text, kvm_str begins, bool *inside)
{
    const ptrdiff_t from = *inside ? 0 : find_line(text, begins);
    if (from < 0) return (kvm_str){0};
    ptrdiff_t first = from; /* behind its own beginning */
    if (!*inside)
        first += kvm_str_find(kvm_str_slice(text, from, text.len), begins) + 1;
    const kvm_str rest = kvm_str_slice(text, first, text.len);
    const ptrdiff_t next = find_line(rest, KVM_STR(BEGINS));
    *inside = next < 0;
    return kvm_str_slice(text, from, next < 0 ? text.len : first + next);
}

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
    TRY(kvm_file_read(text, cli->keep, path, (size_t)1 << 30, err));
    bool inside = false;
    beginning begins;
    *text = own_part(*text, beginning_of(begins, attempt), &inside);
    return KVM_OK;
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

/* The newest attempt; log {0}: there is none yet. */
typedef struct tail {
    kvm_str log;
    beginning begins;
    bool ended; /* it writes no more */
    int fd;     /* -1: not opened yet */
    off_t at;   /* what is before has been looked at */
    bool inside;
} tail;

static kvm_status newest(kvm_catalogue *c, int64_t job, tail *t, kvm_arena *keep,
                         kvm_err *err)
{
    json_t *rows;
    const kvm_view_filter f = {"job", {0}, job};
    TRY(kvm_catalogue_view(c, &rows, keep, "v_attempts", &f, 1, 0, err));
    const json_t *row = json_array_get(rows, json_array_size(rows) - 1);
    const char *path = json_string_value(json_object_get(row, "log"));
    *t = (tail){.ended = json_is_real(json_object_get(row, "ended_at")), .fd = -1};
    if (!path) return KVM_OK;
    beginning_of(t->begins, row);
    t->log = kvm_str_copy(keep, kvm_str_of(path));
    return t->log.at ? KVM_OK : kvm_nomem(err, keep);
}

/* how much of a piece is whole lines; all of it, when one line fills it, or no more
 * comes */
static ptrdiff_t whole_lines(const char *piece, ptrdiff_t n, bool last)
{
    ptrdiff_t end = n;
    while (end > 0 && piece[end - 1] != '\n') end--;
    return last || (end == 0 && n == PIECE) ? n : end;
}

/* what it has written since */
static kvm_status copy_on(tail *t, kvm_str path, kvm_err *err)
{
    char piece[PIECE];
    if (t->fd < 0) t->fd = open(path.at, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (t->fd < 0) return errno == ENOENT ? KVM_OK : kvm_fail_errno(err, "%s", path.at);
    for (;;) {
        const ssize_t n = pread(t->fd, piece, sizeof piece, t->at);
        if (n < 0) return kvm_fail_errno(err, "%s", path.at);
        const kvm_str lines = {piece, whole_lines(piece, n, t->ended)};
        if (lines.len == 0) return KVM_OK;
        t->at += lines.len;
        TRY(kvm_cli_print(own_part(lines, kvm_str_of(t->begins), &t->inside), err));
    }
}

/* A job that nobody has begun is waited for, as long as it can be begun. */
static kvm_status find_attempt(kvm_cli *cli, kvm_catalogue *c, int64_t job, tail *t,
                               kvm_err *err)
{
    TRY(newest(c, job, t, cli->keep, err));
    while (!t->log.at) {
        kvm_job_state now;
        TRY(kvm_job_state_of(c, job, &now, err));
        if (kvm_state_class_of(now) == KVM_CLASS_ENDED) return KVM_OK;
        kvm_sleep(LOOK_S);
        TRY(newest(c, job, t, cli->keep, err));
    }
    return KVM_OK;
}

/* Ends with the attempt: whether it has ended is asked before the last look. */
static kvm_status follow(kvm_cli *cli, kvm_catalogue *c, int64_t job, kvm_err *err)
{
    tail t, later;
    kvm_arena each = {0};
    TRY(find_attempt(cli, c, job, &t, err));
    if (!t.log.at) return KVM_OK;
    const kvm_str path = kvm_path_join(cli->keep, kvm_cli_store(cli), t.log);
    if (!path.at) return kvm_nomem(err, cli->keep);
    TRY(kvm_arena_reserve(&each, 64 << 20, err));
    kvm_status s = KVM_OK;
    for (t.ended = false; !s && !t.ended;) {
        kvm_arena_reset(&each);
        s = newest(c, job, &later, &each, err);
        if (s) break;
        t.ended = later.ended || strcmp(later.begins, t.begins) != 0; /* a newer one */
        s = copy_on(&t, path, err);
        if (!t.ended) kvm_sleep(LOOK_S);
    }
    if (t.fd >= 0) close(t.fd);
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
