/* spec_internal.h - what the files that read a spec and make its graph share. */
#ifndef KVM_JOBS_SPEC_INTERNAL_H
#define KVM_JOBS_SPEC_INTERNAL_H

#include "jobs/items.h"
#include "jobs/spec.h"

/* of the calibration, when the spec does not say */
enum { KVM_SEQUENCES = 300, KVM_TOKENS = 512 };

/* kvm_spec__family - the pairs of a family, whose spec is read but for its models */
KVM_MUST kvm_status kvm_spec__family(kvm_spec **specs, ptrdiff_t *n,
                                     const kvm_spec *all, kvm_arena *keep,
                                     kvm_err *err);
/* where the checkpoint named at `at` lies */
KVM_MUST kvm_status kvm_spec__resolve_model(kvm_str *out, kvm_arena *keep,
                                            const kvm_spec *s, kvm_jat at,
                                            kvm_err *err);
/* of a pair: also the name of files */
KVM_MUST kvm_status kvm_spec__check_name(kvm_str name, kvm_jat at, kvm_err *err);

/* whether the other direction's maps are fitted too: conversations need both */
bool kvm_spec__fits_back(const kvm_spec *s);
/* kvm_spec__check_graph - every node's parameters read as its job will read them; what
 * is wrong is named as it stands in the spec. fitted_from: the n models of which layers
 * are chosen */
KVM_MUST kvm_status kvm_spec__check_graph(const kvm_spec *s, const kvm_graph *g,
                                          const kvm_model_info *const *fitted_from,
                                          int n, kvm_arena *keep, kvm_err *err);
/* kvm_spec__check_text - the calibration text can be read and holds what the spec asks
 * for; sha: kvm_calibration_hash; sequences: those that will be read, which are fewer
 * than KVM_SEQUENCES when the spec does not say and the text gives no more */
KVM_MUST kvm_status kvm_spec__check_text(const kvm_spec *s, char sha[65],
                                         ptrdiff_t *sequences, const kvm_tokenizer *t,
                                         kvm_arena *keep, kvm_err *err);
/* kvm_spec__read_overlap - windows of the calibration text, as it will be read */
KVM_MUST kvm_status kvm_spec__read_overlap(const kvm_spec *s, kvm_overlap **o,
                                           ptrdiff_t sequences, const kvm_tokenizer *t,
                                           kvm_arena *keep, kvm_err *err);
/* kvm_spec__check_items - what an evaluation would refuse of its items when it has
 * tokenised them, those alone that it scores; at: where the spec names the suite,
 * section: that says how many items, and of dialogues how many turns */
KVM_MUST kvm_status kvm_spec__check_items(const kvm_spec *s, kvm_suite *suite,
                                          kvm_jat at, kvm_jat section,
                                          const kvm_overlap *o,
                                          const kvm_model_info *const models[2],
                                          const kvm_tokenizer *t, kvm_arena *keep,
                                          kvm_err *err);

#endif
