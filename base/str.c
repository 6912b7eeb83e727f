#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvm_str kvm_str_of(const char *nul_terminated)
{
    if (!nul_terminated) return KVM_STR("");
    return (kvm_str){nul_terminated, (ptrdiff_t)strlen(nul_terminated)};
}

int kvm_str_cmp(kvm_str a, kvm_str b)
{
    const ptrdiff_t n = a.len < b.len ? a.len : b.len;
    const int order = n ? memcmp(a.at, b.at, (size_t)n) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

bool kvm_str_eq(kvm_str a, kvm_str b)
{
    return a.len == b.len && kvm_str_cmp(a, b) == 0;
}

bool kvm_str_starts(kvm_str s, kvm_str prefix)
{
    return s.len >= prefix.len && kvm_str_eq(kvm_str_slice(s, 0, prefix.len), prefix);
}

bool kvm_str_ends(kvm_str s, kvm_str suffix)
{
    return s.len >= suffix.len &&
           kvm_str_eq(kvm_str_slice(s, s.len - suffix.len, s.len), suffix);
}

ptrdiff_t kvm_str_find(kvm_str s, kvm_str needle)
{
    if (needle.len == 0) return 0;
    for (ptrdiff_t i = 0; i + needle.len <= s.len; i++) {
        const char *p =
            memchr(s.at + i, needle.at[0], (size_t)(s.len - needle.len - i + 1));
        if (!p) return -1;
        i = p - s.at;
        if (memcmp(p, needle.at, (size_t)needle.len) == 0) return i;
    }
    return -1;
}

kvm_str kvm_str_slice(kvm_str s, ptrdiff_t from, ptrdiff_t to)
{
    if (from < 0) from = 0;
    if (from > s.len) from = s.len;
    if (to > s.len) to = s.len;
    if (to < from) to = from;
    return (kvm_str){s.at ? s.at + from : s.at, to - from};
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

kvm_str kvm_str_trim(kvm_str s)
{
    while (s.len > 0 && is_space(s.at[0])) s = kvm_str_slice(s, 1, s.len);
    while (s.len > 0 && is_space(s.at[s.len - 1])) s.len--;
    return s;
}

bool kvm_str_cut(kvm_str s, char sep, kvm_str *head, kvm_str *tail)
{
    const char *p = s.len > 0 ? memchr(s.at, sep, (size_t)s.len) : NULL;
    const ptrdiff_t at = p ? p - s.at : s.len;
    *head = kvm_str_slice(s, 0, at);
    *tail = kvm_str_slice(s, at + 1, s.len);
    return p != NULL;
}

bool kvm_str_to_i64(kvm_str s, int64_t *out)
{
    const bool minus = s.len > 0 && s.at[0] == '-';
    ptrdiff_t i = minus || (s.len > 0 && s.at[0] == '+');
    int64_t value = 0;
    if (i == s.len) return false;
    for (; i < s.len; i++) {
        if (!is_digit(s.at[i])) return false;
        const int digit = s.at[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, minus ? -digit : digit, &value))
            return false;
    }
    *out = value;
    return true;
}

/* the number of digits at the front of s from *i on; moves *i past them */
static ptrdiff_t digits(kvm_str s, ptrdiff_t *i)
{
    const ptrdiff_t from = *i;
    while (*i < s.len && is_digit(s.at[*i])) ++*i;
    return *i - from;
}

bool kvm_str_is_number(kvm_str s)
{
    ptrdiff_t i = s.len > 0 && (s.at[0] == '-' || s.at[0] == '+');
    ptrdiff_t mantissa = digits(s, &i);
    if (i < s.len && s.at[i] == '.') {
        i++;
        mantissa += digits(s, &i);
    }
    if (mantissa == 0) return false;
    if (i < s.len && (s.at[i] == 'e' || s.at[i] == 'E')) {
        i++;
        if (i < s.len && (s.at[i] == '-' || s.at[i] == '+')) i++;
        if (digits(s, &i) == 0) return false;
    }
    return i == s.len;
}

/* strtod alone would also take white space, hexadecimal, "inf" and "nan". kvmill never
 * calls setlocale, so the decimal point is a point. */
bool kvm_str_to_f64(kvm_str s, double *out)
{
    char text[512];
    if (s.len >= (ptrdiff_t)sizeof text || !kvm_str_is_number(s)) return false;
    memcpy(text, s.at, (size_t)s.len);
    text[s.len] = 0;
    const double value = strtod(text, NULL);
    if (!isfinite(value)) return false;
    *out = value;
    return true;
}

enum { NEAREST_MAX = 64 }; /* longer names are no typing errors */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance in which swapping two neighbours costs one (optimal string alignment).
 */
static int edit_distance(kvm_str a, kvm_str b)
{
    int rows[3][NEAREST_MAX + 1];
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= (int)b.len; j++) above[j] = j;
    for (int i = 1; i <= (int)a.len; i++) {
        row[0] = i;
        for (int j = 1; j <= (int)b.len; j++) {
            const int change = a.at[i - 1] != b.at[j - 1];
            row[j] = least(least(above[j] + 1, row[j - 1] + 1), above[j - 1] + change);
            if (i > 1 && j > 1 && a.at[i - 1] == b.at[j - 2] &&
                a.at[i - 2] == b.at[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
        int *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[b.len];
}

ptrdiff_t kvm_str_nearest(kvm_str s, const kvm_str *candidates, ptrdiff_t n)
{
    ptrdiff_t best = -1;
    ptrdiff_t best_distance = 0;
    if (s.len > NEAREST_MAX) return -1;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (candidates[i].len > NEAREST_MAX) continue;
        const ptrdiff_t d = edit_distance(s, candidates[i]);
        if (2 * d < s.len && (best < 0 || d < best_distance)) {
            best = i;
            best_distance = d;
        }
    }
    return best;
}

kvm_quoted kvm_quote(kvm_str s)
{
    kvm_quoted q = {{0}};
    ptrdiff_t n = s.len < KVM_QUOTE_BYTES ? s.len : KVM_QUOTE_BYTES;
    while (n > 0 && n < s.len && ((unsigned char)s.at[n] & 0xC0) == 0x80) n--;
    if (n > 0) memcpy(q.at, s.at, (size_t)n);
    for (ptrdiff_t i = 0; i < n; i++)
        if (!q.at[i]) q.at[i] = '?';
    if (n < s.len) memcpy(q.at + n, "...", 4);
    return q;
}

kvm_str kvm_str_copy(kvm_arena *a, kvm_str s)
{
    if (s.len < 0 || s.len == PTRDIFF_MAX) return (kvm_str){0};
    char *p = kvm_arena_alloc_raw(a, 1, 1, s.len + 1);
    if (!p) return (kvm_str){0};
    if (s.len > 0) memcpy(p, s.at, (size_t)s.len);
    p[s.len] = 0;
    return (kvm_str){p, s.len};
}

kvm_str kvm_str_fmt(kvm_arena *a, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) return (kvm_str){0};
    char *p = kvm_arena_alloc_raw(a, 1, 1, (ptrdiff_t)n + 1);
    if (!p) return (kvm_str){0};
    va_start(args, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, args);
    va_end(args);
    return (kvm_str){p, n};
}

kvm_str kvm_path_join(kvm_arena *a, kvm_str dir, kvm_str name)
{
    if (dir.len == 0 || (name.len > 0 && name.at[0] == '/'))
        return kvm_str_copy(a, name);
    if (dir.len > PTRDIFF_MAX / 4 || name.len > PTRDIFF_MAX / 4) return (kvm_str){0};
    const bool slash = dir.at[dir.len - 1] != '/';
    char *p = kvm_arena_alloc_raw(a, 1, 1, dir.len + slash + name.len + 1);
    if (!p) return (kvm_str){0};
    memcpy(p, dir.at, (size_t)dir.len);
    if (slash) p[dir.len] = '/';
    if (name.len > 0) memcpy(p + dir.len + slash, name.at, (size_t)name.len);
    p[dir.len + slash + name.len] = 0;
    return (kvm_str){p, dir.len + slash + name.len};
}

/* room for n more bytes and a NUL */
static bool text_room(kvm_text *t, ptrdiff_t n)
{
    if (t->failed) return false;
    if (n < t->cap - t->len) return true;
    ptrdiff_t cap = t->cap ? t->cap : 256;
    while (cap - t->len <= n && cap < PTRDIFF_MAX / 2) cap *= 2;
    char *at = cap - t->len > n ? realloc(t->at, (size_t)cap) : NULL;
    if (!at) {
        t->failed = true;
        return false;
    }
    t->at = at;
    t->cap = cap;
    return true;
}

void kvm_text_add(kvm_text *t, kvm_str s)
{
    if (s.len < 0 || !text_room(t, s.len)) return;
    if (s.len > 0) memcpy(t->at + t->len, s.at, (size_t)s.len);
    t->len += s.len;
    t->at[t->len] = 0;
}

void kvm_text_addf(kvm_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        t->failed = true;
        return;
    }
    if (!text_room(t, n)) return;
    va_start(args, fmt);
    vsnprintf(t->at + t->len, (size_t)n + 1, fmt, args);
    va_end(args);
    t->len += n;
}

void kvm_text_free(kvm_text *t)
{
    free(t->at);
    *t = (kvm_text){0};
}
