/* config_residual.c - the sizes of the residual kinds that have some: read, checked and
 * hashed side by side. */
#include "models/config_internal.h"

/* ---- streams behind gates, and n-gram embeddings ---- */

static kvm_status read_streams(const kvm_config_source *s, kvm_config *c)
{
    kvm_stream_config *t = &c->stream;
    TRY(kvm_config__size(s, "hc_count", 4, &t->count));
    TRY(kvm_config__size(s, "hc_lowrank", 320, &t->rank));
    TRY(kvm_config__size(s, "ple_embed_dim", c->hidden, &t->ngram_dim));
    TRY(kvm_config__size(s, "ngram_size", 3, &t->orders));
    TRY(kvm_config__size(s, "heads_per_ngram", 8, &t->heads));
    TRY(kvm_config__size(s, "ple_conv_kernel_size", 4, &t->window));
    TRY(kvm_config__size(s, "split_ngram_parts", 1, &t->parts));
    TRY(kvm_config__size(s, "ngram_vocab_size_base", 20000000, &t->base));
    TRY(kvm_config__size(s, "make_ngram_vocab_size_divisible_by", 128, &t->multiple));
    const kvm_jat seed = kvm_json_get(s->text, s->keep, "seed");
    TRY(kvm_json_i64_or(seed, 1234, &t->seed, s->err));
    kvm_jat end = kvm_json_get(s->text, s->keep, "eos_token_id");
    if (json_is_array(end.v)) end = kvm_json_item(end, s->keep, 0);
    return kvm_json_i64_or(end, -1, &t->end_id, s->err);
}

static kvm_status check_streams(const kvm_config *c, const char *file, kvm_err *err)
{
    const kvm_stream_config *t = &c->stream;
    const struct {
        const char *name;
        ptrdiff_t value, most;
    } fields[] = {{"hc_count", t->count, 64},
                  {"hc_lowrank", t->rank, 1 << 14},
                  {"ple_embed_dim", t->ngram_dim, 1 << 17},
                  {"ngram_size", t->orders, 8},
                  {"heads_per_ngram", t->heads, 256},
                  {"ple_conv_kernel_size", t->window, 8},
                  {"split_ngram_parts", t->parts, 1 << 12},
                  {"ngram_vocab_size_base", t->base, INT32_MAX},
                  {"make_ngram_vocab_size_divisible_by", t->multiple, 1 << 20}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].most)
            return kvm_fail(err, KVM_RANGE, "%s: %s is %td; 1 to %td are possible",
                            file, fields[i].name, fields[i].value, fields[i].most);
    if (t->orders < 2 || t->ngram_dim % ((t->orders - 1) * t->heads) != 0)
        return kvm_fail(err, KVM_RANGE,
                        "%s: ple_embed_dim %td is not shared evenly by %td heads of "
                        "n-grams up to %td",
                        file, t->ngram_dim, t->heads, t->orders);
    return KVM_OK;
}

/* ple_layer_ids counts from one */
static kvm_status read_ngram_layers(const kvm_config_source *s, kvm_config *c)
{
    ptrdiff_t n = 0;
    const kvm_jat ids = kvm_json_get(s->text, s->keep, "ple_layer_ids");
    c->stream.ngrams = kvm_new(s->keep, bool, c->layers);
    if (!c->stream.ngrams) return kvm_nomem(s->err, s->keep);
    if (kvm_json_has(ids)) TRY(kvm_json_array(ids, &n, s->err));
    for (ptrdiff_t i = 0; i < n; i++) {
        int64_t l;
        const kvm_jat at = kvm_json_item(ids, s->keep, i);
        TRY(kvm_json_i64(at, &l, s->err));
        if (l < 1 || l > c->layers)
            return kvm_fail(s->err, KVM_RANGE,
                            "%s: %s is %lld: layers are counted from 1 to %td here",
                            at.file, at.path, (long long)l, c->layers);
        c->stream.ngrams[l - 1] = true;
    }
    if (n > 0 && c->stream.end_id < 0)
        return kvm_fail(s->err, KVM_FORMAT,
                        "%s: ple_layer_ids needs eos_token_id, at which n-grams begin "
                        "anew",
                        s->root.file);
    return KVM_OK;
}

static int add_streams(json_t *v, const kvm_config *c)
{
    int bad = 0;
    const kvm_stream_config *t = &c->stream;
    json_t *ngrams = json_array();
    for (ptrdiff_t l = 0; l < c->layers; l++)
        bad |= json_array_append_new(ngrams, json_boolean(t->ngrams[l]));
    bad |= json_object_set_new(
        v, "streams",
        json_pack("[I,I,I,I,I,I,I,I,I,o]", (json_int_t)t->count, (json_int_t)t->rank,
                  (json_int_t)t->ngram_dim, (json_int_t)t->orders, (json_int_t)t->heads,
                  (json_int_t)t->window, (json_int_t)t->end_id, (json_int_t)t->base,
                  (json_int_t)t->seed, ngrams));
    return bad | json_object_set_new(v, "sigmoid_gate",
                                     json_boolean(c->recurrent.sigmoid_gate));
}

/* ---- mixed streams ---- */

static kvm_status read_mixed(const kvm_config_source *s, kvm_config *c)
{
    kvm_stream_config *t = &c->stream;
    TRY(kvm_config__size(s, "hc_mult", 4, &t->count));
    TRY(kvm_config__size(s, "hc_sinkhorn_iters", 20, &t->rounds));
    return kvm_config__number(s, s->text, "hc_eps", 1e-6, &t->eps);
}

static kvm_status check_mixed(const kvm_config *c, const char *file, kvm_err *err)
{
    const kvm_stream_config *t = &c->stream;
    if (t->count >= 1 && t->count <= 16 && t->rounds >= 1 && t->rounds <= 1000 &&
        t->eps >= 0 && t->eps < 1)
        return KVM_OK;
    return kvm_fail(err, KVM_RANGE,
                    "%s: hc_mult %td (1 to 16), hc_sinkhorn_iters %td (1 to 1000), "
                    "hc_eps %g (0 to 1)",
                    file, t->count, t->rounds, t->eps);
}

static int add_mixed(json_t *v, const kvm_config *c)
{
    const kvm_stream_config *t = &c->stream;
    return json_object_set_new(v, "mix",
                               json_pack("[I,I,f,f,f]", (json_int_t)t->count,
                                         (json_int_t)t->rounds, t->eps, c->swiglu_limit,
                                         c->recurrent.lower_bound));
}

/* ---- by kind ---- */

/* NULL: nothing to do */
static const struct {
    kvm_status (*read)(const kvm_config_source *s, kvm_config *c);
    kvm_status (*layers)(const kvm_config_source *s, kvm_config *c);
    kvm_status (*check)(const kvm_config *c, const char *file, kvm_err *err);
    int (*add)(json_t *v, const kvm_config *c);
} kinds[KVM_RESIDUAL_KINDS] = {
    [KVM_RESIDUAL_STREAMS] = {read_streams, read_ngram_layers, check_streams,
                              add_streams},
    [KVM_RESIDUAL_MIXED] = {read_mixed, NULL, check_mixed, add_mixed},
};

kvm_status kvm_config__residual(const kvm_config_source *s, kvm_config *c)
{
    const kvm_residual_id id = c->family->residual;
    return kinds[id].read ? kinds[id].read(s, c) : KVM_OK;
}

kvm_status kvm_config__residual_layers(const kvm_config_source *s, kvm_config *c)
{
    const kvm_residual_id id = c->family->residual;
    return kinds[id].layers ? kinds[id].layers(s, c) : KVM_OK;
}

kvm_status kvm_config__check_residual(const kvm_config *c, const char *file,
                                      kvm_err *err)
{
    const kvm_residual_id id = c->family->residual;
    return kinds[id].check ? kinds[id].check(c, file, err) : KVM_OK;
}

int kvm_config__hash_residual(json_t *v, const kvm_config *c)
{
    const kvm_residual_id id = c->family->residual;
    return kinds[id].add ? kinds[id].add(v, c) : 0;
}
