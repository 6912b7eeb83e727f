#include "translators/recipes.h"

static const kvm_mapping recipes[] = {
#define X(OUT, side, FROM, OTHER, how)                                                 \
    {KVM_SPACE_##OUT, side, {KVM_SPACE_##FROM, KVM_SPACE_##OTHER}, false, how},
#include "translators/recipes.def"
#undef X
};

kvm_status kvm_mapping_find(kvm_mapping *m, kvm_space out, bool token,
                            const kvm_shapes *source, const kvm_shapes *target,
                            kvm_err *err)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const kvm_mapping *r = &recipes[i];
        const kvm_shapes *s = r->side == KVM_SOURCE ? source : target;
        if (r->out != out || !s->of[r->from[0]] || !s->of[r->from[1]]) continue;
        *m = *r;
        m->token = token;
        return KVM_OK;
    }
    if (out == KVM_SPACE_LATENT_ENGINE)
        return kvm_fail(err, KVM_UNSUPPORTED,
                        "no recipe makes latents as engines keep them (latents: 3) out "
                        "of what the source keeps: leave latents out, or write 1");
    return kvm_fail(err, KVM_UNSUPPORTED,
                    "no recipe makes rows of %s out of what the source keeps",
                    kvm_space_name(out));
}

bool kvm_mapping_known(const kvm_mapping *m)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (recipes[i].out == m->out && recipes[i].side == m->side &&
            recipes[i].from[0] == m->from[0] && recipes[i].from[1] == m->from[1])
            return true;
    return false;
}

kvm_mapping kvm_mapping_same(kvm_space s)
{
    return (kvm_mapping){.out = s, .side = KVM_SOURCE, .from = {s, s}};
}

int kvm_mapping_spaces(const kvm_mapping *m)
{
    return m->from[0] == m->from[1] ? 1 : 2;
}

const char *kvm_mapping_label(const kvm_mapping *m)
{
    return kvm_space_name(kvm_space_rows[m->out].stored);
}

ptrdiff_t kvm_mapping_layers(const kvm_mapping *m, kvm_side side, const kvm_shapes *s,
                             int32_t *out)
{
    ptrdiff_t n = 0;
    const bool reads = side == KVM_SOURCE;
    for (ptrdiff_t l = 0; l < s->layers; l++) {
        const bool there = reads ? kvm_shapes_width(s, m->from[0], l) > 0 &&
                                       kvm_shapes_width(s, m->from[1], l) > 0
                                 : kvm_shapes_width(s, m->out, l) > 0;
        if (!there) continue;
        if (out) out[n] = (int32_t)l;
        n++;
    }
    return n;
}

ptrdiff_t kvm_mapping_items(const kvm_mapping *m, const int32_t *layers,
                            ptrdiff_t count, ptrdiff_t target, kvm_feature *out)
{
    ptrdiff_t n = 0;
    if (m->token) out[n++] = (kvm_feature){KVM_TARGET, KVM_SPACE_TOKEN, 0};
    if (m->side == KVM_TARGET) count = 1;
    for (ptrdiff_t i = 0; i < count; i++)
        for (int s = 0; s < kvm_mapping_spaces(m); s++)
            out[n++] = (kvm_feature){m->side, m->from[s],
                                     m->side == KVM_SOURCE ? layers[i] : target};
    return n;
}

void kvm_block_set_add(kvm_block_set *set, kvm_space a, kvm_space b)
{
    for (ptrdiff_t i = 0; i < set->n; i++)
        if (set->id[i].a == a && set->id[i].b == b) return;
    set->id[set->n++] = (kvm_block_id){a, b};
}

/* a Gram keeps one half */
static void add_own(kvm_block_set *set, kvm_space a, kvm_space b)
{
    kvm_block_set_add(set, a < b ? a : b, a < b ? b : a);
}

void kvm_mapping_blocks(const kvm_mapping *m, kvm_block_set *source,
                        kvm_block_set *cross, kvm_block_set *own)
{
    kvm_feature x[3];
    const int32_t any = 0;
    const ptrdiff_t n = kvm_mapping_items(m, &any, 1, 0, x);
    for (ptrdiff_t i = 0; i < n; i++) {
        for (ptrdiff_t j = i; j < n; j++) {
            const bool from = x[i].side == KVM_SOURCE, to = x[j].side == KVM_SOURCE;
            if (from != to)
                kvm_block_set_add(cross, from ? x[i].space : x[j].space,
                                  from ? x[j].space : x[i].space);
            else
                add_own(from ? source : own, x[i].space, x[j].space);
        }
        if (x[i].side == KVM_SOURCE)
            kvm_block_set_add(cross, x[i].space, m->out);
        else
            add_own(own, x[i].space, m->out);
    }
}
