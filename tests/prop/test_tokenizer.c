/* decode(encode(x)) == x for random texts of every script, whatever the cache holds. A
 * failing text is halved while it fails. */
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "models/tokenizer_internal.h"
#include "tests/support/check.h"

enum { TEXTS = 4000, LONGEST = 64 };
static const uint64_t SEED = 20240611;

/* those that do not normalise and have every byte */
static const char *const names[] = {"llama3", "tekken", "gpt2", "deepseek"};

typedef struct under_test {
    const kvm_tokenizer *t;
    kvm_encoder *e;
    kvm_arena a;
} under_test;

/* a code point, by turns from small, middle and all ranges, never a surrogate */
static uint32_t code_point(kvm_rng *rng)
{
    static const uint32_t limit[] = {0x80, 0x80, 0x800, 0x3000, 0xD800, 0x110000};
    const uint32_t c = (uint32_t)kvm_rng_below(rng, limit[kvm_rng_below(rng, 6)]);
    return c >= 0xD800 && c <= 0xDFFF ? 0x20 : c;
}

static ptrdiff_t random_text(kvm_rng *rng, char *out)
{
    ptrdiff_t n = 0;
    const uint64_t chars = 1 + kvm_rng_below(rng, LONGEST);
    for (uint64_t i = 0; i < chars; i++) {
        const uint32_t c = code_point(rng);
        const uint64_t times = kvm_rng_below(rng, 12) ? 1 : 1 + kvm_rng_below(rng, 30);
        for (uint64_t k = 0; k < times; k++) n += kvm_utf8_put(out + n, c);
    }
    return n;
}

/* reset now and then: under the address sanitizer it costs as much as the arena is
 * large */
static void make_room(kvm_arena *a)
{
    if (kvm_arena_used(a) > (size_t)32 << 20) kvm_arena_reset(a);
}

static bool comes_back(under_test *u, kvm_str text)
{
    kvm_err err = {0};
    int32_t *ids;
    ptrdiff_t n;
    kvm_str back;
    make_room(&u->a);
    check_ok(kvm_encode(u->e, text, NULL, &u->a, &ids, &n, &err), &err);
    check_ok(kvm_decode(u->t, ids, n, false, &u->a, &back, &err), &err);
    for (ptrdiff_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= kvm_tokenizer_size(u->t)) return false;
    return kvm_str_eq(back, text);
}

/* equal ids from an encoder that has seen nothing: its cache changes nothing */
static bool cache_is_silent(under_test *u, kvm_str text)
{
    kvm_err err = {0};
    int32_t *warm, *cold;
    ptrdiff_t n, m;
    kvm_encoder *fresh;
    make_room(&u->a);
    check_ok(kvm_encoder_new(&fresh, &u->a, u->t, &err), &err);
    check_ok(kvm_encode(u->e, text, NULL, &u->a, &warm, &n, &err), &err);
    check_ok(kvm_encode(fresh, text, NULL, &u->a, &cold, &m, &err), &err);
    return n == m && memcmp(warm, cold, sizeof *warm * (size_t)n) == 0;
}

static void report(under_test *u, const char *name, kvm_str text,
                   bool (*holds)(under_test *, kvm_str))
{
    for (bool smaller = true; smaller && text.len > 1;) {
        ptrdiff_t half = text.len / 2;
        while (half > 0 && ((unsigned char)text.at[half] & 0xC0) == 0x80) half--;
        const kvm_str left = kvm_str_slice(text, 0, half),
                      right = kvm_str_slice(text, half, text.len);
        smaller = half > 0;
        if (smaller && !holds(u, left))
            text = left;
        else if (smaller && !holds(u, right))
            text = right;
        else
            smaller = false;
    }
    fprintf(stderr, "# %s, seed %llu:", name, (unsigned long long)SEED);
    for (ptrdiff_t i = 0; i < text.len; i++)
        fprintf(stderr, " %02x", (unsigned char)text.at[i]);
    fprintf(stderr, "\n");
    fail();
}

static void for_all(bool (*holds)(under_test *, kvm_str), int texts)
{
    for (size_t k = 0; k < COUNT(names); k++) {
        kvm_err err = {0};
        kvm_tokenizer *t;
        char path[128], text[4 * 30 * LONGEST];
        kvm_arena keep = check_arena((size_t)1 << 29);
        under_test u = {.a = check_arena((size_t)1 << 26)};
        kvm_rng rng = kvm_rng_seed(SEED, k);
        (void)snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", names[k]);
        check_ok(kvm_tokenizer_open(&t, &keep, kvm_str_of(path), &err), &err);
        u.t = t;
        check_ok(kvm_encoder_new(&u.e, &keep, t, &err), &err);
        for (int i = 0; i < texts; i++) {
            const kvm_str s = {text, random_text(&rng, text)};
            if (!holds(&u, s)) report(&u, names[k], s, holds);
        }
        kvm_arena_free(&u.a);
        kvm_arena_free(&keep);
    }
}

static void round_trip(void **state)
{
    (void)state;
    for_all(comes_back, TEXTS);
}

static void same_with_and_without_cache(void **state)
{
    (void)state;
    for_all(cache_is_silent, TEXTS / 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(same_with_and_without_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
