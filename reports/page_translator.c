/* page_translator.c - what a translator is made of, and how it was trained. */
#include "reports/page_internal.h"

#include <string.h>

/* ---- recipes ---- */

static void token_words(kvm_page *p)
{
    static const struct {
        const char *word, *says;
    } ways[] = {
        {"none", "No map is told which token a row is of."},
        {"given",
         "Every map is told which token a row is of: ids come with the cache."},
        {"decoded", "Every map is told which token a row is of: it is read out of the "
                    "source's first layer."},
    };
    kvm_page__html(p, "<p class=\"lede\">What every object of the target is made of. "
                      "R² are means over the target layers. ");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (kvm_str_eq(p->d->recipes.token, kvm_str_of(ways[i].word)))
            kvm_page__text(p, kvm_str_of(ways[i].says));
    if (kvm_est_has(p->d->recipes.token_top1)) {
        kvm_page__html(p, " Of ");
        kvm_page__number(p, p->d->recipes.token_rows, KVM_FORMAT_COUNT);
        kvm_page__html(p, " held-out tokens ");
        kvm_page__text(
            p, kvm_est_text(p->mem, p->d->recipes.token_top1, KVM_FORMAT_PERCENT));
        kvm_page__html(p, " are read right.");
    }
    if (kvm_document_kept_closed_form(p->d))
        kvm_page__html(p, " Training has changed nothing of it: no step was better.");
    kvm_page__html(p, "</p>\n");
}

/* the fits that an auto of the spec stood for, and which of them it became */
static kvm_status tried(kvm_page *p)
{
    if (p->d->recipes.tried_count == 0) return KVM_OK;
    const kvm_table t = kvm_report_table_tried(p->mem, p->d);
    const kvm_str says = kvm_str_fmt(
        p->mem,
        "Chosen among %td fits: the one behind which the target says most nearly what "
        "it says on its own cache, over %.0f lessons of the choosing split, %.0f "
        "tokens "
        "each; of equals the one with fewer parameters.",
        p->d->recipes.tried_count, p->d->recipes.lessons, p->d->recipes.after);
    if (!says.at) return kvm_nomem(p->err, p->mem);
    kvm_page__html(p, "<p>");
    kvm_page__text(p, says);
    kvm_page__html(p, "</p>\n");
    return kvm_page__table(p, &t, false);
}

kvm_status kvm_page__recipes(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_RECIPES, p->d->recipes.count > 0))
        return KVM_OK;
    token_words(p);
    const kvm_table brief = kvm_report_table_brief_recipes(p->mem, p->d);
    TRY(kvm_page__table(p, &brief, false));
    TRY(tried(p));
    const kvm_table all = kvm_report_table_recipes(p->mem, p->d);
    TRY(kvm_page__folded(p, &all, KVM_STR("Every map in numbers")));
    kvm_page__section_end(p);
    return KVM_OK;
}

/* ---- training ---- */

/* one loss of the curve, by its place in kvm_training_point */
typedef struct loss {
    kvm_str name;
    size_t at;
    bool dashed;
} loss;

static kvm_status loss_line(kvm_page *p, kvm_series *out, const loss *l, int colour)
{
    const ptrdiff_t most = p->d->training.count;
    double *x = kvm_new(p->mem, double, most), *y = kvm_new(p->mem, double, most);
    if (most && (!x || !y)) return kvm_nomem(p->err, p->mem);
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < most; i++) {
        memcpy(&y[n], (const char *)&p->d->training.points[i] + l->at, sizeof *y);
        x[n] = p->d->training.points[i].step;
        if (isfinite(x[n]) && isfinite(y[n])) n++;
    }
    *out = (kvm_series){.name = l->name,
                        .x = x,
                        .y = y,
                        .n = n,
                        .look = kvm_look_palette(colour),
                        .dashed = l->dashed};
    return KVM_OK;
}

/* losses over orders of magnitude need a logarithm, those of one would lose by it */
static bool spans_decades(const kvm_series *series, ptrdiff_t n)
{
    double least = (double)INFINITY, most = 0;
    for (ptrdiff_t s = 0; s < n; s++)
        for (ptrdiff_t i = 0; i < series[s].n; i++)
            if (series[s].y[i] > 0) {
                least = fmin(least, series[s].y[i]);
                most = fmax(most, series[s].y[i]);
            }
    return most > 10 * least;
}

static kvm_status loss_figure(kvm_page *p, kvm_str heading, kvm_str note,
                              const loss *losses, int count, double closed)
{
    kvm_series series[2];
    for (int i = 0; i < count; i++)
        TRY(loss_line(p, &series[i], &losses[i], i ? 2 : 4));
    kvm_mark marks[2];
    ptrdiff_t mark_count = 0;
    if (isfinite(closed))
        marks[mark_count++] = (kvm_mark){closed, KVM_STR("closed form"), true};
    if (isfinite(p->d->training.best_step))
        marks[mark_count++] = (kvm_mark){
            p->d->training.best_step,
            kvm_str_fmt(p->mem, "best: step %s",
                        kvm_numeral_of(p->d->training.best_step, KVM_FORMAT_COUNT).at),
            false};
    const kvm_line_chart chart = {
        .title = heading,
        .desc = note,
        .x = {.title = KVM_STR("step"), .format = KVM_FORMAT_COUNT, .whole = true},
        .y = {.title = KVM_STR("KL to the target's own cache, nats"),
              .format = KVM_FORMAT_NUMBER,
              .log = spans_decades(series, count)},
        .series = series,
        .series_count = count,
        .marks = marks,
        .mark_count = mark_count};
    kvm_page__figure(p, heading, note);
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

static double first_kl_before(const kvm_document *d)
{
    return d->training.count && !(d->training.points[0].step > 0)
               ? d->training.points[0].first_kl
               : KVM_NONE;
}

kvm_status kvm_page__training(kvm_page *p)
{
    const loss whole[] = {
        {KVM_STR("validation"), offsetof(kvm_training_point, kl), false},
        {KVM_STR("training"), offsetof(kvm_training_point, train_kl), true}};
    const loss first[] = {
        {KVM_STR("validation"), offsetof(kvm_training_point, first_kl), false}};
    if (!kvm_page__section(p, KVM_SECTION_TRAINING, p->d->training.present))
        return KVM_OK;
    kvm_page__lede(p, KVM_STR("The closed form's maps, trained on what the target says "
                              "behind them: KL of the tokens after a translated prefix "
                              "against those after the target's own. The parameters of "
                              "the best step are kept."));
    if (kvm_document_kept_closed_form(p->d))
        kvm_page__html(p, "<p><b>The closed form was kept.</b> No step validated below "
                          "it: what is called distilled on this page is the closed "
                          "form itself.</p>\n");
    kvm_page__grid(p, 2);
    TRY(loss_figure(p, KVM_STR("All tokens after the prefix"),
                    KVM_STR("training: mean of the steps since the last validation"),
                    whole, 2, p->d->training.closed_kl));
    TRY(loss_figure(p, KVM_STR("The first token after the prefix"),
                    KVM_STR("on the validation lessons"), first, 1,
                    first_kl_before(p->d)));
    kvm_page__grid_end(p);
    const kvm_table t = kvm_report_table_training(p->mem, p->d);
    TRY(kvm_page__table(p, &t, false));
    const kvm_table curve = kvm_report_table_curve(p->mem, p->d);
    TRY(kvm_page__folded(p, &curve, KVM_STR("Every validation in numbers")));
    kvm_page__section_end(p);
    return KVM_OK;
}
