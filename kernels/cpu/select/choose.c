/* Driver of selection: the k tokens of a KV head with the largest mean weight.
 *
 * Candidates are kept as numbers whose order is the order wanted: the weight's bits (weights are
 * not negative), then the complement of the position, since ties go to the lower one. Pages are
 * filtered by the k-th best weight so far; where what they leave has filled its buffer, all but the
 * best k are dropped. What is chosen does not depend on how often that happens. */
#include "kernels/cpu/lowbit/plan.h"
#include "kernels/cpu/select/order.h"
#include "kernels/cpu/simd/scalar.h"

#include <string.h>

#define HEADS_MAX KVA_CPU_SELECT_HEADS_MAX
#define HOT_PIECE 256u

#define KEYS_MAX  (2 * KVA_CPU_SELECT_MAX)

struct scratch {
    uint64_t keys[KEYS_MAX];
    float top[HEADS_MAX];     /* largest score of each head over everything */
    float inverse[HEADS_MAX]; /* 1 / the sum of exponentials, relative to it */
    float factors[HEADS_MAX];
    float q[KVA_CPU_HEAD_DIM_MAX];
    const void *rows[HOT_PIECE];
    float scores[HOT_PIECE];
    float sums[HOT_PIECE];
    float found[KVA_PAGE_TOKENS];
    uint32_t tokens[KVA_PAGE_TOKENS];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "selection outgrew the scratch");

/* One KV head of one sequence. */
struct choice {
    const struct kva_lowbit_plan *plan;
    const struct kva_lowbit_seq *seq;
    const float *weights; /* of the KV head */
    struct scratch *scratch;
    uint32_t kv_head;
    uint32_t row;
    uint32_t first; /* candidates are the positions [first, end) */
    uint32_t end;
    uint32_t count; /* of keys */
    uint32_t limit; /* keys that make room to be made */
    float threshold;
    uint64_t least; /* what is not above this key is not among the best k */
};

static uint64_t key_of(float weight, uint32_t position)
{
    return (uint64_t)kva_bits_of_float(weight) << 32 | (uint32_t)~position;
}

static void drop_all_but(struct choice *choice, uint32_t keep)
{
    if (choice->count <= keep)
        return;
    uint64_t *keys = choice->scratch->keys, least = UINT64_MAX;
    kva_order_top(keys, choice->count, keep);
    choice->count = keep;
    for (uint32_t i = 0; i < keep; i++)
        least = keys[i] < least ? keys[i] : least;
    choice->least = least;
    choice->threshold = kva_float_of_bits((uint32_t)(least >> 32));
}

static void add(struct choice *choice, float weight, uint32_t position)
{
    uint64_t key = key_of(weight, position);
    if (key <= choice->least)
        return;
    choice->scratch->keys[choice->count++] = key;
    if (choice->count == choice->limit)
        drop_all_but(choice, choice->seq->hot->k);
}

/* What the scores of each head are relative to. */
static void find_totals(struct choice *choice)
{
    const struct kva_attend_lowbit_args *args = choice->plan->args;
    struct scratch *scratch = choice->scratch;
    for (uint32_t h = 0; h < choice->plan->cut.group; h++) {
        size_t pair = (size_t)choice->row * args->heads +
                      (size_t)choice->kv_head * choice->plan->cut.group + h;
        float m = args->out.m[pair], e = args->out.e[pair];
        if (args->rest) {
            float rest_m = args->rest->m[pair], top = rest_m > m ? rest_m : m;
            e = e * kva_scalar_exp(m - top) + args->rest->e[pair] * kva_scalar_exp(rest_m - top);
            m = top;
        }
        scratch->top[h] = m;
        scratch->inverse[h] = e > 0.0f ? 1.0f / e : 0.0f;
    }
}

/* exp(score - top) of a score, or of the score that weights are relative to. */
static float relative(float score, float top)
{
    return score == -INFINITY ? 0.0f : kva_scalar_exp(score - top);
}

/* --- hot rows --------------------------------------------------------------------------------- */

/* Hot rows [first, first + count) in ascending position, by their own 16 bits. */
static void add_hot(struct choice *choice, uint32_t first, uint32_t count)
{
    const struct kva_attend_lowbit_args *args = choice->plan->args;
    struct scratch *scratch = choice->scratch;
    for (uint32_t i = 0; i < count; i++) {
        scratch->rows[i] = kva_lowbit_hot_row(args, choice->seq->hot, choice->kv_head, first + i);
        scratch->sums[i] = 0.0f;
    }
    for (uint32_t h = 0; h < choice->plan->cut.group; h++) {
        size_t head = (size_t)choice->kv_head * choice->plan->cut.group + h;
        const float *q =
            (const float *)args->q + (size_t)choice->row * args->q_stride + head * args->head_dim;
        for (uint32_t i = 0; i < args->head_dim; i++)
            scratch->q[i] = q[i] * args->scale;
        choice->plan->device->kernels.lowbit_score(scratch->scores, scratch->q, scratch->rows,
                                                   count, args->head_dim, args->kv_dtype);
        for (uint32_t i = 0; i < count; i++)
            scratch->sums[i] += relative(scratch->scores[i], scratch->top[h]) * scratch->inverse[h];
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = kva_lowbit_hot_position(choice->seq->hot, choice->kv_head, first + i);
        if (position >= choice->first && position < choice->end && scratch->sums[i] >= 0.0f)
            add(choice, scratch->sums[i], position);
    }
}

/* --- low-bit pages ---------------------------------------------------------------------------- */

/* How much each head's weights in a split count. */
static void find_factors(struct choice *choice, uint32_t split)
{
    struct scratch *scratch = choice->scratch;
    for (uint32_t h = 0; h < choice->plan->cut.group; h++) {
        float top = choice->weights[kva_lowbit_top_at(choice->plan, choice->seq, split, h)];
        scratch->factors[h] = relative(top, scratch->top[h]) * scratch->inverse[h];
    }
}

/* Bits of the page's tokens that lie in [first, end). */
static uint64_t tokens_between(uint32_t base, uint32_t first, uint32_t end)
{
    uint64_t from = first <= base                     ? UINT64_MAX
                    : first >= base + KVA_PAGE_TOKENS ? 0
                                                      : UINT64_MAX << (first - base);
    uint64_t to = end >= base + KVA_PAGE_TOKENS ? UINT64_MAX
                  : end <= base                 ? 0
                                                : ~(UINT64_MAX << (end - base));
    return from & to;
}

static void add_page(struct choice *choice, uint32_t page)
{
    const struct kva_lowbit_plan *plan = choice->plan;
    struct scratch *scratch = choice->scratch;
    uint32_t base = page * KVA_PAGE_TOKENS;
    uint64_t present;
    kva_lowbit_present(choice->seq, choice->kv_head, page, 1, &present);
    struct kva_cpu_lowbit_filter filter = {
        .weights = choice->weights + kva_lowbit_weight_at(plan, base / KVA_ATTEND_SPLIT_TOKENS, 0) +
                   base % KVA_ATTEND_SPLIT_TOKENS,
        .factors = scratch->factors,
        .stride = KVA_ATTEND_SPLIT_TOKENS,
        .heads = plan->cut.group,
        .threshold = choice->threshold,
        .candidates = present & tokens_between(base, choice->first, choice->end),
        .found = scratch->found,
        .tokens = scratch->tokens,
    };
    uint32_t count = plan->device->kernels.lowbit_filter(&filter);
    for (uint32_t i = 0; i < count; i++)
        add(choice, scratch->found[i], base + scratch->tokens[i]);
}

/* --- one KV head ------------------------------------------------------------------------------ */

static void write_chosen(struct choice *choice)
{
    const struct kva_hot *hot = choice->seq->hot;
    uint64_t *keys = choice->scratch->keys;
    uint32_t *chosen = hot->chosen + (size_t)choice->kv_head * hot->k;
    drop_all_but(choice, hot->k);
    for (uint32_t i = 0; i < choice->count; i++)
        keys[i] = (uint32_t)~keys[i];
    kva_order_sort(keys, choice->count);
    for (uint32_t i = 0; i < hot->k; i++)
        chosen[i] = i < choice->count ? (uint32_t)keys[i] : KVA_NO_TOKEN;
}

static void choose(struct choice *choice)
{
    const struct kva_attend_lowbit_args *args = choice->plan->args;
    const struct kva_hot *hot = choice->seq->hot;
    uint32_t position = choice->seq->position_first + choice->seq->select_row;
    choice->row = choice->seq->row_first + choice->seq->select_row;
    choice->first = kva_max_u32(kva_lowbit_first_visible(args, position), hot->pinned);
    choice->end = choice->seq->page_count * KVA_PAGE_TOKENS;
    choice->limit = kva_min_u32(KEYS_MAX, kva_max_u32(8 * KVA_PAGE_TOKENS, 4 * hot->k));
    find_totals(choice);
    for (uint32_t i = 0; i < hot->count[choice->kv_head]; i += HOT_PIECE)
        add_hot(choice, i, kva_min_u32(HOT_PIECE, hot->count[choice->kv_head] - i));
    uint32_t split = UINT32_MAX;
    for (uint32_t page = choice->first / KVA_PAGE_TOKENS; page < choice->seq->page_count; page++) {
        uint32_t of = page * KVA_PAGE_TOKENS / KVA_ATTEND_SPLIT_TOKENS;
        if (of != split)
            find_factors(choice, of);
        split = of;
        add_page(choice, page);
    }
    write_chosen(choice);
}

/* --- acting upon it --------------------------------------------------------------------------- */

/* positions = those of the hot rows, ascending; returns their number. */
static uint32_t list_hot(const struct kva_hot *hot, uint32_t kv_head, uint32_t *positions)
{
    for (uint32_t i = 0; i < hot->count[kv_head]; i++)
        positions[i] = kva_lowbit_hot_position(hot, kv_head, i);
    return hot->count[kv_head];
}

/* Fetch what was chosen, and find out in which splits other tokens are hot than before. */
static void act(const struct kva_lowbit_plan *plan, const struct kva_lowbit_seq *seq,
                uint32_t kv_head, float *part, void *scratch)
{
    const struct kva_hot *hot = seq->hot;
    bool *outdated = kva_lowbit_outdated_at(plan, seq, part);
    uint32_t *before = (void *)((unsigned char *)scratch + KVA_CPU_SCRATCH_BYTES / 2);
    uint32_t before_count = list_hot(hot, kv_head, before), i = 0, j = 0;
    kva_cpu_hot_act(hot, seq->now, kv_head, plan->args->head_dim, scratch);
    memset(outdated, 0, kva_lowbit_splits(seq) * sizeof *outdated);
    while (i < before_count || j < hot->count[kv_head]) {
        uint32_t was = i < before_count ? before[i] : KVA_NO_TOKEN;
        uint32_t is =
            j < hot->count[kv_head] ? kva_lowbit_hot_position(hot, kv_head, j) : KVA_NO_TOKEN;
        i += was <= is;
        j += is <= was;
        if (was != is)
            outdated[kva_min_u32(was, is) / KVA_ATTEND_SPLIT_TOKENS] = true;
    }
}

void kva_lowbit_choose(const struct kva_lowbit_plan *plan, const struct kva_lowbit_seq *seq,
                       uint32_t kv_head, float *part, uint32_t worker)
{
    struct choice choice = {.plan = plan,
                            .seq = seq,
                            .weights = part,
                            .scratch = kva_cpu_scratch(plan->device, worker),
                            .kv_head = kv_head};
    choose(&choice);
    if (seq->now)
        act(plan, seq, kv_head, part, choice.scratch);
}

static void choose_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_lowbit_plan *plan = opaque;
    const struct kva_attend_lowbit_args *args = plan->args;
    const struct kva_lowbit_seq *seq = args->seqs + plan->seq_first;
    float *weights = args->scratch;
    uint32_t kv_head = index % args->kv_heads;
    for (uint32_t left = index / args->kv_heads; left > 0 || !kva_lowbit_selects(seq); seq++) {
        left -= kva_lowbit_selects(seq);
        weights += kva_lowbit_weight_floats(args, seq);
    }
    kva_lowbit_choose(plan, seq, kv_head, weights + kv_head * kva_lowbit_part_floats(args, seq),
                      worker);
}

void kva_lowbit_select(struct kva_lowbit_plan *plan)
{
    uint32_t count = 0;
    for (uint32_t i = plan->seq_first; i < plan->seq_end; i++)
        count += kva_lowbit_selects(&plan->args->seqs[i]);
    kva_pool_run(plan->device->pool, count * plan->args->kv_heads, choose_item, plan);
}
