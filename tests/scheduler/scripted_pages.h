/* scripted_pages.h - the scripted engine's memory: counted bytes in two tiers, and closed prompt
 * pages that sequences share.
 *
 *     page          host_refs > 0   some sequence needs it
 *                   host_refs = 0   only the cache has it: given up on demand, oldest first
 *     its low copy  resident, device_refs > 0   a running sequence reads it
 *                   resident, device_refs = 0   cached on the device: given up on demand
 *                   not resident                re-made from the host when wanted */
#ifndef KVA_TESTS_SCHEDULER_SCRIPTED_PAGES_H
#define KVA_TESTS_SCHEDULER_SCRIPTED_PAGES_H

#include "base/id_table.h"
#include "base/list.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

/* The contract is broken: say how, and end the test. */
#define SCRIPTED_CHECK(condition, ...)                                                             \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "scripted engine: %s: ", #condition);                                  \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct scripted_page {
    struct kva_id_node node; /* id: hash of the prompt up to the page's end */
    struct kva_list host_idle;
    struct kva_list device_idle;
    uint32_t host_refs;
    uint32_t device_refs;
    bool resident;
    struct kva_tier_bytes bytes;
};

struct scripted_pool {
    struct kva_id_table pages;
    struct kva_list host_idle; /* oldest first */
    struct kva_list device_idle;
    struct kva_tier_bytes used;
    struct kva_tier_bytes cached;
    struct kva_tier_bytes budget;
    struct kva_tier_bytes peak;
};

void scripted_pool_init(struct scripted_pool *pool, struct kva_tier_bytes budget);

/* Drops the cache; aborts if anything else is left. */
void scripted_pool_finish(struct scripted_pool *pool);

/* Take bytes, giving up cached pages if need be. Fails: KVA_ELIMIT (`short_of`, if not NULL, is the
 * tier), nothing taken. */
KVA_MUST_CHECK enum kva_status scripted_pool_take(struct scripted_pool *pool,
                                                  struct kva_tier_bytes want,
                                                  enum kva_tier_id *short_of, struct kva_err *err);
void scripted_pool_give(struct scripted_pool *pool, struct kva_tier_bytes bytes);

struct scripted_page *scripted_pool_find(const struct scripted_pool *pool, uint64_t hash);

/* Turn bytes that a sequence owns into a page that it shares, referenced once in each tier. */
struct scripted_page *scripted_pool_publish(struct scripted_pool *pool, uint64_t hash,
                                            struct kva_tier_bytes bytes);

/* References keep a page from being given up. device_ref does not make it resident. */
void scripted_page_host_ref(struct scripted_pool *pool, struct scripted_page *page);
void scripted_page_host_unref(struct scripted_pool *pool, struct scripted_page *page);
void scripted_page_device_ref(struct scripted_pool *pool, struct scripted_page *page);
void scripted_page_device_unref(struct scripted_pool *pool, struct scripted_page *page);

#endif
