/* gang_mpi.h - the main() of a program whose ranks find each other by MPI: kvmill-rank,
 * and what tests have in its place. */
#ifndef KVM_WORKERS_GANG_MPI_H
#define KVM_WORKERS_GANG_MPI_H

#include "workers/gang.h"

/* kvm_gang_main - argv: the gang's folder. Gives the exit status: 0 when the verdict is
 * recorded. */
int kvm_gang_main(int argc, char **argv, kvm_kind_of *kind_of);

#endif
