/* What is remembered of large weights: their digests and that they are finite, of the
 * very file that was mapped, in the very state that it had then. */
#define _XOPEN_SOURCE 700 /* symlink, truncate */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/os.h"
#include "models/gguf_meta.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/support/check.h"

#define GOLDEN "tests/golden/models/llama"
#define DIR "build/tmp/fingerprint"
#define WEIGHTS DIR "/model.safetensors"

/* a folder with the golden model's config and no weights yet */
static void copy_config(void)
{
    kvm_arena a = check_arena(1 << 20);
    check_tmpdir("fingerprint");
    check_write(DIR "/config.json", check_read(&a, GOLDEN "/config.json"));
    kvm_arena_free(&a);
}

/* hash (may be NULL): of the weights */
static kvm_status open_model(const char *path, bool check_finite, char hash[65],
                             kvm_err *err)
{
    kvm_arena a = check_arena(1 << 26);
    kvm_compute *c;
    kvm_model *m;
    const kvm_model_options o = {.no_tokenizer = true, .check_finite = check_finite};
    kvm_status s = kvm_compute_new(&c, &a, kvm_backend_find(KVM_STR("ref")), 1, err);
    if (!s) s = kvm_model_open(&m, &a, c, kvm_str_of(path), &o, err);
    if (!s && hash) memcpy(hash, kvm_model_info_of(m)->weights_hash, 65);
    kvm_arena_free(&a);
    return s;
}

/* Large weights are looked through and hashed once, as long as the file stays as it
 * was: its state is what fstat says, here of a file made 100 s ago (younger ones are
 * not remembered), and of the one whose inode is `later` a second later. */
enum { LARGE = 64 << 20 };
static time_t made;
static ino_t later;

static int fstat_settled(int fd, struct stat *st)
{
    const int r = kvm_os_real.fstat(fd, st);
    st->st_mtim = st->st_ctim =
        (struct timespec){.tv_sec = made + (st->st_ino == later)};
    return r;
}

/* the calls until calls_end, with these times and nothing remembered */
static kvm_os_calls calls;

static void calls_begin(time_t when)
{
    char cache[4096] = "";
    check_tmpdir("fingerprint/cache");
    assert_non_null(getcwd(cache, sizeof cache / 2));
    strncat(cache, "/" DIR "/cache", sizeof cache / 2);
    setenv("XDG_CACHE_HOME", cache, 1);
    made = when;
    later = 0;
    calls = kvm_os_real;
    calls.fstat = fstat_settled;
    kvm_os = &calls;
}

static void calls_end(void)
{
    kvm_os = &kvm_os_real;
}

/* every `parts`th of the golden model's weights from `part` on, and 64 MiB that nothing
 * asks for */
static void write_large(const char *file, int part, int parts)
{
    kvm_arena a = check_arena((size_t)1 << 28);
    kvm_err err = {0};
    kvm_st *st;
    kvm_st_writer *w;
    kvm_st_spec specs[64];
    ptrdiff_t n = 0;
    check_ok(kvm_st_open(&st, &a, KVM_STR(GOLDEN), &err), &err);
    for (ptrdiff_t i = part; i < kvm_st_count(st); i += parts) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        kvm_st_spec *s = &specs[n++];
        *s = (kvm_st_spec){.name = t->name, .dtype = t->t.dtype, .rank = t->t.rank};
        memcpy(s->dim, t->t.dim, sizeof s->dim);
    }
    specs[n++] = (kvm_st_spec){KVM_STR("unused"), KVM_BF16, 1, {LARGE / 2}};
    check_ok(kvm_st_begin(&w, &a, kvm_str_of(file), specs, n, NULL, &err), &err);
    for (ptrdiff_t i = part; i < kvm_st_count(st); i += parts) {
        const kvm_st_tensor *t = kvm_st_at(st, i);
        check_ok(kvm_st_append(w, t->t.data, t->bytes, &err), &err);
    }
    check_ok(kvm_st_append(w, kvm_new(&a, char, LARGE), LARGE, &err), &err);
    check_ok(kvm_st_publish(w, NULL, &err), &err);
    kvm_arena_free(&a);
}

static const char K_PROJ[] = "model.layers.1.self_attn.k_proj.weight";

/* the first byte of a tensor in a file */
static ptrdiff_t place_of(const char *tensor, const char *file)
{
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st *st;
    check_ok(kvm_st_open(&st, &a, kvm_str_of(file), &err), &err);
    const kvm_st_tensor *t = kvm_st_find(st, kvm_str_of(tensor));
    assert_non_null(t);
    const ptrdiff_t at = (const char *)t->t.data - kvm_st_whole(st, 0).at;
    assert_true(at > 0 && at < kvm_st_whole(st, 0).len);
    kvm_arena_free(&a);
    return at;
}

/* a number of the weights becomes NaN, or what it was before */
static void put_nan(const char *file, ptrdiff_t at, bool nan)
{
    static uint16_t before;
    const uint16_t bad = 0x7FC0;
    const int fd = open(file, O_RDWR);
    if (nan) assert_int_equal(pread(fd, &before, sizeof before, at), sizeof before);
    assert_int_equal(pwrite(fd, nan ? &bad : &before, sizeof bad, at), sizeof bad);
    assert_int_equal(close(fd), 0);
}

/* the model opens unchecked, and its weights hash is the file's */
static void check_hash(const char *model, const char *file)
{
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    char hash[65], sha[65];
    check_ok(open_model(model, false, hash, &err), &err);
    check_ok(kvm_sha_file(kvm_str_of(file), sha, a, &err), &err);
    assert_string_equal(hash, sha);
    kvm_arena_free(&a);
}

static void large_weights_are_searched_for_nan_once(void **state)
{
    (void)state;
    kvm_err err = {0};
    copy_config();
    write_large(WEIGHTS, 0, 1);
    calls_begin(time(NULL) - 100);
    check_ok(open_model(DIR, true, NULL, &err), &err);
    put_nan(WEIGHTS, place_of(K_PROJ, WEIGHTS), true);
    check_ok(open_model(DIR, true, NULL, &err), &err); /* taken as it was */
    made++;
    check_status(KVM_NAN, open_model(DIR, true, NULL, &err), &err);
    check_contains(err.msg, "model.layers.1.self_attn.k_proj.weight: number 0");
    err = (kvm_err){0}; /* what is refused is not remembered */
    check_status(KVM_NAN, open_model(DIR, true, NULL, &err), &err);
    check_hash(DIR, WEIGHTS);
    calls_end();
}

/* A second change within the same tick of the clock would leave the state as it is. */
static void young_weights_are_not_remembered(void **state)
{
    (void)state;
    kvm_err err = {0};
    copy_config();
    write_large(WEIGHTS, 0, 1);
    const ptrdiff_t at = place_of(K_PROJ, WEIGHTS);
    calls_begin(time(NULL));
    check_ok(open_model(DIR, true, NULL, &err), &err);
    put_nan(WEIGHTS, at, true);
    check_status(KVM_NAN, open_model(DIR, true, NULL, &err), &err);
    check_hash(DIR, WEIGHTS);
    calls_end();
}

static void every_shard_must_be_known(void **state)
{
    (void)state;
    static const char *const shards[] = {DIR "/model-1.safetensors",
                                         DIR "/model-2.safetensors"};
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_st *golden;
    kvm_text index = {0};
    struct stat st;
    copy_config();
    check_ok(kvm_st_open(&golden, &a, KVM_STR(GOLDEN), &err), &err);
    for (ptrdiff_t i = 0; i < kvm_st_count(golden); i++)
        kvm_text_addf(&index, "%s\"%.*s\": \"%s\"", i ? ", " : "{\"weight_map\": {",
                      KVM_STR_ARG(kvm_st_at(golden, i)->name),
                      shards[i % 2] + sizeof DIR);
    kvm_text_add(&index, KVM_STR("}}"));
    check_write(DIR "/model.safetensors.index.json", kvm_text_str(&index));
    kvm_text_free(&index);
    for (int i = 0; i < 2; i++) write_large(shards[i], i, 2);
    for (int i = 0; i < 2; i++) {
        const ptrdiff_t at = place_of(kvm_st_at(golden, i)->name.at, shards[i]);
        calls_begin(time(NULL) - 100);
        check_ok(open_model(DIR, true, NULL, &err), &err);
        put_nan(shards[i], at, true);
        check_ok(open_model(DIR, true, NULL, &err), &err); /* both are known */
        assert_int_equal(stat(shards[i], &st), 0);
        later = st.st_ino;
        check_status(KVM_NAN, open_model(DIR, true, NULL, &err), &err);
        err = (kvm_err){0};
        put_nan(shards[i], at, false);
        calls_end();
    }
    kvm_arena_free(&a);
}

/* the file changes behind the nth look at it or at what is remembered of it */
static long looks, change_at;
static ptrdiff_t change_where;

static void look(bool counts)
{
    if (!counts || ++looks != change_at) return;
    put_nan(WEIGHTS, change_where, true);
    made++;
}
static int fstat_changing(int fd, struct stat *st)
{
    const int r = fstat_settled(fd, st);
    look(st->st_size >= LARGE);
    return r;
}
static int stat_changing(const char *path, struct stat *st)
{
    const int r = kvm_os_real.stat(path, st);
    look(strstr(path, DIR "/cache/") != NULL);
    return r;
}
static void *mmap_changing(size_t n, int prot, int flags, int fd, off_t at)
{
    void *p = kvm_os_real.mmap(n, prot, flags, fd, at);
    look(fd >= 0 && n >= LARGE);
    return p;
}

/* A file that changes while it is looked through is not remembered as what it
 * became. */
static void weights_that_change_meanwhile_are_not_believed(void **state)
{
    (void)state;
    copy_config();
    write_large(WEIGHTS, 0, 1);
    change_where = place_of(K_PROJ, WEIGHTS);
    for (change_at = 1;; change_at++) {
        kvm_err err = {0};
        calls_begin(time(NULL) - 100);
        calls.fstat = fstat_changing;
        calls.stat = stat_changing;
        calls.mmap = mmap_changing;
        looks = 0;
        const kvm_status s = open_model(DIR, true, NULL, &err);
        if (looks < change_at) break;
        assert_true(s == KVM_OK || s == KVM_NAN);
        err = (kvm_err){0};
        check_status(KVM_NAN, open_model(DIR, true, NULL, &err), &err);
        check_hash(DIR, WEIGHTS);
        put_nan(WEIGHTS, change_where, false);
    }
    calls_end();
    assert_true(change_at > 4);
}

/* a link is pointed elsewhere as soon as what it names is mapped */
static const char *link_path, *link_next;

static void point(const char *link, const char *to)
{
    (void)!unlink(link);
    assert_int_equal(symlink(to, link), 0);
}

static void *mmap_relinking(size_t n, int prot, int flags, int fd, off_t at)
{
    void *p = kvm_os_real.mmap(n, prot, flags, fd, at);
    if (link_next && fd >= 0 && n >= LARGE) {
        point(link_path, link_next);
        link_next = NULL;
    }
    return p;
}

/* link: names first, whose weights are in `file`, then second, which has a NaN; a
 * number of first's stands at `at` */
static void check_relinked(const char *link, const char *first, const char *second,
                           const char *file, ptrdiff_t at)
{
    kvm_arena a = check_arena(1 << 20);
    kvm_err err = {0};
    char hash[65], sha[65];
    check_ok(kvm_sha_file(kvm_str_of(file), sha, a, &err), &err);
    point(link, first);
    link_path = link;
    link_next = second;
    calls_begin(time(NULL) - 100);
    calls.mmap = mmap_relinking;
    check_ok(open_model(link, true, hash, &err), &err);
    assert_null(link_next);
    assert_string_equal(hash, sha);
    check_status(KVM_NAN, open_model(link, true, NULL, &err), &err);
    err = (kvm_err){0};
    put_nan(file, at, true);
    point(link, first);
    check_ok(open_model(link, true, hash, &err), &err); /* taken as it was */
    assert_string_equal(hash, sha);
    calls_end();
    kvm_arena_free(&a);
}

/* a golden file with 64 MiB of nothing in front of its last tensor; gives the place of
 * a bf16 that makes a norm's number NaN: the upper half of a float */
static ptrdiff_t write_large_gguf(const char *file)
{
    kvm_arena a = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_gguf *g;
    const kvm_str all = check_read(&a, "tests/golden/models/llama-mixed.gguf");
    check_ok(kvm_gguf_parse(&g, &a, all, KVM_STR("golden"), &err), &err);
    const kvm_gguf_tensor *last = kvm_gguf_tensor_at(g, 0);
    const kvm_gguf_tensor *norm =
        kvm_gguf_tensor_find(g, KVM_STR("output_norm.weight"));
    for (ptrdiff_t i = 1; i < kvm_gguf_tensors(g); i++)
        if (kvm_gguf_tensor_at(g, i)->offset > last->offset)
            last = kvm_gguf_tensor_at(g, i);
    assert_true(norm && norm != last && norm->dtype == KVM_F32);
    /* behind its name stand its rank, dims and type */
    char *at = (char *)(uintptr_t)last->name.at + last->name.len + 8 +
               (ptrdiff_t)8 * last->rank;
    uint64_t offset;
    memcpy(&offset, at, sizeof offset);
    offset += LARGE;
    memcpy(at, &offset, sizeof offset);
    check_write(file, kvm_str_slice(all, 0, last->offset));
    const int fd = open(file, O_WRONLY);
    const kvm_str rest = kvm_str_slice(all, last->offset, all.len);
    assert_int_equal(pwrite(fd, rest.at, (size_t)rest.len, (off_t)last->offset + LARGE),
                     rest.len);
    assert_int_equal(close(fd), 0);
    const ptrdiff_t place = norm->offset + 2;
    kvm_arena_free(&a);
    return place;
}

static void what_is_remembered_is_of_the_mapped_file(void **state)
{
    (void)state;
    copy_config();
    for (int i = 0; i < 2; i++) {
        kvm_arena a = check_arena(1 << 20);
        check_tmpdir(i ? "fingerprint/b" : "fingerprint/a");
        check_write(i ? DIR "/b/config.json" : DIR "/a/config.json",
                    check_read(&a, DIR "/config.json"));
        kvm_arena_free(&a);
    }
    write_large(DIR "/a/model.safetensors", 0, 1);
    write_large(DIR "/b/model.safetensors", 0, 1);
    ptrdiff_t at = place_of(K_PROJ, DIR "/b/model.safetensors");
    put_nan(DIR "/b/model.safetensors", at, true);
    check_relinked(DIR "/latest", "a", "b", DIR "/a/model.safetensors", at);

    at = write_large_gguf(DIR "/a.gguf");
    put_nan(DIR "/b.gguf", write_large_gguf(DIR "/b.gguf"), true);
    check_relinked(DIR "/latest.gguf", "a.gguf", "b.gguf", DIR "/a.gguf", at);
}

/* Tied, the model does not read its lm_head: that it is finite is not known of it. */
static void another_config_reads_other_weights(void **state)
{
    (void)state;
    kvm_err err = {0};
    copy_config();
    write_large(WEIGHTS, 0, 1);
    put_nan(WEIGHTS, place_of("lm_head.weight", WEIGHTS), true);
    kvm_arena a = check_arena(1 << 20);
    const kvm_str untied = check_read(&a, DIR "/config.json");
    const ptrdiff_t at =
        kvm_str_find(untied, KVM_STR("\"tie_word_embeddings\": false"));
    assert_true(at >= 0);
    const kvm_str tied = kvm_str_fmt(
        &a, "%.*s\"tie_word_embeddings\": true%s",
        KVM_STR_ARG(kvm_str_slice(untied, 0, at)),
        untied.at + at + (ptrdiff_t)strlen("\"tie_word_embeddings\": false"));
    calls_begin(time(NULL) - 100);
    check_write(DIR "/config.json", tied);
    check_ok(open_model(DIR, true, NULL, &err), &err);
    check_write(DIR "/config.json", untied);
    check_status(KVM_NAN, open_model(DIR, true, NULL, &err), &err);
    calls_end();
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_weights_are_searched_for_nan_once),
        cmocka_unit_test(young_weights_are_not_remembered),
        cmocka_unit_test(every_shard_must_be_known),
        cmocka_unit_test(weights_that_change_meanwhile_are_not_believed),
        cmocka_unit_test(what_is_remembered_is_of_the_mapped_file),
        cmocka_unit_test(another_config_reads_other_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
