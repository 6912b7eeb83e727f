#include "tests/support/host.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "jobs/spec.h"
#include "tests/support/check.h"
#include "tests/support/crew.h"

static bool listed(const char *const *names, const char *name)
{
    for (; names && *names; names++) {
        const size_t n = strcspn(*names, "?*");
        const bool many = (*names)[n] == '*';
        if (!strncmp(*names, name, n) && (many || !name[n])) return true;
    }
    return false;
}

/* the job's context: which node of which host */
typedef struct running {
    host *h;
    ptrdiff_t node;
} running;

static kvm_status keep_output(kvm_job *j, const char *name, kvm_str path, kvm_err *err)
{
    (void)err;
    const running *r = j->host_ctx;
    const kvm_job_kind *kind = kvm_job_kind_of(r->h->graph.nodes[r->node].kind);
    if (!listed(kind->outputs, name)) fail_msg("output %s is not in the table", name);
    json_object_set_new(r->h->outputs[r->node], name,
                        json_stringn(path.at, (size_t)path.len));
    return KVM_OK;
}

static kvm_status keep_metric(kvm_job *j, const char *name, double value,
                              const json_t *labels, kvm_err *err)
{
    (void)j, (void)name, (void)value, (void)labels, (void)err;
    return KVM_OK;
}

static kvm_status keep_sample(kvm_job *j, const char *suite, const char *arm,
                              const char *metric, kvm_str item, double value,
                              kvm_err *err)
{
    (void)err;
    const running *r = j->host_ctx;
    json_array_append_new(r->h->samples,
                          json_pack("[s, s, s, s%, f]", suite, arm, metric, item.at,
                                    (size_t)item.len, value));
    return KVM_OK;
}

static kvm_status keep_timing(kvm_job *j, const char *arm, ptrdiff_t tokens,
                              const char *stage, const double *seconds, ptrdiff_t n,
                              kvm_err *err)
{
    (void)j, (void)arm, (void)tokens, (void)stage, (void)seconds, (void)n, (void)err;
    return KVM_OK;
}

static kvm_status keep_event(kvm_job *j, const char *what, kvm_str text, kvm_err *err)
{
    (void)j, (void)what, (void)text, (void)err;
    return KVM_OK;
}

static const kvm_job_host vtable = {keep_output, keep_metric, keep_sample, keep_timing,
                                    keep_event};

void host_open(host *h, const char *name, const char *spec)
{
    kvm_err err = {0};
    kvm_spec s;
    kvm_compute *c;
    kvm_graph graphs[2];
    ptrdiff_t n;
    *h = (host){.keep = check_arena((size_t)1 << 36)};
    check_tmpdir(name);
    h->dir = kvm_str_fmt(&h->keep, "build/tmp/%s", name);
    /* paths of a spec are relative to its file: this one's to the root */
    const kvm_str path = kvm_str_fmt(&h->keep, "%s.%s.yaml", h->dir.at, name);
    check_write(path.at, kvm_str_of(spec));
    check_ok(kvm_spec_read(&s, &h->keep, path, &err), &err);
    check_ok(kvm_compute_new(&c, &h->keep, kvm_backend_find(KVM_STR("cpu")), 1, &err),
             &err);
    check_ok(kvm_spec_graphs(&s, &h->keep, c, graphs, &n, &err), &err);
    h->graph = graphs[0];
    h->outputs = kvm_new(&h->keep, json_t *, h->graph.count);
    h->samples = kvm_json_own(&h->keep, json_array());
    assert_true(h->outputs && h->samples);
}

void host_close(host *h)
{
    kvm_arena_free(&h->keep);
}

int host_teardown(void **state)
{
    host_close(*state);
    return 0;
}

ptrdiff_t host_node(const host *h, const char *label)
{
    for (ptrdiff_t i = 0; i < h->graph.count; i++)
        if (kvm_str_eq(h->graph.nodes[i].label, kvm_str_of(label))) return i;
    fail_msg("the graph has no node \"%s\"", label);
    return -1;
}

/* as the catalogue does: an output that was not put out is no input. How many there
 * are */
static ptrdiff_t fill_inputs(host *h, const kvm_node *n, kvm_job_input *in)
{
    const kvm_job_kind *kind = kvm_job_kind_of(n->kind);
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n->input_count; i++) {
        kvm_err err = {0};
        const kvm_node_input *from = &n->inputs[i];
        char *sha = kvm_new(&h->keep, char, 65);
        assert_non_null(sha);
        assert_true(listed(kind->inputs, from->name));
        if (h->outputs[from->node] &&
            !json_object_get(h->outputs[from->node], from->output))
            continue;
        in[count] = (kvm_job_input){.name = from->name,
                                    .path = host_output(h, from->node, from->output),
                                    .sha = sha};
        check_ok(kvm_sha_file(in[count].path, sha, h->keep, &err), &err);
        count++;
    }
    return count;
}

kvm_status host_run(host *h, ptrdiff_t node, kvm_err *err)
{
    const kvm_node *n = &h->graph.nodes[node];
    const kvm_job_kind *kind = kvm_job_kind_of(n->kind);
    kvm_job_input *in = kvm_new(&h->keep, kvm_job_input, n->input_count + 1);
    assert_non_null(in);
    const ptrdiff_t inputs = fill_inputs(h, n, in);
    kvm_arena keep = check_arena((size_t)1 << 36); /* its resources end with the job */
    running r = {h, node};
    kvm_team *team = h->team ? h->team : &kvm_team_alone;
    kvm_job j = {.host = kvm_team_leads(team) ? &vtable : &kvm_host_silent,
                 .team = team,
                 .host_ctx = &r,
                 .params = {.v = n->params, .file = "test", .path = ""},
                 .inputs = in,
                 .input_count = inputs,
                 .dir = kvm_str_fmt(&h->keep, "%s/%d", h->dir.at, h->runs++),
                 .keep = &keep,
                 .progress = h->progress,
                 .backend = "cpu",
                 .threads = 1,
                 .memory = h->memory};
    h->outputs[node] = kvm_json_own(&h->keep, json_object());
    kvm_status s = kvm_dir_make(j.dir, err);
    if (!s) s = kvm_schema_check(j.params, kind->params, keep, err);
    if (!s) s = kind->run(&j, err);
    kvm_arena_free(&keep);
    return s;
}

static kvm_status run_rank(kvm_team *t, void *ctx, kvm_err *err)
{
    const running *r = ctx;
    r->h->team = t;
    const kvm_status s = host_run(r->h, r->node, err);
    r->h->team = NULL;
    return s;
}

kvm_status host_run_crew(host *h, ptrdiff_t node, int ranks, kvm_err *err)
{
    crew_end ends[CREW_MOST];
    running r = {h, node};
    crew_run(ranks, run_rank, &r, ends);
    for (int i = 1; i < ranks; i++) {
        assert_int_equal(ends[i].status, ends[0].status);
        assert_string_equal(ends[i].err.msg, ends[0].err.msg);
    }
    *err = ends[0].err;
    return ends[0].status;
}

void host_leave(host *h, const char *name, kvm_str text)
{
    kvm_err err = {0};
    const kvm_str dir = kvm_str_fmt(&h->keep, "%s/%d", h->dir.at, h->runs);
    check_ok(kvm_dir_make(dir, &err), &err);
    check_write(kvm_path_join(&h->keep, dir, kvm_str_of(name)).at, text);
}

void host_run_to(host *h, ptrdiff_t node)
{
    for (ptrdiff_t i = 0; i <= node; i++) {
        kvm_err err = {0};
        if (!h->outputs[i]) check_ok(host_run(h, i, &err), &err);
    }
}

kvm_str host_output(host *h, ptrdiff_t node, const char *name)
{
    const char *path = json_string_value(json_object_get(h->outputs[node], name));
    if (!path)
        fail_msg("%.*s has put out no %s", KVM_STR_ARG(h->graph.nodes[node].label),
                 name);
    return kvm_str_of(path);
}

kvm_jat host_json(host *h, ptrdiff_t node, const char *name)
{
    kvm_err err = {0};
    kvm_jat root;
    check_ok(kvm_json_read(&root, &h->keep, host_output(h, node, name), &err), &err);
    return root;
}
