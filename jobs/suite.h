/* suite.h - what a model is asked: a YAML card over a JSONL file of items.
 *
 * The card says what kind of questions these are, where they come from and how chance
 * scores; the items hold text. An item's prefix is what gets translated (its cache);
 * the question is what the model still reads itself; then it is scored on what follows.
 * A generated answer ends at the first stop string of the card (or of the item, which
 * then says its own), and what stands before it is scored.
 * Prefix and question are tokenised apart and joined. An item without a question gives
 * the last token of its prefix to the model, so that every arm has something to
 * read. */
#ifndef KVM_JOBS_SUITE_H
#define KVM_JOBS_SUITE_H

#include "base/yaml.h"
#include "models/tokenizer.h"

typedef enum kvm_suite_kind {
    KVM_SUITE_CALIBRATION, /* {"id","text"} */
    KVM_SUITE_PERPLEXITY,  /* {"id","prefix","continuation"} */
    /* {"id","prefix","question","choices":[…],"answer":index}; "leads":[…] (optional):
     * text read before each choice and not scored; "subject" (optional): for people */
    KVM_SUITE_MULTIPLE_CHOICE,
    KVM_SUITE_GENERATION, /* {"id","prefix","question","answers":[…]} */
    KVM_SUITE_NEEDLE,     /* {"id","length","depth","prefix","question","answer"} */
    /* {"id","story","turns":[{"question","answers":[…]}]}: a turn's question is all
     * that stands between the answer before it and its own */
    KVM_SUITE_DIALOGUE
} kvm_suite_kind;

/* What the items of a kind are; a job that scores suites asks for one of these. */
typedef enum kvm_suite_holds {
    KVM_HOLDS_TEXTS, /* to calibrate with: nothing to score */
    KVM_HOLDS_ITEMS,
    KVM_HOLDS_DIALOGUES
} kvm_suite_holds;

enum { KVM_STOP_BYTES = 64 }; /* of a stop string, at most */
enum { KVM_TURNS = 5 };       /* of a dialogue that are asked, when nothing is said */

typedef struct kvm_turn {
    kvm_str question;
    const kvm_str *answers; /* (answer_count) */
    ptrdiff_t answer_count;
} kvm_turn;

typedef struct kvm_item {                       /* borrows from the suite */
    kvm_str id, prefix, question, continuation; /* prefix of a dialogue: its story */
    /* the answers of a generation or needle item, the choices of a multiple
     * choice */
    const kvm_str *choices;
    const kvm_str *leads; /* (choice_count), or NULL */
    ptrdiff_t choice_count, answer;
    const kvm_str *stop; /* (stop_count) of a generation or needle item: its own, or the
                            card's */
    ptrdiff_t stop_count;
    ptrdiff_t length; /* stated length of a needle item in tokens, else 0 */
    double depth;
    const kvm_turn *turns; /* (turn_count) of a dialogue; else NULL */
    ptrdiff_t turn_count;
} kvm_item;

typedef struct kvm_suite {
    kvm_str name, path, licence, provenance;
    /* the headline: the card's, else the first of its kind in metrics.def; empty
     * for calibration */
    kvm_str metric;
    kvm_suite_kind kind;
    double chance; /* expected score of guessing; 0 for generation */
    ptrdiff_t max_new_tokens;
    const kvm_str *stop; /* (stop_count) */
    ptrdiff_t stop_count;
    ptrdiff_t
        turns; /* of each dialogue that will be asked, the first ones: its reader's
                        to set (KVM_TURNS) */
    kvm_item *items;
    ptrdiff_t count;
    const char *sha; /* hex over the card and the items */
} kvm_suite;

extern const kvm_field kvm_suite_card_fields[]; /* for `kvmill help suites` */

const char *kvm_suite_kind_name(kvm_suite_kind kind); /* as cards say it; static */

/* kvm_suite_read - card and items, whole; KVM_FORMAT names file and line. */
KVM_MUST kvm_status kvm_suite_read(kvm_suite **s, kvm_arena *keep, kvm_str path,
                                   kvm_err *err);
/* kvm_suite_serves - KVM_USAGE: the suite's kind holds something else than is wanted;
 * says what */
KVM_MUST kvm_status kvm_suite_serves(const kvm_suite *s, kvm_suite_holds wanted,
                                     kvm_err *err);
/* kvm_suites_dir - where the bundled cards lie: KVMILL_SUITES, else beside the program
 * (as installed: ../share/kvmill/suites; in the source tree: ../../jobs/suites), else
 * ./jobs/suites. */
KVM_MUST kvm_status kvm_suites_dir(kvm_str *dir, kvm_arena *keep, kvm_err *err);
/* kvm_suite_find - a name becomes the path of a bundled card; a path with a slash or
 * .yaml stays, relative to `dir`. KVM_NOTFOUND names the nearest, or all there are. */
KVM_MUST kvm_status kvm_suite_find(kvm_str *path, kvm_arena *keep, kvm_str dir,
                                   kvm_str name, kvm_err *err);

/* kvm_suite_sample - indices of n items spread evenly over the suite (all when n <= 0
 * or >= count), in order: needle items keep every length. */
KVM_MUST kvm_status kvm_suite_sample(ptrdiff_t **index, ptrdiff_t *n, kvm_arena *keep,
                                     const kvm_suite *s, ptrdiff_t wanted,
                                     kvm_err *err);

#endif
