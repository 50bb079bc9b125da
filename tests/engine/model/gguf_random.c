/* gguf_random.c - random blocks. */
#include "tests/engine/model/gguf_random.h"

#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

const uint32_t gguf_random_formats[] = {2, 3, 6, 7, 8, 10, 11, 12, 13, 14};

const struct gguf_random_matrix gguf_random_matrices[] = {
    {"token_embd.weight", GGUF_RANDOM_VOCAB, GGUF_RANDOM_HIDDEN},
    {"blk.0.attn_q.weight", GGUF_RANDOM_HEADS *GGUF_RANDOM_HEAD_DIM, GGUF_RANDOM_HIDDEN},
    {"blk.0.attn_k.weight", GGUF_RANDOM_KV_HEADS *GGUF_RANDOM_HEAD_DIM, GGUF_RANDOM_HIDDEN},
    {"blk.0.attn_v.weight", GGUF_RANDOM_KV_HEADS *GGUF_RANDOM_HEAD_DIM, GGUF_RANDOM_HIDDEN},
    {"blk.0.attn_output.weight", GGUF_RANDOM_HIDDEN, GGUF_RANDOM_HIDDEN},
    {"blk.0.ffn_gate.weight", GGUF_RANDOM_INNER, GGUF_RANDOM_HIDDEN},
    {"blk.0.ffn_up.weight", GGUF_RANDOM_INNER, GGUF_RANDOM_HIDDEN},
    {"blk.0.ffn_down.weight", GGUF_RANDOM_HIDDEN, GGUF_RANDOM_INNER},
};

static uint8_t *random_blocks(const struct kva_gguf_format *format, size_t blocks, uint64_t *state)
{
    /* Where the scales are, and the upper byte of them with which weights are about 0.06. */
    static const struct {
        uint32_t id, first, second;
        uint8_t upper;
    } scales[] = {{8, 0, 0, 0x11},  {2, 0, 0, 0x21},     {3, 0, 2, 0x21},      {6, 0, 0, 0x1C},
                  {7, 0, 2, 0x1C},  {10, 80, 82, 0x1C},  {11, 108, 108, 0x16}, {12, 0, 2, 0x0A},
                  {13, 0, 2, 0x06}, {14, 208, 208, 0x03}};
    uint8_t *bytes = malloc(blocks * format->block_bytes);
    assert_non_null(bytes);
    for (size_t i = 0; i < blocks * format->block_bytes; i++) {
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = (uint8_t)(*state >> 56);
    }
    for (size_t i = 0; i < KVA_COUNT_OF(scales); i++)
        for (size_t j = 0; scales[i].id == format->id && j < blocks; j++) {
            bytes[j * format->block_bytes + scales[i].first + 1] = scales[i].upper;
            bytes[j * format->block_bytes + scales[i].second + 1] = scales[i].upper;
        }
    return bytes;
}

void gguf_random_put(struct gguf_writer *writer, const char *architecture, uint32_t format_id)
{
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {"context_length", GGUF_RANDOM_CONTEXT},
        {"embedding_length", GGUF_RANDOM_HIDDEN},
        {"feed_forward_length", GGUF_RANDOM_INNER},
        {"block_count", 1},
        {"attention.head_count", GGUF_RANDOM_HEADS},
        {"attention.head_count_kv", GGUF_RANDOM_KV_HEADS},
    };
    char key[64];
    const struct kva_gguf_format *format = kva_gguf_format_find(format_id);
    float norm[GGUF_RANDOM_HIDDEN];
    uint64_t state = 5 + format_id;
    for (int i = 0; i < GGUF_RANDOM_HIDDEN; i++)
        norm[i] = 1.0f;
    gguf_writer_init(writer);
    gguf_put_string(writer, "general.architecture", architecture);
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++) {
        snprintf(key, sizeof(key), "%s.%s", architecture, numbers[i].name);
        gguf_put_u32(writer, key, numbers[i].value);
    }
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", architecture);
    gguf_put_f32(writer, key, 1e-5f);
    gguf_put_tensor(writer, "output_norm.weight", KVA_GGUF_F32, 0, GGUF_RANDOM_HIDDEN, norm,
                    sizeof(norm));
    gguf_put_tensor(writer, "blk.0.attn_norm.weight", KVA_GGUF_F32, 0, GGUF_RANDOM_HIDDEN, norm,
                    sizeof(norm));
    gguf_put_tensor(writer, "blk.0.ffn_norm.weight", KVA_GGUF_F32, 0, GGUF_RANDOM_HIDDEN, norm,
                    sizeof(norm));
    for (size_t i = 0; i < GGUF_RANDOM_MATRICES; i++) {
        size_t blocks = (size_t)gguf_random_matrices[i].rows * gguf_random_matrices[i].cols /
                        format->block_values;
        uint8_t *bytes = random_blocks(format, blocks, &state);
        gguf_put_tensor(writer, gguf_random_matrices[i].name, format_id,
                        gguf_random_matrices[i].rows, gguf_random_matrices[i].cols, bytes,
                        blocks * format->block_bytes);
        free(bytes);
    }
}
