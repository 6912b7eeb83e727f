/* The table of statuses and the rules of kvm_err: first failure wins, one line, no
 * overflow. */
#include "base/status.h"

#include <errno.h>
#include <string.h>

#include "tests/support/check.h"

static void every_row_has_a_name_a_text_and_an_action(void **state)
{
    (void)state;
    int rows = 0;
#define X(id, name, action, text)                                                      \
    assert_string_equal(kvm_status_name(KVM_##name), #name);                           \
    assert_string_equal(kvm_status_text(KVM_##name), text);                            \
    assert_int_equal(kvm_status_action(KVM_##name), KVM_##action);                     \
    rows++;
#include "base/status.def"
#undef X
    assert_true(rows >= 24);
    assert_string_equal(kvm_status_name((kvm_status)9999), "UNKNOWN");
    assert_int_equal(kvm_status_action((kvm_status)9999), KVM_FAIL);
}

/* Ids stand in catalogues: a changed one breaks every store that exists. */
static void ids_never_change(void **state)
{
    (void)state;
    assert_int_equal(KVM_OK, 0);
    assert_int_equal(KVM_NOSPACE, 3);
    assert_int_equal(KVM_SINGULAR, 10);
    assert_int_equal(KVM_CANCELLED, 17);
    assert_int_equal(KVM_INTERNAL, 22);
    assert_int_equal(KVM_DAMAGED, 23);
}

static void the_first_failure_wins(void **state)
{
    (void)state;
    kvm_err err = {0};
    assert_int_equal(kvm_fail(&err, KVM_SHAPE, "rows %d", 7), KVM_SHAPE);
    const int line = err.line;
    assert_int_equal(kvm_fail(&err, KVM_IO, "later"), KVM_IO);
    assert_int_equal(err.code, KVM_SHAPE);
    assert_int_equal(err.line, line);
    assert_string_equal(err.msg, "rows 7");
    assert_string_equal(err.file, __FILE__);
}

static void a_null_err_still_gives_the_code(void **state)
{
    (void)state;
    assert_int_equal(kvm_fail(NULL, KVM_RANGE, "x"), KVM_RANGE);
    errno = ENOSPC;
    assert_int_equal(kvm_fail_errno(NULL, "x"), KVM_NOSPACE);
    assert_int_equal(kvm_err_prefix(NULL, KVM_RANGE, "x"), KVM_RANGE);
}

static void errno_is_translated_once(void **state)
{
    (void)state;
    static const struct {
        int code;
        kvm_status status;
    } rows[] = {{ENOSPC, KVM_NOSPACE},
                {EDQUOT, KVM_NOSPACE},
                {ENOENT, KVM_NOTFOUND},
                {ENOMEM, KVM_NOMEM},
                {EIO, KVM_IO},
                {ENOTDIR, KVM_NOTFOUND},
                {EACCES, KVM_ENVIRONMENT},
                {EPERM, KVM_ENVIRONMENT},
                {EROFS, KVM_ENVIRONMENT}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kvm_err err = {0};
        errno = rows[i].code;
        assert_int_equal(kvm_fail_errno(&err, "open %s", "a.bin"), rows[i].status);
        assert_int_equal(err.code, rows[i].status);
        assert_int_equal(errno, rows[i].code);
        assert_int_equal(strncmp(err.msg, "open a.bin: ", 12), 0);
        assert_string_equal(err.msg + 12, strerror(rows[i].code));
    }
}

static void a_prefix_stands_in_front(void **state)
{
    (void)state;
    kvm_err err = {0};
    const kvm_status s = kvm_fail(&err, KVM_NAN, "row 3");
    assert_int_equal(kvm_err_prefix(&err, s, "layer %d", 2), KVM_NAN);
    assert_string_equal(err.msg, "layer 2: row 3");
    assert_int_equal(kvm_err_prefix(&err, KVM_OK, "nothing"), KVM_OK);
    assert_string_equal(err.msg, "layer 2: row 3");
}

static void long_messages_are_cut_and_control_bytes_replaced(void **state)
{
    (void)state;
    char text[2 * KVM_ERR_BYTES];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    kvm_err err = {0};
    const kvm_status s = kvm_fail(&err, KVM_FORMAT, "%s", text);
    assert_int_equal(strlen(err.msg), KVM_ERR_BYTES - 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvm_err_prefix(&err, s, "%.*s", 200, text), KVM_FORMAT);
        assert_int_equal(strlen(err.msg), KVM_ERR_BYTES - 1);
    }
    assert_int_equal(kvm_err_prefix(&err, s, "%s", text), KVM_FORMAT);
    assert_int_equal(strlen(err.msg), KVM_ERR_BYTES - 1);

    kvm_err forged = {0};
    assert_int_equal(kvm_fail(&forged, KVM_USAGE, "a\nb\x1b[31m\tc"), KVM_USAGE);
    assert_string_equal(forged.msg, "a?b?[31m?c");
}

/* Messages go into JSON, which takes only UTF-8. */
static void broken_characters_are_replaced(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
         "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff", "?"},
        {"\xc3", "?"},
        {"a\xe2\x82", "a??"},
        {"\xc0\xaf", "??"},           /* overlong */
        {"\xed\xa0\x80", "???"},      /* a surrogate */
        {"\xf4\x90\x80\x80", "????"}, /* beyond Unicode */
        {"\xf0\x8f\x80\x80", "????"},
        {"\xe0\x9f\xbf", "???"},
        {"\x80x", "?x"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvm_err err = {0};
        check_status(KVM_FORMAT, kvm_fail(&err, KVM_FORMAT, "%s", rows[i][0]), &err);
        assert_string_equal(err.msg, rows[i][1]);
    }
    /* a character that the end of the buffer cuts */
    char text[KVM_ERR_BYTES + 2];
    memset(text, 'a', sizeof text);
    memcpy(text + KVM_ERR_BYTES - 2, "\xc3\xa9", 3);
    kvm_err err = {0};
    check_status(KVM_FORMAT, kvm_fail(&err, KVM_FORMAT, "%s", text), &err);
    assert_string_equal(err.msg + KVM_ERR_BYTES - 3, "a?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_a_name_a_text_and_an_action),
        cmocka_unit_test(ids_never_change),
        cmocka_unit_test(the_first_failure_wins),
        cmocka_unit_test(a_null_err_still_gives_the_code),
        cmocka_unit_test(errno_is_translated_once),
        cmocka_unit_test(a_prefix_stands_in_front),
        cmocka_unit_test(broken_characters_are_replaced),
        cmocka_unit_test(long_messages_are_cut_and_control_bytes_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
