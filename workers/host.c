#include "workers/host.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/os.h"
#include "schema/fault.h"

struct kvm_recorder {
    int fd;
    bool ours; /* opened here */
    kvm_str name;
    off_t size;        /* bytes of whole records */
    kvm_arena scratch; /* one line; used by value */
};

static void close_recorder(void *arg)
{
    kvm_recorder *r = arg;
    if (r->ours) kvm_os->close(r->fd);
    kvm_arena_free(&r->scratch);
}

kvm_status kvm_recorder_on(kvm_recorder **out, kvm_arena *keep, int fd, kvm_str name,
                           kvm_err *err)
{
    kvm_recorder *r = kvm_new(keep, kvm_recorder, 1);
    if (!r) return kvm_nomem(err, keep);
    *r = (kvm_recorder){.fd = fd, .name = kvm_str_copy(keep, name)};
    if (!r->name.at) return kvm_nomem(err, keep);
    TRY(kvm_arena_init(&r->scratch, 64 << 20, err));
    TRY(kvm_arena_defer(keep, close_recorder, r, err));
    *out = r;
    return KVM_OK;
}

kvm_status kvm_recorder_open(kvm_recorder **out, kvm_arena *keep, kvm_str path,
                             kvm_err *err)
{
    const kvm_str name = kvm_str_copy(keep, path);
    if (!name.at) return kvm_nomem(err, keep);
    kvm_os->unlink(name.at); /* of an earlier attempt, which may be at it */
    const int fd = kvm_os->open(name.at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return kvm_fail_errno(err, "%s: cannot make it", name.at);
    const kvm_status s = kvm_recorder_on(out, keep, fd, name, err);
    if (s)
        kvm_os->close(fd);
    else
        (*out)->ours = true;
    return s;
}

off_t kvm_recorder_size(const kvm_recorder *r)
{
    return r->size;
}

/* What was not written whole is written over by the next. */
static kvm_status put(kvm_recorder *r, kvm_str lines, kvm_err *err)
{
    TRY(kvm_file_write_at(r->fd, r->name, lines.at, (size_t)lines.len, r->size, err));
    r->size += lines.len;
    return KVM_OK;
}

kvm_status kvm_recorder_copy(kvm_recorder *r, kvm_str path, kvm_err *err)
{
    kvm_str lines;
    kvm_arena all;
    TRY(kvm_arena_init(&all, KVM_RECORDS_BYTES + 4096, err));
    kvm_status s = kvm_file_read(&lines, &all, path, KVM_RECORDS_BYTES, err);
    if (!s) s = put(r, lines, err);
    kvm_arena_free(&all);
    return s;
}

/* Takes the line's object, which is NULL when it could not be made. */
static kvm_status append(kvm_recorder *r, json_t *line, const char *what, kvm_err *err)
{
    kvm_arena scratch = r->scratch;
    kvm_str text;
    if (!line)
        return kvm_fail(err, KVM_FORMAT, "%s: a name that is not UTF-8, or no memory",
                        what);
    const kvm_status s = kvm_json_canonical(&text, &scratch, line, err);
    json_decref(line);
    if (s) return s;
    text = kvm_str_fmt(&scratch, "%.*s\n", KVM_STR_ARG(text));
    return text.at ? put(r, text, err) : kvm_nomem(err, &scratch);
}

static kvm_status finite(double v, const char *what, kvm_err *err)
{
    if (isfinite(v)) return KVM_OK;
    return kvm_fail(err, KVM_NAN, "the job reported %s = %g, which is not finite", what,
                    v);
}

static kvm_status record_output(kvm_job *j, const char *name, kvm_str path,
                                kvm_err *err)
{
    TRY(append(
        j->host_ctx,
        json_pack("{s:s, s:s%}", "output", name, "path", path.at, (size_t)path.len),
        name, err));
    kvm_fault(KVM_FAULT_CHILD_OUTPUT);
    return KVM_OK;
}

static kvm_status record_metric(kvm_job *j, const char *name, double value,
                                const json_t *labels, kvm_err *err)
{
    TRY(finite(value, name, err));
    json_t *copy = labels ? json_deep_copy(labels) : json_object();
    return append(
        j->host_ctx,
        json_pack("{s:s, s:f, s:o}", "metric", name, "value", value, "labels", copy),
        name, err);
}

static kvm_status record_sample(kvm_job *j, const char *suite, const char *arm,
                                const char *metric, kvm_str item, double value,
                                kvm_err *err)
{
    TRY(finite(value, metric, err));
    return append(j->host_ctx,
                  json_pack("{s:s, s:s, s:s, s:s%, s:f}", "sample", suite, "arm", arm,
                            "metric", metric, "item", item.at, (size_t)item.len,
                            "value", value),
                  suite, err);
}

static kvm_status record_timing(kvm_job *j, const char *arm, ptrdiff_t tokens,
                                const char *stage, const double *seconds, ptrdiff_t n,
                                kvm_err *err)
{
    json_t *list = json_array();
    for (ptrdiff_t i = 0; i < n; i++) {
        if (!isfinite(seconds[i])) {
            json_decref(list);
            return finite(seconds[i], stage, err);
        }
        json_array_append_new(list, json_real(seconds[i]));
    }
    return append(j->host_ctx,
                  json_pack("{s:s, s:I, s:s, s:o}", "timing", arm, "tokens",
                            (json_int_t)tokens, "stage", stage, "seconds", list),
                  stage, err);
}

/* Also into the log, where it can be read while the job runs. */
static kvm_status record_event(kvm_job *j, const char *what, kvm_str text, kvm_err *err)
{
    kvm_log(KVM_LOG_INFO, "job.event", "what=%s text=\"%.*s\"", what,
            KVM_STR_ARG(text));
    return append(
        j->host_ctx,
        json_pack("{s:s, s:s%}", "event", what, "text", text.at, (size_t)text.len),
        what, err);
}

const kvm_job_host kvm_host_recorder = {
    .output = record_output,
    .metric = record_metric,
    .sample = record_sample,
    .timing = record_timing,
    .event = record_event,
};

kvm_status kvm_recorder_verified(kvm_recorder *r, kvm_str sha, kvm_err *err)
{
    return append(r, json_pack("{s:s%}", "verified", sha.at, (size_t)sha.len),
                  "verified", err);
}

kvm_status kvm_recorder_reuse(kvm_recorder *r, kvm_err *err)
{
    return append(r, json_pack("{s:b}", "reuse", 1), "reuse", err);
}

kvm_status kvm_recorder_end(kvm_recorder *r, kvm_status s, const kvm_err *why,
                            kvm_err *err)
{
    kvm_fault(KVM_FAULT_CHILD_END);
    return append(r,
                  json_pack("{s:i, s:s, s:s, s:i}", "end", (int)s, "message",
                            s ? why->msg : "", "file", s && why->file ? why->file : "",
                            "line", s ? why->line : 0),
                  "end", err);
}

kvm_status kvm_host_files(kvm_job *j, kvm_arena *keep, kvm_str dir, kvm_err *err)
{
    kvm_recorder *r;
    TRY(kvm_dir_make(dir, err));
    const kvm_str path = kvm_path_join(keep, dir, KVM_STR("records.jsonl"));
    const kvm_str own = kvm_str_copy(keep, dir);
    if (!path.at || !own.at) return kvm_nomem(err, keep);
    TRY(kvm_recorder_open(&r, keep, path, err));
    j->host = &kvm_host_recorder;
    j->host_ctx = r;
    j->dir = own;
    return KVM_OK;
}
