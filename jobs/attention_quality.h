/* attention_quality.h - what the target's attention makes of a translated cache, layer
 * by layer.
 *
 * On the first items of a suite: the target reads the prefix on its own cache (queries
 * kept), the keys and values that its attention finds in every translator's cache are
 * compared with the true ones, and the queries attend over both
 * (translators/quality.h). Latents count as the keys and values written out of them;
 * tokens that an indexer would leave out are attended to. Adds "attention": {arm:
 * [{"layer","cosine","cosine_worst","c_k","c_v","r2_k","r2_v"}…]}, with the layers that
 * have attention, to figures, and one metric per layer and figure to the host. */
#ifndef KVM_JOBS_ATTENTION_QUALITY_H
#define KVM_JOBS_ATTENTION_QUALITY_H

#include "jobs/arm_caches.h"
#include "jobs/job.h"
#include "jobs/score_item.h"

enum { KVM_MOST_ATTENTION_ITEMS = 100000 }; /* of the parameter attention_items */

KVM_MUST kvm_status kvm_attention_quality(kvm_job *j, kvm_arm_caches *a,
                                          const kvm_item_ids *ids, ptrdiff_t n,
                                          json_t *figures, kvm_err *err);

#endif
