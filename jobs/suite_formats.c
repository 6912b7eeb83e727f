/* suite_formats.c - readers of public question sets: what of each task is cached, what
 * is read, what is scored. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "jobs/suite_import.h"

static const char one_word[] = "nothing stands before the answer but a word or less: "
                               "there is no cache to translate";

static const char all_equal[] = "all choices are equal";

static bool has_two_words(kvm_str s)
{
    return kvm_str_find(kvm_str_trim(s), KVM_STR(" ")) > 0;
}

/* " choice": an answer begins with the space that parts it from the prompt */
static json_t *spaced(kvm_import *im, kvm_str s)
{
    s = kvm_str_trim(s);
    s = kvm_str_fmt(im->keep, " %.*s", KVM_STR_ARG(s));
    return s.at ? kvm_import_str(s) : NULL;
}

/* prefix and question as given; the choices spaced; takes nothing */
static kvm_status add_choices(kvm_import *im, kvm_str prefix, kvm_str question,
                              const kvm_str *choices, ptrdiff_t n, int64_t gold,
                              kvm_jat at, kvm_err *err)
{
    if (gold < 0 || gold >= n)
        return kvm_json_fail(err, KVM_RANGE, at, "gold is %lld of %td choices",
                             (long long)gold, n);
    json_t *list = json_array();
    bool differ = false;
    const char *why = NULL;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (kvm_str_trim(choices[i]).len == 0) why = "a choice is empty";
        differ |= !kvm_str_eq(kvm_str_trim(choices[i]), kvm_str_trim(choices[0]));
        json_array_append_new(list, spaced(im, choices[i]));
    }
    if (!why && !differ) why = all_equal;
    if (why) {
        json_decref(list);
        kvm_import_leave_out(im, why);
        return KVM_OK;
    }
    return kvm_import_add(im,
                          json_pack("{s:o, s:o, s:o, s:I}", "prefix",
                                    kvm_import_str(prefix), "question",
                                    kvm_import_str(question), "choices", list, "answer",
                                    (json_int_t)gold),
                          err);
}

enum { MAX_CHOICES = 16 };

static kvm_status strings(kvm_import *im, kvm_jat at, kvm_str out[MAX_CHOICES],
                          ptrdiff_t *n, kvm_err *err)
{
    TRY(kvm_json_array(at, n, err));
    if (*n < 2 || *n > MAX_CHOICES)
        return kvm_json_fail(err, KVM_RANGE, at, "%td choices; 2..%d are read", *n,
                             MAX_CHOICES);
    for (ptrdiff_t i = 0; i < *n; i++)
        TRY(kvm_json_str(kvm_json_item(at, im->keep, i), &out[i], err));
    return KVM_OK;
}

/* ---- OpenBookQA: the query, completed by one of the choices ---- */

static kvm_status openbookqa_line(kvm_import *im, kvm_jat line, kvm_err *err)
{
    kvm_str query, choices[MAX_CHOICES];
    ptrdiff_t n;
    int64_t gold;
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "query"), &query, err));
    TRY(strings(im, kvm_json_get(line, im->keep, "choices"), choices, &n, err));
    TRY(kvm_json_i64(kvm_json_get(line, im->keep, "gold"), &gold, err));
    query = kvm_str_trim(query);
    if (!has_two_words(query)) {
        kvm_import_leave_out(im, one_word);
        return KVM_OK;
    }
    return add_choices(im, query, KVM_STR(""), choices, n, gold, line, err);
}

kvm_status kvm_import_openbookqa(kvm_import *im, kvm_err *err)
{
    return kvm_import_jsonl(im, openbookqa_line, err);
}

/* ---- PIQA: a goal, and which of two solutions reaches it ---- */

static kvm_status piqa_line(kvm_import *im, kvm_jat line, kvm_err *err)
{
    kvm_str goal, solutions[2];
    const ptrdiff_t question = im->questions++;
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "goal"), &goal, err));
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "sol1"), &solutions[0], err));
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "sol2"), &solutions[1], err));
    goal = kvm_str_trim(goal);
    goal = kvm_str_fmt(im->keep, "Question: %.*s\n", KVM_STR_ARG(goal));
    if (!goal.at) return kvm_nomem(err, im->keep);
    return add_choices(im, goal, KVM_STR("Answer:"), solutions, 2,
                       question < im->label_count ? im->labels[question] : 0, line,
                       err);
}

/* one label a line */
static kvm_status piqa_labels(kvm_import *im, kvm_str path, kvm_err *err)
{
    kvm_str text, line;
    TRY(kvm_import_read(im, path, &text, err));
    int64_t *labels = kvm_new(im->keep, int64_t, text.len + 1);
    if (!labels) return kvm_nomem(err, im->keep);
    for (ptrdiff_t number = 1; text.len > 0; number++) {
        kvm_str_cut(text, '\n', &line, &text);
        line = kvm_str_trim(line);
        if (line.len == 0) continue;
        int64_t *label = &labels[im->label_count++];
        if (!kvm_str_to_i64(line, label) || *label < 0 || *label > 1)
            return kvm_fail(err, KVM_FORMAT, "%.*s:%td: \"%s\" is no label",
                            KVM_STR_ARG(path), number, kvm_quote(line).at);
    }
    im->labels = labels;
    return KVM_OK;
}

kvm_status kvm_import_piqa(kvm_import *im, kvm_err *err)
{
    const kvm_str in = im->o->input;
    if (!kvm_str_ends(in, KVM_STR(".jsonl")))
        return kvm_fail(err, KVM_USAGE,
                        "%.*s: PIQA is NAME.jsonl beside NAME-labels.lst",
                        KVM_STR_ARG(in));
    kvm_str labels = kvm_str_fmt(im->keep, "%.*s-labels.lst", (int)in.len - 6, in.at);
    if (!labels.at) return kvm_nomem(err, im->keep);
    TRY(piqa_labels(im, labels, err));
    TRY(kvm_import_jsonl(im, piqa_line, err));
    if (im->label_count == im->questions) return KVM_OK;
    return kvm_fail(err, KVM_MISMATCH, "%.*s has %td labels for %td questions",
                    KVM_STR_ARG(labels), im->label_count, im->questions);
}

/* ---- WinoGrande: the same continuation after either name (partial scoring). What the
 * two contexts share is cached; each name is then read, unscored, as its lead ---- */

static kvm_str shared_words(kvm_str a, kvm_str b)
{
    ptrdiff_t n = 0;
    while (n < a.len && n < b.len && a.at[n] == b.at[n]) n++;
    while (n > 0 && a.at[n] != ' ') n--; /* a whole number of words */
    return kvm_str_slice(a, 0, n);
}

static kvm_status winogrande_line(kvm_import *im, kvm_jat line, kvm_err *err)
{
    kvm_str options[MAX_CHOICES], continuation;
    ptrdiff_t n;
    int64_t gold;
    const kvm_jat at = kvm_json_get(line, im->keep, "context_options");
    TRY(strings(im, at, options, &n, err));
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "continuation"), &continuation, err));
    TRY(kvm_json_i64(kvm_json_get(line, im->keep, "gold"), &gold, err));
    if (n != 2 || gold < 0 || gold > 1)
        return kvm_json_fail(err, KVM_RANGE, at,
                             "two contexts are read, and gold 0 or 1");
    const kvm_str a = kvm_str_trim(options[0]), b = kvm_str_trim(options[1]);
    const kvm_str head = shared_words(a, b);
    if (kvm_str_eq(a, b)) {
        kvm_import_leave_out(im, all_equal);
        return KVM_OK;
    }
    if (!has_two_words(head)) {
        kvm_import_leave_out(im, one_word);
        return KVM_OK;
    }
    const kvm_str lead_a = kvm_str_slice(a, head.len, a.len);
    const kvm_str lead_b = kvm_str_slice(b, head.len, b.len);
    return kvm_import_add(
        im,
        json_pack("{s:o, s:[o,o], s:[o,o], s:I}", "prefix", kvm_import_str(head),
                  "leads", kvm_import_str(lead_a), kvm_import_str(lead_b), "choices",
                  spaced(im, continuation), spaced(im, continuation), "answer",
                  (json_int_t)gold),
        err);
}

kvm_status kvm_import_winogrande(kvm_import *im, kvm_err *err)
{
    return kvm_import_jsonl(im, winogrande_line, err);
}

/* ---- HellaSwag: which ending follows the context ---- */

kvm_status kvm_import_hellaswag(kvm_import *im, kvm_err *err)
{
    kvm_str text, lines[6];
    TRY(kvm_import_read(im, im->o->input, &text, err));
    for (ptrdiff_t number = 1; text.len > 0; number += 6) {
        int64_t gold;
        kvm_str place =
            kvm_str_fmt(im->keep, "%.*s:%td", KVM_STR_ARG(im->o->input), number);
        if (!place.at) return kvm_nomem(err, im->keep);
        for (int i = 0; i < 6; i++) {
            if (text.len == 0)
                return kvm_fail(err, KVM_FORMAT,
                                "%.*s: a task has six lines, here are %d",
                                KVM_STR_ARG(place), i);
            kvm_str_cut(text, '\n', &lines[i], &text);
        }
        if (!kvm_str_to_i64(kvm_str_trim(lines[1]), &gold))
            return kvm_fail(err, KVM_FORMAT, "%.*s: \"%s\" is no number 0..3",
                            KVM_STR_ARG(place), kvm_quote(lines[1]).at);
        TRY(add_choices(im, kvm_str_trim(lines[0]), KVM_STR(""), lines + 2, 4, gold,
                        (kvm_jat){.file = place.at, .path = "gold"}, err));
    }
    return KVM_OK;
}

/* ---- MMLU: four options by letter, after five solved examples of the subject ---- */

enum { FIELDS = 6, SHOTS = 5, MAX_FILES = 1024 };

typedef struct csv {
    kvm_str file, rest;
    char *to; /* unquoted text goes here; as much room as the file has bytes */
    ptrdiff_t line;
} csv;

static kvm_status csv_open(csv *c, kvm_import *im, kvm_str path, kvm_err *err)
{
    *c = (csv){.file = path, .line = 1};
    TRY(kvm_import_read(im, path, &c->rest, err));
    c->to = kvm_new(im->keep, char, c->rest.len + 1);
    return c->to ? KVM_OK : kvm_nomem(err, im->keep);
}

/* One field of RFC 4180, without its quotes; *last: it ended its record. */
static kvm_status csv_field(csv *c, kvm_str *field, bool *last, kvm_err *err)
{
    const kvm_str s = c->rest;
    const bool quoted = s.len > 0 && s.at[0] == '"';
    char *const start = c->to;
    ptrdiff_t i = quoted;
    for (; i < s.len; i++) {
        if (quoted && s.at[i] == '"') {
            if (i + 1 >= s.len || s.at[i + 1] != '"') break;
            i++;
        } else if (!quoted && (s.at[i] == ',' || s.at[i] == '\n')) {
            break;
        }
        c->line += s.at[i] == '\n';
        *c->to++ = s.at[i];
    }
    if (quoted && i++ >= s.len)
        return kvm_fail(err, KVM_FORMAT, "%.*s: a quoted field does not end",
                        KVM_STR_ARG(c->file));
    while (i < s.len && s.at[i] == '\r') i++;
    if (i < s.len && s.at[i] != ',' && s.at[i] != '\n')
        return kvm_fail(err, KVM_FORMAT, "%.*s:%td: text stands behind a quoted field",
                        KVM_STR_ARG(c->file), c->line);
    *last = i >= s.len || s.at[i] == '\n';
    c->line += i < s.len && s.at[i] == '\n';
    c->rest = kvm_str_slice(s, i + 1, s.len);
    *field = kvm_str_trim((kvm_str){start, c->to - start});
    return KVM_OK;
}

/* the next record; *n = 0 at the end */
static kvm_status csv_record(csv *c, kvm_str fields[FIELDS], int *n, kvm_err *err)
{
    bool last = false;
    const ptrdiff_t line = c->line;
    for (*n = 0; c->rest.len > 0 && !last; ++*n) {
        if (*n == FIELDS)
            return kvm_fail(err, KVM_FORMAT, "%.*s:%td: more than %d fields",
                            KVM_STR_ARG(c->file), line, FIELDS);
        TRY(csv_field(c, &fields[*n], &last, err));
    }
    if (*n != 0 && *n != FIELDS)
        return kvm_fail(err, KVM_FORMAT, "%.*s:%td: %d fields, not %d",
                        KVM_STR_ARG(c->file), line, *n, FIELDS);
    return KVM_OK;
}

static kvm_status mmlu_header(csv *c, kvm_err *err)
{
    kvm_str fields[FIELDS];
    int n;
    TRY(csv_record(c, fields, &n, err));
    if (n == 0 || !kvm_str_eq(fields[0], KVM_STR("question")))
        return kvm_fail(err, KVM_FORMAT,
                        "%.*s: the header must be question,choice0,choice1,choice2,"
                        "choice3,answer",
                        KVM_STR_ARG(c->file));
    return KVM_OK;
}

static kvm_status mmlu_answer(const csv *c, kvm_str field, int64_t *answer,
                              kvm_err *err)
{
    if (kvm_str_to_i64(field, answer) && *answer >= 0 && *answer <= 3) return KVM_OK;
    return kvm_fail(err, KVM_RANGE,
                    "%.*s: the record before line %td: answer \"%s\" is "
                    "not 0..3",
                    KVM_STR_ARG(c->file), c->line, kvm_quote(field).at);
}

static void mmlu_question(kvm_text *t, const kvm_str f[FIELDS])
{
    kvm_text_addf(t, "%.*s\n", KVM_STR_ARG(f[0]));
    for (int i = 0; i < 4; i++)
        kvm_text_addf(t, "%c. %.*s\n", 'A' + i, KVM_STR_ARG(f[i + 1]));
}

/* "The following are ... about high school biology." and the solved examples */
static kvm_status mmlu_shots(kvm_import *im, kvm_text *t, kvm_str subject, kvm_str dev,
                             kvm_err *err)
{
    csv c;
    kvm_str f[FIELDS];
    int n;
    kvm_text_addf(t,
                  "The following are multiple choice questions (with answers) about ");
    for (ptrdiff_t i = 0; i < subject.len; i++)
        kvm_text_addf(t, "%c", subject.at[i] == '_' ? ' ' : subject.at[i]);
    kvm_text_addf(t, ".\n\n");
    TRY(csv_open(&c, im, dev, err));
    TRY(mmlu_header(&c, err));
    for (int shot = 0; shot < SHOTS; shot++) {
        int64_t answer;
        TRY(csv_record(&c, f, &n, err));
        if (n == 0)
            return kvm_fail(err, KVM_FORMAT, "%.*s holds %d examples, not %d",
                            KVM_STR_ARG(dev), shot, SHOTS);
        TRY(mmlu_answer(&c, f[5], &answer, err));
        mmlu_question(t, f);
        kvm_text_addf(t, "Answer: %c\n\n", 'A' + (int)answer);
    }
    return KVM_OK;
}

static kvm_status mmlu_items(kvm_import *im, kvm_text *t, csv *c, kvm_str subject,
                             kvm_err *err)
{
    static const kvm_str letters[] = {{"A", 1}, {"B", 1}, {"C", 1}, {"D", 1}};
    const ptrdiff_t shots = t->len;
    kvm_str f[FIELDS];
    int n;
    TRY(mmlu_header(c, err));
    for (;;) {
        int64_t answer;
        TRY(csv_record(c, f, &n, err));
        if (n == 0) return KVM_OK;
        TRY(mmlu_answer(c, f[5], &answer, err));
        t->len = shots;
        mmlu_question(t, f);
        if (t->failed) return kvm_nomem(err, im->keep);
        TRY(add_choices(im, kvm_text_str(t), KVM_STR("Answer:"), letters, 4, answer,
                        (kvm_jat){.file = c->file.at, .path = "answer"}, err));
        json_object_set_new(json_array_get(im->items, json_array_size(im->items) - 1),
                            "subject", kvm_import_str(subject));
    }
}

/* ROOT/test/SUBJECT_test.csv, with ROOT/dev/SUBJECT_dev.csv */
static kvm_status mmlu_subject(kvm_import *im, kvm_str test, kvm_err *err)
{
    static const kvm_str tail = {"_test.csv", 9}, folder = {"test/", 5};
    ptrdiff_t from = test.len;
    while (from > 0 && test.at[from - 1] != '/') from--;
    if (!kvm_str_ends(test, tail) ||
        !kvm_str_ends(kvm_str_slice(test, 0, from), folder))
        return kvm_fail(err, KVM_USAGE,
                        "%.*s: MMLU is test/SUBJECT_test.csv beside "
                        "dev/SUBJECT_dev.csv",
                        KVM_STR_ARG(test));
    const kvm_str subject = kvm_str_slice(test, from, test.len - tail.len);
    kvm_str dev = kvm_str_fmt(im->keep, "%.*sdev/%.*s_dev.csv",
                              (int)(from - folder.len), test.at, KVM_STR_ARG(subject));
    if (!dev.at) return kvm_nomem(err, im->keep);
    csv c;
    kvm_text t = {0};
    kvm_status s = mmlu_shots(im, &t, subject, dev, err);
    if (!s) s = csv_open(&c, im, test, err);
    if (!s) s = mmlu_items(im, &t, &c, subject, err);
    kvm_text_free(&t);
    return s;
}

static int by_name(const void *a, const void *b)
{
    return kvm_str_cmp(*(const kvm_str *)a, *(const kvm_str *)b);
}

static kvm_status list_csv(kvm_import *im, kvm_str dir, kvm_str **files, ptrdiff_t *n,
                           kvm_err *err)
{
    DIR *d = opendir(dir.at);
    if (!d) return kvm_fail_errno(err, "%.*s", KVM_STR_ARG(dir));
    kvm_str *list = kvm_new(im->keep, kvm_str, MAX_FILES);
    *n = 0;
    for (struct dirent *e; list && *n < MAX_FILES && (e = readdir(d));)
        if (kvm_str_ends(kvm_str_of(e->d_name), KVM_STR(".csv")))
            list[(*n)++] = kvm_path_join(im->keep, dir, kvm_str_of(e->d_name));
    closedir(d);
    for (ptrdiff_t i = 0; list && i < *n; i++)
        if (!list[i].at) list = NULL;
    if (!list) return kvm_nomem(err, im->keep);
    qsort(list, (size_t)*n, sizeof *list, by_name); /* the folder has no order */
    *files = list;
    return KVM_OK;
}

kvm_status kvm_import_mmlu(kvm_import *im, kvm_err *err)
{
    im->note = " (five shots)";
    if (!kvm_path_is_dir(im->o->input)) return mmlu_subject(im, im->o->input, err);
    kvm_str *files;
    ptrdiff_t n;
    const kvm_str dir = kvm_path_join(im->keep, im->o->input, KVM_STR("test"));
    if (!dir.at) return kvm_nomem(err, im->keep);
    TRY(list_csv(im, dir, &files, &n, err));
    for (ptrdiff_t i = 0; i < n; i++) TRY(mmlu_subject(im, files[i], err));
    return KVM_OK;
}

/* ---- answers in words ---- */

json_t *kvm_import_filled(json_t *answers)
{
    for (size_t i = json_array_size(answers); i-- > 0;) {
        const json_t *v = json_array_get(answers, i);
        const kvm_str s = {json_string_value(v), (ptrdiff_t)json_string_length(v)};
        if (kvm_str_trim(s).len == 0) json_array_remove(answers, i);
    }
    return answers;
}

kvm_status kvm_import_question(kvm_import *im, kvm_str prefix, kvm_str question,
                               json_t *answers, kvm_err *err)
{
    if (answers && json_array_size(kvm_import_filled(answers)) == 0) {
        json_decref(answers);
        kvm_import_leave_out(im, "there is no answer");
        return KVM_OK;
    }
    return kvm_import_add(im,
                          json_pack("{s:o, s:o, s:o}", "prefix", kvm_import_str(prefix),
                                    "question", kvm_import_str(question), "answers",
                                    answers),
                          err);
}

/* GSM8K: "#### 1,234" is accepted with and without its commas */
static kvm_status gsm8k_line(kvm_import *im, kvm_jat line, kvm_err *err)
{
    kvm_str question, answer;
    const kvm_jat at = kvm_json_get(line, im->keep, "answer");
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "question"), &question, err));
    TRY(kvm_json_str(at, &answer, err));
    const ptrdiff_t mark = kvm_str_find(answer, KVM_STR("####"));
    if (mark < 0) return kvm_json_fail(err, KVM_FORMAT, at, "no number follows a ####");
    const kvm_str number = kvm_str_trim(kvm_str_slice(answer, mark + 4, answer.len));
    char plain[64];
    size_t n = 0;
    for (ptrdiff_t i = 0; i < number.len && n + 1 < sizeof plain; i++)
        if (number.at[i] != ',') plain[n++] = number.at[i];
    plain[n] = 0;
    json_t *answers = json_pack("[s]", plain);
    if (!kvm_str_eq(number, kvm_str_of(plain)))
        json_array_append_new(answers, kvm_import_str(number));
    question = kvm_str_trim(question);
    kvm_str prefix = kvm_str_fmt(im->keep, "Question: %.*s\n", KVM_STR_ARG(question));
    if (!prefix.at) return json_decref(answers), kvm_nomem(err, im->keep);
    return kvm_import_question(im, prefix, KVM_STR("Answer:"), answers, err);
}

kvm_status kvm_import_gsm8k(kvm_import *im, kvm_err *err)
{
    return kvm_import_jsonl(im, gsm8k_line, err);
}

/* TriviaQA: "Question: ...\nAnswer:" is cut before its last line */
static kvm_status triviaqa_line(kvm_import *im, kvm_jat line, kvm_err *err)
{
    kvm_str context, answer, alias;
    ptrdiff_t n = 0;
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "context"), &context, err));
    TRY(kvm_json_str(kvm_json_get(line, im->keep, "answer"), &answer, err));
    const kvm_jat aliases = kvm_json_get(line, im->keep, "aliases");
    if (kvm_json_has(aliases)) TRY(kvm_json_array(aliases, &n, err));
    context = kvm_str_trim(context);
    ptrdiff_t cut = context.len;
    while (cut > 0 && context.at[cut - 1] != '\n') cut--;
    if (cut == 0)
        return kvm_json_fail(err, KVM_FORMAT, line, "context is not two lines");
    json_t *answers = json_array();
    json_array_append_new(answers, kvm_import_str(answer));
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_status s =
            kvm_json_str(kvm_json_item(aliases, im->keep, i), &alias, err);
        if (s) return json_decref(answers), s;
        if (!kvm_str_eq(alias, answer))
            json_array_append_new(answers, kvm_import_str(alias));
    }
    return kvm_import_question(im, kvm_str_slice(context, 0, cut),
                               kvm_str_slice(context, cut, context.len), answers, err);
}

kvm_status kvm_import_triviaqa(kvm_import *im, kvm_err *err)
{
    return kvm_import_jsonl(im, triviaqa_line, err);
}
