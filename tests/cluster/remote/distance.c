#include "tests/cmocka.h"

#include "tests/cluster/remote/distance.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

static const char secret[] = "a secret of this test's cluster";

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status != KVA_OK)
        fail_msg("%s", err->message);
}

struct kva_debtor_params distance_debtor_params(const struct distance *d)
{
    return (struct kva_debtor_params){.secret = secret,
                                      .secret_bytes = sizeof(secret),
                                      .heads = d->lent.net.heads,
                                      .head_dim = d->lent.net.head_dim,
                                      .act = KVA_F32,
                                      .rows_max = LOOPBACK_ROWS,
                                      .peers_max = 4,
                                      .answer_ns = 60 * KVA_NS_PER_S};
}

struct kva_creditor_params distance_creditor_params(const struct distance *d)
{
    return (struct kva_creditor_params){.listen = "127.0.0.1:0",
                                        .secret = secret,
                                        .secret_bytes = sizeof(secret),
                                        .heads = d->lent.net.heads,
                                        .head_dim = d->lent.net.head_dim,
                                        .layers = 3,
                                        .act = KVA_F32,
                                        .rows_max = LOOPBACK_ROWS,
                                        .peers_max = 4};
}

/* --- a remote that counts, and kills ------------------------------------------------------------ */

static void post(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count)
{
    struct distance *d = self;
    const struct kva_remote *remote = kva_debtor_remote(d->debtor);
    bool dies = ++d->posts == d->dies_at;
    if (dies && !d->dies_after)
        distance_kill(d, 0);
    remote->ops->post(remote->self, layer, rows, count);
    if (dies && d->dies_after)
        distance_kill(d, 0);
}

static bool collect(void *self, uint32_t index)
{
    struct distance *d = self;
    const struct kva_remote *remote = kva_debtor_remote(d->debtor);
    return remote->ops->collect(remote->self, index);
}

static const struct kva_remote_ops ops = {.post = post, .collect = collect};

/* --- creditors --------------------------------------------------------------------------------- */

void distance_revive(struct distance *d, uint32_t creditor)
{
    struct kva_creditor_params params = distance_creditor_params(d);
    struct kva_err err;
    char address[32];
    uint64_t life = ++d->lives[creditor];
    expect_ok(kva_transport_create("127.0.0.1:0", 4, &d->transports[creditor], &err), &err);
    params.transport = d->transports[creditor];
    expect_ok(kva_creditor_create(&params, &d->creditors[creditor], &err), &err);
    snprintf(address, sizeof(address), "127.0.0.1:%u", kva_creditor_port(d->creditors[creditor]));
    kva_creditor_begin(d->creditors[creditor], creditor + 1, life, d->workers[creditor]);
    expect_ok(kva_debtor_peer(d->debtor, creditor + 1, life, address, &err), &err);
}

void distance_kill(struct distance *d, uint32_t creditor)
{
    kva_creditor_destroy(d->creditors[creditor]);
    kva_transport_destroy(d->transports[creditor]);
    d->creditors[creditor] = NULL;
    d->transports[creditor] = NULL;
}

static void open_worker(struct distance *d, uint32_t creditor, uint32_t levels)
{
    const struct kva_device_params device = {.threads = 1, .cpu_level_mask = levels};
    struct kva_err err;
    expect_ok(kva_device_open_cpu(&device, &d->devices[creditor], &err), &err);
    expect_ok(kva_guest_worker_create(d->lent.net.creditors[creditor].guests, d->devices[creditor],
                                      LOOPBACK_ROWS, &d->workers[creditor], &err),
              &err);
}

/* --- the world --------------------------------------------------------------------------------- */

void distance_open(struct distance *d, const char *model, uint32_t levels, uint64_t answer_ns)
{
    struct kva_err err;
    *d = (struct distance){.remote = {&ops, d}};
    struct fixture_params params = {.model_path = model,
                                    .context_max = CONTEXT_MAX,
                                    .step_tokens_max = 64,
                                    .copy_delay_max_us = 50,
                                    .seed = 9,
                                    .threads = 1,
                                    .cpu_level_mask = levels,
                                    .remote = &d->remote};
    struct fixture_params creditor = params;
    creditor.remote = NULL;
    loopback_open(&d->lent.net, &creditor);
    struct kva_debtor_params debtor = distance_debtor_params(d);
    if (answer_ns)
        debtor.answer_ns = answer_ns;
    expect_ok(kva_transport_create("127.0.0.1:0", 4, &d->transport, &err), &err);
    debtor.transport = d->transport;
    expect_ok(kva_debtor_create(&debtor, &d->debtor, &err), &err);
    kva_debtor_identify(d->debtor, DISTANCE_DEBTOR, 1);
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++) {
        open_worker(d, i, levels);
        distance_revive(d, i);
    }
    fixture_open(&d->lent.debtor, &params);
}

void distance_close(struct distance *d)
{
    fixture_close(&d->lent.debtor);
    kva_debtor_destroy(d->debtor);
    kva_transport_destroy(d->transport);
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++) {
        distance_kill(d, i);
        kva_guest_worker_destroy(d->workers[i]);
        kva_device_close(d->devices[i]);
    }
    loopback_close(&d->lent.net);
}

struct kva_debtor_stats distance_stats(const struct distance *d)
{
    struct kva_debtor_stats stats;
    kva_debtor_get_stats(d->debtor, &stats);
    return stats;
}
