/* Frames between links: whole, in order, both ways, of all sizes. */
#include "tests/cmocka.h"

#include "tests/cluster/link/ends.h"

#include "base/clock.h"
#include "tests/random.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

struct expected {
    const struct end *end;
    uint32_t node;
    uint64_t frames;
};

static bool has_come(void *opaque)
{
    const struct expected *expected = opaque;
    return expected->end->frames[expected->node] >= expected->frames;
}

static void run_until_come(struct end *a, struct end *b)
{
    struct end *both[] = {a, b};
    struct expected there = {b, a->node, a->numbered[b->node]},
                    back = {a, b->node, b->numbered[a->node]};
    ends_run(both, 2, has_come, &there);
    ends_run(both, 2, has_come, &back);
    assert_int_equal(b->frames[a->node], there.frames);
    assert_int_equal(a->frames[b->node], back.frames);
}

static void test_link__frames_of_all_sizes_both_ways(void **state KVA_UNUSED)
{
    static const size_t sizes[] = {0,     1,     63,     64,     65,      1000,    4096,
                                   6144,  8000,  8192,   8200,   16384,   65535,   65536,
                                   65537, 98304, 262144, 300001, 1 << 20, 3000001, ENDS_DATA_MAX};
    struct end a, b;
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    ends_meet(&a, &b);
    for (size_t i = 0; i < KVA_COUNT_OF(sizes); i++) {
        end_send(&a, 2, 8, sizes[i]);
        end_send(&b, 1, 8 + i * 200, sizes[i]);
        run_until_come(&a, &b);
    }
    assert_int_equal(a.ups[2] + b.ups[1], 2);
    end_close(&a);
    end_close(&b);
}

/* Large ones come in pieces: those behind them wait. */
static void test_link__frames_of_mixed_sizes_keep_their_order(void **state KVA_UNUSED)
{
    struct end a, b;
    uint64_t random = 3;
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    ends_meet(&a, &b);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 40; i++) {
            size_t size = kva_test_below(&random, 200);
            if (kva_test_below(&random, 8) == 0)
                size = kva_test_below(&random, 1500000);
            end_send(&a, 2, 8 + kva_test_below(&random, 64), size);
            end_send(&b, 1, 8, kva_test_below(&random, 20000));
        }
        run_until_come(&a, &b);
    }
    end_close(&a);
    end_close(&b);
}

/* --- what is unsent ---------------------------------------------------------------------------- */

static void test_link__too_much_unsent_is_refused_and_the_rest_arrives(void **state KVA_UNUSED)
{
    struct end a, b;
    struct kva_link_params params = ends_params();
    params.unsent_bytes_max = 24 << 20;
    end_open(&a, 1, 5, &params);
    end_open(&b, 2, 6, &params);
    struct end *both[] = {&a, &b}, *alone[] = {&a};
    ends_meet(&a, &b);
    for (int round = 0; round < 3; round++) {
        enum kva_status status = KVA_OK;
        for (int i = 0; i < 1000 && !status; i++) {
            status = end_try(&a, 2, 100, i % 2 ? 2 << 20 : 2000);
            ends_idle(alone, 1, 3);
        }
        assert_int_equal(status, KVA_EBUSY);
        run_until_come(&a, &b);
    }
    ends_idle(both, 2, 20);
    assert_int_equal(a.downs[2] + b.downs[1], 0);
    end_close(&a);
    end_close(&b);
}

static bool is_down(void *opaque)
{
    const struct end *end = opaque;
    return end->downs[1] > 0;
}

static void test_link__it_can_be_destroyed_with_much_unsent(void **state KVA_UNUSED)
{
    for (int i = 0; i < 10; i++) {
        struct end a, b, *only = &b;
        end_open(&a, 1, 5, NULL);
        end_open(&b, 2, 6, NULL);
        ends_meet(&a, &b);
        for (int j = 0; j < 6; j++)
            end_send(&a, 2, 64, j % 2 ? ENDS_DATA_MAX : 70000);
        for (int j = 0; j < i; j++) {
            (void)kva_link_progress(a.link, kva_time_ns());
            (void)kva_link_progress(b.link, kva_time_ns());
        }
        end_close(&a);
        ends_run(&only, 1, is_down, &b);
        end_close(&b);
    }
}

/* --- waiting ----------------------------------------------------------------------------------- */

/* Whether there was something to do, or came. */
static bool wait_for_it(struct end *end)
{
    struct pollfd ready = {.fd = kva_link_fd(end->link), .events = POLLIN};
    return !kva_link_arm(end->link) || poll(&ready, 1, 60000) == 1;
}

static void *wake(void *opaque)
{
    struct end *end = opaque;
    kva_link_wake(end->link);
    return NULL;
}

static void test_link__who_waits_is_woken(void **state KVA_UNUSED)
{
    struct end a, b;
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    struct end *only = &a;
    ends_meet(&a, &b);
    int fd = kva_link_fd(b.link);
    for (int i = 1; i <= 50; i++) {
        end_send(&a, 2, 8, i % 5 ? 100 : 1 << 20);
        while (b.frames[1] < a.numbered[2]) {
            ends_idle(&only, 1, 2);
            if (!kva_link_progress(b.link, kva_time_ns()) && i % 5)
                assert_true(wait_for_it(&b));
        }
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, wake, &b), 0);
        assert_true(wait_for_it(&b));
        pthread_join(other, NULL);
        while (kva_link_progress(b.link, kva_time_ns()))
            ;
    }
    assert_int_equal(kva_link_fd(b.link), fd);
    end_close(&a);
    end_close(&b);
}

/* --- what is refused at once -------------------------------------------------------------------- */

static void expect_refusal(struct kva_link_params params, enum kva_status status, const char *word)
{
    struct kva_link *link = NULL;
    struct kva_err err = {0};
    struct end nobody = {0};
    params.opaque = &nobody;
    assert_int_equal(kva_link_create(&params, &link, &err), status);
    assert_null(link);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not name '%s'", err.message, word);
}

static void expect_no_transport(const char *address, const char *word)
{
    struct kva_transport *transport = NULL;
    struct kva_err err = {0};
    assert_int_equal(kva_transport_create(address, 1, &transport, &err), KVA_EINVAL);
    assert_null(transport);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not name '%s'", err.message, word);
}

static void heard(void *opaque KVA_UNUSED, const struct kva_link_frame *frame KVA_UNUSED)
{
}

static void told(void *opaque KVA_UNUSED, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED,
                 bool up KVA_UNUSED, const char *why KVA_UNUSED)
{
}

static void test_link__what_is_wrong_is_named(void **state KVA_UNUSED)
{
    struct end taken;
    struct kva_link_params params = ends_params();
    params.transport = ends_transport();
    params.received = heard;
    params.changed = told;
    static const struct {
        const char *listen;
        const char *word;
    } addresses[] = {
        {"127.0.0.1", "127.0.0.1"},
        {"127.0.0.1:", "port"},
        {"127.0.0.1:70000", "70000"},
        {"::1:80", "[ADDRESS]:PORT"},
        {"[::1]80", "[::1]80"},
        {":80", "host"},
        {"no.such.host.invalid:80", "no.such.host.invalid"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(addresses); i++) {
        params.listen = addresses[i].listen;
        expect_refusal(params, KVA_EINVAL, addresses[i].word);
        expect_no_transport(addresses[i].listen, addresses[i].word);
    }
    expect_no_transport("192.0.2.77:0", "192.0.2.77");
    end_open(&taken, 1, 5, NULL);
    params.listen = taken.address;
    expect_refusal(params, KVA_EBUSY, taken.address);
    params.listen = "127.0.0.1:0";
    params.secret_bytes = KVA_LINK_SECRET_MIN - 1;
    expect_refusal(params, KVA_EINVAL, "15");
    params.secret_bytes = KVA_LINK_SECRET_MIN;
    params.peers_max = 0;
    expect_refusal(params, KVA_EINVAL, "0 peers");

    struct kva_err err;
    assert_int_equal(kva_link_connect(taken.link, 2, 1, "127.0.0.1:0", &err), KVA_EINVAL);
    assert_int_equal(kva_link_connect(taken.link, 1, 1, "127.0.0.1:80", &err), KVA_EINVAL);
    assert_int_equal(kva_link_send(taken.link, 2, 0, NULL, 0, NULL, 0), KVA_ENOTFOUND);
    end_close(&taken);
    kva_transport_destroy(params.transport);
}

static void test_link__it_may_connect_only(void **state KVA_UNUSED)
{
    struct end a, b, *both[] = {&a, &b};
    struct kva_link_params params = ends_params();
    params.listen = NULL;
    end_open(&a, 1, 5, &params);
    assert_int_equal(kva_link_port(a.link), 0);
    end_open(&b, 2, 6, NULL);
    struct expected expected = {&b, 1, 1};
    ends_meet(&a, &b);
    end_send(&a, 2, 8, 100);
    ends_run(both, 2, has_come, &expected);
    end_close(&a);
    end_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__frames_of_all_sizes_both_ways),
        cmocka_unit_test(test_link__frames_of_mixed_sizes_keep_their_order),
        cmocka_unit_test(test_link__too_much_unsent_is_refused_and_the_rest_arrives),
        cmocka_unit_test(test_link__it_can_be_destroyed_with_much_unsent),
        cmocka_unit_test(test_link__who_waits_is_woken),
        cmocka_unit_test(test_link__what_is_wrong_is_named),
        cmocka_unit_test(test_link__it_may_connect_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
