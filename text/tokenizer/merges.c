/* merges.c - the merges that the scores of pieces stand for. */
#include "text/tokenizer/pieces.h"

#include <stdlib.h>

static enum kva_status no_memory(const struct kva_pieces *pieces)
{
    return kva_tok_complain(&pieces->place, KVA_ENOMEM, "no memory for the merges");
}

struct merge {
    float score;
    int32_t id, left, right;
};

static int compare_merges(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

struct merges {
    struct merge *items;
    size_t count, capacity;
};

static bool push_merge(struct merges *merges, struct merge merge)
{
    if (merges->count == merges->capacity) {
        size_t capacity = merges->capacity ? 2 * merges->capacity : 4096;
        struct merge *items = realloc(merges->items, capacity * sizeof(*items));
        if (!items)
            return false;
        merges->items = items;
        merges->capacity = capacity;
    }
    merges->items[merges->count++] = merge;
    return true;
}

/* All ways to make token `id` of two tokens. Tokens longer than any that is trained are left out,
 * so that the work stays linear in the file. */
static enum kva_status split_token(const struct kva_pieces *pieces, const struct kva_vocab *vocab,
                                   uint32_t id, struct merges *merges)
{
    enum { SPLIT_BYTES_MAX = 512 };
    const struct kva_piece *token = &pieces->items[id];
    if (token->length > SPLIT_BYTES_MAX || token->type != KVA_PIECE_NORMAL)
        return KVA_OK;
    for (size_t at = 1; at < token->length; at++) {
        if (((unsigned char)token->text[at] & 0xC0) == 0x80)
            continue;
        int32_t left = kva_vocab_find(vocab, token->text, at);
        int32_t right = kva_vocab_find(vocab, token->text + at, token->length - at);
        if (left < 0 || right < 0)
            continue;
        if (merges->count == KVA_TOKENIZER_MERGES_MAX)
            return kva_tok_complain(&pieces->place, KVA_ETOOBIG, "more than %d pairs make a token",
                                    KVA_TOKENIZER_MERGES_MAX);
        if (!push_merge(merges, (struct merge){token->score, (int32_t)id, left, right}))
            return no_memory(pieces);
    }
    return KVA_OK;
}

static enum kva_status add_pair(const struct kva_pieces *pieces, cJSON *array,
                                const struct merge *merge)
{
    cJSON *pair = cJSON_CreateArray();
    if (!pair || !cJSON_AddItemToArray(array, pair)) {
        cJSON_Delete(pair);
        return no_memory(pieces);
    }
    enum kva_status status =
        kva_tok_tree_append(&pieces->place, pair, pieces->items[merge->left].text);
    return status ? status
                  : kva_tok_tree_append(&pieces->place, pair, pieces->items[merge->right].text);
}

enum kva_status kva_pieces_put_merges(const struct kva_pieces *pieces, cJSON *array)
{
    struct kva_vocab vocab = {.entries = NULL};
    struct merges merges = {.items = NULL};
    enum kva_status status = kva_vocab_init(&vocab, pieces->count);
    if (status)
        status = no_memory(pieces);
    for (uint32_t id = 0; id < pieces->count && !status; id++)
        if (pieces->items[id].length > 0 && pieces->items[id].type == KVA_PIECE_NORMAL)
            status =
                kva_vocab_add(&vocab, &pieces->place, pieces->items[id].text, id, KVA_TOK_MODEL);
    for (uint32_t id = 0; id < pieces->count && !status; id++)
        status = split_token(pieces, &vocab, id, &merges);
    if (!status && merges.count > 0)
        qsort(merges.items, merges.count, sizeof(*merges.items), compare_merges);
    for (size_t i = 0; i < merges.count && !status; i++)
        status = add_pair(pieces, array, &merges.items[i]);
    kva_vocab_finish(&vocab);
    free(merges.items);
    return status;
}
