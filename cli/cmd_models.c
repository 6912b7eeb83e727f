/* cmd_models.c - `kvmill models inspect PATH...` (checkpoints, or a config.json) and
 * `models list`: what a checkpoint caches. */
#include <string.h>

#include "cli/open.h"
#include "models/config.h"
#include "models/inspect.h"
#include "reports/number.h"
#include "reports/table.h"

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

static json_int_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* [2, "T", 32] as "(2, T, 32)"; text stays */
static kvm_str shape_text(kvm_arena *keep, const json_t *shape)
{
    if (json_is_string(shape)) return kvm_str_of(json_string_value(shape));
    kvm_text t = {0};
    size_t i;
    json_t *v;
    kvm_text_add(&t, KVM_STR("("));
    json_array_foreach(shape, i, v)
    {
        if (i) kvm_text_add(&t, KVM_STR(", "));
        if (json_is_string(v))
            kvm_text_addf(&t, "%s", json_string_value(v));
        else
            kvm_text_addf(&t, "%lld", (long long)json_integer_value(v));
    }
    kvm_text_add(&t, KVM_STR(")"));
    kvm_str s = kvm_str_copy(keep, kvm_text_str(&t));
    kvm_text_free(&t);
    return s;
}

static kvm_str points_text(kvm_arena *keep, const json_t *points)
{
    kvm_text t = {0};
    size_t i;
    json_t *p;
    json_array_foreach(points, i, p)
        kvm_text_addf(&t, "%s%lld %s", i ? "; " : "", (long long)int_of(p, "point"),
                      text_of(p, "what"));
    kvm_str s = kvm_str_copy(keep, kvm_text_str(&t));
    kvm_text_free(&t);
    return s;
}

/* layers whose objects are the same make one row: "0-35", "3, 7, 11", "0-2, 4-6" */
static kvm_str layers_text(kvm_arena *keep, const json_t *layers, size_t first)
{
    const json_t *like = json_object_get(json_array_get(layers, first), "objects");
    const size_t n = json_array_size(layers);
    kvm_text t = {0};
    for (size_t i = first; i < n; i++) {
        size_t end = i;
        while (
            end < n &&
            json_equal(json_object_get(json_array_get(layers, end), "objects"), like))
            end++;
        if (end == i) continue;
        kvm_text_addf(&t, "%s%lld", t.len ? ", " : "",
                      (long long)int_of(json_array_get(layers, i), "layer"));
        if (end - i > 1)
            kvm_text_addf(&t, "-%lld",
                          (long long)int_of(json_array_get(layers, end - 1), "layer"));
        i = end;
    }
    const kvm_str s = kvm_str_copy(keep, kvm_text_str(&t));
    kvm_text_free(&t);
    return s;
}

static bool like_one_before(const json_t *layers, size_t i)
{
    const json_t *mine = json_object_get(json_array_get(layers, i), "objects");
    for (size_t k = 0; k < i; k++)
        if (json_equal(json_object_get(json_array_get(layers, k), "objects"), mine))
            return true;
    return false;
}

static void add_object(kvm_table *t, kvm_arena *keep, kvm_str layers, const json_t *o)
{
    kvm_table_text(t, layers, KVM_TONE_PLAIN);
    kvm_table_text(t, kvm_str_of(text_of(o, "object")), KVM_TONE_PLAIN);
    kvm_table_text(t, shape_text(keep, json_object_get(o, "shape")), KVM_TONE_PLAIN);
    kvm_table_text(t, kvm_str_of(text_of(o, "dtype")), KVM_TONE_PLAIN);
    kvm_table_num(t, json_number_value(json_object_get(o, "bytes_per_token")),
                  KVM_FORMAT_COUNT);
    kvm_table_num(t, json_number_value(json_object_get(o, "bytes_per_prompt")),
                  KVM_FORMAT_COUNT);
    kvm_table_text(t, kvm_str_of(text_of(o, "position")), KVM_TONE_PLAIN);
    kvm_table_text(t, points_text(keep, json_object_get(o, "points")), KVM_TONE_MUTED);
}

static kvm_status print_objects(kvm_cli *cli, const json_t *v, kvm_err *err)
{
    static const char *const titles[] = {"layers",   "object",        "shape",
                                         "dtype",    "bytes/token",   "bytes/prompt",
                                         "position", "capture points"};
    enum { N = sizeof titles / sizeof *titles };
    kvm_column c[N];
    for (int i = 0; i < N; i++)
        c[i] = (kvm_column){titles[i], kvm_str_of(titles[i]),
                            i == 4 || i == 5 ? KVM_COL_NUMBER : KVM_COL_TEXT};
    kvm_table t = kvm_table_new(cli->keep, "objects", KVM_STR("cache objects"), c, N);
    size_t i, k;
    json_t *layer, *object;
    const json_t *layers = json_object_get(v, "layers");
    json_array_foreach(layers, i, layer)
    {
        if (like_one_before(layers, i)) continue;
        const kvm_str names = layers_text(cli->keep, layers, i);
        json_array_foreach(json_object_get(layer, "objects"), k, object)
            add_object(&t, cli->keep, names, object);
    }
    return kvm_cli_print_table(cli, NULL, &t, err);
}

static kvm_status print_model(kvm_cli *cli, const json_t *v, kvm_err *err)
{
    const json_t *m = json_object_get(v, "model"),
                 *totals = json_object_get(v, "totals");
    if (!json_object_get(m, "parameters"))
        printf("%s  (%s), without weights\n", text_of(m, "path"), text_of(m, "family"));
    else
        printf("%s  (%s)\n  %lld parameters, weights %s, %.1f MiB as stored; ",
               text_of(m, "name"), text_of(m, "family"),
               (long long)int_of(m, "parameters"), text_of(m, "weight_dtype"),
               (double)int_of(m, "weight_bytes") / (1 << 20));
    if (json_object_get(m, "no_fingerprint"))
        printf("no fingerprint: %s\n", text_of(m, "no_fingerprint"));
    else if (json_object_get(m, "parameters"))
        printf("fingerprint %.16s\n", text_of(m, "fingerprint"));
    TRY(print_objects(cli, v, err));
    printf(
        "  %lld objects, %s per token, %s per prompt\n",
        (long long)int_of(totals, "objects"),
        kvm_numeral_of((double)int_of(totals, "bytes_per_token"), KVM_FORMAT_BYTES).at,
        kvm_numeral_of((double)int_of(totals, "bytes_per_prompt"), KVM_FORMAT_BYTES)
            .at);
    return KVM_OK;
}

/* A fingerprint covers the tokenizer. Of a checkpoint whose tokenizer cannot be read
 * the rest is shown, and why no run would know it in place of a fingerprint that none
 * has. */
static kvm_status look_at_model(kvm_cli *cli, kvm_compute *c, kvm_str path,
                                kvm_arena *keep, json_t **v, kvm_err *err)
{
    kvm_model *m;
    kvm_err why = {0};
    const kvm_model_options without = {.no_tokenizer = true};
    const kvm_status s = kvm_model_open(&m, keep, c, path, NULL, &why);
    if (s) {
        kvm_arena_reset(keep);
        TRY(kvm_model_open(&m, keep, c, path, &without, err));
    }
    TRY(kvm_model_inspect(v, cli->keep, m, err));
    json_t *model = json_object_get(*v, "model");
    if (s && (json_object_set_new(model, "fingerprint", json_null()) ||
              json_object_set_new(model, "no_fingerprint", json_string(why.msg))))
        return kvm_nomem(err, cli->keep);
    return KVM_OK;
}

/* a checkpoint, or a config.json without one */
static kvm_status look_at(kvm_cli *cli, kvm_compute *c, kvm_str path, json_t **v,
                          kvm_err *err)
{
    kvm_arena keep = {0};
    if (kvm_str_ends(path, KVM_STR(".json")))
        return kvm_config_inspect(v, cli->keep, path, err);
    TRY(kvm_arena_reserve(&keep, (size_t)1 << 38, err));
    const kvm_status s = look_at_model(cli, c, path, &keep, v, err);
    kvm_arena_free(&keep);
    return s;
}

static kvm_status inspect(kvm_cli *cli, kvm_err *err)
{
    kvm_compute *c;
    kvm_str first;
    json_t *all = json_array();
    if (!kvm_json_own(cli->keep, all)) return kvm_nomem(err, cli->keep);
    TRY(kvm_cli_arg(cli, 1, "a checkpoint (folder or .gguf) or a config.json", &first,
                    err));
    TRY(kvm_cli_compute(cli, cli->keep, &c, err));
    for (ptrdiff_t i = 1; i < cli->arg_count; i++) {
        json_t *v;
        TRY(look_at(cli, c, cli->args[i], &v, err));
        json_array_append(all, v);
        if (!kvm_cli_has(cli, KVM_OPT_JSON)) TRY(print_model(cli, v, err));
    }
    if (!kvm_cli_has(cli, KVM_OPT_JSON)) return KVM_OK;
    return kvm_cli_print_json(
        cli, json_incref(cli->arg_count == 2 ? json_array_get(all, 0) : all), err);
}

static const char *const layer_kinds[] = {
#define X(NAME, name, what) [KVM_LAYER_##NAME] = #name,
#include "models/layer_kinds.def"
#undef X
};

static json_t *family_json(kvm_arena *keep, const kvm_family *f)
{
    const bool two = f->recurrent != KVM_LAYER_NONE;
    const kvm_str mixers = kvm_str_fmt(
        keep, "%s%s%s%s", two ? layer_kinds[f->recurrent] : "", two ? ", " : "",
        layer_kinds[f->mixer], f->indexed ? " with an indexer" : "");
    return json_pack("{s:s, s:s?, s:s%}", "family", f->name, "gguf", f->gguf, "mixers",
                     mixers.at ? mixers.at : "", (size_t)mixers.len);
}

static kvm_status list(kvm_cli *cli, kvm_err *err)
{
    static const char *const titles[] = {"family", "gguf", "mixers"};
    enum { N = sizeof titles / sizeof *titles };
    json_t *rows = json_array(), *row;
    size_t i;
    if (!kvm_json_own(cli->keep, rows)) return kvm_nomem(err, cli->keep);
    for (ptrdiff_t k = 0; k < kvm_families_count; k++)
        json_array_append_new(rows, family_json(cli->keep, &kvm_families[k]));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_incref(rows), err);
    kvm_column c[N];
    for (int k = 0; k < N; k++)
        c[k] = (kvm_column){titles[k], kvm_str_of(titles[k]), KVM_COL_TEXT};
    kvm_table t = kvm_table_new(cli->keep, "families", KVM_STR("families"), c, N);
    json_array_foreach(rows, i, row)
    {
        for (int k = 0; k < N; k++)
            kvm_table_text(&t, kvm_str_of(text_of(row, titles[k])), KVM_TONE_PLAIN);
    }
    return kvm_cli_print_table(cli, NULL, &t, err);
}

static kvm_status run(kvm_cli *cli, kvm_err *err)
{
    kvm_str verb;
    TRY(kvm_cli_arg(cli, 0, "inspect or list", &verb, err));
    if (kvm_str_eq(verb, KVM_STR("inspect"))) return inspect(cli, err);
    if (kvm_str_eq(verb, KVM_STR("list"))) return list(cli, err);
    return kvm_fail(err, KVM_USAGE, "models inspect PATH... or models list, not \"%s\"",
                    kvm_quote(verb).at);
}

const kvm_command kvm_command_models = {"models", NULL, run, KVM_ANY_ARGS};
