/* Deliberately broken operators of linear with weights in int8. */
#include "kernels/int8.h"
#include "tests/kernels/broken.h"

#include <stdlib.h>
#include <string.h>

static const struct kva_ops *good;

/* The operator on a copy of the weights that `spoil` has changed, or of the rows. */
typedef void spoil_fn(unsigned char *lines, uint32_t inputs);

static void with_weights(struct kva_device *device, const struct kva_linear_args *args,
                         spoil_fn *spoil)
{
    const struct kva_weight *w = &args->weight;
    size_t bytes = kva_int8_bytes(w->rows, w->cols), panel = kva_int8_panel_bytes(w->cols);
    unsigned char *copy = aligned_alloc(KVA_INT8_ALIGN, bytes);
    memcpy(copy, w->data, bytes);
    for (size_t at = 0; at < bytes; at += panel)
        spoil(copy + at, w->cols);
    struct kva_linear_args wrong = *args;
    wrong.weight.data = copy;
    good->linear(device, &wrong);
    free(copy);
}

/* The last step of 4 inputs counts as nothing: an off-by-one tail. */
static void no_last_step(unsigned char *lines, uint32_t inputs)
{
    memset(lines + kva_int8_panel_bytes(inputs) - 64, 128, 64);
}

static void int8_last_step(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, no_last_step);
}

/* Every group has the first one's scales. */
static void one_scale(unsigned char *lines, uint32_t inputs)
{
    for (size_t group = 1; group * KVA_INT8_GROUP < inputs; group++)
        memcpy(lines + group * 33 * 64, lines, 64);
}

static void int8_first_scale(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, one_scale);
}

/* Codes of even outputs and inputs one too large: what a lost correction of the 128 leaves, in
 * small. */
static void shifted(unsigned char *lines, uint32_t inputs)
{
    lines[64 + 4 * (inputs % 16)]++;
}

static void int8_shifted_code(struct kva_device *device, const struct kva_linear_args *args)
{
    with_weights(device, args, shifted);
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

static void int8_row_scale(struct kva_device *device, const struct kva_linear_args *args)
{
    with_rows(device, args, args->weight.cols, false);
}

static void int8_cut_codes(struct kva_device *device, const struct kva_linear_args *args)
{
    with_rows(device, args, KVA_INT8_GROUP, true);
}

/* What a kernel without rounded activations gives: more exact, and not what other levels give. */
static void int8_plain_rows(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    const struct kva_weight *w = &args->weight;
    if (args->accumulate || args->bias.data)
        return;
    for (size_t n = 0; n < w->rows; n++) {
        double sum = 0;
        for (uint32_t i = 0; i < w->cols; i++)
            sum += (double)((const float *)args->x)[i] *
                   (double)kva_int8_at(w->data, w->cols, (uint32_t)n, i);
        ((float *)args->out)[n] = (float)sum;
    }
}

static void int8_panel_write(struct kva_device *device, const struct kva_linear_args *args)
{
    /* A whole panel is written where the last has fewer outputs. */
    good->linear(device, args);
    for (size_t n = args->weight.rows; n % KVA_INT8_PANEL; n++)
        ((float *)args->out)[(size_t)(args->rows - 1) * args->out_stride + n] = 0;
}

static void int8_over_read(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    const struct kva_weight *w = &args->weight;
    volatile const unsigned char *end =
        (const unsigned char *)w->data + kva_int8_bytes(w->rows, w->cols);
    (void)end[0];
}

static const struct broken list[] = {
    BREAKS(int8_last_step, OP_LINEAR_INT8, linear),
    BREAKS(int8_first_scale, OP_LINEAR_INT8, linear),
    BREAKS(int8_shifted_code, OP_LINEAR_INT8, linear),
    BREAKS(int8_row_scale, OP_LINEAR_INT8, linear),
    BREAKS(int8_cut_codes, OP_LINEAR_INT8, linear),
    BREAKS(int8_plain_rows, OP_LINEAR_INT8, linear),
    BREAKS(int8_panel_write, OP_LINEAR_INT8, linear),
    BREAKS(int8_over_read, OP_LINEAR_INT8, linear),
};

const struct broken *broken_int8(const struct kva_ops *sound, size_t *ret_count)
{
    good = sound;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
