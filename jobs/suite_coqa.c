/* suite_coqa.c - CoQA: a story and a conversation about it. Either every turn is an
 * item, with the gold answers of the turns before it, or the conversation is one
 * dialogue. The first answer and the additional ones are accepted. */
#include "jobs/suite_import.h"

/* Lists go side by side; where they number their turns, they must agree. */
static kvm_status same_turn(kvm_import *im, kvm_jat question, kvm_jat answer,
                            kvm_err *err)
{
    const kvm_jat asked = kvm_json_get(question, im->keep, "turn_id");
    const kvm_jat given = kvm_json_get(answer, im->keep, "turn_id");
    int64_t a, b;
    if (!kvm_json_has(asked) || !kvm_json_has(given)) return KVM_OK;
    TRY(kvm_json_i64(asked, &a, err));
    TRY(kvm_json_i64(given, &b, err));
    if (a == b) return KVM_OK;
    return kvm_json_fail(err, KVM_FORMAT, given,
                         "is %lld, and the question in its place is %lld", (long long)b,
                         (long long)a);
}

/* a turn's text in one of the lists of a dialogue */
static kvm_status turn_text(kvm_import *im, kvm_jat dialogue, kvm_jat list,
                            ptrdiff_t turn, kvm_str *text, kvm_err *err)
{
    const kvm_jat questions = kvm_json_get(dialogue, im->keep, "questions");
    const kvm_jat at = kvm_json_item(list, im->keep, turn);
    TRY(same_turn(im, kvm_json_item(questions, im->keep, turn), at, err));
    return kvm_json_str(kvm_json_get(at, im->keep, "input_text"), text, err);
}

static kvm_status coqa_answers(kvm_import *im, kvm_jat dialogue, ptrdiff_t turn,
                               json_t *answers, kvm_err *err)
{
    kvm_str key, text;
    const json_t *value;
    const kvm_jat more = kvm_json_get(dialogue, im->keep, "additional_answers");
    for (void *it = NULL; kvm_json_next(more, &it, &key, &value);) {
        TRY(turn_text(im, dialogue, kvm_json_get(more, im->keep, key.at), turn, &text,
                      err));
        json_array_append_new(answers, kvm_import_str(text));
    }
    return KVM_OK;
}

/* what is asked in a turn, and the answers that are accepted: a new reference. gold:
 * the first of them */
static kvm_status coqa_turn(kvm_import *im, kvm_jat dialogue, ptrdiff_t turn,
                            kvm_str *ask, kvm_str *gold, json_t **answers, kvm_err *err)
{
    kvm_str question;
    TRY(turn_text(im, dialogue, kvm_json_get(dialogue, im->keep, "questions"), turn,
                  &question, err));
    TRY(turn_text(im, dialogue, kvm_json_get(dialogue, im->keep, "answers"), turn, gold,
                  err));
    *ask = kvm_str_fmt(im->keep, "Q: %.*s\nA:", KVM_STR_ARG(question));
    if (!ask->at) return kvm_nomem(err, im->keep);
    json_t *list = json_array();
    json_array_append_new(list, kvm_import_str(*gold));
    const kvm_status s = coqa_answers(im, dialogue, turn, list, err);
    if (s) return json_decref(list), s;
    *answers = list;
    return KVM_OK;
}

static kvm_status coqa_question(kvm_import *im, kvm_jat dialogue, ptrdiff_t turn,
                                kvm_text *t, kvm_err *err)
{
    kvm_str ask, gold;
    json_t *answers;
    TRY(coqa_turn(im, dialogue, turn, &ask, &gold, &answers, err));
    TRY(kvm_import_question(im, kvm_text_str(t), ask, answers, err));
    kvm_text_addf(t, "%.*s %.*s\n", KVM_STR_ARG(ask), KVM_STR_ARG(gold));
    return t->failed ? kvm_nomem(err, im->keep) : KVM_OK;
}

static kvm_status coqa_story(kvm_import *im, kvm_jat dialogue, kvm_str *story,
                             ptrdiff_t *turns, kvm_err *err)
{
    TRY(kvm_json_str(kvm_json_get(dialogue, im->keep, "story"), story, err));
    *story = kvm_str_trim(*story);
    return kvm_json_array(kvm_json_get(dialogue, im->keep, "questions"), turns, err);
}

static kvm_status coqa_items(kvm_import *im, kvm_jat dialogue, kvm_err *err)
{
    kvm_str story;
    ptrdiff_t turns;
    kvm_text t = {0};
    TRY(coqa_story(im, dialogue, &story, &turns, err));
    kvm_text_addf(&t, "%.*s\n\n", KVM_STR_ARG(story));
    kvm_status s = KVM_OK;
    for (ptrdiff_t i = 0; !s && i < turns; i++)
        s = coqa_question(im, dialogue, i, &t, err);
    kvm_text_free(&t);
    return s;
}

/* Between two answers stands the line's end too. */
static kvm_status add_turn(kvm_import *im, kvm_jat dialogue, ptrdiff_t i, json_t *turns,
                           bool *whole, kvm_err *err)
{
    kvm_str ask, gold;
    json_t *answers;
    TRY(coqa_turn(im, dialogue, i, &ask, &gold, &answers, err));
    const kvm_str question =
        kvm_str_fmt(im->keep, "%s%.*s", i ? "\n" : "", KVM_STR_ARG(ask));
    *whole &= json_array_size(kvm_import_filled(answers)) > 0;
    json_t *turn = question.at ? json_pack("{s:o, s:O}", "question",
                                           kvm_import_str(question), "answers", answers)
                               : NULL;
    json_decref(answers);
    return json_array_append_new(turns, turn) ? kvm_nomem(err, im->keep) : KVM_OK;
}

static kvm_status coqa_dialogue(kvm_import *im, kvm_jat dialogue, kvm_err *err)
{
    kvm_str story;
    ptrdiff_t n;
    json_t *turns = kvm_json_own(im->keep, json_array());
    bool whole = true;
    if (!turns) return kvm_nomem(err, im->keep);
    TRY(coqa_story(im, dialogue, &story, &n, err));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(add_turn(im, dialogue, i, turns, &whole, err));
    if (n == 0 || !whole) {
        kvm_import_leave_out(im, n ? "a turn has no answer" : "there is no turn");
        return KVM_OK;
    }
    story = kvm_str_fmt(im->keep, "%.*s\n\n", KVM_STR_ARG(story));
    if (!story.at) return kvm_nomem(err, im->keep);
    return kvm_import_add(
        im, json_pack("{s:o, s:O}", "story", kvm_import_str(story), "turns", turns),
        err);
}

static kvm_status each_dialogue(kvm_import *im,
                                kvm_status (*each)(kvm_import *im, kvm_jat dialogue,
                                                   kvm_err *err),
                                kvm_err *err)
{
    kvm_jat root;
    ptrdiff_t n;
    TRY(kvm_json_read(&root, im->keep, im->o->input, err));
    const kvm_jat data = kvm_json_get(root, im->keep, "data");
    if (!json_is_array(data.v) || json_array_size(data.v) == 0)
        return kvm_json_fail(err, KVM_FORMAT, root,
                             "has no stories: this must be CoQA's own file, an object "
                             "whose \"data\" lists them (coqa-dev-v1.0.json, say)");
    TRY(kvm_json_array(data, &n, err));
    for (ptrdiff_t i = 0; i < n; i++)
        TRY(each(im, kvm_json_item(data, im->keep, i), err));
    return KVM_OK;
}

kvm_status kvm_import_coqa(kvm_import *im, kvm_err *err)
{
    return each_dialogue(im, coqa_items, err);
}

kvm_status kvm_import_coqa_dialogues(kvm_import *im, kvm_err *err)
{
    return each_dialogue(im, coqa_dialogue, err);
}
