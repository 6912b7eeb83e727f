/* migrations.h - the numbered scripts of schema/migrations, inside the program. Private
 * to schema/. */
#ifndef KVM_SCHEMA_MIGRATIONS_H
#define KVM_SCHEMA_MIGRATIONS_H

typedef struct kvm_migration {
    int version;     /* 1, 2 … without gaps */
    const char *sql; /* words in braces as in statements.def */
} kvm_migration;

extern const kvm_migration kvm_migrations[];
extern const int kvm_migration_count;

#endif
