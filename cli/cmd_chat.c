/* cmd_chat.c - `kvmill chat PAIR.yaml`: the source answers first, then the target goes
 * on from its cache.
 *
 * Messages come from the arguments, or from standard input, one a line. The first
 * answer is the source's; with --switch every later one is the target's, with
 * --alternate every other one, with neither none. Who answers reads what is new to it;
 * but what the source has read before and the target lacks, the target is given
 * translated, behind what it holds. Beside each answer stands its time to first token
 * and what was read in it; beside the first after the switch also what reading all of
 * it again would have taken. Those two are of work that was done once before,
 * unmeasured; other answers' times are of what is done for the first time. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/find.h"
#include "cli/switching.h"
#include "models/chat.h"
#include "models/unicode.h"

enum { CONTEXT = 4096, MAX_TURNS = 512, LINE_BYTES = 1 << 16 };

/* one of the two models, and the conversation as its cache holds it */
typedef struct side {
    kvm_model *model;
    kvm_cache *cache;
    int32_t *held; /* (CONTEXT) ids of the cache */
    ptrdiff_t held_n;
} side;

typedef struct talk {
    kvm_cli *cli;
    kvm_switching s;
    kvm_encoder *encoder;
    kvm_chat_turn turns[MAX_TURNS];
    ptrdiff_t turn_count;
    side source, target;
    ptrdiff_t max_new;
    bool measured;   /* the target has read it all again, for comparison */
    kvm_err unheard; /* why a piece of an answer could not be printed */
    json_t *log;
} talk;

typedef struct times {
    double first, translate, cold; /* cold < 0: not measured */
    ptrdiff_t translated, read;    /* tokens */
    ptrdiff_t all;                 /* of the conversation so far */
} times;

static kvm_status render(talk *t, int32_t **ids, ptrdiff_t *n, kvm_err *err)
{
    kvm_str text;
    TRY(kvm_chat_render(kvm_model_tokenizer(t->s.source), t->turns, t->turn_count,
                        &(kvm_chat_options){.open_assistant = true}, t->cli->keep,
                        &text, err));
    TRY(kvm_encode(t->encoder, text, NULL, t->cli->keep, ids, n, err));
    const ptrdiff_t most = t->s.capacity - t->max_new;
    if (*n > most && t->turn_count == 1)
        return kvm_fail(err, KVM_RANGE,
                        "the message has %td tokens; the models hold %td beside an "
                        "answer of %td (--tokens)",
                        *n, most, t->max_new);
    if (*n > most)
        return kvm_fail(err, KVM_RANGE, "the conversation has grown beyond %td tokens",
                        most);
    return KVM_OK;
}

/* The cache keeps what it shares with the conversation as it now reads; a recurrent one
 * that cannot go back so far begins anew. */
static kvm_status keep_common(side *x, const int32_t *ids, ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t same = 0;
    while (same < x->held_n && same < n - 1 && x->held[same] == ids[same]) same++;
    const kvm_status s = kvm_cache_truncate(x->cache, same, NULL);
    if (s == KVM_UNSUPPORTED) {
        kvm_cache_clear(x->cache);
        same = 0;
    } else if (s) {
        return kvm_cache_truncate(x->cache, same, err);
    }
    x->held_n = same;
    return KVM_OK;
}

/* what the source has read, and the target has not; the first time of a target that
 * holds nothing beside what reading everything again takes, both ways warmed up */
static kvm_status hand_over(talk *t, const int32_t *ids, ptrdiff_t n, times *when,
                            kvm_err *err)
{
    TRY(keep_common(&t->source, ids, n, err));
    const ptrdiff_t end = t->source.held_n;
    if (end <= t->target.held_n) return KVM_OK;
    kvm_switching_tell(&t->s, ids, 0, end);
    when->translated = end - t->target.held_n;
    if (!t->measured && t->target.held_n == 0) {
        TRY(kvm_switching_cold(&t->s, ids, n, &when->cold, err));
        TRY(kvm_switching_warm_up(&t->s, ids + end, n - end, err));
        t->measured = true;
    }
    TRY(kvm_switching_catch_up(&t->s, &when->translate, err));
    memcpy(t->target.held, ids, (size_t)end * sizeof *ids);
    t->target.held_n = end;
    return KVM_OK;
}

static bool print_piece(void *ctx, int32_t id)
{
    talk *t = ctx; /* both models share one tokenizer */
    const kvm_str piece = kvm_tokenizer_piece(kvm_model_tokenizer(t->s.source), id);
    return !piece.at || kvm_cli_print(piece, &t->unheard) == KVM_OK;
}

/* the side whose turn it is */
static side *next_side(talk *t)
{
    const ptrdiff_t answers = t->turn_count / 2;
    if (kvm_cli_has(t->cli, KVM_OPT_ALTERNATE))
        return answers % 2 ? &t->target : &t->source;
    return kvm_cli_has(t->cli, KVM_OPT_SWITCH) && answers > 0 ? &t->target : &t->source;
}

static kvm_status answer(talk *t, side *x, kvm_str *text, times *when, kvm_err *err)
{
    const bool reads_for_both = x == &t->source; /* rows that the translation needs */
    int32_t *ids, *said = kvm_new(t->cli->keep, int32_t, t->max_new);
    ptrdiff_t n, said_n;
    if (!said) return kvm_nomem(err, t->cli->keep);
    TRY(render(t, &ids, &n, err));
    TRY(keep_common(x, ids, n, err));
    if (x == &t->target) TRY(hand_over(t, ids, n, when, err));
    when->all = n;
    when->read = n - x->held_n;
    const double started = kvm_now();
    TRY(kvm_model_forward(
        x->model, x->cache, ids + x->held_n, n - x->held_n,
        &(kvm_forward_options){.logits_last = 1,
                               .logits = t->s.logits,
                               .capture = reads_for_both ? kvm_switching_capture(&t->s)
                                                         : NULL},
        err));
    kvm_cache_mark(x->cache);
    when->first = kvm_now() - started + when->translate;
    const bool quiet = kvm_cli_has(t->cli, KVM_OPT_JSON);
    TRY(kvm_generate(x->model, x->cache, t->s.logits, &(kvm_sampling){0}, t->max_new,
                     said, &said_n, quiet ? NULL : print_piece, t, err));
    if (t->unheard.code) return kvm_fail(err, t->unheard.code, "%s", t->unheard.msg);
    memcpy(x->held, ids, (size_t)n * sizeof *ids);
    memcpy(x->held + n, said, (size_t)said_n * sizeof *said);
    /* rows of what was generated are not taken: whoever comes next reads it */
    if (reads_for_both && t->s.taken) TRY(kvm_cache_truncate(x->cache, n, err));
    const ptrdiff_t length = kvm_cache_length(x->cache);
    x->held_n = n + said_n < length ? n + said_n : length;
    return kvm_decode(kvm_model_tokenizer(x->model), said, said_n, true, t->cli->keep,
                      text, err);
}

static void show_times(const char *who, const times *when)
{
    fprintf(stderr, "  [%s: first token after %.1f ms, %td tokens read", who,
            when->first * 1e3, when->read);
    if (when->translated > 0)
        fprintf(stderr, " and %td translated in %.1f ms", when->translated,
                when->translate * 1e3);
    if (when->cold >= 0)
        fprintf(stderr,
                "; after %.1f ms had it read all %td (each once, after a warm-up)",
                when->cold * 1e3, when->all);
    fprintf(stderr, "]\n\n");
}

static kvm_status take_turn(talk *t, kvm_str message, kvm_err *err)
{
    times when = {.cold = -1};
    kvm_str text = {0};
    side *x = next_side(t);
    const char *who = x == &t->target ? "target" : "source";
    if (t->turn_count + 2 > MAX_TURNS)
        return kvm_fail(err, KVM_RANGE, "more than %d turns", MAX_TURNS);
    const kvm_str place =
        kvm_str_fmt(t->cli->keep, "message %td", t->turn_count / 2 + 1);
    if (!place.at) return kvm_nomem(err, t->cli->keep);
    TRY(kvm_utf8_require(message, place, err));
    t->turns[t->turn_count++] = (kvm_chat_turn){KVM_STR("user"), message};
    TRY(answer(t, x, &text, &when, err));
    t->turns[t->turn_count++] = (kvm_chat_turn){KVM_STR("assistant"), text};
    if (!kvm_cli_has(t->cli, KVM_OPT_JSON)) {
        TRY(kvm_cli_print(KVM_STR("\n"), err));
        show_times(who, &when);
        return KVM_OK;
    }
    json_array_append_new(
        t->log,
        json_pack("{s:s, s:o, s:f, s:f, s:I, s:o}", "model", who, "text",
                  kvm_cli_json_text(text), "ttft_s", when.first, "translate_s",
                  when.translate, "translated_tokens", (json_int_t)when.translated,
                  "cold_ttft_s", when.cold >= 0 ? json_real(when.cold) : json_null()));
    return KVM_OK;
}

static kvm_status talk_from_input(talk *t, kvm_err *err)
{
    static char line[LINE_BYTES];
    const bool prompt = isatty(STDIN_FILENO);
    for (;;) {
        if (prompt) fprintf(stderr, "> ");
        if (!fgets(line, sizeof line, stdin)) return KVM_OK;
        const kvm_str message =
            kvm_str_copy(t->cli->keep, kvm_str_trim(kvm_str_of(line)));
        if (!message.at) return kvm_nomem(err, t->cli->keep);
        if (message.len) TRY(take_turn(t, message, err));
    }
}

static kvm_status open_talk(talk *t, kvm_cli *cli, kvm_err *err)
{
    kvm_str file;
    kvm_found found;
    kvm_spec spec;
    int64_t max_new;
    TRY(kvm_cli_arg(cli, 0, "the pair's spec (PAIR.yaml)", &file, err));
    TRY(kvm_spec_read(&spec, cli->keep, file, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_TOKENS, 128, 1, &max_new, err));
    if (max_new > CONTEXT / 2)
        return kvm_fail(err, KVM_USAGE, "--tokens is at most %d", CONTEXT / 2);
    TRY(kvm_cli_spec_translator(cli, &spec, &found, err));
    if (kvm_cli_has(cli, KVM_OPT_SWITCH) || kvm_cli_has(cli, KVM_OPT_ALTERNATE))
        kvm_cli_say_found(&found); /* the source alone uses none */
    TRY(kvm_switching_open(&t->s, cli, spec.source_path, spec.target_path, found.path,
                           CONTEXT, err));
    t->max_new = (ptrdiff_t)max_new;
    t->source =
        (side){t->s.source, t->s.source_cache, kvm_new(cli->keep, int32_t, CONTEXT), 0};
    t->target =
        (side){t->s.target, t->s.target_cache, kvm_new(cli->keep, int32_t, CONTEXT), 0};
    t->log = json_array();
    if (!t->source.held || !t->target.held || !kvm_json_own(cli->keep, t->log))
        return kvm_nomem(err, cli->keep);
    return kvm_encoder_new(&t->encoder, cli->keep, kvm_model_tokenizer(t->s.source),
                           err);
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    talk *t = kvm_new(cli->keep, talk, 1);
    if (!t) return kvm_nomem(err, cli->keep);
    if (kvm_cli_has(cli, KVM_OPT_SWITCH) && kvm_cli_has(cli, KVM_OPT_ALTERNATE))
        return kvm_fail(err, KVM_USAGE,
                        "--switch lets the target go on, --alternate both in turns: "
                        "give one of them, or neither for the source alone");
    t->cli = cli;
    TRY(open_talk(t, cli, err));
    if (cli->arg_count < 2) TRY(talk_from_input(t, err));
    for (ptrdiff_t i = 1; i < cli->arg_count; i++) {
        if (!kvm_cli_has(cli, KVM_OPT_JSON))
            printf("> %.*s\n", KVM_STR_ARG(cli->args[i]));
        TRY(take_turn(t, cli->args[i], err));
    }
    return kvm_cli_has(cli, KVM_OPT_JSON)
               ? kvm_cli_print_json(cli, json_incref(t->log), err)
               : KVM_OK;
}

static const kvm_option options[] = {
    {KVM_OPT_SWITCH, "switch", NULL, "after the first answer go on with the target"},
    {KVM_OPT_ALTERNATE, "alternate", NULL, "source and target answer in turns"},
    {KVM_OPT_TOKENS, "tokens", "N", "at most so many tokens an answer (128)"},
    KVM_CLI_CLOSED_FORM,
    {0},
};
const kvm_command kvm_command_chat = {"chat", options, run, KVM_ANY_ARGS};
