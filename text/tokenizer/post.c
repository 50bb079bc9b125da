/* post.c - post-processors: the tokens that are put around a text. */
#include "text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

static enum kva_status too_long(const struct kva_tok_place *place)
{
    return kva_tok_complain(place, KVA_ETOOBIG, "more than %d special tokens in a template",
                            KVA_TOKENIZER_TEMPLATE_MAX);
}

static enum kva_status check_id(const struct kva_tokenizer *tokenizer,
                                const struct kva_tok_place *place, const cJSON *item,
                                int32_t *ret_id)
{
    uint32_t id;
    enum kva_status status =
        kva_tok_json_uint(place, item, kva_max_u32(tokenizer->vocab.size, 1) - 1, &id);
    if (status)
        return status;
    if (!kva_tokenizer_token_string(tokenizer, (int32_t)id, NULL))
        return kva_tok_complain(place, KVA_EFORMAT, "no token has the id %u", id);
    *ret_id = (int32_t)id;
    return KVA_OK;
}

/* Puts `outer` around what is there already. */
static enum kva_status wrap(struct kva_post *post, const struct kva_post *outer,
                            const struct kva_tok_place *place)
{
    if (post->before_count + outer->before_count > KVA_TOKENIZER_TEMPLATE_MAX ||
        post->after_count + outer->after_count > KVA_TOKENIZER_TEMPLATE_MAX)
        return too_long(place);
    memmove(post->before + outer->before_count, post->before, post->before_count * sizeof(int32_t));
    memcpy(post->before, outer->before, outer->before_count * sizeof(int32_t));
    memcpy(post->after + post->after_count, outer->after, outer->after_count * sizeof(int32_t));
    post->before_count += outer->before_count;
    post->after_count += outer->after_count;
    return KVA_OK;
}

static enum kva_status push(struct kva_post *post, const struct kva_tok_place *place,
                            bool after_text, int32_t id)
{
    uint32_t *count = after_text ? &post->after_count : &post->before_count;
    if (*count == KVA_TOKENIZER_TEMPLATE_MAX)
        return too_long(place);
    (after_text ? post->after : post->before)[(*count)++] = id;
    return KVA_OK;
}

/* {"SpecialToken": {"id": NAME}}: the ids stand in special_tokens under the name. */
static enum kva_status template_special(const struct kva_tokenizer *tokenizer,
                                        const struct kva_tok_place *place, const cJSON *component,
                                        const cJSON *piece, bool after_text, struct kva_post *post)
{
    const char *name;
    enum kva_status status = kva_tok_json_string(place, piece, "id", &name);
    if (status)
        return status;
    const cJSON *table = cJSON_GetObjectItemCaseSensitive(component, "special_tokens");
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(table, name);
    const cJSON *ids;
    if (!cJSON_IsObject(entry))
        return kva_tok_complain(place, KVA_EFORMAT, "'%.60s' is not in special_tokens", name);
    status = kva_tok_json_array(place, entry, "ids", &ids);
    for (const cJSON *item = status ? NULL : ids->child; item && !status; item = item->next) {
        int32_t id = -1;
        status = check_id(tokenizer, place, item, &id);
        if (!status)
            status = push(post, place, after_text, id);
    }
    return status;
}

static enum kva_status load_template(const struct kva_tokenizer *tokenizer,
                                     const struct kva_tok_place *place, const cJSON *component,
                                     struct kva_post *post)
{
    const cJSON *single;
    struct kva_tok_place inner = kva_tok_place_member(place, "single");
    enum kva_status status = kva_tok_json_array(place, component, "single", &single);
    bool after_text = false;
    size_t index = 0;
    for (const cJSON *item = status ? NULL : single->child; item && !status; item = item->next) {
        struct kva_tok_place each = kva_tok_place_index(&inner, index++);
        const cJSON *sequence = cJSON_GetObjectItemCaseSensitive(item, "Sequence");
        const cJSON *special = cJSON_GetObjectItemCaseSensitive(item, "SpecialToken");
        const char *name;
        if (special) {
            status = template_special(tokenizer, &each, component, special, after_text, post);
            continue;
        }
        if (!sequence)
            return kva_tok_complain(&each, KVA_EFORMAT, "neither SpecialToken nor Sequence");
        status = kva_tok_json_string(&each, sequence, "id", &name);
        if (!status && (after_text || strcmp(name, "A") != 0))
            status =
                kva_tok_complain(&each, KVA_EUNSUPPORTED, "only one sequence, A, is supported");
        after_text = true;
    }
    if (!status && !after_text)
        status = kva_tok_complain(&inner, KVA_EFORMAT, "the text, sequence A, is missing");
    return status;
}

/* BertProcessing and RobertaProcessing: "cls": [text, id] before, "sep": [text, id] after. */
static enum kva_status load_pair(const struct kva_tokenizer *tokenizer,
                                 const struct kva_tok_place *place, const cJSON *component,
                                 struct kva_post *post)
{
    static const char *const names[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        struct kva_tok_place inner = kva_tok_place_member(place, names[i]);
        const cJSON *pair;
        int32_t id = -1;
        enum kva_status status = kva_tok_json_array(place, component, names[i], &pair);
        if (!status)
            status = check_id(tokenizer, &inner, cJSON_GetArrayItem(pair, 1), &id);
        if (!status)
            status = push(post, &inner, i == 1, id);
        if (status)
            return status;
    }
    return KVA_OK;
}

static enum kva_status load_one(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                                const char *type, const cJSON *item)
{
    struct kva_post outer = {.before_count = 0};
    enum kva_status status;
    if (strcmp(type, "ByteLevel") == 0)
        return KVA_OK; /* It only trims offsets, which nobody here asks for. */
    if (strcmp(type, "TemplateProcessing") == 0)
        status = load_template(tokenizer, place, item, &outer);
    else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        status = load_pair(tokenizer, place, item, &outer);
    else
        return kva_tok_complain(place, KVA_EUNSUPPORTED,
                                "post-processor of type '%.60s' is not supported", type);
    return status ? status : wrap(&tokenizer->post, &outer, place);
}

enum kva_status kva_post_load(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                              const cJSON *component)
{
    struct kva_tok_json_list *list = malloc(sizeof(*list));
    if (!list)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    enum kva_status status = kva_tok_json_flatten(place, component, "processors", list);
    for (uint32_t i = 0; !status && i < list->count; i++)
        status = load_one(tokenizer, &list->places[i], list->types[i], list->items[i]);
    free(list);
    return status;
}
