/* capture_internal.h - a capture under way: shared by capture.c, whose ranks take
 * sequences, and capture_layers.c, whose ranks take layers. */
#ifndef KVM_JOBS_CAPTURE_INTERNAL_H
#define KVM_JOBS_CAPTURE_INTERNAL_H

#include "jobs/calibration.h"
#include "jobs/open.h"
#include "translators/gather.h"

typedef struct kvm_capturing {
    kvm_job *job;
    kvm_model *model;
    kvm_calibration text;
    kvm_rows_writer *writer;
    kvm_gather *gather;
    kvm_spaces spaces;
    kvm_shapes shapes;
    ptrdiff_t stride;
    bool by_layers;       /* ranks have layers each, and all sequences */
    ptrdiff_t from, to;   /* sequences of this rank */
    ptrdiff_t length;     /* tokens of the sequence that rows are of */
    float *picked;        /* rows that the stride leaves */
    float *tokens;        /* embeddings of a piece */
    int32_t *position;    /* of one sequence's rows */
    ptrdiff_t in_batch;   /* the sequence that rows are of; -1: there is no batch */
    ptrdiff_t batch_from; /* its first sequence */
} kvm_capturing;

/* what stands at the beginning of a sequence: its length is told, and the embeddings of
 * its tokens are kept, which no layer hands out */
KVM_MUST kvm_status kvm_capture__begin(kvm_capturing *c, ptrdiff_t s, kvm_err *err);
/* all rows of a sequence have come */
KVM_MUST kvm_status kvm_capture__end(kvm_capturing *c, ptrdiff_t s, kvm_err *err);

/* kvm_capture__by_layers - whether the ranks take layers: the model's weights are more
 * than one of them may hold */
KVM_MUST kvm_status kvm_capture__by_layers(kvm_job *j, bool *yes, kvm_err *err);
/* the rows of this rank's layers, of all sequences */
KVM_MUST kvm_status kvm_capture__run_layers(kvm_capturing *c, kvm_err *err);

#endif
