/* records.c - reading what a job recorded. The file was written by a process that may
 * have died in the middle of a line, or by a job with a bug: nothing in it is believed
 * before it is checked. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "workers/host.h"

/* Lists that grow in an arena. */
typedef struct list {
    void *at;
    ptrdiff_t count, cap;
} list;

static void *grow(list *l, kvm_arena *keep, size_t size)
{
    if (l->count == l->cap) {
        const ptrdiff_t cap = l->cap ? 2 * l->cap : 16;
        void *more = kvm_arena_alloc(keep, size, _Alignof(max_align_t), cap);
        if (!more) return NULL;
        if (l->count) memcpy(more, l->at, size * (size_t)l->count);
        l->at = more;
        l->cap = cap;
    }
    return (char *)l->at + size * (size_t)l->count++;
}
#define PUSH(list, keep, type) ((type *)grow(list, keep, sizeof(type)))

typedef struct reader {
    kvm_records *out;
    kvm_arena *keep;
    list outputs, metrics, samples, timings, events, verified;
    bool spent; /* of memory */
} reader;

/* Text of the line's member, copied; spent or !*ok when it is not there. */
static kvm_str text(reader *r, const json_t *line, const char *key, bool *ok)
{
    const json_t *v = json_object_get(line, key);
    if (!json_is_string(v)) {
        *ok = false;
        return KVM_STR("");
    }
    const kvm_str s = kvm_str_copy(
        r->keep, (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)});
    if (s.at) return s;
    r->spent = true;
    return KVM_STR("");
}

static double number(const json_t *line, const char *key, bool *ok)
{
    const json_t *v = json_object_get(line, key);
    if (!json_is_number(v)) *ok = false;
    return json_number_value(v);
}

/* 0..most; as an integer, since a double outside the type's range must not be
 * converted */
static int64_t counted(const json_t *line, const char *key, int64_t most, bool *ok)
{
    const json_t *v = json_object_get(line, key);
    const json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 0 && n <= most) return n;
    *ok = false;
    return 0;
}

static bool is_status(int64_t id)
{
    switch (id) {
#define X(id, name, action, text) case id:
#include "base/status.def"
#undef X
        return true;
    default:
        return false;
    }
}

static bool read_output(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_recorded_output *o = PUSH(&r->outputs, r->keep, kvm_recorded_output);
    if (!o) return !(r->spent = true);
    o->name = text(r, line, "output", &ok);
    o->path = text(r, line, "path", &ok);
    return ok;
}

static bool read_metric(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_result_metric *m = PUSH(&r->metrics, r->keep, kvm_result_metric);
    if (!m) return !(r->spent = true);
    m->name = text(r, line, "metric", &ok);
    m->value = number(line, "value", &ok);
    const json_t *labels = json_object_get(line, "labels");
    if (!json_is_object(labels)) return false;
    if (kvm_json_canonical(&m->labels, r->keep, labels, NULL)) r->spent = true;
    return ok;
}

static bool read_sample(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_result_sample *x = PUSH(&r->samples, r->keep, kvm_result_sample);
    if (!x) return !(r->spent = true);
    x->suite = text(r, line, "sample", &ok);
    x->arm = text(r, line, "arm", &ok);
    x->metric = text(r, line, "metric", &ok);
    x->item = text(r, line, "item", &ok);
    x->value = number(line, "value", &ok);
    return ok;
}

static bool read_timing(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_result_timing *t = PUSH(&r->timings, r->keep, kvm_result_timing);
    if (!t) return !(r->spent = true);
    t->arm = text(r, line, "timing", &ok);
    t->stage = text(r, line, "stage", &ok);
    t->tokens = counted(line, "tokens", INT64_MAX, &ok);
    const json_t *all = json_object_get(line, "seconds");
    if (!ok || !json_is_array(all)) return false;
    t->count = (ptrdiff_t)json_array_size(all);
    double *seconds = kvm_new(r->keep, double, t->count + 1);
    if (!seconds) return !(r->spent = true);
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const json_t *v = json_array_get(all, (size_t)i);
        if (!json_is_number(v)) return false;
        seconds[i] = json_number_value(v);
    }
    t->seconds = seconds;
    return true;
}

static bool read_event(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_result_event *e = PUSH(&r->events, r->keep, kvm_result_event);
    if (!e) return !(r->spent = true);
    e->what = text(r, line, "event", &ok);
    e->text = text(r, line, "text", &ok);
    return ok;
}

static bool read_verified(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_str *s = PUSH(&r->verified, r->keep, kvm_str);
    if (!s) return !(r->spent = true);
    *s = text(r, line, "verified", &ok);
    return ok;
}

static bool read_reuse(reader *r, const json_t *line)
{
    (void)line;
    return r->out->reuse = true;
}

static bool read_end(reader *r, const json_t *line)
{
    bool ok = true;
    kvm_err *e = &r->out->end;
    const int64_t code = counted(line, "end", INT_MAX, &ok);
    const kvm_str message = text(r, line, "message", &ok);
    const kvm_str file = text(r, line, "file", &ok);
    e->code = (kvm_status)code;
    e->line = (int)counted(line, "line", INT_MAX, &ok);
    e->file = file.at;
    snprintf(e->msg, sizeof e->msg, "%.*s", KVM_STR_ARG(message));
    return r->out->ended = ok && is_status(code);
}

/* A line is known by the first of these members that it has (a sample has a metric
 * too). */
static bool read_line(reader *r, const json_t *line)
{
    if (r->out->ended) return false; /* nothing follows a verdict */
    static const struct {
        const char *member;
        bool (*read)(reader *r, const json_t *line);
    } kinds[] = {{"output", read_output}, {"sample", read_sample},
                 {"timing", read_timing}, {"event", read_event},
                 {"end", read_end},       {"verified", read_verified},
                 {"reuse", read_reuse},   {"metric", read_metric}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (json_object_get(line, kinds[i].member)) return kinds[i].read(r, line);
    return false;
}

static kvm_status read_all(reader *r, kvm_str content, kvm_str path, kvm_err *err)
{
    kvm_str line, rest = content;
    for (ptrdiff_t n = 1; kvm_str_cut(rest, '\n', &line, &rest); n++) {
        json_t *v = json_loadb(line.at, (size_t)line.len, JSON_REJECT_DUPLICATES, NULL);
        const bool ok = v && read_line(r, v);
        json_decref(v);
        if (r->spent) return kvm_nomem(err, r->keep);
        if (!ok)
            return kvm_fail(err, KVM_FORMAT, "%.*s:%td: no record of a job",
                            KVM_STR_ARG(path), n);
    }
    return KVM_OK;
}

kvm_status kvm_records_parse(kvm_records *out, kvm_arena *keep, kvm_str lines,
                             kvm_str name, kvm_err *err)
{
    reader r = {.out = out, .keep = keep};
    *out = (kvm_records){0};
    TRY(read_all(&r, lines, name, err));
    out->outputs = r.outputs.at;
    out->output_count = r.outputs.count;
    out->verified = r.verified.at;
    out->verified_count = r.verified.count;
    out->result = (kvm_result){.metrics = r.metrics.at,
                               .metric_count = r.metrics.count,
                               .samples = r.samples.at,
                               .sample_count = r.samples.count,
                               .timings = r.timings.at,
                               .timing_count = r.timings.count,
                               .events = r.events.at,
                               .event_count = r.events.count};
    return KVM_OK;
}

kvm_status kvm_records_read(kvm_records *out, kvm_arena *keep, kvm_str path,
                            kvm_err *err)
{
    kvm_str lines;
    *out = (kvm_records){0};
    TRY(kvm_file_read(&lines, keep, path, KVM_RECORDS_BYTES, err));
    return kvm_records_parse(out, keep, lines, path, err);
}
