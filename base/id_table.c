/* id_table.c - buckets of nodes; it never grows. */
#include "base/id_table.h"

#include <stdlib.h>

#define BUCKETS_MAX (1u << 20)

enum kva_status kva_id_table_init(struct kva_id_table *table, uint32_t expected)
{
    uint32_t buckets = 16;
    while (buckets < expected && buckets < BUCKETS_MAX)
        buckets *= 2;
    struct kva_id_node **array = calloc(buckets, sizeof(struct kva_id_node *));
    if (!array)
        return KVA_ENOMEM;
    *table = (struct kva_id_table){.buckets = array, .mask = buckets - 1};
    return KVA_OK;
}

void kva_id_table_finish(struct kva_id_table *table)
{
    free(table->buckets);
    *table = (struct kva_id_table){0};
}

/* Ids may be consecutive or random; the multiplier spreads both (the golden ratio, 64 bits). */
static struct kva_id_node **bucket_of(const struct kva_id_table *table, uint64_t id)
{
    uint64_t mixed = id * 0x9E3779B97F4A7C15ull;
    return &table->buckets[(uint32_t)(mixed >> 32) & table->mask];
}

struct kva_id_node *kva_id_table_find(const struct kva_id_table *table, uint64_t id)
{
    struct kva_id_node *node = *bucket_of(table, id);
    while (node && node->id != id)
        node = node->next;
    return node;
}

void kva_id_table_insert(struct kva_id_table *table, struct kva_id_node *node, uint64_t id)
{
    struct kva_id_node **bucket = bucket_of(table, id);
    node->id = id;
    node->next = *bucket;
    *bucket = node;
    table->count++;
}

void kva_id_table_remove(struct kva_id_table *table, struct kva_id_node *node)
{
    struct kva_id_node **at = bucket_of(table, node->id);
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    node->next = NULL;
    table->count--;
}
