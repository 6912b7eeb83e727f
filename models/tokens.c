/* tokens.c - what follows from tokens alone: their embeddings, the rows of an attention
 * layer that stands first, and what n-gram embeddings keep. */
#include <string.h>

#include "models/model_internal.h"

kvm_status kvm_model_embed_tokens(const kvm_model *m, const int32_t *ids, ptrdiff_t n,
                                  float *rows, ptrdiff_t ld, kvm_err *err)
{
    kvm_tensor y = kvm_view2(rows, KVM_F32, n, m->config.hidden);
    y.stride[0] = ld;
    TRY(kvm_model__check_ids(m, ids, n, err));
    return kvm_op_embed(m->compute, y, ids, m->embed, err);
}

bool kvm_model_tokens_tell(const kvm_model *m)
{
    const kvm_block *b = &m->blocks[0];
    return !b->ngram && m->info.objects > 0 && m->objects[0].layer == 0 &&
           !kvm_object_per_prompt(&m->objects[0]);
}

/* the first mixer's rows of up to a chunk of tokens, in slots of its own */
static kvm_status first_rows(kvm_model *m, const int32_t *ids, ptrdiff_t n,
                             ptrdiff_t first, kvm_slot *slots,
                             const kvm_capture *capture, kvm_err *err)
{
    kvm_step s = {
        .first = first, .n = n, .ids = ids, .slots = slots, .capture = capture};
    kvm_choice choice;
    kvm_tensor h;
    TRY(kvm_model__begin(m, &s, &choice, &h, err));
    TRY(kvm_model__embed(m, &s, h, err));
    s.out = 0;
    return kvm_site_forward(&m->blocks[0].mixer, &s, h, n, err);
}

/* room for n tokens of the first `objects` objects, no more: an arena that asks for
 * huge pages would clear one for a few rows */
static size_t slots_bytes(const kvm_model *m, ptrdiff_t objects, ptrdiff_t n)
{
    size_t bytes = 4096;
    for (ptrdiff_t i = 0; i < objects; i++) {
        const kvm_object *o = &m->objects[i];
        bytes += sizeof(kvm_slot) + sizeof(kvm_units) + 128 +
                 (o->block > 0 ? 2 : 1) * kvm_step_rows_bytes(n + 1, o->heads * o->dim);
    }
    return bytes;
}

kvm_status kvm_model_token_rows(kvm_model *m, const int32_t *ids, ptrdiff_t n,
                                const kvm_capture *capture, kvm_err *err)
{
    if (!kvm_model_tokens_tell(m))
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "%s: its first layer is not attention over the tokens' "
                        "embeddings: its rows do not follow from the token alone",
                        m->info.name.at);
    TRY(kvm_model__check_ids(m, ids, n, err));
    const ptrdiff_t chunk = kvm_model__chunk(n);
    kvm_arena own = {0};
    ptrdiff_t objects = 0;
    while (objects < m->info.objects && m->objects[objects].layer == 0) objects++;
    TRY(kvm_model__reserve(m, chunk, err));
    TRY(kvm_arena_init(&own, slots_bytes(m, objects, n), err));
    kvm_slot *slots = kvm_new(&own, kvm_slot, objects);
    kvm_status s = slots ? KVM_OK : kvm_nomem(err, &own);
    for (ptrdiff_t i = 0, end; !s && i < objects; i = end) {
        for (end = i + 1; end < objects && m->objects[end].beside;) end++;
        s = kvm_cache__slots(slots, m, i, end, n, &own, err);
    }
    for (ptrdiff_t t = 0; !s && t < n; t += chunk)
        s = first_rows(m, ids + t, n - t < chunk ? n - t : chunk, t, slots, capture,
                       err);
    kvm_arena_free(&own);
    return s;
}

kvm_status kvm_inject_tokens(kvm_cache *c, const int32_t *ids, kvm_err *err)
{
    const kvm_model *m = c->model;
    const ptrdiff_t n = c->promised - c->length;
    if (c->promised == 0)
        return kvm_fail(err, KVM_USAGE, "kvm_inject_begin comes before the tokens");
    TRY(kvm_model__check_ids(m, ids, n, err));
    for (ptrdiff_t l = 0; l < m->config.layers; l++) {
        const kvm_block *b = &m->blocks[l];
        if (!b->ngram) continue;
        if (c->arrived[b->ngram_object] > c->length)
            return kvm_fail(err, KVM_MISMATCH,
                            "layer %td: what its n-grams keep is injected twice", l);
        TRY(kvm_ngram_follow(b->ngram, m->compute, c->length, ids, n, c->slots,
                             b->ngram_object, err));
        c->arrived[b->ngram_object] = c->arrived[b->ngram_object + 1] = c->promised;
    }
    return KVM_OK;
}
