/* Deliberately broken operators that choose, keep and fetch rows or read logits; broken.c says how
 * they are used. */
#include "tests/kernels/broken.h"
#include "tests/kernels/by_scores.h"

#include <string.h>

#define SEQS_MAX 4

static const struct kva_ops *good;

static void choose_all_near(struct kva_device *device, const struct kva_choose_args *args)
{
    struct kva_choose_args wrong = *args;
    if (args->kind == KVA_CHOOSE_NEAR)
        wrong.kind = KVA_CHOOSE_MOST; /* however far they are */
    good->choose(device, &wrong);
}

static void choose_one_less(struct kva_device *device, const struct kva_choose_args *args)
{
    good->choose(device, args);
    args->seqs[0].chosen[args->seqs[0].k - 1] = KVA_NO_TOKEN;
}

static void choose_each_alone(struct kva_device *device, const struct kva_choose_args *args)
{
    struct kva_choose_args wrong = *args;
    struct kva_choose_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        seqs[i].successor = 0; /* nothing comes from the one before */
    }
    wrong.seqs = seqs;
    good->choose(device, &wrong);
}

static void once_attend(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    by_scores_attend(device, good, args);
}

/* Weigh and choose by operators that may be broken. */
static void once(struct kva_device *device, const struct kva_weigh_choose_args *args,
                 void (*weigh)(struct kva_device *, const struct kva_weigh_args *),
                 void (*choose)(struct kva_device *, const struct kva_choose_args *))
{
    struct kva_ops ops = *good;
    ops.weigh = weigh ? weigh : good->weigh;
    ops.choose = choose ? choose : good->choose;
    by_scores_choose(device, &ops, args);
}

static void once_each_alone(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    once(device, args, NULL, choose_each_alone);
}

static void once_one_less(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    once(device, args, NULL, choose_one_less);
}

static void weigh_by_pages(struct kva_device *device, const struct kva_weigh_args *args)
{
    struct kva_weigh_args wrong = *args;
    struct kva_weigh_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < wrong.seq_count; i++) {
        seqs[i] = wrong.seqs[i];
        seqs[i].rows = NULL; /* their tokens have the weights of the pages */
    }
    wrong.seqs = seqs;
    good->weigh(device, &wrong);
}

static void once_by_pages(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    once(device, args, weigh_by_pages, NULL);
}

/* Attention that keeps peaks is another. */
static void once_other_bits(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    by_scores_attend(device, good, args);
    if (args->seqs[0].peaks && args->out.e)
        args->out.e[(size_t)args->seqs[0].row_first * args->heads] *= 2;
}

static void once_right(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    once(device, args, NULL, NULL);
}

static void accumulate_all(struct kva_device *device, const struct kva_accumulate_args *args)
{
    /* What is no candidate is added, too. */
    (void)device;
    for (uint32_t item = 0; item < args->seq_count * args->kv_heads; item++) {
        const struct kva_accumulate_seq *seq = &args->seqs[item / args->kv_heads];
        const size_t head = item % args->kv_heads;
        for (uint32_t i = 0; i < seq->count; i++)
            seq->mass[head * seq->mass_stride + i] += seq->weights[head * seq->weights_stride + i];
    }
}

static void assign_anew(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    struct kva_assign_slots_args wrong = *args;
    wrong.keep = false; /* nothing stays */
    good->assign_slots(device, &wrong);
}

static void assign_all_attend(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    struct kva_assign_slots_args wrong = *args;
    wrong.mode = KVA_ROWS_RESIDENT;
    good->assign_slots(device, &wrong);
}

static void assign_newest(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    /* Slots are given away as if all were wanted at the same time. */
    for (uint32_t i = 0; i < args->count; i++) {
        const struct kva_row_cache *cache = args->caches[i];
        for (size_t j = 0; j < (size_t)args->kv_heads * cache->slots; j++)
            cache->used[j] = cache->tokens[j] == KVA_NO_TOKEN ? 0 : 1;
    }
    good->assign_slots(device, args);
}

static void fetch_no_offset(struct kva_device *device, const struct kva_fetch_rows_args *args)
{
    struct kva_fetch_rows_args wrong = *args;
    wrong.page_offset_bytes = 0;
    good->fetch_rows(device, &wrong);
}

static void fetch_one_less(struct kva_device *device, const struct kva_fetch_rows_args *args)
{
    struct kva_fetch_rows_args wrong = *args;
    wrong.count--; /* the last sequence gets nothing */
    good->fetch_rows(device, &wrong);
}

static void cosine_not_kept(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    float before = *(float *)args->before[0];
    good->query_cosine(device, args);
    *(float *)args->before[0] = before;
}

static void cosine_next_row(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    struct kva_query_cosine_args wrong = *args;
    wrong.rows = args->rows + 1;
    wrong.count--;
    args->cosine[args->count - 1] = 0;
    good->query_cosine(device, &wrong);
}

static void cosine_all_open(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    good->query_cosine(device, args);
    for (uint32_t i = 0; i < args->count; i++)
        args->gates[i] = 1;
}

static void shortlist_no_tail_sum(struct kva_device *device, const struct kva_shortlist_args *args)
{
    good->shortlist(device, args);
    for (uint32_t i = 0; i < args->count; i++)
        args->out[i].tail_sum *= 1 - 1e-9;
}

static void shortlist_rank_before(struct kva_device *device, const struct kva_shortlist_args *args)
{
    good->shortlist(device, args);
    for (uint32_t i = 0; i < args->count; i++)
        args->out[i].rank -= args->out[i].rank > 0; /* the best is 0 */
}

/* weigh_choose, and what keeps peaks for it. */
#define BREAKS_ONCE(name, attends, chooses)                                                        \
    {                                                                                              \
#name, OP_WEIGH_CHOOSE, (struct kva_ops)                                                   \
        {                                                                                          \
            .attend_lowbit = attends, .weigh_choose = chooses                                      \
        }                                                                                          \
    }

static const struct broken list[] = {
    BREAKS(choose_all_near, OP_CHOOSE, choose),
    BREAKS(choose_one_less, OP_CHOOSE, choose),
    BREAKS(choose_each_alone, OP_CHOOSE, choose),
    BREAKS_ONCE(once_each_alone, once_attend, once_each_alone),
    BREAKS_ONCE(once_one_less, once_attend, once_one_less),
    BREAKS_ONCE(once_by_pages, once_attend, once_by_pages),
    BREAKS_ONCE(once_other_bits, once_other_bits, once_right),
    BREAKS(accumulate_all, OP_ACCUMULATE, accumulate),
    BREAKS(assign_anew, OP_ASSIGN_SLOTS, assign_slots),
    BREAKS(assign_all_attend, OP_ASSIGN_SLOTS, assign_slots),
    BREAKS(assign_newest, OP_ASSIGN_SLOTS, assign_slots),
    BREAKS(fetch_no_offset, OP_FETCH_ROWS, fetch_rows),
    BREAKS(fetch_one_less, OP_FETCH_ROWS, fetch_rows),
    BREAKS(cosine_not_kept, OP_QUERY_COSINE, query_cosine),
    BREAKS(cosine_next_row, OP_QUERY_COSINE, query_cosine),
    BREAKS(cosine_all_open, OP_QUERY_COSINE, query_cosine),
    BREAKS(shortlist_no_tail_sum, OP_SHORTLIST, shortlist),
    BREAKS(shortlist_rank_before, OP_SHORTLIST, shortlist),
};

const struct broken *broken_select(const struct kva_ops *sound, size_t *ret_count)
{
    good = sound;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
