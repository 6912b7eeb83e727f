/* page_alternation.c - conversations in which both models take turns. */
#include "reports/page_internal.h"

typedef kvm_est turn_value(const kvm_condition_figures *c, ptrdiff_t turn);

static kvm_est f1_of(const kvm_condition_figures *c, ptrdiff_t turn)
{
    return c->turns[turn].f1;
}

static kvm_est gold_of(const kvm_condition_figures *c, ptrdiff_t turn)
{
    return c->turns[turn].gold;
}

static kvm_est seconds_of(const kvm_condition_figures *c, ptrdiff_t turn)
{
    return c->turns[turn].seconds_so_far;
}

static kvm_status condition_series(kvm_page *p, kvm_series *s,
                                   const kvm_condition_figures *c, turn_value *value,
                                   ptrdiff_t i)
{
    double *x = kvm_new(p->mem, double, 2 * c->count + 1);
    if (!x) return kvm_nomem(p->err, p->mem);
    double *y = x + c->count;
    for (ptrdiff_t t = 0; t < c->count; t++) {
        x[t] = c->turns[t].turn;
        y[t] = value(c, t).value;
    }
    *s = (kvm_series){.name = c->title,
                      .x = x,
                      .y = y,
                      .n = c->count,
                      .look = kvm_look_palette(i),
                      .dashed = i == 0};
    return KVM_OK;
}

static kvm_status turns_figure(kvm_page *p, kvm_str title, kvm_str desc, kvm_axis y,
                               turn_value *value)
{
    const ptrdiff_t n = p->d->alternation.count;
    kvm_series *series = kvm_new(p->mem, kvm_series, n);
    if (!series) return kvm_nomem(p->err, p->mem);
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(condition_series(p, &series[i], &p->d->alternation.conditions[i], value,
                             i));
    const kvm_line_chart chart = {
        .title = title,
        .desc = desc,
        .x = {.title = KVM_STR("turn"), .format = KVM_FORMAT_COUNT, .whole = true},
        .y = y,
        .series = series,
        .series_count = n};
    const kvm_str dialogues =
        kvm_counted(p->mem, p->d->alternation.dialogues, "dialogue");
    kvm_page__figure(p, title,
                     kvm_str_fmt(p->mem, "%.*s, %.*s",
                                 KVM_STR_ARG(p->d->alternation.suite),
                                 KVM_STR_ARG(dialogues)));
    kvm_svg_lines(p->out, &chart);
    kvm_page__figure_end(p);
    return KVM_OK;
}

static kvm_axis share(const char *title)
{
    return (kvm_axis){.title = kvm_str_of(title),
                      .format = KVM_FORMAT_PERCENT,
                      .fixed = true,
                      .lo = 0,
                      .hi = 1};
}

kvm_status kvm_page__alternation(kvm_page *p)
{
    if (!kvm_page__section(p, KVM_SECTION_ALTERNATION, p->d->alternation.count > 0))
        return KVM_OK;
    const kvm_str refresh =
        kvm_number(p->mem, p->d->alternation.refresh, KVM_FORMAT_COUNT);
    kvm_page__lede(
        p, kvm_str_fmt(
               p->mem,
               "The source answers odd turns, the target even ones, each on a cache "
               "line of its own (%s, both directions). Before it answers, a model "
               "reads the whole conversation itself, has the part that it has not "
               "seen translated, has all of it translated again, or, once after turn "
               "%.*s, reads it all in place of translating. Conditions share their "
               "dialogues, and each goes on with the answers that were given in it.",
               kvm_arms[p->d->alternation.translator].label, KVM_STR_ARG(refresh)));
    kvm_page__grid(p, 3);
    TRY(turns_figure(p, KVM_STR("Token F1 by turn"),
                     KVM_STR("Mean token F1 of the answers of each turn."),
                     share("token F1"), f1_of));
    TRY(turns_figure(
        p, KVM_STR("Gold in answer by turn"),
        KVM_STR("Share of answers of each turn that hold an accepted one."),
        share("gold in answer"), gold_of));
    TRY(turns_figure(
        p, KVM_STR("Catching up"),
        KVM_STR("Median seconds that a conversation has spent on bringing caches "
                "up to date, up to each turn; in the first one every condition reads "
                "the text itself."),
        (kvm_axis){.title = KVM_STR("seconds so far"), .format = KVM_FORMAT_SECONDS},
        seconds_of));
    kvm_page__grid_end(p);
    const kvm_table means = kvm_report_table_alternation(p->mem, p->d);
    TRY(kvm_page__table(p, &means, false));
    const kvm_table turns = kvm_report_table_turns(p->mem, p->d);
    TRY(kvm_page__folded(p, &turns, KVM_STR("All turns")));
    kvm_page__section_end(p);
    return KVM_OK;
}
