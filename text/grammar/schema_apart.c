/* schema_apart.c - whether a value can be at most one of several schemas, as far as it is plain to see:
 * objects that have to have a property by which they are told apart. */
#include "text/grammar/internal.h"

#include <string.h>

/* All pairs are compared: what is larger is not plain to see. */
#define ALTERNATIVES_MAX 64
#define TAGS_MAX         16

static const cJSON *get(const cJSON *schema, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(schema, name);
}

static const cJSON *follow(cJSON *root, const cJSON *schema)
{
    const cJSON *reference = get(schema, "$ref");
    return cJSON_IsString(reference) ? kva_schema_find_reference(root, reference->valuestring)
                                     : schema;
}

static bool requires(const cJSON *schema, const char *name)
{
    const cJSON *type = get(schema, "type"), *required = get(schema, "required"), *at;
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "object") != 0)
        return false;
    cJSON_ArrayForEach(at, required)
    {
        if (cJSON_IsString(at) && strcmp(at->valuestring, name) == 0)
            return true;
    }
    return false;
}

/* The only strings that the property may be: one, or an array of them; NULL: others are possible. */
static const cJSON *find_tags(const cJSON *schema, const char *name)
{
    const cJSON *property = get(get(schema, "properties"), name), *at;
    const cJSON *tags = get(property, "const") ? get(property, "const") : get(property, "enum");
    if (cJSON_IsString(tags))
        return tags;
    if (!cJSON_IsArray(tags) || cJSON_GetArraySize(tags) > TAGS_MAX)
        return NULL;
    cJSON_ArrayForEach(at, tags)
    {
        if (!cJSON_IsString(at))
            return NULL;
    }
    return tags;
}

static bool has_tag(const cJSON *tags, const cJSON *tag)
{
    const cJSON *at;
    if (cJSON_IsString(tags))
        return strcmp(tags->valuestring, tag->valuestring) == 0;
    cJSON_ArrayForEach(at, tags)
    {
        if (strcmp(at->valuestring, tag->valuestring) == 0)
            return true;
    }
    return false;
}

static bool share_a_tag(const cJSON *a, const cJSON *b)
{
    const cJSON *at;
    if (cJSON_IsString(b))
        return has_tag(a, b);
    cJSON_ArrayForEach(at, b)
    {
        if (has_tag(a, at))
            return true;
    }
    return false;
}

static bool are_apart_by(cJSON *root, const cJSON *alternatives, const char *name)
{
    const cJSON *one, *other;
    cJSON_ArrayForEach(one, alternatives)
    {
        const cJSON *schema = follow(root, one);
        const cJSON *tags = find_tags(schema, name);
        if (!tags || !requires(schema, name))
            return false;
        for (other = alternatives->child; other != one; other = other->next) {
            if (share_a_tag(find_tags(follow(root, other), name), tags))
                return false;
        }
    }
    return true;
}

bool kva_schema_are_apart(cJSON *root, const cJSON *alternatives)
{
    int count = cJSON_IsArray(alternatives) ? cJSON_GetArraySize(alternatives) : 0;
    if (count == 0 || count > ALTERNATIVES_MAX)
        return false;
    const cJSON *properties = get(follow(root, alternatives->child), "properties"), *property;
    cJSON_ArrayForEach(property, properties)
    {
        if (are_apart_by(root, alternatives, property->string))
            return true;
    }
    return false;
}
