/* ref.c - reference kernels of attention over one split, and of the fold of splits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/scalar.h"

static bool sees(const struct kva_cpu_attend_split *split, uint32_t query, uint32_t slot)
{
    return split->slot_first[query] <= slot && slot < split->slot_end[query];
}

static float *scores_of(const struct kva_cpu_attend_split *split, uint32_t query)
{
    return split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
}

static float dot(const float *q, const float *k, uint32_t count)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        sum += q[i] * k[i];
    return sum;
}

/* scores[query, slot] = q.k, -inf where it sees nothing. */
static void score(const struct kva_cpu_attend_split *split)
{
    uint32_t dim = split->head_dim;
    for (uint32_t slot = 0; slot < KVA_ATTEND_SPLIT_TOKENS; slot++) {
        const void *token = split->tokens[slot];
        if (token)
            kva_f32_array(token, split->kv_dtype, dim, split->k);
        for (uint32_t j = 0; j < split->q_count; j++) {
            bool seen = token && sees(split, j, slot);
            scores_of(split, j)[slot] =
                seen ? dot(split->q + (size_t)j * dim, split->k, dim) : -INFINITY;
        }
    }
}

/* m and e of a query; its scores become exp(score - m). */
static void softmax_split(const struct kva_cpu_attend_split *split, uint32_t query)
{
    float *scores = scores_of(split, query);
    float m = -INFINITY, e = 0.0f;
    kva_cpu_keep_scores(split, query, 0, KVA_ATTEND_SPLIT_TOKENS);
    for (uint32_t slot = 0; slot < KVA_ATTEND_SPLIT_TOKENS; slot++)
        m = scores[slot] > m || scores[slot] != scores[slot] ? scores[slot] : m;
    for (uint32_t slot = 0; slot < KVA_ATTEND_SPLIT_TOKENS; slot++) {
        scores[slot] = m == -INFINITY ? 0.0f : kva_scalar_exp(scores[slot] - m);
        e += scores[slot];
    }
    split->m[query] = m;
    split->e[query] = e;
}

void kva_attend_split_ref(const struct kva_cpu_attend_split *split)
{
    uint32_t dim = split->head_dim;
    score(split);
    for (uint32_t j = 0; j < split->q_count; j++)
        softmax_split(split, j);
    memset(split->a, 0, (size_t)split->q_count * dim * sizeof *split->a);
    for (uint32_t slot = 0; slot < KVA_ATTEND_SPLIT_TOKENS; slot++) {
        if (!split->tokens[slot])
            continue;
        kva_f32_array((const uint16_t *)split->tokens[slot] + dim, split->kv_dtype, dim, split->v);
        for (uint32_t j = 0; j < split->q_count; j++) {
            if (!sees(split, j, slot))
                continue;
            float p = scores_of(split, j)[slot];
            float *a = split->a + (size_t)j * dim;
            for (uint32_t i = 0; i < dim; i++)
                a[i] += p * split->v[i];
        }
    }
}

void kva_attend_fold_ref(float *a, float *m, float *e, const float *split_a, float split_m,
                         float split_e, uint32_t head_dim)
{
    if (split_m == -INFINITY)
        return;
    float top = *m > split_m ? *m : split_m;
    float keep = kva_scalar_exp(*m - top), add = kva_scalar_exp(split_m - top);
    for (uint32_t i = 0; i < head_dim; i++)
        a[i] = a[i] * keep + split_a[i] * add;
    *e = *e * keep + split_e * add;
    *m = top;
}
