/* recipes.h - which rows a map reads, by what it makes (recipes.def).
 *
 * A mapping is one target space with the spaces its maps read: of each chosen source
 * layer, or of the target layer itself. Its layers are those that have such rows. */
#ifndef KVM_TRANSLATORS_RECIPES_H
#define KVM_TRANSLATORS_RECIPES_H

#include "translators/moments.h"

typedef struct kvm_mapping {
    kvm_space out;
    kvm_side side;     /* TARGET: the layer's own rows, no choice of layers */
    kvm_space from[2]; /* equal: one space */
    bool token;        /* the target's embedding of the token stands first */
    const char *how;   /* static */
} kvm_mapping;

/* kvm_mapping_find - KVM_UNSUPPORTED, naming the space, when no recipe makes it out of
 * what the sides hold */
KVM_MUST kvm_status kvm_mapping_find(kvm_mapping *m, kvm_space out, bool token,
                                     const kvm_shapes *source, const kvm_shapes *target,
                                     kvm_err *err);
/* is there a recipe that makes this out of that? */
bool kvm_mapping_known(const kvm_mapping *m);
/* of a space from the same space, without the token */
kvm_mapping kvm_mapping_same(kvm_space s);
int kvm_mapping_spaces(const kvm_mapping *m); /* 1 or 2 */
/* what its rows are called in figures: "K" of rotated keys too; static */
const char *kvm_mapping_label(const kvm_mapping *m);

/* kvm_mapping_layers - the layers of a side that a mapping is about, ascending: those
 * that it may read, or that it makes. out (layers) may be NULL; gives how many. */
ptrdiff_t kvm_mapping_layers(const kvm_mapping *m, kvm_side side, const kvm_shapes *s,
                             int32_t *out);

/* kvm_mapping_items - the features of a map for a target layer from `count` chosen
 * source layers, in the order of a step's inputs: token, then layer by layer. out: room
 * for 1 + 2 * count (of a mapping without a choice: 3). Gives how many. */
ptrdiff_t kvm_mapping_items(const kvm_mapping *m, const int32_t *layers,
                            ptrdiff_t count, ptrdiff_t target, kvm_feature *out);

/* kvm_mapping_blocks - the products that mappings need: of the source's Gram file, of
 * the cross file (source, target) and of the target's Gram file; adds to the lists what
 * is not there yet. */
typedef struct kvm_block_set {
    kvm_block_id id[KVM_BLOCKS];
    ptrdiff_t n;
} kvm_block_set;
void kvm_block_set_add(kvm_block_set *set, kvm_space a, kvm_space b);
void kvm_mapping_blocks(const kvm_mapping *m, kvm_block_set *source,
                        kvm_block_set *cross, kvm_block_set *own);

#endif
