/* suite_import.h - public data sets and plain text become suites: a card and its items.
 *
 * Prompts are those in common use (zero-shot completion; MMLU with five shots), as
 * plain text without a chat frame. What is translated is everything but the last line
 * or, where there is only one, its last token (jobs/suite.h). Nothing is rewritten: an
 * item that the suite's form cannot express is left out and counted. */
#ifndef KVM_JOBS_SUITE_IMPORT_H
#define KVM_JOBS_SUITE_IMPORT_H

#include "jobs/suite.h"

typedef struct kvm_import_format {
    const char *name, *kind, *metric, *stop, *licence, *input; /* static */
    double chance;
    int max_new_tokens;
} kvm_import_format;
/* NULL past the end */
const kvm_import_format *kvm_import_format_at(ptrdiff_t i);

typedef struct kvm_import_options {
    kvm_str format, input;
    kvm_str card;    /* the card to write; the items go beside it, as .jsonl */
    kvm_str licence; /* empty: the format's */
    kvm_str
        tokenizer; /* text, needle: a checkpoint that counts tokens; empty: four bytes
                          are one */
    kvm_str apart; /* calibration text: items that share a window of tokens with it are
                        left out; needs the tokenizer. empty: none */
    ptrdiff_t limit;  /* items at most, spread evenly; 0: all that there are */
    ptrdiff_t tokens; /* text: of a prefix (0: 512); needle: the longest (0: 2048) */
} kvm_import_options;

typedef struct kvm_imported {
    ptrdiff_t items, left_out; /* left_out: before the limit was applied */
    const char *why;           /* of those left out; static, "" when none */
    ptrdiff_t overlapping;     /* left out for what also stands in `apart` */
    ptrdiff_t replaced;        /* items of the card that stood there; -1: none did */
    kvm_str card;
} kvm_imported;

/* kvm_suite_import - read, write card and items, read them back. KVM_NOTFOUND lists the
 * formats; KVM_FORMAT names file and line of what is wrong. */
KVM_MUST kvm_status kvm_suite_import(kvm_imported *done, kvm_arena *keep,
                                     const kvm_import_options *o, kvm_err *err);

/* ---- for the readers of suite_formats.def ---- */

typedef struct kvm_import {
    const kvm_import_options *o;
    kvm_arena *keep;
    json_t *items; /* array */
    ptrdiff_t left_out;
    const char *why;
    const char *note;      /* goes into the provenance; "" or " (five shots)" */
    const int64_t *labels; /* (label_count) of PIQA's questions, left out ones too */
    ptrdiff_t label_count, questions;
} kvm_import;

/* an item without its id; takes item. KVM_NOMEM when item is NULL */
KVM_MUST kvm_status kvm_import_add(kvm_import *im, json_t *item, kvm_err *err);
void kvm_import_leave_out(kvm_import *im, const char *why);
/* calls `each` for every line that is not empty, parsed */
KVM_MUST kvm_status kvm_import_jsonl(kvm_import *im,
                                     kvm_status (*each)(kvm_import *im, kvm_jat line,
                                                        kvm_err *err),
                                     kvm_err *err);
/* the whole input, or another file; KVM_UNSUPPORTED when it is packed */
KVM_MUST kvm_status kvm_import_read(kvm_import *im, kvm_str path, kvm_str *text,
                                    kvm_err *err);
json_t *kvm_import_str(kvm_str s);
/* answers without those that are empty, which accept nothing; gives it back */
json_t *kvm_import_filled(json_t *answers);
/* kvm_import_question - an item that is answered in words; takes answers. None: it is
 * left out */
KVM_MUST kvm_status kvm_import_question(kvm_import *im, kvm_str prefix,
                                        kvm_str question, json_t *answers,
                                        kvm_err *err);

#define X(name, kind, metric, chance, max_new, stop, licence, input)                   \
    kvm_status kvm_import_##name(kvm_import *im, kvm_err *err);
#include "jobs/suite_formats.def"
#undef X

#endif
