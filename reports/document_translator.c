/* document_translator.c - what a translator is made of, and how it was trained. */
#include "reports/document_internal.h"

static void read_recipe(kvm_doc_reader *r, kvm_recipe *out, kvm_jat at)
{
    out->title = kvm_doc__str(r, at, "title");
    if (!out->title.len) out->title = kvm_doc__str(r, at, "object");
    out->how = kvm_doc__str(r, at, "how");
    out->k = kvm_doc__num(r, at, "k");
    out->lambda = kvm_doc__num(r, at, "lambda");
    out->absolute = kvm_doc__flag(r, at, "absolute", false);
    const kvm_jat list = kvm_doc__get(r, at, "layers");
    out->layers = kvm_doc__list_at(r, list, sizeof *out->layers, &out->count);
    for (ptrdiff_t i = 0; i < out->count; i++) {
        const kvm_jat layer = kvm_doc__item(r, list, i);
        out->layers[i] = (kvm_recipe_layer){
            .layer = kvm_doc__layer(r, layer, "layer", i),
            .sources = kvm_doc__layers(r, layer, "sources"),
            .r2_fit = kvm_doc__est(r, layer, "r2_fit"),
            .r2_choose = kvm_doc__est(r, layer, "r2_choose"),
            .r2_held = kvm_doc__est(r, layer, "r2_held"),
            .r2_copy = kvm_doc__est(r, layer, "r2_copy"),
            .rows = kvm_doc__num(r, layer, "rows"),
            .features = kvm_doc__num(r, layer, "features"),
            .weight_norm = kvm_doc__num(r, layer, "weight_norm"),
        };
    }
}

/* one of n words, or nothing */
static kvm_str read_word(kvm_doc_reader *r, kvm_jat at, const char *key,
                         const char *const words[], size_t n)
{
    const kvm_str word = kvm_doc__str(r, at, key);
    bool known = word.len == 0;
    for (size_t i = 0; i < n; i++) known |= kvm_str_eq(word, kvm_str_of(words[i]));
    if (!known && !r->status)
        r->status = kvm_fail(r->err, KVM_FORMAT, "%s: %s.%s: \"%s\" is no such word",
                             at.file, at.path, key, kvm_quote(word).at);
    return word;
}

static void read_tried(kvm_doc_reader *r, kvm_jat at)
{
    const kvm_jat list = kvm_doc__get(r, at, "tried");
    r->d->recipes.lessons = kvm_doc__num(r, at, "lessons");
    r->d->recipes.after = kvm_doc__num(r, at, "after");
    kvm_tried *tried =
        kvm_doc__list_at(r, list, sizeof *tried, &r->d->recipes.tried_count);
    for (ptrdiff_t i = 0; i < r->d->recipes.tried_count; i++) {
        const kvm_jat one = kvm_doc__item(r, list, i);
        tried[i] = (kvm_tried){.title = kvm_doc__str(r, one, "title"),
                               .reason = kvm_doc__str(r, one, "reason"),
                               .kl = kvm_doc__num(r, one, "kl"),
                               .first_kl = kvm_doc__num(r, one, "first_kl"),
                               .parameters = kvm_doc__num(r, one, "parameters"),
                               .chosen = kvm_doc__flag(r, one, "chosen", false)};
    }
    r->d->recipes.tried = tried;
}

static void read_recipes(kvm_doc_reader *r, kvm_jat doc)
{
    static const char *const tokens[] = {"none", "given", "decoded"};
    static const char *const states[] = {"zero", "copy", "bilinear", "replay", "auto"};
    static const char *const indexers[] = {"dense"};
    const kvm_jat at = kvm_doc__get(r, doc, "recipes");
    const kvm_jat list = kvm_doc__get(r, at, "objects");
    const kvm_jat identity = kvm_doc__get(r, at, "identity");
    r->d->recipes.token = read_word(r, at, "token", tokens, 3);
    r->d->recipes.states = read_word(r, at, "states", states, 5);
    r->d->recipes.indexers = read_word(r, at, "indexers", indexers, 1);
    r->d->recipes.latents = kvm_doc__num(r, at, "latents");
    r->d->recipes.token_top1 = kvm_doc__est(r, identity, "top1");
    r->d->recipes.token_rows = kvm_doc__num(r, identity, "rows");
    kvm_recipe *recipes =
        kvm_doc__list_at(r, list, sizeof *recipes, &r->d->recipes.count);
    for (ptrdiff_t i = 0; i < r->d->recipes.count; i++)
        read_recipe(r, &recipes[i], kvm_doc__item(r, list, i));
    r->d->recipes.at = recipes;
    read_tried(r, at);
}

static void read_training(kvm_doc_reader *r, kvm_jat doc)
{
    const kvm_jat at = kvm_doc__get(r, doc, "training");
    const kvm_jat list = kvm_doc__get(r, at, "curve");
    r->d->training.present = kvm_json_has(at);
    r->d->training.steps = kvm_doc__num(r, at, "steps");
    r->d->training.batch = kvm_doc__num(r, at, "batch");
    r->d->training.lessons = kvm_doc__num(r, at, "lessons");
    r->d->training.validation = kvm_doc__num(r, at, "validation");
    r->d->training.parameters = kvm_doc__num(r, at, "parameters");
    r->d->training.seconds = kvm_doc__num(r, at, "seconds");
    r->d->training.tokens_per_s = kvm_doc__num(r, at, "tokens_per_s");
    r->d->training.closed_kl = kvm_doc__num(r, at, "closed_kl");
    r->d->training.best_kl = kvm_doc__num(r, at, "best_kl");
    r->d->training.best_step = kvm_doc__num(r, at, "best_step");
    kvm_training_point *points =
        kvm_doc__list_at(r, list, sizeof *points, &r->d->training.count);
    for (ptrdiff_t i = 0; i < r->d->training.count; i++) {
        const kvm_jat point = kvm_doc__item(r, list, i);
        points[i] = (kvm_training_point){
            .step = kvm_doc__num(r, point, "step"),
            .kl = kvm_doc__num(r, point, "kl"),
            .first_kl = kvm_doc__num(r, point, "first_kl"),
            .train_kl = kvm_doc__num(r, point, "train_kl"),
            .norm = kvm_doc__num(r, point, "norm"),
            .rate = kvm_doc__num(r, point, "rate"),
            .tokens_per_s = kvm_doc__num(r, point, "tokens_per_s"),
        };
    }
    r->d->training.points = points;
}

void kvm_doc__translator(kvm_doc_reader *r, kvm_jat doc)
{
    read_recipes(r, doc);
    read_training(r, doc);
}
