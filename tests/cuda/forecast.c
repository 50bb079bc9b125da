/* Roofs of steps and prompts, computed from ceilings. */
#include "tests/cuda/forecast.h"

#include <math.h>

#define WINDOW 64u
#define HOT_K  64u
#define SINKS  4u
#define SLOTS  (SINKS + 2 * HOT_K)

/* InfiniGen: layers that are whole, and columns of partial keys of 8 bits, percent. */
#define WHOLE_LAYERS 2u
#define PARTIAL      30u

/* H2O and Q-Hitter: tokens that stay, percent. */
#define KEPT 20u

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
    double offloaded = kv->tokens > WINDOW ? pages(kv->tokens - WINDOW) : 0;
    return offloaded * s->layers * (double)kva_lowbit_block_bytes(format, s->kv_heads, s->head_dim);
}

static bool is_keeping(const struct case_of_kv *kv)
{
    return kv->kind == KV_H2O || kv->kind == KV_QHITTER;
}

/* Pages of a store. */
static double kept_pages(const struct case_of_kv *kv)
{
    return pages(kv->tokens * KEPT / 100);
}

static double kept_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    const struct kva_lowbit_format format =
        kva_lowbit_per_token(kv->bits, s->head_dim, KVA_CODING_TURNED);
    const size_t coded = kva_lowbit_block_bytes(format, s->kv_heads, s->head_dim);
    return kept_pages(kv) *
           (kv->kind == KV_H2O ? page_bytes(s) : (double)s->layers * (double)coded);
}

static double row_bytes(const struct shape *s)
{
    return (double)s->layers * s->kv_heads * s->head_dim * 4;
}

/* Pages before the window. */
static double away(const struct case_of_kv *kv)
{
    return kv->tokens > WINDOW ? pages(kv->tokens - WINDOW) : 0;
}

static bool is_choosing(const struct case_of_kv *kv)
{
    return kv->kind == KV_SPECACHE || kv->kind == KV_PREVIOUS;
}

/* Rows that a KV head fetches in a layer. */
static double ahead_rows(const struct case_of_kv *kv)
{
    return kv->rows > 0 ? kv->rows : kv->tokens / 5.0;
}

static double partial_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    const struct kva_sketch_format format = {(s->head_dim * PARTIAL + 99) / 100, 8};
    return away(kv) * (s->layers - WHOLE_LAYERS) *
           (double)kva_sketch_block_bytes(format, s->kv_heads);
}

/* The whole layers, partial keys of the others, the window, and rows of two layers. */
static double ahead_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    return away(kv) * WHOLE_LAYERS * page_bytes(s) / s->layers + partial_bytes(s, kv) +
           (WINDOW / KVA_PAGE_TOKENS + 2) * page_bytes(s) +
           2 * ahead_rows(kv) * row_bytes(s) / s->layers;
}

static double device_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    if (kv->kind == KV_FULL)
        return (pages(kv->tokens) + 1) * page_bytes(s);
    if (kv->kind == KV_OFFLOAD)
        return pages(kv->tokens) * 2 * page_bytes(s) / s->layers + 2 * page_bytes(s);
    if (kv->kind == KV_AHEAD)
        return ahead_bytes(s, kv);
    if (is_keeping(kv))
        return kept_bytes(s, kv) + (WINDOW / KVA_PAGE_TOKENS + 2) * page_bytes(s);
    double bytes = low_bytes(s, kv) + (WINDOW / KVA_PAGE_TOKENS + 2) * page_bytes(s);
    return kv->kind == KV_KIVI ? bytes : bytes + SLOTS * row_bytes(s);
}

struct batch forecast_batch(const struct shape *s, const struct case_of_kv *kv, double gpu_bytes)
{
    double left = gpu_bytes - forecast_weight_bytes(s) - FIXED_BYTES;
    const double prompt = (pages(kv->tokens) + 1) * page_bytes(s);
    double card = floor((left - (is_keeping(kv) ? prompt : 0)) / device_bytes(s, kv));
    double host = is_keeping(kv) ? INFINITY : floor(HOST_BYTES / prompt);
    double most = card < host ? card : host;
    return (struct batch){most > 0 ? (uint32_t)most : 0, host < card};
}

/* --- time ------------------------------------------------------------------------------------- */

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* What attention reads of a sequence in 16 bits, in tokens of all layers. */
static double exact_tokens(const struct shape *s, const struct case_of_kv *kv)
{
    const double window = WINDOW + KVA_PAGE_TOKENS / 2;
    const double whole = (double)WHOLE_LAYERS / s->layers;
    if (kv->kind == KV_AHEAD)
        return window + whole * kv->tokens + (1 - whole) * ahead_rows(kv);
    return window + (is_choosing(kv) ? SLOTS : 0);
}

/* Rows of all layers that come over the link for a sequence. */
static double fetched_rows(const struct shape *s, const struct case_of_kv *kv)
{
    if (kv->kind == KV_OFFLOAD)
        return kv->tokens;
    if (kv->kind == KV_AHEAD)
        return ahead_rows(kv) * (s->layers - WHOLE_LAYERS) / s->layers;
    return is_choosing(kv) ? FETCHED_SHARE * HOT_K : 0;
}

static double attend_seconds(const struct shape *s, const struct ceilings *c,
                             const struct case_of_kv *kv, uint32_t rows_each)
{
    const double exact_s = exact_tokens(s, kv) * row_bytes(s) / c->memory_bytes_per_s;
    if (kv->kind == KV_FULL || kv->kind == KV_OFFLOAD)
        return kv->tokens * row_bytes(s) / c->memory_bytes_per_s;
    if (kv->kind == KV_AHEAD)
        return partial_bytes(s, kv) / c->memory_bytes_per_s + exact_s;
    if (is_keeping(kv)) /* 16-bit keys twice */
        return (kept_bytes(s, kv) * (kv->kind == KV_H2O ? 1.5 : 1)) / c->memory_bytes_per_s +
               1.5 * exact_s;
    double tile = (double)kva_align_up((size_t)rows_each * s->heads / s->kv_heads, TILE_ROWS);
    double flops = 4.0 * tile * s->kv_heads * s->head_dim * kv->tokens * s->layers;
    return most(low_bytes(s, kv) / c->memory_bytes_per_s, flops / c->flops_per_s) + exact_s;
}

struct forecast forecast_step(const struct shape *s, const struct ceilings *c,
                              const struct case_of_kv *kv, uint32_t sequences)
{
    uint32_t rows_each = kv->kind == KV_SPECACHE ? 2 : 1;
    double rows = (double)sequences * rows_each, n = sequences;
    double weights = s->layers * layer_parameters(s), head = head_parameters(s);
    struct forecast f = {0};
    if (kv->kind == KV_AHEAD) /* queries, a layer early */
        weights += (double)(s->layers - WHOLE_LAYERS) * s->heads * s->head_dim * s->hidden;
    double read_s = 2 * weights / c->memory_bytes_per_s;
    double product_s = 2 * rows * weights / c->flops_per_s;
    f.head_s = most(2 * head / c->memory_bytes_per_s, 2 * rows * head / c->flops_per_s);
    f.linear_s = most(read_s, product_s) + f.head_s;
    f.by_flops = product_s > read_s;
    f.attend_s = n * attend_seconds(s, c, kv, rows_each);
    /* Chosen rows come in; a new token's row goes home. */
    f.link_s = n * most(fetched_rows(s, kv), 1) * row_bytes(s) / c->link_bytes_per_s;
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
