/* pieces.c - pieces, and the tree of a tokenizer.json that is built of them. */
#include "text/tokenizer/pieces.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* "▁" */
#define SPACE "\xE2\x96\x81"

enum kva_status kva_pieces_init(struct kva_pieces *pieces, const struct kva_tok_place *place,
                                uint64_t count, size_t text_bytes)
{
    *pieces = (struct kva_pieces){.place = *place, .unk = -1};
    if (count == 0 || count > KVA_TOKENIZER_VOCAB_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "%llu tokens, allowed are 1..%d",
                                (unsigned long long)count, KVA_TOKENIZER_VOCAB_MAX);
    pieces->items = calloc(count, sizeof(*pieces->items));
    if (!pieces->items)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for %llu tokens",
                                (unsigned long long)count);
    pieces->count = (uint32_t)count;
    kva_arena_init(&pieces->texts, 2 * text_bytes + count * 32ull + 65536);
    return KVA_OK;
}

void kva_pieces_finish(struct kva_pieces *pieces)
{
    kva_arena_finish(&pieces->texts);
    free(pieces->items);
    pieces->items = NULL;
}

enum kva_status kva_pieces_set_text(struct kva_pieces *pieces, uint32_t id, const char *text,
                                    size_t length)
{
    if (length > KVA_TOKENIZER_TOKEN_BYTES_MAX)
        return kva_tok_complain(&pieces->place, KVA_ETOOBIG, "token %u has %zu bytes, limit is %d",
                                id, length, KVA_TOKENIZER_TOKEN_BYTES_MAX);
    char *copy = kva_arena_strndup(&pieces->texts, text, length);
    if (!copy)
        return kva_tok_complain(&pieces->place, KVA_ENOMEM, "no memory for %u tokens",
                                pieces->count);
    if (memchr(copy, '\0', length))
        return kva_tok_complain(&pieces->place, KVA_EFORMAT, "token %u has a NUL in it", id);
    if (!kva_utf8_valid(copy, length))
        return kva_tok_complain(&pieces->place, KVA_EFORMAT, "token %u is not UTF-8", id);
    pieces->items[id].text = copy;
    pieces->items[id].length = (uint32_t)length;
    return KVA_OK;
}

void kva_pieces_unmark(struct kva_pieces *pieces, uint32_t id)
{
    struct kva_piece *piece = &pieces->items[id];
    char *to = piece->text;
    for (const char *from = piece->text; *from;) {
        bool mark = strncmp(from, SPACE, sizeof(SPACE) - 1) == 0;
        *to++ = mark ? ' ' : *from;
        from += mark ? sizeof(SPACE) - 1 : 1;
    }
    *to = '\0';
    piece->length = (uint32_t)(to - piece->text);
}

/* ---- building a tree ------------------------------------------------------------------------- */

static enum kva_status no_memory(const struct kva_tok_place *place)
{
    return kva_tok_complain(place, KVA_ENOMEM, "no memory for the vocabulary");
}

enum kva_status kva_tok_tree_add(const struct kva_tok_place *place, cJSON *object, const char *name,
                                 cJSON *value)
{
    if (value && cJSON_AddItemToObject(object, name, value))
        return KVA_OK;
    cJSON_Delete(value);
    return no_memory(place);
}

enum kva_status kva_tok_tree_add_text(const struct kva_tok_place *place, cJSON *object,
                                      const char *name, const char *json)
{
    return json ? kva_tok_tree_add(place, object, name, cJSON_Parse(json)) : KVA_OK;
}

enum kva_status kva_tok_tree_append(const struct kva_tok_place *place, cJSON *array,
                                    const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    if (item && cJSON_AddItemToArray(array, item))
        return KVA_OK;
    cJSON_Delete(item);
    return no_memory(place);
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* Whether BPE may make it. */
static bool is_in_model(const struct kva_pieces *pieces, uint32_t id)
{
    const struct kva_piece *piece = &pieces->items[id];
    return piece->length > 0 &&
           (piece->type == KVA_PIECE_NORMAL || piece->type == KVA_PIECE_BYTE ||
            piece->type == KVA_PIECE_UNKNOWN || piece->merged || (int64_t)id == pieces->unk);
}

static void mark(struct kva_pieces *pieces, const struct kva_vocab *others, const char *text,
                 size_t length)
{
    int32_t id = kva_vocab_find(others, text, length);
    if (id >= 0)
        pieces->items[id].merged = true;
}

/* Both parts, and what they make. */
static void mark_parts(struct kva_pieces *pieces, const struct kva_vocab *others, const char *merge,
                       struct kva_buf *joined)
{
    const char *space = strchr(merge, ' ');
    if (!space)
        return; /* complained of where it is loaded */
    kva_buf_clear(joined);
    kva_buf_append(joined, merge, (size_t)(space - merge));
    kva_buf_puts(joined, space + 1);
    mark(pieces, others, merge, (size_t)(space - merge));
    mark(pieces, others, space + 1, strlen(space + 1));
    if (joined->data)
        mark(pieces, others, joined->data, joined->length);
}

enum kva_status kva_pieces_mark_merged(struct kva_pieces *pieces, const cJSON *merges)
{
    struct kva_vocab others = {.entries = NULL};
    struct kva_buf joined;
    const cJSON *merge;
    enum kva_status status = KVA_OK;
    if (kva_vocab_init(&others, pieces->count))
        status = kva_tok_complain(&pieces->place, KVA_ENOMEM, "no memory for the vocabulary");
    /* Of fillers that are called the same one is enough. */
    for (uint32_t id = 0; id < pieces->count && !status; id++) {
        const struct kva_piece *piece = &pieces->items[id];
        if (piece->length > 0 && !is_in_model(pieces, id) &&
            kva_vocab_find(&others, piece->text, piece->length) < 0)
            status = kva_vocab_add(&others, &pieces->place, piece->text, id, KVA_TOK_MODEL);
    }
    kva_buf_init(&joined, 2 * KVA_TOKENIZER_TOKEN_BYTES_MAX);
    if (!status && others.count > 0)
        cJSON_ArrayForEach(merge, merges) mark_parts(pieces, &others, merge->valuestring, &joined);
    if (!status && joined.failed)
        status = kva_tok_complain(&pieces->place, KVA_ENOMEM, "no memory for the merges");
    kva_buf_finish(&joined);
    kva_vocab_finish(&others);
    return status;
}

static enum kva_status add_added(const struct kva_pieces *pieces, cJSON *array, uint32_t id)
{
    const struct kva_piece *piece = &pieces->items[id];
    bool special = piece->type != KVA_PIECE_USER_DEFINED;
    if (piece->length == 0 || piece->type == KVA_PIECE_NORMAL || piece->type == KVA_PIECE_BYTE ||
        piece->type == KVA_PIECE_UNUSED)
        return KVA_OK;
    cJSON *item = cJSON_CreateObject();
    if (item && cJSON_AddNumberToObject(item, "id", id) &&
        cJSON_AddStringToObject(item, "content", piece->text) &&
        cJSON_AddBoolToObject(item, "special", special) &&
        cJSON_AddBoolToObject(item, "normalized", false) && cJSON_AddItemToArray(array, item))
        return KVA_OK;
    cJSON_Delete(item);
    return no_memory(&pieces->place);
}

enum kva_status kva_pieces_put(const struct kva_pieces *pieces, cJSON *root, cJSON *model)
{
    cJSON *vocab = cJSON_CreateObject();
    cJSON *added = cJSON_CreateArray();
    enum kva_status status = kva_tok_tree_add(&pieces->place, model, "vocab", vocab);
    if (status) {
        cJSON_Delete(added);
        return status;
    }
    status = kva_tok_tree_add(&pieces->place, root, "added_tokens", added);
    for (uint32_t id = 0; id < pieces->count && !status; id++) {
        if (is_in_model(pieces, id))
            status = kva_tok_tree_add(&pieces->place, vocab, pieces->items[id].text,
                                      cJSON_CreateNumber(id));
        if (!status)
            status = add_added(pieces, added, id);
    }
    return status;
}

/* ---- spaces ---------------------------------------------------------------------------------- */

#define REPLACE(kind, from, to)                                                                    \
    "{\"type\":\"Replace\",\"pattern\":{\"" kind "\":\"" from "\"},\"content\":\"" to "\"}"
/* In this order each is linear. */
#define COLLAPSE     REPLACE("Regex", " {2,}", " ") "," REPLACE("Regex", "\\\\A | \\\\z", "")
#define PREPEND      "{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"}"
#define SPACES_MARKS REPLACE("String", " ", SPACE)
#define NORMALIZERS  "{\"type\":\"Sequence\",\"normalizers\":["
#define DECODERS                                                                                   \
    "{\"type\":\"Sequence\",\"decoders\":[" REPLACE(                                               \
        "String", SPACE, " ") ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"

enum kva_status kva_tok_tree_add_spaces(const struct kva_tok_place *place, cJSON *root,
                                        const struct kva_space_rules *rules)
{
    const char *normalizer = NULL, *pretokenizer = NULL;
    if (rules->prefix && rules->prefix_first) {
        normalizer = rules->collapse ? NORMALIZERS COLLAPSE "]}" : NULL;
        pretokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"" SPACE
                       "\",\"prepend_scheme\":\"first\",\"split\":false}";
    } else if (rules->prefix) {
        normalizer = rules->collapse ? NORMALIZERS COLLAPSE "," PREPEND "," SPACES_MARKS "]}"
                                     : NORMALIZERS PREPEND "," SPACES_MARKS "]}";
    } else {
        normalizer = rules->collapse ? NORMALIZERS COLLAPSE "," SPACES_MARKS "]}" : SPACES_MARKS;
    }
    enum kva_status status = kva_tok_tree_add_text(place, root, "normalizer", normalizer);
    if (!status)
        status = kva_tok_tree_add_text(place, root, "pre_tokenizer", pretokenizer);
    if (status)
        return status;
    return kva_tok_tree_add_text(
        place, root, "decoder",
        rules->prefix ? DECODERS ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
                      : DECODERS "]}");
}
