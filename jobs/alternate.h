/* alternate.h - how the models of an alternating conversation come by what the other
 * has read and said since (alternate.c). */
#ifndef KVM_JOBS_ALTERNATE_H
#define KVM_JOBS_ALTERNATE_H

/* X(NAME, "key", "title"); the first is what the others are held against */
#define KVM_CONDITIONS(X)                                                              \
    X(NATIVE, "native", "native re-read")                                              \
    X(SEGMENT, "segment", "new segment translated")                                    \
    X(NAIVE, "naive", "all translated again")                                          \
    X(REFRESH, "refresh", "segment, one native re-read")

typedef enum kvm_condition {
#define X(NAME, key, title) KVM_CONDITION_##NAME,
    KVM_CONDITIONS(X)
#undef X
        KVM_CONDITION_COUNT
} kvm_condition;

typedef struct kvm_condition_info {
    const char *key, *title;
} kvm_condition_info;
extern const kvm_condition_info kvm_conditions[]; /* (KVM_CONDITION_COUNT) */

/* turns after which the condition `refresh` re-reads once, when nothing is said and
 * more turns than these follow; else the last but one */
enum { KVM_REFRESH = 4 };

#endif
