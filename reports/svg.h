/* svg.h - figures as inline SVG: heat maps, lines, bars, stacked bars.
 *
 * A figure is a plain struct; drawing appends one <svg> element to a text. Colours are
 * CSS classes only (kvm_svg_css holds them for light, dark and print), so one drawing
 * serves all three. Figures are about 400 units wide and keep 11 px text, which a 360
 * px phone shows whole; wider ones say their least width so that a page can let them
 * scroll. Every figure carries a title and a description for screen readers, and values
 * as tooltips; all text is escaped. Values that are not finite are left out or
 * hatched. */
#ifndef KVM_REPORTS_SVG_H
#define KVM_REPORTS_SVG_H

#include "reports/number.h"

enum { KVM_SVG_WIDTH = 400 };

/* Colour of a series or bar, as a class: "c0" ... "c7" of the palette, "a0" ... for the
 * arms of arms.def in their order, "r0" ... "r10" of the heat ramp (kvm_look_*). */
typedef struct kvm_look {
    char name[5];
} kvm_look;
kvm_look kvm_look_palette(ptrdiff_t i); /* wraps around after 8 */
kvm_look kvm_look_arm(kvm_arm arm);
kvm_look kvm_look_ramp(double share); /* 0 ... 1, clamped */

typedef struct kvm_axis {
    kvm_str title;
    kvm_format format; /* of the tick labels */
    bool log;          /* values <= 0 are left out */
    bool doubling;     /* of a log axis: ticks at powers of two */
    bool whole; /* of a linear axis: ticks at whole numbers, ends at the data's */
    bool fixed; /* range is lo ... hi; values beyond are drawn at the edge, marked */
    double lo, hi;
} kvm_axis;

typedef struct kvm_series {
    kvm_str name;             /* empty: not in the legend */
    const double *x, *y;      /* (n); a y that is not finite breaks the line */
    const double *low, *high; /* (n) band, or NULL */
    ptrdiff_t n;
    kvm_look look;
    bool dashed, no_line; /* no_line: points only */
} kvm_series;

/* A line across the plot where something stands: break-even, chance, the chosen k. */
typedef struct kvm_mark {
    double at;
    kvm_str label;
    bool horizontal;
} kvm_mark;

typedef struct kvm_line_chart {
    kvm_str title, desc;
    kvm_axis x, y;
    const kvm_series *series;
    ptrdiff_t series_count;
    const kvm_mark *marks;
    ptrdiff_t mark_count;
    int height; /* of the plot; 0: 210 */
} kvm_line_chart;
void kvm_svg_lines(kvm_text *out, const kvm_line_chart *c);

typedef struct kvm_bar {
    kvm_str name;
    kvm_est value; /* interval: a whisker */
    kvm_look look;
    bool gap_before; /* starts a group */
} kvm_bar;

typedef struct kvm_bar_chart {
    kvm_str title, desc;
    kvm_format format;
    double lo, hi; /* NaN: from the data, zero included; longer bars are cut */
    const kvm_bar *bars;
    ptrdiff_t bar_count;
    const kvm_mark *marks; /* values on the axis */
    ptrdiff_t mark_count;
} kvm_bar_chart;
void kvm_svg_bars(kvm_text *out, const kvm_bar_chart *c);

/* Rows of parts, each row drawn as shares of its own sum. */
typedef struct kvm_stack_chart {
    kvm_str title, desc;
    const kvm_str *part_names; /* (parts) */
    const kvm_look *looks;     /* (parts) */
    ptrdiff_t part_count;
    const kvm_str *row_names; /* (rows) */
    const double *value;      /* (rows, parts); not finite or < 0: none */
    ptrdiff_t row_count;
    kvm_format format; /* of the sums, written at the end of each row */
} kvm_stack_chart;
void kvm_svg_stack(kvm_text *out, const kvm_stack_chart *c);

typedef struct kvm_heat_map {
    kvm_str title, desc;
    const double *value; /* (rows, cols); not finite: hatched */
    ptrdiff_t rows, cols;
    kvm_str row_title, col_title;
    const double *row_number, *col_number; /* (rows), (cols); NULL: from 0 */
    double lo, hi; /* of the colours; below lo has a colour of its own */
} kvm_heat_map;
void kvm_svg_heat(kvm_text *out, const kvm_heat_map *h);

/* kvm_xml_text - s escaped for element text and quoted attributes of XML and HTML; what
 * XML cannot hold (control characters, broken UTF-8) becomes U+FFFD */
void kvm_xml_text(kvm_text *out, kvm_str s);

extern const char *const kvm_svg_css[]; /* lines, NULL-terminated; static */

#endif
