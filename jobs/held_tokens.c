#include "jobs/held_tokens.h"

#include "jobs/calibration.h"
#include "jobs/open.h"

enum { PIECE = 256 };

/* the calibration text, as the capture read it */
static kvm_status read_text(kvm_calibration *text, kvm_job *j, const kvm_tokenizer *t,
                            kvm_err *err)
{
    kvm_str path;
    ptrdiff_t sequences, tokens;
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_job_i64(j, "sequences", 0, 1, INT32_MAX, &sequences, err));
    TRY(kvm_job_i64(j, "tokens", 0, 2, INT32_MAX, &tokens, err));
    TRY(kvm_calibration_read(text, j->keep, path, t, sequences, tokens, err));
    return kvm_job_unchanged(j, "text", text->sha, err);
}

kvm_status kvm_held_tokens_read(kvm_held_tokens *h, kvm_job *j, const kvm_rows *r,
                                const kvm_tokenizer *t, uint64_t seed, double fraction,
                                kvm_err *err)
{
    kvm_calibration text;
    ptrdiff_t *index;
    TRY(read_text(&text, j, t, err));
    TRY(kvm_rows_split(r, seed, fraction, KVM_HELD, j->keep, &index, &h->n, err));
    int32_t *ids = kvm_new(j->keep, int32_t, h->n);
    if (!ids) return kvm_nomem(err, j->keep);
    for (ptrdiff_t i = 0; i < h->n; i++) {
        const ptrdiff_t q = kvm_rows_sequence(r)[index[i]];
        if (q >= text.sequences)
            return kvm_fail(err, KVM_MISMATCH,
                            "the capture has a sequence %td, the text %td", q,
                            text.sequences);
        ids[i] = text.ids[text.offset[q] + kvm_rows_position(r)[index[i]]];
    }
    h->index = index;
    h->ids = ids;
    return KVM_OK;
}

kvm_status kvm_held_tokens_right(const kvm_held_tokens *h, kvm_compute *c,
                                 const kvm_rows *r, kvm_space space, ptrdiff_t layer,
                                 kvm_token_reader by, ptrdiff_t *right,
                                 kvm_arena scratch, kvm_err *err)
{
    const kvm_row_shape shape = kvm_rows_shape(r, space, layer);
    const ptrdiff_t width = shape.heads * shape.dim;
    float *x = kvm_new(&scratch, float, PIECE *width);
    float *y = kvm_new(&scratch, float, by.map ? PIECE *by.outputs : 1);
    int32_t ids[PIECE];
    if (!x || !y) return kvm_nomem(err, &scratch);
    *right = 0;
    for (ptrdiff_t i = 0; i < h->n; i += PIECE) {
        const ptrdiff_t n = h->n - i < PIECE ? h->n - i : PIECE;
        TRY(kvm_rows_read(c, r, space, layer, 1, 0, h->index + i, n, x, width, err));
        if (by.map)
            TRY(kvm_op_linear(c, kvm_view2(y, KVM_F32, n, by.outputs),
                              kvm_view2(x, KVM_F32, n, width), by.map, false, err));
        TRY(kvm_codebook_decode(by.book, by.map ? y : x, by.map ? by.outputs : width, n,
                                ids, err));
        for (ptrdiff_t k = 0; k < n; k++) *right += ids[k] == h->ids[i + k];
    }
    return KVM_OK;
}
