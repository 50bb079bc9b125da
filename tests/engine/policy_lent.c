/* policy_lent.c - a part that has no memory: it hands over what came of attention elsewhere. */
#include "tests/engine/policy_lent.h"

#include "tests/cmocka.h"

#include "engine/kv/part.h"
#include "engine/model_engine.h"

#include <stdlib.h>

enum { PARTIALS = 2, SPLIT_PAGES = KVA_ATTEND_SPLIT_TOKENS / KVA_PAGE_TOKENS };

/* A result [rows_max, ..] as it is computed, and as it arrives, by the copy queue. */
struct exchange {
    struct kva_partial computed, arrived;
    struct kva_event *computed_event, *arrived_event;
};

static struct {
    struct kva_device *device;
    const struct kva_model *model;
    enum lent_how how;
    size_t pairs;
    struct exchange exchanges[PARTIALS];
    uint64_t count;
} lent;

/* --- memory ---------------------------------------------------------------------------------- */

static struct kva_partial alloc_partial(void)
{
    const size_t bytes = lent.pairs * sizeof(float);
    struct kva_partial partial = {.a = calloc(lent.model->config.head_dim, bytes),
                                  .m = calloc(1, bytes),
                                  .e = calloc(1, bytes)};
    assert_true(partial.a && partial.m && partial.e);
    return partial;
}

static void free_partial(const struct kva_partial *partial)
{
    free(partial->a);
    free(partial->m);
    free(partial->e);
}

void policy_lent_open(struct kva_device *device, const struct kva_model *model, enum lent_how how,
                      uint32_t rows_max)
{
    struct kva_err err;
    lent.device = device;
    lent.model = model;
    lent.how = how;
    lent.count = 0;
    lent.pairs = (size_t)rows_max * model->config.heads;
    for (int i = 0; i < PARTIALS; i++) {
        struct exchange *x = &lent.exchanges[i];
        *x = (struct exchange){.computed = alloc_partial(), .arrived = alloc_partial()};
        assert_int_equal(kva_event_create(device, &x->computed_event, &err), KVA_OK);
        assert_int_equal(kva_event_create(device, &x->arrived_event, &err), KVA_OK);
    }
}

void policy_lent_close(void)
{
    kva_device_sync(lent.device, KVA_QUEUE_COPY);
    for (int i = 0; i < PARTIALS; i++) {
        free_partial(&lent.exchanges[i].computed);
        free_partial(&lent.exchanges[i].arrived);
        kva_event_destroy(lent.exchanges[i].computed_event);
        kva_event_destroy(lent.exchanges[i].arrived_event);
    }
}

uint64_t policy_lent_count(void)
{
    return lent.count;
}

/* Of rows from `row_first` on. */
static struct kva_partial partial_at(const struct kva_partial *all, uint32_t row_first)
{
    size_t pair = (size_t)row_first * lent.model->config.heads;
    return (struct kva_partial){all->a + pair * lent.model->config.head_dim, all->m + pair,
                                all->e + pair};
}

/* --- the part: the first of the pages that are resident are in no range of blocks --------------- */

/* Behind the resident part, whose range it cuts. */

static const struct kva_kv_part part;

static void locate(const struct kva_kv *kv KVA_UNUSED, struct kva_kv_rows *rows,
                   uint32_t layer KVA_UNUSED)
{
    uint32_t splits = rows->position_first / KVA_ATTEND_SPLIT_TOKENS;
    uint32_t count = lent.how == LENT_TWO ? 2 : 1;
    if (splits < count)
        return;
    assert_int_equal(rows->range_count, 1);
    rows->ranges[0].page_first = splits * SPLIT_PAGES;
    for (uint32_t i = 0; i < count; i++) {
        struct exchange *x = &lent.exchanges[i];
        kva_kv_add_range(rows, (struct kva_kv_range){
                                   .kind = KVA_RANGE_PARTIAL,
                                   .page_first = splits * i / count * SPLIT_PAGES,
                                   .page_end = splits * (i + 1) / count * SPLIT_PAGES,
                                   .partial = partial_at(&x->arrived, rows->row_first),
                                   .owner = &part,
                                   .prefix = lent.how == LENT_PREFIX,
                               });
    }
}

/* --- elsewhere ------------------------------------------------------------------------------- */

static void attend(const struct kva_kv *kv, const struct kva_kv_rows *rows,
                   const struct kva_kv_range *range, uint32_t layer, const void *q,
                   struct kva_partial out)
{
    const struct kva_model_config *c = &lent.model->config;
    const struct kva_attend_seq seq = {
        .row_count = rows->row_count, .position_first = rows->position_first, .range_count = 1};
    const struct kva_attend_range pages = {
        .format = KVA_KV_16BIT,
        .token_first = range->page_first * KVA_PAGE_TOKENS,
        .token_count = (range->page_end - range->page_first) * KVA_PAGE_TOKENS,
        .block_first = range->page_first,
    };
    kva_device_ops(lent.device)
        ->attend(lent.device,
                 &(struct kva_attend_args){
                     .q = (const float *)q + (size_t)rows->row_first * c->heads * c->head_dim,
                     .out = out,
                     .seqs = &seq,
                     .ranges = &pages,
                     .blocks = rows->blocks,
                     .seq_count = 1,
                     .q_stride = c->heads * c->head_dim,
                     .heads = c->heads,
                     .kv_heads = c->kv_heads,
                     .head_dim = c->head_dim,
                     .window = c->layer_window[layer],
                     .kv_dtype = kv->shape.dtype,
                     .scale = c->attend_scale,
                 });
}

/* All results of the exchange travel at once. */
static void send(struct exchange *x)
{
    size_t bytes = lent.pairs * sizeof(float);
    kva_event_record(x->computed_event, KVA_QUEUE_COMPUTE);
    kva_event_wait(x->computed_event, KVA_QUEUE_COPY);
    kva_device_copy(lent.device, KVA_QUEUE_COPY, x->arrived.a, x->computed.a,
                    bytes * lent.model->config.head_dim);
    kva_device_copy(lent.device, KVA_QUEUE_COPY, x->arrived.m, x->computed.m, bytes);
    kva_device_copy(lent.device, KVA_QUEUE_COPY, x->arrived.e, x->computed.e, bytes);
    kva_event_record(x->arrived_event, KVA_QUEUE_COPY);
}

static void queried(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                    struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        uint32_t at = 0;
        for (uint32_t j = 0; j < rows->range_count; j++) {
            if (rows->ranges[j].kind != KVA_RANGE_PARTIAL)
                continue;
            struct kva_partial out = partial_at(&lent.exchanges[at++].computed, rows->row_first);
            attend(kv, rows, &rows->ranges[j], layer, q, out);
            lent.count++;
        }
    }
    for (int i = 0; i < PARTIALS; i++)
        send(&lent.exchanges[i]);
}

static void await(struct kva_kv *kv KVA_UNUSED, const struct kva_kv_rows *rows KVA_UNUSED,
                  const struct kva_kv_range *range KVA_UNUSED)
{
    for (int i = 0; i < PARTIALS; i++)
        kva_event_wait(lent.exchanges[i].arrived_event, KVA_QUEUE_COMPUTE);
}

/* --- the policy ------------------------------------------------------------------------------ */

static const struct kva_kv_part part = {.locate = locate, .queried = queried, .await = await};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_resident, &part, NULL};

static uint32_t offloaded(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens KVA_UNUSED)
{
    return 0;
}

const struct kva_kv_policy policy_lent = {
    .name = "lent",
    .exactness = KVA_KV_INEXACT,
    .parts = parts,
    .offloaded = offloaded,
};
