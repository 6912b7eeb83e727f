/* cmd_run.c - `kvmill run` and `worker`: a spec becomes runs (submit.h), runs become
 * results. */
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "cli/open.h"
#include "cli/publish.h"
#include "cli/submit.h"
#include "cli/team.h"
#include "reports/page.h"
#include "reports/table.h"
#include "schema/job_state.h"
#include "workers/worker.h"

/* ---- the worker's voice ---- */

typedef struct voice {
    bool quiet;
    ptrdiff_t done, jobs; /* jobs 0: not known */
    kvm_progress *progress;
    kvm_term term;
    ptrdiff_t failed;
} voice;

static void say_stopping(voice *v, const kvm_worker_note *n)
{
    kvm_progress_end(v->progress);
    fprintf(
        stderr,
        "stopping: %.*s has a moment to end, else it goes on another time; once more "
        "ends it at once\n",
        KVM_STR_ARG(n->label));
}

static void say(void *ctx, const kvm_worker_note *n)
{
    static const struct {
        const char *word;
        kvm_tone tone;
    } words[] = {
        [KVM_WORKER_START] = {"start", KVM_TONE_MUTED},
        [KVM_WORKER_SUCCEED] = {"done  ", KVM_TONE_GOOD},
        [KVM_WORKER_SKIP] = {"reused", KVM_TONE_MUTED},
        [KVM_WORKER_RETRY] = {"retry ", KVM_TONE_WARN},
        [KVM_WORKER_FAIL] = {"FAILED", KVM_TONE_BAD},
        [KVM_WORKER_CANCEL] = {"cancelled", KVM_TONE_MUTED},
        [KVM_WORKER_LOST] = {"lost  ", KVM_TONE_WARN},
        [KVM_WORKER_RELEASE] = {"given back", KVM_TONE_WARN},
    };
    voice *v = ctx;
    if (n->what == KVM_WORKER_FAIL) v->failed++;
    if (v->quiet && n->what != KVM_WORKER_FAIL) return;
    if (n->what == KVM_WORKER_START) return; /* the progress line says so */
    if (n->what == KVM_WORKER_DRAIN) {
        say_stopping(v, n);
        return;
    }
    kvm_text t = {0};
    kvm_paint(&t, kvm_str_of(words[n->what].word), words[n->what].tone, v->term);
    if (n->what == KVM_WORKER_SUCCEED || n->what == KVM_WORKER_SKIP) v->done++;
    if (v->jobs) fprintf(stderr, "%3td/%td ", v->done, v->jobs);
    fprintf(stderr, "%.*s  %-36.*s %8.1f s", KVM_STR_ARG(kvm_text_str(&t)),
            KVM_STR_ARG(n->label), n->seconds);
    if (n->message[0]) fprintf(stderr, "  %s", n->message);
    if (n->what == KVM_WORKER_FAIL && n->log.len)
        fprintf(stderr, "\n          log: %.*s", KVM_STR_ARG(n->log));
    fputc('\n', stderr);
    kvm_text_free(&t);
}

/* done of jobs: those of the run that had ended before; jobs 0: not known */
static kvm_status work(kvm_cli *cli, int64_t run, ptrdiff_t done, ptrdiff_t jobs,
                       bool stay, kvm_worker_stats *stats, kvm_err *err)
{
    kvm_progress progress;
    kvm_progress_terminal(&progress, "");
    voice v = {.quiet = kvm_cli_has(cli, KVM_OPT_QUIET),
               .term = kvm_term_of(STDERR_FILENO),
               .progress = &progress,
               .done = done,
               .jobs = jobs};
    kvm_worker_options o = {.home = kvm_cli_store(cli),
                            .kind_of = kvm_job_kind_of,
                            .backend = kvm_cli_backend(cli),
                            .run = run,
                            .until_idle = run == 0 && !stay,
                            .signals = true,
                            .progress = v.quiet ? NULL : &progress,
                            .note = say,
                            .note_ctx = &v};
    TRY(kvm_cli_where(cli, &o.catalogue, err));
    if (run == 0) TRY(kvm_cli_queue(cli, &o.queue, err));
    if (run == 0) TRY(kvm_cli_allow(cli, &o.allow, err));
    TRY(kvm_cli_store_options(cli, &o.store, err));
    TRY(kvm_cli_threads(cli, &o.threads, err));
    TRY(kvm_cli_offload(cli, &o.offload, err));
    TRY(kvm_cli_gangs(cli, &o, err));
    return kvm_worker_run(&o, stats, err);
}

/* ---- results ---- */

/* the spec of a run, by its hash; "": no such run */
static kvm_status spec_of(kvm_cli *cli, kvm_catalogue *c, int64_t run, const char **sha,
                          kvm_err *err)
{
    json_t *rows;
    const kvm_view_filter f = {"run", {0}, run};
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_runs", &f, 1, 0, err));
    *sha = json_string_value(json_object_get(json_array_get(rows, 0), "spec_sha"));
    if (!*sha) *sha = "";
    return KVM_OK;
}

/* the newest run whose report the published page is; 0: there is none, or nobody's */
static kvm_status published(kvm_cli *cli, kvm_catalogue *c, kvm_str pair, int64_t *run,
                            kvm_err *err)
{
    char sha[65];
    json_t *rows;
    const kvm_view_filter f[] = {{"pair", pair, 0}, {"output", KVM_STR("html"), 0}};
    const kvm_str home = kvm_cli_store(cli);
    const kvm_str page = kvm_str_fmt(cli->keep, "%.*s/reports/%.*s.html",
                                     KVM_STR_ARG(home), KVM_STR_ARG(pair));
    *run = 0;
    if (!page.at) return kvm_nomem(err, cli->keep);
    if (!kvm_path_exists(page)) return KVM_OK;
    TRY(kvm_sha_file(page, sha, *cli->keep, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_artefacts", f, 2, 0, err));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(json_string_value(json_object_get(row, "sha")), sha) == 0)
            *run = json_integer_value(json_object_get(row, "run"));
    }
    return KVM_OK;
}

/* Reports are files of the pair's name: one of another spec is replaced, and can be had
 * again. */
static kvm_status warn_of_others(kvm_cli *cli, kvm_catalogue *c,
                                 const kvm_cli_planned *p, kvm_err *err)
{
    int64_t run;
    const char *mine, *other;
    TRY(published(cli, c, p->pair, &run, err));
    if (run == 0) return KVM_OK;
    TRY(spec_of(cli, c, p->submitted.run, &mine, err));
    TRY(spec_of(cli, c, run, &other, err));
    if (strcmp(mine, other) == 0) return KVM_OK;
    fprintf(
        stderr,
        "%.*s: this report replaces that of run %lld, which another spec made under "
        "the same name; `kvmill report %.*s --run %lld` writes that one again\n",
        KVM_STR_ARG(p->pair), (long long)run, KVM_STR_ARG(p->pair), (long long)run);
    return KVM_OK;
}

/* "attention_cosine of a-b, held_out_r2 of a-b" */
static void name_gates(kvm_text *names, const json_t *doc, kvm_str pair,
                       const char *verdict)
{
    size_t i;
    json_t *gate;
    json_array_foreach(json_object_get(doc, "gates"), i, gate)
    {
        const char *found = json_string_value(json_object_get(gate, "verdict"));
        if (!json_is_true(json_object_get(gate, "required")) ||
            strcmp(found, verdict) != 0)
            continue;
        kvm_text_addf(names, "%s%s of %.*s", names->len ? ", " : "",
                      json_string_value(json_object_get(gate, "name")),
                      KVM_STR_ARG(pair));
    }
}

/* A gate that nothing measured has not failed: that is said, and is no exit status. */
static void say_unmeasured(const json_t *doc, kvm_str pair)
{
    kvm_text names = {0};
    name_gates(&names, doc, pair, "unmeasured");
    if (names.len)
        fprintf(stderr,
                "not measured: %.*s; without it the report cannot say that the "
                "translated cache serves\n",
                KVM_STR_ARG(kvm_text_str(&names)));
    kvm_text_free(&names);
}

static kvm_status show_result(kvm_cli *cli, kvm_catalogue *c, kvm_store *store,
                              const kvm_cli_planned *p, json_t *out, kvm_text *failed,
                              kvm_err *err)
{
    kvm_arena *keep = cli->keep;
    kvm_str html, json, headline, sentence;
    kvm_jat doc;
    TRY(warn_of_others(cli, c, p, err));
    TRY(kvm_cli_publish_report(cli, c, store, p->pair, p->submitted.run, &html, &json,
                               err));
    TRY(kvm_json_read(&doc, keep, json, err));
    TRY(kvm_report_verdict(&headline, &sentence, keep, doc, err));
    name_gates(failed, doc.v, p->pair, "fail");
    say_unmeasured(doc.v, p->pair);
    json_array_append_new(out, json_pack("{s:s%, s:I, s:s%, s:s%, s:s%}", "pair",
                                         p->pair.at, (size_t)p->pair.len, "run",
                                         (json_int_t)p->submitted.run, "headline",
                                         headline.at, (size_t)headline.len, "sentence",
                                         sentence.at, (size_t)sentence.len, "report",
                                         html.at, (size_t)html.len));
    if (kvm_cli_has(cli, KVM_OPT_JSON)) return KVM_OK;
    kvm_text t = {0};
    kvm_paint(&t, p->pair, KVM_TONE_STRONG, kvm_term_of(STDOUT_FILENO));
    html = kvm_cli_shown(keep, html);
    printf("\n%.*s: %.*s\n  %.*s\n  report: %.*s\n", KVM_STR_ARG(kvm_text_str(&t)),
           KVM_STR_ARG(headline), KVM_STR_ARG(sentence), KVM_STR_ARG(html));
    kvm_text_free(&t);
    return fflush(stdout) ? kvm_fail_errno(err, "stdout") : KVM_OK;
}

/* Failed jobs are a failure of the work, unless the environment failed them. */
static kvm_status status_of_failed(kvm_status why)
{
    return kvm_cli_exit_code(why) == KVM_EXIT_ENVIRONMENT ? why : KVM_INTERNAL;
}

static kvm_status look_at(kvm_cli *cli, int64_t run, kvm_run_info *info, kvm_err *err)
{
    kvm_catalogue *c;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    const kvm_status s = kvm_run_look(c, run, info, cli->keep, err);
    kvm_catalogue_close(c); /* not to be inherited by a worker's children */
    return s;
}

/* Why a run at rest has no report, whichever worker had its jobs. */
static kvm_status judge(kvm_cli *cli, const kvm_cli_planned *p, kvm_err *err)
{
    kvm_run_info info;
    TRY(look_at(cli, p->submitted.run, &info, err));
    const long long failed = info.jobs[KVM_STATE_FAILED] + info.jobs[KVM_STATE_PARKED];
    const long long cancelled = info.jobs[KVM_STATE_CANCELLED];
    if (failed && info.trouble_status == KVM_NOSPACE) {
        const kvm_str home = kvm_cli_store(cli);
        return kvm_fail(err, KVM_NOSPACE,
                        "no space left in %.*s: free some, then the same command goes "
                        "on (%.*s)",
                        KVM_STR_ARG(home), KVM_STR_ARG(info.trouble_message));
    }
    if (failed)
        return kvm_fail(
            err, status_of_failed(info.trouble_status),
            "%lld job%s of %.*s failed; `kvmill jobs list` and `kvmill jobs logs ID` "
            "say why",
            failed, failed == 1 ? "" : "s", KVM_STR_ARG(p->pair));
    if (cancelled)
        return kvm_fail(err, KVM_CANCELLED,
                        "%lld job%s of %.*s cancelled on request; the same command "
                        "takes %s up again",
                        cancelled, cancelled == 1 ? "" : "s", KVM_STR_ARG(p->pair),
                        cancelled == 1 ? "it" : "them");
    return KVM_OK;
}

static kvm_status run_one(kvm_cli *cli, const kvm_cli_planned *p, kvm_err *err)
{
    if (p->submitted.outcome == KVM_SUBMIT_DONE) return KVM_OK;
    kvm_worker_stats stats = {0};
    kvm_run_info info;
    TRY(look_at(cli, p->submitted.run, &info, err));
    const int64_t done = info.jobs[KVM_STATE_SUCCEEDED] + info.jobs[KVM_STATE_SKIPPED];
    TRY(work(cli, p->submitted.run, (ptrdiff_t)done, p->submitted.jobs, false, &stats,
             err));
    if (stats.drained)
        return kvm_fail(err, KVM_CANCELLED,
                        "stopped; the same command goes on where it was");
    return judge(cli, p, err);
}

/* The report of a run is there when the run is done, whatever becomes of the next. */
static kvm_status publish(kvm_cli *cli, const kvm_cli_planned *p, json_t *out,
                          kvm_text *failed, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_store *store;
    TRY(kvm_cli_catalogue(cli, false, &c, err));
    kvm_status s = kvm_cli_open_store(cli, cli->keep, &store, err);
    if (!s) s = show_result(cli, c, store, p, out, failed, err);
    kvm_catalogue_close(c); /* not to be inherited by the next worker's children */
    return s;
}

static kvm_status run_all(kvm_cli *cli, kvm_text *failed, kvm_err *err)
{
    kvm_cli_plans p;
    size_t offload;
    json_t *out = json_array();
    if (!kvm_json_own(cli->keep, out)) return kvm_nomem(err, cli->keep);
    kvm_worker_options gangs; /* options are read before anything is submitted */
    TRY(kvm_cli_offload(cli, &offload, err));
    TRY(kvm_cli_gangs(cli, &gangs, err));
    kvm_str path;
    TRY(kvm_cli_arg(cli, 0, "the pair's spec (PAIR.yaml)", &path, err));
    TRY(kvm_cli_submit(cli, path, &p, err));
    for (ptrdiff_t i = 0; i < p.n; i++) {
        if (!kvm_cli_has(cli, KVM_OPT_QUIET)) kvm_cli_announce(&p.of[i]);
        TRY(run_one(cli, &p.of[i], err));
        TRY(publish(cli, &p.of[i], out, failed, err));
    }
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(out), err)
               : KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_text failed = {0};
    kvm_status s = run_all(cli, &failed, err);
    if (!s && failed.failed) s = kvm_nomem(err, cli->keep);
    if (!s && failed.len)
        s = kvm_fail(err, KVM_GATE,
                     "failed what it must pass: %.*s; the report says where",
                     KVM_STR_ARG(kvm_text_str(&failed)));
    kvm_text_free(&failed);
    return s;
}

static kvm_status work_only(kvm_cli *cli, kvm_err *err)
{
    kvm_catalogue *c;
    kvm_worker_stats stats = {0};
    TRY(kvm_cli_catalogue(cli, true, &c, err));
    kvm_catalogue_close(c);
    TRY(work(cli, 0, 0, 0, kvm_cli_has(cli, KVM_OPT_STAY), &stats, err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        TRY(kvm_cli_print_json(cli,
                               json_pack("{s:I, s:I, s:I, s:I, s:I}", "succeeded",
                                         (json_int_t)stats.succeeded, "reused",
                                         (json_int_t)stats.skipped, "retried",
                                         (json_int_t)stats.retried, "failed",
                                         (json_int_t)stats.failed, "cancelled",
                                         (json_int_t)stats.cancelled),
                               err));
    if (!stats.failed) return KVM_OK;
    return kvm_fail(err, status_of_failed(stats.why),
                    "%td job%s failed; `kvmill jobs list --state failed` has them",
                    stats.failed, stats.failed == 1 ? "" : "s");
}

#define LAUNCHER                                                                       \
    {KVM_OPT_LAUNCHER, "launcher", "NAME",                                             \
     "what starts ranks: fork, mpirun, srun or sbatch (fork)"},                        \
        {KVM_OPT_LAUNCH_ARGS, "launch-args", "WORDS",                                  \
         "further arguments of mpirun, srun or sbatch"},                               \
    {                                                                                  \
        KVM_OPT_MEMORY, "memory", "MIB",                                               \
            "of a gang's rank: captures of models whose weights are more are dealt "   \
            "out by layers (KVMILL_MEMORY, else by sequences)"                         \
    }
static const kvm_option run_options[] = {
    {KVM_OPT_AGAIN, "again", NULL, "a new run, timings measured anew"},
    KVM_CLI_TEAM_OPTION,
    {KVM_OPT_RANKS, "ranks", "N", "deal out steps to gangs of so many processes (1)"},
    LAUNCHER,
    {0},
};
static const kvm_option worker_options[] = {
    {KVM_OPT_STAY, "stay", NULL, "wait for more work instead of returning"},
    {KVM_OPT_QUEUE, "queue", "URL",
     "hear of jobs through this Redis server (KVMILL_QUEUE)"},
    {KVM_OPT_RANKS, "ranks", "N", "take gangs of up to so many processes too (1)"},
    LAUNCHER,
    {KVM_OPT_ALLOW, "allow", "DIR",
     "jobs may name files below it too, besides those of the store; may be given again "
     "(KVMILL_ALLOW)"},
    {0},
};
const kvm_command kvm_command_run = {"run", run_options, run, 1};
const kvm_command kvm_command_worker = {"worker", worker_options, work_only, 0};
