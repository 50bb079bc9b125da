/* choose.c - choose, alone and within the fused operator: the k tokens of a KV head with the
 * largest weight.
 *
 * Alone, the k-th largest is found by counting digits, and tokens are written as they come.
 *
 * Within the fused operator candidates are kept as numbers whose order is the order wanted: the
 * weight's bits (weights are not negative), then the complement of the position, since ties go to
 * the lower one. It filters pages by the k-th best weight so far; where what they leave has filled
 * its buffer, all but the best k are dropped. What is chosen does not depend on how often that
 * happens. A token that is left out brings its successor less than the threshold, too.
 */
#include "kernels/cpu/lowbit/plan.h"
#include "kernels/cpu/select/order.h"
#include "kernels/cpu/select/row_cache.h"
#include "kernels/cpu/select/weigh.h"
#include "kernels/cpu/simd/scalar.h"

#include <string.h>

#define KEYS_MAX (2 * KVA_CPU_SELECT_MAX)

/* A token's weight, or what the one before it brings. */
static float at_least(float weight, float brought)
{
    return brought > weight ? brought : weight;
}

/* --- the best so far -------------------------------------------------------------------------- */

struct best {
    uint64_t *keys;
    uint32_t k;
    uint32_t count; /* of keys */
    uint32_t limit; /* keys that make room to be made */
    float threshold;
    uint64_t least; /* what is not above this key is not among the best k */
};

static struct best best_of(uint64_t *keys, uint32_t k)
{
    return (struct best){.keys = keys,
                         .k = k,
                         .limit = kva_min_u32(KEYS_MAX, kva_max_u32(8 * KVA_PAGE_TOKENS, 4 * k))};
}

/* The two zeros are the same weight. */
static uint64_t key_of(float weight, uint32_t position)
{
    return (uint64_t)kva_bits_of_float(weight + 0.0f) << 32 | (uint32_t)~position;
}

static void drop_all_but(struct best *best, uint32_t keep)
{
    if (best->count <= keep)
        return;
    uint64_t least = UINT64_MAX;
    kva_order_top(best->keys, best->count, keep);
    best->count = keep;
    for (uint32_t i = 0; i < keep; i++)
        least = best->keys[i] < least ? best->keys[i] : least;
    best->least = least;
    best->threshold = kva_float_of_bits((uint32_t)(least >> 32));
}

static void add_key(struct best *best, uint64_t key)
{
    if (key <= best->least)
        return;
    best->keys[best->count++] = key;
    if (best->count == best->limit)
        drop_all_but(best, best->k);
}

static void add(struct best *best, float weight, uint32_t position)
{
    add_key(best, key_of(weight, position));
}

/* chosen [k] = the positions of the best. */
static void write_chosen(struct best *best, uint32_t *chosen)
{
    drop_all_but(best, best->k);
    for (uint32_t i = 0; i < best->count; i++)
        best->keys[i] = (uint32_t)~best->keys[i];
    kva_order_sort(best->keys, best->count);
    for (uint32_t i = 0; i < best->k; i++)
        chosen[i] = i < best->count ? (uint32_t)best->keys[i] : KVA_NO_TOKEN;
}

/* --- choose ----------------------------------------------------------------------------------- */

struct choose_job {
    struct kva_device *device;
    const struct kva_choose_args *args;
};

/* What a candidate must weigh at least. */
static float least_weight(const struct kva_device *device, const struct kva_choose_args *args,
                          const struct kva_choose_seq *seq, const float *weights)
{
    float most = device->kernels.sketch_most(weights + seq->first, seq->end - seq->first);
    return (most > 0.0f ? most : 0.0f) * args->share;
}

/* One KV head's candidates. */
struct candidates {
    const float *weights;
    uint32_t first, end;
    float successor;
    float least;     /* what they must weigh */
    uint32_t turned; /* so that the larger number is wanted first: bits that are turned over */
};

static float weight_of(const struct candidates *c, uint32_t position)
{
    const float weight = c->weights[position];
    if (c->successor > 0.0f && position > c->first && weight >= 0.0f)
        return at_least(weight, c->weights[position - 1] * c->successor);
    return weight;
}

/* The two zeros are the same weight. */
static uint32_t order_of(const struct candidates *c, float weight)
{
    return kva_bits_of_float(weight + 0.0f) ^ c->turned;
}

/* A digit of the order, from the highest on. */
static const struct digit {
    uint32_t shift, bits;
} digits[] = {{21, 11}, {10, 11}, {0, 10}};

/* The k-th of the candidates by their order, and how many of those equal to it are wanted; fewer
 * than that: false, all are. Digit by digit, by counting: thousands are not sorted. */
static bool find_last(const struct candidates *c, uint32_t k, uint32_t *ret_last,
                      uint32_t *ret_equal)
{
    uint32_t prefix = 0, left = k;
    for (size_t d = 0; d < KVA_COUNT_OF(digits); d++) {
        const uint32_t shift = digits[d].shift, above = shift + digits[d].bits;
        uint32_t counts[1u << 11] = {0}, digit = (1u << digits[d].bits) - 1;
        for (uint32_t t = c->first; t < c->end; t++) {
            const float weight = weight_of(c, t);
            const uint32_t x = order_of(c, weight);
            if (weight >= c->least && (d == 0 || x >> above == prefix))
                counts[x >> shift & ((1u << digits[d].bits) - 1)]++;
        }
        for (; digit > 0 && counts[digit] < left; digit--)
            left -= counts[digit];
        if (counts[digit] < left)
            return false;
        prefix = prefix << digits[d].bits | digit;
    }
    *ret_last = prefix;
    *ret_equal = left;
    return true;
}

/* chosen [k] = the wanted positions, ascending. */
static void write_wanted(const struct candidates *c, uint32_t k, uint32_t *chosen)
{
    uint32_t count = 0, last = 0, equal = UINT32_MAX;
    if (k > 0 && !find_last(c, k, &last, &equal)) {
        last = 0;
        equal = UINT32_MAX;
    }
    for (uint32_t t = c->first; t < c->end && count < k; t++) {
        const float weight = weight_of(c, t);
        const uint32_t x = order_of(c, weight);
        if (!(weight >= c->least) || x < last || (x == last && equal == 0))
            continue;
        equal -= x == last;
        chosen[count++] = t;
    }
    for (; count < k; count++)
        chosen[count] = KVA_NO_TOKEN;
}

static void choose_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct choose_job *job = opaque;
    const struct kva_choose_args *args = job->args;
    const struct kva_choose_seq *seq = &args->seqs[index / args->kv_heads];
    if (kva_gate_closed(seq->gate))
        return;
    uint32_t kv_head = index % args->kv_heads;
    struct candidates c = {.weights = seq->weights + (size_t)kv_head * seq->stride,
                           .first = seq->first,
                           .end = seq->end,
                           .successor = seq->successor};
    if (args->kind == KVA_CHOOSE_NEAR)
        c.least = least_weight(job->device, args, seq, c.weights);
    if (args->kind == KVA_CHOOSE_LEAST)
        c.turned = 0x7FFFFFFFu;
    write_wanted(&c, seq->k, seq->chosen + (size_t)kv_head * seq->k);
}

void kva_cpu_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    struct choose_job job = {.device = device, .args = args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->seq_count * args->kv_heads, choose_item, &job);
}

/* --- accumulate ------------------------------------------------------------------------------- */

/* One pass over two arrays, of which the caches hold most: not worth a thread. */
void kva_cpu_accumulate(struct kva_device *device, const struct kva_accumulate_args *args)
{
    if (kva_cpu_failed(device))
        return;
    for (uint32_t item = 0; item < args->seq_count * args->kv_heads; item++) {
        const struct kva_accumulate_seq *seq = &args->seqs[item / args->kv_heads];
        const size_t head = item % args->kv_heads;
        float *mass = seq->mass + head * seq->mass_stride;
        const float *weights = seq->weights + head * seq->weights_stride;
        for (uint32_t i = 0; i < seq->count; i++)
            mass[i] += weights[i] >= 0.0f ? weights[i] : 0.0f;
    }
}

/* --- within the fused operator ---------------------------------------------------------------- */

struct scratch {
    uint64_t keys[KEYS_MAX];
    struct kva_weigh_scratch head;
    float found[KVA_PAGE_TOKENS];
    uint32_t tokens[KVA_PAGE_TOKENS];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "selection outgrew the scratch");

/* One KV head of one sequence: candidates are the positions [first, end). */
struct span {
    uint32_t first;
    uint32_t end;
};

/* The rows of the KV head by ascending position, with their weights. */
struct row_walk {
    const struct kva_weigh_head *head;
    uint32_t next;
    uint32_t weighed; /* which KVA_WEIGH_ROWS of them have their weights in the scratch */
};

/* Position of the next one. */
static uint32_t next_row(const struct row_walk *walk)
{
    return kva_row_position(walk->head->rows, walk->head->kv_head, walk->next);
}

/* Whether there is a next one before position `end`. */
static bool row_before(const struct row_walk *walk, uint32_t end)
{
    return walk->next < walk->head->rows->count[walk->head->kv_head] && next_row(walk) < end;
}

/* Its weight. */
static float take_row(struct row_walk *walk)
{
    const struct kva_weigh_head *head = walk->head;
    const uint32_t at = walk->next++, first = at / KVA_WEIGH_ROWS * KVA_WEIGH_ROWS;
    if (walk->weighed != first)
        kva_weigh_rows(head, first,
                       kva_min_u32(KVA_WEIGH_ROWS, head->rows->count[head->kv_head] - first));
    walk->weighed = first;
    return head->scratch->sums[at - first];
}

/* The threshold that rows alone make: pages have less to show then. */
static void start_with_rows(struct row_walk *walk, struct span span, struct best *best)
{
    while (row_before(walk, span.end)) {
        uint32_t position = next_row(walk);
        float weight = take_row(walk);
        if (position >= span.first && weight >= 0.0f)
            add(best, weight, position);
    }
    if (best->count >= best->k) {
        drop_all_but(best, best->k);
        best->least = key_of(best->threshold, UINT32_MAX);
    }
    best->count = 0;
    walk->next = 0;
}

/* Tokens by ascending position; those left out are below the threshold. */
struct token_walk {
    struct best *best;
    struct span span;
    float successor;
    uint32_t next; /* position behind the token before */
    float brought; /* what that one brings it */
};

/* The token behind the one before has not come itself. */
static void bring(struct token_walk *walk)
{
    if (walk->brought > 0.0f && walk->next < walk->span.end)
        add(walk->best, walk->brought, walk->next);
    walk->brought = 0.0f;
}

static void take_token(struct token_walk *walk, float weight, uint32_t position)
{
    if (position < walk->span.first || !(weight >= 0.0f))
        return;
    if (position != walk->next)
        bring(walk);
    add(walk->best, at_least(weight, walk->brought), position);
    walk->next = position + 1;
    walk->brought = weight * walk->successor;
}

static void take_rows(struct row_walk *rows, uint32_t end, struct token_walk *tokens)
{
    while (row_before(rows, end)) {
        uint32_t position = next_row(rows);
        take_token(tokens, take_row(rows), position);
    }
}

/* Pages and rows in one order, so that each token meets the one before it. */
static void add_tokens(const struct kva_weigh_head *head, struct span span, struct best *best,
                       struct scratch *scratch)
{
    struct row_walk rows = {.head = head, .weighed = UINT32_MAX};
    struct token_walk tokens = {.best = best, .span = span, .successor = head->rows->successor};
    uint32_t split = UINT32_MAX;
    start_with_rows(&rows, span, best);
    for (uint32_t page = span.first / KVA_PAGE_TOKENS; page < head->page_count; page++) {
        uint32_t of = page * KVA_PAGE_TOKENS / KVA_ATTEND_SPLIT_TOKENS;
        uint32_t base = page * KVA_PAGE_TOKENS;
        if (of != split)
            kva_weigh_split(head, of);
        split = of;
        uint32_t count =
            kva_weigh_page(head, page, kva_page_tokens_between(page, span.first, span.end),
                           best->threshold, scratch->found, scratch->tokens);
        for (uint32_t i = 0; i < count; i++) {
            take_rows(&rows, base + scratch->tokens[i], &tokens);
            take_token(&tokens, scratch->found[i], base + scratch->tokens[i]);
        }
        take_rows(&rows, base + KVA_PAGE_TOKENS, &tokens);
    }
    bring(&tokens);
}

static void choose_head(const struct kva_lowbit_plan *plan, const struct kva_select_seq *seq,
                        uint32_t kv_head, const float *part, struct scratch *scratch)
{
    const struct kva_attend_select_fetch_args *args = plan->args;
    const struct kva_row_cache *rows = seq->rows;
    uint32_t row = seq->row_first + seq->select_row, group = plan->cut.group;
    const struct kva_weigh_head head = {
        .kernels = &plan->device->kernels,
        .q = (const float *)args->q + (size_t)row * args->q_stride +
             (size_t)kv_head * group * args->head_dim,
        .weights = part,
        .rows = rows,
        .scratch = &scratch->head,
        .pair = (size_t)row * args->heads + (size_t)kv_head * group,
        .kv_head = kv_head,
        .group = group,
        .head_dim = args->head_dim,
        .page_count = seq->page_count,
        .kv_dtype = args->kv_dtype,
        .scale = args->scale,
    };
    const struct kva_partial partials[2] = {args->out,
                                            args->rest ? *args->rest : (struct kva_partial){0}};
    uint32_t visible = kva_lowbit_first_visible(args, seq->position_first + seq->select_row);
    const struct span span = {.first = kva_max_u32(visible, rows->pinned),
                              .end = seq->page_count * KVA_PAGE_TOKENS};
    struct best best = best_of(scratch->keys, rows->k);
    kva_weigh_totals(&head, partials, args->rest ? 2 : 1);
    add_tokens(&head, span, &best, scratch);
    write_chosen(&best, rows->chosen + (size_t)kv_head * rows->k);
}

/* --- acting upon it --------------------------------------------------------------------------- */

/* positions = those of the rows, ascending; returns their number. */
static uint32_t list_rows(const struct kva_row_cache *rows, uint32_t kv_head, uint32_t *positions)
{
    for (uint32_t i = 0; i < rows->count[kv_head]; i++)
        positions[i] = kva_row_position(rows, kv_head, i);
    return rows->count[kv_head];
}

/* Fetch what was chosen, and find out in which splits other tokens have rows than before. */
static void act(const struct kva_lowbit_plan *plan, const struct kva_select_seq *seq,
                uint32_t kv_head, float *part, void *scratch)
{
    const struct kva_row_cache *rows = seq->rows;
    bool *outdated = kva_lowbit_outdated_at(plan, seq, part);
    uint32_t *before = (void *)((unsigned char *)scratch + KVA_CPU_SCRATCH_BYTES / 2);
    uint32_t before_count = list_rows(rows, kv_head, before), i = 0, j = 0;
    kva_cpu_select_fetch_head(rows, seq->now, kv_head, plan->args->head_dim, scratch);
    memset(outdated, 0, kva_attend_splits(seq->page_count) * sizeof *outdated);
    while (i < before_count || j < rows->count[kv_head]) {
        uint32_t was = i < before_count ? before[i] : KVA_NO_TOKEN;
        uint32_t is = j < rows->count[kv_head] ? kva_row_position(rows, kv_head, j) : KVA_NO_TOKEN;
        i += was <= is;
        j += is <= was;
        if (was != is)
            outdated[kva_min_u32(was, is) / KVA_ATTEND_SPLIT_TOKENS] = true;
    }
}

void kva_lowbit_choose(const struct kva_lowbit_plan *plan, const struct kva_select_seq *seq,
                       uint32_t kv_head, float *part, uint32_t worker)
{
    struct scratch *scratch = kva_cpu_scratch(plan->device, worker);
    choose_head(plan, seq, kv_head, part, scratch);
    if (seq->now)
        act(plan, seq, kv_head, part, scratch);
}

static void select_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_lowbit_plan *plan = opaque;
    const struct kva_attend_select_fetch_args *args = plan->args;
    const struct kva_select_seq *seq = args->seqs + plan->seq_first;
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
    kva_pool_run(plan->device->pool, count * plan->args->kv_heads, select_item, plan);
}
