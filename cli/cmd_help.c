/* cmd_help.c - `kvmill help`: the commands, one command's options, or the keys of a
 * spec. */
#include <string.h>

#include "cli/cli.h"
#include "jobs/spec.h"
#include "jobs/suite.h"

static const struct {
    const char *name, *args, *help;
} rows[] = {
#define X(id, args, help) {#id, args, help},
#include "cli/commands.def"
#undef X
};

static const struct {
    const char *name, *help;
} kinds[] = {
#define X(id, NAME, name, version, flags, what) {#name, what},
#include "jobs/kinds.def"
#undef X
};

static void print_options(const kvm_option *o)
{
    for (; o && o->name; o++) {
        char head[64], letter[8] = "";
        if (kvm_option_letter(o->id))
            snprintf(letter, sizeof letter, "-%c, ", kvm_option_letter(o->id));
        snprintf(head, sizeof head, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        printf("  %-20s %s\n", head, o->help);
    }
}

/* `report` is a step too, but as a word it means the command */
static bool is_step(const char *kind)
{
    return kvm_command_find(kvm_str_of(kind)) == &kvm_command_step;
}

static void print_all(void)
{
    printf("kvmill - translators between the KV caches of language models\n\n"
           "usage: kvmill COMMAND [options] [arguments]\n\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("  %-10s %s\n", rows[i].name, rows[i].help);
    printf("\none step at a time, on files (PARAMS.yaml --out DIR [INPUT=FILE...]):\n");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is_step(kinds[i].name))
            printf("  %-10s %s\n", kinds[i].name, kinds[i].help);
    printf("\ncommon options:\n");
    print_options(kvm_common_options);
    printf("\nexit codes: 0 done, 1 failed work, 2 bad usage or input, 3 gate failed, "
           "4 environment\n`kvmill help COMMAND` shows its options, `kvmill help spec` "
           "the "
           "keys of a pair spec.\n");
}

static const char *type_name(kvm_field_type t)
{
    switch (t) {
    case KVM_FIELD_STR:
        return "string";
    case KVM_FIELD_INT:
        return "integer";
    case KVM_FIELD_NUM:
        return "number";
    case KVM_FIELD_BOOL:
        return "true or false";
    case KVM_FIELD_LIST:
        return "list";
    case KVM_FIELD_OBJECT:
        return "section";
    case KVM_FIELD_ANY:
        return "any";
    }
    return "";
}

static void print_fields(const kvm_field *f, int indent)
{
    for (; f->key; f++) {
        printf("%*s%-*s %-14s %s%s\n", indent, "", 22 - indent, f->key,
               type_name(f->type), f->required ? "(required) " : "", f->help);
        if (f->inside) print_fields(f->inside, indent + 2);
    }
}

/* a kind's parameters and inputs */
static void print_kind(kvm_kind_id id)
{
    const kvm_job_kind *kind = kvm_job_kind_of(id);
    printf("usage: kvmill %s PARAMS.yaml --out DIR [INPUT=FILE...]\n\nparameters:\n",
           kvm_job_kind_name(id));
    print_fields(kind->params, 2);
    printf(
        "\nof a model, source, target, text or suite the hash may be left out beside "
        "its "
        "path: it is\nthen computed (`kvmill models inspect` shows a model's, a text's "
        "is that of `sha256sum`)\n");
    printf("\ninputs (? optional, * any number):");
    for (const char *const *in = kind->inputs; *in; in++) printf(" %s", *in);
    printf("\noutputs:");
    for (const char *const *out = kind->outputs; *out; out++) printf(" %s", *out);
    printf("\n\noptions:\n");
}

static kvm_status print_command(kvm_str name, kvm_err *err)
{
    const kvm_command *cmd = kvm_command_find(name);
    if (!cmd)
        return kvm_fail(err, KVM_USAGE, "no command \"%s\"; `kvmill help` lists them",
                        kvm_quote(name).at);
    kvm_kind_id id;
    if (cmd == &kvm_command_step && !kvm_job_kind_find(name, &id)) print_kind(id);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, cmd->name) == 0)
            printf("usage: kvmill %s [options] %s\n\n%s\n\noptions:\n", rows[i].name,
                   rows[i].args, rows[i].help);
    print_options(cmd->options);
    print_options(kvm_common_options);
    if (strcmp(cmd->name, "suites") != 0) return KVM_OK;
    printf(
        "\nkeys of a suite's card (YAML 1.2); kvmill(1), SUITES, has its items:\n\n");
    print_fields(kvm_suite_card_fields, 2);
    return KVM_OK;
}

/* ---- as data ---- */

static json_t *options_json(const kvm_option *o)
{
    json_t *list = json_array();
    for (; o && o->name; o++)
        json_array_append_new(list,
                              json_pack("{s:s++, s:s?, s:s}", "option", "--", o->name,
                                        "", "value", o->value, "help", o->help));
    return list;
}

/* "list | show ID": the words that may stand first */
static json_t *verbs_json(const char *args)
{
    json_t *list = json_array();
    kvm_str rest = kvm_str_of(args), one, word, tail;
    while (rest.len > 0) {
        kvm_str_cut(rest, '|', &one, &rest);
        kvm_str_cut(kvm_str_trim(one), ' ', &word, &tail);
        if (word.len > 0 && word.at[0] >= 'a' && word.at[0] <= 'z')
            json_array_append_new(list, json_stringn(word.at, (size_t)word.len));
    }
    return list;
}

static json_t *words_json(const char *const *words)
{
    json_t *list = json_array();
    for (; words && *words; words++) json_array_append_new(list, json_string(*words));
    return list;
}

static json_t *fields_json(const kvm_field *f)
{
    json_t *list = json_array();
    for (; f && f->key; f++) {
        json_t *row =
            json_pack("{s:s, s:s, s:b, s:s}", "key", f->key, "type", type_name(f->type),
                      "required", f->required, "help", f->help);
        if (f->inside) json_object_set_new(row, "keys", fields_json(f->inside));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *commands_json(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:o, s:o}", "command", rows[i].name,
                            "arguments", rows[i].args, "help", rows[i].help, "verbs",
                            verbs_json(rows[i].args), "options",
                            options_json(
                                kvm_command_find(kvm_str_of(rows[i].name))->options)));
    return list;
}

static json_t *steps_json(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        kvm_kind_id id;
        if (!is_step(kinds[i].name) ||
            kvm_job_kind_find(kvm_str_of(kinds[i].name), &id))
            continue;
        const kvm_job_kind *kind = kvm_job_kind_of(id);
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "command", kinds[i].name,
                      "arguments", "PARAMS.yaml --out DIR [INPUT=FILE...]", "help",
                      kinds[i].help, "parameters", fields_json(kind->params), "inputs",
                      words_json(kind->inputs), "outputs", words_json(kind->outputs),
                      "options", options_json(kvm_command_step.options)));
    }
    return list;
}

static kvm_status print_json(kvm_cli *cli, kvm_err *err)
{
    return kvm_cli_print_json(cli,
                              json_pack("{s:o, s:o, s:o, s:o, s:o}", "commands",
                                        commands_json(), "steps", steps_json(),
                                        "options", options_json(kvm_common_options),
                                        "spec", fields_json(kvm_spec_fields), "card",
                                        fields_json(kvm_suite_card_fields)),
                              err);
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    if (kvm_cli_has(cli, KVM_OPT_JSON)) return print_json(cli, err);
    if (cli->arg_count == 0) {
        print_all();
        return KVM_OK;
    }
    if (kvm_str_eq(cli->args[0], KVM_STR("spec"))) {
        printf(
            "keys of a pair spec (YAML 1.2); paths are relative to the spec, defaults "
            "stand in brackets:\n\n");
        print_fields(kvm_spec_fields, 2);
        return KVM_OK;
    }
    return print_command(cli->args[0], err);
}

const kvm_command kvm_command_help = {"help", NULL, run, 1};
