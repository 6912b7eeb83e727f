/* Patterns written for Oniguruma, run by PCRE2.
 *
 * The two engines agree on alternation, greedy, lazy and possessive repeats, groups and
 * lookaround. Where they differ the pattern is rewritten or refused:
 *   \s \d \w \h      sets of unicode.h: PCRE2's \s has U+180E, its \w lacks marks
 *   \p{L} ...        PCRE2's own set, plus the characters that only the reference knows
 *                    (its Unicode is newer); Oniguruma's set in full where PCRE2 has
 *                    more
 *   \v \uHHHH (?m:)  vertical tab, code point, "dot takes line breaks"
 *   ^ $              at every line, always
 *   [x&&[^y]]        x, then a look back that it was no y; other && is refused
 *   {n,m}+ {n}?      mean other things: refused, as are \b, back-references, nested
 *                    classes and inline flags behind the start
 * Known deviation: under (?i:) Oniguruma also folds to several characters (ß = ss). */
#include "models/pretokenize_regex.h"

#include <string.h>

#include "models/unicode.h"

typedef struct translator {
    kvm_str in;
    ptrdiff_t at;
    kvm_text out;
    kvm_arena scratch;
    kvm_str every; /* all code points in ascending order; made when first needed */
    kvm_err *err;
} translator;

static kvm_status unsupported(translator *t, const char *what)
{
    return kvm_fail(t->err, KVM_UNSUPPORTED,
                    "pattern \"%s\": %s at character %td is not supported",
                    kvm_quote(t->in).at, what, t->at + 1);
}

static int char_at(const translator *t, ptrdiff_t i) /* -1 behind the end */
{
    return i < t->in.len ? (unsigned char)t->in.at[i] : -1;
}

static void put_range(translator *t, uint32_t first, uint32_t last)
{
    if (first >= 0xD800 && first <= 0xDFFF) first = 0xE000; /* PCRE2 refuses them */
    if (last >= 0xD800 && last <= 0xDFFF) last = 0xD7FF;
    if (first > last) return;
    if (first == last)
        kvm_text_addf(&t->out, "\\x{%x}", (unsigned)first);
    else
        kvm_text_addf(&t->out, "\\x{%x}-\\x{%x}", (unsigned)first, (unsigned)last);
}

static void put_ranges(translator *t, const kvm_range *r, ptrdiff_t n, bool complement)
{
    uint32_t from = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (!complement) put_range(t, r[i].first, r[i].last);
        if (complement && r[i].first > from) put_range(t, from, r[i].first - 1);
        from = r[i].last + 1;
    }
    if (complement && from < KVM_CODE_POINTS) put_range(t, from, KVM_CODE_POINTS - 1);
}

/* --- what PCRE2 takes a property to be --- */

static kvm_status every_code_point(translator *t)
{
    if (t->every.at) return KVM_OK;
    char *s = kvm_new_raw(&t->scratch, char, (ptrdiff_t)4 * KVM_CODE_POINTS);
    if (!s) return kvm_nomem(t->err, &t->scratch);
    ptrdiff_t n = 0;
    for (uint32_t c = 0; c < KVM_CODE_POINTS; c++)
        if (c < 0xD800 || c > 0xDFFF) n += kvm_utf8_put(s + n, c);
    t->every = (kvm_str){s, n};
    return KVM_OK;
}

/* Runs of `\p{name}` over every code point; -1 when PCRE2 does not know the name. */
static ptrdiff_t pcre2_set(translator *t, kvm_str name, kvm_range out[KVM_SET_MAX])
{
    int code;
    size_t where;
    ptrdiff_t n = 0;
    const kvm_str text = kvm_str_fmt(&t->scratch, "\\p{%.*s}+",
                                     KVM_STR_ARG(name)); /* checked: letters */
    if (!text.at) return -1;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)text.at, (size_t)text.len, PCRE2_UTF,
                                   &code, &where, NULL);
    pcre2_match_data *md = re ? pcre2_match_data_create(1, NULL) : NULL;
    if (re) (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* else interpreted */
    size_t from = 0;
    while (md && n < KVM_SET_MAX &&
           pcre2_match(re, (PCRE2_SPTR)t->every.at, (size_t)t->every.len, from,
                       PCRE2_NO_UTF_CHECK, md, NULL) > 0) {
        const size_t *ov = pcre2_get_ovector_pointer(md);
        const unsigned char *a = (const unsigned char *)t->every.at + ov[0];
        const unsigned char *b = (const unsigned char *)t->every.at + ov[1] - 1;
        while ((*b & 0xC0) == 0x80) b--;
        out[n].first = kvm_utf8_next(&a);
        out[n++].last = kvm_utf8_next(&b);
        from = ov[1];
    }
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    return md ? n : -1;
}

static bool holds(const kvm_range *r, ptrdiff_t n, uint32_t first, uint32_t last)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (r[i].first <= first && last <= r[i].last) return true;
    return false;
}

/* `\p{name}` and what it lacks, when everything PCRE2 has in it belongs there.
 * Surrogates are in no text, so a run across them counts as one. */
static bool put_property(translator *t, kvm_str name, const kvm_range *want,
                         ptrdiff_t n_want)
{
    kvm_range *have = kvm_new(&t->scratch, kvm_range, KVM_SET_MAX);
    const ptrdiff_t n = have ? pcre2_set(t, name, have) : -1;
    bool inside = n >= 0;
    for (ptrdiff_t i = 0; inside && i < n; i++)
        inside = holds(want, n_want, have[i].first, have[i].last);
    if (!inside) return false;
    kvm_text_addf(&t->out, "\\p{%.*s}", KVM_STR_ARG(name));
    for (ptrdiff_t i = 0, j = 0; i < n_want; i++) {
        uint32_t from = want[i].first;
        for (; j < n && have[j].first <= want[i].last; j++) {
            if (have[j].first > from) put_range(t, from, have[j].first - 1);
            from = have[j].last + 1;
        }
        if (from <= want[i].last) put_range(t, from, want[i].last);
    }
    return true;
}

/* The members of a set as items of a class. */
static kvm_status put_set(translator *t, kvm_str name, bool complement)
{
    kvm_range *r = kvm_new(&t->scratch, kvm_range, KVM_SET_MAX);
    if (!r) return kvm_nomem(t->err, &t->scratch);
    const ptrdiff_t n = kvm_unicode_set(name, r);
    if (n < 0)
        return kvm_fail(t->err, KVM_UNSUPPORTED,
                        "pattern \"%s\": the property \"%s\" is not known here",
                        kvm_quote(t->in).at, kvm_quote(name).at);
    const bool property = name.len > 1 || (name.at[0] >= 'A' && name.at[0] <= 'Z');
    if (property && !complement) {
        TRY(every_code_point(t));
        if (put_property(t, name, r, n)) return KVM_OK;
    }
    put_ranges(t, r, n, complement);
    return KVM_OK;
}

/* --- escapes --- */

static const char SET_LETTERS[] = "sSdDwWpPhH";

static bool starts_set(const translator *t, ptrdiff_t i)
{
    const int c = char_at(t, i) == '\\' ? char_at(t, i + 1) : -1;
    return c > 0 && strchr(SET_LETTERS, c) != NULL;
}

/* At an escape that names a set: its name and whether it is negated; stands behind
 * it. */
static kvm_status read_set(translator *t, kvm_str *name, bool *negated)
{
    const int c = char_at(t, t->at + 1);
    t->at += 2;
    *negated = c == 'S' || c == 'D' || c == 'W' || c == 'P' || c == 'H';
    if (c != 'p' && c != 'P') {
        *name = strchr("sS", c)   ? KVM_STR("s")
                : strchr("dD", c) ? KVM_STR("d")
                : strchr("wW", c) ? KVM_STR("w")
                                  : KVM_STR("h");
        return KVM_OK;
    }
    if (char_at(t, t->at) != '{') return unsupported(t, "a property without braces");
    kvm_str head, rest = kvm_str_slice(t->in, t->at + 1, t->in.len);
    if (!kvm_str_cut(rest, '}', &head, &rest))
        return unsupported(t, "a property without its closing brace");
    t->at += head.len + 2;
    if (kvm_str_starts(head, KVM_STR("^"))) {
        *negated = !*negated;
        head = kvm_str_slice(head, 1, head.len);
    }
    *name = head;
    return KVM_OK;
}

static kvm_status put_set_items(translator *t, kvm_str name, bool negated)
{
    if (!kvm_str_eq(name, KVM_STR("h"))) return put_set(t, name, negated);
    if (negated) return unsupported(t, "\\H before the one");
    kvm_text_add(&t->out, KVM_STR("0-9A-Fa-f"));
    return KVM_OK;
}

/* \xHH \x{H...} \uHHHH with the cursor behind the letter */
static kvm_status put_code(translator *t, bool braces, int digits)
{
    const ptrdiff_t from = t->at + (braces ? 1 : 0);
    uint32_t c = 0;
    ptrdiff_t i = from;
    for (; i < t->in.len && i - from < digits; i++) {
        const char *hex = "0123456789abcdef";
        const char *p = strchr(hex, char_at(t, i) | 0x20);
        if (!p || !*p) break;
        c = c * 16 + (uint32_t)(p - hex);
    }
    const bool closed = !braces || char_at(t, i) == '}';
    if (i == from || !closed || (!braces && i - from != digits) ||
        c >= KVM_CODE_POINTS || (c >= 0xD800 && c <= 0xDFFF) ||
        (digits == 2 && c > 0x7F)) /* a raw byte to Oniguruma */
        return unsupported(t, "this code of a character");
    t->at = i + (braces ? 1 : 0);
    put_range(t, c, c);
    return KVM_OK;
}

/* An escape that stands for one character, inside or outside a class. */
static kvm_status put_escape(translator *t)
{
    const int c = char_at(t, t->at + 1);
    static const char from[] = "tnrfvae", to[] = "\t\n\r\f\v\a\x1b";
    if (c < 0) return unsupported(t, "a backslash that ends the pattern");
    t->at += 2;
    if (c == 'x' && char_at(t, t->at) == '{') return put_code(t, true, 8);
    if (c == 'x' || c == 'u') return put_code(t, false, c == 'x' ? 2 : 4);
    const char *known = c < 0x80 ? strchr(from, c) : NULL;
    if (known && *known) {
        const uint32_t code = (unsigned char)to[known - from];
        put_range(t, code, code);
        return KVM_OK;
    }
    const bool word =
        (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (word || c >= 0x80) {
        t->at -= 2;
        return unsupported(t, "the escape");
    }
    kvm_text_addf(&t->out, "\\%c", c);
    return KVM_OK;
}

/* --- classes, groups, repeats --- */

static kvm_status class_item(translator *t)
{
    const int c = char_at(t, t->at);
    if (starts_set(t, t->at)) {
        kvm_str name;
        bool negated;
        TRY(read_set(t, &name, &negated));
        TRY(put_set_items(t, name, negated));
        if (char_at(t, t->at) == '-') { /* no range can begin with a set */
            kvm_text_add(&t->out, KVM_STR("\\-"));
            t->at++;
        }
        return KVM_OK;
    }
    if (c == '\\') return put_escape(t);
    if (c == '[') return unsupported(t, "a class inside a class");
    if (c == '&' && char_at(t, t->at + 1) == '&')
        return unsupported(t, "an intersection of classes");
    if (c == '-' && starts_set(t, t->at + 1)) kvm_text_add(&t->out, KVM_STR("\\"));
    kvm_text_add(&t->out, kvm_str_slice(t->in, t->at, t->at + 1));
    t->at++;
    return KVM_OK;
}

static const kvm_str MINUS = {"&&[^", 4};

static bool at_minus(const translator *t, ptrdiff_t i)
{
    return kvm_str_starts(kvm_str_slice(t->in, i, t->in.len), MINUS);
}

/* Is the class that begins here one that takes another away? */
static bool is_difference(const translator *t)
{
    for (ptrdiff_t i = t->at + 1; i < t->in.len && char_at(t, i) != ']'; i++) {
        if (at_minus(t, i)) return char_at(t, t->at + 1) != '^';
        if (char_at(t, i) == '\\') i++;
    }
    return false;
}

/* Items up to the bracket that ends the class, or up to `&&[^` in a difference. */
static kvm_status class_items(translator *t, bool difference)
{
    const ptrdiff_t begin = t->at;
    while (char_at(t, t->at) != ']' && !(difference && at_minus(t, t->at))) {
        if (t->at >= t->in.len) return unsupported(t, "a class without its end");
        TRY(class_item(t));
    }
    if (t->at == begin) return unsupported(t, "an empty class");
    return KVM_OK;
}

/* `[x&&[^y]]` as `(?:[x](?<![y]))` */
static kvm_status put_difference(translator *t)
{
    kvm_text_add(&t->out, KVM_STR("(?:["));
    t->at++;
    TRY(class_items(t, true));
    kvm_text_add(&t->out, KVM_STR("](?<!["));
    t->at += MINUS.len;
    TRY(class_items(t, false));
    if (char_at(t, t->at + 1) != ']')
        return unsupported(t, "more behind a class that is taken away");
    kvm_text_add(&t->out, KVM_STR("]))"));
    t->at += 2;
    return KVM_OK;
}

static kvm_status put_class(translator *t)
{
    if (is_difference(t)) return put_difference(t);
    kvm_text_add(&t->out, KVM_STR("["));
    t->at++;
    if (char_at(t, t->at) == '^') {
        kvm_text_add(&t->out, KVM_STR("^"));
        t->at++;
    }
    TRY(class_items(t, false));
    kvm_text_add(&t->out, KVM_STR("]"));
    t->at++;
    return KVM_OK;
}

/* `(?flags:` and, where nothing stands before it, `(?flags)` */
static kvm_status put_flags(translator *t)
{
    const ptrdiff_t open = t->at;
    kvm_text_add(&t->out, KVM_STR("(?"));
    for (t->at += 2; t->at < t->in.len; t->at++) {
        const int c = char_at(t, t->at);
        if (c == ':' || (c == ')' && open == 0)) {
            kvm_text_addf(&t->out, "%c", c);
            t->at++;
            return KVM_OK;
        }
        if (c != 'i' && c != 'm' && c != '-') break;
        kvm_text_addf(&t->out, "%c", c == 'm' ? 's' : c);
    }
    return unsupported(t, "this kind of group");
}

static kvm_status put_group(translator *t)
{
    static const kvm_str same[] = {{"(?:", 3}, {"(?=", 3},  {"(?!", 3},
                                   {"(?>", 3}, {"(?<=", 4}, {"(?<!", 4}};
    const kvm_str rest = kvm_str_slice(t->in, t->at, t->in.len);
    if (!kvm_str_starts(rest, KVM_STR("(?"))) {
        kvm_text_add(&t->out, KVM_STR("("));
        t->at++;
        return KVM_OK;
    }
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (!kvm_str_starts(rest, same[i])) continue;
        kvm_text_add(&t->out, same[i]);
        t->at += same[i].len;
        return KVM_OK;
    }
    return put_flags(t);
}

/* At a brace: a repeat, or the character itself. */
static kvm_status put_brace(translator *t)
{
    ptrdiff_t i = t->at + 1, low, high = -1;
    for (low = i; char_at(t, i) >= '0' && char_at(t, i) <= '9';) i++;
    const bool has_low = i > low, comma = char_at(t, i) == ',';
    if (comma)
        for (high = ++i; char_at(t, i) >= '0' && char_at(t, i) <= '9';) i++;
    const bool has_high = comma && i > high;
    if (char_at(t, i) != '}' || (!has_low && !has_high)) {
        kvm_text_add(&t->out, KVM_STR("\\{"));
        t->at++;
        return KVM_OK;
    }
    if (char_at(t, i + 1) == '+' || (!comma && char_at(t, i + 1) == '?'))
        return unsupported(t, "a sign behind the repeat");
    kvm_text_add(&t->out, has_low ? KVM_STR("{") : KVM_STR("{0"));
    kvm_text_add(&t->out, kvm_str_slice(t->in, t->at + 1, i + 1));
    t->at = i + 1;
    return KVM_OK;
}

static kvm_status translate(translator *t)
{
    while (t->at < t->in.len) {
        const int c = char_at(t, t->at);
        if (starts_set(t, t->at)) {
            kvm_str name;
            bool negated;
            TRY(read_set(t, &name, &negated));
            kvm_text_add(&t->out, negated ? KVM_STR("[^") : KVM_STR("["));
            TRY(put_set_items(t, name, false));
            kvm_text_add(&t->out, KVM_STR("]"));
        } else if (c == '\\') {
            TRY(put_escape(t));
        } else if (c == '[') {
            TRY(put_class(t));
        } else if (c == '(') {
            TRY(put_group(t));
        } else if (c == '{') {
            TRY(put_brace(t));
        } else {
            kvm_text_add(&t->out, kvm_str_slice(t->in, t->at, t->at + 1));
            t->at++;
        }
    }
    if (t->out.failed) return kvm_fail(t->err, KVM_NOMEM, "no memory for a pattern");
    return KVM_OK;
}

static void release(void *arg)
{
    kvm_regex *re = arg;
    pcre2_code_free(re->code);
}

static kvm_status compile(kvm_regex *re, kvm_str pattern, uint32_t options,
                          kvm_err *err)
{
    int code = 0;
    size_t where = 0;
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    if (!ctx) return kvm_fail(err, KVM_NOMEM, "no memory to compile a pattern");
    (void)pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    re->code = pcre2_compile((PCRE2_SPTR)re->text.at, (size_t)re->text.len, options,
                             &code, &where, ctx);
    pcre2_compile_context_free(ctx);
    if (re->code) {
        (void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); /* else interpreted */
        return KVM_OK;
    }
    PCRE2_UCHAR why[128] = "";
    (void)pcre2_get_error_message(code, why, sizeof why);
    return kvm_fail(err, KVM_FORMAT, "pattern \"%s\" is not a regular expression: %s",
                    kvm_quote(pattern).at, (const char *)why);
}

kvm_status kvm_regex_new(kvm_regex **out, kvm_arena *keep, kvm_str pattern,
                         bool literal, kvm_arena scratch, kvm_err *err)
{
    translator t = {.in = pattern, .scratch = scratch, .err = err};
    kvm_regex *re = kvm_new(keep, kvm_regex, 1);
    if (!re) return kvm_nomem(err, keep);
    if (pattern.len == 0) return kvm_fail(err, KVM_FORMAT, "an empty pattern");
    const kvm_status s = literal ? KVM_OK : translate(&t);
    re->text = kvm_str_copy(keep, literal ? pattern : kvm_text_str(&t.out));
    kvm_text_free(&t.out);
    if (s) return s;
    if (!re->text.at) return kvm_nomem(err, keep);
    const uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    TRY(compile(re, pattern, options, err));
    TRY(kvm_arena_defer(keep, release, re, err));
    *out = re;
    return KVM_OK;
}

kvm_str kvm_regex_text(const kvm_regex *re)
{
    return re->text;
}
