/* id_table.h - finds a request by its id: chained hashing over nodes that live in their elements.
 *
 * The buckets are allocated once; there may be more nodes than buckets. Thread rule: one thread at
 * a time. */
#ifndef KVA_BASE_ID_TABLE_H
#define KVA_BASE_ID_TABLE_H

#include "base/err.h"

struct kva_id_node {
    uint64_t id;
    struct kva_id_node *next;
};

struct kva_id_table {
    struct kva_id_node **buckets;
    uint32_t mask;
    uint32_t count;
};

/* For about `expected` nodes. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_id_table_init(struct kva_id_table *table, uint32_t expected);
void kva_id_table_finish(struct kva_id_table *table);

/* NULL if there is none. */
struct kva_id_node *kva_id_table_find(const struct kva_id_table *table, uint64_t id);

/* The caller sees to it that the id is not in the table. */
void kva_id_table_insert(struct kva_id_table *table, struct kva_id_node *node, uint64_t id);
void kva_id_table_remove(struct kva_id_table *table, struct kva_id_node *node);

#endif
