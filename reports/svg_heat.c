#include "reports/svg_internal.h"

#include <stdio.h>

enum { LEFT = 26, TOP = 34, CELL_MOST = 62, CELL_LEAST = 4, LABELLED = 27 };

/* The class of a cell: its step of the ramp, "hu" below the ramp, "hn" not measured. */
static const char *heat_class(char room[8], double v, double lo, double hi)
{
    if (!isfinite(v)) return "hn";
    if (v < lo) return "hu";
    const double t = hi > lo ? (v - lo) / (hi - lo) : 1;
    snprintf(room, 8, "h%d", (int)((t < 1 ? t : 1) * 10 + 0.5));
    return room;
}

/* ".81", "1.0", "-.20", "-509" in four characters or so */
static void cell_label(char room[16], double v)
{
    const char *minus = v < 0 ? "\xe2\x88\x92" : "";
    const double size = fabs(v);
    if (size >= 9.95)
        snprintf(room, 16, "%s%.0f", minus, fmin(size, 9999));
    else if (size >= 0.995)
        snprintf(room, 16, "%s%.1f", minus, size);
    else
        snprintf(room, 16, "%s.%02d", size < 0.005 ? "" : minus,
                 (int)(size * 100 + 0.5));
}

static double number_of(const double *numbers, ptrdiff_t i)
{
    return numbers ? numbers[i] : (double)i;
}

static void cell(kvm_text *out, const kvm_heat_map *h, ptrdiff_t row, ptrdiff_t col,
                 double size)
{
    const double v = h->value[row * h->cols + col];
    const double x = LEFT + size * (double)col, y = TOP + size * (double)row;
    char room[16];
    const double gap = size < 12 ? 0.2 : 1;
    const char *cls = heat_class(room, v, h->lo, h->hi);
    kvm_text_addf(out,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                  "height=\"%.1f\"><title>%.0f \xe2\x86\x92 %.0f: ",
                  cls, x + gap / 2, y + gap / 2, size - gap, size - gap,
                  number_of(h->row_number, row), number_of(h->col_number, col));
    if (isfinite(v))
        kvm_text_addf(out, "%.3f", v);
    else
        kvm_text_add(out, KVM_STR("not measured"));
    kvm_text_add(out, KVM_STR("</title></rect>"));
    if (size < LABELLED || !isfinite(v)) return;
    const bool dark = h->hi > h->lo && (v - h->lo) / (h->hi - h->lo) > 0.55;
    cell_label(room, v);
    const bool big = size >= 40;
    cls =
        dark ? (big ? "t cell on big" : "t cell on") : (big ? "t cell big" : "t cell");
    kvm_svg__text(out, x + size / 2, y + size / 2 + 4, cls, 'm', kvm_str_of(room));
}

/* the least of 1, 2, 5, 10, 20, 50 ... that is not below `least` */
static ptrdiff_t round_step(double least)
{
    ptrdiff_t step = 1;
    for (int i = 0; (double)step < least; i++)
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    return step;
}

/* Layer numbers along both edges, as many as there is room for. */
static void numbers(kvm_text *out, const kvm_heat_map *h, double size)
{
    char room[24];
    const ptrdiff_t every_row = round_step(12 / size);
    const ptrdiff_t every_col = round_step(18 / size);
    for (ptrdiff_t r = 0; r < h->rows; r += every_row) {
        snprintf(room, sizeof room, "%.0f", number_of(h->row_number, r));
        kvm_svg__text(out, LEFT - 6, TOP + size * ((double)r + 0.5) + 4, "t num", 'e',
                      kvm_str_of(room));
    }
    for (ptrdiff_t c = 0; c < h->cols; c += every_col) {
        snprintf(room, sizeof room, "%.0f", number_of(h->col_number, c));
        kvm_svg__text(out, LEFT + size * ((double)c + 0.5), TOP - 6, "t num", 'm',
                      kvm_str_of(room));
    }
}

static void swatch(kvm_text *out, const char *cls, double x, double y, double width)
{
    kvm_text_addf(
        out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"10\"/>",
        cls, x, y, width);
}

static void ramp(kvm_text *out, const kvm_heat_map *h, double y)
{
    bool below = false, missing = false;
    for (ptrdiff_t i = 0; i < h->rows * h->cols; i++) {
        below |= isfinite(h->value[i]) && h->value[i] < h->lo;
        missing |= !isfinite(h->value[i]);
    }
    double x = LEFT;
    char room[16];
    for (int i = 0; i <= 10; i++) {
        snprintf(room, sizeof room, "h%d", i);
        swatch(out, room, x, y, 11);
        x += 11;
    }
    kvm_svg__tick(out, LEFT, y + 22, "t num", 's', h->lo, KVM_FORMAT_NUMBER);
    kvm_svg__tick(out, x, y + 22, "t num", 'e', h->hi, KVM_FORMAT_NUMBER);
    x += 18;
    if (below) {
        swatch(out, "hu", x, y, 11);
        kvm_svg__text(out, x + 16, y + 9, "t", 's', KVM_STR("below"));
        kvm_svg__tick(out, x + 52, y + 9, "t", 's', h->lo, KVM_FORMAT_NUMBER);
        x += 84;
    }
    if (missing) {
        swatch(out, "hn", x + 0.5, y, 10);
        kvm_svg__text(out, x + 16, y + 9, "t", 's', KVM_STR("not measured"));
    }
}

void kvm_svg_heat(kvm_text *out, const kvm_heat_map *h)
{
    const double room = KVM_SVG_WIDTH - LEFT - 2;
    double size = h->cols > 0 ? room / (double)h->cols : room;
    size = fmin(fmax(size, CELL_LEAST), CELL_MOST);
    const double wide = LEFT + size * (double)h->cols + 2;
    const double bottom = TOP + size * (double)h->rows;
    kvm_svg__open(out, h->title, h->desc, fmax(wide, KVM_SVG_WIDTH), bottom + 38);
    kvm_text head = {0};
    kvm_text_addf(&head, "%.*s \xe2\x86\x93   %.*s \xe2\x86\x92",
                  KVM_STR_ARG(h->row_title), KVM_STR_ARG(h->col_title));
    kvm_svg__text(out, 2, 11, "t label", 's', kvm_text_str(&head));
    kvm_text_free(&head);
    if (h->rows <= 0 || h->cols <= 0)
        kvm_svg__text(out, LEFT, bottom + 12, "t muted", 's', KVM_STR("not measured"));
    numbers(out, h, size);
    for (ptrdiff_t r = 0; r < h->rows; r++)
        for (ptrdiff_t c = 0; c < h->cols; c++) cell(out, h, r, c, size);
    if (h->rows > 0 && h->cols > 0) ramp(out, h, bottom + 10);
    kvm_svg__close(out);
}
