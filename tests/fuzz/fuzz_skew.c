/* fuzz_skew.c - what is behind the header of a skew's file, from any bytes.
 *
 * The first byte chooses the model's shape, the rest is the content; once more with the shape
 * written into it, because hardly any damage leaves it right. */
#include "tests/fuzz/fuzz.h"

#include "engine/model/packed_file.h"
#include "engine/model/skew.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static void check(const struct kva_skew *skew, const struct kva_model_config *config)
{
    require(skew->layers == config->layer_count && skew->kv_heads == config->kv_heads &&
            skew->head_dim == config->head_dim);
    for (uint32_t layer = 0; layer < skew->layers; layer++) {
        for (uint32_t head = 0; head < skew->kv_heads; head++) {
            const size_t at = kva_skew_columns_at(skew, layer, head);
            uint64_t seen = 0;
            for (uint32_t i = 0; i < skew->head_dim; i++) {
                const uint32_t column = skew->columns[at + i];
                require(column < skew->head_dim && !(seen >> column & 1));
                require(i == 0 ||
                        skew->energy[at + skew->columns[at + i - 1]] >= skew->energy[at + column]);
                require(isfinite(skew->basis[at * skew->head_dim + i]));
                seen |= (uint64_t)1 << column;
            }
        }
    }
}

static void parse(const uint8_t *data, size_t size, const struct kva_model_config *config)
{
    struct kva_skew *skew;
    struct kva_err err = {0};
    enum kva_status status = kva_skew_parse(data, size, config, &skew, &err);
    require(status == KVA_OK || status == KVA_EFORMAT);
    require((status != KVA_OK) == (err.message[0] != '\0'));
    if (status)
        return;
    check(skew, config);
    kva_skew_destroy(skew);
}

/* The header, of bytes that stand where a mapped file would. */
static void read_header(const uint8_t *data, size_t size)
{
    static const struct kva_packed_file_kind kind = {.magic = "kvahead skew\r\n\x1a", .version = 1};
    struct kva_packed_file_header header;
    const struct kva_packed_file file = {
        .kind = &kind, .map = (void *)(uintptr_t)data, .map_bytes = size};
    (void)kva_packed_file_header_read(&file, &header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_header(data, size);
    if (size < 1)
        return 0;
    const struct kva_model_config config = {.layer_count = 1u + (data[0] & 3),
                                            .kv_heads = 1u + (data[0] >> 2 & 3),
                                            .head_dim = 2u << (data[0] >> 4 & 3)};
    data++, size--;
    parse(data, size, &config);
    const uint32_t shape[3] = {config.layer_count, config.kv_heads, config.head_dim};
    uint8_t *fitted = size >= sizeof(shape) ? malloc(size) : NULL;
    if (!fitted)
        return 0;
    memcpy(fitted, data, size);
    memcpy(fitted, shape, sizeof(shape));
    parse(fitted, size, &config);
    free(fitted);
    return 0;
}
