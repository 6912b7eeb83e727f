/* The artefact store: content in, verified content out, garbage away. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/store.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "tests/support/fault.h"
#include "tests/support/queue.h"

static kvm_arena keep;
static const char *home;

static int set_up(void **state)
{
    (void)state;
    home = kvm_test_home("store");
    return kvm_arena_init(&keep, 64 << 20, NULL) ? -1 : 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_str file_of(const char *name, kvm_str content)
{
    const kvm_str path = kvm_str_fmt(&keep, "%s/%s", home, name);
    MUST(kvm_file_publish(path, content, keep, e));
    return path;
}

static kvm_str object_of(const char *sha)
{
    return kvm_str_fmt(&keep, "%s/objects/%.2s/%s", home, sha, sha + 2);
}

static kvm_store *fresh(void)
{
    kvm_store *s;
    MUST(kvm_store_open(&s, &keep, kvm_str_of(home), NULL, e));
    return s;
}

static bool has(kvm_store *s, const char *sha, int64_t bytes)
{
    bool there = false;
    MUST(kvm_store_look(s, sha, bytes, &there, e));
    return there;
}

static void content_moves_in_and_comes_out(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    char sha[65], want[65];
    int64_t bytes;
    kvm_str path, content;
    const kvm_str file = file_of("a.bin", KVM_STR("hello"));
    MUST(kvm_store_hash(s, file, sha, &bytes, e));
    assert_int_equal(bytes, 5);
    MUST(kvm_sha_of(KVM_STR("hello"), want, e));
    assert_string_equal(sha, want);
    assert_true(kvm_path_exists(file)); /* hashing moves nothing */
    MUST(kvm_store_put(s, file, sha, bytes, e));
    assert_false(kvm_path_exists(file));
    assert_true(has(s, sha, 5));
    assert_false(has(s, sha, 6));
    MUST(kvm_store_get(s, &path, &keep, sha, 5, e));
    assert_string_equal(path.at, object_of(sha).at);
    MUST(kvm_file_read(&content, &keep, path, 100, e));
    assert_string_equal(content.at, "hello");
}

static void equal_content_is_stored_once(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    char a[65], b[65];
    int64_t bytes;
    const kvm_str file = file_of("again.bin", KVM_STR("same"));
    MUST(kvm_store_add(s, KVM_STR("same"), a, e));
    struct stat before, after;
    assert_int_equal(stat(object_of(a).at, &before), 0);
    MUST(kvm_store_hash(s, file, b, &bytes, e));
    assert_string_equal(a, b);
    MUST(kvm_store_put(s, file, b, bytes, e));
    assert_false(kvm_path_exists(file));
    assert_int_equal(stat(object_of(a).at, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    MUST(kvm_store_add(s, KVM_STR(""), a, e)); /* nothing is content too */
    assert_true(has(s, a, 0));
}

static void damage_is_noticed_and_repaired(void **state)
{
    (void)state;
    char sha[65];
    kvm_str path;
    kvm_err err = {0};
    MUST(kvm_store_add(fresh(), KVM_STR("truth"), sha, e));
    FILE *f = fopen(object_of(sha).at, "w");
    assert_true(f && fputs("truhh", f) >= 0 && fclose(f) == 0);
    kvm_store *s = fresh(); /* another process: has verified nothing yet */
    assert_true(has(s, sha, 5));
    assert_int_equal(kvm_store_get(s, &path, &keep, sha, 5, &err), KVM_DAMAGED);
    assert_non_null(strstr(err.msg, "damaged"));
    MUST(kvm_store_add(s, KVM_STR("truth"), sha, e));
    MUST(kvm_store_get(s, &path, &keep, sha, 5, e));

    assert_int_equal(truncate(object_of(sha).at, 2), 0);
    err = (kvm_err){0};
    assert_int_equal(kvm_store_get(s, &path, &keep, sha, 5, &err), KVM_DAMAGED);
    assert_int_equal(unlink(object_of(sha).at), 0);
    assert_int_equal(kvm_store_get(s, &path, &keep, sha, 5, NULL), KVM_DAMAGED);
}

/* The hash is computed once per process: a second look is a stat. */
static void content_is_hashed_on_first_use(void **state)
{
    (void)state;
    char sha[65];
    kvm_str path;
    kvm_store *s = fresh();
    MUST(kvm_store_add(s, KVM_STR("once"), sha, e));
    FILE *f = fopen(object_of(sha).at, "w");
    assert_true(f && fputs("twic", f) >= 0 && fclose(f) == 0);
    MUST(kvm_store_get(s, &path, &keep, sha, 4, e)); /* size alone */
    assert_int_equal(kvm_store_get(fresh(), &path, &keep, sha, 4, NULL), KVM_DAMAGED);
    kvm_store *trusting = fresh();
    kvm_store_trust(trusting, sha);
    MUST(kvm_store_get(trusting, &path, &keep, sha, 4, e));
}

static void only_plain_files_and_real_hashes(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    char sha[65],
        evil[] = "../../../../../../../../../../../../../../../../../etc/passwd......";
    int64_t bytes;
    kvm_str path;
    const kvm_str target = file_of("t", KVM_STR("x"));
    const kvm_str link = kvm_str_fmt(&keep, "%s/link", home);
    assert_int_equal(symlink(target.at, link.at), 0);
    assert_int_not_equal(kvm_store_hash(s, link, sha, &bytes, NULL), KVM_OK);
    assert_int_equal(kvm_store_hash(s, kvm_str_of(home), sha, &bytes, NULL),
                     KVM_FORMAT);
    assert_int_equal(kvm_store_hash(s, KVM_STR("build/tmp/no"), sha, &bytes, NULL),
                     KVM_NOTFOUND);
    assert_int_equal(kvm_store_get(s, &path, &keep, evil, -1, NULL), KVM_FORMAT);
    assert_int_equal(kvm_store_get(s, &path, &keep, "", -1, NULL), KVM_FORMAT);
    bool there;
    assert_int_equal(kvm_store_look(s, evil, -1, &there, NULL), KVM_FORMAT);
}

/* ---- sweeping ---- */

static kvm_catalogue *catalogue(void)
{
    kvm_catalogue *c;
    MUST(kvm_catalogue_open(&c, &keep, kvm_str_fmt(&keep, "%s/catalogue.db", home),
                            NULL, e));
    return c;
}

typedef struct swept {
    int files[KVM_SWEPT_COUNT];
    int64_t bytes;
} swept;

static void count_swept(void *ctx, kvm_swept what, const char *path, int64_t bytes)
{
    swept *w = ctx;
    assert_non_null(strstr(path, "/objects/"));
    w->files[what]++;
    w->bytes += bytes;
}

static swept sweep(kvm_store *s, kvm_catalogue *c, double age_s, bool dry)
{
    swept w = {0};
    const kvm_sweep o = {age_s, dry, count_swept, &w};
    MUST(kvm_store_sweep(s, c, &o, e));
    return w;
}

static void the_sweep_takes_what_nobody_names(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    kvm_catalogue *c = catalogue();
    char named[65], loose[65];
    MUST(kvm_store_add(s, KVM_STR("named"), named, e));
    MUST(kvm_store_add(s, KVM_STR("loose!"), loose, e));
    kvm_test_commit(c, &keep, named, 5);
    const kvm_str temp = kvm_str_fmt(&keep, "%s.1-2.tmp", object_of(loose).at);
    MUST(kvm_file_publish(temp, KVM_STR("torn"), keep, e));

    kvm_sleep(1.1);
    assert_int_equal(sweep(s, c, 3600, false).bytes, 0); /* all are young */
    for (int dry = 1; dry >= 0; dry--) {
        assert_true(has(s, loose, 6)); /* only counted */
        const swept w = sweep(s, c, 0, dry);
        assert_int_equal(w.files[KVM_SWEPT_OBJECT], 1);
        assert_int_equal(w.files[KVM_SWEPT_TEMPORARY], 1);
        assert_int_equal(w.bytes, 6 + 4);
    }
    assert_false(has(s, loose, 6));
    assert_false(kvm_path_exists(temp));
    assert_true(has(s, named, 5));
}

/* what a live attempt has published is not yet named */
static void the_sweep_leaves_what_is_younger_than_a_live_attempt(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    kvm_catalogue *c = catalogue();
    char old[65], new[65];
    MUST(kvm_store_add(s, KVM_STR("older"), old, e));
    kvm_sleep(2.2);
    const kvm_fence fence = kvm_test_hold(c, &keep, "live");
    MUST(kvm_store_add(s, KVM_STR("published"), new, e));
    kvm_sleep(1.2);
    assert_int_equal(sweep(s, c, 0, false).bytes, 5);
    assert_true(has(s, new, 9) && !has(s, old, 5));
    const kvm_result none = {0};
    MUST(kvm_job_succeed(c, fence, &none, e));
    assert_int_equal(sweep(s, c, 0, false).bytes, 9); /* it was not named after all */
}

/* content that an old object holds already is published anew all the same */
static void what_is_published_again_is_young(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    kvm_catalogue *c = catalogue();
    char put[65], add[65], old[65];
    MUST(kvm_store_add(s, KVM_STR("put"), put, e));
    MUST(kvm_store_add(s, KVM_STR("added"), add, e));
    MUST(kvm_store_add(s, KVM_STR("old"), old, e));
    kvm_sleep(2.2);
    kvm_test_hold(c, &keep, "live");
    MUST(kvm_store_put(s, file_of("again.bin", KVM_STR("put")), put, 3, e));
    MUST(kvm_store_add(s, KVM_STR("added"), add, e));
    assert_int_equal(sweep(s, c, 0, false).bytes, 3);
    assert_true(has(s, put, 3) && has(s, add, 5));
    assert_false(has(s, old, 3));
}

static double changed_at(const char *sha)
{
    struct stat st;
    assert_int_equal(stat(object_of(sha).at, &st), 0);
    return kvm_seconds(st.st_ctim);
}

/* ... also where its times may not be set: it comes in as if it were new */
static void what_cannot_be_renewed_is_published(void **state)
{
    (void)state;
    kvm_store *s = fresh();
    char sha[65];
    kvm_str path, content;
    MUST(kvm_store_add(s, KVM_STR("known"), sha, e));
    const kvm_str file = file_of("again.bin", KVM_STR("known"));
    for (int add = 0; add <= 1; add++) {
        const double before = changed_at(sha);
        kvm_sleep(0.05); /* several ticks of the file system's clock */
        fault_begin(
            (fault_plan){.only = "touch", .nth = 1, .error = EPERM, .forever = true});
        if (add)
            MUST(kvm_store_add(s, KVM_STR("known"), sha, e));
        else
            MUST(kvm_store_put(s, file, sha, 5, e));
        assert_true(fault_end());
        assert_true(changed_at(sha) >= before + 0.04);
        MUST(kvm_store_get(fresh(), &path, &keep, sha, 5, e));
        MUST(kvm_file_read(&content, &keep, path, 100, e));
        assert_string_equal(content.at, "known");
    }
    assert_false(kvm_path_exists(file));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(content_moves_in_and_comes_out),
        T(equal_content_is_stored_once),
        T(damage_is_noticed_and_repaired),
        T(content_is_hashed_on_first_use),
        T(only_plain_files_and_real_hashes),
        T(the_sweep_takes_what_nobody_names),
        T(the_sweep_leaves_what_is_younger_than_a_live_attempt),
        T(what_is_published_again_is_young),
        T(what_cannot_be_renewed_is_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
