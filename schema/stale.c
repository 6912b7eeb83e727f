#include "schema/stale.h"

#include <stdio.h>
#include <string.h>

#include "schema/job_internal.h"

enum { REASONS = 3, CAUSES = 64 };

typedef struct step {
    kvm_str kind, label;
    int64_t version;
    kvm_jat params;
    bool met; /* has its counterpart in the other run */
} step;

typedef struct steps {
    step *of;
    ptrdiff_t n;
} steps;

/* What has been found so far. One cause shows in many steps: it is told of the
 * first. */
typedef struct finding {
    kvm_db *db;
    kvm_arena *a;
    kvm_text why;
    ptrdiff_t reasons; /* found; the first REASONS are told */
    const json_t *was[CAUSES], *is[CAUSES];
    ptrdiff_t causes;
} finding;

static kvm_status read_steps(kvm_db *db, int64_t run, steps *out, kvm_arena *a,
                             kvm_err *err)
{
    kvm_rows rows;
    TRY(kvm_db_query(db, KVM_SQL_RUN_STEPS, KVM_ARGS(kvm_cell_i(run)), &rows, a, err));
    *out = (steps){kvm_new(a, step, rows.count + 1), rows.count};
    if (!out->of) return kvm_nomem(err, a);
    for (ptrdiff_t i = 0; i < rows.count; i++) {
        kvm_jat params;
        TRY(kvm_json_parse(&params, a, kvm_rows_str(&rows, i, 3), KVM_STR("params"),
                           err));
        out->of[i] = (step){.kind = kvm_rows_str(&rows, i, 0),
                            .version = kvm_rows_i64(&rows, i, 1),
                            .label = kvm_rows_str(&rows, i, 2),
                            .params = params};
    }
    return KVM_OK;
}

/* A value may be NULL: not there. */
static bool same(const json_t *a, const json_t *b)
{
    return a == b || (a && b && json_equal(a, b));
}

static bool told(finding *f, const json_t *was, const json_t *is)
{
    for (ptrdiff_t i = 0; i < f->causes; i++)
        if (same(f->was[i], was) && same(f->is[i], is)) return true;
    if (f->causes == CAUSES) return false;
    f->was[f->causes] = was;
    f->is[f->causes++] = is;
    return false;
}

static void reason(finding *f, const step *s, kvm_str what)
{
    if (f->reasons++ >= REASONS) return;
    kvm_text_addf(&f->why, "%s%.*s: %.*s", f->why.len ? "; " : "",
                  KVM_STR_ARG(s->label), KVM_STR_ARG(what));
}

/* "config, tokenizer" of two fingerprints; empty when one of them is not known */
static kvm_status parts_of(finding *f, const json_t *was, const json_t *is,
                           kvm_text *parts, kvm_err *err)
{
    static const char *const names[] = {"config", "tokenizer", "weights"};
    kvm_rows row[2];
    const json_t *const of[] = {was, is};
    for (int i = 0; i < 2; i++) {
        TRY(kvm_db_query(f->db, KVM_SQL_MODEL_PARTS,
                         KVM_ARGS(kvm_cell_c(json_string_value(of[i]))), &row[i], f->a,
                         err));
        if (row[i].count == 0) return KVM_OK;
    }
    for (int k = 0; k < 3; k++)
        if (!kvm_str_eq(kvm_rows_str(&row[0], 0, k), kvm_rows_str(&row[1], 0, k)))
            kvm_text_addf(parts, "%s%s", parts->len ? ", " : "", names[k]);
    return KVM_OK;
}

static kvm_status checkpoint(finding *f, const step *s, const json_t *was,
                             const json_t *is, kvm_err *err)
{
    kvm_text parts = {0}, what = {0};
    const kvm_status status = parts_of(f, was, is, &parts, err);
    kvm_text_addf(&what,
                  parts.len ? "the checkpoint changed (%.*s)"
                            : "the checkpoint changed%.*s",
                  KVM_STR_ARG(kvm_text_str(&parts)));
    if (!status) reason(f, s, kvm_text_str(&what));
    f->why.failed |= what.failed || parts.failed;
    kvm_text_free(&what);
    kvm_text_free(&parts);
    return status;
}

static kvm_status member(finding *f, const step *s, const char *name, const json_t *was,
                         const json_t *is, kvm_err *err)
{
    static const char *const models[] = {"model", "source", "target"};
    if (told(f, was, is)) return KVM_OK;
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, models[i]) && json_is_string(was) && json_is_string(is))
            return checkpoint(f, s, was, is, err);
    if (!strcmp(name, "text")) {
        reason(f, s, KVM_STR("the calibration text changed"));
    } else if (!strcmp(name, "suite")) {
        reason(f, s, KVM_STR("the suite changed"));
    } else {
        const kvm_str what = kvm_str_fmt(f->a, "its %s changed", name);
        if (!what.at) return kvm_nomem(err, f->a);
        reason(f, s, what);
    }
    return KVM_OK;
}

/* The members of one that the other has not, or, when `both`, has otherwise. Those
 * named *_path are places (schema/step_key.c). */
static kvm_status compare_members(finding *f, const step *s, kvm_jat one, kvm_jat other,
                                  bool both, kvm_err *err)
{
    kvm_str name;
    const json_t *v;
    for (void *it = NULL; kvm_json_next(one, &it, &name, &v);) {
        const json_t *w = json_object_get(other.v, name.at);
        if (kvm_str_ends(name, KVM_STR("_path")) || (w && (!both || json_equal(w, v))))
            continue;
        TRY(both ? member(f, s, name.at, w, v, err) : member(f, s, name.at, v, w, err));
    }
    return KVM_OK;
}

/* a kind's code version as a cause: of all of its steps the same */
static json_t *version_of(finding *f, const step *s)
{
    return kvm_json_own(f->a, json_pack("[s%, I]", s->kind.at, (size_t)s->kind.len,
                                        (json_int_t)s->version));
}

static kvm_status compare_steps(finding *f, const step *was, const step *is,
                                kvm_err *err)
{
    if (was->version != is->version) {
        const json_t *old = version_of(f, was), *new = version_of(f, is);
        const kvm_str what =
            kvm_str_fmt(f->a, "code version %lld, now %lld", (long long)was->version,
                        (long long)is->version);
        if (!old || !new || !what.at) return kvm_nomem(err, f->a);
        if (!told(f, old, new)) reason(f, is, what);
    }
    TRY(compare_members(f, is, is->params, was->params, true, err));
    return compare_members(f, is, was->params, is->params, false, err);
}

static kvm_status compare(finding *f, const steps *was, const steps *is, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < was->n; i++) was->of[i].met = false;
    for (ptrdiff_t i = 0; i < is->n; i++) {
        ptrdiff_t k = 0;
        const step *s = &is->of[i];
        while (k < was->n && (was->of[k].met || !kvm_str_eq(was->of[k].kind, s->kind) ||
                              !kvm_str_eq(was->of[k].label, s->label)))
            k++;
        if (k == was->n) {
            reason(f, s, KVM_STR("a new step"));
            continue;
        }
        was->of[k].met = true;
        TRY(compare_steps(f, &was->of[k], s, err));
    }
    for (ptrdiff_t i = 0; i < was->n; i++)
        if (!was->of[i].met) reason(f, &was->of[i], KVM_STR("no longer a step"));
    if (f->reasons > REASONS)
        kvm_text_addf(&f->why, "; %td more", f->reasons - REASONS);
    return f->why.failed ? kvm_fail(err, KVM_NOMEM, "out of memory") : KVM_OK;
}

static kvm_status mark(finding *f, int64_t run, const steps *is, kvm_err *err)
{
    steps was;
    TRY(read_steps(f->db, run, &was, f->a, err));
    TRY(compare(f, &was, is, err));
    if (!f->reasons) return KVM_OK;
    const kvm_str why = kvm_text_str(&f->why);
    TRY(kvm_db_exec(f->db, KVM_SQL_RUN_STALE,
                    KVM_ARGS(kvm_cell_i(run), kvm_cell_s(why)), NULL, err));
    return kvm_event__add(f->db, run, 0, "stale", why, *f->a, err);
}

/* They come newest first. */
static kvm_status mark_others(kvm_db *db, int64_t run, kvm_stale *stale, kvm_arena *a,
                              kvm_err *err)
{
    kvm_rows others;
    steps is = {0};
    TRY(kvm_db_query(db, KVM_SQL_RUNS_OTHER, KVM_ARGS(kvm_cell_i(run)), &others, a,
                     err));
    if (others.count) TRY(read_steps(db, run, &is, a, err));
    for (ptrdiff_t i = 0; i < others.count; i++) {
        finding f = {.db = db, .a = a};
        const int64_t other = kvm_rows_i64(&others, i, 0);
        const kvm_status s = mark(&f, other, &is, err);
        if (!s && f.reasons && !stale->run) {
            stale->run = other;
            snprintf(stale->why, sizeof stale->why, "%.*s",
                     KVM_STR_ARG(kvm_text_str(&f.why)));
        }
        kvm_text_free(&f.why);
        if (s) return s;
    }
    return KVM_OK;
}

/* Parsed documents register cleanups, which a scratch arena may not: they run here. */
kvm_status kvm_run_current(kvm_catalogue *c, int64_t run, kvm_str file,
                           kvm_stale *stale, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_arena a = kvm_arena_split(&scratch, kvm_arena_left(&scratch));
    *stale = (kvm_stale){0};
    kvm_status s = kvm_db_exec(
        c->db, KVM_SQL_RUN_FRESH,
        KVM_ARGS(kvm_cell_i(run), file.len ? kvm_cell_s(file) : (kvm_cell){0}), NULL,
        err);
    if (!s) s = mark_others(c->db, run, stale, &a, err);
    kvm_arena_free(&a);
    return s;
}

kvm_status kvm_model_record(kvm_catalogue *c, const kvm_model_new *m, kvm_err *err)
{
    return kvm_db_exec(c->db, KVM_SQL_MODEL_ADD,
                       KVM_ARGS(kvm_cell_s(m->name), kvm_cell_s(m->family),
                                kvm_cell_c(m->fingerprint), kvm_cell_c(m->config_sha),
                                kvm_cell_c(m->tokenizer_sha),
                                kvm_cell_c(m->weights_sha)),
                       NULL, err);
}
