/* fire.h - what is due is submitted, by a process of its own.
 *
 * A spec is a person's file, and reading one opens models: whatever that does, it is a
 * child that does it, `kvmill submit FILE`, so the scheduler neither waits nor falls. A
 * child has KVM_TICK_HOLD_S, then it is killed; what it says is in a log of the store,
 * its last line beside the tick. It needs no token of the team: KVMILL_TICK names the
 * tick that it fires, which the catalogue knows (kvm_tick_admits), and bounds what it
 * reads as a worker is bounded (workers/bounds.h): whose file that is, nobody here
 * knows. */
#ifndef KVM_SCHEDULER_FIRE_H
#define KVM_SCHEDULER_FIRE_H

#include <sys/types.h>

#include "scheduler/schedule.h"

enum { KVM_FIRES_MOST = 4 }; /* children at once */

typedef struct kvm_fire_options {
    kvm_str program;   /* to be run; empty: this one */
    kvm_str home;      /* the store */
    kvm_str allow;     /* folders, split by ':', of which files may be read too */
    kvm_str catalogue; /* its address, which may hold a password: by the environment */
} kvm_fire_options;

typedef struct kvm_firing { /* one child; pid 0: none */
    pid_t pid;
    kvm_tick_id tick;
    double until;  /* kvm_now() at which it is killed */
    char log[128]; /* below the store */
} kvm_firing;
typedef struct kvm_fires { /* zero but for o: nothing under way */
    kvm_fire_options o;
    kvm_firing of[KVM_FIRES_MOST];
} kvm_fires;

/* kvm_fires_turn - ends what has ended, starts what is due; to be called every few
 * seconds, and never waits. The process has one thread when it is called. */
KVM_MUST kvm_status kvm_fires_turn(kvm_fires *f, kvm_catalogue *c, kvm_arena scratch,
                                   kvm_err *err);
/* kvm_fires_stop - kills and reaps what is under way; its ticks are taken over when
 * their time is over */
void kvm_fires_stop(kvm_fires *f);

#endif
