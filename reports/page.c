#include "reports/page.h"

#include <string.h>

#include "base/file.h"
#include "reports/csv.h"
#include "reports/page_internal.h"

/* ---- head ---- */

static void styles(kvm_page *p)
{
    kvm_page__html(p, "<style>\n");
    const char *const *sheets[] = {kvm_svg_css, kvm_page_css};
    for (int s = 0; s < 2; s++)
        for (const char *const *line = sheets[s]; *line; line++) {
            kvm_text_add(p->out, kvm_str_of(*line));
            kvm_page__html(p, "\n");
        }
    kvm_page__html(p, "</style>\n");
}

static void head(kvm_page *p)
{
    kvm_page__html(p, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
                      "charset=\"utf-8\">\n<meta name=\"viewport\" "
                      "content=\"width=device-width,initial-scale=1\">\n<meta "
                      "name=\"generator\" content=\"kvmill\">\n<title>");
    kvm_page__text(p, p->d->name);
    kvm_page__html(p, ": kvmill report</title>\n");
    styles(p);
    kvm_page__html(p, "</head>\n<body>\n");
}

static void fact(kvm_page *p, double v, kvm_format format, const char *unit)
{
    if (!isfinite(v)) return;
    kvm_page__html(p, " · ");
    kvm_page__number(p, v, format);
    kvm_text_addf(p->out, " %s", unit);
}

static void model(kvm_page *p, const char *role, const kvm_model_card *m)
{
    kvm_text_addf(p->out, "<div>%s <b>", role);
    kvm_page__text(p, m->name);
    kvm_page__html(p, "</b>");
    if (m->family.len) {
        kvm_page__html(p, " · ");
        kvm_page__text(p, m->family);
    }
    fact(p, m->parameters, KVM_FORMAT_RATE, "parameters");
    fact(p, m->layers, KVM_FORMAT_COUNT, "layers");
    if (isfinite(m->kv_heads) && isfinite(m->head_dim)) {
        fact(p, m->kv_heads, KVM_FORMAT_COUNT, "KV heads × ");
        kvm_page__number(p, m->head_dim, KVM_FORMAT_COUNT);
    }
    fact(p, m->context, KVM_FORMAT_COUNT, "tokens of context");
    if (m->dtype.len) {
        kvm_page__html(p, " · ");
        kvm_page__text(p, m->dtype);
    }
    for (ptrdiff_t i = 0; i < m->keep_count; i++) {
        kvm_text_add(p->out, i ? KVM_STR(", ") : KVM_STR(" · keeps "));
        kvm_page__text(p, m->keeps[i]);
    }
    kvm_page__html(p, "</div>\n");
}

/* A link that stays a link: a scheme such as javascript: must not get in through a
 * name. */
static bool plain_href(kvm_str href)
{
    return href.len > 0 && kvm_str_find(href, KVM_STR(":")) < 0 && href.at[0] != '/';
}

static void masthead(kvm_page *p)
{
    kvm_page__html(p, "<header>\n<p class=\"kicker\"><span>kvmill report");
    if (p->d->made.len) {
        kvm_page__html(p, " · ");
        kvm_page__text(p, p->d->made);
    }
    kvm_page__html(p, "</span>");
    if (plain_href(p->d->reverse_href)) {
        kvm_page__html(p, "<a href=\"");
        kvm_page__text(p, p->d->reverse_href);
        kvm_page__html(p, "\">the other direction: ");
        kvm_page__text(p, p->d->reverse_name.len ? p->d->reverse_name
                                                 : p->d->reverse_href);
        kvm_page__html(p, "</a>");
    }
    kvm_page__html(p, "</p>\n<h1>");
    kvm_page__text(p, p->d->source.name);
    kvm_page__html(p, " <span class=\"to\">→</span> ");
    kvm_page__text(p, p->d->target.name);
    kvm_page__html(p, "</h1>\n<div class=\"models\">");
    model(p, "Source", &p->d->source);
    model(p, "Target", &p->d->target);
    kvm_page__html(p, "</div>\n");
    if (p->d->sample.len) {
        kvm_page__html(p, "<p class=\"sample\"><b>Sample, not a measurement.</b> ");
        kvm_page__text(p, p->d->sample);
        kvm_page__html(p, "</p>\n");
    }
    kvm_page__html(p, "</header>\n");
}

/* ---- verdict ---- */

/* none: what stands in place of a figure that is not there */
static void tile(kvm_page *p, const char *name, double v, kvm_format format,
                 const char *none, kvm_str under)
{
    kvm_text_addf(p->out, "<div><dt>%s</dt>", name);
    if (isfinite(v)) {
        kvm_page__html(p, "<dd>");
        kvm_page__number(p, v, format);
    } else {
        kvm_text_addf(p->out, "<dd class=\"none\">%s", none);
    }
    if (under.len) {
        kvm_page__html(p, "<small>");
        kvm_page__text(p, under);
        kvm_page__html(p, "</small>");
    }
    kvm_page__html(p, "</dd></div>\n");
}

static kvm_str over_suites(kvm_page *p, ptrdiff_t n)
{
    if (n)
        return kvm_str_fmt(p->mem, "mean of %td %s", n,
                           n == 1 ? "measure" : "measures");
    return p->verdict->suites_too_few ? KVM_STR("no measure of enough items has it")
                                      : KVM_STR("no measure has it");
}

/* of no suite: why the first that has a retention has no share of the gap */
static kvm_str gap_words(kvm_page *p)
{
    const kvm_verdict *v = p->verdict;
    for (ptrdiff_t i = 0; !v->gap_suites && v->arm >= 0 && i < p->d->suite_count; i++) {
        const kvm_suite *s = &p->d->suites[i];
        const kvm_suite_arm *arm = &s->arms[v->arm];
        if (!s->secondary && arm->present && kvm_est_has(arm->retention) &&
            arm->gap_recovered.note.len)
            return arm->gap_recovered.note;
    }
    return over_suites(p, v->gap_suites);
}

/* "cold ÷ switch at 4,096 tokens [5.10, 5.30]" */
static kvm_str speedup_words(kvm_page *p, const kvm_time_point *at)
{
    if (!at) return KVM_STR("");
    const kvm_str tokens = kvm_number(p->mem, at->tokens, KVM_FORMAT_COUNT);
    const kvm_est e = at->speedup;
    return kvm_str_fmt(p->mem, "cold ÷ switch at %.*s tokens %s%s", KVM_STR_ARG(tokens),
                       kvm_numeral_interval(e, KVM_FORMAT_RATIO).at,
                       kvm_est_spans(e, 1) ? ", neither surely sooner nor later" : "");
}

static kvm_str break_even_words(kvm_page *p, kvm_est even)
{
    if (even.note.len || !kvm_est_has(even)) return even.note;
    return kvm_str_fmt(p->mem, "tokens, interpolated %s",
                       kvm_numeral_interval(even, KVM_FORMAT_COUNT).at);
}

static kvm_str gate_words(kvm_page *p)
{
    const kvm_verdict *v = p->verdict;
    const ptrdiff_t beside = p->d->gate_count - v->gates_apply;
    const kvm_str of =
        kvm_str_fmt(p->mem, "of %td; %td failed, %td not measured", v->gates_apply,
                    v->gates_failed, v->gates_unmeasured);
    if (!beside) return of;
    return kvm_str_fmt(p->mem, "%.*s; %td more %s not apply", KVM_STR_ARG(of), beside,
                       beside == 1 ? "does" : "do");
}

static void tiles(kvm_page *p)
{
    static const char *const none = "not measured";
    const kvm_verdict *v = p->verdict;
    const kvm_time_point *at = v->judged ? v->judged : v->longest;
    const kvm_est even = v->break_even;
    const kvm_str gap = gap_words(p), untimed = KVM_STR("no timing section");
    const bool timed = p->d->timing.count > 0, gates = p->d->gate_count > 0;
    kvm_page__html(p, "<dl class=\"tiles\">\n");
    tile(p, "Retention", v->retention, KVM_FORMAT_PERCENT, none,
         over_suites(p, v->retention_suites));
    tile(p, "After chance", v->floor_normalised, KVM_FORMAT_PERCENT, none,
         over_suites(p, v->floor_suites));
    tile(p, "Gap recovered", v->gap_recovered, KVM_FORMAT_PERCENT,
         kvm_str_starts(gap, KVM_STR("no gap")) ? "no gap" : none, gap);
    tile(p, "Time to first token", at ? at->speedup.value : KVM_NONE, KVM_FORMAT_RATIO,
         none, timed ? speedup_words(p, at) : untimed);
    tile(p, "Sooner from", kvm_est_has(even) ? ceil(even.value) : KVM_NONE,
         KVM_FORMAT_COUNT, none, timed ? break_even_words(p, even) : untimed);
    tile(p, "Gates passed", gates ? (double)v->gates_passed : KVM_NONE,
         KVM_FORMAT_COUNT, none, gates ? gate_words(p) : KVM_STR(""));
    kvm_page__html(p, "</dl>\n");
}

static void verdict(kvm_page *p)
{
    static const char *const tone[] = {
        [KVM_TONE_PLAIN] = "muted", [KVM_TONE_GOOD] = "good",
        [KVM_TONE_WARN] = "warn",   [KVM_TONE_BAD] = "bad",
        [KVM_TONE_MUTED] = "muted", [KVM_TONE_STRONG] = "muted"};
    kvm_text_addf(p->out, "<div class=\"verdict t-%s\" id=\"verdict\">\n<h2>",
                  tone[p->verdict->tone]);
    kvm_page__text(p, p->verdict->headline);
    kvm_page__html(p, "</h2>\n<p>");
    kvm_page__text(p, p->verdict->sentence);
    kvm_page__html(p, "</p>\n");
    tiles(p);
    kvm_page__html(p, "</div>\n");
}

static void contents(kvm_page *p)
{
    kvm_page__html(p, "<nav aria-label=\"Contents\">");
#define X(NAME, key, heading) kvm_page__html(p, "<a href=\"#" key "\">" heading "</a>");
    KVM_SECTIONS(X)
#undef X
    kvm_page__html(p, "</nav>\n");
}

static void notes(kvm_page *p)
{
    if (!p->d->note_count) return;
    kvm_page__html(p, "<ul class=\"lede\">");
    for (ptrdiff_t i = 0; i < p->d->note_count; i++) {
        kvm_page__html(p, "<li>");
        kvm_page__text(p, p->d->notes[i]);
        kvm_page__html(p, "</li>");
    }
    kvm_page__html(p, "</ul>\n");
}

kvm_status kvm_page__provenance(kvm_page *p)
{
    const bool known = p->d->fact_count > 0 || p->d->spec.len > 0;
    if (!kvm_page__section(p, KVM_SECTION_PROVENANCE, known)) return KVM_OK;
    const kvm_table t = kvm_report_table_provenance(p->mem, p->d);
    if (kvm_table_rows(&t)) TRY(kvm_page__table(p, &t, true));
    if (p->d->spec.len) {
        kvm_page__part(p, KVM_STR("The pair's specification"));
        kvm_page__html(p, "<pre>");
        kvm_page__text(p, p->d->spec);
        kvm_page__html(p, "</pre>\n");
    }
    kvm_page__section_end(p);
    return KVM_OK;
}

static kvm_status body(kvm_page *p)
{
    head(p);
    masthead(p);
    kvm_page__html(p, "<main>\n");
    verdict(p);
    notes(p);
    contents(p);
    TRY(kvm_page__gates(p));
    TRY(kvm_page__quality(p));
    TRY(kvm_page__needle(p));
    TRY(kvm_page__answers(p));
    TRY(kvm_page__timing(p));
    TRY(kvm_page__build(p));
    TRY(kvm_page__recipes(p));
    TRY(kvm_page__training(p));
    TRY(kvm_page__linearity(p));
    TRY(kvm_page__layers(p));
    TRY(kvm_page__ablations(p));
    TRY(kvm_page__analyses(p));
    TRY(kvm_page__inversion(p));
    TRY(kvm_page__alternation(p));
    TRY(kvm_page__findings(p));
    TRY(kvm_page__provenance(p));
    kvm_page__html(p, "</main>\n<footer>Written by kvmill from one JSON document; the "
                      "same tables lie beside this page as CSV.</footer>\n</body>\n"
                      "</html>\n");
    return KVM_OK;
}

kvm_status kvm_page_html(kvm_text *out, kvm_jat doc, kvm_arena scratch, kvm_err *err)
{
    kvm_document d;
    kvm_verdict v;
    TRY(kvm_document_read(&d, &scratch, doc, err));
    TRY(kvm_verdict_of(&v, &scratch, &d, err));
    kvm_page p = {out, &d, &v, &scratch, err};
    TRY(body(&p));
    return out->failed ? kvm_fail(err, KVM_NOMEM, "no memory for the page of %.*s",
                                  KVM_STR_ARG(d.name))
                       : KVM_OK;
}

kvm_status kvm_report_verdict(kvm_str *headline, kvm_str *sentence, kvm_arena *keep,
                              kvm_jat doc, kvm_err *err)
{
    kvm_document d;
    kvm_verdict v;
    TRY(kvm_document_read(&d, keep, doc, err));
    TRY(kvm_verdict_of(&v, keep, &d, err));
    *headline = v.headline;
    *sentence = v.sentence;
    return KVM_OK;
}

/* ---- files ---- */

static bool plain_name(kvm_str s)
{
    if (!s.len || s.len > 200 || s.at[0] == '.') return false;
    for (ptrdiff_t i = 0; i < s.len; i++)
        if (s.at[i] == '/' || s.at[i] == '\\' || (unsigned char)s.at[i] < 0x20)
            return false;
    return true;
}

/* text into DIR/NAME.SUFFIX; frees the text */
static kvm_status publish(kvm_str dir, kvm_str name, const char *suffix, kvm_text *text,
                          kvm_arena scratch, kvm_err *err)
{
    const kvm_str file = kvm_str_fmt(&scratch, "%.*s.%s", KVM_STR_ARG(name), suffix);
    const kvm_str path = kvm_path_join(&scratch, dir, file);
    kvm_status s;
    if (!file.at || !path.at)
        s = kvm_nomem(err, &scratch);
    else if (text->failed)
        s = kvm_fail(err, KVM_NOMEM, "%.*s: no memory for its text", KVM_STR_ARG(path));
    else
        s = kvm_file_publish(path, kvm_text_str(text), scratch, err);
    kvm_text_free(text);
    return s;
}

static kvm_status publish_csv(kvm_str dir, const kvm_document *d, kvm_arena scratch,
                              kvm_err *err)
{
    for (const kvm_report_table *r = kvm_report_tables; r->name; r++) {
        kvm_arena mem = scratch; /* each table starts from the same mark */
        const kvm_table t = r->make(&mem, d);
        if (t.failed) return kvm_nomem(err, &mem);
        kvm_text text = {0};
        kvm_table_csv(&text, &t);
        const kvm_str suffix = kvm_str_fmt(&mem, "%s.csv", r->name);
        if (!suffix.at) text.failed = true;
        TRY(publish(dir, d->name, suffix.at ? suffix.at : "csv", &text, mem, err));
    }
    return KVM_OK;
}

kvm_status kvm_report_publish(kvm_str dir, kvm_jat doc, kvm_arena scratch, kvm_err *err)
{
    kvm_document d;
    kvm_str pretty;
    TRY(kvm_document_read(&d, &scratch, doc, err));
    if (!plain_name(d.name))
        return kvm_fail(err, KVM_FORMAT,
                        "%s: pair.name \"%.*s\" cannot be a file name: no slashes, no "
                        "leading dot",
                        doc.file, KVM_STR_ARG(d.name));
    TRY(kvm_dir_make(dir, err));
    kvm_text html = {0}, json = {0};
    const kvm_status drawn = kvm_page_html(&html, doc, scratch, err);
    if (drawn) {
        kvm_text_free(&html);
        return drawn;
    }
    TRY(publish(dir, d.name, "html", &html, scratch, err));
    TRY(kvm_json_pretty(&pretty, &scratch, doc.v, err));
    kvm_text_add(&json, pretty);
    kvm_text_add(&json, KVM_STR("\n"));
    TRY(publish(dir, d.name, "json", &json, scratch, err));
    return publish_csv(dir, &d, scratch, err);
}
