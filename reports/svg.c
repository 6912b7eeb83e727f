#include "reports/svg.h"

#include <stdio.h>
#include <utf8proc.h>

#include "reports/svg_internal.h"
#include "reports/table.h"

#define REPLACEMENT "\xef\xbf\xbd"
#define ELLIPSIS "\xe2\x80\xa6"

static const double GLYPH = 6.2; /* mean width of 11 px text in wide sans faces */

/* ---- text ---- */

static bool xml_holds(utf8proc_int32_t c)
{
    return (c >= 0x20 || c == '\t' || c == '\n') && !(c >= 0x7f && c < 0xa0) &&
           (c & 0xfffe) != 0xfffe;
}

static const char *entity(utf8proc_int32_t c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

void kvm_xml_text(kvm_text *out, kvm_str s)
{
    ptrdiff_t plain = 0; /* start of the run not yet written */
    for (ptrdiff_t at = 0; at < s.len;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)s.at + at, s.len - at, &c);
        const ptrdiff_t next = at + (n > 0 ? n : 1);
        const char *instead = n <= 0 || !xml_holds(c) ? REPLACEMENT : entity(c);
        if (instead) {
            kvm_text_add(out, kvm_str_slice(s, plain, at));
            kvm_text_add(out, kvm_str_of(instead));
            plain = next;
        }
        at = next;
    }
    kvm_text_add(out, kvm_str_slice(s, plain, s.len));
}

double kvm_svg__width(kvm_str s)
{
    return GLYPH * kvm_text_width(s);
}

void kvm_svg__text(kvm_text *out, double x, double y, const char *cls, char anchor,
                   kvm_str s)
{
    const char *where = anchor == 'm'   ? " text-anchor=\"middle\""
                        : anchor == 'e' ? " text-anchor=\"end\""
                                        : "";
    kvm_text_addf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\"%s>", cls, x, y, where);
    kvm_xml_text(out, s);
    kvm_text_add(out, KVM_STR("</text>"));
}

void kvm_svg__number(kvm_text *out, double x, double y, const char *cls, char anchor,
                     double v, kvm_format format)
{
    kvm_svg__text(out, x, y, cls, anchor, kvm_str_of(kvm_numeral_of(v, format).at));
}

void kvm_svg__tick(kvm_text *out, double x, double y, const char *cls, char anchor,
                   double v, kvm_format format)
{
    kvm_svg__text(out, x, y, cls, anchor, kvm_str_of(kvm_numeral_tick(v, format).at));
}

void kvm_svg__fitted(kvm_text *out, double x, double y, const char *cls, char anchor,
                     kvm_str s, double width)
{
    if (kvm_svg__width(s) <= width) {
        kvm_svg__text(out, x, y, cls, anchor, s);
        return;
    }
    kvm_text cut = {0};
    kvm_text_add(&cut, kvm_text_head(s, (int)(width / GLYPH) - 1));
    kvm_text_add(&cut, KVM_STR(ELLIPSIS));
    kvm_svg__text(out, x, y, cls, anchor, kvm_text_str(&cut));
    kvm_text_free(&cut);
}

void kvm_svg__line(kvm_text *out, const char *cls, double x1, double y1, double x2,
                   double y2)
{
    kvm_text_addf(
        out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
        cls, x1, y1, x2, y2);
}

void kvm_svg__tip(kvm_text *out, kvm_str name, kvm_est e, kvm_format format)
{
    kvm_text_add(out, KVM_STR("<title>"));
    kvm_xml_text(out, name);
    kvm_text_add(out, KVM_STR(": "));
    if (kvm_est_has(e)) {
        kvm_xml_text(out, kvm_str_of(kvm_numeral_of(e.value, format).at));
        kvm_text_add(out, KVM_STR(" "));
        kvm_xml_text(out, kvm_str_of(kvm_numeral_interval(e, format).at));
    } else {
        kvm_text_add(out, KVM_STR("not measured "));
        kvm_xml_text(out, e.note);
    }
    kvm_text_add(out, KVM_STR("</title>"));
}

/* ---- frame, looks, legend ---- */

void kvm_svg__open(kvm_text *out, kvm_str title, kvm_str desc, double width,
                   double height)
{
    kvm_text_addf(out, "<svg class=\"fig\" role=\"img\" viewBox=\"0 0 %.0f %.0f\"",
                  width, height);
    if (width > KVM_SVG_WIDTH) kvm_text_addf(out, " style=\"min-width:%.0fpx\"", width);
    kvm_text_add(out, KVM_STR("><title>"));
    kvm_xml_text(out, title);
    kvm_text_add(out, KVM_STR("</title><desc>"));
    kvm_xml_text(out, desc);
    kvm_text_add(out, KVM_STR("</desc>"));
}

void kvm_svg__close(kvm_text *out)
{
    kvm_text_add(out, KVM_STR("</svg>\n"));
}

static kvm_look look(char group, int index)
{
    kvm_look l;
    snprintf(l.name, sizeof l.name, "%c%d", group, index % 100);
    return l;
}

kvm_look kvm_look_palette(ptrdiff_t i)
{
    return look('c', (int)(i % 8));
}

kvm_look kvm_look_arm(kvm_arm arm)
{
    return look('a', (int)arm);
}

kvm_look kvm_look_ramp(double share)
{
    const double t = share > 0 ? (share < 1 ? share : 1) : 0;
    return look('r', (int)(t * 10 + 0.5));
}

double kvm_svg__legend(kvm_text *out, const kvm_legend_item *items, ptrdiff_t n,
                       double y, bool draw)
{
    const double right = KVM_SVG_WIDTH - 4, swatch = 16;
    double x = 2;
    bool any = false;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (!items[i].name.len) continue;
        double width = swatch + 5 + kvm_svg__width(items[i].name) + 12;
        if (width > right - 2) width = right - 2;
        if (any && x + width > right) {
            x = 2;
            y += KVM_SVG_LEGEND_ROW;
        }
        any = true;
        if (draw) {
            kvm_text_addf(out, "<g class=\"%s\">", items[i].look.name);
            if (items[i].line)
                kvm_svg__line(out, items[i].dashed ? "line dash" : "line", x, y + 8,
                              x + swatch, y + 8);
            else
                kvm_text_addf(out,
                              "<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"11\" "
                              "height=\"11\" rx=\"2\"/>",
                              x + 3, y + 2.5);
            kvm_text_add(out, KVM_STR("</g>"));
            kvm_svg__fitted(out, x + swatch + 5, y + 12, "t", 's', items[i].name,
                            width - swatch - 17 + 6);
        }
        x += width;
    }
    return any ? y + KVM_SVG_LEGEND_ROW + 3 : y;
}

/* ---- scales ---- */

void kvm_svg__extend(double *lo, double *hi, double v, bool log)
{
    if (!isfinite(v) || (log && v <= 0)) return;
    if (v < *lo) *lo = v;
    if (v > *hi) *hi = v;
}

/* the step of 1, 2 or 5 times a power of ten that is at least `least` */
static double nice_step(double least)
{
    const double power = pow(10, floor(log10(least)));
    const double lead = least / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void widen_linear(kvm_scale *s)
{
    const double limit = 1e300; /* hi - lo must not overflow */
    if (s->lo < -limit) s->lo = -limit;
    if (s->hi > limit) s->hi = limit;
    const double size = fmax(fabs(s->lo), fabs(s->hi)), least = 1e-290;
    if (size < least || !(s->hi / 2 - s->lo / 2 > 1e-12 * size)) {
        const double half = size < least ? 0.5 : size * 0.5;
        s->lo -= half;
        s->hi += half;
    }
}

/* wider by `pad` of its length at either end */
static void widen_log(kvm_scale *s, double pad)
{
    s->lo = fmin(fmax(s->lo, 1e-290), 1e290); /* room to widen without overflow */
    s->hi = fmin(fmax(s->hi, 1e-290), 1e290);
    if (!(s->hi > s->lo * 1.0001)) s->lo /= 2, s->hi *= 2;
    const double by = pow(10, pad * (log10(s->hi) - log10(s->lo)));
    s->lo = fmax(s->lo / by, 1e-300);
    s->hi = fmin(s->hi * by, 1e300);
}

kvm_scale kvm_svg__scale(const kvm_axis *axis, double lo, double hi, double from,
                         double to)
{
    kvm_scale s = {lo, hi, from, to, axis->log};
    if (axis->fixed) s.lo = axis->lo, s.hi = axis->hi;
    if (!(s.lo <= s.hi)) s.lo = axis->log ? 1 : 0, s.hi = axis->log ? 10 : 1;
    if (s.log) {
        widen_log(&s, axis->fixed ? 0 : 0.03);
        return s;
    }
    widen_linear(&s);
    if (axis->fixed || axis->whole) return s;
    const double step = nice_step((s.hi - s.lo) / 5);
    s.lo = floor(s.lo / step + 1e-9) * step;
    s.hi = ceil(s.hi / step - 1e-9) * step;
    return s;
}

double kvm_svg__at(const kvm_scale *s, double v)
{
    if (!isfinite(v) || (s->log && v <= 0)) return KVM_NONE;
    double t = s->log ? (log(v) - log(s->lo)) / (log(s->hi) - log(s->lo))
                      : (v / 2 - s->lo / 2) / (s->hi / 2 - s->lo / 2);
    t = t > 0 ? (t < 1 ? t : 1) : 0;
    return s->from + t * (s->to - s->from);
}

static int linear_ticks(double *tick, const kvm_scale *s, bool whole, int most)
{
    double step = nice_step((s->hi - s->lo) / most);
    if (whole && step < 1) step = 1;
    const double first = ceil(s->lo / step - 1e-9);
    int n = 0;
    while (n < KVM_SVG_TICKS) {
        const double v = (first + n) * step;
        if (v > s->hi + 1e-9 * step) break;
        tick[n++] = fabs(v) < step * 1e-9 ? 0 : v;
    }
    return n;
}

/* powers of `base`, every so many that they fit */
static int power_ticks(double *tick, const kvm_scale *s, double base, int most)
{
    const double first = ceil(log(s->lo) / log(base) - 1e-9);
    const double last = floor(log(s->hi) / log(base) + 1e-9);
    const double stride = fmax(1, ceil((last - first + 1) / most));
    int n = 0;
    while (n < KVM_SVG_TICKS && first + n * stride <= last) {
        tick[n] = pow(base, first + n * stride);
        n++;
    }
    return n;
}

int kvm_svg__ticks(double tick[KVM_SVG_TICKS], const kvm_scale *s, const kvm_axis *axis,
                   int most)
{
    if (!s->log) return linear_ticks(tick, s, axis->whole, most);
    if (axis->doubling && s->hi / s->lo >= 2) return power_ticks(tick, s, 2, most);
    const double decades = log10(s->hi) - log10(s->lo);
    if (decades >= 2) return power_ticks(tick, s, 10, most);
    static const double lead[] = {1, 2, 5}; /* of at most three decades: nine ticks */
    const double decade = pow(10, floor(log10(s->lo)));
    int n = 0;
    for (int i = 0; i < 9; i++) {
        const int up = i / 3;
        const double v = lead[i % 3] * decade * pow(10, up);
        if (v >= s->lo && v <= s->hi) tick[n++] = v;
    }
    return n >= 2 ? n : linear_ticks(tick, s, false, most);
}
