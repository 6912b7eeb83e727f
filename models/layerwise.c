/* layerwise.c - sequences through a stack whose weights need not fit into memory.
 *
 * All sequences pass block l before block l+1 is touched. What lies between two blocks,
 * the residual of every token (and, where layers share a choice of tokens, that
 * choice), is kept in memory or in a file and goes back to where it came from:
 *
 *   record of a sequence = for each step: h (n, streams * hidden) f32
 *                          [u64 all, bits (n, words) u64]
 *
 * A block's objects are kept for one sequence at a time. The weights of the next block
 * are asked for when a block begins; its own leave memory when it is done. */
#include <fcntl.h>
#include <string.h>

#include "base/file.h"
#include "base/os.h"
#include "models/model_internal.h"

typedef struct pass {
    kvm_model *m;
    const kvm_batch *b;
    ptrdiff_t longest;
    kvm_slot *slots;  /* (objects) of the block at hand */
    kvm_arena room;   /* where they lie */
    bool all;         /* of the last block too every row is wanted */
    ptrdiff_t blocks; /* that are run: without all, up to the last that keeps rows */
    ptrdiff_t
        *place;      /* (n + 1) byte of the store at which a sequence's record begins */
    kvm_arena store; /* the store in memory, */
    char *memory;
    int fd; /* or in a file; -1 */
} pass;

static ptrdiff_t length(const pass *p, ptrdiff_t sequence)
{
    return p->b->offset[sequence + 1] - p->b->offset[sequence];
}

static ptrdiff_t step_of(const pass *p, ptrdiff_t sequence)
{
    return kvm_model__chunk(length(p, sequence));
}

static size_t record_bytes(const pass *p, ptrdiff_t sequence)
{
    const ptrdiff_t n = length(p, sequence), step = step_of(p, sequence);
    size_t bytes = 0;
    for (ptrdiff_t t = 0; t < n; t += step)
        bytes += kvm_model_between(p->m, t, n - t < step ? n - t : step);
    return bytes;
}

/* ---- the store ---- */

static void close_store(pass *p)
{
    if (p->fd >= 0) {
        kvm_os->close(p->fd);
        kvm_os->unlink(p->b->spill.at);
    }
    kvm_arena_free(&p->store);
    kvm_arena_free(&p->room);
}

static kvm_status open_store(pass *p, kvm_err *err)
{
    const size_t bytes = (size_t)p->place[p->b->n];
    if (bytes <= p->b->memory || !p->b->spill.at) {
        TRY(kvm_arena_init(&p->store, bytes + 64, err));
        p->memory = kvm_new_raw(&p->store, char, (ptrdiff_t)bytes);
        return p->memory ? KVM_OK : kvm_nomem(err, &p->store);
    }
    p->fd = kvm_os->open(p->b->spill.at, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (p->fd < 0) return kvm_fail_errno(err, "%s: cannot open", p->b->spill.at);
    return KVM_OK;
}

/* n bytes at *at of the store, which moves on */
static kvm_status move(const pass *p, ptrdiff_t *at, void *bytes, size_t n, bool out,
                       kvm_err *err)
{
    const off_t place = *at;
    *at += (ptrdiff_t)n;
    if (p->fd >= 0)
        return out ? kvm_file_read_at(p->fd, p->b->spill, bytes, n, place, err)
                   : kvm_file_write_at(p->fd, p->b->spill, bytes, n, place, err);
    if (out)
        memcpy(bytes, p->memory + place, n);
    else
        memcpy(p->memory + place, bytes, n);
    return KVM_OK;
}

/* what a step leaves for the next block, or finds */
static kvm_status move_step(const pass *p, ptrdiff_t *at, const kvm_step *s,
                            kvm_tensor h, bool out, kvm_err *err)
{
    const kvm_model *m = p->m;
    TRY(move(p, at, h.data, (size_t)kvm_tensor_count(&h) * sizeof(float), out, err));
    if (!kvm_model__shares(m)) return KVM_OK;
    uint64_t all = s->choice->all;
    TRY(move(p, at, &all, sizeof all, out, err));
    s->choice->all = all;
    return move(p, at, s->choice->bits,
                (size_t)(s->n * s->choice->words) * sizeof(uint64_t), out, err);
}

/* ---- running ---- */

/* slots for the objects of one block, in room that the block before had */
static kvm_status open_block(pass *p, ptrdiff_t l, kvm_err *err)
{
    const kvm_model *m = p->m;
    kvm_arena_reset(&p->room);
    for (ptrdiff_t i = 0, end; i < m->info.objects; i = end) {
        for (end = i + 1; end < m->info.objects && m->objects[end].beside;) end++;
        if (m->objects[i].layer == l)
            TRY(kvm_cache__slots(p->slots, m, i, end, p->longest, &p->room, err));
    }
    return KVM_OK;
}

static void forget(const pass *p, ptrdiff_t l)
{
    for (ptrdiff_t i = 0; i < p->m->info.objects; i++) {
        const kvm_object *o = &p->m->objects[i];
        if (o->layer == l && kvm_object_per_prompt(o))
            memset(p->slots[i].rows, 0, (size_t)(o->heads * o->dim) * sizeof(float));
    }
}

static kvm_status run_step(const pass *p, ptrdiff_t l, ptrdiff_t *at, kvm_step *s,
                           kvm_err *err)
{
    const bool last = l == p->blocks - 1;
    kvm_choice choice;
    kvm_tensor h;
    ptrdiff_t from = *at;
    TRY(kvm_model__begin(p->m, s, &choice, &h, err));
    TRY(l == 0 ? kvm_model__embed(p->m, s, h, err)
               : move_step(p, &from, s, h, true, err));
    if (last && !p->all) s->out = 0;
    TRY(kvm_model__block(p->m, s, l, h, err));
    if (!last) return move_step(p, at, s, h, false, err);
    *at = from;
    return KVM_OK;
}

static kvm_status run_sequence(const pass *p, ptrdiff_t l, ptrdiff_t sequence,
                               kvm_err *err)
{
    const ptrdiff_t n = length(p, sequence), step = step_of(p, sequence);
    ptrdiff_t at = p->place[sequence];
    forget(p, l);
    if (p->b->sequence) TRY(p->b->sequence(p->b->ctx, l, sequence, err));
    for (ptrdiff_t t = 0; t < n; t += step) {
        kvm_step s = {.first = t,
                      .n = n - t < step ? n - t : step,
                      .ids = p->b->ids + p->b->offset[sequence] + t,
                      .slots = p->slots,
                      .capture = p->b->capture};
        TRY(run_step(p, l, &at, &s, err));
    }
    return KVM_OK;
}

static kvm_status tell(const pass *p, ptrdiff_t l, ptrdiff_t sequence, kvm_err *err)
{
    const ptrdiff_t layers = p->blocks, tokens = p->b->offset[p->b->n];
    if (!p->b->progress) return KVM_OK;
    const double done = (double)(l * tokens + p->b->offset[sequence + 1]);
    kvm_progress_at(p->b->progress, p->b->before + done / (double)layers, p->b->total,
                    "tokens");
    if (!kvm_progress_cancelled(p->b->progress)) return KVM_OK;
    return kvm_fail(err, KVM_CANCELLED, "cancelled in layer %td of %td", l + 1, layers);
}

static kvm_status run_blocks(pass *p, kvm_err *err)
{
    for (ptrdiff_t l = 0; l < p->blocks; l++) {
        TRY(open_block(p, l, err));
        if (l + 1 < p->blocks) kvm_model__want(&p->m->blocks[l + 1]);
        for (ptrdiff_t s = 0; s < p->b->n; s++) {
            const kvm_status st = run_sequence(p, l, s, err);
            if (st) return kvm_err_prefix(err, st, "sequence %td", s);
            TRY(tell(p, l, s, err));
        }
        kvm_model__leave(&p->m->blocks[l]);
    }
    return KVM_OK;
}

/* memory of one block's objects, for the longest sequence */
static size_t room_bytes(const pass *p)
{
    const kvm_model *m = p->m;
    size_t most = 0;
    for (ptrdiff_t l = 0; l < m->config.layers; l++) {
        size_t bytes = 4096;
        for (ptrdiff_t i = 0; i < m->info.objects; i++) {
            const kvm_object *o = &m->objects[i];
            ptrdiff_t rows = kvm_object_per_prompt(o) ? 1 : p->longest;
            if (o->block > 0) rows += rows / o->block + 2;
            if (o->layer == l) bytes += (size_t)(o->heads * o->dim * rows) * 4 + 64;
        }
        if (bytes > most) most = bytes;
    }
    return most;
}

static kvm_status prepare(pass *p, kvm_arena *own, kvm_err *err)
{
    const kvm_batch *b = p->b;
    ptrdiff_t step = 1;
    TRY(kvm_model__whole(p->m, err));
    p->place = kvm_new(own, ptrdiff_t, b->n + 1);
    p->slots = kvm_new(own, kvm_slot, p->m->info.objects);
    if (!p->place || !p->slots) return kvm_nomem(err, own);
    for (ptrdiff_t s = 0; s < b->n; s++) {
        const ptrdiff_t n = length(p, s);
        if (n < 1 || n > p->m->info.context)
            return kvm_fail(err, KVM_RANGE,
                            "sequence %td has %td tokens; %s has a context of %td", s,
                            n, p->m->info.path.at, p->m->info.context);
        TRY(kvm_model__check_ids(p->m, b->ids + b->offset[s], n, err));
        if (n > p->longest) p->longest = n;
        if (step_of(p, s) > step) step = step_of(p, s);
        p->place[s + 1] = p->place[s] + (ptrdiff_t)record_bytes(p, s);
    }
    TRY(kvm_model__reserve(p->m, step, err));
    return kvm_arena_init(&p->room, room_bytes(p), err);
}

kvm_status kvm_model_run_layers(kvm_model *m, const kvm_batch *b, kvm_err *err)
{
    kvm_arena own = {0};
    pass p = {
        .m = m, .b = b, .fd = -1, .all = b->capture->hidden || b->capture->attention};
    p.blocks = p.all ? m->config.layers : kvm_model__last_mixer(m) + 1;
    if (b->n == 0) return KVM_OK;
    TRY(kvm_arena_init(&own,
                       (size_t)(b->n + 1) * 8 +
                           (size_t)m->info.objects * sizeof(kvm_slot) + 4096,
                       err));
    kvm_status s = prepare(&p, &own, err);
    if (!s) s = open_store(&p, err);
    if (!s) s = run_blocks(&p, err);
    close_store(&p);
    kvm_arena_free(&own);
    return s;
}
