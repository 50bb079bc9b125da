#include "tests/cmocka.h"

#include "base/clock.h"
#include "tests/cluster/link/ends.h"
#include "tests/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char secret[] = "a secret of this test's cluster";

/* --- frames ------------------------------------------------------------------------------------ */

static uint64_t seed_of(uint32_t from, uint64_t number)
{
    return (uint64_t)from << 32 ^ number;
}

static void fill(unsigned char *data, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t x = kva_test_random(&seed);
        memcpy(data + i, &x, size - i < 8 ? size - i : 8);
    }
}

static void check(const struct end *end, const struct kva_link_frame *frame)
{
    uint64_t number;
    assert_in_range(frame->node, 1, ENDS_NODES - 1);
    assert_int_equal(frame->kind, ENDS_KIND);
    assert_int_equal((uintptr_t)frame->data % 64, 0);
    assert_true(frame->header_bytes >= sizeof(number));
    memcpy(&number, frame->header, sizeof(number));
    assert_int_equal(number, end->frames[frame->node] + 1);
    unsigned char *want = malloc(frame->data_bytes + frame->header_bytes + 1);
    assert_non_null(want);
    fill(want, frame->data_bytes, seed_of(frame->node, number));
    assert_memory_equal(want, frame->data, frame->data_bytes);
    fill(want, frame->header_bytes, seed_of(frame->node, ~number));
    assert_memory_equal(want + 8, (const unsigned char *)frame->header + 8,
                        frame->header_bytes - 8);
    free(want);
}

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct end *end = opaque;
    check(end, frame);
    end->frames[frame->node]++;
    if (end->then)
        end->then(end, frame);
}

static void changed(void *opaque, uint32_t node, uint64_t life, bool up, const char *why)
{
    struct end *end = opaque;
    assert_in_range(node, 1, ENDS_NODES - 1);
    assert_true(up == !why);
    assert_int_equal(kva_link_is_up(end->link, node), up);
    (up ? end->ups : end->downs)[node]++;
    end->lives[node] = life;
    if (up)
        end->frames[node] = end->numbered[node] = 0;
    else
        snprintf(end->why, sizeof(end->why), "%s", why);
    if (end->told)
        end->told(end, node, up);
}

/* --- ends -------------------------------------------------------------------------------------- */

struct kva_link_params ends_params(void)
{
    return (struct kva_link_params){.listen = "127.0.0.1:0",
                                    .secret = secret,
                                    .secret_bytes = sizeof(secret),
                                    .header_bytes_max = ENDS_HEADER_MAX,
                                    .data_bytes_max = ENDS_DATA_MAX,
                                    .unsent_bytes_max = 64 << 20,
                                    .unread_bytes_max = 64 << 20,
                                    .peers_max = ENDS_NODES,
                                    .hello_ns = 30 * KVA_NS_PER_S};
}

struct kva_transport *ends_transport(void)
{
    struct kva_transport *transport;
    struct kva_err err;
    if (kva_transport_create("127.0.0.1:0", ENDS_NODES, &transport, &err) != KVA_OK)
        fail_msg("%s", err.message);
    return transport;
}

void end_open(struct end *end, uint32_t node, uint64_t life, const struct kva_link_params *params)
{
    struct kva_err err;
    struct kva_link_params own = params ? *params : ends_params();
    *end = (struct end){.node = node, .life = life};
    if (!own.transport)
        own.transport = end->transport = ends_transport();
    own.opaque = end;
    own.received = received;
    own.changed = changed;
    if (kva_link_create(&own, &end->link, &err) != KVA_OK)
        fail_msg("%s", err.message);
    snprintf(end->address, sizeof(end->address), "127.0.0.1:%u", kva_link_port(end->link));
    kva_link_identify(end->link, node, life);
}

void end_close(struct end *end)
{
    kva_link_destroy(end->link);
    kva_transport_destroy(end->transport);
    end->link = NULL;
    end->transport = NULL;
}

void end_connect(struct end *from, const struct end *to)
{
    struct kva_err err;
    if (kva_link_connect(from->link, to->node, to->life, to->address, &err) != KVA_OK)
        fail_msg("%s", err.message);
}

enum kva_status end_try(struct end *from, uint32_t node, size_t header_bytes, size_t data_bytes)
{
    uint64_t number = from->numbered[node] + 1;
    unsigned char *bytes = malloc(header_bytes + data_bytes);
    assert_non_null(bytes);
    fill(bytes, data_bytes, seed_of(from->node, number));
    fill(bytes + data_bytes, header_bytes, seed_of(from->node, ~number));
    memcpy(bytes + data_bytes, &number, sizeof(number));
    enum kva_status status = kva_link_send(from->link, node, ENDS_KIND, bytes + data_bytes,
                                           header_bytes, bytes, data_bytes);
    from->numbered[node] += status == KVA_OK;
    free(bytes);
    return status;
}

void end_send(struct end *from, uint32_t node, size_t header_bytes, size_t data_bytes)
{
    assert_int_equal(end_try(from, node, header_bytes, data_bytes), KVA_OK);
}

static bool progress(struct end *const *ends, uint32_t count)
{
    bool any = false;
    for (uint32_t i = 0; i < count; i++)
        if (ends[i]->link)
            any |= kva_link_progress(ends[i]->link, kva_time_ns());
    return any;
}

static void rest(void)
{
    const struct timespec pause = {.tv_nsec = 50000};
    nanosleep(&pause, NULL);
}

void ends_run(struct end *const *ends, uint32_t count, bool (*until)(void *), void *opaque)
{
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (!until(opaque)) {
        if (!progress(ends, count))
            rest();
        if (kva_time_ns() > limit_ns)
            fail_msg("what was waited for did not come; the last that went down: %s", ends[0]->why);
    }
}

void ends_idle(struct end *const *ends, uint32_t count, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++)
        if (!progress(ends, count))
            rest();
}

static bool have_met(void *opaque)
{
    struct end **both = opaque;
    return kva_link_is_up(both[0]->link, both[1]->node) &&
           kva_link_is_up(both[1]->link, both[0]->node);
}

void ends_meet(struct end *a, struct end *b)
{
    struct end *both[] = {a, b};
    end_connect(a, b);
    ends_run(both, 2, have_met, both);
}
