/* fuzz_sse.c - server-sent events, from any bytes of a server.
 *
 * The first byte says how long the pieces are in which the rest arrives. What comes out does not
 * depend on it. */
#include "tests/fuzz/fuzz.h"

#include "clients/chat/sse.h"

#include <stdlib.h>
#include <string.h>

#define EVENT_BYTES_MAX 1024u

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void on_event(void *opaque, const char *name, const char *data, size_t length)
{
    require(strlen(name) <= KVA_CHAT_SSE_NAME_MAX && length <= EVENT_BYTES_MAX);
    require(data[length] == '\0');
    kva_buf_printf(opaque, "event %s %zu ", name, length);
    kva_buf_append(opaque, data, length);
}

static void on_comment(void *opaque, const char *text, size_t length)
{
    require(length <= EVENT_BYTES_MAX && text[length] == '\0');
    kva_buf_printf(opaque, "comment %zu ", length);
    kva_buf_append(opaque, text, length);
}

/* Everything that is handed out, in `out`. */
static enum kva_status parse(const char *bytes, size_t length, size_t piece, struct kva_buf *out)
{
    struct kva_chat_sse sse;
    struct kva_err err = {0};
    enum kva_status status = KVA_OK;
    const struct kva_chat_sse_handler handler = {on_event, on_comment, out};
    kva_buf_init(out, 64u << 20);
    kva_chat_sse_init(&sse, &handler, EVENT_BYTES_MAX);
    for (size_t at = 0; at < length && !status; at += piece)
        status =
            kva_chat_sse_push(&sse, bytes + at, piece < length - at ? piece : length - at, &err);
    require(status == KVA_OK || (status == KVA_ETOOBIG && err.message[0]));
    kva_chat_sse_finish(&sse);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct kva_buf whole, pieces;
    const char *bytes = (const char *)data + 1;
    enum kva_status status = parse(bytes, size - 1, size, &whole);
    require(parse(bytes, size - 1, 1 + data[0] % 16u, &pieces) == status);
    require(whole.length == pieces.length);
    require(whole.length == 0 || memcmp(whole.data, pieces.data, whole.length) == 0);
    kva_buf_finish(&whole);
    kva_buf_finish(&pieces);
    return 0;
}
