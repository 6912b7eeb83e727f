/* capture.c - run one model over the calibration text and keep rows of some of its
 * spaces.
 *
 * One model is open at a time, one forward per sequence in one shot (a chunked prefill
 * rounds otherwise). States are kept as they stand at a sequence's end. A killed
 * capture goes on after the last whole sequence. Ranks take a run of sequences each,
 * about equal in tokens, into a spool of their own. Where the model need not fit into
 * memory (kvm_job.offload), sequences go through it in batches, layer by layer, and
 * a killed one loses its batch. Or ranks take
 * layers instead of sequences (capture_layers.c). */
#include <stdio.h>

#include "base/clock.h"
#include "jobs/capture_internal.h"
#include "jobs/params.h"

static const kvm_field params[] = {
    {"model", KVM_FIELD_STR, true, "fingerprint", NULL, 0},
    {"model_path", KVM_FIELD_STR, true, "checkpoint", NULL, 0},
    {"text", KVM_FIELD_STR, true, "hash of the calibration text", NULL, 0},
    {"text_path", KVM_FIELD_STR, true, "calibration suite or text file", NULL, 0},
    {"sequences", KVM_FIELD_INT, true, "how many sequences", NULL, 0},
    {"tokens", KVM_FIELD_INT, true, "tokens per sequence", NULL, 0},
    {"stride", KVM_FIELD_INT, true, "every so many tokens become a row", NULL, 0},
    {"dtype", KVM_FIELD_STR, false, "f32 or bf16: how rows are stored", NULL, 0},
    {"rows", KVM_FIELD_LIST, false, "spaces whose rows are kept (K, V)", NULL,
     KVM_FIELD_STR},
    {0},
};

enum {
    BATCH = 64, /* sequences that pass a layer together */
    PIECE = 512 /* rows that come at once: a forward's chunk is no longer */
};

static kvm_status put(kvm_capturing *c, kvm_space space, ptrdiff_t layer, ptrdiff_t at,
                      ptrdiff_t n, const float *rows, kvm_err *err)
{
    if (c->in_batch < 0) return kvm_rows_put(c->writer, space, layer, at, n, rows, err);
    return kvm_rows_put_in(c->writer, c->in_batch, space, layer, at, n, rows, err);
}

/* tokens first .. first+n-1; those at multiples of the stride stay */
static kvm_status keep_rows(void *ctx, kvm_space space, ptrdiff_t layer,
                            ptrdiff_t first, ptrdiff_t n, const float *rows,
                            kvm_err *err)
{
    kvm_capturing *c = ctx;
    const ptrdiff_t width = kvm_shapes_width(&c->shapes, space, layer), s = c->stride;
    if (kvm_space_once(space)) /* of every chunk; the last one's is the sequence's */
        return first < c->length ? KVM_OK : put(c, space, layer, 0, 1, rows, err);
    const ptrdiff_t skip = (s - first % s) % s, at = (first + skip) / s;
    if (s == 1) return put(c, space, layer, at, n, rows, err);
    ptrdiff_t picked = 0;
    for (ptrdiff_t t = skip; t < n; t += s, picked++)
        for (ptrdiff_t i = 0; i < width; i++)
            c->picked[picked * width + i] = rows[t * width + i];
    return picked ? put(c, space, layer, at, picked, c->picked, err) : KVM_OK;
}

/* the tokens' embeddings of one sequence, which no layer hands out */
static kvm_status keep_tokens(kvm_capturing *c, const int32_t *ids, ptrdiff_t n,
                              kvm_err *err)
{
    if (!(c->spaces >> KVM_SPACE_TOKEN & 1)) return KVM_OK;
    const ptrdiff_t width = kvm_shapes_width(&c->shapes, KVM_SPACE_TOKEN, 0);
    for (ptrdiff_t t = 0; t < n; t += PIECE) {
        const ptrdiff_t piece = n - t < PIECE ? n - t : PIECE;
        TRY(kvm_model_embed_tokens(c->model, ids + t, piece, c->tokens, width, err));
        TRY(keep_rows(c, KVM_SPACE_TOKEN, 0, t, piece, c->tokens, err));
    }
    return KVM_OK;
}

static kvm_status read_spaces(kvm_job *j, kvm_spaces *out, kvm_err *err)
{
    const kvm_jat list = kvm_json_get(j->params, j->keep, "rows");
    *out = KVM_SPACES_KV;
    if (!kvm_json_has(list)) return KVM_OK;
    ptrdiff_t n;
    *out = 0;
    TRY(kvm_json_array(list, &n, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat at = kvm_json_item(list, j->keep, i);
        kvm_str name;
        kvm_space s;
        TRY(kvm_json_str(at, &name, err));
        if (kvm_space_of_name(name, &s) || kvm_space_derived(s))
            return kvm_json_fail(err, KVM_USAGE, at, "is no space of rows");
        *out |= 1U << s;
    }
    return KVM_OK;
}

static kvm_status read_sizes(kvm_capturing *c, ptrdiff_t *sequences, ptrdiff_t *tokens,
                             kvm_err *err)
{
    TRY(kvm_job_i64(c->job, "sequences", 0, KVM_LEAST_SEQUENCES, INT32_MAX, sequences,
                    err));
    TRY(kvm_job_i64(c->job, "tokens", 0, 2, INT32_MAX, tokens, err));
    TRY(kvm_job_i64(c->job, "stride", 1, 1, INT32_MAX, &c->stride, err));
    if (c->stride < *tokens) return KVM_OK;
    /* only first tokens would be left, which see nothing before them */
    return kvm_json_fail(
        err, KVM_RANGE, kvm_json_get(c->job->params, c->job->keep, "stride"),
        "is %td, must be less than a sequence's tokens (%td)", c->stride, *tokens);
}

static kvm_status open_text(kvm_capturing *c, ptrdiff_t *tokens, kvm_err *err)
{
    kvm_job *j = c->job;
    kvm_str path;
    ptrdiff_t sequences;
    TRY(read_sizes(c, &sequences, tokens, err));
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_calibration_read(&c->text, j->keep, path, kvm_model_tokenizer(c->model),
                             sequences, *tokens, err));
    return kvm_job_unchanged(j, "text", c->text.sha, err);
}

static kvm_status open_writer(kvm_capturing *c, ptrdiff_t tokens, kvm_str path,
                              kvm_err *err)
{
    kvm_job *j = c->job;
    kvm_rows_info info;
    TRY(read_spaces(j, &c->spaces, err));
    TRY(kvm_rows_describe(&info, j->keep, c->model, c->spaces, err));
    c->shapes = info.shapes;
    TRY(kvm_gather_new(&c->gather, j->keep, c->model, c->spaces, PIECE, keep_rows, c,
                       err));
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text"), &info.text, err));
    TRY(kvm_param_dtype(j, &info.dtype, err));
    info.stride = c->stride;
    info.tokens = tokens;
    ptrdiff_t widest = 0;
    for (int s = 0; s < KVM_SPACES; s++)
        for (ptrdiff_t l = 0; l < info.shapes.layers; l++) {
            const ptrdiff_t w = kvm_shapes_width(&info.shapes, (kvm_space)s, l);
            if (w > widest && !kvm_space_once((kvm_space)s)) widest = w;
        }
    const ptrdiff_t rows = (c->text.longest + c->stride - 1) / c->stride;
    c->picked = kvm_new_raw(j->keep, float, rows *widest);
    c->position = kvm_new(j->keep, int32_t, rows);
    c->tokens = kvm_new_raw(j->keep, float, PIECE *widest);
    if (!c->picked || !c->position || !c->tokens) return kvm_nomem(err, j->keep);
    const int rank = j->team->rank, ranks = j->team->size;
    return c->by_layers ? kvm_rows_create_layers(&c->writer, j->keep, path, &info, rank,
                                                 ranks, kvm_model_parts(c->model), err)
                        : kvm_rows_create_share(&c->writer, j->keep, path, &info, rank,
                                                ranks, err);
}

/* the first sequence of a rank: those before it hold its share of the tokens */
static ptrdiff_t first_of(const kvm_capturing *c, int rank)
{
    const ptrdiff_t n = c->text.sequences;
    const double all = (double)c->text.offset[n], ranks = c->job->team->size;
    ptrdiff_t s = 0;
    while (s < n && (double)c->text.offset[s] * ranks < all * rank) s++;
    return s;
}

kvm_status kvm_capture__begin(kvm_capturing *c, ptrdiff_t s, kvm_err *err)
{
    const ptrdiff_t from = c->text.offset[s];
    c->length = c->text.offset[s + 1] - from;
    return keep_tokens(c, c->text.ids + from, c->length, err);
}

kvm_status kvm_capture__end(kvm_capturing *c, ptrdiff_t s, kvm_err *err)
{
    ptrdiff_t rows = 0;
    for (ptrdiff_t p = 0; p < c->length; p += c->stride)
        c->position[rows++] = (int32_t)p;
    return kvm_rows_end_sequence(c->writer, (int32_t)s, c->position, rows, err);
}

static kvm_status run_sequence(kvm_capturing *c, kvm_cache *cache, ptrdiff_t s,
                               kvm_err *err)
{
    const kvm_capture sink = kvm_gather_capture(c->gather);
    TRY(kvm_capture__begin(c, s, err));
    kvm_cache_clear(cache);
    TRY(kvm_model_forward(c->model, cache, c->text.ids + c->text.offset[s], c->length,
                          &(kvm_forward_options){.capture = &sink}, err));
    return kvm_capture__end(c, s, err);
}

/* the sink of a batch is told whose rows come */
static kvm_status next_sequence(void *ctx, ptrdiff_t layer, ptrdiff_t sequence,
                                kvm_err *err)
{
    (void)layer, (void)err;
    kvm_capturing *c = ctx;
    const ptrdiff_t *at = c->text.offset + c->batch_from + sequence;
    c->in_batch = sequence;
    c->length = at[1] - at[0];
    return KVM_OK;
}

static kvm_status keep_tokens_of_batch(kvm_capturing *c, ptrdiff_t from, ptrdiff_t n,
                                       kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        TRY(next_sequence(c, 0, i, err));
        TRY(keep_tokens(c, c->text.ids + c->text.offset[from + i], c->length, err));
    }
    return KVM_OK;
}

static kvm_status run_batch(kvm_capturing *c, ptrdiff_t from, ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t rows[BATCH], offset[BATCH + 1];
    kvm_str spill;
    char name[32];
    const ptrdiff_t *at = c->text.offset + from, s = c->stride;
    const kvm_capture sink = kvm_gather_capture(c->gather);
    c->batch_from = from;
    for (ptrdiff_t i = 0; i <= n; i++) offset[i] = at[i] - at[0];
    for (ptrdiff_t i = 0; i < n; i++) rows[i] = (at[i + 1] - at[i] + s - 1) / s;
    for (ptrdiff_t p = 0; p < c->text.longest; p += s) c->position[p / s] = (int32_t)p;
    snprintf(name, sizeof name, "between_layers.%d", c->job->team->rank);
    TRY(kvm_job_path(c->job, name, &spill, err));
    TRY(kvm_rows_begin_batch(c->writer, (int32_t)from, n, rows, c->position, err));
    const kvm_batch batch = {
        .ids = c->text.ids + at[0],
        .offset = offset,
        .n = n,
        .capture = &sink,
        .sequence = next_sequence,
        .ctx = c,
        .memory = c->job->offload,
        .spill = spill,
        .progress = c->job->progress,
        .before = (double)(at[0] - c->text.offset[c->from]),
        .total = (double)(c->text.offset[c->to] - c->text.offset[c->from])};
    TRY(keep_tokens_of_batch(c, from, n, err));
    TRY(kvm_model_run_layers(c->model, &batch, err));
    return kvm_rows_end_batch(c->writer, err);
}

static kvm_status run_batches(kvm_capturing *c, kvm_err *err)
{
    ptrdiff_t from = c->from + kvm_rows_done(c->writer);
    while (from < c->to) {
        const ptrdiff_t left = c->to - from;
        const ptrdiff_t n = left < BATCH ? left : BATCH;
        TRY(run_batch(c, from, n, err));
        from += n;
    }
    return KVM_OK;
}

static kvm_status run_all(kvm_capturing *c, kvm_err *err)
{
    kvm_job *j = c->job;
    kvm_cache *cache;
    TRY(kvm_cache_new(&cache, j->keep, c->model, c->text.longest, err));
    const ptrdiff_t *at = c->text.offset, begin = at[c->from];
    for (ptrdiff_t s = c->from + kvm_rows_done(c->writer); s < c->to; s++) {
        kvm_progress_at(j->progress, (double)(at[s] - begin),
                        (double)(at[c->to] - begin), "tokens");
        if (kvm_progress_cancelled(j->progress))
            return kvm_fail(err, KVM_CANCELLED, "cancelled after %td of %td sequences",
                            s - c->from, c->to - c->from);
        const kvm_status st = run_sequence(c, cache, s, err);
        if (st) return kvm_err_prefix(err, st, "sequence %td", s);
    }
    return KVM_OK;
}

static kvm_status run(kvm_job *j, kvm_err *err)
{
    const double started = kvm_now();
    kvm_capturing c = {.job = j, .in_batch = -1};
    kvm_compute *compute;
    kvm_str path;
    ptrdiff_t tokens;
    TRY(kvm_job_compute(j, &compute, err));
    TRY(kvm_capture__by_layers(j, &c.by_layers, err));
    TRY(kvm_job_model_part(j, compute, "model", c.by_layers ? j->team->rank : 0,
                           c.by_layers ? j->team->size : 1, &c.model, err));
    TRY(open_text(&c, &tokens, err));
    TRY(kvm_job_path(j, "capture.safetensors", &path, err));
    TRY(open_writer(&c, tokens, path, err));
    c.from = first_of(&c, j->team->rank);
    c.to = first_of(&c, j->team->rank + 1);
    TRY(c.by_layers      ? kvm_capture__run_layers(&c, err)
        : j->offload > 0 ? run_batches(&c, err)
                         : run_all(&c, err));
    TRY(kvm_team_wait(j->team, err));
    if (kvm_team_leads(j->team)) TRY(kvm_rows_publish(c.writer, NULL, err));
    TRY(j->host->output(j, "capture", path, err));
    return kvm_job_put_cost(j, started, err);
}

static kvm_status check(kvm_job *j, kvm_err *err)
{
    kvm_capturing c = {.job = j};
    ptrdiff_t sequences, tokens;
    kvm_dtype dtype;
    TRY(read_sizes(&c, &sequences, &tokens, err));
    TRY(read_spaces(j, &c.spaces, err));
    return kvm_param_dtype(j, &dtype, err);
}

static const char *const inputs[] = {NULL};
static const char *const outputs[] = {"capture", "cost", NULL};
const kvm_job_kind kvm_job_capture = {
    .id = KVM_JOB_CAPTURE,
    .inputs = inputs,
    .outputs = outputs,
    .params = params,
    .section = "calibration",
    .run = run,
    .check = check,
};
