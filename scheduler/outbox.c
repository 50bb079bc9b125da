/* outbox.c - records packed into blocks. */
#include "scheduler/outbox.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (16u << 10)

struct kva_outbox_block {
    struct kva_outbox_block *next;
    size_t used;
    size_t capacity;
    size_t extra_bytes; /* that records of this block point to */
    void (*released)(void *opaque);
    void *opaque;
    bool borrowed; /* storage is not ours to free */
    alignas(8) unsigned char data[];
};

/* A record: its size, then the first bytes of a struct kva_output. */
struct record_head {
    uint64_t bytes; /* of the output that follows */
};

void kva_outbox_init(struct kva_outbox *box)
{
    *box = (struct kva_outbox){0};
}

void kva_outbox_finish(struct kva_outbox *box)
{
    kva_outbox_drain(box, NULL, NULL);
    free(box->spare);
    kva_outbox_init(box);
}

static size_t output_bytes(const struct kva_output *output)
{
    size_t bytes = 0;
    switch (output->kind) {
    case KVA_OUTPUT_PROGRESS:
        bytes = offsetof(struct kva_output, progress) + sizeof(output->progress);
        break;
    case KVA_OUTPUT_PROMPT_LOGPROBS:
        bytes = offsetof(struct kva_output, prompt_logprobs) + sizeof(output->prompt_logprobs);
        break;
    case KVA_OUTPUT_POOLED:
        bytes = offsetof(struct kva_output, pooled) + sizeof(output->pooled);
        break;
    case KVA_OUTPUT_TOKEN:
        bytes = offsetof(struct kva_output, token.top) +
                output->token.top_count * sizeof(output->token.top[0]);
        break;
    case KVA_OUTPUT_END:
        bytes = offsetof(struct kva_output, end) + sizeof(output->end);
        break;
    }
    return kva_align_up(bytes, 8);
}

size_t kva_outbox_reserve_bytes(void)
{
    return kva_align_up(sizeof(struct kva_outbox_block) + sizeof(struct record_head) +
                            sizeof(struct kva_output),
                        alignof(max_align_t));
}

static void link_block(struct kva_outbox *box, struct kva_outbox_block *block)
{
    block->next = NULL;
    if (box->last)
        box->last->next = block;
    else
        box->first = block;
    box->last = block;
    box->bytes += block->capacity;
}

static struct kva_outbox_block *block_with_room(struct kva_outbox *box, size_t bytes)
{
    struct kva_outbox_block *block = box->last;
    if (block && block->capacity - block->used >= bytes)
        return block;
    block = box->spare;
    box->spare = NULL;
    if (!block) {
        block = malloc(sizeof(*block) + BLOCK_BYTES);
        if (!block)
            return NULL;
    }
    *block = (struct kva_outbox_block){.capacity = BLOCK_BYTES};
    link_block(box, block);
    return block;
}

static struct kva_output *put_record(struct kva_outbox *box, struct kva_outbox_block *block,
                                     const struct kva_output *output, size_t bytes)
{
    struct record_head head = {.bytes = bytes};
    unsigned char *at = block->data + block->used;
    memcpy(at, &head, sizeof(head));
    memcpy(at + sizeof(head), output, bytes);
    block->used += sizeof(head) + bytes;
    box->count++;
    return (struct kva_output *)(void *)(at + sizeof(head));
}

/* What an output points to, and how much that is; NULL: nothing. */
static const void *extra_of(const struct kva_output *output, size_t *ret_bytes)
{
    *ret_bytes = 0;
    if (output->kind == KVA_OUTPUT_PROMPT_LOGPROBS) {
        *ret_bytes = output->prompt_logprobs.count * sizeof(*output->prompt_logprobs.entries);
        return output->prompt_logprobs.entries;
    }
    if (output->kind == KVA_OUTPUT_POOLED) {
        *ret_bytes = output->pooled.count * sizeof(*output->pooled.values);
        return output->pooled.values;
    }
    return NULL;
}

enum kva_status kva_outbox_put(struct kva_outbox *box, const struct kva_output *output)
{
    size_t extra_bytes;
    const void *extra = extra_of(output, &extra_bytes);
    void *own = NULL;
    if (extra_bytes > 0) {
        own = malloc(extra_bytes);
        if (!own)
            return KVA_ENOMEM;
        memcpy(own, extra, extra_bytes);
    }
    size_t bytes = output_bytes(output);
    struct kva_outbox_block *block = block_with_room(box, sizeof(struct record_head) + bytes);
    if (!block) {
        free(own);
        return KVA_ENOMEM;
    }
    struct kva_output *copy = put_record(box, block, output, bytes);
    if (output->kind == KVA_OUTPUT_PROMPT_LOGPROBS)
        copy->prompt_logprobs.entries = own;
    else if (output->kind == KVA_OUTPUT_POOLED)
        copy->pooled.values = own;
    block->extra_bytes += extra_bytes;
    box->bytes += extra_bytes;
    return KVA_OK;
}

void kva_outbox_put_end(struct kva_outbox *box, const struct kva_output *output, void *storage,
                        void (*released)(void *opaque), void *opaque)
{
    struct kva_outbox_block *block = storage;
    size_t bytes = output_bytes(output);
    *block = (struct kva_outbox_block){
        .capacity = sizeof(struct record_head) + bytes,
        .released = released,
        .opaque = opaque,
        .borrowed = true,
    };
    link_block(box, block);
    put_record(box, block, output, bytes);
}

void kva_outbox_append(struct kva_outbox *box, struct kva_outbox *from)
{
    if (!from->first)
        return;
    if (box->last)
        box->last->next = from->first;
    else
        box->first = from->first;
    box->last = from->last;
    box->count += from->count;
    box->bytes += from->bytes;
    from->first = NULL;
    from->last = NULL;
    from->count = 0;
    from->bytes = 0;
}

static void drain_block(const struct kva_outbox_block *block, kva_output_fn fn, void *opaque)
{
    /* A whole structure is handed over, though records are shorter: whoever copies it reads
     * only memory that is there. */
    struct kva_output output;
    memset(&output, 0, sizeof(output));
    for (size_t at = 0; at < block->used;) {
        struct record_head head;
        memcpy(&head, block->data + at, sizeof(head));
        memcpy(&output, block->data + at + sizeof(head), head.bytes);
        if (fn)
            fn(opaque, &output);
        size_t extra_bytes;
        free((void *)(uintptr_t)extra_of(&output, &extra_bytes));
        at += sizeof(head) + head.bytes;
    }
}

size_t kva_outbox_drain(struct kva_outbox *box, kva_output_fn fn, void *opaque)
{
    size_t count = box->count;
    while (box->first) {
        struct kva_outbox_block *block = box->first;
        box->first = block->next;
        drain_block(block, fn, opaque);
        if (block->borrowed) {
            block->released(block->opaque);
        } else if (!box->spare) {
            box->spare = block;
        } else {
            free(block);
        }
    }
    box->last = NULL;
    box->count = 0;
    box->bytes = 0;
    return count;
}
