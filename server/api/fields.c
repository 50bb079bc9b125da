/* fields.c - reading fields by a table. */
#include "server/api/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *kva_api_type_name(const cJSON *value)
{
    if (cJSON_IsString(value))
        return "a string";
    if (cJSON_IsNumber(value))
        return "a number";
    if (cJSON_IsBool(value))
        return "a boolean";
    if (cJSON_IsArray(value))
        return "an array";
    if (cJSON_IsObject(value))
        return "an object";
    return "null";
}

static enum kva_status wrong_type(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  const char *want)
{
    return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be %s, not %s.", name, want,
                          kva_api_type_name(value));
}

enum kva_status kva_api_read_bool(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  bool *ret)
{
    if (!cJSON_IsBool(value))
        return wrong_type(p, name, value, "a boolean");
    *ret = cJSON_IsTrue(value);
    return KVA_OK;
}

enum kva_status kva_api_read_number(struct kva_api_parser *p, const char *name, const cJSON *value,
                                    double min, double max, double *ret)
{
    if (!cJSON_IsNumber(value))
        return wrong_type(p, name, value, "a number");
    double number = value->valuedouble;
    if (!(number >= min && number <= max))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' is %.10g, allowed is %.10g to %.10g.",
                              name, number, min, max);
    *ret = number;
    return KVA_OK;
}

enum kva_status kva_api_read_whole(struct kva_api_parser *p, const char *name, const cJSON *value,
                                   double min, double max, int64_t *ret)
{
    double number = 0;
    if (!cJSON_IsNumber(value))
        return wrong_type(p, name, value, "an integer");
    enum kva_status status = kva_api_read_number(p, name, value, min, max, &number);
    if (status != KVA_OK)
        return status;
    if (floor(number) != number)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' is %.10g, but must be an integer.",
                              name, number);
    /* 2^63 itself is a double and no int64_t. */
    *ret = number >= 9223372036854775808.0 ? INT64_MAX : (int64_t)number;
    return KVA_OK;
}

enum kva_status kva_api_read_text(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  size_t bytes_max, struct kva_api_text *ret)
{
    if (!cJSON_IsString(value))
        return wrong_type(p, name, value, "a string");
    size_t length = strlen(value->valuestring);
    if (length == 0)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must not be empty.", name);
    if (length > bytes_max)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' has %zu bytes, limit is %zu.", name,
                              length, bytes_max);
    *ret = (struct kva_api_text){value->valuestring, length};
    return KVA_OK;
}

enum kva_status kva_api_read_ids(struct kva_api_parser *p, const char *name, const cJSON *value,
                                 uint32_t count_max, const uint32_t **ret_ids, uint32_t *ret_count)
{
    if (!cJSON_IsArray(value))
        return wrong_type(p, name, value, "an array of token ids");
    size_t count = 0;
    for (const cJSON *item = value->child; item; item = item->next)
        count++;
    if (count == 0)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must not be empty.", name);
    if (count > count_max)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' has %zu token ids, limit is %u.",
                              name, count, count_max);
    uint32_t *ids = kva_arena_calloc(&p->call->arena, count, sizeof(*ids));
    if (!ids)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "'%s' does not fit the request's memory.",
                              name);
    uint32_t used = 0;
    for (const cJSON *item = value->child; item; item = item->next) {
        double id = cJSON_IsNumber(item) ? item->valuedouble : -1.0;
        if (!(id >= 0 && id < p->config->vocab_size) || floor(id) != id)
            return kva_fail_param(p->err, KVA_EINVAL, name,
                                  "'%s[%u]' is not a token id, allowed is 0 to %u.", name, used,
                                  p->config->vocab_size - 1);
        ids[used++] = (uint32_t)id;
    }
    *ret_ids = ids;
    *ret_count = used;
    return KVA_OK;
}

/* Whether `word` is one of the words of `list`. */
static bool listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    while (list && *list && length > 0) {
        size_t item = strcspn(list, " ");
        if (item == length && memcmp(list, word, length) == 0)
            return true;
        list += item + (list[item] == ' ');
    }
    return false;
}

/* A value that asks for nothing may be sent along, as some clients always do. */
static bool asks_for_nothing(const struct kva_api_field *field, const cJSON *value)
{
    if (cJSON_IsBool(value))
        return cJSON_IsTrue(value) == listed(field->allow, "true");
    if (cJSON_IsNumber(value))
        return value->valuedouble == field->min;
    if (cJSON_IsArray(value) || cJSON_IsObject(value))
        return !value->child;
    return cJSON_IsString(value) &&
           (!value->valuestring[0] || listed(field->allow, value->valuestring));
}

static enum kva_status read_field(struct kva_api_parser *p, const struct kva_api_field *field,
                                  const cJSON *value)
{
    char *at = (char *)p->call + field->offset;
    enum kva_status status = KVA_OK;
    double number = 0;
    int64_t whole = 0;
    switch (field->kind) {
    case KVA_FIELD_BOOL:
        return kva_api_read_bool(p, field->name, value, (bool *)at);
    case KVA_FIELD_FLOAT:
        status = kva_api_read_number(p, field->name, value, field->min, field->max, &number);
        if (status == KVA_OK)
            *(float *)(void *)at = (float)number;
        return status;
    case KVA_FIELD_UINT:
        status = kva_api_read_whole(p, field->name, value, field->min, field->max, &whole);
        if (status == KVA_OK)
            *(uint32_t *)(void *)at = (uint32_t)whole;
        return status;
    case KVA_FIELD_CUSTOM:
        return field->parse(p, field->name, value);
    case KVA_FIELD_IGNORE:
        return KVA_OK;
    case KVA_FIELD_REFUSE:
        if (asks_for_nothing(field, value))
            return KVA_OK;
        return kva_fail_param(p->err, KVA_EUNSUPPORTED, field->name,
                              "'%s' is not supported by this server.", field->name);
    }
    return kva_fail(p->err, KVA_EINTERNAL, "Unknown kind of field.");
}

static const struct kva_api_field *find(const struct kva_api_field *fields,
                                        enum kva_api_route route, const char *name)
{
    for (; fields->name; fields++)
        if ((fields->routes & (1u << route)) && strcmp(fields->name, name) == 0)
            return fields;
    return NULL;
}

enum kva_status kva_api_read_fields(struct kva_api_parser *p, const cJSON *object,
                                    const struct kva_api_field *fields,
                                    const struct kva_api_field *foreign)
{
    for (const cJSON *item = object->child; item; item = item->next) {
        const struct kva_api_field *field = find(fields, p->route, item->string);
        if (!field && foreign)
            field = find(foreign, p->route, item->string);
        if (!field) {
            if (p->call->unknown_fields++ == 0)
                snprintf(p->call->unknown_field, sizeof(p->call->unknown_field), "%s",
                         item->string);
            continue;
        }
        if (cJSON_IsNull(item))
            continue;
        enum kva_status status = read_field(p, field, item);
        if (status != KVA_OK)
            return status;
    }
    return KVA_OK;
}
