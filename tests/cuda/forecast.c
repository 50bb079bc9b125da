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

/* --- a step's own work ------------------------------------------------------------------------- */

/* Cycles of a multiprocessor that a page of a KV head of 128 takes, of issue or of the pipe for
 * logic, whichever are more, by bits and for 8 or 16 pairs of a row and a head: nothing is kept of
 * scores, or peaks; of 4 bits, weights (docs/results/gpu.md). */
static double page_cycles(enum kv_kind kind, uint32_t bits, bool many)
{
    static const double cycles[][2][2] = {
        {{196.5, 254}, {244.5, 281}}, {{199.5, 259}, {247.5, 286}}, {{295, 379}}};
    return bits > 2 ? cycles[2][0][many] : cycles[kind != KV_KIVI][bits - 1][many];
}

static double issue_seconds(const struct shape *s, const struct ceilings *c,
                            const struct case_of_kv *kv, uint32_t rows_each)
{
    const bool keeps = kv->kind == KV_QHITTER;
    if (c->cycles_per_s == 0 || (kv->kind != KV_KIVI && !is_choosing(kv) && !keeps))
        return 0;
    const double count = (keeps ? kept_pages(kv) : away(kv)) * s->kv_heads * s->layers;
    return count * page_cycles(kv->kind, kv->bits, rows_each * s->heads / s->kv_heads > 8) /
           c->cycles_per_s;
}

/* Pages of a KV head whose keys are looked at once more when 64 rows are chosen: as many as of
 * Qwen2.5 Coder 1.5B, of 499 (docs/results/gpu.md). */
#define LOOKED_AT 28.0

/* What a sequence's choice takes through memory: peaks of pages, written and read, and keys; of
 * infinigen fp32 scores of heads and of KV heads; of q-hitter 16-bit weights and the mass. */
static double score_bytes(const struct shape *s, const struct case_of_kv *kv)
{
    const double tokens = away(kv) * KVA_PAGE_TOKENS;
    if (is_choosing(kv)) {
        const struct kva_lowbit_format format = {.bits = kv->bits, .group = 64};
        const double keys = kva_lowbit_layout_of(format, s->head_dim).v_scale +
                            kv->bits * s->head_dim * KVA_PAGE_TOKENS / 8.0;
        const double looked = LOOKED_AT < away(kv) ? LOOKED_AT : away(kv);
        return s->layers * (away(kv) * s->heads * 8 + looked * s->kv_heads * keys);
    }
    if (kv->kind == KV_AHEAD)
        return tokens * (s->layers - WHOLE_LAYERS) * 8.0 * (s->heads + s->kv_heads);
    if (kv->kind == KV_QHITTER)
        return kept_pages(kv) * KVA_PAGE_TOKENS * s->layers * (s->heads * 4.0 + s->kv_heads * 16.0);
    return 0;
}

/* Partial results of splits, written and read: 1,024 low-bit tokens each, or 256 of 16 bits. */
static double fold_bytes(const struct shape *s, const struct case_of_kv *kv, uint32_t rows_each)
{
    const bool low = kv->kind == KV_KIVI || is_choosing(kv) || kv->kind == KV_QHITTER;
    double tokens = kv->kind == KV_H2O || kv->kind == KV_QHITTER ? kept_pages(kv) * KVA_PAGE_TOKENS
                                                                 : kv->tokens;
    if (kv->kind == KV_AHEAD)
        tokens = exact_tokens(s, kv);
    return tokens / (low ? 1024 : KVA_ATTEND_SPLIT_TOKENS) * rows_each * s->heads *
           (s->head_dim + 2.0) * 8 * s->layers;
}

/* Kernels of a layer that come one behind the other: counted in the simulation (docs/results/gpu.md).
 * Of few rows gate, up and the activation are one. */
#define FEW_ROWS    16u
#define FEW_KERNELS 2u /* fewer */

static double kernels_of(enum kv_kind kind, uint32_t rows)
{
    static const double kernels[] = {
        [KV_FULL] = 13,    [KV_KIVI] = 14,  [KV_SPECACHE] = 14, [KV_PREVIOUS] = 20,
        [KV_OFFLOAD] = 24, [KV_AHEAD] = 22, [KV_H2O] = 14,      [KV_QHITTER] = 18};
    return kernels[kind] - (rows <= FEW_ROWS ? FEW_KERNELS : 0);
}

/* A kernel of a graph, and a plan of the first layer: measured on an H200. */
#define KERNEL_S   1.3e-6
#define PLAN_S     70e-6
#define PLAN_SEQ_S 1e-6

static void add_own_work(const struct shape *s, const struct ceilings *c,
                         const struct case_of_kv *kv, uint32_t sequences, uint32_t rows_each,
                         struct forecast *f)
{
    const double issue_s = sequences * issue_seconds(s, c, kv, rows_each);
    f->issue_s = most(issue_s - f->attend_s, 0);
    f->scores_s = sequences * score_bytes(s, kv) / c->memory_bytes_per_s;
    f->folds_s = sequences * fold_bytes(s, kv, rows_each) / c->memory_bytes_per_s;
    f->launches_s = s->layers * kernels_of(kv->kind, sequences * rows_each) * KERNEL_S;
    f->plan_s = PLAN_S + sequences * PLAN_SEQ_S;
    f->bound_s = most(f->linear_s + f->attend_s + f->issue_s + f->scores_s + f->folds_s +
                          f->launches_s + f->plan_s,
                      f->link_s);
}

const char *forecast_binds(const struct forecast *f)
{
    const struct {
        double seconds;
        const char *name;
    } parts[] = {{f->linear_s, f->by_flops ? "products" : "weights"},
                 {f->attend_s + f->issue_s, f->issue_s > 0 ? "KV, instructions" : "KV, bytes"},
                 {f->scores_s, "scores"},
                 {f->folds_s, "folds"},
                 {f->launches_s, "launches"},
                 {f->plan_s, "planning"}};
    size_t best = 0;
    for (size_t i = 1; i < sizeof parts / sizeof *parts; i++)
        best = parts[i].seconds > parts[best].seconds ? i : best;
    return f->link_s >= f->bound_s ? "link" : parts[best].name;
}

/* --- a step ----------------------------------------------------------------------------------- */

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
    add_own_work(s, c, kv, sequences, rows_each, &f);
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
