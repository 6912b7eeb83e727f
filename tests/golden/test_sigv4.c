/* Signatures against tests/golden/sigv4.py, whose header says which AWS has
 * published. */
#include "base/sigv4.h"

#include <string.h>

#include "base/json.h"
#include "tests/support/check.h"

static kvm_str text(kvm_jat at, kvm_arena *a, const char *key)
{
    kvm_err err = {0};
    kvm_str s;
    check_ok(kvm_json_str(kvm_json_get(at, a, key), &s, &err), &err);
    return s;
}

static void check_case(kvm_jat row, kvm_arena *a)
{
    kvm_err err = {0};
    kvm_str made;
    ptrdiff_t n;
    const kvm_jat key = kvm_json_get(row, a, "key");
    const kvm_jat rows = kvm_json_get(row, a, "headers");
    kvm_http_header headers[8];
    check_ok(kvm_json_array(rows, &n, &err), &err);
    assert_true(n <= 8);
    for (ptrdiff_t i = 0; i < n; i++) {
        const kvm_jat pair = kvm_json_item(rows, a, i);
        kvm_str name;
        check_ok(kvm_json_str(kvm_json_item(pair, a, 0), &name, &err), &err);
        check_ok(kvm_json_str(kvm_json_item(pair, a, 1), &headers[i].value, &err),
                 &err);
        headers[i].name = name.at;
    }
    const kvm_sigv4_key k = {text(key, a, "id"), text(key, a, "secret"),
                             text(key, a, "region"), text(key, a, "service")};
    const kvm_sigv4_request r = {.method = text(row, a, "method").at,
                                 .path = text(row, a, "path"),
                                 .query = text(row, a, "query"),
                                 .headers = headers,
                                 .header_count = n,
                                 .payload_sha = text(row, a, "payload_sha"),
                                 .date = text(row, a, "date")};
    check_ok(kvm_sigv4_sign(&made, a, &k, &r, &err), &err);
    check_str(made, text(row, a, "authorization").at);
}

static void signatures(void **state)
{
    (void)state;
    kvm_err err = {0};
    kvm_arena a = check_arena(16 << 20);
    kvm_jat root;
    ptrdiff_t n;
    check_ok(kvm_json_read(&root, &a, KVM_STR("tests/golden/sigv4.json"), &err), &err);
    const kvm_jat cases = kvm_json_get(root, &a, "cases");
    check_ok(kvm_json_array(cases, &n, &err), &err);
    assert_true(n > 10);
    for (ptrdiff_t i = 0; i < n; i++) check_case(kvm_json_item(cases, &a, i), &a);
    kvm_arena_free(&a);
}

static void dates(void **state)
{
    (void)state;
    char text_of[17];
    kvm_str none;
    kvm_arena a = check_arena(1 << 20);
    kvm_sigv4_date(1440938160, text_of);
    assert_string_equal(text_of, "20150830T123600Z");
    const kvm_sigv4_key k = {KVM_STR("i"), KVM_STR("s"), KVM_STR("r"), KVM_STR("s3")};
    const kvm_sigv4_request r = {.method = "GET", .date = KVM_STR("today")};
    check_refused(KVM_USAGE, "no date", kvm_sigv4_sign(&none, &a, &k, &r, &no));
    kvm_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(signatures),
                                       cmocka_unit_test(dates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
