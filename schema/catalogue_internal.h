/* catalogue_internal.h - what the files of schema/ know of a catalogue. */
#ifndef KVM_SCHEMA_CATALOGUE_INTERNAL_H
#define KVM_SCHEMA_CATALOGUE_INTERNAL_H

#include "schema/catalogue.h"
#include "schema/db.h"

struct kvm_catalogue {
    kvm_db *db;        /* NULL: closed */
    kvm_str where;     /* for messages; db's */
    kvm_arena scratch; /* temporaries of one call: used by value */
};

#endif
