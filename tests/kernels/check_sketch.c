/* Cases of partial keys: sketch and sketch_queries against plain chains of fused products, whose
 * bits every variant must give; sketch_weigh against fp64 exponentials of such scores. */
#include "tests/kernels/checkasm.h"

#include "kernels/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_MAX = 4, PAGES_MAX = 11, SEQS = 3 };

struct shape {
    uint32_t dim, columns, bits, kv_heads, group;
    enum kva_dtype dtype;
    bool basis, list; /* there is a basis, a list of columns */
};

static const struct shape shapes[] = {
    {64, 19, 16, 3, 3, KVA_F16, true, false}, {128, 38, 16, 2, 6, KVA_BF16, true, false},
    {128, 38, 8, 2, 1, KVA_BF16, true, true}, {64, 64, 8, 1, 9, KVA_F16, true, false},
    {80, 24, 16, 2, 2, KVA_F16, false, true}, {80, 24, 8, 2, 5, KVA_BF16, false, false},
    {20, 1, 16, 1, 1, KVA_F16, true, false},  {16, 16, 16, 4, 4, KVA_BF16, true, true},
    {16, 10, 8, 2, 2, KVA_F16, true, false},  {24, 9, 8, 1, 3, KVA_BF16, false, true},
    {256, 77, 8, 1, 8, KVA_F16, true, false}, {256, 256, 16, 2, 1, KVA_BF16, true, false},
};

static void name_of(const struct shape *s, char *to, size_t size)
{
    snprintf(to, size, "%s dim %u columns %u bits %u heads %u x %u%s%s", kva_dtype_name(s->dtype),
             s->dim, s->columns, s->bits, s->kv_heads, s->group, s->basis ? " basis" : "",
             s->list ? " list" : "");
}

/* --- columns ---------------------------------------------------------------------------------- */

struct by {
    struct check_buf basis, columns;
    struct kva_sketch_columns by;
};

/* Any numbers do for a basis. */
static struct by by_new(struct check *check, const struct shape *s)
{
    struct by by = {.basis = check_buf_new((size_t)s->kv_heads * s->dim * s->dim * sizeof(float)),
                    .columns = check_buf_new((size_t)s->kv_heads * s->dim * sizeof(uint32_t))};
    float *basis = by.basis.data;
    uint32_t *columns = by.columns.data;
    for (size_t i = 0; i < (size_t)s->kv_heads * s->dim * s->dim; i++)
        basis[i] = check_normal(check) / 8;
    for (uint32_t head = 0; head < s->kv_heads; head++) {
        uint32_t *own = columns + (size_t)head * s->dim;
        for (uint32_t i = 0; i < s->dim; i++) {
            const uint32_t other = check_below(check, i + 1);
            own[i] = own[other];
            own[other] = i;
        }
    }
    by.by = (struct kva_sketch_columns){s->basis ? basis : NULL, s->list ? columns : NULL};
    return by;
}

static void by_free(struct by *by)
{
    check_buf_free(&by->basis);
    check_buf_free(&by->columns);
}

/* Column number c of x. */
static float column(const struct kva_sketch_columns *by, const struct shape *s, uint32_t kv_head,
                    const float *x, uint32_t c)
{
    const uint32_t at = by->columns ? by->columns[(size_t)kv_head * s->dim + c] : c;
    float sum = 0.0f;
    if (!by->basis)
        return x[at];
    for (uint32_t i = 0; i < s->dim; i++)
        sum = fmaf(x[i], by->basis[((size_t)kv_head * s->dim + i) * s->dim + at], sum);
    return sum;
}

/* --- sketch ----------------------------------------------------------------------------------- */

static struct kva_sketch_format format_of(const struct shape *s)
{
    return (struct kva_sketch_format){s->columns, s->bits};
}

/* The sketch of a KV head of a block. */
static void sketch_model(const struct shape *s, const struct kva_sketch_columns *by,
                         uint32_t kv_head, const uint16_t *block, unsigned char *to)
{
    const uint16_t *keys = block + (size_t)kv_head * KVA_PAGE_TOKENS * 2 * s->dim;
    float x[256], y[256];
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        float most = 0;
        for (uint32_t i = 0; i < s->dim; i++)
            x[i] = kva_f32_of_16(keys[(size_t)t * 2 * s->dim + i], s->dtype);
        for (uint32_t c = 0; c < s->columns; c++) {
            y[c] = column(by, s, kv_head, x, c);
            most = fabsf(y[c]) > most ? fabsf(y[c]) : most;
        }
        const uint16_t scale_16 = kva_f16_of_f32((most < 65504 ? most : 65504) / 127);
        const float scale = kva_f32_of_f16(scale_16);
        for (uint32_t c = 0; c < s->columns; c++) {
            const size_t at = (size_t)c * KVA_PAGE_TOKENS + t;
            if (s->bits == 16) {
                ((uint16_t *)(void *)to)[at] = kva_16_of_f32(y[c], s->dtype);
                continue;
            }
            float code = scale == 0 || isnan(y[c]) ? 0 : rintf(y[c] / scale);
            code = code > 127 ? 127 : code < -127 ? -127 : code;
            ((int8_t *)to)[at] = (int8_t)code;
        }
        if (s->bits == 8)
            ((uint16_t *)(void *)(to + (size_t)s->columns * KVA_PAGE_TOKENS))[t] = scale_16;
    }
}

/* Keys of each size, and tokens that are zeros, huge, or no numbers. */
static void fill_block(struct check *check, const struct shape *s, uint16_t *block)
{
    const uint32_t tokens = s->kv_heads * KVA_PAGE_TOKENS;
    for (uint32_t t = 0; t < tokens; t++) {
        const uint32_t kind = check_below(check, 24);
        for (uint32_t i = 0; i < 2 * s->dim; i++) {
            float x = check_normal(check);
            x = kind == 0 ? 0.0f : kind == 1 ? x * 40000 : kind == 2 && i == 3 ? NAN : x;
            block[(size_t)t * 2 * s->dim + i] = kva_16_of_f32(x, s->dtype);
        }
    }
}

/* Whether NaN has whatever bits it likes in 16 bits: only then may bytes differ. */
static bool same_sketch(const struct shape *s, const void *got, const void *want, size_t bytes)
{
    const uint16_t *a = got, *b = want;
    if (s->bits == 8)
        return memcmp(got, want, bytes) == 0;
    for (size_t i = 0; i < bytes / 2; i++) {
        const bool nan = isnan(kva_f32_of_16(b[i], s->dtype));
        if (nan ? !isnan(kva_f32_of_16(a[i], s->dtype)) : a[i] != b[i])
            return false;
    }
    return true;
}

static void sketch_case(struct check *check, const struct shape *s, uint32_t count)
{
    const size_t from_bytes = kva_kv_block_bytes(s->kv_heads, s->dim);
    const size_t to_bytes = kva_sketch_block_bytes(format_of(s), s->kv_heads);
    const size_t from_offset = 48, to_offset = 64;
    const double work = (double)count * s->kv_heads * KVA_PAGE_TOKENS * s->columns * s->dim;
    struct check_buf from[PAGES_MAX], to[PAGES_MAX], want[PAGES_MAX];
    const void *from_at[PAGES_MAX];
    void *to_at[PAGES_MAX];
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[140];
    if (!check_wanted(check, OP_SKETCH, work))
        return;
    struct by by = by_new(check, s);
    for (uint32_t i = 0; i < count; i++) {
        from[i] = check_buf_new(from_offset + from_bytes);
        to[i] = check_buf_new(to_offset + to_bytes);
        want[i] = check_buf_new(to_bytes);
        unsigned char *block = (unsigned char *)from[i].data + from_offset;
        fill_block(check, s, (void *)block);
        for (uint32_t head = 0; head < s->kv_heads; head++)
            sketch_model(s, &by.by, head, (void *)block,
                         (unsigned char *)want[i].data +
                             head * kva_sketch_head_bytes(format_of(s)));
        from_at[i] = from[i].data;
        to_at[i] = to[i].data;
    }
    const struct kva_sketch_args args = {.from = from_at,
                                         .to = to_at,
                                         .from_offset_bytes = from_offset,
                                         .to_offset_bytes = to_offset,
                                         .by = by.by,
                                         .count = count,
                                         .kv_heads = s->kv_heads,
                                         .head_dim = s->dim,
                                         .kv_dtype = s->dtype,
                                         .format = format_of(s)};
    name_of(s, name, sizeof name);
    while (check_next_run(check, work, &run, &variant, &device)) {
        const char *reason = NULL;
        for (uint32_t i = 0; i < count; i++)
            check_buf_garbage(check, &to[i]);
        variant->ops.sketch(device, &args);
        for (uint32_t i = 0; i < count && !reason; i++) {
            if (!same_sketch(s, (unsigned char *)to[i].data + to_offset, want[i].data, to_bytes))
                reason = "other bits";
            else if (!check_buf_intact(&to[i]))
                reason = "wrote before its output";
        }
        check_count_run(check, variant, OP_SKETCH, device, name, reason);
    }
    for (uint32_t i = 0; i < count; i++) {
        check_buf_free(&from[i]);
        check_buf_free(&to[i]);
        check_buf_free(&want[i]);
    }
    by_free(&by);
}

void check_sketch(struct check *check)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        sketch_case(check, &shapes[i], check_between(check, 1, check->quick ? 2 : 4));
}

/* --- sketch_queries --------------------------------------------------------------------------- */

static void queries_case(struct check *check, const struct shape *s, uint32_t count)
{
    const uint32_t heads = s->kv_heads * s->group, stride = heads * s->dim + 4, rows_max = 6;
    const double work = (double)count * heads * s->columns * s->dim;
    struct check_buf q = check_buf_new((size_t)rows_max * stride * sizeof(float));
    struct check_buf out = check_buf_new((size_t)count * heads * s->columns * sizeof(float));
    struct check_buf want = check_buf_new(out.bytes);
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0, rows[8];
    char name[140];
    struct by by = by_new(check, s);
    const float scale = 1 / sqrtf((float)s->dim);
    check_fill(check, FILL_NORMAL, q.data, (size_t)rows_max * stride);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = check_below(check, rows_max);
        for (uint32_t head = 0; head < heads; head++) {
            float x[256];
            for (uint32_t j = 0; j < s->dim; j++)
                x[j] = ((float *)q.data)[(size_t)rows[i] * stride + head * s->dim + j] * scale;
            for (uint32_t c = 0; c < s->columns; c++)
                ((float *)want.data)[((size_t)i * heads + head) * s->columns + c] =
                    column(&by.by, s, head / s->group, x, c);
        }
    }
    const struct kva_sketch_queries_args args = {.q = q.data,
                                                 .rows = rows,
                                                 .out = out.data,
                                                 .by = by.by,
                                                 .count = count,
                                                 .q_stride = stride,
                                                 .heads = heads,
                                                 .kv_heads = s->kv_heads,
                                                 .head_dim = s->dim,
                                                 .columns = s->columns,
                                                 .scale = scale};
    name_of(s, name, sizeof name);
    while (check_wanted(check, OP_SKETCH_QUERIES, work) &&
           check_next_run(check, work, &run, &variant, &device)) {
        check_buf_garbage(check, &out);
        variant->ops.sketch_queries(device, &args);
        const char *reason = memcmp(out.data, want.data, out.bytes) != 0 ? "other bits"
                             : !check_buf_intact(&out)                   ? "wrote before its output"
                                                                         : NULL;
        check_count_run(check, variant, OP_SKETCH_QUERIES, device, name, reason);
    }
    check_buf_free(&q);
    check_buf_free(&out);
    check_buf_free(&want);
    by_free(&by);
}

void check_sketch_queries(struct check *check)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        queries_case(check, &shapes[i], check_between(check, 1, 5));
}

/* --- sketch_weigh ----------------------------------------------------------------------------- */

struct weigh_test {
    struct shape shape;
    struct kva_sketch_weigh_args args;
    struct kva_sketch_seq seqs[SEQS];
    struct check_buf q[SEQS], scratch[SEQS], weights[SEQS], pages[SEQS][PAGES_MAX];
    const void *blocks[SEQS][PAGES_MAX];
    double *expect[SEQS];
};

static float number_at(const struct shape *s, const unsigned char *head, uint32_t c, uint32_t t)
{
    const size_t at = (size_t)c * KVA_PAGE_TOKENS + t;
    if (s->bits == 16)
        return kva_f32_of_16(((const uint16_t *)(const void *)head)[at], s->dtype);
    return (float)((const int8_t *)head)[at];
}

static float score(const struct weigh_test *test, const struct kva_sketch_seq *seq, uint32_t head,
                   uint32_t token)
{
    const struct shape *s = &test->shape;
    const unsigned char *keys = (const unsigned char *)seq->blocks[token / KVA_PAGE_TOKENS] +
                                test->args.block_offset_bytes +
                                head / s->group * kva_sketch_head_bytes(format_of(s));
    const uint32_t t = token % KVA_PAGE_TOKENS;
    const uint16_t *scales = (const void *)(keys + (size_t)s->columns * KVA_PAGE_TOKENS);
    float sum = 0;
    for (uint32_t c = 0; c < s->columns; c++)
        sum = fmaf(seq->q[(size_t)head * s->columns + c], number_at(s, keys, c, t), sum);
    return s->bits == 16 ? sum : sum * kva_f32_of_f16(scales[t]);
}

/* expect [kv_heads][tokens]: -1 is no candidate. */
static void weigh_model(struct weigh_test *test, uint32_t index)
{
    const struct kva_sketch_seq *seq = &test->seqs[index];
    const struct shape *s = &test->shape;
    const uint32_t tokens = seq->page_count * KVA_PAGE_TOKENS;
    const uint32_t from = kva_max_u32(seq->first, seq->always);
    double *expect = test->expect[index];
    for (size_t i = 0; i < (size_t)s->kv_heads * tokens; i++)
        expect[i] = i % tokens < seq->first ? -1 : i % tokens < seq->always ? 1 : -1;
    for (uint32_t head = 0; head < s->kv_heads * s->group; head++) {
        double *own = expect + (size_t)(head / s->group) * tokens;
        float most = -INFINITY;
        for (uint32_t t = from; t < tokens; t++) {
            const float x = score(test, seq, head, t);
            most = x > most ? x : most;
        }
        for (uint32_t t = from; t < tokens; t++) {
            const float off = score(test, seq, head, t) - most;
            if (!isnan(off) && off > -0x1p126f && exp((double)off) > own[t])
                own[t] = exp((double)off);
        }
    }
}

/* An exponential may be off by 2 units in the last place, and small ones be 0. */
static const char *compare(const struct weigh_test *test, uint32_t index)
{
    const struct kva_sketch_seq *seq = &test->seqs[index];
    const size_t count = (size_t)test->shape.kv_heads * seq->page_count * KVA_PAGE_TOKENS;
    for (size_t i = 0; i < count; i++) {
        const double want = test->expect[index][i], got = (double)seq->weights[i];
        if (want < 0 ? !(got < 0) : !(fabs(got - want) <= 8 * UNIT * want + 0x1p-120))
            return want < 0 ? "weighed what is no candidate" : "other weights";
        if (want == 1 && got != 1)
            return "the largest does not weigh 1";
    }
    return NULL;
}

/* The first tokens have the largest scores by far: they are parallel to the queries. */
static void make_sinks(const struct shape *s, const float *q, uint16_t *block)
{
    for (uint32_t i = 0; i < s->kv_heads * 3; i++) {
        const uint32_t head = i / 3, token = i % 3;
        const float *from = q + (size_t)head * s->group * s->columns;
        uint16_t *to = block + ((size_t)head * KVA_PAGE_TOKENS + token) * 2 * s->dim;
        for (uint32_t c = 0; c < s->columns; c++)
            to[c] = kva_16_of_f32(3 * from[c], s->dtype);
    }
}

static void make_weigh(struct check *check, struct weigh_test *test)
{
    const struct shape *s = &test->shape;
    const uint32_t heads = s->kv_heads * s->group;
    for (uint32_t i = 0; i < SEQS; i++) {
        struct kva_sketch_seq *seq = &test->seqs[i];
        seq->page_count = i == 2 ? 0 : check_between(check, 1, check->quick ? 3 : PAGES_MAX);
        const uint32_t tokens = seq->page_count * KVA_PAGE_TOKENS;
        seq->first = check_below(check, 2) ? check_below(check, tokens + 1) : 0;
        seq->always = check_below(check, 2) ? check_below(check, 6) : 0;
        if (i == 0) { /* its sinks, which would set the maximum, are wanted in any case */
            seq->first = 0;
            seq->always = 3;
        }
        test->q[i] = check_buf_new((size_t)heads * s->columns * sizeof(float));
        test->scratch[i] = check_buf_new(kva_sketch_scratch_bytes(heads, seq->page_count));
        test->weights[i] = check_buf_new((size_t)s->kv_heads * tokens * sizeof(float));
        test->expect[i] = calloc((size_t)s->kv_heads * tokens + 1, sizeof(double));
        float *q = test->q[i].data;
        for (size_t j = 0; j < (size_t)heads * s->columns; j++)
            q[j] = check_normal(check) * (s->bits == 8 ? 0.5f : 1.0f);
        for (uint32_t page = 0; page < seq->page_count; page++) {
            struct check_buf *buf = &test->pages[i][page];
            const size_t bytes = kva_sketch_block_bytes(format_of(s), s->kv_heads);
            *buf = check_buf_new(test->args.block_offset_bytes + bytes);
            unsigned char *at = (unsigned char *)buf->data + test->args.block_offset_bytes;
            struct kva_sketch_columns none = {0};
            struct shape plain = *s;
            uint16_t *block = calloc(1, kva_kv_block_bytes(s->kv_heads, s->dim));
            fill_block(check, s, block);
            if (page == 0)
                make_sinks(s, q, block);
            for (uint32_t head = 0; head < s->kv_heads; head++)
                sketch_model(&plain, &none, head, block,
                             at + head * kva_sketch_head_bytes(format_of(s)));
            free(block);
            test->blocks[i][page] = buf->data;
        }
        seq->q = q;
        seq->blocks = test->blocks[i];
        seq->scratch = test->scratch[i].data;
        seq->weights = test->weights[i].data;
        weigh_model(test, i);
    }
}

static void free_weigh(struct weigh_test *test)
{
    for (uint32_t i = 0; i < SEQS; i++) {
        for (uint32_t page = 0; page < test->seqs[i].page_count; page++)
            check_buf_free(&test->pages[i][page]);
        check_buf_free(&test->q[i]);
        check_buf_free(&test->scratch[i]);
        check_buf_free(&test->weights[i]);
        free(test->expect[i]);
    }
}

/* All sequences together, then each alone: the same bits. */
static const char *run_weigh(struct check *check, struct weigh_test *test,
                             const struct check_variant *variant, struct kva_device *device)
{
    const char *reason = NULL;
    struct kva_sketch_weigh_args args = test->args;
    for (uint32_t i = 0; i < SEQS; i++) {
        check_buf_garbage(check, &test->weights[i]);
        check_buf_garbage(check, &test->scratch[i]);
    }
    variant->ops.sketch_weigh(device, &args);
    for (uint32_t i = 0; i < SEQS && !reason; i++) {
        float *before = malloc(test->weights[i].bytes + 1);
        memcpy(before, test->weights[i].data, test->weights[i].bytes);
        reason = compare(test, i);
        check_buf_garbage(check, &test->weights[i]);
        args.seqs = &test->seqs[i];
        args.seq_count = 1;
        variant->ops.sketch_weigh(device, &args);
        if (!reason && memcmp(before, test->weights[i].data, test->weights[i].bytes) != 0)
            reason = "other bits alone";
        if (!check_buf_intact(&test->weights[i]) || !check_buf_intact(&test->scratch[i]))
            reason = "wrote before its output";
        free(before);
    }
    return reason;
}

static void weigh_case(struct check *check, const struct shape *s)
{
    const double work =
        (double)SEQS * PAGES_MAX * KVA_PAGE_TOKENS * s->kv_heads * s->group * s->columns;
    struct weigh_test test = {.shape = *s};
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[140];
    if (!check_wanted(check, OP_SKETCH_WEIGH, work))
        return;
    test.args = (struct kva_sketch_weigh_args){.seqs = test.seqs,
                                               .block_offset_bytes = 64,
                                               .seq_count = SEQS,
                                               .heads = s->kv_heads * s->group,
                                               .kv_heads = s->kv_heads,
                                               .head_dim = s->dim,
                                               .kv_dtype = s->dtype,
                                               .format = format_of(s)};
    make_weigh(check, &test);
    name_of(s, name, sizeof name);
    while (check_next_run(check, work, &run, &variant, &device))
        check_count_run(check, variant, OP_SKETCH_WEIGH, device, name,
                        run_weigh(check, &test, variant, device));
    free_weigh(&test);
}

void check_sketch_weigh(struct check *check)
{
    for (int round = 0; round < (check->quick ? 1 : 2); round++) {
        for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
            weigh_case(check, &shapes[i]);
    }
}
