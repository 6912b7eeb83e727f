/* cmd_translate.c - `kvmill translate`: one prompt read by the source, continued by the
 * target. */
#include "base/clock.h"
#include "cli/find.h"
#include "cli/switching.h"

enum { MAX_NEW = 4096 };

typedef struct answer {
    kvm_str text;
    double prefill, translate, cold;
    ptrdiff_t tokens, generated;
} answer;

/* the option, else what the spec says */
static kvm_status checkpoint(const kvm_cli *cli, kvm_opt_id id, const char *name,
                             kvm_str of_spec, kvm_str *out, kvm_err *err)
{
    if (!cli->value[id] && !of_spec.len)
        return kvm_fail(err, KVM_USAGE, "--%s DIR is missing", name);
    *out = cli->value[id] ? kvm_str_of(cli->value[id]) : of_spec;
    return KVM_OK;
}

static kvm_status run_prompt(kvm_switching *s, const int32_t *ids, ptrdiff_t n,
                             ptrdiff_t max_new, answer *a, kvm_arena *keep,
                             kvm_err *err)
{
    int32_t *said = kvm_new(keep, int32_t, max_new);
    if (!said) return kvm_nomem(err, keep);
    TRY(kvm_switching_cold(s, ids, n, &a->cold, err));
    double clock = kvm_now();
    TRY(kvm_model_forward(s->source, s->source_cache, ids, n - 1,
                          &(kvm_forward_options){.capture = kvm_switching_capture(s)},
                          err));
    kvm_switching_tell(s, ids, 0, n - 1);
    a->prefill = kvm_now() - clock;
    TRY(kvm_switching_warm_up(s, ids + n - 1, 1, err));
    TRY(kvm_switching_catch_up(s, &a->translate, err));
    clock = kvm_now();
    TRY(kvm_model_forward(s->target, s->target_cache, ids + n - 1, 1,
                          &(kvm_forward_options){.logits_last = 1, .logits = s->logits},
                          err));
    a->translate += kvm_now() - clock;
    TRY(kvm_generate(s->target, s->target_cache, s->logits, &(kvm_sampling){0}, max_new,
                     said, &a->generated, NULL, NULL, err));
    a->tokens = n;
    return kvm_decode(kvm_model_tokenizer(s->target), said, a->generated, true, keep,
                      &a->text, err);
}

static kvm_status show(kvm_cli *cli, const kvm_found *found, const answer *a,
                       kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(
            cli,
            json_pack("{s:o, s:I, s:I, s:f, s:f, s:f, s:s*, s:s*}", "text",
                      kvm_cli_json_text(a->text), "tokens", (json_int_t)a->tokens,
                      "generated", (json_int_t)a->generated, "source_prefill_s",
                      a->prefill, "switch_ttft_s", a->translate, "cold_ttft_s", a->cold,
                      "what", found->what, "sha", found->sha),
            err);
    TRY(kvm_cli_print(a->text, err));
    TRY(kvm_cli_print(KVM_STR("\n"), err));
    fprintf(stderr,
            "%td tokens; first token of the target: %.1f ms through the translator, "
            "%.1f ms by reading them itself (each once, after a warm-up)\n",
            a->tokens, a->translate * 1e3, a->cold * 1e3);
    return KVM_OK;
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_str translator, source, target, text;
    kvm_found found;
    kvm_switching s;
    kvm_encoder *e;
    kvm_tokenizer *t;
    int32_t *ids;
    ptrdiff_t n;
    int64_t max_new;
    answer a = {0};
    TRY(kvm_cli_arg(cli, 0, "the translator", &translator, err));
    TRY(kvm_cli_arg(cli, 1, "the text", &text, err));
    TRY(kvm_cli_find(cli, translator, &found, err));
    kvm_cli_say_found(&found);
    TRY(checkpoint(cli, KVM_OPT_SOURCE, "source", found.source, &source, err));
    TRY(checkpoint(cli, KVM_OPT_TARGET, "target", found.target, &target, err));
    TRY(kvm_cli_i64(cli, KVM_OPT_TOKENS, 64, 1, &max_new, err));
    if (max_new > MAX_NEW)
        return kvm_fail(err, KVM_USAGE, "--tokens is at most %d", MAX_NEW);
    TRY(kvm_tokenizer_open(&t, cli->keep, source, err));
    TRY(kvm_encoder_new(&e, cli->keep, t, err));
    TRY(kvm_encode(e, text, &(kvm_encode_options){.add_bos = true}, cli->keep, &ids, &n,
                   err));
    if (n < 2) return kvm_fail(err, KVM_USAGE, "the text must have at least 2 tokens");
    TRY(kvm_switching_open(&s, cli, source, target, found.path, n + (ptrdiff_t)max_new,
                           err));
    TRY(run_prompt(&s, ids, n, (ptrdiff_t)max_new, &a, cli->keep, err));
    return show(cli, &found, &a, err);
}

static const kvm_option options[] = {
    {KVM_OPT_SOURCE, "source", "DIR",
     "the checkpoint whose cache is translated (that of PAIR.yaml)"},
    {KVM_OPT_TARGET, "target", "DIR",
     "the checkpoint that continues (that of PAIR.yaml)"},
    {KVM_OPT_TOKENS, "tokens", "N", "at most so many new tokens (64)"},
    KVM_CLI_CLOSED_FORM,
    {0},
};
const kvm_command kvm_command_translate = {"translate", options, run, 2};
