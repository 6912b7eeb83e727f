#include "jobs/analyse_caches.h"

static const struct {
    const char *key, *title;
} parts[] = {
#define X(NAME, key, title) {key, title},
    KVM_CACHE_PARTS(X)
#undef X
};

/* ---- which caches ---- */

typedef struct listing {
    kvm_analyse_caches *a;
    kvm_arena *keep;
    bool failed;
} listing;

static kvm_analyse_cache *add(listing *l, const char *group, kvm_str name,
                              kvm_str title, kvm_origin all)
{
    kvm_analyse_cache *c = &l->a->cache[l->a->count++];
    l->failed |= !name.at || !title.at;
    *c = (kvm_analyse_cache){.name = name, .title = title, .group = group, .layer = -1};
    for (int p = 0; p < KVM_PART_COUNT; p++) c->part[p] = all;
    return c;
}

typedef struct inventory { /* of the target: which kinds of objects there are, where */
    bool part[KVM_PART_COUNT];
    bool *layer; /* (layers) */
} inventory;

static kvm_status take_stock(inventory *v, const kvm_model *m, kvm_arena *keep,
                             kvm_err *err)
{
    *v = (inventory){.layer = kvm_new(keep, bool, kvm_model_info_of(m)->layers)};
    if (!v->layer) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        const kvm_object *o = kvm_model_object(m, i);
        v->part[kvm_cache_part_of(o)] = true;
        v->layer[o->layer] = true;
    }
    return KVM_OK;
}

static void add_swaps(listing *l, const inventory *v, ptrdiff_t layers)
{
    for (ptrdiff_t i = 0; i < layers; i++) {
        if (!v->layer[i]) continue;
        add(l, "swap", kvm_str_fmt(l->keep, "layer.%td", i),
            kvm_str_fmt(l->keep, "layer %td native", i), KVM_FROM_TRANSLATED)
            ->layer = i;
    }
    for (int p = 0; p < KVM_PART_COUNT; p++) {
        if (!v->part[p]) continue;
        kvm_analyse_cache *c =
            add(l, "swap", kvm_str_fmt(l->keep, "swap.%s", parts[p].key),
                kvm_str_fmt(l->keep, "%s native", parts[p].title), KVM_FROM_TRANSLATED);
        c->part[p] = KVM_FROM_NATIVE;
        c->chooses = p == KVM_PART_INDEXERS;
    }
    if (v->part[KVM_PART_INDEXERS]) {
        kvm_analyse_cache *c =
            add(l, "swap", KVM_STR("swap.but_indexers"),
                KVM_STR("all native but index keys"), KVM_FROM_NATIVE);
        c->part[KVM_PART_INDEXERS] = KVM_FROM_TRANSLATED;
        c->chooses = true;
    }
    add(l, "swap", KVM_STR("swap.all"), KVM_STR("all native"), KVM_FROM_NATIVE);
}

/* Index keys go with the rows that they choose: without them attention would look at
 * tokens of no choice. Where a translation leaves them out, so does what is put
 * together of it, unless the target's own take their place. */
static void add_splits(listing *l, const inventory *v)
{
    if (v->part[KVM_PART_ATTENTION] && v->part[KVM_PART_STATES]) {
        add(l, "split", KVM_STR("only.attention"), KVM_STR("attention alone"),
            KVM_FROM_TRANSLATED)
            ->part[KVM_PART_STATES] = KVM_FROM_NOTHING;
        add(l, "split", KVM_STR("only.states"), KVM_STR("states alone"),
            KVM_FROM_NOTHING)
            ->part[KVM_PART_STATES] = KVM_FROM_TRANSLATED;
    }
    add(l, "split", KVM_STR("nothing"), KVM_STR("nothing"), KVM_FROM_NOTHING);
}

static kvm_status list_caches(kvm_analyse_caches *a, kvm_arena *keep,
                              const kvm_model *target, const kvm_tails *tails,
                              kvm_err *err)
{
    inventory v;
    listing l = {.a = a, .keep = keep};
    const ptrdiff_t layers = kvm_model_info_of(target)->layers;
    TRY(take_stock(&v, target, keep, err));
    a->cache = kvm_new(keep, kvm_analyse_cache,
                       2 + layers + KVM_PART_COUNT + 2 + 3 + tails->n);
    if (!a->cache) return kvm_nomem(err, keep);
    add(&l, "", KVM_STR("native"), KVM_STR("native"), KVM_FROM_NATIVE)->chooses =
        v.part[KVM_PART_INDEXERS];
    add(&l, "", KVM_STR("translated"), KVM_STR("translated"), KVM_FROM_TRANSLATED)
        ->chooses = v.part[KVM_PART_INDEXERS];
    add_swaps(&l, &v, layers);
    add_splits(&l, &v);
    for (ptrdiff_t i = 0; i < tails->n; i++)
        add(&l, "tail", kvm_str_fmt(keep, "tail.%g", tails->share[i]),
            kvm_str_fmt(keep, "last %g %% read by the target", 100 * tails->share[i]),
            KVM_FROM_TRANSLATED)
            ->tail = tails->share[i];
    return l.failed ? kvm_nomem(err, keep) : KVM_OK;
}

kvm_status kvm_analyse_caches_new(kvm_analyse_caches *a, kvm_arena *keep,
                                  const kvm_translator *t, kvm_arm by,
                                  kvm_model *source, kvm_model *target,
                                  const kvm_tails *tails, ptrdiff_t capacity,
                                  kvm_err *err)
{
    *a = (kvm_analyse_caches){.by = by};
    TRY(kvm_arm_caches_new(&a->arms, keep, source, target, capacity, err));
    TRY(kvm_apply_new(&a->arms.apply[by], keep, kvm_model_compute(target), t, source,
                      target, NULL, err));
    TRY(kvm_arm_caches_take(&a->arms, keep, capacity, err));
    TRY(kvm_cache_new(&a->translated, keep, target, capacity, err));
    return list_caches(a, keep, target, tails, err);
}

/* ---- filling them ---- */

kvm_status kvm_analyse_prefill(kvm_analyse_caches *a, const int32_t *ids, ptrdiff_t n,
                               kvm_err *err)
{
    kvm_model *m;
    kvm_cache *work;
    TRY(kvm_arm_caches_prefill(&a->arms, ids, NULL, n, err));
    TRY(kvm_arm_fill(&a->arms, a->by, &m, &work, err));
    return kvm_cache_copy(a->translated, work, err);
}

static kvm_origin origin_of(const kvm_analyse_cache *c, const kvm_object *o)
{
    return o->layer == c->layer ? KVM_FROM_NATIVE : c->part[kvm_cache_part_of(o)];
}

static const kvm_cache *cache_of(const kvm_analyse_caches *a, kvm_origin from)
{
    switch (from) {
    case KVM_FROM_TRANSLATED:
        return a->translated;
    case KVM_FROM_NATIVE:
        return a->arms.target_prefix;
    case KVM_FROM_NOTHING:
        break;
    }
    return NULL;
}

static kvm_status mix(kvm_analyse_caches *a, const kvm_analyse_cache *c, kvm_err *err)
{
    const kvm_model *m = a->arms.target;
    kvm_cache *to = a->arms.target_work;
    const ptrdiff_t n = kvm_cache_length(a->arms.target_prefix);
    const bool dense = kvm_cache_dense(a->translated) > 0 &&
                       c->part[KVM_PART_INDEXERS] == KVM_FROM_TRANSLATED;
    kvm_cache_clear(to);
    TRY(kvm_inject_begin(to, n, err));
    if (dense) TRY(kvm_inject_dense(to, err));
    for (ptrdiff_t i = 0; i < kvm_model_info_of(m)->objects; i++) {
        if (dense && kvm_object_chooses(kvm_model_object(m, i))) continue;
        const kvm_origin from = origin_of(c, kvm_model_object(m, i));
        TRY(kvm_mix_object(to, m, i, (kvm_mix_source){cache_of(a, from), i}, n,
                           a->arms.rows, err));
    }
    return kvm_inject_end(to, err);
}

kvm_status kvm_analyse_fill(kvm_analyse_caches *a, ptrdiff_t k, kvm_cache **cache,
                            kvm_err *err)
{
    const kvm_analyse_cache *c = &a->cache[k];
    const ptrdiff_t n = kvm_cache_length(a->arms.target_prefix);
    *cache = a->arms.target_work;
    if (c->tail > 0)
        return kvm_arm_fill_head(&a->arms, a->by, n - kvm_tail_tokens(c->tail, n),
                                 cache, err);
    if (k == KVM_ANALYSE_NATIVE)
        return kvm_cache_copy(*cache, a->arms.target_prefix, err);
    if (k == KVM_ANALYSE_TRANSLATED) return kvm_cache_copy(*cache, a->translated, err);
    return mix(a, c, err);
}

json_t *kvm_analyse_caches_json(const kvm_analyse_caches *a)
{
    json_t *list = json_array();
    for (ptrdiff_t k = KVM_ANALYSE_TRANSLATED + 1; k < a->count; k++) {
        const kvm_analyse_cache *c = &a->cache[k];
        json_t *row = json_pack("{s:s, s:s, s:s}", "cache", c->name.at, "group",
                                c->group, "title", c->title.at);
        if (c->layer >= 0)
            json_object_set_new(row, "layer", json_integer((json_int_t)c->layer));
        if (c->tail > 0) json_object_set_new(row, "share", json_real(c->tail));
        json_array_append_new(list, row);
    }
    return list;
}
