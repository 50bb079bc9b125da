/* detok.c - tokens to text, as they come. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

void kva_detok_init(struct kva_detok *detok, const struct kva_tokenizer *tokenizer,
                    bool skip_special)
{
    *detok = (struct kva_detok){
        .tokenizer = tokenizer,
        .strip = tokenizer->decoder.strip_bytes ? tokenizer->decoder.strip_start : 0,
        .skip_special = skip_special,
    };
}

void kva_detok_continue(struct kva_detok *detok)
{
    detok->started = true;
    detok->strip = 0;
}

/* ---- whole characters, minus what is stripped from the ends ---------------------------------- */

static void release_held(struct kva_detok *detok, struct kva_buf *out, size_t keep)
{
    const struct kva_decoder *decoder = &detok->tokenizer->decoder;
    for (; detok->held > keep; detok->held--)
        kva_buf_append(out, decoder->strip_char, decoder->strip_bytes);
}

static void write_text(struct kva_detok *detok, const char *text, size_t length,
                       struct kva_buf *out)
{
    const struct kva_decoder *decoder = &detok->tokenizer->decoder;
    size_t size = decoder->strip_bytes;
    while (detok->strip > 0 && length > 0) {
        if (length < size || memcmp(text, decoder->strip_char, size) != 0) {
            detok->strip = 0;
            break;
        }
        detok->strip--;
        text += size;
        length -= size;
    }
    if (length == 0)
        return;
    if (size == 0 || decoder->strip_stop == 0) {
        kva_buf_append(out, text, length);
        return;
    }
    size_t tail = 0;
    while (length - tail * size >= size &&
           memcmp(text + length - (tail + 1) * size, decoder->strip_char, size) == 0)
        tail++;
    if (tail * size < length) {
        release_held(detok, out, 0);
        kva_buf_append(out, text, length - tail * size);
    }
    detok->held += tail;
    release_held(detok, out, decoder->strip_stop);
}

/* ---- bytes to whole characters --------------------------------------------------------------- */

static void write_bad(struct kva_detok *detok, size_t bytes, struct kva_buf *out)
{
    size_t count = detok->tokenizer->decoder.byte_fallback ? bytes : 1;
    for (size_t i = 0; i < count; i++)
        write_text(detok, REPLACEMENT, 3, out);
}

/* The sequence that the pending bytes start did not end. */
static void drop_pending(struct kva_detok *detok, struct kva_buf *out)
{
    if (detok->pending_count > 0)
        write_bad(detok, detok->pending_count, out);
    detok->pending_count = 0;
}

static void write_pending_byte(struct kva_detok *detok, char byte, struct kva_buf *out)
{
    detok->pending[detok->pending_count++] = byte;
    while (detok->pending_count > 0) {
        size_t bad = 0;
        int size = kva_utf8_sequence(detok->pending, detok->pending_count, &bad);
        if (size < 0)
            return;
        size_t taken = size > 0 ? (size_t)size : bad;
        if (size > 0)
            write_text(detok, detok->pending, taken, out);
        else
            write_bad(detok, taken, out);
        detok->pending_count = (uint8_t)(detok->pending_count - taken);
        memmove(detok->pending, detok->pending + taken, detok->pending_count);
    }
}

static void write_bytes(struct kva_detok *detok, const char *bytes, size_t length,
                        struct kva_buf *out)
{
    size_t at = 0;
    while (at < length) {
        if (detok->pending_count > 0) {
            write_pending_byte(detok, bytes[at++], out);
            continue;
        }
        size_t end = at;
        int size = 0;
        while (end < length && (size = kva_utf8_sequence(bytes + end, length - end, NULL)) > 0)
            end += (size_t)size;
        write_text(detok, bytes + at, end - at, out);
        at = end;
        if (at < length)
            write_pending_byte(detok, bytes[at++], out);
    }
}

/* ---- tokens --------------------------------------------------------------------------------- */

static void write_first(struct kva_detok *detok, const struct kva_vocab_entry *entry,
                        struct kva_buf *out)
{
    const struct kva_vocab *vocab = &detok->tokenizer->vocab;
    struct kva_buf text;
    kva_buf_init(&text, KVA_TOKENIZER_TOKEN_BYTES_MAX * 4u);
    kva_decoder_token(&detok->tokenizer->decoder, vocab->pool.data + entry->offset, entry->length,
                      true, &text);
    if (text.failed)
        out->failed = true;
    else if (text.length > 0)
        write_text(detok, text.data, text.length, out);
    kva_buf_finish(&text);
}

void kva_detok_push(struct kva_detok *detok, int32_t id, struct kva_buf *out)
{
    const struct kva_vocab *vocab = &detok->tokenizer->vocab;
    const struct kva_decoder *decoder = &detok->tokenizer->decoder;
    if (id < 0 || (uint32_t)id >= vocab->size || !vocab->entries[id].flags)
        return;
    const struct kva_vocab_entry *entry = &vocab->entries[id];
    if (detok->skip_special && (entry->flags & KVA_TOK_SPECIAL))
        return;
    bool first = !detok->started;
    detok->started = true;
    if (decoder->byte_level || (entry->flags & KVA_TOK_BYTE)) {
        write_bytes(detok, vocab->bytes_pool.data + entry->bytes_offset, entry->bytes_length, out);
        return;
    }
    drop_pending(detok, out);
    if (decoder->join_spaces && !first)
        write_text(detok, " ", 1, out);
    if (first && decoder->first_differs)
        write_first(detok, entry, out);
    else
        write_text(detok, vocab->bytes_pool.data + entry->bytes_offset, entry->bytes_length, out);
}

void kva_detok_flush(struct kva_detok *detok, struct kva_buf *out)
{
    drop_pending(detok, out);
    /* What is held back now is what a Strip removes from the end. */
    kva_detok_init(detok, detok->tokenizer, detok->skip_special);
}

enum kva_status kva_tokenizer_decode(const struct kva_tokenizer *tokenizer, const int32_t *ids,
                                     size_t count, bool skip_special, struct kva_buf *out)
{
    struct kva_detok detok;
    kva_detok_init(&detok, tokenizer, skip_special);
    for (size_t i = 0; i < count && !out->failed; i++)
        kva_detok_push(&detok, ids[i], out);
    kva_detok_flush(&detok, out);
    if (!out->failed)
        return KVA_OK;
    return out->length + 4 >= out->max_bytes ? KVA_ETOOBIG : KVA_ENOMEM;
}
