/* s3.h - a bucket for one test program: tests/support/s3_server.py, and the environment
 * that names it. */
#ifndef KVM_TESTS_SUPPORT_S3_H
#define KVM_TESTS_SUPPORT_S3_H

/* starts it in a folder of its own below build/tmp, empty; once a program */
void s3_start(const char *folder);
/* after so many requests of that method, `count` of them end so (s3_server.py says
 * how) */
void s3_fault(const char *method, const char *what, int after, int count);
/* requests so far whose line in the server's log has all of these words */
int s3_count(const char *word, const char *and);

#endif
