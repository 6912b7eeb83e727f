/* The zoo's models after prompts of 1,024 tokens, against transformers' greedy decoding
 * (tests/golden/zoo/make.py): the same 16 tokens on every prompt, as it has no margin
 * that rounding could take. */
#include <stdio.h>
#include <string.h>

#include "models/model.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define EXPECT "tests/golden/zoo/greedy.safetensors"

enum { PROMPTS = 50, LENGTH = 1024, NEW = 16, VOCAB = 2048 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 10 }; /* every access is looked at on few prompts too */
#else
enum { STRIDE = 1 };
#endif

static const int32_t *ids_of(const kvm_st *expect, const char *name, ptrdiff_t n)
{
    const kvm_st_tensor *t = kvm_st_find(expect, kvm_str_of(name));
    assert_non_null(t);
    assert_int_equal(t->t.dim[0], PROMPTS);
    assert_int_equal(t->t.dim[1], n);
    return t->t.data;
}

static void continues_alike(const char *name)
{
    kvm_arena keep = check_arena((size_t)1 << 30);
    kvm_err err = {0};
    kvm_st *expect;
    check_ok(kvm_st_open(&expect, &keep, KVM_STR(EXPECT), &err), &err);
    const int32_t *prompts = ids_of(expect, "prompts", LENGTH);
    const int32_t *greedy = ids_of(expect, name, NEW);

    kvm_compute *compute;
    kvm_model *model;
    kvm_cache *cache;
    const kvm_model_options o = {.no_tokenizer = true}; /* stop tokens do not stop */
    check_ok(
        kvm_compute_new(&compute, &keep, kvm_backend_find(KVM_STR("cpu")), 2, &err),
        &err);
    check_ok(kvm_model_open(&model, &keep, compute,
                            kvm_str_fmt(&keep, "tests/zoo/%s", name), &o, &err),
             &err);
    assert_int_equal(kvm_model_info_of(model)->vocab, VOCAB);
    check_ok(kvm_cache_new(&cache, &keep, model, LENGTH + NEW, &err), &err);
    for (ptrdiff_t p = 0; p < PROMPTS; p += STRIDE) {
        static float logits[VOCAB];
        int32_t ids[NEW];
        ptrdiff_t n;
        const kvm_forward_options last = {.logits_last = 1, .logits = logits};
        const kvm_sampling by_argmax = {0};
        kvm_cache_clear(cache);
        check_ok(
            kvm_model_forward(model, cache, prompts + p * LENGTH, LENGTH, &last, &err),
            &err);
        check_ok(kvm_generate(model, cache, logits, &by_argmax, NEW, ids, &n, NULL,
                              NULL, &err),
                 &err);
        assert_int_equal(n, NEW);
        if (memcmp(ids, greedy + p * NEW, sizeof ids))
            fail_msg("%s goes on otherwise than transformers after prompt %td", name,
                     p);
    }
    kvm_arena_free(&keep);
}

static void test_mla(void **state)
{
    (void)state;
    continues_alike("mla");
}
static void test_gdn(void **state)
{
    (void)state;
    continues_alike("gdn-a");
}
static void test_kda(void **state)
{
    (void)state;
    continues_alike("kda");
}
static void test_qsa(void **state)
{
    (void)state;
    continues_alike("qsa");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mla),
        cmocka_unit_test(test_gdn),
        cmocka_unit_test(test_kda),
        cmocka_unit_test(test_qsa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
