/* team.c - what ranks do together, over one function that moves bytes.
 *
 * Each call opens with a round of headers. So ranks that have lost each other (a bug)
 * notice, and a rank that fails is heard wherever the others are: it comes with FAILED,
 * and its error follows in a second round. */
#include "jobs/team.h"

#include <stdio.h>
#include <string.h>

kvm_team kvm_team_alone = {.rank = 0, .size = 1};

typedef enum call { AGREE = 1, WAIT, UNITE, SUM, ADD, PASS, SAME, FAILED } call;

typedef struct header {
    int64_t call, n;
} header;

/* An error as it travels: a kvm_err points into its own process. */
typedef struct told {
    int64_t code, line;
    char file[64], msg[KVM_ERR_BYTES];
} told;

static kvm_status hear(kvm_team *t, const kvm_err *mine, kvm_err *err)
{
    told out = {0};
    const void *all;
    if (mine) {
        out.code = mine->code;
        out.line = mine->line;
        snprintf(out.file, sizeof out.file, "%s", mine->file ? mine->file : "");
        memcpy(out.msg, mine->msg, sizeof out.msg);
    }
    TRY(t->gather(t, &out, sizeof out, &all, err));
    const told *from = all;
    for (int r = 0; r < t->size; r++) {
        if (from[r].code == KVM_OK) continue;
        if (mine && r == t->rank) { /* where it happened is known here alone */
            t->why = *mine;
            break;
        }
        t->why = (kvm_err){.code = (kvm_status)from[r].code, .line = (int)from[r].line};
        memcpy(t->why.msg, from[r].msg, sizeof t->why.msg);
        t->why.msg[sizeof t->why.msg - 1] = '\0';
        break;
    }
    t->failing = true;
    if (err && !err->code) *err = t->why;
    return t->why.code;
}

/* the round that every call begins with */
static kvm_status meet(kvm_team *t, call c, ptrdiff_t n, const kvm_err *mine,
                       kvm_err *err)
{
    const header h = {c, n};
    const void *all;
    if (t->failing) { /* answered for only by kvm_team_agree */
        if (err && !err->code) *err = t->why;
        return t->why.code;
    }
    TRY(t->gather(t, &h, sizeof h, &all, err));
    const header *of = all;
    for (int r = 0; r < t->size; r++)
        if (of[r].call == FAILED) return hear(t, mine, err);
    for (int r = 0; r < t->size; r++)
        if (of[r].call != c || of[r].n != n)
            return kvm_fail(err, KVM_INTERNAL,
                            "rank %d is at step %lld of %lld bytes, rank %d at %d of "
                            "%td: ranks have lost each other",
                            r, (long long)of[r].call, (long long)of[r].n, t->rank,
                            (int)c, n);
    return KVM_OK;
}

kvm_status kvm_team_agree(kvm_team *t, kvm_status mine, kvm_err *err)
{
    if (t->size == 1) return mine;
    kvm_err own = {.code = mine};
    if (mine && err) own = *err;
    own.code = mine;
    if (mine && err) *err = (kvm_err){0};
    const kvm_status s = meet(t, mine ? FAILED : AGREE, 0, mine ? &own : NULL, err);
    t->failing = false;
    return s;
}

kvm_status kvm_team_wait(kvm_team *t, kvm_err *err)
{
    return t->size == 1 ? KVM_OK : meet(t, WAIT, 0, NULL, err);
}

static ptrdiff_t piece(ptrdiff_t left, ptrdiff_t most)
{
    return left < most ? left : most;
}

kvm_status kvm_team_unite(kvm_team *t, void *bytes, ptrdiff_t n, kvm_err *err)
{
    const void *all;
    if (t->size == 1) return KVM_OK;
    TRY(meet(t, UNITE, n, NULL, err));
    unsigned char *to = bytes;
    for (ptrdiff_t at = 0, m; at < n; at += m) {
        m = piece(n - at, KVM_TEAM_PIECE);
        TRY(t->gather(t, to + at, m, &all, err));
        const unsigned char *from = all;
        for (int r = 0; r < t->size; r++, from += m)
            for (ptrdiff_t i = 0; i < m && r != t->rank; i++) to[at + i] |= from[i];
    }
    return KVM_OK;
}

kvm_status kvm_team_sum(kvm_team *t, double *x, ptrdiff_t n, kvm_err *err)
{
    const void *all;
    if (t->size == 1) return KVM_OK;
    TRY(meet(t, SUM, n, NULL, err));
    for (ptrdiff_t at = 0, m; at < n; at += m) {
        m = piece(n - at, KVM_TEAM_PIECE / (ptrdiff_t)sizeof *x);
        TRY(t->gather(t, x + at, m * (ptrdiff_t)sizeof *x, &all, err));
        const double *from = all;
        memcpy(x + at, from, sizeof *x * (size_t)m);
        for (int r = 1; r < t->size; r++)
            for (ptrdiff_t i = 0; i < m; i++) x[at + i] += from[r * m + i];
    }
    return KVM_OK;
}

kvm_status kvm_team_add(kvm_team *t, float *sum, const float *part, ptrdiff_t n,
                        int parts, kvm_err *err)
{
    const void *all = part;
    if (t->size > 1) TRY(meet(t, ADD, n, NULL, err));
    for (ptrdiff_t at = 0, m; at < n; at += m) {
        m = piece(n - at, KVM_TEAM_PIECE / (ptrdiff_t)sizeof *part);
        if (t->size == 1)
            all = part + at;
        else
            TRY(t->gather(t, part + at, m * (ptrdiff_t)sizeof *part, &all, err));
        const float *from = all;
        for (int r = 0; r < parts && r < t->size; r++)
            for (ptrdiff_t i = 0; i < m; i++) sum[at + i] += from[r * m + i];
    }
    return KVM_OK;
}

kvm_status kvm_team_pass(kvm_team *t, void *bytes, ptrdiff_t n, kvm_err *err)
{
    const void *all;
    if (t->size == 1) return KVM_OK;
    TRY(meet(t, PASS, n, NULL, err));
    char *to = bytes;
    for (ptrdiff_t at = 0, m; at < n; at += m) {
        m = piece(n - at, KVM_TEAM_PIECE);
        TRY(t->gather(t, to + at, m, &all, err));
        if (t->rank > 0)
            memcpy(to + at, (const char *)all + (t->rank - 1) * m, (size_t)m);
    }
    return KVM_OK;
}

kvm_status kvm_team_same(kvm_team *t, const char *what, const char *text, kvm_err *err)
{
    char mine[256] = {0};
    const void *all;
    if (t->size == 1) return KVM_OK;
    snprintf(mine, sizeof mine, "%s", text);
    TRY(meet(t, SAME, sizeof mine, NULL, err));
    TRY(t->gather(t, mine, sizeof mine, &all, err));
    const char *of = all;
    for (int r = 1; r < t->size; r++)
        if (memcmp(of, of + r * (ptrdiff_t)sizeof mine, sizeof mine) != 0)
            return kvm_fail(err, KVM_MISMATCH,
                            "%s: rank 0 has \"%.255s\", rank %d \"%.255s\"; a gang "
                            "needs one of all",
                            what, of, r, of + r * (ptrdiff_t)sizeof mine);
    return KVM_OK;
}
