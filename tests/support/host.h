/* host.h - a host of jobs for tests: runs the nodes of a graph in this process, on
 * files below a folder, and keeps what they report. No catalogue, no worker. */
#ifndef KVM_TESTS_SUPPORT_HOST_H
#define KVM_TESTS_SUPPORT_HOST_H

#include "jobs/job.h"

typedef struct host {
    kvm_arena keep;
    kvm_str dir;
    kvm_graph graph;
    json_t **outputs; /* (graph.count) {name: path} of each node that has run */
    json_t *samples;  /* [[suite, arm, metric, item, value]] of all nodes */
    int runs;
    kvm_progress *progress; /* of the jobs; NULL: nobody looks */
    kvm_team *team;         /* that runs them; NULL: this process alone */
    size_t memory;          /* kvm_job.memory */
} host;

/* host_open - the spec's first direction, to be run below build/tmp/<name>; its nodes'
 * params may be changed before they run. spec: YAML, relative to the root of the
 * repository */
void host_open(host *h, const char *name, const char *spec);
void host_close(host *h);
int host_teardown(void **state); /* of a group whose setup left a host in *state */
/* the node of that label; the test fails when there is none */
ptrdiff_t host_node(const host *h, const char *label);
/* host_run - one node, in a new folder, on what its inputs' nodes have put out. The
 * test fails when they have not run, or when the kind puts out what its table does not
 * name. */
KVM_MUST kvm_status host_run(host *h, ptrdiff_t node, kvm_err *err);
/* host_run_crew - the same on several ranks (crew.h), of which this process is the
 * first */
KVM_MUST kvm_status host_run_crew(host *h, ptrdiff_t node, int ranks, kvm_err *err);
/* what a killed attempt left: the next host_run finds a file of that name and text in
 * its folder */
void host_leave(host *h, const char *name, kvm_str text);
/* all nodes up to this one that have not run; the test fails on an error */
void host_run_to(host *h, ptrdiff_t node);
/* an output of a node that has run */
kvm_str host_output(host *h, ptrdiff_t node, const char *name);
kvm_jat host_json(host *h, ptrdiff_t node, const char *name);

#endif
