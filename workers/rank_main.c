/* rank_main.c - kvmill-rank, one rank of a gang of all kinds of jobs. */
#include "workers/gang_mpi.h"

int main(int argc, char **argv)
{
    return kvm_gang_main(argc, argv, kvm_job_kind_of);
}
