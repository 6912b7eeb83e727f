/* Calibration text: cut into sequences alike from a suite and from a file; overlap is
 * found. */
#include "jobs/calibration.h"

#include <string.h>

#include "tests/support/check.h"

#define DIR "build/tmp/calibration"
#define TOKENIZER "tests/zoo/small"

static kvm_arena arena;
static kvm_tokenizer *tokenizer;

static int setup(void **state)
{
    (void)state;
    kvm_err err = {0};
    arena = check_arena((size_t)1 << 32);
    check_tmpdir("calibration");
    check_ok(kvm_tokenizer_open(&tokenizer, &arena, KVM_STR(TOKENIZER), &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&arena);
    return 0;
}

static kvm_calibration read(const char *path, ptrdiff_t sequences, ptrdiff_t tokens)
{
    kvm_err err = {0};
    kvm_calibration c;
    check_ok(kvm_calibration_read(&c, &arena, kvm_str_of(path), tokenizer, sequences,
                                  tokens, &err),
             &err);
    return c;
}

static void a_text_file_is_cut_into_windows(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_encoder *e;
    int32_t *ids;
    ptrdiff_t n;
    const kvm_str text =
        KVM_STR("In the beginning God created the heaven and the earth. "
                "And the earth was without form, and void.");
    check_write(DIR "/text.txt", text);
    check_ok(kvm_encoder_new(&e, &arena, tokenizer, &err), &err);
    check_ok(kvm_encode(e, text, NULL, &arena, &ids, &n, &err), &err);
    const kvm_calibration c = read(DIR "/text.txt", 100, 5);
    assert_true(c.sequences >= n / 5);
    assert_int_equal(c.offset[1], 5);
    assert_memory_equal(c.ids, ids, (size_t)c.offset[c.sequences] * sizeof *ids);
    assert_int_equal(read(DIR "/text.txt", 2, 5).sequences, 2);
}

static void a_suite_gives_one_sequence_an_item(void **state)
{
    (void)state;
    check_write(DIR "/c.yaml", KVM_STR("name: c\nkind: calibration\nfile: c.jsonl\n"
                                       "licence: CC0-1.0\nprovenance: this test\n"));
    check_write(DIR "/c.jsonl",
                KVM_STR("{\"id\":\"a\",\"text\":\"one two three four\"}\n"
                        "{\"id\":\"b\",\"text\":\"x\"}\n"
                        "{\"id\":\"c\",\"text\":\"five six seven\"}\n"));
    const kvm_calibration c = read(DIR "/c.yaml", 10, 3);
    assert_int_equal(c.sequences, 2); /* "x" is one token: nothing to fit on */
    assert_int_equal(c.longest, 3);
}

/* every sequence of a model that begins its texts begins so, within the stated
 * length */
static void sequences_begin_as_the_tokenizer_begins_a_text(void **state)
{
    (void)state;
    kvm_err err = {0};
    check_ok(kvm_tokenizer_open(&tokenizer, &arena,
                                KVM_STR("tests/golden/tokenizers/llama3.json"), &err),
             &err);
    const int32_t bos = kvm_tokenizer_special(tokenizer, KVM_STR("<|begin_of_text|>"));
    assert_true(bos >= 0);
    check_write(DIR "/b.txt",
                KVM_STR("one two three four five six seven eight nine ten"));
    check_write(DIR "/b.yaml", KVM_STR("name: b\nkind: calibration\nfile: b.jsonl\n"
                                       "licence: CC0-1.0\nprovenance: this test\n"));
    check_write(
        DIR "/b.jsonl",
        KVM_STR("{\"id\":\"a\",\"text\":\"one two three four five six seven\"}\n"
                "{\"id\":\"b\",\"text\":\"<|begin_of_text|>five six seven eight\"}\n"));
    static const char *const paths[] = {DIR "/b.txt", DIR "/b.yaml"};
    for (int f = 0; f < 2; f++) {
        const kvm_calibration c = read(paths[f], 100, 4);
        assert_true(c.sequences >= 2);
        assert_int_equal(c.longest, 4);
        for (ptrdiff_t s = 0; s < c.sequences; s++) {
            assert_int_equal(c.ids[c.offset[s]], bos);
            assert_true(c.ids[c.offset[s] + 1] != bos);
        }
    }
}

static void nothing_to_read_is_an_error(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_calibration c;
    check_write(DIR "/empty.txt", KVM_STR(""));
    check_status(KVM_USAGE,
                 kvm_calibration_read(&c, &arena, KVM_STR(DIR "/empty.txt"), tokenizer,
                                      4, 8, &err),
                 &err);
}

/* Counting agrees with reading, for every number asked for around what there is, also
 * where only a part of the text is tokenised. */
static void counting_agrees_with_reading(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_text text = {0};
    for (int i = 0; i < 3000; i++)
        kvm_text_addf(&text, "%d bottles of \xc3\xa9t\xc3\xa9 on the wall,%s", i,
                      i % 7 ? " " : "\n");
    check_write(DIR "/long.txt", kvm_text_str(&text));
    kvm_text_free(&text);
    check_write(DIR "/short.txt", KVM_STR("one two three four five"));
    static const char *const paths[] = {DIR "/long.txt", DIR "/short.txt",
                                        "jobs/suites/calibration.yaml"};
    static const ptrdiff_t tokens[] = {2, 7, 64, 512};
    for (size_t p = 0; p < COUNT(paths); p++)
        for (size_t t = 0; t < COUNT(tokens); t++) {
            const kvm_calibration whole = read(paths[p], 100000, tokens[t]);
            const ptrdiff_t all = whole.sequences;
            const ptrdiff_t wanted[] = {1, all / 50 + 1, all - 1, all, all + 1, 100000};
            for (size_t w = 0; w < COUNT(wanted); w++) {
                if (wanted[w] < 1) continue;
                ptrdiff_t found;
                char sha[65], file[65];
                check_ok(kvm_calibration_count(&found, sha, kvm_str_of(paths[p]),
                                               tokenizer, wanted[w], tokens[t], &err),
                         &err);
                assert_int_equal(found, wanted[w] < all ? wanted[w] : all);
                check_ok(kvm_calibration_hash(file, kvm_str_of(paths[p]), arena, &err),
                         &err);
                assert_string_equal(sha, file);
                assert_string_equal(whole.sha, file);
            }
        }
}

static void text_that_is_no_utf8_is_refused(void **state)
{
    (void)state;
    const struct {
        kvm_str text;
        const char *place;
    } bad[] = {
        {KVM_STR("\xff\xfeh\0i\0"), "u.txt:1: byte 0 (0xff)"},
        {KVM_STR("good\nsurrogate \xed\xa0\x80"), "u.txt:2: byte 15 (0xed)"},
        {KVM_STR("cut \xe2\x82"), "u.txt:1: byte 4 (0xe2)"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        kvm_err err = {0};
        kvm_calibration c;
        ptrdiff_t n;
        char sha[65];
        check_write(DIR "/u.txt", bad[i].text);
        check_status(KVM_FORMAT,
                     kvm_calibration_read(&c, &arena, KVM_STR(DIR "/u.txt"), tokenizer,
                                          4, 8, &err),
                     &err);
        check_contains(err.msg, bad[i].place);
        err = (kvm_err){0};
        check_status(KVM_FORMAT,
                     kvm_calibration_count(&n, sha, KVM_STR(DIR "/u.txt"), tokenizer, 4,
                                           8, &err),
                     &err);
    }
}

static void overlap_is_found_at_its_place(void **state)
{
    (void)state;
    kvm_err err = {0};
    enum { N = 4 * KVM_OVERLAP_TOKENS };
    int32_t ids[N], other[N];
    ptrdiff_t offset[] = {0, N / 2, N};
    for (int i = 0; i < N; i++) {
        ids[i] = (i * 7919) % 2048;
        other[i] = (i * 104729 + 5) % 2048;
    }
    const kvm_calibration c = {
        .sequences = 2, .offset = offset, .ids = ids, .longest = N / 2};
    kvm_overlap *o;
    check_ok(kvm_overlap_new(&o, &arena, &c, &err), &err);
    assert_int_equal(kvm_overlap_find(o, other, N), -1);
    memcpy(other + 10, ids + 3, KVM_OVERLAP_TOKENS * sizeof *ids);
    assert_int_equal(kvm_overlap_find(o, other, N), 10);
    other[10 + KVM_OVERLAP_TOKENS / 2] ^=
        1; /* one token less than a window is no overlap */
    assert_int_equal(kvm_overlap_find(o, other, N), -1);
    /* a window across the end of a sequence is not in the text */
    assert_int_equal(kvm_overlap_find(o, ids + N / 2 - 4, KVM_OVERLAP_TOKENS), -1);
    assert_int_equal(kvm_overlap_find(o, ids, KVM_OVERLAP_TOKENS - 1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_text_file_is_cut_into_windows, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_suite_gives_one_sequence_an_item, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(sequences_begin_as_the_tokenizer_begins_a_text,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_to_read_is_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(counting_agrees_with_reading, setup, teardown),
        cmocka_unit_test_setup_teardown(text_that_is_no_utf8_is_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(overlap_is_found_at_its_place, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
