/* config_blocks.c - which kinds the blocks of a stack are built of, and which of them
 * look at a window or have an indexer. */
#include "models/config_internal.h"

/* A list has an entry for each layer; entries may follow for layers behind the stack
 * that predict further tokens, which are not run. */
static kvm_status check_entries(const kvm_config_source *s, kvm_jat list,
                                const kvm_config *c)
{
    ptrdiff_t n, further;
    TRY(kvm_json_array(list, &n, s->err));
    TRY(kvm_config__size(s, "num_nextn_predict_layers", 0, &further));
    if (n == c->layers || n == c->layers + further) return KVM_OK;
    return kvm_fail(s->err, KVM_FORMAT,
                    "%s: %s has %td entries for %td layers (num_hidden_layers): one of "
                    "the two is wrong",
                    list.file, list.path, n, c->layers);
}

/* ---- indexers ---- */

/* a list of one of two words per layer: is_first[l] tells which */
static kvm_status read_words(const kvm_config_source *s, kvm_jat list,
                             const kvm_config *c, const char *first, const char *second,
                             bool *is_first)
{
    TRY(check_entries(s, list, c));
    for (ptrdiff_t l = 0; l < c->layers; l++) {
        kvm_str word;
        const kvm_jat at = kvm_json_item(list, s->keep, l);
        TRY(kvm_json_str(at, &word, s->err));
        is_first[l] = kvm_str_eq(word, kvm_str_of(first));
        if (!is_first[l] && !kvm_str_eq(word, kvm_str_of(second)))
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s is \"%s\"; %s and %s are run", at.file, at.path,
                            kvm_quote(word).at, first, second);
    }
    return KVM_OK;
}

/* indexer_types, or a string of F and S, or one full layer in so many after an
 * offset */
static kvm_status read_indexers(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t every, offset;
    if (c->index.heads == 0) return KVM_OK;
    c->index.full = kvm_new(s->keep, bool, c->layers);
    if (!c->index.full) return kvm_nomem(s->err, s->keep);
    const kvm_jat types = kvm_json_get(s->text, s->keep, "indexer_types");
    const kvm_jat pattern = kvm_json_get(s->text, s->keep, "index_topk_pattern");
    TRY(kvm_config__size(s, "index_topk_freq", 1, &every));
    TRY(kvm_config__size(s, "index_skip_topk_offset", 2, &offset));
    if (kvm_json_has(types)) {
        TRY(read_words(s, types, c, "full", "shared", c->index.full));
    } else if (kvm_json_has(pattern)) {
        kvm_str word;
        TRY(kvm_json_str(pattern, &word, s->err));
        if (word.len != c->layers)
            return kvm_fail(s->err, KVM_FORMAT, "%s: %s has %td letters for %td layers",
                            pattern.file, pattern.path, word.len, c->layers);
        for (ptrdiff_t l = 0; l < c->layers; l++) c->index.full[l] = word.at[l] == 'F';
    } else {
        for (ptrdiff_t l = 0; l < c->layers; l++) {
            const ptrdiff_t past = l - offset + 1 > 0 ? l - offset + 1 : 0;
            c->index.full[l] = every < 2 || past % every == 0;
        }
    }
    ptrdiff_t first = c->layers; /* that attends */
    for (ptrdiff_t l = c->layers - 1; l >= 0; l--) {
        if (c->blocks[l].mixer == c->family->mixer)
            first = l;
        else
            c->index.full[l] = false;
    }
    if (first == c->layers || c->index.full[first]) return KVM_OK;
    return kvm_fail(s->err, KVM_FORMAT,
                    "%s: layer %td shares the indexer of a layer before it",
                    s->root.file, first);
}

/* ---- blocks of one layer each ---- */

/* Such a block has one of its two halves, and the other is KVM_LAYER_NONE. */
static bool block_of_letter(const kvm_family *f, char letter, kvm_block_kinds *out)
{
    *out = (kvm_block_kinds){KVM_LAYER_NONE, KVM_LAYER_NONE};
    if (letter == 'M') out->mixer = f->recurrent;
    if (letter == '*') out->mixer = f->mixer;
    if (letter == '-') out->ffn = f->ffn;
    if (letter == 'E') out->ffn = f->moe;
    return out->mixer != out->ffn; /* both NONE: no such letter */
}

static char letter_of_word(kvm_str word)
{
    static const struct {
        const char *word;
        char letter;
    } words[] = {{"linear_attention", 'M'}, {"mamba", 'M'}, {"full_attention", '*'},
                 {"attention", '*'},        {"mlp", '-'},   {"moe", 'E'}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (kvm_str_eq(word, kvm_str_of(words[i].word))) return words[i].letter;
    return 0;
}

/* one letter per block, in keep, whichever way the config has them */
static kvm_status read_pattern(const kvm_config_source *s, kvm_jat *at,
                               kvm_str *letters)
{
    ptrdiff_t n;
    *at = kvm_json_get(s->text, s->keep, "layers_block_type");
    if (!kvm_json_has(*at)) {
        *at = kvm_json_get(s->text, s->keep, "hybrid_override_pattern");
        return kvm_json_str(*at, letters, s->err);
    }
    TRY(kvm_json_array(*at, &n, s->err));
    char *out = kvm_new(s->keep, char, n);
    if (!out) return kvm_nomem(s->err, s->keep);
    for (ptrdiff_t l = 0; l < n; l++) {
        kvm_str word;
        const kvm_jat item = kvm_json_item(*at, s->keep, l);
        TRY(kvm_json_str(item, &word, s->err));
        out[l] = letter_of_word(word);
        if (!out[l])
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s is \"%s\"; blocks of linear_attention (mamba), "
                            "full_attention (attention), mlp and moe are run",
                            item.file, item.path, kvm_quote(word).at);
    }
    *letters = (kvm_str){out, n};
    return KVM_OK;
}

kvm_status kvm_config__count(const kvm_config_source *s, kvm_config *c)
{
    kvm_jat at;
    kvm_str letters;
    TRY(read_pattern(s, &at, &letters));
    if (c->layers == 0) c->layers = letters.len;
    if (letters.len == c->layers) return KVM_OK;
    return kvm_fail(s->err, KVM_FORMAT, "%s: %s has %td blocks for %td layers", at.file,
                    at.path, letters.len, c->layers);
}

static kvm_status read_blocks(const kvm_config_source *s, kvm_config *c)
{
    kvm_jat at;
    kvm_str letters;
    bool keeps = false;
    TRY(read_pattern(s, &at, &letters));
    for (ptrdiff_t l = 0; l < c->layers; l++) {
        if (!block_of_letter(c->family, letters.at[l], &c->blocks[l]))
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s: block %td is \"%s\"; M, *, - and E are run",
                            at.file, at.path, l,
                            kvm_quote(kvm_str_slice(letters, l, l + 1)).at);
        if (letters.at[l] == 'E' && (c->moe.experts == 0 || c->mlp_bias))
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s: block %td has experts, but %s", at.file, at.path,
                            l,
                            c->mlp_bias ? "mlp_bias, which they are run without"
                                        : "n_routed_experts is 0");
        keeps = keeps || c->blocks[l].mixer;
    }
    if (keeps) return KVM_OK;
    return kvm_fail(s->err, KVM_UNSUPPORTED,
                    "%s: %s: no block keeps anything from token to token", at.file,
                    at.path);
}

/* ---- blocks with experts ---- */

/* transformers' own list */
static kvm_status read_ffn_types(const kvm_config_source *s, kvm_jat types,
                                 kvm_config *c)
{
    bool *dense = kvm_new(s->keep, bool, c->layers);
    if (!dense) return kvm_nomem(s->err, s->keep);
    TRY(read_words(s, types, c, "dense", "sparse", dense));
    for (ptrdiff_t l = 0; l < c->layers; l++)
        if (!dense[l]) c->blocks[l].ffn = c->family->moe;
    return KVM_OK;
}

/* Layers below first_k_dense_replace, those between the steps and those on a list have
 * no experts. */
static kvm_status read_experts(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t first, step, n = 0;
    if (c->moe.experts == 0) return KVM_OK;
    const kvm_jat types = kvm_json_get(s->text, s->keep, "mlp_layer_types");
    if (kvm_json_has(types)) return read_ffn_types(s, types, c);
    TRY(kvm_config__size(s, "first_k_dense_replace", 0, &first));
    TRY(kvm_config__size(s, "moe_layer_freq|decoder_sparse_step", 1, &step));
    for (ptrdiff_t l = first; step > 0 && l < c->layers; l++)
        if ((l + 1) % step == 0) c->blocks[l].ffn = c->family->moe;
    const kvm_jat dense = kvm_json_get(s->text, s->keep, "mlp_only_layers");
    if (kvm_json_has(dense)) TRY(kvm_json_array(dense, &n, s->err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t l;
        const kvm_jat at = kvm_json_item(dense, s->keep, i);
        TRY(kvm_json_i64(at, &l, s->err));
        if (l < 0 || l >= c->layers)
            return kvm_fail(s->err, KVM_RANGE, "%s: %s is layer %lld of a stack of %td",
                            at.file, at.path, (long long)l, c->layers);
        c->blocks[l].ffn = c->family->ffn;
    }
    return KVM_OK;
}

/* ---- kinds and windows of layers ---- */

/* what a word of layer_types means; the indexers of attention layers are told by their
 * tensors */
typedef enum kind_of_layer { FULL, SLIDING, RECURRENT, UNKNOWN } kind_of_layer;
static kind_of_layer meaning(kvm_str type)
{
    static const struct {
        const char *word;
        kind_of_layer kind;
    } words[] = {
        {"full_attention", FULL},
        {"attention", FULL},
        {"indexed_attention", FULL},
        {"hybrid_indexed", FULL},
        {"deepseek_sparse_attention", FULL},
        {"qwen_sparse_attention", FULL},
        {"sliding_attention", SLIDING},
        {"linear_attention", RECURRENT},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (kvm_str_eq(type, kvm_str_of(words[i].word))) return words[i].kind;
    return UNKNOWN;
}

static kvm_status read_layer_types(const kvm_config_source *s, kvm_jat types,
                                   kvm_config *c, ptrdiff_t window)
{
    TRY(check_entries(s, types, c));
    for (ptrdiff_t l = 0; l < c->layers; l++) {
        kvm_str type;
        const kvm_jat at = kvm_json_item(types, s->keep, l);
        TRY(kvm_json_str(at, &type, s->err));
        const kind_of_layer kind = meaning(type);
        if (kind == SLIDING && window < 1)
            return kvm_fail(s->err, KVM_FORMAT,
                            "%s: %s slides, but sliding_window is %td", at.file,
                            at.path, window);
        if (kind == UNKNOWN || (kind == RECURRENT && !c->family->recurrent))
            return kvm_fail(s->err, KVM_UNSUPPORTED,
                            "%s: %s is \"%s\"; %s models have full_attention, "
                            "sliding_attention%s layers here",
                            at.file, at.path, kvm_quote(type).at, c->family->name,
                            c->family->recurrent ? ", linear_attention" : "");
        c->window[l] = kind == SLIDING ? window : 0;
        if (kind == RECURRENT) c->blocks[l].mixer = c->family->recurrent;
    }
    return KVM_OK;
}

/* every so many layers one attends, the others are recurrent */
static kvm_status read_interval(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t interval;
    TRY(kvm_config__size(s, "full_attention_interval", 4, &interval));
    for (ptrdiff_t l = 0; l < c->layers; l++)
        if (interval == 0 || (l + 1) % interval != 0)
            c->blocks[l].mixer = c->family->recurrent;
    return KVM_OK;
}

/* one of the two lists of linear_attn_config: marks[l] becomes `mark` */
static kvm_status read_list(const kvm_config_source *s, const char *key,
                            const kvm_config *c, char mark, char *marks)
{
    ptrdiff_t n;
    const kvm_jat list = kvm_json_get(s->text, s->keep, key);
    const ptrdiff_t base = c->family->one_based;
    TRY(kvm_json_array(list, &n, s->err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t l;
        const kvm_jat at = kvm_json_item(list, s->keep, i);
        TRY(kvm_json_i64(at, &l, s->err));
        if (l < base || l - base >= c->layers)
            return kvm_fail(
                s->err, KVM_RANGE, "%s: %s is %lld: %s counts its %td layers from %td",
                at.file, at.path, (long long)l, c->family->name, c->layers, base);
        if (marks[l - base])
            return kvm_fail(s->err, KVM_FORMAT, "%s: %s: layer %lld is listed twice",
                            at.file, at.path, (long long)l);
        marks[l - base] = mark;
    }
    return KVM_OK;
}

static kvm_status read_lists(const kvm_config_source *s, kvm_config *c)
{
    enum { ATTENDS = 1, RECURS };
    const kvm_config_source inner = kvm_config__within(s, "linear_attn_config");
    char *marks = kvm_new(s->keep, char, c->layers);
    if (!marks) return kvm_nomem(s->err, s->keep);
    TRY(read_list(&inner, "full_attn_layers", c, ATTENDS, marks));
    TRY(read_list(&inner, "kda_layers", c, RECURS, marks));
    for (ptrdiff_t l = 0; l < c->layers; l++) {
        if (!marks[l])
            return kvm_fail(s->err, KVM_FORMAT,
                            "%s: linear_attn_config: layer %td, counted from 0, is in "
                            "neither list",
                            s->root.file, l);
        if (marks[l] == RECURS) c->blocks[l].mixer = c->family->recurrent;
    }
    return KVM_OK;
}

/* families that count from one have no other way to say it */
static bool has_lists(const kvm_config_source *s, const kvm_config *c)
{
    const kvm_config_source inner = kvm_config__within(s, "linear_attn_config");
    return c->family->one_based ||
           kvm_json_has(kvm_json_get(inner.text, s->keep, "full_attn_layers"));
}

static kvm_status read_windows(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t window, from;
    bool used;
    TRY(kvm_config__size(s, "sliding_window", 0, &window));
    const kvm_jat types = kvm_json_get(s->text, s->keep, "layer_types");
    if (kvm_json_has(types)) return read_layer_types(s, types, c, window);
    if (c->family->recurrent == KVM_LAYER_KDA && has_lists(s, c))
        return read_lists(s, c);
    if (c->family->recurrent) return read_interval(s, c);
    TRY(kvm_config__flag(s, "use_sliding_window", false, &used));
    TRY(kvm_config__size(s, "max_window_layers", 28, &from));
    if (c->family->windowed) used = true, from = 0;
    for (ptrdiff_t l = 0; used && l < c->layers; l++)
        c->window[l] = l >= from ? window : 0;
    return KVM_OK;
}

kvm_status kvm_config__layers(const kvm_config_source *s, kvm_config *c)
{
    TRY(kvm_config__uniform(c, s->keep, s->err));
    if (c->family->single) return read_blocks(s, c);
    TRY(read_experts(s, c));
    TRY(read_windows(s, c));
    TRY(read_indexers(s, c));
    return kvm_config__residual_layers(s, c);
}
