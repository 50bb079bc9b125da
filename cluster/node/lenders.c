/* lenders.c - members in the order of what they lend. */
#include "cluster/node/lenders.h"

#include "engine/lending.h"

#include <stdlib.h>

enum kva_status kva_lenders_init(struct kva_lenders *lenders, uint32_t max, struct kva_err *err)
{
    *lenders = (struct kva_lenders){.of = calloc(max, sizeof(*lenders->of)), .max = max};
    return lenders->of ? KVA_OK : kva_fail(err, KVA_ENOMEM, "no memory for %u lenders", max);
}

void kva_lenders_finish(struct kva_lenders *lenders)
{
    free(lenders->of);
    *lenders = (struct kva_lenders){0};
}

void kva_lenders_remove(struct kva_lenders *lenders, uint32_t node)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < lenders->count; i++)
        if (lenders->of[i].node != node)
            lenders->of[kept++] = lenders->of[i];
    lenders->count = kept;
}

void kva_lenders_put(struct kva_lenders *lenders, uint32_t node, uint32_t pages)
{
    kva_lenders_remove(lenders, node);
    if (lenders->count == lenders->max)
        return;
    uint32_t at = lenders->count++;
    for (; at > 0 && lenders->of[at - 1].pages < pages; at--)
        lenders->of[at] = lenders->of[at - 1];
    lenders->of[at] = (struct kva_lender){node, pages};
}

uint64_t kva_lenders_pages(const struct kva_lenders *lenders)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < lenders->count && i < KVA_KV_LOANS_MAX; i++)
        pages += lenders->of[i].pages;
    return pages;
}
