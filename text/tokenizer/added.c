/* added.c - added tokens: loading, and finding them in a text. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Keys of the trie hold a node in 24 bits. */
#define TRIE_BYTES_MAX (1u << 23)

/* ---- the trie ------------------------------------------------------------------------------- */

static uint32_t trie_slot(const struct kva_trie *trie, uint32_t key)
{
    uint32_t at = (uint32_t)(((uint64_t)key * 0x9E3779B97F4A7C15ull) >> 32) & trie->slot_mask;
    while (trie->slots[at].key != UINT32_MAX && trie->slots[at].key != key)
        at = (at + 1) & trie->slot_mask;
    return at;
}

/* Room for tokens of `bytes` bytes together. */
static bool trie_init(struct kva_trie *trie, size_t bytes)
{
    size_t slots = 16;
    while (slots < bytes * 2)
        slots *= 2;
    trie->slots = malloc(slots * sizeof(*trie->slots));
    trie->tokens = malloc((bytes + 1) * sizeof(*trie->tokens));
    if (!trie->slots || !trie->tokens)
        return false;
    memset(trie->slots, 0xFF, slots * sizeof(*trie->slots));
    trie->slot_mask = (uint32_t)(slots - 1);
    trie->node_count = 1;
    trie->tokens[0] = -1;
    return true;
}

static void trie_finish(struct kva_trie *trie)
{
    free(trie->slots);
    free(trie->tokens);
}

/* The first of several tokens with one text stays. */
static void trie_insert(struct kva_trie *trie, const char *text, size_t length, uint32_t token)
{
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t key = node << 8 | (uint8_t)text[i];
        struct kva_trie_slot *slot = &trie->slots[trie_slot(trie, key)];
        if (slot->key == UINT32_MAX) {
            slot->key = key;
            slot->node = trie->node_count++;
            trie->tokens[slot->node] = -1;
        }
        node = slot->node;
    }
    trie->starts[(uint8_t)text[0]] = true;
    if (trie->tokens[node] < 0)
        trie->tokens[node] = (int32_t)token;
}

/* The longest token that starts at `text`, or -1. A step for each byte of it: tokens are short. */
static int32_t trie_longest(const struct kva_trie *trie, const char *text, size_t length,
                            size_t *ret_length)
{
    int32_t best = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t key = node << 8 | (uint8_t)text[i];
        const struct kva_trie_slot *slot = &trie->slots[trie_slot(trie, key)];
        if (slot->key == UINT32_MAX)
            break;
        node = slot->node;
        if (trie->tokens[node] >= 0) {
            best = trie->tokens[node];
            *ret_length = i + 1;
        }
    }
    return best;
}

/* ---- loading -------------------------------------------------------------------------------- */

static enum kva_status load_one(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                                const cJSON *item, struct kva_added_token *token)
{
    struct kva_tok_place id_place = kva_tok_place_member(place, "id");
    const char *content;
    uint32_t id;
    if (!cJSON_IsObject(item))
        return kva_tok_complain(place, KVA_EFORMAT, "not an object");
    enum kva_status status = kva_tok_json_uint(
        &id_place, cJSON_GetObjectItemCaseSensitive(item, "id"), KVA_TOKENIZER_VOCAB_MAX - 1, &id);
    if (!status)
        status = kva_tok_json_string(place, item, "content", &content);
    if (!status)
        status = kva_tok_json_bool(place, item, "single_word", false, &token->single_word);
    if (!status)
        status = kva_tok_json_bool(place, item, "lstrip", false, &token->lstrip);
    if (!status)
        status = kva_tok_json_bool(place, item, "rstrip", false, &token->rstrip);
    if (!status)
        status = kva_tok_json_bool(place, item, "special", false, &token->special);
    if (!status)
        status = kva_tok_json_bool(place, item, "normalized", !token->special, &token->normalized);
    if (status)
        return status;
    if (strlen(content) > KVA_TOKENIZER_ADDED_BYTES_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "an added token has %zu bytes, limit is %d",
                                strlen(content), KVA_TOKENIZER_ADDED_BYTES_MAX);
    if (!*content)
        return kva_tok_complain(place, KVA_EFORMAT, "an added token is empty");
    token->id = (int32_t)id;
    uint8_t flags = (uint8_t)(KVA_TOK_ADDED | (token->special ? KVA_TOK_SPECIAL : 0));
    return kva_vocab_add(&tokenizer->vocab, place, content, id, flags);
}

/* The text that a token is found by: normalized tokens are looked for in normalized text, so they
 * are normalized themselves. */
static enum kva_status pattern_text(const struct kva_tokenizer *tokenizer,
                                    const struct kva_added_token *token,
                                    struct kva_matcher *matcher, struct kva_buf buffers[2],
                                    const char **text, size_t *length)
{
    *text = kva_tokenizer_token_string(tokenizer, token->id, length);
    if (!token->normalized)
        return KVA_OK;
    return kva_normalize(&tokenizer->normalizer, matcher, buffers, text, length);
}

static enum kva_status build_tries(struct kva_tokenizer *tokenizer,
                                   const struct kva_tok_place *place)
{
    struct kva_added *added = &tokenizer->added;
    size_t bytes[2] = {0, 0};
    struct kva_matcher matcher;
    struct kva_buf buffers[2];
    enum kva_status status = KVA_OK;
    kva_matcher_init(&matcher, 0, place->err);
    kva_buf_init(&buffers[0], 64u << 10);
    kva_buf_init(&buffers[1], 64u << 10);
    /* First the sizes, then the content. Special tokens go first: they win over a plain one. */
    for (int pass = 0; pass < 3 && !status; pass++) {
        if (pass == 1 &&
            (!trie_init(&added->raw, bytes[0]) || !trie_init(&added->normalized, bytes[1])))
            status = kva_tok_complain(place, KVA_ENOMEM, "no memory for the added tokens");
        for (uint32_t i = 0; i < added->count && !status; i++) {
            const struct kva_added_token *token = &added->tokens[i];
            const char *text;
            size_t length;
            if (pass > 0 && token->special != (pass == 1))
                continue;
            status = pattern_text(tokenizer, token, &matcher, buffers, &text, &length);
            if (status || length == 0)
                continue;
            if (pass > 0)
                trie_insert(token->normalized ? &added->normalized : &added->raw, text, length, i);
            else
                bytes[token->normalized] += length;
            if (bytes[0] + bytes[1] >= TRIE_BYTES_MAX)
                status = kva_tok_complain(place, KVA_ETOOBIG,
                                          "the added tokens have more than %u bytes together",
                                          TRIE_BYTES_MAX);
        }
    }
    kva_matcher_finish(&matcher);
    kva_buf_finish(&buffers[0]);
    kva_buf_finish(&buffers[1]);
    return status;
}

enum kva_status kva_added_load(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                               const cJSON *array)
{
    struct kva_added *added = &tokenizer->added;
    size_t count = array ? (size_t)cJSON_GetArraySize(array) : 0;
    enum kva_status status = KVA_OK;
    added->tokens = calloc(count + 1, sizeof(*added->tokens));
    if (!added->tokens)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for %zu added tokens", count);
    size_t index = 0;
    for (const cJSON *item = count ? array->child : NULL; item && !status; item = item->next) {
        struct kva_tok_place each = kva_tok_place_index(place, index++);
        status = load_one(tokenizer, &each, item, &added->tokens[added->count]);
        added->count += !status;
    }
    return status ? status : build_tries(tokenizer, place);
}

void kva_added_finish(struct kva_added *added)
{
    free(added->tokens);
    trie_finish(&added->raw);
    trie_finish(&added->normalized);
}

/* ---- matching ------------------------------------------------------------------------------- */

/* The start of the last character before `at`; at > 0. */
static size_t char_before(const char *text, size_t at)
{
    do {
        at--;
    } while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

static uint32_t code_at(const char *text, size_t length, size_t at, size_t *ret_end)
{
    int size = kva_utf8_sequence(text + at, length - at, NULL);
    *ret_end = at + (size_t)size;
    return kva_utf8_decode(text + at, size);
}

static bool is_in_word(const char *text, size_t length, size_t start, size_t end)
{
    size_t ignored;
    if (start > 0 && kva_code_is_word(code_at(text, length, char_before(text, start), &ignored)))
        return true;
    return end < length && kva_code_is_word(code_at(text, length, end, &ignored));
}

static void take_spaces(const struct kva_added_token *token, const char *text, size_t length,
                        size_t floor, struct kva_added_match *match)
{
    while (token->lstrip && match->start > floor) {
        size_t ignored;
        size_t before = char_before(text, match->start);
        if (!kva_code_is_space(code_at(text, length, before, &ignored)))
            break;
        match->start = before;
    }
    while (token->rstrip && match->end < length) {
        size_t after;
        if (!kva_code_is_space(code_at(text, length, match->end, &after)))
            break;
        match->end = after;
    }
}

bool kva_added_next(const struct kva_added *added, const struct kva_trie *trie, const char *text,
                    size_t length, size_t at, size_t floor, bool parse_special,
                    struct kva_added_match *ret_match)
{
    if (trie->node_count <= 1)
        return false;
    while (at < length) {
        size_t size = 0;
        int32_t index = -1;
        if (trie->starts[(uint8_t)text[at]])
            index = trie_longest(trie, text + at, length - at, &size);
        if (index < 0) {
            at++;
            continue;
        }
        /* A token that may not be used here still hides those that overlap it. */
        const struct kva_added_token *token = &added->tokens[index];
        struct kva_added_match match = {token, at, at + size, at + size};
        at += size;
        if (token->special && !parse_special)
            continue;
        if (token->single_word && is_in_word(text, length, match.start, match.end))
            continue;
        take_spaces(token, text, length, floor, &match);
        /* The spaces that the token before took may be, or begin, a token themselves. */
        if (match.end <= floor)
            continue;
        match.start = kva_max_size(match.start, floor);
        *ret_match = match;
        return true;
    }
    return false;
}
