#define _DEFAULT_SOURCE /* struct winsize */
#include "base/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

enum { LINE_BYTES = 256 };
static const double REDRAW_S = 0.1, PLAIN_S = 10.0;

static bool on_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

static void put(const char *text)
{
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written; /* progress that cannot be shown is no reason to stop */
}

static void seconds_text(char out[24], double s)
{
    const long long t = s < 0.0 ? 0 : s > 1e9 ? (long long)1e9 : llround(s);
    if (t < 3600)
        snprintf(out, 24, "%lld:%02lld", t / 60, t % 60);
    else
        snprintf(out, 24, "%lldh%02lldm", t / 3600, t / 60 % 60);
}

/* 12.3k, 4.56M: at most four digits. What is counted is whole: a share of the next one
 * shows in the percentage. */
static void count_text(char out[24], double v)
{
    static const char units[] = " kMGTPE";
    size_t u = 0;
    v = floor(v + 1e-9);
    while (fabs(v) >= 9999.5 && u + 2 < sizeof units) {
        v /= 1000.0;
        u++;
    }
    snprintf(out, 24, u ? "%.3g%c" : "%.4g", v, units[u]);
}

/* title  45%  123 / 456 sequences  1:02 left */
static void line_text(char out[LINE_BYTES], const kvm_progress *p, double done,
                      double total, const char *unit, double eta_s)
{
    char has[24], of[24], left[24] = "";
    count_text(has, done);
    count_text(of, total);
    if (eta_s >= 0.0) seconds_text(left, eta_s);
    const double percent = total > 0.0 ? 100.0 * done / total : 0.0;
    const char *title = p->title ? p->title : "";
    if (total > 0.0)
        snprintf(out, LINE_BYTES, "%s  %3.0f%%  %s / %s %s%s%s%s", title, percent, has,
                 of, unit, *left ? "  " : "", left, *left ? " left" : "");
    else
        snprintf(out, LINE_BYTES, "%s  %s %s", title, has, unit);
}

/* Cuts the text to the width of the terminal: a line that wraps cannot be redrawn. */
static void fit_width(char *text)
{
    struct winsize size;
    int width = 80;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = size.ws_col;
    int columns = 0;
    for (char *c = text; *c; c++) {
        if (((unsigned char)*c & 0xc0) == 0x80) continue; /* inside a character */
        if (++columns >= width) {
            *c = 0;
            return;
        }
    }
}

static void show_terminal(kvm_progress *p, double done, double total, const char *unit,
                          double eta_s)
{
    const bool terminal = on_terminal();
    const double now = kvm_now(), period = terminal ? REDRAW_S : PLAIN_S;
    const double latest = p->shown > 0.0 ? p->shown : terminal ? 0.0 : p->started;
    if (now - latest < period) return;
    char text[LINE_BYTES], line[LINE_BYTES + 16];
    line_text(text, p, done, total, unit, eta_s);
    if (terminal) fit_width(text);
    snprintf(line, sizeof line, terminal ? "\r%s\x1b[K" : "%s\n", text);
    put(line);
    p->shown = now;
}

void kvm_progress_terminal(kvm_progress *p, const char *title)
{
    *p = (kvm_progress){.show = show_terminal};
    kvm_progress_begin(p, title);
}

void kvm_progress_begin(kvm_progress *p, const char *title)
{
    if (!p) return;
    p->title = title;
    p->started = kvm_now();
    p->shown = 0.0;
}

void kvm_progress_at(kvm_progress *p, double done, double total, const char *unit)
{
    if (!p || !p->show) return;
    const double elapsed = kvm_now() - p->started;
    const bool known = total > 0.0 && done > 0.0 && elapsed > 0.0;
    const double left = total > done ? total - done : 0.0;
    p->show(p, done, total, unit ? unit : "", known ? elapsed / done * left : -1.0);
}

void kvm_progress_end(kvm_progress *p)
{
    if (p && p->show == show_terminal && p->shown > 0.0 && on_terminal())
        put("\r\x1b[K");
    if (p) p->shown = 0.0;
}

bool kvm_progress_cancelled(kvm_progress *p)
{
    return p && p->cancelled && p->cancelled(p);
}
