/* decoder.c - loading a decoder.
 *
 * The reference runs each stage over the whole list of tokens. What can be streamed, and what
 * files contain, has this order, and all else is refused:
 *
 *     Replace, Metaspace, Strip  on each token
 *     ByteLevel                  letters to bytes, everything becomes one text   (or)
 *     ByteFallback               "<0x0A>" to bytes
 *     Fuse                       everything becomes one text
 *     Strip                      at the ends of that text */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum phase {
    PHASE_TOKENS,
    PHASE_BYTES, /* after ByteFallback */
    PHASE_TEXT,  /* after Fuse or ByteLevel */
};

/* Characters that may be stripped off an end: held characters are counted, not kept. */
#define STRIP_MAX 65535

static enum kva_status load_replace(struct kva_decode_op *op, const struct kva_tok_place *place,
                                    const cJSON *item)
{
    const char *from, *to;
    struct kva_tok_place inner = kva_tok_place_member(place, "pattern");
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(item, "pattern");
    if (!cJSON_IsObject(pattern) || kva_tok_json_missing(pattern, "String"))
        return kva_tok_complain(&inner, KVA_EUNSUPPORTED, "a decoder replaces strings only");
    enum kva_status status = kva_tok_json_string(&inner, pattern, "String", &from);
    if (!status)
        status = kva_tok_json_string(place, item, "content", &to);
    if (status)
        return status;
    op->kind = KVA_DECODE_REPLACE;
    op->from = strdup(from);
    op->to = strdup(to);
    if (!op->from || !op->to)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    op->from_length = strlen(from);
    op->to_length = strlen(to);
    return KVA_OK;
}

static enum kva_status load_metaspace(struct kva_decoder *decoder, struct kva_decode_op *op,
                                      const struct kva_tok_place *place, const cJSON *item)
{
    const char *replacement, *scheme;
    bool prefix;
    enum kva_status status = kva_tok_json_string(place, item, "replacement", &replacement);
    if (!status)
        status = kva_tok_json_string_optional(place, item, "prepend_scheme", &scheme);
    if (!status)
        status = kva_tok_json_bool(place, item, "add_prefix_space", true, &prefix);
    if (status)
        return status;
    op->kind = KVA_DECODE_METASPACE;
    op->from = strdup(replacement);
    op->to = strdup(" ");
    if (!op->from || !op->to)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    op->from_length = strlen(replacement);
    op->to_length = 1;
    op->drop_first = scheme ? strcmp(scheme, "never") != 0 : prefix;
    decoder->first_differs = decoder->first_differs || op->drop_first;
    return KVA_OK;
}

static enum kva_status load_strip(struct kva_decode_op *op, const struct kva_tok_place *place,
                                  const cJSON *item)
{
    struct kva_tok_place start_place = kva_tok_place_member(place, "start");
    struct kva_tok_place stop_place = kva_tok_place_member(place, "stop");
    const char *content;
    enum kva_status status = kva_tok_json_string(place, item, "content", &content);
    if (status)
        return status;
    int size = kva_utf8_sequence(content, strlen(content), NULL);
    if (size <= 0 || (size_t)size != strlen(content))
        return kva_tok_complain(place, KVA_EFORMAT, "'content' is not one character");
    op->kind = KVA_DECODE_STRIP;
    op->from = strdup(content);
    if (!op->from)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    op->from_length = (size_t)size;
    status = kva_tok_json_uint(&start_place, cJSON_GetObjectItemCaseSensitive(item, "start"),
                               STRIP_MAX, &op->start);
    if (!status)
        status = kva_tok_json_uint(&stop_place, cJSON_GetObjectItemCaseSensitive(item, "stop"),
                                   STRIP_MAX, &op->stop);
    return status;
}

static enum kva_status load_text_strip(struct kva_decoder *decoder,
                                       const struct kva_tok_place *place, const cJSON *item)
{
    struct kva_decode_op op = {.from = NULL};
    enum kva_status status = load_strip(&op, place, item);
    if (!status && decoder->strip_bytes)
        status = kva_tok_complain(place, KVA_EUNSUPPORTED, "a second Strip of the whole text");
    if (!status) {
        memcpy(decoder->strip_char, op.from, op.from_length);
        decoder->strip_bytes = (uint8_t)op.from_length;
        decoder->strip_start = op.start;
        decoder->strip_stop = op.stop;
    }
    free(op.from);
    return status;
}

static enum kva_status load_one(struct kva_decoder *decoder, const struct kva_tok_place *place,
                                const char *type, const cJSON *item, enum phase *phase)
{
    if (strcmp(type, "Fuse") == 0) {
        *phase = PHASE_TEXT;
        return KVA_OK;
    }
    if (strcmp(type, "Strip") == 0 && *phase == PHASE_TEXT)
        return load_text_strip(decoder, place, item);
    if (*phase == PHASE_TOKENS && strcmp(type, "ByteLevel") == 0) {
        decoder->byte_level = true;
        *phase = PHASE_TEXT;
        return KVA_OK;
    }
    if (*phase == PHASE_TOKENS && strcmp(type, "ByteFallback") == 0) {
        decoder->byte_fallback = true;
        *phase = PHASE_BYTES;
        return KVA_OK;
    }
    bool known = !strcmp(type, "Replace") || !strcmp(type, "Metaspace") || !strcmp(type, "Strip");
    if (!known || *phase != PHASE_TOKENS)
        return kva_tok_complain(place, KVA_EUNSUPPORTED,
                                "decoder of type '%.60s' is not supported%s", type,
                                *phase == PHASE_TOKENS ? "" : " at this place");
    struct kva_decode_op *op = &decoder->ops[decoder->op_count++];
    if (strcmp(type, "Replace") == 0)
        return load_replace(op, place, item);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(decoder, op, place, item);
    return load_strip(op, place, item);
}

/* ---- one token ------------------------------------------------------------------------------ */

static void run_replace(const struct kva_decode_op *op, bool drop, const char *text, size_t length,
                        struct kva_buf *out)
{
    while (op->from_length > 0) {
        const char *found = memmem(text, length, op->from, op->from_length);
        if (!found)
            break;
        size_t before = (size_t)(found - text);
        kva_buf_append(out, text, before);
        if (!drop)
            kva_buf_append(out, op->to, op->to_length);
        text += before + op->from_length;
        length -= before + op->from_length;
    }
    kva_buf_append(out, text, length);
}

static void run_strip(const struct kva_decode_op *op, const char *text, size_t length,
                      struct kva_buf *out)
{
    size_t size = op->from_length;
    for (uint32_t i = 0; i < op->start && length >= size && !memcmp(text, op->from, size); i++) {
        text += size;
        length -= size;
    }
    for (uint32_t i = 0;
         i < op->stop && length >= size && !memcmp(text + length - size, op->from, size); i++)
        length -= size;
    kva_buf_append(out, text, length);
}

static void run_byte_level(const char *text, size_t length, struct kva_buf *out)
{
    size_t start = out->length;
    for (size_t at = 0; at < length;) {
        int size = kva_utf8_sequence(text + at, length - at, NULL);
        int byte = size > 0 ? kva_bytelevel_byte(kva_utf8_decode(text + at, size)) : -1;
        if (byte < 0) {
            /* A token with a letter outside the alphabet stands for its own spelling. */
            out->length = start;
            kva_buf_append(out, text, length);
            return;
        }
        kva_buf_putc(out, (char)byte);
        at += (size_t)size;
    }
}

/* "<0x0A>" in either case, as the reference reads it; -1 if it is none. */
static int byte_token(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' ||
        !isxdigit((unsigned char)text[3]) || !isxdigit((unsigned char)text[4]))
        return -1;
    return (int)strtol((char[]){text[3], text[4], '\0'}, NULL, 16);
}

void kva_decoder_token(const struct kva_decoder *decoder, const char *token, size_t length,
                       bool first, struct kva_buf *out)
{
    struct kva_buf buffers[2];
    kva_buf_init(&buffers[0], KVA_TOKENIZER_TOKEN_BYTES_MAX * 4u);
    kva_buf_init(&buffers[1], KVA_TOKENIZER_TOKEN_BYTES_MAX * 4u);
    for (uint32_t i = 0; i < decoder->op_count; i++) {
        const struct kva_decode_op *op = &decoder->ops[i];
        struct kva_buf *to = &buffers[i % 2];
        kva_buf_clear(to);
        if (op->kind == KVA_DECODE_STRIP)
            run_strip(op, token, length, to);
        else
            run_replace(op, first && op->drop_first, token, length, to);
        token = to->data ? to->data : "";
        length = to->length;
    }
    int byte = decoder->byte_fallback ? byte_token(token, length) : -1;
    if (byte >= 0)
        kva_buf_putc(out, (char)byte);
    else if (decoder->byte_level)
        run_byte_level(token, length, out);
    else
        kva_buf_append(out, token, length);
    out->failed = out->failed || buffers[0].failed || buffers[1].failed;
    kva_buf_finish(&buffers[0]);
    kva_buf_finish(&buffers[1]);
}

/* ---- loading -------------------------------------------------------------------------------- */

/* What each token stands for is worked out once. */
static enum kva_status fill_bytes(struct kva_tokenizer *tokenizer,
                                  const struct kva_tok_place *place)
{
    struct kva_vocab *vocab = &tokenizer->vocab;
    for (uint32_t id = 0; id < vocab->size; id++) {
        struct kva_vocab_entry *entry = &vocab->entries[id];
        if (!entry->flags)
            continue;
        size_t offset = vocab->bytes_pool.length;
        kva_decoder_token(&tokenizer->decoder, vocab->pool.data + entry->offset, entry->length,
                          false, &vocab->bytes_pool);
        size_t length = vocab->bytes_pool.length - offset;
        if (vocab->bytes_pool.failed || length > UINT16_MAX)
            return kva_tok_complain(place, KVA_ETOOBIG, "token %u decodes to too many bytes", id);
        /* A byte token is told from a token of one ASCII character by its spelling. */
        if (tokenizer->decoder.byte_fallback && length == 1 && entry->length >= 6) {
            struct kva_decoder plain = tokenizer->decoder;
            struct kva_buf spelled;
            plain.byte_fallback = false;
            kva_buf_init(&spelled, KVA_TOKENIZER_TOKEN_BYTES_MAX);
            kva_decoder_token(&plain, vocab->pool.data + entry->offset, entry->length, false,
                              &spelled);
            if (spelled.length == 6)
                entry->flags |= KVA_TOK_BYTE;
            kva_buf_finish(&spelled);
        }
        entry->bytes_offset = (uint32_t)offset;
        entry->bytes_length = (uint16_t)length;
        kva_buf_putc(&vocab->bytes_pool, '\0');
    }
    return KVA_OK;
}

enum kva_status kva_decoder_load(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                                 const cJSON *component)
{
    struct kva_decoder *decoder = &tokenizer->decoder;
    if (!component || cJSON_IsNull(component)) {
        decoder->join_spaces = true;
        return fill_bytes(tokenizer, place);
    }
    struct kva_tok_json_list *list = malloc(sizeof(*list));
    if (!list)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    enum phase phase = PHASE_TOKENS;
    enum kva_status status = kva_tok_json_flatten(place, component, "decoders", list);
    for (uint32_t i = 0; !status && i < list->count; i++)
        status = load_one(decoder, &list->places[i], list->types[i], list->items[i], &phase);
    free(list);
    return status ? status : fill_bytes(tokenizer, place);
}

void kva_decoder_finish(struct kva_decoder *decoder)
{
    for (uint32_t i = 0; i < decoder->op_count; i++) {
        free(decoder->ops[i].from);
        free(decoder->ops[i].to);
    }
}
