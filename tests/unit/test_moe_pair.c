/* A family that caches K and V alone, but whose feed-forwards are experts, goes through
 * capture, fit and evaluate as llama does. The second model is the first in other
 * numbers: values twice as large, and an output map of half: so its answers are the
 * first one's, and its cache is not. */
#include <string.h>

#include "base/file.h"
#include "base/rng.h"
#include "models/safetensors.h"
#include "tests/support/check.h"
#include "tests/support/host.h"

#define GOLDEN "tests/golden/models/qwen3_moe"
#define DIR "build/tmp/moe_pair"
enum { VOCAB = 97, ITEMS = 4, MOST_TENSORS = 64 };

/* The golden model has 97 tokens: a letter of ASCII each, and one that ends texts. */
static void write_tokenizer(const char *path)
{
    json_t *v = json_load_file("tests/zoo/small/tokenizer.json", 0, NULL);
    json_t *vocab = json_object(), *model = json_object_get(v, "model");
    assert_non_null(model);
    for (int c = 33; c < 127; c++)
        json_object_set_new(vocab, (char[]){(char)c, 0}, json_integer(c - 33));
    json_object_set_new(vocab, "\u0120", json_integer(94)); /* space */
    json_object_set_new(vocab, "\u010A", json_integer(95)); /* newline */
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", json_array());
    json_t *added = json_object_get(v, "added_tokens");
    while (json_array_size(added) > 1) json_array_remove(added, 1);
    json_object_set_new(json_array_get(added, 0), "id", json_integer(VOCAB - 1));
    assert_int_equal(json_dump_file(v, path, 0), 0);
    json_decref(v);
}

/* the golden model at dir, v_proj times `by` and o_proj divided by it: a power of two,
 * so that products are the same bits */
static void write_model(kvm_arena *a, const char *dir, float by)
{
    static kvm_st_spec specs[MOST_TENSORS];
    kvm_err err = {0};
    kvm_st *st;
    kvm_st_writer *w;
    const kvm_str folder = kvm_str_of(dir);
    check_ok(kvm_dir_make(folder, &err), &err);
    check_write(kvm_path_join(a, folder, KVM_STR("config.json")).at,
                check_read(a, GOLDEN "/config.json"));
    write_tokenizer(kvm_path_join(a, folder, KVM_STR("tokenizer.json")).at);
    check_ok(kvm_st_open(&st, a, KVM_STR(GOLDEN), &err), &err);
    const ptrdiff_t n = kvm_st_count(st);
    assert_true(n <= MOST_TENSORS);
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        specs[i] = (kvm_st_spec){.name = t->name, .dtype = KVM_F32, .rank = t->t.rank};
        memcpy(specs[i].dim, t->t.dim, sizeof specs[i].dim);
    }
    check_ok(kvm_st_begin(&w, a, kvm_path_join(a, folder, KVM_STR("model.safetensors")),
                          specs, n, NULL, &err),
             &err);
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        const ptrdiff_t count = kvm_tensor_count(&t->t);
        const float times = kvm_str_find(t->name, KVM_STR("v_proj")) >= 0   ? by
                            : kvm_str_find(t->name, KVM_STR("o_proj")) >= 0 ? 1 / by
                                                                            : 1;
        float *x = kvm_new_raw(a, float, count);
        assert_non_null(x);
        check_ok(kvm_widen_row(x, t->t.data, t->t.dtype, count, &err), &err);
        for (ptrdiff_t j = 0; j < count; j++) x[j] *= times;
        check_ok(kvm_st_append(w, x, (size_t)count * sizeof *x, &err), &err);
    }
    check_ok(kvm_st_publish(w, NULL, &err), &err);
}

/* letters by chance, as words */
static void write_texts(kvm_arena a)
{
    kvm_rng r = kvm_rng_seed(11, 1);
    kvm_text text = {0}, lines = {0};
    for (int i = 0; i < 24000; i++) {
        const int64_t c = (int64_t)kvm_rng_below(&r, 31);
        kvm_text_addf(&text, "%c", c < 26 ? (char)('a' + c) : c < 30 ? ' ' : '\n');
    }
    for (int i = 0; i < ITEMS; i++) {
        char word[41] = {0};
        for (int j = 0; j < 40; j++) word[j] = (char)('a' + kvm_rng_below(&r, 26));
        kvm_text_addf(&lines,
                      "{\"id\": \"%d\", \"prefix\": \"%.30s\", \"continuation\": "
                      "\"%s\"}\n",
                      i, word, word + 30);
    }
    check_write(DIR "/text.txt", kvm_str_copy(&a, (kvm_str){text.at, text.len}));
    check_write(DIR "/words.jsonl", kvm_str_copy(&a, (kvm_str){lines.at, lines.len}));
    check_write(DIR "/words.yaml",
                KVM_STR("name: words\nkind: perplexity\nfile: words.jsonl\n"
                        "licence: CC0-1.0\nprovenance: this test\n"));
    kvm_text_free(&text);
    kvm_text_free(&lines);
}

/* mean of a metric of the suite over items */
static double mean(const host *h, const char *arm, const char *metric)
{
    double sum = 0;
    int n = 0;
    for (size_t i = 0; i < json_array_size(h->samples); i++) {
        const char *of, *what;
        double value;
        assert_int_equal(json_unpack(json_array_get(h->samples, i), "[s,s,s,s,f]",
                                     &(const char *){0}, &of, &what, &(const char *){0},
                                     &value),
                         0);
        if (strcmp(of, arm) || strcmp(what, metric)) continue;
        sum += value, n++;
    }
    if (n == 0) fail_msg("no sample of %s, %s", arm, metric);
    return sum / n;
}

static void a_pair_of_experts(void **state)
{
    (void)state;
    static host h;
    kvm_arena a = check_arena(1 << 26);
    check_tmpdir("moe_pair");
    write_model(&a, DIR "/source", 1);
    write_model(&a, DIR "/target", 2);
    write_texts(a);
    host_open(&h, "moe_jobs",
              "name: experts\nsource: ./moe_pair/source\ntarget: ./moe_pair/target\n"
              "calibration: {text: ./moe_pair/text.txt, sequences: 40, tokens: 64}\n"
              "fit: {k: 1, lambda: 1e-6}\n"
              "evaluate: {suites: [./moe_pair/words.yaml], attention_items: 1}\n");
    host_run_to(&h, host_node(&h, "evaluate words"));
    assert_true(mean(&h, "closed_form", "kl") < 1e-9);
    assert_true(mean(&h, "closed_form", "agreement") == 1);
    assert_true(mean(&h, "raw_source", "kl") > 1e-2);
    assert_true(mean(&h, "zero", "kl") > 5e-2);
    host_close(&h);
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_pair_of_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
