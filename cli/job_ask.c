/* job_ask.c - `kvmill jobs cancel`, `retry`, `pause`, `resume` and `priority`. */
#include "cli/jobs.h"
#include "cli/team.h"

static kvm_status print_state(kvm_cli *cli, int64_t id, kvm_job_state now, kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli,
                                  json_pack("{s:I, s:s}", "job", (json_int_t)id,
                                            "state", kvm_state_name(now)),
                                  err);
    printf("job %lld is %s\n", (long long)id, kvm_state_name(now));
    return KVM_OK;
}

kvm_status kvm_cli_job_cancel(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    int64_t id;
    kvm_job_state now;
    TRY(kvm_cli_find_job(cli, &c, &id, err));
    TRY(kvm_cli_admit_which(cli, c, (kvm_which){.job = id}, err));
    TRY(kvm_job_cancel(c, id, &now, err));
    if (now != KVM_STATE_CANCELLED && now != KVM_STATE_CANCELLING)
        return kvm_fail(err, KVM_USAGE, "job %lld is %s: there is nothing to cancel",
                        (long long)id, kvm_state_name(now));
    return print_state(cli, id, now, err);
}

kvm_status kvm_cli_job_retry(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    int64_t id;
    kvm_job_state now;
    TRY(kvm_cli_find_job(cli, &c, &id, err));
    TRY(kvm_cli_admit_which(cli, c, (kvm_which){.job = id}, err));
    TRY(kvm_job_retry(c, id, err));
    TRY(kvm_job_state_of(c, id, &now, err));
    return print_state(cli, id, now, err);
}

/* ---- of several jobs, or of a run's ---- */

/* what is asked of each, in words and done */
typedef struct question {
    const char *done; /* "paused" */
    kvm_status (*ask)(kvm_catalogue *c, kvm_which which, int64_t value, kvm_err *err);
    int64_t value;
} question;

static kvm_status ask_one(kvm_cli *cli, kvm_catalogue *c, kvm_which which,
                          const question *q, json_t *out, kvm_err *err)
{
    const char *what = which.run ? "run" : "job";
    const json_int_t id = which.run ? which.run : which.job;
    TRY(kvm_cli_admit_which(cli, c, which, err));
    TRY(q->ask(c, which, q->value, err));
    json_array_append_new(out, json_pack("{s:I, s:s, s:I}", what, id, "asked", q->done,
                                         "value", (json_int_t)q->value));
    if (!kvm_cli_has(cli, KVM_OPT_JSON)) printf("%s %lld: %s\n", what, id, q->done);
    return KVM_OK;
}

/* the jobs of args[from] and on, or --run */
static kvm_status ask_all(kvm_cli *cli, ptrdiff_t from, const question *q, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_which which = {0};
    json_t *out = kvm_json_own(cli->keep, json_array());
    if (!out) return kvm_nomem(err, cli->keep);
    TRY(kvm_cli_i64(cli, KVM_OPT_RUN, 0, 1, &which.run, err));
    if (which.run && cli->arg_count > from)
        return kvm_fail(err, KVM_USAGE, "jobs or --run, not both");
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    if (which.run) TRY(ask_one(cli, c, which, q, out, err));
    for (ptrdiff_t i = from; !which.run && (i == from || i < cli->arg_count); i++) {
        kvm_which one = {0};
        TRY(kvm_cli_job_id(cli, i, &one.job, err));
        TRY(ask_one(cli, c, one, q, out, err));
    }
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(out), err)
               : KVM_OK;
}

static kvm_status ask_pause(kvm_catalogue *c, kvm_which which, int64_t paused,
                            kvm_err *err)
{
    return kvm_jobs_pause(c, which, paused != 0, err);
}
static kvm_status ask_priority(kvm_catalogue *c, kvm_which which, int64_t priority,
                               kvm_err *err)
{
    return kvm_jobs_priority(c, which, (int)priority, err);
}

kvm_status kvm_cli_job_pause(kvm_cli *cli, kvm_err *err)
{
    return ask_all(cli, 1, &(question){"paused", ask_pause, 1}, err);
}
kvm_status kvm_cli_job_resume(kvm_cli *cli, kvm_err *err)
{
    return ask_all(cli, 1, &(question){"resumed", ask_pause, 0}, err);
}

kvm_status kvm_cli_job_priority(kvm_cli *cli, kvm_err *err)
{
    kvm_str text;
    question q = {"priority set", ask_priority, 0};
    TRY(kvm_cli_arg(cli, 1, "the priority", &text, err));
    if (!kvm_str_to_i64(text, &q.value) || q.value < -1000000 || q.value > 1000000)
        return kvm_fail(err, KVM_USAGE,
                        "\"%s\" is no priority: a whole number, higher goes first",
                        kvm_quote(text).at);
    return ask_all(cli, 2, &q, err);
}
