/* moments_internal.h - panels and tensor names, shared by the moments' writer, reader
 * and merge, and the summing of one block (moments_sum.c). */
#ifndef KVM_TRANSLATORS_MOMENTS_INTERNAL_H
#define KVM_TRANSLATORS_MOMENTS_INTERNAL_H

#include "base/file.h"
#include "models/safetensors.h"
#include "translators/moments.h"

#define KVM_MOMENTS_FORMAT "kvmill.moments.v3"

/* whole layers of at most KVM_PANEL features together, or one wider layer */
typedef struct kvm_panel {
    ptrdiff_t layer, layers; /* first, how many */
    ptrdiff_t at, width;     /* features */
} kvm_panel;
typedef struct kvm_panels {
    kvm_panel *p;
    ptrdiff_t count, width; /* panels, features of all of them */
} kvm_panels;

KVM_MUST kvm_status kvm_moments__panels(kvm_panels *out, kvm_arena *keep,
                                        const kvm_row_shape *shape, ptrdiff_t layers,
                                        kvm_err *err);

/* The blocks of a file: metadata `blocks`, read and written. */
KVM_MUST kvm_status kvm_moments__read_blocks(const kvm_st *st, kvm_block_id *blocks,
                                             ptrdiff_t *n, kvm_err *err);
KVM_MUST kvm_status kvm_moments__put_blocks(json_t *meta, const kvm_block_id *blocks,
                                            ptrdiff_t n, kvm_err *err);

/* rows of each split: tensor `rows` */
KVM_MUST kvm_status kvm_moments__read_rows(const kvm_st *st, ptrdiff_t rows[KVM_SPLITS],
                                           kvm_err *err);

/* How a block is laid out in a file of one capture, or of two. */
typedef struct kvm_block_layout {
    kvm_block_id id;
    bool cross; /* of two captures */
    bool half;  /* a Gram's block of one space: tiles i <= j, one mean */
    const kvm_panels *a, *b;
} kvm_block_layout;
kvm_block_layout kvm_moments__layout(kvm_block_id id, bool cross, const kvm_panels *a,
                                     const kvm_panels *b);

/* specs of one (block, split): tiles, then means and squares, in the order of the file;
 * n in and out counts what is in spec already */
KVM_MUST kvm_status kvm_moments__specs(kvm_st_spec *spec, ptrdiff_t *n, kvm_arena *keep,
                                       const kvm_block_layout *l, kvm_split p,
                                       kvm_err *err);
ptrdiff_t kvm_moments__spec_count(const kvm_block_layout *l);
/* "cross.K.fit.0.1", "mean.a.K+token.fit" (i < 0); at NULL when keep is spent */
kvm_str kvm_moments__name(kvm_arena *keep, const char *what, kvm_block_id id,
                          kvm_split p, ptrdiff_t i, ptrdiff_t j);

/* ---- summing ---- */

/* where sums go: into a file, or bare into a share of it; one of the two is NULL */
typedef struct kvm_sums {
    kvm_st_writer *file;
    kvm_out *share;
} kvm_sums;

/* what all blocks of a file are summed with */
typedef struct kvm_summing {
    kvm_compute *c;
    const kvm_rows *a, *b; /* b NULL: of one capture */
    size_t budget;         /* bytes of tiles and row blocks of a pass */
    kvm_progress *progress;
    kvm_sums to;
    double done, total; /* row-passes */
} kvm_summing;

/* rows of tiles of a block: panels first .. last-1 of a; the one that ends with the
 * block brings its means and squares */
typedef struct kvm_tile_rows {
    ptrdiff_t first, last;
} kvm_tile_rows;

/* bytes of the dearest pass over one panel: the least budget of a block */
size_t kvm_moments__least(const kvm_block_layout *l);
/* passes over the rows that these rows of tiles take */
ptrdiff_t kvm_moments__passes(const kvm_block_layout *l, kvm_tile_rows r,
                              size_t budget);
/* what one row of tiles costs, products of a row of the captures; and its bytes, with
 * what stands behind the last one */
double kvm_moments__row_cost(const kvm_block_layout *l, ptrdiff_t row);
size_t kvm_moments__row_bytes(const kvm_block_layout *l, ptrdiff_t row);
/* kvm_moments__sum - rows of tiles of a block over the rows (index, n) of a split,
 * written as kvm_moments__specs has it. vectors: sums; passes is reset for each.
 * KVM_NAN names space and layer, KVM_CANCELLED. */
KVM_MUST kvm_status kvm_moments__sum(kvm_summing *s, const kvm_block_layout *l,
                                     kvm_tile_rows r, const ptrdiff_t *index,
                                     ptrdiff_t n, kvm_arena vectors, kvm_arena *passes,
                                     kvm_err *err);

#endif
