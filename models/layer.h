/* layer.h - what a layer kind is: load, forward and its cache objects side by side.
 *
 * A block of the stack is a mixer (it keeps objects between tokens) and a feed-forward,
 * or one of the two. What they take from the residual stream and how they add to it is
 * the block's affair (models/residual.h). A kind is a constant table; its layers are
 * structs that begin with kvm_layer. Adding a kind is one file and one row of
 * layer_kinds.def.
 *
 * Shape letters: T tokens of a step, H kv heads, D head size, C cache capacity. */
#ifndef KVM_MODELS_LAYER_H
#define KVM_MODELS_LAYER_H

#include "models/load.h"
#include "models/model.h"

typedef struct kvm_layer kvm_layer;

/* What a layer made of the rows of whole blocks of tokens (kvm_object.block), kept
 * between steps. Who puts rows of tokens that stood before anew says that there are
 * none; behind a step's first token the layer makes them anew. */
typedef struct kvm_units {
    float *rows; /* (C / block, D) */
    ptrdiff_t n; /* the first so many are there */
} kvm_units;

/* Where an object's rows lie: (H,C,D) f32, head outermost, so that attention reads each
 * head as one stream. Objects of one head that stand beside each other (kvm_object)
 * share their rows: then the stride is larger than D. */
typedef struct kvm_slot {
    float *rows;
    ptrdiff_t heads, capacity, dim;
    ptrdiff_t stride; /* from token to token */
    kvm_units *units; /* NULL: the object has no blocks */
} kvm_slot; /* an object per prompt: capacity 1, all 0 before the first token */
/* tokens 0..n-1 of all heads (H,n,D) */
kvm_tensor kvm_slot_view(const kvm_slot *s, ptrdiff_t n);
/* rows (n, H*D) <-> tokens from .. from+n-1 of the slot */
void kvm_slot_put(const kvm_slot *s, ptrdiff_t from, ptrdiff_t n, const float *rows);
void kvm_slot_get(const kvm_slot *s, ptrdiff_t from, ptrdiff_t n, float *rows);

/* The tokens that attention looks at, where it does not look at all: chosen by one
 * layer, used by it and by those after it that share its choice. Row t of the step has
 * its bits at t * words (kvm_mask). */
typedef struct kvm_choice {
    uint64_t *bits;
    ptrdiff_t words;
    bool all; /* no query sees more tokens than it may attend to: bits mean nothing */
} kvm_choice;

/* What an indexer asked of the tokens before: queries of all heads, rotated, and the
 * heads' weights. For a loss on its scores (models/backward.h). */
typedef struct kvm_asked {
    float *q, *w; /* (n, heads * dim), (n, heads) */
} kvm_asked;

/* One chunk of tokens on its way through the stack. */
typedef struct kvm_step {
    kvm_compute *compute;
    ptrdiff_t first, n; /* positions first .. first+n-1 */
    ptrdiff_t out; /* trailing rows whose result is wanted: n, or fewer from the last
                            mixer on, where the others matter only for the cache */
    const int32_t *pos;    /* (n) */
    const int32_t *ids;    /* (n) tokens; NULL in a replay */
    const kvm_slot *slots; /* by object index */
    /* of a backward, NULL elsewhere: gradients by object index; and slots whose states
     * a layer may move when it runs forward once more, the others those of `slots` */
    const kvm_slot *grads, *again;
    const kvm_asked *asked;     /* NULL: nobody keeps it, or no layer asks */
    kvm_choice *choice;         /* NULL where no layer chooses */
    ptrdiff_t dense;            /* the first so many tokens are always looked at */
    const kvm_capture *capture; /* NULL: none */
    kvm_arena scratch;
} kvm_step;

typedef struct kvm_layer_kind {
    const char *name;
    /* out lives in ld->keep */
    kvm_status (*load)(kvm_layer **out, kvm_loader *ld, ptrdiff_t index, kvm_err *err);
    /* the objects of a layer of this config (at most KVM_LAYER_OBJECTS), all but their
     * number types; the stack's rotary. NULL: the kind keeps none */
    ptrdiff_t (*objects)(const kvm_config *c, ptrdiff_t layer, const kvm_rope *rope,
                         kvm_object *out);
    /* bytes of scratch that a step of n tokens takes */
    size_t (*scratch)(const kvm_layer *l, ptrdiff_t n);
    /* x (T, hidden) -> y (out, hidden) += the layer's result for the last step->out
     * rows; new rows of its objects go to the slots and to the capture. A feed-forward
     * sees only those rows: T is out. */
    kvm_status (*forward)(const kvm_layer *l, const kvm_step *step, kvm_tensor x,
                          kvm_tensor y, kvm_err *err);
    /* kvm_layer_kind.backward - gradients through a step that forward has run, given
     * those of its result: the same x, slots and choice, all rows wanted (out = n).
     *   x, dy, dx  (T, hidden)  dx += the gradient by x, given dy, that by y
     *   slots      objects as forward left them; those per prompt as they stood BEFORE
     *              the step, not to be changed
     *   grads      slots of the same geometry. Of tokens before `first`, and of objects
     *              per prompt (as they stood before): += the gradient by the object.
     *              Rows of the step's own tokens are 0 and the layer's to work in.
     * What a layer chose (experts, tokens) is a constant, chosen again from x or read
     * in the step. Weights have no gradients. NULL: not there yet (models/backward.h
     * refuses such a model). backward_scratch: bytes that it takes for n tokens behind
     * `first`. */
    kvm_status (*backward)(const kvm_layer *l, const kvm_step *step, kvm_tensor x,
                           kvm_tensor dy, kvm_tensor dx, kvm_err *err);
    size_t (*backward_scratch)(const kvm_layer *l, ptrdiff_t first, ptrdiff_t n);
    /* the layer's own indexer (models/indexer.h) and its first object; NULL: it has
     * none, and as a member: no layer of the kind has one */
    const struct kvm_indexer *(*indexer)(const kvm_layer *l, ptrdiff_t *object);
    /* what its attention works on, and the keys and values (n, kv_heads * ...) of the
     * first n tokens in the slots of its objects. NULL: it is no attention */
    kvm_attended (*attended)(const kvm_layer *l);
    kvm_status (*expand)(const kvm_layer *l, kvm_compute *c, const kvm_slot *slots,
                         ptrdiff_t n, float *k, float *v, kvm_err *err);
    /* x (T, replay): what the layer's states make of these inputs, its result left out.
     * NULL where no object has a replay. */
    kvm_status (*replay)(const kvm_layer *l, const kvm_step *step, kvm_tensor x,
                         kvm_err *err);
    /* gradients through replay: slots as they stood before it, not to be changed;
     * grads, those by the objects as it left them, become those by what it found; dx
     * (T, replay) written. Takes backward_scratch of T. */
    kvm_status (*replay_back)(const kvm_layer *l, const kvm_step *step, kvm_tensor x,
                              kvm_tensor dx, kvm_err *err);
    /* rows (n, H*D) of object `which` (0: the layer's first) from a capture point to
     * point 3 and back, in place. NULL without objects per token. KVM_UNSUPPORTED: no
     * way back. */
    kvm_status (*advance)(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                          int point, const int32_t *pos, ptrdiff_t n, float *rows,
                          kvm_err *err);
    kvm_status (*retreat)(const kvm_layer *l, kvm_compute *c, ptrdiff_t which,
                          int point, const int32_t *pos, ptrdiff_t n, float *rows,
                          kvm_err *err);
    /* the transpose of advance: grad (n, H*D) at point 3 -> at `point`, in place; rows:
     * what stood at that point (norms need it) */
    kvm_status (*pull)(const kvm_layer *l, kvm_compute *c, ptrdiff_t which, int point,
                       const int32_t *pos, ptrdiff_t n, const float *rows, float *grad,
                       kvm_err *err);
} kvm_layer_kind;

enum { KVM_LAYER_OBJECTS = 4 }; /* of a block */

struct kvm_layer {
    const kvm_layer_kind *kind;
    ptrdiff_t index;        /* of the block */
    ptrdiff_t first_object; /* set by the model */
};

#define X(NAME, name, what) extern const kvm_layer_kind kvm_##name;
#include "models/layer_kinds.def"
#undef X
extern const kvm_layer_kind *const kvm_layer_kinds[]; /* by kvm_layer_id */

/* hand rows of an object out at a point, when the capture wants them */
KVM_MUST kvm_status kvm_step_emit(const kvm_step *step, ptrdiff_t object, int point,
                                  const float *rows, kvm_err *err);

/* hand an object per prompt out as it stands after the step, likewise */
KVM_MUST kvm_status kvm_step_emit_state(const kvm_step *step, ptrdiff_t object,
                                        kvm_err *err);

/* attention of the last rows of the step over the tokens that were chosen, or over all
 * when `chosen` is false or no query sees more than it may; window 0: no limit */
KVM_MUST kvm_status kvm_step_attend(const kvm_step *step, bool chosen, kvm_tensor y,
                                    kvm_tensor q, kvm_tensor k, kvm_tensor v,
                                    ptrdiff_t window, double scale, kvm_err *err);

/* the way back through it: dq written, dk and dv added to */
KVM_MUST kvm_status kvm_step_attend_back(const kvm_step *step, bool chosen,
                                         kvm_tensor dq, kvm_tensor dk, kvm_tensor dv,
                                         kvm_tensor q, kvm_tensor k, kvm_tensor v,
                                         kvm_tensor dy, ptrdiff_t window, double scale,
                                         kvm_err *err);

/* Views of f32 rows (T,F): some columns; their last n; from column `from`, heads of dim
 * numbers that begin `apart` numbers from each other, as (T,heads,dim) */
kvm_tensor kvm_columns(kvm_tensor rows, ptrdiff_t from, ptrdiff_t n);
kvm_tensor kvm_last_rows(kvm_tensor rows, ptrdiff_t n);
kvm_tensor kvm_heads(kvm_tensor rows, ptrdiff_t from, ptrdiff_t heads, ptrdiff_t dim,
                     ptrdiff_t apart);

/* f32 rows of a step's scratch; NULL when it is spent (kind->scratch is wrong) */
kvm_tensor kvm_step_rows(kvm_arena *scratch, ptrdiff_t n, ptrdiff_t width);
static inline size_t kvm_step_rows_bytes(ptrdiff_t n, ptrdiff_t width)
{
    return ((size_t)n * (size_t)width * sizeof(float) + 127) / 64 * 64;
}

#endif
