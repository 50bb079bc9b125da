/* store.c - a table by id, and for each owner a list by age. */
#include "server/responses/store.h"

#include "base/list.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096u

/* Whoever has responses here. */
struct owner {
    struct owner *next;
    struct kva_list ages; /* of its entries, the oldest first */
    uint64_t id;
    size_t bytes;
};

struct entry {
    struct kva_list age;
    struct entry *next; /* in the bucket */
    struct owner *owner;
    uint64_t hash;
    size_t bytes; /* of all */
    size_t document_bytes;
    size_t conversation_bytes;
    size_t input_bytes;
    const char *id;
    const char *document;
    const char *conversation;
    const char *input;
    char text[];
};

struct kva_response_store {
    pthread_mutex_t lock;
    size_t bytes_max;
    size_t bytes;
    uint32_t kept;
    struct owner *owners;
    struct entry *buckets[BUCKETS];
};

enum kva_status kva_response_store_create(size_t bytes_max, struct kva_response_store **ret,
                                          struct kva_err *err)
{
    struct kva_response_store *store = calloc(1, sizeof(*store));
    if (!store)
        return kva_fail(err, KVA_ENOMEM, "out of memory for stored responses");
    store->bytes_max = bytes_max;
    pthread_mutex_init(&store->lock, NULL);
    *ret = store;
    return KVA_OK;
}

/* FNV-1a; ids are compared in full, too. */
static uint64_t hash_of(const char *id)
{
    uint64_t hash = 14695981039346656037ull;
    for (; *id; id++)
        hash = (hash ^ (unsigned char)*id) * 1099511628211ull;
    return hash;
}

static struct entry **find(struct kva_response_store *store, const char *id, uint64_t owner)
{
    uint64_t hash = hash_of(id);
    struct entry **at = &store->buckets[hash % BUCKETS];
    while (*at && ((*at)->hash != hash || (*at)->owner->id != owner || strcmp((*at)->id, id) != 0))
        at = &(*at)->next;
    return at;
}

static void drop(struct kva_response_store *store, struct entry **at)
{
    struct entry *entry = *at;
    struct owner *owner = entry->owner, **link = &store->owners;
    *at = entry->next;
    kva_list_remove(&entry->age);
    store->bytes -= entry->bytes;
    owner->bytes -= entry->bytes;
    store->kept--;
    if (kva_list_empty(&owner->ages)) {
        while (*link != owner)
            link = &(*link)->next;
        *link = owner->next;
        free(owner);
    }
    free(entry);
}

static void drop_oldest(struct kva_response_store *store, const struct owner *owner)
{
    struct entry *entry = KVA_CONTAINER_OF(owner->ages.next, struct entry, age);
    drop(store, find(store, entry->id, owner->id));
}

/* Room for `bytes` of the owner `id`: the oldest responses go of whoever has most, that one's being
 * added, so that nobody drives out what others have while it has more itself. */
static void make_room(struct kva_response_store *store, uint64_t id, size_t bytes)
{
    while (store->bytes + bytes > store->bytes_max) {
        const struct owner *fullest = NULL;
        size_t most = 0;
        for (const struct owner *owner = store->owners; owner; owner = owner->next) {
            size_t has = owner->bytes + (owner->id == id ? bytes : 0);
            if (!fullest || has > most) {
                fullest = owner;
                most = has;
            }
        }
        drop_oldest(store, fullest);
    }
}

/* NULL: out of memory. */
static struct owner *owner_of(struct kva_response_store *store, uint64_t id)
{
    struct owner *owner = store->owners;
    while (owner && owner->id != id)
        owner = owner->next;
    if (owner || !(owner = calloc(1, sizeof(*owner))))
        return owner;
    owner->id = id;
    kva_list_init(&owner->ages);
    owner->next = store->owners;
    store->owners = owner;
    return owner;
}

void kva_response_store_destroy(struct kva_response_store *store)
{
    if (!store)
        return;
    while (store->owners)
        drop_oldest(store, store->owners);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

static const char *copy(char **at, const char *text, size_t length)
{
    char *result = *at;
    memcpy(result, text, length);
    result[length] = '\0';
    *at += length + 1;
    return result;
}

static size_t bytes_of(const struct kva_stored_response *response)
{
    return sizeof(struct entry) + strlen(response->id) + response->document_bytes +
           response->conversation_bytes + response->input_bytes + 4;
}

static struct entry *make(const struct kva_stored_response *response)
{
    size_t bytes = bytes_of(response);
    struct entry *entry = malloc(bytes);
    if (!entry)
        return NULL;
    char *at = entry->text;
    *entry = (struct entry){
        .hash = hash_of(response->id),
        .bytes = bytes,
        .document_bytes = response->document_bytes,
        .conversation_bytes = response->conversation_bytes,
        .input_bytes = response->input_bytes,
    };
    entry->id = copy(&at, response->id, strlen(response->id));
    entry->document = copy(&at, response->document, response->document_bytes);
    entry->conversation = copy(&at, response->conversation, response->conversation_bytes);
    entry->input = copy(&at, response->input, response->input_bytes);
    return entry;
}

void kva_response_store_put(struct kva_response_store *store,
                            const struct kva_stored_response *response)
{
    size_t bytes = bytes_of(response);
    struct entry *entry = bytes <= store->bytes_max ? make(response) : NULL;
    if (!entry)
        return;
    pthread_mutex_lock(&store->lock);
    make_room(store, response->owner, bytes);
    entry->owner = owner_of(store, response->owner);
    if (!entry->owner) {
        pthread_mutex_unlock(&store->lock);
        free(entry);
        return;
    }
    struct entry **bucket = &store->buckets[entry->hash % BUCKETS];
    entry->next = *bucket;
    *bucket = entry;
    kva_list_append(&entry->owner->ages, &entry->age);
    entry->owner->bytes += bytes;
    store->bytes += bytes;
    store->kept++;
    pthread_mutex_unlock(&store->lock);
}

bool kva_response_store_get(struct kva_response_store *store, const char *id, uint64_t owner,
                            struct kva_buf *document, struct kva_buf *conversation,
                            struct kva_buf *input)
{
    pthread_mutex_lock(&store->lock);
    const struct entry *entry = *find(store, id, owner);
    if (entry && document)
        kva_buf_append(document, entry->document, entry->document_bytes);
    if (entry && conversation)
        kva_buf_append(conversation, entry->conversation, entry->conversation_bytes);
    if (entry && input)
        kva_buf_append(input, entry->input, entry->input_bytes);
    pthread_mutex_unlock(&store->lock);
    return entry != NULL;
}

bool kva_response_store_remove(struct kva_response_store *store, const char *id, uint64_t owner)
{
    pthread_mutex_lock(&store->lock);
    struct entry **at = find(store, id, owner);
    bool found = *at != NULL;
    if (found)
        drop(store, at);
    pthread_mutex_unlock(&store->lock);
    return found;
}

void kva_response_store_get_stats(struct kva_response_store *store,
                                  struct kva_response_store_stats *ret)
{
    pthread_mutex_lock(&store->lock);
    *ret = (struct kva_response_store_stats){store->kept, store->bytes};
    pthread_mutex_unlock(&store->lock);
}
