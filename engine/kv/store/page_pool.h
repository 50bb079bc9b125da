/* page_pool.h - pages of KVA_PAGE_TOKENS tokens: their home in host memory, who refers to them, and
 * the prefix cache.
 *
 * A page is one 64-token piece of one sequence for all layers. Its home is a slot of the host tier:
 *
 *     host slot:  [layer 0 block][layer 1 block] ... [layer n-1 block]        (block:
 * kernels/ops.h)
 *
 * It may also have a copy on the device. A page is open while its sequence still writes it; closed
 * pages are immutable, and may be shared: by sequences with the same beginning (the prefix cache)
 * or by continuations of one prompt.
 *
 *     taken (refs 1, open) -> closed -> refs 0, cached (in the LRU list) -> evicted, free
 *                                        ^------ found by a new sequence
 *
 * A promise is host memory that an admitted sequence will need later; it cannot be taken by others,
 * so that a running sequence never fails for lack of host memory.
 *
 * The cache is found by hash and verified in full (parent page, 64 token ids, scope), so that no
 * collision, accidental or made, can show one request another's KV.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PAGE_POOL_H
#define KVA_ENGINE_KV_PAGE_POOL_H

#include "kernels/device.h"
#include "kernels/ops.h"

struct kva_page {
    unsigned char *host; /* page_bytes of host memory */
    void *device;        /* a copy for policies that attend to whole pages on the device, or NULL */
    uint32_t device_users; /* running sequences that rely on `device`; 0: it may be dropped once
                              on_host */
    void *low;          /* a copy in another form, on the device, that sequences share, or NULL */
    uint32_t low_users; /* running sequences that use it; the last one gives it back */
    uint64_t low_key;   /* which form */
    uint32_t refs;      /* sequences that hold the page */
    bool closed;
    bool on_host; /* the host has all of it (or the copy is queued) */
    bool cached;  /* in the prefix table */
    bool chained; /* its uid names an entry of the prefix table: this page, or an equal one that was
                     there before, in whose place it comes if that is evicted first */

    /* Identity in the prefix cache. */
    uint64_t
        uid; /* unique among pages ever closed; equal pages that were cached first lend theirs */
    uint64_t parent_uid; /* 0: first page of a sequence */
    uint64_t scope[2];
    uint64_t hash;
    uint32_t tokens[KVA_PAGE_TOKENS];

    struct kva_page *hash_next;
    struct kva_page *lru_prev, *lru_next;       /* cached pages nobody holds, or the free list */
    struct kva_page *device_prev, *device_next; /* pages with a droppable device copy */
};

struct kva_page_list {
    struct kva_page *head, *tail; /* head: longest unused */
    uint32_t count;
};

struct kva_page_pool;

struct kva_page_pool_params {
    struct kva_device *device;
    size_t page_bytes;
    uint64_t budget_bytes;
    bool prefix_cache;
    /* Called when a page is evicted or freed while it has a device copy: the owner of the device
     * tier takes that back. */
    void (*drop_device)(void *opaque, struct kva_page *page);
    void *opaque;
};

/* Fails: KVA_EINVAL (budget under one page), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_page_pool_create(const struct kva_page_pool_params *params,
                                                    struct kva_page_pool **ret,
                                                    struct kva_err *err);
void kva_page_pool_destroy(struct kva_page_pool *pool);

/* Promise `count` pages. False: free and evictable pages minus earlier promises do not suffice. */
bool kva_page_pool_promise(struct kva_page_pool *pool, uint32_t count);
void kva_page_pool_unpromise(struct kva_page_pool *pool, uint32_t count);

/* Turn one promised page into an open one with refs 1. Never fails for a promised page. */
struct kva_page *kva_page_pool_take(struct kva_page_pool *pool);

/* Hold a page that others hold or that is cached. False: it is cached and evictable, and holding it
 * would break promises. */
bool kva_page_pool_hold(struct kva_page_pool *pool, struct kva_page *page);

/* Let go. The last one out leaves a cached page to the cache, and one that was equal to a page that is
 * not there any more; it frees any other. */
void kva_page_pool_release(struct kva_page_pool *pool, struct kva_page *page);

/* A page that its only holder has to itself, and that is not cached, is about to be written anew: it
 * comes into the cache no more. */
void kva_page_pool_disown(struct kva_page *page);

/* The cached page that continues `parent` (NULL: starts a sequence of `scope`) with these tokens,
 * or NULL. */
struct kva_page *kva_page_pool_find(struct kva_page_pool *pool, const struct kva_page *parent,
                                    const uint64_t scope[2], const uint32_t *tokens);

/* Make an open page immutable; enter it into the prefix cache if `share` and no equal page is
 * there. */
void kva_page_pool_close(struct kva_page_pool *pool, struct kva_page *page,
                         const struct kva_page *parent, const uint64_t scope[2],
                         const uint32_t *tokens, bool share);

uint32_t kva_page_pool_total(const struct kva_page_pool *pool);
/* Pages held, cached or promised. */
uint32_t kva_page_pool_used(const struct kva_page_pool *pool);
/* Of them: cached and held by nobody. */
uint32_t kva_page_pool_evictable(const struct kva_page_pool *pool);

#endif
