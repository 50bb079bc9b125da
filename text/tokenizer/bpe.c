/* bpe.c - BPE of one piece.
 *
 * A piece becomes symbols; of all neighbouring pairs that have a merge the one of the lowest rank
 * is joined, the leftmost among equals, until none is left. Pieces may be a whole text, so:
 *
 * - a piece is cut where two symbols meet that no merged token has next to each other: what is left
 *   of prose is words;
 * - up to SMALL symbols the lowest rank is looked for by eye, which is quadratic and fast;
 * - beyond, pairs wait in a binary heap ordered by rank, then position: O(n log n). An entry is out
 *   of date if its position has another rank by now. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Merges of one piece between two looks at whether to go on. */
#define CHECK_MERGES  16384u

#define SMALL         32u
#define NO_RANK       UINT32_MAX
#define NONE          UINT32_MAX
#define CACHE_ENTRIES 8192u

static enum kva_status no_memory(struct kva_encoder *encoder)
{
    return kva_fail(encoder->matcher.err, KVA_ENOMEM, "no memory to tokenise a text of %zu bytes",
                    encoder->matcher.text_bytes);
}

/* ---- symbols -------------------------------------------------------------------------------- */

static enum kva_status reserve_symbols(struct kva_encoder *encoder, size_t extra)
{
    if (encoder->symbol_count + extra <= encoder->symbol_capacity)
        return KVA_OK;
    size_t capacity =
        kva_max_size(encoder->symbol_capacity * 2, encoder->symbol_count + extra + 256);
    int32_t *symbols = realloc(encoder->symbols, capacity * sizeof(*symbols));
    if (!symbols)
        return no_memory(encoder);
    encoder->symbols = symbols;
    encoder->symbol_capacity = capacity;
    return KVA_OK;
}

/* The symbol of a character as the vocabulary spells it, with the affixes. Not found: the bytes of
 * the spelling, if all have a token, or the unknown token, which is put down when the next known
 * character ends the unknown ones (or the next unknown one, unless they are fused). */
static enum kva_status add_character(struct kva_encoder *encoder, const char *text, size_t length,
                                     bool *unk_pending)
{
    const struct kva_bpe *bpe = &encoder->tokenizer->bpe;
    enum kva_status status = reserve_symbols(encoder, length + 2);
    if (status)
        return status;
    int32_t *symbols = encoder->symbols;
    int32_t id = kva_vocab_find_model(&encoder->tokenizer->vocab, text, length);
    if (id >= 0) {
        if (*unk_pending)
            symbols[encoder->symbol_count++] = bpe->unk;
        *unk_pending = false;
        symbols[encoder->symbol_count++] = id;
        return KVA_OK;
    }
    bool bytes = bpe->byte_fallback;
    for (size_t i = 0; bytes && i < length; i++)
        bytes = bpe->fallback_ids[(uint8_t)text[i]] >= 0;
    if (bytes) {
        for (size_t i = 0; i < length; i++)
            symbols[encoder->symbol_count++] = bpe->fallback_ids[(uint8_t)text[i]];
        return KVA_OK;
    }
    if (bpe->unk >= 0) {
        if (*unk_pending && !bpe->fuse_unk)
            symbols[encoder->symbol_count++] = bpe->unk;
        *unk_pending = true;
    }
    return KVA_OK;
}

static enum kva_status add_spelled(struct kva_encoder *encoder, const char *text, size_t length,
                                   bool first, bool last, bool *unk_pending)
{
    const struct kva_bpe *bpe = &encoder->tokenizer->bpe;
    char spelled[128];
    size_t at = 0;
    if (!first && bpe->prefix) {
        at = strlen(bpe->prefix);
        memcpy(spelled, bpe->prefix, at);
    }
    if (bpe->bytes_mode)
        at += (size_t)kva_utf8_encode(kva_bytelevel_code((uint8_t)text[0]), spelled + at);
    else {
        memcpy(spelled + at, text, length);
        at += length;
    }
    if (last && bpe->suffix) {
        memcpy(spelled + at, bpe->suffix, strlen(bpe->suffix));
        at += strlen(bpe->suffix);
    }
    return add_character(encoder, spelled, at, unk_pending);
}

static enum kva_status make_symbols(struct kva_encoder *encoder, const char *text, size_t length)
{
    const struct kva_bpe *bpe = &encoder->tokenizer->bpe;
    bool plain = !bpe->prefix && !bpe->suffix;
    bool unk_pending = false;
    encoder->symbol_count = 0;
    enum kva_status status = reserve_symbols(encoder, length + 1);
    for (size_t at = 0; !status && at < length;) {
        uint8_t byte = (uint8_t)text[at];
        if (plain && !unk_pending && (bpe->bytes_mode || byte < 0x80) && bpe->byte_ids[byte] >= 0) {
            if (encoder->symbol_count == encoder->symbol_capacity)
                status = reserve_symbols(encoder, length - at);
            if (!status)
                encoder->symbols[encoder->symbol_count++] = bpe->byte_ids[byte];
            at++;
            continue;
        }
        int size = bpe->bytes_mode ? 1 : kva_utf8_sequence(text + at, length - at, NULL);
        size_t end = at + (size_t)size;
        status =
            add_spelled(encoder, text + at, (size_t)size, at == 0, end == length, &unk_pending);
        at = end;
    }
    if (!status && unk_pending)
        status = reserve_symbols(encoder, 1);
    if (!status && unk_pending)
        encoder->symbols[encoder->symbol_count++] = bpe->unk;
    return status;
}

/* ---- merging -------------------------------------------------------------------------------- */

static uint32_t pair_rank(struct kva_encoder *encoder, int32_t left, int32_t right)
{
    encoder->work.lookups++;
    const struct kva_merge_slot *slot = kva_bpe_find(&encoder->tokenizer->bpe, left, right);
    return slot ? slot->rank : NO_RANK;
}

static enum kva_status emit_all(struct kva_encoder *encoder, const int32_t *ids, size_t count)
{
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < count && !status; i++)
        status = kva_encoder_emit(encoder, ids[i]);
    return status;
}

static size_t merge_small(struct kva_encoder *encoder, int32_t *ids, size_t count)
{
    const struct kva_bpe *bpe = &encoder->tokenizer->bpe;
    uint32_t ranks[SMALL];
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = pair_rank(encoder, ids[i], ids[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            if (ranks[i] < ranks[best])
                best = i;
        }
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = bpe->rank_ids[ranks[best]];
        encoder->work.merges++;
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof(*ids));
        if (best + 1 < count)
            memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof(*ranks));
        if (best + 1 < count)
            ranks[best] = pair_rank(encoder, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = pair_rank(encoder, ids[best - 1], ids[best]);
    }
    return count;
}

static void sift_down(uint64_t *queue, size_t count, size_t at)
{
    uint64_t entry = queue[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && queue[child + 1] < queue[child])
            child++;
        if (queue[child] >= entry)
            break;
        queue[at] = queue[child];
        at = child;
    }
    queue[at] = entry;
}

static uint64_t queue_pop(struct kva_encoder *encoder)
{
    uint64_t *queue = encoder->queue;
    uint64_t top = queue[0];
    queue[0] = queue[--encoder->queue_count];
    if (encoder->queue_count > 0)
        sift_down(queue, encoder->queue_count, 0);
    return top;
}

/* There is room: a merge takes an entry out before it puts two in, and every merge removes a
 * symbol, so there are never more than two for each symbol. */
static void queue_push(struct kva_encoder *encoder, uint32_t rank, uint32_t position)
{
    uint64_t *queue = encoder->queue;
    uint64_t entry = (uint64_t)rank << 32 | position;
    size_t at = encoder->queue_count++;
    while (at > 0 && queue[(at - 1) / 2] > entry) {
        queue[at] = queue[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue[at] = entry;
    encoder->work.queue_pushes++;
}

static enum kva_status reserve_merge(struct kva_encoder *encoder, size_t count)
{
    if (count > encoder->node_capacity) {
        free(encoder->nodes);
        encoder->node_capacity = 0;
        encoder->nodes = malloc(count * sizeof(*encoder->nodes));
        if (!encoder->nodes)
            return no_memory(encoder);
        encoder->node_capacity = count;
    }
    if (count * 2 > encoder->queue_capacity) {
        free(encoder->queue);
        encoder->queue_capacity = 0;
        encoder->queue = malloc(count * 2 * sizeof(*encoder->queue));
        if (!encoder->queue)
            return no_memory(encoder);
        encoder->queue_capacity = count * 2;
    }
    return KVA_OK;
}

/* Looks the pair that starts at `position` up again and queues it. */
static void refresh_pair(struct kva_encoder *encoder, uint32_t position)
{
    struct kva_bpe_node *nodes = encoder->nodes;
    struct kva_bpe_node *node = &nodes[position];
    node->rank = node->next == NONE ? NO_RANK : pair_rank(encoder, node->id, nodes[node->next].id);
    if (node->rank != NO_RANK)
        queue_push(encoder, node->rank, position);
}

static enum kva_status merge_queued(struct kva_encoder *encoder)
{
    enum kva_status status = KVA_OK;
    struct kva_bpe_node *nodes = encoder->nodes;
    for (uint32_t turn = 1; encoder->queue_count > 0 && !status; turn++) {
        if (turn % CHECK_MERGES == 0)
            status = kva_encoder_check(encoder);
        uint64_t top = queue_pop(encoder);
        uint32_t position = (uint32_t)top;
        struct kva_bpe_node *node = &nodes[position];
        if (node->rank != (uint32_t)(top >> 32))
            continue;
        struct kva_bpe_node *right = &nodes[node->next];
        node->id = encoder->tokenizer->bpe.rank_ids[node->rank];
        right->rank = NO_RANK;
        node->next = right->next;
        if (node->next != NONE)
            nodes[node->next].previous = position;
        encoder->work.merges++;
        refresh_pair(encoder, position);
        if (node->previous != NONE)
            refresh_pair(encoder, node->previous);
    }
    return status;
}

static enum kva_status merge_large(struct kva_encoder *encoder, const int32_t *ids, size_t count)
{
    enum kva_status status = reserve_merge(encoder, count);
    if (status)
        return status;
    struct kva_bpe_node *nodes = encoder->nodes;
    encoder->queue_count = 0;
    for (size_t i = 0; i < count; i++) {
        nodes[i] = (struct kva_bpe_node){
            .id = ids[i],
            .rank = i + 1 < count ? pair_rank(encoder, ids[i], ids[i + 1]) : NO_RANK,
            .next = i + 1 < count ? (uint32_t)i + 1 : NONE,
            .previous = i > 0 ? (uint32_t)i - 1 : NONE,
        };
        if (nodes[i].rank != NO_RANK)
            encoder->queue[encoder->queue_count++] = (uint64_t)nodes[i].rank << 32 | i;
    }
    encoder->work.queue_pushes += encoder->queue_count;
    for (size_t i = encoder->queue_count / 2; i > 0; i--)
        sift_down(encoder->queue, encoder->queue_count, i - 1);
    status = merge_queued(encoder);
    for (uint32_t at = 0; at != NONE && !status; at = nodes[at].next)
        status = kva_encoder_emit(encoder, nodes[at].id);
    return status;
}

static enum kva_status merge_symbols(struct kva_encoder *encoder)
{
    const struct kva_bpe *bpe = &encoder->tokenizer->bpe;
    int32_t *symbols = encoder->symbols;
    size_t count = encoder->symbol_count;
    enum kva_status status = KVA_OK;
    for (size_t at = 0; at < count && !status;) {
        size_t end = at + 1;
        if (bpe->joins) {
            while (end < count && kva_bpe_may_join(bpe, symbols[end - 1], symbols[end]))
                end++;
        } else {
            end = count;
        }
        if (end - at > SMALL)
            status = merge_large(encoder, symbols + at, end - at);
        else
            status = emit_all(encoder, symbols + at, merge_small(encoder, symbols + at, end - at));
        at = end;
    }
    return status;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static bool cache_find(struct kva_encoder *encoder, uint64_t hash, const char *text, size_t length,
                       enum kva_status *status)
{
    const struct kva_piece_cache_entry *entry = &encoder->cache[hash % CACHE_ENTRIES];
    if (entry->hash != hash || entry->length != length || memcmp(entry->text, text, length) != 0)
        return false;
    encoder->work.cache_hits++;
    *status = emit_all(encoder, entry->ids, entry->count);
    return true;
}

static void cache_store(struct kva_encoder *encoder, uint64_t hash, const char *text, size_t length,
                        size_t first_id)
{
    size_t count = encoder->token_count - first_id;
    struct kva_piece_cache_entry *entry = &encoder->cache[hash % CACHE_ENTRIES];
    if (count > KVA_COUNT_OF(entry->ids) || encoder->token_count > encoder->tokens_max)
        return;
    entry->hash = hash;
    entry->length = (uint8_t)length;
    entry->count = (uint8_t)count;
    memcpy(entry->text, text, length);
    memcpy(entry->ids, encoder->list->ids + encoder->list->count - count, count * sizeof(int32_t));
}

/* With ignore_merges a piece that is an entry of the vocabulary is that token. */
static int32_t whole_piece(struct kva_encoder *encoder, const char *text, size_t length)
{
    const struct kva_vocab *vocab = &encoder->tokenizer->vocab;
    if (length > vocab->token_bytes_longest)
        return -1;
    if (!encoder->tokenizer->bpe.bytes_mode)
        return kva_vocab_find_model(vocab, text, length);
    kva_buf_clear(&encoder->spelled);
    kva_bytelevel_spell(&encoder->spelled, text, length);
    if (encoder->spelled.failed)
        return -1;
    return kva_vocab_find_model(vocab, encoder->spelled.data, encoder->spelled.length);
}

enum kva_status kva_bpe_encode(struct kva_encoder *encoder, const char *text, size_t length)
{
    enum kva_status status = KVA_OK;
    bool cached = encoder->cache && length <= sizeof(encoder->cache->text);
    uint64_t hash = 0;
    size_t first_id = encoder->token_count;
    encoder->work.pieces++;
    if (cached) {
        hash = kva_tok_hash(encoder->tokenizer->vocab.seed, text, length);
        if (cache_find(encoder, hash, text, length, &status))
            return status;
    }
    int32_t whole = -1;
    if (encoder->tokenizer->bpe.ignore_merges)
        whole = whole_piece(encoder, text, length);
    if (whole >= 0) {
        status = kva_encoder_emit(encoder, whole);
    } else {
        status = make_symbols(encoder, text, length);
        if (!status)
            status = merge_symbols(encoder);
    }
    if (!status && cached)
        cache_store(encoder, hash, text, length, first_id);
    return status;
}
