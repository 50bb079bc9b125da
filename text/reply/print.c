/* print.c - JSON as text. cJSON prints the double that it read a number to, which 1.0 and integers of
 * 64 bits do not survive; where whoever parsed it has kept the text (server/api/json.h), that is
 * printed. */
#include "text/reply/internal.h"

#include <string.h>

static void put_number(struct kva_buf *out, const cJSON *number)
{
    char text[64];
    cJSON copy = {
        .type = cJSON_Number, .valuedouble = number->valuedouble, .valueint = number->valueint};
    if (number->valuestring)
        kva_buf_puts(out, number->valuestring);
    else if (cJSON_PrintPreallocated(&copy, text, sizeof(text), false))
        kva_buf_puts(out, text);
}

static void put_string(struct kva_buf *out, const char *text)
{
    kva_buf_json_string_plain(out, text, strlen(text));
}

/* Recursion is bounded by the depth that whoever parsed it has allowed. */
static void put_value(struct kva_buf *out, const cJSON *value)
{
    bool object = cJSON_IsObject(value);
    if (cJSON_IsNumber(value)) {
        put_number(out, value);
    } else if (cJSON_IsString(value)) {
        put_string(out, value->valuestring);
    } else if (!object && !cJSON_IsArray(value)) {
        kva_buf_puts(out, cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null");
    } else {
        kva_buf_putc(out, object ? '{' : '[');
        for (const cJSON *item = value->child; item; item = item->next) {
            if (object) {
                put_string(out, item->string);
                kva_buf_putc(out, ':');
            }
            put_value(out, item);
            kva_buf_puts(out, item->next ? "," : "");
        }
        kva_buf_putc(out, object ? '}' : ']');
    }
}

void kva_reply_put_json(struct kva_buf *out, const cJSON *value)
{
    if (value)
        put_value(out, value);
    else
        kva_buf_puts(out, "{}");
}
