/* Cases of sketch_sums, against plain chains of fused products: every variant must give their bits. */
#include "tests/kernels/checkasm.h"

#include "kernels/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    uint32_t dim, kv_heads, group, count, row_first;
    enum kva_dtype dtype;
    bool keys, basis, anew;
};

enum { PAGES_MAX = 4, DIM_MAX = 256 };

static void add_columns(const struct shape *s, const float *basis, const float *x, float *sums)
{
    for (uint32_t c = 0; c < s->dim; c++) {
        float sum = basis ? 0.0f : x[c];
        for (uint32_t i = 0; i < s->dim && basis; i++)
            sum = fmaf(x[i], basis[(size_t)i * s->dim + c], sum);
        sums[c] += fabsf(sum);
    }
}

static void sums_model(const struct kva_sketch_sums_args *args, const struct shape *s, float *all)
{
    for (uint32_t kv_head = 0; kv_head < s->kv_heads; kv_head++) {
        float *sums = all + (size_t)kv_head * s->dim, x[DIM_MAX];
        const float *basis = args->basis ? args->basis + (size_t)kv_head * s->dim * s->dim : NULL;
        for (uint32_t c = 0; c < s->dim && s->anew; c++)
            sums[c] = 0;
        for (uint32_t i = 0; i < s->count * (s->keys ? 1 : s->group); i++) {
            const uint32_t row = s->keys ? i : i / s->group;
            const float *q = (const float *)args->q +
                             (size_t)(s->row_first + row) * args->q_stride +
                             (size_t)(kv_head * s->group + i % s->group) * s->dim;
            const uint16_t *block = s->keys ? args->blocks[row / KVA_PAGE_TOKENS] : NULL;
            const size_t slot = (size_t)kv_head * KVA_PAGE_TOKENS + row % KVA_PAGE_TOKENS;
            for (uint32_t j = 0; j < s->dim; j++)
                x[j] = s->keys ? kva_f32_of_16(block[slot * 2 * s->dim + j], s->dtype) : q[j];
            add_columns(s, basis, x, sums);
        }
    }
}

static void sums_case(struct check *check, const struct shape *s)
{
    const uint32_t heads = s->kv_heads * s->group, stride = heads * s->dim + 3;
    const size_t columns = (size_t)s->kv_heads * s->dim;
    const double work = 2.0 * (double)columns * s->dim * s->count * (s->keys ? 1 : s->group);
    struct check_buf blocks[PAGES_MAX], q, basis, want, got, before;
    const void *addresses[PAGES_MAX];
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[120];
    if (!check_wanted(check, OP_SKETCH_SUMS, work))
        return;
    q = check_buf_new((size_t)(s->row_first + s->count) * stride * sizeof(float));
    basis = check_buf_new(columns * s->dim * sizeof(float));
    want = check_buf_new(columns * sizeof(float));
    got = check_buf_new(want.bytes);
    before = check_buf_new(want.bytes);
    check_fill(check, FILL_NORMAL, q.data, q.bytes / sizeof(float));
    for (size_t i = 0; i < columns * s->dim; i++)
        ((float *)basis.data)[i] = check_normal(check) / 8;
    for (size_t i = 0; i < columns; i++)
        ((float *)before.data)[i] = fabsf(check_normal(check));
    for (uint32_t i = 0; i < PAGES_MAX; i++) {
        blocks[i] = check_buf_new(kva_kv_block_bytes(s->kv_heads, s->dim));
        uint16_t *numbers = blocks[i].data;
        for (size_t j = 0; j < blocks[i].bytes / sizeof *numbers; j++)
            numbers[j] = kva_16_of_f32(check_normal(check), s->dtype);
        addresses[i] = blocks[i].data;
    }
    const struct kva_sketch_sums_args model = {.q = s->keys ? NULL : q.data,
                                               .blocks = addresses,
                                               .sums = got.data,
                                               .basis = s->basis ? basis.data : NULL,
                                               .row_first = s->row_first,
                                               .count = s->count,
                                               .q_stride = stride,
                                               .heads = heads,
                                               .kv_heads = s->kv_heads,
                                               .head_dim = s->dim,
                                               .kv_dtype = s->dtype,
                                               .anew = s->anew};
    memcpy(want.data, before.data, want.bytes);
    sums_model(&model, s, want.data);
    snprintf(name, sizeof name, "%s of %u rows, dim %u heads %u x %u%s%s",
             s->keys ? "keys" : "queries", s->count, s->dim, s->kv_heads, s->group,
             s->basis ? " basis" : "", s->anew ? " anew" : "");
    while (check_next_run(check, work, &run, &variant, &device)) {
        memcpy(got.data, before.data, got.bytes);
        variant->ops.sketch_sums(device, &model);
        const bool good = memcmp(got.data, want.data, want.bytes) == 0 && check_buf_intact(&got);
        check_count_run(check, variant, OP_SKETCH_SUMS, device, name, good ? NULL : "other sums");
    }
    for (uint32_t i = 0; i < PAGES_MAX; i++)
        check_buf_free(&blocks[i]);
    check_buf_free(&q);
    check_buf_free(&basis);
    check_buf_free(&want);
    check_buf_free(&got);
    check_buf_free(&before);
}

void check_sketch_sums(struct check *check)
{
    const struct shape shapes[] = {
        {64, 3, 3, 5, 2, KVA_F16, false, true, true},
        {128, 2, 6, 3, 0, KVA_BF16, false, true, false},
        {16, 4, 1, 19, 1, KVA_F16, false, false, true},
        {20, 1, 5, 1, 0, KVA_BF16, false, true, true},
        {64, 3, 3, 70, 0, KVA_F16, true, true, false},
        {128, 2, 2, 33, 0, KVA_BF16, true, true, true},
        {24, 1, 1, 200, 0, KVA_BF16, true, false, true},
        {256, 1, 8, 9, 3, KVA_F16, false, true, false},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        sums_case(check, &shapes[i]);
}
