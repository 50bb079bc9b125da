/* driver.c - drivers of the operators that treat rows alone: they cut the work into pieces and run
 * them. */
#include "kernels/convert.h"
#include "kernels/cpu/device/pieces.h"
#include "kernels/packed.h"

#include <string.h>

/* Rows of a packed table: a row for a token is little work, whatever reads it. */
static void embed_packed(const struct kva_embed_args *args, uint32_t first, uint32_t end)
{
    const struct kva_weight *table = &args->table, *learned = &args->positions_table;
    const size_t dim = table->cols;
    for (uint32_t row = first; row < end; row++) {
        float *out = (float *)args->out + row * dim;
        kva_packed_row(table->dtype, table->data, table->cols, args->ids[row], out);
        for (size_t i = 0; i < dim; i++)
            out[i] *= args->scale;
        for (size_t i = 0; learned->data && i < dim; i++)
            out[i] += kva_f32_at(learned->data, learned->dtype, args->positions[row] * dim + i);
    }
}

static void embed_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    const struct kva_embed_args *args = job->args;
    (kva_dtype_is_packed(args->table.dtype) ? embed_packed : job->device->kernels.embed)(
        args, (uint32_t)kva_cut_first(&job->cut, index), (uint32_t)kva_cut_end(&job->cut, index));
}

void kva_cpu_embed(struct kva_device *device, const struct kva_embed_args *args)
{
    kva_pieces_run(device, args, kva_cut_units(device, args->rows, args->table.cols, 1),
                   embed_piece);
}

static void norm_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    job->device->kernels.norm(job->args, (uint32_t)kva_cut_first(&job->cut, index),
                              (uint32_t)kva_cut_end(&job->cut, index));
}

void kva_cpu_norm(struct kva_device *device, const struct kva_norm_args *args)
{
    kva_pieces_run(device, args, kva_cut_units(device, args->rows, args->dim, 1), norm_piece);
}

static void rope_piece(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_piece_job *job = opaque;
    job->device->kernels.rope(job->args, (uint32_t)kva_cut_first(&job->cut, index),
                              (uint32_t)kva_cut_end(&job->cut, index),
                              kva_cpu_scratch(job->device, worker));
}

void kva_cpu_rope(struct kva_device *device, const struct kva_rope_args *args)
{
    /* The angles of a row cost about as much as ten rotations of it. */
    const size_t heads = (size_t)args->heads + (args->second ? args->second_heads : 0);
    size_t cost = (heads + 10) * args->rotary_dim;
    kva_pieces_run(device, args, kva_cut_units(device, args->rows, cost, 1), rope_piece);
}

static void glu_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    job->device->kernels.glu(job->args, kva_cut_first(&job->cut, index),
                             kva_cut_end(&job->cut, index));
}

void kva_cpu_glu(struct kva_device *device, const struct kva_glu_args *args)
{
    /* An exponential and a division: about eight plain elements. */
    kva_pieces_run(device, args, kva_cut_units(device, (size_t)args->rows * args->dim, 8, 64),
                   glu_piece);
}

static void gather_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    const struct kva_gather_args *args = job->args;
    size_t dim = args->dim;
    for (size_t i = kva_cut_first(&job->cut, index); i < kva_cut_end(&job->cut, index); i++)
        memcpy((float *)args->out + i * dim, (const float *)args->x + args->rows[i] * dim,
               dim * sizeof(float));
}

void kva_cpu_gather(struct kva_device *device, const struct kva_gather_args *args)
{
    kva_pieces_run(device, args, kva_cut_units(device, args->count, args->dim, 1), gather_piece);
}

static void sum_rows_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    const struct kva_sum_rows_args *args = job->args;
    size_t first = kva_cut_first(&job->cut, index), end = kva_cut_end(&job->cut, index);
    float *restrict out = args->out;
    if (!args->accumulate)
        memset(out + first, 0, (end - first) * sizeof(float));
    for (size_t r = 0; r < args->rows; r++) {
        const float *restrict x = (const float *)args->x + r * args->dim;
        for (size_t i = first; i < end; i++)
            out[i] += x[i];
    }
}

void kva_cpu_sum_rows(struct kva_device *device, const struct kva_sum_rows_args *args)
{
    kva_pieces_run(device, args, kva_cut_units(device, args->dim, args->rows, 64), sum_rows_piece);
}

static void kv_append_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    job->device->kernels.kv_append(job->args, (uint32_t)kva_cut_first(&job->cut, index),
                                   (uint32_t)kva_cut_end(&job->cut, index));
}

void kva_cpu_kv_append(struct kva_device *device, const struct kva_kv_append_args *args)
{
    size_t cost = (size_t)args->kv_heads * args->head_dim * 2;
    kva_pieces_run(device, args, kva_cut_units(device, args->rows, cost, 1), kv_append_piece);
}

static void merge_piece(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_piece_job *job = opaque;
    job->device->kernels.merge(job->args, (uint32_t)kva_cut_first(&job->cut, index),
                               (uint32_t)kva_cut_end(&job->cut, index),
                               kva_cpu_scratch(job->device, worker));
}

void kva_cpu_merge(struct kva_device *device, const struct kva_merge_args *args)
{
    size_t pairs = (size_t)args->rows * args->heads;
    size_t cost = (size_t)args->head_dim * args->partial_count;
    kva_pieces_run(device, args, kva_cut_units(device, pairs, cost, 1), merge_piece);
}
