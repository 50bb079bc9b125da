/* Cases of linear_group and linear_glu: the bits of the calls that they stand for. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct group {
    struct check_buf x, weights[KVA_LINEAR_GROUP_MAX], biases[KVA_LINEAR_GROUP_MAX],
        outs[KVA_LINEAR_GROUP_MAX];
    struct kva_linear_args products[KVA_LINEAR_GROUP_MAX];
    uint32_t count;
    enum kva_activation activation;
};

static void *copy_of(const struct check_buf *buf)
{
    void *copy = malloc(buf->bytes);
    memcpy(copy, buf->data, buf->bytes);
    return copy;
}

/* Formats change within a group; packed ones, too. */
static enum kva_dtype any_dtype(struct check *check)
{
    const enum kva_dtype packed[] = {KVA_INT8, KVA_Q4_0, KVA_Q4_1, KVA_Q8_0};
    if (check_below(check, 3) == 0)
        return packed[check_below(check, KVA_COUNT_OF(packed))];
    return (enum kva_dtype)check_below(check, KVA_DTYPE_COUNT);
}

static struct kva_weight any_weight(struct check *check, struct check_buf *buf,
                                    enum kva_dtype dtype, uint32_t outputs, uint32_t inputs)
{
    return kva_dtype_is_packed(dtype)
               ? check_packed_weight(check, buf, dtype, FILL_NORMAL, outputs, inputs)
               : check_weight(check, buf, dtype, FILL_NORMAL, outputs, inputs);
}

/* `dense`: as linear_glu wants them. */
static void build(struct check *check, struct group *group, uint32_t rows, uint32_t inputs,
                  const uint32_t *outputs, uint32_t count, bool dense)
{
    const uint32_t x_stride = inputs + check_below(check, 3) * 8;
    const size_t x_count = (size_t)(rows - 1) * x_stride + inputs;
    enum kva_dtype dtype = any_dtype(check);
    *group = (struct group){.x = check_buf_new(x_count * sizeof(float)), .count = count};
    check_fill(check, FILL_NORMAL, group->x.data, x_count);
    for (uint32_t i = 0; i < count; i++) {
        struct kva_linear_args *product = &group->products[i];
        const uint32_t stride = outputs[i] + (dense ? 0 : check_below(check, 3) * 3);
        group->outs[i] = check_buf_new(((size_t)(rows - 1) * stride + outputs[i]) * sizeof(float));
        *product = (struct kva_linear_args){.out = group->outs[i].data,
                                            .x = group->x.data,
                                            .rows = rows,
                                            .x_stride = x_stride,
                                            .out_stride = stride,
                                            .accumulate = !dense && check_below(check, 3) == 0,
                                            .out_f32 = !dense && check_below(check, 3) == 0};
        product->weight = any_weight(check, &group->weights[i], dtype, outputs[i], inputs);
        const struct kva_weight bias =
            check_weight(check, &group->biases[i], KVA_F32, FILL_NORMAL, 1, outputs[i]);
        if (check_below(check, 2))
            product->bias = bias;
        if (check_below(check, 3) == 0)
            dtype = any_dtype(check);
    }
}

static void free_group(struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++) {
        check_buf_free(&group->weights[i]);
        check_buf_free(&group->biases[i]);
        check_buf_free(&group->outs[i]);
    }
    check_buf_free(&group->x);
}

static void run_group(const struct kva_ops *ops, struct kva_device *device,
                      const struct group *group)
{
    ops->linear_group(device, &(struct kva_linear_group_args){group->products, group->count});
}

static void run_glu(const struct kva_ops *ops, struct kva_device *device, const struct group *group)
{
    ops->linear_glu(device, &(struct kva_linear_glu_args){group->products[0], group->products[1],
                                                          group->activation});
}

static void run_each(const struct kva_ops *ops, struct kva_device *device,
                     const struct group *group, bool glu)
{
    const struct kva_linear_args *gate = &group->products[0], *up = &group->products[1];
    for (uint32_t i = 0; i < group->count; i++)
        ops->linear(device, &group->products[i]);
    if (glu)
        ops->glu(device, &(struct kva_glu_args){.out = gate->out,
                                                .gate = gate->out,
                                                .up = up->out,
                                                .rows = gate->rows,
                                                .dim = gate->weight.rows,
                                                .activation = group->activation});
}

/* The outputs over the same garbage by calls of their own, and then by one. */
static const char *compare(struct check *check, const struct check_variant *variant,
                           struct kva_device *device, struct group *group, bool glu)
{
    void *before[KVA_LINEAR_GROUP_MAX], *want[KVA_LINEAR_GROUP_MAX];
    const char *reason = NULL;
    for (uint32_t i = 0; i < group->count; i++) {
        check_fill(check, FILL_NORMAL, group->outs[i].data, group->outs[i].bytes / sizeof(float));
        before[i] = copy_of(&group->outs[i]);
    }
    run_each(&variant->ops, device, group, glu);
    for (uint32_t i = 0; i < group->count; i++) {
        want[i] = copy_of(&group->outs[i]);
        memcpy(group->outs[i].data, before[i], group->outs[i].bytes);
    }
    (glu ? run_glu : run_group)(&variant->ops, device, group);
    for (uint32_t i = 0; i < group->count; i++) {
        const struct check_buf *out = &group->outs[i];
        const bool left = glu && i == 1; /* what up's product is does not matter */
        if (!left && memcmp(out->data, want[i], out->bytes) != 0)
            reason = "not the bits of the calls alone";
        else if (!check_buf_intact(out))
            reason = "it writes what is not its own";
        free(before[i]);
        free(want[i]);
    }
    return reason;
}

static void group_case(struct check *check, enum check_op op, uint32_t rows, uint32_t inputs,
                       const uint32_t *outputs, uint32_t count)
{
    const bool glu = op == OP_LINEAR_GLU;
    const double work = (double)rows * inputs * (outputs[0] + outputs[1]);
    struct group group;
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    char name[160];
    if (!check_wanted(check, op, work))
        return;
    build(check, &group, rows, inputs, outputs, count, glu);
    group.activation = (enum kva_activation)check_below(check, 4);
    snprintf(name, sizeof name, "rows %u inputs %u outputs %u %u, %u products, %s %s", rows, inputs,
             outputs[0], outputs[1], count, kva_dtype_name(group.products[0].weight.dtype),
             kva_dtype_name(group.products[1].weight.dtype));
    while (check_next_run(check, work, &run, &variant, &device))
        check_count_run(check, variant, op, device, name,
                        compare(check, variant, device, &group, glu));
    free_group(&group);
}

static void group_cases(struct check *check, enum check_op op)
{
    const uint32_t rows[] = {1, 2, 7, 8, 9, 15, 16, 17, 40};
    const uint32_t inputs[] = {8, 40, 64, 136, 512, 513, 576, 1088, 2048, 2568};
    const uint32_t widths[] = {2, 16, 17, 24, 33, 48, 65, 128, 200};
    const uint32_t rounds = check->quick ? 40 : 240;
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t outputs[KVA_LINEAR_GROUP_MAX];
        for (uint32_t j = 0; j < KVA_LINEAR_GROUP_MAX; j++)
            outputs[j] = op == OP_LINEAR_GLU && j > 0
                             ? outputs[0]
                             : widths[check_below(check, KVA_COUNT_OF(widths))];
        group_case(check, op, rows[i % KVA_COUNT_OF(rows)],
                   inputs[check_below(check, KVA_COUNT_OF(inputs))], outputs,
                   op == OP_LINEAR_GLU ? 2 : check_between(check, 2, KVA_LINEAR_GROUP_MAX));
    }
}

void check_linear_group(struct check *check)
{
    group_cases(check, OP_LINEAR_GROUP);
}

void check_linear_glu(struct check *check)
{
    group_cases(check, OP_LINEAR_GLU);
}
