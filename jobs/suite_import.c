#include "jobs/suite_import.h"

#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/os.h"
#include "jobs/items.h"
#include "models/unicode.h"

enum { INPUT_MAX_BYTES = 1 << 30, LONGEST_SEQUENCE = 1 << 16 };

typedef struct format {
    kvm_import_format about;
    kvm_status (*read)(kvm_import *im, kvm_err *err);
} format;

static const format formats[] = {
#define X(name, kind, metric, chance, max_new, stop, licence, input)                   \
    {{#name, #kind, metric, stop, licence, input, chance, max_new}, kvm_import_##name},
#include "jobs/suite_formats.def"
#undef X
};
enum { FORMATS = sizeof formats / sizeof *formats };

const kvm_import_format *kvm_import_format_at(ptrdiff_t i)
{
    return i >= 0 && i < FORMATS ? &formats[i].about : NULL;
}

static kvm_status find_format(const format **out, kvm_str name, kvm_err *err)
{
    kvm_text known = {0};
    for (int i = 0; i < FORMATS; i++) {
        if (kvm_str_eq(name, kvm_str_of(formats[i].about.name))) {
            *out = &formats[i];
            kvm_text_free(&known);
            return KVM_OK;
        }
        kvm_text_addf(&known, "%s%s", i ? ", " : "", formats[i].about.name);
    }
    const kvm_str list = kvm_text_str(&known);
    const kvm_status s = kvm_fail(err, KVM_NOTFOUND, "no format \"%s\"; there are %.*s",
                                  kvm_quote(name).at, KVM_STR_ARG(list));
    kvm_text_free(&known);
    return s;
}

/* ---- for the readers ---- */

json_t *kvm_import_str(kvm_str s)
{
    return json_stringn(s.at, (size_t)s.len);
}

kvm_status kvm_import_add(kvm_import *im, json_t *item, kvm_err *err)
{
    if (!item || json_array_append_new(im->items, item))
        return kvm_nomem(err, im->keep);
    return KVM_OK;
}

void kvm_import_leave_out(kvm_import *im, const char *why)
{
    im->left_out++;
    im->why = why;
}

kvm_status kvm_import_read(kvm_import *im, kvm_str path, kvm_str *text, kvm_err *err)
{
    if (kvm_str_ends(path, KVM_STR(".bz2")) || kvm_str_ends(path, KVM_STR(".gz")) ||
        kvm_str_ends(path, KVM_STR(".zip")))
        return kvm_fail(
            err, KVM_UNSUPPORTED,
            "%.*s is packed; unpack it first (bunzip2 -k, gunzip -k, unzip)",
            KVM_STR_ARG(path));
    TRY(kvm_file_read(text, im->keep, path, INPUT_MAX_BYTES, err));
    return kvm_utf8_require(*text, path, err);
}

kvm_status kvm_import_jsonl(kvm_import *im,
                            kvm_status (*each)(kvm_import *im, kvm_jat line,
                                               kvm_err *err),
                            kvm_err *err)
{
    kvm_str text;
    TRY(kvm_import_read(im, im->o->input, &text, err));
    for (ptrdiff_t number = 1; text.len > 0; number++) {
        kvm_str line;
        kvm_jat root;
        kvm_str_cut(text, '\n', &line, &text);
        if (kvm_str_trim(line).len == 0) continue;
        kvm_str place =
            kvm_str_fmt(im->keep, "%.*s:%td", KVM_STR_ARG(im->o->input), number);
        if (!place.at) return kvm_nomem(err, im->keep);
        TRY(kvm_json_parse(&root, im->keep, line, place, err));
        TRY(each(im, root, err));
    }
    return KVM_OK;
}

/* ---- writing ---- */

static kvm_str stem_of(kvm_str path)
{
    ptrdiff_t from = path.len;
    while (from > 0 && path.at[from - 1] != '/') from--;
    return kvm_str_slice(path, from, path.len - (ptrdiff_t)sizeof ".yaml" + 1);
}

/* every item of the chosen ones as a line, with its number among all */
static kvm_status write_items(const kvm_import *im, kvm_str stem, kvm_str path,
                              ptrdiff_t limit, ptrdiff_t *written, kvm_err *err)
{
    const ptrdiff_t all = (ptrdiff_t)json_array_size(im->items);
    const ptrdiff_t n = limit > 0 && limit < all ? limit : all;
    kvm_out *out;
    TRY(kvm_out_begin(&out, im->keep, path, err));
    for (ptrdiff_t i = 0; i < n; i++) {
        kvm_arena each = *im->keep;
        const ptrdiff_t at = i * all / n;
        json_t *item = json_array_get(im->items, (size_t)at);
        kvm_str id = kvm_str_fmt(&each, "%.*s-%05td", KVM_STR_ARG(stem), at), line;
        if (!id.at) return kvm_nomem(err, im->keep);
        if (json_object_set_new(item, "id", kvm_import_str(id)))
            return kvm_nomem(err, im->keep);
        TRY(kvm_json_canonical(&line, &each, item, err));
        TRY(kvm_out_write(out, line.at, (size_t)line.len, err));
        TRY(kvm_out_write(out, "\n", 1, err));
    }
    *written = n;
    return kvm_out_publish(out, NULL, err);
}

static kvm_status provenance(const kvm_import *im, const kvm_import_format *f,
                             kvm_str *out, kvm_err *err)
{
    char sha[65] = "";
    if (!kvm_path_is_dir(im->o->input))
        TRY(kvm_sha_file(im->o->input, sha, *im->keep, err));
    kvm_str name = im->o->input;
    for (ptrdiff_t i = name.len - 1; i-- > 0;)
        if (name.at[i] == '/') {
            name = kvm_str_slice(name, i + 1, name.len);
            break;
        }
    *out = kvm_str_fmt(im->keep, "%s, imported from %.*s%s%.16s%s", f->name,
                       KVM_STR_ARG(name), *sha ? " sha256 " : "", sha, im->note);
    return out->at ? KVM_OK : kvm_nomem(err, im->keep);
}

/* A card is YAML whose values are JSON, which YAML contains. */
static kvm_status write_card(const kvm_import *im, const kvm_import_format *f,
                             kvm_str stem, kvm_str to, kvm_err *err)
{
    kvm_str from, value;
    kvm_text card = {0};
    TRY(provenance(im, f, &from, err));
    const kvm_str licence =
        im->o->licence.len ? im->o->licence : kvm_str_of(f->licence);
    json_t *rows = json_pack(
        "{s:s%, s:s, s:s%++, s:s%, s:s%, s:s, s:f}", "name", stem.at, (size_t)stem.len,
        "kind", f->kind, "file", stem.at, (size_t)stem.len, ".jsonl", "", "licence",
        licence.at, (size_t)licence.len, "provenance", from.at, (size_t)from.len,
        "metric", f->metric, "chance", f->chance);
    if (!kvm_json_own(im->keep, rows)) return kvm_nomem(err, im->keep);
    if (f->max_new_tokens)
        json_object_set_new(rows, "max_new_tokens", json_integer(f->max_new_tokens));
    if (*f->stop) json_object_set_new(rows, "stop", json_pack("[s]", f->stop));
    const char *key;
    json_t *v;
    json_object_foreach(rows, key, v)
    {
        TRY(kvm_json_canonical(&value, im->keep, v, err));
        kvm_text_addf(&card, "%s: %.*s\n", key, KVM_STR_ARG(value));
    }
    const kvm_status s =
        card.failed ? kvm_nomem(err, im->keep)
                    : kvm_file_publish(to, kvm_text_str(&card), *im->keep, err);
    kvm_text_free(&card);
    return s;
}

/* card and items, at most `limit` of them (0: all), under CARD's name but for `mark` */
static kvm_status write_suite(const kvm_import *im, const kvm_import_format *f,
                              const char *mark, ptrdiff_t limit, kvm_str *card,
                              ptrdiff_t *written, kvm_err *err)
{
    const kvm_str at = im->o->card;
    *card = kvm_str_fmt(im->keep, "%.*s%s.yaml", (int)at.len - 5, at.at, mark);
    const kvm_str items =
        kvm_str_fmt(im->keep, "%.*s%s.jsonl", (int)at.len - 5, at.at, mark);
    if (!card->at || !items.at) return kvm_nomem(err, im->keep);
    const kvm_str stem = stem_of(*card);
    TRY(write_items(im, stem, items, limit, written, err));
    return write_card(im, f, stem, *card, err);
}

/* ---- apart from a calibration text ---- */

/* A plain text as one sequence, items of a suite whole: whatever windows a capture
 * cuts, they are in it. */
static kvm_status whole_text(kvm_overlap **o, kvm_arena *keep, kvm_str path,
                             const kvm_tokenizer *t, kvm_err *err)
{
    kvm_calibration c;
    kvm_str text;
    kvm_arena scratch = *keep;
    ptrdiff_t most = LONGEST_SEQUENCE;
    if (!kvm_str_ends(path, KVM_STR(".yaml"))) {
        TRY(kvm_file_read(&text, &scratch, path, INPUT_MAX_BYTES, err));
        most = text.len + 2; /* a token has a byte, and one may stand before all */
    }
    TRY(kvm_calibration_read(&c, keep, path, t, INT32_MAX, most, err));
    return kvm_overlap_new(o, keep, &c, err);
}

static kvm_status drop_overlapping(kvm_import *im, const kvm_suite *suite,
                                   ptrdiff_t *dropped, kvm_err *err)
{
    kvm_tokenizer *t;
    kvm_overlap *o;
    kvm_items it;
    json_t *left = json_array();
    if (!kvm_json_own(im->keep, left)) return kvm_nomem(err, im->keep);
    TRY(kvm_tokenizer_open(&t, im->keep, im->o->tokenizer, err));
    TRY(whole_text(&o, im->keep, im->o->apart, t, err));
    TRY(kvm_items_read(&it, im->keep, suite, 0, t, err));
    for (ptrdiff_t i = 0; i < it.n; i++) {
        ptrdiff_t at;
        TRY(kvm_item_overlap(o, &it.ids[i], *im->keep, &at, err));
        if (at < 0) json_array_append(left, json_array_get(im->items, (size_t)i));
    }
    *dropped = it.n - (ptrdiff_t)json_array_size(left);
    im->items = left;
    return KVM_OK;
}

/* The items are read as a suite before it is known which of them stay. */
static kvm_status keep_apart(kvm_import *im, const kvm_import_format *f,
                             ptrdiff_t *dropped, kvm_err *err)
{
    kvm_str card;
    kvm_suite *suite;
    ptrdiff_t n;
    *dropped = 0;
    if (im->o->apart.len == 0) return KVM_OK;
    kvm_status s = write_suite(im, f, ".all", 0, &card, &n, err);
    if (!s) s = kvm_suite_read(&suite, im->keep, card, err);
    if (!s) s = drop_overlapping(im, suite, dropped, err);
    const kvm_str items =
        kvm_str_fmt(im->keep, "%.*s.jsonl", (int)card.len - 5, card.at);
    if (items.at) kvm_os->unlink(items.at);
    if (card.at) kvm_os->unlink(card.at);
    if (s || json_array_size(im->items)) return s;
    return kvm_fail(err, KVM_MISMATCH,
                    "all of the %td items of %.*s share %d tokens in a row with %.*s",
                    *dropped, KVM_STR_ARG(im->o->input), KVM_OVERLAP_TOKENS,
                    KVM_STR_ARG(im->o->apart));
}

static kvm_status check_options(const kvm_import_options *o, kvm_err *err)
{
    if (!kvm_str_ends(o->card, KVM_STR(".yaml")) || stem_of(o->card).len == 0)
        return kvm_fail(err, KVM_USAGE, "the card \"%s\" must be called NAME.yaml",
                        kvm_quote(o->card).at);
    if (o->apart.len && !o->tokenizer.len)
        return kvm_fail(err, KVM_USAGE,
                        "items are told apart by their tokens: --tokenizer is missing");
    if (!kvm_path_exists(o->input))
        return kvm_fail(err, KVM_NOTFOUND, "there is no %.*s", KVM_STR_ARG(o->input));
    return KVM_OK;
}

kvm_status kvm_suite_import(kvm_imported *done, kvm_arena *keep,
                            const kvm_import_options *o, kvm_err *err)
{
    const format *f;
    kvm_suite *suite;
    kvm_import im = {
        .o = o, .keep = keep, .items = json_array(), .why = "", .note = ""};
    if (!kvm_json_own(keep, im.items)) return kvm_nomem(err, keep);
    TRY(find_format(&f, o->format, err));
    TRY(check_options(o, err));
    TRY(f->read(&im, err));
    if (json_array_size(im.items) == 0)
        return kvm_fail(err, KVM_FORMAT, "%.*s gives no item%s%s",
                        KVM_STR_ARG(o->input), *im.why ? ": " : "", im.why);
    *done = (kvm_imported){.left_out = im.left_out, .why = im.why, .replaced = -1};
    if (kvm_path_exists(o->card) && !kvm_suite_read(&suite, keep, o->card, NULL))
        done->replaced = suite->count;
    TRY(keep_apart(&im, &f->about, &done->overlapping, err));
    TRY(write_suite(&im, &f->about, "", o->limit, &done->card, &done->items, err));
    return kvm_suite_read(&suite, keep, o->card, err);
}
