/* Who may speak, and what becomes of a node's connections: secrets, lives, both sides at once. */
#include "tests/cmocka.h"

#include "tests/cluster/link/ends.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct count {
    const uint32_t *value;
    uint32_t least;
};

static bool reached(void *opaque)
{
    const struct count *count = opaque;
    return *count->value >= count->least;
}

static void run_until(struct end *const *ends, uint32_t number, const uint32_t *value,
                      uint32_t least)
{
    struct count count = {value, least};
    ends_run(ends, number, reached, &count);
}

/* A frame each way. */
static void check_talk(struct end *a, struct end *b)
{
    struct end *both[] = {a, b};
    uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    end_send(a, b->node, 8, 5000);
    end_send(b, a->node, 8, 5000);
    while (b->frames[a->node] < a->numbered[b->node] || a->frames[b->node] < b->numbered[a->node]) {
        ends_idle(both, 2, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
}

/* --- who is refused ---------------------------------------------------------------------------- */

static void check_refused(struct end *a, struct end *b)
{
    struct end *both[] = {a, b};
    uint32_t told = b->ups[a->node] + b->downs[a->node];
    end_connect(a, b);
    run_until(both, 2, &a->downs[b->node], 1);
    ends_idle(both, 2, 50);
    assert_int_equal(a->ups[b->node], 0);
    assert_int_equal(b->ups[a->node] + b->downs[a->node], told);
    assert_true(a->why[0]);
}

static void test_link__another_secret_is_refused(void **state KVA_UNUSED)
{
    static const char other[] = "a secret of another cluster";
    struct end a, b;
    struct kva_link_params params = ends_params();
    params.secret = other;
    params.secret_bytes = sizeof(other);
    end_open(&a, 1, 5, &params);
    end_open(&b, 2, 6, NULL);
    check_refused(&a, &b);
    check_refused(&b, &a);
    end_close(&a);
    end_close(&b);
}

static void test_link__another_life_or_node_is_not_who_is_meant(void **state KVA_UNUSED)
{
    struct end a, b;
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    b.life = 7;
    check_refused(&a, &b);
    b.life = 6;
    b.node = 3;
    check_refused(&a, &b);
    b.node = 2;
    ends_meet(&a, &b);
    check_talk(&a, &b);
    end_close(&a);
    end_close(&b);
}

static void hear_nothing(void *opaque KVA_UNUSED, const struct kva_link_frame *frame KVA_UNUSED)
{
    fail();
}

static void be_told_nothing(void *opaque KVA_UNUSED, uint32_t node KVA_UNUSED,
                            uint64_t life KVA_UNUSED, bool up KVA_UNUSED,
                            const char *why KVA_UNUSED)
{
    fail();
}

static void test_link__nobody_is_answered_before_one_knows_who_one_is(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct kva_link *mute;
    struct kva_link_params params = ends_params();
    struct end a, b = {.node = 2, .life = 6}, *only = &a;
    end_open(&a, 1, 5, NULL);
    params.transport = ends_transport();
    params.received = hear_nothing;
    params.changed = be_told_nothing;
    assert_int_equal(kva_link_create(&params, &mute, &err), KVA_OK);
    snprintf(b.address, sizeof(b.address), "127.0.0.1:%u", kva_link_port(mute));
    end_connect(&a, &b);
    while (a.downs[2] == 0) {
        (void)kva_link_progress(mute, kva_time_ns());
        ends_idle(&only, 1, 1);
    }
    kva_link_destroy(mute);
    kva_transport_destroy(params.transport);
    end_close(&a);
}

static int listen_mutely(char address[32])
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(any);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&any, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &size), 0);
    snprintf(address, 32, "127.0.0.1:%u", ntohs(any.sin_port));
    return fd;
}

static void test_link__nobody_is_waited_for_for_ever(void **state KVA_UNUSED)
{
    struct kva_link_params params = ends_params();
    params.hello_ns = 200 * KVA_NS_PER_MS;
    struct end a, mute = {.node = 2, .life = 6}, *only = &a;
    int fd = listen_mutely(mute.address);
    end_open(&a, 1, 5, &params);
    end_connect(&a, &mute);
    run_until(&only, 1, &a.downs[2], 1);
    close(fd);
    end_connect(&a, &mute); /* where nobody listens any more */
    run_until(&only, 1, &a.downs[2], 2);
    assert_int_equal(a.ups[2], 0);
    end_close(&a);
}

/* The time for HELLO begins with the connection, however long ago a link made progress: one calls;
 * the other one's caller is heard by a third, which shares its transport. */
static void
test_link__who_was_busy_for_long_has_time_for_hello_all_the_same(void **state KVA_UNUSED)
{
    struct kva_link_params params = ends_params();
    params.hello_ns = 3 * KVA_NS_PER_S;
    struct end a, b, beside, *heard[] = {&a, &beside}, *all[] = {&a, &b, &beside};
    const struct timespec busy = {.tv_sec = 3, .tv_nsec = 100 * KVA_NS_PER_MS};
    end_open(&a, 1, 5, &params);
    params.transport = ends_transport();
    end_open(&b, 2, 6, &params);
    end_open(&beside, 3, 7, &params);
    nanosleep(&busy, NULL);
    end_connect(&a, &b);
    ends_idle(heard, 2, 200);
    while (a.downs[2] == 0 && !(kva_link_is_up(a.link, 2) && kva_link_is_up(b.link, 1)))
        ends_idle(all, 3, 1);
    assert_int_equal(a.downs[2] + b.downs[1], 0);
    check_talk(&a, &b);
    end_close(&a);
    end_close(&beside);
    end_close(&b);
    kva_transport_destroy(params.transport);
}

/* To a process that was stopped, or a machine that was paused, it is suddenly much later, and what was
 * said meanwhile is unread. */
static void test_link__who_stood_still_hears_what_was_said_meanwhile(void **state KVA_UNUSED)
{
    struct end a, b, *both[] = {&a, &b};
    uint64_t later_ns = kva_time_ns();
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    end_connect(&a, &b);
    for (uint32_t i = 0; i < 10; i++) {
        later_ns += 100 * KVA_NS_PER_S;
        (void)kva_link_progress(a.link, later_ns);
        (void)kva_link_progress(b.link, later_ns);
    }
    assert_int_equal(a.downs[2] + b.downs[1], 0);
    while (a.downs[2] == 0 && !(kva_link_is_up(a.link, 2) && kva_link_is_up(b.link, 1)))
        ends_idle(both, 2, 1);
    assert_int_equal(a.downs[2] + b.downs[1], 0);
    check_talk(&a, &b);
    end_close(&a);
    end_close(&b);
}

/* --- lives ------------------------------------------------------------------------------------- */

static void test_link__a_node_that_ends_is_missed_and_comes_again(void **state KVA_UNUSED)
{
    struct end a, b, *both[] = {&a, &b};
    end_open(&b, 2, 6, NULL);
    for (uint32_t life = 1; life <= 5; life++) {
        end_open(&a, 1, life, NULL);
        if (life % 2)
            ends_meet(&a, &b);
        else
            ends_meet(&b, &a);
        check_talk(&a, &b);
        assert_int_equal(b.ups[1], life);
        assert_int_equal(b.lives[1], life);
        end_close(&a);
        run_until(both, 2, &b.downs[1], life);
    }
    end_close(&b);
}

static void test_link__a_newer_life_displaces_an_older_one(void **state KVA_UNUSED)
{
    struct end old, newer, b, *all[] = {&old, &newer, &b};
    end_open(&old, 1, 5, NULL);
    end_open(&newer, 1, 6, NULL);
    end_open(&b, 2, 1, NULL);
    ends_meet(&old, &b);
    ends_meet(&b, &old);
    end_connect(&newer, &b);
    run_until(all, 3, &newer.ups[2], 1);
    run_until(all, 3, &old.downs[2], 1);
    assert_int_equal(b.lives[1], 6);
    assert_int_equal(b.ups[1], 2);
    assert_int_equal(b.downs[1], 1);
    end_connect(&old, &b); /* which is over */
    run_until(all, 3, &old.downs[2], 2);
    assert_int_equal(b.ups[1], 2);
    check_talk(&newer, &b);
    end_close(&old);
    end_close(&newer);
    end_close(&b);
}

/* The same life from a second link: the first connection is over, whatever it looks like. */
static void test_link__who_connects_again_is_up_again(void **state KVA_UNUSED)
{
    struct end first, second, b, *all[] = {&first, &second, &b};
    end_open(&first, 1, 5, NULL);
    end_open(&second, 1, 5, NULL);
    end_open(&b, 2, 1, NULL);
    ends_meet(&first, &b);
    end_connect(&second, &b);
    run_until(all, 3, &b.ups[1], 2);
    assert_int_equal(b.downs[1], 1);
    run_until(all, 3, &first.downs[2], 1);
    run_until(all, 3, &second.ups[2], 1);
    check_talk(&second, &b);
    end_close(&first);
    end_close(&second);
    end_close(&b);
}

static void connect_with_any(struct end *from, const struct end *to)
{
    struct kva_err err;
    assert_int_equal(kva_link_connect(from->link, to->node, 0, to->address, &err), KVA_OK);
}

/* While a connection is being made, and when it is up, whatever life it was made for. */
static void
test_link__who_means_any_life_keeps_the_connection_that_is_there(void **state KVA_UNUSED)
{
    for (uint64_t life = 0; life <= 6; life += 6) {
        struct end a, b, *both[] = {&a, &b};
        struct kva_err err;
        end_open(&a, 1, 5, NULL);
        end_open(&b, 2, 6, NULL);
        assert_int_equal(kva_link_connect(a.link, 2, life, b.address, &err), KVA_OK);
        connect_with_any(&a, &b);
        run_until(both, 2, &a.ups[2], 1);
        run_until(both, 2, &b.ups[1], 1);
        connect_with_any(&a, &b);
        assert_true(kva_link_is_up(a.link, 2));
        ends_idle(both, 2, 100);
        check_talk(&a, &b);
        assert_int_equal(a.lives[2], 6);
        assert_int_equal(a.ups[2] + b.ups[1], 2);
        assert_int_equal(a.downs[2] + b.downs[1], 0);
        end_close(&a);
        end_close(&b);
    }
}

/* --- both sides -------------------------------------------------------------------------------- */

static void test_link__both_may_connect_at_once(void **state KVA_UNUSED)
{
    for (int i = 0; i < 10; i++) {
        struct end a, b, *both[] = {&a, &b};
        end_open(&a, 1, 5, NULL);
        end_open(&b, 2, 6, NULL);
        end_connect(&a, &b);
        ends_idle(both, 1, (uint32_t)i);
        end_connect(&b, &a);
        run_until(both, 2, &a.ups[2], 1);
        run_until(both, 2, &b.ups[1], 1);
        ends_idle(both, 2, 100); /* the second connection */
        check_talk(&a, &b);
        assert_int_equal(a.ups[2] + b.ups[1], 2);
        assert_int_equal(a.downs[2] + b.downs[1], 0);
        kva_link_disconnect(a.link, 2);
        run_until(both, 2, &b.downs[1], 1);
        ends_idle(both, 2, 50);
        assert_int_equal(b.downs[1], 1);
        assert_int_equal(a.downs[2], 0);
        assert_false(kva_link_is_up(a.link, 2));
        ends_meet(&b, &a);
        check_talk(&a, &b);
        end_close(&a);
        end_close(&b);
    }
}

static void leave(struct end *end, const struct kva_link_frame *frame)
{
    kva_link_disconnect(end->link, frame->node);
}

static void return_at_once(struct end *end, uint32_t node, bool up)
{
    if (!up && end->downs[node] < 5)
        end_connect(end, end->opaque);
}

/* Callbacks may do what they like: one leaves when it hears something, the other comes again. */
static void test_link__callbacks_may_connect_and_disconnect(void **state KVA_UNUSED)
{
    struct end a, b, *both[] = {&a, &b};
    end_open(&a, 1, 5, NULL);
    end_open(&b, 2, 6, NULL);
    b.then = leave;
    a.told = return_at_once;
    a.opaque = &b;
    ends_meet(&a, &b);
    for (uint32_t i = 1; i <= 5; i++) {
        run_until(both, 2, &a.ups[2], i);
        end_send(&a, 2, 8, 100);
        end_send(&a, 2, 8, 100);
        run_until(both, 2, &a.downs[2], i);
    }
    assert_int_equal(b.downs[1], 0);
    end_close(&a);
    end_close(&b);
}

/* --- many -------------------------------------------------------------------------------------- */

static void test_link__twenty_at_once(void **state KVA_UNUSED)
{
    enum { MANY = 20 };
    struct end ends[MANY + 1], *all[MANY + 1];
    for (uint32_t i = 0; i <= MANY; i++) {
        end_open(&ends[i], i + 1, 9, NULL);
        all[i] = &ends[i];
    }
    for (uint32_t i = 1; i <= MANY; i++)
        end_connect(&ends[i], &ends[0]);
    for (uint32_t i = 1; i <= MANY; i++) {
        run_until(all, MANY + 1, &ends[i].ups[1], 1);
        run_until(all, MANY + 1, &ends[0].ups[i + 1], 1);
    }
    for (int round = 0; round < 5; round++)
        for (uint32_t i = 1; i <= MANY; i++) {
            end_send(&ends[i], 1, 8, 100u << (2 * round));
            end_send(&ends[0], i + 1, 8, 300u << (2 * round));
        }
    for (uint32_t i = 1; i <= MANY; i++)
        check_talk(&ends[i], &ends[0]);
    for (uint32_t i = 0; i <= MANY; i++)
        end_close(&ends[i]);
}

static void test_link__no_more_peers_than_agreed(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct kva_link_params params = ends_params();
    params.peers_max = 2;
    struct end hub, ends[3], *all[] = {&hub, &ends[0], &ends[1], &ends[2]};
    end_open(&hub, 1, 9, &params);
    for (uint32_t i = 0; i < 3; i++)
        end_open(&ends[i], i + 2, 9, NULL);
    ends_meet(&ends[0], &hub);
    ends_meet(&hub, &ends[1]);
    ends_meet(&ends[1], &hub); /* which is no other */
    assert_int_equal(kva_link_connect(hub.link, 4, 9, ends[2].address, &err), KVA_ELIMIT);
    end_connect(&ends[2], &hub);
    run_until(all, 4, &ends[2].downs[1], 1);
    assert_int_equal(hub.ups[4], 0);
    check_talk(&ends[0], &hub);
    check_talk(&ends[1], &hub);
    kva_link_disconnect(hub.link, 2);
    run_until(all, 4, &ends[0].downs[1], 1);
    ends_meet(&hub, &ends[2]);
    check_talk(&ends[2], &hub);
    end_close(&hub);
    for (uint32_t i = 0; i < 3; i++)
        end_close(&ends[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__another_secret_is_refused),
        cmocka_unit_test(test_link__another_life_or_node_is_not_who_is_meant),
        cmocka_unit_test(test_link__nobody_is_answered_before_one_knows_who_one_is),
        cmocka_unit_test(test_link__nobody_is_waited_for_for_ever),
        cmocka_unit_test(test_link__who_was_busy_for_long_has_time_for_hello_all_the_same),
        cmocka_unit_test(test_link__who_stood_still_hears_what_was_said_meanwhile),
        cmocka_unit_test(test_link__a_node_that_ends_is_missed_and_comes_again),
        cmocka_unit_test(test_link__a_newer_life_displaces_an_older_one),
        cmocka_unit_test(test_link__who_connects_again_is_up_again),
        cmocka_unit_test(test_link__who_means_any_life_keeps_the_connection_that_is_there),
        cmocka_unit_test(test_link__both_may_connect_at_once),
        cmocka_unit_test(test_link__callbacks_may_connect_and_disconnect),
        cmocka_unit_test(test_link__twenty_at_once),
        cmocka_unit_test(test_link__no_more_peers_than_agreed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
