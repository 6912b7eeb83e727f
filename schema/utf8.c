#include "schema/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* bytes of the character at `from`; 0: there is none */
static ptrdiff_t character(kvm_str s, ptrdiff_t from)
{
    utf8proc_int32_t c;
    const ptrdiff_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s.at + from, s.len - from, &c);
    return n > 0 && c != 0 ? n : 0;
}

bool kvm_utf8(kvm_str *s, char **heap)
{
    ptrdiff_t good = 0, n;
    *heap = NULL;
    while (good < s->len && (n = character(*s, good)) > 0) good += n;
    if (good == s->len) return true;
    char *out = malloc((size_t)s->len);
    if (!out) return false;
    memcpy(out, s->at, (size_t)s->len);
    for (ptrdiff_t i = good; i < s->len; i += n ? n : 1) {
        n = character(*s, i);
        if (!n) out[i] = '?';
    }
    *s = (kvm_str){out, s->len};
    *heap = out;
    return true;
}
