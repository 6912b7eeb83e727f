#include "reports/svg_internal.h"

#include <stdio.h>
#include <string.h>

enum { PLOT_HEIGHT = 210, MOST_LEGEND = 24, MARK_ROW = 14, CROWD = 12 };

/* Where the plot stands in the figure. */
typedef struct frame {
    kvm_scale x, y;
    double left, right, top, bottom;
    double height;
    double title_y; /* of the y axis */
    double marks_y; /* of the first label of a vertical mark */
} frame;

static void extent(const kvm_line_chart *c, double *xlo, double *xhi, double *ylo,
                   double *yhi)
{
    *xlo = *ylo = (double)INFINITY;
    *xhi = *yhi = -(double)INFINITY;
    for (ptrdiff_t s = 0; s < c->series_count; s++) {
        const kvm_series *it = &c->series[s];
        for (ptrdiff_t i = 0; i < it->n; i++) {
            if (!isfinite(it->y[i])) continue;
            kvm_svg__extend(xlo, xhi, it->x[i], c->x.log);
            kvm_svg__extend(ylo, yhi, it->y[i], c->y.log);
            if (it->low) kvm_svg__extend(ylo, yhi, it->low[i], c->y.log);
            if (it->high) kvm_svg__extend(ylo, yhi, it->high[i], c->y.log);
        }
    }
    for (ptrdiff_t m = 0; m < c->mark_count; m++)
        if (c->marks[m].horizontal)
            kvm_svg__extend(ylo, yhi, c->marks[m].at, c->y.log);
        else
            kvm_svg__extend(xlo, xhi, c->marks[m].at, c->x.log);
}

static double legend(kvm_text *out, const kvm_line_chart *c, double y, bool draw)
{
    kvm_legend_item items[MOST_LEGEND];
    ptrdiff_t n = 0;
    for (ptrdiff_t s = 0; s < c->series_count && n < MOST_LEGEND; s++)
        if (c->series[s].name.len)
            items[n++] = (kvm_legend_item){c->series[s].name, c->series[s].look, true,
                                           c->series[s].dashed};
    return n > 1 ? kvm_svg__legend(out, items, n, y, draw) : y;
}

/* The label of tick i of n. Ticks so close that they would read alike have as many
 * decimals as tell them apart. */
static kvm_numeral tick_label(const double *tick, int n, int i, kvm_format format)
{
    const kvm_numeral plain = kvm_numeral_tick(tick[i], format);
    int alike = -1;
    for (int k = 0; k + 1 < n && alike < 0 && format == KVM_FORMAT_NUMBER; k++)
        if (strcmp(kvm_numeral_tick(tick[k], format).at,
                   kvm_numeral_tick(tick[k + 1], format).at) == 0)
            alike = k;
    const double step = alike < 0 ? 1 : tick[alike + 1] - tick[alike];
    const double places = ceil(-log10(step) - 1e-9);
    if (alike < 0 || !(places > 0 && places < 16)) return plain;
    kvm_numeral out;
    snprintf(out.at, sizeof out.at, "%s%.*f", tick[i] < 0 ? "\xe2\x88\x92" : "",
             (int)places, fabs(tick[i]));
    return out;
}

static double label_width(const kvm_scale *s, const kvm_axis *axis)
{
    double tick[KVM_SVG_TICKS], widest = 0;
    const int n = kvm_svg__ticks(tick, s, axis, 6);
    for (int i = 0; i < n; i++) {
        const kvm_numeral label = tick_label(tick, n, i, axis->format);
        widest = fmax(widest, kvm_svg__width(kvm_str_of(label.at)));
    }
    return widest;
}

static frame layout(const kvm_line_chart *c)
{
    frame f = {0};
    double xlo, xhi, ylo, yhi;
    extent(c, &xlo, &xhi, &ylo, &yhi);
    f.top = legend(NULL, c, 0, false) + (c->y.title.len ? 24 : 8);
    f.title_y = f.top - 9;
    f.marks_y = f.top + 3;
    for (ptrdiff_t m = 0; m < c->mark_count; m++)
        if (!c->marks[m].horizontal) f.top += MARK_ROW;
    f.bottom = f.top + (c->height ? c->height : PLOT_HEIGHT);
    f.height = f.bottom + (c->x.title.len ? 36 : 20);
    f.y = kvm_svg__scale(&c->y, ylo, yhi, f.bottom, f.top);
    f.left = fmax(label_width(&f.y, &c->y) + 10, 24);
    f.right = KVM_SVG_WIDTH - 14;
    f.x = kvm_svg__scale(&c->x, xlo, xhi, f.left, f.right);
    return f;
}

static void axes(kvm_text *out, const kvm_line_chart *c, const frame *f)
{
    double tick[KVM_SVG_TICKS];
    int n = kvm_svg__ticks(tick, &f->y, &c->y, 6);
    for (int i = 0; i < n; i++) {
        const double y = kvm_svg__at(&f->y, tick[i]);
        kvm_svg__line(out, "grid", f->left, y, f->right, y);
        kvm_svg__text(out, f->left - 6, y + 4, "t num", 'e',
                      kvm_str_of(tick_label(tick, n, i, c->y.format).at));
    }
    n = kvm_svg__ticks(tick, &f->x, &c->x, 7);
    for (int i = 0; i < n; i++) {
        const double x = kvm_svg__at(&f->x, tick[i]);
        kvm_svg__line(out, "axis", x, f->bottom, x, f->bottom + 4);
        kvm_svg__text(out, x, f->bottom + 16, "t num", 'm',
                      kvm_str_of(tick_label(tick, n, i, c->x.format).at));
    }
    kvm_svg__line(out, "axis", f->left, f->bottom, f->right, f->bottom);
    if (c->y.title.len)
        kvm_svg__fitted(out, 2, f->title_y, "t label", 's', c->y.title, f->right);
    if (c->x.title.len)
        kvm_svg__text(out, (f->left + f->right) / 2, f->bottom + 32, "t label", 'm',
                      c->x.title);
}

static void marks(kvm_text *out, const kvm_line_chart *c, const frame *f)
{
    double label_y = f->marks_y;
    for (ptrdiff_t m = 0; m < c->mark_count; m++) {
        const kvm_mark *mark = &c->marks[m];
        const double at = kvm_svg__at(mark->horizontal ? &f->y : &f->x, mark->at);
        if (!isfinite(at)) continue;
        if (mark->horizontal) {
            kvm_svg__line(out, "mark", f->left, at, f->right, at);
            kvm_svg__text(out, f->right, at - 4, "t halo", 'e', mark->label);
            continue;
        }
        kvm_svg__line(out, "mark", at, label_y - 8, at, f->bottom);
        const bool left_of = at + kvm_svg__width(mark->label) + 4 > KVM_SVG_WIDTH;
        kvm_svg__text(out, left_of ? at - 4 : at + 4, label_y, "t halo",
                      left_of ? 'e' : 's', mark->label);
        label_y += MARK_ROW;
    }
}

/* The run of points with a finite y, starting at or after *from; false when none. */
static bool next_run(const kvm_series *s, const frame *f, ptrdiff_t *from,
                     ptrdiff_t *to)
{
    while (*from < s->n && !(isfinite(kvm_svg__at(&f->x, s->x[*from])) &&
                             isfinite(kvm_svg__at(&f->y, s->y[*from]))))
        ++*from;
    *to = *from;
    while (*to < s->n && isfinite(kvm_svg__at(&f->x, s->x[*to])) &&
           isfinite(kvm_svg__at(&f->y, s->y[*to])))
        ++*to;
    return *from < s->n;
}

static void path(kvm_text *out, const char *cls, const kvm_series *s, const frame *f,
                 ptrdiff_t from, ptrdiff_t to)
{
    kvm_text_addf(out, "<path class=\"%s\" d=\"", cls);
    for (ptrdiff_t i = from; i < to; i++)
        kvm_text_addf(out, "%c%.1f %.1f", i == from ? 'M' : 'L',
                      kvm_svg__at(&f->x, s->x[i]), kvm_svg__at(&f->y, s->y[i]));
    kvm_text_add(out, KVM_STR("\"/>"));
}

/* one end of the band at point i, the line itself where there is no end */
static double band_at(const kvm_series *s, const frame *f, const double *end,
                      ptrdiff_t i)
{
    const double y = kvm_svg__at(&f->y, end[i]);
    return isfinite(y) ? y : kvm_svg__at(&f->y, s->y[i]);
}

static void band(kvm_text *out, const kvm_series *s, const frame *f, ptrdiff_t from,
                 ptrdiff_t to)
{
    kvm_text_add(out, KVM_STR("<path class=\"band\" d=\""));
    for (ptrdiff_t i = from; i < to; i++)
        kvm_text_addf(out, "%c%.1f %.1f", i == from ? 'M' : 'L',
                      kvm_svg__at(&f->x, s->x[i]), band_at(s, f, s->high, i));
    for (ptrdiff_t i = to - 1; i >= from; i--)
        kvm_text_addf(out, "L%.1f %.1f", kvm_svg__at(&f->x, s->x[i]),
                      band_at(s, f, s->low, i));
    kvm_text_add(out, KVM_STR("Z\"/>"));
}

static void points(kvm_text *out, const kvm_line_chart *c, const kvm_series *s,
                   const frame *f)
{
    for (ptrdiff_t i = 0; i < s->n; i++) {
        const double x = kvm_svg__at(&f->x, s->x[i]), y = kvm_svg__at(&f->y, s->y[i]);
        if (!isfinite(x) || !isfinite(y)) continue;
        kvm_est e = kvm_est_of(s->y[i]);
        if (s->low && s->high) e.low = s->low[i], e.high = s->high[i];
        const bool below = s->y[i]<f->y.lo, above = s->y[i]> f->y.hi;
        if (below || above) /* a triangle at the edge, pointing off it */
            kvm_text_addf(out, "<path class=\"off\" d=\"M%.1f %.1fl4 0l-4 %dl-4 %dZ\">",
                          x, y, below ? 6 : -6, below ? -6 : 6);
        else
            kvm_text_addf(out,
                          "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\">", x,
                          y, s->n > 40 ? "1.4" : "2.4");
        kvm_svg__tip(out, s->name.len ? s->name : c->y.title, e, c->y.format);
        kvm_text_add(out, below || above ? KVM_STR("</path>") : KVM_STR("</circle>"));
    }
}

void kvm_svg_lines(kvm_text *out, const kvm_line_chart *c)
{
    const frame f = layout(c);
    kvm_svg__open(out, c->title, c->desc, KVM_SVG_WIDTH, f.height);
    legend(out, c, 0, true);
    axes(out, c, &f);
    marks(out, c, &f);
    bool any = false;
    for (ptrdiff_t i = 0; i < c->series_count; i++) {
        const kvm_series *s = &c->series[i];
        kvm_text_addf(out, "<g class=\"%s%s\">", s->look.name,
                      c->series_count > CROWD ? " crowd" : "");
        for (ptrdiff_t from = 0, to; next_run(s, &f, &from, &to); from = to) {
            any = true;
            if (s->low && s->high) band(out, s, &f, from, to);
            if (!s->no_line)
                path(out, s->dashed ? "line dash" : "line", s, &f, from, to);
        }
        points(out, c, s, &f);
        kvm_text_add(out, KVM_STR("</g>"));
    }
    if (!any)
        kvm_svg__text(out, (f.left + f.right) / 2, (f.top + f.bottom) / 2, "t", 'm',
                      KVM_STR("not measured"));
    kvm_svg__close(out);
}
