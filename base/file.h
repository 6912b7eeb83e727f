/* file.h - whole files: read, map, publish.
 *
 * A published file appears whole or not at all: it is written to a temporary name in
 * the same directory, fsynced, renamed, and the directory fsynced. */
#ifndef KVM_BASE_FILE_H
#define KVM_BASE_FILE_H

#include <sys/types.h>

#include "base/str.h"

/* kvm_file_read - the whole file into keep (NUL after it). Regular files only; a size
 * of zero is not believed (/proc). KVM_RANGE beyond max_bytes. */
KVM_MUST kvm_status kvm_file_read(kvm_str *out, kvm_arena *keep, kvm_str path,
                                  size_t max_bytes, kvm_err *err);

/* kvm_file_open - a regular file, to read; the caller closes fd. KVM_USAGE for a
 * folder, pipe or device, which could be read for ever. */
KVM_MUST kvm_status kvm_file_open(int *fd, kvm_str path, kvm_err *err);

/* kvm_file_map - map read-only, length taken from fstat before mapping; unmapped by
 * keep's cleanup. A file of zero bytes gives at = "" and len = 0. */
KVM_MUST kvm_status kvm_file_map(kvm_str *out, kvm_arena *keep, kvm_str path,
                                 kvm_err *err);
/* kvm_file_map_state - the same, and what fstat said of the file that was mapped: its
 * path may name another one by now */
struct stat;
KVM_MUST kvm_status kvm_file_map_state(kvm_str *out, struct stat *state,
                                       kvm_arena *keep, kvm_str path, kvm_err *err);

/* hints: n bytes of a mapped file will be read soon; they need not stay in memory (what
 * is read of them again comes from the file) */
void kvm_file_want(const void *at, size_t n);
void kvm_file_leave(const void *at, size_t n);

/* A file that is read and written at places: all n bytes, or a failure that names
 * path */
KVM_MUST kvm_status kvm_file_read_at(int fd, kvm_str path, void *buf, size_t n,
                                     off_t at, kvm_err *err);
KVM_MUST kvm_status kvm_file_write_at(int fd, kvm_str path, const void *buf, size_t n,
                                      off_t at, kvm_err *err);

/* A file being written: begin -> write* -> (publish | drop), named PATH.PID-N.tmp until
 * it is published. Writes are buffered (1 MiB) and hashed (SHA-256) on the way;
 * patching what was written is not offered. After a failed write or publish only drop
 * has a meaning, and nothing of the file is left; a directory that could not be synced
 * fails the publish although the file has its name by then. */
typedef struct kvm_out kvm_out;
KVM_MUST kvm_status kvm_out_begin(kvm_out **out, kvm_arena *keep, kvm_str path,
                                  kvm_err *err);
KVM_MUST kvm_status kvm_out_write(kvm_out *out, const void *bytes, size_t n,
                                  kvm_err *err);
/* kvm_out_unhashed - nobody will ask for the hash, which costs more than the copy: from
 * now on only NULL may be published with */
void kvm_out_unhashed(kvm_out *out);
/* sha256_hex may be NULL */
KVM_MUST kvm_status kvm_out_publish(kvm_out *out, char sha256_hex[65], kvm_err *err);
/* removes the temporary; safe after publish; run by keep's cleanup */
void kvm_out_drop(kvm_out *out);

/* kvm_file_publish - begin, write, publish in one call */
KVM_MUST kvm_status kvm_file_publish(kvm_str path, kvm_str bytes, kvm_arena scratch,
                                     kvm_err *err);
/* kvm_dir_make - with parents, each made durable; an existing directory is fine */
KVM_MUST kvm_status kvm_dir_make(kvm_str path, kvm_err *err);
/* kvm_file_remove - the name is gone; KVM_OK when there was none */
KVM_MUST kvm_status kvm_file_remove(kvm_str path, kvm_err *err);
/* kvm_file_settle - sync the directory that holds path: what makes a new name in it
 * durable. KVM_OK where the file system has no such operation. */
KVM_MUST kvm_status kvm_file_settle(const char *path, kvm_err *err);
bool kvm_path_exists(kvm_str path);
bool kvm_path_is_dir(kvm_str path);
/* kvm_path_absolute - as seen from anywhere, links and .. as they stand; in keep */
KVM_MUST kvm_status kvm_path_absolute(kvm_str *out, kvm_arena *keep, kvm_str path,
                                      kvm_err *err);

/* An append-only log of records (JSON lines) that survives kill -9: each append is one
 * write(2), followed by fdatasync when `sync`. Open cuts a torn last line off (one
 * without its newline). One writer per file. A record that did not fit (full disk) is
 * taken back, so that the log stays whole. KVM_USAGE when a line holds a newline. */
typedef struct kvm_log_file kvm_log_file;
KVM_MUST kvm_status kvm_log_open(kvm_log_file **log, kvm_arena *keep, kvm_str path,
                                 kvm_err *err);
KVM_MUST kvm_status kvm_log_append(kvm_log_file *log, kvm_str line, bool sync,
                                   kvm_err *err);

#endif
