#include "jobs/candidates.h"

#include "jobs/fit_recipes.h"

enum { WORDS = 4 };

static const struct {
    const char *key;
    const char *word[WORDS]; /* NULL after the last */
} autos[] = {
    [KVM_AUTO__states] = {"states", {"zero", "copy", "bilinear", "replay"}},
    /* ids that the rows tell need not come with the cache */
    [KVM_AUTO__token] = {"token", {"none", "decoded", "given"}},
    [KVM_AUTO__latents] = {"latents", {"1", "3"}},
    [KVM_AUTO__indexers] = {"indexers", {"predicted", "dense"}},
};

static bool is_auto(kvm_jat at)
{
    return kvm_json_has(at) && json_is_string(at.v) &&
           kvm_str_eq(kvm_str_of(json_string_value(at.v)), KVM_STR("auto"));
}

static json_t *word_json(int key, int word)
{
    const char *text = autos[key].word[word];
    int64_t number;
    return kvm_str_to_i64(kvm_str_of(text), &number) ? json_integer(number)
                                                     : json_string(text);
}

/* ---- one of them ---- */

/* n-grams are no rows: no recipe asks for them */
static kvm_status ngrams_told(const kvm_outline *out, const kvm_shapes *target,
                              kvm_err *err)
{
    if (!target->ngrams || out->token != KVM_TOKEN_NONE) return KVM_OK;
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "the target keeps n-grams, which follow from the tokens: without "
                    "them (token: none) its cache is not whole");
}

static kvm_status outline_of(kvm_candidate *one, kvm_jat fit, const kvm_shapes *source,
                             const kvm_shapes *target, kvm_arena *keep, kvm_err *err)
{
    kvm_outline_options o = {0};
    kvm_job job = {.keep = keep};
    one->fit = kvm_json_own(keep, fit.v ? json_deep_copy(fit.v) : json_object());
    if (!one->fit) return kvm_nomem(err, keep);
    for (int k = 0; k < KVM_AUTO_COUNT; k++)
        if (one->word[k] >= 0)
            json_object_set_new(one->fit, autos[k].key, word_json(k, one->word[k]));
    job.params = (kvm_jat){.v = one->fit};
    if (fit.v) TRY(kvm_json_place_as(&job.params, keep, fit, err));
    TRY(kvm_fit_read_recipes(&job, &o, err));
    TRY(kvm_outline_make(&one->outline, &o, source, target, err));
    return ngrams_told(&one->outline, target, err);
}

static kvm_status put_title(kvm_candidate *one, const bool several[KVM_AUTO_COUNT],
                            kvm_arena *keep, kvm_err *err)
{
    one->title = KVM_STR("");
    for (int k = 0; k < KVM_AUTO_COUNT; k++) {
        if (!several[k]) continue;
        one->title = kvm_str_fmt(keep, "%.*s%s%s %s", KVM_STR_ARG(one->title),
                                 one->title.len ? ", " : "", autos[k].key,
                                 autos[k].word[one->word[k]]);
        if (!one->title.at) return kvm_nomem(err, keep);
    }
    return KVM_OK;
}

/* ---- all of them ---- */

typedef struct combining {
    kvm_candidates *c;
    kvm_jat fit;
    const kvm_shapes *source, *target;
    kvm_arena *keep;
    kvm_err first; /* why the first that cannot be is refused */
    kvm_status status;
    ptrdiff_t more; /* than there is room for */
} combining;

/* Told ids are one word: decoded where the source's rows tell them, else given. */
static bool decoded_before(const kvm_candidates *c, const kvm_candidate *one)
{
    const int key = KVM_AUTO__token;
    bool before = false;
    if (one->outline.token != KVM_TOKEN_GIVEN || one->word[key] < 0) return false;
    for (ptrdiff_t i = 0; i < c->n; i++) {
        bool alike = c->at[i].outline.token == KVM_TOKEN_DECODED;
        for (int k = 0; k < KVM_AUTO_COUNT; k++)
            alike &= k == key || c->at[i].word[k] == one->word[k];
        before |= alike;
    }
    return before;
}

static kvm_status add(combining *b, const int word[KVM_AUTO_COUNT], kvm_err *err)
{
    kvm_candidates *c = b->c;
    kvm_candidate one = {0};
    kvm_err why = {0};
    for (int k = 0; k < KVM_AUTO_COUNT; k++) one.word[k] = word[k];
    const kvm_status s = outline_of(&one, b->fit, b->source, b->target, b->keep, &why);
    if (s == KVM_NOMEM) return kvm_nomem(err, b->keep);
    if (s) {
        if (!b->status) b->first = why;
        if (!b->status) b->status = s;
        return KVM_OK;
    }
    for (ptrdiff_t i = 0; i < c->n; i++)
        if (kvm_outline_same(&c->at[i].outline, &one.outline)) return KVM_OK;
    if (decoded_before(c, &one)) return KVM_OK;
    if (c->n == KVM_CANDIDATES_MOST)
        b->more++;
    else
        c->at[c->n++] = one;
    return KVM_OK;
}

/* word[key ..] over all words of the keys that are auto */
static kvm_status combine(combining *b, int word[KVM_AUTO_COUNT], int key, kvm_err *err)
{
    if (key == KVM_AUTO_COUNT) return add(b, word, err);
    word[key] = -1;
    if (!is_auto(kvm_json_get(b->fit, b->keep, autos[key].key)))
        return combine(b, word, key + 1, err);
    for (int w = 0; w < WORDS && autos[key].word[w]; w++) {
        word[key] = w;
        TRY(combine(b, word, key + 1, err));
    }
    return KVM_OK;
}

kvm_status kvm_candidates_read(kvm_candidates *c, kvm_jat fit, const kvm_shapes *source,
                               const kvm_shapes *target, kvm_arena *keep, kvm_err *err)
{
    int word[KVM_AUTO_COUNT];
    combining b = {c, fit, source, target, keep, {0}, KVM_OK, 0};
    *c = (kvm_candidates){.at = kvm_new(keep, kvm_candidate, KVM_CANDIDATES_MOST)};
    if (!c->at) return kvm_nomem(err, keep);
    TRY(combine(&b, word, 0, err));
    if (c->n == 0) {
        if (err) *err = b.first;
        return b.status;
    }
    if (b.more > 0)
        return kvm_fail(err, KVM_RANGE,
                        "auto stands for %td combinations, and at most %d are tried: "
                        "write a word for one of the keys, or leave it out",
                        c->n + b.more, KVM_CANDIDATES_MOST);
    for (int k = 0; k < KVM_AUTO_COUNT; k++)
        for (ptrdiff_t i = 1; i < c->n; i++)
            c->several[k] |= c->at[i].word[k] != c->at[0].word[k];
    for (ptrdiff_t i = 0; i < c->n; i++)
        TRY(put_title(&c->at[i], c->several, keep, err));
    return KVM_OK;
}

kvm_status kvm_candidates_leave(const kvm_candidates *c, ptrdiff_t n, kvm_jat fit,
                                kvm_arena *keep, kvm_err *err)
{
    for (int k = 0; k < KVM_AUTO_COUNT; k++) {
        const kvm_jat at = kvm_json_get(fit, keep, autos[k].key);
        bool several = false;
        for (ptrdiff_t i = 0; i < n; i++) several |= c[i].several[k];
        if (!is_auto(at) || several) continue;
        return kvm_json_fail(err, KVM_USAGE, at,
                             "is auto, and this pair leaves nothing to choose: only %s "
                             "can be; leave the key out",
                             autos[k].word[c->at[0].word[k]]);
    }
    return KVM_OK;
}

bool kvm_candidates_same(const kvm_candidates *a, const kvm_candidates *b)
{
    bool same = a->n == b->n;
    for (ptrdiff_t i = 0; same && i < a->n; i++)
        same = kvm_outline_same(&a->at[i].outline, &b->at[i].outline);
    return same;
}

bool kvm_candidate_lost(kvm_status s)
{
    return s == KVM_SHAPE || s == KVM_RANGE || s == KVM_SINGULAR || s == KVM_NAN ||
           s == KVM_UNSUPPORTED;
}
