/* svg_internal.h - what the figures share: the frame, text, scales and ticks.
 * Coordinates are user units (px at 1:1), y downwards. */
#ifndef KVM_REPORTS_SVG_INTERNAL_H
#define KVM_REPORTS_SVG_INTERNAL_H

#include "reports/svg.h"

enum {
    KVM_SVG_TICKS = 16,     /* the most that kvm_svg__ticks gives */
    KVM_SVG_LEGEND_ROW = 17 /* height of a row of the legend */
};

typedef struct kvm_scale {
    double lo, hi;   /* of the data; lo < hi, both > 0 when log */
    double from, to; /* where they are drawn */
    bool log;
} kvm_scale;

/* kvm_svg__scale - from an axis and the extent of its data (lo > hi: no data); widens
 * to round ends unless the axis is fixed */
kvm_scale kvm_svg__scale(const kvm_axis *axis, double lo, double hi, double from,
                         double to);
/* kvm_svg__at - where v is drawn, at the edge when beyond it; NaN when it cannot be */
double kvm_svg__at(const kvm_scale *s, double v);
/* kvm_svg__ticks - ascending, at most `most`; gives their number */
int kvm_svg__ticks(double tick[KVM_SVG_TICKS], const kvm_scale *s, const kvm_axis *axis,
                   int most);
/* kvm_svg__extend - lo and hi grow to hold v when it is finite (and > 0 when log) */
void kvm_svg__extend(double *lo, double *hi, double v, bool log);

void kvm_svg__open(kvm_text *out, kvm_str title, kvm_str desc, double width,
                   double height);
void kvm_svg__close(kvm_text *out);
/* anchor: 's'tart, 'm'iddle, 'e'nd */
void kvm_svg__text(kvm_text *out, double x, double y, const char *cls, char anchor,
                   kvm_str s);
void kvm_svg__number(kvm_text *out, double x, double y, const char *cls, char anchor,
                     double v, kvm_format format);
void kvm_svg__tick(kvm_text *out, double x, double y, const char *cls, char anchor,
                   double v, kvm_format format);
void kvm_svg__line(kvm_text *out, const char *cls, double x1, double y1, double x2,
                   double y2);
/* <title>name: 97.6 % [95.0, 99.1]</title> */
void kvm_svg__tip(kvm_text *out, kvm_str name, kvm_est e, kvm_format format);
double kvm_svg__width(kvm_str s); /* of 11 px text, estimated */
/* text cut with an ellipsis to fit `width` units */
void kvm_svg__fitted(kvm_text *out, double x, double y, const char *cls, char anchor,
                     kvm_str s, double width);

/* One entry of a legend; put lays them out in rows and gives the y below the last. */
typedef struct kvm_legend_item {
    kvm_str name;
    kvm_look look;
    bool line, dashed; /* else a square */
} kvm_legend_item;
double kvm_svg__legend(kvm_text *out, const kvm_legend_item *items, ptrdiff_t n,
                       double y, bool draw);

#endif
