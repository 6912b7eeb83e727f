/* Any bytes as a text, through one pattern each (chosen by the first byte) with the 256
 * bytes and a few merges as vocabulary: it comes back as what lossy decoding makes of
 * it, and the hand-written matcher cuts it as PCRE2 does. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PATTERNS = 7 };
static kvm_tokenizer *by_hand[PATTERNS], *by_pcre2[PATTERNS];
static kvm_encoder *encoders[PATTERNS], *others[PATTERNS];
static kvm_arena keep;

static void must(kvm_status s)
{
    if (s) abort();
}

/* bytes as the letters of the GPT-2 alphabet: what bpe.c turns back */
static kvm_str letter(kvm_arena *a, int byte)
{
    char utf8[4];
    int c = byte;
    if (byte <= 0x20) c = 0x100 + byte;
    if (byte >= 0x7F && byte <= 0xA0) c = 0x100 + 0x21 + byte - 0x7F;
    if (byte == 0xAD) c = 0x100 + 0x43;
    return kvm_str_copy(a, (kvm_str){utf8, kvm_utf8_put(utf8, (uint32_t)c)});
}

static kvm_tokenizer *make(const kvm_pattern *p, bool hand)
{
    static const char *const merges[][2] = {
        {"t", "h"}, {"th", "e"}, {"a", "a"}, {"aa", "aa"}, {"1", "2"}};
    kvm_tokenizer *t = kvm_new(&keep, kvm_tokenizer, 1);
    if (!t) abort();
    must(kvm_unicode_classes(&t->pre.classes, &keep, NULL));
    must(kvm_bpe_begin(&t->bpe, &keep, 300, NULL));
    for (int i = 0; i < 256; i++)
        must(kvm_bpe_add(&t->bpe, &keep, i, letter(&keep, i), NULL));
    for (int i = 0; i < 5; i++) {
        const kvm_str both = kvm_str_fmt(&keep, "%s%s", merges[i][0], merges[i][1]);
        must(kvm_bpe_add(&t->bpe, &keep, 256 + i, both, NULL));
    }
    must(kvm_bpe_begin_merges(&t->bpe, &keep, 5, NULL));
    for (int i = 0; i < 5; i++)
        must(kvm_bpe_add_merge(&t->bpe, kvm_str_of(merges[i][0]),
                               kvm_str_of(merges[i][1]), keep, NULL));
    kvm_bpe_end(&t->bpe);
    must(kvm_tokenizer__begin_added(t, &keep, 0, NULL));
    must(kvm_tokenizer__index_added(t, &keep, NULL));
    t->pre.n = 1;
    t->pre.step[0] = (kvm_step){.kind = KVM_STEP_MATCHER, .match = p->match};
    if (hand) return t;
    t->pre.step[0] = (kvm_step){.kind = KVM_STEP_REGEX};
    must(kvm_regex_new(&t->pre.step[0].re, &keep, kvm_str_of(p->text), false, keep,
                       NULL));
    return t;
}

static void free_all(void)
{
    kvm_arena_free(&keep);
}

static void make_all(void)
{
    must(kvm_arena_init(&keep, (size_t)1 << 26, NULL));
    if (atexit(free_all)) abort();
    if (kvm_patterns_n != PATTERNS) abort();
    for (int i = 0; i < PATTERNS; i++) {
        by_hand[i] = make(&kvm_patterns[i], true);
        by_pcre2[i] = make(&kvm_patterns[i], false);
        must(kvm_encoder_new(&encoders[i], &keep, by_hand[i], NULL));
        must(kvm_encoder_new(&others[i], &keep, by_pcre2[i], NULL));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvm_arena a;
    kvm_str back;
    int32_t *ids, *same;
    ptrdiff_t n, n_same;
    if (size < 1) return 0;
    if (!keep.base) make_all();
    must(kvm_arena_init(&a, (size_t)1 << 24, NULL));
    const int k = data[0] % PATTERNS;
    const kvm_str text = {(const char *)data + 1, (ptrdiff_t)size - 1};
    char *lossy = kvm_new(&a, char, 3 * text.len + 1);
    if (!lossy) abort();
    const ptrdiff_t len = kvm_utf8_lossy(lossy, text);
    if (kvm_utf8_valid((kvm_str){lossy, len}) != len) abort();
    must(kvm_encode(encoders[k], text, NULL, &a, &ids, &n, NULL));
    must(kvm_encode(others[k], text, NULL, &a, &same, &n_same, NULL));
    if (n != n_same || memcmp(ids, same, sizeof *ids * (size_t)n) != 0) abort();
    must(kvm_decode(by_hand[k], ids, n, false, &a, &back, NULL));
    if (back.len != len || memcmp(back.at, lossy, (size_t)len) != 0) abort();
    kvm_arena_free(&a);
    return 0;
}
