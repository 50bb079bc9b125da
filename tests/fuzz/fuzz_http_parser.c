/* fuzz_http_parser.c - HTTP requests, from any bytes in any pieces.
 *
 * The first byte says how long the pieces are. What is read does not depend on it, and a head that
 * is accepted keeps what the server relies on. */
#include "tests/fuzz/fuzz.h"

#include "base/buf.h"
#include "server/http/parser.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEAD_BYTES_MAX 1024u
#define BODY_BYTES_MAX 512u

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_text(const char *text)
{
    for (; *text; text++)
        require(*text != '\r' && *text != '\n');
}

static void check_head(const struct kva_http_head *head)
{
    uint32_t hosts = 0, lengths = 0, codings = 0;
    require(head->minor <= 1 && head->field_count <= KVA_HTTP_FIELDS_MAX);
    require(head->path[0] == '/' || strcmp(head->path, "*") == 0);
    require(!strpbrk(head->path, "? #\r\n") && head->authority != NULL);
    for (uint32_t i = 0; i < head->field_count; i++) {
        const char *name = head->fields[i].name, *value = head->fields[i].value;
        require(*name && !strpbrk(name, " \t:\r\n"));
        check_text(value);
        size_t length = strlen(value);
        require(!length || (!strchr(" \t", value[0]) && !strchr(" \t", value[length - 1])));
        hosts += strcasecmp(name, "Host") == 0;
        lengths += strcasecmp(name, "Content-Length") == 0;
        codings += strcasecmp(name, "Transfer-Encoding") == 0;
    }
    /* One party's end of the message is the other's. */
    require(hosts + (head->minor == 0) >= 1 && hosts <= 1);
    require(lengths + codings <= 1 && head->chunked == (codings == 1));
    require(lengths || head->content_length == 0);
}

struct reading {
    struct kva_buf trace;
    struct kva_buf body;
};

static void put_head(struct kva_buf *out, const struct kva_http_head *head)
{
    kva_buf_printf(out, "%s %s ? %s @ %s length %llu minor %u %d%d%d\n", head->method_name,
                   head->path, head->query ? head->query : "", head->authority,
                   (unsigned long long)head->content_length, head->minor, head->chunked,
                   head->keep_alive, head->expects_continue);
    for (uint32_t i = 0; i < head->field_count; i++)
        kva_buf_printf(out, "%s: %s\n", head->fields[i].name, head->fields[i].value);
}

static bool on_body(void *opaque, const char *data, size_t length)
{
    struct reading *reading = opaque;
    require(length > 0);
    kva_buf_append(&reading->body, data, length);
    return true;
}

/* One event's consequences; false: nothing more is read from this peer. */
static bool take(struct reading *reading, const struct kva_http_parser *parser,
                 enum kva_http_event event)
{
    const struct kva_http_head *head = kva_http_parser_head(parser);
    switch (event) {
    case KVA_HTTP_EVENT_MORE:
        return true;
    case KVA_HTTP_EVENT_HEAD:
        check_head(head);
        put_head(&reading->trace, head);
        kva_buf_clear(&reading->body);
        /* The connection refuses what is announced to be too large. */
        return head->content_length <= BODY_BYTES_MAX;
    case KVA_HTTP_EVENT_END:
        require(reading->body.length <= BODY_BYTES_MAX);
        require(head->chunked || reading->body.length == head->content_length);
        kva_buf_printf(&reading->trace, "body %zu ", reading->body.length);
        kva_buf_append(&reading->trace, reading->body.data, reading->body.length);
        return head->keep_alive;
    case KVA_HTTP_EVENT_REFUSED:
        require(kva_http_parser_error(parser)->status != KVA_OK);
        require(kva_http_parser_error(parser)->message[0] != '\0');
        kva_buf_printf(&reading->trace, "refused %d", kva_http_parser_error(parser)->status);
        return false;
    }
    abort();
}

static void read_all(struct reading *reading, const char *data, size_t size, size_t piece)
{
    const struct kva_http_parser_params params = {
        .head_bytes_max = HEAD_BYTES_MAX,
        .body_bytes_max = BODY_BYTES_MAX,
        .body = on_body,
        .opaque = reading,
    };
    struct kva_http_parser *parser = kva_http_parser_create(&params);
    require(parser != NULL);
    kva_buf_init(&reading->trace, 1u << 24);
    kva_buf_init(&reading->body, 1u << 20);
    size_t at = 0;
    enum kva_http_event event = KVA_HTTP_EVENT_MORE;
    bool more = true;
    /* A message ends with its head where it has no body, so the last bytes may bring two events. */
    while (more && (at < size || event == KVA_HTTP_EVENT_HEAD)) {
        size_t bytes = piece < size - at ? piece : size - at, used = 0;
        event = kva_http_parser_feed(parser, data + at, bytes, &used);
        require(used <= bytes);
        /* What is not used up is offered again, so something must have happened. */
        require(used > 0 || event != KVA_HTTP_EVENT_MORE || bytes == 0);
        at += used;
        more = take(reading, parser, event);
    }
    kva_http_parser_destroy(parser);
    kva_buf_finish(&reading->body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *bytes = (const char *)data + 1;
    struct reading whole, pieces;
    read_all(&whole, bytes, size - 1, size);
    read_all(&pieces, bytes, size - 1, 1 + data[0] % 32u);
    require(whole.trace.length == pieces.trace.length);
    require(whole.trace.length == 0 ||
            memcmp(whole.trace.data, pieces.trace.data, whole.trace.length) == 0);
    kva_buf_finish(&whole.trace);
    kva_buf_finish(&pieces.trace);
    return 0;
}
