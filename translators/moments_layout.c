/* moments_layout.c - how rows are cut into panels, and what stands in a file of
 * moments. */
#include <string.h>

#include "translators/meta.h"
#include "translators/moments_internal.h"

kvm_status kvm_moments__panels(kvm_panels *out, kvm_arena *keep,
                               const kvm_row_shape *shape, ptrdiff_t layers,
                               kvm_err *err)
{
    kvm_panel *p = kvm_new(keep, kvm_panel, layers);
    if (!p) return kvm_nomem(err, keep);
    ptrdiff_t n = 0, at = 0;
    for (ptrdiff_t l = 0; l < layers; l++) {
        const ptrdiff_t w = shape[l].heads * shape[l].dim;
        const bool full =
            n > 0 && p[n - 1].width > 0 && w > 0 && p[n - 1].width + w > KVM_PANEL;
        if (n == 0 || full) p[n++] = (kvm_panel){.layer = l, .at = at};
        p[n - 1].layers++;
        p[n - 1].width += w;
        at += w;
    }
    *out = (kvm_panels){p, n, at};
    return KVM_OK;
}

kvm_str kvm_moments__name(kvm_arena *keep, const char *what, kvm_block_id id,
                          kvm_split p, ptrdiff_t i, ptrdiff_t j)
{
    const bool one = id.a == id.b;
    const char *plus = one ? "" : "+", *b = one ? "" : kvm_space_name(id.b);
    return i < 0 ? kvm_str_fmt(keep, "%s.%s%s%s.%s", what, kvm_space_name(id.a), plus,
                               b, kvm_split_name(p))
                 : kvm_str_fmt(keep, "%s.%s%s%s.%s.%td.%td", what, kvm_space_name(id.a),
                               plus, b, kvm_split_name(p), i, j);
}

kvm_status kvm_moments__put_blocks(json_t *meta, const kvm_block_id *blocks,
                                   ptrdiff_t n, kvm_err *err)
{
    kvm_text list = {0};
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_text_addf(&list, i ? ",%s" : "%s", kvm_space_name(blocks[i].a));
        if (blocks[i].a != blocks[i].b)
            kvm_text_addf(&list, "+%s", kvm_space_name(blocks[i].b));
    }
    const kvm_status s = list.failed
                             ? kvm_fail(err, KVM_NOMEM, "no memory for metadata")
                             : kvm_meta_put(meta, "blocks", kvm_text_str(&list), err);
    kvm_text_free(&list);
    return s;
}

kvm_status kvm_moments__read_blocks(const kvm_st *st, kvm_block_id *blocks,
                                    ptrdiff_t *n, kvm_err *err)
{
    kvm_str rest, item, a, b;
    TRY(kvm_meta_str(st, "blocks", &rest, err));
    *n = 0;
    for (bool more = true; more;) {
        more = kvm_str_cut(rest, ',', &item, &rest);
        if (!kvm_str_cut(item, '+', &a, &b)) b = a;
        kvm_block_id id;
        bool bad = *n == KVM_BLOCKS || kvm_space_of_name(a, &id.a) ||
                   kvm_space_of_name(b, &id.b);
        for (ptrdiff_t i = 0; !bad && i < *n; i++)
            bad = blocks[i].a == id.a && blocks[i].b == id.b;
        if (bad)
            return kvm_fail(err, KVM_FORMAT,
                            "%s: metadata `blocks`: '%s' is no block, or stands there "
                            "twice",
                            kvm_st_path(st).at, kvm_quote(item).at);
        blocks[(*n)++] = id;
    }
    return KVM_OK;
}

kvm_status kvm_moments__read_rows(const kvm_st *st, ptrdiff_t rows[KVM_SPLITS],
                                  kvm_err *err)
{
    const ptrdiff_t dim[] = {KVM_SPLITS};
    const kvm_st_tensor *t;
    TRY(kvm_st_need(st, KVM_STR("rows"), KVM_I64, 1, dim, &t, err));
    for (int p = 0; p < KVM_SPLITS; p++) {
        int64_t n;
        memcpy(&n, (const int64_t *)t->t.data + p, sizeof n);
        if (n < 0 || n > INT32_MAX)
            return kvm_fail(err, KVM_FORMAT, "%s: rows[%d] is %lld", kvm_st_path(st).at,
                            p, (long long)n);
        rows[p] = (ptrdiff_t)n;
    }
    return KVM_OK;
}

kvm_block_layout kvm_moments__layout(kvm_block_id id, bool cross, const kvm_panels *a,
                                     const kvm_panels *b)
{
    return (kvm_block_layout){id, cross, !cross && id.a == id.b, a, b};
}

ptrdiff_t kvm_moments__spec_count(const kvm_block_layout *l)
{
    return l->half ? l->a->count * (l->a->count + 1) / 2 + 1
                   : l->a->count * l->b->count + 4;
}

kvm_status kvm_moments__specs(kvm_st_spec *spec, ptrdiff_t *n, kvm_arena *keep,
                              const kvm_block_layout *l, kvm_split p, kvm_err *err)
{
    const ptrdiff_t first = *n;
    for (ptrdiff_t i = 0; i < l->a->count; i++)
        for (ptrdiff_t j = l->half ? i : 0; j < l->b->count; j++)
            spec[(*n)++] = (kvm_st_spec){
                kvm_moments__name(keep, l->cross ? "cross" : "gram", l->id, p, i, j),
                KVM_F64,
                2,
                {l->a->p[i].width, l->b->p[j].width}};
    static const char *const vectors[] = {"mean.a", "mean.b", "square.a", "square.b"};
    for (int v = 0; v < (l->half ? 1 : 4); v++)
        spec[(*n)++] =
            (kvm_st_spec){kvm_moments__name(keep, vectors[v], l->id, p, -1, -1),
                          KVM_F64,
                          1,
                          {v % 2 ? l->b->width : l->a->width}};
    for (ptrdiff_t i = first; i < *n; i++)
        if (!spec[i].name.at) return kvm_nomem(err, keep);
    return KVM_OK;
}
