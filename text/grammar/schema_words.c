/* schema_words.c - the words of JSON Schema that say something about a value. */
#include "text/grammar/internal.h"

#include <math.h>
#include <string.h>

/* Words that are not here say nothing about a value. */
static const struct kva_schema_word words[] = {
    {"$ref", KVA_SCHEMA_USE_STRONG, KVA_SCHEMA_VALUE_STRING, NULL},
    {"const", KVA_SCHEMA_USE_STRONG, KVA_SCHEMA_VALUE_ANY, NULL},
    {"enum", KVA_SCHEMA_USE_STRONG, KVA_SCHEMA_VALUE_ARRAY, NULL},
    {"anyOf", KVA_SCHEMA_USE_STRONG, KVA_SCHEMA_VALUE_ARRAY, NULL},
    {"oneOf", KVA_SCHEMA_USE_STRONG, KVA_SCHEMA_VALUE_ARRAY, NULL},
    {"allOf", KVA_SCHEMA_USE_STRONG, KVA_SCHEMA_VALUE_ARRAY, NULL},
    {"minimum", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_NUMBER, "number"},
    {"maximum", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_NUMBER, "number"},
    {"exclusiveMinimum", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_NUMBER, "number"},
    {"exclusiveMaximum", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_NUMBER, "number"},
    {"multipleOf", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_NUMBER, "number"},
    {"minLength", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_COUNT, "string"},
    {"maxLength", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_COUNT, "string"},
    {"pattern", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_STRING, "string"},
    {"format", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_STRING, "string"},
    {"items", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_SCHEMA, "array"},
    {"prefixItems", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_ARRAY, "array"},
    {"unevaluatedItems", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_SCHEMA, "array"},
    {"minItems", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_COUNT, "array"},
    {"maxItems", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_COUNT, "array"},
    {"properties", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_OBJECT, "object"},
    {"required", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_ARRAY, "object"},
    {"additionalProperties", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_SCHEMA, "object"},
    {"unevaluatedProperties", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_SCHEMA, "object"},
    {"patternProperties", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_OBJECT, "object"},
    {"propertyNames", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_SCHEMA, "object"},
    {"minProperties", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_COUNT, "object"},
    {"maxProperties", KVA_SCHEMA_USE_ASSERTS, KVA_SCHEMA_VALUE_COUNT, "object"},
    {"not", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"if", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"then", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"else", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"dependentRequired", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"dependentSchemas", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"dependencies", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"contains", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"minContains", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"maxContains", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"uniqueItems", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_BOOL, NULL},
    {"additionalItems", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"$dynamicRef", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
    {"$recursiveRef", KVA_SCHEMA_USE_REFUSED, KVA_SCHEMA_VALUE_ANY, NULL},
};

const struct kva_schema_word *kva_schema_word_find(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(words); i++) {
        if (strcmp(words[i].name, name) == 0)
            return &words[i];
    }
    return NULL;
}

const char *kva_schema_value_lacks(enum kva_schema_value value, const cJSON *item)
{
    switch (value) {
    case KVA_SCHEMA_VALUE_NUMBER:
        return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? NULL : "must be a number";
    case KVA_SCHEMA_VALUE_COUNT:
        return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= INT32_MAX &&
                       item->valuedouble == floor(item->valuedouble)
                   ? NULL
                   : "must be a whole number, not negative";
    case KVA_SCHEMA_VALUE_STRING:
        return cJSON_IsString(item) ? NULL : "must be a string";
    case KVA_SCHEMA_VALUE_BOOL:
        return cJSON_IsBool(item) ? NULL : "must be true or false";
    case KVA_SCHEMA_VALUE_ARRAY:
        return cJSON_IsArray(item) && item->child ? NULL : "must be an array that is not empty";
    case KVA_SCHEMA_VALUE_OBJECT:
        return cJSON_IsObject(item) ? NULL : "must be an object";
    case KVA_SCHEMA_VALUE_SCHEMA:
        return cJSON_IsObject(item) || cJSON_IsBool(item) ? NULL : "must be a schema";
    case KVA_SCHEMA_VALUE_ANY:
        break;
    }
    return NULL;
}
