/* added_files.c - added_tokens.json and special_tokens_map.json, which older folders have, as parts
 * of tokenizer_config.json. */
#include "text/tokenizer/folder.h"
#include "text/tokenizer/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of more would be none that a tokenizer needs. */
#define SPECIALS_MAX 512

static const char list_name[] = "additional_special_tokens";
static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                    "sep_token", "cls_token", "mask_token"};

/* "<s>" or {"content": "<s>", ...}; NULL where it is neither. */
static const char *content_of(const cJSON *token)
{
    if (cJSON_IsObject(token))
        token = cJSON_GetObjectItemCaseSensitive(token, "content");
    return cJSON_GetStringValue(token);
}

static const cJSON *find(const cJSON *const *tokens, size_t count, const char *content)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(content_of(tokens[i]), content) == 0)
            return tokens[i];
    return NULL;
}

/* All that are named, each once: `ret` [SPECIALS_MAX]. */
static enum kva_status list_specials(const struct kva_tok_place *place, const cJSON *config,
                                     const cJSON **ret, size_t *ret_count)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, list_name);
    const cJSON *item = cJSON_IsArray(list) ? list->child : NULL;
    size_t count = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(names) || item; i++) {
        const cJSON *token =
            i < KVA_COUNT_OF(names) ? cJSON_GetObjectItemCaseSensitive(config, names[i]) : item;
        if (i >= KVA_COUNT_OF(names))
            item = item->next;
        if (!content_of(token) || find(ret, count, content_of(token)))
            continue;
        if (count == SPECIALS_MAX)
            return kva_tok_complain(place, KVA_ETOOBIG, "names more than %d special tokens",
                                    SPECIALS_MAX);
        ret[count++] = token;
    }
    *ret_count = count;
    return KVA_OK;
}

enum kva_status kva_added_take_map(const struct kva_tok_place *place, const cJSON *specials,
                                   cJSON *config)
{
    const cJSON *item;
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i <= KVA_COUNT_OF(names) && !status; i++) {
        const char *name = i < KVA_COUNT_OF(names) ? names[i] : list_name;
        item = cJSON_GetObjectItemCaseSensitive(specials, name);
        if (item && !cJSON_HasObjectItem(config, name))
            status = kva_tok_tree_add(place, config, name, cJSON_Duplicate(item, true));
    }
    return status;
}

/* A special token that the files give no id has the key "": it is one if the vocabulary has it. */
static enum kva_status add_entry(const struct kva_tok_place *place, cJSON *decoder, const char *key,
                                 const cJSON *token, const char *content, bool special)
{
    cJSON *entry = cJSON_IsObject(token) ? cJSON_Duplicate(token, true) : cJSON_CreateObject();
    bool named = entry && (cJSON_HasObjectItem(entry, "content") ||
                           cJSON_AddStringToObject(entry, "content", content));
    cJSON_DeleteItemFromObjectCaseSensitive(entry, "special");
    if (!named || !cJSON_AddBoolToObject(entry, "special", special)) {
        cJSON_Delete(entry);
        entry = NULL;
    }
    return kva_tok_tree_add(place, decoder, key, entry);
}

/* {"<pad>": 32000}, special where it is named so. */
static enum kva_status take_added(cJSON *decoder, const cJSON *added, const cJSON *const *specials,
                                  size_t special_count, struct kva_err *err)
{
    const struct kva_tok_place place = kva_tok_place_root("added_tokens.json", err);
    char key[16];
    for (const cJSON *item = added ? added->child : NULL; item; item = item->next) {
        uint32_t id;
        struct kva_tok_place inner = kva_tok_place_member(&place, item->string);
        enum kva_status status = kva_tok_json_uint(&inner, item, KVA_TOKENIZER_VOCAB_MAX - 1, &id);
        if (status)
            return status;
        const cJSON *special = find(specials, special_count, item->string);
        snprintf(key, sizeof(key), "%u", id);
        status = add_entry(&inner, decoder, key, special, item->string, special != NULL);
        if (status)
            return status;
    }
    return KVA_OK;
}

/* Crosses out those whose properties `decoder` has already. */
static void leave_out(const cJSON *decoder, const cJSON **specials, size_t *count)
{
    for (const cJSON *entry = decoder->child; entry; entry = entry->next) {
        const char *content = content_of(entry);
        for (size_t i = 0; content && i < *count; i++)
            if (strcmp(content_of(specials[i]), content) == 0)
                specials[i--] = specials[--*count];
    }
}

static enum kva_status take_all(const struct kva_tok_place *place, cJSON *config,
                                const cJSON *added, const cJSON **specials)
{
    size_t count = 0;
    cJSON *decoder = cJSON_GetObjectItemCaseSensitive(config, "added_tokens_decoder");
    enum kva_status status = list_specials(place, config, specials, &count);
    if (status || (decoder && !cJSON_IsObject(decoder) && !cJSON_IsNull(decoder)))
        return status; /* a decoder that is none is complained of where it is used */
    if (!cJSON_IsObject(decoder)) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, "added_tokens_decoder");
        decoder = cJSON_AddObjectToObject(config, "added_tokens_decoder");
        if (!decoder)
            return kva_tok_complain(place, KVA_ENOMEM, "no memory for the added tokens");
        status = take_added(decoder, added, specials, count, place->err);
    }
    leave_out(decoder, specials, &count);
    for (size_t i = 0; i < count && !status; i++)
        status = add_entry(place, decoder, "", specials[i], content_of(specials[i]), true);
    return status;
}

enum kva_status kva_added_take(const struct kva_tok_place *place, const cJSON *added, cJSON *config)
{
    const cJSON **list = malloc(SPECIALS_MAX * sizeof(*list));
    if (!list)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for the special tokens");
    enum kva_status status = take_all(place, config, added, list);
    free(list);
    return status;
}
