/* scored.h - the items of a suite, and the log of what they scored.
 *
 * Items are independent: each is appended to items.jsonl with fsync when all its arms
 * are scored, and an attempt that follows a killed one starts after the last whole
 * line, whose scores it hands to the host again. Ranks take every so many-th item each,
 * into a log of their own; the one that leads then puts the lines in order and tells
 * the host. A line is {"item": id, "tokens":
 * prefix length, "scored": tokens of its continuation (perplexity), "length" and
 * "depth": stated of a needle, "scores": {arm: {metric: x}}, …}. */
#ifndef KVM_JOBS_SCORED_H
#define KVM_JOBS_SCORED_H

#include "base/file.h"
#include "jobs/items.h"
#include "jobs/job.h"

typedef struct kvm_scored {
    kvm_job *job;
    kvm_suite *suite;
    kvm_str name; /* of the suite in samples */
    kvm_items items;
    kvm_log_file *log;
    kvm_str path;   /* of the log */
    ptrdiff_t done; /* of this rank's items those whose line stands in the log */
} kvm_scored;

/* kvm_scored_open - the suite and items that the parameters name (KVM_SCORED_PARAMS);
 * of dialogues as many turns as "turns" says. KVM_USAGE for a suite that holds
 * something else (kvm_suite_serves), KVM_MISMATCH when they are not what was planned
 * with, or also stand in the calibration text: what was fitted on must not be scored
 * on */
KVM_MUST kvm_status kvm_scored_open(kvm_scored *s, kvm_job *j, const kvm_tokenizer *t,
                                    kvm_suite_holds holds, kvm_err *err);
/* kvm_scored_resume - the log, and the samples of the lines that an earlier attempt
 * left;
 * KVM_MISMATCH when they are of other items */
KVM_MUST kvm_status kvm_scored_resume(kvm_scored *s, kvm_err *err);
const kvm_item *kvm_scored_item(const kvm_scored *s, ptrdiff_t i);
/* kvm_scored_line - the line of item i, to be filled: its "scores" are empty. In
 * scratch, NULL: out of memory */
json_t *kvm_scored_line(const kvm_scored *s, ptrdiff_t i, kvm_arena *scratch);
/* kvm_scored_put - one arm's scores into the item's line and to the host; KVM_NAN names
 * what is not finite */
KVM_MUST kvm_status kvm_scored_put(kvm_scored *s, ptrdiff_t i, const char *arm,
                                   const kvm_figures *f, json_t *line, kvm_err *err);
/* kvm_scored_all - each item that has no line yet: one() fills its line, which is
 * appended; then all ranks' lines stand in `path`. KVM_CANCELLED between two items. */
typedef kvm_status kvm_score_one(void *ctx, ptrdiff_t i, json_t *line,
                                 kvm_arena *scratch, kvm_err *err);
KVM_MUST kvm_status kvm_scored_all(kvm_scored *s, kvm_score_one *one, void *ctx,
                                   kvm_err *err);
/* kvm_scored_card - what the figures say of the suite and of the backend, by the name
 * of its instruction set: scores differ between two in rounding. A new reference. */
KVM_MUST kvm_status kvm_scored_card(const kvm_scored *s, const kvm_compute *c,
                                    json_t **card, kvm_err *err);

#endif
