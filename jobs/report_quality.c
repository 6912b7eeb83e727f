/* report_quality.c - suites and needle recall by length, from the items that were
 * scored. */
#include <math.h>
#include <string.h>

#include "jobs/report_parts.h"
#include "reports/stats.h"

enum { HIGH, LOW };
const kvm_report_metric kvm_report_metrics[] = {
#define X(kind, name, title, format, better, mean)                                     \
    {#kind, #name, title, format, better == LOW, KVM_MEAN_##mean},
#include "jobs/metrics.def"
#undef X
    {0}};

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* an arm is scored on every item or on none: a hole would count as 0 */
static kvm_status check_holes(const ptrdiff_t seen[KVM_ARM_COUNT], ptrdiff_t n,
                              const kvm_report_metric *m, kvm_err *err)
{
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        if (seen[a] && seen[a] != n)
            return kvm_fail(err, KVM_MISMATCH,
                            "%s of %s stands beside %td of %td items", m->name,
                            kvm_arms[a].key, seen[a], n);
    return KVM_OK;
}

/* the items of a suite as columns, one per arm; items of stated length `length` only
 * (0: all) */
static kvm_status columns(kvm_scores *s, const json_t *items,
                          const kvm_report_metric *m, int64_t length,
                          kvm_arena *scratch, kvm_err *err)
{
    double *column[KVM_ARM_COUNT];
    ptrdiff_t seen[KVM_ARM_COUNT] = {0};
    const ptrdiff_t most = (ptrdiff_t)json_array_size(items);
    double *weight = kvm_new(scratch, double, most + 1);
    if (!weight) return kvm_nomem(err, scratch);
    if (m->mean != KVM_MEAN_ITEM) s->weight = weight;
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        if (!(column[a] = kvm_new(scratch, double, most + 1)))
            return kvm_nomem(err, scratch);
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        if (length && json_integer_value(get(item, "length")) != length) continue;
        for (int a = 0; a < KVM_ARM_COUNT; a++) {
            const json_t *v = get(get(get(item, "scores"), kvm_arms[a].key), m->name);
            if (!v) continue;
            column[a][s->n] = json_number_value(v);
            seen[a]++;
        }
        weight[s->n] = json_number_value(get(item, "scored"));
        s->n++;
    }
    for (int a = 0; a < KVM_ARM_COUNT; a++) s->item[a] = seen[a] ? column[a] : NULL;
    return check_holes(seen, s->n, m, err);
}

static kvm_status compare(kvm_report_builder *b, kvm_comparison out[KVM_ARM_COUNT],
                          kvm_scores *s, const json_t *items,
                          const kvm_report_metric *m, double chance, int64_t length,
                          kvm_arena scratch, kvm_err *err)
{
    *s = (kvm_scores){.chance = m->low ? (double)NAN : chance,
                      .lower_better = m->low,
                      .exp_of_mean = m->mean == KVM_MEAN_PERPLEXITY,
                      .seed = b->seed};
    TRY(columns(s, items, m, length, &scratch, err));
    return kvm_compare(out, s, scratch, err);
}

/* ---- suites ---- */

static json_t *arms_json(const kvm_scores *s, const kvm_comparison c[KVM_ARM_COUNT])
{
    json_t *arms = json_object();
    for (int a = 0; a < KVM_ARM_COUNT; a++)
        if (s->item[a])
            json_object_set_new(arms, kvm_arms[a].key, kvm_comparison_json(&c[a]));
    return arms;
}

/* what training has gained: every other translator less the closed form, paired */
static kvm_status versus_closed(kvm_report_builder *b, const json_t *items,
                                const kvm_report_metric *m, json_t *arms,
                                kvm_arena scratch, kvm_err *err)
{
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        kvm_scores s;
        kvm_est score, versus;
        json_t *arm = get(arms, kvm_arms[a].key);
        if (!arm || kvm_arms[a].group != KVM_ARM || a == KVM_ARM_CLOSED_FORM) continue;
        kvm_arena room = scratch;
        s = (kvm_scores){0};
        TRY(columns(&s, items, m, 0, &room, err));
        const kvm_pair_of_scores p = {.item = s.item[a],
                                      .base = s.item[KVM_ARM_CLOSED_FORM],
                                      .weight = s.weight,
                                      .exp_of_mean = m->mean == KVM_MEAN_PERPLEXITY,
                                      .n = s.n,
                                      .seed = b->seed};
        if (!p.base) return KVM_OK;
        TRY(kvm_paired(&score, &versus, &p, room, err));
        json_object_set_new(arm, "versus_closed", kvm_est_json(versus));
    }
    return KVM_OK;
}

static json_t *absent_note(const json_t *figures)
{
    kvm_text t = {0};
    const char *arm;
    json_t *why;
    json_object_foreach(get(figures, "absent"), arm, why)
    {
        kvm_arm a;
        if (strcmp(arm, "distilled") == 0) continue;
        kvm_text_addf(&t, "%s%s: %s", t.len ? "; " : "",
                      kvm_arm_find(kvm_str_of(arm), &a) ? kvm_arms[a].label : arm,
                      json_string_value(why));
    }
    json_t *note = t.len ? json_stringn(t.at, (size_t)t.len) : NULL;
    kvm_text_free(&t);
    return note;
}

static kvm_status add_suite(kvm_report_builder *b, json_t *suites, const json_t *items,
                            const json_t *figures, const kvm_report_metric *m,
                            kvm_arena scratch, kvm_err *err)
{
    kvm_comparison c[KVM_ARM_COUNT];
    kvm_scores s;
    const char *name = json_string_value(get(figures, "suite"));
    TRY(compare(b, c, &s, items, m, json_number_value(get(figures, "chance")), 0,
                scratch, err));
    char key[128], title[160];
    snprintf(key, sizeof key, "%s.%s", name, m->name);
    snprintf(title, sizeof title, "%s: %s", name, m->title);
    json_t *suite = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:o}", "name", key,
                              "title", title, "metric", m->title, "format", m->format,
                              "better", m->low ? "low" : "high", "items",
                              (json_int_t)s.n, "arms", arms_json(&s, c));
    json_t *note = absent_note(figures);
    if (strcmp(m->name, json_string_value(get(figures, "metric"))) != 0)
        json_object_set_new(suite, "secondary", json_true());
    if (!m->low) json_object_set(suite, "chance", get(figures, "chance"));
    if (note) json_object_set_new(suite, "note", note);
    json_array_append_new(suites, suite);
    return versus_closed(b, items, m, get(suite, "arms"), scratch, err);
}

/* ---- needle ---- */

ptrdiff_t kvm_report_lengths(const json_t *items, int64_t lengths[KVM_REPORT_LENGTHS])
{
    ptrdiff_t n = 0;
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        const int64_t length = json_integer_value(get(item, "length"));
        ptrdiff_t at = 0;
        while (at < n && lengths[at] < length) at++;
        if ((at < n && lengths[at] == length) || n == KVM_REPORT_LENGTHS) continue;
        memmove(lengths + at + 1, lengths + at, (size_t)(n - at) * sizeof *lengths);
        lengths[at] = length;
        n++;
    }
    return n;
}

static double mean_tokens(const json_t *items, int64_t length)
{
    double sum = 0, n = 0;
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        if (json_integer_value(get(item, "length")) != length) continue;
        sum += json_number_value(get(item, "tokens"));
        n++;
    }
    return n > 0 ? floor(sum / n + 0.5) : 0;
}

static kvm_status add_needle(kvm_report_builder *b, const json_t *items,
                             const kvm_report_metric *m, kvm_arena scratch,
                             kvm_err *err)
{
    int64_t lengths[KVM_REPORT_LENGTHS];
    const ptrdiff_t n = kvm_report_lengths(items, lengths);
    json_t *points = json_array();
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_comparison c[KVM_ARM_COUNT];
        kvm_scores s;
        TRY(compare(b, c, &s, items, m, 0, lengths[i], scratch, err));
        json_t *arms = json_object();
        for (int a = 0; a < KVM_ARM_COUNT; a++)
            if (s.item[a])
                json_object_set_new(arms, kvm_arms[a].key, kvm_est_json(c[a].score));
        json_array_append_new(points, json_pack("{s:I, s:f, s:I, s:o}", "tokens",
                                                (json_int_t)lengths[i], "achieved",
                                                mean_tokens(items, lengths[i]), "items",
                                                (json_int_t)s.n, "arms", arms));
    }
    json_object_set_new(b->doc, "needle", json_pack("{s:o}", "points", points));
    return KVM_OK;
}

static kvm_status add_one(kvm_report_builder *b, json_t *suites,
                          const kvm_job_input *items_in,
                          const kvm_job_input *figures_in, kvm_arena scratch,
                          kvm_err *err)
{
    json_t *items, *figures;
    TRY(kvm_report_load_lines(b, items_in, &items, err));
    TRY(kvm_report_load(b, figures_in, &figures, err));
    json_array_append_new(b->backends, json_pack("[O, O]", get(figures, "suite"),
                                                 get(figures, "backend")));
    const char *kind = json_string_value(get(figures, "kind"));
    for (ptrdiff_t i = 0; kvm_report_metrics[i].kind; i++) {
        if (strcmp(kvm_report_metrics[i].kind, kind) != 0) continue;
        TRY(add_suite(b, suites, items, figures, &kvm_report_metrics[i], scratch, err));
        if (strcmp(kind, "needle") == 0)
            TRY(add_needle(b, items, &kvm_report_metrics[i], scratch, err));
    }
    return KVM_OK;
}

static kvm_status with_scratch(kvm_report_builder *b, kvm_arena *scratch,
                               kvm_status (*part)(kvm_report_builder *, kvm_arena,
                                                  kvm_err *),
                               kvm_err *err)
{
    TRY(kvm_arena_reserve(scratch, (size_t)4 << 30, err));
    const kvm_status s = part(b, *scratch, err);
    kvm_arena_free(scratch);
    return s;
}

static kvm_status quality(kvm_report_builder *b, kvm_arena scratch, kvm_err *err)
{
    json_t *suites = json_array();
    json_object_set_new(b->doc, "suites", suites);
    const kvm_job_input *items, *figures;
    const char *rest;
    for (ptrdiff_t i = 0; (items = kvm_report_nth(b, "items", i, &rest)); i++) {
        TRY(kvm_report_beside(b, "figures", rest, &figures, err));
        TRY(add_one(b, suites, items, figures, scratch, err));
    }
    return KVM_OK;
}

kvm_status kvm_report_quality(kvm_report_builder *b, kvm_err *err)
{
    kvm_arena scratch = {0};
    if (!kvm_report_nth(b, "items", 0, NULL)) {
        json_object_set_new(b->absent, "suites",
                            json_string("the spec asks for no evaluation"));
        json_object_set_new(b->absent, "needle",
                            json_string("the spec asks for no evaluation"));
        return KVM_OK;
    }
    TRY(with_scratch(b, &scratch, quality, err));
    if (!get(b->doc, "needle"))
        json_object_set_new(b->absent, "needle",
                            json_string("the spec names no needle suite"));
    return KVM_OK;
}
