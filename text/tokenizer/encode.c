/* encode.c - text to tokens: added tokens, normalizer, pre-tokenizer, BPE, post-processor. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Shorter texts repeat too few words to pay for a cache. */
#define CACHE_TEXT_BYTES 4096u
#define CACHE_ENTRIES    8192u

/* ---- token lists ---------------------------------------------------------------------------- */

void kva_token_list_init(struct kva_token_list *list, size_t max)
{
    *list = (struct kva_token_list){.max = max};
}

void kva_token_list_finish(struct kva_token_list *list)
{
    free(list->ids);
    kva_token_list_init(list, list->max);
}

enum kva_status kva_token_list_push(struct kva_token_list *list, int32_t id)
{
    if (list->count >= list->max)
        return KVA_ETOOBIG;
    if (list->count == list->capacity) {
        size_t capacity = kva_min_size(kva_max_size(64, list->capacity * 2), list->max);
        size_t bytes;
        if (!kva_mul_size(capacity, sizeof(*list->ids), &bytes))
            return KVA_ENOMEM;
        int32_t *ids = realloc(list->ids, bytes);
        if (!ids)
            return KVA_ENOMEM;
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->count++] = id;
    return KVA_OK;
}

/* ---- one encoding --------------------------------------------------------------------------- */

enum kva_status kva_encoder_check(const struct kva_encoder *encoder)
{
    if (encoder->cancelled && atomic_load_explicit(encoder->cancelled, memory_order_relaxed))
        return kva_fail(encoder->matcher.err, KVA_ECANCELLED, "the encoding was cancelled");
    if (encoder->token_count > encoder->stop_tokens)
        return kva_fail(encoder->matcher.err, KVA_ETOOBIG, "the text has more than %zu tokens",
                        encoder->stop_tokens);
    return KVA_OK;
}

/* Tokens beyond the maximum are only counted, so that the error can say how many there are. */
enum kva_status kva_encoder_emit(struct kva_encoder *encoder, int32_t id)
{
    if (encoder->token_count++ >= encoder->tokens_max)
        return kva_encoder_check(encoder);
    enum kva_status status = kva_encoder_check(encoder);
    if (status)
        return status;
    if (kva_token_list_push(encoder->list, id) == KVA_OK)
        return KVA_OK;
    return kva_fail(encoder->matcher.err, KVA_ENOMEM, "no memory for %zu tokens",
                    encoder->token_count);
}

static void encoder_init(struct kva_encoder *encoder, const struct kva_tokenizer *tokenizer,
                         const struct kva_encode_params *params, size_t length,
                         struct kva_token_list *list, struct kva_err *err)
{
    memset(encoder, 0, sizeof(*encoder));
    encoder->tokenizer = tokenizer;
    encoder->list = list;
    encoder->tokens_max = list->max - list->count;
    if (params->tokens_max > 0)
        encoder->tokens_max = kva_min_size(encoder->tokens_max, params->tokens_max);
    encoder->stop_tokens = params->stop_tokens > 0 ? params->stop_tokens : SIZE_MAX;
    encoder->cancelled = params->cancelled;
    kva_matcher_init(&encoder->matcher, length, err);
    for (size_t i = 0; i < KVA_COUNT_OF(encoder->op_buffers); i++)
        kva_buf_init(&encoder->op_buffers[i], KVA_TOKENIZER_TEXT_BYTES_MAX);
    kva_buf_init(&encoder->spelled, 4 * KVA_TOKENIZER_TOKEN_BYTES_MAX);
    /* Only speed is lost if there is no memory for it. */
    if (length >= CACHE_TEXT_BYTES)
        encoder->cache = calloc(CACHE_ENTRIES, sizeof(*encoder->cache));
}

static void encoder_finish(struct kva_encoder *encoder)
{
    kva_matcher_finish(&encoder->matcher);
    for (size_t i = 0; i < KVA_COUNT_OF(encoder->op_buffers); i++)
        kva_buf_finish(&encoder->op_buffers[i]);
    kva_buf_finish(&encoder->spelled);
    free(encoder->symbols);
    free(encoder->nodes);
    free(encoder->queue);
    free(encoder->cache);
}

/* Text between added tokens that are matched before normalization. `first`: the text starts here.
 */
static enum kva_status encode_chunk(struct kva_encoder *encoder, const char *text, size_t length,
                                    bool first, bool parse_special)
{
    const struct kva_tokenizer *tokenizer = encoder->tokenizer;
    struct kva_buf buffers[2];
    kva_buf_init(&buffers[0], KVA_TOKENIZER_TEXT_BYTES_MAX);
    kva_buf_init(&buffers[1], KVA_TOKENIZER_TEXT_BYTES_MAX);
    enum kva_status status =
        kva_normalize(&tokenizer->normalizer, &encoder->matcher, buffers, &text, &length);
    size_t done = 0;
    size_t at = 0;
    struct kva_added_match match;
    while (!status && kva_added_next(&tokenizer->added, &tokenizer->added.normalized, text, length,
                                     at, done, parse_special, &match)) {
        if (match.start > done)
            status =
                kva_pretokenize(encoder, 0, text + done, match.start - done, first && done == 0);
        if (!status)
            status = kva_encoder_emit(encoder, match.token->id);
        done = match.end;
        at = match.resume;
    }
    if (!status && length > done)
        status = kva_pretokenize(encoder, 0, text + done, length - done, first && done == 0);
    kva_buf_finish(&buffers[0]);
    kva_buf_finish(&buffers[1]);
    return status;
}

static enum kva_status encode_text(struct kva_encoder *encoder, const char *text, size_t length,
                                   bool parse_special)
{
    const struct kva_tokenizer *tokenizer = encoder->tokenizer;
    enum kva_status status = KVA_OK;
    size_t done = 0;
    size_t at = 0;
    struct kva_added_match match;
    while (!status && kva_added_next(&tokenizer->added, &tokenizer->added.raw, text, length, at,
                                     done, parse_special, &match)) {
        if (match.start > done)
            status =
                encode_chunk(encoder, text + done, match.start - done, done == 0, parse_special);
        if (!status)
            status = kva_encoder_emit(encoder, match.token->id);
        done = match.end;
        at = match.resume;
    }
    if (!status && length > done)
        status = encode_chunk(encoder, text + done, length - done, done == 0, parse_special);
    return status;
}

static enum kva_status emit_special(struct kva_encoder *encoder, const int32_t *ids, uint32_t count)
{
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < count && !status; i++)
        status = kva_encoder_emit(encoder, ids[i]);
    return status;
}

/* The text with U+FFFD for what is not UTF-8. */
static void repair(const char *text, size_t length, struct kva_buf *out)
{
    size_t start = 0;
    for (size_t at = 0; at < length;) {
        size_t bad = length - at;
        int size = kva_utf8_sequence(text + at, length - at, &bad);
        if (size > 0) {
            at += (size_t)size;
            continue;
        }
        kva_buf_append(out, text + start, at - start);
        kva_buf_append(out, "\xEF\xBF\xBD", 3);
        at += bad;
        start = at;
    }
    kva_buf_append(out, text + start, length - start);
}

static enum kva_status encode_with(struct kva_encoder *encoder, const char *text, size_t length,
                                   const struct kva_encode_params *params)
{
    const struct kva_post *post = &encoder->tokenizer->post;
    enum kva_status status = KVA_OK;
    if (params->add_special)
        status = emit_special(encoder, post->before, post->before_count);
    if (!status)
        status = encode_text(encoder, text, length, params->parse_special);
    if (!status && params->add_special)
        status = emit_special(encoder, post->after, post->after_count);
    if (!status && encoder->token_count > encoder->tokens_max)
        status =
            kva_fail(encoder->matcher.err, KVA_ETOOBIG, "the text has %zu tokens, limit is %zu",
                     encoder->token_count, encoder->tokens_max);
    return status;
}

static void add_work(struct kva_encode_work *sum, const struct kva_encode_work *work)
{
    sum->pieces += work->pieces;
    sum->merges += work->merges;
    sum->lookups += work->lookups;
    sum->queue_pushes += work->queue_pushes;
    sum->cache_hits += work->cache_hits;
}

enum kva_status kva_tokenizer_encode(const struct kva_tokenizer *tokenizer, const char *text,
                                     size_t length, const struct kva_encode_params *params,
                                     struct kva_token_list *list, struct kva_err *err)
{
    static const struct kva_encode_params nothing = {.add_special = false};
    params = params ? params : &nothing;
    if (length > KVA_TOKENIZER_TEXT_BYTES_MAX)
        return kva_fail(err, KVA_ETOOBIG, "the text has %zu bytes, limit is %zu", length,
                        KVA_TOKENIZER_TEXT_BYTES_MAX);
    size_t count = list->count;
    struct kva_buf repaired;
    kva_buf_init(&repaired, 3 * KVA_TOKENIZER_TEXT_BYTES_MAX);
    if (!kva_utf8_valid(text, length)) {
        repair(text, length, &repaired);
        if (repaired.failed) {
            kva_buf_finish(&repaired);
            return kva_fail(err, KVA_ENOMEM, "no memory to tokenise a text of %zu bytes", length);
        }
        text = repaired.data;
        length = repaired.length;
    }
    struct kva_encoder *encoder = malloc(sizeof(*encoder));
    enum kva_status status;
    if (!encoder) {
        status = kva_fail(err, KVA_ENOMEM, "no memory to tokenise a text of %zu bytes", length);
    } else {
        encoder_init(encoder, tokenizer, params, length, list, err);
        status = encode_with(encoder, text, length, params);
        if (params->work)
            add_work(params->work, &encoder->work);
        encoder_finish(encoder);
        free(encoder);
    }
    kva_buf_finish(&repaired);
    if (status)
        list->count = count;
    return status;
}
