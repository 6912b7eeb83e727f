/* document_analyses.c - the parts of a report document that take caches apart: analyses
 * and inversion. */
#include "reports/document_internal.h"

/* at: a cache of an analysis, or an analysis itself for its translated cache */
static void read_cache(kvm_doc_reader *r, kvm_analysed_cache *c, kvm_jat at)
{
    *c = (kvm_analysed_cache){
        .group = kvm_doc__str(r, at, "group"),
        .name = kvm_doc__str(r, at, "name"),
        .title = kvm_doc__str(r, at, "title"),
        .share = kvm_doc__num(r, at, "share"),
        .score = kvm_doc__est(r, at, "score"),
        .versus = kvm_doc__est(r, at, "versus"),
    };
}

static kvm_best_layer read_best(kvm_doc_reader *r, kvm_jat at)
{
    return (kvm_best_layer){.name = kvm_doc__str(r, at, "cache"),
                            .title = kvm_doc__str(r, at, "title"),
                            .chosen_on = kvm_doc__num(r, at, "chosen_on"),
                            .items = kvm_doc__num(r, at, "items"),
                            .translated = kvm_doc__est(r, at, "translated"),
                            .all = kvm_doc__est(r, at, "all"),
                            .score = kvm_doc__est(r, at, "score"),
                            .versus = kvm_doc__est(r, at, "versus"),
                            .share = kvm_doc__est(r, at, "share")};
}

static void read_chosen(kvm_doc_reader *r, kvm_analysis *a, kvm_jat list)
{
    a->chosen = kvm_doc__list_at(r, list, sizeof *a->chosen, &a->chosen_count);
    for (ptrdiff_t i = 0; i < a->chosen_count; i++) {
        const kvm_jat at = kvm_doc__item(r, list, i);
        a->chosen[i] = (kvm_chosen_units){.title = kvm_doc__str(r, at, "title"),
                                          .overlap = kvm_doc__est(r, at, "overlap"),
                                          .needle = kvm_doc__est(r, at, "needle")};
    }
}

static void read_suite(kvm_doc_reader *r, kvm_analysis *a, kvm_jat at)
{
    const kvm_str arm = kvm_doc__str(r, at, "translator");
    const kvm_jat list = kvm_doc__get(r, at, "caches");
    *a = (kvm_analysis){
        .name = kvm_doc__str(r, at, "name"),
        .title = kvm_doc__str(r, at, "title"),
        .suite = kvm_doc__str(r, at, "suite"),
        .metric = kvm_doc__str(r, at, "metric"),
        .format = kvm_doc__format(r, at),
        .lower_better = kvm_doc__lower_better(r, at),
        .items = kvm_doc__num(r, at, "items"),
        .translator = (int)kvm_doc__arm(r, at, arm),
        .native = kvm_doc__est(r, at, "native"),
        .best = read_best(r, kvm_doc__get(r, at, "best_layer")),
    };
    a->caches = kvm_doc__list_at(r, list, sizeof *a->caches, &a->count);
    for (ptrdiff_t i = 0; i < a->count; i++)
        read_cache(r, &a->caches[i], kvm_doc__item(r, list, i));
    read_chosen(r, a, kvm_doc__get(r, at, "indexers"));
}

static void read_tails(kvm_doc_reader *r, kvm_tail_times *t, kvm_jat at)
{
    const kvm_jat list = kvm_doc__get(r, at, "switches");
    *t = (kvm_tail_times){.tokens = kvm_doc__num(r, at, "tokens"),
                          .rounds = kvm_doc__num(r, at, "rounds"),
                          .cold = kvm_doc__est(r, at, "cold")};
    t->at = kvm_doc__list_at(r, list, sizeof *t->at, &t->count);
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const kvm_jat item = kvm_doc__item(r, list, i);
        t->at[i] = (kvm_tail_time){.share = kvm_doc__num(r, item, "share"),
                                   .seconds = kvm_doc__est(r, item, "seconds"),
                                   .speedup = kvm_doc__est(r, item, "speedup")};
    }
}

static void read_analyses(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "analyses");
    const kvm_jat suites = kvm_doc__get(r, at, "suites");
    const kvm_jat tails = kvm_doc__get(r, at, "tails");
    kvm_analysis *a =
        kvm_doc__list_at(r, suites, sizeof *a, &r->d->analyses.suite_count);
    for (ptrdiff_t i = 0; i < r->d->analyses.suite_count; i++)
        read_suite(r, &a[i], kvm_doc__item(r, suites, i));
    r->d->analyses.suites = a;
    kvm_tail_times *t =
        kvm_doc__list_at(r, tails, sizeof *t, &r->d->analyses.tail_count);
    for (ptrdiff_t i = 0; i < r->d->analyses.tail_count; i++)
        read_tails(r, &t[i], kvm_doc__item(r, tails, i));
    r->d->analyses.tails = t;
}

static void read_inverted(kvm_doc_reader *r, kvm_inverted *v, kvm_jat at)
{
    const kvm_jat list = kvm_doc__get(r, at, "layers");
    *v = (kvm_inverted){.model = kvm_doc__str(r, at, "model"),
                        .side = kvm_doc__str(r, at, "side"),
                        .object = kvm_doc__str(r, at, "object"),
                        .point = kvm_doc__num(r, at, "point"),
                        .features = kvm_doc__num(r, at, "features")};
    v->layers = kvm_doc__list_at(r, list, sizeof *v->layers, &v->count);
    for (ptrdiff_t i = 0; i < v->count; i++) {
        const kvm_jat item = kvm_doc__item(r, list, i);
        v->layers[i] = (kvm_inverted_layer){.layer = kvm_doc__num(r, item, "layer"),
                                            .r2 = kvm_doc__num(r, item, "r2"),
                                            .top1 = kvm_doc__est(r, item, "top1")};
    }
}

static void read_inversion(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "inversion");
    const kvm_jat list = kvm_doc__get(r, at, "series");
    const kvm_jat codebook = kvm_doc__get(r, at, "codebook");
    r->d->inversion.rows = kvm_doc__num(r, at, "rows");
    r->d->inversion.vocab = kvm_doc__num(r, at, "vocab");
    kvm_inverted *v = kvm_doc__list_at(r, list, sizeof *v, &r->d->inversion.count);
    for (ptrdiff_t i = 0; i < r->d->inversion.count; i++)
        read_inverted(r, &v[i], kvm_doc__item(r, list, i));
    r->d->inversion.series = v;
    if (kvm_json_has(codebook)) read_inverted(r, &r->d->inversion.codebook, codebook);
}

void kvm_doc__analyses(kvm_doc_reader *r, kvm_jat doc)
{
    read_analyses(r, doc);
    read_inversion(r, doc);
}
