/* fuzz_reply.c - replies in pieces: what is told does not depend on how they were cut, and nothing is
 * lost that is no part of a call.
 *
 * The first byte says which style, what a grammar has seen to, and how long the pieces are. */
#include "tests/fuzz/fuzz.h"

#include "text/reply/reply.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

struct record {
    struct kva_buf text;
    size_t calls;
    size_t plain_bytes;
    char kind;
};

static void note(struct record *record, char kind, const char *text, size_t length)
{
    require(length > 0);
    if (record->kind != kind || kind == 'f')
        kva_buf_printf(&record->text, "\n%c:", kind);
    record->kind = kind;
    kva_buf_append(&record->text, text, length);
}

static void on_reasoning(void *opaque, const char *text, size_t length)
{
    note(opaque, 'r', text, length);
}

static void on_content(void *opaque, const char *text, size_t length)
{
    struct record *record = opaque;
    record->plain_bytes += length;
    note(record, 'c', text, length);
}

static void on_call(void *opaque, const char *name, size_t length)
{
    struct record *record = opaque;
    record->calls++;
    note(record, 'f', name, length);
}

static void on_arguments(void *opaque, const char *text, size_t length)
{
    struct record *record = opaque;
    require(record->calls > 0);
    note(record, 'a', text, length);
}

static void run(struct kva_reply_params params, const char *text, size_t length, size_t piece,
                struct record *record)
{
    struct kva_reply *reply = NULL;
    *record = (struct record){.kind = 0};
    kva_buf_init(&record->text, length * 8 + 4096);
    params.sink = (struct kva_reply_sink){record, on_reasoning, on_content, on_call, on_arguments};
    require(kva_reply_create(&params, &reply) == KVA_OK);
    for (size_t at = 0; at < length; at += piece)
        kva_reply_push(reply, text + at, piece < length - at ? piece : length - at);
    kva_reply_finish(reply);
    require(!kva_reply_failed(reply) && kva_reply_held(reply) == 0);
    kva_reply_destroy(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"f", "add"};
    static const char *const schemas[] = {
        NULL,
        "{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"integer\",\"null\"]},"
        "\"c\":{\"enum\":[1,\"x\"]}}}"};
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    size_t length = size - 1;
    const struct kva_reply_params params = {
        .style = data[0] < 240 ? (enum kva_reply_style)(data[0] % KVA_REPLY_XML) : KVA_REPLY_XML,
        .bound = data[0] & 8u ? KVA_REPLY_MARKED : KVA_REPLY_FREE,
        .thinks = data[0] & 16u,
        .thinking = data[0] & 32u,
        .single = length % 2,
        .names = names,
        .schemas = schemas,
        .name_count = 2,
        .bytes_max = length + 1,
    };
    struct record whole, pieces;
    run(params, text, length, length + 1, &whole);
    run(params, text, length, 1 + (data[0] >> 6) * 3u, &pieces);
    require(whole.text.length == pieces.text.length);
    require(whole.text.length == 0 ||
            memcmp(whole.text.data, pieces.text.data, whole.text.length) == 0);
    /* A text without calls and thoughts is its content. */
    if (whole.calls == 0 && !params.thinks)
        require(whole.plain_bytes == length);
    kva_buf_finish(&whole.text);
    kva_buf_finish(&pieces.text);
    return 0;
}
