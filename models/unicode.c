#include "models/unicode.h"

#include <string.h>

typedef enum category {
    Cc,
    Cf,
    Cn,
    Co,
    Cs,
    Ll,
    Lm,
    Lo,
    Lt,
    Lu,
    Mc,
    Me,
    Mn,
    Nd,
    Nl,
    No,
    Pc,
    Pd,
    Pe,
    Pf,
    Pi,
    Po,
    Ps,
    Sc,
    Sk,
    Sm,
    So,
    Zl,
    Zp,
    Zs,
    CATEGORIES
} category;

static const char category_names[CATEGORIES][3] = {
    "Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu",
    "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc", "Pd", "Pe", "Pf",
    "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs",
};

static const struct category_row {
    uint32_t first;
    category cat;
} category_rows[] = {
#define G(first, cat) {first, cat},
#include "models/unicode.def"
#undef G
    {KVM_CODE_POINTS, Cn},
};
static const kvm_range nfc_check[] = {
#define Q(first, last) {first, last},
#include "models/unicode.def"
#undef Q
};
static const kvm_range nfc_order[] = {
#define C(first, last) {first, last},
#include "models/unicode.def"
#undef C
};
static const kvm_range han[] = {
#define H(first, last) {first, last},
#include "models/unicode.def"
#undef H
};
/* White_Space, which is what \s means to Oniguruma and to Rust; U+180E is not in it */
static const kvm_range space[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
    {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
    {0x205F, 0x205F}, {0x3000, 0x3000},
};
/* What Oniguruma's \w has beyond L, M, Nd, Nl and Pc: the circled and squared letters
 * (Other_Alphabetic), and the superscript digits and fractions of Latin-1, which its
 * old single-byte table calls word characters */
static const kvm_range word_extra[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0xBC, 0xBE},       {0x24B6, 0x24E9},
    {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};
#define COUNT(a) ((ptrdiff_t)(sizeof(a) / sizeof *(a)))

static const unsigned char class_of[CATEGORIES] = {
    [Lu] = KVM_CH_UPPER,  [Lt] = KVM_CH_UPPER,  [Ll] = KVM_CH_LOWER,
    [Lm] = KVM_CH_OTHER,  [Lo] = KVM_CH_OTHER,  [Mc] = KVM_CH_MARK,
    [Me] = KVM_CH_MARK,   [Mn] = KVM_CH_MARK,   [Nd] = KVM_CH_NUMBER,
    [Nl] = KVM_CH_NUMBER, [No] = KVM_CH_NUMBER,
};

static void mark(unsigned char *table, const kvm_range *r, ptrdiff_t n, int bit)
{
    for (ptrdiff_t i = 0; i < n; i++)
        for (uint32_t c = r[i].first; c <= r[i].last; c++)
            table[c] = (unsigned char)(table[c] | bit);
}

kvm_status kvm_unicode_classes(const unsigned char **out, kvm_arena *keep, kvm_err *err)
{
    unsigned char *table = kvm_new(keep, unsigned char, KVM_CODE_POINTS);
    if (!table) return kvm_nomem(err, keep);
    for (ptrdiff_t i = 0; i + 1 < COUNT(category_rows); i++) {
        const struct category_row *r = &category_rows[i];
        const unsigned char bits = class_of[r->cat];
        if (bits) memset(table + r->first, bits, r[1].first - r->first);
    }
    mark(table, space, COUNT(space), KVM_CH_SPACE);
    mark(table, nfc_check, COUNT(nfc_check), KVM_CH_NFC_CHECK);
    mark(table, nfc_order, COUNT(nfc_order), KVM_CH_NFC_ORDER);
    *out = table;
    return KVM_OK;
}

static ptrdiff_t copy_set(const kvm_range *r, ptrdiff_t n, kvm_range *out)
{
    memcpy(out, r, (size_t)n * sizeof *r);
    return n;
}

/* Append [first, last], joining it to the range before when they touch. */
static ptrdiff_t append(kvm_range *out, ptrdiff_t n, uint32_t first, uint32_t last)
{
    if (n > 0 && out[n - 1].last + 1 >= first) {
        out[n - 1].last = last;
        return n;
    }
    out[n] = (kvm_range){first, last};
    return n + 1;
}

/* Is a category in the property `name`: its own two letters or their first? */
static bool in_property(category c, kvm_str name)
{
    return memcmp(category_names[c], name.at, (size_t)name.len) == 0;
}

static bool in_word(category c)
{
    const unsigned char bits = class_of[c];
    return (bits & (KVM_CH_LETTER | KVM_CH_MARK)) || c == Nd || c == Nl || c == Pc;
}

static ptrdiff_t word_set(kvm_range *out)
{
    ptrdiff_t n = 0, extra = 0;
    for (ptrdiff_t i = 0; i + 1 < COUNT(category_rows); i++) {
        const struct category_row *r = &category_rows[i];
        /* the extras lie inside rows of category No and So, in ascending order */
        while (extra < COUNT(word_extra) && word_extra[extra].first < r->first) {
            n = append(out, n, word_extra[extra].first, word_extra[extra].last);
            extra++;
        }
        if (in_word(r->cat)) n = append(out, n, r->first, r[1].first - 1);
    }
    return n;
}

ptrdiff_t kvm_unicode_set(kvm_str name, kvm_range out[KVM_SET_MAX])
{
    if (kvm_str_eq(name, KVM_STR("Han"))) return copy_set(han, COUNT(han), out);
    if (kvm_str_eq(name, KVM_STR("s"))) return copy_set(space, COUNT(space), out);
    if (kvm_str_eq(name, KVM_STR("w"))) return word_set(out);
    if (kvm_str_eq(name, KVM_STR("d"))) name = KVM_STR("Nd");
    if (name.len < 1 || name.len > 2) return -1;
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i + 1 < COUNT(category_rows); i++) {
        const struct category_row *r = &category_rows[i];
        if (in_property(r->cat, name)) n = append(out, n, r->first, r[1].first - 1);
    }
    return n > 0 ? n : -1;
}

bool kvm_unicode_is_han(uint32_t c)
{
    ptrdiff_t low = 0, high = COUNT(han);
    while (low < high) {
        const ptrdiff_t mid = low + (high - low) / 2;
        if (han[mid].last < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(han) && han[low].first <= c;
}

int kvm_utf8_put(char out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

/* Length of the sequence at p (left > 0 bytes): positive when well-formed, else minus
 * the length of its maximal ill-formed part. Unicode 16, table 3-7. */
static int sequence(const unsigned char *p, ptrdiff_t left)
{
    const unsigned char a = p[0];
    if (a < 0x80) return 1;
    if (a < 0xC2 || a > 0xF4) return -1;
    const int n = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    const unsigned char low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    if (left < 2 || p[1] < low || p[1] > high) return -1;
    for (int i = 2; i < n; i++)
        if (left <= i || (p[i] & 0xC0) != 0x80) return -i;
    return n;
}

ptrdiff_t kvm_utf8_valid(kvm_str s)
{
    const unsigned char *p = (const unsigned char *)s.at;
    ptrdiff_t i = 0;
    while (i < s.len) {
        uint64_t eight;
        if (s.len - i >= 8) {
            memcpy(&eight, p + i, 8);
            if (!(eight & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        const int n = sequence(p + i, s.len - i);
        if (n < 0) return i;
        i += n;
    }
    return i;
}

kvm_status kvm_utf8_require(kvm_str text, kvm_str file, kvm_err *err)
{
    const ptrdiff_t good = kvm_utf8_valid(text);
    if (good == text.len) return KVM_OK;
    ptrdiff_t line = 1;
    for (ptrdiff_t i = 0; i < good; i++) line += text.at[i] == '\n';
    return kvm_fail(err, KVM_FORMAT,
                    "%.*s:%td: byte %td (0x%02x) is not UTF-8: convert the text, with "
                    "iconv say, or cut the damage out",
                    KVM_STR_ARG(file), line, good, (unsigned char)text.at[good]);
}

ptrdiff_t kvm_utf8_lossy(char *out, kvm_str s)
{
    const unsigned char *p = (const unsigned char *)s.at;
    ptrdiff_t n = 0;
    for (ptrdiff_t i = 0; i < s.len;) {
        const int k = sequence(p + i, s.len - i);
        memcpy(out + n, k > 0 ? s.at + i : "\xEF\xBF\xBD", (size_t)(k > 0 ? k : 3));
        n += k > 0 ? k : 3;
        i += k > 0 ? k : -k;
    }
    return n;
}
