#include "reports/document.h"

#include <string.h>

#include "reports/document_internal.h"
#include "reports/page.h"

/* ---- the sticky reader ---- */

static void hold(kvm_doc_reader *r, kvm_status s)
{
    if (!r->status) r->status = s;
}

kvm_jat kvm_doc__get(kvm_doc_reader *r, kvm_jat at, const char *key)
{
    if (!r->status && kvm_json_has(at)) hold(r, kvm_json_object(at, r->err));
    return kvm_json_get(at, r->keep, key);
}

kvm_str kvm_doc__str(kvm_doc_reader *r, kvm_jat at, const char *key)
{
    kvm_str out = KVM_STR("");
    if (!r->status)
        hold(r, kvm_json_str_or(kvm_doc__get(r, at, key), out, &out, r->err));
    return out;
}

double kvm_doc__num(kvm_doc_reader *r, kvm_jat at, const char *key)
{
    double out = KVM_NONE;
    if (!r->status)
        hold(r, kvm_json_f64_or(kvm_doc__get(r, at, key), out, &out, r->err));
    return out;
}

bool kvm_doc__flag(kvm_doc_reader *r, kvm_jat at, const char *key, bool fallback)
{
    bool out = fallback;
    if (!r->status)
        hold(r, kvm_json_bool_or(kvm_doc__get(r, at, key), out, &out, r->err));
    return out;
}

kvm_est kvm_doc__est_at(kvm_doc_reader *r, kvm_jat at)
{
    kvm_est e = kvm_est_missing(KVM_STR(""));
    if (r->status || !kvm_json_has(at)) return e;
    if (!json_is_object(at.v)) {
        hold(r, kvm_json_f64(at, &e.value, r->err));
        return e;
    }
    e.value = kvm_doc__num(r, at, "value");
    e.low = kvm_doc__num(r, at, "low");
    e.high = kvm_doc__num(r, at, "high");
    e.note = kvm_doc__str(r, at, "note");
    return e;
}

kvm_est kvm_doc__est(kvm_doc_reader *r, kvm_jat at, const char *key)
{
    return kvm_doc__est_at(r, kvm_doc__get(r, at, key));
}

kvm_format kvm_doc__format(kvm_doc_reader *r, kvm_jat at)
{
    kvm_format format = KVM_FORMAT_NUMBER;
    const kvm_str word = kvm_doc__str(r, at, "format");
    if (word.len && !kvm_format_find(word, &format))
        hold(r, kvm_fail(r->err, KVM_FORMAT, "%s: %s.format: \"%.*s\" is no format",
                         at.file, at.path, KVM_STR_ARG(word)));
    return format;
}

void *kvm_doc__list_at(kvm_doc_reader *r, kvm_jat at, size_t size, ptrdiff_t *n)
{
    *n = 0;
    ptrdiff_t count = 0;
    if (r->status || !kvm_json_has(at)) return NULL;
    hold(r, kvm_json_array(at, &count, r->err));
    if (!r->status && count > KVM_DOC_MOST)
        hold(r, kvm_fail(r->err, KVM_RANGE, "%s: %s: %td entries, a page holds %d",
                         at.file, at.path, count, KVM_DOC_MOST));
    if (r->status || !count) return NULL;
    void *list = kvm_arena_alloc(r->keep, size, 16, count);
    if (!list)
        hold(r, kvm_nomem(r->err, r->keep));
    else
        *n = count;
    return list;
}

kvm_jat kvm_doc__item(kvm_doc_reader *r, kvm_jat list, ptrdiff_t i)
{
    const kvm_jat item = kvm_json_item(list, r->keep, i);
    if (!r->status) hold(r, kvm_json_object(item, r->err));
    return item;
}

kvm_numbers kvm_doc__numbers_at(kvm_doc_reader *r, kvm_jat at)
{
    kvm_numbers out = {0};
    out.at = kvm_doc__list_at(r, at, sizeof *out.at, &out.n);
    for (ptrdiff_t i = 0; i < out.n; i++) {
        const json_t *v = json_array_get(at.v, (size_t)i);
        out.at[i] = json_is_number(v) ? json_number_value(v) : KVM_NONE;
        if (!json_is_number(v) && !json_is_null(v))
            hold(r, kvm_json_f64(kvm_json_item(at, r->keep, i), &out.at[i], r->err));
    }
    return out;
}

kvm_numbers kvm_doc__numbers(kvm_doc_reader *r, kvm_jat at, const char *key)
{
    return kvm_doc__numbers_at(r, kvm_doc__get(r, at, key));
}

kvm_str *kvm_doc__words(kvm_doc_reader *r, kvm_jat at, const char *key, ptrdiff_t *n)
{
    const kvm_jat list = kvm_doc__get(r, at, key);
    kvm_str *words = kvm_doc__list_at(r, list, sizeof *words, n);
    for (ptrdiff_t i = 0; i < *n && !r->status; i++)
        hold(r, kvm_json_str(kvm_json_item(list, r->keep, i), &words[i], r->err));
    return words;
}

static bool layer_number(double v)
{
    return v >= 0 && v < 1e6;
}

ptrdiff_t kvm_doc__layer(kvm_doc_reader *r, kvm_jat at, const char *key,
                         ptrdiff_t fallback)
{
    const double v = kvm_doc__num(r, at, key);
    return layer_number(v) ? (ptrdiff_t)v : fallback;
}

kvm_numbers kvm_doc__layers(kvm_doc_reader *r, kvm_jat at, const char *key)
{
    const kvm_numbers list = kvm_doc__numbers(r, at, key);
    for (ptrdiff_t i = 0; i < list.n; i++)
        list.at[i] = layer_number(list.at[i]) ? floor(list.at[i]) : (double)i;
    return list;
}

void kvm_doc__length(kvm_doc_reader *r, kvm_jat at, const char *key, ptrdiff_t is,
                     ptrdiff_t must)
{
    if (is != must)
        hold(r, kvm_fail(r->err, KVM_FORMAT, "%s: %s.%s: %td entries where %td belong",
                         at.file, at.path, key, is, must));
}

kvm_arm kvm_doc__arm(kvm_doc_reader *r, kvm_jat at, kvm_str key)
{
    kvm_arm arm = KVM_ARM_NATIVE;
    if (r->status || kvm_arm_find(key, &arm)) return arm;
    kvm_str known[KVM_ARM_COUNT];
    for (int a = 0; a < KVM_ARM_COUNT; a++) known[a] = kvm_str_of(kvm_arms[a].key);
    const ptrdiff_t near = kvm_str_nearest(key, known, KVM_ARM_COUNT);
    hold(r, kvm_fail(r->err, KVM_FORMAT,
                     "%s: %s: \"%.*s\" is no arm%s%s (the list is reports/arms.def)",
                     at.file, at.path, KVM_STR_ARG(key), near < 0 ? "" : "; nearest: ",
                     near < 0 ? "" : kvm_arms[near].key));
    return arm;
}

/* ---- the head ---- */

static const kvm_str other_keys[] = {
    {"format", 6},       {"version", 7},    {"sample", 6}, {"made", 4},
    {"pair", 4},         {"spec", 4},       {"notes", 5},  {"absent", 6},
    {"calibration", 11}, {"translator", 10}};
enum { OTHER_KEYS = sizeof other_keys / sizeof *other_keys };

static const kvm_str section_keys[KVM_SECTION_COUNT] = {
#define X(NAME, key, heading) {key, sizeof(key) - 1},
    KVM_SECTIONS(X)
#undef X
};

static int find_section(kvm_str key)
{
    for (int s = 0; s < KVM_SECTION_COUNT; s++)
        if (kvm_str_eq(key, section_keys[s])) return s;
    return -1;
}

/* A section with a misspelt name would be shown as not measured: refuse it. */
static void check_keys(kvm_doc_reader *r, kvm_jat doc)
{
    kvm_str known[KVM_SECTION_COUNT + OTHER_KEYS];
    memcpy(known, section_keys, sizeof section_keys);
    memcpy(known + KVM_SECTION_COUNT, other_keys, sizeof other_keys);
    kvm_str key;
    const json_t *value;
    for (void *at = NULL; !r->status && kvm_json_next(doc, &at, &key, &value);) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found |= kvm_str_eq(key, known[i]);
        if (found) continue;
        const ptrdiff_t near =
            kvm_str_nearest(key, known, sizeof known / sizeof *known);
        hold(r, kvm_fail(r->err, KVM_FORMAT, "%s: unknown section \"%.*s\"%s%.*s",
                         doc.file, KVM_STR_ARG(key), near < 0 ? "" : "; nearest: ",
                         near < 0 ? 0 : (int)known[near].len,
                         near < 0 ? "" : known[near].at));
    }
}

static void read_model(kvm_doc_reader *r, kvm_model_card *m, kvm_jat pair,
                       const char *key)
{
    const kvm_jat at = kvm_doc__get(r, pair, key);
    if (!r->status) hold(r, kvm_json_object(at, r->err));
    m->name = kvm_doc__str(r, at, "name");
    m->family = kvm_doc__str(r, at, "family");
    m->dtype = kvm_doc__str(r, at, "dtype");
    m->parameters = kvm_doc__num(r, at, "parameters");
    m->layers = kvm_doc__num(r, at, "layers");
    m->kv_heads = kvm_doc__num(r, at, "kv_heads");
    m->head_dim = kvm_doc__num(r, at, "head_dim");
    m->context = kvm_doc__num(r, at, "context");
    m->keeps = kvm_doc__words(r, at, "keeps", &m->keep_count);
    if (!r->status && !m->name.len)
        hold(r,
             kvm_fail(r->err, KVM_FORMAT, "%s: %s.name is missing", at.file, at.path));
}

static void read_pair(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat pair = kvm_doc__get(r, doc, "pair");
    if (!r->status) hold(r, kvm_json_object(pair, r->err));
    r->d->name = kvm_doc__str(r, pair, "name");
    if (!r->status && !r->d->name.len)
        hold(r, kvm_fail(r->err, KVM_FORMAT, "%s: pair.name is missing", doc.file));
    read_model(r, &r->d->source, pair, "source");
    read_model(r, &r->d->target, pair, "target");
    const kvm_jat reverse = kvm_doc__get(r, pair, "reverse");
    if (!kvm_json_has(reverse)) return;
    r->d->reverse_name = kvm_doc__str(r, reverse, "name");
    r->d->reverse_href = kvm_doc__str(r, reverse, "href");
}

static void read_translator(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "translator");
    r->d->translator.arm = -1;
    r->d->translator.present = kvm_json_has(at);
    const kvm_str arm = kvm_doc__str(r, at, "arm");
    if (arm.len) r->d->translator.arm = (int)kvm_doc__arm(r, at, arm);
    r->d->translator.shape = kvm_doc__str(r, at, "shape");
    r->d->translator.parameters = kvm_doc__num(r, at, "parameters");
    r->d->translator.bytes = kvm_doc__num(r, at, "bytes");
}

static void read_calibration(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "calibration");
    r->d->calibration.present = kvm_json_has(at);
    r->d->calibration.text = kvm_doc__str(r, at, "text");
    r->d->calibration.sequences = kvm_doc__num(r, at, "sequences");
    r->d->calibration.sequence_tokens = kvm_doc__num(r, at, "sequence_tokens");
    r->d->calibration.stride = kvm_doc__num(r, at, "stride");
    r->d->calibration.rows = kvm_doc__num(r, at, "rows");
    r->d->calibration.choosing_rows = kvm_doc__num(r, at, "choosing_rows");
    r->d->calibration.held_out_rows = kvm_doc__num(r, at, "held_out_rows");
    r->d->calibration.features = kvm_doc__num(r, at, "features");
}

static void read_absent(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "absent");
    for (int s = 0; s < KVM_SECTION_COUNT; s++)
        r->d->absent[s] = kvm_doc__str(r, at, section_keys[s].at);
    kvm_str key;
    const json_t *value;
    for (void *it = NULL; !r->status && kvm_json_next(at, &it, &key, &value);)
        if (find_section(key) < 0)
            hold(r, kvm_fail(r->err, KVM_FORMAT, "%s: absent: \"%.*s\" is no section",
                             doc.file, KVM_STR_ARG(key)));
}

static void read_notes(kvm_doc_reader *r, kvm_jat doc)
{
    r->d->notes = kvm_doc__words(r, doc, "notes", &r->d->note_count);
}

static kvm_status check_version(kvm_jat doc, kvm_arena *keep, kvm_err *err)
{
    kvm_str format;
    int64_t version;
    TRY(kvm_json_object(doc, err));
    TRY(kvm_json_str(kvm_json_get(doc, keep, "format"), &format, err));
    if (!kvm_str_eq(format, KVM_STR(KVM_REPORT_FORMAT)))
        return kvm_fail(err, KVM_FORMAT, "%s: format is \"%.*s\", expected \"%s\"",
                        doc.file, KVM_STR_ARG(format), KVM_REPORT_FORMAT);
    TRY(kvm_json_i64(kvm_json_get(doc, keep, "version"), &version, err));
    if (version != KVM_REPORT_VERSION)
        return kvm_fail(err, KVM_VERSION,
                        "%s: report document version %lld; this kvmill reads %d",
                        doc.file, (long long)version, KVM_REPORT_VERSION);
    return KVM_OK;
}

kvm_status kvm_document_read(kvm_document *out, kvm_arena *keep, kvm_jat doc,
                             kvm_err *err)
{
    TRY(check_version(doc, keep, err));
    kvm_document d = {0};
    kvm_doc_reader r = {.d = &d, .keep = keep, .err = err};
    check_keys(&r, doc);
    d.sample = kvm_doc__str(&r, doc, "sample");
    d.made = kvm_doc__str(&r, doc, "made");
    d.spec = kvm_doc__str(&r, doc, "spec");
    read_pair(&r, doc);
    read_translator(&r, doc);
    read_calibration(&r, doc);
    read_absent(&r, doc);
    read_notes(&r, doc);
    kvm_doc__fit(&r, doc);
    kvm_doc__translator(&r, doc);
    kvm_doc__results(&r, doc);
    kvm_doc__analyses(&r, doc);
    kvm_doc__alternation(&r, doc);
    kvm_doc__findings(&r, doc);
    if (!r.status) *out = d;
    return r.status;
}

/* ---- questions asked of it ---- */

bool kvm_suite_decides(const kvm_suite *s)
{
    return !s->secondary && !(s->items < KVM_LEAST_ITEMS);
}

double kvm_mean_ratio(const kvm_document *d, int arm, int which, ptrdiff_t *suites)
{
    double sum = 0;
    *suites = 0;
    for (ptrdiff_t i = 0; i < d->suite_count && arm >= 0; i++) {
        const kvm_suite_arm *a = &d->suites[i].arms[arm];
        if (!kvm_suite_decides(&d->suites[i])) continue;
        const double v = which == 0   ? a->retention.value
                         : which == 1 ? a->floor_normalised.value
                                      : a->gap_recovered.value;
        if (!a->present || !isfinite(v)) continue;
        if (which == 2 && !isfinite(a->retention.value)) continue;
        sum += v;
        ++*suites;
    }
    return *suites ? sum / (double)*suites : KVM_NONE;
}

bool kvm_model_keeps(const kvm_model_card *m, const char *name)
{
    for (ptrdiff_t i = 0; i < m->keep_count; i++)
        if (kvm_str_eq(m->keeps[i], kvm_str_of(name))) return true;
    return m->keep_count == 0;
}

int kvm_document_arm(const kvm_document *d)
{
    if (d->translator.arm >= 0) return d->translator.arm;
    int best = -1;
    double best_mean = -(double)INFINITY;
    for (int a = 0; a < KVM_ARM_COUNT; a++) {
        if (kvm_arms[a].group != KVM_ARM) continue;
        ptrdiff_t suites;
        const double mean = kvm_mean_ratio(d, a, 1, &suites);
        if (isfinite(mean) && mean > best_mean) best = a, best_mean = mean;
    }
    for (int a = 0; a < KVM_ARM_COUNT && best < 0; a++)
        for (ptrdiff_t s = 0; s < d->suite_count && best < 0; s++)
            if (kvm_arms[a].group == KVM_ARM && d->suites[s].arms[a].present) best = a;
    return best;
}

bool kvm_document_kept_closed_form(const kvm_document *d)
{
    return isfinite(d->training.best_step) && !(d->training.best_step > 0);
}
