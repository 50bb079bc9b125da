/* Deliberately broken operators of linear with packed weights. */
#include "kernels/packed.h"
#include "tests/kernels/broken.h"

#include <stdlib.h>
#include <string.h>

static const struct kva_ops *good;

/* The operator on a copy of the weights, of which `spoil` has changed every panel. */
typedef void spoil_fn(const struct kva_packed_format *format, unsigned char *panel,
                      uint32_t inputs);

static void with_weights(struct kva_device *device, const struct kva_linear_args *args,
                         spoil_fn *spoil)
{
    const struct kva_weight *w = &args->weight;
    const struct kva_packed_format *format = kva_packed_format(w->dtype);
    size_t bytes = kva_packed_bytes(format, w->rows, w->cols);
    size_t panel = kva_packed_panel_bytes(format, w->cols);
    unsigned char *copy = aligned_alloc(KVA_PACKED_ALIGN, bytes);
    memcpy(copy, w->data, bytes);
    for (size_t at = 0; at < bytes; at += panel)
        spoil(format, copy + at, w->cols);
    struct kva_linear_args wrong = *args;
    wrong.weight.data = copy;
    good->linear(device, &wrong);
    free(copy);
}

/* The last piece of 32 inputs counts as nothing. */
static void no_last_piece(const struct kva_packed_format *format, unsigned char *panel,
                          uint32_t inputs)
{
    size_t bytes = kva_packed_piece_bytes(format);
    memset(panel + kva_packed_panel_bytes(format, inputs) - bytes, 128, bytes);
}

static void packed_last_piece(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, no_last_piece);
}

/* Every block has the first one's scales. */
static void one_head(const struct kva_packed_format *format, unsigned char *panel, uint32_t inputs)
{
    for (size_t block = 1; block * format->block_inputs < inputs; block++)
        memcpy(panel + block * kva_packed_block_bytes(format), panel, format->head_bytes);
}

static void packed_first_head(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, one_head);
}

/* Of a block with several groups, the last has the scales of the one before. */
static void one_group(const struct kva_packed_format *format, unsigned char *panel, uint32_t inputs)
{
    const size_t bytes = format->head == KVA_HEAD_F16 ? 32 : 16;
    for (size_t block = 0; block * format->block_inputs < inputs; block++) {
        unsigned char *end =
            panel + block * kva_packed_block_bytes(format) + format->head_bytes - bytes;
        if (format->block_inputs > format->scale_inputs)
            memcpy(end, end - bytes, bytes);
    }
}

static void packed_last_group(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, one_group);
}

/* One code off by one: what a lost correction of the zero leaves, in small. */
static void shifted(const struct kva_packed_format *format, unsigned char *panel, uint32_t inputs)
{
    panel[format->head_bytes + 4 * (inputs % 16)] ^= 1;
}

static void packed_shifted_code(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, shifted);
}

/* The high bits are left out. */
static void no_high_bits(const struct kva_packed_format *format, unsigned char *panel,
                         uint32_t inputs KVA_UNUSED)
{
    memset(panel + format->head_bytes + (size_t)format->low_bits * KVA_PACKED_LINE_BYTES, 0,
           (size_t)format->high_bits * KVA_PACKED_LINE_BYTES);
}

static void packed_high_bits(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, no_high_bits);
}

/* Rows changed before: `group` inputs share a scale, and codes are cut instead of rounded where
 * `cut` is. */
static void with_rows(struct kva_device *device, const struct kva_linear_args *args, size_t group,
                      bool cut)
{
    size_t inputs = args->weight.cols;
    float *x = malloc((size_t)args->rows * inputs * sizeof(*x));
    for (size_t row = 0; row < args->rows; row++) {
        const float *from = (const float *)args->x + row * args->x_stride;
        for (size_t first = 0; first < inputs; first += group) {
            size_t end = kva_min_size(first + group, inputs);
            float largest = 0;
            for (size_t i = first; i < end; i++)
                largest = fmaxf(largest, fabsf(from[i]));
            for (size_t i = first; i < end; i++) {
                float code = largest > 0 ? from[i] / largest * 127 : 0;
                x[row * inputs + i] = (cut ? truncf(code) : nearbyintf(code)) * largest / 127;
            }
        }
    }
    struct kva_linear_args wrong = *args;
    wrong.x = x;
    wrong.x_stride = args->weight.cols;
    good->linear(device, &wrong);
    free(x);
}

static void packed_row_scale(struct kva_device *device, const struct kva_linear_args *args)
{
    with_rows(device, args, args->weight.cols, false);
}

static void packed_cut_codes(struct kva_device *device, const struct kva_linear_args *args)
{
    with_rows(device, args, KVA_PACKED_ROW_GROUP, true);
}

/* What a kernel without rounded activations gives: more exact, and not what other levels give. */
static void packed_plain_rows(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    const struct kva_weight *w = &args->weight;
    if (args->accumulate || args->bias.data)
        return;
    for (size_t n = 0; n < w->rows; n++) {
        double sum = 0;
        for (uint32_t i = 0; i < w->cols; i++)
            sum += (double)((const float *)args->x)[i] *
                   (double)kva_packed_at(w->dtype, w->data, w->cols, (uint32_t)n, i);
        ((float *)args->out)[n] = (float)sum;
    }
}

static void packed_panel_write(struct kva_device *device, const struct kva_linear_args *args)
{
    /* A whole panel is written where the last has fewer outputs. */
    good->linear(device, args);
    for (size_t n = args->weight.rows; n % KVA_PACKED_PANEL; n++)
        ((float *)args->out)[(size_t)(args->rows - 1) * args->out_stride + n] = 0;
}

static void packed_over_read(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    const struct kva_weight *w = &args->weight;
    volatile const unsigned char *end =
        (const unsigned char *)w->data +
        kva_packed_bytes(kva_packed_format(w->dtype), w->rows, w->cols);
    (void)end[0];
}

static const struct broken list[] = {
    BREAKS(packed_last_piece, OP_LINEAR_PACKED, linear),
    BREAKS(packed_first_head, OP_LINEAR_PACKED, linear),
    BREAKS(packed_last_group, OP_LINEAR_PACKED, linear),
    BREAKS(packed_shifted_code, OP_LINEAR_PACKED, linear),
    BREAKS(packed_high_bits, OP_LINEAR_PACKED, linear),
    BREAKS(packed_row_scale, OP_LINEAR_PACKED, linear),
    BREAKS(packed_cut_codes, OP_LINEAR_PACKED, linear),
    BREAKS(packed_plain_rows, OP_LINEAR_PACKED, linear),
    BREAKS(packed_panel_write, OP_LINEAR_PACKED, linear),
    BREAKS(packed_over_read, OP_LINEAR_PACKED, linear),
};

const struct broken *broken_packed(const struct kva_ops *sound, size_t *ret_count)
{
    good = sound;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
