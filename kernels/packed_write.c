/* packed_write.c - codes of a block to the lines of its pieces. */
#include "kernels/packed_write.h"

#include <string.h>

#define LINE KVA_PACKED_LINE_BYTES

/* A piece in the order of products. */
struct piece {
    uint8_t steps[KVA_PACKED_PIECE_STEPS][LINE];
};

/* `bits` bits of every code, from bit `first` on, into as many lines. */
static void write_lines(const struct piece *piece, uint32_t bits, uint32_t first, uint8_t *to)
{
    const uint32_t steps = bits ? 8 / bits : 0, mask = (1u << bits) - 1;
    for (uint32_t line = 0; line < bits; line++, to += LINE) {
        uint8_t packed[LINE] = {0};
        for (uint32_t s = 0; s < steps; s++) {
            const uint8_t *from = piece->steps[line * steps + s];
            for (uint32_t i = 0; i < LINE; i++)
                packed[i] |= (uint8_t)(((uint32_t)from[i] >> first & mask) << s * bits);
        }
        memcpy(to, packed, LINE);
    }
}

void kva_packed_write_pieces(const struct kva_packed_format *format,
                             const struct kva_packed_codes *codes, uint32_t inputs, uint8_t *to)
{
    for (uint32_t first = 0; first < inputs; first += KVA_PACKED_PIECE_INPUTS) {
        struct piece piece;
        for (uint32_t n = 0; n < KVA_PACKED_PANEL; n++) {
            for (uint32_t s = 0; s < KVA_PACKED_PIECE_STEPS; s++)
                memcpy(piece.steps[s] + (size_t)n * KVA_PACKED_STEP_INPUTS,
                       codes->at[n] + first + (size_t)s * KVA_PACKED_STEP_INPUTS,
                       KVA_PACKED_STEP_INPUTS);
        }
        write_lines(&piece, format->low_bits, 0, to);
        write_lines(&piece, format->high_bits, format->low_bits,
                    to + (size_t)format->low_bits * LINE);
        to += kva_packed_piece_bytes(format);
    }
}
