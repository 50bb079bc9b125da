/* guest.c - pages of other instances' sequences in this engine's device tier, and attention to them
 * beside the engine's steps.
 *
 * The engine thread changes the table between its steps; the worker's thread looks loans up in it. A
 * loan to which it attends is held meanwhile, and is freed when it has let go: a call is one layer,
 * and a later one does not find the loan, so nobody waits long. */
#include "engine/lending.h"

#include "engine/model_engine_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct guest {
    struct kva_kv_loan loan; /* page_count 0: the place is free */
    void **pages;            /* [page_count], device tier */
    uint32_t holders;
    bool going; /* it is being freed: nobody holds it any more who does not yet */
};

struct kva_guests {
    struct model_engine *engine;
    struct guest *places; /* [places_max] */
    uint32_t places_max;
    unsigned char *zeros; /* host tier: a page */
    pthread_mutex_t lock; /* of places */
    pthread_cond_t let_go;
};

/* --- the table ------------------------------------------------------------------------------- */

static size_t page_bytes(const struct kva_guests *g)
{
    return g->engine->kv->shape.page_bytes;
}

enum kva_status kva_guests_create(struct kva_engine *engine, uint32_t loans_max,
                                  struct kva_guests **ret, struct kva_err *err)
{
    struct model_engine *e = engine->self;
    struct kva_guests *g = calloc(1, sizeof(*g));
    void *zeros = NULL;
    if (!g)
        return kva_fail(err, KVA_ENOMEM, "out of memory for guests");
    g->engine = e;
    g->places_max = loans_max;
    g->places = calloc(loans_max, sizeof(*g->places));
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->let_go, NULL);
    enum kva_status status = kva_device_alloc(e->device, KVA_MEM_HOST, page_bytes(g), &zeros, err);
    if (!status && !g->places)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for %u loans", loans_max);
    g->zeros = zeros;
    if (status) {
        kva_guests_destroy(g);
        return status;
    }
    *ret = g;
    return KVA_OK;
}

void kva_guests_destroy(struct kva_guests *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; g->places && i < g->places_max; i++) {
        if (g->places[i].loan.page_count > 0)
            kva_guests_free(g, g->places[i].loan.id);
    }
    kva_device_sync(g->engine->device, KVA_QUEUE_COPY);
    kva_device_free(g->engine->device, KVA_MEM_HOST, g->zeros, page_bytes(g));
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->let_go);
    free(g->places);
    free(g);
}

static struct guest *find(const struct kva_guests *g, uint64_t loan)
{
    for (uint32_t i = 0; i < g->places_max; i++) {
        if (g->places[i].loan.page_count > 0 && g->places[i].loan.id == loan)
            return &g->places[i];
    }
    return NULL;
}

uint32_t kva_guests_pages(const struct kva_guests *g)
{
    return (uint32_t)(g->engine->kv->guest_bytes / page_bytes(g));
}

/* --- memory ---------------------------------------------------------------------------------- */

static void free_pages(struct kva_guests *g, void **pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        kva_kv_free_device(g->engine->kv, pages[i], page_bytes(g));
    free(pages);
}

enum kva_status kva_guests_reserve(struct kva_guests *g, const struct kva_kv_loan *loan,
                                   struct kva_err *err)
{
    struct guest *place = NULL;
    for (uint32_t i = 0; i < g->places_max && !place; i++)
        place = g->places[i].loan.page_count == 0 ? &g->places[i] : NULL;
    if (loan->page_count == 0 || find(g, loan->id))
        return kva_fail(err, KVA_EINVAL, "loan %llu of %u pages is held already, or has none",
                        (unsigned long long)loan->id, loan->page_count);
    if (!place)
        return kva_fail(err, KVA_ELIMIT, "there are %u loans here, which is the limit",
                        g->places_max);
    void **pages = calloc(loan->page_count, sizeof(*pages));
    uint32_t count = 0;
    while (pages && count < loan->page_count &&
           (pages[count] = kva_kv_alloc_device(g->engine->kv, page_bytes(g))))
        count++;
    if (count < loan->page_count) {
        free_pages(g, pages, count);
        return kva_fail(err, KVA_ELIMIT, "the device tier has no room for %u pages of a loan now",
                        loan->page_count);
    }
    pthread_mutex_lock(&g->lock);
    *place = (struct guest){.loan = *loan, .pages = pages};
    pthread_mutex_unlock(&g->lock);
    g->engine->kv->guest_bytes += loan->page_count * page_bytes(g);
    return KVA_OK;
}

/* The device address of a page. */
static enum kva_status page_of(const struct kva_guests *g, uint64_t loan, uint32_t index,
                               void **ret, struct kva_err *err)
{
    const struct guest *guest = find(g, loan);
    if (!guest || index >= guest->loan.page_count)
        return kva_fail(err, KVA_ENOTFOUND, "no page %u of a loan %llu is held here", index,
                        (unsigned long long)loan);
    *ret = guest->pages[index];
    return KVA_OK;
}

/* Behind all that compute has been given, which may still read what lay there, and done when it
 * returns: the worker knows no queue of the engine's. */
static void copy_now(struct kva_guests *g, void *to, const void *from)
{
    kva_kv_order_copies(g->engine->kv);
    kva_device_copy(g->engine->device, KVA_QUEUE_COPY, to, from, page_bytes(g));
    kva_device_sync(g->engine->device, KVA_QUEUE_COPY);
}

enum kva_status kva_guests_write(struct kva_guests *g, uint64_t loan, uint32_t index,
                                 const void *page, struct kva_err *err)
{
    void *at = NULL;
    enum kva_status status = page_of(g, loan, index, &at, err);
    if (!status)
        copy_now(g, at, page);
    return status;
}

enum kva_status kva_guests_read(struct kva_guests *g, uint64_t loan, uint32_t index, void *ret_page,
                                struct kva_err *err)
{
    void *at = NULL;
    enum kva_status status = page_of(g, loan, index, &at, err);
    if (!status)
        copy_now(g, ret_page, at);
    return status;
}

void kva_guests_free(struct kva_guests *g, uint64_t loan)
{
    struct guest *guest = find(g, loan);
    if (!guest)
        return;
    pthread_mutex_lock(&g->lock);
    guest->going = true;
    while (guest->holders > 0)
        pthread_cond_wait(&g->let_go, &g->lock);
    struct guest gone = *guest;
    *guest = (struct guest){0};
    pthread_mutex_unlock(&g->lock);
    struct kva_kv *kv = g->engine->kv;
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < gone.loan.page_count; i++) /* of no sequence: it is not counted */
        kva_device_copy(kv->device, KVA_QUEUE_COPY, gone.pages[i], g->zeros, page_bytes(g));
    kv->copies_pending = true;
    kv->guest_bytes -= gone.loan.page_count * page_bytes(g);
    free_pages(g, gone.pages, gone.loan.page_count);
}

/* --- attention ------------------------------------------------------------------------------- */

struct kva_guest_worker {
    struct kva_guests *guests;
    struct kva_device *device;
    uint32_t rows_max;
    size_t query_bytes;              /* of a row */
    unsigned char *q;                /* device [rows_max] */
    struct kva_partial out;          /* device [rows_max] */
    struct guest **held;             /* [rows_max] */
    struct kva_attend_seq *seqs;     /* [rows_max] */
    struct kva_attend_range *ranges; /* [rows_max] */
    const void **blocks;             /* [blocks_max]: pages of the device tier */
    uint32_t blocks_max;
};

static size_t partial_bytes(const struct kva_guest_worker *w)
{
    const struct kva_model_config *c = w->guests->engine->config;
    return (size_t)w->rows_max * c->heads * (c->head_dim + 2) * sizeof(float);
}

enum kva_status kva_guest_worker_create(struct kva_guests *guests, struct kva_device *device,
                                        uint32_t rows_max, struct kva_guest_worker **ret,
                                        struct kva_err *err)
{
    const struct model_engine *e = guests->engine;
    const struct kva_device_info *own = kva_device_get_info(e->device);
    const struct kva_device_info *info = kva_device_get_info(device);
    const struct kva_model_config *c = e->config;
    void *q = NULL, *out = NULL;
    if (info->act != own->act || info->host_readable != own->host_readable)
        return kva_fail(err, KVA_EINVAL, "guests are attended to by '%s', their pages are on '%s'",
                        info->name, own->name);
    struct kva_guest_worker *w = calloc(1, sizeof(*w));
    if (!w)
        return kva_fail(err, KVA_ENOMEM, "out of memory for attention to guests");
    w->guests = guests;
    w->device = device;
    w->rows_max = rows_max;
    w->query_bytes = e->kv->query_bytes;
    w->blocks_max = (uint32_t)(kva_tier_budget_bytes(e->kv->tier) / e->kv->shape.page_bytes);
    w->held = calloc(rows_max, sizeof(struct guest *));
    w->seqs = calloc(rows_max, sizeof(*w->seqs));
    w->ranges = calloc(rows_max, sizeof(*w->ranges));
    w->blocks = calloc(w->blocks_max, sizeof(void *));
    enum kva_status status =
        kva_device_alloc(device, KVA_MEM_DEVICE, rows_max * w->query_bytes, &q, err);
    if (!status)
        status = kva_device_alloc(device, KVA_MEM_DEVICE, partial_bytes(w), &out, err);
    if (!status && (!w->held || !w->seqs || !w->ranges || !w->blocks))
        status = kva_fail(err, KVA_ENOMEM, "out of memory for attention to guests");
    w->q = q;
    size_t pairs = (size_t)rows_max * c->heads;
    float *at = out;
    if (at)
        w->out = (struct kva_partial){at, at + pairs * c->head_dim, at + pairs * (c->head_dim + 1)};
    if (status) {
        kva_guest_worker_destroy(w);
        return status;
    }
    *ret = w;
    return KVA_OK;
}

void kva_guest_worker_destroy(struct kva_guest_worker *w)
{
    if (!w)
        return;
    kva_device_free(w->device, KVA_MEM_DEVICE, w->q, w->rows_max * w->query_bytes);
    kva_device_free(w->device, KVA_MEM_DEVICE, w->out.a, partial_bytes(w));
    free(w->held);
    free(w->seqs);
    free(w->ranges);
    free((void *)w->blocks);
    free(w);
}

/* Hold the loans of all entries that are here. */
static void hold(struct kva_guest_worker *w, const struct kva_remote_rows *rows, uint32_t count)
{
    struct kva_guests *g = w->guests;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct guest *guest = find(g, rows[i].loan);
        w->held[i] = guest && !guest->going ? guest : NULL;
        if (w->held[i])
            w->held[i]->holders++;
    }
    pthread_mutex_unlock(&g->lock);
}

static void let_go(struct kva_guest_worker *w, uint32_t count)
{
    struct kva_guests *g = w->guests;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < count; i++) {
        if (w->held[i])
            w->held[i]->holders--;
    }
    pthread_cond_broadcast(&g->let_go);
    pthread_mutex_unlock(&g->lock);
}

/* One more sequence of the call, whose rows begin at number `row`, and its blocks at `block`. */
static void list_entry(struct kva_guest_worker *w, const struct kva_remote_rows *rows,
                       const struct guest *guest, uint32_t index, uint32_t row, uint32_t block)
{
    kva_device_copy(w->device, KVA_QUEUE_COMPUTE, w->q + row * w->query_bytes, rows->q,
                    rows->row_count * w->query_bytes);
    memcpy((void *)(w->blocks + block), (const void *)guest->pages,
           guest->loan.page_count * sizeof(void *));
    w->ranges[index] = (struct kva_attend_range){
        .format = KVA_KV_16BIT,
        .token_first = guest->loan.first_page * KVA_PAGE_TOKENS,
        .token_count = guest->loan.page_count * KVA_PAGE_TOKENS,
        .block_first = block,
    };
    w->seqs[index] = (struct kva_attend_seq){
        .row_first = row,
        .row_count = rows->row_count,
        .position_first = rows->position_first,
        .range_first = index,
        .range_count = 1,
    };
}

static void attend(struct kva_guest_worker *w, uint32_t layer, uint32_t seq_count)
{
    const struct model_engine *e = w->guests->engine;
    const struct kva_model_config *c = e->config;
    kva_device_ops(w->device)->attend(w->device,
                                      &(struct kva_attend_args){
                                          .q = w->q,
                                          .out = w->out,
                                          .seqs = w->seqs,
                                          .ranges = w->ranges,
                                          .blocks = w->blocks,
                                          .block_offset_bytes = layer * e->kv->shape.block_bytes,
                                          .seq_count = seq_count,
                                          .q_stride = c->heads * c->head_dim,
                                          .heads = c->heads,
                                          .kv_heads = c->kv_heads,
                                          .head_dim = c->head_dim,
                                          .window = c->layer_window[layer],
                                          .kv_dtype = e->kv->shape.dtype,
                                          .scale = c->attend_scale,
                                      });
}

/* The result of rows from number `row` on, for the host. */
static void bring(struct kva_guest_worker *w, uint32_t row, const struct kva_remote_rows *rows)
{
    const struct kva_model_config *c = w->guests->engine->config;
    size_t at = (size_t)row * c->heads, bytes = (size_t)rows->row_count * c->heads * sizeof(float);
    kva_device_copy(w->device, KVA_QUEUE_COMPUTE, rows->out.a, w->out.a + at * c->head_dim,
                    bytes * c->head_dim);
    kva_device_copy(w->device, KVA_QUEUE_COMPUTE, rows->out.m, w->out.m + at, bytes);
    kva_device_copy(w->device, KVA_QUEUE_COMPUTE, rows->out.e, w->out.e + at, bytes);
}

/* As many entries from `first` on as one call takes; behind the last of them. */
static uint32_t run(struct kva_guest_worker *w, uint32_t layer, const struct kva_remote_rows *rows,
                    uint32_t first, uint32_t count)
{
    uint32_t end = first, seqs = 0, row = 0, block = 0;
    for (; end < count; end++) {
        const struct guest *guest = w->held[end];
        if (!guest)
            continue;
        if (row + rows[end].row_count > w->rows_max ||
            block + guest->loan.page_count > w->blocks_max)
            break;
        list_entry(w, &rows[end], guest, seqs++, row, block);
        row += rows[end].row_count;
        block += guest->loan.page_count;
    }
    if (seqs > 0)
        attend(w, layer, seqs);
    row = 0;
    for (uint32_t i = first; i < end; i++) {
        if (!w->held[i])
            continue;
        bring(w, row, &rows[i]);
        row += rows[i].row_count;
    }
    return end;
}

enum kva_status kva_guests_attend(struct kva_guest_worker *w, uint32_t layer,
                                  const struct kva_remote_rows *rows, uint32_t count,
                                  bool *ret_found, struct kva_err *err)
{
    const struct kva_model_config *c = w->guests->engine->config;
    if (layer >= c->layer_count || count > w->rows_max)
        return kva_fail(err, KVA_EINVAL,
                        "%u sequences in layer %u: at most %u are attended to at once, and the "
                        "model has %u layers",
                        count, layer, w->rows_max, c->layer_count);
    for (uint32_t i = 0; i < count; i++) {
        if (rows[i].row_count == 0 || rows[i].row_count > w->rows_max)
            return kva_fail(err, KVA_EINVAL, "%u rows of a sequence: 1 to %u are attended to",
                            rows[i].row_count, w->rows_max);
    }
    hold(w, rows, count);
    for (uint32_t at = 0; at < count;)
        at = run(w, layer, rows, at, count);
    kva_device_sync(w->device, KVA_QUEUE_COMPUTE);
    for (uint32_t i = 0; i < count; i++)
        ret_found[i] = w->held[i] != NULL;
    let_go(w, count);
    return kva_device_error(w->device, err);
}
