/* slope.h - slopes of losses that are computed in f32, for gradients to be held
 * against. */
#ifndef KVM_TESTS_SLOPE_H
#define KVM_TESTS_SLOPE_H

#include <math.h>

/* f'(0) of f(ctx, x), h a first step. Of fourth order, (8 (f(h) - f(-h)) - f(2h) +
 * f(-2h)) / 12h, and of sixth with that of half the step. The step is halved, for a
 * loss may bend sharply, until two such agree best, before roundings part them
 * again. */
static inline double slope_of(double (*f)(void *ctx, double x), void *ctx, double h)
{
    enum { HALVINGS = 7 };
    double fourth = 0, sixth = 0, best = 0, apart = INFINITY;
    double f2 = f(ctx, 2 * h), b2 = f(ctx, -2 * h);
    for (int i = 0; i < HALVINGS; i++) {
        const double f1 = f(ctx, h), b1 = f(ctx, -h);
        const double coarse = fourth, last = sixth;
        fourth = (8 * (f1 - b1) - (f2 - b2)) / (12 * h);
        sixth = (16 * fourth - coarse) / 15;
        f2 = f1, b2 = b1;
        h /= 2;
        if (i < 2 || !(fabs(sixth - last) < apart)) continue;
        apart = fabs(sixth - last);
        best = sixth;
    }
    return best;
}

#endif
