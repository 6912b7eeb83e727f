/* What a submitted job may name: files below the folders that its worker reads, however
 * a path, a link or another file leads out of them. */
#define _XOPEN_SOURCE 700 /* nftw, symlink */
#include "workers/bounds.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/roots.h"
#include "models/model.h"
#include "tests/support/fake_kinds.h"

static fake_base b;
static char files[256]; /* beside the store */

static const char *here(const char *name)
{
    const kvm_str path = kvm_str_fmt(&b.keep, "%s/%s", files, name);
    assert_non_null(path.at);
    return path.at;
}

static void put(const char *name, const char *text)
{
    MUST(kvm_file_publish(kvm_str_of(here(name)), kvm_str_of(text), b.keep, e));
}

static void folder(const char *name)
{
    MUST(kvm_dir_make(kvm_str_of(here(name)), e));
}

static void lead(const char *name, const char *to)
{
    char real[PATH_MAX];
    assert_non_null(realpath(here(to), real));
    assert_int_equal(symlink(real, here(name)), 0);
}

/* texts is allowed, secret is not */
static int set_up(void **state)
{
    (void)state;
    snprintf(files, sizeof files, "%s", kvm_test_home("bounds_files"));
    fake_open(&b, "bounds");
    folder("texts/inner");
    folder("secret");
    folder("texts-of-others");
    put("texts/text.txt", "allowed");
    put("secret/text.txt", "hidden");
    put("texts-of-others/text.txt", "hidden");
    lead("texts/out.txt", "secret/text.txt");
    lead("texts/out", "secret");
    lead("texts/inner/in.txt", "texts/text.txt");
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_roots_clear();
    fake_close(&b);
    return 0;
}

static void bound(void)
{
    MUST(kvm_bounds_set(kvm_str_of(here("texts")), kvm_str_of(fake_home), e));
}

static kvm_status read_file(const char *path, kvm_err *err)
{
    kvm_str text;
    return kvm_file_read(&text, &b.keep, kvm_str_of(path), 1 << 20, err);
}

static kvm_status admit(const char *name)
{
    kvm_err err = {0};
    return kvm_roots_admit(kvm_str_of(here(name)), &err);
}

static void without_bounds_all_may_be_read(void **state)
{
    (void)state;
    kvm_err err = {0};
    assert_int_equal(read_file(here("secret/text.txt"), &err), KVM_OK);
    assert_int_equal(admit("secret/text.txt"), KVM_OK);
    MUST(kvm_bounds_set((kvm_str){0}, kvm_str_of(fake_home), e));
    assert_int_equal(read_file(here("secret/text.txt"), &err), KVM_OK);
}

static void every_way_out_is_closed(void **state)
{
    (void)state;
    const char *const out[] = {"secret/text.txt",
                               "texts/../secret/text.txt",
                               "texts/out.txt",
                               "texts/out/text.txt",
                               "texts-of-others/text.txt",
                               "texts/inner/../out/text.txt"};
    const char *const in[] = {"texts/text.txt", "texts/inner/../text.txt",
                              "texts/inner/in.txt", "secret/../texts/text.txt"};
    bound();
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
        kvm_err err = {0};
        assert_int_equal(admit(out[i]), KVM_DENIED);
        assert_int_equal(read_file(here(out[i]), &err), KVM_DENIED);
        check_contains(err.msg, out[i]);
        check_contains(err.msg, "--allow or KVMILL_ALLOW");
        check_contains(err.msg, "bounds"); /* where the roots are */
    }
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        kvm_err err = {0};
        assert_int_equal(admit(in[i]), KVM_OK);
        check_ok(read_file(here(in[i]), &err), &err);
    }
    kvm_err err = {0};
    assert_int_equal(read_file("/etc/passwd", &err), KVM_DENIED);
    assert_int_equal(kvm_roots_admit(KVM_STR("/etc"), &err), KVM_DENIED);
    assert_int_equal(kvm_roots_admit(KVM_STR("/"), &err), KVM_DENIED);
}

/* an answer does not tell what there is */
static void what_is_not_there_is_judged_by_its_place(void **state)
{
    (void)state;
    bound();
    assert_int_equal(admit("texts/none/none.txt"), KVM_OK);
    assert_int_equal(admit("secret/none.txt"), KVM_DENIED);
    assert_int_equal(admit("texts/out/none.txt"), KVM_DENIED);
    assert_int_equal(admit("texts/none/../../secret/text.txt"), KVM_DENIED);
    kvm_err err = {0};
    assert_int_equal(kvm_roots_admit(KVM_STR("/none/none.txt"), &err), KVM_DENIED);
    assert_int_equal(kvm_roots_admit(KVM_STR("none.txt"), &err), KVM_DENIED);
}

/* ---- what files of a checkpoint name ---- */

static void copy(const char *name, const char *to)
{
    kvm_str bytes;
    const kvm_str from = kvm_str_fmt(&b.keep, "tests/zoo/small/%s", name);
    MUST(kvm_file_read(&bytes, &b.keep, from, 64 << 20, e));
    MUST(kvm_file_publish(kvm_str_of(here(to)), bytes, b.keep, e));
}

static kvm_status open_model(kvm_err *err)
{
    kvm_model *m;
    kvm_compute *c;
    const kvm_backend *cpu = kvm_backend_find(KVM_STR("cpu"));
    TRY(kvm_compute_new(&c, &b.keep, cpu, 1, err));
    return kvm_model_open(&m, &b.keep, c, kvm_str_of(here("texts/model")), NULL, err);
}

static void a_checkpoint_leads_nowhere_else(void **state)
{
    (void)state;
    static const char *const parts[] = {"config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    folder("texts/model");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        copy(parts[i], kvm_str_fmt(&b.keep, "texts/model/%s", parts[i]).at);
        copy(parts[i], kvm_str_fmt(&b.keep, "secret/%s", parts[i]).at);
    }
    bound();
    kvm_err err = {0};
    check_ok(open_model(&err), &err);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *name = kvm_str_fmt(&b.keep, "texts/model/%s", parts[i]).at;
        const char *kept = kvm_str_fmt(&b.keep, "texts/kept-%s", parts[i]).at;
        assert_int_equal(rename(here(name), here(kept)), 0);
        lead(name, kvm_str_fmt(&b.keep, "secret/%s", parts[i]).at);
        err = (kvm_err){0};
        assert_int_equal(open_model(&err), KVM_DENIED);
        check_contains(err.msg, parts[i]);
        assert_int_equal(unlink(here(name)), 0);
        lead(name, kept); /* which leads to what is allowed */
        err = (kvm_err){0};
        check_ok(open_model(&err), &err);
    }
}

static void shards_lie_in_their_folder(void **state)
{
    (void)state;
    folder("texts/model");
    copy("config.json", "texts/model/config.json");
    copy("tokenizer.json", "texts/model/tokenizer.json");
    copy("model.safetensors", "secret/model.safetensors");
    bound();
    put("texts/model/model.safetensors.index.json",
        "{\"weight_map\": {\"x\": \"../../secret/model.safetensors\"}}");
    kvm_err err = {0};
    assert_int_equal(open_model(&err), KVM_FORMAT);
    check_contains(err.msg, "names no file of this folder");
    put("texts/model/model.safetensors.index.json",
        "{\"weight_map\": {\"x\": \"shard.safetensors\"}}");
    lead("texts/model/shard.safetensors", "secret/model.safetensors");
    err = (kvm_err){0};
    assert_int_equal(open_model(&err), KVM_DENIED);
}

/* ---- jobs ---- */

static kvm_status read_text(kvm_job *j, kvm_err *err)
{
    kvm_str path, text;
    TRY(kvm_json_str(kvm_json_get(j->params, j->keep, "text_path"), &path, err));
    TRY(kvm_file_read(&text, j->keep, path, 1 << 20, err));
    return fake_run(j, err);
}
static const kvm_job_kind reads = {.id = KVM_JOB_CAPTURE, .run = read_text};
static const kvm_job_kind *kind_of(kvm_kind_id id)
{
    return id == KVM_JOB_CAPTURE ? &reads : NULL;
}

#define NUMBER(sql) kvm_test_number(b.db, sql)

/* a worker and one job that names this file; whether it has succeeded, else it was
 * refused for good at its first attempt */
static bool works(const char *name, bool bounded, int ranks)
{
    static int n;
    kvm_worker_stats stats;
    kvm_worker_options o = fake_options(30);
    const kvm_graph g = kvm_test_graph(&b.keep, 1, false, KVM_JOB_CAPTURE, ++n);
    const kvm_submit_options so = {.machine = KVM_STR("test machine"), .ranks = ranks};
    kvm_submitted s;
    json_object_set_new(g.nodes[0].params, "text_path", json_string(here(name)));
    MUST(kvm_submit(b.c, b.store, &g, &so, &s, b.keep, e));
    o.kind_of = kind_of;
    o.want.ranks = ranks;
    o.want.classes[0] = KVM_STR("cpu");
    o.want.class_count = 1;
    if (bounded) o.allow = kvm_str_of(here("texts"));
    MUST(kvm_worker_run(&o, &stats, e));
    assert_int_equal(stats.succeeded + stats.failed, 1);
    assert_int_equal(stats.retried, 0);
    if (stats.failed)
        assert_int_equal(NUMBER("SELECT status FROM job ORDER BY id DESC LIMIT 1"),
                         KVM_DENIED);
    return stats.succeeded == 1;
}

static void a_job_reads_what_its_worker_allows(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        assert_true(works("secret/text.txt", false, ranks)); /* one's own */
        assert_true(works("texts/text.txt", true, ranks));
        assert_false(works("secret/text.txt", true, ranks));
        assert_false(works("texts/../secret/text.txt", true, ranks));
        assert_false(works("texts/out.txt", true, ranks));
    }
    kvm_err err = {0}; /* the worker itself is not bounded: it opens what it is told */
    check_ok(read_file(here("secret/text.txt"), &err), &err);
}

/* with the parameter, the path, the folders and the remedy */
static void it_says_what_is_refused_and_why(void **state)
{
    (void)state;
    json_t *rows;
    assert_false(works("secret/text.txt", true, 1));
    MUST(kvm_catalogue_view(b.c, &rows, &b.keep, "v_queue", NULL, 0, 0, e));
    const char *why = json_string_value(
        json_object_get(json_array_get(rows, json_array_size(rows) - 1), "message"));
    assert_non_null(why);
    check_contains(why, "text_path: ");
    check_contains(why, "secret/text.txt: lies outside");
    check_contains(why, "--allow or KVMILL_ALLOW");
    check_contains(why, "/texts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(without_bounds_all_may_be_read),
        T(every_way_out_is_closed),
        T(what_is_not_there_is_judged_by_its_place),
        T(a_checkpoint_leads_nowhere_else),
        T(shards_lie_in_their_folder),
        T(a_job_reads_what_its_worker_allows),
        T(it_says_what_is_refused_and_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
