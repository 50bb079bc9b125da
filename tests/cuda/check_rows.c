/* Cases of embed, norm, rope, glu, kv_append, merge and gather. */
#include "tests/cuda/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kva_ops *cpu_ops(struct check *check)
{
    return kva_device_ops(check->cpu);
}

static const struct kva_ops *gpu_ops(struct check *check)
{
    return kva_device_ops(check->gpu);
}

/* Compare an output in the activation format: `slack` fp32 units beyond its rounding. */
static void compare(struct check *check, const char *name, const struct acts *out,
                    const float *magnitude, double slack)
{
    float *got = acts_read(check, out);
    check_close(check, name, got, out->cpu, magnitude, out->count,
                check_unit(out->dtype) + slack * 0x1p-24, slack * 0x1p-24);
    free(got);
}

static void embed_case(struct check *check, uint32_t rows, uint32_t dim, enum kva_dtype dtype,
                       bool learned)
{
    uint32_t ids[64], positions[64];
    struct both_weight table = weight_new(check, dtype, 37, dim, 1.0f);
    struct both_weight other = weight_new(check, dtype, 50, dim, 1.0f);
    struct acts out = acts_new(check, check->act, (size_t)rows * dim, 1.0f);
    for (uint32_t i = 0; i < rows; i++) {
        ids[i] = i == 0 ? 36 : check_below(check, 37);
        positions[i] = check_below(check, 50);
    }
    struct kva_embed_args args = {
        .out = out.cpu, .table = table.cpu, .ids = ids, .positions = positions, .rows = rows};
    args.scale = check_below(check, 2) ? 1.0f : 11.5f;
    if (learned)
        args.positions_table = other.cpu;
    cpu_ops(check)->embed(check->cpu, &args);
    args.out = out.gpu;
    args.table = table.gpu;
    if (learned)
        args.positions_table = other.gpu;
    gpu_ops(check)->embed(check->gpu, &args);
    compare(check, "embed", &out, NULL, 32);
    acts_free(check, &out);
    weight_free(check, &table);
    weight_free(check, &other);
}

static void norm_case(struct check *check, uint32_t rows, uint32_t dim, enum kva_norm_kind kind,
                      bool in_place)
{
    char name[96];
    struct both_weight weight = weight_new(check, (enum kva_dtype)check_below(check, 3), 1, dim, 1);
    struct both_weight bias = weight_new(check, (enum kva_dtype)check_below(check, 3), 1, dim, 1);
    struct acts x = acts_new(check, check->act, (size_t)rows * dim, 2.0f);
    struct acts out = acts_new(check, check->act, (size_t)rows * dim, 1.0f);
    struct acts *to = in_place ? &x : &out;
    struct kva_norm_args args = {.out = to->cpu,
                                 .x = x.cpu,
                                 .weight = weight.cpu,
                                 .bias = bias.cpu,
                                 .rows = rows,
                                 .dim = dim,
                                 .kind = kind,
                                 .eps = 1e-5f,
                                 .weight_offset = (float)check_below(check, 2)};
    cpu_ops(check)->norm(check->cpu, &args);
    args.out = to->gpu;
    args.x = x.gpu;
    args.weight = weight.gpu;
    args.bias = bias.gpu;
    gpu_ops(check)->norm(check->gpu, &args);
    snprintf(name, sizeof name, "norm kind %d rows %u dim %u", (int)kind, rows, dim);
    compare(check, name, to, NULL, 200);
    acts_free(check, &x);
    acts_free(check, &out);
    weight_free(check, &weight);
    weight_free(check, &bias);
}

static void rope_case(struct check *check, uint32_t rows, uint32_t heads, uint32_t dim,
                      uint32_t rotary)
{
    uint32_t positions[64];
    float inv_freq[256];
    char name[96];
    uint32_t stride = heads * dim + check_below(check, 2) * dim;
    struct acts x = acts_new(check, check->act, (size_t)rows * stride, 1.0f);
    for (uint32_t i = 0; i < rows; i++)
        positions[i] = i == 0 ? 131071 : check_below(check, i % 2 ? 100 : 131072);
    for (uint32_t i = 0; i < rotary / 2; i++)
        inv_freq[i] = (float)pow(10000.0, -2.0 * i / rotary);
    struct kva_rope_args args = {.x = x.cpu,
                                 .positions = positions,
                                 .inv_freq = inv_freq,
                                 .rows = rows,
                                 .heads = heads,
                                 .head_dim = dim,
                                 .rotary_dim = rotary,
                                 .x_stride = stride,
                                 .factor = check_below(check, 2) ? 1.0f : 1.24f};
    cpu_ops(check)->rope(check->cpu, &args);
    args.x = x.gpu;
    gpu_ops(check)->rope(check->gpu, &args);
    snprintf(name, sizeof name, "rope rows %u heads %u dim %u rotary %u", rows, heads, dim, rotary);
    compare(check, name, &x, NULL, 32);
    acts_free(check, &x);
}

static void glu_case(struct check *check, uint32_t rows, uint32_t dim,
                     enum kva_activation activation, bool gated, bool in_place)
{
    char name[96];
    struct acts gate = acts_new(check, check->act, (size_t)rows * dim, 3.0f);
    struct acts up = acts_new(check, check->act, (size_t)rows * dim, 1.0f);
    struct acts out = acts_new(check, check->act, (size_t)rows * dim, 1.0f);
    struct acts *to = in_place ? &gate : &out;
    struct kva_glu_args args = {.out = to->cpu,
                                .gate = gate.cpu,
                                .up = gated ? up.cpu : NULL,
                                .rows = rows,
                                .dim = dim,
                                .activation = activation};
    cpu_ops(check)->glu(check->cpu, &args);
    args.out = to->gpu;
    args.gate = gate.gpu;
    args.up = gated ? up.gpu : NULL;
    gpu_ops(check)->glu(check->gpu, &args);
    snprintf(name, sizeof name, "glu %d rows %u dim %u", (int)activation, rows, dim);
    compare(check, name, to, NULL, 64);
    acts_free(check, &gate);
    acts_free(check, &up);
    acts_free(check, &out);
}

/* Both devices' blocks start from the same bytes and must end with the same. */
static void append_case(struct check *check, uint32_t rows, uint32_t kv_heads, uint32_t dim,
                        enum kva_dtype kv_dtype)
{
    size_t layer = kva_kv_block_bytes(kv_heads, dim), bytes = 2 * layer;
    struct acts k = acts_new(check, check->act, (size_t)rows * kv_heads * dim, 1.0f);
    /* Values beyond F16, unless the activations cannot hold those. */
    struct acts v = acts_new(check, check->act, (size_t)rows * kv_heads * dim,
                             check->act == KVA_F16 ? 15000.0f : 40000.0f);
    void *cpu_blocks[64], *gpu_blocks[64], *cpu_pages[2], *gpu_pages[2];
    uint32_t positions[64], position = check_below(check, 64);
    unsigned char *after = malloc(bytes);
    for (int i = 0; i < 2; i++) {
        cpu_pages[i] = calloc(1, bytes);
        gpu_pages[i] = gpu_new(check, cpu_pages[i], bytes);
    }
    for (uint32_t i = 0; i < rows; i++) {
        positions[i] = position + i;
        cpu_blocks[i] = cpu_pages[positions[i] / KVA_PAGE_TOKENS];
        gpu_blocks[i] = gpu_pages[positions[i] / KVA_PAGE_TOKENS];
    }
    struct kva_kv_append_args args = {.k = k.cpu,
                                      .v = v.cpu,
                                      .blocks = cpu_blocks,
                                      .block_offset_bytes = layer,
                                      .positions = positions,
                                      .rows = rows,
                                      .kv_heads = kv_heads,
                                      .head_dim = dim,
                                      .kv_dtype = kv_dtype};
    cpu_ops(check)->kv_append(check->cpu, &args);
    args.k = k.gpu;
    args.v = v.gpu;
    args.blocks = gpu_blocks;
    gpu_ops(check)->kv_append(check->gpu, &args);
    for (int i = 0; i < 2; i++) {
        gpu_read(check, after, gpu_pages[i], bytes);
        check_same(check, "kv_append", after, cpu_pages[i], bytes);
        free(cpu_pages[i]);
        gpu_free(check, gpu_pages[i], bytes);
    }
    free(after);
    acts_free(check, &k);
    acts_free(check, &v);
}

static void merge_case(struct check *check, uint32_t partial_count, uint32_t rows, uint32_t heads,
                       uint32_t dim)
{
    struct acts a[8], m[8], e[8];
    struct kva_partial cpu[8], gpu[8];
    size_t pairs = (size_t)rows * heads;
    struct acts out = acts_new(check, check->act, pairs * dim, 1.0f);
    for (uint32_t j = 0; j < partial_count; j++) {
        a[j] = acts_new(check, KVA_F32, pairs * dim, 1.0f);
        m[j] = acts_new(check, KVA_F32, pairs, 4.0f);
        e[j] = acts_new(check, KVA_F32, pairs, 0.0f);
        for (size_t i = 0; i < pairs; i++) {
            e[j].cpu[i] = 1.0f + (float)check_below(check, 50);
            if (i == 0 || check_below(check, 5) == 0) {
                m[j].cpu[i] = -INFINITY;
                e[j].cpu[i] = 0.0f;
            }
        }
        gpu_free(check, m[j].gpu, pairs * 4);
        gpu_free(check, e[j].gpu, pairs * 4);
        m[j].gpu = gpu_new(check, m[j].cpu, pairs * 4);
        e[j].gpu = gpu_new(check, e[j].cpu, pairs * 4);
        cpu[j] = (struct kva_partial){a[j].cpu, m[j].cpu, e[j].cpu};
        gpu[j] = (struct kva_partial){a[j].gpu, m[j].gpu, e[j].gpu};
    }
    struct kva_merge_args args = {.out = out.cpu,
                                  .partials = cpu,
                                  .partial_count = partial_count,
                                  .rows = rows,
                                  .heads = heads,
                                  .head_dim = dim};
    cpu_ops(check)->merge(check->cpu, &args);
    args.out = out.gpu;
    args.partials = gpu;
    gpu_ops(check)->merge(check->gpu, &args);
    compare(check, "merge", &out, NULL, 200);
    for (uint32_t j = 0; j < partial_count; j++) {
        acts_free(check, &a[j]);
        acts_free(check, &m[j]);
        acts_free(check, &e[j]);
    }
    acts_free(check, &out);
}

static void gather_case(struct check *check, uint32_t count, uint32_t dim)
{
    uint32_t rows[64];
    struct acts x = acts_new(check, check->act, (size_t)20 * dim, 1.0f);
    struct acts out = acts_new(check, check->act, (size_t)count * dim, 1.0f);
    for (uint32_t i = 0; i < count; i++)
        rows[i] = i == 0 ? 19 : check_below(check, 20);
    struct kva_gather_args args = {
        .out = out.cpu, .x = x.cpu, .rows = rows, .count = count, .dim = dim};
    cpu_ops(check)->gather(check->cpu, &args);
    args.out = out.gpu;
    args.x = x.gpu;
    gpu_ops(check)->gather(check->gpu, &args);
    float *got = acts_read(check, &out);
    check_same(check, "gather", got, out.cpu, out.count * sizeof(float));
    free(got);
    acts_free(check, &x);
    acts_free(check, &out);
}

void check_rows(struct check *check)
{
    static const uint32_t dims[] = {1, 31, 64, 257, 1024};
    static const uint32_t heads[][2] = {{8, 8}, {64, 64}, {80, 32}, {128, 128}, {12, 6}, {2, 2}};
    check->op = "rows";
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        uint32_t dim = check->large && i == 4 ? 8192 : dims[i];
        for (int j = 0; j < 3; j++)
            embed_case(check, check_between(check, 1, 9), dim, (enum kva_dtype)j, j % 2);
        for (int j = 0; j < 4; j++)
            norm_case(check, check_between(check, 1, 20), dim,
                      j % 2 ? KVA_NORM_LAYER : KVA_NORM_RMS, j / 2);
        for (int j = 0; j <= KVA_ACT_RELU; j++)
            glu_case(check, check_between(check, 1, 5), dim, (enum kva_activation)j,
                     check_below(check, 2), check_below(check, 2));
        gather_case(check, check_between(check, 1, 20), dim);
    }
    for (size_t i = 0; i < KVA_COUNT_OF(heads); i++) {
        rope_case(check, check_between(check, 1, 20), check_between(check, 1, 5), heads[i][0],
                  heads[i][1]);
        for (int dtype = KVA_F16; dtype <= KVA_BF16; dtype++)
            append_case(check, check_between(check, 1, 60), check_between(check, 1, 3), heads[i][0],
                        (enum kva_dtype)dtype);
        for (uint32_t count = 1; count <= 8; count = count * 2 + 1)
            merge_case(check, count, check_between(check, 1, 9), check_between(check, 1, 5),
                       heads[i][0]);
    }
}
