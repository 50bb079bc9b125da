/* Cases of row_error, against a plain model in fp64. */
#include "tests/kernels/store_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double error_truth(const struct store_shape *shape, const struct check_buf *mean,
                          const struct check_buf *blocks, uint32_t head, uint32_t token, bool value)
{
    struct coded_row coded;
    float x[512] = {0};
    double off = 0, all = 0;
    store_load_row(shape, mean, head, value, store_row_at(shape, blocks, head, token, value), x);
    store_code_row(shape, &coded, x);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        const double y = (double)x[c] - ((double)coded.zero + (double)coded.scale * coded.codes[c]);
        off += y * y;
        all += (double)x[c] * (double)x[c];
    }
    return all > 0 ? off / all : isnan(all) ? NAN : 0;
}

static void error_case(struct check *check, const struct store_shape *shape, uint32_t count)
{
    const double work = 2.0 * shape->kv_heads * count * shape->head_dim;
    struct check_buf blocks[STORE_PAGES];
    const void *addresses[STORE_PAGES];
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (shape->bits == 0 || !check_wanted(check, OP_ROW_ERROR, work))
        return;
    store_fill_blocks(check, shape, blocks);
    for (int i = 0; i < STORE_PAGES; i++)
        addresses[i] = blocks[i].data;
    struct check_buf mean = store_mean_new(check, shape);
    const uint32_t stride = count + 3;
    struct check_buf error = check_buf_new((size_t)shape->kv_heads * stride * sizeof(float));
    float *first = malloc(error.bytes), *got = error.data;
    const struct kva_row_error_seq seqs[] = {{.blocks = addresses,
                                              .error = got,
                                              .mean = store_mean_of(shape, &mean),
                                              .count = count,
                                              .stride = stride}};
    const struct kva_row_error_args args = {.seqs = seqs,
                                            .seq_count = 1,
                                            .block_offset_bytes = STORE_OFFSET,
                                            .kv_heads = shape->kv_heads,
                                            .head_dim = shape->head_dim,
                                            .kv_dtype = shape->dtype,
                                            .format = store_format(shape)};
    snprintf(name, sizeof name, "%s heads %u dim %u bits %u%s%s count %u",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, shape->bits,
             store_coding_name(shape), store_mean_name(shape), count);
    for (bool any = false; check_next_run(check, work, &run, &variant, &device); any = true) {
        const char *reason = NULL;
        memset(got, 0x3C, error.bytes);
        variant->ops.row_error(device, &args);
        if (!any)
            memcpy(first, got, error.bytes);
        for (uint32_t i = 0; i < shape->kv_heads * count && !reason; i++) {
            const uint32_t head = i / count, token = i % count;
            const double truth = error_truth(shape, &mean, blocks, head, token, false) +
                                 error_truth(shape, &mean, blocks, head, token, true);
            /* A chain of roundings in the sums, and differences of numbers that are alike. */
            if (!isnan(truth) && !(fabs((double)got[head * stride + token] - truth) <=
                                   truth * shape->head_dim * 4 * UNIT + 64 * UNIT))
                reason = "another error";
        }
        if (memcmp(first, got, error.bytes) != 0)
            reason = "other bits than another level";
        if (!check_buf_intact(&error))
            reason = "wrote before its output";
        check_count_run(check, variant, OP_ROW_ERROR, device, name, reason);
    }
    free(first);
    check_buf_free(&mean);
    check_buf_free(&error);
    for (int i = 0; i < STORE_PAGES; i++)
        check_buf_free(&blocks[i]);
}

void check_row_error(struct check *check)
{
    for (size_t i = 0; i < STORE_SHAPES; i++) {
        for (size_t j = 0; j < STORE_COUNTS; j++)
            error_case(check, &store_shapes[i], store_counts[j]);
    }
}
