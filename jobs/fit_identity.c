/* fit_identity.c - how many of the tokens that a translator reads out of the source's
 * first layer are right: held-out rows of the capture through the codebook that the
 * translator will use, against the calibration text. */
#include "jobs/fit_internal.h"
#include "jobs/held_tokens.h"
#include "jobs/open.h"

static kvm_status put(kvm_fit *f, ptrdiff_t right, ptrdiff_t rows, kvm_err *err)
{
    const double top1 = (double)right / (double)rows;
    json_object_set_new(
        f->figures, "identity",
        json_pack("{s:f, s:I}", "top1", top1, "rows", (json_int_t)rows));
    kvm_gate_add(f->gates, KVM_GATE_TOKEN_IDENTITY, top1);
    return f->job->host->metric(f->job, "token_top1", top1, NULL, err);
}

static kvm_status measure(kvm_fit *f, kvm_arena *room, kvm_err *err)
{
    kvm_job *j = f->job;
    kvm_model *source;
    kvm_codebook *book;
    kvm_held_tokens held;
    uint64_t seed;
    double fraction;
    ptrdiff_t right;
    TRY(kvm_job_model(j, f->compute, "source", &source, err));
    kvm_moments_split(f->moments, &seed, &fraction);
    TRY(kvm_held_tokens_read(&held, j, f->rows[0], kvm_model_tokenizer(source), seed,
                             fraction, err));
    TRY(kvm_codebook_new(&book, room, f->compute, source, f->options.engine, NULL,
                         err));
    if (kvm_rows_shape(f->rows[0], kvm_codebook_of(book), 0).heads == 0)
        return KVM_OK; /* no map reads the rows that tell: they were not kept */
    TRY(kvm_held_tokens_right(&held, f->compute, f->rows[0], kvm_codebook_of(book), 0,
                              (kvm_token_reader){.book = book}, &right, *room, err));
    return put(f, right, held.n, err);
}

kvm_status kvm_fit__identity(kvm_fit *f, kvm_err *err)
{
    kvm_arena room = {0};
    const kvm_jat source = kvm_json_get(f->job->params, f->job->keep, "source");
    if (f->outline.token != KVM_TOKEN_DECODED || !kvm_json_has(source)) return KVM_OK;
    if (!kvm_team_leads(f->job->team)) return KVM_OK; /* for its figures alone */
    TRY(kvm_arena_reserve(&room, (size_t)8 << 30, err));
    const kvm_status s = measure(f, &room, err);
    kvm_arena_free(&room);
    return s;
}
