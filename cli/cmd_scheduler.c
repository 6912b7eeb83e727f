/* cmd_scheduler.c - `kvmill scheduler`: hands out work through a queue, and does what
 * has to be done now and then. */
#include "cli/open.h"
#include "scheduler/scheduler.h"
#include "workers/machine.h"

static kvm_status read_options(kvm_cli *cli, kvm_scheduler_options *o, kvm_err *err)
{
    int64_t seconds, days;
    TRY(kvm_cli_where(cli, &o->catalogue, err));
    TRY(kvm_cli_queue(cli, &o->queue, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_RECONCILE, 30, 1, &seconds, err));
    if (seconds > 30)
        return kvm_fail(err, KVM_USAGE,
                        "%s: a hint that went astray would be missed for too long; at "
                        "most 30 seconds",
                        cli->from[KVM_OPT_RECONCILE]);
    TRY(kvm_cli_i64(cli, KVM_OPT_CAPTURES, 0, 1, &days, err));
    o->captures_s = (double)days * 86400;
    TRY(kvm_cli_allow(cli, &o->allow, err));
    o->home = kvm_cli_store(cli);
    o->reconcile_s = (double)seconds;
    o->name = kvm_worker_name(cli->keep);
    o->host = kvm_machine_host(cli->keep);
    return o->name.at && o->host.at ? KVM_OK : kvm_nomem(err, cli->keep);
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_scheduler_options o = {.dead = kvm_worker_dead, .signals = true};
    kvm_scheduler_stats stats = {0};
    TRY(read_options(cli, &o, err));
    TRY(kvm_cli_catalogue(cli, true, &c, err));
    kvm_catalogue_close(c);
    TRY(kvm_scheduler_run(&o, &stats, err));
    if (!kvm_cli_has(cli, KVM_OPT_JSON)) return KVM_OK;
    return kvm_cli_print_json(
        cli,
        json_pack("{s:I, s:I, s:I, s:I}", "sent", (json_int_t)stats.sent, "again",
                  (json_int_t)stats.again, "taken_back", (json_int_t)stats.taken_back,
                  "expired", (json_int_t)stats.expired),
        err);
}

static const kvm_option options[] = {
    {KVM_OPT_QUEUE, "queue", "URL",
     "redis://[USER@]HOST[:PORT][/DB] or redis+unix:///PATH[?db=N]; the password from "
     "KVMILL_REDIS_PASSWORD; without one workers look by themselves (KVMILL_QUEUE)"},
    {KVM_OPT_RECONCILE, "reconcile", "SECONDS",
     "look for hints that went astray so often (30, which is the most)"},
    {KVM_OPT_CAPTURES, "captures-older-than", "DAYS",
     "let captures expire that were made so long ago (KVMILL_CAPTURES_DAYS)"},
    {KVM_OPT_ALLOW, "allow", "DIR",
     "schedules may name files below it too, besides those of the store; may be given "
     "again (KVMILL_ALLOW)"},
    {0},
};
const kvm_command kvm_command_scheduler = {"scheduler", options, run, 0};
