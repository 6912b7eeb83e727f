#include "reports/svg_internal.h"

enum { ROW = 20, BAR = 12, GROUP_GAP = 9, MARK_ROW = 14, MOST_LEGEND = 16 };

/* ---- bars ---- */

typedef struct bar_frame {
    kvm_scale x;
    double left, right, top, bottom;
} bar_frame;

static double name_width(const kvm_bar_chart *c)
{
    double widest = 40;
    for (ptrdiff_t i = 0; i < c->bar_count; i++)
        widest = fmax(widest, kvm_svg__width(c->bars[i].name));
    return fmin(widest, 126);
}

static bar_frame bar_layout(const kvm_bar_chart *c)
{
    double lo = 0, hi = 0;
    for (ptrdiff_t i = 0; i < c->bar_count; i++) {
        const kvm_est e = c->bars[i].value;
        if (!kvm_est_has(e)) continue;
        kvm_svg__extend(&lo, &hi, e.value, false);
        kvm_svg__extend(&lo, &hi, e.low, false);
        kvm_svg__extend(&lo, &hi, e.high, false);
    }
    for (ptrdiff_t m = 0; m < c->mark_count; m++)
        kvm_svg__extend(&lo, &hi, c->marks[m].at, false);
    const bool fixed = isfinite(c->lo) && isfinite(c->hi) && c->lo < c->hi;
    const kvm_axis axis = {.fixed = fixed, .lo = c->lo, .hi = c->hi};
    bar_frame f = {.left = name_width(c) + 8, .right = KVM_SVG_WIDTH - 62};
    f.x = kvm_svg__scale(&axis, lo, hi, f.left, f.right);
    f.top = c->mark_count ? MARK_ROW * (double)c->mark_count + 4 : 4;
    f.bottom = f.top;
    for (ptrdiff_t i = 0; i < c->bar_count; i++)
        f.bottom += ROW + (c->bars[i].gap_before ? GROUP_GAP : 0);
    return f;
}

static void bar_axis(kvm_text *out, const kvm_bar_chart *c, const bar_frame *f)
{
    static const kvm_axis plain;
    double tick[KVM_SVG_TICKS];
    const int n = kvm_svg__ticks(tick, &f->x, &plain, 4);
    for (int i = 0; i < n; i++) {
        const double x = kvm_svg__at(&f->x, tick[i]);
        kvm_svg__line(out, "grid", x, f->top, x, f->bottom);
        kvm_svg__tick(out, x, f->bottom + 14, "t num", 'm', tick[i], c->format);
    }
}

static void bar_marks(kvm_text *out, const kvm_bar_chart *c, const bar_frame *f)
{
    for (ptrdiff_t m = 0; m < c->mark_count; m++) {
        const double x = kvm_svg__at(&f->x, c->marks[m].at);
        if (!isfinite(x)) continue;
        const double y = MARK_ROW * (double)m + 10;
        kvm_svg__line(out, "mark", x, y + 2, x, f->bottom);
        const bool left_of = x + kvm_svg__width(c->marks[m].label) > KVM_SVG_WIDTH;
        kvm_svg__text(out, x, y, "t", left_of ? 'e' : 's', c->marks[m].label);
    }
}

static void whisker(kvm_text *out, const bar_frame *f, kvm_est e, double middle)
{
    if (!kvm_est_has_interval(e)) return;
    const double low = kvm_svg__at(&f->x, e.low), high = kvm_svg__at(&f->x, e.high);
    kvm_text_addf(out,
                  "<path class=\"whisker\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f "
                  "%.1fv6\"/>",
                  low, middle, high, low, middle - 3, high, middle - 3);
}

/* Two slanted cuts near the end of a bar that goes on beyond the axis. */
static void clipped(kvm_text *out, const bar_frame *f, double middle)
{
    kvm_text_addf(out, "<path class=\"cut\" d=\"M%.1f %.1fl6 -16M%.1f %.1fl6 -16\"/>",
                  f->right - 20, middle + 8, f->right - 14, middle + 8);
}

static void one_bar(kvm_text *out, const kvm_bar_chart *c, const bar_frame *f,
                    const kvm_bar *bar, double y)
{
    const double middle = y + ROW / 2.0;
    kvm_text_addf(out, "<g class=\"%s\">", bar->look.name);
    kvm_svg__tip(out, bar->name, bar->value, c->format);
    kvm_svg__fitted(out, f->left - 7, middle + 4, "t name", 'e', bar->name,
                    f->left - 8);
    if (!kvm_est_has(bar->value)) {
        kvm_svg__text(out, f->left + 3, middle + 4, "t muted", 's',
                      KVM_STR("not measured"));
    } else {
        const double zero = kvm_svg__at(&f->x, 0);
        const double end = kvm_svg__at(&f->x, bar->value.value);
        kvm_text_addf(out,
                      "<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                      "height=\"%d\" rx=\"1.5\"/>",
                      fmin(zero, end), middle - BAR / 2.0, fmax(fabs(end - zero), 1.0),
                      BAR);
        if (bar->value.value > f->x.hi)
            clipped(out, f, middle);
        else
            whisker(out, f, bar->value, middle);
        kvm_svg__number(out, KVM_SVG_WIDTH - 2, middle + 4, "t num value", 'e',
                        bar->value.value, c->format);
    }
    kvm_text_add(out, KVM_STR("</g>"));
}

void kvm_svg_bars(kvm_text *out, const kvm_bar_chart *c)
{
    const bar_frame f = bar_layout(c);
    kvm_svg__open(out, c->title, c->desc, KVM_SVG_WIDTH, f.bottom + 20);
    bar_axis(out, c, &f);
    double y = f.top;
    for (ptrdiff_t i = 0; i < c->bar_count; i++) {
        if (c->bars[i].gap_before) y += GROUP_GAP;
        one_bar(out, c, &f, &c->bars[i], y);
        y += ROW;
    }
    bar_marks(out, c, &f);
    const double zero = kvm_svg__at(&f.x, 0);
    kvm_svg__line(out, "axis", zero, f.top, zero, f.bottom);
    if (!c->bar_count)
        kvm_svg__text(out, KVM_SVG_WIDTH / 2.0, f.bottom, "t muted", 'm',
                      KVM_STR("not measured"));
    kvm_svg__close(out);
}

/* ---- stacked shares ---- */

static double stack_sum(const kvm_stack_chart *c, ptrdiff_t row)
{
    double sum = 0;
    for (ptrdiff_t p = 0; p < c->part_count; p++) {
        const double v = c->value[row * c->part_count + p];
        if (isfinite(v) && v > 0) sum += v;
    }
    return sum;
}

static void stack_row(kvm_text *out, const kvm_stack_chart *c, ptrdiff_t row,
                      double left, double right, double y)
{
    const double sum = stack_sum(c, row);
    kvm_svg__fitted(out, left - 7, y + 12, "t num", 'e', c->row_names[row], left - 8);
    if (!(sum > 0) || !isfinite(sum)) {
        kvm_svg__text(out, left + 3, y + 12, "t muted", 's', KVM_STR("not measured"));
        return;
    }
    double x = left;
    for (ptrdiff_t p = 0; p < c->part_count; p++) {
        const double v = c->value[row * c->part_count + p];
        if (!isfinite(v) || v <= 0) continue;
        const double width = v / sum * (right - left);
        kvm_text_addf(
            out,
            "<rect class=\"bar part %s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
            "height=\"14\">",
            c->looks[p].name, x, y + 1, width);
        kvm_svg__tip(out, c->part_names[p], kvm_est_of(v), c->format);
        kvm_text_add(out, KVM_STR("</rect>"));
        x += width;
    }
    kvm_svg__number(out, KVM_SVG_WIDTH - 2, y + 12, "t num value", 'e', sum, c->format);
}

void kvm_svg_stack(kvm_text *out, const kvm_stack_chart *c)
{
    kvm_legend_item items[MOST_LEGEND];
    ptrdiff_t n = 0;
    for (; n < c->part_count && n < MOST_LEGEND; n++)
        items[n] = (kvm_legend_item){c->part_names[n], c->looks[n], false, false};
    const double top = kvm_svg__legend(NULL, items, n, 0, false) + 4;
    const double bottom = top + ROW * (double)(c->row_count ? c->row_count : 1);
    const double right = KVM_SVG_WIDTH - 66;
    double left = 34;
    for (ptrdiff_t r = 0; r < c->row_count; r++)
        left = fmax(left, kvm_svg__width(c->row_names[r]) + 10);
    left = fmin(left, 130);
    kvm_svg__open(out, c->title, c->desc, KVM_SVG_WIDTH, bottom + 20);
    kvm_svg__legend(out, items, n, 0, true);
    for (ptrdiff_t r = 0; r < c->row_count; r++)
        stack_row(out, c, r, left, right, top + ROW * (double)r);
    if (!c->row_count)
        kvm_svg__text(out, left, top + 12, "t muted", 's', KVM_STR("not measured"));
    for (int i = 0; i <= 4; i++) {
        const double x = left + (right - left) * i / 4;
        kvm_svg__line(out, "axis", x, bottom, x, bottom + 3);
        kvm_svg__tick(out, x, bottom + 15, "t num", 'm', i / 4.0, KVM_FORMAT_PERCENT);
    }
    kvm_svg__close(out);
}
