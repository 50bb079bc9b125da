/* Cases of mean_keys, against a plain model: the same bits. */
#include "tests/kernels/store_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of a block, and what some channels have in all of them: more than heads need for their means
 * to be taken off, about as much, and less. */
struct mean_case {
    uint32_t first, end;
    float level;
    bool wild; /* other channels have anything in them, and not numbers around 0 */
};

static const struct mean_case mean_cases[] = {
    {4, 64, 20, false}, {4, 64, 12, false},  {4, 64, 6, false},   {0, 1, 20, true},
    {4, 64, 20, true},  {32, 63, 20, false}, {32, 63, 12, false},
};

/* Of a KV head in place: a channel in three hardly changes from `level`, every other of them just so.
 * The mean by a plain model. */
static void mean_of_head(struct check *check, const struct store_shape *shape,
                         struct check_buf *blocks, const struct mean_case *test, uint32_t head,
                         float *want)
{
    const float n = (float)(test->end - test->first);
    float common = 0.0f, apart = 0.0f;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        float x[KVA_PAGE_TOKENS], mean = 0.0f, squares = 0.0f;
        for (uint32_t t = test->first; t < test->end; t++) {
            uint16_t *from = &store_row_at(shape, blocks, head, t, false)[c];
            if (c % 3 == 0)
                *from = check_narrow(test->level + check_normal(check) * (c % 2 ? 2.4f : 0.5f),
                                     shape->dtype);
            else if (!test->wild)
                *from = check_narrow(check_normal(check), shape->dtype);
            x[t] = store_within_f16((float)check_widen(*from, shape->dtype));
            x[t] = isnan(x[t]) ? 0.0f : x[t];
            mean += x[t];
        }
        mean /= n;
        for (uint32_t t = test->first; t < test->end; t++)
            squares += (x[t] - mean) * (x[t] - mean);
        want[c] = mean * mean * n > 64 * squares ? mean : 0.0f;
        common += want[c] * want[c] * n;
        apart += squares;
    }
    for (uint32_t c = 0; c < shape->head_dim && !(common > 16 * apart); c++)
        want[c] = 0.0f;
}

static void mean_case(struct check *check, const struct store_shape *shape,
                      const struct mean_case *test)
{
    const size_t count = (size_t)shape->kv_heads * shape->head_dim;
    const double work = (double)count * (test->end - test->first);
    struct check_buf blocks[STORE_PAGES];
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[120];
    if (!check_wanted(check, OP_MEAN_KEYS, work))
        return;
    struct check_buf mean = check_buf_new(count * sizeof(float));
    float *want = calloc(count, sizeof *want), *got = mean.data;
    store_fill_blocks(check, shape, blocks);
    for (uint32_t head = 0; head < shape->kv_heads; head++)
        mean_of_head(check, shape, blocks, test, head, want + (size_t)head * shape->head_dim);
    snprintf(name, sizeof name, "%s heads %u dim %u tokens %u to %u around %g%s",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, test->first, test->end,
             (double)test->level, test->wild ? ", wild" : "");
    while (check_next_run(check, work, &run, &variant, &device)) {
        memset(got, 0x3C, mean.bytes);
        variant->ops.mean_keys(device,
                               &(struct kva_mean_keys_args){.block = blocks[0].data,
                                                            .mean = got,
                                                            .block_offset_bytes = STORE_OFFSET,
                                                            .first = test->first,
                                                            .end = test->end,
                                                            .kv_heads = shape->kv_heads,
                                                            .head_dim = shape->head_dim,
                                                            .kv_dtype = shape->dtype});
        const char *reason = memcmp(got, want, count * sizeof *want) != 0 ? "another mean"
                             : !check_buf_intact(&mean) ? "wrote before its output"
                                                        : NULL;
        check_count_run(check, variant, OP_MEAN_KEYS, device, name, reason);
    }
    free(want);
    check_buf_free(&mean);
    for (int i = 0; i < STORE_PAGES; i++)
        check_buf_free(&blocks[i]);
}

void check_mean_keys(struct check *check)
{
    for (size_t i = 0; i < STORE_SHAPES; i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(mean_cases); j++)
            mean_case(check, &store_shapes[i], &mean_cases[j]);
    }
}
