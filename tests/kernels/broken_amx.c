/* Deliberately broken operators of level amx. */
#include "tests/kernels/amx_emulator.h"
#include "tests/kernels/broken.h"

#ifdef __x86_64__
#include "kernels/cpu/simd/amx.h"

static const struct kva_ops *good;
static struct kva_device *other; /* of level avx512bf16 */

/* One row goes through vdpbf16ps, which adds in another order than tiles do. */
static void amx_row_by_vectors(struct kva_device *device, const struct kva_linear_args *args)
{
    if (args->rows == 1)
        kva_device_ops(other)->linear(other, args);
    else
        good->linear(device, args);
}

/* The last of many rows, too few for a tile, do. */
static void amx_rest_by_vectors(struct kva_device *device, const struct kva_linear_args *args)
{
    struct kva_linear_args part = *args;
    part.rows = args->rows / KVA_TILE_ROWS * KVA_TILE_ROWS;
    if (part.rows > 0)
        good->linear(device, &part);
    part.x = (const float *)args->x + (size_t)part.rows * args->x_stride;
    part.out = (float *)args->out + (size_t)part.rows * args->out_stride;
    part.rows = args->rows - part.rows;
    if (part.rows > 0)
        kva_device_ops(other)->linear(other, &part);
}

/* The thread that called goes on with tiles configured. */
static void amx_no_release(struct kva_device *device, const struct kva_linear_args *args)
{
    static const struct kva_tile_config config = {.palette = 1, .row_bytes = {64}, .rows = {16}};
    good->linear(device, args);
    kva_tiles_configure(&config);
}

/* A decoding row alone is attended by vdpbf16ps. */
static void amx_attend_alone(struct kva_device *device, const struct kva_attend_args *args)
{
    if (args->seq_count == 1 && args->seqs[0].row_count == 1)
        kva_device_ops(other)->attend(other, args);
    else
        good->attend(device, args);
}

static void amx_attend_no_release(struct kva_device *device, const struct kva_attend_args *args)
{
    static const struct kva_tile_config config = {.palette = 1, .row_bytes = {64}, .rows = {16}};
    good->attend(device, args);
    kva_tiles_configure(&config);
}

/* Mass of rows whose scores nobody has kept is made by vdpbf16ps. */
static void amx_mass_by_vectors(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    if (args->seqs[0].scores.data)
        good->attend_mass(device, args);
    else
        kva_device_ops(other)->attend_mass(other, args);
}

static const struct broken list[] = {
    BREAKS(amx_row_by_vectors, OP_LINEAR, linear),
    BREAKS(amx_rest_by_vectors, OP_LINEAR, linear),
    BREAKS(amx_no_release, OP_LINEAR, linear),
    BREAKS(amx_attend_alone, OP_ATTEND, attend),
    BREAKS(amx_attend_no_release, OP_ATTEND, attend),
    BREAKS(amx_mass_by_vectors, OP_ATTEND_MASS, attend_mass),
};

const struct broken *broken_amx(const struct kva_ops *sound, struct kva_device *lower,
                                size_t *ret_count)
{
    good = sound;
    other = lower;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
#else
const struct broken *broken_amx(const struct kva_ops *sound KVA_UNUSED,
                                struct kva_device *lower KVA_UNUSED, size_t *ret_count)
{
    *ret_count = 0;
    return NULL;
}
#endif
