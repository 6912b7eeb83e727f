/* checkpoint.h - one face over a Hugging Face folder and a GGUF file.
 *
 * Layers ask for tensors by the rows of weights.def and see row-major views of the
 * mapped file: the format, the name prefix and the order of dimensions stay in here.
 * Tensors that nobody asks for (vision towers, prediction heads) are left alone. */
#ifndef KVM_MODELS_CHECKPOINT_H
#define KVM_MODELS_CHECKPOINT_H

#include "models/config.h"

typedef enum kvm_weight_id {
#define X(id, level, hf, gguf) KVM_W_##id,
#include "models/weights.def"
#undef X
    KVM_WEIGHT_IDS
} kvm_weight_id;

/* Which tensor: a row of weights.def, and where the row asks for them layer and
 * expert. */
typedef struct kvm_weight_at {
    kvm_weight_id id;
    ptrdiff_t layer, expert;
} kvm_weight_at;

typedef struct kvm_checkpoint kvm_checkpoint;

/* kvm_checkpoint_open - path: a folder with config.json and safetensors, or a .gguf
 * file. KVM_NOTFOUND, KVM_FORMAT, KVM_UNSUPPORTED as the readers give them;
 * KVM_MISMATCH names a tensor of a layer behind the last that the config counts, unless
 * the layer predicts further tokens. */
KVM_MUST kvm_status kvm_checkpoint_open(kvm_checkpoint **ck, kvm_arena *keep,
                                        kvm_str path, kvm_err *err);
/* kvm_checkpoint_imagine - what a config.json at path describes, without its weights:
 * every tensor that is asked for is there, in the shape that was asked for and the
 * config's type, all zeros; optional ones are not. For sizes; it has no files. */
KVM_MUST kvm_status kvm_checkpoint_imagine(kvm_checkpoint **ck, kvm_arena *keep,
                                           kvm_str path, kvm_err *err);
const kvm_config *kvm_checkpoint_config(const kvm_checkpoint *ck);
kvm_str kvm_checkpoint_path(const kvm_checkpoint *ck);
/* q and k rows stand in pair order (2j, 2j+1) and must be put in halves */
bool kvm_checkpoint_permuted(const kvm_checkpoint *ck);

typedef struct kvm_found {
    kvm_tensor t; /* read only, row-major */
    kvm_str name; /* as the file spells it; borrows from the file */
    kvm_str file;
} kvm_found;
bool kvm_checkpoint_has(const kvm_checkpoint *ck, kvm_weight_at w);
/* what stands beside a tensor under its name and an ending: "_scale"; false: nothing */
bool kvm_checkpoint_beside(const kvm_checkpoint *ck, kvm_weight_at w,
                           const char *ending, kvm_found *out);
/* kvm_checkpoint_get - shape (rank, dim) is what the config implies. KVM_NOTFOUND,
 * KVM_SHAPE; the message names the tensor and both shapes. Extents of one don't
 * count. */
KVM_MUST kvm_status kvm_checkpoint_get(const kvm_checkpoint *ck, kvm_weight_at w,
                                       int rank, const ptrdiff_t *dim, kvm_found *out,
                                       kvm_err *err);
/* the same for a matrix of so many columns and whatever rows the file gives it, `usual`
 * without one */
KVM_MUST kvm_status kvm_checkpoint_get_rows(const kvm_checkpoint *ck, kvm_weight_at w,
                                            ptrdiff_t usual, ptrdiff_t cols,
                                            kvm_found *out, kvm_err *err);

/* kvm_checkpoint_weigh - bytes, as stored, of all tensors of each layer: into (layers)
 * numbers. Of what is imagined: 0. */
void kvm_checkpoint_weigh(const kvm_checkpoint *ck, ptrdiff_t *layers);

/* the files that hold the weights, in order of their names */
ptrdiff_t kvm_checkpoint_files(const kvm_checkpoint *ck);
kvm_str kvm_checkpoint_file(const kvm_checkpoint *ck, ptrdiff_t i);
/* as it was mapped, whatever its path names now: its bytes, what fstat said of it */
kvm_str kvm_checkpoint_whole(const kvm_checkpoint *ck, ptrdiff_t i);
struct stat;
const struct stat *kvm_checkpoint_state(const kvm_checkpoint *ck, ptrdiff_t i);

#endif
