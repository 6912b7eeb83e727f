#include "cli/submit.h"

#include <stdlib.h>

#include "base/file.h"
#include "cli/open.h"
#include "cli/team.h"
#include "workers/machine.h"

static kvm_status submit_graphs(kvm_cli *cli, const kvm_graphs *g, kvm_catalogue *c,
                                kvm_store *store, const kvm_submit_options *o,
                                kvm_cli_plans *out, kvm_arena scratch, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < g->n; i++) {
        kvm_cli_planned *p = &out->of[out->n];
        p->pair = kvm_str_copy(cli->keep, g->of[i].pair);
        if (!p->pair.at) return kvm_nomem(err, cli->keep);
        TRY(kvm_submit(c, store, &g->of[i], o, &p->submitted, scratch, err));
        out->n++;
    }
    return KVM_OK;
}

static void say_warning(kvm_str path, const kvm_graphs *g, ptrdiff_t specs)
{
    const kvm_str warning = g->of[0].warning; /* both directions have the same */
    if (!warning.len) return;
    if (specs > 1) path = g->of[0].pair;
    fprintf(stderr, "%.*s: warning: %.*s\n", KVM_STR_ARG(path), KVM_STR_ARG(warning));
}

/* The store is made when the spec has been found good. */
static kvm_status submit_spec(kvm_cli *cli, kvm_str path, kvm_cli_plans *out,
                              kvm_arena *plan, kvm_err *err)
{
    kvm_spec *specs;
    ptrdiff_t n;
    kvm_compute *compute;
    kvm_catalogue *c;
    kvm_store *store;
    kvm_graphs *graphs;
    kvm_submit_options o = {.again = kvm_cli_has(cli, KVM_OPT_AGAIN),
                            .tick = kvm_str_of(getenv("KVMILL_TICK"))};
    TRY(kvm_cli_team(cli, &o.team, err));
    TRY(kvm_cli_ranks(cli, &o.ranks, err));
    TRY(kvm_path_absolute(&o.file, plan, path, err));
    TRY(kvm_specs_read(&specs, &n, plan, path, err));
    TRY(kvm_cli_compute(cli, plan, &compute, err));
    TRY(kvm_specs_graphs(specs, n, plan, compute, &graphs, err));
    *out = (kvm_cli_plans){.of = kvm_new(cli->keep, kvm_cli_planned, 2 * n)};
    if (!out->of) return kvm_nomem(err, cli->keep);
    o.machine = kvm_machine_class(plan, kvm_cli_backend(cli));
    TRY(kvm_cli_catalogue(cli, true, &c, err));
    TRY(kvm_cli_admit_file(cli, c, o.team, o.file, err));
    TRY(kvm_cli_open_store(cli, plan, &store, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        say_warning(path, &graphs[i], n);
        TRY(submit_graphs(cli, &graphs[i], c, store, &o, out, *plan, err));
    }
    kvm_catalogue_close(c); /* not to be inherited by a worker's children */
    return KVM_OK;
}

kvm_status kvm_cli_submit(kvm_cli *cli, kvm_str path, kvm_cli_plans *plans,
                          kvm_err *err)
{
    kvm_arena plan = {0};
    TRY(kvm_arena_reserve(&plan, (size_t)1 << 38, err));
    const kvm_status s = submit_spec(cli, path, plans, &plan, err);
    kvm_arena_free(&plan);
    return s;
}

void kvm_cli_announce(const kvm_cli_planned *p)
{
    if (p->submitted.stale.run)
        fprintf(stderr, "%.*s: run %lld is stale: %s\n", KVM_STR_ARG(p->pair),
                (long long)p->submitted.stale.run, p->submitted.stale.why);
    switch (p->submitted.outcome) {
    case KVM_SUBMIT_NEW:
        fprintf(stderr, "%.*s: run %lld, %td jobs\n", KVM_STR_ARG(p->pair),
                (long long)p->submitted.run, p->submitted.jobs);
        return;
    case KVM_SUBMIT_RESUMED:
        fprintf(stderr, "%.*s: going on with run %lld\n", KVM_STR_ARG(p->pair),
                (long long)p->submitted.run);
        return;
    case KVM_SUBMIT_DONE:
        fprintf(stderr,
                "%.*s: nothing to do, run %lld has done exactly this (--again times "
                "anew)\n",
                KVM_STR_ARG(p->pair), (long long)p->submitted.run);
        return;
    }
}
