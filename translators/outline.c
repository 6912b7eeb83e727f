#include "translators/outline.h"

#include "translators/states.h"

static const struct {
    kvm_state_way way;
    const char *text, *what;
} ways[] = {
#define X(id, name, text, what) {KVM_STATES_##name, text, what},
    KVM_STATE_WAYS(X)
#undef X
};
enum { WAYS = sizeof ways / sizeof *ways };

const char *kvm_state_way_name(kvm_state_way w)
{
    return ways[w].text;
}

const char *kvm_state_way_what(kvm_state_way w)
{
    return ways[w].what;
}

kvm_status kvm_state_way_of_name(kvm_str name, kvm_state_way *w)
{
    for (int i = 0; i < WAYS; i++) {
        if (!kvm_str_eq(name, kvm_str_of(ways[i].text))) continue;
        *w = ways[i].way;
        return KVM_OK;
    }
    return KVM_NOTFOUND;
}

/* ---- states ---- */

/* a capture holds the states of a recurrent layer, or what they are made from */
static bool recurrent(const kvm_shapes *s, ptrdiff_t layer)
{
    return kvm_shapes_width(s, KVM_SPACE_STATE, layer) > 0 ||
           kvm_shapes_width(s, KVM_SPACE_INPUT, layer) > 0;
}

static ptrdiff_t states_of(const kvm_shapes *s, ptrdiff_t below)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t l = 0; l < below; l++) n += recurrent(s, l);
    return n;
}

ptrdiff_t kvm_outline_recurrent(const kvm_shapes *s)
{
    return states_of(s, s->layers);
}

ptrdiff_t kvm_outline_state_source(const kvm_shapes *source, const kvm_shapes *target,
                                   ptrdiff_t target_layer)
{
    const ptrdiff_t from = states_of(source, source->layers);
    const ptrdiff_t to = states_of(target, target->layers);
    if (from == 0 || to == 0) return -1;
    const ptrdiff_t i = states_of(target, target_layer); /* which of them it is */
    const ptrdiff_t span = to > 1 ? to - 1 : 1;
    const ptrdiff_t want = (i * (from - 1) + span / 2) / span;
    for (ptrdiff_t l = 0; l < source->layers; l++)
        if (recurrent(source, l) && states_of(source, l) == want) return l;
    return -1;
}

static kvm_status copied(const kvm_shapes *source, const kvm_shapes *target,
                         ptrdiff_t layer, kvm_err *err)
{
    const ptrdiff_t from = kvm_outline_state_source(source, target, layer);
    if (from < 0)
        return kvm_fail(err, KVM_MISMATCH,
                        "the source keeps no states that could be copied; states: "
                        "replay makes the target's");
    return kvm_states_same(source, from, target, layer, err);
}

static kvm_status all_copied(const kvm_shapes *source, const kvm_shapes *target,
                             kvm_err *err)
{
    for (ptrdiff_t l = 0; l < target->layers; l++)
        if (recurrent(target, l)) TRY(copied(source, target, l, err));
    return KVM_OK;
}

kvm_state_way kvm_outline_way(const kvm_outline *o, const kvm_shapes *target,
                              ptrdiff_t layer)
{
    return o->each ? o->each[states_of(target, layer)] : o->states;
}

bool kvm_outline_makes(const kvm_outline *o, const kvm_shapes *target, kvm_space space,
                       ptrdiff_t layer)
{
    return kvm_shapes_width(target, space, layer) > 0 &&
           (space != KVM_SPACE_INPUT ||
            kvm_outline_way(o, target, layer) == KVM_STATES_REPLAY);
}

static kvm_status choose_each(kvm_outline *out, const kvm_outline_options *o,
                              ptrdiff_t layers, kvm_err *err)
{
    if (o->ways != layers)
        return kvm_fail(
            err, KVM_RANGE,
            "%td ways are listed for states, and the target has %td "
            "recurrent layers: list one for each, or write one word for all",
            o->ways, layers);
    out->each = o->each;
    out->ways = o->ways;
    out->states = o->each[0];
    for (ptrdiff_t i = 0; i < o->ways; i++)
        if (o->each[i] != out->states) out->states = KVM_STATES_AUTO;
    return KVM_OK;
}

static kvm_status choose_states(kvm_outline *out, const kvm_outline_options *o,
                                const kvm_shapes *source, const kvm_shapes *target,
                                kvm_err *err)
{
    const ptrdiff_t layers = kvm_outline_recurrent(target);
    out->states = o->states;
    if (layers == 0) {
        out->states = KVM_STATES_ZERO;
        return KVM_OK;
    }
    if (o->each)
        TRY(choose_each(out, o, layers, err));
    else if (o->states == KVM_STATES_AUTO)
        out->states =
            all_copied(source, target, NULL) ? KVM_STATES_REPLAY : KVM_STATES_BILINEAR;
    for (ptrdiff_t l = 0; l < target->layers; l++) {
        if (!recurrent(target, l)) continue;
        const kvm_state_way way = kvm_outline_way(out, target, l);
        if (way == KVM_STATES_COPY || way == KVM_STATES_BILINEAR)
            TRY(copied(source, target, l, err));
    }
    return KVM_OK;
}

/* whether some layer's state comes to be in this way */
static bool takes(const kvm_outline *o, kvm_state_way way)
{
    bool some = o->states == way;
    for (ptrdiff_t i = 0; i < o->ways; i++) some |= o->each[i] == way;
    return some;
}

/* ---- mappings ---- */

static bool keeps(const kvm_shapes *s, kvm_space space)
{
    return s->of[space] != NULL;
}

/* the source's first layer is attention, whose rows tell the token */
static bool tells(const kvm_shapes *source)
{
    return kvm_shapes_width(source, KVM_SPACE_LATENT, 0) > 0 ||
           kvm_shapes_width(source, KVM_SPACE_LATENT_ENGINE, 0) > 0 ||
           kvm_shapes_width(source, KVM_SPACE_V, 0) > 0;
}

/* Is the token worth being told? Latents and synthesised states do not hold it well
 * enough for exact recall, and an indexer's keys are predicted from it. (Where they are
 * left out the other maps stay what they are: nothing else is to differ.) */
static kvm_status choose_token(kvm_outline *out, const kvm_outline_options *o,
                               const kvm_shapes *source, const kvm_shapes *target,
                               kvm_err *err)
{
    const bool wanted =
        keeps(target, KVM_SPACE_LATENT) || keeps(target, KVM_SPACE_INDEX) ||
        (keeps(target, KVM_SPACE_INPUT) && takes(out, KVM_STATES_REPLAY));
    out->token = !wanted         ? KVM_TOKEN_NONE
                 : tells(source) ? KVM_TOKEN_DECODED
                                 : KVM_TOKEN_GIVEN;
    if (!o->token_given) return KVM_OK;
    out->token = o->token;
    if (o->token != KVM_TOKEN_DECODED || tells(source)) return KVM_OK;
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "the source's first layer is no attention over the tokens' "
                    "embeddings, so its rows do not tell the token: hand the ids over "
                    "(token: given)");
}

static kvm_status add(kvm_outline *out, kvm_space space, const kvm_shapes *source,
                      const kvm_shapes *target, kvm_err *err)
{
    if (!keeps(target, space)) return KVM_OK;
    kvm_mapping *m = &out->mapping[out->mappings];
    TRY(kvm_mapping_find(m, space, out->token != KVM_TOKEN_NONE, source, target, err));
    /* values share the choice of the keys before them, where they read alike */
    const bool shares = space == KVM_SPACE_V && out->mappings > 0 &&
                        m->side == KVM_SOURCE && m->from[0] == m->from[1];
    out->group[out->mappings++] = shares ? out->groups - 1 : out->groups++;
    return KVM_OK;
}

/* what the captures hold and the moments sum, from the mappings */
static void collect(kvm_outline *out)
{
    for (int i = 0; i < out->mappings; i++) {
        const kvm_mapping *m = &out->mapping[i];
        out->target |= 1U << kvm_space_rows[m->out].stored;
        for (int k = 0; k < 2; k++)
            *(m->side == KVM_SOURCE ? &out->source : &out->target) |=
                1U << kvm_space_rows[m->from[k]].stored;
        kvm_mapping_blocks(m, &out->gram, &out->cross, &out->own);
        /* fits of keys in either space rank layers and are compared by the same
         * files */
        if (m->from[0] != KVM_SPACE_K && m->from[0] != KVM_SPACE_K_ROTATED) continue;
        if (m->from[0] != m->out) continue;
        kvm_mapping other = *m;
        other.out = other.from[0] = other.from[1] =
            m->out == KVM_SPACE_K ? KVM_SPACE_K_ROTATED : KVM_SPACE_K;
        kvm_mapping_blocks(&other, &out->gram, &out->cross, &out->own);
    }
    if (out->token != KVM_TOKEN_NONE) out->target |= 1U << KVM_SPACE_TOKEN;
    /* what is left out is captured all the same: a fit learns from it which layers have
     * an indexer, and reads the capture of one that predicts */
    if (out->dense) out->target |= 1U << KVM_SPACE_INDEX;
    if (!takes(out, KVM_STATES_COPY) && !takes(out, KVM_STATES_BILINEAR)) return;
    const kvm_spaces states = 1U << KVM_SPACE_STATE | 1U << KVM_SPACE_WINDOW;
    out->source |= states;
    out->target |= states;
}

/* what maps may read and make: latents stand at one capture point */
static kvm_shapes at_point(const kvm_shapes *s, bool engine)
{
    kvm_shapes out = *s;
    out.of[engine ? KVM_SPACE_LATENT : KVM_SPACE_LATENT_ENGINE] = NULL;
    return out;
}

static kvm_status add_mappings(kvm_outline *out, const kvm_outline_options *o,
                               const kvm_shapes *source, const kvm_shapes *target,
                               kvm_err *err)
{
    const kvm_shapes from = at_point(source, o->engine);
    const kvm_shapes to = at_point(target, o->engine);
    TRY(add(out, o->keys == KVM_KEYS_ROTATED ? KVM_SPACE_K_ROTATED : KVM_SPACE_K, &from,
            &to, err));
    TRY(add(out, KVM_SPACE_V, &from, &to, err));
    TRY(add(out, o->engine ? KVM_SPACE_LATENT_ENGINE : KVM_SPACE_LATENT, &from, &to,
            err));
    if (takes(out, KVM_STATES_REPLAY)) TRY(add(out, KVM_SPACE_INPUT, &from, &to, err));
    return out->dense ? KVM_OK : add(out, KVM_SPACE_INDEX, &from, &to, err);
}

kvm_status kvm_outline_make(kvm_outline *result, const kvm_outline_options *o,
                            const kvm_shapes *source, const kvm_shapes *target,
                            kvm_err *err)
{
    kvm_outline out = {.keys = o->keys, .dense = o->dense};
    if (o->dense && !keeps(target, KVM_SPACE_INDEX))
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "the target has no indexer whose keys could be left out "
                        "(indexers: dense): its attention looks at the whole prefix "
                        "anyway");
    TRY(choose_states(&out, o, source, target, err));
    TRY(choose_token(&out, o, source, target, err));
    TRY(add_mappings(&out, o, source, target, err));
    out.exact = out.token != KVM_TOKEN_NONE && !o->engine &&
                kvm_shapes_width(target, KVM_SPACE_LATENT, 0) > 0;
    collect(&out);
    /* states that start empty still say so, layer by layer */
    if (keeps(target, KVM_SPACE_STATE) && takes(&out, KVM_STATES_ZERO))
        out.target |= 1U << KVM_SPACE_STATE | 1U << KVM_SPACE_WINDOW;
    *result = out;
    return KVM_OK;
}

static bool same_mapping(const kvm_mapping *a, const kvm_mapping *b)
{
    return a->out == b->out && a->side == b->side && a->from[0] == b->from[0] &&
           a->from[1] == b->from[1] && a->token == b->token;
}

bool kvm_outline_same(const kvm_outline *a, const kvm_outline *b)
{
    bool same = a->keys == b->keys && a->token == b->token && a->states == b->states &&
                a->dense == b->dense && a->mappings == b->mappings &&
                a->ways == b->ways;
    for (ptrdiff_t i = 0; same && i < a->ways; i++) same = a->each[i] == b->each[i];
    for (int i = 0; same && i < a->mappings; i++)
        same = same_mapping(&a->mapping[i], &b->mapping[i]);
    return same;
}
