#include "jobs/scoring.h"

#include <math.h>
#include <string.h>

typedef struct words {
    const kvm_str *at;
    ptrdiff_t n;
} words;

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_punctuation(char c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static bool is_article(kvm_str w)
{
    return kvm_str_eq(w, KVM_STR("a")) || kvm_str_eq(w, KVM_STR("an")) ||
           kvm_str_eq(w, KVM_STR("the"));
}

/* the normalised words of a text, punctuation deleted or taken for a space; NULL list
 * when the arena is spent */
static words split(kvm_str text, bool deleted, kvm_arena *a)
{
    char *lower = kvm_new(a, char, text.len + 1);
    kvm_str *list = kvm_new(a, kvm_str, text.len / 2 + 1);
    if (!lower || !list) return (words){0};
    ptrdiff_t len = 0;
    for (ptrdiff_t i = 0; i < text.len; i++) {
        const char c = text.at[i];
        if (is_punctuation(c)) {
            if (!deleted) lower[len++] = ' ';
            continue;
        }
        const bool upper = c >= 'A' && c <= 'Z';
        lower[len++] = (char)(upper ? c - 'A' + 'a' : c);
    }
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < len;) {
        if (is_space(lower[i])) {
            i++;
            continue;
        }
        ptrdiff_t end = i;
        while (end < len && !is_space(lower[end])) end++;
        const kvm_str word = {lower + i, end - i};
        if (!is_article(word)) list[n++] = word;
        i = end;
    }
    return (words){list, n};
}

static bool same(words a, words b)
{
    if (a.n != b.n) return false;
    for (ptrdiff_t i = 0; i < a.n; i++)
        if (!kvm_str_eq(a.at[i], b.at[i])) return false;
    return true;
}

static bool contains(words text, words part)
{
    for (ptrdiff_t i = 0; i + part.n <= text.n; i++)
        if (same((words){text.at + i, part.n}, part)) return part.n > 0;
    return false;
}

/* words both hold, counted as bags; `used` marks what of b is taken */
static ptrdiff_t overlap(words a, words b, bool *used)
{
    ptrdiff_t common = 0;
    for (ptrdiff_t i = 0; i < a.n; i++)
        for (ptrdiff_t j = 0; j < b.n; j++)
            if (!used[j] && kvm_str_eq(a.at[i], b.at[j])) {
                used[j] = true;
                common++;
                break;
            }
    return common;
}

static double f1_of(words text, words gold, ptrdiff_t common)
{
    if (text.n == 0 || gold.n == 0) return text.n == gold.n;
    if (common == 0) return 0;
    const double precision = (double)common / (double)text.n;
    const double recall = (double)common / (double)gold.n;
    return 2 * precision * recall / (precision + recall);
}

kvm_status kvm_score_answer(kvm_answer_score *score, kvm_str text,
                            const kvm_str *accepted, ptrdiff_t n, kvm_arena scratch,
                            kvm_err *err)
{
    kvm_answer_score best = {0};
    const words said = split(text, true, &scratch);
    const words said_apart = split(text, false, &scratch);
    if (!said.at || !said_apart.at) return kvm_nomem(err, &scratch);
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_arena each = scratch;
        const words gold = split(accepted[i], true, &each);
        const words gold_apart = split(accepted[i], false, &each);
        bool *used = kvm_new(&each, bool, gold.n + 1);
        if (!gold.at || !gold_apart.at || !used) return kvm_nomem(err, &each);
        best.exact_match = fmax(best.exact_match, same(said, gold));
        best.gold_in_answer =
            fmax(best.gold_in_answer, contains(said_apart, gold_apart));
        best.f1 = fmax(best.f1, f1_of(said, gold, overlap(said, gold, used)));
    }
    *score = best;
    return KVM_OK;
}

static double log_sum_exp(const float *x, ptrdiff_t n)
{
    double top = x[0], sum = 0;
    for (ptrdiff_t i = 1; i < n; i++) top = fmax(top, (double)x[i]);
    for (ptrdiff_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

double kvm_score_kl(const float *p, const float *q, ptrdiff_t vocab)
{
    const double zp = log_sum_exp(p, vocab), zq = log_sum_exp(q, vocab);
    double kl = 0;
    for (ptrdiff_t i = 0; i < vocab; i++) {
        const double lp = (double)p[i] - zp;
        kl += exp(lp) * (lp - ((double)q[i] - zq));
    }
    return fmax(kl, 0); /* rounding can leave -1e-17 */
}

ptrdiff_t kvm_score_argmax(const float *logits, ptrdiff_t vocab)
{
    ptrdiff_t best = 0;
    for (ptrdiff_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
