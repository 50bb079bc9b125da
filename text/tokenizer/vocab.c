/* vocab.c - the vocabulary: token ids by text. */
#include "text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define POOL_BYTES_MAX KVA_TOKENIZER_FILE_BYTES_MAX

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t kva_tok_hash(uint64_t seed, const char *text, size_t length)
{
    uint64_t hash = seed ^ mix(length, 0x9E3779B97F4A7C15ull);
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = mix(hash ^ word, 0xD6E8FEB86659FD93ull ^ seed);
        text += 8;
        length -= 8;
    }
    uint64_t word = 0;
    if (length > 0)
        memcpy(&word, text, length);
    return mix(hash ^ word, 0xA0761D6478BD642Full ^ seed);
}

enum kva_status kva_vocab_init(struct kva_vocab *vocab, size_t entries_max)
{
    kva_buf_init(&vocab->pool, POOL_BYTES_MAX);
    kva_buf_init(&vocab->bytes_pool, POOL_BYTES_MAX);
    if (getrandom(&vocab->seed, sizeof(vocab->seed), GRND_NONBLOCK) != sizeof(vocab->seed))
        vocab->seed = (uint64_t)(uintptr_t)vocab * 0x9E3779B97F4A7C15ull;
    vocab->seed |= 1;
    size_t slots = 64;
    while (slots < entries_max * 2)
        slots *= 2;
    vocab->slots = malloc(slots * sizeof(*vocab->slots));
    if (!vocab->slots)
        return KVA_ENOMEM;
    for (size_t i = 0; i < slots; i++)
        vocab->slots[i].id = -1;
    vocab->slot_mask = (uint32_t)(slots - 1);
    return KVA_OK;
}

void kva_vocab_finish(struct kva_vocab *vocab)
{
    kva_buf_finish(&vocab->pool);
    kva_buf_finish(&vocab->bytes_pool);
    free(vocab->entries);
    free(vocab->slots);
}

/* The slot of `text`, or the free slot where it would go. */
static struct kva_vocab_slot *probe(const struct kva_vocab *vocab, const char *text, size_t length)
{
    uint32_t hash = (uint32_t)(kva_tok_hash(vocab->seed, text, length) >> 32);
    for (uint32_t at = hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        struct kva_vocab_slot *slot = &vocab->slots[at];
        if (slot->id < 0) {
            slot->hash = hash;
            return slot;
        }
        const struct kva_vocab_entry *entry = &vocab->entries[slot->id];
        if (slot->hash == hash && entry->length == length &&
            memcmp(vocab->pool.data + entry->offset, text, length) == 0)
            return slot;
    }
}

static enum kva_status grow_entries(struct kva_vocab *vocab, uint32_t id)
{
    if (id < vocab->capacity)
        return KVA_OK;
    uint32_t capacity = kva_max_u32(id + 1, kva_max_u32(256, vocab->capacity * 2));
    struct kva_vocab_entry *entries = realloc(vocab->entries, capacity * sizeof(*entries));
    if (!entries)
        return KVA_ENOMEM;
    memset(entries + vocab->capacity, 0, (capacity - vocab->capacity) * sizeof(*entries));
    vocab->entries = entries;
    vocab->capacity = capacity;
    return KVA_OK;
}

enum kva_status kva_vocab_add(struct kva_vocab *vocab, const struct kva_tok_place *place,
                              const char *text, uint32_t id, uint8_t flags)
{
    size_t length = strlen(text);
    if (length > KVA_TOKENIZER_TOKEN_BYTES_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "token %u has %zu bytes, limit is %d", id,
                                length, KVA_TOKENIZER_TOKEN_BYTES_MAX);
    if (grow_entries(vocab, id))
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for %u tokens", id + 1);
    struct kva_vocab_slot *slot = probe(vocab, text, length);
    struct kva_vocab_entry *entry = &vocab->entries[id];
    if (slot->id >= 0) {
        if (slot->id != (int32_t)id)
            return kva_tok_complain(place, KVA_EFORMAT, "token '%.60s' has two ids, %d and %u",
                                    text, slot->id, id);
        if (entry->flags & flags)
            return kva_tok_complain(place, KVA_EFORMAT, "token '%.60s' stands there twice", text);
        entry->flags = (uint8_t)(entry->flags | flags);
        return KVA_OK;
    }
    if (entry->flags)
        return kva_tok_complain(place, KVA_EFORMAT, "id %u names two tokens, '%.60s' and '%.60s'",
                                id, vocab->pool.data + entry->offset, text);
    size_t offset = vocab->pool.length;
    kva_buf_append(&vocab->pool, text, length + 1);
    if (vocab->pool.failed)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for the text of token %u", id);
    *entry = (struct kva_vocab_entry){
        .offset = (uint32_t)offset, .length = (uint32_t)length, .flags = flags};
    slot->id = (int32_t)id;
    vocab->size = kva_max_u32(vocab->size, id + 1);
    vocab->count++;
    vocab->token_bytes_longest = kva_max_u32(vocab->token_bytes_longest, (uint32_t)length);
    return KVA_OK;
}

int32_t kva_vocab_find(const struct kva_vocab *vocab, const char *text, size_t length)
{
    if (length > vocab->token_bytes_longest)
        return -1;
    uint32_t hash = (uint32_t)(kva_tok_hash(vocab->seed, text, length) >> 32);
    for (uint32_t at = hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        const struct kva_vocab_slot *slot = &vocab->slots[at];
        if (slot->id < 0)
            return -1;
        const struct kva_vocab_entry *entry = &vocab->entries[slot->id];
        if (slot->hash == hash && entry->length == length &&
            memcmp(vocab->pool.data + entry->offset, text, length) == 0)
            return slot->id;
    }
}

int32_t kva_vocab_find_model(const struct kva_vocab *vocab, const char *text, size_t length)
{
    int32_t id = kva_vocab_find(vocab, text, length);
    return id >= 0 && (vocab->entries[id].flags & KVA_TOK_MODEL) ? id : -1;
}
