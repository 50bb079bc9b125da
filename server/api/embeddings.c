/* embeddings.c - the fields of /v1/embeddings that no other route has. */
#include "server/api/fields.h"

#include <string.h>

static bool is_word(const cJSON *value, const char *word)
{
    return cJSON_IsString(value) && strcmp(value->valuestring, word) == 0;
}

enum kva_status kva_api_parse_encoding(struct kva_api_parser *p, const char *name,
                                       const cJSON *value)
{
    p->call->embedding.base64 = is_word(value, "base64");
    if (p->call->embedding.base64 || is_word(value, "float"))
        return KVA_OK;
    return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be float or base64.", name);
}

/* Fewer numbers than the model has are the first ones; of unit vectors a unit vector anew. */
enum kva_status kva_api_parse_dimensions(struct kva_api_parser *p, const char *name,
                                         const cJSON *value)
{
    int64_t whole;
    enum kva_status status =
        kva_api_read_whole(p, name, value, 1, p->config->embedding_size, &whole);
    if (status == KVA_OK)
        p->call->embedding.dimensions = (uint32_t)whole;
    return status;
}

enum kva_status kva_api_parse_pooling(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    p->call->embedding.pooling = is_word(value, "mean") ? KVA_POOLING_MEAN : KVA_POOLING_LAST;
    if (is_word(value, "mean") || is_word(value, "last"))
        return KVA_OK;
    return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be mean or last.", name);
}

enum kva_status kva_api_check_pooling(struct kva_api_parser *p)
{
    if (p->call->embedding.pooling != KVA_POOLING_NONE)
        return KVA_OK;
    return kva_fail_param(
        p->err, KVA_EUNSUPPORTED, "pooling",
        "The model's vectors are made with %s, which is not implemented: say with "
        "'pooling' which ones are wanted instead, mean or last.",
        p->config->pooling_why);
}
