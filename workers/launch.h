/* launch.h - what starts the ranks of a gang, behind one interface.
 *
 * A launcher is started by the child that looks after the gang, once, and then looked
 * at until it has ended: by a process that lives as long as the ranks do (fork, mpirun,
 * srun), or by what Slurm says of a job (sbatch). Not to know is not to have failed:
 * while Slurm does not answer, a job is taken for running. */
#ifndef KVM_WORKERS_LAUNCH_H
#define KVM_WORKERS_LAUNCH_H

#include "workers/crew.h"
#include "workers/gang.h"

typedef enum kvm_launch_state {
    KVM_LAUNCH_WAITING, /* for a place: nothing runs yet */
    KVM_LAUNCH_RUNNING,
    KVM_LAUNCH_ENDED, /* with kvm_launch.code */
    KVM_LAUNCH_GONE   /* taken away, which is not the job's fault: kvm_launch.why */
} kvm_launch_state;

enum { KVM_LAUNCH_WHY = 256 };

typedef struct kvm_launch {
    int ranks;
    kvm_str folder;           /* of the gang, absolute */
    kvm_str log;              /* absolute; where sbatch's job writes */
    kvm_str program;          /* kvmill-rank, which gets the folder */
    kvm_str name;             /* "JOB.TOKEN" */
    const char *const *extra; /* further arguments of the launcher, NULL-terminated */
    kvm_kind_of *kind_of;     /* for ranks that are forked */
    kvm_arena *keep;          /* texts above and all below live in it */
    int code;                 /* of a launch that has ended; 128 + n: signal n */
    char why[KVM_LAUNCH_WHY]; /* for people; "" when there is nothing to say */
    /* private to the launcher */
    pid_t pid[KVM_CREW_MOST];
    int pids;
    int64_t slurm; /* its job */
    kvm_launch_state state;
    double ended, asked; /* kvm_now() */
} kvm_launch;

typedef struct kvm_launcher {
    const char *name, *what;
    bool forks; /* ranks are copies of this process: no other program is needed */
    /* KVM_ENVIRONMENT: what it needs is not there; KVM_BUSY: not now */
    kvm_status (*start)(kvm_launch *l, kvm_err *err);
    kvm_launch_state (*look)(kvm_launch *l);
    void (*stop)(
        kvm_launch *l); /* ends it; what is below this process goes by itself */
} kvm_launcher;

extern const kvm_launcher kvm_launch_fork, kvm_launch_mpirun, kvm_launch_srun,
    kvm_launch_sbatch;
const kvm_launcher *kvm_launcher_find(kvm_str name); /* NULL: there is none */
const char *kvm_launcher_names(void);                /* "fork, mpirun, srun, sbatch" */

/* kvm_slurm__make_way - end what an earlier attempt has left in the folder, which would
 * write where ours does; *mine: this attempt's own job, which is there already, or 0.
 * KVM_BUSY when something does not end. */
KVM_MUST kvm_status kvm_slurm__make_way(kvm_launch *l, int64_t *mine, kvm_err *err);
/* kvm_slurm__fate - of a gang that has ended without a verdict: whether Slurm has taken
 * its job away, which `why` then says. False when it knows no such job. */
bool kvm_slurm__fate(kvm_launch *l);
/* kvm_slurm__state - of the word that squeue has for it; of one that is not known: it
 * runs */
kvm_launch_state kvm_slurm__state(kvm_str word);

/* for launchers: the words, one after the other, and NULL; at most KVM_LAUNCH_WORDS */
enum { KVM_LAUNCH_WORDS = 96 };
typedef struct kvm_words {
    const char *at[KVM_LAUNCH_WORDS];
    int n;
    bool spent; /* there were more, or no memory */
    kvm_arena *keep;
} kvm_words;
void kvm_words_add(kvm_words *w, const char *word);
void kvm_words_addf(kvm_words *w, const char *fmt, ...) KVM_PRINTF(2, 3);
void kvm_words_extra(kvm_words *w, const kvm_launch *l);
/* mpirun of all ranks of the program, up to the folder */
void kvm_words_mpirun(kvm_words *w, const kvm_launch *l, bool extra);
KVM_MUST kvm_status kvm_words_check(const kvm_words *w, kvm_err *err);

#endif
