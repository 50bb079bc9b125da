/* weigh.c - weigh: a KV head of a row is an item of work. Low-bit weights are there already,
 * relative to the largest score of their split; rows are multiplied once more. */
#include "kernels/cpu/select/weigh.h"

#include "kernels/cpu/attend/query_task.h"
#include "kernels/cpu/lowbit/plan.h"
#include "kernels/cpu/select/row_cache.h"
#include "kernels/cpu/simd/scalar.h"

/* --- one KV head ------------------------------------------------------------------------------ */

void kva_weigh_totals(const struct kva_weigh_head *head, const struct kva_partial *partials,
                      uint32_t count)
{
    for (uint32_t h = 0; h < head->group; h++) {
        size_t pair = head->pair + h;
        float top = partials[0].m[pair], e = 0;
        for (uint32_t i = 1; i < count; i++)
            top = partials[i].m[pair] > top ? partials[i].m[pair] : top;
        for (uint32_t i = 0; i < count; i++)
            e += count == 1 ? partials[i].e[pair]
                            : partials[i].e[pair] * kva_scalar_exp(partials[i].m[pair] - top);
        head->scratch->top[h] = top;
        head->scratch->inverse[h] = e > 0.0f ? 1.0f / e : 0.0f;
    }
}

/* exp(score - top) of a score, or of the score that weights are relative to. */
static float relative(float score, float top)
{
    return score == -INFINITY ? 0.0f : kva_scalar_exp(score - top);
}

void kva_weigh_rows(const struct kva_weigh_head *head, uint32_t first, uint32_t count)
{
    struct kva_weigh_scratch *scratch = head->scratch;
    for (uint32_t i = 0; i < count; i++) {
        scratch->rows[i] = kva_row_at(head->rows, head->kv_head, first + i, head->head_dim);
        scratch->sums[i] = 0.0f;
    }
    for (uint32_t h = 0; h < head->group; h++) {
        const float *q = head->q + (size_t)h * head->head_dim;
        for (uint32_t i = 0; i < head->head_dim; i++)
            scratch->q[i] = q[i] * head->scale;
        head->kernels->lowbit_score(scratch->scores, scratch->q, scratch->rows, count,
                                    head->head_dim, head->kv_dtype);
        for (uint32_t i = 0; i < count; i++)
            scratch->sums[i] += relative(scratch->scores[i], scratch->top[h]) * scratch->inverse[h];
    }
}

void kva_weigh_split(const struct kva_weigh_head *head, uint32_t split)
{
    struct kva_weigh_scratch *scratch = head->scratch;
    for (uint32_t h = 0; h < head->group; h++) {
        float top = head->weights[kva_lowbit_top_at(head->group, head->page_count, split, h)];
        scratch->factors[h] = relative(top, scratch->top[h]) * scratch->inverse[h];
    }
}

uint32_t kva_weigh_page(const struct kva_weigh_head *head, uint32_t page, uint64_t candidates,
                        float threshold, float *found, uint32_t *tokens)
{
    uint32_t base = page * KVA_PAGE_TOKENS;
    uint64_t present;
    kva_rows_present(head->rows, head->kv_head, page, 1, &present);
    struct kva_cpu_lowbit_filter filter = {
        .weights = head->weights +
                   kva_lowbit_weight_at(head->group, base / KVA_ATTEND_SPLIT_TOKENS, 0) +
                   base % KVA_ATTEND_SPLIT_TOKENS,
        .factors = head->scratch->factors,
        .stride = KVA_ATTEND_SPLIT_TOKENS,
        .heads = head->group,
        .threshold = threshold,
        .candidates = present & candidates,
        .found = found,
        .tokens = tokens,
    };
    return head->kernels->lowbit_filter(&filter);
}

/* --- the operator ----------------------------------------------------------------------------- */

struct scratch {
    struct kva_weigh_scratch head;
    float found[KVA_PAGE_TOKENS];
    uint32_t tokens[KVA_PAGE_TOKENS];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "weigh outgrew the scratch");

struct weigh_job {
    struct kva_device *device;
    const struct kva_weigh_args *args;
};

static void write_pages(const struct kva_weigh_head *head, const struct kva_weigh_seq *seq,
                        struct scratch *scratch, float *weights)
{
    uint32_t end = seq->page_count * KVA_PAGE_TOKENS, split = UINT32_MAX;
    for (uint32_t page = seq->first / KVA_PAGE_TOKENS; page < seq->page_count; page++) {
        uint32_t of = page * KVA_PAGE_TOKENS / KVA_ATTEND_SPLIT_TOKENS;
        if (of != split)
            kva_weigh_split(head, of);
        split = of;
        uint32_t count = kva_weigh_page(head, page, kva_page_tokens_between(page, seq->first, end),
                                        0.0f, scratch->found, scratch->tokens);
        for (uint32_t i = 0; i < count; i++)
            weights[page * KVA_PAGE_TOKENS + scratch->tokens[i]] = scratch->found[i];
    }
}

static void write_rows(const struct kva_weigh_head *head, const struct kva_weigh_seq *seq,
                       float *weights)
{
    uint32_t end = seq->page_count * KVA_PAGE_TOKENS, rows = seq->rows->count[head->kv_head];
    for (uint32_t first = 0; first < rows; first += KVA_WEIGH_ROWS) {
        uint32_t count = kva_min_u32(KVA_WEIGH_ROWS, rows - first);
        kva_weigh_rows(head, first, count);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t position = kva_row_position(seq->rows, head->kv_head, first + i);
            if (position >= seq->first && position < end && head->scratch->sums[i] >= 0.0f)
                weights[position] = head->scratch->sums[i];
        }
    }
}

static void weigh_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct weigh_job *job = opaque;
    const struct kva_weigh_args *args = job->args;
    const struct kva_weigh_seq *seq = &args->seqs[index / args->kv_heads];
    if (kva_gate_closed(seq->gate))
        return;
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    uint32_t kv_head = index % args->kv_heads, group = args->heads / args->kv_heads;
    size_t tokens = (size_t)seq->page_count * KVA_PAGE_TOKENS;
    size_t part = kva_attend_scores_bytes(group, seq->page_count) / sizeof(float);
    const struct kva_weigh_head head = {
        .kernels = &job->device->kernels,
        .q = (const float *)args->q + (size_t)seq->row * args->q_stride +
             (size_t)kv_head * group * args->head_dim,
        .weights = seq->scores ? seq->scores + kv_head * part : NULL,
        .rows = seq->rows,
        .scratch = &scratch->head,
        .pair = (size_t)seq->row * args->heads + (size_t)kv_head * group,
        .kv_head = kv_head,
        .group = group,
        .head_dim = args->head_dim,
        .page_count = seq->page_count,
        .kv_dtype = args->kv_dtype,
        .scale = args->scale,
    };
    float *weights = seq->weights + kv_head * tokens;
    for (size_t t = 0; t < tokens; t++)
        weights[t] = -1.0f;
    kva_weigh_totals(&head, args->partials, args->partial_count);
    if (seq->scores)
        write_pages(&head, seq, scratch, weights);
    if (seq->rows)
        write_rows(&head, seq, weights);
}

void kva_cpu_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    struct weigh_job job = {.device = device, .args = args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->seq_count * args->kv_heads, weigh_item, &job);
}
