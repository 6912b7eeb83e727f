/* gang.c - the files of a gang's folder: the task, and what child and ranks say to each
 * other. */
#include "workers/gang.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/os.h"
#include "base/yaml.h"
#include "workers/crew.h"
#include "workers/gang_internal.h"

enum { MOST_TASK = 64 << 20, MOST_INPUTS = 4096 };

/* ---- the task ---- */

static json_t *text(kvm_str s)
{
    return json_stringn(s.at ? s.at : "", (size_t)s.len);
}

static json_t *inputs_json(const kvm_claim *c)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < c->input_count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o, s:I}", "name",
                                              text(c->inputs[i].name), "sha",
                                              text(c->inputs[i].sha), "bytes",
                                              (json_int_t)c->inputs[i].bytes));
    return list;
}

static json_t *task_json(const kvm_task *t)
{
    const kvm_claim *c = &t->claim;
    return json_pack(
        "{s:I, s:I, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, "
        "s:I, s:s, s:i, s:I, s:I, s:I, s:f, s:f, s:i, s:o*}",
        "job", (json_int_t)c->fence.job, "token", (json_int_t)c->fence.token, "attempt",
        c->attempt, "kind", c->kind, "version", c->version, "label", text(c->label),
        "params", text(c->params), "identity", text(c->identity), "inputs",
        inputs_json(c), "ranks", t->ranks, "place", text(t->place), "cwd", text(t->cwd),
        "folder", text(t->folder), "home", text(t->home), "store", text(t->store.where),
        "cache_bytes", (json_int_t)t->store.cache_bytes, "backend", t->backend,
        "threads", t->threads, "offload", (json_int_t)t->offload, "memory",
        (json_int_t)t->memory, "job_bytes", (json_int_t)t->job_bytes, "before_s",
        t->before.seconds, "before_cpu_s", t->before.cpu_seconds, "before_attempts",
        t->before.attempts, "allow", t->allow.at ? text(t->allow) : NULL);
}

static const char *const leftovers[] = {"started", "progress", "cancel", "alive"};

kvm_status kvm_task_write(const kvm_task *t, kvm_arena scratch, kvm_err *err)
{
    kvm_str said;
    json_t *v = task_json(t);
    if (!v)
        return kvm_fail(err, KVM_FORMAT,
                        "%.*s: a text of the job is not UTF-8, or no memory",
                        KVM_STR_ARG(t->claim.label));
    kvm_status s = KVM_OK;
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers && !s; i++) {
        const kvm_str path =
            kvm_path_join(&scratch, t->folder, kvm_str_of(leftovers[i]));
        s = path.at ? kvm_file_remove(path, err) : kvm_nomem(err, &scratch);
    }
    const kvm_str path = kvm_path_join(&scratch, t->folder, KVM_STR("task.json"));
    if (!s && !path.at) s = kvm_nomem(err, &scratch);
    if (!s) s = kvm_json_canonical(&said, &scratch, v, err);
    if (!s) s = kvm_file_publish(path, said, scratch, err);
    json_decref(v);
    return s;
}

static const kvm_field input_fields[] = {
    {"name", KVM_FIELD_STR, true, "as the kind lists it", NULL, 0},
    {"sha", KVM_FIELD_STR, true, "hex", NULL, 0},
    {"bytes", KVM_FIELD_INT, true, "size", NULL, 0},
    {0},
};
static const kvm_field task_fields[] = {
    {"job", KVM_FIELD_INT, true, "number", NULL, 0},
    {"token", KVM_FIELD_INT, true, "of the fence", NULL, 0},
    {"attempt", KVM_FIELD_INT, true, "1, 2 ...", NULL, 0},
    {"kind", KVM_FIELD_INT, true, "id", NULL, 0},
    {"version", KVM_FIELD_INT, true, "of the kind's code", NULL, 0},
    {"label", KVM_FIELD_STR, true, "for people", NULL, 0},
    {"params", KVM_FIELD_STR, true, "JSON", NULL, 0},
    {"identity", KVM_FIELD_STR, true, "JSON", NULL, 0},
    {"inputs", KVM_FIELD_LIST, true, "verified files", input_fields, 0},
    {"ranks", KVM_FIELD_INT, true, "how many", NULL, 0},
    {"place", KVM_FIELD_STR, true, "where this stands", NULL, 0},
    {"cwd", KVM_FIELD_STR, true, "of the worker", NULL, 0},
    {"folder", KVM_FIELD_STR, true, "the place as the worker spells it", NULL, 0},
    {"home", KVM_FIELD_STR, true, "of the store", NULL, 0},
    {"store", KVM_FIELD_STR, true, "a bucket, or empty", NULL, 0},
    {"cache_bytes", KVM_FIELD_INT, true, "of it, in the home", NULL, 0},
    {"backend", KVM_FIELD_STR, true, "name", NULL, 0},
    {"threads", KVM_FIELD_INT, true, "of a rank", NULL, 0},
    {"offload", KVM_FIELD_INT, true, "bytes", NULL, 0},
    {"memory", KVM_FIELD_INT, true, "bytes of weights", NULL, 0},
    {"job_bytes", KVM_FIELD_INT, true, "address space", NULL, 0},
    {"before_s", KVM_FIELD_NUM, true, "seconds of earlier attempts", NULL, 0},
    {"before_cpu_s", KVM_FIELD_NUM, true, "CPU seconds of theirs", NULL, 0},
    {"before_attempts", KVM_FIELD_INT, true, "how many", NULL, 0},
    {"allow", KVM_FIELD_STR, false, "folders that it may read", NULL, 0},
    {0},
};

/* a file that is read, or why not: the first failure stays */
typedef struct reader {
    kvm_jat root;
    kvm_arena *keep;
    kvm_status s;
    kvm_err *err;
} reader;

static int64_t number(reader *r, kvm_jat from, const char *key, int64_t least,
                      int64_t most)
{
    int64_t v = least;
    const kvm_jat at = kvm_json_get(from, r->keep, key);
    if (!r->s) r->s = kvm_json_i64(at, &v, r->err);
    if (!r->s && (v < least || v > most))
        r->s = kvm_json_fail(r->err, KVM_RANGE, at, "is %lld, must lie in %lld..%lld",
                             (long long)v, (long long)least, (long long)most);
    return v;
}

static kvm_str string(reader *r, kvm_jat from, const char *key)
{
    kvm_str v = KVM_STR("");
    if (!r->s) r->s = kvm_json_str(kvm_json_get(from, r->keep, key), &v, r->err);
    return v;
}

static double seconds(reader *r, const char *key)
{
    double v = 0;
    const kvm_jat at = kvm_json_get(r->root, r->keep, key);
    if (!r->s) r->s = kvm_json_f64(at, &v, r->err);
    if (!r->s && !(v >= 0 && isfinite(v)))
        r->s = kvm_json_fail(r->err, KVM_RANGE, at, "is %g, must be at least 0", v);
    return v;
}

static bool is_sha(kvm_str s)
{
    for (ptrdiff_t i = 0; i < s.len; i++)
        if (!strchr("0123456789abcdef", s.at[i]) || !s.at[i]) return false;
    return s.len == 64;
}

static kvm_status read_inputs(reader *r, kvm_claim *c, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(r->root, r->keep, "inputs");
    TRY(kvm_json_array(list, &c->input_count, err));
    if (c->input_count > MOST_INPUTS)
        return kvm_json_fail(err, KVM_RANGE, list, "has %td members", c->input_count);
    c->inputs = kvm_new(r->keep, kvm_claim_input, c->input_count + 1);
    if (!c->inputs) return kvm_nomem(err, r->keep);
    for (ptrdiff_t i = 0; i < c->input_count && !r->s; i++) {
        const kvm_jat at = kvm_json_item(list, r->keep, i);
        c->inputs[i] = (kvm_claim_input){.name = string(r, at, "name"),
                                         .sha = string(r, at, "sha"),
                                         .bytes = number(r, at, "bytes", 0, INT64_MAX)};
        if (!r->s && !is_sha(c->inputs[i].sha)) /* it becomes a path */
            r->s = kvm_json_fail(err, KVM_FORMAT, at, "its sha is no hash");
    }
    return r->s;
}

kvm_status kvm_task_read(kvm_task *t, kvm_arena *keep, kvm_str place, kvm_err *err)
{
    reader r = {.keep = keep, .err = err};
    const kvm_str path = kvm_path_join(keep, place, KVM_STR("task.json"));
    kvm_str said;
    if (!path.at) return kvm_nomem(err, keep);
    TRY(kvm_file_read(&said, keep, path, MOST_TASK, err));
    TRY(kvm_json_parse(&r.root, keep, said, path, err));
    TRY(kvm_schema_check(r.root, task_fields, *keep, err));
    *t = (kvm_task){0};
    t->claim.fence.job = number(&r, r.root, "job", 1, INT64_MAX);
    t->claim.fence.token = number(&r, r.root, "token", 1, INT64_MAX);
    t->claim.attempt = (int)number(&r, r.root, "attempt", 1, INT_MAX);
    t->claim.kind = (int)number(&r, r.root, "kind", 0, INT_MAX);
    t->claim.version = (int)number(&r, r.root, "version", 0, INT_MAX);
    t->claim.label = string(&r, r.root, "label");
    t->claim.params = string(&r, r.root, "params");
    t->claim.identity = string(&r, r.root, "identity");
    TRY(read_inputs(&r, &t->claim, err));
    t->ranks = (int)number(&r, r.root, "ranks", 2, KVM_CREW_MOST);
    t->place = string(&r, r.root, "place");
    t->cwd = string(&r, r.root, "cwd");
    t->folder = string(&r, r.root, "folder");
    t->home = string(&r, r.root, "home");
    t->store.where = string(&r, r.root, "store");
    t->store.cache_bytes = number(&r, r.root, "cache_bytes", 0, INT64_MAX);
    t->backend = string(&r, r.root, "backend").at;
    t->threads = (int)number(&r, r.root, "threads", 0, 4096);
    t->offload = (size_t)number(&r, r.root, "offload", 0, (int64_t)1 << 44);
    t->memory = (size_t)number(&r, r.root, "memory", 0, (int64_t)1 << 44);
    t->job_bytes = (size_t)number(&r, r.root, "job_bytes", 1 << 20, (int64_t)1 << 46);
    t->before.seconds = seconds(&r, "before_s");
    t->before.cpu_seconds = seconds(&r, "before_cpu_s");
    t->before.attempts = (int)number(&r, r.root, "before_attempts", 0, INT_MAX - 1);
    if (kvm_json_has(kvm_json_get(r.root, keep, "allow")))
        t->allow = string(&r, r.root, "allow");
    if (!r.s && !kvm_str_eq(t->place, place))
        r.s = kvm_fail(err, KVM_MISMATCH, "%.*s: is the task of %s", KVM_STR_ARG(path),
                       kvm_quote(t->place).at);
    return r.s;
}

/* ---- what they say to each other ---- */

static int open_in(kvm_str folder, const char *name, int flags)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%.*s/%s", KVM_STR_ARG(folder), name);
    return n < (int)sizeof path ? kvm_os->open(path, flags | O_CLOEXEC, 0666) : -1;
}

enum { LINE = 72 }; /* of one length, so that it is replaced whole */

void kvm_gang__progress_write(kvm_str folder, const kvm_gang_progress *p)
{
    char line[LINE + 1];
    if (snprintf(line, sizeof line, "%18.3f %18.3f %-33.31s\n", p->done, p->total,
                 p->unit) != LINE)
        return;
    const int fd = open_in(folder, "progress", O_WRONLY | O_CREAT);
    if (fd < 0) return;
    if (kvm_os->write(fd, line, LINE) != LINE) kvm_os->ftruncate(fd, 0);
    kvm_os->close(fd);
}

bool kvm_gang_progress_read(kvm_str folder, kvm_gang_progress *p)
{
    char line[LINE + 1] = "";
    const int fd = open_in(folder, "progress", O_RDONLY);
    if (fd < 0) return false;
    const bool whole = kvm_os->read(fd, line, LINE) == LINE && line[LINE - 1] == '\n';
    kvm_os->close(fd);
    char *at = line;
    p->done = strtod(at, &at);
    p->total = strtod(at, &at);
    if (!whole || !isfinite(p->done) || !isfinite(p->total) || at - line > 39)
        return false;
    ptrdiff_t n = LINE - 1;
    while (n > 38 && line[n - 1] == ' ') n--;
    snprintf(p->unit, sizeof p->unit, "%.*s", (int)(n - 38), line + 38);
    return true;
}

static void touch(kvm_str folder, const char *name)
{
    char path[PATH_MAX];
    const int fd = open_in(folder, name, O_WRONLY | O_CREAT);
    if (fd >= 0) kvm_os->close(fd);
    if (snprintf(path, sizeof path, "%.*s/%s", KVM_STR_ARG(folder), name) <
        (int)sizeof path)
        kvm_os->touch(path);
}

static bool state_of(kvm_str folder, const char *name, struct stat *st)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%.*s/%s", KVM_STR_ARG(folder), name);
    return n < (int)sizeof path && kvm_os->stat(path, st) == 0;
}

bool kvm_gang_started(kvm_str folder)
{
    struct stat st;
    return state_of(folder, "started", &st);
}

void kvm_gang__start(kvm_str folder)
{
    touch(folder, "started");
}

void kvm_gang_cancel(kvm_str folder)
{
    touch(folder, "cancel");
}

bool kvm_gang__cancelled(kvm_str folder)
{
    struct stat st;
    return state_of(folder, "cancel", &st);
}

void kvm_gang_alive(kvm_str folder)
{
    touch(folder, "alive");
}

bool kvm_gang__beat(kvm_str folder, struct timespec *at)
{
    struct stat st;
    if (!state_of(folder, "alive", &st)) return false;
    *at = st.st_mtim;
    return true;
}
