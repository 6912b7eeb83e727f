/* migrations.c - the assembler copies each script into the program as it stands,
 * NUL-terminated. A new one is a file and a SCRIPT line; a script that has been
 * released never changes. */
#include "schema/migrations.h"

#define SCRIPT(n, name)                                                                \
    extern const char kvm_migration_##n[];                                             \
    __asm__(".pushsection .rodata\n"                                                   \
            ".global kvm_migration_" #n "\n"                                           \
            "kvm_migration_" #n ":\n"                                                  \
            ".incbin \"schema/migrations/" name "\"\n"                                 \
            ".byte 0\n"                                                                \
            ".popsection\n");

SCRIPT(1, "0001_first.sql")
SCRIPT(2, "0002_equal_suites.sql")
SCRIPT(3, "0003_fleet.sql")

const kvm_migration kvm_migrations[] = {
    {1, kvm_migration_1},
    {2, kvm_migration_2},
    {3, kvm_migration_3},
};
const int kvm_migration_count = sizeof kvm_migrations / sizeof *kvm_migrations;
