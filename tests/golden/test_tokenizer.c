/* Every golden string through every golden tokenizer: ids equal to the `tokenizers` or
 * `tiktoken` library's, decoding back to the text, and the general path (PCRE2) equal
 * to the hand-written matchers. tests/golden/tokenizers/make.py says where they come
 * from. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "models/tokenizer_internal.h"
#include "tests/support/check.h"

#define DIR "tests/golden/tokenizers/"

static const char *const names[] = {"llama3", "qwen2", "qwen35", "tekken",
                                    "gpt2",   "glm",   "smollm", "deepseek",
                                    "odd",    "odd2",  "kimi",   "tekken_ranks"};

static kvm_str from_base64(kvm_arena *a, kvm_str s)
{
    char *out = kvm_new(a, char, s.len + 1);
    assert_non_null(out);
    uint32_t bits = 0;
    int n_bits = 0;
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s.len && s.at[i] != '='; i++) {
        const char *abc =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *at = strchr(abc, s.at[i]);
        assert_non_null(at);
        bits = bits << 6 | (uint32_t)(at - abc);
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[n++] = (char)(bits >> n_bits);
        bits &= (1u << n_bits) - 1;
    }
    return (kvm_str){out, n};
}

static kvm_str next_line(kvm_str *rest)
{
    kvm_str line;
    (void)kvm_str_cut(*rest, '\n', &line, rest);
    return line;
}

static kvm_str read_all(kvm_arena *a, const char *path)
{
    kvm_err err = {0};
    kvm_str text;
    check_ok(kvm_file_read(&text, a, kvm_str_of(path), 64 << 20, &err), &err);
    return text;
}

static kvm_jat parse(kvm_arena *a, kvm_str line)
{
    kvm_err err = {0};
    kvm_jat row;
    check_ok(kvm_json_parse(&row, a, line, KVM_STR("golden"), &err), &err);
    return row;
}

static int64_t number(kvm_jat row, kvm_arena *a, const char *key, int64_t fallback)
{
    kvm_err err = {0};
    int64_t n;
    check_ok(kvm_json_i64_or(kvm_json_get(row, a, key), fallback, &n, &err), &err);
    return n;
}

static kvm_str text_of(kvm_jat row, kvm_arena *a, const char *key)
{
    kvm_err err = {0};
    kvm_str s;
    check_ok(kvm_json_str_or(kvm_json_get(row, a, key), KVM_STR(""), &s, &err), &err);
    return s;
}

/* the strings, each as bytes; *n of them */
static kvm_str *strings(kvm_arena *a, ptrdiff_t *n)
{
    enum { MAX = 8192 };
    kvm_str *out = kvm_new(a, kvm_str, MAX);
    kvm_str rest = read_all(a, DIR "strings.jsonl");
    for (*n = 0; rest.len > 0; ++*n) {
        assert_true(*n < MAX);
        const kvm_jat row = parse(a, next_line(&rest));
        const kvm_str unit = from_base64(a, text_of(row, a, "text"));
        const ptrdiff_t times = (ptrdiff_t)number(row, a, "times", 1);
        char *s = kvm_new(a, char, unit.len *times + 1);
        assert_non_null(s);
        for (ptrdiff_t i = 0; i < times; i++)
            memcpy(s + i * unit.len, unit.at, (size_t)unit.len);
        out[*n] = (kvm_str){s, unit.len * times};
    }
    return out;
}

static void compare(kvm_arena *a, const char *name, ptrdiff_t string, kvm_jat row,
                    const int32_t *ids, ptrdiff_t n)
{
    kvm_err err = {0};
    const kvm_str sha = text_of(row, a, "sha256");
    bool same = true;
    if (sha.len > 0) {
        char hex[65];
        const kvm_str bytes = {(const char *)ids, n * (ptrdiff_t)sizeof *ids};
        check_ok(kvm_sha_of(bytes, hex, &err), &err);
        same = n == number(row, a, "n", n) && kvm_str_starts(kvm_str_of(hex), sha);
    } else {
        const kvm_str want = from_base64(a, text_of(row, a, "ids"));
        same = want.len == 2 * n;
        for (ptrdiff_t i = 0; same && i < n; i++) {
            uint16_t id;
            memcpy(&id, want.at + 2 * i, 2);
            same = id == ids[i];
        }
        if (!same) {
            fprintf(stderr, "# want");
            for (ptrdiff_t i = 0; i < want.len / 2; i++) {
                uint16_t id;
                memcpy(&id, want.at + 2 * i, 2);
                fprintf(stderr, " %d", id);
            }
        }
    }
    if (same) return;
    fprintf(stderr, "\n# got %td:", n);
    for (ptrdiff_t i = 0; i < n && i < 100; i++) fprintf(stderr, " %d", (int)ids[i]);
    fail_msg("%s: string %td of strings.jsonl has other ids", name, string);
}

/* reset now and then: under the address sanitizer it costs as much as the arena is
 * large */
static void make_room(kvm_arena *a)
{
    if (kvm_arena_used(a) > (size_t)32 << 20) kvm_arena_reset(a);
}

/* text as the reference takes it in: lossy */
static kvm_str lossy(kvm_arena *a, kvm_str s)
{
    char *out = kvm_new(a, char, 3 * s.len + 1);
    assert_non_null(out);
    return (kvm_str){out, kvm_utf8_lossy(out, s)};
}

static void round_trip(kvm_arena *a, const kvm_tokenizer *t, kvm_encoder *e,
                       kvm_str text, const int32_t *ids, ptrdiff_t n)
{
    kvm_err err = {0};
    kvm_str back;
    int32_t *again;
    ptrdiff_t n_again;
    check_ok(kvm_decode(t, ids, n, false, a, &back, &err), &err);
    if (!t->nfc) {
        const kvm_str want = lossy(a, text);
        assert_int_equal(back.len, want.len);
        assert_memory_equal(back.at, want.at, (size_t)want.len);
    }
    check_ok(kvm_encode(e, back, NULL, a, &again, &n_again, &err), &err);
    assert_int_equal(n_again, n);
    assert_memory_equal(again, ids, (size_t)n * sizeof *ids);
}

static void one_tokenizer(const char *name, const kvm_str *text, ptrdiff_t n_text)
{
    kvm_err err = {0};
    kvm_tokenizer *t;
    kvm_encoder *e;
    kvm_arena a = check_arena((size_t)1 << 30), b = check_arena((size_t)1 << 26);
    char path[128];
    (void)snprintf(path, sizeof path, DIR "%s.json", name);
    if (strcmp(name, "kimi") == 0) /* a folder with a tiktoken.model */
        (void)snprintf(path, sizeof path, DIR "%s", name);
    check_ok(kvm_tokenizer_open(&t, &a, kvm_str_of(path), &err), &err);
    check_ok(kvm_encoder_new(&e, &a, t, &err), &err);
    (void)snprintf(path, sizeof path, DIR "%s.jsonl", name);
    kvm_str rest = read_all(&a, path);
    /* these give every text back: no byte is missing and nothing is stripped */
    const bool whole = strcmp(name, "smollm") != 0 && strncmp(name, "odd", 3) != 0;
    /* rows of these pass over every third string */
    const bool thin = strcmp(name, "tekken_ranks") == 0 || strcmp(name, "glm") == 0;
    ptrdiff_t rows = 0, more = 0;
    for (; rest.len > 0; rows++) {
        int32_t *ids;
        ptrdiff_t n;
        const kvm_jat row = parse(&b, next_line(&rest));
        const ptrdiff_t due = thin ? rows + rows / 2 : rows;
        const ptrdiff_t i = (ptrdiff_t)number(row, &b, "string", due);
        const kvm_encode_options o = {
            .add_bos = kvm_json_get(row, &b, "special").v != NULL,
            .plain_specials = kvm_json_get(row, &b, "plain").v != NULL};
        assert_true(i < n_text);
        check_ok(kvm_encode(e, text[i], &o, &b, &ids, &n, &err), &err);
        compare(&b, name, i, row, ids, n);
        if (whole && !o.add_bos && !o.plain_specials)
            round_trip(&b, t, e, text[i], ids, n);
        more += o.add_bos;
        make_room(&b);
    }
    assert_true(rows >= 2000 + 2 * more && more > 20);
    kvm_arena_free(&b);
    kvm_arena_free(&a);
}

static void ids_are_the_librarys(void **state)
{
    (void)state;
    ptrdiff_t n;
    kvm_arena a = check_arena((size_t)1 << 30);
    const kvm_str *text = strings(&a, &n);
    assert_true(n >= 2000);
    for (size_t i = 0; i < COUNT(names); i++) one_tokenizer(names[i], text, n);
    kvm_arena_free(&a);
}

/* --- the hand-written matchers against PCRE2 --- */

typedef struct cuts {
    ptrdiff_t *end; /* lengths of the pieces */
    ptrdiff_t n;
} cuts;

static kvm_status note(void *ctx, const unsigned char *p, ptrdiff_t n, kvm_err *err)
{
    (void)p;
    (void)err;
    cuts *c = ctx;
    c->end[c->n++] = n;
    return KVM_OK;
}

static void matchers_equal_pcre2(void **state)
{
    (void)state;
    kvm_err err = {0};
    ptrdiff_t n;
    kvm_arena a = check_arena((size_t)1 << 30), b = check_arena((size_t)1 << 26);
    const kvm_str *text = strings(&a, &n);
    for (ptrdiff_t k = 0; k < kvm_patterns_n; k++) {
        const kvm_pattern *p = &kvm_patterns[k];
        kvm_pretokenizer fast = {.n = 1}, slow = {.n = 1};
        kvm_splitter *f, *s;
        check_ok(kvm_unicode_classes(&fast.classes, &a, &err), &err);
        slow.classes = fast.classes;
        fast.step[0] = (kvm_step){.kind = KVM_STEP_MATCHER, .match = p->match};
        slow.step[0].kind = KVM_STEP_REGEX;
        check_ok(
            kvm_regex_new(&slow.step[0].re, &a, kvm_str_of(p->text), false, b, &err),
            &err);
        check_ok(kvm_splitter_new(&f, &a, &fast, &err), &err);
        check_ok(kvm_splitter_new(&s, &a, &slow, &err), &err);
        for (ptrdiff_t i = 0; i < n; i++) {
            const kvm_str valid = lossy(&b, text[i]);
            cuts x = {kvm_new(&b, ptrdiff_t, valid.len + 1), 0};
            cuts y = {kvm_new(&b, ptrdiff_t, valid.len + 1), 0};
            assert_true(x.end && y.end);
            check_ok(kvm_split(f, valid, note, &x, &err), &err);
            check_ok(kvm_split(s, valid, note, &y, &err), &err);
            if (x.n != y.n || memcmp(x.end, y.end, sizeof *x.end * (size_t)x.n) != 0)
                fail_msg("%s: string %td is cut in another way by hand", p->name, i);
            make_room(&b);
        }
    }
    kvm_arena_free(&b);
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_the_librarys),
        cmocka_unit_test(matchers_equal_pcre2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
