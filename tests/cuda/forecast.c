/* Roofs of steps and prompts, computed from ceilings. */
#include "tests/cuda/forecast.h"

#include <math.h>

#define WINDOW 64u
#define HOT_K  64u
#define SINKS  4u
#define SLOTS  (SINKS + 2 * HOT_K)

/* Rows of a tile of matrix products: fewer take as long. */
#define TILE_ROWS 16u

/* What the device takes beside weights and KV: scratch of attention, selection and the layers,
 * rings of descriptors, cuBLAS. */
#define FIXED_BYTES 1.0e9

const struct shape shape_mistral = {"Mistral-7B", 32, 4096, 14336, 32, 8, 128, 32000};

static double layer_parameters(const struct shape *s)
{
    double q = (double)s->heads * s->head_dim, kv = (double)s->kv_heads * s->head_dim;
    return (2 * q + 2 * kv) * s->hidden + 3.0 * s->hidden * s->intermediate;
}

static double head_parameters(const struct shape *s)
{
    return (double)s->vocab * s->hidden;
}

double forecast_weight_bytes(const struct shape *s)
{
    return 2 * (s->layers * layer_parameters(s) + 2 * head_parameters(s));
}

/* --- memory ----------------------------------------------------------------------------------- */

static double page_bytes(const struct shape *s)
{
    return (double)s->layers * (double)kva_kv_block_bytes(s->kv_heads, s->head_dim);
}

static double pages(uint32_t tokens)
{
    return (double)kva_div_up(tokens, KVA_PAGE_TOKENS);
}

static double low_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    const struct kva_lowbit_format format = {.bits = kv->bits, .group = 64};
    double away = kv->tokens > WINDOW ? pages(kv->tokens - WINDOW) : 0;
    return away * s->layers * (double)kva_lowbit_block_bytes(format, s->kv_heads, s->head_dim);
}

static double row_bytes(const struct shape *s)
{
    return (double)s->layers * s->kv_heads * s->head_dim * 4;
}

static double device_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    if (kv->kind == KV_FULL)
        return (pages(kv->tokens) + 1) * page_bytes(s);
    double bytes = low_bytes(s, kv) + (WINDOW / KVA_PAGE_TOKENS + 2) * page_bytes(s);
    return kv->kind == KV_KIVI ? bytes : bytes + SLOTS * row_bytes(s);
}

struct batch forecast_batch(const struct shape *s, const struct case_of_kv *kv, double gpu_bytes)
{
    double left = gpu_bytes - forecast_weight_bytes(s) - FIXED_BYTES;
    double card = floor(left / device_bytes(s, kv));
    double host = floor(HOST_BYTES / ((pages(kv->tokens) + 1) * page_bytes(s)));
    double most = card < host ? card : host;
    return (struct batch){most > 0 ? (uint32_t)most : 0, host < card};
}

/* --- time ------------------------------------------------------------------------------------- */

static double most(double a, double b)
{
    return a > b ? a : b;
}

struct forecast forecast_step(const struct shape *s, const struct ceilings *c,
                              const struct case_of_kv *kv, uint32_t sequences)
{
    uint32_t rows_each = kv->kind == KV_SPECACHE ? 2 : 1;
    double rows = (double)sequences * rows_each, n = sequences;
    double weights = s->layers * layer_parameters(s), head = head_parameters(s);
    struct forecast f = {0};
    double read_s = 2 * weights / c->memory_bytes_per_s;
    double product_s = 2 * rows * weights / c->flops_per_s;
    f.head_s = most(2 * head / c->memory_bytes_per_s, 2 * rows * head / c->flops_per_s);
    f.linear_s = most(read_s, product_s) + f.head_s;
    f.by_flops = product_s > read_s;
    if (kv->kind == KV_FULL) {
        f.attend_s = n * kv->tokens * row_bytes(s) / c->memory_bytes_per_s;
    } else {
        double exact = WINDOW + KVA_PAGE_TOKENS / 2 + (kv->kind == KV_SPECACHE ? SLOTS : 0);
        double tile = (double)kva_align_up((size_t)rows_each * s->heads / s->kv_heads, TILE_ROWS);
        double flops = 4.0 * tile * s->kv_heads * s->head_dim * kv->tokens * s->layers * n;
        f.attend_s = most(n * low_bytes(s, kv) / c->memory_bytes_per_s, flops / c->flops_per_s) +
                     n * exact * row_bytes(s) / c->memory_bytes_per_s;
    }
    /* Chosen rows come in; a new token's row goes home. */
    double fetched = kv->kind == KV_SPECACHE ? FETCHED_SHARE * HOT_K : 0;
    f.link_s = n * most(fetched, 1) * row_bytes(s) / c->link_bytes_per_s;
    f.step_s = most(f.linear_s + f.attend_s, f.link_s);
    f.by_link = f.link_s > f.linear_s + f.attend_s;
    return f;
}

double forecast_prefill(const struct shape *s, const struct ceilings *c, uint32_t tokens)
{
    double linear = 2.0 * tokens * s->layers * layer_parameters(s);
    double pairs = 0.5 * tokens * (tokens + 1.0);
    double attend = 4.0 * pairs * s->heads * s->head_dim * s->layers;
    return (linear + attend) / c->flops_per_s;
}

const char *forecast_limit(const struct batch *batch, const struct forecast *forecast)
{
    if (forecast->by_link)
        return "link";
    if (forecast->by_flops && forecast->linear_s > forecast->attend_s)
        return "GEMM rows";
    return batch->by_host ? "host" : "card";
}
