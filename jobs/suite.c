#include "jobs/suite.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

enum { CARD_MAX_BYTES = 1 << 20, ITEMS_MAX_BYTES = 1 << 30 };

const kvm_field kvm_suite_card_fields[] = {
    {"name", KVM_FIELD_STR, true, "the suite's name", NULL, 0},
    {"kind", KVM_FIELD_STR, true,
     "calibration, perplexity, multiple_choice, generation, needle or dialogue", NULL,
     0},
    {"file", KVM_FIELD_STR, true, "the JSONL file beside the card", NULL, 0},
    {"licence", KVM_FIELD_STR, true, "under which the items may be used", NULL, 0},
    {"provenance", KVM_FIELD_STR, true, "where the items come from", NULL, 0},
    {"chance", KVM_FIELD_NUM, false, "expected score of guessing (0)", NULL, 0},
    {"max_new_tokens", KVM_FIELD_INT, false, "limit of a generated answer (32)", NULL,
     0},
    {"stop", KVM_FIELD_LIST, false,
     "strings that end a generated answer; an item may have its own", NULL,
     KVM_FIELD_STR},
    {"metric", KVM_FIELD_STR, false, "the headline metric (the first of its kind)",
     NULL, 0},
    {0},
};

/* what an item of each kind holds */
static const kvm_field calibration_item[] = {
    {"id", KVM_FIELD_STR, true, NULL, NULL, 0},
    {"text", KVM_FIELD_STR, true, NULL, NULL, 0},
    {0}};
#define PROMPT                                                                         \
    {"id", KVM_FIELD_STR, true, NULL, NULL, 0},                                        \
        {"prefix", KVM_FIELD_STR, true, NULL, NULL, 0},                                \
    {                                                                                  \
        "question", KVM_FIELD_STR, false, NULL, NULL, 0                                \
    }
static const kvm_field perplexity_item[] = {
    PROMPT, {"continuation", KVM_FIELD_STR, true, NULL, NULL, 0}, {0}};
static const kvm_field choice_item[] = {
    PROMPT,
    {"choices", KVM_FIELD_LIST, true, NULL, NULL, KVM_FIELD_STR},
    {"answer", KVM_FIELD_INT, true, NULL, NULL, 0},
    {"leads", KVM_FIELD_LIST, false, NULL, NULL, KVM_FIELD_STR},
    {"subject", KVM_FIELD_STR, false, NULL, NULL, 0}, /* for people; MMLU has them */
    {0}};
static const kvm_field generation_item[] = {
    PROMPT,
    {"answers", KVM_FIELD_LIST, true, NULL, NULL, KVM_FIELD_STR},
    {"stop", KVM_FIELD_LIST, false, NULL, NULL, KVM_FIELD_STR},
    {0}};
static const kvm_field needle_item[] = {
    PROMPT,
    {"answer", KVM_FIELD_STR, true, NULL, NULL, 0},
    {"length", KVM_FIELD_INT, true, NULL, NULL, 0},
    {"depth", KVM_FIELD_NUM, false, NULL, NULL, 0},
    {"stop", KVM_FIELD_LIST, false, NULL, NULL, KVM_FIELD_STR},
    {0}};
static const kvm_field dialogue_item[] = {
    {"id", KVM_FIELD_STR, true, NULL, NULL, 0},
    {"story", KVM_FIELD_STR, true, NULL, NULL, 0},
    {"turns", KVM_FIELD_LIST, true, NULL, NULL, KVM_FIELD_OBJECT},
    {"stop", KVM_FIELD_LIST, false, NULL, NULL, KVM_FIELD_STR},
    {0}};
static const kvm_field turn_fields[] = {
    {"question", KVM_FIELD_STR, true, NULL, NULL, 0},
    {"answers", KVM_FIELD_LIST, true, NULL, NULL, KVM_FIELD_STR},
    {0}};
static const struct {
    const char *name;
    const kvm_field *item;
    kvm_suite_holds holds;
    bool generates; /* answers, which end at a stop string */
} kinds[] = {
    [KVM_SUITE_CALIBRATION] = {"calibration", calibration_item, KVM_HOLDS_TEXTS, false},
    [KVM_SUITE_PERPLEXITY] = {"perplexity", perplexity_item, KVM_HOLDS_ITEMS, false},
    [KVM_SUITE_MULTIPLE_CHOICE] = {"multiple_choice", choice_item, KVM_HOLDS_ITEMS,
                                   false},
    [KVM_SUITE_GENERATION] = {"generation", generation_item, KVM_HOLDS_ITEMS, true},
    [KVM_SUITE_NEEDLE] = {"needle", needle_item, KVM_HOLDS_ITEMS, true},
    [KVM_SUITE_DIALOGUE] = {"dialogue", dialogue_item, KVM_HOLDS_DIALOGUES, true},
};

const char *kvm_suite_kind_name(kvm_suite_kind kind)
{
    return kinds[kind].name;
}

static kvm_status find_kind(kvm_jat at, kvm_suite_kind *kind, kvm_err *err)
{
    kvm_str name;
    TRY(kvm_json_str(at, &name, err));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kvm_str_eq(name, kvm_str_of(kinds[i].name))) {
            *kind = (kvm_suite_kind)i;
            return KVM_OK;
        }
    return kvm_fail(err, KVM_FORMAT,
                    "%s:%d: suite kind \"%s\" is none of calibration, perplexity, "
                    "multiple_choice, generation, needle, dialogue",
                    at.file, at.line, kvm_quote(name).at);
}

/* the strings of a JSON array into the arena */
static kvm_status read_strings(kvm_jat at, kvm_arena *keep, const kvm_str **out,
                               ptrdiff_t *n, kvm_err *err)
{
    ptrdiff_t count;
    TRY(kvm_json_array(at, &count, err));
    if (count == 0)
        return kvm_fail(err, KVM_FORMAT, "%s: %s is empty", at.file, at.path);
    kvm_str *strings = kvm_new(keep, kvm_str, count);
    if (!strings) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < count; i++)
        TRY(kvm_json_str(kvm_json_item(at, keep, i), &strings[i], err));
    *out = strings;
    *n = count;
    return KVM_OK;
}

/* absent: stays as it is */
static kvm_status read_stop(kvm_jat at, kvm_arena *keep, const kvm_str **stop,
                            ptrdiff_t *n, kvm_err *err)
{
    if (!kvm_json_has(at)) return KVM_OK;
    TRY(read_strings(at, keep, stop, n, err));
    for (ptrdiff_t i = 0; i < *n; i++)
        if ((*stop)[i].len < 1 || (*stop)[i].len > KVM_STOP_BYTES)
            return kvm_json_fail(err, KVM_RANGE, kvm_json_item(at, keep, i),
                                 "a stop string has 1..%d bytes, not %td",
                                 KVM_STOP_BYTES, (*stop)[i].len);
    return KVM_OK;
}

/* white space alone is no answer: nothing of it is scored */
static kvm_status each_filled(const kvm_str *strings, ptrdiff_t n, const char *what,
                              kvm_jat root, kvm_err *err)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (kvm_str_trim(strings[i]).len == 0)
            return kvm_fail(err, KVM_FORMAT, "%s: %s %td is empty", root.file, what, i);
    return KVM_OK;
}

static kvm_status filled(kvm_str s, const char *what, kvm_jat root, kvm_err *err)
{
    return s.len ? KVM_OK
                 : kvm_fail(err, KVM_FORMAT, "%s: %s is empty", root.file, what);
}

static kvm_status read_leads(kvm_item *it, kvm_jat root, kvm_arena *keep, kvm_err *err)
{
    ptrdiff_t n;
    const kvm_jat at = kvm_json_get(root, keep, "leads");
    if (!kvm_json_has(at)) return KVM_OK;
    TRY(read_strings(at, keep, &it->leads, &n, err));
    if (n == it->choice_count) return KVM_OK;
    return kvm_fail(err, KVM_RANGE, "%s: %td leads for %td choices", root.file, n,
                    it->choice_count);
}

/* Choices are equal when all that is read for them is: of the leads too. */
static kvm_status something_to_choose(const kvm_item *it, kvm_jat root, kvm_err *err)
{
    for (ptrdiff_t i = 1; i < it->choice_count; i++)
        if (!kvm_str_eq(it->choices[0], it->choices[i]) ||
            (it->leads && !kvm_str_eq(it->leads[0], it->leads[i])))
            return KVM_OK;
    return kvm_fail(err, KVM_FORMAT, "%s: choices must hold at least two that differ",
                    root.file);
}

static kvm_status read_choice_item(kvm_item *it, kvm_jat root, kvm_arena *keep,
                                   kvm_err *err)
{
    TRY(read_strings(kvm_json_get(root, keep, "choices"), keep, &it->choices,
                     &it->choice_count, err));
    int64_t answer;
    TRY(kvm_json_i64(kvm_json_get(root, keep, "answer"), &answer, err));
    if (answer < 0 || answer >= it->choice_count)
        return kvm_fail(err, KVM_RANGE, "%s: answer %lld of %td choices", root.file,
                        (long long)answer, it->choice_count);
    it->answer = (ptrdiff_t)answer;
    TRY(each_filled(it->choices, it->choice_count, "choice", root, err));
    TRY(read_leads(it, root, keep, err));
    return something_to_choose(it, root, err);
}

static kvm_status read_needle_item(kvm_item *it, kvm_jat root, kvm_arena *keep,
                                   kvm_err *err)
{
    kvm_str *answer = kvm_new(keep, kvm_str, 1);
    if (!answer) return kvm_nomem(err, keep);
    int64_t length;
    TRY(kvm_json_str(kvm_json_get(root, keep, "answer"), answer, err));
    TRY(kvm_json_i64(kvm_json_get(root, keep, "length"), &length, err));
    TRY(kvm_json_f64_or(kvm_json_get(root, keep, "depth"), 0, &it->depth, err));
    if (length <= 0)
        return kvm_fail(err, KVM_RANGE, "%s: length must be positive", root.file);
    if (!(it->depth >= 0 && it->depth <= 1))
        return kvm_fail(err, KVM_RANGE, "%s: depth is %g, must lie in 0..1", root.file,
                        it->depth);
    it->length = (ptrdiff_t)length;
    it->choices = answer;
    it->choice_count = 1;
    return each_filled(answer, 1, "answer", root, err);
}

static kvm_status read_turn(kvm_turn *turn, kvm_jat at, kvm_arena *keep, kvm_err *err)
{
    TRY(kvm_schema_check(at, turn_fields, *keep, err));
    TRY(kvm_json_str(kvm_json_get(at, keep, "question"), &turn->question, err));
    TRY(filled(turn->question, "question", at,
               err)); /* every speaker reads something */
    TRY(read_strings(kvm_json_get(at, keep, "answers"), keep, &turn->answers,
                     &turn->answer_count, err));
    return each_filled(turn->answers, turn->answer_count, "answer", at, err);
}

static kvm_status read_dialogue(kvm_item *it, kvm_jat root, kvm_arena *keep,
                                kvm_err *err)
{
    const kvm_jat list = kvm_json_get(root, keep, "turns");
    TRY(kvm_json_str(kvm_json_get(root, keep, "story"), &it->prefix, err));
    TRY(filled(it->prefix, "story", root, err));
    TRY(kvm_json_array(list, &it->turn_count, err));
    if (it->turn_count == 0)
        return kvm_fail(err, KVM_FORMAT, "%s: %s is empty", list.file, list.path);
    kvm_turn *turns = kvm_new(keep, kvm_turn, it->turn_count);
    if (!turns) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < it->turn_count; i++) {
        const kvm_status s =
            read_turn(&turns[i], kvm_json_item(list, keep, i), keep, err);
        if (s) return kvm_err_prefix(err, s, "turn %td", i + 1);
    }
    it->turns = turns;
    return KVM_OK;
}

static kvm_status read_item(kvm_item *it, const kvm_suite *s, kvm_jat root,
                            kvm_arena *keep, kvm_err *err)
{
    const kvm_suite_kind kind = s->kind;
    TRY(kvm_schema_check(root, kinds[kind].item, *keep, err));
    *it = (kvm_item){.stop = s->stop, .stop_count = s->stop_count};
    if (kinds[kind].generates)
        TRY(read_stop(kvm_json_get(root, keep, "stop"), keep, &it->stop,
                      &it->stop_count, err));
    TRY(kvm_json_str(kvm_json_get(root, keep, "id"), &it->id, err));
    if (kind == KVM_SUITE_CALIBRATION)
        return kvm_json_str(kvm_json_get(root, keep, "text"), &it->prefix, err);
    if (kind == KVM_SUITE_DIALOGUE) return read_dialogue(it, root, keep, err);
    TRY(kvm_json_str(kvm_json_get(root, keep, "prefix"), &it->prefix, err));
    TRY(filled(it->prefix, "prefix", root, err)); /* there is a cache to translate */
    TRY(kvm_json_str_or(kvm_json_get(root, keep, "question"), KVM_STR(""),
                        &it->question, err));
    switch (kind) {
    case KVM_SUITE_PERPLEXITY:
        TRY(kvm_json_str(kvm_json_get(root, keep, "continuation"), &it->continuation,
                         err));
        return filled(it->continuation, "continuation", root, err);
    case KVM_SUITE_MULTIPLE_CHOICE:
        return read_choice_item(it, root, keep, err);
    case KVM_SUITE_GENERATION:
        TRY(read_strings(kvm_json_get(root, keep, "answers"), keep, &it->choices,
                         &it->choice_count, err));
        return each_filled(it->choices, it->choice_count, "answer", root, err);
    case KVM_SUITE_NEEDLE:
        return read_needle_item(it, root, keep, err);
    case KVM_SUITE_CALIBRATION:
    case KVM_SUITE_DIALOGUE:
        break;
    }
    return KVM_OK;
}

static ptrdiff_t count_lines(kvm_str text)
{
    ptrdiff_t lines = 0;
    kvm_str line;
    while (text.len > 0) {
        kvm_str_cut(text, '\n', &line, &text);
        lines += kvm_str_trim(line).len > 0;
    }
    return lines;
}

/* where an item's id stands */
typedef struct id_line {
    kvm_str id;
    ptrdiff_t line;
} id_line;

static int by_id_and_line(const void *a, const void *b)
{
    const id_line *x = a, *y = b;
    const ptrdiff_t n = x->id.len < y->id.len ? x->id.len : y->id.len;
    const int order = n ? memcmp(x->id.at, y->id.at, (size_t)n) : 0;
    if (order) return order;
    if (x->id.len != y->id.len) return x->id.len < y->id.len ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

/* Samples are kept by id: two items of one name cannot both be. */
static kvm_status ids_differ(id_line *ids, ptrdiff_t n, kvm_str file, kvm_err *err)
{
    ptrdiff_t first = 0; /* of the repeated ids, the one that is met first */
    qsort(ids, (size_t)n, sizeof *ids, by_id_and_line);
    for (ptrdiff_t i = 1; i < n; i++)
        if (kvm_str_eq(ids[i].id, ids[i - 1].id) &&
            (!first || ids[i].line < ids[first].line))
            first = i;
    if (!first) return KVM_OK;
    return kvm_fail(err, KVM_FORMAT, "%.*s:%td: id \"%s\" also stands on line %td",
                    KVM_STR_ARG(file), ids[first].line, kvm_quote(ids[first].id).at,
                    ids[first - 1].line);
}

static kvm_status read_items(kvm_suite *s, kvm_arena *keep, kvm_str file, kvm_str text,
                             kvm_err *err)
{
    const ptrdiff_t lines = count_lines(text);
    if (lines == 0)
        return kvm_fail(err, KVM_FORMAT, "%.*s holds no item", KVM_STR_ARG(file));
    s->items = kvm_new(keep, kvm_item, lines);
    id_line *ids = kvm_new(keep, id_line, lines);
    if (!s->items || !ids) return kvm_nomem(err, keep);
    for (ptrdiff_t number = 1; text.len > 0; number++) {
        kvm_str line;
        kvm_str_cut(text, '\n', &line, &text);
        if (kvm_str_trim(line).len == 0) continue;
        kvm_str place = kvm_str_fmt(keep, "%.*s:%td", KVM_STR_ARG(file), number);
        if (!place.at) return kvm_nomem(err, keep);
        kvm_jat root;
        TRY(kvm_json_parse(&root, keep, line, place, err));
        TRY(read_item(&s->items[s->count], s, root, keep, err));
        ids[s->count] = (id_line){s->items[s->count].id, number};
        s->count++;
    }
    return ids_differ(ids, s->count, file, err);
}

static kvm_status hash_both(const char **sha, kvm_arena *keep, kvm_str card,
                            kvm_str items, kvm_err *err)
{
    char *hex = kvm_new(keep, char, 65);
    if (!hex) return kvm_nomem(err, keep);
    kvm_sha *h;
    TRY(kvm_sha_begin(&h, err));
    kvm_status s = kvm_sha_add(h, card.at, (size_t)card.len, err);
    if (!s) s = kvm_sha_add(h, items.at, (size_t)items.len, err);
    if (s) {
        kvm_sha_drop(h);
        return s;
    }
    TRY(kvm_sha_end(h, hex, err));
    *sha = hex;
    return KVM_OK;
}

static kvm_str dir_of(kvm_str path)
{
    ptrdiff_t end = path.len;
    while (end > 0 && path.at[end - 1] != '/') end--;
    return end == 0 ? KVM_STR(".") : kvm_str_slice(path, 0, end > 1 ? end - 1 : end);
}

/* the metrics of metrics.def, in its order */
static const struct {
    const char *kind, *name;
} metrics[] = {
#define X(kind, name, title, format, better, mean) {#kind, #name},
#include "jobs/metrics.def"
#undef X
};

static kvm_status check_metric(kvm_suite *s, kvm_jat card, kvm_arena *keep,
                               kvm_err *err)
{
    kvm_str kind, given, known = {0};
    TRY(kvm_json_str(kvm_json_get(card, keep, "kind"), &kind, err));
    TRY(kvm_json_str_or(kvm_json_get(card, keep, "metric"), KVM_STR(""), &given, err));
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        if (!kvm_str_eq(kind, kvm_str_of(metrics[i].kind))) continue;
        if (given.len == 0 || kvm_str_eq(given, kvm_str_of(metrics[i].name))) {
            s->metric = kvm_str_of(metrics[i].name);
            return KVM_OK;
        }
        known = kvm_str_fmt(keep, "%.*s %s", KVM_STR_ARG(known), metrics[i].name);
        if (!known.at) return kvm_nomem(err, keep);
    }
    if (s->kind == KVM_SUITE_CALIBRATION && given.len == 0) return KVM_OK;
    return kvm_fail(err, KVM_FORMAT, "%s: metric \"%s\" is none of a %.*s suite's:%.*s",
                    card.file, kvm_quote(given).at, KVM_STR_ARG(kind),
                    KVM_STR_ARG(known));
}

/* files are called after it */
static kvm_status check_name(kvm_jat at, kvm_str name, kvm_err *err)
{
    if (name.len > 0 && kvm_str_find(name, KVM_STR("/")) < 0 &&
        kvm_str_find(name, KVM_STR("..")) < 0)
        return KVM_OK;
    return kvm_json_fail(err, KVM_FORMAT, at,
                         "is \"%s\": a suite's name is not empty and has no / and no "
                         "..",
                         kvm_quote(name).at);
}

static kvm_status read_figures(kvm_suite *s, kvm_jat card, kvm_arena *keep,
                               kvm_err *err)
{
    int64_t most;
    const kvm_jat chance = kvm_json_get(card, keep, "chance");
    const kvm_jat tokens = kvm_json_get(card, keep, "max_new_tokens");
    const int least = kinds[s->kind].generates;
    TRY(kvm_json_f64_or(chance, 0, &s->chance, err));
    if (!(s->chance >= 0 && s->chance < 1))
        return kvm_json_fail(err, KVM_RANGE, chance, "is %g, must lie in [0, 1)",
                             s->chance);
    TRY(kvm_json_i64_or(tokens, 32, &most, err));
    if (most < least || most > 4096)
        return kvm_json_fail(err, KVM_RANGE, tokens, "is %lld, must lie in %d..4096",
                             (long long)most, least);
    s->max_new_tokens = (ptrdiff_t)most;
    return KVM_OK;
}

static kvm_status read_card(kvm_suite *s, kvm_arena *keep, kvm_jat card, kvm_str *file,
                            kvm_err *err)
{
    TRY(kvm_schema_check(card, kvm_suite_card_fields, *keep, err));
    TRY(find_kind(kvm_json_get(card, keep, "kind"), &s->kind, err));
    TRY(kvm_json_str(kvm_json_get(card, keep, "name"), &s->name, err));
    TRY(kvm_json_str(kvm_json_get(card, keep, "licence"), &s->licence, err));
    TRY(kvm_json_str(kvm_json_get(card, keep, "provenance"), &s->provenance, err));
    TRY(kvm_json_str(kvm_json_get(card, keep, "file"), file, err));
    TRY(check_name(kvm_json_get(card, keep, "name"), s->name, err));
    TRY(check_metric(s, card, keep, err));
    TRY(read_figures(s, card, keep, err));
    const bool answers = kinds[s->kind].generates;
    const kvm_jat stop = kvm_json_get(card, keep, "stop");
    if (kvm_json_has(stop) && !answers)
        return kvm_json_fail(err, KVM_FORMAT, stop,
                             "is for suites whose answers are generated");
    return read_stop(stop, keep, &s->stop, &s->stop_count, err);
}

kvm_status kvm_suite_read(kvm_suite **out, kvm_arena *keep, kvm_str path, kvm_err *err)
{
    kvm_suite *s = kvm_new(keep, kvm_suite, 1);
    if (!s) return kvm_nomem(err, keep);
    kvm_str card_text, items_text, file;
    kvm_jat card;
    TRY(kvm_file_read(&card_text, keep, path, CARD_MAX_BYTES, err));
    TRY(kvm_yaml_parse(&card, keep, card_text, path, err));
    TRY(read_card(s, keep, card, &file, err));
    s->path = kvm_path_join(keep, dir_of(path), file);
    if (!s->path.at) return kvm_nomem(err, keep);
    TRY(kvm_file_read(&items_text, keep, s->path, ITEMS_MAX_BYTES, err));
    TRY(hash_both(&s->sha, keep, card_text, items_text, err));
    TRY(read_items(s, keep, s->path, items_text, err));
    *out = s;
    return KVM_OK;
}

kvm_status kvm_suite_serves(const kvm_suite *s, kvm_suite_holds wanted, kvm_err *err)
{
    const kvm_suite_holds has = kinds[s->kind].holds;
    if (has == wanted) return KVM_OK;
    return kvm_fail(err, KVM_USAGE,
                    has == KVM_HOLDS_TEXTS
                        ? "suite %.*s is for calibration, not for scoring"
                    : wanted == KVM_HOLDS_DIALOGUES
                        ? "suite %.*s holds no dialogues"
                        : "suite %.*s holds dialogues, which only `alternate` scores",
                    KVM_STR_ARG(s->name));
}

/* The folder of the program, for what was installed beside it; empty when unknown. */
static kvm_str program_dir(kvm_arena *keep)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (n <= 0 || (size_t)n >= sizeof path) return KVM_STR("");
    return kvm_str_copy(keep, dir_of((kvm_str){path, n}));
}

kvm_status kvm_suites_dir(kvm_str *dir, kvm_arena *keep, kvm_err *err)
{
    static const char *const beside[] = {"../share/kvmill/suites", "../../jobs/suites"};
    const char *set = getenv("KVMILL_SUITES");
    *dir = kvm_str_copy(keep, kvm_str_of(set ? set : "jobs/suites"));
    if (!dir->at) return kvm_nomem(err, keep);
    if (set) return KVM_OK;
    const kvm_str program = program_dir(keep);
    for (size_t i = 0; program.len && i < sizeof beside / sizeof *beside; i++) {
        const kvm_str found = kvm_path_join(keep, program, kvm_str_of(beside[i]));
        if (!found.at) return kvm_nomem(err, keep);
        if (!kvm_path_is_dir(found)) continue;
        *dir = found;
        return KVM_OK;
    }
    return KVM_OK;
}

/* The names of a folder's cards. */
static ptrdiff_t list_cards(kvm_str *names, ptrdiff_t most, kvm_arena *keep,
                            kvm_str dir)
{
    ptrdiff_t n = 0;
    DIR *d = opendir(dir.at);
    for (struct dirent *e; d && n < most && (e = readdir(d));) {
        const kvm_str name = kvm_str_of(e->d_name);
        if (!kvm_str_ends(name, KVM_STR(".yaml"))) continue;
        names[n] = kvm_str_copy(keep, kvm_str_slice(name, 0, name.len - 5));
        n += names[n].at != NULL;
    }
    if (d) closedir(d);
    return n;
}

static kvm_status unknown_suite(kvm_str name, kvm_str dir, kvm_arena *keep,
                                kvm_err *err)
{
    enum { MOST = 200 };
    kvm_str names[MOST], list = KVM_STR("none");
    const ptrdiff_t n = list_cards(names, MOST, keep, dir);
    const ptrdiff_t near = kvm_str_nearest(name, names, n);
    if (near >= 0)
        return kvm_fail(err, KVM_NOTFOUND,
                        "unknown suite \"%s\"; did you mean \"%s\"? (a file is "
                        "named by a path to its .yaml)",
                        kvm_quote(name).at, kvm_quote(names[near]).at);
    for (ptrdiff_t i = 0; i < n && list.at; i++)
        list = i ? kvm_str_fmt(keep, "%.*s, %.*s", KVM_STR_ARG(list),
                               KVM_STR_ARG(names[i]))
                 : names[i];
    if (!list.at) return kvm_nomem(err, keep);
    return kvm_fail(err, KVM_NOTFOUND,
                    "unknown suite \"%s\"; %.*s has: %.*s (or give a path to a .yaml)",
                    kvm_quote(name).at, KVM_STR_ARG(dir), KVM_STR_ARG(list));
}

kvm_status kvm_suite_find(kvm_str *path, kvm_arena *keep, kvm_str dir, kvm_str name,
                          kvm_err *err)
{
    if (kvm_str_find(name, KVM_STR("/")) >= 0 || kvm_str_ends(name, KVM_STR(".yaml"))) {
        *path = name.at[0] == '/' ? kvm_str_copy(keep, name)
                                  : kvm_path_join(keep, dir, name);
        return path->at ? KVM_OK : kvm_nomem(err, keep);
    }
    kvm_str bundled;
    TRY(kvm_suites_dir(&bundled, keep, err));
    kvm_str found =
        kvm_str_fmt(keep, "%.*s/%.*s.yaml", KVM_STR_ARG(bundled), KVM_STR_ARG(name));
    if (!found.at) return kvm_nomem(err, keep);
    if (!kvm_path_exists(found)) return unknown_suite(name, bundled, keep, err);
    *path = found;
    return KVM_OK;
}

kvm_status kvm_suite_sample(ptrdiff_t **index, ptrdiff_t *n, kvm_arena *keep,
                            const kvm_suite *s, ptrdiff_t wanted, kvm_err *err)
{
    const ptrdiff_t count = wanted <= 0 || wanted > s->count ? s->count : wanted;
    ptrdiff_t *chosen = kvm_new(keep, ptrdiff_t, count);
    if (!chosen) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < count; i++) chosen[i] = i * s->count / count;
    *index = chosen;
    *n = count;
    return KVM_OK;
}
