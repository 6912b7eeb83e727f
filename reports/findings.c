#include "reports/findings.h"

#include "reports/findings_internal.h"

typedef enum source {
#define X(TAG, title) SOURCE_##TAG,
    KVM_FINDING_SOURCES(X)
#undef X
} source;

static const char *const sources[] = {
#define X(TAG, title) title,
    KVM_FINDING_SOURCES(X)
#undef X
};

static const struct {
    const char *key, *statement, *criterion;
    source source;
    double bar, other, items;
    const char *unit;
    void (*judge)(kvm_judging *j);
} findings[] = {
#define X(id, NAME, key, statement, source, bar, other, items, unit, criterion)        \
    {key,   statement, criterion, SOURCE_##source,    bar,                             \
     other, items,     unit,      kvm_finding__##NAME},
#include "reports/findings.def"
#undef X
};
enum { FINDINGS = sizeof findings / sizeof *findings };

/* ---- claims ---- */

static kvm_claim on_side(double least, double most, double bar)
{
    return most < bar    ? KVM_CLAIM_HOLDS
           : least > bar ? KVM_CLAIM_FAILS
                         : KVM_CLAIM_OPEN;
}

kvm_claim kvm_claim_below(kvm_est e, double bar)
{
    return on_side(kvm_est_least(e), kvm_est_most(e), bar);
}

kvm_claim kvm_claim_above(kvm_est e, double bar)
{
    return on_side(-kvm_est_most(e), -kvm_est_least(e), -bar);
}

kvm_claim kvm_claim_at_least(kvm_est e, double bar)
{
    return kvm_est_least(e) >= bar ? KVM_CLAIM_HOLDS
           : kvm_est_most(e) < bar ? KVM_CLAIM_FAILS
                                   : KVM_CLAIM_OPEN;
}

void kvm_finding__claim(kvm_judging *j, kvm_claim c)
{
    if (c > j->worst) j->worst = c;
    j->claims++;
}

void kvm_finding__rests_on(kvm_judging *j, double items)
{
    if (isfinite(items) && !(j->fewest <= items)) j->fewest = items;
}

/* ---- words ---- */

void kvm_finding__say_text(kvm_judging *j, kvm_str text)
{
    if (j->said.len) kvm_text_add(&j->said, KVM_STR("; "));
    kvm_text_add(&j->said, text);
}

void kvm_finding__say(kvm_judging *j, const char *what, kvm_est e, kvm_format format)
{
    const kvm_str figure = kvm_est_text(j->mem, e, format);
    const kvm_str all = kvm_str_fmt(j->mem, "%s %.*s", what, KVM_STR_ARG(figure));
    if (!figure.at || !all.at)
        j->said.failed = true;
    else
        kvm_finding__say_text(j, all);
}

static void settle(kvm_judging *j, kvm_finding_verdict v, const char *why)
{
    if (j->settled) return; /* the first reason is the reason */
    j->settled = true;
    j->verdict = v;
    kvm_finding__say_text(j, kvm_str_of(why));
}

void kvm_finding__lacks(kvm_judging *j, const char *what)
{
    settle(j, KVM_FINDING_NOT_MEASURED, what);
}

void kvm_finding__cannot(kvm_judging *j, const char *why)
{
    settle(j, KVM_FINDING_INAPPLICABLE, why);
}

/* the criterion with its bars in place of #, and how many items it needs */
static kvm_str in_words(kvm_arena *keep, int row)
{
    const double bars[] = {findings[row].bar, findings[row].other};
    const kvm_str needs = kvm_counted(keep, findings[row].items, findings[row].unit);
    kvm_str out = KVM_STR(""), head, rest = kvm_str_of(findings[row].criterion);
    for (int i = 0; out.at && kvm_str_cut(rest, '#', &head, &rest); i++)
        out = kvm_str_fmt(keep, "%.*s%.*s%g", KVM_STR_ARG(out), KVM_STR_ARG(head),
                          bars[i % 2]);
    if (!out.at || !needs.at) return (kvm_str){0};
    return kvm_str_fmt(keep, "%.*s%.*s Needs at least %.*s.", KVM_STR_ARG(out),
                       KVM_STR_ARG(head), /* without another # all of the rest */
                       KVM_STR_ARG(needs));
}

/* ---- all of them ---- */

static bool too_few(const kvm_judging *j, int row)
{
    return !j->settled && j->claims > 0 && j->fewest < findings[row].items;
}

static void say_too_few(kvm_judging *j, int row)
{
    const kvm_str few = kvm_counted(j->mem, j->fewest, findings[row].unit);
    const kvm_str says =
        kvm_str_fmt(j->mem, "not decided: %.*s, at least %.0f are needed",
                    KVM_STR_ARG(few), findings[row].items);
    if (!few.at || !says.at)
        j->said.failed = true;
    else
        kvm_finding__say_text(j, says);
}

static kvm_finding_verdict verdict_of(const kvm_judging *j, int row)
{
    if (j->settled) return j->verdict;
    if (j->claims == 0) return KVM_FINDING_NOT_MEASURED;
    if (too_few(j, row)) return KVM_FINDING_UNDECIDED;
    switch (j->worst) {
    case KVM_CLAIM_HOLDS:
        return KVM_FINDING_REPRODUCED;
    case KVM_CLAIM_OPEN:
        return KVM_FINDING_UNDECIDED;
    case KVM_CLAIM_FAILS:
        break;
    }
    return KVM_FINDING_NOT_REPRODUCED;
}

static kvm_status judge(kvm_finding_row *out, int i, kvm_arena *keep,
                        const kvm_document *d, kvm_err *err)
{
    kvm_judging j = {.d = d,
                     .bar = findings[i].bar,
                     .other = findings[i].other,
                     .fewest = KVM_NONE,
                     .mem = keep};
    findings[i].judge(&j);
    if (too_few(&j, i)) say_too_few(&j, i);
    *out = (kvm_finding_row){.key = kvm_str_of(findings[i].key),
                             .statement = kvm_str_of(findings[i].statement),
                             .source = kvm_str_of(sources[findings[i].source]),
                             .criterion = in_words(keep, i),
                             .text = kvm_str_copy(keep, kvm_text_str(&j.said)),
                             .verdict = verdict_of(&j, i)};
    const bool failed = j.said.failed || !out->criterion.at || !out->text.at;
    kvm_text_free(&j.said);
    return failed ? kvm_nomem(err, keep) : KVM_OK;
}

kvm_status kvm_findings(kvm_finding_row **rows, ptrdiff_t *n, kvm_arena *keep,
                        const kvm_document *d, kvm_err *err)
{
    kvm_finding_row *out = kvm_new(keep, kvm_finding_row, FINDINGS);
    if (!out) return kvm_nomem(err, keep);
    for (int i = 0; i < FINDINGS; i++) TRY(judge(&out[i], i, keep, d, err));
    *rows = out;
    *n = FINDINGS;
    return KVM_OK;
}
