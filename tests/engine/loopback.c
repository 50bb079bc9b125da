#include "tests/cmocka.h"

#include "tests/engine/loopback.h"

#include <stdlib.h>
#include <string.h>

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status != KVA_OK)
        fail_msg("%s", err->message);
}

/* --- the wire -------------------------------------------------------------------------------- */

static size_t query_bytes(const struct loopback *net, uint32_t rows)
{
    return (size_t)rows * net->heads * net->head_dim * sizeof(float);
}

static size_t answer_floats(const struct loopback *net)
{
    return (size_t)net->heads * (net->head_dim + 2);
}

static struct kva_partial answer_of(const struct loopback_creditor *c, uint32_t row)
{
    float *at = c->answers + row * answer_floats(c->net);
    return (struct kva_partial){at, at + c->net->heads * c->net->head_dim,
                                at + c->net->heads * (c->net->head_dim + 1)};
}

/* A message is answered, or the creditor is dead. */
static void answer(struct loopback_creditor *c)
{
    struct kva_err err;
    c->messages++;
    memset(c->found, 0, sizeof(c->found));
    if (c->dies_at > 0 && c->messages >= c->dies_at)
        return;
    if (kva_guests_attend(c->worker, c->layer, c->rows, c->count, c->found, &err) != KVA_OK)
        memset(c->found, 0, sizeof(c->found));
}

static void *serve(void *opaque)
{
    struct loopback_creditor *c = opaque;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->busy && !c->stop)
            pthread_cond_wait(&c->changed, &c->lock);
        if (c->stop)
            break;
        pthread_mutex_unlock(&c->lock);
        answer(c);
        pthread_mutex_lock(&c->lock);
        c->busy = false;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void send(struct loopback *net, struct loopback_creditor *c, uint32_t layer)
{
    pthread_mutex_lock(&c->lock);
    assert_false(c->busy);
    c->layer = layer;
    c->count = 0;
    for (uint32_t i = 0; i < net->posted_count; i++) {
        if (net->posted[i].creditor != (uint32_t)(c - net->creditors) + 1)
            continue;
        uint32_t row = c->count++;
        unsigned char *q = c->q + query_bytes(net, row);
        memcpy(q, net->posted[i].q, query_bytes(net, 1));
        c->entries[row] = i;
        c->rows[row] = net->posted[i];
        c->rows[row].q = q;
        c->rows[row].out = answer_of(c, row);
    }
    c->busy = c->count > 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void post(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count)
{
    struct loopback *net = self;
    assert_true(count <= LOOPBACK_ROWS);
    memcpy(net->posted, rows, count * sizeof(*rows));
    net->posted_count = count;
    net->posts++;
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++)
        send(net, &net->creditors[i], layer);
}

static bool collect(void *self, uint32_t index)
{
    struct loopback *net = self;
    const struct kva_remote_rows *rows = &net->posted[index];
    struct loopback_creditor *c = &net->creditors[rows->creditor - 1];
    uint32_t row = 0;
    if (net->collects)
        net->collects(net->opaque, rows);
    pthread_mutex_lock(&c->lock);
    while (c->busy)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    while (c->entries[row] != index)
        row++;
    if (!c->found[row])
        return false;
    const struct kva_partial from = answer_of(c, row);
    memcpy(rows->out.a, from.a, query_bytes(net, 1));
    memcpy(rows->out.m, from.m, net->heads * sizeof(float));
    memcpy(rows->out.e, from.e, net->heads * sizeof(float));
    return true;
}

static const struct kva_remote_ops ops = {.post = post, .collect = collect};

/* --- instances ------------------------------------------------------------------------------- */

static void open_creditor(struct loopback *net, struct loopback_creditor *c,
                          const struct fixture_params *params)
{
    struct kva_err err;
    fixture_open(&c->fixture, params);
    c->net = net;
    net->heads = c->fixture.model->config.heads;
    net->head_dim = c->fixture.model->config.head_dim;
    const struct kva_device_params device = {.threads = 1,
                                             .cpu_level_mask = params->cpu_level_mask};
    expect_ok(kva_device_open_cpu(&device, &c->device, &err), &err);
    expect_ok(kva_guests_create(c->fixture.engine, LOOPBACK_LOANS, &c->guests, &err), &err);
    expect_ok(kva_guest_worker_create(c->guests, c->device, LOOPBACK_ROWS, &c->worker, &err), &err);
    c->q = malloc(query_bytes(net, LOOPBACK_ROWS));
    c->answers = malloc(LOOPBACK_ROWS * answer_floats(net) * sizeof(float));
    assert_true(c->q && c->answers);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    assert_int_equal(pthread_create(&c->thread, NULL, serve, c), 0);
}

void loopback_open(struct loopback *net, const struct fixture_params *params)
{
    *net = (struct loopback){.remote = {&ops, net}};
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++)
        open_creditor(net, &net->creditors[i], params);
}

void loopback_close(struct loopback *net)
{
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++) {
        struct loopback_creditor *c = &net->creditors[i];
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->changed);
        kva_guest_worker_destroy(c->worker);
        kva_guests_destroy(c->guests);
        kva_device_close(c->device);
        fixture_close(&c->fixture);
        free(c->q);
        free(c->answers);
    }
}

/* --- loans ----------------------------------------------------------------------------------- */

uint64_t loopback_lend(struct loopback *net, struct fixture *debtor, struct kva_sequence *seq,
                       uint32_t creditor, uint32_t first, uint32_t count, bool keeps_home)
{
    struct kva_err err;
    struct loopback_creditor *c = &net->creditors[creditor];
    const struct kva_kv_loan loan = {.id = ++net->loans,
                                     .creditor = creditor + 1,
                                     .first_page = first,
                                     .page_count = count,
                                     .keeps_home = keeps_home};
    assert_true(kva_lending_lendable(debtor->engine, seq, first, count));
    expect_ok(kva_guests_reserve(c->guests, &loan, &err), &err);
    for (uint32_t i = 0; i < count; i++)
        expect_ok(kva_guests_write(c->guests, loan.id, i,
                                   kva_lending_home_of(debtor->engine, seq, first + i), &err),
                  &err);
    kva_lending_lend(debtor->engine, seq, &loan);
    return loan.id;
}

void loopback_return(struct loopback *net, struct fixture *debtor, struct kva_sequence *seq,
                     uint64_t loan)
{
    struct kva_err err;
    struct kva_kv_loan loans[KVA_KV_LOANS_MAX];
    uint32_t at = 0, count = kva_lending_loans(seq, loans);
    while (at < count && loans[at].id != loan)
        at++;
    assert_true(at < count);
    struct kva_guests *guests = net->creditors[loans[at].creditor - 1].guests;
    expect_ok(kva_lending_home_reserve(debtor->engine, seq, loan, &err), &err);
    for (uint32_t i = 0; i < loans[at].page_count; i++)
        expect_ok(kva_guests_read(
                      guests, loan, i,
                      kva_lending_home_of(debtor->engine, seq, loans[at].first_page + i), &err),
                  &err);
    kva_lending_come_home(debtor->engine, seq, loan);
    kva_guests_free(guests, loan);
}

void loopback_release(struct loopback *net)
{
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++) {
        for (uint64_t loan = 1; loan <= net->loans; loan++)
            kva_guests_free(net->creditors[i].guests, loan);
        assert_int_equal(kva_guests_pages(net->creditors[i].guests), 0);
    }
}
