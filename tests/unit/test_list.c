/* Rows as one argument: what goes into the word {rows} comes out of it, on both
 * databases. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "schema/list.h"

#include <stdlib.h>

#include "tests/support/queue.h"

static kvm_arena keep;
static kvm_db *db;

static int set_up(void **state)
{
    (void)state;
    MUST(kvm_arena_init(&keep, 16 << 20, e));
    MUST(kvm_db_open(&db, kvm_str_of(kvm_test_catalogue(kvm_test_home("list"))), NULL,
                     e));
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    kvm_db_close(db);
    kvm_arena_free(&keep);
    return 0;
}

static kvm_rows ask(const char *text, kvm_list *l)
{
    char *sql;
    kvm_cell arg;
    kvm_rows rows;
    MUST(kvm_db_expand(db, text, &sql, e));
    MUST(kvm_list_give(l, &arg, &keep, e));
    MUST(db->driver->query(db, -1, sql, &arg, 1, &rows, &keep, NULL, e));
    free(sql);
    return rows;
}

static void rows_come_back_as_they_went(void **state)
{
    (void)state;
    const kvm_str texts[] = {KVM_STR(""), KVM_STR("a \"b\" \\ /"),
                             KVM_STR("line\nand\ttab \x01"), KVM_STR("Größe – 木"),
                             KVM_STR("[1,null]")};
    enum { TEXTS = 5 };
    kvm_list l = {0};
    for (int i = 0; i < TEXTS; i++)
        kvm_list_add(&l, KVM_ARGS(kvm_cell_i(INT64_MAX - i), kvm_cell_s(texts[i]),
                                  kvm_cell_f(i / 8.0)));
    kvm_list_add(&l, KVM_ARGS(kvm_cell_i(-1), (kvm_cell){0}, (kvm_cell){0}));
    const kvm_rows r =
        ask("SELECT x.a, x.b, x.c FROM {rows $1: a i, b t, c f} x ORDER BY a DESC", &l);
    assert_int_equal(r.count, TEXTS + 1);
    for (int i = 0; i < TEXTS; i++) {
        assert_true(kvm_rows_i64(&r, i, 0) == INT64_MAX - i);
        check_str(kvm_rows_str(&r, i, 1), texts[i].at);
        assert_true(kvm_rows_f64(&r, i, 2) == i / 8.0);
    }
    assert_int_equal(r.cells[TEXTS * 3 + 1].type, KVM_CELL_NULL);
    assert_int_equal(r.cells[TEXTS * 3 + 2].type, KVM_CELL_NULL);
}

static void what_is_no_utf8_is_marked(void **state)
{
    (void)state;
    kvm_list l = {0};
    kvm_list_add(&l, KVM_ARGS(kvm_cell_s(KVM_STR("a\xffz\0b"))));
    const kvm_rows r = ask("SELECT b FROM {rows $1: b t} x", &l);
    check_str(kvm_rows_str(&r, 0, 0), "a?z?b");
}

static void an_empty_list_is_an_empty_table(void **state)
{
    (void)state;
    kvm_list l = {0};
    assert_int_equal(ask("SELECT x.id FROM {rows $1: id i} x", &l).count, 0);
}

static void a_list_joins_as_a_table(void **state)
{
    (void)state;
    kvm_list l = {0};
    for (int i = 0; i < 300; i++)
        kvm_list_add(&l, KVM_ARGS(kvm_cell_i(i), kvm_cell_i(i % 7)));
    const kvm_rows r = ask("SELECT COUNT(*) FROM {rows $1: id i, n i} x "
                           "JOIN {rows $1: id i, n i} y ON y.id = x.n",
                           &l);
    assert_int_equal(kvm_rows_i64(&r, 0, 0), 300);
}

static void bad_words_are_refused(void **state)
{
    (void)state;
    static const char *const words[] = {"{rows}", "{rows $1}", "{rows $1: id}",
                                        "{rows $1: id x}", "{rows $1:}"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *sql = NULL;
        if (kvm_db_expand(db, words[i], &sql, NULL) != KVM_INTERNAL)
            fail_msg("%s", words[i]);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(rows_come_back_as_they_went),     T(what_is_no_utf8_is_marked),
        T(an_empty_list_is_an_empty_table), T(a_list_joins_as_a_table),
        T(bad_words_are_refused),
    };
    return kvm_test_both("list", tests);
}
