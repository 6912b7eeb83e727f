#include "cli/listing.h"

#include <math.h>
#include <time.h>

enum { MAX_COLUMNS = 32 };

static kvm_str cell_text(kvm_arena *keep, const json_t *v)
{
    if (json_is_string(v))
        return (kvm_str){json_string_value(v), (ptrdiff_t)json_string_length(v)};
    if (json_is_integer(v))
        return kvm_str_fmt(keep, "%lld", (long long)json_integer_value(v));
    if (json_is_real(v)) return kvm_str_fmt(keep, "%.4g", json_real_value(v));
    if (json_is_boolean(v)) return json_is_true(v) ? KVM_STR("yes") : KVM_STR("no");
    return KVM_STR("-");
}

kvm_str kvm_cli_time(kvm_arena *keep, double seconds)
{
    char text[32];
    struct tm utc;
    const time_t t = (time_t)floor(seconds);
    if (!gmtime_r(&t, &utc) ||
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        return KVM_STR("-");
    return kvm_str_copy(keep, kvm_str_of(text));
}

static kvm_str column_text(kvm_arena *keep, const json_t *row, const char *column)
{
    const json_t *v = json_object_get(row, column);
    return json_is_real(v) && kvm_str_ends(kvm_str_of(column), KVM_STR("_at"))
               ? kvm_cli_time(keep, json_real_value(v))
               : cell_text(keep, v);
}

kvm_status kvm_cli_print_rows(kvm_cli *cli, const json_t *rows, const char *name,
                              const char *const *columns, kvm_err *err)
{
    kvm_column c[MAX_COLUMNS];
    ptrdiff_t n = 0;
    for (; columns[n]; n++)
        c[n] = (kvm_column){columns[n], kvm_str_of(columns[n]), KVM_COL_TEXT};
    kvm_table t = kvm_table_new(cli->keep, name, kvm_str_of(name), c, n);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) for (ptrdiff_t k = 0; k < n; k++)
        kvm_table_text(&t, column_text(cli->keep, row, columns[k]), KVM_TONE_PLAIN);
    return kvm_cli_print_table(cli, NULL, &t, err);
}

kvm_status kvm_cli_show_view(kvm_cli *cli, kvm_catalogue *c, const char *view,
                             const kvm_view_filter *filters, ptrdiff_t count,
                             const char *const *columns, kvm_err *err)
{
    json_t *rows;
    int64_t limit;
    TRY(kvm_cli_i64(cli, KVM_OPT_LIMIT, 0, 0, &limit, err));
    TRY(kvm_catalogue_view(c, &rows, cli->keep, view, filters, count, (ptrdiff_t)limit,
                           err));
    if (kvm_cli_has(cli, KVM_OPT_JSON))
        return kvm_cli_print_json(cli, json_incref(rows), err);
    return kvm_cli_print_rows(cli, rows, view, columns, err);
}

kvm_status kvm_cli_check_pair(kvm_cli *cli, kvm_catalogue *c, kvm_str pair,
                              kvm_err *err)
{
    json_t *rows, *row;
    size_t i;
    TRY(kvm_catalogue_view(c, &rows, cli->keep, "v_pairs", NULL, 0, 0, err));
    kvm_text names = {0};
    bool found = false;
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "pair"));
        found |= kvm_str_eq(pair, kvm_str_of(name));
        kvm_text_addf(&names, "%s%s", i ? ", " : "", name);
    }
    const kvm_quoted quoted = kvm_quote(pair);
    const kvm_status s =
        found ? KVM_OK
              : kvm_fail(err, KVM_NOTFOUND, "there is no pair \"%s\"; there are: %.*s",
                         quoted.at, names.len ? (int)names.len : 4,
                         names.len ? names.at : "none");
    kvm_text_free(&names);
    return s;
}
