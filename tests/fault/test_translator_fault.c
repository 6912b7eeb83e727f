/* A translator on a full disk: whatever call fails while one is written, in its own
 * format or in a public layout, the writer says so, nothing is left open, and what is
 * published is either the old translator whole or the new one; a folder may also be
 * refused, but is never read as a mixture. */
#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/fault.h"
#include "translators/translator.h"

#define DIR_NAME "build/tmp/translator_fault"

static const ptrdiff_t LAYERS = 2, HEADS = 2, DIM = 4, WIDTH = 8;

static kvm_side_info side(kvm_arena *keep, const char *name)
{
    kvm_row_shape *s = kvm_new(keep, kvm_row_shape, LAYERS);
    for (int l = 0; l < LAYERS; l++) s[l] = (kvm_row_shape){HEADS, DIM, 0};
    return (kvm_side_info){.fingerprint = KVM_STR("0123456789abcdef0123456789abcdef"
                                                  "0123456789abcdef0123456789abcdef"),
                           .name = kvm_str_of(name),
                           .tokenizer = KVM_STR("tok"),
                           .shapes = kvm_shapes_kv(LAYERS, s, s),
                           .rope = {.width = DIM, .factor = 1},
                           .theta = 10000,
                           .rope_sha = KVM_STR("abc")};
}

/* every weight is `value`, so that two translators can be told apart */
static kvm_translator translator(kvm_arena *keep, float value)
{
    static const int32_t source[] = {1};
    kvm_step *s = kvm_new(keep, kvm_step, 2 * LAYERS);
    float *w = kvm_new(keep, float, WIDTH *WIDTH), *b = kvm_new(keep, float, WIDTH);
    for (int i = 0; i < WIDTH * WIDTH; i++) w[i] = value;
    for (int i = 0; i < 2 * LAYERS; i++)
        s[i] =
            (kvm_step){.mapping = kvm_mapping_same(i % 2 ? KVM_SPACE_V : KVM_SPACE_K),
                       .layer = i / 2,
                       .map = KVM_MAP_RIDGE,
                       .sources = 1,
                       .source = source,
                       .inputs = WIDTH,
                       .outputs = WIDTH,
                       .groups = 1,
                       .weight = {kvm_view3(w, KVM_F32, 1, WIDTH, WIDTH)},
                       .bias = {b}};
    return (kvm_translator){.source = side(keep, "small"),
                            .target = side(keep, "large"),
                            .keys = KVM_KEYS_CONTENT,
                            .steps = s,
                            .count = 2 * LAYERS,
                            .pair = KVM_STR("{}"),
                            .moments = KVM_STR("m")};
}

static kvm_status write_file(const kvm_translator *t, kvm_str path, kvm_arena scratch,
                             kvm_err *err)
{
    char sha[65];
    return kvm_translator_write(t, KVM_F32, path, scratch, sha, err);
}

static kvm_status write_a(const kvm_translator *t, kvm_str path, kvm_arena scratch,
                          kvm_err *err)
{
    return kvm_layout_a_write(t, KVM_F32, path, scratch, err);
}

static kvm_status write_b(const kvm_translator *t, kvm_str path, kvm_arena scratch,
                          kvm_err *err)
{
    return kvm_layout_b_write(t, KVM_F32, path, scratch, err);
}

static const struct {
    const char *path;
    kvm_status (*write)(const kvm_translator *t, kvm_str path, kvm_arena scratch,
                        kvm_err *err);
    bool folder;
} forms[] = {
    {DIR_NAME "/t.safetensors", write_file, false},
    {DIR_NAME "/a", write_a, true},
    {DIR_NAME "/b", write_b, true},
};

/* files whose names tell that they were never published */
static int temporaries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, ".tmp") != NULL;
    if (d) closedir(d);
    return n;
}

/* the weight of the translator that stands there, which is whole; 0: it is refused,
 * since the file that describes it is not there */
static float value_of(const char *path, bool folder)
{
    kvm_arena keep = check_arena(1 << 24);
    kvm_err err = {0};
    kvm_translator t;
    float first = 0;
    const kvm_status s = kvm_translator_open(&t, &keep, kvm_str_of(path), &err);
    if (s && folder) {
        check_contains(err.msg, "mapper.json");
        kvm_arena_free(&keep);
        return 0;
    }
    check_ok(s, &err);
    assert_int_equal(t.count, 2 * LAYERS);
    for (int i = 0; i < t.count; i++) {
        const float *w = t.steps[i].weight[0].data;
        first = w[0];
        for (int k = 0; k < WIDTH * WIDTH; k++) assert_true(w[k] == first);
    }
    kvm_arena_free(&keep);
    return first;
}

static void nothing_is_half_published(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO};
    kvm_arena keep = check_arena(1 << 24), scratch = check_arena(1 << 26);
    const kvm_translator before = translator(&keep, 1), after = translator(&keep, 2);
    check_tmpdir("translator_fault");
    for (size_t f = 0; f < COUNT(forms); f++)
        for (size_t e = 0; e < COUNT(errors); e++)
            for (long n = 1;; n++) {
                kvm_err err = {0};
                const kvm_str path = kvm_str_of(forms[f].path);
                check_ok(forms[f].write(&before, path, scratch, &err), &err);
                fault_begin(
                    (fault_plan){.nth = n, .error = errors[e], .forever = true});
                const kvm_status s = forms[f].write(&after, path, scratch, &err);
                const long open = fault_open_files(), mapped = fault_mappings();
                const char *call = fault_call();
                const bool fired = fault_end();
                assert_int_equal(open, 0);
                assert_int_equal(mapped, 0);
                if (!fired) {
                    check_ok(s, &err);
                    break;
                }
                const float got = value_of(forms[f].path, forms[f].folder);
                /* a directory that was synced and does not close loses nothing */
                if (!s)
                    assert_string_equal(call, "close");
                else
                    assert_int_equal(err.code, s);
                assert_true(got == 2 || (s && (got == 1 || forms[f].folder)));
            }
    assert_true(value_of(forms[0].path, false) == 2);
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
}

/* One call that fails, and a disk that works again: no temporary is left behind. */
static void no_temporary_is_left(void **state)
{
    (void)state;
    kvm_arena keep = check_arena(1 << 24), scratch = check_arena(1 << 26);
    const kvm_translator t = translator(&keep, 3);
    check_tmpdir("translator_fault");
    for (size_t f = 0; f < COUNT(forms); f++)
        for (long n = 1;; n++) {
            kvm_err err = {0};
            fault_begin((fault_plan){.nth = n, .error = ENOSPC});
            const kvm_status s =
                forms[f].write(&t, kvm_str_of(forms[f].path), scratch, &err);
            const char *call = fault_call();
            if (!fault_end()) break;
            /* unlink itself is the one that cannot clean up; what is there is never
             * read */
            if (s && strcmp(call, "unlink") != 0)
                assert_int_equal(
                    temporaries(forms[f].folder ? forms[f].path : DIR_NAME), 0);
        }
    kvm_arena_free(&keep);
    kvm_arena_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_half_published),
        cmocka_unit_test(no_temporary_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
