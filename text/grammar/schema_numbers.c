/* schema_numbers.c - numbers as the library has them: values with seventeen digits, ranges of decimals
 * with six places. */
#include "text/grammar/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cJSON *get(const cJSON *schema, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(schema, name);
}

/* --- ranges ---------------------------------------------------------------------------------- */

/* The decimal of six places at a bound, or the next one within, in millionths. */
static double decimal_within(double bound, bool excluded, int within)
{
    char text[400];
    snprintf(text, sizeof(text), "%.6f", bound);
    double decimal = strtod(text, NULL), near = nearbyint(decimal * 1e6);
    bool outside = decimal == bound ? excluded : (bound - decimal) * within > 0;
    return outside ? near + within : near;
}

/* The tighter one of two bounds, of which either may be absent. */
static const cJSON *tighter(const cJSON *included, const cJSON *excluded, int within)
{
    if (!included || !excluded)
        return included ? included : excluded;
    return (included->valuedouble - excluded->valuedouble) * within > 0 ? included : excluded;
}

bool kva_schema_has_decimals(const cJSON *schema)
{
    const cJSON *above = get(schema, "exclusiveMinimum"), *below = get(schema, "exclusiveMaximum");
    const cJSON *low = tighter(get(schema, "minimum"), above, 1);
    const cJSON *high = tighter(get(schema, "maximum"), below, -1);
    if (!low || !high || high->valuedouble - low->valuedouble > 1e-5 ||
        high->valuedouble < low->valuedouble)
        return true;
    return decimal_within(low->valuedouble, low == above, 1) <=
           decimal_within(high->valuedouble, high == below, -1);
}

/* --- values ---------------------------------------------------------------------------------- */

/* Whether seventeen digits say it in other words than people do, who write a few: 0.30000000000000004
 * is not meant, but 0.3 is 0.29999999999999999. */
static bool is_decimal(const cJSON *value)
{
    char few[64], all[64];
    if (!cJSON_IsNumber(value) || fabs(value->valuedouble) >= 1e9)
        return false;
    snprintf(few, sizeof(few), "%.6f", value->valuedouble);
    snprintf(all, sizeof(all), "%.17g", value->valuedouble);
    return strlen(all) > strlen(few) && strtod(few, NULL) == value->valuedouble;
}

/* Makes the schema, which is empty, one of this number only. */
static bool put_decimal(cJSON *schema, double value)
{
    return cJSON_AddStringToObject(schema, "type", "number") &&
           cJSON_AddNumberToObject(schema, "minimum", value) &&
           cJSON_AddNumberToObject(schema, "maximum", value);
}

/* A schema more in the list; NULL: out of memory. */
static cJSON *add_schema(cJSON *list)
{
    cJSON *schema = cJSON_CreateObject();
    if (schema && cJSON_AddItemToArray(list, schema))
        return schema;
    cJSON_Delete(schema);
    return NULL;
}

/* The decimals among the values become schemas beside the one of the other values. */
static bool part_values(cJSON *schema, cJSON *values)
{
    cJSON *choices = cJSON_CreateArray();
    bool done = choices && cJSON_AddItemToObject(schema, "anyOf", choices);
    if (!done)
        cJSON_Delete(choices);
    for (cJSON *at = values->child, *next; at && done; at = next) {
        next = at->next;
        if (!is_decimal(at))
            continue;
        cJSON *choice = add_schema(choices);
        done = choice && put_decimal(choice, at->valuedouble);
        cJSON_Delete(cJSON_DetachItemViaPointer(values, at));
    }
    cJSON *rest = done && values->child ? add_schema(choices) : NULL;
    if (done && values->child)
        done = rest && cJSON_AddItemToObject(rest, "enum", values);
    if (!rest || !done)
        cJSON_Delete(values);
    return done;
}

bool kva_schema_mend_decimals(cJSON *schema)
{
    const cJSON *one = get(schema, "const"), *values = get(schema, "enum");
    bool any = is_decimal(one);
    for (const cJSON *at = values ? values->child : NULL; at; at = at->next)
        any = any || is_decimal(at);
    if (!any)
        return true;
    cJSON_DeleteItemFromObjectCaseSensitive(schema, "type");
    if (values)
        return part_values(schema, cJSON_DetachItemFromObjectCaseSensitive(schema, "enum"));
    double value = one->valuedouble;
    cJSON_DeleteItemFromObjectCaseSensitive(schema, "const");
    return put_decimal(schema, value);
}
