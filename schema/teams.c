#include "schema/teams.h"

#include <math.h>

#include "base/hash.h"
#include "schema/catalogue_internal.h"

enum { NAME_MOST = 64, HALF_LIFE_S = 7 * 86400 };

kvm_status kvm_team_check_name(kvm_str name, kvm_err *err)
{
    bool good = name.len > 0 && name.len <= NAME_MOST;
    for (ptrdiff_t i = 0; i < name.len && good; i++) {
        const char c = name.at[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               (c >= '0' && c <= '9') || (i && (c == '.' || c == '_' || c == '-'));
    }
    if (good) return KVM_OK;
    return kvm_fail(err, KVM_USAGE,
                    "\"%s\" is no name: up to %d letters, digits and, not in front, "
                    ". _ -",
                    kvm_quote(name).at, (int)NAME_MOST);
}

static kvm_cell or_as_it_is(double v)
{
    return v < 0 ? (kvm_cell){0} : kvm_cell_f(v);
}

kvm_status kvm_team_set(kvm_catalogue *c, kvm_str name, const kvm_team_terms *t,
                        kvm_err *err)
{
    TRY(kvm_team_check_name(name, err));
    TRY(kvm_db_begin(c->db, err));
    kvm_status s =
        kvm_db_exec(c->db, KVM_SQL_TEAM_ADD, KVM_ARGS(kvm_cell_s(name)), NULL, err);
    if (!s)
        s = kvm_db_exec(
            c->db, KVM_SQL_TEAM_TERMS,
            KVM_ARGS(kvm_cell_s(name), or_as_it_is(t->weight),
                     t->quota_live < 0 ? (kvm_cell){0} : kvm_cell_i(t->quota_live),
                     or_as_it_is(t->quota_day_s)),
            NULL, err);
    return kvm_db_end(c->db, s, err);
}

static kvm_status change(kvm_catalogue *c, kvm_sql sql, kvm_str name, kvm_cell value,
                         kvm_err *err)
{
    int64_t changed = 0;
    TRY(kvm_db_exec(c->db, sql, KVM_ARGS(kvm_cell_s(name), value), &changed, err));
    if (changed) return KVM_OK;
    return kvm_fail(err, KVM_NOTFOUND,
                    "there is no team \"%s\"; `kvmill teams list` has those there are",
                    kvm_quote(name).at);
}

kvm_status kvm_team_pause(kvm_catalogue *c, kvm_str name, bool paused, kvm_err *err)
{
    return change(c, KVM_SQL_TEAM_PAUSE, name, kvm_cell_i(paused), err);
}

kvm_status kvm_team_token(kvm_catalogue *c, kvm_str name, kvm_str token, kvm_err *err)
{
    char sha[65];
    TRY(kvm_sha_of(token, sha, err));
    return change(c, KVM_SQL_TEAM_TOKEN, name, kvm_cell_c(sha), err);
}

/* Takes as long whatever differs, so that time tells nothing. */
static bool same(kvm_str a, const char b[65])
{
    unsigned differ = a.len != 64;
    for (ptrdiff_t i = 0; i < 64; i++)
        differ |= (unsigned char)((i < a.len ? a.at[i] : 0) ^ b[i]);
    return differ == 0;
}

kvm_status kvm_team_admit(kvm_catalogue *c, kvm_str name, kvm_str token, kvm_err *err)
{
    kvm_arena scratch = c->scratch;
    kvm_rows row;
    char sha[65];
    TRY(kvm_db_query(c->db, KVM_SQL_TEAM_SECRET, KVM_ARGS(kvm_cell_s(name)), &row,
                     &scratch, err));
    TRY(kvm_sha_of(token, sha, err));
    if (row.count == 0 || same(kvm_rows_str(&row, 0, 0), sha)) return KVM_OK;
    return kvm_fail(
        err, KVM_USAGE, "team %s is acted for with its token: %s KVMILL_TOKEN",
        kvm_quote(name).at, token.len ? "this is not it; look at" : "put it into");
}

double kvm_decayed(double seconds, double age_s)
{
    return seconds * exp2(-fmax(age_s, 0) / HALF_LIFE_S);
}
