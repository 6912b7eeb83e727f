/* chaos.h - how often a fault is injected, and what became of it.
 *
 * A test of queue.md's faults has two forms: a short one in `make test`, and the whole
 * one in `make chaos`, which collects what was injected into the table of
 * docs/reliability.md. */
#ifndef KVM_TESTS_SUPPORT_CHAOS_H
#define KVM_TESTS_SUPPORT_CHAOS_H

/* chaos_count - `whole` when KVMILL_CHAOS is 1 (`make chaos`), else `brief` */
int chaos_count(int brief, int whole);
/* chaos_record - appends a line of JSON to the file KVMILL_CHAOS_TABLE, if that is set;
 * any trouble with it ends the program. Lines of the same row and `what` become one row
 * of the table: counts are added, of recoveries the worst stands.
 *   row        of queue.md, section 5: "1"
 *   what       the fault, and the database where it matters: "kill -9 of a worker"
 *   lost       jobs without a committed result at the end that should have one
 *   doubled    jobs with more than one
 *   recovery_s seconds until all goes on, the worst; < 0: it has none */
void chaos_record(const char *row, const char *what, int injected, int lost,
                  int doubled, double recovery_s);

#endif
