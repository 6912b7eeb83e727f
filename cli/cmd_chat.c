/* cmd_chat.c - `kvmill chat PAIR.yaml --switch`: the source answers first, then the
 * target goes on from its cache.
 *
 * Messages come from the arguments, or from standard input, one a line. The first
 * answer is the source's; with --switch every later one is the target's, on the
 * translated cache of all that was said. Beside each answer stands its time to first
 * token; beside the first after the switch also what re-reading would have taken. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/find.h"
#include "cli/switching.h"
#include "models/chat.h"

enum { CONTEXT = 4096, MAX_TURNS = 512, LINE_BYTES = 1 << 16 };

typedef struct talk {
    kvm_cli *cli;
    kvm_switching s;
    kvm_encoder *encoder;
    kvm_chat_turn turns[MAX_TURNS];
    ptrdiff_t turn_count;
    int32_t *cached; /* ids that stand in the active cache */
    ptrdiff_t cached_n;
    ptrdiff_t max_new;
    bool on_target;
    kvm_err unheard; /* why a piece of an answer could not be printed */
    json_t *log;
} talk;

typedef struct times {
    double first, translate, cold; /* cold < 0: not measured */
} times;

static kvm_status render(talk *t, int32_t **ids, ptrdiff_t *n, kvm_err *err)
{
    kvm_str text;
    TRY(kvm_chat_render(kvm_model_tokenizer(t->s.source), t->turns, t->turn_count,
                        &(kvm_chat_options){.open_assistant = true}, t->cli->keep,
                        &text, err));
    TRY(kvm_encode(t->encoder, text, NULL, t->cli->keep, ids, n, err));
    if (*n + t->max_new > t->s.capacity)
        return kvm_fail(err, KVM_RANGE, "the conversation has grown beyond %td tokens",
                        t->s.capacity - t->max_new);
    return KVM_OK;
}

/* The cache keeps what it shares with the conversation as it now reads; a recurrent one
 * that cannot go back so far begins anew. */
static kvm_status keep_common(talk *t, kvm_cache *cache, const int32_t *ids,
                              ptrdiff_t n, kvm_err *err)
{
    ptrdiff_t same = 0;
    while (same < t->cached_n && same < n - 1 && t->cached[same] == ids[same]) same++;
    const kvm_status s = kvm_cache_truncate(cache, same, NULL);
    if (s == KVM_UNSUPPORTED) {
        kvm_cache_clear(cache);
        same = 0;
    } else if (s) {
        return kvm_cache_truncate(cache, same, err);
    }
    t->cached_n = same;
    return KVM_OK;
}

static kvm_status switch_over(talk *t, const int32_t *ids, ptrdiff_t n, times *when,
                              kvm_err *err)
{
    TRY(keep_common(t, t->s.source_cache, ids, n, err));
    kvm_switching_tell(&t->s, ids, 0, t->cached_n);
    TRY(kvm_switching_cold(&t->s, ids, n, &when->cold, err));
    TRY(kvm_switching_translate(&t->s, &when->translate, err));
    t->on_target = true;
    return KVM_OK;
}

static bool print_piece(void *ctx, int32_t id)
{
    talk *t = ctx; /* both models share one tokenizer */
    const kvm_str piece = kvm_tokenizer_piece(kvm_model_tokenizer(t->s.source), id);
    return !piece.at || kvm_cli_print(piece, &t->unheard) == KVM_OK;
}

static kvm_status answer(talk *t, kvm_str *text, times *when, kvm_err *err)
{
    kvm_model *m = t->on_target ? t->s.target : t->s.source;
    kvm_cache *cache = t->on_target ? t->s.target_cache : t->s.source_cache;
    int32_t *ids, *said = kvm_new(t->cli->keep, int32_t, t->max_new);
    ptrdiff_t n, said_n;
    if (!said) return kvm_nomem(err, t->cli->keep);
    TRY(render(t, &ids, &n, err));
    if (!t->on_target && kvm_cli_has(t->cli, KVM_OPT_SWITCH) && t->turn_count > 1) {
        TRY(switch_over(t, ids, n, when, err));
        m = t->s.target;
        cache = t->s.target_cache;
    }
    const double started = kvm_now();
    TRY(keep_common(t, cache, ids, n, err));
    TRY(kvm_model_forward(
        m, cache, ids + t->cached_n, n - t->cached_n,
        &(kvm_forward_options){.logits_last = 1,
                               .logits = t->s.logits,
                               .capture =
                                   t->on_target ? NULL : kvm_switching_capture(&t->s)},
        err));
    kvm_cache_mark(cache);
    when->first = kvm_now() - started + when->translate;
    const bool quiet = kvm_cli_has(t->cli, KVM_OPT_JSON);
    TRY(kvm_generate(m, cache, t->s.logits, &(kvm_sampling){0}, t->max_new, said,
                     &said_n, quiet ? NULL : print_piece, t, err));
    if (t->unheard.code) return kvm_fail(err, t->unheard.code, "%s", t->unheard.msg);
    memcpy(t->cached, ids, (size_t)n * sizeof *ids);
    memcpy(t->cached + n, said, (size_t)said_n * sizeof *said);
    /* rows of what was generated are not taken: whoever comes next reads it */
    if (!t->on_target && t->s.taken) TRY(kvm_cache_truncate(cache, n, err));
    const ptrdiff_t held = kvm_cache_length(cache);
    t->cached_n = n + said_n < held ? n + said_n : held;
    return kvm_decode(kvm_model_tokenizer(m), said, said_n, true, t->cli->keep, text,
                      err);
}

static void show_times(const talk *t, const times *when)
{
    fprintf(stderr, "  [%s: first token after %.1f ms",
            t->on_target ? "target" : "source", when->first * 1e3);
    if (when->cold >= 0)
        fprintf(stderr, ", of which translating %.1f ms; reading it all again: %.1f ms",
                when->translate * 1e3, when->cold * 1e3);
    fprintf(stderr, "]\n\n");
}

static kvm_status take_turn(talk *t, kvm_str message, kvm_err *err)
{
    times when = {0, 0, -1};
    kvm_str text = {0};
    if (t->turn_count + 2 > MAX_TURNS)
        return kvm_fail(err, KVM_RANGE, "more than %d turns", MAX_TURNS);
    t->turns[t->turn_count++] = (kvm_chat_turn){KVM_STR("user"), message};
    TRY(answer(t, &text, &when, err));
    t->turns[t->turn_count++] = (kvm_chat_turn){KVM_STR("assistant"), text};
    if (!kvm_cli_has(t->cli, KVM_OPT_JSON)) {
        TRY(kvm_cli_print(KVM_STR("\n"), err));
        show_times(t, &when);
        return KVM_OK;
    }
    json_array_append_new(
        t->log,
        json_pack("{s:s, s:o, s:f, s:f, s:o}", "model",
                  t->on_target ? "target" : "source", "text", kvm_cli_json_text(text),
                  "ttft_s", when.first, "translate_s", when.translate, "cold_ttft_s",
                  when.cold >= 0 ? json_real(when.cold) : json_null()));
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
    kvm_str file, translator;
    kvm_spec spec;
    int64_t max_new;
    TRY(kvm_cli_arg(cli, 0, "the pair's spec (PAIR.yaml)", &file, err));
    TRY(kvm_spec_read(&spec, cli->keep, file, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_TOKENS, 128, 1, &max_new, err));
    if (max_new > CONTEXT / 2)
        return kvm_fail(err, KVM_USAGE, "--tokens is at most %d", CONTEXT / 2);
    TRY(kvm_cli_spec_translator(cli, &spec, &translator, err));
    TRY(kvm_switching_open(&t->s, cli, spec.source_path, spec.target_path, translator,
                           CONTEXT, err));
    t->max_new = (ptrdiff_t)max_new;
    t->cached = kvm_new(cli->keep, int32_t, CONTEXT);
    t->log = json_array();
    if (!t->cached || !kvm_json_own(cli->keep, t->log))
        return kvm_nomem(err, cli->keep);
    return kvm_encoder_new(&t->encoder, cli->keep, kvm_model_tokenizer(t->s.source),
                           err);
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    talk *t = kvm_new(cli->keep, talk, 1);
    if (!t) return kvm_nomem(err, cli->keep);
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
    {KVM_OPT_TOKENS, "tokens", "N", "at most so many tokens an answer (128)"},
    {0},
};
const kvm_command kvm_command_chat = {"chat", options, run, KVM_ANY_ARGS};
