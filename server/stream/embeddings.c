/* embeddings.c - vectors as OpenAI's /v1/embeddings has them. */
#include "server/stream/internal.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

static void put_numbers(struct kva_buf *out, const float *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        kva_buf_printf(out, "%c%.9g", i ? ',' : '[', (double)values[i]);
    kva_buf_putc(out, ']');
}

/* Little-endian floats. */
static void put_base64(struct kva_buf *out, const float *values, uint32_t count)
{
    size_t bytes = count * sizeof(*values);
    unsigned char *text = malloc(bytes / 3 * 4 + 8);
    if (!text) {
        kva_buf_fail(out);
        return;
    }
    int length = EVP_EncodeBlock(text, (const unsigned char *)values, (int)bytes);
    kva_buf_putc(out, '"');
    kva_buf_append(out, (const char *)text, (size_t)length);
    kva_buf_putc(out, '"');
    free(text);
}

/* The first numbers, as a unit vector where that is wanted; no length is made of zeros. */
static void cut(const float *values, float *ret, uint32_t count, bool normalise)
{
    double squares = 0;
    if (!normalise) {
        memcpy(ret, values, count * sizeof(*ret));
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        squares += (double)values[i] * (double)values[i];
    double length = squares > 0 ? sqrt(squares) : 1;
    for (uint32_t i = 0; i < count; i++)
        ret[i] = (float)((double)values[i] / length);
}

void kva_embedding_take(struct kva_answer *answer, uint32_t prompt_index, const float *values,
                        uint32_t count)
{
    const struct kva_api_embedding *wish = &answer->call->embedding;
    struct kva_buf *out = &answer->prompts[prompt_index].embedding;
    uint32_t dimensions = kva_min_u32(wish->dimensions, count);
    float *vector = malloc(dimensions * sizeof(*vector));
    if (!vector) {
        kva_buf_fail(out);
        return;
    }
    cut(values, vector, dimensions, wish->normalise);
    if (wish->base64)
        put_base64(out, vector, dimensions);
    else
        put_numbers(out, vector, dimensions);
    free(vector);
}

/* A float of nine digits is seldom shorter, with its comma. */
#define NUMBER_BYTES 10u

uint64_t kva_embeddings_bytes(const struct kva_api_call *call)
{
    uint64_t dimensions = call->embedding.dimensions;
    uint64_t vector = call->embedding.base64 ? (dimensions * sizeof(float) + 2) / 3 * 4
                                             : dimensions * NUMBER_BYTES;
    return call->prompt_count * vector;
}

void kva_embeddings_json(struct kva_buf *out, const struct kva_answer *answer)
{
    const struct kva_api_call *call = answer->call;
    kva_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        const struct kva_buf *embedding = &answer->prompts[i].embedding;
        kva_buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "",
                       i);
        kva_buf_append(out, embedding->data, embedding->length);
        kva_buf_putc(out, '}');
    }
    kva_buf_puts(out, "],\"model\":");
    kva_buf_json_string(out, call->model, strlen(call->model));
    kva_buf_printf(out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu",
                   (unsigned long long)call->prompt_tokens,
                   (unsigned long long)call->prompt_tokens);
    if (call->report || kva_answer_truncated(answer) > 0)
        kva_extras_json(out, answer);
    kva_buf_puts(out, "}}");
}
