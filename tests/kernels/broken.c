/* Deliberately broken operators. Each is the best level's operator with one plausible defect, put
 * in by changing its arguments, its inputs or its result; the harness must reject every one. */
#include "tests/kernels/broken.h"

#include "tests/kernels/amx_emulator.h"
#include "tests/kernels/ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kva_ops *good;

/* --- linear ----------------------------------------------------------------------------------- */

static void linear_tail(struct kva_device *device, const struct kva_linear_args *args)
{
    /* The last input is left out: an off-by-one tail. */
    good->linear(device, args);
    const struct kva_weight *w = &args->weight;
    for (size_t row = 0; row < args->rows; row++) {
        float x = ((const float *)args->x)[row * args->x_stride + w->cols - 1];
        for (size_t n = 0; n < w->rows; n++)
            ((float *)args->out)[row * args->out_stride + n] -=
                x * (float)check_weight_at(w, n * w->cols + w->cols - 1);
    }
}

static void linear_last_output(struct kva_device *device, const struct kva_linear_args *args)
{
    struct kva_linear_args wrong = *args;
    wrong.weight.rows--; /* the last output is never written */
    if (wrong.weight.rows > 0)
        good->linear(device, &wrong);
}

static void linear_no_bias(struct kva_device *device, const struct kva_linear_args *args)
{
    struct kva_linear_args wrong = *args;
    wrong.bias.data = NULL;
    good->linear(device, &wrong);
}

static void linear_no_accumulate(struct kva_device *device, const struct kva_linear_args *args)
{
    struct kva_linear_args wrong = *args;
    wrong.accumulate = false;
    good->linear(device, &wrong);
}

static void group_one_less(struct kva_device *device, const struct kva_linear_group_args *args)
{
    struct kva_linear_group_args wrong = *args;
    wrong.count--; /* the last product is never made */
    good->linear_group(device, &wrong);
}

/* The first product's bias for all. */
static void group_one_bias(struct kva_device *device, const struct kva_linear_group_args *args)
{
    for (uint32_t i = 0; i < args->count; i++) {
        struct kva_linear_args wrong = args->products[i];
        if (wrong.weight.rows <= args->products->weight.rows)
            wrong.bias = args->products->bias;
        good->linear(device, &wrong);
    }
}

static void both_without_up(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    struct kva_linear_glu_args wrong = *args;
    wrong.up = wrong.gate;
    wrong.up.out = args->up.out;
    good->linear_glu(device, &wrong);
}

static void both_other_gelu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    struct kva_linear_glu_args wrong = *args;
    if (args->activation == KVA_ACT_GELU)
        wrong.activation = KVA_ACT_GELU_TANH;
    good->linear_glu(device, &wrong);
}

static void linear_unguarded_write(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    ((float *)args->out)[(size_t)(args->rows - 1) * args->out_stride + args->weight.rows] = 0;
}

static void linear_between_rows(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    for (size_t row = 0; row + 1 < args->rows && args->out_stride > args->weight.rows; row++)
        ((float *)args->out)[row * args->out_stride + args->weight.rows] = 0;
}

static void linear_before(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    ((float *)args->out)[-1] = 0;
}

static void linear_over_read(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    const struct kva_weight *w = &args->weight;
    volatile const unsigned char *end =
        (const unsigned char *)w->data + (size_t)w->rows * w->cols * kva_dtype_bytes(w->dtype);
    (void)end[0];
}

static void linear_row_count(struct kva_device *device, const struct kva_linear_args *args)
{
    /* Another order of additions where there are many rows. */
    good->linear(device, args);
    float *out = args->out;
    for (size_t n = 0; args->rows > 4 && n < args->weight.rows; n++)
        out[n] = nextafterf(out[n], INFINITY);
}

static void linear_unsteady(struct kva_device *device, const struct kva_linear_args *args)
{
    /* The last place depends on where the output lies: garbage, in effect. */
    float before = *(float *)args->out;
    uint32_t bits;
    good->linear(device, args);
    memcpy(&bits, &before, sizeof bits);
    if (bits & 1)
        *(float *)args->out = nextafterf(*(float *)args->out, INFINITY);
}

static void linear_threads(struct kva_device *device, const struct kva_linear_args *args)
{
    good->linear(device, args);
    if (kva_device_get_info(device)->threads > 1)
        *(float *)args->out = nextafterf(*(float *)args->out, INFINITY);
}

static void linear_half_sum(struct kva_device *device, const struct kva_linear_args *args)
{
    /* Rounded to bf16 on the way out: a sum kept in too small a format. */
    good->linear(device, args);
    for (size_t i = 0; i < args->weight.rows; i++) {
        uint32_t bits;
        float *out = (float *)args->out + i;
        memcpy(&bits, out, sizeof bits);
        bits &= 0xFFFF0000u;
        memcpy(out, &bits, sizeof bits);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

static void embed_no_scale(struct kva_device *device, const struct kva_embed_args *args)
{
    struct kva_embed_args wrong = *args;
    wrong.scale = 1.0f;
    good->embed(device, &wrong);
}

static void embed_positions(struct kva_device *device, const struct kva_embed_args *args)
{
    struct kva_embed_args wrong = *args;
    wrong.positions = args->ids;
    good->embed(device, &wrong);
}

static void norm_no_eps(struct kva_device *device, const struct kva_norm_args *args)
{
    struct kva_norm_args wrong = *args;
    wrong.eps = 0;
    good->norm(device, &wrong);
}

static void norm_no_offset(struct kva_device *device, const struct kva_norm_args *args)
{
    struct kva_norm_args wrong = *args;
    wrong.weight_offset = 0;
    good->norm(device, &wrong);
}

static void norm_no_mean(struct kva_device *device, const struct kva_norm_args *args)
{
    struct kva_norm_args wrong = *args;
    wrong.kind = KVA_NORM_RMS;
    good->norm(device, &wrong);
}

static void rope_neighbours(struct kva_device *device, const struct kva_rope_args *args)
{
    /* Pairs (2 i, 2 i + 1) instead of (i, i + half): the other convention. */
    uint32_t half = args->rotary_dim / 2;
    float *line = malloc(args->rotary_dim * sizeof *line);
    for (int back = 0; back < 2; back++) {
        for (size_t at = 0; at < (size_t)args->rows * args->heads; at++) {
            float *x = (float *)args->x + at / args->heads * args->x_stride +
                       at % args->heads * args->head_dim;
            for (uint32_t i = 0; i < half; i++) {
                line[back ? 2 * i : i] = x[back ? i : 2 * i];
                line[back ? 2 * i + 1 : half + i] = x[back ? half + i : 2 * i + 1];
            }
            memcpy(x, line, args->rotary_dim * sizeof *line);
        }
        if (!back)
            good->rope(device, args);
    }
    free(line);
}

static void rope_all(struct kva_device *device, const struct kva_rope_args *args)
{
    good->rope(device, args);
    /* What is beyond rotary_dim is to stay. */
    for (size_t row = 0; row < args->rows && args->rotary_dim < args->head_dim; row++)
        ((float *)args->x)[row * args->x_stride + args->rotary_dim] *= 1.0001f;
}

static void rope_first_alone(struct kva_device *device, const struct kva_rope_args *args)
{
    struct kva_rope_args wrong = *args;
    wrong.second = NULL;
    good->rope(device, &wrong);
}

static void rope_no_factor(struct kva_device *device, const struct kva_rope_args *args)
{
    struct kva_rope_args wrong = *args;
    wrong.factor = 1;
    good->rope(device, &wrong);
}

static void rope_float_angle(struct kva_device *device, const struct kva_rope_args *args)
{
    /* The product of position and frequency in fp32: wrong by up to 0.004 far into a context. */
    uint32_t half = args->rotary_dim / 2;
    for (size_t at = 0; at < (size_t)args->rows * args->heads; at++) {
        float *x = (float *)args->x + at / args->heads * args->x_stride +
                   at % args->heads * args->head_dim;
        for (uint32_t i = 0; i < half; i++) {
            volatile float angle = (float)args->positions[at / args->heads] * args->inv_freq[i];
            float c = (float)cos((double)angle) * args->factor;
            float s = (float)sin((double)angle) * args->factor;
            float a = x[i], b = x[half + i];
            x[i] = a * c - b * s;
            x[half + i] = b * c + a * s;
        }
    }
    (void)device;
}

static void glu_other_gelu(struct kva_device *device, const struct kva_glu_args *args)
{
    struct kva_glu_args wrong = *args;
    if (args->activation == KVA_ACT_GELU)
        wrong.activation = KVA_ACT_GELU_TANH;
    good->glu(device, &wrong);
}

static void glu_no_up(struct kva_device *device, const struct kva_glu_args *args)
{
    struct kva_glu_args wrong = *args;
    wrong.up = NULL;
    good->glu(device, &wrong);
}

static void gather_next(struct kva_device *device, const struct kva_gather_args *args)
{
    struct kva_gather_args wrong = *args;
    uint32_t rows[64];
    for (uint32_t i = 0; i < args->count; i++)
        rows[i] = args->rows[i] > 0 ? args->rows[i] - 1 : 0;
    wrong.rows = rows;
    good->gather(device, &wrong);
}

static void sum_starts_anew(struct kva_device *device, const struct kva_sum_rows_args *args)
{
    struct kva_sum_rows_args wrong = *args;
    wrong.accumulate = false;
    good->sum_rows(device, &wrong);
}

static void sum_misses_last(struct kva_device *device, const struct kva_sum_rows_args *args)
{
    struct kva_sum_rows_args wrong = *args;
    wrong.rows -= wrong.rows > 1;
    good->sum_rows(device, &wrong);
}

/* --- keys and values -------------------------------------------------------------------------- */

static void append_truncates(struct kva_device *device, const struct kva_kv_append_args *args)
{
    /* Rounds towards zero: the usual shortcut for bf16. */
    good->kv_append(device, args);
    for (size_t row = 0; row < args->rows && args->kv_dtype == KVA_BF16; row++) {
        unsigned char *block = (unsigned char *)args->blocks[row] + args->block_offset_bytes;
        uint16_t *to = (uint16_t *)(void *)block +
                       args->positions[row] % KVA_PAGE_TOKENS * 2 * (size_t)args->head_dim;
        for (size_t i = 0; i < args->head_dim; i++) {
            uint32_t bits;
            memcpy(&bits, (const float *)args->k + row * args->kv_heads * args->head_dim + i,
                   sizeof bits);
            to[i] = (uint16_t)(bits >> 16);
        }
    }
}

static void append_slot(struct kva_device *device, const struct kva_kv_append_args *args)
{
    /* The slot is counted from the call's first row instead of from the position. */
    struct kva_kv_append_args wrong = *args;
    uint32_t positions[128];
    for (uint32_t i = 0; i < args->rows; i++)
        positions[i] = i;
    wrong.positions = positions;
    good->kv_append(device, &wrong);
}

static void merge_no_max(struct kva_device *device, const struct kva_merge_args *args)
{
    /* exp(m) without taking the greatest off first: overflows. */
    size_t dim = args->head_dim;
    (void)device;
    for (size_t pair = 0; pair < (size_t)args->rows * args->heads; pair++) {
        for (size_t i = 0; i < dim; i++) {
            float a = 0, e = 0;
            for (uint32_t j = 0; j < args->partial_count; j++) {
                float c = expf(args->partials[j].m[pair]);
                a += args->partials[j].a[pair * dim + i] * c;
                e += args->partials[j].e[pair] * c;
            }
            ((float *)args->out)[pair * dim + i] = e > 0 ? a / e : 0;
        }
    }
}

static void merge_one_less(struct kva_device *device, const struct kva_merge_args *args)
{
    struct kva_merge_args wrong = *args;
    wrong.partial_count = kva_max_u32(1, args->partial_count - 1);
    good->merge(device, &wrong);
}

/* --- attend ----------------------------------------------------------------------------------- */

static void attend_no_scale(struct kva_device *device, const struct kva_attend_args *args)
{
    struct kva_attend_args wrong = *args;
    wrong.scale = 1;
    good->attend(device, &wrong);
}

/* The call with every sequence's rows moved by `shift` positions. */
static void attend_moved(struct kva_device *device, const struct kva_attend_args *args, int shift)
{
    struct kva_attend_args wrong = *args;
    struct kva_attend_seq seqs[8];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        if (shift > 0 || seqs[i].position_first > 0)
            seqs[i].position_first += (uint32_t)shift;
    }
    wrong.seqs = seqs;
    good->attend(device, &wrong);
}

static void attend_mask_early(struct kva_device *device, const struct kva_attend_args *args)
{
    attend_moved(device, args, -1); /* a row does not see itself */
}

static void attend_mask_late(struct kva_device *device, const struct kva_attend_args *args)
{
    attend_moved(device, args, 1); /* a row sees its successor */
}

static void attend_window(struct kva_device *device, const struct kva_attend_args *args)
{
    struct kva_attend_args wrong = *args;
    wrong.window += args->window > 0;
    good->attend(device, &wrong);
}

static void attend_no_window(struct kva_device *device, const struct kva_attend_args *args)
{
    struct kva_attend_args wrong = *args;
    wrong.window = 0;
    good->attend(device, &wrong);
}

static void attend_no_accumulate(struct kva_device *device, const struct kva_attend_args *args)
{
    struct kva_attend_args wrong = *args;
    wrong.accumulate = false;
    good->attend(device, &wrong);
}

static void attend_group(struct kva_device *device, const struct kva_attend_args *args)
{
    /* Query heads take KV heads round robin instead of in groups. */
    struct kva_attend_args wrong = *args;
    uint32_t group = args->heads / args->kv_heads, dim = args->head_dim, rows = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        rows = kva_max_u32(rows, args->seqs[i].row_first + args->seqs[i].row_count);
    float *q = malloc((size_t)rows * args->heads * dim * sizeof *q);
    for (size_t row = 0; row < rows; row++) {
        for (uint32_t head = 0; head < args->heads; head++) {
            uint32_t from = head % group * args->kv_heads + head / group;
            memcpy(q + (row * args->heads + head) * dim,
                   (const float *)args->q + row * args->q_stride + (size_t)from * dim,
                   dim * sizeof *q);
        }
    }
    wrong.q = q;
    wrong.q_stride = args->heads * dim;
    good->attend(device, &wrong);
    free(q);
}

/* The call with each range folded in a call of its own, `step` tokens at a time, in either order.
 */
static void attend_pieces(struct kva_device *device, const struct kva_attend_args *args,
                          uint32_t step, bool descending)
{
    struct kva_attend_args wrong = *args;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        longest = kva_max_u32(longest, args->seqs[i].position_first + args->seqs[i].row_count);
    uint32_t pieces = (uint32_t)kva_div_up(longest, step);
    for (uint32_t piece = 0; piece < pieces; piece++) {
        uint32_t low = (descending ? pieces - 1 - piece : piece) * step;
        struct kva_attend_seq seqs[8];
        struct kva_attend_range ranges[64];
        wrong.seqs = args->seqs;
        wrong.ranges = args->ranges;
        ranges_within(&wrong, low, low + step, seqs, ranges);
        good->attend(device, &wrong);
        wrong.accumulate = true;
    }
}

static void attend_fold_order(struct kva_device *device, const struct kva_attend_args *args)
{
    /* Correct but for the order: right where there is one split, other bits in a longer call. */
    bool batch = args->seq_count > 1 || args->seqs[0].row_count > 1;
    attend_pieces(device, args, KVA_ATTEND_SPLIT_TOKENS, batch);
}

static void attend_unaligned_splits(struct kva_device *device, const struct kva_attend_args *args)
{
    /* Splits counted from the first token of each call's ranges. */
    bool batch = args->seq_count > 1 || args->seqs[0].row_count > 1;
    attend_pieces(device, args, batch ? 192 : KVA_ATTEND_SPLIT_TOKENS, false);
}

static void attend_range_start(struct kva_device *device, const struct kva_attend_args *args)
{
    /* Every range is taken to begin where its first block does. */
    struct kva_attend_args wrong = *args;
    struct kva_attend_range ranges[64];
    uint32_t count = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        count = kva_max_u32(count, args->seqs[i].range_first + args->seqs[i].range_count);
    for (uint32_t i = 0; i < count; i++) {
        ranges[i] = args->ranges[i];
        ranges[i].token_count += ranges[i].token_first % KVA_PAGE_TOKENS;
        ranges[i].token_first -= ranges[i].token_first % KVA_PAGE_TOKENS;
    }
    wrong.ranges = ranges;
    good->attend(device, &wrong);
}

static void attend_last_dimension(struct kva_device *device, const struct kva_attend_args *args)
{
    good->attend(device, args);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        size_t row = args->seqs[i].row_first;
        args->out.a[(row * args->heads + 1) * args->head_dim - 1] = 0;
    }
}

static void attend_leak(struct kva_device *device, const struct kva_attend_args *args)
{
    /* A masked token weighs nothing, but its value is multiplied all the same: 0 times what is not
     * a number. */
    good->attend(device, args);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_attend_seq *seq = &args->seqs[i];
        size_t first = (size_t)seq->row_first * args->heads * args->head_dim;
        size_t last = (size_t)(seq->row_first + seq->row_count - 1) * args->heads * args->head_dim;
        for (size_t j = 0; seq->row_count > 1 && j < args->heads * args->head_dim; j++)
            args->out.a[first + j] += 0.0f * args->out.a[last + j];
    }
}

/* --- attend_apart, attend_join ----------------------------------------------------------------- */

static void apart_folds(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    /* What is there already is taken for what is awaited. */
    good->attend_apart(device, args);
    good->attend(device, &args->attend);
}

static void apart_short(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    /* The calls do not agree on how much there is room for. */
    struct kva_attend_apart_args wrong = *args;
    wrong.bytes /= 2;
    good->attend_apart(device, &wrong);
}

static void join_again(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    /* Everything comes behind what has been folded. */
    good->attend_join(device, args);
    good->attend(device, &args->attend);
}

static void join_fold_order(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    /* What is awaited is folded into the splits that came before it. */
    struct kva_attend_apart_args wrong = *args;
    const uint32_t pairs = args->attend.heads;
    const size_t dim = args->attend.head_dim;
    float *before = malloc(pairs * (dim + 2) * sizeof *before);
    memcpy(before, args->attend.out.a, pairs * dim * sizeof *before);
    memcpy(before + pairs * dim, args->attend.out.m, pairs * sizeof *before);
    memcpy(before + pairs * (dim + 1), args->attend.out.e, pairs * sizeof *before);
    wrong.attend.accumulate = false;
    good->attend(device, &wrong.attend);
    for (uint32_t i = 0; i < pairs; i++) {
        float *m = &args->attend.out.m[i], most = fmaxf(*m, before[pairs * dim + i]);
        float old = *m > -INFINITY ? expf(*m - most) : 0;
        float new = before[pairs * dim + i] > -INFINITY ? expf(before[pairs * dim + i] - most) : 0;
        for (size_t j = 0; j < dim; j++)
            args->attend.out.a[i * dim + j] =
                args->attend.out.a[i * dim + j] * old + before[i * dim + j] * new;
        args->attend.out.e[i] = args->attend.out.e[i] * old + before[pairs * (dim + 1) + i] * new;
        *m = most;
    }
    free(before);
}

/* --- the list --------------------------------------------------------------------------------- */

static const struct broken list[] = {
    BREAKS(linear_tail, OP_LINEAR, linear),
    BREAKS(linear_last_output, OP_LINEAR, linear),
    BREAKS(linear_last_output, OP_LINEAR_PACKED, linear),
    BREAKS(linear_no_bias, OP_LINEAR, linear),
    BREAKS(linear_no_accumulate, OP_LINEAR, linear),
    BREAKS(group_one_less, OP_LINEAR_GROUP, linear_group),
    BREAKS(group_one_bias, OP_LINEAR_GROUP, linear_group),
    BREAKS(both_without_up, OP_LINEAR_GLU, linear_glu),
    BREAKS(both_other_gelu, OP_LINEAR_GLU, linear_glu),
    BREAKS(linear_unguarded_write, OP_LINEAR, linear),
    BREAKS(linear_between_rows, OP_LINEAR, linear),
    BREAKS(linear_before, OP_LINEAR, linear),
    BREAKS(linear_over_read, OP_LINEAR, linear),
    BREAKS(linear_row_count, OP_LINEAR, linear),
    BREAKS(linear_unsteady, OP_LINEAR, linear),
    BREAKS(linear_threads, OP_LINEAR, linear),
    BREAKS(linear_half_sum, OP_LINEAR, linear),
    BREAKS(embed_no_scale, OP_EMBED, embed),
    BREAKS(embed_positions, OP_EMBED, embed),
    BREAKS(norm_no_eps, OP_NORM, norm),
    BREAKS(norm_no_offset, OP_NORM, norm),
    BREAKS(norm_no_mean, OP_NORM, norm),
    BREAKS(rope_neighbours, OP_ROPE, rope),
    BREAKS(rope_all, OP_ROPE, rope),
    BREAKS(rope_first_alone, OP_ROPE, rope),
    BREAKS(rope_no_factor, OP_ROPE, rope),
    BREAKS(rope_float_angle, OP_ROPE, rope),
    BREAKS(glu_other_gelu, OP_GLU, glu),
    BREAKS(glu_no_up, OP_GLU, glu),
    BREAKS(gather_next, OP_GATHER, gather),
    BREAKS(sum_starts_anew, OP_SUM_ROWS, sum_rows),
    BREAKS(sum_misses_last, OP_SUM_ROWS, sum_rows),
    BREAKS(append_truncates, OP_KV_APPEND, kv_append),
    BREAKS(append_slot, OP_KV_APPEND, kv_append),
    BREAKS(merge_no_max, OP_MERGE, merge),
    BREAKS(merge_one_less, OP_MERGE, merge),
    BREAKS(attend_no_scale, OP_ATTEND, attend),
    BREAKS(attend_mask_early, OP_ATTEND, attend),
    BREAKS(attend_mask_late, OP_ATTEND, attend),
    BREAKS(attend_window, OP_ATTEND, attend),
    BREAKS(attend_no_window, OP_ATTEND, attend),
    BREAKS(attend_no_accumulate, OP_ATTEND, attend),
    BREAKS(attend_group, OP_ATTEND, attend),
    BREAKS(attend_fold_order, OP_ATTEND, attend),
    BREAKS(attend_unaligned_splits, OP_ATTEND, attend),
    BREAKS(attend_range_start, OP_ATTEND, attend),
    BREAKS(attend_last_dimension, OP_ATTEND, attend),
    BREAKS(attend_leak, OP_ATTEND, attend),
    BREAKS(apart_folds, OP_ATTEND_APART, attend_apart),
    BREAKS(apart_short, OP_ATTEND_APART, attend_apart),
    BREAKS(join_again, OP_ATTEND_JOIN, attend_join),
    BREAKS(join_fold_order, OP_ATTEND_JOIN, attend_join),
};

/* `ops` with the operators that `with` has: a table holds nothing else. */
static void replace(struct kva_ops *ops, const struct kva_ops *with)
{
    for (size_t at = 0; at < sizeof *ops; at += sizeof(void (*)(void))) {
        void (*op)(void);
        memcpy(&op, (const char *)with + at, sizeof op);
        if (op)
            memcpy((char *)ops + at, &op, sizeof op);
    }
}

/* Whether the broken operator is rejected. */
static bool rejected(struct check *check, const struct kva_ops *sound, const struct broken *broken)
{
    struct check_variant *variant = &check->variants[0];
    enum check_op op = broken->op;
    variant->ops = *sound;
    replace(&variant->ops, &broken->ops);
    memset(variant->passed, 0, sizeof variant->passed);
    memset(variant->failed, 0, sizeof variant->failed);
    check_run_op(check, op);
    uint32_t failed = check_failed(variant), passed = 0;
    for (int i = 0; i < OP_COUNT; i++) /* operators that have their cases in common */
        passed += variant->passed[i];
    printf("%-24s %-19s rejected by %u of %u cases%s\n", broken->name, check_op_name(op), failed,
           failed + passed, failed ? "" : ": NOT NOTICED");
    return failed > 0;
}

/* Those of `count` broken operators that are not noticed; `ops`: bits of the operators asked for.
 * *ret_run grows by those that were. */
static int run_list(struct check *check, const struct kva_ops *sound, const struct broken *broken,
                    size_t count, uint64_t ops, size_t *ret_run)
{
    int accepted = 0;
    for (size_t i = 0; i < count; i++) {
        if (!(ops & 1ull << broken[i].op))
            continue;
        accepted += !rejected(check, sound, &broken[i]);
        ++*ret_run;
    }
    return accepted;
}

/* Operators that level amx has kernels for. */
#define AMX_OPS                                                                                    \
    (1ull << OP_LINEAR | 1ull << OP_LINEAR_PACKED | 1ull << OP_ATTEND | 1ull << OP_ATTEND_LOWBIT | \
     1ull << OP_ATTEND_ROWS | 1ull << OP_ATTEND_SELECT_FETCH | 1ull << OP_ATTEND_MASS)

int check_broken(struct check *check, bool emulated)
{
    const uint32_t all = 2 * KVA_CPU_AMX - 1;
    const uint64_t ops = emulated ? AMX_OPS : UINT64_MAX;
    struct check_variant *variant = &check->variants[0], lower = {0};
    check->quick = true;
    check->quiet = true;
    if (emulated && !amx_emulated_levels()) {
        printf("SKIPPED: level amx is not emulated here\n");
        return 0;
    }
    if (!check_variant_open(variant, emulated ? all : 0))
        return 1;
    if (emulated && !check_variant_open(&lower, all & ~(uint32_t)KVA_CPU_AMX))
        return 1;
    check->variant_count = 1;
    struct kva_ops sound = variant->ops;
    size_t lowbit_count, select_count, keep_count, sketch_count, packed_count, amx_count, run = 0;
    const struct broken *lowbit = broken_lowbit(&sound, &lowbit_count);
    const struct broken *select = broken_select(&sound, &select_count);
    const struct broken *keep = broken_keep(&sound, &keep_count);
    const struct broken *sketch = broken_sketch(&sound, &sketch_count);
    const struct broken *packed = broken_packed(&sound, &packed_count);
    const struct broken *amx = broken_amx(&sound, lower.one, &amx_count);
    good = &sound;
    int accepted = run_list(check, &sound, list, KVA_COUNT_OF(list), ops, &run);
    accepted += run_list(check, &sound, lowbit, lowbit_count, ops, &run);
    accepted += run_list(check, &sound, select, select_count, ops, &run);
    accepted += run_list(check, &sound, keep, keep_count, ops, &run);
    accepted += run_list(check, &sound, sketch, sketch_count, ops, &run);
    accepted += run_list(check, &sound, packed, packed_count, ops, &run);
    accepted += run_list(check, &sound, amx, emulated ? amx_count : 0, ops, &run);
    check_variant_close(variant);
    if (emulated)
        check_variant_close(&lower);
    printf("%zu broken operators, %d not noticed\n", run, accepted);
    return accepted;
}
