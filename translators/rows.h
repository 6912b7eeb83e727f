/* rows.h - the capture file: rows of a model's spaces, one per layer and calibration
 * token.
 *
 * What a space is, spaces.def says. Keys stand at capture point 2 (after norm, before
 * the rotary): content space. Their rotated space is derived from them by the model's
 * own rotary at each row's position, so a wrong theta cannot cancel unseen. Rows of one
 * sequence are adjacent and sequence numbers ascend; the two captures of a pair hold
 * the same (sequence, position) rows.
 *
 * 1. safetensors; metadata: format=kvmill.capture.v2, model (fingerprint), model_name,
 *    stride, tokens (per sequence, before the stride), text (text set hash), tokenizer
 *    (hash), layers, spaces (comma-separated), and of each space heads.<space> and
 *    dim.<space> (per layer, comma-separated; 0 where a layer has no such rows), and
 *    keys.state
 * 2. of the keys' rotary: rope.width (0: none), rope.factor, rope.interleaved in the
 *    metadata, and rope.inv_freq F32 (width/2) when width > 0
 * 3. position I32 (N), sequence I32 (N)
 * 4. <space>.<l> (N, H*D), F32 or BF16, l = 0 .. layers-1 where there are rows; of a
 *    space that is kept once per prompt (sequences, H*D), F32
 *
 * A writer keeps finished sequences in PATH.spool (one of several parts in
 * PATH.PART-PARTS.spool, of layers in PATH.layers-PART-PARTS.spool), so a killed
 * capture goes on where it stopped; publishing turns the spools round into the file
 * above and removes them. */
#ifndef KVM_TRANSLATORS_ROWS_H
#define KVM_TRANSLATORS_ROWS_H

#include "models/model.h"

typedef enum kvm_space {
#define X(id, name, ...) KVM_SPACE_##name = id,
#include "translators/spaces.def"
#undef X
    KVM_SPACES
} kvm_space;
/* what spaces.def says */
typedef struct kvm_space_row {
    const char *name;              /* "K_rotated" */
    kvm_object_kind object, other; /* KVM_OBJECT_KINDS: of no object */
    int point;
    kvm_space stored; /* the space itself, or the one that it is derived from */
    const char *what;
} kvm_space_row;
extern const kvm_space_row kvm_space_rows[KVM_SPACES];
const char *kvm_space_name(kvm_space s); /* static */
bool kvm_space_derived(kvm_space s);     /* by the rotary, from another one's rows */
bool kvm_space_once(kvm_space s);        /* one row per sequence, F32 */
kvm_status kvm_space_of_name(kvm_str name, kvm_space *s); /* KVM_NOTFOUND */
typedef unsigned kvm_spaces;                              /* a set: bit s is space s */
enum { KVM_SPACES_KV = 1 << KVM_SPACE_K | 1 << KVM_SPACE_V };

/* Width of one row: heads outermost. */
typedef struct kvm_row_shape {
    ptrdiff_t heads, dim; /* heads 0: the layer has no such rows */
    ptrdiff_t keys;       /* of a state: K of its (H,K,V); else 0 */
} kvm_row_shape;

/* Of all rows of a model that a capture or a translator knows. A derived space is there
 * with the one it is derived from. */
typedef struct kvm_shapes {
    ptrdiff_t layers;
    const kvm_row_shape *of[KVM_SPACES]; /* (layers) each; NULL: no such rows */
    /* it keeps n-grams besides, which are made of tokens and are no rows; a file of
     * rows does not say */
    bool ngrams;
} kvm_shapes;
/* kvm_space_part - what an object of a layer brings to a row of the space, all zeros:
 * nothing. Parts stand side by side in the order of a model's objects. */
kvm_row_shape kvm_space_part(kvm_space s, const kvm_object *o);
/* of a model that caches keys and values alone; borrows both (layers) */
kvm_shapes kvm_shapes_kv(ptrdiff_t layers, const kvm_row_shape *k,
                         const kvm_row_shape *v);
ptrdiff_t kvm_shapes_width(const kvm_shapes *s, kvm_space space, ptrdiff_t layer);

/* What a capture says about itself; the same struct tells the writer what to write. */
typedef struct kvm_rows_info {
    kvm_str model, model_name; /* fingerprint, and a name for people */
    kvm_str text, tokenizer;   /* hashes */
    kvm_shapes shapes;
    ptrdiff_t stride, tokens;
    kvm_dtype dtype; /* F32 or BF16: of the rows */
    kvm_rope rope;   /* of the keys; width 0: none */
} kvm_rows_info;

/* kvm_rows_factor - what a file says that rotary scales by, into r; false when it is
 * not above 1e-6 and below 1e6, as no rotary's is */
bool kvm_rows_factor(kvm_rope *r, double factor);
/* kvm_rows_shapes - how wide a model's rows are, in all its spaces; arrays in keep */
KVM_MUST kvm_status kvm_rows_shapes(kvm_shapes *s, kvm_arena *keep, const kvm_model *m,
                                    kvm_err *err);
/* kvm_rows_describe - the info of a capture of those of a model's spaces that are in
 * the set, arrays in keep: shapes and rotary from its objects. The caller adds text,
 * stride, tokens, dtype. KVM_UNSUPPORTED when none is, or layers differ in the rotary
 * of their keys. */
KVM_MUST kvm_status kvm_rows_describe(kvm_rows_info *info, kvm_arena *keep,
                                      const kvm_model *m, kvm_spaces which,
                                      kvm_err *err);

/* ---- reading ---- */

typedef struct kvm_rows kvm_rows;
/* kvm_rows_open - map and check: shapes, sequence order, positions >= 0.
 * KVM_FORMAT, KVM_SHAPE, KVM_VERSION name file and tensor. */
KVM_MUST kvm_status kvm_rows_open(kvm_rows **r, kvm_arena *keep, kvm_str path,
                                  kvm_err *err);
/* kvm_rows_parse - the same over the file's bytes, which the caller keeps alive */
KVM_MUST kvm_status kvm_rows_parse(kvm_rows **r, kvm_arena *keep, kvm_str bytes,
                                   kvm_str name, kvm_err *err);
const kvm_rows_info *kvm_rows_info_of(const kvm_rows *r);
kvm_str kvm_rows_path(const kvm_rows *r);
ptrdiff_t kvm_rows_count(const kvm_rows *r);         /* N */
ptrdiff_t kvm_rows_sequences(const kvm_rows *r);     /* in the order of the file */
const int32_t *kvm_rows_position(const kvm_rows *r); /* (N) */
const int32_t *kvm_rows_sequence(const kvm_rows *r); /* (N) */
/* heads 0 where the capture has no such rows */
kvm_row_shape kvm_rows_shape(const kvm_rows *r, kvm_space s, ptrdiff_t layer);

/* kvm_rows_same - KVM_OK when two captures may be paired: same text set, tokenizer,
 * stride and (sequence, position) rows; else KVM_MISMATCH naming the first
 * difference. */
KVM_MUST kvm_status kvm_rows_same(const kvm_rows *a, const kvm_rows *b, kvm_err *err);

/* kvm_rows_read - rows index[0..n) (NULL: from, from+1 ...) of `count` layers side by
 * side, as f32 into out (n, sum of H*D), rows `ld` floats apart. The rotated space
 * applies the capture's rotary. Layers without such rows take no room. Of a space that
 * is kept once, rows are sequences. */
KVM_MUST kvm_status kvm_rows_read(kvm_compute *c, const kvm_rows *r, kvm_space s,
                                  ptrdiff_t layer, ptrdiff_t count, ptrdiff_t from,
                                  const ptrdiff_t *index, ptrdiff_t n, float *out,
                                  ptrdiff_t ld, kvm_err *err);

/* ---- splitting by sequence ---- */

/* Maps are solved on FIT; layers, k and lambda are chosen on CHOOSE; HELD is read for
 * figures alone, since the best of many on the rows that chose it is flattered. */
typedef enum kvm_split { KVM_FIT, KVM_CHOOSE, KVM_HELD, KVM_SPLITS } kvm_split;
const char *kvm_split_name(kvm_split s);   /* static: "fit", "choose", "held" */
enum { KVM_LEAST_SEQUENCES = KVM_SPLITS }; /* that can be split: one for each */

/* kvm_split_sequences - of (sequences) which split each belongs to, as kvm_rows_split
 * says; in keep */
KVM_MUST kvm_status kvm_split_sequences(kvm_split **of, ptrdiff_t sequences,
                                        uint64_t seed, double fraction, kvm_arena *keep,
                                        kvm_err *err);
/* kvm_rows_split - which distinct sequences, by rank in the file, belong to `split`:
 * max(2, round(fraction * sequences)) of them are kept from the fit, chosen by the seed
 * and by nothing else, so both captures of a pair (and of all pairs) split alike; half
 * of those, rounded down, choose, the others are held out. index (N): the rows of
 * `split` in file order; n: how many. Both in keep.
 * KVM_RANGE unless 0 < fraction < 1 and there are at least 3 sequences. */
KVM_MUST kvm_status kvm_rows_split(const kvm_rows *r, uint64_t seed, double fraction,
                                   kvm_split split, kvm_arena *keep, ptrdiff_t **index,
                                   ptrdiff_t *n, kvm_err *err);

/* ---- writing ---- */

typedef struct kvm_rows_writer kvm_rows_writer;
/* kvm_rows_create - start, or go on with the spool that a killed writer of the same
 * info left (another info's spool is thrown away). info is copied. */
KVM_MUST kvm_status kvm_rows_create(kvm_rows_writer **w, kvm_arena *keep, kvm_str path,
                                    const kvm_rows_info *info, kvm_err *err);
/* kvm_rows_create_share - the same for part `part` of `parts` of the sequences, which
 * are not before those of the parts before: each has a spool of its own, all of them in
 * one folder. When they are filled, part 0 publishes what all of them hold; its file is
 * the one that a single writer makes. KVM_USAGE unless 0 <= part < parts. */
KVM_MUST kvm_status kvm_rows_create_share(kvm_rows_writer **w, kvm_arena *keep,
                                          kvm_str path, const kvm_rows_info *info,
                                          int part, int parts, kvm_err *err);
/* kvm_rows_create_layers - the same where every part has all sequences, and of them the
 * rows of layers cut[part] .. cut[part + 1]-1 alone; cut (parts + 1) ascends from 0 to
 * all layers, and is copied */
KVM_MUST kvm_status kvm_rows_create_layers(kvm_rows_writer **w, kvm_arena *keep,
                                           kvm_str path, const kvm_rows_info *info,
                                           int part, int parts, const ptrdiff_t *cut,
                                           kvm_err *err);
ptrdiff_t kvm_rows_done(const kvm_rows_writer *w); /* sequences in its spool */
/* kvm_rows_put - n rows (n, H*D) f32 of a stored space: rows first .. first+n-1 of the
 * sequence being written, after the stride has been applied by the caller; the one row
 * of a space that is kept once is row 0. Any order of
 * spaces and of pieces. KVM_RANGE beyond `tokens` rows or for rows that the capture
 * does not hold, KVM_NAN names the layer. */
KVM_MUST kvm_status kvm_rows_put(kvm_rows_writer *w, kvm_space space, ptrdiff_t layer,
                                 ptrdiff_t first, ptrdiff_t n, const float *rows,
                                 kvm_err *err);
/* kvm_rows_end_sequence - n rows at these positions are complete: one write, synced.
 * KVM_MISMATCH names a space of which fewer rows came. `sequence` must ascend. */
KVM_MUST kvm_status kvm_rows_end_sequence(kvm_rows_writer *w, int32_t sequence,
                                          const int32_t *position, ptrdiff_t n,
                                          kvm_err *err);
/* Several sequences side by side, where rows come layer by layer
 * (kvm_model_run_layers): begin_batch -> put_in of every space, any order ->
 * end_batch. A writer that is killed in between goes on after the last whole sequence,
 * as ever. */
/* kvm_rows_begin_batch - sequences first .. first+n-1 of rows[i] rows each, which stand
 * at position[0..rows[i]) */
KVM_MUST kvm_status kvm_rows_begin_batch(kvm_rows_writer *w, int32_t first, ptrdiff_t n,
                                         const ptrdiff_t *rows, const int32_t *position,
                                         kvm_err *err);
/* as kvm_rows_put, of the i-th sequence of the batch */
KVM_MUST kvm_status kvm_rows_put_in(kvm_rows_writer *w, ptrdiff_t i, kvm_space space,
                                    ptrdiff_t layer, ptrdiff_t first, ptrdiff_t n,
                                    const float *rows, kvm_err *err);
/* all of it is synced, then counts */
KVM_MUST kvm_status kvm_rows_end_batch(kvm_rows_writer *w, kvm_err *err);
/* kvm_rows_publish - KVM_RANGE when no sequence was written, KVM_MISMATCH when another
 * part's spool is not of this capture; sha_hex may be NULL */
KVM_MUST kvm_status kvm_rows_publish(kvm_rows_writer *w, char sha_hex[65],
                                     kvm_err *err);

#endif
