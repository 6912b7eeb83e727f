/* rows_spool.h - a writer of a capture and its spool, shared by rows_write.c, which
 * fills it, and rows_publish.c, which turns it round.
 *
 * The spool, PATH.spool, PATH.PART-PARTS.spool or PATH.layers-PART-PARTS.spool:
 *   1. "kvmspool", then 64 hex digits: SHA-256 of the capture's metadata (and of which
 *      part has which layers)
 *   2. records, one per sequence: i32 sequence, i32 n, n i32 positions, then the rows
 *      of each track (n, H*D) as stored: a layer's spaces, then the next layer's, of
 *      the part's layers; then the 8 bytes "endofseq"
 * A record is one write followed by fdatasync; a torn last record is cut off when the
 * spool is opened again. The records of a batch are written at their places and synced
 * before their last 8 bytes are.
 *
 *   fresh --create--> filling --put*--> filling --end_sequence--> filling (spooled)
 *   filling --begin_batch--> batch --put_in*--> batch --end_batch--> filling (spooled)
 *   filling --publish--> done (file published, spool removed) */
#ifndef KVM_TRANSLATORS_ROWS_SPOOL_H
#define KVM_TRANSLATORS_ROWS_SPOOL_H

#include <jansson.h>
#include <sys/types.h>

#include "translators/rows_internal.h"

#define KVM_SPOOL_MAGIC "kvmspool"
#define KVM_RECORD_END "endofseq"
enum {
    KVM_SPOOL_MAGIC_BYTES = 8,
    KVM_SPOOL_HEAD = KVM_SPOOL_MAGIC_BYTES + 64,
    KVM_RECORD_HEAD = 8
};

/* rows of one space of one layer */
typedef struct kvm_track {
    kvm_space space;
    ptrdiff_t layer, width;
    bool once; /* one row per sequence */
    kvm_dtype dtype;
    ptrdiff_t have; /* rows of the open sequence */
} kvm_track;

/* what whole records a spool holds */
typedef struct kvm_held {
    off_t end;      /* of the last of them; 0: it is no spool of this capture */
    ptrdiff_t done; /* sequences */
    ptrdiff_t rows;
    int32_t first, last; /* sequence numbers; last -1: there is none */
} kvm_held;

struct kvm_rows_writer {
    kvm_rows_info info;
    kvm_arena *keep;
    kvm_str path, spool;
    int part, parts;
    const ptrdiff_t *cut;          /* (parts + 1) layers of each; NULL: all have all */
    char head[KVM_SPOOL_HEAD + 1]; /* of all parts' spools */
    json_t *meta;
    int fd; /* of the spool; -1 after publish */
    kvm_held held;
    kvm_track *track;
    ptrdiff_t tracks;
    ptrdiff_t *at;          /* (spaces, layers) which track that is; -1: none */
    ptrdiff_t row_bytes;    /* per token, of all tracks */
    ptrdiff_t once_bytes;   /* per sequence besides */
    char *record;           /* the open sequence, tracks `tokens` rows apart */
    ptrdiff_t record_bytes; /* largest */
    struct batch {
        int fd;            /* of the spool too, which writes at places; -1: not open */
        ptrdiff_t n, room; /* sequences now, and at most so far */
        int32_t first;
        off_t *at;       /* (n + 1) where each record begins */
        ptrdiff_t *rows; /* (n) of each */
        ptrdiff_t *have; /* (n, tracks) that have come */
        char *piece;     /* a piece of rows as stored */
    } batch;
};

/* rows and bytes of a track in a record of n rows */
ptrdiff_t kvm_track__rows(const kvm_track *t, ptrdiff_t n);
ptrdiff_t kvm_track__bytes(const kvm_track *t, ptrdiff_t n);
/* byte of a record of n rows at which those of track o begin */
ptrdiff_t kvm_rows__place(const kvm_rows_writer *w, ptrdiff_t o, ptrdiff_t n);
/* one record at `at`: its rows, or -1 when what is left is no whole record */
ptrdiff_t kvm_rows__record(const kvm_rows_writer *w, kvm_str bytes, ptrdiff_t at,
                           int32_t *sequence, ptrdiff_t *size);
/* the writer of another part of the capture, which has no spool open: what its records
 * look like */
KVM_MUST kvm_status kvm_rows__part(kvm_rows_writer **out, const kvm_rows_writer *w,
                                   int part, kvm_arena *keep, kvm_err *err);
/* the path of a part's spool; at NULL when a is spent */
kvm_str kvm_rows__spool(const kvm_rows_writer *w, int part, kvm_arena *a);
kvm_held kvm_rows__scan(const kvm_rows_writer *w, kvm_str bytes);
void kvm_rows__close(void *writer);

#endif
