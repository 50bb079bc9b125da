/* store.h - responses that may be asked for again, or continued (the Responses API).
 *
 * Memory is bounded: of too many the oldest go of whoever has most. A response belongs to whoever
 * made it; to others it does not exist. Nothing of it is written to a disk.
 *
 * Thread rule: any thread. */
#ifndef KVA_SERVER_RESPONSES_STORE_H
#define KVA_SERVER_RESPONSES_STORE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

struct kva_response_store;

/* bytes_max 0: nothing is kept. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status
kva_response_store_create(size_t bytes_max, struct kva_response_store **ret, struct kva_err *err);
/* NULL is allowed. */
void kva_response_store_destroy(struct kva_response_store *store);

struct kva_stored_response {
    const char *id;
    uint64_t owner;
    const char *document; /* as it was answered */
    size_t document_bytes;
    const char *conversation; /* JSON: the messages up to and with the answer's */
    size_t conversation_bytes;
    const char *input; /* JSON: the items that it was asked with */
    size_t input_bytes;
};

/* Copies it; one that is larger than the store, or for which there is no memory, is not kept. */
void kva_response_store_put(struct kva_response_store *store,
                            const struct kva_stored_response *response);

/* Append the document, the conversation, or the input; each may be NULL. False: there is none of the id and the
 * owner. */
bool kva_response_store_get(struct kva_response_store *store, const char *id, uint64_t owner,
                            struct kva_buf *document, struct kva_buf *conversation,
                            struct kva_buf *input);

/* False: there is none. */
bool kva_response_store_remove(struct kva_response_store *store, const char *id, uint64_t owner);

struct kva_response_store_stats {
    uint32_t kept;
    size_t bytes;
};
void kva_response_store_get_stats(struct kva_response_store *store,
                                  struct kva_response_store_stats *ret);

#endif
