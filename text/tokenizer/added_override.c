/* added_override.c - added tokens that tokenizer_config.json describes: where they differ from those
 * of tokenizer.json they count. */
#include "text/tokenizer/internal.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* Found by their text: files may have as many as they like. */
struct texts {
    struct kva_vocab index; /* a token's number in `items` */
    cJSON **items;
    size_t count;
};

struct override {
    const cJSON *root;
    cJSON *added;
    struct texts tokens;
    /* Made when the first new token comes. */
    struct texts vocab;
    bool *taken; /* [KVA_TOKENIZER_VOCAB_MAX] ids that name a token */
    bool warned;
};

static enum kva_status no_memory(const struct kva_tok_place *place)
{
    return kva_tok_complain(place, KVA_ENOMEM, "no memory for the added tokens");
}

/* `name_of` gives an item's text, NULL: it has none. Of two with one text the first counts. */
static enum kva_status index_texts(const struct kva_tok_place *place, const cJSON *list,
                                   const char *(*name_of)(const cJSON *item), struct texts *ret)
{
    cJSON *item;
    size_t room = (size_t)cJSON_GetArraySize(list);
    ret->items = calloc(room + 1, sizeof(cJSON *));
    if (!ret->items || room > KVA_TOKENIZER_VOCAB_MAX || kva_vocab_init(&ret->index, room))
        return no_memory(place);
    cJSON_ArrayForEach(item, list)
    {
        const char *text = name_of(item);
        if (!text || !*text || strlen(text) > KVA_TOKENIZER_TOKEN_BYTES_MAX ||
            kva_vocab_find(&ret->index, text, strlen(text)) >= 0)
            continue;
        enum kva_status status =
            kva_vocab_add(&ret->index, place, text, (uint32_t)ret->count, KVA_TOK_MODEL);
        if (status)
            return status;
        ret->items[ret->count++] = item;
    }
    return KVA_OK;
}

static const cJSON *find(const struct texts *texts, const char *text)
{
    int32_t at = kva_vocab_find(&texts->index, text, strlen(text));
    return at < 0 ? NULL : texts->items[at];
}

static const char *content_of(const cJSON *item)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
}

static const char *key_of(const cJSON *item)
{
    return item->string;
}

static void take_id(struct override *o, const cJSON *id)
{
    if (cJSON_IsNumber(id) && id->valuedouble >= 0 && id->valuedouble < KVA_TOKENIZER_VOCAB_MAX)
        o->taken[(size_t)id->valuedouble] = true;
}

static enum kva_status look_at_ids(struct override *o, const struct kva_tok_place *place)
{
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(o->root, "model"), "vocab");
    const cJSON *item;
    o->taken = calloc(KVA_TOKENIZER_VOCAB_MAX, sizeof(*o->taken));
    if (!o->taken)
        return no_memory(place);
    cJSON_ArrayForEach(item, vocab) take_id(o, item);
    cJSON_ArrayForEach(item, o->added) take_id(o, cJSON_GetObjectItemCaseSensitive(item, "id"));
    return index_texts(place, vocab, key_of, &o->vocab);
}

/* The token's id: that of the vocabulary, or the one that the file gives it. -1: that names another
 * token, as where the two files are of different models; then tokenizer.json counts. Also where
 * there is neither: a name without a token is none. */
static enum kva_status id_of(struct override *o, const struct kva_tok_place *place, const char *key,
                             const char *content, double *ret)
{
    char *end = NULL;
    unsigned long id = strtoul(key, &end, 10);
    enum kva_status status = o->taken ? KVA_OK : look_at_ids(o, place);
    if (status)
        return status;
    const cJSON *known = find(&o->vocab, content);
    if (cJSON_IsNumber(known)) {
        *ret = known->valuedouble;
        return KVA_OK;
    }
    if (*key == '\0') {
        *ret = -1;
        return KVA_OK;
    }
    if (*key < '0' || *key > '9' || *end || id >= KVA_TOKENIZER_VOCAB_MAX)
        return kva_tok_complain(place, KVA_EFORMAT, "'%.20s' is no id", key);
    *ret = o->taken[id] ? -1 : (double)id;
    if (o->taken[id] && !o->warned)
        kva_log(KVA_LOG_WARN,
                "tokenizer_config.json gives id %lu to '%.60s', tokenizer.json to another token: "
                "the latter counts",
                id, content);
    o->warned = o->warned || o->taken[id];
    o->taken[id] = true;
    return KVA_OK;
}

static enum kva_status copy_properties(const struct kva_tok_place *place, const cJSON *from,
                                       cJSON *to)
{
    static const char *const names[] = {"single_word", "lstrip", "rstrip", "special"};
    bool special = false, value = false;
    enum kva_status status = kva_tok_json_bool(place, from, "special", false, &special);
    for (size_t i = 0; i < KVA_COUNT_OF(names) && !status; i++) {
        status = kva_tok_json_bool(place, from, names[i], false, &value);
        cJSON_DeleteItemFromObjectCaseSensitive(to, names[i]);
        if (!status && !cJSON_AddBoolToObject(to, names[i], value))
            status = no_memory(place);
    }
    if (!status)
        status = kva_tok_json_bool(place, from, "normalized", !special, &value);
    cJSON_DeleteItemFromObjectCaseSensitive(to, "normalized");
    if (!status && !cJSON_AddBoolToObject(to, "normalized", value))
        status = no_memory(place);
    return status;
}

static enum kva_status add_token(struct override *o, const struct kva_tok_place *place,
                                 const cJSON *entry, const char *content)
{
    double id = 0;
    enum kva_status status = id_of(o, place, entry->string, content, &id);
    if (status || id < 0)
        return status;
    cJSON *token = cJSON_CreateObject();
    if (!token || !cJSON_AddItemToArray(o->added, token)) {
        cJSON_Delete(token);
        return no_memory(place);
    }
    if (!cJSON_AddNumberToObject(token, "id", id) ||
        !cJSON_AddStringToObject(token, "content", content))
        return no_memory(place);
    return copy_properties(place, entry, token);
}

static enum kva_status override_one(struct override *o, const struct kva_tok_place *place,
                                    const cJSON *entry)
{
    const char *content;
    if (!cJSON_IsObject(entry))
        return kva_tok_complain(place, KVA_EFORMAT, "not an object");
    enum kva_status status = kva_tok_json_string(place, entry, "content", &content);
    if (status)
        return status;
    int32_t at = kva_vocab_find(&o->tokens.index, content, strlen(content));
    return at >= 0 ? copy_properties(place, entry, o->tokens.items[at])
                   : add_token(o, place, entry, content);
}

static enum kva_status override_all(struct override *o, const struct kva_tok_place *place,
                                    const cJSON *decoder)
{
    const cJSON *entry;
    enum kva_status status = index_texts(place, o->added, content_of, &o->tokens);
    for (entry = decoder->child; entry && !status; entry = entry->next) {
        struct kva_tok_place each = kva_tok_place_member(place, entry->string);
        status = override_one(o, &each, entry);
    }
    return status;
}

static void finish(struct texts *texts)
{
    kva_vocab_finish(&texts->index);
    free(texts->items);
}

enum kva_status kva_added_override(const struct kva_tok_place *place, const cJSON *config,
                                   cJSON *root)
{
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(config, "added_tokens_decoder");
    struct kva_tok_place inner = kva_tok_place_member(place, "added_tokens_decoder");
    struct override o = {.root = root,
                         .added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens")};
    if (!decoder || cJSON_IsNull(decoder))
        return KVA_OK;
    if (!cJSON_IsObject(decoder))
        return kva_tok_complain(&inner, KVA_EFORMAT, "not an object");
    if (!o.added || cJSON_IsNull(o.added)) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, "added_tokens");
        o.added = cJSON_AddArrayToObject(root, "added_tokens");
        if (!o.added)
            return no_memory(&inner);
    }
    /* What is no list is complained of where it is loaded. */
    enum kva_status status = cJSON_IsArray(o.added) ? override_all(&o, &inner, decoder) : KVA_OK;
    finish(&o.tokens);
    finish(&o.vocab);
    free(o.taken);
    return status;
}
