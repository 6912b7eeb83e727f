/* Encoding speed by class of text.
 *   bench_tokenizer                       every golden tokenizer on every class
 *   bench_tokenizer TOKENIZER TEXT REPS   one file: ids, their hash and MB/s, for
 *                                         bench_tokenizer.py, which holds it against
 *                                         the `tokenizers` library by turns
 * The classes are written to build/tmp/bench_tokenizer/CLASS.txt. Verified: a text
 * decodes back, where nothing is normalised or missing. Each repetition encodes with a
 * warm encoder; the median counts. Time is the process's CPU time: on a busy machine
 * the wall clock would favour whoever needs less than a time slice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "models/tokenizer.h"

enum { TEXT_BYTES = 1 << 20, REPS = 5, MAX_REPS = 99 };
#define DIR "build/tmp/bench_tokenizer/"

static const char *const prose[] = {
    "The committee met on a rainy Tuesday and, after some debate, didn't agree at all.",
    "Nobody could say whether the old bridge would hold another winter of heavy carts.",
    "She'd walked the coast road before dawn, counting lights in the harbour below.",
    "In 1998 the mill produced 14,250 tons; by 2007 output had fallen to 3,100 tons.",
    "\"We'll see,\" he said, folding the letter, \"what they've decided by noon.\"",
    "Engineers tested every valve, recorded pressures, and wrote a careful report.\n\n",
};
static const char *const cjk[] = {
    "今天天气很好,我们去公园散步吧。",
    "这是一个测试句子,用来测量分词器的速度。",
    "春眠不覺曉,處處聞啼鳥。夜來風雨聲,花落知多少。",
    "こんにちは世界、今日はいい天気ですね。",
    "カタカナとひらがなと漢字を混ぜて書きます。",
    "안녕하세요 세계, 오늘 날씨가 좋네요. ",
};
static const char *const alphabets[] = {
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, καλημέρα κόσμε.",
    "مرحبا بالعالم، كيف حالك اليوم؟ صِف خَلقَ خَودٍ",
    "שלום עולם, מה שלומך היום?",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.",
};
static const char *const syllables[] = {
    "नमस्ते दुनिया, आप कैसे हैं? ऋषियों को सताने वाले",
    "வணக்கம் உலகம், நீங்கள் எப்படி",
    "สวัสดีชาวโลก วันนี้เป็นอย่างไรบ้าง",
    "হ্যালো বিশ্ব, আপনি কেমন আছেন?",
    "Xin chào thế giới, hôm nay bạn thế nào?",
};
static const char *const emoji[] = {
    "👨‍👩‍👧‍👦", "🇩🇪🇫🇷",     "👋🏽 hi", "❤️!", "1️⃣",
    "🏳️‍🌈 ok",         "🙂🙃", "→ ≠ ∑"};
static const char *const marks[] = {
    "e\u0301te\u0301",    "a\u0323\u0302 n\u0303o", "o\u0308l", "u\u031b\u0301",
    "\u1112\u1161\u11ab", "\u304b\u3099",           "c\u0327a"};
static const char *const digits[] = {
    "3", "1415926535", "2024-06-07", "0xFF", "1,000,000.50", "٣٤٥", "12:30:59"};
static const char *const spaces[] = {"\n",   "\n\n", "        ", "\t\t",   "  x",
                                     " \n ", "\r\n", "    }",    "\u00a0", "    "};
static const char *const runs[] = {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
static const char *const tags[] = {"<|im_start|>", "user\n", "<|im_end|>", "<", "<|",
                                   "hello ",       "[INST]", "<|eot_id|>"};

static const struct {
    const char *name, *glue;
    const char *const *part;
    size_t n;
} classes[] = {
#define CLASS(name, glue)                                                              \
    {                                                                                  \
#name, glue, name, sizeof name / sizeof *name                                  \
    }
    CLASS(prose, " "), CLASS(cjk, ""),    CLASS(alphabets, " "), CLASS(syllables, " "),
    CLASS(emoji, " "), CLASS(marks, " "), CLASS(digits, " "),    CLASS(spaces, ""),
    CLASS(runs, ""),   CLASS(tags, ""),
};
enum { CLASSES = sizeof classes / sizeof *classes };

static const char *const golden[] = {"llama3", "qwen2",  "qwen35",  "tekken",
                                     "gpt2",   "smollm", "deepseek"};

static void must(kvm_status s, const kvm_err *err)
{
    if (!s) return;
    fprintf(stderr, "bench_tokenizer: %s\n", err->msg);
    exit(1);
}

/* the words of the class's parts in random order, so that few sentences give many
 * lines */
static kvm_str text_of(kvm_arena *a, int c)
{
    kvm_rng rng = kvm_rng_seed(7, (uint64_t)c);
    char *at = kvm_new(a, char, TEXT_BYTES);
    ptrdiff_t n = 0;
    while (at) {
        kvm_str s =
            kvm_str_of(classes[c].part[kvm_rng_below(&rng, (uint64_t)classes[c].n)]);
        if (classes[c].glue[0] && strlen(s.at) > 30) { /* one word of a sentence */
            for (uint64_t skip = kvm_rng_below(&rng, 12); skip > 0; skip--) {
                kvm_str head, tail;
                if (!kvm_str_cut(s, ' ', &head, &tail) || tail.len == 0) break;
                s = tail;
            }
            kvm_str tail;
            (void)kvm_str_cut(s, ' ', &s, &tail);
        }
        const ptrdiff_t glue = (ptrdiff_t)strlen(classes[c].glue);
        if (n + s.len + glue > TEXT_BYTES) break;
        memcpy(at + n, s.at, (size_t)s.len);
        memcpy(at + n + s.len, classes[c].glue, (size_t)glue);
        n += s.len + glue;
    }
    return (kvm_str){at, n};
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* median MB/s; ids of the last repetition stay in a */
static double speed(kvm_encoder *e, kvm_str text, int reps, kvm_arena *a, int32_t **ids,
                    ptrdiff_t *n, kvm_err *err)
{
    double seconds[MAX_REPS];
    must(kvm_encode(e, text, NULL, a, ids, n, err), err);
    for (int i = 0; i < reps; i++) {
        kvm_arena_reset(a);
        const clock_t from = clock();
        must(kvm_encode(e, text, NULL, a, ids, n, err), err);
        seconds[i] = (double)(clock() - from) / CLOCKS_PER_SEC;
    }
    qsort(seconds, (size_t)reps, sizeof *seconds, by_value);
    return (double)text.len / seconds[reps / 2] / 1e6;
}

static void one_file(const char *tokenizer, const char *path, int reps)
{
    kvm_err err = {0};
    kvm_arena keep, a;
    kvm_tokenizer *t = NULL;
    kvm_encoder *e = NULL;
    kvm_str text;
    int32_t *ids;
    ptrdiff_t n;
    char hex[65];
    must(kvm_arena_init(&keep, (size_t)1 << 30, &err), &err);
    must(kvm_arena_init(&a, (size_t)1 << 30, &err), &err);
    must(kvm_tokenizer_open(&t, &keep, kvm_str_of(tokenizer), &err), &err);
    must(kvm_encoder_new(&e, &keep, t, &err), &err);
    must(kvm_file_read(&text, &keep, kvm_str_of(path), (size_t)1 << 28, &err), &err);
    const double mbs = speed(e, text, reps, &a, &ids, &n, &err);
    const kvm_str bytes = {(const char *)ids, n * (ptrdiff_t)sizeof *ids};
    must(kvm_sha_of(bytes, hex, &err), &err);
    printf("%td %s %.2f\n", n, hex, mbs);
    kvm_arena_free(&a);
    kvm_arena_free(&keep);
}

static void verify(const kvm_tokenizer *t, kvm_str text, const int32_t *ids,
                   ptrdiff_t n, kvm_arena *a, kvm_err *err)
{
    kvm_str back;
    must(kvm_decode(t, ids, n, false, a, &back, err), err);
    if (kvm_str_eq(back, text)) return;
    fprintf(stderr, "bench_tokenizer: a text does not come back\n");
    exit(1);
}

static void all(void)
{
    kvm_err err = {0};
    kvm_arena keep, a;
    kvm_str text[CLASSES];
    must(kvm_arena_init(&keep, (size_t)1 << 30, &err), &err);
    must(kvm_arena_init(&a, (size_t)1 << 30, &err), &err);
    must(kvm_dir_make(KVM_STR(DIR), &err), &err);
    printf("MB/s      ");
    for (int c = 0; c < CLASSES; c++) {
        char path[128];
        text[c] = text_of(&keep, c);
        (void)snprintf(path, sizeof path, DIR "%s.txt", classes[c].name);
        must(kvm_file_publish(kvm_str_of(path), text[c], a, &err), &err);
        printf(" %9s", classes[c].name);
    }
    printf("\n");
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) {
        char path[128];
        kvm_tokenizer *t = NULL;
        kvm_encoder *e = NULL;
        (void)snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", golden[k]);
        must(kvm_tokenizer_open(&t, &keep, kvm_str_of(path), &err), &err);
        must(kvm_encoder_new(&e, &keep, t, &err), &err);
        printf("%-10s", golden[k]);
        for (int c = 0; c < CLASSES; c++) {
            int32_t *ids;
            ptrdiff_t n;
            const double mbs = speed(e, text[c], REPS, &a, &ids, &n, &err);
            const bool whole = classes[c].part != marks &&       /* NFC changes them */
                               strcmp(golden[k], "smollm") != 0; /* it lacks bytes */
            if (whole) verify(t, text[c], ids, n, &a, &err);
            printf(" %9.1f", mbs);
        }
        printf("\n");
    }
    kvm_arena_free(&a);
    kvm_arena_free(&keep);
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        all();
        return 0;
    }
    const int reps = argc == 4 ? (int)strtol(argv[3], NULL, 10) : 0;
    if (reps < 1 || reps > MAX_REPS) {
        fprintf(stderr, "usage: bench_tokenizer [TOKENIZER TEXT REPS]\n");
        return 2;
    }
    one_file(argv[1], argv[2], reps);
    return 0;
}
