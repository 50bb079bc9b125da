/* store.c - mean_keys, row_error, store_rows and roll_rows: a KV head of a sequence is an item of
 * work, since tokens of one block share bytes. A row goes through floats. */
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/cpu/keep/token_row.h"
#include "kernels/cpu/rows/angles.h"
#include "kernels/cpu/select/order.h"

/* A thread's scratch. */
struct scratch {
    float k[KVA_CPU_HEAD_DIM_MAX];
    float v[KVA_CPU_HEAD_DIM_MAX];
    float cosines[KVA_CPU_HEAD_DIM_MAX / 2];
    float sines[KVA_CPU_HEAD_DIM_MAX / 2];
    struct kva_token_row row;
    uint32_t positions[KVA_PAGE_TOKENS];
    uint64_t keys[KVA_CPU_ROLL_SLOTS_MAX];
    _Alignas(64) unsigned char page[KVA_CPU_ROLL_SCRATCH_BYTES];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "kept rows outgrew the scratch");

/* The K row of a token in a KV head of 16-bit blocks; the V row is right behind it. */
static uint16_t *row_16(const void *block, size_t offset_bytes, uint32_t kv_head, uint32_t token,
                        uint32_t head_dim)
{
    const size_t row = (size_t)kv_head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS;
    return (uint16_t *)((uintptr_t)block + offset_bytes) + row * 2 * head_dim;
}

static unsigned char *head_of(const void *block, size_t offset_bytes, uint32_t kv_head,
                              const struct kva_lowbit_layout *layout)
{
    return (unsigned char *)((uintptr_t)block + offset_bytes) + kv_head * layout->head_bytes;
}

/* Rotate a row back by a position. */
static void rotate_back(float *x, const struct kva_keep_rotary *rotary, uint32_t position,
                        struct scratch *scratch)
{
    const uint32_t half = rotary->rotary_dim / 2;
    kva_angles(position, rotary->inv_freq, half, 1.0f, scratch->cosines, scratch->sines);
    for (uint32_t i = 0; i < half; i++) {
        const float c = scratch->cosines[i], s = -scratch->sines[i];
        const float a = x[i], b = x[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

/* --- mean_keys -------------------------------------------------------------------------------- */

/* The mean of channel `c`, and the sum of the squares of what tokens have else. */
static float channel_mean(const struct kva_mean_keys_args *args, uint32_t kv_head, uint32_t c,
                          float *ret_squares)
{
    const float n = (float)(args->end - args->first);
    float sum = 0.0f, squares = 0.0f, x[KVA_PAGE_TOKENS];
    for (uint32_t t = args->first; t < args->end; t++) {
        const uint16_t *row =
            row_16(args->block, args->block_offset_bytes, kv_head, t, args->head_dim);
        x[t] = kva_f32_of_16(row[c], args->kv_dtype);
        kva_token_row_clamp(&x[t], 1);
        x[t] = x[t] == x[t] ? x[t] : 0.0f;
        sum += x[t];
    }
    const float mean = sum / n;
    for (uint32_t t = args->first; t < args->end; t++) {
        const float off = x[t] - mean;
        squares += off * off;
    }
    *ret_squares = squares;
    return mean;
}

/* The means that count, if they outweigh what tells tokens apart. */
static void mean_of_head(const struct kva_mean_keys_args *args, uint32_t kv_head, float *mean)
{
    const float n = (float)(args->end - args->first);
    float common = 0.0f, apart = 0.0f;
    for (uint32_t c = 0; c < args->head_dim; c++) {
        float squares;
        const float of_channel = channel_mean(args, kv_head, c, &squares);
        const float weight = of_channel * of_channel * n;
        const bool counts = weight > KVA_MEAN_KEY_DEVIATIONS_2 * squares;
        mean[c] = counts ? of_channel : 0.0f;
        common += counts ? weight : 0.0f;
        apart += squares;
    }
    if (!(common > KVA_MEAN_KEY_SHARE * apart))
        memset(mean, 0, args->head_dim * sizeof *mean);
}

/* Some tokens of a page, once a sequence: not worth a thread. */
void kva_cpu_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *args)
{
    for (uint32_t i = 0; i < args->kv_heads && !kva_cpu_failed(device); i++)
        mean_of_head(args, i, args->mean + (size_t)i * args->head_dim);
}

/* x = a key without the mean of its KV head, if there is one. */
static void take_mean(float *x, const float *mean, uint32_t kv_head, uint32_t dim)
{
    for (uint32_t i = 0; mean && i < dim; i++)
        x[i] -= mean[(size_t)kv_head * dim + i];
}

/* --- row_error -------------------------------------------------------------------------------- */

static float error_of(const struct kva_row_error_args *args, const uint16_t *from,
                      const float *mean, uint32_t kv_head, struct scratch *scratch)
{
    kva_f32_array(from, args->kv_dtype, args->head_dim, scratch->k);
    take_mean(scratch->k, mean, kv_head, args->head_dim);
    kva_token_row_take(&scratch->row, scratch->k, args->head_dim, args->format.bits,
                       args->format.coding);
    return kva_token_row_error(&scratch->row, scratch->k, args->head_dim);
}

struct error_job {
    struct kva_device *device;
    const struct kva_row_error_args *args;
};

static void error_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct error_job *job = opaque;
    const struct kva_row_error_args *args = job->args;
    const struct kva_row_error_seq *seq = &args->seqs[index / args->kv_heads];
    const uint32_t kv_head = index % args->kv_heads;
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    float *error = seq->error + (size_t)kv_head * seq->stride;
    for (uint32_t i = 0; i < seq->count; i++) {
        const uint16_t *from = row_16(seq->blocks[i / KVA_PAGE_TOKENS], args->block_offset_bytes,
                                      kv_head, i, args->head_dim);
        const float key = error_of(args, from, seq->mean, kv_head, scratch);
        error[i] = key + error_of(args, from + args->head_dim, NULL, kv_head, scratch);
    }
}

void kva_cpu_row_error(struct kva_device *device, const struct kva_row_error_args *args)
{
    struct error_job job = {device, args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->seq_count * args->kv_heads, error_item, &job);
}

/* --- store_rows ------------------------------------------------------------------------------- */

struct store_job {
    struct kva_device *device;
    const struct kva_store_rows_args *args;
    struct kva_lowbit_layout layout;
};

/* Where a row goes. */
struct slot {
    const struct kva_store_seq *seq;
    unsigned char *head; /* the KV head's part of the block */
    uint32_t kv_head;
    uint32_t slot;
};

static void store_16(const struct kva_store_rows_args *args, const uint16_t *from,
                     uint32_t position, struct scratch *scratch, uint16_t *to)
{
    const uint32_t dim = args->head_dim;
    memcpy(to, from, (size_t)dim * 2 * sizeof *to);
    if (!args->rotary.inv_freq)
        return;
    kva_f32_array(from, args->kv_dtype, dim, scratch->k);
    rotate_back(scratch->k, &args->rotary, position, scratch);
    for (uint32_t i = 0; i < args->rotary.rotary_dim; i++)
        to[i] = kva_16_of_f32(scratch->k[i], args->kv_dtype);
}

static void put_row(const struct store_job *job, float *x, struct kva_token_row *row,
                    unsigned char *head, struct kva_token_place place, uint32_t slot)
{
    const uint32_t dim = job->args->head_dim, bits = job->args->format.bits;
    kva_token_row_take(row, x, dim, bits, job->args->format.coding);
    kva_token_row_put(row, head, &job->layout, place, slot % KVA_PAGE_TOKENS, dim, bits);
}

static void store_lowbit(const struct store_job *job, const uint16_t *from, uint32_t position,
                         struct scratch *scratch, const struct slot *to)
{
    const struct kva_store_rows_args *args = job->args;
    kva_f32_array(from, args->kv_dtype, args->head_dim, scratch->k);
    kva_f32_array(from + args->head_dim, args->kv_dtype, args->head_dim, scratch->v);
    if (args->rotary.inv_freq)
        rotate_back(scratch->k, &args->rotary, position, scratch);
    take_mean(scratch->k, to->seq->mean, to->kv_head, args->head_dim);
    put_row(job, scratch->k, &scratch->row, to->head, kva_token_keys(&job->layout), to->slot);
    put_row(job, scratch->v, &scratch->row, to->head, kva_token_values(&job->layout), to->slot);
}

static void store_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct store_job *job = opaque;
    const struct kva_store_rows_args *args = job->args;
    const struct kva_store_seq *seq = &args->seqs[index / args->kv_heads];
    const uint32_t kv_head = index % args->kv_heads, dim = args->head_dim;
    const uint32_t *slots = seq->slots + (size_t)kv_head * seq->count;
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    for (uint32_t i = 0; i < seq->count; i++) {
        const uint32_t slot = slots[i];
        if (slot == KVA_NO_SLOT)
            continue;
        const uint16_t *from =
            row_16(seq->from[i / KVA_PAGE_TOKENS], args->from_offset_bytes, kv_head, i, dim);
        const void *to = seq->to[slot / KVA_PAGE_TOKENS];
        if (args->format.bits == 0)
            store_16(args, from, seq->position_first + i, scratch,
                     row_16(to, args->to_offset_bytes, kv_head, slot, dim));
        else
            store_lowbit(job, from, seq->position_first + i, scratch,
                         &(struct slot){seq,
                                        head_of(to, args->to_offset_bytes, kv_head, &job->layout),
                                        kv_head, slot});
    }
}

void kva_cpu_store_rows(struct kva_device *device, const struct kva_store_rows_args *args)
{
    struct store_job job = {.device = device, .args = args};
    if (args->format.bits > 0)
        job.layout = kva_lowbit_layout_of(args->format, args->head_dim);
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->seq_count * args->kv_heads, store_item, &job);
}

/* --- roll_rows -------------------------------------------------------------------------------- */

struct roll_job {
    struct kva_device *device;
    const struct kva_roll_rows_args *args;
    struct kva_lowbit_layout layout;
};

static void put_in_order(const struct kva_roll_seq *seq, uint32_t kv_head, uint64_t *keys)
{
    const size_t at = (size_t)kv_head * seq->slots;
    for (uint32_t slot = 0; slot < seq->filled; slot++)
        keys[slot] = (uint64_t)seq->positions[at + slot] << 32 | slot;
    kva_order_sort(keys, seq->filled);
    for (uint32_t i = 0; i < seq->filled; i++)
        seq->index[at + (uint32_t)keys[i]] = i;
}

/* The value in a slot, as it is. */
static void roll_value(const struct roll_job *job, const void *from, uint16_t *to, uint32_t token,
                       struct scratch *scratch)
{
    const uint32_t dim = job->args->head_dim, bits = job->args->format.bits;
    if (bits == 0) {
        memcpy(to, (const uint16_t *)from + ((size_t)token * 2 + 1) * dim, dim * sizeof *to);
        return;
    }
    kva_token_row_get(scratch->v, from, &job->layout, kva_token_values(&job->layout), token, dim,
                      bits);
    if (job->args->format.coding == KVA_CODING_TURNED)
        kva_token_row_turn_back(scratch->v, dim);
    for (uint32_t i = 0; i < dim; i++)
        to[i] = kva_16_of_f32(scratch->v[i], job->args->kv_dtype);
}

/* Slots of a page, whose tokens are at order[] among the kept ones. */
static void roll_page(const struct roll_job *job, const struct kva_roll_seq *seq, uint32_t kv_head,
                      uint32_t page, struct scratch *scratch)
{
    const struct kva_roll_rows_args *args = job->args;
    const size_t first = (size_t)kv_head * seq->slots + (size_t)page * KVA_PAGE_TOKENS;
    const uint32_t count = kva_min_u32(seq->filled - page * KVA_PAGE_TOKENS, KVA_PAGE_TOKENS);
    struct kva_cpu_roll_keys keys = {
        .to = row_16(seq->to[page], args->to_offset_bytes, kv_head, 0, args->head_dim),
        .positions = scratch->positions,
        .rotary = &args->rotary,
        .layout = &job->layout,
        .format = args->format,
        .head_dim = args->head_dim,
        .kv_dtype = args->kv_dtype,
        .mean = seq->mean ? seq->mean + (size_t)kv_head * args->head_dim : NULL,
        .scratch = scratch->page,
    };
    if (args->format.bits == 0)
        keys.from = row_16(seq->from[page], args->from_offset_bytes, kv_head, 0, args->head_dim);
    else
        keys.from = head_of(seq->from[page], args->from_offset_bytes, kv_head, &job->layout);
    memset(scratch->positions, 0, sizeof scratch->positions);
    for (uint32_t t = 0; t < count; t++) {
        struct kva_roll_place *place = &seq->places[first + t];
        const uint32_t token = seq->positions[first + t] + 1;
        const uint32_t position = seq->position_first + seq->index[first + t];
        if (place->token != token)
            roll_value(job, keys.from, keys.to + ((size_t)t * 2 + 1) * args->head_dim, t, scratch);
        if (place->token != token || place->position != position)
            keys.slots |= UINT64_C(1) << t;
        scratch->positions[t] = position;
        *place = (struct kva_roll_place){token, position};
    }
    if (keys.slots)
        job->device->kernels.roll_keys(&keys);
}

static void roll_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct roll_job *job = opaque;
    const struct kva_roll_seq *seq = &job->args->seqs[index / job->args->kv_heads];
    const uint32_t kv_head = index % job->args->kv_heads;
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    put_in_order(seq, kv_head, scratch->keys);
    for (uint32_t page = 0; page * KVA_PAGE_TOKENS < seq->filled; page++)
        roll_page(job, seq, kv_head, page, scratch);
}

void kva_cpu_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    struct roll_job job = {.device = device, .args = args};
    if (args->format.bits > 0)
        job.layout = kva_lowbit_layout_of(args->format, args->head_dim);
    for (uint32_t i = 0; i < args->seq_count && !kva_cpu_failed(device); i++) {
        if (args->seqs[i].filled > KVA_CPU_ROLL_SLOTS_MAX)
            kva_cpu_fail(device, "roll_rows: %u slots, at most %u", args->seqs[i].filled,
                         KVA_CPU_ROLL_SLOTS_MAX);
    }
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->seq_count * args->kv_heads, roll_item, &job);
}
