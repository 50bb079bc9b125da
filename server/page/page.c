/* page.c - which requests get the page, and in which form. */
#include "server/page/page.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One element of a header field that is a list: its name, and its weight if it has one. */
struct element {
    const char *name;
    size_t length;
    double weight;
};

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

/* The first element of `at`; what follows it, NULL at the end. */
static const char *next_element(const char *at, struct element *ret)
{
    at = skip_space(at);
    size_t whole = strcspn(at, ",");
    size_t length = strcspn(at, ",;");
    *ret = (struct element){.name = at, .length = length, .weight = 1};
    while (ret->length > 0 && strchr(" \t", at[ret->length - 1]))
        ret->length--;
    for (const char *parameter = at + length; parameter < at + whole;) {
        parameter = skip_space(parameter + 1);
        if (strncasecmp(parameter, "q=", 2) == 0)
            ret->weight = strtod(parameter + 2, NULL);
        parameter += strcspn(parameter, ",;");
    }
    return at[whole] == ',' ? at + whole + 1 : NULL;
}

static bool names(const struct element *element, const char *name)
{
    return element->length == strlen(name) &&
           strncasecmp(element->name, name, element->length) == 0;
}

/* Whether a list names it and does not exclude it. */
static bool accepts(const char *list, const char *name)
{
    struct element element;
    while (list) {
        list = next_element(list, &element);
        if (names(&element, name))
            return element.weight > 0;
    }
    return false;
}

/* If-None-Match compares weakly. */
static bool has_tag(const char *list, const char *tag)
{
    struct element element;
    while (list) {
        list = next_element(list, &element);
        if (element.length > 2 && strncmp(element.name, "W/", 2) == 0) {
            element.name += 2;
            element.length -= 2;
        }
        if (names(&element, tag) || names(&element, "*"))
            return true;
    }
    return false;
}

bool kva_page_is_wanted(const struct kva_exchange *exchange)
{
    const struct kva_http_head *head = kva_exchange_head(exchange);
    return (head->method == KVA_HTTP_GET || head->method == KVA_HTTP_HEAD) &&
           strcmp(head->path, "/") == 0 &&
           accepts(kva_exchange_header(exchange, "Accept"), "text/html");
}

void kva_page_reply(struct kva_exchange *exchange)
{
    static const char *const fields[][2] = {
        {"Cache-Control", "no-cache"},
        {"Vary", "Accept, Accept-Encoding"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
    };
    const struct kva_page_data *data = &kva_page_data;
    bool gzip = accepts(kva_exchange_header(exchange, "Accept-Encoding"), "gzip");
    const char *tag = gzip ? data->gzip_tag : data->plain_tag;
    for (size_t i = 0; i < KVA_COUNT_OF(fields); i++)
        kva_exchange_add_header(exchange, fields[i][0], fields[i][1]);
    kva_exchange_add_header(exchange, "Content-Security-Policy", data->policy);
    kva_exchange_add_header(exchange, "ETag", tag);
    if (gzip)
        kva_exchange_add_header(exchange, "Content-Encoding", "gzip");
    bool known = has_tag(kva_exchange_header(exchange, "If-None-Match"), tag);
    kva_exchange_reply(exchange, known ? 304 : 200, "text/html; charset=utf-8",
                       gzip ? data->gzip : data->plain,
                       gzip ? data->gzip_bytes : data->plain_bytes);
}
