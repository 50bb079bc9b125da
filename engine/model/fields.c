/* fields.c - fields of a JSON object by a table: type, range, destination. */
#include "engine/model/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *kva_text_show(const char *text, char *out, size_t size)
{
    snprintf(out, size, "%s", text);
    /* A cut inside a UTF-8 sequence would make the message invalid, so all of non-ASCII goes. */
    for (unsigned char *c = (unsigned char *)out; *c; c++)
        if (*c < 0x20 || *c >= 0x7F)
            *c = '?';
    return out;
}

const char *kva_json_show(const cJSON *item, char *out, size_t size)
{
    char text[48];
    if (cJSON_IsNumber(item))
        snprintf(out, size, "%.17g", item->valuedouble);
    else if (cJSON_IsString(item))
        snprintf(out, size, "\"%s\"", kva_text_show(item->valuestring, text, sizeof(text)));
    else if (cJSON_IsBool(item))
        snprintf(out, size, "%s", cJSON_IsTrue(item) ? "true" : "false");
    else
        snprintf(out, size, "%s",
                 cJSON_IsArray(item)    ? "a list"
                 : cJSON_IsObject(item) ? "an object"
                                        : "null");
    return out;
}

bool kva_json_whole(const cJSON *item, uint64_t min, uint64_t max, uint64_t *ret)
{
    /* Above 2^53 the double that cJSON keeps is no longer the number that the file says. */
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < 0x1p53))
        return false;
    uint64_t value = (uint64_t)item->valuedouble;
    if ((double)value != item->valuedouble || value < min || value > max)
        return false;
    *ret = value;
    return true;
}

enum kva_status kva_fields_peek(const struct kva_fields *fields, const char *name,
                                const cJSON **ret)
{
    const cJSON *found = NULL;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, fields->object)
    {
        if (!name || strcmp(item->string, name) != 0)
            continue;
        if (found)
            return kva_fail_param(fields->err, KVA_EFORMAT, name, "%s: %s%s stands there twice",
                                  fields->file, fields->prefix, name);
        found = item;
    }
    *ret = cJSON_IsNull(found) ? NULL : found;
    return KVA_OK;
}

static enum kva_status wrong(const struct kva_fields *fields, const char *name, const cJSON *item,
                             const char *wanted)
{
    char text[64];
    return kva_fail_param(fields->err, KVA_EFORMAT, name, "%s: %s%s is %s, expected %s",
                          fields->file, fields->prefix, name,
                          kva_json_show(item, text, sizeof(text)), wanted);
}

enum kva_status kva_fields_u32(const struct kva_fields *fields, const char *name, uint32_t min,
                               uint32_t max, uint32_t *ret)
{
    const cJSON *item = NULL;
    uint64_t value;
    enum kva_status status = kva_fields_peek(fields, name, &item);
    if (status || !item)
        return status;
    if (!kva_json_whole(item, min, max, &value)) {
        char range[64];
        snprintf(range, sizeof(range), "a whole number in %u..%u", min, max);
        return wrong(fields, name, item, range);
    }
    *ret = (uint32_t)value;
    return KVA_OK;
}

enum kva_status kva_fields_double(const struct kva_fields *fields, const char *name, double min,
                                  double max, double *ret)
{
    const cJSON *item = NULL;
    enum kva_status status = kva_fields_peek(fields, name, &item);
    if (status || !item)
        return status;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= min && item->valuedouble <= max)) {
        char range[64];
        snprintf(range, sizeof(range), "a number in %g..%g", min, max);
        return wrong(fields, name, item, range);
    }
    *ret = item->valuedouble;
    return KVA_OK;
}

enum kva_status kva_fields_bool(const struct kva_fields *fields, const char *name, bool *ret)
{
    const cJSON *item = NULL;
    enum kva_status status = kva_fields_peek(fields, name, &item);
    if (status || !item)
        return status;
    if (!cJSON_IsBool(item))
        return wrong(fields, name, item, "true or false");
    *ret = cJSON_IsTrue(item);
    return KVA_OK;
}

enum kva_status kva_fields_string(const struct kva_fields *fields, const char *name,
                                  const char **ret)
{
    const cJSON *item = NULL;
    enum kva_status status = kva_fields_peek(fields, name, &item);
    if (status || !item)
        return status;
    if (!cJSON_IsString(item))
        return wrong(fields, name, item, "a string");
    *ret = item->valuestring;
    return KVA_OK;
}

enum kva_status kva_fields_object(const struct kva_fields *fields, const char *name,
                                  const char *prefix, struct kva_fields *ret)
{
    const cJSON *item = NULL;
    enum kva_status status = kva_fields_peek(fields, name, &item);
    if (status)
        return status;
    if (item && !cJSON_IsObject(item))
        return wrong(fields, name, item, "an object");
    *ret = (struct kva_fields){item, fields->file, prefix, fields->err};
    return KVA_OK;
}
